#include "operations.h"

#include <stddef.h>

static rdzv_status call_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_set(given->store, given->key, given->key_len, given->value, given->value_len,
                        given->timeout_ms, error);
}

static rdzv_status submit_set(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_set(given->loop, given->loop_store, given->key, given->key_len, given->value,
                       given->value_len, given->timeout_ms, operation, error);
}

static rdzv_status call_get(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_get(given->store, given->key, given->key_len, given->timeout_ms, given->buffer, error);
}

static rdzv_status submit_get(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_get(given->loop, given->loop_store, given->key, given->key_len, given->timeout_ms,
                       operation, error);
}

static rdzv_status call_add(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_add(given->store, given->key, given->key_len, 1, given->timeout_ms, given->number, error);
}

static rdzv_status submit_add(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_add(given->loop, given->loop_store, given->key, given->key_len, 1, given->timeout_ms,
                       operation, error);
}

static rdzv_status call_compare_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_compare_set(given->store, given->key, given->key_len, given->value, given->value_len,
                                given->desired, given->desired_len, given->timeout_ms, given->buffer, error);
}

static rdzv_status submit_compare_set(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_compare_set(given->loop, given->loop_store, given->key, given->key_len, given->value,
                               given->value_len, given->desired, given->desired_len, given->timeout_ms,
                               operation, error);
}

static rdzv_status call_wait(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_wait(given->store, given->keys, given->count, given->timeout_ms, error);
}

static rdzv_status submit_wait(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_wait(given->loop, given->loop_store, given->keys, given->count, given->timeout_ms,
                        operation, error);
}

static rdzv_status call_check(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_check(given->store, given->keys, given->count, given->timeout_ms, given->flag, error);
}

static rdzv_status submit_check(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_check(given->loop, given->loop_store, given->keys, given->count, given->timeout_ms,
                         operation, error);
}

static rdzv_status call_delete_key(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_delete_key(given->store, given->key, given->key_len, given->timeout_ms, given->flag,
                               error);
}

static rdzv_status submit_delete_key(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_delete_key(given->loop, given->loop_store, given->key, given->key_len, given->timeout_ms,
                              operation, error);
}

static rdzv_status call_num_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_num_keys(given->store, given->timeout_ms, given->number, error);
}

static rdzv_status submit_num_keys(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_num_keys(given->loop, given->loop_store, given->timeout_ms, operation, error);
}

static rdzv_status call_list_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_list_keys(given->store, given->timeout_ms, given->list, error);
}

static rdzv_status submit_list_keys(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_list_keys(given->loop, given->loop_store, given->timeout_ms, operation, error);
}

static rdzv_status call_append(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_append(given->store, given->key, given->key_len, given->value, given->value_len,
                           given->timeout_ms, error);
}

static rdzv_status submit_append(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_append(given->loop, given->loop_store, given->key, given->key_len, given->value,
                          given->value_len, given->timeout_ms, operation, error);
}

static rdzv_status call_multi_get(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_multi_get(given->store, given->keys, given->count, given->timeout_ms, given->list, error);
}

static rdzv_status submit_multi_get(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_multi_get(given->loop, given->loop_store, given->keys, given->count, given->timeout_ms,
                             operation, error);
}

static rdzv_status call_multi_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_multi_set(given->store, given->keys, given->values, given->count, given->timeout_ms,
                              error);
}

static rdzv_status submit_multi_set(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_multi_set(given->loop, given->loop_store, given->keys, given->values, given->count,
                             given->timeout_ms, operation, error);
}

static rdzv_status call_queue_push(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_queue_push(given->store, given->key, given->key_len, given->value, given->value_len,
                               given->timeout_ms, error);
}

static rdzv_status submit_queue_push(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_queue_push(given->loop, given->loop_store, given->key, given->key_len, given->value,
                              given->value_len, given->timeout_ms, operation, error);
}

static rdzv_status call_queue_pop(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_queue_pop(given->store, given->key, given->key_len, given->timeout_ms, given->buffer,
                              error);
}

static rdzv_status submit_queue_pop(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_queue_pop(given->loop, given->loop_store, given->key, given->key_len, given->timeout_ms,
                             operation, error);
}

static rdzv_status call_queue_len(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_queue_len(given->store, given->key, given->key_len, given->timeout_ms, given->number,
                              error);
}

static rdzv_status submit_queue_len(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_queue_len(given->loop, given->loop_store, given->key, given->key_len, given->timeout_ms,
                             operation, error);
}

static rdzv_status call_barrier(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_barrier(given->store, given->key, given->key_len, given->world_size, given->timeout_ms,
                            error);
}

static rdzv_status submit_barrier(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_barrier(given->loop, given->loop_store, given->key, given->key_len, given->world_size,
                           given->timeout_ms, operation, error);
}

static rdzv_status call_barrier_by_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_barrier_by_keys(given->store, given->key, given->key_len, given->world_size,
                                    given->timeout_ms, error);
}

static rdzv_status call_check_in(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_check_in(given->store, given->timeout_ms, given->number, error);
}

static rdzv_status call_wait_for_workers(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_wait_for_workers(given->store, given->world_size, given->timeout_ms, error);
}

static rdzv_status call_ping(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_ping(given->store, given->timeout_ms, error);
}

static rdzv_status submit_ping(const struct arguments *given, uint64_t *operation, rdzv_error **error) {
  return rdzv_loop_ping(given->loop, given->loop_store, given->timeout_ms, operation, error);
}

const struct operation operations[] = {
    {"set", USES_KEY | USES_VALUE, call_set, submit_set},
    {"get", USES_KEY | GIVES_BUFFER, call_get, submit_get},
    {"add", USES_KEY | GIVES_NUMBER, call_add, submit_add},
    {"compare_set", USES_KEY | USES_VALUE | USES_DESIRED | GIVES_BUFFER, call_compare_set, submit_compare_set},
    {"wait", USES_KEYS, call_wait, submit_wait},
    {"check", USES_KEYS | GIVES_FLAG, call_check, submit_check},
    {"delete", USES_KEY | GIVES_FLAG, call_delete_key, submit_delete_key},
    {"num_keys", GIVES_NUMBER, call_num_keys, submit_num_keys},
    {"list_keys", GIVES_LIST, call_list_keys, submit_list_keys},
    {"append", USES_KEY | USES_VALUE, call_append, submit_append},
    {"multi_get", USES_KEYS | GIVES_LIST, call_multi_get, submit_multi_get},
    {"multi_set", USES_KEYS | USES_VALUES, call_multi_set, submit_multi_set},
    {"queue_push", USES_KEY | USES_VALUE, call_queue_push, submit_queue_push},
    {"queue_pop", USES_KEY | GIVES_BUFFER, call_queue_pop, submit_queue_pop},
    {"queue_len", USES_KEY | GIVES_NUMBER, call_queue_len, submit_queue_len},
    {"barrier", USES_KEY | USES_WORLD_SIZE, call_barrier, submit_barrier},
    {"barrier (by keys)", USES_KEY | USES_WORLD_SIZE, call_barrier_by_keys, NULL},
    {"check_in", GIVES_NUMBER, call_check_in, NULL},
    {"wait_for_workers", USES_WORLD_SIZE, call_wait_for_workers, NULL},
    {"ping", 0, call_ping, submit_ping},
};
const size_t operation_count = sizeof operations / sizeof *operations;
