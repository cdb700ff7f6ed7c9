// Native stores in an event loop: what they have beyond the others, as events.
#include "check.h"
#include "tests.h"

// A session of this name in the loop, which is open.
static uint32_t add_native(rdzv_loop *loop, const rdzv_server *server, const char *node, int64_t heartbeat_ms) {
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  OK(rdzv_store_options_set_node(options, TEXT(node), &error));
  OK(rdzv_store_options_set_heartbeat(options, heartbeat_ms, 1, &error));
  uint32_t store = 0;
  OK(rdzv_loop_add_native_store(loop, options, &store, &error));
  CHECK(store > 0);
  rdzv_store_options_free(options);
  const rdzv_event event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_NODE_OPEN && event.store == store);
  return store;
}

// The end of this operation, which comes next and goes well.
static rdzv_event success_of(rdzv_loop *loop, uint64_t operation) {
  const rdzv_event event = await_event(loop);
  if (event.status != RDZV_OK) FAIL("%s", rdzv_error_message(event.error));
  CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  return event;
}

// A submission that must be taken, and its end, which comes next. `operation` and `event` are variables.
#define DONE(loop, call)                   \
  do {                                     \
    OK(call);                              \
    event = success_of(loop, operation);   \
  } while (false)

// The watch tells next of this key's change to this value, or of its removal when that is NULL.
static void next_is(rdzv_loop *loop, uint64_t watch, const char *key, const char *value) {
  const rdzv_event event = await_event(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_CHANGE);
  CHECK(event.operation == watch && event.revision > 0 && event.status == RDZV_OK);
  check_bytes(__FILE__, __LINE__, event.data, event.len, key);
  CHECK_NUMBER((long long)event.item_count, value != NULL);
  size_t len = 0;
  if (value != NULL) CHECK_LENT(rdzv_loop_item(loop, 0, &len), len, value);
}

// A lease with a key on it: its number; or by which operation it was granted, if it is to end by itself.
static uint64_t grant(rdzv_loop *loop, uint32_t store, int64_t ttl_ms, const char *key) {
  const rdzv_bytes keys[] = {BYTES(key)};
  uint64_t operation = 0;
  rdzv_event event;
  DONE(loop, rdzv_loop_store_grant_lease(loop, store, ttl_ms, -1, &operation, &error));
  const uint64_t granted = operation, lease = (uint64_t)event.number;
  DONE(loop, rdzv_loop_store_attach_lease(loop, store, lease, keys, 1, -1, &operation, &error));
  CHECK(lease > 0);
  return ttl_ms > 0 ? granted : lease;
}

void loops_have_native_stores(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  const uint32_t store = add_native(loop, server, "ada", 5000);
  uint64_t watch = 0, operation = 0;
  rdzv_event event;

  // All that every store does.
  DONE(loop, rdzv_loop_store_set(loop, store, TEXT("k"), TEXT("v"), -1, &operation, &error));
  DONE(loop, rdzv_loop_store_get(loop, store, TEXT("k"), -1, &operation, &error));
  CHECK(event.len == 1);
  FAILS(RDZV_UNSUPPORTED, rdzv_loop_store_barrier(loop, store, TEXT("b"), 1, -1, &operation, &error));

  // A watch from a revision on, until it is given up.
  OK(rdzv_loop_store_watch_key(loop, store, TEXT("k"), 1, -1, &watch, &error));
  CHECK_NUMBER((long long)success_of(loop, watch).revision, 1);
  next_is(loop, watch, "k", "v");
  OK(rdzv_loop_cancel(loop, store, watch, &error));
  event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_WATCH_OVER && event.status == RDZV_CANCELLED && event.operation == watch);
  OK(rdzv_loop_store_watch_prefix(loop, store, TEXT("dir/"), 0, -1, &watch, &error));
  success_of(loop, watch);

  // A transaction that another session does, as a change here; and one of this loop's own.
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  rdzv_store *other = NULL;
  OK(rdzv_store_connect_native(NULL, options, &other, &error));
  rdzv_store_options_free(options);
  rdzv_txn *txn = rdzv_txn_new();
  OK(rdzv_txn_require_absent(txn, TEXT("dir/a"), &error));
  OK(rdzv_txn_set(txn, TEXT("dir/a"), TEXT("1"), &error));
  int32_t holds = 0;
  uint64_t revision = 0;
  OK(rdzv_store_commit(other, txn, -1, &holds, &revision, &error));
  CHECK_NUMBER(holds, 1);
  next_is(loop, watch, "dir/a", "1");
  DONE(loop, rdzv_loop_store_commit(loop, store, txn, -1, &operation, &error));
  CHECK(event.number == 0 && event.revision == revision);
  rdzv_txn_free(txn);

  // A batch, whose answers come one by one.
  rdzv_batch *batch = rdzv_batch_new();
  OK(rdzv_batch_add(batch, TEXT("n"), 5, &error));
  OK(rdzv_batch_add(batch, TEXT("k"), 1, &error));
  DONE(loop, rdzv_loop_store_batch(loop, store, batch, -1, &operation, &error));
  CHECK(event.item_count == 2);
  rdzv_batch_free(batch);
  rdzv_answer answer = {.struct_size = sizeof answer};
  OK(rdzv_loop_answer(loop, 0, &answer, &error));
  CHECK(answer.status == RDZV_OK && answer.number == 5 && answer.data == NULL);
  OK(rdzv_loop_answer(loop, 1, &answer, &error));
  CHECK(answer.status == RDZV_INVALID_ARGUMENT && answer.len > 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_answer(loop, 2, &answer, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_answer(loop, 0, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_answer(NULL, 0, &answer, &error));
  DONE(loop, rdzv_loop_store_delete_prefix(loop, store, TEXT("k"), -1, &operation, &error));
  CHECK(event.number == 1);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_answer(loop, 0, &answer, &error));

  // Leases: kept, revoked, and over by themselves.
  const uint64_t lease = grant(loop, store, 0, "leased");
  DONE(loop, rdzv_loop_store_set(loop, store, TEXT("leased"), TEXT("v"), -1, &operation, &error));
  DONE(loop, rdzv_loop_store_renew_lease(loop, store, lease, -1, &operation, &error));
  DONE(loop, rdzv_loop_store_revoke_lease(loop, store, lease, -1, &operation, &error));
  CHECK(event.number == 1);
  OK(rdzv_loop_store_renew_lease(loop, store, lease, -1, &operation, &error));
  event = await_event(loop);
  CHECK(event.operation == operation && event.status == RDZV_NOT_FOUND);
  const uint64_t granted = grant(loop, store, 50, "leased");
  event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_LEASE_OVER && event.operation == granted && event.number == RDZV_WHY_DEADLINE);

  // A barrier for names.
  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  OK(rdzv_loop_node_barrier(loop, store, TEXT("gate"), 0, both, 2, 50, &operation, &error));
  event = await_event(loop);
  check_failure(__FILE__, __LINE__, "barrier", event.status, event.error,
                (struct failure){RDZV_TIMED_OUT, "barrier", rdzv_server_address(server), "waiting", "bob"});
  CHECK(event.number == 1 && rdzv_error_generation(event.error) == 1);
  size_t len = 0;
  CHECK_LENT(rdzv_error_node(event.error, 0, &len), len, "bob");

  // Whose loop does not turn is silent, and is taken for dead after its one heartbeat; who is removed, at once.
  rdzv_loop *silent = NULL;
  OK(rdzv_loop_new(NULL, &silent, &error));
  const uint32_t sleeper = add_native(silent, server, "eve", 50);
  const long long began_ms = now_ms();
  grant(silent, sleeper, 0, "dir/silent");
  OK(rdzv_loop_store_set(silent, sleeper, TEXT("dir/silent"), TEXT("v"), -1, &operation, &error));
  while (rdzv_loop_poll(silent, NULL) == RDZV_OK) {
    rdzv_event set = {.struct_size = sizeof set};
    OK(rdzv_loop_next_event(silent, &set, &error));
    if (set.kind != RDZV_EVENT_NONE) break;
  }
  next_is(loop, watch, "dir/silent", "v");
  next_is(loop, watch, "dir/silent", NULL);
  CHECK(now_ms() - began_ms >= 49);
  rdzv_loop_free(silent);
  const uint32_t brief = add_native(loop, server, "cid", 5000);
  grant(loop, brief, 0, "dir/brief");
  OK(rdzv_store_set(other, TEXT("dir/brief"), TEXT("v"), -1, &error));
  next_is(loop, watch, "dir/brief", "v");
  OK(rdzv_loop_remove_store(loop, brief, &error));
  next_is(loop, watch, "dir/brief", NULL);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_store_ping(loop, brief, -1, &operation, &error));

  // A goodbye is heard, and the session is over.
  OK(rdzv_loop_node_shutdown(loop, store, -1, &operation, &error));
  success_of(loop, operation);
  event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_NODE_OVER && event.status == RDZV_OK && event.store == store);
  FAILS(RDZV_SERVER_GONE, rdzv_loop_store_watch_key(loop, store, TEXT("k"), 0, -1, &operation, &error));

  rdzv_store_free(other);
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}

void loops_refuse_what_native_stores_alone_have(void) {
  const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  uint32_t plain = 0, none = 77;
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  OK(rdzv_loop_add_store(loop, options, &plain, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(NULL, options, &none, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(loop, NULL, &none, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(loop, options, NULL, &error));
  rdzv_store_options_free(options);
  OK(rdzv_store_options_new(&options, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(loop, options, &none, &error));
  rdzv_store_options_free(options);
  CHECK_NUMBER(none, 77);
  uint64_t operation = 77;
  rdzv_txn *txn = rdzv_txn_new();
  rdzv_batch *batch = rdzv_batch_new();
  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  const struct failure other_kind = {RDZV_UNSUPPORTED, NULL, rdzv_server_address(server), NULL, "c10d"};
  FAILS_LIKE(other_kind, rdzv_loop_store_watch_key(loop, plain, TEXT("k"), 0, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_watch_prefix(loop, plain, TEXT("k"), 0, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_grant_lease(loop, plain, 0, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_attach_lease(loop, plain, 1, both, 2, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_renew_lease(loop, plain, 1, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_revoke_lease(loop, plain, 1, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_delete_prefix(loop, plain, TEXT("k"), -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_commit(loop, plain, txn, -1, &operation, &error));
  FAILS_LIKE(other_kind, rdzv_loop_store_batch(loop, plain, batch, -1, &operation, &error));
  const uint32_t live = add_native(loop, server, "dan", 5000);
  FAILS(INVALID, rdzv_loop_store_watch_key(NULL, live, TEXT("k"), 0, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_watch_key(loop, 999, TEXT("k"), 0, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_watch_key(loop, live, NULL, 1, 0, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_watch_key(loop, live, TEXT("k"), 0, -2, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_watch_key(loop, live, TEXT("k"), 0, -1, NULL, &error));
  FAILS(INVALID, rdzv_loop_store_watch_prefix(loop, live, NULL, 1, 0, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_grant_lease(loop, live, -1, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_attach_lease(loop, live, 1, NULL, 1, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_delete_prefix(loop, live, NULL, 1, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_commit(loop, live, NULL, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_batch(loop, live, NULL, -1, &operation, &error));
  CHECK_NUMBER((long long)operation, 77);
  rdzv_txn_free(txn);
  rdzv_batch_free(batch);
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}
