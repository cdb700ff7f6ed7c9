// Workers of RPC groups, what they are asked, and how calls end.
#include "rpc_pair.h"
#include "tests.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

void workers_call_each_other(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  rdzv_buffer *answer = rdzv_buffer_new();
  rdzv_rpc_call_spec call = call_of("two", "echo", "hello");
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "hello");
  call = call_of(NULL, "who", "");
  call.callee_id = 2;
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "one 1 who 1 in time");
  OK(rdzv_rpc_call(pair.one, &call, NULL, &error));
  // A worker may call itself.
  call = call_of("one", "echo", "me");
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "me");

  size_t len = 0;
  CHECK_LENT(rdzv_rpc_name(pair.one, &len), len, "one");
  CHECK_NUMBER(rdzv_rpc_id(pair.one), 1);
  CHECK(rdzv_rpc_address(pair.one, &len) != NULL && len > 0);
  rdzv_rpc_workers *workers = NULL;
  OK(rdzv_rpc_list_workers(pair.two, &workers, &error));
  CHECK_NUMBER(rdzv_rpc_workers_count(workers), 2);
  CHECK_LENT(rdzv_rpc_workers_name(workers, 1, &len), len, "two");
  CHECK_NUMBER(rdzv_rpc_workers_id(workers, 0), 1);
  CHECK(rdzv_rpc_workers_address(workers, 0, &len) != NULL && len > 0);
  CHECK(rdzv_rpc_workers_name(workers, 2, NULL) == NULL && rdzv_rpc_workers_id(workers, 2) == -1);
  CHECK(rdzv_rpc_workers_address(workers, 2, NULL) == NULL);
  rdzv_rpc_workers_free(workers);
  uint16_t id = 77;
  OK(rdzv_rpc_worker_id(pair.one, TEXT("two"), &id, &error));
  CHECK_NUMBER(id, 2);
  OK(rdzv_rpc_worker_name(pair.one, 2, answer, &error));
  CHECK_BUFFER(answer, "two");
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_rpc_worker_id(pair.one, TEXT("three"), &id, &error));
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_rpc_worker_name(pair.one, 3, answer, &error));

  // Handlers come and go while others call.
  int32_t found = 77;
  call = call_of("two", "new", "bytes");
  call_fails(pair.one, call, RDZV_RPC_NO_HANDLER, "new at two");
  OK(rdzv_rpc_add_handler(pair.two, TEXT("new"), RDZV_RPC_POOLED, echo, &kept, NULL, &error));
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "bytes");
  FAILS(RDZV_ALREADY_REGISTERED,
        rdzv_rpc_add_handler(pair.two, TEXT("new"), RDZV_RPC_POOLED, echo, &kept, NULL, &error));
  OK(rdzv_rpc_remove_handler(pair.two, TEXT("new"), &found, &error));
  CHECK_NUMBER(found, 1);
  OK(rdzv_rpc_remove_handler(pair.two, TEXT("new"), NULL, &error));

  // Nobody answers what nobody wants answered.
  const int calls = count_of(&kept, &kept.calls);
  call = call_of("two", "echo", "psst");
  OK(rdzv_rpc_notify(pair.one, &call, &error));
  await_count(&kept, &kept.calls, calls + 1);
  rdzv_buffer_free(answer);
  end_pair(&pair);
  // Of two workers that shared it.
  CHECK_NUMBER(count_of(&kept, &kept.destroyed), 1);
}

void calls_fail_with_the_reason(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  call_fails(pair.one, call_of("three", "echo", ""), RDZV_RPC_UNKNOWN_WORKER, "no worker three");
  // Who was wanted is told also where there is no such worker, by name or number as it was.
  rdzv_rpc_call_spec unknown = call_of("three", "echo", "");
  rdzv_error *wanted = NULL;
  size_t wanted_len = 0;
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &unknown, NULL, &wanted), RDZV_RPC_UNKNOWN_WORKER);
  CHECK_LENT(rdzv_error_node(wanted, 0, &wanted_len), wanted_len, "three");
  rdzv_error_free(wanted);
  unknown = call_of(NULL, "echo", "");
  unknown.callee_id = 9;
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &unknown, NULL, &wanted), RDZV_RPC_UNKNOWN_WORKER);
  CHECK_NUMBER(rdzv_error_rank(wanted, 0), 9);
  CHECK_NUMBER(rdzv_error_node_count(wanted), 0);
  rdzv_error_free(wanted);
  call_fails(pair.one, call_of("two", "nobody", ""), RDZV_RPC_NO_HANDLER, "nobody at two");
  call_fails(pair.one, call_of("two", "forget", ""), RDZV_RPC_HANDLER_FAILED, "gave no answer");
  rdzv_rpc_call_spec call = call_of("two", "refuse", "");
  rdzv_error *refused = NULL;
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &call, NULL, &refused), RDZV_RPC_HANDLER_FAILED);
  CHECK_TEXT(rdzv_error_cause(refused), "no such luck");
  size_t len = 0;
  CHECK_LENT(rdzv_error_node(refused, 0, &len), len, "two");
  rdzv_error_free(refused);
  call = call_of("two", "later", "");
  call.timeout_ms = 20;
  call_fails(pair.one, call, RDZV_TIMED_OUT, "later at two");
  call.timeout_ms = 0;
  call_fails(pair.one, call, RDZV_TIMED_OUT, NULL);
  rdzv_rpc_responder_free(take_responder(&kept));
  call_fails(pair.one, call_of("two", "", ""), INVALID, NULL);
  call_fails(NULL, call_of("two", "echo", ""), INVALID, "rpc");
  call = call_of(NULL, "echo", "");
  call_fails(pair.one, call, INVALID, "its id is -1");
  call = call_of("two", "echo", "");
  call.struct_size = 8;
  call_fails(pair.one, call, INVALID, "struct_size");
  call = call_of("two", "echo", "");
  call.timeout_ms = -7;
  call_fails(pair.one, call, INVALID, "timeout_ms");
  call = call_of("two", "\xff", "");
  call_fails(pair.one, call, INVALID, "UTF-8");
  FAILS(INVALID, rdzv_rpc_call(pair.one, NULL, NULL, &error));
  end_pair(&pair);
}

static void *cancel(void *argument) {
  rdzv_rpc_future_cancel(argument);
  return NULL;
}

// One who waits for a future as long as its call may take.
struct waiter {
  const rdzv_rpc_future *future;
  struct kept *kept;
};

static void *wait_for_it(void *argument) {
  const struct waiter *waiter = argument;
  int32_t ended = 0;
  count_up(waiter->kept, &waiter->kept->told);
  OK(rdzv_rpc_future_wait(waiter->future, -1, &ended, NULL, &error));
  CHECK_NUMBER(ended, 1);
  return NULL;
}

void futures_hold_up_nobody_who_looks_once(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  struct waiter waiter = {.kept = &kept};
  rdzv_rpc_future *future = NULL;
  rdzv_rpc_call_spec call = call_of("two", "later", "");
  OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
  waiter.future = future;
  await_count(&kept, &kept.calls, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wait_for_it, &waiter) == 0);
  await_count(&kept, &kept.told, 1);
  // Also when the other one is in the midst of it.
  for (int i = 0; i < 200; ++i) {
    int32_t ended = 77;
    OK(rdzv_rpc_future_wait(future, i % 2, &ended, NULL, &error));
    CHECK_NUMBER(ended, 0);
    CHECK_NUMBER(rdzv_rpc_future_is_ready(future), 0);
  }
  OK(rdzv_rpc_responder_answer(take_responder(&kept), TEXT("x"), NULL, NULL, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_future_free(future);
  end_pair(&pair);
}

static void *call_until_cancelled(void *argument) {
  call_fails(argument, call_of("two", "later", ""), RDZV_CANCELLED, "cancelled");
  return NULL;
}

struct listener {
  const rdzv_rpc *rpc;
  struct kept *kept;
};

static void *listen_until_cancelled(void *argument) {
  const struct listener *listener = argument;
  rdzv_rpc_event event = {.struct_size = sizeof event};
  FAILS(RDZV_CANCELLED, rdzv_rpc_next_event(listener->rpc, PATIENCE_MS, &event, NULL, NULL, &error));
  count_up(listener->kept, &listener->kept->told);
  return NULL;
}

void waits_are_cancelled_from_another_thread(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, call_until_cancelled, pair.one) == 0);
  await_count(&kept, &kept.calls, 1);
  rdzv_rpc_cancel(pair.one);
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_responder_free(take_responder(&kept));
  // Later calls are as ever.
  rdzv_rpc_call_spec call = call_of("two", "echo", "");
  OK(rdzv_rpc_call(pair.one, &call, NULL, &error));

  rdzv_rpc_event event = {.struct_size = sizeof event};
  OK(rdzv_rpc_next_event(pair.one, PATIENCE_MS, &event, NULL, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_RPC_EVENT_JOINED);
  struct listener listener = {.rpc = pair.one, .kept = &kept};
  CHECK(pthread_create(&thread, NULL, listen_until_cancelled, &listener) == 0);
  // It may begin to listen a moment later.
  while (count_of(&kept, &kept.told) == 0) {
    rdzv_rpc_cancel(pair.one);
    sched_yield();
  }
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_cancel(NULL);
  end_pair(&pair);
}

void futures_and_callbacks_tell_what_came_of_calls(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  rdzv_buffer *answer = rdzv_buffer_new();
  rdzv_rpc_future *future = NULL;
  int32_t ended = 77;
  rdzv_rpc_call_spec call = call_of("two", "later", "");
  OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  CHECK_NUMBER(rdzv_rpc_future_is_ready(future), 0);
  OK(rdzv_rpc_future_wait(future, 0, &ended, answer, &error));
  CHECK_NUMBER(ended, 0);
  OK(rdzv_rpc_responder_answer(take_responder(&kept), TEXT("at last"), release, &kept, &error));
  OK(rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
  CHECK_NUMBER(ended, 1);
  CHECK_BUFFER(answer, "at last");
  CHECK_NUMBER(rdzv_rpc_future_is_ready(future), 1);
  FAILS(INVALID, rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
  rdzv_rpc_future_free(future);
  await_count(&kept, &kept.released, 1);

  // One thread waits, another one ends it.
  OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 2);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, cancel, future) == 0);
  FAILS(RDZV_CANCELLED, rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, NULL, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_future_free(future);
  rdzv_rpc_responder_free(take_responder(&kept));

  // One that nobody waits for.
  OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
  rdzv_rpc_future_free(future);

  call = call_of("two", "echo", "back");
  OK(rdzv_rpc_call_with(pair.one, &call, done, &kept, &error));
  is_told(&kept, 1, RDZV_OK, "back");
  call = call_of("two", "refuse", "");
  OK(rdzv_rpc_call_with(pair.one, &call, done, &kept, &error));
  is_told(&kept, 2, RDZV_RPC_HANDLER_FAILED, "no such luck");
  call = call_of("three", "echo", "");
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_rpc_call_with(pair.one, &call, done, &kept, &error));
  FAILS(INVALID, rdzv_rpc_call_with(pair.one, &call, NULL, &kept, &error));
  CHECK_NUMBER(count_of(&kept, &kept.told), 2);
  FAILS(INVALID, rdzv_rpc_start_call(pair.one, &call, NULL, &error));
  FAILS(INVALID, rdzv_rpc_future_wait(NULL, 0, &ended, NULL, &error));
  rdzv_rpc_responder_free(take_responder(&kept));
  rdzv_buffer_free(answer);
  end_pair(&pair);
}

void lent_bytes_are_given_back_once(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  const size_t len = 8u << 20;
  uint8_t *bytes = malloc(len);
  memset(bytes, 7, len);
  rdzv_rpc_call_spec call = call_of("two", "echo", "");
  call.payload = bytes;
  call.payload_len = len;
  call.release = release;
  call.user_data = &kept;
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_NUMBER(rdzv_buffer_len(answer), len);
  CHECK(memcmp(rdzv_buffer_data(answer), bytes, len) == 0);
  await_count(&kept, &kept.released, 1);
  // Also where the call is not even made.
  call.callee = (const uint8_t *)"xxx";
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_rpc_call(pair.one, &call, answer, &error));
  await_count(&kept, &kept.released, 2);
  FAILS(INVALID, rdzv_rpc_notify(NULL, &call, &error));
  await_count(&kept, &kept.released, 3);
  call.timeout_ms = -5;
  FAILS(INVALID, rdzv_rpc_notify(pair.one, &call, &error));
  await_count(&kept, &kept.released, 4);
  FAILS(INVALID, rdzv_rpc_responder_answer(NULL, bytes, len, release, &kept, &error));
  CHECK_NUMBER(count_of(&kept, &kept.released), 5);
  rdzv_buffer_free(answer);
  end_pair(&pair);
  CHECK_NUMBER(count_of(&kept, &kept.released), 5);
  free(bytes);
}

// Keeps the bytes of the request, and answers when the test wants it.
static void take(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct kept *kept = user_data;
  size_t len = 0, left = 77;
  rdzv_buffer *taken = rdzv_buffer_new(), *again = rdzv_buffer_new();
  const uint8_t *lay_at = rdzv_rpc_request_payload(request, &len);
  OK(rdzv_rpc_request_take(request, taken, &error));
  CHECK_NUMBER(rdzv_buffer_len(taken), len);
  CHECK(rdzv_rpc_request_payload(request, &left) != NULL && left == 0);
  OK(rdzv_rpc_request_take(request, again, &error));
  CHECK_BUFFER(again, "");
  rdzv_buffer_free(again);
  FAILS(INVALID, rdzv_rpc_request_take(request, NULL, &error));
  FAILS(INVALID, rdzv_rpc_request_take(NULL, taken, &error));
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  kept->taken = taken;
  kept->lay_at = lay_at;
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  later(user_data, request, responder);
}

static void free_buffer(void *user_data) {
  rdzv_buffer_free(user_data);
}

// What was taken: where it lay before, unless it was only lent; and it is the answer now.
static void answer_with_what_was_taken(struct kept *kept, int calls, bool was_lent) {
  await_count(kept, &kept->calls, calls);
  rdzv_rpc_responder *responder = take_responder(kept);
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  rdzv_buffer *taken = kept->taken;
  CHECK((rdzv_buffer_data(taken) == kept->lay_at) == !was_lent);
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  OK(rdzv_rpc_responder_answer(responder, rdzv_buffer_data(taken), rdzv_buffer_len(taken), free_buffer, taken, &error));
}

void requests_are_taken_without_being_copied(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  OK(rdzv_rpc_add_handler(pair.two, TEXT("take inline"), RDZV_RPC_INLINE, take, &kept, NULL, &error));
  OK(rdzv_rpc_add_handler(pair.two, TEXT("take"), RDZV_RPC_POOLED, take, &kept, NULL, &error));
  // Short ones, and one that is received into a buffer of its own.
  const size_t lens[] = {1, 70000, 8u << 20};
  rdzv_buffer *answer = rdzv_buffer_new();
  int calls = 0;
  for (size_t i = 0; i < 2 * sizeof lens / sizeof *lens; ++i) {
    const size_t len = lens[i / 2];
    uint8_t *bytes = malloc(len);
    memset(bytes, (int)i + 1, len);
    rdzv_rpc_call_spec call = call_of("two", i % 2 == 0 ? "take inline" : "take", "");
    call.payload = bytes;
    call.payload_len = len;
    rdzv_rpc_future *future = NULL;
    int32_t ended = 0;
    OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
    answer_with_what_was_taken(&kept, ++calls, false);
    OK(rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
    rdzv_rpc_future_free(future);
    CHECK_NUMBER(rdzv_buffer_len(answer), len);
    CHECK(memcmp(rdzv_buffer_data(answer), bytes, len) == 0);
    free(bytes);
  }
  // A backend only lends what it hands on.
  rdzv_rpc_handlers *handlers = NULL;
  OK(rdzv_rpc_handlers_new(&handlers, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("take"), RDZV_RPC_INLINE, take, &kept, NULL, &error));
  const int told = count_of(&kept, &kept.told);
  OK(rdzv_rpc_handlers_dispatch(handlers, TEXT("x"), 1, TEXT("take"), TEXT("lent"), -1, 1, done, &kept, &error));
  answer_with_what_was_taken(&kept, ++calls, true);
  is_told(&kept, told + 1, RDZV_OK, "lent");
  rdzv_rpc_handlers_free(handlers);
  rdzv_buffer_free(answer);
  end_pair(&pair);
}

static void *shut_down(void *argument) {
  OK(rdzv_rpc_shutdown(argument, RDZV_RPC_GRACEFUL, &error));
  return NULL;
}

void workers_that_leave_answer_what_they_were_asked(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  await_group_event(pair.one, RDZV_RPC_EVENT_JOINED, "two", NULL);
  rdzv_rpc_future *future = NULL;
  rdzv_rpc_call_spec call = call_of("two", "later", "");
  OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, shut_down, pair.two) == 0);
  await_group_event(pair.one, RDZV_RPC_EVENT_LEFT, "two", NULL);
  call_fails(pair.one, call_of("two", "echo", ""), RDZV_RPC_UNKNOWN_WORKER, "two");
  OK(rdzv_rpc_responder_answer(take_responder(&kept), TEXT("in time"), NULL, NULL, &error));
  int32_t ended = 0;
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, answer, &error));
  CHECK_NUMBER(ended, 1);
  CHECK_BUFFER(answer, "in time");
  rdzv_rpc_future_free(future);
  rdzv_buffer_free(answer);
  CHECK(pthread_join(thread, NULL) == 0);
  end_pair(&pair);
}

void workers_end_in_both_ways(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  await_group_event(pair.one, RDZV_RPC_EVENT_JOINED, "two", NULL);
  rdzv_rpc_event event = {.struct_size = sizeof event};
  OK(rdzv_rpc_next_event(pair.one, 0, &event, NULL, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_RPC_EVENT_NONE);
  CHECK_NUMBER(event.id, -1);
  FAILS(INVALID, rdzv_rpc_next_event(pair.one, 0, NULL, NULL, NULL, &error));

  // A graceful end awaits what is under way.
  rdzv_rpc_future *future = NULL;
  rdzv_rpc_call_spec call = call_of("one", "later", "");
  OK(rdzv_rpc_start_call(pair.two, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, shut_down, pair.two) == 0);
  // Whoever did not await it would have left long before.
  OK(rdzv_rpc_next_event(pair.one, 500, &event, NULL, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_RPC_EVENT_NONE);
  OK(rdzv_rpc_responder_answer(take_responder(&kept), TEXT("in time"), NULL, NULL, &error));
  int32_t ended = 0;
  OK(rdzv_rpc_future_wait(future, -1, &ended, NULL, &error));
  rdzv_rpc_future_free(future);
  CHECK(pthread_join(thread, NULL) == 0);
  await_group_event(pair.two, RDZV_RPC_EVENT_OVER, "", NULL);
  // The end is told once; whoever asks again is refused at once.
  FAILS(RDZV_RPC_NO_MEMBER, rdzv_rpc_next_event(pair.two, -1, &event, NULL, NULL, &error));
  await_group_event(pair.one, RDZV_RPC_EVENT_LEFT, "two", NULL);
  call_fails(pair.two, call_of("one", "echo", ""), RDZV_RPC_NO_MEMBER,
             "this worker is not a member of the group any more: this worker has left");
  call_fails(pair.one, call_of("two", "echo", ""), RDZV_RPC_UNKNOWN_WORKER, NULL);
  OK(rdzv_rpc_shutdown(pair.two, RDZV_RPC_GRACEFUL, &error));
  FAILS(INVALID, rdzv_rpc_shutdown(pair.one, 3, &error));
  rdzv_rpc_free(pair.two);

  // An abrupt one is a death, and calls to it fail at once.
  pair.two = join(pair.store, "two", 2, -1, NULL, NULL);
  await_group_event(pair.one, RDZV_RPC_EVENT_JOINED, "two", NULL);
  OK(rdzv_rpc_add_handler(pair.two, TEXT("later"), RDZV_RPC_INLINE, later, &kept, NULL, &error));
  call = call_of("two", "later", "");
  OK(rdzv_rpc_start_call(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 2);
  OK(rdzv_rpc_shutdown(pair.two, RDZV_RPC_ABRUPT, &error));
  FAILS(RDZV_RPC_PEER_DIED, rdzv_rpc_future_wait(future, -1, &ended, NULL, &error));
  rdzv_rpc_future_free(future);
  // Its sign at the store vanishes, and no worker is at its address any more: whichever is seen first.
  await_group_event(pair.one, RDZV_RPC_EVENT_DIED, "two", "");
  call_fails(pair.one, call_of("two", "echo", ""), RDZV_RPC_PEER_DIED, "two");
  rdzv_rpc_responder_free(take_responder(&kept));
  end_pair(&pair);
}

void workers_are_made_as_they_are_told(void) {
  struct kept kept = new_kept();
  rdzv_server *server = start_server(NULL);
  char url[64], port[8];
  snprintf(url, sizeof url, "tcp://127.0.0.1:%d", rdzv_server_port(server));
  snprintf(port, sizeof port, "%d", rdzv_server_port(server));
  rdzv_context *context = NULL;
  OK(rdzv_context_new(&context, &error));
  const rdzv_bytes names[] = {BYTES("num_worker_threads"), BYTES("transports")};
  const rdzv_bytes values[] = {BYTES("3"), BYTES("shm,uv")};
  rdzv_rpc_options *options = NULL;
  OK(rdzv_rpc_options_new(context, TEXT("tcp"), 30000, TEXT("env://"), names, values, 2, &options, &error));
  CHECK_NUMBER(rdzv_rpc_options_worker_threads(options), 3);
  CHECK_NUMBER(rdzv_rpc_options_rpc_timeout_ms(options), 30000);
  rdzv_list *transports = rdzv_list_new(), *channels = rdzv_list_new();
  OK(rdzv_rpc_options_set_channels(options, &names[0], 1, &error));
  OK(rdzv_rpc_options_lists(options, transports, channels, &error));
  CHECK_ITEM(transports, 1, "uv");
  CHECK_ITEM(channels, 0, "num_worker_threads");
  OK(rdzv_rpc_options_set_transports(options, NULL, 0, &error));
  OK(rdzv_rpc_options_lists(options, transports, NULL, &error));
  CHECK_NUMBER(rdzv_list_count(transports), 0);
  // None is not the same as not set.
  CHECK_NUMBER(rdzv_rpc_options_has_transports(options), 1);
  CHECK_NUMBER(rdzv_rpc_options_has_channels(options), 1);
  CHECK_NUMBER(rdzv_rpc_options_has_transports(NULL) + rdzv_rpc_options_has_channels(NULL), 0);
  OK(rdzv_rpc_options_set_rpc_timeout_ms(options, PATIENCE_MS, &error));
  OK(rdzv_rpc_options_set_membership_timeout_ms(options, PATIENCE_MS, &error));
  OK(rdzv_rpc_options_set_worker_threads(options, 2, &error));
  OK(rdzv_rpc_options_set_host(options, TEXT("127.0.0.1"), &error));
  OK(rdzv_rpc_options_set_listen_host(options, TEXT("127.0.0.1"), &error));
  const rdzv_bytes devices[] = {BYTES("cuda:1"), BYTES("cuda:0")};
  OK(rdzv_rpc_options_set_device_count(options, 2, NULL, 0, &error));
  OK(rdzv_rpc_options_set_devices(options, devices, 2, &error));
  OK(rdzv_rpc_options_set_device_map(options, TEXT("alone"), &devices[0], &devices[1], 1, &error));
  rdzv_buffer *message = rdzv_buffer_new();
  OK(rdzv_rpc_options_describe(options, message, &error));
  CHECK_BUFFER(message,
               "<tcp: rpc_timeout=20.0, init_method='env://', num_worker_threads=2, "
               "device_maps={'alone': {cuda:1: cuda:0}}, devices=[cuda:1, cuda:0]>");

  // All of it can be read, as a backend of the program's own has to.
  rdzv_list *left = rdzv_list_new(), *right = rdzv_list_new();
  OK(rdzv_rpc_options_init_method(options, message, &error));
  CHECK_BUFFER(message, "env://");
  OK(rdzv_rpc_options_list_devices(options, left, &error));
  CHECK_NUMBER(rdzv_list_count(left), 2);
  CHECK_ITEM(left, 0, "cuda:1");
  OK(rdzv_rpc_options_list_mapped_workers(options, left, &error));
  CHECK_NUMBER(rdzv_list_count(left), 1);
  CHECK_ITEM(left, 0, "alone");
  OK(rdzv_rpc_options_list_device_map(options, TEXT("alone"), left, right, &error));
  CHECK_NUMBER(rdzv_list_count(left), 1);
  CHECK_ITEM(left, 0, "cuda:1");
  CHECK_ITEM(right, 0, "cuda:0");
  OK(rdzv_rpc_options_list_device_map(options, TEXT("nobody"), left, right, &error));
  CHECK_NUMBER(rdzv_list_count(left) + rdzv_list_count(right), 0);
  FAILS(INVALID, rdzv_rpc_options_init_method(NULL, message, &error));
  FAILS(INVALID, rdzv_rpc_options_list_devices(options, NULL, &error));
  FAILS(INVALID, rdzv_rpc_options_list_mapped_workers(NULL, left, &error));
  FAILS(INVALID, rdzv_rpc_options_list_device_map(options, TEXT("alone"), left, NULL, &error));
  rdzv_list_free(left);
  rdzv_list_free(right);

  // The way to meet is that of the variables, and the rank too; then by the URL.
  rdzv_rpc *rpc = NULL;
  FAILS(INVALID, rdzv_rpc_init(context, TEXT("alone"), -1, -1, options, NULL, &rpc, &error));
  OK(rdzv_rpc_options_set_variable(options, TEXT("RANK"), TEXT("1"), &error));
  OK(rdzv_rpc_options_set_variable(options, TEXT("MASTER_ADDR"), TEXT("127.0.0.1"), &error));
  OK(rdzv_rpc_options_set_variable(options, TEXT("MASTER_PORT"), TEXT(port), &error));
  OK(rdzv_rpc_init(context, TEXT("alone"), -1, -1, options, NULL, &rpc, &error));
  CHECK_NUMBER(rdzv_rpc_id(rpc), 1);
  rdzv_rpc *second = NULL;
  FAILS_LIKE(((struct failure){.status = RDZV_RPC_ALREADY_INITIALIZED, .message_part = "RPC is already initialized"}),
             rdzv_rpc_init(context, TEXT("other"), 2, -1, options, NULL, &second, &error));
  CHECK(second == NULL);
  rdzv_list *used = rdzv_list_new();
  CHECK_NUMBER(rdzv_rpc_events_lost(rpc), 0);
  OK(rdzv_rpc_devices(rpc, used, &error));
  CHECK_ITEM(used, 0, "cuda:0");
  CHECK_ITEM(used, 1, "cuda:1");
  OK(rdzv_rpc_reverse_maps(rpc, message, &error));
  CHECK_BUFFER(message, "{'alone': {cuda:0: cuda:1}}");
  OK(rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  // The first is over; its handle does not end the next one.
  OK(rdzv_rpc_options_set_init_method(options, TEXT(url), &error));
  OK(rdzv_rpc_init(context, TEXT("next"), 2, -1, options, NULL, &second, &error));
  rdzv_rpc_free(rpc);
  rdzv_rpc_call_spec call = call_of("next", "echo", "");
  call_fails(second, call, RDZV_RPC_NO_HANDLER, NULL);
  rdzv_rpc_free(second);

  // What makes no sense is refused, and changes nothing.
  FAILS(INVALID, rdzv_rpc_options_set_worker_threads(options, 0, &error));
  FAILS(INVALID, rdzv_rpc_options_set_rpc_timeout_ms(options, -1, &error));
  FAILS(INVALID, rdzv_rpc_options_set_membership_timeout_ms(options, 0, &error));
  FAILS(INVALID, rdzv_rpc_options_set_init_method(options, TEXT(""), &error));
  FAILS(INVALID, rdzv_rpc_options_set_variable(options, TEXT("HOME"), TEXT("x"), &error));
  FAILS(INVALID, rdzv_rpc_options_set_host(options, TEXT(""), &error));
  FAILS(INVALID, rdzv_rpc_options_set_listen_host(options, TEXT(""), &error));
  FAILS(INVALID, rdzv_rpc_options_set_device_count(options, 1, TEXT("cpu"), &error));
  FAILS(INVALID, rdzv_rpc_options_set_devices(options, &names[0], 1, &error));
  FAILS(INVALID, rdzv_rpc_options_set_device_map(options, TEXT("a b"), devices, devices, 1, &error));
  FAILS(INVALID, rdzv_rpc_options_set_transports(options, &BYTES(""), 1, &error));
  FAILS(INVALID, rdzv_rpc_options_new(context, NULL, 0, -1, NULL, 0, devices, devices, 1, &options, &error));
  FAILS(RDZV_NOT_REGISTERED, rdzv_rpc_options_new(context, TEXT("ucx"), -1, NULL, 0, NULL, NULL, 0, &options, &error));
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "Worker name must match"}),
             rdzv_rpc_init(context, TEXT("a b"), 1, -1, options, NULL, &rpc, &error));
  FAILS(INVALID, rdzv_rpc_init(context, TEXT("a"), 65536, -1, options, NULL, &rpc, &error));
  FAILS(INVALID, rdzv_rpc_init(context, TEXT("a"), 1, -1, options, NULL, NULL, &error));
  FAILS(INVALID, rdzv_rpc_init_over_store(context, NULL, TEXT("a"), 1, -1, options, NULL, &rpc, &error));
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(context, PATIENCE_MS, &store, &error));
  FAILS(INVALID, rdzv_rpc_init_over_store(context, store, TEXT("a"), -1, -1, options, NULL, &rpc, &error));
  rdzv_store_free(store);

  rdzv_rpc_handlers *handlers = handlers_of(&kept);
  FAILS(RDZV_ALREADY_REGISTERED,
        rdzv_rpc_handlers_add(handlers, TEXT("echo"), RDZV_RPC_INLINE, echo, &kept, destroy, &error));
  FAILS(INVALID, rdzv_rpc_handlers_add(handlers, TEXT("rdzv/x"), RDZV_RPC_INLINE, echo, &kept, destroy, &error));
  FAILS(INVALID, rdzv_rpc_handlers_add(handlers, TEXT("x"), 3, echo, &kept, destroy, &error));
  FAILS(INVALID, rdzv_rpc_handlers_add(handlers, TEXT("x"), RDZV_RPC_INLINE, NULL, &kept, destroy, &error));
  CHECK_NUMBER(count_of(&kept, &kept.destroyed), 0);
  rdzv_rpc_handlers_free(handlers);
  CHECK_NUMBER(count_of(&kept, &kept.destroyed), 1);
  rdzv_list_free(used);
  rdzv_list_free(transports);
  rdzv_list_free(channels);
  rdzv_buffer_free(message);
  rdzv_rpc_options_free(options);
  rdzv_context_free(context);
  rdzv_server_free(server);
}

static void *init_static(void *argument) {
  return join(argument, "one", 1, 2, NULL, NULL);
}

void static_workers_agree_to_end(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, init_static, store) == 0);
  rdzv_rpc *zero = join(store, "zero", 0, 2, NULL, NULL);
  void *one = NULL;
  CHECK(pthread_join(thread, &one) == 0);
  rdzv_rpc *late = NULL;
  FAILS_LIKE(((struct failure){.status = RDZV_RPC_MIXED_GROUP, .message_part = "mixes statically and dynamically"}),
             rdzv_rpc_init_over_store(NULL, store, TEXT("late"), 7, -1, NULL, NULL, &late, &error));
  CHECK(pthread_create(&thread, NULL, shut_down, one) == 0);
  OK(rdzv_rpc_shutdown(zero, RDZV_RPC_GRACEFUL, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_free(zero);
  rdzv_rpc_free(one);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void rpc_handles_may_be_null(void) {
  size_t len = 0;
  rdzv_buffer *buffer = rdzv_buffer_new();
  rdzv_list *list = rdzv_list_new();
  rdzv_rpc_workers *workers = NULL;
  rdzv_rpc_handlers *handlers = NULL;
  uint16_t id = 0;
  rdzv_rpc_free(NULL);
  rdzv_rpc_options_free(NULL);
  rdzv_rpc_options_cancel(NULL);
  rdzv_rpc_handlers_free(NULL);
  rdzv_rpc_workers_free(NULL);
  rdzv_rpc_future_free(NULL);
  rdzv_rpc_future_cancel(NULL);
  rdzv_rpc_responder_free(NULL);
  CHECK(rdzv_rpc_name(NULL, &len) == NULL && rdzv_rpc_address(NULL, &len) == NULL && rdzv_rpc_id(NULL) == -1);
  CHECK(rdzv_rpc_workers_count(NULL) == 0 && rdzv_rpc_workers_name(NULL, 0, &len) == NULL);
  CHECK(rdzv_rpc_workers_id(NULL, 0) == -1 && rdzv_rpc_workers_address(NULL, 0, &len) == NULL);
  CHECK(rdzv_rpc_future_is_ready(NULL) == 0 && rdzv_rpc_responder_is_wanted(NULL) == 0);
  CHECK(rdzv_rpc_request_caller(NULL, &len) == NULL && rdzv_rpc_request_handler(NULL, &len) == NULL);
  CHECK(rdzv_rpc_request_payload(NULL, &len) == NULL && rdzv_rpc_request_caller_id(NULL) == 0);
  CHECK(rdzv_rpc_request_answer_is_wanted(NULL) == 0 && rdzv_rpc_request_time_left_ms(NULL) == 0);
  CHECK(rdzv_rpc_options_rpc_timeout_ms(NULL) == 0 && rdzv_rpc_options_worker_threads(NULL) == 0);
  FAILS(INVALID, rdzv_rpc_shutdown(NULL, RDZV_RPC_ABRUPT, &error));
  FAILS(INVALID, rdzv_rpc_list_workers(NULL, &workers, &error));
  FAILS(INVALID, rdzv_rpc_worker_id(NULL, TEXT("a"), &id, &error));
  FAILS(INVALID, rdzv_rpc_worker_name(NULL, 0, buffer, &error));
  FAILS(INVALID, rdzv_rpc_devices(NULL, list, &error));
  FAILS(INVALID, rdzv_rpc_reverse_maps(NULL, buffer, &error));
  CHECK_NUMBER(rdzv_rpc_events_lost(NULL), 0);
  FAILS(INVALID, rdzv_rpc_options_describe(NULL, buffer, &error));
  FAILS(INVALID, rdzv_rpc_options_lists(NULL, list, list, &error));
  FAILS(INVALID, rdzv_rpc_options_list_extra(NULL, list, list, &error));
  FAILS(INVALID, rdzv_rpc_handlers_new(NULL, &error));
  FAILS(INVALID, rdzv_rpc_handlers_clone(NULL, &handlers, &error));
  FAILS(INVALID, rdzv_rpc_responder_fail(NULL, TEXT("x"), &error));
  FAILS(INVALID, rdzv_rpc_responder_fail_with(NULL, RDZV_IO, TEXT("x"), &error));
  rdzv_error *made = rdzv_error_new(RDZV_RPC_MALFORMED, TEXT("a number is no text"));
  CHECK_NUMBER(rdzv_error_status(made), RDZV_RPC_MALFORMED);
  rdzv_error *copy = rdzv_error_clone(made);
  rdzv_error_free(made);
  CHECK_NUMBER(rdzv_error_status(copy), RDZV_RPC_MALFORMED);
  CHECK_TEXT(rdzv_error_message(copy), "a number is no text");
  rdzv_error_free(copy);
  CHECK(rdzv_error_clone(NULL) == NULL);
  // One of a call names whom that was for.
  rdzv_rpc_call_spec call = call_of("two", "echo", "");
  made = rdzv_error_new_of_call(RDZV_RPC_MALFORMED, TEXT("no text"), &call);
  CHECK_NUMBER(rdzv_error_status(made), RDZV_RPC_MALFORMED);
  CHECK_TEXT(rdzv_error_message(made), "no text");
  CHECK_TEXT(rdzv_error_operation(made), "call");
  CHECK_LENT(rdzv_error_node(made, 0, &len), len, "two");
  rdzv_error_free(made);
  call = call_of(NULL, "echo", "");
  call.callee_id = 9;
  made = rdzv_error_new_of_call(RDZV_RPC_MALFORMED, TEXT("no text"), &call);
  CHECK_NUMBER(rdzv_error_rank(made, 0), 9);
  CHECK_NUMBER(rdzv_error_node_count(made), 0);
  rdzv_error_free(made);
  made = rdzv_error_new_of_call(RDZV_RPC_MALFORMED, NULL, 0, NULL);
  CHECK_TEXT(rdzv_error_message(made), "");
  rdzv_error_free(made);
  CHECK(rdzv_loop_rpc_called(NULL) == NULL);
  rdzv_buffer_free(buffer);
  rdzv_list_free(list);
}
