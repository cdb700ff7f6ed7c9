// The operations of a store as a table, so that each of them can be called, performed and submitted to a loop alike.
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <rendezvous.h>

// What an operation takes and gives, besides the store and a timeout.
enum {
  USES_KEY = 1 << 0,
  USES_VALUE = 1 << 1,
  USES_DESIRED = 1 << 2,
  USES_KEYS = 1 << 3,
  USES_VALUES = 1 << 4,
  USES_WORLD_SIZE = 1 << 5,
  GIVES_NUMBER = 1 << 6,
  GIVES_FLAG = 1 << 7,
  GIVES_BUFFER = 1 << 8,
};

// All that any operation takes.
struct arguments {
  const rdzv_store *store;
  rdzv_loop_member *member;
  rdzv_op *op;
  const uint8_t *key;
  size_t key_len;
  const uint8_t *value;
  size_t value_len;
  const uint8_t *desired;
  size_t desired_len;
  const rdzv_bytes *keys;
  const rdzv_bytes *values;
  size_t count;
  int64_t world_size;
  int64_t timeout_ms;
  int64_t *number;
  int32_t *flag;
  rdzv_buffer *buffer;
};

struct operation {
  // As errors have it.
  const char *name;
  unsigned uses;
  // Typed blocking function; NULL for what only an operation object has.
  rdzv_status (*call)(const struct arguments *given, rdzv_error **error);
  // Gives an operation object its request; NULL for what only the typed function has.
  rdzv_status (*prepare)(const struct arguments *given, rdzv_error **error);
};

extern const struct operation operations[];
extern const size_t operation_count;

// Calls the typed function, or prepares and performs the operation.
rdzv_status call_or_perform(const struct operation *operation, const struct arguments *given, rdzv_error **error);
// Prepares and performs the operation, or else calls the typed function.
rdzv_status perform_or_call(const struct operation *operation, const struct arguments *given, rdzv_error **error);
// Prepares and submits the operation, or else calls the typed function.
rdzv_status submit_or_call(const struct operation *operation, const struct arguments *given, rdzv_error **error);

#endif  // OPERATIONS_H
