// Stores without a server: files, stores in this process, prefixes, and stores in code of one's own.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static rdzv_store *open_file(const char *path, int64_t world_size) {
  rdzv_store *store = NULL;
  OK(rdzv_store_new_file(NULL, path, world_size, PATIENCE_MS, &store, &error));
  CHECK_TEXT(rdzv_store_peer(store), path);
  return store;
}

static void takes_values(rdzv_store *store) {
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_set(store, TEXT("key"), TEXT("value"), PATIENCE_MS, &error));
  OK(rdzv_store_get(store, TEXT("key"), PATIENCE_MS, value, &error));
  CHECK_BUFFER(value, "value");
  int64_t sum = 0;
  OK(rdzv_store_add(store, TEXT("number"), 42, PATIENCE_MS, &sum, &error));
  CHECK_NUMBER(sum, 42);
  OK(rdzv_store_barrier(store, TEXT("gate"), 1, PATIENCE_MS, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_TIMED_OUT, .operation = "get", .message_part = "none"}),
             rdzv_store_get(store, TEXT("none"), 0, value, &error));
  rdzv_store *twin = NULL;
  OK(rdzv_store_clone(store, &twin, &error));
  OK(rdzv_store_get(twin, TEXT("key"), PATIENCE_MS, value, &error));
  CHECK_BUFFER(value, "value");
  rdzv_store_free(twin);
  rdzv_buffer_free(value);
}

void stores_in_this_process_and_prefixes(void) {
  rdzv_store *store = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_hash(NULL, 0, &store, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_hash(NULL, -1, NULL, &error));
  OK(rdzv_store_new_hash(NULL, PATIENCE_MS, &store, &error));
  takes_values(store);
  OK(store_queue_push(store, TEXT("queue"), TEXT("item"), PATIENCE_MS, &error));

  rdzv_store *outer = NULL, *inner = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_prefix(NULL, TEXT("p"), &outer, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_prefix(store, NULL, 1, &outer, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_prefix(store, TEXT("p"), NULL, &error));
  OK(rdzv_store_new_prefix(store, TEXT("a"), &outer, &error));
  OK(rdzv_store_new_prefix(outer, TEXT("b"), &inner, &error));
  rdzv_store_free(outer);
  OK(rdzv_store_set(inner, TEXT("k"), TEXT("deep"), PATIENCE_MS, &error));
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_get(store, TEXT("a/b/k"), 0, value, &error));
  CHECK_BUFFER(value, "deep");
  rdzv_op *op = rdzv_op_new(NULL);
  PERFORM(inner, op, rdzv_op_list_keys(op, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 1);
  CHECK_RESULT_ITEM(result_of(op), 0, "k");
  rdzv_store_free(store);
  takes_values(inner);
  rdzv_op_free(op);
  rdzv_buffer_free(value);
  rdzv_store_free(inner);
}

void files_are_stores(void) {
  const char *path = new_path();
  rdzv_store *store = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_file(NULL, NULL, -1, -1, &store, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_file(NULL, "", -1, -1, &store, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_file(NULL, path, -2, -1, &store, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_file(NULL, path, -1, 0, &store, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_file(NULL, path, -1, -1, NULL, &error));
  rdzv_error *details = NULL;
  CHECK_NUMBER(rdzv_store_new_file(NULL, "/nowhere/at/all", -1, -1, &store, &details), RDZV_IO);
  CHECK_NUMBER(info_of(details).os_error, ENOENT);
  CHECK_TEXT(info_of(details).operation, "open");
  CHECK_TEXT(info_of(details).phase, "opening");
  rdzv_error_free(details);

  store = open_file(path, 2);
  takes_values(store);
  FAILS(RDZV_UNSUPPORTED, store_queue_push(store, TEXT("queue"), TEXT("item"), PATIENCE_MS, &error));
  rdzv_store_free(store);
  CHECK(access(path, F_OK) != 0);  // two have been there, with the clone

  // Somebody dies within a record.
  store = open_file(path, 0);
  const int other = open(path, O_WRONLY | O_APPEND);
  CHECK(other >= 0 && write(other, "\x05\0\0\0/to", 7) == 7);
  FAILS_LIKE(((struct failure){.status = RDZV_CORRUPT, .phase = "reading", .message_part = "at offset 18"}),
             rdzv_store_set(store, TEXT("key"), TEXT("value"), PATIENCE_MS, &error));
  CHECK(ftruncate(other, 18) == 0);
  // Somebody keeps the lock.
  CHECK(flock(other, LOCK_EX | LOCK_NB) == 0);
  FAILS_LIKE(((struct failure){.status = RDZV_TIMED_OUT, .phase = "locking"}),
             rdzv_store_set(store, TEXT("key"), TEXT("value"), 50, &error));
  close(other);
  OK(rdzv_store_set(store, TEXT("key"), TEXT("value"), PATIENCE_MS, &error));
  CHECK(unlink(path) == 0);
  FAILS_LIKE(((struct failure){.status = RDZV_SERVER_GONE, .phase = "opening", .message_part = "removed"}),
             rdzv_store_set(store, TEXT("key"), TEXT("value"), PATIENCE_MS, &error));
  rdzv_store_free(store);
}

void disk_that_is_full_leaves_no_torn_record(void) {
  const char *path = new_path();
  rdzv_store *store = open_file(path, 0);
  OK(rdzv_store_set(store, TEXT("before"), TEXT("1"), PATIENCE_MS, &error));
  const int file = open(path, O_RDONLY);
  const off_t end = lseek(file, 0, SEEK_END);
  // So much room is left that a part of the record fits.
  struct rlimit before, small;
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  small = before;
  small.rlim_cur = (rlim_t)end + 10;
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  rdzv_error *details = NULL;
  const rdzv_status status = rdzv_store_set(store, TEXT("key"), TEXT("too long for it"), PATIENCE_MS, &details);
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, handler);
  CHECK_NUMBER(status, RDZV_IO);
  CHECK_NUMBER(info_of(details).os_error, EFBIG);
  CHECK_TEXT(info_of(details).phase, "writing");
  rdzv_error_free(details);
  CHECK_NUMBER(lseek(file, 0, SEEK_END), end);
  close(file);
  OK(rdzv_store_set(store, TEXT("key"), TEXT("now it fits"), PATIENCE_MS, &error));
  rdzv_store_free(store);
  CHECK(access(path, F_OK) != 0);
}

enum { PROCESSES = 3, ROUNDS = 100 };

void processes_share_a_file_and_lose_nothing(void) {
  const char *path = new_path();
  pid_t children[PROCESSES];
  for (int i = 0; i < PROCESSES; ++i) {
    children[i] = fork();
    CHECK(children[i] >= 0);
    if (children[i] > 0) continue;
    rdzv_store *store = open_file(path, -1);
    for (int round = 0; round < ROUNDS; ++round) {
      int64_t sum = 0;
      OK(rdzv_store_add(store, TEXT("sum"), 1, PATIENCE_MS, &sum, &error));
      OK(store_append(store, TEXT("log"), TEXT("x"), PATIENCE_MS, &error));
    }
    OK(rdzv_store_barrier(store, TEXT("done"), PROCESSES + 1, PATIENCE_MS, &error));
    rdzv_store_free(store);
    _exit(0);
  }
  rdzv_store *store = open_file(path, -1);
  OK(rdzv_store_barrier(store, TEXT("done"), PROCESSES + 1, PATIENCE_MS, &error));
  int64_t sum = 0;
  OK(rdzv_store_add(store, TEXT("sum"), 0, PATIENCE_MS, &sum, &error));
  CHECK_NUMBER(sum, PROCESSES * ROUNDS);
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_get(store, TEXT("log"), PATIENCE_MS, value, &error));
  CHECK_NUMBER((long long)rdzv_buffer_len(value), PROCESSES * ROUNDS);
  rdzv_buffer_free(value);
  for (int i = 0; i < PROCESSES; ++i) {
    int status = -1;
    CHECK(waitpid(children[i], &status, 0) == children[i]);
    CHECK_NUMBER(status, 0);
  }
  rdzv_store_free(store);
  CHECK(unlink(path) == 0);
}

// A store of one value, whatever its key.
struct own_store {
  pthread_mutex_t mutex;
  rdzv_store *handle;
  char value[64];
  int destroyed;
};

static rdzv_status perform_locked(void *user_data, const rdzv_store_request *request, rdzv_reply *reply) {
  struct own_store *own = user_data;
  CHECK_NUMBER(request->struct_size, sizeof *request);
  rdzv_error *details = NULL;
  switch (request->operation) {
    case RDZV_STORE_SET:
      CHECK(request->key_count == 1 && request->value_count == 1);
      CHECK(request->values[0].len < sizeof own->value);
      memcpy(own->value, request->values[0].data, request->values[0].len);
      own->value[request->values[0].len] = '\0';
      return RDZV_OK;
    case RDZV_STORE_GET:
      rdzv_reply_add_value(reply, TEXT(own->value));
      return RDZV_OK;
    case RDZV_STORE_CHECK:
      rdzv_reply_set_number(reply, *own->value != '\0');
      return RDZV_OK;
    case RDZV_STORE_ADD:
      rdzv_reply_set_message(reply, TEXT("it cannot count"));
      return RDZV_LIMIT_EXCEEDED;
    case RDZV_STORE_DELETE_KEY:
      return RDZV_CLOSED;
    case RDZV_STORE_NUM_KEYS:
      // Back into the handle that is asking.
      CHECK_NUMBER(rdzv_store_set(own->handle, TEXT("k"), TEXT("v"), PATIENCE_MS, &details), RDZV_REENTRANT);
      CHECK_NUMBER(rdzv_error_status(details), RDZV_REENTRANT);
      rdzv_error_free(details);
      rdzv_reply_set_number(reply, 7);
      return RDZV_OK;
    default:
      return RDZV_UNSUPPORTED;
  }
}

// Several threads may ask at a time.
static rdzv_status perform_own(void *user_data, const rdzv_store_request *request, rdzv_reply *reply) {
  struct own_store *own = user_data;
  pthread_mutex_lock(&own->mutex);
  const rdzv_status status = perform_locked(user_data, request, reply);
  pthread_mutex_unlock(&own->mutex);
  return status;
}

static void destroy_own(void *user_data) {
  struct own_store *own = user_data;
  pthread_mutex_lock(&own->mutex);
  own->destroyed += 1;
  pthread_mutex_unlock(&own->mutex);
}

static int destroyed_count(struct own_store *own) {
  pthread_mutex_lock(&own->mutex);
  const int destroyed = own->destroyed;
  pthread_mutex_unlock(&own->mutex);
  return destroyed;
}

void own_code_is_a_store(void) {
  struct own_store own = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  rdzv_store_vtable vtable = {.user_data = &own, .name = "mine", .perform = perform_own, .destroy = destroy_own};
  rdzv_store *store = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_custom(NULL, NULL, -1, &store, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_custom(NULL, &vtable, -1, &store, &error));
  vtable.struct_size = sizeof vtable;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_custom(NULL, &vtable, -1, NULL, &error));
  rdzv_store_vtable without = vtable;
  without.perform = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_store_new_custom(NULL, &without, -1, &store, &error));
  CHECK_NUMBER(own.destroyed, 0);

  OK(rdzv_store_new_custom(NULL, &vtable, PATIENCE_MS, &store, &error));
  own.handle = store;
  CHECK_TEXT(rdzv_store_peer(store), "mine");
  rdzv_buffer *value = rdzv_buffer_new();
  FAILS(RDZV_TIMED_OUT, rdzv_store_get(store, TEXT("k"), 30, value, &error));
  OK(rdzv_store_set(store, TEXT("k"), TEXT("value"), PATIENCE_MS, &error));
  OK(rdzv_store_get(store, TEXT("k"), PATIENCE_MS, value, &error));
  CHECK_BUFFER(value, "value");
  int64_t number = 0;
  FAILS_LIKE(((struct failure){.status = RDZV_LIMIT_EXCEEDED, .operation = "add", .peer = "mine",
                               .message_part = "it cannot count"}),
             rdzv_store_add(store, TEXT("k"), 1, PATIENCE_MS, &number, &error));
  FAILS(RDZV_UNSUPPORTED, store_append(store, TEXT("k"), TEXT("v"), PATIENCE_MS, &error));
  int32_t existed = 0;
  FAILS(RDZV_CLOSED, rdzv_store_delete_key(store, TEXT("k"), PATIENCE_MS, &existed, &error));
  rdzv_op *op = rdzv_op_new(NULL);
  PERFORM(store, op, rdzv_op_num_keys(op, &error));
  CHECK_NUMBER(result_of(op).count, 7);
  rdzv_op_free(op);
  rdzv_store *twin = NULL;
  OK(rdzv_store_clone(store, &twin, &error));
  rdzv_store_free(store);
  CHECK_NUMBER(own.destroyed, 0);
  OK(rdzv_store_set(twin, TEXT("k"), TEXT("v"), PATIENCE_MS, &error));
  rdzv_store_free(twin);
  // The thread of a call that timed out may still have it.
  const long long freed_ms = now_ms();
  while (destroyed_count(&own) == 0 && now_ms() - freed_ms < PATIENCE_MS) sched_yield();
  CHECK_NUMBER(destroyed_count(&own), 1);
  rdzv_buffer_free(value);
}
