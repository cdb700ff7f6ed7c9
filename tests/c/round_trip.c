// The ABI at work: versions, every operation, servers and their sockets.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

void versions_and_names(void) {
  CHECK_NUMBER(rdzv_abi_version(), RDZV_ABI_VERSION);
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", RDZV_VERSION_MAJOR, RDZV_VERSION_MINOR, RDZV_VERSION_PATCH);
  CHECK_TEXT(version, rdzv_version());
  CHECK_TEXT(RDZV_VERSION_STRING, rdzv_version());
  CHECK_TEXT(rdzv_status_name(RDZV_OK), "ok");
  CHECK_TEXT(rdzv_status_name(RDZV_TIMED_OUT), "timed out");
  const char *unknown = rdzv_status_name(-1);
  CHECK_TEXT(unknown, "unknown status");
  for (rdzv_status status = RDZV_OK; status <= RDZV_EXHAUSTED; ++status) {
    CHECK(strcmp(rdzv_status_name(status), unknown) != 0);
  }
}

static void values(rdzv_store *store, rdzv_buffer *buffer) {
  OK(rdzv_store_set(store, TEXT("key"), TEXT("value"), -1, &error));
  OK(rdzv_store_get(store, TEXT("key"), -1, buffer, &error));
  CHECK_BUFFER(buffer, "value");
  OK(store_append(store, TEXT("key"), TEXT(" and more"), -1, &error));
  OK(rdzv_store_get(store, TEXT("key"), 0, buffer, &error));
  CHECK_BUFFER(buffer, "value and more");
  // An empty value is a value, and NULL is fine where nothing is.
  OK(rdzv_store_set(store, TEXT("empty"), NULL, 0, PATIENCE_MS, &error));
  OK(rdzv_store_get(store, TEXT("empty"), PATIENCE_MS, buffer, &error));
  CHECK_NUMBER(rdzv_buffer_len(buffer), 0);
  // So is an empty key, and any byte in it.
  OK(rdzv_store_set(store, NULL, 0, (const uint8_t *)"\0\xff", 2, -1, &error));
  OK(rdzv_store_get(store, NULL, 0, -1, buffer, &error));
  CHECK(rdzv_buffer_len(buffer) == 2 && memcmp(rdzv_buffer_data(buffer), "\0\xff", 2) == 0);

  OK(rdzv_store_compare_set(store, TEXT("leader"), NULL, 0, TEXT("ada"), -1, buffer, &error));
  CHECK_BUFFER(buffer, "ada");
  OK(rdzv_store_compare_set(store, TEXT("leader"), TEXT("eve"), TEXT("bob"), -1, buffer, &error));
  CHECK_BUFFER(buffer, "ada");
  OK(rdzv_store_compare_set(store, TEXT("leader"), TEXT("ada"), TEXT("bob"), -1, buffer, &error));
  CHECK_BUFFER(buffer, "bob");
}

static void numbers(rdzv_store *store) {
  int64_t number = 0;
  OK(rdzv_store_add(store, TEXT("counter"), 5, -1, &number, &error));
  CHECK_NUMBER(number, 5);
  OK(rdzv_store_add(store, TEXT("counter"), -7, -1, &number, &error));
  CHECK_NUMBER(number, -2);
  OK(rdzv_store_check_in(store, -1, &number, &error));
  CHECK_NUMBER(number, 1);
  OK(rdzv_store_wait_for_workers(store, 1, -1, &error));
  OK(store_ping(store, -1, &error));
}

static void many_keys(rdzv_store *store, rdzv_op *op) {
  const rdzv_bytes keys[] = {BYTES("x"), BYTES("y"), {NULL, 0}};
  const rdzv_bytes contents[] = {BYTES("1"), {NULL, 0}, BYTES("3")};
  PERFORM(store, op, rdzv_op_multi_set(op, keys, contents, 3, &error));
  PERFORM(store, op, rdzv_op_multi_get(op, keys, 3, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 3);
  CHECK_RESULT_ITEM(result_of(op), 0, "1");
  CHECK_RESULT_ITEM(result_of(op), 1, "");
  CHECK_RESULT_ITEM(result_of(op), 2, "3");
  PERFORM(store, op, rdzv_op_multi_get(op, NULL, 0, &error));
  CHECK_NUMBER((long long)result_of(op).item_count, 0);

  OK(rdzv_store_wait(store, keys, 3, -1, &error));
  OK(rdzv_store_wait(store, NULL, 0, -1, &error));
  int32_t flag = 77;
  OK(rdzv_store_check(store, keys, 3, -1, &flag, &error));
  CHECK_NUMBER(flag, 1);
  const rdzv_bytes with_missing[] = {BYTES("x"), BYTES("nowhere")};
  OK(rdzv_store_check(store, with_missing, 2, -1, &flag, &error));
  CHECK_NUMBER(flag, 0);

  PERFORM(store, op, rdzv_op_num_keys(op, &error));
  const int64_t count = result_of(op).count;
  PERFORM(store, op, rdzv_op_list_keys(op, &error));
  // The count is that of the server, and has the workers' counter too, which stands beside the keys.
  CHECK_NUMBER((int64_t)result_of(op).item_count, count - 1);
  OK(rdzv_store_delete_key(store, TEXT("x"), -1, &flag, &error));
  CHECK_NUMBER(flag, 1);
  OK(rdzv_store_delete_key(store, TEXT("x"), -1, &flag, &error));
  CHECK_NUMBER(flag, 0);
}

static void queues(rdzv_store *store, rdzv_op *op) {
  OK(store_queue_push(store, TEXT("jobs"), TEXT("first"), -1, &error));
  OK(store_queue_push(store, TEXT("jobs"), NULL, 0, -1, &error));
  PERFORM(store, op, rdzv_op_queue_len(op, TEXT("jobs"), &error));
  CHECK_NUMBER(result_of(op).count, 2);
  PERFORM(store, op, rdzv_op_queue_pop(op, TEXT("jobs"), &error));
  CHECK_VALUE(result_of(op), "first");
  OK(rdzv_store_perform(store, op, 0, &error));
  CHECK_VALUE(result_of(op), "");
  const struct failure empty = {RDZV_QUEUE_EMPTY, .operation = "queue_pop", .message_part = "jobs"};
  FAILS_LIKE(empty, rdzv_store_perform(store, op, 0, &error));
}

void every_operation_does_its_work(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_buffer *buffer = rdzv_buffer_new();
  rdzv_op *op = rdzv_op_new(NULL);
  CHECK(buffer != NULL && op != NULL);
  CHECK_NUMBER(rdzv_buffer_len(buffer), 0);
  CHECK_TEXT(rdzv_store_peer(store), rdzv_server_address(server));

  values(store, buffer);
  numbers(store);
  many_keys(store, op);
  queues(store, op);
  OK(rdzv_store_barrier(store, TEXT("alone"), 1, -1, &error));
  OK(rdzv_store_barrier_by_keys(store, TEXT("alone too"), 1, -1, &error));

  // A clone is as good, and outlives the handle that it came from.
  rdzv_store *twin = NULL;
  OK(rdzv_store_clone(store, &twin, &error));
  rdzv_store_free(store);
  OK(rdzv_store_get(twin, TEXT("key"), -1, buffer, &error));
  CHECK_BUFFER(buffer, "value and more");
  CHECK_TEXT(rdzv_store_peer(twin), rdzv_server_address(server));

  rdzv_store_free(twin);
  rdzv_buffer_free(buffer);
  rdzv_op_free(op);
  rdzv_server_free(server);
}

void servers_start_and_stop(void) {
  rdzv_server_options options = {
      .struct_size = sizeof options,
      .family = RDZV_FAMILY_DUAL_STACK,
      .host = "127.0.0.1",
      .connections_max = 10,
      .stored_bytes_max = 1000,
      .handshake_timeout_ms = PATIENCE_MS,
      .frame_timeout_ms = PATIENCE_MS,
      .keep_alive = {.idle_ms = 2000, .interval_ms = 1000, .probes = 3, .unacknowledged_max_ms = 5000},
  };
  rdzv_server *server = NULL;
  OK(rdzv_server_new(NULL, &options, &server, &error));
  const uint16_t port = rdzv_server_port(server);
  CHECK(port != 0);
  CHECK_TEXT(rdzv_server_address(server), peer_text(port));

  rdzv_store *store = connect_store(NULL, port);
  OK(rdzv_store_set(store, TEXT("key"), TEXT("value"), -1, &error));
  rdzv_server_stats stats = {.struct_size = sizeof stats};
  OK(rdzv_server_get_stats(server, &stats, &error));
  CHECK_NUMBER(stats.struct_size, sizeof stats);
  CHECK(stats.connections == 1 && stats.accepted == 1 && stats.expelled == 0 && stats.waiting == 0);
  CHECK(stats.keys == 1 && stats.requests >= 1 && stats.buffered_bytes == 0);
  // A key costs something beside its bytes.
  CHECK_NUMBER(stats.stored_bytes, 128 + strlen("/key") + strlen("value"));
  // A value over the server's limit ends the connection, and that is counted.
  char large[2000] = {0};
  FAILS(RDZV_SERVER_GONE, rdzv_store_set(store, TEXT("large"), (uint8_t *)large, sizeof large, -1, &error));
  OK(rdzv_server_get_stats(server, &stats, &error));
  CHECK_NUMBER(stats.expelled, 1);
  CHECK_NUMBER(stats.keys, 1);
  rdzv_store_free(store);

  // The port is taken as long as the server runs, and free when it has stopped.
  rdzv_server *second = (rdzv_server *)&options;
  options.port = port;
  const struct failure taken = {RDZV_ADDRESS_IN_USE, "listen", peer_text(port), "", NULL};
  FAILS_LIKE(taken, rdzv_server_new(NULL, &options, &second, &error));
  CHECK(second == (rdzv_server *)&options);
  OK(rdzv_server_stop(server, &error));
  OK(rdzv_server_stop(server, &error));
  FAILS(RDZV_CLOSED, rdzv_server_get_stats(server, &stats, &error));
  CHECK_NUMBER(rdzv_server_port(server), port);
  OK(rdzv_server_new(NULL, &options, &second, &error));
  rdzv_server_free(second);
  rdzv_server_free(server);

  // 192.0.2.0/24 is for books, no host has it.
  options.host = "192.0.2.1";
  options.port = 0;
  const struct failure elsewhere = {RDZV_UNREACHABLE, "listen", "192.0.2.1:0", "", NULL};
  FAILS_LIKE(elsewhere, rdzv_server_new(NULL, &options, &second, &error));
  options.host = "nowhere.invalid";
  const struct failure nameless = {RDZV_UNRESOLVED, "listen", "nowhere.invalid:0", "", NULL};
  FAILS_LIKE(nameless, rdzv_server_new(NULL, &options, &second, &error));
}

// A TCP socket that is bound to a free port.
static int bound_socket(uint16_t *port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0);
  CHECK(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

static void adopt(int fd, uint16_t port) {
  const rdzv_server_options options = {.struct_size = sizeof options, .listen_fd = fd};
  rdzv_server *server = NULL;
  OK(rdzv_server_new(NULL, &options, &server, &error));
  CHECK_NUMBER(rdzv_server_port(server), port);
  rdzv_store *store = connect_store(NULL, port);
  OK(store_ping(store, -1, &error));
  rdzv_store_free(store);
  rdzv_server_free(server);
}

void sockets_are_adopted(void) {
  uint16_t port = 0;
  int fd = bound_socket(&port);
  adopt(fd, port);
  // The descriptor stays the caller's: it serves a second time, and closing it is no error.
  CHECK(close(fd) == 0);

  fd = bound_socket(&port);
  CHECK(listen(fd, 8) == 0);
  adopt(fd, port);
  adopt(fd, port);
  CHECK(close(fd) == 0);

  // What is no bound TCP socket is refused, and so is a socket beside an address.
  rdzv_server_options options = {.struct_size = sizeof options, .listen_fd = fd};
  rdzv_server *server = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_server_new(NULL, &options, &server, &error));
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  options.listen_fd = pipes[0];
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_server_new(NULL, &options, &server, &error));
  CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
  options.listen_fd = socket(AF_INET, SOCK_DGRAM, 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_server_new(NULL, &options, &server, &error));
  CHECK(close(options.listen_fd) == 0);
  options.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_server_new(NULL, &options, &server, &error));
  CHECK(close(options.listen_fd) == 0);
  options.listen_fd = bound_socket(&options.port);
  const struct failure both = {RDZV_INVALID_ARGUMENT, .message_part = "listen_fd"};
  FAILS_LIKE(both, rdzv_server_new(NULL, &options, &server, &error));
  options.port = 0;
  options.host = "127.0.0.1";
  FAILS_LIKE(both, rdzv_server_new(NULL, &options, &server, &error));
  CHECK(close(options.listen_fd) == 0);
  CHECK(server == NULL);
}
