// What a worker's own code may do with it, attempts that are cancelled, and a server that goes.
#include "rpc_pair.h"
#include "tests.h"

#include <unistd.h>

// Gives a worker to the code that it calls, or takes it back.
static rdzv_rpc *swap_rpc(struct kept *kept, rdzv_rpc *rpc) {
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  rdzv_rpc *before = kept->rpc;
  kept->rpc = rpc;
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  return before;
}

// What its own code may not do with a worker: two ways to end it, and two to wait for a call.
static void dare(struct kept *kept, int64_t timeout_ms, char *message, size_t message_len) {
  rdzv_rpc *rpc = swap_rpc(kept, NULL);
  CHECK(rpc != NULL && swap_rpc(kept, rpc) == NULL);
  rdzv_rpc_call_spec call = call_of("two", "later", "");
  rdzv_rpc_future *future = NULL;
  int32_t ended = 77;
  call.timeout_ms = timeout_ms;
  const rdzv_status graceful = rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, NULL);
  const rdzv_status abrupt = rdzv_rpc_shutdown(rpc, RDZV_RPC_ABRUPT, NULL);
  const rdzv_status called = rdzv_rpc_call(rpc, &call, NULL, NULL);
  OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
  const rdzv_status waited = rdzv_rpc_future_wait(future, -1, &ended, NULL, NULL);
  rdzv_rpc_future_free(future);
  snprintf(message, message_len, "%d %d %d %d", graceful, abrupt, called, waited);
}

static void dare_inline(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  char message[100];
  (void)request;
  dare(user_data, PATIENCE_MS, message, sizeof message);
  OK(rdzv_rpc_responder_send(responder, TEXT(message), NULL, NULL, &error));
}

static void dare_pooled(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  char message[100];
  (void)request;
  dare(user_data, 20, message, sizeof message);
  OK(rdzv_rpc_responder_send(responder, TEXT(message), NULL, NULL, &error));
}

static void dare_when_done(void *user_data, rdzv_status status, const uint8_t *data, size_t len,
                           const rdzv_error *error) {
  struct kept *kept = user_data;
  (void)status;
  (void)data;
  (void)len;
  (void)error;
  dare(kept, PATIENCE_MS, kept->message, sizeof kept->message);
  count_up(kept, &kept->told);
}

void workers_are_not_shut_down_and_calls_not_awaited_by_their_own_code(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_add_handler(pair.one, TEXT("inline"), RDZV_RPC_INLINE, NULL, dare_inline, &kept, NULL, &error));
  OK(rdzv_rpc_add_handler(pair.one, TEXT("pooled"), RDZV_RPC_POOLED, NULL, dare_pooled, &kept, NULL, &error));
  CHECK(swap_rpc(&kept, pair.one) == NULL);
  rdzv_rpc_call_spec call = call_of("one", "inline", "");
  char refused[100], partly[100];
  snprintf(refused, sizeof refused, "%d %d %d %d", RDZV_REENTRANT, RDZV_REENTRANT, RDZV_REENTRANT, RDZV_REENTRANT);
  snprintf(partly, sizeof partly, "%d %d %d %d", RDZV_REENTRANT, RDZV_REENTRANT, RDZV_TIMED_OUT, RDZV_TIMED_OUT);
  OK(rdzv_rpc_call(pair.two, &call, answer, &error));
  CHECK_BUFFER(answer, refused);
  call = call_of("one", "pooled", "");
  OK(rdzv_rpc_call(pair.two, &call, answer, &error));
  CHECK_BUFFER(answer, partly);
  call = call_of("two", "who", "");
  OK(rdzv_rpc_call_with(pair.one, &call, dare_when_done, &kept, &error));
  await_count(&kept, &kept.told, 1);
  CHECK_TEXT(kept.message, refused);
  CHECK(swap_rpc(&kept, NULL) == pair.one);
  OK(rdzv_rpc_shutdown(pair.one, RDZV_RPC_GRACEFUL, &error));
  rdzv_rpc_responder_free(take_responder(&kept));
  rdzv_buffer_free(answer);
  end_pair(&pair);
}

static void free_own(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct kept *kept = user_data;
  (void)request;
  rdzv_rpc_free(swap_rpc(kept, NULL));
  OK(rdzv_rpc_responder_send(responder, TEXT("stays"), NULL, NULL, &error));
  count_up(kept, &kept->calls);
}

static void free_when_done(void *user_data, rdzv_status status, const uint8_t *data, size_t len,
                           const rdzv_error *error) {
  struct kept *kept = user_data;
  (void)status;
  (void)data;
  (void)len;
  (void)error;
  rdzv_rpc_free(swap_rpc(kept, NULL));
  count_up(kept, &kept->told);
}

void workers_are_not_freed_by_their_own_code(void) {
  struct kept kept = new_kept(), own = new_kept();
  struct pair pair = new_pair(&kept);
  OK(rdzv_rpc_add_handler(pair.one, TEXT("inline"), RDZV_RPC_INLINE, NULL, free_own, &own, NULL, &error));
  OK(rdzv_rpc_add_handler(pair.one, TEXT("pooled"), RDZV_RPC_POOLED, NULL, free_own, &own, destroy, &error));
  rdzv_buffer *answer = rdzv_buffer_new();
  const char *const handlers[] = {"inline", "pooled"};
  for (int i = 0; i < 3; ++i) {
    CHECK(swap_rpc(&own, pair.one) == NULL);
    if (i < 2) {
      const rdzv_rpc_call_spec call = call_of("one", handlers[i], "");
      OK(rdzv_rpc_call(pair.two, &call, answer, &error));
      CHECK_BUFFER(answer, "stays");
      await_count(&own, &own.calls, i + 1);
    } else {
      const rdzv_rpc_call_spec call = call_of("two", "who", "");
      OK(rdzv_rpc_call_with(pair.one, &call, free_when_done, &own, &error));
      await_count(&own, &own.told, 1);
    }
    FAILS(RDZV_FREE_REFUSED, rdzv_rpc_shutdown(pair.one, RDZV_RPC_ABRUPT, &error));
  }
  CHECK_NUMBER(own.destroyed, 0);
  rdzv_buffer_free(answer);
  end_pair(&pair);
  CHECK_NUMBER(own.destroyed, 1);
}

// One that is made in vain, and what it is made with.
struct attempt {
  struct kept kept;
  rdzv_store *store;
  rdzv_cancel_token *token;
};

static void *init_in_vain(void *argument) {
  struct attempt *attempt = argument;
  const rdzv_rpc_options options = {.struct_size = sizeof options,
                                    .init_method = "tcp://127.0.0.1:0",
                                    .store = attempt->store,
                                    .token = attempt->token};
  rdzv_rpc *rpc = NULL;
  const int32_t rank = attempt->store == NULL ? 0 : 1;
  FAILS(RDZV_CANCELLED, rdzv_rpc_new(NULL, TEXT("w"), rank, 2, &options, NULL, &rpc, &error));
  CHECK(rpc == NULL);
  count_up(&attempt->kept, &attempt->kept.told);
  return NULL;
}

void attempts_to_become_a_worker_are_cancelled(void) {
  rdzv_server *server = start_server(NULL);
  struct attempt attempt = {.kept = new_kept(), .store = connect_store(NULL, rdzv_server_port(server))};
  attempt.token = rdzv_cancel_token_new();
  // The other one of two does not come.
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, init_in_vain, &attempt) == 0);
  const rdzv_bytes card = BYTES("rdzv/cards/1");
  OK(rdzv_store_wait(attempt.store, &card, 1, PATIENCE_MS, &error));
  rdzv_cancel_token_cancel(attempt.token);
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_cancel_token_free(attempt.token);
  rdzv_store_free(attempt.store);

  // It does not come to the rendezvous either. An attempt that begins a moment later is cancelled, too.
  attempt.store = NULL;
  attempt.token = rdzv_cancel_token_new();
  CHECK(pthread_create(&thread, NULL, init_in_vain, &attempt) == 0);
  rdzv_cancel_token_cancel(attempt.token);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_NUMBER(count_of(&attempt.kept, &attempt.kept.told), 2);
  rdzv_cancel_token_free(attempt.token);
  rdzv_server_free(server);
}

void workers_go_on_without_the_server_and_hear_of_it(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  await_group_event(pair.one, RDZV_RPC_EVENT_JOINED, "two", NULL);
  OK(rdzv_server_stop(pair.server, &error));
  await_group_event(pair.one, RDZV_RPC_EVENT_WATCH_LOST, "", "lost its server");
  await_group_event(pair.two, RDZV_RPC_EVENT_WATCH_LOST, "", "lost its server");
  rdzv_rpc_call_spec call = call_of("two", "echo", "still there");
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "still there");
  rdzv_buffer_free(answer);

  // It cannot leave, and tells why whoever asks.
  rdzv_error *failed = NULL;
  CHECK_NUMBER(rdzv_rpc_shutdown(pair.one, RDZV_RPC_GRACEFUL, &failed), RDZV_SERVER_GONE);
  CHECK_TEXT(info_of(failed).operation, "shutdown");
  rdzv_error_free(failed);
  await_group_event(pair.one, RDZV_RPC_EVENT_OVER, "", "the store failed");
  call_fails(pair.one, call, RDZV_RPC_NO_MEMBER, "the store failed");
  end_pair(&pair);
}

// A worker that joins or leaves in another thread, and fails.
struct failing {
  rdzv_store *store;
  rdzv_rpc_options options;
  rdzv_rpc *rpc;
  rdzv_status status;
  rdzv_error *error;
};

static void *join_alone(void *argument) {
  struct failing *worker = argument;
  worker->status = rdzv_rpc_new(NULL, TEXT("zero"), 0, 3, OVER(worker->store, &worker->options), NULL, &worker->rpc,
                                &worker->error);
  return NULL;
}

static void *leave_in_vain(void *argument) {
  struct failing *worker = argument;
  worker->status = rdzv_rpc_shutdown(worker->rpc, RDZV_RPC_GRACEFUL, &worker->error);
  return NULL;
}

static rdzv_rpc_options options_with_timeout(int64_t timeout_ms) {
  return (rdzv_rpc_options){.struct_size = sizeof(rdzv_rpc_options), .membership_timeout_ms = timeout_ms};
}

void failures_of_groups_tell_who_where_and_when(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);

  // What takes its whole time begins first: a group that does not come together, and a worker that waits for its call.
  rdzv_server *server = start_server(NULL);
  struct failing joining = {.store = connect_store(NULL, rdzv_server_port(server)),
                            .options = options_with_timeout(1500)};
  struct failing leaving = {.options = options_with_timeout(PATIENCE_MS / 4)};
  pthread_t threads[2];
  CHECK(pthread_create(&threads[0], NULL, join_alone, &joining) == 0);
  leaving.rpc = join(pair.store, "three", 3, -1, &leaving.options, NULL);
  rdzv_rpc_call_spec call = call_of("one", "later", "");
  rdzv_rpc_future *future = NULL;
  OK(rdzv_rpc_future_new(leaving.rpc, &call, &future, &error));
  await_count(&kept, &kept.calls, 1);
  rdzv_rpc_responder *never = take_responder(&kept);
  CHECK(pthread_create(&threads[1], NULL, leave_in_vain, &leaving) == 0);

  rdzv_rpc_workers *workers = NULL;
  char address[100];
  const rdzv_bytes own = worker_info(pair.two).address;
  snprintf(address, sizeof address, "%.*s", (int)own.len, (const char *)own.data);
  OK(rdzv_rpc_list_workers(pair.one, &workers, &error));
  CHECK_BYTES(workers->workers[1].address, address);
  rdzv_rpc_workers_free(workers);

  // A call: whom it was for, where that is, how far it had come, and how long it took.
  call = call_of("two", "later", "");
  const struct failure late = {.status = RDZV_TIMED_OUT, .peer = address, .message_part = "): no answer in "};
  call.timeout_ms = PATIENCE_MS / 20;
  rdzv_error *failed = NULL;
  const rdzv_status called = rdzv_rpc_call(pair.one, &call, NULL, &failed);
  check_failure(__FILE__, __LINE__, "a call", called, failed, late);
  CHECK_TEXT(info_of(failed).operation, "call");
  CHECK_TEXT(info_of(failed).phase, "waiting");
  CHECK_NODE(failed, 0, "two");
  CHECK(info_of(failed).elapsed_ms >= PATIENCE_MS / 20);
  rdzv_error_free(failed);
  await_count(&kept, &kept.calls, 2);
  rdzv_rpc_responder_free(take_responder(&kept));

  // The group that does not come together: who did not come, and how long they were waited for.
  CHECK(pthread_join(threads[0], NULL) == 0);
  CHECK_NUMBER(joining.status, RDZV_TIMED_OUT);
  CHECK_NUMBER(info_of(joining.error).rank_count, 2);
  CHECK(info_of(joining.error).ranks[0] == 1 && info_of(joining.error).ranks[1] == 2);
  CHECK_NUMBER(info_of(joining.error).elapsed_ms, 1500);
  CHECK(strstr(rdzv_error_message(joining.error), "1 of 3 workers joined in 1.5 s; missing: 1, 2") != NULL);
  rdzv_error_free(joining.error);
  rdzv_store_free(joining.store);
  rdzv_server_free(server);

  // The worker that leaves: for whom its call was that it had to cut.
  CHECK(pthread_join(threads[1], NULL) == 0);
  CHECK_NUMBER(leaving.status, RDZV_TIMED_OUT);
  CHECK_NODE(leaving.error, 0, "one");
  int32_t ended = 0;
  FAILS(RDZV_RPC_NO_MEMBER, rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, NULL, &error));
  rdzv_error_free(leaving.error);
  rdzv_rpc_future_free(future);
  rdzv_rpc_responder_free(never);
  rdzv_rpc_free(leaving.rpc);

  // A worker that joins: whose name it takes.
  failed = NULL;
  rdzv_rpc *rpc = NULL;
  CHECK_NUMBER(rdzv_rpc_new(NULL, TEXT("two"), 7, -1, OVER(pair.store, NULL), NULL, &rpc, &failed),
               RDZV_RPC_NAME_TAKEN);
  CHECK_TEXT(info_of(failed).operation, "init_rpc");
  CHECK_NODE(failed, 0, "two");
  rdzv_error_free(failed);
  end_pair(&pair);
}
