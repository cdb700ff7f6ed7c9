// Timeouts of a scope, exchanges, traced barriers, and where the ranks find their store.
#include "check.h"
#include "tests.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#define INVALID RDZV_INVALID_ARGUMENT

void default_timeout_is_set_and_restored(void) {
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(NULL, PATIENCE_MS, &store, &error));
  rdzv_buffer *value = rdzv_buffer_new();
  int64_t before = 77;
  CHECK_NUMBER(rdzv_store_timeout_ms(store), PATIENCE_MS);
  OK(rdzv_store_set_timeout_ms(store, 20, &before, &error));
  CHECK_NUMBER(before, PATIENCE_MS);
  FAILS(RDZV_TIMED_OUT, rdzv_store_get(store, TEXT("k"), -1, value, &error));
  OK(rdzv_store_set_timeout_ms(store, before, NULL, &error));
  CHECK_NUMBER(rdzv_store_timeout_ms(store), PATIENCE_MS);
  FAILS(INVALID, rdzv_store_set_timeout_ms(store, 0, &before, &error));
  FAILS(INVALID, rdzv_store_set_timeout_ms(store, -1, &before, &error));
  FAILS(INVALID, rdzv_store_set_timeout_ms(NULL, 1, &before, &error));
  CHECK_NUMBER(before, PATIENCE_MS);
  CHECK_NUMBER(rdzv_store_timeout_ms(NULL), 0);
  rdzv_buffer_free(value);
  rdzv_store_free(store);
}

enum { WORLD = 4 };

struct member {
  int64_t rank;
  rdzv_store *store;
  // Of a barrier.
  int64_t timeout_ms;
  rdzv_rank_name name;
  atomic_int is_over;
  rdzv_status outcome;
  rdzv_error *error;
};

static void *exchange(void *argument) {
  struct member *member = argument;
  char data[2] = {(char)('a' + member->rank), '\0'};
  rdzv_list *values = rdzv_list_new();
  OK(rdzv_store_synchronize(member->store, TEXT(data), member->rank, WORLD, TEXT("x"), PATIENCE_MS, values, &error));
  // A second time by hand; -1 is the handle's default.
  OK(rdzv_store_set(member->store, TEXT(data), NULL, 0, -1, &error));
  CHECK_NUMBER((long long)rdzv_list_count(values), WORLD);
  for (int rank = 0; rank < WORLD; ++rank) {
    const char wanted[2] = {(char)('a' + rank), '\0'};
    CHECK_ITEM(values, (size_t)rank, wanted);
  }
  char key[8];
  snprintf(key, sizeof key, "y%d", (int)member->rank);
  OK(rdzv_store_set(member->store, TEXT(key), TEXT(key), -1, &error));
  OK(rdzv_store_get_all(member->store, member->rank, TEXT("y"), WORLD, -1, values, &error));
  CHECK_ITEM(values, 2, "y2");
  OK(rdzv_store_elastic_barrier(member->store, TEXT("all"), WORLD, member->rank, PATIENCE_MS, -1, NULL, NULL, &error));
  OK(rdzv_store_elastic_barrier(member->store, TEXT("untraced"), WORLD, -1, PATIENCE_MS, -1, NULL, NULL, &error));
  rdzv_list_free(values);
  return NULL;
}

void ranks_exchange_data(void) {
  rdzv_server *server = start_server(NULL);
  struct member members[WORLD];
  pthread_t threads[WORLD];
  for (int rank = 0; rank < WORLD; ++rank) {
    members[rank] = (struct member){.rank = rank, .store = connect_store(NULL, rdzv_server_port(server))};
    CHECK(pthread_create(&threads[rank], NULL, exchange, &members[rank]) == 0);
  }
  for (int rank = 0; rank < WORLD; ++rank) CHECK(pthread_join(threads[rank], NULL) == 0);
  // The keys are those of PyTorch's agent.
  int32_t ready = 0;
  const rdzv_bytes keys[] = {BYTES("x0"), BYTES("x/finished/num_members"), BYTES("x/finished/last_member"),
                             BYTES("all/num_members"), BYTES("all/last_member")};
  OK(rdzv_store_check(members[0].store, keys, 5, -1, &ready, &error));
  CHECK_NUMBER(ready, 1);
  for (int rank = 0; rank < WORLD; ++rank) rdzv_store_free(members[rank].store);
  rdzv_server_free(server);
}

// `user_data` is what every name begins with.
static void name_rank(void *user_data, int64_t rank, char *name, size_t name_size) {
  snprintf(name, name_size, "%s%d", (const char *)user_data, (int)rank);
}

static void *arrive(void *argument) {
  struct member *member = argument;
  static char host[] = "host";
  member->outcome = rdzv_store_elastic_barrier(member->store, TEXT("tr"), WORLD, member->rank, member->timeout_ms,
                                               PATIENCE_MS, member->name, host, &member->error);
  member->is_over = 1;
  return NULL;
}

// All but one come.
static void all_but(int64_t missing, rdzv_rank_name name) {
  rdzv_server *server = start_server(NULL);
  struct member members[WORLD];
  pthread_t threads[WORLD];
  for (int rank = 0; rank < WORLD; ++rank) {
    if (rank == missing) continue;
    rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
    members[rank] = (struct member){.rank = rank, .store = store, .timeout_ms = 300, .name = name};
    CHECK(pthread_create(&threads[rank], NULL, arrive, &members[rank]) == 0);
  }
  for (int rank = 0; rank < WORLD; ++rank) {
    if (rank == missing) continue;
    CHECK(pthread_join(threads[rank], NULL) == 0);
    const bool points_to_zero = rank != 0 && missing != 0;
    char wanted[256], names[64];
    snprintf(names, sizeof names, points_to_zero ? "[<check rank 0 (%s0) for missing rank info>]" : "%s%d",
             name == NULL ? "" : "host", (int)missing);
    snprintf(wanted, sizeof wanted,
             "Timed out waiting on barrier on rank %d, for key prefix: tr (world_size=4, missing_ranks=[%s], "
             "timeout=0.3)",
             rank, names);
    const rdzv_error *error = members[rank].error;
    const struct failure timed_out = {.status = RDZV_TIMED_OUT};
    check_failure(__FILE__, __LINE__, "barrier", members[rank].outcome, error, timed_out);
    CHECK_TEXT(rdzv_error_message(error), wanted);
    CHECK_TEXT(rdzv_error_operation(error), "barrier");
    CHECK_TEXT(rdzv_error_phase(error), "waiting");
    CHECK_TEXT(rdzv_error_peer(error), rdzv_server_address(server));
    CHECK_NUMBER(rdzv_error_elapsed_ms(error), 300);
    CHECK_NUMBER((long long)rdzv_error_rank_count(error), !points_to_zero);
    CHECK_NUMBER(rdzv_error_rank(error, 0), points_to_zero ? -1 : missing);
    CHECK_NUMBER(rdzv_error_rank(error, 1), -1);
    const bool is_named = !points_to_zero && name != NULL;
    CHECK_NUMBER((long long)rdzv_error_node_count(error), is_named);
    size_t len = 0;
    const uint8_t *node = rdzv_error_node(error, 0, &len);
    if (is_named) CHECK_LENT(node, len, names);
    CHECK((node == NULL) == !is_named && rdzv_error_node(error, 1, NULL) == NULL);
    rdzv_error_free(members[rank].error);
    rdzv_store_free(members[rank].store);
  }
  rdzv_server_free(server);
}

void missing_ranks_are_named(void) {
  all_but(2, name_rank);
  all_but(3, NULL);
  // The others name rank 0 themselves.
  all_but(0, name_rank);
  CHECK_NUMBER((long long)rdzv_error_rank_count(NULL), 0);
  CHECK_NUMBER(rdzv_error_rank(NULL, 0), -1);
  CHECK_NUMBER((long long)rdzv_error_node_count(NULL), 0);
  CHECK(rdzv_error_node(NULL, 0, NULL) == NULL);
  CHECK_TEXT(rdzv_error_cause(NULL), "");
}

void meetings_are_cancelled_and_checked(void) {
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(NULL, PATIENCE_MS, &store, &error));
  struct member member = {.rank = 0, .store = store, .timeout_ms = 600000};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, arrive, &member) == 0);
  while (!member.is_over) {
    rdzv_store_cancel(store);
    sched_yield();
  }
  CHECK(pthread_join(thread, NULL) == 0);
  check_failure(__FILE__, __LINE__, "barrier", member.outcome, member.error,
                (struct failure){.status = RDZV_CANCELLED});
  rdzv_error_free(member.error);

  rdzv_list *values = rdzv_list_new();
  const rdzv_bytes key = BYTES("kept");
  OK(rdzv_store_set(store, TEXT("kept"), TEXT("v"), -1, &error));
  OK(rdzv_store_multi_get(store, &key, 1, -1, values, &error));
#define SAYS(message) ((struct failure){.status = INVALID, .message_part = (message)})
  FAILS_LIKE(SAYS("The world size (0) must be greater than zero."),
             rdzv_store_get_all(store, 0, TEXT("p"), 0, -1, values, &error));
  FAILS_LIKE(SAYS("The rank (2) must be at least 0 and less than the world size (2)."),
             rdzv_store_synchronize(store, TEXT("d"), 2, 2, TEXT("p"), -1, values, &error));
  FAILS_LIKE(SAYS("The rank (-2) must be"),
             rdzv_store_elastic_barrier(store, TEXT("p"), 2, -2, -1, -1, NULL, NULL, &error));
  FAILS_LIKE(SAYS("Tracing requires rank information"),
             rdzv_store_elastic_barrier(store, TEXT("p"), 2, -1, -1, -1, name_rank, NULL, &error));
  FAILS(INVALID, rdzv_store_elastic_barrier(store, TEXT("p"), 2, 0, -2, -1, NULL, NULL, &error));
  FAILS(INVALID, rdzv_store_elastic_barrier(store, TEXT("p"), 2, 0, -1, -2, NULL, NULL, &error));
  FAILS(INVALID, rdzv_store_elastic_barrier(store, NULL, 1, 2, 0, -1, -1, NULL, NULL, &error));
  FAILS(INVALID, rdzv_store_elastic_barrier(NULL, TEXT("p"), 2, 0, -1, -1, NULL, NULL, &error));
  FAILS(INVALID, rdzv_store_get_all(NULL, 0, TEXT("p"), 1, -1, values, &error));
  FAILS(INVALID, rdzv_store_get_all(store, 0, TEXT("p"), 1, -1, NULL, &error));
  FAILS(INVALID, rdzv_store_get_all(store, 0, TEXT("\xff"), 1, -1, values, &error));
  FAILS(INVALID, rdzv_store_get_all(store, 0, TEXT("p"), 1, -2, values, &error));
  FAILS(INVALID, rdzv_store_synchronize(NULL, TEXT("d"), 0, 1, TEXT("p"), -1, values, &error));
  FAILS(INVALID, rdzv_store_synchronize(store, NULL, 1, 0, 1, TEXT("p"), -1, values, &error));
  FAILS(INVALID, rdzv_store_synchronize(store, TEXT("d"), 0, 1, TEXT("p"), -1, NULL, &error));
  // Some data is missing; and a barrier that looks once.
  FAILS(RDZV_TIMED_OUT, rdzv_store_get_all(store, 1, TEXT("p"), 2, 20, values, &error));
  FAILS(RDZV_TIMED_OUT, rdzv_store_elastic_barrier(store, TEXT("q"), 2, -1, 0, 0, NULL, NULL, &error));
  CHECK_NUMBER((long long)rdzv_list_count(values), 1);
  CHECK_ITEM(values, 0, "v");
  rdzv_list_free(values);
  rdzv_store_free(store);
}

static void *read_address(void *argument) {
  struct member *member = argument;
  rdzv_store_info *info = NULL;
  OK(rdzv_store_info_build(member->store, 1, TEXT("not published"), 0, PATIENCE_MS, &info, &error));
  size_t len = 0;
  CHECK_LENT(rdzv_store_info_master_addr(info, &len), len, "127.0.0.1");
  CHECK_NUMBER(rdzv_store_info_has_socket(info), 0);
  int32_t fd = 77;
  FAILS(INVALID, rdzv_store_info_take_socket(info, &fd, &error));
  CHECK_NUMBER(fd, 77);
  // Where there is a server soon.
  rdzv_store *store = connect_store(NULL, rdzv_store_info_master_port(info));
  OK(rdzv_store_set(store, TEXT("k"), TEXT("v"), -1, &error));
  rdzv_store_free(store);
  rdzv_store_info_free(info);
  return NULL;
}

void address_of_the_store_is_published(void) {
  rdzv_store_info *info = NULL;
  size_t len = 0;
  OK(rdzv_store_info_new(TEXT("node-0"), 29500, &info, &error));
  CHECK_LENT(rdzv_store_info_master_addr(info, &len), len, "node-0");
  CHECK_NUMBER(rdzv_store_info_master_port(info), 29500);
  rdzv_server *server = NULL;
  FAILS(INVALID, rdzv_store_info_serve(info, NULL, NULL, &server, &error));
  rdzv_store_info_free(info);
  info = NULL;

  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(NULL, PATIENCE_MS, &store, &error));
  struct member other = {.store = store};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, read_address, &other) == 0);
  OK(rdzv_store_info_build(store, 0, TEXT("127.0.0.1"), 0, PATIENCE_MS, &info, &error));
  const uint16_t port = rdzv_store_info_master_port(info);
  CHECK(port != 0 && rdzv_store_info_has_socket(info) == 1);
  FAILS(INVALID, rdzv_store_info_serve(info, NULL, NULL, NULL, &error));
  OK(rdzv_store_info_serve(info, NULL, NULL, &server, &error));
  CHECK_NUMBER(rdzv_server_port(server), port);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_NUMBER(rdzv_store_info_has_socket(info), 0);
  rdzv_server *second = NULL;
  FAILS(INVALID, rdzv_store_info_serve(info, NULL, NULL, &second, &error));
  rdzv_store_info_free(info);
  rdzv_server_free(server);

  // The socket in other hands: it listens, and is ours.
  OK(rdzv_store_info_build(store, 0, NULL, 0, 0, PATIENCE_MS, &info, &error));
  CHECK(rdzv_store_info_master_addr(info, &len) != NULL && len > 0);
  int32_t fd = -1;
  FAILS(INVALID, rdzv_store_info_take_socket(info, NULL, &error));
  OK(rdzv_store_info_take_socket(info, &fd, &error));
  int listens = 0;
  socklen_t size = sizeof listens;
  CHECK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1);
  rdzv_store_info_free(info);
  CHECK(close(fd) == 0);

  // A server that runs already; and a port that nobody takes over.
  OK(rdzv_store_info_build(store, 0, TEXT("h"), 29500, PATIENCE_MS, &info, &error));
  CHECK(rdzv_store_info_master_port(info) == 29500 && rdzv_store_info_has_socket(info) == 0);
  rdzv_store_info_free(info);
  OK(rdzv_store_info_build(store, 0, TEXT("h"), 0, PATIENCE_MS, &info, &error));
  rdzv_store_info_free(info);
  info = NULL;
  OK(rdzv_store_set(store, TEXT("MASTER_PORT"), TEXT("http"), -1, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_RENDEZVOUS_STATE,
                               .message_part = "MASTER_PORT: invalid literal for int() with base 10: 'http'"}),
             rdzv_store_info_build(store, 1, NULL, 0, 0, PATIENCE_MS, &info, &error));
  int32_t deleted = 0;
  OK(rdzv_store_delete_key(store, TEXT("MASTER_ADDR"), -1, &deleted, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_TIMED_OUT, .operation = "get", .message_part = "MASTER_ADDR"}),
             rdzv_store_info_build(store, 1, NULL, 0, 0, 20, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(NULL, 0, NULL, 0, 0, -1, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, -1, NULL, 0, 0, -1, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, 0, TEXT("\xff"), 0, -1, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, 0, NULL, 0, 0, -2, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, 0, NULL, 0, 0, -1, NULL, &error));
  FAILS(INVALID, rdzv_store_info_new(NULL, 1, 1, &info, &error));
  FAILS(INVALID, rdzv_store_info_new(TEXT("h"), 1, NULL, &error));
  FAILS(INVALID, rdzv_store_info_take_socket(NULL, &fd, &error));
  FAILS(INVALID, rdzv_store_info_serve(NULL, NULL, NULL, &server, &error));
  CHECK(info == NULL && rdzv_store_info_master_addr(NULL, NULL) == NULL);
  CHECK_NUMBER(rdzv_store_info_master_port(NULL), 0);
  CHECK_NUMBER(rdzv_store_info_has_socket(NULL), 0);
  rdzv_store_info_free(NULL);
  rdzv_store_free(store);
}
