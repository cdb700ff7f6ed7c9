// NULL, impossible lengths, unknown numbers: each is refused, and nothing else happens.
#include "check.h"
#include "operations.h"
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
  given->loop = NULL;
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
static void no_list(struct arguments *given) { given->list = NULL; }
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
    {"no list", GIVES_LIST, RDZV_INVALID_ARGUMENT, no_list},
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

static rdzv_status call_operation(const struct operation *operation, const struct arguments *given,
                                  rdzv_error **error) {
  return operation->call(given, error);
}

static void check_outputs(const struct arguments *good) {
  CHECK_NUMBER(*good->number, 77);
  CHECK_NUMBER(*good->flag, 77);
  CHECK_BUFFER(good->buffer, "a");
  CHECK_NUMBER(rdzv_list_count(good->list), 2);
  CHECK_ITEM(good->list, 1, "b");
}

static rdzv_status submit_operation(const struct operation *operation, const struct arguments *given,
                                    rdzv_error **error) {
  // What loops do not have is as good as refused.
  if (operation->submit == NULL) return operation->call(given, error);
  uint64_t number = 77;
  const rdzv_status outcome = operation->submit(given, &number, error);
  CHECK_NUMBER((long long)number, 77);
  return outcome;
}

// Nothing was submitted, so nothing happens.
static void check_quiet(const struct arguments *good) {
  rdzv_event event = {.struct_size = sizeof event};
  OK(rdzv_loop_poll(good->loop, &error));
  OK(rdzv_loop_next_event(good->loop, &event, &error));
  CHECK_NUMBER(event.kind, RDZV_EVENT_NONE);
}

void every_operation_refuses_bad_arguments(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_buffer *buffer = rdzv_buffer_new();
  rdzv_list *list = rdzv_list_new();
  int64_t number = 77;
  int32_t flag = 77;
  const rdzv_bytes keys[] = {BYTES("a"), BYTES("b")};
  OK(rdzv_store_multi_set(store, keys, keys, 2, -1, &error));
  OK(rdzv_store_multi_get(store, keys, 2, -1, list, &error));
  OK(rdzv_store_get(store, TEXT("a"), -1, buffer, &error));
  rdzv_server_stats before = {.struct_size = sizeof before};
  OK(rdzv_server_get_stats(server, &before, &error));

  rdzv_loop *loop = NULL;
  uint32_t loop_store = 0;
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  OK(rdzv_loop_new(NULL, &loop, &error));
  OK(rdzv_loop_add_store(loop, options, &loop_store, &error));
  rdzv_store_options_free(options);
  const struct arguments good = {
      .store = store,
      .loop = loop,
      .loop_store = loop_store,
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
      .list = list,
  };
  try_flaws(good, 0, call_operation, check_outputs);
  try_flaws(good, GIVES_NUMBER | GIVES_FLAG | GIVES_BUFFER | GIVES_LIST, submit_operation, check_quiet);
  rdzv_server_stats after = {.struct_size = sizeof after};
  OK(rdzv_server_get_stats(server, &after, &error));
  CHECK_NUMBER(after.requests, before.requests);
  CHECK_NUMBER(after.keys, before.keys);
  // The handle is as good as before.
  OK(rdzv_store_ping(store, -1, &error));
  rdzv_loop_free(loop);
  rdzv_store_free(store);
  rdzv_buffer_free(buffer);
  rdzv_list_free(list);
  rdzv_server_free(server);
}

static const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;

static void server_options_are_checked(void) {
  rdzv_server_options *options = NULL;
  FAILS(INVALID, rdzv_server_options_new(NULL, &error));
  OK(rdzv_server_options_new(&options, &error));
  FAILS(INVALID, rdzv_server_options_set_bind(NULL, TEXT("127.0.0.1"), 0, &error));
  FAILS(INVALID, rdzv_server_options_set_bind(options, NULL, 9, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_bind(options, NULL, 0, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_bind(options, (const uint8_t *)"host", SIZE_MAX, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_bind(options, TEXT("h\xf6st"), 0, &error));
  FAILS(INVALID, rdzv_server_options_set_family(NULL, RDZV_FAMILY_AS_GIVEN, &error));
  FAILS(INVALID, rdzv_server_options_set_family(options, -1, &error));
  FAILS(INVALID, rdzv_server_options_set_family(options, 2, &error));
  FAILS(INVALID, rdzv_server_options_set_family(options, INT32_MIN, &error));
  FAILS(INVALID, rdzv_server_options_set_listen_fd(NULL, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_listen_fd(options, INT32_MIN, &error));
  FAILS(INVALID, rdzv_server_options_set_listen_fd(options, INT32_MAX, &error));
  FAILS(INVALID, rdzv_server_options_set_connections_max(NULL, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_connections_max(options, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_stored_bytes_max(NULL, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_stored_bytes_max(options, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_handshake_timeout_ms(NULL, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_handshake_timeout_ms(options, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_handshake_timeout_ms(options, -1, &error));
  FAILS(INVALID, rdzv_server_options_set_frame_timeout_ms(NULL, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_frame_timeout_ms(options, 0, &error));
  FAILS(INVALID, rdzv_server_options_set_frame_timeout_ms(options, INT64_MIN, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(NULL, 1, 1, 1, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 0, 1, 1, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 1, -1, 1, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 1, 1, 0, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 1, 1, 1, -1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, INT64_MAX, 1, 1, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 1, 32767001, 1, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 1, 1, 128, 1, &error));
  FAILS(INVALID, rdzv_server_options_set_keep_alive(options, 1, 1, 1, (int64_t)INT32_MAX + 1, &error));
  // Nothing of all this was taken: the options are still the defaults.
  rdzv_server *server = NULL;
  OK(rdzv_server_start(NULL, options, &server, &error));
  CHECK(strncmp(rdzv_server_address(server), "127.0.0.1:", 10) == 0);
  rdzv_server_free(server);
  // The system takes the least and the most of all that the options take.
  OK(rdzv_server_options_set_keep_alive(options, 1, 1, 1, 1, &error));
  OK(rdzv_server_start(NULL, options, &server, &error));
  rdzv_server_free(server);
  OK(rdzv_server_options_set_keep_alive(options, 32767000, 32767000, 127, INT32_MAX, &error));
  OK(rdzv_server_options_set_handshake_timeout_ms(options, INT64_MAX, &error));
  OK(rdzv_server_options_set_frame_timeout_ms(options, INT64_MAX, &error));
  OK(rdzv_server_options_set_connections_max(options, SIZE_MAX, &error));
  OK(rdzv_server_options_set_stored_bytes_max(options, UINT64_MAX, &error));
  OK(rdzv_server_start(NULL, options, &server, &error));
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  OK(rdzv_store_ping(store, INT64_MAX, &error));
  rdzv_store_free(store);
  rdzv_server_free(server);
  rdzv_server_options_free(options);
}

static void server_is_checked(void) {
  rdzv_server *server = NULL;
  FAILS(INVALID, rdzv_server_start(NULL, NULL, NULL, &error));
  CHECK_NUMBER(rdzv_server_start(NULL, NULL, NULL, NULL), INVALID);
  OK(rdzv_server_start(NULL, NULL, &server, &error));
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

static void store_options_are_checked(void) {
  rdzv_store_options *options = NULL;
  FAILS(INVALID, rdzv_store_options_new(NULL, &error));
  OK(rdzv_store_options_new(&options, &error));
  FAILS(INVALID, rdzv_store_options_set_endpoint(NULL, TEXT("127.0.0.1"), 1, &error));
  FAILS(INVALID, rdzv_store_options_set_endpoint(options, NULL, 9, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_endpoint(options, NULL, 0, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_endpoint(options, (const uint8_t *)"host", SIZE_MAX, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_endpoint(options, TEXT("\xff"), 1, &error));
  FAILS(INVALID, rdzv_store_options_set_endpoint(options, TEXT("127.0.0.1"), 0, &error));
  FAILS(INVALID, rdzv_store_options_set_timeout_ms(NULL, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_timeout_ms(options, 0, &error));
  FAILS(INVALID, rdzv_store_options_set_timeout_ms(options, -1, &error));
  FAILS(INVALID, rdzv_store_options_set_connect_timeout_ms(NULL, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_connect_timeout_ms(options, -1, &error));
  FAILS(INVALID, rdzv_store_options_set_connect_timeout_ms(options, INT64_MIN, &error));
  FAILS(INVALID, rdzv_store_options_set_answer_timeout_ms(NULL, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_answer_timeout_ms(options, 0, &error));
  FAILS(INVALID, rdzv_store_options_set_answer_timeout_ms(options, -2, &error));
  FAILS(INVALID, rdzv_store_options_set_keep_alive(NULL, 1, 1, 1, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_keep_alive(options, 0, 1, 1, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_keep_alive(options, 1, 32767001, 1, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_keep_alive(options, 1, 1, 128, 1, &error));
  FAILS(INVALID, rdzv_store_options_set_keep_alive(options, 1, 1, 1, -1, &error));
  // There is still no endpoint.
  rdzv_store *store = NULL;
  FAILS_LIKE(((struct failure){INVALID, .message_part = "endpoint"}),
             rdzv_store_connect(NULL, options, &store, &error));
  FAILS(INVALID, rdzv_store_connect(NULL, NULL, &store, &error));
  FAILS(INVALID, rdzv_store_connect(NULL, options, NULL, &error));
  CHECK(store == NULL);
  rdzv_store_options_free(options);
}

static void longest_timeouts_are_taken(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store_options *options = options_for(rdzv_server_port(server));
  OK(rdzv_store_options_set_keep_alive(options, 32767000, 32767000, 127, INT32_MAX, &error));
  OK(rdzv_store_options_set_timeout_ms(options, INT64_MAX, &error));
  OK(rdzv_store_options_set_answer_timeout_ms(options, INT64_MAX, &error));
  OK(rdzv_store_options_set_connect_timeout_ms(options, INT64_MAX, &error));
  rdzv_store *store = NULL;
  OK(rdzv_store_connect(NULL, options, &store, &error));
  OK(rdzv_store_ping(store, -1, &error));
  OK(rdzv_store_ping(store, 0, &error));
  rdzv_store *twin = NULL;
  FAILS(INVALID, rdzv_store_clone(NULL, &twin, &error));
  FAILS(INVALID, rdzv_store_clone(store, NULL, &error));
  CHECK(twin == NULL);
  rdzv_store_free(store);
  rdzv_store_options_free(options);
  rdzv_server_free(server);
}

void every_other_function_refuses_bad_arguments(void) {
  FAILS(INVALID, rdzv_context_new(NULL, &error));
  CHECK_NUMBER(rdzv_context_new(NULL, NULL), INVALID);
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
  rdzv_server_options_free(NULL);
  rdzv_server_free(NULL);
  rdzv_store_options_free(NULL);
  rdzv_store_free(NULL);
  rdzv_store_cancel(NULL);
  rdzv_cancel_token_cancel(NULL);
  rdzv_cancel_token_free(NULL);
  CHECK_NUMBER(rdzv_error_status(NULL), RDZV_OK);
  CHECK_TEXT(rdzv_error_message(NULL), "");
  CHECK_TEXT(rdzv_error_operation(NULL), "");
  CHECK_TEXT(rdzv_error_peer(NULL), "");
  CHECK_TEXT(rdzv_error_phase(NULL), "");
  CHECK_NUMBER(rdzv_error_elapsed_ms(NULL), 0);
  CHECK_NUMBER(rdzv_error_os_error(NULL), 0);
  CHECK_NUMBER(rdzv_error_key_count(NULL), 0);
  size_t len = 77;
  CHECK(rdzv_error_key(NULL, 0, &len) == NULL);
  CHECK(rdzv_buffer_data(NULL) == NULL);
  CHECK_NUMBER(rdzv_buffer_len(NULL), 0);
  CHECK_NUMBER(rdzv_list_count(NULL), 0);
  CHECK(rdzv_list_item(NULL, 0, &len) == NULL);
  CHECK_NUMBER(len, 77);
  CHECK_NUMBER(rdzv_server_port(NULL), 0);
  CHECK_TEXT(rdzv_server_address(NULL), "");
  CHECK_TEXT(rdzv_store_peer(NULL), "");
}
