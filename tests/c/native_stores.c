// Stores over the native protocol: what they have beyond the others.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;

static rdzv_store *connect_native(const rdzv_server *server, const char *node, int64_t grace_ms) {
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.node = node;
  options.grace_ms = grace_ms;
  options.heartbeat_ms = 5000;
  options.heartbeats_missed_max = 3;
  rdzv_store *store = NULL;
  OK(rdzv_store_new_native(NULL, &options, &store, &error));
  CHECK(store != NULL);
  return store;
}

static rdzv_lease *grant(const rdzv_store *store, int64_t ttl_ms, const char *key) {
  rdzv_lease *lease = NULL;
  OK(rdzv_lease_new(store, ttl_ms, -1, &lease, &error));
  CHECK(lease != NULL && rdzv_lease_number(lease) > 0);
  const rdzv_bytes keys[] = {BYTES(key)};
  rdzv_op *op = rdzv_op_new(NULL);
  PERFORM(store, op, rdzv_op_attach_lease(op, rdzv_lease_number(lease), keys, 1, &error));
  rdzv_op_free(op);
  OK(rdzv_store_set(store, TEXT(key), TEXT("leased"), -1, &error));
  return lease;
}

// Renews a lease, and revokes one; the number of keys that were deleted.
static rdzv_status renew(const rdzv_store *store, const rdzv_lease *lease, rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  return perform_once(store, op, rdzv_op_renew_lease(op, rdzv_lease_number(lease), error), -1, NULL, error);
}

static rdzv_status revoke(const rdzv_store *store, const rdzv_lease *lease, rdzv_result *result,
                          rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  return perform_once(store, op, rdzv_op_revoke_lease(op, rdzv_lease_number(lease), error), -1, result, error);
}

static rdzv_watch *watch_key(const rdzv_store *store, const char *key, uint64_t from_revision) {
  rdzv_watch *watch = NULL;
  rdzv_op *op = rdzv_op_new(NULL);
  OK(rdzv_op_watch_key(op, TEXT(key), from_revision, &error));
  OK(rdzv_watch_new(store, op, -1, &watch, &error));
  rdzv_op_free(op);
  CHECK(watch != NULL);
  return watch;
}

// The next change is of this key, to this value, or its removal when that is NULL; the revision that it made.
static uint64_t next_is(const rdzv_watch *watch, const char *wanted_key, const char *wanted_value) {
  rdzv_buffer *key = rdzv_buffer_new(), *value = rdzv_buffer_new();
  rdzv_change change = {.struct_size = sizeof change};
  OK(rdzv_watch_next(watch, PATIENCE_MS, &change, key, value, &error));
  CHECK_NUMBER(change.struct_size, sizeof change);
  CHECK_NUMBER(change.kind, wanted_value == NULL ? RDZV_CHANGE_DELETE : RDZV_CHANGE_PUT);
  check_bytes(__FILE__, __LINE__, change.key, change.key_len, wanted_key);
  CHECK_BUFFER(key, wanted_key);
  CHECK_BUFFER(value, wanted_value == NULL ? "" : wanted_value);
  CHECK(change.value == (wanted_value == NULL ? NULL : rdzv_buffer_data(value)));
  rdzv_buffer_free(key);
  rdzv_buffer_free(value);
  return change.revision;
}

static void no_change(const rdzv_watch *watch) {
  rdzv_buffer *key = rdzv_buffer_new();
  rdzv_change change = {.struct_size = sizeof change, .kind = 77, .revision = 77};
  OK(rdzv_watch_next(watch, 0, &change, key, NULL, &error));
  CHECK(change.kind == RDZV_CHANGE_NONE && change.revision == 0 && rdzv_buffer_len(key) == 0);
  CHECK(change.key == NULL && change.value == NULL);
  rdzv_buffer_free(key);
}

static uint64_t revision_of(const rdzv_store *store, const char *key, const char *wanted) {
  const rdzv_bytes keys[] = {BYTES(key)};
  rdzv_op *op = rdzv_op_new(NULL);
  OK(rdzv_op_read(op, keys, 1, &error));
  OK(rdzv_store_perform(store, op, 0, &error));
  CHECK_RESULT_ITEM(result_of(op), 0, wanted);
  const uint64_t revision = result_of(op).revisions[0];
  rdzv_op_free(op);
  return revision;
}

void native_stores_have_revisions_pages_and_prefixes(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada", 0);
  CHECK_TEXT(rdzv_store_peer(store), rdzv_server_address(server));
  rdzv_server *restarted = start_server(NULL);
  rdzv_store *at_restarted = connect_native(restarted, "ada", 0);
  CHECK(rdzv_store_incarnation(store) != 0 && rdzv_store_incarnation(NULL) == 0);
  CHECK(rdzv_store_incarnation(store) != rdzv_store_incarnation(at_restarted));
  rdzv_store_free(at_restarted);
  rdzv_server_free(restarted);

  // The keys are those of the other protocol.
  rdzv_store *other = connect_store(NULL, rdzv_server_port(server));
  OK(rdzv_store_set(other, TEXT("a"), TEXT("1"), -1, &error));
  const uint64_t first = revision_of(store, "a", "1");
  CHECK(first > 0);
  OK(rdzv_store_set(store, TEXT("b"), TEXT(""), -1, &error));
  CHECK(revision_of(store, "b", "") > first && revision_of(store, "a", "1") == first);
  CHECK_NUMBER((long long)revision_of(store, "none", ""), 0);
  rdzv_op *op = rdzv_op_new(NULL);
  const rdzv_bytes none[] = {BYTES("none")}, both[] = {BYTES("b"), BYTES("a")};
  const struct failure late = {RDZV_TIMED_OUT, "multi_get", rdzv_server_address(server), "waiting", "none"};
  OK(rdzv_op_read(op, none, 1, &error));
  FAILS_LIKE(late, rdzv_store_perform(store, op, 50, &error));
  PERFORM(store, op, rdzv_op_read(op, both, 2, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 2);
  CHECK_RESULT_ITEM(result_of(op), 1, "1");
  CHECK(result_of(op).revisions[1] == first && result_of(op).revisions[0] > first);

  // Pages, of a handle with a prefix.
  rdzv_store *beneath = NULL;
  OK(rdzv_store_new_prefix(store, TEXT("p"), &beneath, &error));
  const char *names[] = {"k1", "k2", "k3", "x"};
  for (int i = 0; i < 4; ++i) OK(rdzv_store_set(beneath, TEXT(names[i]), TEXT("v"), -1, &error));
  CHECK(revision_of(store, "p/k1", "v") == revision_of(beneath, "k1", "v"));
  PERFORM(beneath, op, rdzv_op_list_page(op, TEXT("k"), NULL, 0, 2, &error));
  CHECK(result_of(op).item_count == 2 && result_of(op).more == 1);
  CHECK_RESULT_ITEM(result_of(op), 1, "k2");
  PERFORM(beneath, op, rdzv_op_list_page(op, TEXT("k"), TEXT("k2"), 2, &error));
  CHECK(result_of(op).item_count == 1 && result_of(op).more == 0);
  CHECK_RESULT_ITEM(result_of(op), 0, "k3");
  PERFORM(beneath, op, rdzv_op_delete_prefix(op, TEXT("k"), &error));
  CHECK_NUMBER(result_of(op).deleted, 3);
  PERFORM(beneath, op, rdzv_op_list_page(op, NULL, 0, NULL, 0, 9, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 1);
  CHECK_RESULT_ITEM(result_of(op), 0, "x");

  // The session is that of all handles, and ends with a word for all of them.
  OK(store_end_session(beneath, -1, &error));
  FAILS(RDZV_SERVER_GONE, rdzv_store_set(store, TEXT("a"), TEXT("2"), -1, &error));
  rdzv_store_free(beneath);
  rdzv_store_free(store);
  rdzv_store_free(other);
  rdzv_op_free(op);
  rdzv_server_free(server);
}

void watches_tell_of_changes(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *other = connect_store(NULL, rdzv_server_port(server));
  // Before the first session there is no history.
  OK(rdzv_store_set(other, TEXT("early"), TEXT("1"), -1, &error));
  rdzv_store *store = connect_native(server, "ada", 0);
  rdzv_watch *watch = NULL;
  rdzv_error *details = NULL;
  rdzv_op *op = rdzv_op_new(NULL);
  OK(rdzv_op_watch_key(op, TEXT("early"), 1, &error));
  CHECK_NUMBER(rdzv_watch_new(store, op, -1, &watch, &details), RDZV_COMPACTED);
  const long long early = (long long)revision_of(store, "early", "1");
  CHECK_NUMBER((long long)info_of(details).revision, early + 1);
  CHECK_KEY(details, 0, "early");
  rdzv_error_free(details);
  CHECK(watch == NULL);

  watch = watch_key(store, "k", 0);
  CHECK_NUMBER((long long)rdzv_watch_revision(watch), early);
  no_change(watch);
  OK(rdzv_store_set(other, TEXT("k"), TEXT("v"), -1, &error));
  OK(rdzv_store_set(other, TEXT("another"), TEXT("v"), -1, &error));
  CHECK_NUMBER((long long)next_is(watch, "k", "v"), early + 1);
  int32_t deleted = 0;
  OK(rdzv_store_delete_key(other, TEXT("k"), -1, &deleted, &error));
  CHECK_NUMBER((long long)next_is(watch, "k", NULL), early + 3);
  no_change(watch);
  // Nobody has to take what he does not want.
  OK(rdzv_store_set(other, TEXT("k"), TEXT("w"), -1, &error));
  rdzv_change change = {.struct_size = sizeof change};
  OK(rdzv_watch_next(watch, PATIENCE_MS, &change, NULL, NULL, &error));
  CHECK(change.kind == RDZV_CHANGE_PUT && (long long)change.revision == early + 4);
  rdzv_watch_free(watch);

  // A prefix, from a revision on, through a handle with a prefix of its own, which may go before the watch.
  rdzv_store *beneath = NULL;
  OK(rdzv_store_new_prefix(store, TEXT("p"), &beneath, &error));
  OK(rdzv_store_set(other, TEXT("p/dir/a"), TEXT("1"), -1, &error));
  OK(rdzv_store_set(other, TEXT("p/b"), TEXT("1"), -1, &error));
  OK(rdzv_op_watch_prefix(op, TEXT("dir/"), (uint64_t)early + 1, &error));
  OK(rdzv_watch_new(beneath, op, -1, &watch, &error));
  rdzv_op_free(op);
  rdzv_store_free(beneath);
  rdzv_store_free(store);
  CHECK_NUMBER((long long)next_is(watch, "dir/a", "1"), early + 5);
  OK(rdzv_store_set(other, TEXT("p/dir/a"), TEXT("2"), -1, &error));
  CHECK_NUMBER((long long)next_is(watch, "dir/a", "2"), early + 7);

  // The session ends, and the watch says so from then on.
  OK(rdzv_server_stop(server, &error));
  FAILS(RDZV_SERVER_GONE, rdzv_watch_next(watch, PATIENCE_MS, &change, NULL, NULL, &error));
  FAILS(RDZV_SERVER_GONE, rdzv_watch_next(watch, 0, &change, NULL, NULL, &error));
  rdzv_watch_free(watch);
  rdzv_store_free(other);
  rdzv_server_free(server);
}

// A call that waits in a thread of its own.
struct waiting {
  const rdzv_watch *watch;
  const rdzv_lease *lease;
  rdzv_status outcome;
  atomic_bool is_over;
  pthread_t thread;
};

static void *wait_for_it(void *argument) {
  struct waiting *call = argument;
  rdzv_change change = {.struct_size = sizeof change};
  int32_t why = 0;
  call->outcome = call->watch != NULL ? rdzv_watch_next(call->watch, PATIENCE_MS, &change, NULL, NULL, NULL)
                                      : rdzv_lease_wait_over(call->lease, PATIENCE_MS, &why, NULL);
  atomic_store(&call->is_over, true);
  return NULL;
}

static void begin(struct waiting *call) {
  atomic_init(&call->is_over, false);
  CHECK(pthread_create(&call->thread, NULL, wait_for_it, call) == 0);
}

static void was_cancelled(struct waiting *call) {
  CHECK(pthread_join(call->thread, NULL) == 0);
  CHECK_NUMBER(call->outcome, RDZV_CANCELLED);
}

void watches_and_leases_are_cancelled_from_other_threads(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada", 0);
  rdzv_watch *watch = watch_key(store, "k", 0);
  rdzv_lease *lease = grant(store, 0, "leased");
  // The store's cancel sends away who waits now.
  struct waiting calls[] = {{.watch = watch}, {.lease = lease}};
  for (int i = 0; i < 2; ++i) {
    begin(&calls[i]);
    while (!atomic_load(&calls[i].is_over)) {
      rdzv_store_cancel(store);
      sched_yield();
    }
    was_cancelled(&calls[i]);
  }
  OK(rdzv_store_set(store, TEXT("k"), TEXT("v"), -1, &error));
  next_is(watch, "k", "v");
  // Their own cancel is for good, whether somebody waits already or not.
  for (int i = 0; i < 2; ++i) begin(&calls[i]);
  rdzv_watch_cancel(watch);
  rdzv_lease_cancel(lease);
  for (int i = 0; i < 2; ++i) was_cancelled(&calls[i]);
  rdzv_change change = {.struct_size = sizeof change};
  int32_t why = 77;
  FAILS(RDZV_CANCELLED, rdzv_watch_next(watch, PATIENCE_MS, &change, NULL, NULL, &error));
  FAILS(RDZV_CANCELLED, rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  CHECK_NUMBER(why, 77);
  OK(renew(store, lease, &error));
  rdzv_watch_free(watch);
  rdzv_lease_free(lease);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void leases_end_and_their_keys_with_them(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada", 0);
  rdzv_store *witness = connect_native(server, "eve", 0);
  rdzv_watch *watch = watch_key(witness, "k", 0);
  int32_t why = 77;

  // Its time is up.
  rdzv_lease *lease = grant(store, 1000, "k");
  next_is(watch, "k", "leased");
  OK(rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  CHECK_NUMBER(why, RDZV_WHY_DEADLINE);
  next_is(watch, "k", NULL);
  const rdzv_bytes keys[] = {BYTES("k")};
  FAILS(RDZV_NOT_FOUND, renew(store, lease, &error));
  rdzv_op *op = rdzv_op_new(NULL);
  const struct failure ended = {.status = RDZV_NOT_FOUND};
  PERFORM_FAILS_LIKE(ended, store, op, rdzv_op_attach_lease(op, rdzv_lease_number(lease), keys, 1, &error));
  rdzv_op_free(op);
  FAILS(RDZV_NOT_FOUND, revoke(store, lease, NULL, &error));
  rdzv_lease_free(lease);

  // It is revoked.
  lease = grant(store, 0, "k");
  next_is(watch, "k", "leased");
  OK(rdzv_lease_wait_over(lease, 0, &why, &error));
  CHECK_NUMBER(why, 0);
  rdzv_result revoked = {.struct_size = sizeof revoked};
  OK(revoke(store, lease, &revoked, &error));
  CHECK_NUMBER(revoked.deleted, 1);
  next_is(watch, "k", NULL);
  rdzv_lease_free(lease);
  lease = grant(store, PATIENCE_MS, "k");
  next_is(watch, "k", "leased");
  OK(renew(store, lease, &error));
  OK(revoke(store, lease, NULL, &error));
  next_is(watch, "k", NULL);
  rdzv_lease_free(lease);

  // Its session ends with the last handle; a lease keeps it alive, and a grace lets it live on.
  lease = grant(store, 0, "k");
  next_is(watch, "k", "leased");
  rdzv_store_free(store);
  no_change(watch);
  rdzv_lease_free(lease);
  next_is(watch, "k", NULL);
  const int64_t grace_ms = 300;
  store = connect_native(server, "ada", grace_ms);
  lease = grant(store, 0, "k");
  next_is(watch, "k", "leased");
  const long long began_ms = now_ms();
  rdzv_lease_free(lease);
  rdzv_store_free(store);
  next_is(watch, "k", NULL);
  CHECK(now_ms() - began_ms >= grace_ms - 1);

  // With a word it ends at once, and who waits for the lease hears of it.
  store = connect_native(server, "ada", PATIENCE_MS);
  lease = grant(store, 0, "k");
  next_is(watch, "k", "leased");
  OK(store_end_session(store, -1, &error));
  next_is(watch, "k", NULL);
  FAILS(RDZV_SERVER_GONE, rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  rdzv_lease_free(lease);
  rdzv_store_free(store);
  rdzv_watch_free(watch);
  rdzv_store_free(witness);
  rdzv_server_free(server);
}

// An arrival at the barrier "gate" in a thread of its own.
struct arrival {
  const rdzv_store *store;
  const rdzv_bytes *names;
  size_t name_count;
  uint64_t released;
  rdzv_status outcome;
  rdzv_error *error;
  pthread_t thread;
};

// Arrives at a named barrier; the generation that was released goes to `released`, unless that is NULL.
static rdzv_status meet(const rdzv_store *store, const char *key, uint64_t generation, const char *name, uint32_t count,
                        const rdzv_bytes *names, size_t name_count, int64_t timeout_ms, uint64_t *released,
                        rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  const size_t name_len = name == NULL ? 0 : strlen(name);
  const rdzv_status prepared = rdzv_op_named_barrier(op, TEXT(key), generation, (const uint8_t *)name, name_len, count,
                                                     names, name_count, error);
  rdzv_result result = {.struct_size = sizeof result};
  const rdzv_status outcome = perform_once(store, op, prepared, timeout_ms, &result, error);
  if (outcome == RDZV_OK && released != NULL) *released = result.generation;
  return outcome;
}

static void *arrive(void *argument) {
  struct arrival *call = argument;
  call->outcome = meet(call->store, "gate", 0, NULL, 0, call->names, call->name_count, PATIENCE_MS, &call->released,
                       &call->error);
  return NULL;
}

static void set_out(struct arrival *call) {
  CHECK(pthread_create(&call->thread, NULL, arrive, call) == 0);
}

// It ends so, in this generation, and with this name if there is one.
static void ends_with(struct arrival *call, rdzv_status status, long long generation, const char *name) {
  CHECK(pthread_join(call->thread, NULL) == 0);
  const struct failure wanted = {status, "barrier", rdzv_store_peer(call->store), "waiting", name};
  check_failure(__FILE__, __LINE__, "barrier", call->outcome, call->error, wanted);
  CHECK_NUMBER((long long)info_of(call->error).generation, generation);
  CHECK_NUMBER((long long)info_of(call->error).node_count, name != NULL);
  CHECK_KEY(call->error, 0, "gate");
  if (name != NULL) CHECK_NODE(call->error, 0, name);
  rdzv_error_free(call->error);
}

void named_barriers_tell_who_is_missing(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *ada = connect_native(server, "ada", 0), *bob = connect_native(server, "bob", 0);
  uint64_t released = 77;
  // It serves again and again.
  for (uint64_t generation = 1; generation <= 2; ++generation) {
    OK(meet(ada, "alone", 0, NULL, 1, NULL, 0, -1, &released, &error));
    CHECK(released == generation);
  }
  OK(meet(ada, "alone", 0, "eve", 1, NULL, 0, -1, NULL, &error));
  FAILS(RDZV_NOT_FOUND, meet(ada, "alone", 77, NULL, 1, NULL, 0, -1, NULL, &error));

  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  struct arrival call = {.store = ada, .names = both, .name_count = 2};
  set_out(&call);
  await_waiting(server, 1);
  FAILS(RDZV_CONFLICT, meet(bob, "gate", 0, NULL, 3, NULL, 0, -1, NULL, &error));
  FAILS(INVALID, meet(bob, "gate", 0, "eve", 0, both, 2, -1, NULL, &error));
  OK(meet(bob, "gate", 0, NULL, 0, both, 2, -1, &released, &error));
  CHECK(pthread_join(call.thread, NULL) == 0);
  check_success(__FILE__, __LINE__, "barrier", call.outcome, call.error);
  CHECK(call.released == 1 && released == 1);

  // Somebody does not come, somebody calls it off, somebody dies.
  rdzv_error *details = NULL;
  const rdzv_status late = meet(ada, "gate", 0, NULL, 0, both, 2, 50, &released, &details);
  check_failure(__FILE__, __LINE__, "barrier", late, details,
                (struct failure){RDZV_TIMED_OUT, "barrier", rdzv_server_address(server), "waiting", "bob"});
  CHECK_NUMBER((long long)info_of(details).generation, 2);
  CHECK_NODE(details, 0, "bob");
  rdzv_error_free(details);
  CHECK_NUMBER((long long)released, 1);
  set_out(&call);
  await_waiting(server, 1);
  rdzv_op *op = rdzv_op_new(NULL);
  PERFORM(bob, op, rdzv_op_cancel_named_barrier(op, TEXT("gate"), TEXT("eve"), &error));
  CHECK_NUMBER(result_of(op).was_waiting, 1);
  ends_with(&call, RDZV_CANCELLED, 3, NULL);
  PERFORM(bob, op, rdzv_op_cancel_named_barrier(op, TEXT("gate"), NULL, 0, &error));
  CHECK_NUMBER(result_of(op).was_waiting, 0);
  rdzv_loop *loop = NULL;
  rdzv_loop_member *store = NULL;
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.node = "bob";
  OK(rdzv_loop_new(NULL, &loop, &error));
  OK(rdzv_loop_add_native_store(loop, &options, NULL, &store, &error));
  const rdzv_bytes three[] = {BYTES("ada"), BYTES("bob"), BYTES("eve")};
  call.names = three;
  call.name_count = 3;
  set_out(&call);
  await_waiting(server, 1);
  SUBMIT(store, op, -1, rdzv_op_named_barrier(op, TEXT("gate"), 0, NULL, 0, 0, three, 3, &error));
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  for (rdzv_server_stats stats = {.struct_size = sizeof stats}; stats.waiting != 2;) {
    CHECK(now_ms() < deadline_ms);
    OK(rdzv_loop_poll(loop, &error));
    OK(rdzv_server_get_stats(server, &stats, &error));
  }
  rdzv_loop_free(loop);
  rdzv_op_free(op);
  ends_with(&call, RDZV_BARRIER_BROKEN, 4, "bob");
  rdzv_store_free(ada);
  rdzv_store_free(bob);
  rdzv_server_free(server);
}

// What each operation says of a store of another kind.
static void has_none_of_it(const rdzv_store *store, const char *kind) {
  const struct failure wanted = {.status = RDZV_UNSUPPORTED, .peer = rdzv_store_peer(store), .message_part = kind};
  const rdzv_bytes keys[] = {BYTES("k")};
  rdzv_op *op = rdzv_op_new(NULL);
  rdzv_watch *watch = NULL;
  rdzv_lease *lease = NULL;
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_end_session(op, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_read(op, keys, 1, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_list_page(op, NULL, 0, NULL, 0, 1, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_delete_prefix(op, TEXT("k"), &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_named_barrier(op, TEXT("k"), 0, NULL, 0, 1, NULL, 0, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_cancel_named_barrier(op, TEXT("k"), NULL, 0, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_grant_lease(op, 0, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_transaction(op, &error));
  PERFORM_FAILS_LIKE(wanted, store, op, rdzv_op_batch(op, &error));
  OK(rdzv_op_watch_key(op, TEXT("k"), 0, &error));
  FAILS_LIKE(wanted, rdzv_watch_new(store, op, -1, &watch, &error));
  OK(rdzv_op_watch_prefix(op, TEXT("k"), 0, &error));
  FAILS_LIKE(wanted, rdzv_watch_new(store, op, -1, &watch, &error));
  FAILS_LIKE(wanted, rdzv_lease_new(store, 0, -1, &lease, &error));
  CHECK(watch == NULL && lease == NULL);
  rdzv_op_free(op);
}

void other_stores_have_none_of_it(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *stores[3] = {connect_store(NULL, rdzv_server_port(server)), NULL, NULL};
  OK(rdzv_store_new_hash(NULL, -1, &stores[1], &error));
  OK(rdzv_store_new_file(NULL, new_path(), 0, -1, &stores[2], &error));
  const char *kinds[3] = {"c10d", "of this process alone", "in a file"};
  for (int i = 0; i < 3; ++i) {
    has_none_of_it(stores[i], kinds[i]);
    rdzv_store_free(stores[i]);
  }
  rdzv_server_free(server);
}

void native_stores_prove_their_token(void) {
  char tokens[512], reader[512], wrong[512];
  token_file(tokens, "admin 0123456789abcdef0123456789abcdef all\nreader abcdef0123456789abcdef0123456789 read:/\n");
  token_file(reader, "reader abcdef0123456789abcdef0123456789");
  token_file(wrong, "reader ffffffffffffffffffffffffffffffff");
  rdzv_server_options guarded = {.struct_size = sizeof guarded, .auth_token_file = tokens, .c10d_from = "10.0.0.0/8"};
  rdzv_server *server = NULL;
  OK(rdzv_server_new(NULL, &guarded, &server, &error));
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.connect_timeout_ms = -1;
  rdzv_store *admin = NULL, *store = NULL;
  FAILS(RDZV_UNAUTHENTICATED, rdzv_store_new_native(NULL, &options, &store, &error));
  options.auth_token_file = wrong;
  FAILS(RDZV_UNAUTHENTICATED, rdzv_store_new_native(NULL, &options, &store, &error));
  FAILS(INVALID, rdzv_store_new(NULL, &options, &store, &error));
  options.auth_token_file = "/nowhere/at/all";
  FAILS(INVALID, rdzv_store_new_native(NULL, &options, &store, &error));
  options.auth_token_file = tokens;
  OK(rdzv_store_new_native(NULL, &options, &admin, &error));
  OK(rdzv_store_set(admin, TEXT("k"), TEXT("v"), -1, &error));
  options.auth_token_file = reader;
  OK(rdzv_store_new_native(NULL, &options, &store, &error));
  FAILS(RDZV_PERMISSION_DENIED, rdzv_store_set(store, TEXT("k"), TEXT("w"), -1, &error));
  options.auth_token_file = NULL;
  rdzv_store_free(store);
  store = NULL;
  CHECK(rdzv_store_new(NULL, &options, &store, NULL) != RDZV_OK && store == NULL);  // from 127.0.0.1
  guarded.c10d_from = "here";
  rdzv_server *none = NULL;
  FAILS(INVALID, rdzv_server_new(NULL, &guarded, &none, &error));
  rdzv_store_free(admin);
  rdzv_server_free(server);
  CHECK(remove(tokens) == 0 && remove(reader) == 0 && remove(wrong) == 0);
}

void native_stores_refuse_bad_arguments(void) {
  rdzv_server *server = start_server(NULL);
  const rdzv_store_options options = options_for(rdzv_server_port(server));
  rdzv_store_options wrong[5] = {options, options, options, options, options};
  rdzv_store *store = NULL;
  wrong[0].node = "\xff";
  wrong[1].grace_ms = -1;
  wrong[2].heartbeat_ms = -1;
  wrong[3].port = 0;
  wrong[4].struct_size -= 1;
  for (int i = 0; i < 5; ++i) FAILS(INVALID, rdzv_store_new_native(NULL, &wrong[i], &store, &error));
  FAILS(INVALID, rdzv_store_new_native(NULL, NULL, &store, &error));
  FAILS(INVALID, rdzv_store_new_native(NULL, &options, NULL, &error));
  // The shipped library has no TLS, and says so.
  const rdzv_tls_options tls = {.struct_size = sizeof tls, .ca_file = "ca.pem"};
  rdzv_store_options secure = options;
  secure.tls = &tls;
  FAILS(RDZV_UNSUPPORTED, rdzv_store_new_native(NULL, &secure, &store, &error));
  FAILS(INVALID, rdzv_store_new(NULL, &secure, &store, &error));
  CHECK(store == NULL);
  OK(rdzv_store_new_native(NULL, &options, &store, &error));

  rdzv_op *op = rdzv_op_new(NULL);
  int32_t flag = 77;
  // The barrier has no other participants, and this session has no name.
  const struct failure invalid = {.status = INVALID};
  PERFORM_FAILS_LIKE(invalid, store, op, rdzv_op_named_barrier(op, TEXT("k"), 0, TEXT("n"), 0, NULL, 0, &error));
  PERFORM_FAILS_LIKE(invalid, store, op, rdzv_op_named_barrier(op, TEXT("k"), 0, NULL, 0, 1, NULL, 0, &error));

  rdzv_watch *watch = NULL;
  OK(rdzv_op_ping(op, &error));
  FAILS(INVALID, rdzv_watch_new(store, op, -1, &watch, &error));
  OK(rdzv_op_watch_key(op, TEXT("k"), 0, &error));
  FAILS(INVALID, rdzv_watch_new(NULL, op, -1, &watch, &error));
  FAILS(INVALID, rdzv_watch_new(store, NULL, -1, &watch, &error));
  FAILS(INVALID, rdzv_watch_new(store, op, -2, &watch, &error));
  FAILS(INVALID, rdzv_watch_new(store, op, -1, NULL, &error));
  CHECK(watch == NULL);
  watch = watch_key(store, "k", 0);
  rdzv_change change = {.struct_size = sizeof change, .kind = 77};
  FAILS(INVALID, rdzv_watch_next(NULL, 0, &change, NULL, NULL, &error));
  FAILS(INVALID, rdzv_watch_next(watch, 0, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_watch_next(watch, INT64_MIN, &change, NULL, NULL, &error));
  change.struct_size = sizeof change - 1;
  FAILS(INVALID, rdzv_watch_next(watch, 0, &change, NULL, NULL, &error));
  CHECK_NUMBER(change.kind, 77);
  rdzv_watch_free(watch);
  rdzv_watch_free(NULL);
  rdzv_watch_cancel(NULL);
  CHECK_NUMBER((long long)rdzv_watch_revision(NULL), 0);

  rdzv_lease *lease = NULL;
  FAILS(INVALID, rdzv_lease_new(NULL, 0, -1, &lease, &error));
  FAILS(INVALID, rdzv_lease_new(store, -1, -1, &lease, &error));
  FAILS(INVALID, rdzv_lease_new(store, 0, -1, NULL, &error));
  lease = grant(store, 0, "k");
  FAILS(INVALID, rdzv_lease_wait_over(NULL, 0, &flag, &error));
  FAILS(INVALID, rdzv_lease_wait_over(lease, 0, NULL, &error));
  rdzv_lease_free(lease);
  rdzv_lease_free(NULL);
  rdzv_lease_cancel(NULL);
  CHECK_NUMBER((long long)rdzv_lease_number(NULL), 0);

  CHECK_NUMBER((long long)info_of(NULL).revision, 0);
  CHECK_NUMBER((long long)info_of(NULL).generation, 0);
  CHECK(flag == 77);

  rdzv_store_free(store);
  rdzv_op_free(op);
  rdzv_server_free(server);
}

void rpc_workers_prove_the_token_of_their_stores(void) {
  char tokens[512];
  token_file(tokens, "0123456789abcdef0123456789abcdef");
  const rdzv_server_options guarded = {
      .struct_size = sizeof guarded, .auth_token_file = tokens, .c10d_from = "loopback"};
  rdzv_server *server = NULL;
  OK(rdzv_server_new(NULL, &guarded, &server, &error));
  rdzv_store_options options = options_for(rdzv_server_port(server));
  rdzv_store *plain = NULL, *store = NULL;
  OK(rdzv_store_new(NULL, &options, &plain, &error));
  options.auth_token_file = tokens;
  OK(rdzv_store_new_native(NULL, &options, &store, &error));
  rdzv_rpc *one = NULL, *two = NULL, *three = NULL;
  OK(rdzv_rpc_new(NULL, TEXT("one"), 1, -1, OVER(store, NULL), NULL, &one, &error));
  OK(rdzv_rpc_new(NULL, TEXT("two"), 2, -1, OVER(store, NULL), NULL, &two, &error));
  // One whose store has no token reads the keys of the group, and calls no member.
  const struct failure refused = {.status = RDZV_RPC_UNREACHED,
                                  .message_part = "it requires a token, and the caller has none"};
  FAILS_LIKE(refused, rdzv_rpc_new(NULL, TEXT("three"), 3, -1, OVER(plain, NULL), NULL, &three, &error));
  OK(rdzv_rpc_shutdown(two, RDZV_RPC_GRACEFUL, &error));
  OK(rdzv_rpc_shutdown(one, RDZV_RPC_GRACEFUL, &error));
  rdzv_rpc_free(two);
  rdzv_rpc_free(one);
  rdzv_store_free(store);
  rdzv_store_free(plain);
  rdzv_server_free(server);
  CHECK(remove(tokens) == 0);
}
