// What the tests in C share: checks that end the program with a word about what is wrong, and the things that most
// tests begin with.
#ifndef CHECK_H
#define CHECK_H

#include <rendezvous.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// When a test gives up. Nothing is measured by it.
#define PATIENCE_MS 20000

// Where the word about what is wrong goes; NULL is stderr.
extern FILE *words_go_to;

_Noreturn void fail_at(const char *file, int line, const char *format, ...);
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition) ((condition) ? (void)0 : FAIL("not so: %s", #condition))
#define CHECK_NUMBER(actual, expected) check_number(__FILE__, __LINE__, #actual, (actual), (expected))
#define CHECK_TEXT(actual, expected) check_text(__FILE__, __LINE__, #actual, (actual), (expected))

void check_number(const char *file, int line, const char *what, long long actual, long long expected);
void check_text(const char *file, int line, const char *what, const char *actual, const char *expected);

// Text as the two arguments that the library wants.
#define TEXT(text) (const uint8_t *)(text), strlen(text)
#define BYTES(text) ((rdzv_bytes){(const uint8_t *)(text), strlen(text)})

// A call that must succeed. It names its last argument `&error`.
#define OK(call)                                                  \
  do {                                                            \
    rdzv_error *error = NULL;                                     \
    const rdzv_status outcome = (call);                           \
    check_success(__FILE__, __LINE__, #call, outcome, error);     \
  } while (false)

// What a failure must tell. A member that is NULL is not looked at; an empty one must be empty.
struct failure {
  rdzv_status status;
  const char *operation;
  const char *peer;
  const char *phase;
  const char *message_part;
};

// A call that must fail with this status. It names its last argument `&error`.
#define FAILS(expected, call) FAILS_LIKE(((struct failure){.status = (expected)}), call)
#define FAILS_LIKE(wanted, call)                                       \
  do {                                                                 \
    rdzv_error *error = NULL;                                          \
    const rdzv_status outcome = (call);                                \
    check_failure(__FILE__, __LINE__, #call, outcome, error, wanted);  \
    rdzv_error_free(error);                                            \
  } while (false)

void check_success(const char *file, int line, const char *call, rdzv_status outcome, rdzv_error *error);
void check_failure(const char *file, int line, const char *call, rdzv_status outcome, const rdzv_error *error,
                   struct failure wanted);

void check_bytes(const char *file, int line, const uint8_t *data, size_t len, const char *expected);
#define CHECK_BUFFER(buffer, expected) \
  check_bytes(__FILE__, __LINE__, rdzv_buffer_data(buffer), rdzv_buffer_len(buffer), (expected))
#define CHECK_ITEM(list, index, expected)                                   \
  do {                                                                      \
    size_t item_len = 0;                                                    \
    const uint8_t *item = rdzv_list_item((list), (index), &item_len);       \
    check_bytes(__FILE__, __LINE__, item, item_len, (expected));            \
  } while (false)
// Bytes that a call lends, whose length it writes to `len`.
#define CHECK_LENT(call, len, expected)                              \
  do {                                                               \
    const uint8_t *lent_bytes = (call);                              \
    check_bytes(__FILE__, __LINE__, lent_bytes, (len), (expected));  \
  } while (false)

#define CHECK_BYTES(bytes, expected) check_bytes(__FILE__, __LINE__, (bytes).data, (bytes).len, (expected))

// What a request to a handler says.
static inline rdzv_rpc_request_info request_info(const rdzv_rpc_request *request) {
  rdzv_rpc_request_info info = {.struct_size = sizeof info};
  OK(rdzv_rpc_request_get_info(request, &info, &error));
  return info;
}

// What a worker says of itself.
static inline rdzv_rpc_info worker_info(const rdzv_rpc *rpc) {
  rdzv_rpc_info info = {.struct_size = sizeof info};
  OK(rdzv_rpc_get_info(rpc, &info, &error));
  return info;
}

// Options of an RPC worker over a store, and otherwise as given; NULL: the defaults.
static inline rdzv_rpc_options options_over(const rdzv_store *store, const rdzv_rpc_options *options) {
  rdzv_rpc_options over = {.struct_size = sizeof over};
  if (options != NULL) over = *options;
  over.store = store;
  return over;
}
#define OVER(store, options) ((rdzv_rpc_options[1]){options_over((store), (options))})

// All that an error tells.
rdzv_error_info info_of(const rdzv_error *error);
#define CHECK_KEY(error, index, expected) CHECK_NAMED(keys, key_count, error, index, expected)
#define CHECK_NODE(error, index, expected) CHECK_NAMED(nodes, node_count, error, index, expected)
#define CHECK_NAMED(items, count, error, index, expected)                                                       \
  do {                                                                                                          \
    const rdzv_error_info told = info_of(error);                                                                \
    CHECK((index) < told.count);                                                                                \
    check_bytes(__FILE__, __LINE__, told.items[(index)].data, told.items[(index)].len, (expected));             \
  } while (false)

// What a node learned when it joined.
rdzv_rendezvous_info joined_info(const rdzv_rendezvous *joined);

// A server on a free port of 127.0.0.1.
rdzv_server *start_server(const rdzv_context *context);

// Options for a server on 127.0.0.1 that can be connected to at once.
rdzv_store_options options_for(uint16_t port);
rdzv_store *connect_store(const rdzv_context *context, uint16_t port);

// `127.0.0.1:PORT`; good until the call after the next.
const char *peer_text(uint16_t port);

// Returns when this many waits and barriers are pending at the server.
void await_waiting(const rdzv_server *server, uint64_t count);

// Turns the loop, when its descriptor says so, until something has happened.
rdzv_event await_event(rdzv_loop *loop);

// Milliseconds of a clock that never goes back.
long long now_ms(void);

// The name of a file that is not there; good until the next call.
const char *new_path(void);

// Writes a file of tokens, whose name it puts into `path`.
void token_file(char path[512], const char *content);

// How many descriptors this process has.
int descriptor_count(void);

#endif  // CHECK_H
