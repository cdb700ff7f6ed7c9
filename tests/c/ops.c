// Operations as objects: every request, batches and transactions, and what is refused.
#include "ops.h"
#include "tests.h"

static const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;

static rdzv_store *connect_native(const rdzv_server *server, const char *node) {
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.node = node;
  rdzv_store *store = NULL;
  OK(rdzv_store_new_native(NULL, &options, &store, &error));
  return store;
}

void operations_are_performed_and_used_again(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_op *op = rdzv_op_new(NULL);
  PERFORM(store, op, rdzv_op_set(op, TEXT("k"), TEXT("value"), &error));
  PERFORM(store, op, rdzv_op_get(op, TEXT("k"), &error));
  CHECK_VALUE(result_of(op), "value");
  // Part of a result may be an argument of the next request.
  static uint8_t large[2 << 20];
  PERFORM(store, op, rdzv_op_set(op, TEXT("large"), large, sizeof large, &error));
  PERFORM(store, op, rdzv_op_get(op, TEXT("large"), &error));
  PERFORM(store, op, rdzv_op_compare_set(op, TEXT("large"), result_of(op).value, result_of(op).value_len,
                                         TEXT("small"), &error));
  CHECK_VALUE(result_of(op), "small");
  PERFORM(store, op, rdzv_op_delete_key(op, TEXT("large"), &error));
  // The same request once more, with no other preparation.
  PERFORM(store, op, rdzv_op_add(op, TEXT("n"), 3, &error));
  OK(rdzv_store_perform(store, op, -1, &error));
  CHECK_NUMBER(result_of(op).sum, 6);
  PERFORM(store, op, rdzv_op_compare_set(op, TEXT("k"), TEXT("value"), TEXT("new"), &error));
  CHECK_VALUE(result_of(op), "new");
  PERFORM(store, op, rdzv_op_append(op, TEXT("k"), TEXT("er"), &error));
  const rdzv_bytes keys[] = {BYTES("k"), BYTES("n")}, values[] = {BYTES("1"), BYTES("22")};
  PERFORM(store, op, rdzv_op_wait(op, keys, 2, &error));
  PERFORM(store, op, rdzv_op_check(op, keys, 2, &error));
  CHECK_NUMBER(result_of(op).ready, 1);
  PERFORM(store, op, rdzv_op_multi_get(op, keys, 2, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 2);
  CHECK_RESULT_ITEM(result_of(op), 0, "newer");
  CHECK_RESULT_ITEM(result_of(op), 1, "6");
  PERFORM(store, op, rdzv_op_multi_set(op, keys, values, 2, &error));
  PERFORM(store, op, rdzv_op_multi_get(op, keys, 2, &error));
  CHECK_RESULT_ITEM(result_of(op), 1, "22");
  PERFORM(store, op, rdzv_op_num_keys(op, &error));
  CHECK_NUMBER(result_of(op).count, 2);
  PERFORM(store, op, rdzv_op_list_keys(op, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 2);
  PERFORM(store, op, rdzv_op_delete_key(op, TEXT("n"), &error));
  CHECK_NUMBER(result_of(op).deleted, 1);
  PERFORM(store, op, rdzv_op_check(op, keys, 2, &error));
  CHECK_NUMBER(result_of(op).ready, 0);
  PERFORM(store, op, rdzv_op_queue_push(op, TEXT("q"), TEXT("item"), &error));
  PERFORM(store, op, rdzv_op_queue_len(op, TEXT("q"), &error));
  CHECK_NUMBER(result_of(op).count, 1);
  PERFORM(store, op, rdzv_op_queue_pop(op, TEXT("q"), &error));
  CHECK_VALUE(result_of(op), "item");
  PERFORM(store, op, rdzv_op_barrier(op, TEXT("gate"), 1, &error));
  PERFORM(store, op, rdzv_op_ping(op, &error));

  // A failure is in the result too, until the next use.
  OK(rdzv_op_queue_pop(op, TEXT("q"), &error));
  FAILS(RDZV_QUEUE_EMPTY, rdzv_store_perform(store, op, 0, &error));
  CHECK_NUMBER(result_of(op).status, RDZV_QUEUE_EMPTY);
  CHECK_NUMBER(rdzv_error_status(result_of(op).error), RDZV_QUEUE_EMPTY);
  rdzv_result result = {.struct_size = sizeof result};
  OK(rdzv_op_get(op, TEXT("k"), &error));
  FAILS(INVALID, rdzv_op_get_result(op, &result, &error));
  OK(rdzv_store_perform(store, op, -1, &error));
  FAILS(INVALID, rdzv_store_perform(NULL, op, -1, &error));
  CHECK_NUMBER(result_of(op).status, INVALID);

  // After a refused request there is none, not the one before.
  OK(rdzv_op_get(op, TEXT("k"), &error));
  FAILS(INVALID, rdzv_op_barrier(op, TEXT("gate"), 0, &error));
  FAILS(INVALID, rdzv_store_perform(store, op, -1, &error));
  rdzv_op_free(op);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void native_operations_are_performed(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada");
  rdzv_op *op = rdzv_op_new(NULL);
  const rdzv_bytes keys[] = {BYTES("d/a"), BYTES("d/b")};
  for (int i = 0; i < 2; ++i) {
    PERFORM(store, op, rdzv_op_set(op, keys[i].data, keys[i].len, TEXT("v"), &error));
  }
  PERFORM(store, op, rdzv_op_read(op, keys, 2, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 2);
  CHECK_RESULT_ITEM(result_of(op), 1, "v");
  CHECK(result_of(op).revisions[0] < result_of(op).revisions[1]);
  PERFORM(store, op, rdzv_op_list_page(op, TEXT("d/"), NULL, 0, 1, &error));
  CHECK_RESULT_ITEM(result_of(op), 0, "d/a");
  CHECK_NUMBER(result_of(op).more, 1);
  PERFORM(store, op, rdzv_op_delete_prefix(op, TEXT("d/"), &error));
  CHECK_NUMBER(result_of(op).deleted, 2);
  CHECK_NUMBER(result_of(op).left, 0);
  PERFORM(store, op, rdzv_op_named_barrier(op, TEXT("gate"), 0, NULL, 0, 1, NULL, 0, &error));
  CHECK_NUMBER((long long)result_of(op).generation, 1);
  PERFORM(store, op, rdzv_op_cancel_named_barrier(op, TEXT("gate"), NULL, 0, &error));
  CHECK_NUMBER(result_of(op).was_waiting, 0);
  PERFORM(store, op, rdzv_op_grant_lease(op, 0, &error));
  const uint64_t lease = result_of(op).lease;
  CHECK(lease > 0);
  PERFORM(store, op, rdzv_op_attach_lease(op, lease, keys, 1, &error));
  PERFORM(store, op, rdzv_op_set(op, TEXT("d/a"), TEXT("leased"), &error));
  PERFORM(store, op, rdzv_op_renew_lease(op, lease, &error));
  PERFORM(store, op, rdzv_op_revoke_lease(op, lease, &error));
  CHECK_NUMBER(result_of(op).deleted, 1);

  // A watch goes on, which performing cannot; nodes are in event loops.
  const struct failure unsupported = {.status = RDZV_UNSUPPORTED};
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_watch_key(op, TEXT("k"), 0, &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_watch_prefix(op, TEXT("k"), 0, &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_next_rendezvous(op, &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_leave(op, &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_set_closed(op, &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_fail(op, TEXT("why"), &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_run_info(op, &error));
  PERFORM_FAILS_LIKE(unsupported, store, op, rdzv_op_members(op, 0, 0, 1, &error));
  rdzv_round round = {.struct_size = sizeof round};
  rdzv_run_info info = {.struct_size = sizeof info};
  rdzv_round_member member = {.struct_size = sizeof member};
  FAILS(INVALID, rdzv_op_get_round(op, &round, &error));
  FAILS(INVALID, rdzv_op_get_run_info(op, &info, &error));
  FAILS(INVALID, rdzv_op_get_member(op, 0, &member, &error));

  PERFORM(store, op, rdzv_op_end_session(op, &error));
  const struct failure gone = {.status = RDZV_SERVER_GONE};
  PERFORM_FAILS_LIKE(gone, store, op, rdzv_op_read(op, keys, 1, &error));
  rdzv_op_free(op);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void batches_and_transactions_include_operations(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_native(server, "ada");
  rdzv_op *op = rdzv_op_new(NULL), *part = rdzv_op_new(NULL);
  const rdzv_bytes keys[] = {BYTES("a"), BYTES("none")};
  OK(rdzv_op_batch(op, &error));
  INCLUDE(op, part, rdzv_op_set(part, TEXT("a"), TEXT("x"), &error));
  INCLUDE(op, part, rdzv_op_append(part, TEXT("a"), TEXT("y"), &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("a"), 1, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("n"), 3, &error));
  INCLUDE(op, part, rdzv_op_compare_set(part, TEXT("a"), TEXT("xy"), TEXT("new"), &error));
  INCLUDE(op, part, rdzv_op_compare_set(part, TEXT("none"), TEXT("old"), TEXT("new"), &error));
  INCLUDE(op, part, rdzv_op_queue_push(part, TEXT("q"), TEXT("item"), &error));
  INCLUDE(op, part, rdzv_op_queue_len(part, TEXT("q"), &error));
  INCLUDE(op, part, rdzv_op_check(part, keys, 1, &error));
  INCLUDE(op, part, rdzv_op_check(part, keys + 1, 1, &error));
  INCLUDE(op, part, rdzv_op_delete_key(part, TEXT("a"), &error));
  INCLUDE(op, part, rdzv_op_delete_prefix(part, TEXT("n"), &error));
  OK(rdzv_store_perform(store, op, -1, &error));
  CHECK_NUMBER((long long)result_of(op).part_count, 12);
  CHECK_NUMBER(part_of(op, 2).status, INVALID);
  CHECK(strstr(rdzv_error_message(part_of(op, 2).error), "number") != NULL);
  CHECK_NUMBER(part_of(op, 3).sum, 3);
  CHECK_VALUE(part_of(op, 4), "new");
  CHECK(part_of(op, 5).status == RDZV_OK && part_of(op, 5).value == NULL);
  CHECK_NUMBER(part_of(op, 7).count, 1);
  CHECK_NUMBER(part_of(op, 8).ready, 1);
  CHECK_NUMBER(part_of(op, 9).ready, 0);
  CHECK_NUMBER(part_of(op, 10).deleted, 1);
  CHECK_NUMBER(part_of(op, 11).deleted, 1);
  rdzv_result result = {.struct_size = sizeof result};
  FAILS(INVALID, rdzv_op_get_part(op, 12, &result, &error));

  // The first leads; the next ones are counted.
  OK(rdzv_op_transaction(op, &error));
  OK(rdzv_op_require_absent(op, TEXT("leader"), &error));
  INCLUDE(op, part, rdzv_op_set(part, TEXT("leader"), TEXT("ada"), &error));
  OK(rdzv_op_otherwise(op, &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("late"), 2, &error));
  OK(rdzv_store_perform(store, op, -1, &error));
  CHECK_NUMBER(result_of(op).holds, 1);
  const uint64_t won = result_of(op).revision;
  OK(rdzv_store_perform(store, op, -1, &error));
  CHECK_NUMBER(result_of(op).holds, 0);
  CHECK(result_of(op).revision > won);
  OK(rdzv_op_transaction(op, &error));
  OK(rdzv_op_require_present(op, TEXT("leader"), &error));
  OK(rdzv_op_require_revision(op, TEXT("leader"), won, &error));
  OK(rdzv_op_require_value(op, TEXT("late"), TEXT("2"), &error));
  INCLUDE(op, part, rdzv_op_append(part, TEXT("leader"), TEXT("!"), &error));
  INCLUDE(op, part, rdzv_op_add(part, TEXT("leader"), 1, &error));
  // Nothing is done when one thing cannot be; the error names its key.
  rdzv_error *details = NULL;
  CHECK_NUMBER(rdzv_store_perform(store, op, -1, &details), INVALID);
  CHECK_KEY(details, 0, "leader");
  rdzv_error_free(details);
  PERFORM(store, part, rdzv_op_get(part, TEXT("leader"), &error));
  CHECK_VALUE(result_of(part), "ada");

  // What a batch or a transaction cannot include, and what cannot include anything.
  OK(rdzv_op_get(part, TEXT("k"), &error));
  FAILS(INVALID, rdzv_op_include(op, part, &error));
  OK(rdzv_op_batch(op, &error));
  FAILS(INVALID, rdzv_op_include(op, part, &error));
  OK(rdzv_op_check(part, keys, 2, &error));
  FAILS(INVALID, rdzv_op_include(op, part, &error));
  FAILS(RDZV_REENTRANT, rdzv_op_include(op, op, &error));
  FAILS(INVALID, rdzv_op_require_absent(op, TEXT("k"), &error));
  FAILS(INVALID, rdzv_op_otherwise(op, &error));
  OK(rdzv_op_set(part, TEXT("k"), TEXT("v"), &error));
  FAILS(INVALID, rdzv_op_include(part, op, &error));
  enum { PARTS_MAX = 32768 };
  for (int i = 0; i < PARTS_MAX; ++i) {
    if (rdzv_op_include(op, part, NULL) != RDZV_OK) FAIL("%d requests are too many", i + 1);
  }
  const struct failure full = {.status = RDZV_LIMIT_EXCEEDED, .message_part = "32768"};
  FAILS_LIKE(full, rdzv_op_include(op, part, &error));
  rdzv_op_free(part);
  rdzv_op_free(op);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void operations_refuse_bad_arguments(void) {
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(NULL, -1, &store, &error));
  rdzv_op *op = rdzv_op_new(NULL);
  rdzv_result result = {.struct_size = sizeof result};
  const rdzv_bytes keys[] = {BYTES("k")}, no_key[] = {{NULL, 1}};
  FAILS(INVALID, rdzv_store_perform(store, op, -1, &error));
  FAILS(INVALID, rdzv_store_perform(store, NULL, -1, &error));
  FAILS(INVALID, rdzv_op_get_result(NULL, &result, &error));
  FAILS(INVALID, rdzv_op_get_result(op, NULL, &error));
  FAILS(INVALID, rdzv_op_get_part(NULL, 0, &result, &error));
  FAILS(INVALID, rdzv_op_set(NULL, TEXT("k"), TEXT("v"), &error));
  FAILS(INVALID, rdzv_op_set(op, NULL, 1, TEXT("v"), &error));
  FAILS(INVALID, rdzv_op_set(op, TEXT("k"), NULL, 1, &error));
  FAILS(INVALID, rdzv_op_wait(op, NULL, 1, &error));
  FAILS(INVALID, rdzv_op_wait(op, no_key, 1, &error));
  FAILS(INVALID, rdzv_op_multi_set(op, keys, NULL, 1, &error));
  FAILS(INVALID, rdzv_op_multi_set(op, keys, no_key, 1, &error));
  FAILS(INVALID, rdzv_op_barrier(op, TEXT("k"), 0, &error));
  FAILS(INVALID, rdzv_op_grant_lease(op, -1, &error));
  FAILS(INVALID, rdzv_op_named_barrier(op, TEXT("k"), 0, NULL, 1, 1, NULL, 0, &error));
  FAILS(INVALID, rdzv_op_fail(op, (const uint8_t *)"\xff", 1, &error));
  FAILS(INVALID, rdzv_op_include(op, NULL, &error));
  FAILS(RDZV_LIMIT_EXCEEDED, rdzv_op_wait(op, keys, 131073, &error));
  // The size is refused before anything is read or copied.
  const struct failure large = {.status = RDZV_LIMIT_EXCEEDED, .message_part = "268435456"};
  FAILS_LIKE(large, rdzv_op_append(op, TEXT("k"), (const uint8_t *)"v", (size_t)20 << 30, &error));
  OK(rdzv_op_transaction(op, &error));
  const struct failure large_test = {.status = RDZV_LIMIT_EXCEEDED, .message_part = "33554432"};
  FAILS_LIKE(large_test, rdzv_op_require_value(op, TEXT("k"), (const uint8_t *)"v", (size_t)20 << 30, &error));
  OK(rdzv_op_get(op, TEXT("k"), &error));
  FAILS(INVALID, rdzv_store_perform(store, op, -2, &error));
  const struct failure other_kind = {.status = RDZV_UNSUPPORTED, .message_part = "of this process alone"};
  PERFORM_FAILS_LIKE(other_kind, store, op, rdzv_op_read(op, keys, 1, &error));
  PERFORM_FAILS_LIKE(other_kind, store, op, rdzv_op_end_session(op, &error));
  rdzv_op_free(op);
  rdzv_op_free(NULL);
  rdzv_store_free(store);
}
