// What goes wrong outside the program: each has a status of its own, and a sentence that names operation, peer and
// phase.
#include "check.h"
#include "ops.h"
#include "operations.h"
#include "peers.h"
#include "tests.h"

#include <pthread.h>
#include <unistd.h>

// What a call gets that is to be late. Long enough to connect on a machine that is busy.
#define SHORT_MS 500

void failures_leave_outputs_alone(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_buffer *buffer = rdzv_buffer_new();
  rdzv_op *op = rdzv_op_new(NULL);
  const rdzv_bytes keys[] = {BYTES("key"), BYTES("missing")};
  OK(rdzv_store_set(store, TEXT("key"), TEXT("kept"), -1, &error));
  OK(rdzv_store_get(store, TEXT("key"), -1, buffer, &error));

  struct failure late = {RDZV_TIMED_OUT, "get", rdzv_server_address(server), "waiting", "missing"};
  FAILS_LIKE(late, rdzv_store_get(store, TEXT("missing"), SHORT_MS, buffer, &error));
  FAILS_LIKE(late, rdzv_store_get(store, TEXT("missing"), 0, buffer, &error));
  late.operation = "multi_get", late.message_part = "1 more key";
  OK(rdzv_op_multi_get(op, keys, 2, &error));
  FAILS_LIKE(late, rdzv_store_perform(store, op, SHORT_MS, &error));
  late.operation = "wait", late.message_part = "missing";
  FAILS_LIKE(late, rdzv_store_wait(store, keys + 1, 1, SHORT_MS, &error));
  late.operation = "queue_pop";
  OK(rdzv_op_queue_pop(op, TEXT("missing"), &error));
  FAILS_LIKE(late, rdzv_store_perform(store, op, SHORT_MS, &error));
  late.operation = "barrier", late.message_part = "meeting";
  FAILS_LIKE(late, rdzv_store_barrier(store, TEXT("meeting"), 2, SHORT_MS, &error));
  late.message_part = NULL;
  late.operation = "wait_for_workers";
  FAILS_LIKE(late, rdzv_store_wait_for_workers(store, 2, SHORT_MS, &error));
  // The keys of a failed call are the caller's own.
  rdzv_error *details = NULL;
  OK(rdzv_op_multi_get(op, keys, 2, &error));
  CHECK_NUMBER(rdzv_store_perform(store, op, SHORT_MS, &details), RDZV_TIMED_OUT);
  CHECK_NUMBER(info_of(details).key_count, 2);
  CHECK_KEY(details, 1, "missing");
  CHECK(info_of(details).elapsed_ms >= SHORT_MS);
  rdzv_error_free(details);
  rdzv_store_free(store);
  rdzv_server_free(server);

  // Not even when part of the answer had come.
  struct peer *peer = peer_start(ENDS_WITHIN_A_VALUE);
  store = connect_store(NULL, peer_port(peer));
  const struct failure cut = {RDZV_SERVER_GONE, "get", peer_text(peer_port(peer)), "receiving", "key"};
  FAILS_LIKE(cut, rdzv_store_get(store, TEXT("key"), PATIENCE_MS, buffer, &error));
  // A multi_get asks when its wait is over: to it, the same bytes are ones that nobody asked for.
  OK(rdzv_op_multi_get(op, keys, 1, &error));
  FAILS(RDZV_WRONG_PROTOCOL, rdzv_store_perform(store, op, PATIENCE_MS, &error));
  rdzv_store_free(store);
  peer_stop(peer);

  CHECK_BUFFER(buffer, "kept");
    rdzv_buffer_free(buffer);
  rdzv_op_free(op);
}

// Connects where that cannot succeed.
static void connecting_fails(rdzv_store_options options, struct failure wanted) {
  rdzv_store *store = NULL;
  wanted.operation = "connect";
  FAILS_LIKE(wanted, rdzv_store_new(NULL, &options, &store, &error));
  CHECK_NUMBER(rdzv_store_new(NULL, &options, &store, NULL), wanted.status);
  CHECK(store == NULL);
}

void addresses_that_do_not_answer(void) {
  uint16_t port = 0;
  const int taken = refusing_socket(&port);
  rdzv_store_options options = options_for(port);
  struct failure wanted = {RDZV_REFUSED, NULL, peer_text(port), "connecting", NULL};
  // -1 tries once; a little more tries again, and says in the end what was wrong all the time.
  options.connect_timeout_ms = -1;
  connecting_fails(options, wanted);
  options.connect_timeout_ms = SHORT_MS;
  connecting_fails(options, wanted);
  CHECK(close(taken) == 0);

  options.connect_timeout_ms = -1;
  options.host = "nowhere.invalid";
  options.port = 29500;
  wanted = (struct failure){RDZV_UNRESOLVED, NULL, "nowhere.invalid:29500", "resolving", NULL};
  connecting_fails(options, wanted);
}

static void connecting_to_peer_fails(enum conduct conduct, int64_t timeout_ms, rdzv_status status) {
  struct peer *peer = peer_start(conduct);
  rdzv_store_options options = options_for(peer_port(peer));
  options.connect_timeout_ms = timeout_ms;
  connecting_fails(options, (struct failure){status, NULL, peer_text(peer_port(peer)), "greeting", NULL});
  peer_stop(peer);
}

// Each operation fails alike against a peer that greets and then goes wrong.
static void operations_fail(enum conduct conduct, rdzv_status status, const char *phase, int64_t timeout_ms) {
  struct peer *peer = peer_start(conduct);
  rdzv_store *store = connect_store(NULL, peer_port(peer));
  rdzv_buffer *buffer = rdzv_buffer_new();
  rdzv_op *op = rdzv_op_new(NULL);
  int64_t number = 77;
  int32_t flag = 77;
  const rdzv_bytes keys[] = {BYTES("a"), BYTES("b")};
  const struct arguments given = {
      .store = store,
      .key = (const uint8_t *)"a",
      .key_len = 1,
      .value = (const uint8_t *)"b",
      .value_len = 1,
      .desired = (const uint8_t *)"c",
      .desired_len = 1,
      .keys = keys,
      .values = keys,
      .count = 2,
      .world_size = 2,
      .timeout_ms = timeout_ms,
      .number = &number,
      .flag = &flag,
      .buffer = buffer,
      .op = op,
  };
  for (size_t i = 0; i < operation_count; ++i) {
    rdzv_error *details = NULL;
    const rdzv_status outcome = call_or_perform(&operations[i], &given, &details);
    const struct failure wanted = {status, operations[i].name, peer_text(peer_port(peer)), phase, NULL};
    check_failure(__FILE__, __LINE__, operations[i].name, outcome, details, wanted);
    rdzv_error_free(details);
    CHECK(number == 77 && flag == 77 && rdzv_buffer_len(buffer) == 0);
  }
  rdzv_buffer_free(buffer);
  rdzv_op_free(op);
  rdzv_store_free(store);
  peer_stop(peer);
}

void peers_that_are_no_stores(void) {
  connecting_to_peer_fails(ACCEPTS_AND_IS_SILENT, SHORT_MS, RDZV_TIMED_OUT);
  connecting_to_peer_fails(ANSWERS_GARBAGE, PATIENCE_MS, RDZV_WRONG_PROTOCOL);
  connecting_to_peer_fails(CLOSES_AT_ONCE, -1, RDZV_SERVER_GONE);
  operations_fail(IGNORES_REQUESTS, RDZV_TIMED_OUT, NULL, 20);
  operations_fail(CLOSES_ON_REQUEST, RDZV_SERVER_GONE, NULL, PATIENCE_MS);

  struct peer *peer = peer_start(ANSWERS_AN_IMPOSSIBLE_LENGTH);
  rdzv_store *store = connect_store(NULL, peer_port(peer));
  rdzv_buffer *buffer = rdzv_buffer_new();
  const struct failure wanted = {RDZV_WRONG_PROTOCOL, "get", peer_text(peer_port(peer)), "receiving", "length"};
  FAILS_LIKE(wanted, rdzv_store_get(store, TEXT("key"), PATIENCE_MS, buffer, &error));
  rdzv_buffer_free(buffer);
  rdzv_store_free(store);
  peer_stop(peer);
}

struct waiting {
  const rdzv_store *store;
  rdzv_status outcome;
  rdzv_error *error;
};

static void *wait_for_key(void *argument) {
  struct waiting *call = argument;
  const rdzv_bytes keys[] = {BYTES("key")};
  call->outcome = rdzv_store_wait(call->store, keys, 1, PATIENCE_MS, &call->error);
  return NULL;
}

void servers_that_go_away(void) {
  rdzv_server *server = start_server(NULL);
  const uint16_t port = rdzv_server_port(server);
  rdzv_store *store = connect_store(NULL, port);
  struct waiting call = {.store = store};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wait_for_key, &call) == 0);
  await_waiting(server, 1);
  rdzv_server_free(server);
  CHECK(pthread_join(thread, NULL) == 0);
  const struct failure gone = {RDZV_SERVER_GONE, "wait", peer_text(port), "waiting", "key"};
  check_failure(__FILE__, __LINE__, "the pending wait", call.outcome, call.error, gone);
  rdzv_error_free(call.error);
  // From now on nobody is there.
  const struct failure refused = {RDZV_REFUSED, "set", peer_text(port), "connecting", "key"};
  FAILS_LIKE(refused, rdzv_store_set(store, TEXT("key"), TEXT("value"), PATIENCE_MS, &error));
  rdzv_store_free(store);

  // A value that is on its way when the peer goes: no signal ends this program.
  struct peer *peer = peer_start(CLOSES_ON_REQUEST);
  store = connect_store(NULL, peer_port(peer));
  static const uint8_t large[8 << 20];
  const struct failure cut = {RDZV_SERVER_GONE, "set", peer_text(peer_port(peer)), NULL, "large"};
  FAILS_LIKE(cut, rdzv_store_set(store, TEXT("large"), large, sizeof large, PATIENCE_MS, &error));
  rdzv_store_free(store);
  peer_stop(peer);
}
