// Native stores in an event loop: what they have beyond the others, as events.
#include "check.h"
#include "ops.h"
#include "tests.h"

// Time without a frame after which a session is dead: long enough for a machine that stops this process for a while.
#define SILENCE_MS 1000

// A session of this name in the loop, which is open.
static rdzv_loop_member *add_native(rdzv_loop *loop, const rdzv_server *server, const char *node,
                                    int64_t heartbeat_ms) {
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.node = node;
  options.heartbeat_ms = heartbeat_ms;
  options.heartbeats_missed_max = 1;
  rdzv_loop_member *store = NULL;
  OK(rdzv_loop_add_native_store(loop, &options, NULL, &store, &error));
  CHECK(store != NULL);
  const rdzv_event event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_SESSION_OPEN && event.member == store);
  // A store that blocks says the same of this start of the server.
  rdzv_store *beside = NULL;
  OK(rdzv_store_new_native(NULL, &options, &beside, &error));
  CHECK(event.incarnation != 0 && event.incarnation == rdzv_store_incarnation(beside));
  rdzv_store_free(beside);
  return store;
}

// The watch begins, at this revision unless that is 0.
static void begins(rdzv_loop *loop, const rdzv_op *watch, uint64_t revision) {
  const rdzv_event event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_WATCHING && event.op == watch);
  if (revision > 0) CHECK_NUMBER((long long)result_of(watch).revision, (long long)revision);
}

// The watch reports next this key's change to this value, or its removal when that is NULL.
static void next_is(rdzv_loop *loop, const rdzv_op *watch, const char *key, const char *value) {
  const rdzv_event event = await_event(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_CHANGE);
  CHECK(event.op == watch && event.change->revision > 0 && event.error == NULL);
  check_bytes(__FILE__, __LINE__, event.change->key, event.change->key_len, key);
  CHECK_NUMBER(event.change->kind, value == NULL ? RDZV_CHANGE_DELETE : RDZV_CHANGE_PUT);
  CHECK((event.change->value != NULL) == (value != NULL));
  if (value != NULL) check_bytes(__FILE__, __LINE__, event.change->value, event.change->value_len, value);
}

// A lease with a key on it.
static uint64_t grant(rdzv_loop *loop, rdzv_loop_member *store, rdzv_op *op, int64_t ttl_ms, const char *key) {
  const rdzv_bytes keys[] = {BYTES(key)};
  SUBMIT(store, op, -1, rdzv_op_grant_lease(op, ttl_ms, &error));
  const uint64_t lease = await_success_of(loop, op).lease;
  CHECK(lease > 0);
  SUBMIT(store, op, -1, rdzv_op_attach_lease(op, lease, keys, 1, &error));
  await_success_of(loop, op);
  return lease;
}

void loops_have_native_stores(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_loop_member *store = add_native(loop, server, "ada", 5000);
  rdzv_op *op = rdzv_op_new(NULL), *part = rdzv_op_new(NULL), *watch = rdzv_op_new(NULL);
  rdzv_event event;

  // All that every store does.
  SUBMIT(store, op, -1, rdzv_op_set(op, TEXT("k"), TEXT("v"), &error));
  await_success_of(loop, op);
  const rdzv_bytes keys[] = {BYTES("k")};
  SUBMIT(store, op, -1, rdzv_op_read(op, keys, 1, &error));
  const uint64_t began = await_success_of(loop, op).revisions[0];
  CHECK(began > 0);
  SUBMIT(store, op, -1, rdzv_op_get(op, TEXT("k"), &error));
  CHECK_VALUE(await_success_of(loop, op), "v");
  const struct failure unsupported = {.status = RDZV_UNSUPPORTED};
  SUBMIT_FAILS_LIKE(unsupported, store, op, rdzv_op_barrier(op, TEXT("b"), 1, &error));
  SUBMIT_FAILS_LIKE(unsupported, store, op, rdzv_op_run_info(op, &error));
  SUBMIT_FAILS_LIKE(unsupported, store, op, rdzv_op_next_rendezvous(op, &error));

  // A watch from a revision on, until it is cancelled.
  SUBMIT(store, watch, -1, rdzv_op_watch_key(watch, TEXT("k"), began, &error));
  begins(loop, watch, began);
  next_is(loop, watch, "k", "v");
  FAILS(RDZV_REENTRANT, rdzv_op_ping(watch, &error));
  OK(rdzv_loop_cancel(loop, watch, &error));
  const rdzv_result cancelled = await_op(loop, watch);
  CHECK_NUMBER(cancelled.status, RDZV_CANCELLED);
  CHECK_NUMBER(info_of(cancelled.error).key_count, 1);
  CHECK_BYTES(info_of(cancelled.error).keys[0], "k");
  // One that is freed reports nothing.
  SUBMIT(store, watch, -1, rdzv_op_watch_key(watch, TEXT("k"), 0, &error));
  begins(loop, watch, 0);
  rdzv_op_free(watch);
  SUBMIT(store, op, -1, rdzv_op_set(op, TEXT("k"), TEXT("w"), &error));
  await_success_of(loop, op);
  watch = rdzv_op_new(NULL);
  SUBMIT(store, watch, -1, rdzv_op_watch_prefix(watch, TEXT("dir/"), 0, &error));
  begins(loop, watch, 0);

  // A transaction that another session does, as a change here; and one of this loop's own.
  rdzv_store_options options = options_for(rdzv_server_port(server));
  rdzv_store *other = NULL;
  OK(rdzv_store_new_native(NULL, &options, &other, &error));
  OK(rdzv_op_transaction(op, &error));
  OK(rdzv_op_require_absent(op, TEXT("dir/a"), &error));
  INCLUDE(op, part, rdzv_op_set(part, TEXT("dir/a"), TEXT("1"), &error));
  OK(rdzv_store_perform(other, op, -1, &error));
  CHECK_NUMBER(result_of(op).holds, 1);
  const uint64_t revision = result_of(op).revision;
  next_is(loop, watch, "dir/a", "1");
  OK(rdzv_loop_submit(store, op, -1, &error));
  const rdzv_result again = await_success_of(loop, op);
  CHECK(again.holds == 0 && again.revision == revision);

  // A batch, whose results come one by one.
  OK(rdzv_op_batch(op, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("n"), 5, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("k"), 1, &error));
  OK(rdzv_loop_submit(store, op, -1, &error));
  CHECK_NUMBER((long long)await_success_of(loop, op).part_count, 2);
  CHECK(part_of(op, 0).status == RDZV_OK && part_of(op, 0).sum == 5);
  CHECK(part_of(op, 1).status == RDZV_INVALID_ARGUMENT && part_of(op, 1).error != NULL);
  SUBMIT(store, op, -1, rdzv_op_delete_prefix(op, TEXT("k"), &error));
  CHECK_NUMBER(await_success_of(loop, op).deleted, 1);

  // Leases: kept, revoked, and over by themselves.
  const uint64_t lease = grant(loop, store, op, 0, "leased");
  SUBMIT(store, op, -1, rdzv_op_set(op, TEXT("leased"), TEXT("v"), &error));
  await_success_of(loop, op);
  SUBMIT(store, op, -1, rdzv_op_renew_lease(op, lease, &error));
  await_success_of(loop, op);
  SUBMIT(store, op, -1, rdzv_op_revoke_lease(op, lease, &error));
  CHECK_NUMBER(await_success_of(loop, op).deleted, 1);
  SUBMIT(store, op, -1, rdzv_op_renew_lease(op, lease, &error));
  CHECK_NUMBER(await_op(loop, op).status, RDZV_NOT_FOUND);
  const uint64_t brief_lease = grant(loop, store, op, 1000, "leased");
  event = await_event(loop);
  CHECK(event.kind == RDZV_EVENT_LEASE_OVER && event.lease == brief_lease && event.lease_why == RDZV_WHY_DEADLINE);

  // A barrier for names.
  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  SUBMIT(store, op, 50, rdzv_op_named_barrier(op, TEXT("gate"), 0, NULL, 0, 0, both, 2, &error));
  const rdzv_result late = await_op(loop, op);
  check_failure(__FILE__, __LINE__, "barrier", late.status, late.error,
                (struct failure){RDZV_TIMED_OUT, "barrier", rdzv_server_address(server), "waiting", "bob"});
  CHECK(late.generation == 1 && info_of(late.error).generation == 1);
  CHECK_NODE(late.error, 0, "bob");

  // A session whose loop is not polled is silent, and dead for the server after its one heartbeat; one that is removed, at
  // once.
  rdzv_loop *silent = NULL;
  OK(rdzv_loop_new(NULL, &silent, &error));
  rdzv_loop_member *sleeper = add_native(silent, server, "eve", SILENCE_MS);
  const long long began_ms = now_ms();
  grant(silent, sleeper, op, 0, "dir/silent");
  SUBMIT(sleeper, op, -1, rdzv_op_set(op, TEXT("dir/silent"), TEXT("v"), &error));
  while (rdzv_loop_poll(silent, NULL) == RDZV_OK) {
    rdzv_event set = {.struct_size = sizeof set};
    OK(rdzv_loop_next_event(silent, &set, &error));
    if (set.kind != RDZV_EVENT_NONE) break;
  }
  next_is(loop, watch, "dir/silent", "v");
  next_is(loop, watch, "dir/silent", NULL);
  CHECK(now_ms() - began_ms >= SILENCE_MS - 1);
  rdzv_loop_free(silent);
  rdzv_loop_member *brief = add_native(loop, server, "cid", 5000);
  grant(loop, brief, op, 0, "dir/brief");
  OK(rdzv_store_set(other, TEXT("dir/brief"), TEXT("v"), -1, &error));
  next_is(loop, watch, "dir/brief", "v");
  OK(rdzv_loop_remove(brief, &error));
  next_is(loop, watch, "dir/brief", NULL);

  // The session ends gracefully, and its watch with it.
  SUBMIT(store, op, -1, rdzv_op_end_session(op, &error));
  bool is_over = false, has_completed = false;
  for (int left = 3; left > 0; --left) {
    event = await_event(loop);
    if (event.kind == RDZV_EVENT_SESSION_OVER) {
      CHECK(event.error == NULL && event.member == store && event.op == NULL);
      is_over = true;
    } else if (event.op == op) {
      CHECK_NUMBER(result_of(op).status, RDZV_OK);
      has_completed = true;
    } else {
      CHECK(event.kind == RDZV_EVENT_COMPLETED && event.op == watch && result_of(watch).status == RDZV_SERVER_GONE);
    }
    if (is_over && has_completed) break;
  }
  CHECK(is_over && has_completed);
  const struct failure gone = {.status = RDZV_SERVER_GONE};
  SUBMIT_FAILS_LIKE(gone, store, op, rdzv_op_watch_key(op, TEXT("k"), 0, &error));

  rdzv_store_free(other);
  rdzv_loop_free(loop);
  rdzv_op_free(watch);
  rdzv_op_free(part);
  rdzv_op_free(op);
  rdzv_server_free(server);
}

void loops_refuse_what_native_stores_alone_have(void) {
  const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_loop_member *plain = NULL, *none = NULL;
  rdzv_store_options options = options_for(rdzv_server_port(server));
  OK(rdzv_loop_add_store(loop, &options, NULL, &plain, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(NULL, &options, NULL, &none, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(loop, NULL, NULL, &none, &error));
  FAILS(INVALID, rdzv_loop_add_native_store(loop, &options, NULL, NULL, &error));
  options.host = NULL;
  FAILS(INVALID, rdzv_loop_add_native_store(loop, &options, NULL, &none, &error));
  CHECK(none == NULL);
  rdzv_op *op = rdzv_op_new(NULL);
  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  const struct failure other_kind = {RDZV_UNSUPPORTED, NULL, rdzv_server_address(server), NULL, "c10d"};
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_watch_key(op, TEXT("k"), 0, &error));
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_watch_prefix(op, TEXT("k"), 0, &error));
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_grant_lease(op, 0, &error));
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_attach_lease(op, 1, both, 2, &error));
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_delete_prefix(op, TEXT("k"), &error));
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_transaction(op, &error));
  SUBMIT_FAILS_LIKE(other_kind, plain, op, rdzv_op_batch(op, &error));
  const struct failure unsupported = {.status = RDZV_UNSUPPORTED};
  SUBMIT_FAILS_LIKE(unsupported, plain, op, rdzv_op_next_rendezvous(op, &error));
  rdzv_loop_free(loop);
  rdzv_op_free(op);
  rdzv_server_free(server);
}
