// What every error promises: what failed, on which key, where, after how long and why, in one line.
#include "check.h"
#include "peers.h"
#include "tests.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static rdzv_store *connect_native(const rdzv_server *server) {
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  rdzv_store *store = NULL;
  OK(rdzv_store_connect_native(NULL, options, &store, &error));
  rdzv_store_options_free(options);
  return store;
}

// The failure tells this key, in the message and by itself.
static void tells_key(const rdzv_error *error, const char *key) {
  size_t len = 0;
  CHECK(rdzv_error_key_count(error) > 0);
  CHECK_LENT(rdzv_error_key(error, 0, &len), len, key);
  char quoted[64];
  snprintf(quoted, sizeof quoted, "%s\"", key);
  if (strstr(rdzv_error_message(error), quoted) == NULL) FAIL("no key: %s", rdzv_error_message(error));
}

void errors_of_native_stores_name_operation_and_key(void) {
  rdzv_server *server = start_server(NULL);
  const char *peer = rdzv_server_address(server);
  rdzv_store *store = connect_native(server);
  rdzv_error *details = NULL;

  rdzv_watch *watch = NULL;
  OK(rdzv_store_watch_key(store, TEXT("seen"), 0, -1, &watch, &error));
  rdzv_watch_cancel(watch);
  rdzv_change change = {.struct_size = sizeof change};
  rdzv_status ended = rdzv_watch_next(watch, PATIENCE_MS, &change, NULL, NULL, &details);
  tells_key(details, "seen");
  check_failure(__FILE__, __LINE__, "watch", ended, details,
                (struct failure){RDZV_CANCELLED, "watch", peer, "waiting", "cancelled"});
  rdzv_error_free(details);
  rdzv_watch_free(watch);

  rdzv_lease *lease = NULL;
  OK(rdzv_store_grant_lease(store, 0, -1, &lease, &error));
  rdzv_lease_cancel(lease);
  int32_t why = 0;
  const struct failure cancelled = {RDZV_CANCELLED, "lease_wait", peer, "waiting", "lease_wait at"};
  FAILS_LIKE(cancelled, rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  rdzv_lease_free(lease);

  ended = rdzv_store_named_barrier(store, TEXT("gate"), 0, TEXT("a"), 3, NULL, 0, 50, NULL, &details);
  tells_key(details, "gate");
  CHECK(rdzv_error_elapsed_ms(details) >= 50);
  if (strstr(rdzv_error_message(details), "counted") != NULL) FAIL("%s", rdzv_error_message(details));
  check_failure(__FILE__, __LINE__, "barrier", ended, details,
                (struct failure){RDZV_TIMED_OUT, "barrier", peer, "waiting", "2 did not arrive"});
  rdzv_error_free(details);

  OK(rdzv_store_set(store, TEXT("text"), TEXT("abc"), -1, &error));
  rdzv_txn *txn = rdzv_txn_new();
  OK(rdzv_txn_set(txn, TEXT("other"), TEXT("1"), &error));
  OK(rdzv_txn_add(txn, TEXT("text"), 1, &error));
  int32_t holds = 77;
  CHECK_NUMBER(rdzv_store_commit(store, txn, -1, &holds, NULL, &details), RDZV_INVALID_ARGUMENT);
  tells_key(details, "text");
  rdzv_error_free(details);
  rdzv_txn_free(txn);

  rdzv_batch *batch = rdzv_batch_new();
  OK(rdzv_batch_add(batch, TEXT("n"), 1, &error));
  OK(rdzv_batch_add(batch, TEXT("text"), 1, &error));
  rdzv_answers *answers = rdzv_answers_new();
  OK(rdzv_store_batch(store, batch, -1, answers, &error));
  rdzv_answer answer = {.struct_size = sizeof answer};
  OK(rdzv_answers_get(answers, 1, &answer, &error));
  CHECK_NUMBER(answer.status, RDZV_INVALID_ARGUMENT);
  char message[256] = {0};
  memcpy(message, answer.data, answer.len < sizeof message ? answer.len : sizeof message - 1);
  if (strstr(message, "batch \"/text\"") == NULL) FAIL("no key: %s", message);
  rdzv_answers_free(answers);
  rdzv_batch_free(batch);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void limits_are_named_with_the_numbers_of_the_caller(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server)), *native = connect_native(server);
  char long_key[8192 + 1] = {0};
  memset(long_key, 'k', 8192);
  const char *limit = "a key of 8192 bytes is over the limit of 8191";
  const struct failure over = {.status = RDZV_LIMIT_EXCEEDED, .message_part = limit};
  FAILS_LIKE(over, rdzv_store_set(store, TEXT(long_key), TEXT(""), -1, &error));
  FAILS_LIKE(over, rdzv_store_set(native, TEXT(long_key), TEXT(""), -1, &error));
  int64_t count = 0;
  FAILS_LIKE(over, rdzv_store_delete_prefix(native, TEXT(long_key), -1, &count, NULL, &error));
  rdzv_txn *txn = rdzv_txn_new();
  OK(rdzv_txn_add(txn, TEXT(long_key), 1, &error));
  int32_t holds = 77;
  FAILS_LIKE(over, rdzv_store_commit(native, txn, -1, &holds, NULL, &error));
  rdzv_txn_free(txn);

  // A reason that is too long is no failed connection.
  rdzv_rendezvous_parameters *parameters = NULL;
  OK(rdzv_rendezvous_parameters_new(TEXT("rdzv"), TEXT(rdzv_server_address(server)), TEXT("run"), 1, 1, &parameters,
                                    &error));
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(NULL, parameters, &handler, &error));
  const struct failure reason = {.status = RDZV_LIMIT_EXCEEDED, .message_part = "8192 bytes is over the limit of 1024"};
  FAILS_LIKE(reason, rdzv_rendezvous_handler_fail(handler, TEXT(long_key), &error));
  rdzv_rendezvous_handler_free(handler);

  // Options that the backend does not have are refused, and numbers that are none.
  const struct failure unknown = {.status = RDZV_INVALID_ARGUMENT, .message_part = "'join_timeot'"};
  OK(rdzv_rendezvous_parameters_set_int(parameters, TEXT("join_timeot"), 7, &error));
  FAILS_LIKE(unknown, rdzv_rendezvous_handler_new(NULL, parameters, &handler, &error));
  rdzv_rendezvous_parameters_free(parameters);

  rdzv_store_free(native);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void messages_are_one_line(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_buffer *value = rdzv_buffer_new();
  rdzv_error *details = NULL;
  CHECK_NUMBER(rdzv_store_get(store, TEXT("a\nERROR \033[2Jb"), 20, value, &details), RDZV_TIMED_OUT);
  const char *message = rdzv_error_message(details);
  if (strpbrk(message, "\n\033") != NULL || strstr(message, "a\\nERROR \\u{1b}[2Jb") == NULL) FAIL("%s", message);
  size_t len = 0;
  CHECK_LENT(rdzv_error_key(details, 0, &len), len, "a\nERROR \033[2Jb");
  rdzv_error_free(details);
  rdzv_buffer_free(value);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

// Connects without a descriptor. Also the resolver needs one to look a name up; a native store has none for its loop.
static void connect_without_descriptors(const char *host, uint16_t port, const char *phase) {
  rdzv_store_options *options = options_for(port);
  OK(rdzv_store_options_set_endpoint(options, TEXT(host), port, &error));
  OK(rdzv_store_options_set_connect_timeout_ms(options, 0, &error));
  struct rlimit before = {0, 0};
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // The lowest number that is free is above the limit then.
  const int lowest = dup(STDIN_FILENO);
  CHECK(lowest >= 0 && close(lowest) == 0);
  const struct rlimit none = {(rlim_t)lowest, before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  rdzv_store *store = NULL;
  rdzv_error *errors[2] = {NULL, NULL};
  const rdzv_status outcomes[2] = {rdzv_store_connect(NULL, options, &store, &errors[0]),
                                   rdzv_store_connect_native(NULL, options, &store, &errors[1])};
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  for (int i = 0; i < 2; ++i) {
    check_failure(__FILE__, __LINE__, "connect", outcomes[i], errors[i],
                  (struct failure){.status = RDZV_EXHAUSTED,
                                   .operation = "connect",
                                   .phase = i == 0 ? phase : "connecting",
                                   .message_part = "out of resources"});
    rdzv_error_free(errors[i]);
  }
  rdzv_store_options_free(options);
}

void processes_without_descriptors_are_told_so(void) {
  rdzv_server *server = start_server(NULL);
  connect_without_descriptors("127.0.0.1", rdzv_server_port(server), "connecting");
  connect_without_descriptors("localhost", rdzv_server_port(server), "resolving");
  rdzv_server_free(server);
}

void native_connections_take_their_whole_time(void) {
  const struct {
    enum conduct conduct;
    rdzv_status status;
  } cases[] = {{ACCEPTS_AND_IS_SILENT, RDZV_TIMED_OUT}, {CLOSES_AT_ONCE, RDZV_SERVER_GONE}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    struct peer *peer = peer_start(cases[i].conduct);
    rdzv_store_options *options = options_for(peer_port(peer));
    OK(rdzv_store_options_set_connect_timeout_ms(options, 300, &error));
    rdzv_store *store = NULL;
    rdzv_error *details = NULL;
    const rdzv_status ended = rdzv_store_connect_native(NULL, options, &store, &details);
    CHECK(rdzv_error_elapsed_ms(details) >= 300);
    check_failure(__FILE__, __LINE__, "connect", ended, details,
                  (struct failure){cases[i].status, "connect", peer_text(peer_port(peer)), "greeting", NULL});
    rdzv_error_free(details);
    rdzv_store_options_free(options);
    peer_stop(peer);
  }
}
