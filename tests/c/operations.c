#include "operations.h"

#include <stddef.h>

static rdzv_status call_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_set(given->store, given->key, given->key_len, given->value, given->value_len, given->timeout_ms, error);
}

static rdzv_status prepare_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_set(given->op, given->key, given->key_len, given->value, given->value_len, error);
}

static rdzv_status call_get(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_get(given->store, given->key, given->key_len, given->timeout_ms, given->buffer, error);
}

static rdzv_status prepare_get(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_get(given->op, given->key, given->key_len, error);
}

static rdzv_status call_add(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_add(given->store, given->key, given->key_len, 1, given->timeout_ms, given->number, error);
}

static rdzv_status prepare_add(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_add(given->op, given->key, given->key_len, 1, error);
}

static rdzv_status call_compare_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_compare_set(given->store, given->key, given->key_len, given->value, given->value_len, given->desired, given->desired_len, given->timeout_ms, given->buffer, error);
}

static rdzv_status prepare_compare_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_compare_set(given->op, given->key, given->key_len, given->value, given->value_len, given->desired, given->desired_len, error);
}

static rdzv_status call_wait(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_wait(given->store, given->keys, given->count, given->timeout_ms, error);
}

static rdzv_status prepare_wait(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_wait(given->op, given->keys, given->count, error);
}

static rdzv_status call_check(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_check(given->store, given->keys, given->count, given->timeout_ms, given->flag, error);
}

static rdzv_status prepare_check(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_check(given->op, given->keys, given->count, error);
}

static rdzv_status call_delete_key(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_delete_key(given->store, given->key, given->key_len, given->timeout_ms, given->flag, error);
}

static rdzv_status prepare_delete_key(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_delete_key(given->op, given->key, given->key_len, error);
}

static rdzv_status prepare_num_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_num_keys(given->op, error);
}

static rdzv_status prepare_list_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_list_keys(given->op, error);
}

static rdzv_status prepare_append(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_append(given->op, given->key, given->key_len, given->value, given->value_len, error);
}

static rdzv_status prepare_multi_get(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_multi_get(given->op, given->keys, given->count, error);
}

static rdzv_status prepare_multi_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_multi_set(given->op, given->keys, given->values, given->count, error);
}

static rdzv_status prepare_queue_push(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_queue_push(given->op, given->key, given->key_len, given->value, given->value_len, error);
}

static rdzv_status prepare_queue_pop(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_queue_pop(given->op, given->key, given->key_len, error);
}

static rdzv_status prepare_queue_len(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_queue_len(given->op, given->key, given->key_len, error);
}

static rdzv_status call_barrier(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_barrier(given->store, given->key, given->key_len, given->world_size, given->timeout_ms, error);
}

static rdzv_status prepare_barrier(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_barrier(given->op, given->key, given->key_len, given->world_size, error);
}

static rdzv_status call_barrier_by_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_barrier_by_keys(given->store, given->key, given->key_len, given->world_size, given->timeout_ms, error);
}

static rdzv_status call_check_in(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_check_in(given->store, given->timeout_ms, given->number, error);
}

static rdzv_status call_wait_for_workers(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_wait_for_workers(given->store, given->world_size, given->timeout_ms, error);
}

static rdzv_status prepare_ping(const struct arguments *given, rdzv_error **error) {
  return rdzv_op_ping(given->op, error);
}

const struct operation operations[] = {
    {"set", USES_KEY | USES_VALUE, call_set, prepare_set},
    {"get", USES_KEY | GIVES_BUFFER, call_get, prepare_get},
    {"add", USES_KEY | GIVES_NUMBER, call_add, prepare_add},
    {"compare_set", USES_KEY | USES_VALUE | USES_DESIRED | GIVES_BUFFER, call_compare_set, prepare_compare_set},
    {"wait", USES_KEYS, call_wait, prepare_wait},
    {"check", USES_KEYS | GIVES_FLAG, call_check, prepare_check},
    {"delete", USES_KEY | GIVES_FLAG, call_delete_key, prepare_delete_key},
    {"num_keys", 0, NULL, prepare_num_keys},
    {"list_keys", 0, NULL, prepare_list_keys},
    {"append", USES_KEY | USES_VALUE, NULL, prepare_append},
    {"multi_get", USES_KEYS, NULL, prepare_multi_get},
    {"multi_set", USES_KEYS | USES_VALUES, NULL, prepare_multi_set},
    {"queue_push", USES_KEY | USES_VALUE, NULL, prepare_queue_push},
    {"queue_pop", USES_KEY, NULL, prepare_queue_pop},
    {"queue_len", USES_KEY, NULL, prepare_queue_len},
    {"barrier", USES_KEY | USES_WORLD_SIZE, call_barrier, prepare_barrier},
    {"barrier (by keys)", USES_KEY | USES_WORLD_SIZE, call_barrier_by_keys, NULL},
    {"check_in", GIVES_NUMBER, call_check_in, NULL},
    {"wait_for_workers", USES_WORLD_SIZE, call_wait_for_workers, NULL},
    {"ping", 0, NULL, prepare_ping},
};
const size_t operation_count = sizeof operations / sizeof *operations;

rdzv_status call_or_perform(const struct operation *operation, const struct arguments *given, rdzv_error **error) {
  return operation->call != NULL ? operation->call(given, error) : perform_or_call(operation, given, error);
}

rdzv_status perform_or_call(const struct operation *operation, const struct arguments *given, rdzv_error **error) {
  if (operation->prepare == NULL) return operation->call(given, error);
  const rdzv_status prepared = operation->prepare(given, error);
  return prepared != RDZV_OK ? prepared : rdzv_store_perform(given->store, given->op, given->timeout_ms, error);
}

rdzv_status submit_or_call(const struct operation *operation, const struct arguments *given, rdzv_error **error) {
  if (operation->prepare == NULL) return operation->call(given, error);
  const rdzv_status prepared = operation->prepare(given, error);
  return prepared != RDZV_OK ? prepared : rdzv_loop_submit(given->member, given->op, given->timeout_ms, error);
}
