// One handle in the hands of several threads.
#include "check.h"
#include "tests.h"

#include <pthread.h>

struct waiting_get {
  const rdzv_store *store;
  rdzv_status outcome;
  char value[32];
};

static void *get_later(void *argument) {
  struct waiting_get *get = argument;
  rdzv_buffer *buffer = rdzv_buffer_new();
  get->outcome = rdzv_store_get(get->store, TEXT("later"), PATIENCE_MS, buffer, NULL);
  if (get->outcome == RDZV_OK && rdzv_buffer_len(buffer) < sizeof get->value) {
    memcpy(get->value, rdzv_buffer_data(buffer), rdzv_buffer_len(buffer));
  }
  rdzv_buffer_free(buffer);
  return NULL;
}

void pending_wait_delays_nobody(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  struct waiting_get gets[3] = {{.store = store}, {.store = store}, {.store = store}};
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i) CHECK(pthread_create(&threads[i], NULL, get_later, &gets[i]) == 0);
  await_waiting(server, 3);
  // With three waits pending on the handle, it does other things, and then what they wait for.
  OK(rdzv_store_set(store, TEXT("other"), TEXT("thing"), PATIENCE_MS, &error));
  int64_t sum = 0;
  OK(rdzv_store_add(store, TEXT("number"), 1, PATIENCE_MS, &sum, &error));
  await_waiting(server, 3);
  OK(rdzv_store_set(store, TEXT("later"), TEXT("now"), PATIENCE_MS, &error));
  for (int i = 0; i < 3; ++i) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_NUMBER(gets[i].outcome, RDZV_OK);
    CHECK_TEXT(gets[i].value, "now");
  }
  rdzv_store_free(store);
  rdzv_server_free(server);
}

struct pending {
  rdzv_store *store;
  const char *operation;
  rdzv_status outcome;
  rdzv_error *error;
};

static void *wait_for_ever(void *argument) {
  struct pending *call = argument;
  const rdzv_bytes keys[] = {BYTES("never"), BYTES("ever")};
  if (strcmp(call->operation, "wait") == 0) {
    call->outcome = rdzv_store_wait(call->store, keys, 2, PATIENCE_MS, &call->error);
  } else {
    call->outcome = rdzv_store_barrier(call->store, TEXT("alone"), 2, PATIENCE_MS, &call->error);
  }
  return NULL;
}

void cancel_ends_what_is_pending(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_store *other = NULL;
  OK(rdzv_store_clone(store, &other, &error));
  struct pending calls[] = {{store, "wait", 0, NULL}, {store, "barrier", 0, NULL}};
  struct pending spared = {other, "wait", 0, NULL};
  pthread_t threads[3];
  CHECK(pthread_create(&threads[0], NULL, wait_for_ever, &calls[0]) == 0);
  CHECK(pthread_create(&threads[1], NULL, wait_for_ever, &calls[1]) == 0);
  CHECK(pthread_create(&threads[2], NULL, wait_for_ever, &spared) == 0);
  await_waiting(server, 3);
  const long long began_ms = now_ms();
  rdzv_store_cancel(store);
  for (int i = 0; i < 2; ++i) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    const struct failure wanted = {RDZV_CANCELLED, calls[i].operation, rdzv_server_address(server), "waiting", NULL};
    check_failure(__FILE__, __LINE__, "the pending call", calls[i].outcome, calls[i].error, wanted);
    rdzv_error_free(calls[i].error);
  }
  CHECK(now_ms() - began_ms < PATIENCE_MS / 2);
  // The handle goes on, and the clone's wait was never touched.
  OK(rdzv_store_set(store, TEXT("never"), NULL, 0, -1, &error));
  OK(rdzv_store_set(store, TEXT("ever"), NULL, 0, -1, &error));
  CHECK(pthread_join(threads[2], NULL) == 0);
  CHECK_NUMBER(spared.outcome, RDZV_OK);
  rdzv_store_free(store);
  rdzv_store_free(other);
  rdzv_server_free(server);
}

void a_token_ends_calls_before_they_begin(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_cancel_token *token = NULL;
  rdzv_store *bound = NULL;
  rdzv_store *other = NULL;
  token = rdzv_cancel_token_new();
  OK(rdzv_store_new_cancellable(store, token, &bound, &error));
  rdzv_store_cancel(bound);
  OK(rdzv_store_set(bound, TEXT("k"), NULL, 0, -1, &error));
  struct pending call = {bound, "wait", 0, NULL};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wait_for_ever, &call) == 0);
  await_waiting(server, 1);
  rdzv_cancel_token_cancel(token);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_NUMBER(call.outcome, RDZV_CANCELLED);
  rdzv_error_free(call.error);
  FAILS(RDZV_CANCELLED, rdzv_store_set(bound, TEXT("k"), NULL, 0, -1, &error));
  FAILS(RDZV_CANCELLED, rdzv_store_clone(bound, &other, &error));
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.cancel_token = token;
  FAILS(RDZV_CANCELLED, rdzv_store_new(NULL, &options, &other, &error));
  FAILS(RDZV_CANCELLED, rdzv_store_new_native(NULL, &options, &other, &error));
  rdzv_cancel_token_free(token);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_cancellable(store, NULL, &other, &error));
  OK(rdzv_store_set(store, TEXT("k"), NULL, 0, -1, &error));
  rdzv_store_free(bound);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

enum { THREADS = 8, ROUNDS = 50 };

static void *add_up(void *argument) {
  const rdzv_store *store = argument;
  for (int i = 0; i < ROUNDS; ++i) {
    int64_t sum = 0;
    OK(rdzv_store_add(store, TEXT("sum"), 1, PATIENCE_MS, &sum, &error));
    CHECK(sum >= 1 && sum <= THREADS * ROUNDS);
  }
  OK(rdzv_store_barrier(store, TEXT("all"), THREADS, PATIENCE_MS, &error));
  return NULL;
}

void handle_serves_many_threads(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_create(&threads[i], NULL, add_up, store) == 0);
  for (int i = 0; i < THREADS; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  int64_t sum = 0;
  OK(rdzv_store_add(store, TEXT("sum"), 0, -1, &sum, &error));
  CHECK_NUMBER(sum, THREADS * ROUNDS);
  rdzv_store_free(store);
  rdzv_server_free(server);
}
