// What every error promises: what failed, on which key, where, after how long and why, in one line.
#include "check.h"
#include "ops.h"
#include "peers.h"
#include "tests.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static rdzv_store *connect_native(const rdzv_server *server) {
  rdzv_store_options options = options_for(rdzv_server_port(server));
  rdzv_store *store = NULL;
  OK(rdzv_store_new_native(NULL, &options, &store, &error));
  return store;
}

// The failure tells this key, in the message and by itself.
static void tells_key(const rdzv_error *error, const char *key) {
  CHECK(info_of(error).key_count > 0);
  CHECK_KEY(error, 0, key);
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
  rdzv_op *op = rdzv_op_new(NULL), *part = rdzv_op_new(NULL);
  OK(rdzv_op_watch_key(op, TEXT("seen"), 0, &error));
  OK(rdzv_watch_new(store, op, -1, &watch, &error));
  rdzv_watch_cancel(watch);
  rdzv_change change = {.struct_size = sizeof change};
  rdzv_status ended = rdzv_watch_next(watch, PATIENCE_MS, &change, NULL, NULL, &details);
  tells_key(details, "seen");
  check_failure(__FILE__, __LINE__, "watch", ended, details,
                (struct failure){RDZV_CANCELLED, "watch", peer, "waiting", "cancelled"});
  rdzv_error_free(details);
  rdzv_watch_free(watch);

  rdzv_lease *lease = NULL;
  OK(rdzv_lease_new(store, 0, -1, &lease, &error));
  rdzv_lease_cancel(lease);
  int32_t why = 0;
  const struct failure cancelled = {RDZV_CANCELLED, "lease_wait", peer, "waiting", "lease_wait at"};
  FAILS_LIKE(cancelled, rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  rdzv_lease_free(lease);

  OK(rdzv_op_named_barrier(op, TEXT("gate"), 0, TEXT("a"), 3, NULL, 0, &error));
  ended = rdzv_store_perform(store, op, 50, &details);
  tells_key(details, "gate");
  CHECK(info_of(details).elapsed_ms >= 50);
  if (strstr(rdzv_error_message(details), "counted") != NULL) FAIL("%s", rdzv_error_message(details));
  check_failure(__FILE__, __LINE__, "barrier", ended, details,
                (struct failure){RDZV_TIMED_OUT, "barrier", peer, "waiting", "2 did not arrive"});
  rdzv_error_free(details);

  OK(rdzv_store_set(store, TEXT("text"), TEXT("abc"), -1, &error));
  OK(rdzv_op_transaction(op, &error));
  INCLUDE(op, part, rdzv_op_set(part, TEXT("other"), TEXT("1"), &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("text"), 1, &error));
  CHECK_NUMBER(rdzv_store_perform(store, op, -1, &details), RDZV_INVALID_ARGUMENT);
  tells_key(details, "text");
  rdzv_error_free(details);

  OK(rdzv_op_batch(op, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("n"), 1, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("text"), 1, &error));
  OK(rdzv_store_perform(store, op, -1, &error));
  CHECK_NUMBER(part_of(op, 1).status, RDZV_INVALID_ARGUMENT);
  const char *message = rdzv_error_message(part_of(op, 1).error);
  if (strstr(message, "batch \"text\"") == NULL) FAIL("no key: %s", message);
  rdzv_op_free(part);
  rdzv_op_free(op);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void a_limit_is_one_number(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server)), *native = connect_native(server);
  char long_key[8192 + 1] = {0};
  memset(long_key, 'k', 8192);
  const char *limit = "a key of 8193 bytes with its prefix is over the limit of 8192";
  const struct failure over = {.status = RDZV_LIMIT_EXCEEDED, .message_part = limit};
  FAILS_LIKE(over, rdzv_store_set(store, TEXT(long_key), TEXT(""), -1, &error));
  FAILS_LIKE(over, rdzv_store_set(native, TEXT(long_key), TEXT(""), -1, &error));
  rdzv_op *op = rdzv_op_new(NULL), *part = rdzv_op_new(NULL);
  PERFORM_FAILS_LIKE(over, native, op, rdzv_op_delete_prefix(op, TEXT(long_key), &error));
  OK(rdzv_op_transaction(op, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT(long_key), 1, &error));
  FAILS_LIKE(over, rdzv_store_perform(native, op, -1, &error));
  rdzv_op_free(part);
  rdzv_op_free(op);

  // A reason that is too long is no failed connection.
  rdzv_rendezvous_parameters parameters = {.struct_size = sizeof parameters,
                                           .backend = "rdzv",
                                           .endpoint = rdzv_server_address(server),
                                           .run_id = "run"};
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));
  const struct failure reason = {.status = RDZV_LIMIT_EXCEEDED, .message_part = "8192 bytes is over the limit of 1024"};
  FAILS_LIKE(reason, rdzv_rendezvous_handler_fail(handler, TEXT(long_key), &error));
  rdzv_rendezvous_handler_free(handler);

  // Options that the backend does not have are refused, and numbers that are none.
  const struct failure unknown = {.status = RDZV_INVALID_ARGUMENT, .message_part = "'join_timeot'"};
  parameters.config = "join_timeot=7";
  FAILS_LIKE(unknown, rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));

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
  CHECK_KEY(details, 0, "a\nERROR \033[2Jb");
  rdzv_error_free(details);
  rdzv_buffer_free(value);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

// Connects without a descriptor. Also the resolver needs one to look a name up; a native store has none for its loop.
static void connect_without_descriptors(const char *host, uint16_t port, const char *phase) {
  rdzv_store_options options = options_for(port);
  options.host = host;
  options.connect_timeout_ms = -1;
  struct rlimit before = {0, 0};
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // The lowest number that is free is above the limit then.
  const int lowest = dup(STDIN_FILENO);
  CHECK(lowest >= 0 && close(lowest) == 0);
  const struct rlimit none = {(rlim_t)lowest, before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  rdzv_store *store = NULL;
  rdzv_error *errors[2] = {NULL, NULL};
  const rdzv_status outcomes[2] = {rdzv_store_new(NULL, &options, &store, &errors[0]),
                                   rdzv_store_new_native(NULL, &options, &store, &errors[1])};
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  for (int i = 0; i < 2; ++i) {
    check_failure(__FILE__, __LINE__, "connect", outcomes[i], errors[i],
                  (struct failure){.status = RDZV_EXHAUSTED,
                                   .operation = "connect",
                                   .phase = i == 0 ? phase : "connecting",
                                   .message_part = "out of resources"});
    rdzv_error_free(errors[i]);
  }
}

void processes_without_descriptors_are_told_so(void) {
  // No server: one that runs in this process could take the last descriptor, or be without one itself.
  uint16_t port = 0;
  const int taken = refusing_socket(&port);
  connect_without_descriptors("127.0.0.1", port, "connecting");
  connect_without_descriptors("localhost", port, "resolving");
  CHECK(close(taken) == 0);
}

void native_connections_take_their_whole_time(void) {
  const struct {
    enum conduct conduct;
    rdzv_status status;
  } cases[] = {{ACCEPTS_AND_IS_SILENT, RDZV_TIMED_OUT}, {CLOSES_AT_ONCE, RDZV_SERVER_GONE}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    struct peer *peer = peer_start(cases[i].conduct);
    rdzv_store_options options = options_for(peer_port(peer));
    options.connect_timeout_ms = 300;
    rdzv_store *store = NULL;
    rdzv_error *details = NULL;
    rdzv_status ended = rdzv_store_new_native(NULL, &options, &store, &details);
    // The time may be up before the last attempt is answered, but seldom.
    for (int tries = 1; ended != cases[i].status && tries < 5; ++tries) {
      rdzv_error_free(details);
      details = NULL;
      ended = rdzv_store_new_native(NULL, &options, &store, &details);
    }
    CHECK(info_of(details).elapsed_ms >= 300);
    check_failure(__FILE__, __LINE__, "connect", ended, details,
                  (struct failure){cases[i].status, "connect", peer_text(peer_port(peer)), "greeting", NULL});
    rdzv_error_free(details);
    peer_stop(peer);
  }
}
