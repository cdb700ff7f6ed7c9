// NULL, impossible lengths, unknown numbers: each is refused, and nothing else happens.
#include "check.h"
#include "operations.h"
#include "ops.h"
#include "tests.h"

#include <limits.h>

// What is wrong with the arguments of a call.
struct flaw {
  const char *name;
  // The operations that it can be tried on: those that use one of these; all if 0.
  unsigned of;
  rdzv_status status;
  void (*spoil)(struct arguments *given);
};

static void no_store(struct arguments *given) {
  given->store = NULL;
  given->member = NULL;
}
static void no_key(struct arguments *given) { given->key = NULL; }
static void endless_key(struct arguments *given) { given->key_len = SIZE_MAX; }
static void long_key(struct arguments *given) {
  static const uint8_t zeros[9000];
  given->key = zeros;
  given->key_len = sizeof zeros;
}
static void no_value(struct arguments *given) { given->value = NULL; }
static void endless_value(struct arguments *given) { given->value_len = SIZE_MAX; }
static void long_value(struct arguments *given) {
  static const uint8_t zeros[(8 << 20) + 1];
  given->value = zeros;
  given->value_len = sizeof zeros;
}
static void no_desired(struct arguments *given) { given->desired = NULL; }
static void endless_desired(struct arguments *given) { given->desired_len = (size_t)PTRDIFF_MAX + 1; }
static void no_keys(struct arguments *given) { given->keys = NULL; }
static void no_values(struct arguments *given) { given->values = NULL; }
static void endless_list(struct arguments *given) { given->count = SIZE_MAX; }
static void no_first_key(struct arguments *given) {
  static const rdzv_bytes keys[] = {{NULL, 3}, {NULL, 0}};
  given->keys = keys;
}
static void endless_last_key(struct arguments *given) {
  static const rdzv_bytes keys[] = {{(const uint8_t *)"a", 1}, {(const uint8_t *)"b", SIZE_MAX}};
  given->keys = keys;
}
static void no_last_value(struct arguments *given) {
  static const rdzv_bytes values[] = {{(const uint8_t *)"a", 1}, {NULL, 1}};
  given->values = values;
}
static void no_world(struct arguments *given) { given->world_size = 0; }
static void negative_world(struct arguments *given) { given->world_size = -1; }
static void no_number(struct arguments *given) { given->number = NULL; }
static void no_flag(struct arguments *given) { given->flag = NULL; }
static void no_buffer(struct arguments *given) { given->buffer = NULL; }
static void timeout_below_default(struct arguments *given) { given->timeout_ms = -2; }
static void timeout_far_below(struct arguments *given) { given->timeout_ms = INT64_MIN; }

static const struct flaw flaws[] = {
    {"no store", 0, RDZV_INVALID_ARGUMENT, no_store},
    {"timeout -2", 0, RDZV_INVALID_ARGUMENT, timeout_below_default},
    {"smallest timeout", 0, RDZV_INVALID_ARGUMENT, timeout_far_below},
    {"no key", USES_KEY, RDZV_INVALID_ARGUMENT, no_key},
    {"endless key", USES_KEY, RDZV_INVALID_ARGUMENT, endless_key},
    {"long key", USES_KEY, RDZV_LIMIT_EXCEEDED, long_key},
    {"no value", USES_VALUE, RDZV_INVALID_ARGUMENT, no_value},
    {"endless value", USES_VALUE, RDZV_INVALID_ARGUMENT, endless_value},
    {"long value", USES_VALUE, RDZV_LIMIT_EXCEEDED, long_value},
    {"no desired", USES_DESIRED, RDZV_INVALID_ARGUMENT, no_desired},
    {"endless desired", USES_DESIRED, RDZV_INVALID_ARGUMENT, endless_desired},
    {"no keys", USES_KEYS, RDZV_INVALID_ARGUMENT, no_keys},
    {"no values", USES_VALUES, RDZV_INVALID_ARGUMENT, no_values},
    {"endless list", USES_KEYS, RDZV_LIMIT_EXCEEDED, endless_list},
    {"no first key", USES_KEYS, RDZV_INVALID_ARGUMENT, no_first_key},
    {"endless last key", USES_KEYS, RDZV_INVALID_ARGUMENT, endless_last_key},
    {"no last value", USES_VALUES, RDZV_INVALID_ARGUMENT, no_last_value},
    {"world of none", USES_WORLD_SIZE, RDZV_INVALID_ARGUMENT, no_world},
    {"world of -1", USES_WORLD_SIZE, RDZV_INVALID_ARGUMENT, negative_world},
    {"no number", GIVES_NUMBER, RDZV_INVALID_ARGUMENT, no_number},
    {"no flag", GIVES_FLAG, RDZV_INVALID_ARGUMENT, no_flag},
    {"no buffer", GIVES_BUFFER, RDZV_INVALID_ARGUMENT, no_buffer},
};

// Tries every flaw on every operation, once with a place for the details and once without; `call` makes the call.
static void try_flaws(struct arguments good, unsigned but,
                      rdzv_status (*call)(const struct operation *operation, const struct arguments *given,
                                          rdzv_error **error),
                      void (*check_untouched)(const struct arguments *good)) {
  for (size_t i = 0; i < operation_count; ++i) {
    for (size_t j = 0; j < sizeof flaws / sizeof *flaws; ++j) {
      const struct flaw *flaw = &flaws[j];
      if (flaw->of != 0 && (operations[i].uses & ~but & flaw->of) == 0) continue;
      struct arguments given = good;
      flaw->spoil(&given);
      rdzv_error *details = NULL;
      const rdzv_status outcome = call(&operations[i], &given, &details);
      if (outcome != flaw->status) {
        FAIL("%s with %s: %s (%s)", operations[i].name, flaw->name, rdzv_status_name(outcome),
             rdzv_error_message(details));
      }
      const struct failure wanted = {.status = flaw->status};
      check_failure(__FILE__, __LINE__, operations[i].name, outcome, details, wanted);
      rdzv_error_free(details);
      CHECK_NUMBER(call(&operations[i], &given, NULL), flaw->status);
      check_untouched(&good);
    }
  }
}

static void check_outputs(const struct arguments *good) {
  CHECK_NUMBER(*good->number, 77);
  CHECK_NUMBER(*good->flag, 77);
  CHECK_BUFFER(good->buffer, "a");
}

// Nothing was submitted, so nothing happens.
static rdzv_loop *quiet_loop;
static void check_quiet(const struct arguments *good) {
  (void)good;
  rdzv_event event = {.struct_size = sizeof event};
  OK(rdzv_loop_poll(quiet_loop, &error));
  OK(rdzv_loop_next_event(quiet_loop, &event, &error));
  CHECK_NUMBER(event.kind, RDZV_EVENT_NONE);
}

void every_operation_refuses_bad_arguments(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_buffer *buffer = rdzv_buffer_new();
  rdzv_op *op = rdzv_op_new(NULL);
  int64_t number = 77;
  int32_t flag = 77;
  const rdzv_bytes keys[] = {BYTES("a"), BYTES("b")};
  PERFORM(store, op, rdzv_op_multi_set(op, keys, keys, 2, &error));
  OK(rdzv_store_get(store, TEXT("a"), -1, buffer, &error));
  rdzv_server_stats before = {.struct_size = sizeof before};
  OK(rdzv_server_get_stats(server, &before, &error));

  rdzv_loop *loop = NULL;
  rdzv_loop_member *member = NULL;
  rdzv_store_options options = options_for(rdzv_server_port(server));
  OK(rdzv_loop_new(NULL, &loop, &error));
  quiet_loop = loop;
  OK(rdzv_loop_add_store(loop, &options, NULL, &member, &error));
  const struct arguments good = {
      .store = store,
      .member = member,
      .op = op,
      .key = (const uint8_t *)"a",
      .key_len = 1,
      .value = (const uint8_t *)"a",
      .value_len = 1,
      .desired = (const uint8_t *)"a",
      .desired_len = 1,
      .keys = keys,
      .values = keys,
      .count = 2,
      .world_size = 1,
      .timeout_ms = -1,
      .number = &number,
      .flag = &flag,
      .buffer = buffer,
  };
  const unsigned outputs = GIVES_NUMBER | GIVES_FLAG | GIVES_BUFFER;
  try_flaws(good, 0, call_or_perform, check_outputs);
  try_flaws(good, outputs, perform_or_call, check_outputs);
  try_flaws(good, outputs, submit_or_call, check_quiet);
  rdzv_server_stats after = {.struct_size = sizeof after};
  OK(rdzv_server_get_stats(server, &after, &error));
  CHECK_NUMBER(after.requests, before.requests);
  CHECK_NUMBER(after.keys, before.keys);
  // The handle is as good as before.
  PERFORM(store, op, rdzv_op_ping(op, &error));
  rdzv_loop_free(loop);
  rdzv_op_free(op);
  rdzv_store_free(store);
  rdzv_buffer_free(buffer);
  rdzv_server_free(server);
}

static const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;

// What is wrong with the options stands in the message.
static void server_is_refused(rdzv_server_options options, const char *name) {
  rdzv_server *server = NULL;
  options.struct_size = sizeof options;
  FAILS_LIKE(((struct failure){INVALID, .message_part = name}), rdzv_server_new(NULL, &options, &server, &error));
  CHECK(server == NULL);
}

static void server_options_are_checked(void) {
  server_is_refused((rdzv_server_options){.host = ""}, "host");
  server_is_refused((rdzv_server_options){.host = "h\xf6st"}, "host");
  server_is_refused((rdzv_server_options){.family = -1}, "family");
  server_is_refused((rdzv_server_options){.family = 2}, "family");
  server_is_refused((rdzv_server_options){.family = INT32_MIN}, "family");
  server_is_refused((rdzv_server_options){.listen_fd = -1}, "listen_fd");
  server_is_refused((rdzv_server_options){.listen_fd = INT32_MIN}, "listen_fd");
  server_is_refused((rdzv_server_options){.listen_fd = INT32_MAX}, "descriptor");
  server_is_refused((rdzv_server_options){.handshake_timeout_ms = -1}, "handshake_timeout_ms");
  server_is_refused((rdzv_server_options){.frame_timeout_ms = INT64_MIN}, "frame_timeout_ms");
  server_is_refused((rdzv_server_options){.keep_alive.idle_ms = -1}, "idle_ms");
  server_is_refused((rdzv_server_options){.keep_alive.idle_ms = INT64_MAX}, "idle_ms");
  server_is_refused((rdzv_server_options){.keep_alive.interval_ms = -1}, "interval_ms");
  server_is_refused((rdzv_server_options){.keep_alive.interval_ms = 32767001}, "interval_ms");
  server_is_refused((rdzv_server_options){.keep_alive.probes = 128}, "probes");
  server_is_refused((rdzv_server_options){.keep_alive.unacknowledged_max_ms = -1}, "unacknowledged_max_ms");
  rdzv_server *server = NULL;
  rdzv_server_options options = {.struct_size = 0};
  FAILS(INVALID, rdzv_server_new(NULL, &options, &server, &error));
  options.struct_size = sizeof options - 1;
  FAILS(INVALID, rdzv_server_new(NULL, &options, &server, &error));
  // A zeroed struct has the defaults, and so has one of a later header.
  options.struct_size = sizeof options;
  OK(rdzv_server_new(NULL, &options, &server, &error));
  CHECK(strncmp(rdzv_server_address(server), "127.0.0.1:", 10) == 0);
  rdzv_server_free(server);
  const struct {
    rdzv_server_options known;
    uint64_t later;
  } larger = {.known.struct_size = sizeof larger, .later = 77};
  OK(rdzv_server_new(NULL, &larger.known, &server, &error));
  rdzv_server_free(server);
  // The system takes the least and the most of all that the options take.
  options.keep_alive = (rdzv_keep_alive){1, 1, 1, 1};
  OK(rdzv_server_new(NULL, &options, &server, &error));
  rdzv_server_free(server);
  options.keep_alive = (rdzv_keep_alive){32767000, 32767000, 127, INT32_MAX};
  options.handshake_timeout_ms = options.frame_timeout_ms = INT64_MAX;
  options.connections_max = options.stored_bytes_max = UINT64_MAX;
  OK(rdzv_server_new(NULL, &options, &server, &error));
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  OK(store_ping(store, INT64_MAX, &error));
  rdzv_store_free(store);
  rdzv_server_free(server);
}

static void server_is_checked(void) {
  rdzv_server *server = NULL;
  FAILS(INVALID, rdzv_server_new(NULL, NULL, NULL, &error));
  CHECK_NUMBER(rdzv_server_new(NULL, NULL, NULL, NULL), INVALID);
  OK(rdzv_server_new(NULL, NULL, &server, &error));
  rdzv_server_stats stats = {.struct_size = sizeof stats, .keys = 77};
  FAILS(INVALID, rdzv_server_get_stats(NULL, &stats, &error));
  FAILS(INVALID, rdzv_server_get_stats(server, NULL, &error));
  stats.struct_size = 0;
  FAILS(INVALID, rdzv_server_get_stats(server, &stats, &error));
  stats.struct_size = sizeof stats - 1;
  FAILS(INVALID, rdzv_server_get_stats(server, &stats, &error));
  CHECK_NUMBER(stats.struct_size, sizeof stats - 1);
  CHECK_NUMBER(stats.keys, 77);
  // A program that is newer than the library has a larger struct: what the library does not know stays as it is.
  struct {
    rdzv_server_stats known;
    uint64_t later;
  } larger = {.known.struct_size = sizeof larger, .later = 77};
  OK(rdzv_server_get_stats(server, &larger.known, &error));
  CHECK_NUMBER(larger.known.struct_size, sizeof(rdzv_server_stats));
  CHECK_NUMBER(larger.later, 77);
  FAILS(INVALID, rdzv_server_stop(NULL, &error));
  rdzv_server_free(server);
}

static void store_is_refused(rdzv_store_options options, const char *name) {
  rdzv_store *store = NULL;
  FAILS_LIKE(((struct failure){INVALID, .message_part = name}), rdzv_store_new(NULL, &options, &store, &error));
  CHECK(store == NULL);
}

// Refuses the options for a server with one field that is wrong.
#define STORE_IS_REFUSED(field, value)               \
  do {                                               \
    rdzv_store_options options = options_for(29500); \
    options.field = (value);                         \
    store_is_refused(options, #field);               \
  } while (false)

static void store_options_are_checked(void) {
  STORE_IS_REFUSED(struct_size, 0);
  STORE_IS_REFUSED(struct_size, sizeof(rdzv_store_options) - 1);
  STORE_IS_REFUSED(host, NULL);
  STORE_IS_REFUSED(host, "");
  STORE_IS_REFUSED(host, "\xff");
  STORE_IS_REFUSED(port, 0);
  STORE_IS_REFUSED(timeout_ms, -1);
  STORE_IS_REFUSED(connect_timeout_ms, -2);
  STORE_IS_REFUSED(connect_timeout_ms, INT64_MIN);
  STORE_IS_REFUSED(response_timeout_ms, -1);
  STORE_IS_REFUSED(keep_alive.idle_ms, -1);
  STORE_IS_REFUSED(keep_alive.interval_ms, 32767001);
  STORE_IS_REFUSED(keep_alive.probes, 128);
  STORE_IS_REFUSED(keep_alive.unacknowledged_max_ms, -1);
  rdzv_store *store = NULL;
  const rdzv_store_options options = options_for(29500);
  FAILS(INVALID, rdzv_store_new(NULL, NULL, &store, &error));
  FAILS(INVALID, rdzv_store_new(NULL, &options, NULL, &error));
  CHECK(store == NULL);
}

static void longest_timeouts_are_taken(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.keep_alive = (rdzv_keep_alive){32767000, 32767000, 127, INT32_MAX};
  options.timeout_ms = options.response_timeout_ms = options.connect_timeout_ms = INT64_MAX;
  rdzv_store *store = NULL;
  OK(rdzv_store_new(NULL, &options, &store, &error));
  OK(store_ping(store, -1, &error));
  OK(store_ping(store, 0, &error));
  rdzv_store *twin = NULL;
  FAILS(INVALID, rdzv_store_clone(NULL, &twin, &error));
  FAILS(INVALID, rdzv_store_clone(store, NULL, &error));
  CHECK(twin == NULL);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void every_other_function_refuses_bad_arguments(void) {
  server_options_are_checked();
  server_is_checked();
  store_options_are_checked();
  longest_timeouts_are_taken();
}

void null_handles_are_freed_and_read(void) {
  rdzv_error_free(NULL);
  rdzv_buffer_free(NULL);
  rdzv_list_free(NULL);
  rdzv_context_free(NULL);
  rdzv_server_free(NULL);
  rdzv_store_free(NULL);
  rdzv_store_cancel(NULL);
  rdzv_cancel_token_cancel(NULL);
  rdzv_cancel_token_free(NULL);
  CHECK_NUMBER(rdzv_error_status(NULL), RDZV_OK);
  CHECK_TEXT(rdzv_error_message(NULL), "");
  rdzv_error_info none = info_of(NULL);
  CHECK(*none.message == 0 && *none.operation == 0 && *none.peer == 0 && *none.phase == 0 && *none.cause == 0);
  CHECK(none.status == RDZV_OK && none.elapsed_ms == 0 && none.os_error == 0);
  CHECK(none.revision == 0 && none.generation == 0);
  CHECK(none.key_count == 0 && none.node_count == 0 && none.rank_count == 0);
  CHECK_NUMBER(rdzv_error_get_info(NULL, NULL), INVALID);
  none.struct_size -= 1;
  none.os_error = 77;
  CHECK_NUMBER(rdzv_error_get_info(NULL, &none), INVALID);
  CHECK_NUMBER(none.os_error, 77);
  size_t len = 77;
  CHECK(rdzv_buffer_data(NULL) == NULL);
  CHECK_NUMBER(rdzv_buffer_len(NULL), 0);
  CHECK_NUMBER(rdzv_list_count(NULL), 0);
  CHECK(rdzv_list_item(NULL, 0, &len) == NULL);
  CHECK_NUMBER(len, 77);
  CHECK_NUMBER(rdzv_server_port(NULL), 0);
  CHECK_TEXT(rdzv_server_address(NULL), "");
  CHECK_TEXT(rdzv_store_peer(NULL), "");
}
