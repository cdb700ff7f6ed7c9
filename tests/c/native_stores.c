// Stores over the native protocol: what they have beyond the others.
#include "check.h"
#include "tests.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;

static rdzv_store *connect_native(const rdzv_server *server, const char *node, int64_t grace_ms) {
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  OK(rdzv_store_options_set_node(options, TEXT(node), &error));
  OK(rdzv_store_options_set_grace_ms(options, grace_ms, &error));
  OK(rdzv_store_options_set_heartbeat(options, 5000, 3, &error));
  rdzv_store *store = NULL;
  OK(rdzv_store_connect_native(NULL, options, &store, &error));
  CHECK(store != NULL);
  rdzv_store_options_free(options);
  return store;
}

static rdzv_lease *grant(const rdzv_store *store, int64_t ttl_ms, const char *key) {
  rdzv_lease *lease = NULL;
  OK(rdzv_store_grant_lease(store, ttl_ms, -1, &lease, &error));
  CHECK(lease != NULL && rdzv_lease_number(lease) > 0);
  const rdzv_bytes keys[] = {BYTES(key)};
  OK(rdzv_lease_attach(lease, keys, 1, -1, &error));
  OK(rdzv_store_set(store, TEXT(key), TEXT("leased"), -1, &error));
  return lease;
}

static rdzv_watch *watch_key(const rdzv_store *store, const char *key, uint64_t from_revision) {
  rdzv_watch *watch = NULL;
  OK(rdzv_store_watch_key(store, TEXT(key), from_revision, -1, &watch, &error));
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
  CHECK_BUFFER(key, wanted_key);
  CHECK_BUFFER(value, wanted_value == NULL ? "" : wanted_value);
  rdzv_buffer_free(key);
  rdzv_buffer_free(value);
  return change.revision;
}

static void no_change(const rdzv_watch *watch) {
  rdzv_buffer *key = rdzv_buffer_new();
  rdzv_change change = {.struct_size = sizeof change, .kind = 77, .revision = 77};
  OK(rdzv_watch_next(watch, 0, &change, key, NULL, &error));
  CHECK(change.kind == RDZV_CHANGE_NONE && change.revision == 0 && rdzv_buffer_len(key) == 0);
  rdzv_buffer_free(key);
}

static uint64_t revision_of(const rdzv_store *store, const char *key, const char *wanted) {
  uint64_t revision = 77;
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_get_with_revision(store, TEXT(key), 0, value, &revision, &error));
  CHECK_BUFFER(value, wanted);
  rdzv_buffer_free(value);
  return revision;
}

void native_stores_have_revisions_pages_and_prefixes(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada", 0);
  CHECK_TEXT(rdzv_store_peer(store), rdzv_server_address(server));

  // The keys are those of the other protocol.
  rdzv_store *other = connect_store(NULL, rdzv_server_port(server));
  OK(rdzv_store_set(other, TEXT("a"), TEXT("1"), -1, &error));
  const uint64_t first = revision_of(store, "a", "1");
  CHECK(first > 0);
  OK(rdzv_store_set(store, TEXT("b"), TEXT(""), -1, &error));
  CHECK(revision_of(store, "b", "") > first && revision_of(store, "a", "1") == first);
  CHECK_NUMBER((long long)revision_of(store, "none", ""), 0);
  rdzv_buffer *value = rdzv_buffer_new();
  uint64_t revision = 77;
  const struct failure late = {RDZV_TIMED_OUT, "multi_get", rdzv_server_address(server), "waiting", "none"};
  FAILS_LIKE(late, rdzv_store_get_with_revision(store, TEXT("none"), 50, value, &revision, &error));
  CHECK_NUMBER((long long)revision, 77);
  const rdzv_bytes both[] = {BYTES("b"), BYTES("a")};
  rdzv_list *list = rdzv_list_new();
  uint64_t revisions[] = {0, 0};
  OK(rdzv_store_multi_get_with_revisions(store, both, 2, -1, list, revisions, &error));
  CHECK_NUMBER((long long)rdzv_list_count(list), 2);
  CHECK_ITEM(list, 1, "1");
  CHECK(revisions[1] == first && revisions[0] > first);

  // Pages, of a handle with a prefix.
  rdzv_store *beneath = NULL;
  OK(rdzv_store_with_prefix(store, TEXT("p"), &beneath, &error));
  const char *names[] = {"k1", "k2", "k3", "x"};
  for (int i = 0; i < 4; ++i) OK(rdzv_store_set(beneath, TEXT(names[i]), TEXT("v"), -1, &error));
  CHECK(revision_of(store, "p/k1", "v") == revision_of(beneath, "k1", "v"));
  int32_t more = 77;
  OK(rdzv_store_list_keys_page(beneath, TEXT("k"), NULL, 0, 2, -1, list, &more, &error));
  CHECK(rdzv_list_count(list) == 2 && more == 1);
  CHECK_ITEM(list, 1, "k2");
  OK(rdzv_store_list_keys_page(beneath, TEXT("k"), TEXT("k2"), 2, -1, list, &more, &error));
  CHECK(rdzv_list_count(list) == 1 && more == 0);
  CHECK_ITEM(list, 0, "k3");
  int64_t count = 77;
  OK(rdzv_store_delete_prefix(beneath, TEXT("k"), -1, &count, NULL, &error));
  CHECK_NUMBER(count, 3);
  OK(rdzv_store_list_keys_page(beneath, NULL, 0, NULL, 0, 9, -1, list, &more, &error));
  CHECK_NUMBER((long long)rdzv_list_count(list), 1);
  CHECK_ITEM(list, 0, "x");

  // The session is that of all handles, and ends with a word for all of them.
  OK(rdzv_store_end_session(beneath, -1, &error));
  FAILS(RDZV_SERVER_GONE, rdzv_store_set(store, TEXT("a"), TEXT("2"), -1, &error));
  rdzv_store_free(beneath);
  rdzv_store_free(store);
  rdzv_store_free(other);
  rdzv_list_free(list);
  rdzv_buffer_free(value);
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
  CHECK_NUMBER(rdzv_store_watch_key(store, TEXT("early"), 1, -1, &watch, &details), RDZV_COMPACTED);
  CHECK_NUMBER((long long)rdzv_error_revision(details), 2);
  size_t len = 0;
  CHECK_LENT(rdzv_error_key(details, 0, &len), len, "early");
  rdzv_error_free(details);
  CHECK(watch == NULL);

  watch = watch_key(store, "k", 0);
  CHECK_NUMBER((long long)rdzv_watch_revision(watch), 1);
  no_change(watch);
  OK(rdzv_store_set(other, TEXT("k"), TEXT("v"), -1, &error));
  OK(rdzv_store_set(other, TEXT("another"), TEXT("v"), -1, &error));
  CHECK_NUMBER((long long)next_is(watch, "k", "v"), 2);
  int32_t deleted = 0;
  OK(rdzv_store_delete_key(other, TEXT("k"), -1, &deleted, &error));
  CHECK_NUMBER((long long)next_is(watch, "k", NULL), 4);
  no_change(watch);
  // Nobody has to take what he does not want.
  OK(rdzv_store_set(other, TEXT("k"), TEXT("w"), -1, &error));
  rdzv_change change = {.struct_size = sizeof change};
  OK(rdzv_watch_next(watch, PATIENCE_MS, &change, NULL, NULL, &error));
  CHECK(change.kind == RDZV_CHANGE_PUT && change.revision == 5);
  rdzv_watch_free(watch);

  // A prefix, from a revision on, through a handle with a prefix of its own, which may go before the watch.
  rdzv_store *beneath = NULL;
  OK(rdzv_store_with_prefix(store, TEXT("p"), &beneath, &error));
  OK(rdzv_store_set(other, TEXT("p/dir/a"), TEXT("1"), -1, &error));
  OK(rdzv_store_set(other, TEXT("p/b"), TEXT("1"), -1, &error));
  OK(rdzv_store_watch_prefix(beneath, TEXT("dir/"), 2, -1, &watch, &error));
  rdzv_store_free(beneath);
  rdzv_store_free(store);
  CHECK_NUMBER((long long)next_is(watch, "dir/a", "1"), 6);
  OK(rdzv_store_set(other, TEXT("p/dir/a"), TEXT("2"), -1, &error));
  CHECK_NUMBER((long long)next_is(watch, "dir/a", "2"), 8);

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
  OK(rdzv_lease_renew(lease, -1, &error));
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
  int64_t count = 77;

  // Its time is up.
  rdzv_lease *lease = grant(store, 50, "k");
  next_is(watch, "k", "leased");
  OK(rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  CHECK_NUMBER(why, RDZV_WHY_DEADLINE);
  next_is(watch, "k", NULL);
  const rdzv_bytes keys[] = {BYTES("k")};
  FAILS(RDZV_NOT_FOUND, rdzv_lease_renew(lease, -1, &error));
  FAILS(RDZV_NOT_FOUND, rdzv_lease_attach(lease, keys, 1, -1, &error));
  FAILS(RDZV_NOT_FOUND, rdzv_lease_revoke(lease, -1, &count, &error));
  CHECK_NUMBER(count, 77);
  rdzv_lease_free(lease);

  // It is revoked.
  lease = grant(store, 0, "k");
  next_is(watch, "k", "leased");
  OK(rdzv_lease_wait_over(lease, 0, &why, &error));
  CHECK_NUMBER(why, 0);
  OK(rdzv_lease_revoke(lease, -1, &count, &error));
  CHECK_NUMBER(count, 1);
  next_is(watch, "k", NULL);
  rdzv_lease_free(lease);
  lease = grant(store, PATIENCE_MS, "k");
  next_is(watch, "k", "leased");
  OK(rdzv_lease_renew(lease, -1, &error));
  OK(rdzv_lease_revoke(lease, -1, NULL, &error));
  next_is(watch, "k", NULL);
  rdzv_lease_free(lease);

  // Its session ends with the last handle; a lease keeps it alive, and a grace lets it live on.
  lease = grant(store, 0, "k");
  next_is(watch, "k", "leased");
  rdzv_store_free(store);
  OK(rdzv_lease_renew(lease, -1, &error));
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
  OK(rdzv_store_end_session(store, -1, &error));
  next_is(watch, "k", NULL);
  FAILS(RDZV_SERVER_GONE, rdzv_lease_wait_over(lease, PATIENCE_MS, &why, &error));
  rdzv_lease_free(lease);
  rdzv_store_free(store);
  rdzv_watch_free(watch);
  rdzv_store_free(witness);
  rdzv_server_free(server);
}

static uint64_t commits(const rdzv_store *store, const rdzv_txn *txn, int32_t wanted) {
  int32_t holds = 77;
  uint64_t revision = 77;
  OK(rdzv_store_commit(store, txn, -1, &holds, &revision, &error));
  CHECK_NUMBER(holds, wanted);
  return revision;
}

void transactions_are_done_whole_or_not(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada", 0);
  rdzv_watch *watch = NULL;
  OK(rdzv_store_watch_prefix(store, NULL, 0, 0, -1, &watch, &error));
  // Who is first leads; who comes later is counted.
  rdzv_txn *txn = rdzv_txn_new();
  OK(rdzv_txn_require_absent(txn, TEXT("leader"), &error));
  OK(rdzv_txn_set(txn, TEXT("leader"), TEXT("ada"), &error));
  OK(rdzv_txn_otherwise(txn, &error));
  OK(rdzv_txn_add(txn, TEXT("late"), 2, &error));
  const uint64_t won = commits(store, txn, 1);
  CHECK(next_is(watch, "leader", "ada") == won && revision_of(store, "leader", "ada") == won);
  CHECK(commits(store, txn, 0) > won);
  next_is(watch, "late", "2");
  int32_t holds = 77;
  OK(rdzv_store_commit(store, txn, -1, &holds, NULL, &error));
  next_is(watch, "late", "4");
  rdzv_txn_free(txn);

  // Every test, and every write.
  txn = rdzv_txn_new();
  OK(rdzv_txn_require_present(txn, TEXT("leader"), &error));
  OK(rdzv_txn_require_revision(txn, TEXT("leader"), won, &error));
  OK(rdzv_txn_require_revision(txn, TEXT("nowhere"), 0, &error));
  OK(rdzv_txn_require_value(txn, TEXT("late"), TEXT("4"), &error));
  OK(rdzv_txn_append(txn, TEXT("leader"), TEXT("!"), &error));
  OK(rdzv_txn_set(txn, TEXT("dir/a"), TEXT("1"), &error));
  OK(rdzv_txn_set(txn, TEXT("dir/b"), NULL, 0, &error));
  OK(rdzv_txn_delete_key(txn, TEXT("late"), &error));
  const uint64_t second = commits(store, txn, 1);
  CHECK(second > won && revision_of(store, "leader", "ada!") > won && revision_of(store, "late", "") == 0);
  // The leader has changed since.
  CHECK(commits(store, txn, 0) == second);
  rdzv_txn_free(txn);
  txn = rdzv_txn_new();
  OK(rdzv_txn_delete_prefix(txn, TEXT("dir/"), &error));
  commits(store, txn, 1);
  CHECK(revision_of(store, "dir/a", "") == 0 && revision_of(store, "dir/b", "") == 0);

  // Nothing is done when one thing cannot be.
  OK(rdzv_txn_set(txn, TEXT("new"), TEXT("1"), &error));
  OK(rdzv_txn_add(txn, TEXT("leader"), 1, &error));
  FAILS_LIKE(((struct failure){.status = INVALID, .operation = "txn", .peer = rdzv_server_address(server)}),
             rdzv_store_commit(store, txn, -1, &holds, NULL, &error));
  CHECK(revision_of(store, "new", "") == 0);
  rdzv_txn_free(txn);

  // There is a limit, and what was refused was not added.
  enum { STEPS_MAX = 131072 };
  txn = rdzv_txn_new();
  for (int i = 0; i < STEPS_MAX; ++i) {
    if (rdzv_txn_require_absent(txn, TEXT("x"), NULL) != RDZV_OK) FAIL("%d tests are too many", i + 1);
  }
  FAILS_LIKE(((struct failure){.status = RDZV_LIMIT_EXCEEDED, .message_part = "131072"}),
             rdzv_txn_set(txn, TEXT("x"), TEXT("y"), &error));
  rdzv_txn_free(txn);
  rdzv_watch_free(watch);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

// The answer of this index.
static rdzv_answer answer_at(const rdzv_answers *answers, size_t index, rdzv_status status, int64_t number) {
  rdzv_answer answer = {.struct_size = sizeof answer};
  OK(rdzv_answers_get(answers, index, &answer, &error));
  CHECK_NUMBER(answer.struct_size, sizeof answer);
  if (answer.status != status || answer.number != number) {
    FAIL("answer %zu is `%s`, %lld: %.*s", index, rdzv_status_name(answer.status), (long long)answer.number,
         (int)answer.len, (const char *)answer.data);
  }
  return answer;
}

void batches_answer_each_request(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada", 0);
  rdzv_batch *batch = rdzv_batch_new();
  rdzv_answers *answers = rdzv_answers_new();
  CHECK_NUMBER((long long)rdzv_answers_count(answers), 0);
  OK(rdzv_batch_set(batch, TEXT("a"), TEXT("x"), &error));
  OK(rdzv_batch_append(batch, TEXT("a"), TEXT("y"), &error));
  OK(rdzv_batch_add(batch, TEXT("a"), 1, &error));
  OK(rdzv_batch_add(batch, TEXT("n"), 3, &error));
  OK(rdzv_batch_compare_set(batch, TEXT("c"), NULL, 0, TEXT("new"), &error));
  OK(rdzv_batch_compare_set(batch, TEXT("none"), TEXT("old"), TEXT("new"), &error));
  OK(rdzv_batch_queue_push(batch, TEXT("q"), TEXT("item"), &error));
  OK(rdzv_batch_queue_len(batch, TEXT("q"), &error));
  OK(rdzv_batch_check(batch, TEXT("a"), &error));
  OK(rdzv_batch_check(batch, TEXT("none"), &error));
  OK(rdzv_batch_delete_key(batch, TEXT("a"), &error));
  OK(rdzv_batch_delete_prefix(batch, TEXT("c"), &error));
  OK(rdzv_store_batch(store, batch, -1, answers, &error));
  CHECK_NUMBER((long long)rdzv_answers_count(answers), 12);
  answer_at(answers, 0, RDZV_OK, 0);
  answer_at(answers, 1, RDZV_OK, 0);
  // One that fails says why, and the others are done.
  rdzv_answer answer = answer_at(answers, 2, INVALID, 0);
  char message[256];
  snprintf(message, sizeof message, "batch \"/a\" at %s got an invalid argument: %s", rdzv_server_address(server),
           "the value is not a decimal number of 64 bits");
  check_bytes(__FILE__, __LINE__, answer.data, answer.len, message);
  CHECK(answer_at(answers, 3, RDZV_OK, 3).data == NULL);
  answer = answer_at(answers, 4, RDZV_OK, 0);
  check_bytes(__FILE__, __LINE__, answer.data, answer.len, "new");
  CHECK(answer_at(answers, 5, RDZV_OK, 0).data == NULL);
  answer_at(answers, 6, RDZV_OK, 0);
  answer_at(answers, 7, RDZV_OK, 1);
  answer_at(answers, 8, RDZV_OK, 1);
  answer_at(answers, 9, RDZV_OK, 0);
  answer_at(answers, 10, RDZV_OK, 1);
  answer_at(answers, 11, RDZV_OK, 1);
  FAILS(INVALID, rdzv_answers_get(answers, 12, &answer, &error));
  answer.struct_size = 4;
  FAILS(INVALID, rdzv_answers_get(answers, 0, &answer, &error));
  // Again, into the same place.
  OK(rdzv_store_batch(store, batch, -1, answers, &error));
  answer_at(answers, 3, RDZV_OK, 6);
  answer_at(answers, 7, RDZV_OK, 2);
  // None at all, and one that does not go through, which leaves the answers as they were.
  OK(rdzv_server_stop(server, &error));
  FAILS(RDZV_SERVER_GONE, rdzv_store_batch(store, batch, -1, answers, &error));
  CHECK_NUMBER((long long)rdzv_answers_count(answers), 12);
  rdzv_answers_free(answers);
  rdzv_batch_free(batch);
  rdzv_store_free(store);
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

static void *arrive(void *argument) {
  struct arrival *call = argument;
  call->outcome = rdzv_store_named_barrier(call->store, TEXT("gate"), 0, NULL, 0, 0, call->names,
                                           call->name_count, PATIENCE_MS, &call->released, &call->error);
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
  CHECK_NUMBER((long long)rdzv_error_generation(call->error), generation);
  CHECK_NUMBER((long long)rdzv_error_node_count(call->error), name != NULL);
  size_t len = 0;
  CHECK_LENT(rdzv_error_key(call->error, 0, &len), len, "gate");
  if (name != NULL) CHECK_LENT(rdzv_error_node(call->error, 0, &len), len, name);
  rdzv_error_free(call->error);
}

void named_barriers_tell_who_is_missing(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *ada = connect_native(server, "ada", 0), *bob = connect_native(server, "bob", 0);
  uint64_t released = 77;
  // It serves again and again.
  for (uint64_t generation = 1; generation <= 2; ++generation) {
    OK(rdzv_store_named_barrier(ada, TEXT("alone"), 0, NULL, 0, 1, NULL, 0, -1, &released, &error));
    CHECK(released == generation);
  }
  OK(rdzv_store_named_barrier(ada, TEXT("alone"), 0, TEXT("eve"), 1, NULL, 0, -1, NULL, &error));
  FAILS(RDZV_NOT_FOUND, rdzv_store_named_barrier(ada, TEXT("alone"), 77, NULL, 0, 1, NULL, 0, -1, NULL, &error));

  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  struct arrival call = {.store = ada, .names = both, .name_count = 2};
  set_out(&call);
  await_waiting(server, 1);
  FAILS(RDZV_CONFLICT, rdzv_store_named_barrier(bob, TEXT("gate"), 0, NULL, 0, 3, NULL, 0, -1, NULL, &error));
  FAILS(INVALID, rdzv_store_named_barrier(bob, TEXT("gate"), 0, TEXT("eve"), 0, both, 2, -1, NULL, &error));
  OK(rdzv_store_named_barrier(bob, TEXT("gate"), 0, NULL, 0, 0, both, 2, -1, &released, &error));
  CHECK(pthread_join(call.thread, NULL) == 0);
  check_success(__FILE__, __LINE__, "barrier", call.outcome, call.error);
  CHECK(call.released == 1 && released == 1);

  // Somebody does not come, somebody calls it off, somebody dies.
  rdzv_error *details = NULL;
  const rdzv_status late =
      rdzv_store_named_barrier(ada, TEXT("gate"), 0, NULL, 0, 0, both, 2, 50, &released, &details);
  check_failure(__FILE__, __LINE__, "barrier", late, details,
                (struct failure){RDZV_TIMED_OUT, "barrier", rdzv_server_address(server), "waiting", "bob"});
  CHECK_NUMBER((long long)rdzv_error_generation(details), 2);
  size_t len = 0;
  CHECK_LENT(rdzv_error_node(details, 0, &len), len, "bob");
  rdzv_error_free(details);
  CHECK_NUMBER((long long)released, 1);
  set_out(&call);
  await_waiting(server, 1);
  int32_t waited = 77;
  OK(rdzv_store_cancel_named_barrier(bob, TEXT("gate"), TEXT("eve"), -1, &waited, &error));
  CHECK_NUMBER(waited, 1);
  ends_with(&call, RDZV_CANCELLED, 3, NULL);
  OK(rdzv_store_cancel_named_barrier(bob, TEXT("gate"), NULL, 0, -1, &waited, &error));
  CHECK_NUMBER(waited, 0);
  rdzv_loop *loop = NULL;
  uint32_t store = 0;
  uint64_t operation = 0;
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  OK(rdzv_store_options_set_node(options, TEXT("bob"), &error));
  OK(rdzv_loop_new(NULL, &loop, &error));
  OK(rdzv_loop_add_native_store(loop, options, &store, &error));
  rdzv_store_options_free(options);
  const rdzv_bytes three[] = {BYTES("ada"), BYTES("bob"), BYTES("eve")};
  call.names = three;
  call.name_count = 3;
  set_out(&call);
  await_waiting(server, 1);
  OK(rdzv_loop_node_barrier(loop, store, TEXT("gate"), 0, three, 3, -1, &operation, &error));
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  for (rdzv_server_stats stats = {.struct_size = sizeof stats}; stats.waiting != 2;) {
    CHECK(now_ms() < deadline_ms);
    OK(rdzv_loop_poll(loop, &error));
    OK(rdzv_server_get_stats(server, &stats, &error));
  }
  rdzv_loop_free(loop);
  ends_with(&call, RDZV_BARRIER_BROKEN, 4, "bob");
  rdzv_store_free(ada);
  rdzv_store_free(bob);
  rdzv_server_free(server);
}

// What each operation says of a store of another kind.
static void has_none_of_it(const rdzv_store *store, const char *kind) {
  const struct failure wanted = {.status = RDZV_UNSUPPORTED, .peer = rdzv_store_peer(store), .message_part = kind};
  const rdzv_bytes keys[] = {BYTES("k")};
  rdzv_buffer *value = rdzv_buffer_new();
  rdzv_list *list = rdzv_list_new();
  rdzv_txn *txn = rdzv_txn_new();
  rdzv_batch *batch = rdzv_batch_new();
  rdzv_answers *answers = rdzv_answers_new();
  rdzv_watch *watch = NULL;
  rdzv_lease *lease = NULL;
  uint64_t revision = 77;
  int64_t count = 77;
  int32_t flag = 77;
  FAILS_LIKE(wanted, rdzv_store_end_session(store, -1, &error));
  FAILS_LIKE(wanted, rdzv_store_get_with_revision(store, TEXT("k"), -1, value, &revision, &error));
  FAILS_LIKE(wanted, rdzv_store_multi_get_with_revisions(store, keys, 1, -1, list, &revision, &error));
  FAILS_LIKE(wanted, rdzv_store_list_keys_page(store, NULL, 0, NULL, 0, 1, -1, list, &flag, &error));
  FAILS_LIKE(wanted, rdzv_store_delete_prefix(store, TEXT("k"), -1, &count, NULL, &error));
  FAILS_LIKE(wanted, rdzv_store_named_barrier(store, TEXT("k"), 0, NULL, 0, 1, NULL, 0, -1, &revision, &error));
  FAILS_LIKE(wanted, rdzv_store_cancel_named_barrier(store, TEXT("k"), NULL, 0, -1, &flag, &error));
  FAILS_LIKE(wanted, rdzv_store_watch_key(store, TEXT("k"), 0, -1, &watch, &error));
  FAILS_LIKE(wanted, rdzv_store_watch_prefix(store, TEXT("k"), 0, -1, &watch, &error));
  FAILS_LIKE(wanted, rdzv_store_grant_lease(store, 0, -1, &lease, &error));
  FAILS_LIKE(wanted, rdzv_store_commit(store, txn, -1, &flag, &revision, &error));
  FAILS_LIKE(wanted, rdzv_store_batch(store, batch, -1, answers, &error));
  CHECK(revision == 77 && count == 77 && flag == 77 && watch == NULL && lease == NULL);
  rdzv_answers_free(answers);
  rdzv_batch_free(batch);
  rdzv_txn_free(txn);
  rdzv_list_free(list);
  rdzv_buffer_free(value);
}

void other_stores_have_none_of_it(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *stores[3] = {connect_store(NULL, rdzv_server_port(server)), NULL, NULL};
  OK(rdzv_store_new_hash(NULL, -1, &stores[1], &error));
  OK(rdzv_store_open_file(NULL, TEXT(new_path()), 0, -1, &stores[2], &error));
  const char *kinds[3] = {"c10d", "of this process alone", "in a file"};
  for (int i = 0; i < 3; ++i) {
    has_none_of_it(stores[i], kinds[i]);
    rdzv_store_free(stores[i]);
  }
  rdzv_server_free(server);
}

void native_stores_refuse_bad_arguments(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store_options *options = NULL;
  rdzv_store *store = NULL;
  OK(rdzv_store_options_new(&options, &error));
  FAILS(INVALID, rdzv_store_options_set_node(NULL, TEXT("n"), &error));
  FAILS(INVALID, rdzv_store_options_set_node(options, NULL, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_node(options, (const uint8_t *)"\xff", 1, &error));
  FAILS(INVALID, rdzv_store_options_set_grace_ms(NULL, 0, &error));
  FAILS(INVALID, rdzv_store_options_set_grace_ms(options, -1, &error));
  FAILS(INVALID, rdzv_store_options_set_heartbeat(NULL, 1, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_heartbeat(options, 0, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_heartbeat(options, 1, 0, &error));
  FAILS(INVALID, rdzv_store_connect_native(NULL, NULL, &store, &error));
  // There is no endpoint yet.
  FAILS(INVALID, rdzv_store_connect_native(NULL, options, &store, &error));
  OK(rdzv_store_options_set_endpoint(options, TEXT("127.0.0.1"), rdzv_server_port(server), &error));
  FAILS(INVALID, rdzv_store_connect_native(NULL, options, NULL, &error));
  CHECK(store == NULL);
  OK(rdzv_store_connect_native(NULL, options, &store, &error));
  rdzv_store_options_free(options);

  const rdzv_bytes keys[] = {BYTES("k")}, no_key[] = {{NULL, 1}};
  rdzv_buffer *value = rdzv_buffer_new();
  rdzv_list *list = rdzv_list_new();
  uint64_t revision = 77;
  int64_t count = 77;
  int32_t flag = 77;
  FAILS(INVALID, rdzv_store_end_session(NULL, -1, &error));
  FAILS(INVALID, rdzv_store_end_session(store, -2, &error));
  FAILS(INVALID, rdzv_store_get_with_revision(NULL, TEXT("k"), -1, value, &revision, &error));
  FAILS(INVALID, rdzv_store_get_with_revision(store, NULL, 1, -1, value, &revision, &error));
  FAILS(INVALID, rdzv_store_get_with_revision(store, TEXT("k"), -2, value, &revision, &error));
  FAILS(INVALID, rdzv_store_get_with_revision(store, TEXT("k"), -1, NULL, &revision, &error));
  FAILS(INVALID, rdzv_store_get_with_revision(store, TEXT("k"), -1, value, NULL, &error));
  FAILS(INVALID, rdzv_store_multi_get_with_revisions(store, NULL, 1, -1, list, &revision, &error));
  FAILS(INVALID, rdzv_store_multi_get_with_revisions(store, no_key, 1, -1, list, &revision, &error));
  FAILS(INVALID, rdzv_store_multi_get_with_revisions(store, keys, 1, -1, NULL, &revision, &error));
  FAILS(INVALID, rdzv_store_multi_get_with_revisions(store, keys, 1, -1, list, NULL, &error));
  FAILS(INVALID, rdzv_store_list_keys_page(store, NULL, 1, NULL, 0, 1, -1, list, &flag, &error));
  FAILS(INVALID, rdzv_store_list_keys_page(store, NULL, 0, NULL, 1, 1, -1, list, &flag, &error));
  FAILS(INVALID, rdzv_store_list_keys_page(store, NULL, 0, NULL, 0, 1, -1, NULL, &flag, &error));
  FAILS(INVALID, rdzv_store_list_keys_page(store, NULL, 0, NULL, 0, 1, -1, list, NULL, &error));
  FAILS(INVALID, rdzv_store_delete_prefix(store, NULL, 1, -1, &count, NULL, &error));
  FAILS(INVALID, rdzv_store_delete_prefix(store, TEXT("k"), -1, NULL, NULL, &error));
  FAILS(INVALID, rdzv_store_named_barrier(store, NULL, 1, 0, NULL, 0, 1, NULL, 0, -1, &revision, &error));
  FAILS(INVALID, rdzv_store_named_barrier(store, TEXT("k"), 0, NULL, 1, 1, NULL, 0, -1, &revision, &error));
  FAILS(INVALID, rdzv_store_named_barrier(store, TEXT("k"), 0, TEXT("n"), 1, NULL, 1, -1, &revision, &error));
  // Nobody is awaited, and this session has no name.
  FAILS(INVALID, rdzv_store_named_barrier(store, TEXT("k"), 0, TEXT("n"), 0, NULL, 0, -1, &revision, &error));
  FAILS(INVALID, rdzv_store_named_barrier(store, TEXT("k"), 0, NULL, 0, 1, NULL, 0, -1, &revision, &error));
  FAILS(INVALID, rdzv_store_cancel_named_barrier(store, NULL, 1, NULL, 0, -1, &flag, &error));
  FAILS(INVALID, rdzv_store_cancel_named_barrier(store, TEXT("k"), NULL, 1, -1, &flag, &error));
  FAILS(INVALID, rdzv_store_cancel_named_barrier(store, TEXT("k"), NULL, 0, -1, NULL, &error));

  rdzv_watch *watch = NULL;
  FAILS(INVALID, rdzv_store_watch_key(NULL, TEXT("k"), 0, -1, &watch, &error));
  FAILS(INVALID, rdzv_store_watch_key(store, NULL, 1, 0, -1, &watch, &error));
  FAILS(INVALID, rdzv_store_watch_key(store, TEXT("k"), 0, -1, NULL, &error));
  FAILS(INVALID, rdzv_store_watch_prefix(store, NULL, 1, 0, -1, &watch, &error));
  FAILS(INVALID, rdzv_store_watch_prefix(store, TEXT("k"), 0, -1, NULL, &error));
  CHECK(watch == NULL);
  watch = watch_key(store, "k", 0);
  rdzv_change change = {.struct_size = sizeof change, .kind = 77};
  FAILS(INVALID, rdzv_watch_next(NULL, 0, &change, NULL, NULL, &error));
  FAILS(INVALID, rdzv_watch_next(watch, 0, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_watch_next(watch, INT64_MIN, &change, NULL, NULL, &error));
  change.struct_size = 15;
  FAILS(INVALID, rdzv_watch_next(watch, 0, &change, NULL, NULL, &error));
  CHECK_NUMBER(change.kind, 77);
  rdzv_watch_free(watch);
  rdzv_watch_free(NULL);
  rdzv_watch_cancel(NULL);
  CHECK_NUMBER((long long)rdzv_watch_revision(NULL), 0);

  rdzv_lease *lease = NULL;
  FAILS(INVALID, rdzv_store_grant_lease(NULL, 0, -1, &lease, &error));
  FAILS(INVALID, rdzv_store_grant_lease(store, -1, -1, &lease, &error));
  FAILS(INVALID, rdzv_store_grant_lease(store, 0, -1, NULL, &error));
  lease = grant(store, 0, "k");
  FAILS(INVALID, rdzv_lease_attach(NULL, keys, 1, -1, &error));
  FAILS(INVALID, rdzv_lease_attach(lease, NULL, 1, -1, &error));
  FAILS(INVALID, rdzv_lease_renew(NULL, -1, &error));
  FAILS(INVALID, rdzv_lease_renew(lease, -2, &error));
  FAILS(INVALID, rdzv_lease_revoke(NULL, -1, &count, &error));
  FAILS(INVALID, rdzv_lease_wait_over(NULL, 0, &flag, &error));
  FAILS(INVALID, rdzv_lease_wait_over(lease, 0, NULL, &error));
  rdzv_lease_free(lease);
  rdzv_lease_free(NULL);
  rdzv_lease_cancel(NULL);
  CHECK_NUMBER((long long)rdzv_lease_number(NULL), 0);

  rdzv_txn *txn = rdzv_txn_new();
  FAILS(INVALID, rdzv_txn_require_present(NULL, TEXT("k"), &error));
  FAILS(INVALID, rdzv_txn_require_absent(txn, NULL, 1, &error));
  FAILS(INVALID, rdzv_txn_require_revision(NULL, TEXT("k"), 1, &error));
  FAILS(INVALID, rdzv_txn_require_value(txn, TEXT("k"), NULL, 1, &error));
  FAILS(INVALID, rdzv_txn_otherwise(NULL, &error));
  FAILS(INVALID, rdzv_txn_set(txn, TEXT("k"), NULL, 1, &error));
  FAILS(INVALID, rdzv_txn_delete_key(txn, NULL, 1, &error));
  FAILS(INVALID, rdzv_txn_delete_prefix(NULL, TEXT("k"), &error));
  FAILS(INVALID, rdzv_txn_add(NULL, TEXT("k"), 1, &error));
  FAILS(INVALID, rdzv_txn_append(txn, TEXT("k"), NULL, 1, &error));
  FAILS(INVALID, rdzv_store_commit(NULL, txn, -1, &flag, &revision, &error));
  FAILS(INVALID, rdzv_store_commit(store, NULL, -1, &flag, &revision, &error));
  FAILS(INVALID, rdzv_store_commit(store, txn, -1, NULL, &revision, &error));
  rdzv_txn_free(txn);
  rdzv_txn_free(NULL);
  rdzv_batch *batch = rdzv_batch_new();
  rdzv_answers *answers = rdzv_answers_new();
  FAILS(INVALID, rdzv_batch_set(NULL, TEXT("k"), TEXT("v"), &error));
  FAILS(INVALID, rdzv_batch_compare_set(batch, TEXT("k"), NULL, 1, TEXT("v"), &error));
  FAILS(INVALID, rdzv_batch_compare_set(batch, TEXT("k"), TEXT("v"), NULL, 1, &error));
  FAILS(INVALID, rdzv_batch_queue_push(batch, TEXT("k"), NULL, 1, &error));
  FAILS(INVALID, rdzv_store_batch(NULL, batch, -1, answers, &error));
  FAILS(INVALID, rdzv_store_batch(store, NULL, -1, answers, &error));
  FAILS(INVALID, rdzv_store_batch(store, batch, -1, NULL, &error));
  CHECK_NUMBER((long long)rdzv_answers_count(NULL), 0);
  rdzv_answers_free(answers);
  rdzv_answers_free(NULL);
  rdzv_batch_free(batch);
  rdzv_batch_free(NULL);
  CHECK_NUMBER((long long)rdzv_error_revision(NULL), 0);
  CHECK_NUMBER((long long)rdzv_error_generation(NULL), 0);
  CHECK(revision == 77 && count == 77 && flag == 77);

  rdzv_store_free(store);
  rdzv_buffer_free(value);
  rdzv_list_free(list);
  rdzv_server_free(server);
}
