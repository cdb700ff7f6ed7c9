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

  const rdzv_rpc_info info = worker_info(pair.one);
  CHECK_NUMBER(info.struct_size, sizeof info);
  CHECK_BYTES(info.name, "one");
  CHECK_NUMBER(info.id, 1);
  CHECK(info.address.len > 0 && info.events_lost == 0);
  rdzv_rpc_workers *workers = NULL;
  OK(rdzv_rpc_list_workers(pair.two, &workers, &error));
  CHECK_NUMBER(workers->struct_size, sizeof *workers);
  CHECK_NUMBER(workers->count, 2);
  CHECK_BYTES(workers->workers[1].name, "two");
  CHECK_NUMBER(workers->workers[0].id, 1);
  CHECK(workers->workers[0].address.len == info.address.len);
  CHECK(memcmp(workers->workers[0].address.data, info.address.data, info.address.len) == 0);
  rdzv_rpc_workers_free(workers);

  // Handlers come and go while others call.
  int32_t found = 77;
  call = call_of("two", "new", "bytes");
  call_fails(pair.one, call, RDZV_RPC_NO_HANDLER, "new at two");
  OK(rdzv_rpc_add_handler(pair.two, TEXT("new"), RDZV_RPC_POOLED, NULL, echo, &kept, NULL, &error));
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "bytes");
  FAILS(RDZV_ALREADY_REGISTERED,
        rdzv_rpc_add_handler(pair.two, TEXT("new"), RDZV_RPC_POOLED, NULL, echo, &kept, NULL, &error));
  OK(rdzv_rpc_remove_handler(pair.two, TEXT("new"), &found, &error));
  CHECK_NUMBER(found, 1);
  OK(rdzv_rpc_remove_handler(pair.two, TEXT("new"), NULL, &error));

  // Some have a list of callers.
  FAILS(INVALID, rdzv_rpc_add_handler(pair.two, TEXT("some"), RDZV_RPC_INLINE, "a b", echo, &kept, NULL, &error));
  // An empty list is not a missing one.
  FAILS(INVALID, rdzv_rpc_add_handler(pair.two, TEXT("some"), RDZV_RPC_INLINE, "", echo, &kept, NULL, &error));
  OK(rdzv_rpc_add_handler(pair.two, TEXT("some"), RDZV_RPC_INLINE, "ps, tw*", echo, &kept, NULL, &error));
  call = call_of("two", "some", "bytes");
  call_fails(pair.one, call, RDZV_PERMISSION_DENIED, "one (id 1) is not in its list of callers");
  OK(rdzv_rpc_call(pair.two, &call, answer, &error));
  CHECK_BUFFER(answer, "bytes");

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
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &unknown, NULL, &wanted), RDZV_RPC_UNKNOWN_WORKER);
  CHECK_NODE(wanted, 0, "three");
  rdzv_error_free(wanted);
  unknown = call_of(NULL, "echo", "");
  unknown.callee_id = 9;
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &unknown, NULL, &wanted), RDZV_RPC_UNKNOWN_WORKER);
  CHECK_NUMBER(info_of(wanted).ranks[0], 9);
  CHECK_NUMBER(info_of(wanted).node_count, 0);
  rdzv_error_free(wanted);
  call_fails(pair.one, call_of("two", "nobody", ""), RDZV_RPC_NO_HANDLER, "nobody at two");
  call_fails(pair.one, call_of("two", "forget", ""), RDZV_RPC_HANDLER_FAILED, "gave no answer");
  rdzv_rpc_call_spec call = call_of("two", "refuse", "");
  rdzv_error *refused = NULL;
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &call, NULL, &refused), RDZV_RPC_HANDLER_FAILED);
  CHECK_TEXT(info_of(refused).cause, "no such luck");
  CHECK_NODE(refused, 0, "two");
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
  OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
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
  }
  OK(rdzv_rpc_responder_send(take_responder(&kept), TEXT("x"), NULL, NULL, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_future_free(future);
  end_pair(&pair);
}

// Joins a worker whose waits a token cancels.
static rdzv_rpc *join_with_token(rdzv_store *store, const char *name, int rank, const rdzv_cancel_token *token) {
  const rdzv_rpc_options options = {.struct_size = sizeof options, .token = token};
  return join(store, name, rank, -1, &options, NULL);
}

static void *call_until_cancelled(void *argument) {
  call_fails(argument, call_of("two", "later", ""), RDZV_CANCELLED, "cancelled");
  return NULL;
}

static void *listen_until_cancelled(void *rpc) {
  rdzv_rpc_event event = {.struct_size = sizeof event};
  FAILS(RDZV_CANCELLED, rdzv_rpc_next_event(rpc, PATIENCE_MS, &event, NULL, NULL, &error));
  return NULL;
}

void waits_are_cancelled_from_another_thread(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  rdzv_cancel_token *token = NULL;
  token = rdzv_cancel_token_new();
  rdzv_rpc *three = join_with_token(pair.store, "three", 3, token);
  pthread_t caller, listener;
  CHECK(pthread_create(&caller, NULL, call_until_cancelled, three) == 0);
  CHECK(pthread_create(&listener, NULL, listen_until_cancelled, three) == 0);
  await_count(&kept, &kept.calls, 1);
  // A thread that begins to wait a moment later is cancelled, too.
  rdzv_cancel_token_cancel(token);
  CHECK(pthread_join(caller, NULL) == 0);
  CHECK(pthread_join(listener, NULL) == 0);
  rdzv_rpc_responder_free(take_responder(&kept));
  // The worker goes on: futures are not cancelled, nor is its end.
  rdzv_rpc_call_spec call = call_of("two", "echo", "");
  FAILS(RDZV_CANCELLED, rdzv_rpc_call(three, &call, NULL, &error));
  rdzv_rpc_future *future = NULL;
  int32_t ended = 0;
  OK(rdzv_rpc_future_new(three, &call, &future, &error));
  OK(rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, NULL, &error));
  CHECK_NUMBER(ended, 1);
  rdzv_rpc_future_free(future);
  OK(rdzv_rpc_shutdown(three, RDZV_RPC_GRACEFUL, &error));
  rdzv_rpc_free(three);
  rdzv_cancel_token_free(token);
  end_pair(&pair);
}

void futures_and_callbacks_tell_what_came_of_calls(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  rdzv_buffer *answer = rdzv_buffer_new();
  rdzv_rpc_future *future = NULL;
  int32_t ended = 77;
  rdzv_rpc_call_spec call = call_of("two", "later", "");
  OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  OK(rdzv_rpc_future_wait(future, 0, &ended, answer, &error));
  CHECK_NUMBER(ended, 0);
  OK(rdzv_rpc_responder_send(take_responder(&kept), TEXT("at last"), release, &kept, &error));
  OK(rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
  CHECK_NUMBER(ended, 1);
  CHECK_BUFFER(answer, "at last");
  FAILS(INVALID, rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
  rdzv_rpc_future_free(future);
  await_count(&kept, &kept.released, 1);

  // One thread waits, another one ends it.
  OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 2);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, cancel, future) == 0);
  FAILS(RDZV_CANCELLED, rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, NULL, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_future_free(future);
  rdzv_rpc_responder_free(take_responder(&kept));

  // One that nobody waits for.
  OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
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
  FAILS(INVALID, rdzv_rpc_future_new(pair.one, &call, NULL, &error));
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
  FAILS(INVALID, rdzv_rpc_responder_send(NULL, bytes, len, release, &kept, &error));
  CHECK_NUMBER(count_of(&kept, &kept.released), 5);
  rdzv_buffer_free(answer);
  end_pair(&pair);
  CHECK_NUMBER(count_of(&kept, &kept.released), 5);
  free(bytes);
}

// Keeps the bytes of the request, and answers when the test wants it.
static void take(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct kept *kept = user_data;
  rdzv_buffer *taken = rdzv_buffer_new(), *again = rdzv_buffer_new();
  const rdzv_bytes lay_there = request_info(request).payload;
  OK(rdzv_rpc_request_take(request, taken, &error));
  CHECK_NUMBER(rdzv_buffer_len(taken), lay_there.len);
  CHECK_NUMBER(request_info(request).payload.len, 0);
  OK(rdzv_rpc_request_take(request, again, &error));
  CHECK_BUFFER(again, "");
  rdzv_buffer_free(again);
  FAILS(INVALID, rdzv_rpc_request_take(request, NULL, &error));
  FAILS(INVALID, rdzv_rpc_request_take(NULL, taken, &error));
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  kept->taken = taken;
  kept->lay_at = lay_there.data;
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
  OK(rdzv_rpc_responder_send(responder, rdzv_buffer_data(taken), rdzv_buffer_len(taken), free_buffer, taken, &error));
}

void requests_are_taken_without_being_copied(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  OK(rdzv_rpc_add_handler(pair.two, TEXT("take inline"), RDZV_RPC_INLINE, NULL, take, &kept, NULL, &error));
  OK(rdzv_rpc_add_handler(pair.two, TEXT("take"), RDZV_RPC_POOLED, NULL, take, &kept, NULL, &error));
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
    OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
    answer_with_what_was_taken(&kept, ++calls, false);
    OK(rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
    rdzv_rpc_future_free(future);
    CHECK_NUMBER(rdzv_buffer_len(answer), len);
    CHECK(memcmp(rdzv_buffer_data(answer), bytes, len) == 0);
    free(bytes);
  }
  // A backend only lends what it hands on.
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  OK(rdzv_rpc_handlers_add(handlers, TEXT("take"), RDZV_RPC_INLINE, NULL, take, &kept, NULL, &error));
  const int told = count_of(&kept, &kept.told);
  const rdzv_rpc_request_info request = {.struct_size = sizeof request,
                                         .caller_id = 1,
                                         .caller = BYTES("x"),
                                         .handler = BYTES("take"),
                                         .payload = BYTES("lent"),
                                         .time_left_ms = -1};
  rdzv_rpc_responder *responder = NULL;
  OK(rdzv_rpc_responder_new(done, &kept, &responder, &error));
  OK(rdzv_rpc_handlers_dispatch(handlers, &request, responder, &error));
  answer_with_what_was_taken(&kept, ++calls, true);
  is_told(&kept, told + 1, RDZV_OK, "lent");
  OK(rdzv_rpc_handlers_add(handlers, TEXT("some"), RDZV_RPC_INLINE, "y", take, &kept, NULL, &error));
  rdzv_rpc_request_info denied = request;
  denied.handler = BYTES("some");
  FAILS(RDZV_PERMISSION_DENIED, rdzv_rpc_handlers_dispatch(handlers, &denied, NULL, &error));
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
  OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, shut_down, pair.two) == 0);
  await_group_event(pair.one, RDZV_RPC_EVENT_LEFT, "two", NULL);
  call_fails(pair.one, call_of("two", "echo", ""), RDZV_RPC_UNKNOWN_WORKER, "two");
  OK(rdzv_rpc_responder_send(take_responder(&kept), TEXT("in time"), NULL, NULL, &error));
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
  OK(rdzv_rpc_future_new(pair.two, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, shut_down, pair.two) == 0);
  // Whoever did not await it would have left long before.
  OK(rdzv_rpc_next_event(pair.one, 500, &event, NULL, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_RPC_EVENT_NONE);
  OK(rdzv_rpc_responder_send(take_responder(&kept), TEXT("in time"), NULL, NULL, &error));
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
  OK(rdzv_rpc_add_handler(pair.two, TEXT("later"), RDZV_RPC_INLINE, NULL, later, &kept, NULL, &error));
  call = call_of("two", "later", "");
  OK(rdzv_rpc_future_new(pair.one, &call, &future, &error));
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
  context = rdzv_context_new();
  const rdzv_rpc_device_pair pair = {"cuda:1", "cuda:0"};
  const rdzv_rpc_device_map map = {"alone", &pair, 1};
  const char *const devices[] = {"cuda:1", "cuda:0"};
  const char *const names[] = {"shm", "uv"};
  rdzv_rpc_options options = {.struct_size = sizeof options,
                              .worker_threads = 2,
                              .backend = "tcp",
                              .rpc_timeout_ms = PATIENCE_MS,
                              .membership_timeout_ms = PATIENCE_MS,
                              .host = "127.0.0.1",
                              .listen_host = "127.0.0.1",
                              .transports = names,
                              .transport_count = 2,
                              .channels = names,
                              .device_maps = &map,
                              .device_map_count = 1,
                              .devices = devices,
                              .device_count = 2,
                              .accelerator = "cuda",
                              .accelerator_count = 2};

  // The way to meet is that of the variables, and the rank too; then by the URL.
  rdzv_rpc *rpc = NULL;
  FAILS(INVALID, rdzv_rpc_new(context, TEXT("alone"), -1, -1, &options, NULL, &rpc, &error));
  const rdzv_pair variables[] = {{"RANK", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  options.variables = variables;
  options.variable_count = 3;
  OK(rdzv_rpc_new(context, TEXT("alone"), -1, -1, &options, NULL, &rpc, &error));
  CHECK_NUMBER(worker_info(rpc).id, 1);
  rdzv_rpc *second = NULL;
  FAILS_LIKE(((struct failure){.status = RDZV_RPC_ALREADY_INITIALIZED, .message_part = "RPC is already initialized"}),
             rdzv_rpc_new(context, TEXT("other"), 2, -1, &options, NULL, &second, &error));
  CHECK(second == NULL);
  rdzv_rpc_devices *used = NULL;
  OK(rdzv_rpc_list_devices(rpc, &used, &error));
  CHECK_NUMBER(used->struct_size, sizeof *used);
  CHECK_NUMBER(used->device_count, 2);
  CHECK_TEXT(used->devices[0], "cuda:0");
  CHECK_TEXT(used->devices[1], "cuda:1");
  CHECK_NUMBER(used->reverse_map_count, 1);
  CHECK_TEXT(used->reverse_maps[0].worker, "alone");
  CHECK_NUMBER(used->reverse_maps[0].pair_count, 1);
  CHECK_TEXT(used->reverse_maps[0].pairs[0].from, "cuda:0");
  CHECK_TEXT(used->reverse_maps[0].pairs[0].to, "cuda:1");
  rdzv_rpc_devices_free(used);
  OK(rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  // The first is over; its handle does not end the next one.
  options.init_method = url;
  OK(rdzv_rpc_new(context, TEXT("next"), 2, -1, &options, NULL, &second, &error));
  rdzv_rpc_free(rpc);
  rdzv_rpc_call_spec call = call_of("next", "echo", "");
  call_fails(second, call, RDZV_RPC_NO_HANDLER, NULL);
  rdzv_rpc_free(second);

  // What makes no sense is refused.
  const rdzv_pair extra = {"threads", "3"}, home = {"HOME", "x"};
  const char *const bad_names[] = {""}, *const bad_devices[] = {"num_worker_threads"}, *const missing[] = {NULL};
  const rdzv_rpc_device_map bad_map = {"a b", &pair, 1}, not_utf8 = {"\xff", &pair, 1}, no_pairs = {"a", NULL, 1};
  const uint32_t size = sizeof options;
  const struct {
    rdzv_rpc_options options;
    const char *message_part;
  } bad[] = {
      {{.struct_size = 8}, "struct_size"},
      {{.struct_size = size, .worker_threads = -1}, "from 1 to 1024"},
      {{.struct_size = size, .rpc_timeout_ms = -1}, "rpc_timeout_ms"},
      {{.struct_size = size, .membership_timeout_ms = -1}, "membership_timeout_ms"},
      {{.struct_size = size, .init_method = ""}, "init_method"},
      {{.struct_size = size, .variables = &home, .variable_count = 1}, "HOME"},
      {{.struct_size = size, .variable_count = 1}, "variables"},
      {{.struct_size = size, .host = ""}, "`host` is empty"},
      {{.struct_size = size, .listen_host = ""}, "`listen_host` is empty"},
      {{.struct_size = size, .auth_token_file = "/nowhere/at/all"}, "token file /nowhere/at/all"},
      {{.struct_size = size, .accelerator = "cpu"}, "not a kind of device"},
      {{.struct_size = size, .devices = bad_devices, .device_count = 1}, "num_worker_threads"},
      {{.struct_size = size, .devices = missing, .device_count = 1}, "`devices[0]` is NULL"},
      {{.struct_size = size, .device_maps = &bad_map, .device_map_count = 1}, "Worker name must match"},
      {{.struct_size = size, .device_maps = &not_utf8, .device_map_count = 1}, "UTF-8"},
      {{.struct_size = size, .device_maps = &no_pairs, .device_map_count = 1}, "device_maps.pairs"},
      {{.struct_size = size, .transports = bad_names, .transport_count = 1}, "must have a name"},
      {{.struct_size = size, .channels = bad_names, .channel_count = 1}, "must have a name"},
      {{.struct_size = size, .extra_options = &extra, .extra_option_count = 1}, "unknown option threads"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    FAILS_LIKE(((struct failure){.status = INVALID, .message_part = bad[i].message_part}),
               rdzv_rpc_new(context, TEXT("a"), 1, -1, &bad[i].options, NULL, &rpc, &error));
  }
  const rdzv_rpc_options unknown = {.struct_size = size, .backend = "ucx"};
  FAILS(RDZV_NOT_REGISTERED, rdzv_rpc_new(context, TEXT("a"), 1, -1, &unknown, NULL, &rpc, &error));
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "Worker name must match"}),
             rdzv_rpc_new(context, TEXT("a b"), 1, -1, &options, NULL, &rpc, &error));
  FAILS(INVALID, rdzv_rpc_new(context, TEXT("a"), 65536, -1, &options, NULL, &rpc, &error));
  FAILS(INVALID, rdzv_rpc_new(context, TEXT("a"), 1, -1, &options, NULL, NULL, &error));
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(context, PATIENCE_MS, &store, &error));
  FAILS(INVALID, rdzv_rpc_new(context, TEXT("a"), -1, -1, OVER(store, &options), NULL, &rpc, &error));
  rdzv_store_free(store);

  rdzv_rpc_handlers *handlers = handlers_of(&kept);
  FAILS(RDZV_ALREADY_REGISTERED,
        rdzv_rpc_handlers_add(handlers, TEXT("echo"), RDZV_RPC_INLINE, NULL, echo, &kept, destroy, &error));
  FAILS(INVALID, rdzv_rpc_handlers_add(handlers, TEXT("rdzv/x"), RDZV_RPC_INLINE, NULL, echo, &kept, destroy, &error));
  FAILS(INVALID, rdzv_rpc_handlers_add(handlers, TEXT("x"), 3, NULL, echo, &kept, destroy, &error));
  FAILS(INVALID, rdzv_rpc_handlers_add(handlers, TEXT("x"), RDZV_RPC_INLINE, NULL, NULL, &kept, destroy, &error));
  CHECK_NUMBER(count_of(&kept, &kept.destroyed), 0);
  rdzv_rpc_handlers_free(handlers);
  CHECK_NUMBER(count_of(&kept, &kept.destroyed), 1);
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
             rdzv_rpc_new(NULL, TEXT("late"), 7, -1, OVER(store, NULL), NULL, &late, &error));
  CHECK(pthread_create(&thread, NULL, shut_down, one) == 0);
  OK(rdzv_rpc_shutdown(zero, RDZV_RPC_GRACEFUL, &error));
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_rpc_free(zero);
  rdzv_rpc_free(one);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void rpc_handles_may_be_null(void) {
  rdzv_rpc_workers *workers = NULL;
  rdzv_rpc_devices *devices = NULL;
  rdzv_rpc_responder *responder = NULL;
  rdzv_rpc_info info = {.struct_size = sizeof info};
  rdzv_rpc_request_info request = {.struct_size = sizeof request};
  rdzv_rpc_free(NULL);
  rdzv_rpc_handlers_free(NULL);
  rdzv_rpc_workers_free(NULL);
  rdzv_rpc_devices_free(NULL);
  rdzv_rpc_future_free(NULL);
  rdzv_rpc_future_cancel(NULL);
  rdzv_rpc_responder_free(NULL);
  CHECK_NUMBER(rdzv_rpc_responder_is_wanted(NULL), 0);
  FAILS(INVALID, rdzv_rpc_get_info(NULL, &info, &error));
  FAILS(INVALID, rdzv_rpc_request_get_info(NULL, &request, &error));
  FAILS(INVALID, rdzv_rpc_responder_new(NULL, NULL, &responder, &error));
  FAILS(INVALID, rdzv_rpc_responder_new(done, NULL, NULL, &error));
  FAILS(INVALID, rdzv_rpc_shutdown(NULL, RDZV_RPC_ABRUPT, &error));
  FAILS(INVALID, rdzv_rpc_list_workers(NULL, &workers, &error));
  FAILS(INVALID, rdzv_rpc_list_devices(NULL, &devices, &error));
  CHECK(rdzv_rpc_handlers_clone(NULL) == NULL);
  FAILS(INVALID, rdzv_rpc_responder_fail(NULL, RDZV_RPC_HANDLER_FAILED, TEXT("x"), &error));
  FAILS(INVALID, rdzv_rpc_responder_fail(NULL, RDZV_IO, TEXT("x"), &error));
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
  CHECK_TEXT(info_of(made).operation, "call");
  CHECK_NODE(made, 0, "two");
  rdzv_error_free(made);
  call = call_of(NULL, "echo", "");
  call.callee_id = 9;
  made = rdzv_error_new_of_call(RDZV_RPC_MALFORMED, TEXT("no text"), &call);
  CHECK_NUMBER(info_of(made).ranks[0], 9);
  CHECK_NUMBER(info_of(made).node_count, 0);
  rdzv_error_free(made);
  made = rdzv_error_new_of_call(RDZV_RPC_MALFORMED, NULL, 0, NULL);
  CHECK_TEXT(rdzv_error_message(made), "");
  rdzv_error_free(made);
}
