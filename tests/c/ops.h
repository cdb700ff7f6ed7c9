// Operations in tests: prepared by one call, performed, and their results checked.
#ifndef OPS_H
#define OPS_H

#include "check.h"

// Performs an operation that `prepare` gives its request, and returns its result.
#define PERFORM(store, op, prepare)                         \
  do {                                                      \
    OK(prepare);                                            \
    OK(rdzv_store_perform((store), (op), -1, &error));      \
  } while (false)

// Performs an operation that must fail so.
#define PERFORM_FAILS_LIKE(wanted, store, op, prepare)                          \
  do {                                                                          \
    OK(prepare);                                                                \
    FAILS_LIKE(wanted, rdzv_store_perform((store), (op), -1, &error));          \
  } while (false)

// Includes an operation that `prepare` gives its request.
#define INCLUDE(op, part, prepare)                 \
  do {                                             \
    OK(prepare);                                   \
    OK(rdzv_op_include((op), (part), &error));     \
  } while (false)

static inline rdzv_result result_of(const rdzv_op *op) {
  rdzv_result result = {.struct_size = sizeof result};
  OK(rdzv_op_get_result(op, &result, &error));
  return result;
}

static inline rdzv_result part_of(const rdzv_op *op, size_t index) {
  rdzv_result result = {.struct_size = sizeof result};
  OK(rdzv_op_get_part(op, index, &result, &error));
  return result;
}

// Submits an operation that `prepare` gives its request.
#define SUBMIT(member, op, timeout_ms, prepare)                              \
  do {                                                                       \
    OK(prepare);                                                             \
    OK(rdzv_loop_submit((member), (op), (timeout_ms), &error));              \
  } while (false)

// Submits an operation that must be refused at once.
#define SUBMIT_FAILS_LIKE(wanted, member, op, prepare)                          \
  do {                                                                          \
    OK(prepare);                                                                \
    FAILS_LIKE(wanted, rdzv_loop_submit((member), (op), -1, &error));           \
  } while (false)

// The next event ends this operation, whose result is returned.
static inline rdzv_result await_op(rdzv_loop *loop, const rdzv_op *op) {
  const rdzv_event event = await_event(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
  CHECK(event.op == op);
  return result_of(op);
}

// The same for one that must succeed.
static inline rdzv_result await_success_of(rdzv_loop *loop, const rdzv_op *op) {
  const rdzv_result result = await_op(loop, op);
  if (result.status != RDZV_OK) FAIL("%s", rdzv_error_message(result.error));
  return result;
}

#define CHECK_VALUE(result, expected)                                                 \
  do {                                                                                \
    const rdzv_result checked = (result);                                             \
    check_bytes(__FILE__, __LINE__, checked.value, checked.value_len, (expected));    \
  } while (false)
#define CHECK_RESULT_ITEM(result, index, expected)                                    \
  do {                                                                                \
    const rdzv_bytes checked = (result).items[index];                                 \
    check_bytes(__FILE__, __LINE__, checked.data, checked.len, (expected));           \
  } while (false)

// Performs an operation that was prepared with `prepared`, and frees it.
static inline rdzv_status perform_once(const rdzv_store *store, rdzv_op *op, rdzv_status prepared, int64_t timeout_ms,
                                       rdzv_result *result, rdzv_error **error) {
  rdzv_status outcome = prepared != RDZV_OK ? prepared : rdzv_store_perform(store, op, timeout_ms, error);
  if (outcome == RDZV_OK && result != NULL) outcome = rdzv_op_get_result(op, result, error);
  rdzv_op_free(op);
  return outcome;
}

// Single uses of operations.
static inline rdzv_status store_ping(const rdzv_store *store, int64_t timeout_ms, rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  return perform_once(store, op, rdzv_op_ping(op, error), timeout_ms, NULL, error);
}
static inline rdzv_status store_append(const rdzv_store *store, const uint8_t *key, size_t key_len,
                                       const uint8_t *value, size_t value_len, int64_t timeout_ms,
                                       rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  const rdzv_status prepared = rdzv_op_append(op, key, key_len, value, value_len, error);
  return perform_once(store, op, prepared, timeout_ms, NULL, error);
}
static inline rdzv_status store_queue_push(const rdzv_store *store, const uint8_t *key, size_t key_len,
                                           const uint8_t *item, size_t item_len, int64_t timeout_ms,
                                           rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  const rdzv_status prepared = rdzv_op_queue_push(op, key, key_len, item, item_len, error);
  return perform_once(store, op, prepared, timeout_ms, NULL, error);
}
static inline rdzv_status store_end_session(const rdzv_store *store, int64_t timeout_ms, rdzv_error **error) {
  rdzv_op *op = rdzv_op_new(NULL);
  return perform_once(store, op, rdzv_op_end_session(op, error), timeout_ms, NULL, error);
}

#endif  // OPS_H
