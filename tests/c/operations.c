#include "operations.h"

static rdzv_status set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_set(given->store, given->key, given->key_len, given->value, given->value_len,
                        given->timeout_ms, error);
}

static rdzv_status get(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_get(given->store, given->key, given->key_len, given->timeout_ms, given->buffer, error);
}

static rdzv_status add(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_add(given->store, given->key, given->key_len, 1, given->timeout_ms, given->number, error);
}

static rdzv_status compare_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_compare_set(given->store, given->key, given->key_len, given->value, given->value_len,
                                given->desired, given->desired_len, given->timeout_ms, given->buffer, error);
}

static rdzv_status wait_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_wait(given->store, given->keys, given->count, given->timeout_ms, error);
}

static rdzv_status check(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_check(given->store, given->keys, given->count, given->timeout_ms, given->flag, error);
}

static rdzv_status delete_key(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_delete_key(given->store, given->key, given->key_len, given->timeout_ms, given->flag,
                               error);
}

static rdzv_status num_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_num_keys(given->store, given->timeout_ms, given->number, error);
}

static rdzv_status list_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_list_keys(given->store, given->timeout_ms, given->list, error);
}

static rdzv_status append(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_append(given->store, given->key, given->key_len, given->value, given->value_len,
                           given->timeout_ms, error);
}

static rdzv_status multi_get(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_multi_get(given->store, given->keys, given->count, given->timeout_ms, given->list, error);
}

static rdzv_status multi_set(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_multi_set(given->store, given->keys, given->values, given->count, given->timeout_ms,
                              error);
}

static rdzv_status queue_push(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_queue_push(given->store, given->key, given->key_len, given->value, given->value_len,
                               given->timeout_ms, error);
}

static rdzv_status queue_pop(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_queue_pop(given->store, given->key, given->key_len, given->timeout_ms, given->buffer,
                              error);
}

static rdzv_status queue_len(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_queue_len(given->store, given->key, given->key_len, given->timeout_ms, given->number,
                              error);
}

static rdzv_status barrier(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_barrier(given->store, given->key, given->key_len, given->world_size, given->timeout_ms,
                            error);
}

static rdzv_status barrier_by_keys(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_barrier_by_keys(given->store, given->key, given->key_len, given->world_size,
                                    given->timeout_ms, error);
}

static rdzv_status check_in(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_check_in(given->store, given->timeout_ms, given->number, error);
}

static rdzv_status wait_for_workers(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_wait_for_workers(given->store, given->world_size, given->timeout_ms, error);
}

static rdzv_status ping(const struct arguments *given, rdzv_error **error) {
  return rdzv_store_ping(given->store, given->timeout_ms, error);
}

const struct operation operations[] = {
    {"set", USES_KEY | USES_VALUE, set},
    {"get", USES_KEY | GIVES_BUFFER, get},
    {"add", USES_KEY | GIVES_NUMBER, add},
    {"compare_set", USES_KEY | USES_VALUE | USES_DESIRED | GIVES_BUFFER, compare_set},
    {"wait", USES_KEYS, wait_keys},
    {"check", USES_KEYS | GIVES_FLAG, check},
    {"delete", USES_KEY | GIVES_FLAG, delete_key},
    {"num_keys", GIVES_NUMBER, num_keys},
    {"list_keys", GIVES_LIST, list_keys},
    {"append", USES_KEY | USES_VALUE, append},
    {"multi_get", USES_KEYS | GIVES_LIST, multi_get},
    {"multi_set", USES_KEYS | USES_VALUES, multi_set},
    {"queue_push", USES_KEY | USES_VALUE, queue_push},
    {"queue_pop", USES_KEY | GIVES_BUFFER, queue_pop},
    {"queue_len", USES_KEY | GIVES_NUMBER, queue_len},
    {"barrier", USES_KEY | USES_WORLD_SIZE, barrier},
    {"barrier (by keys)", USES_KEY | USES_WORLD_SIZE, barrier_by_keys},
    {"check_in", GIVES_NUMBER, check_in},
    {"wait_for_workers", USES_WORLD_SIZE, wait_for_workers},
    {"ping", 0, ping},
};
const size_t operation_count = sizeof operations / sizeof *operations;
