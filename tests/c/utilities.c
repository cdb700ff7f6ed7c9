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
  // All are connected before the time of the first begins.
  for (int rank = 0; rank < WORLD; ++rank) {
    if (rank == missing) continue;
    rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
    members[rank] = (struct member){.rank = rank, .store = store, .timeout_ms = 1000, .name = name};
  }
  for (int rank = 0; rank < WORLD; ++rank) {
    if (rank == missing) continue;
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
             "timeout=1.0)",
             rank, names);
    const rdzv_error *error = members[rank].error;
    const struct failure timed_out = {.status = RDZV_TIMED_OUT};
    check_failure(__FILE__, __LINE__, "barrier", members[rank].outcome, error, timed_out);
    CHECK_TEXT(rdzv_error_message(error), wanted);
    CHECK_TEXT(info_of(error).operation, "barrier");
    CHECK_TEXT(info_of(error).phase, "waiting");
    CHECK_TEXT(info_of(error).peer, rdzv_server_address(server));
    CHECK_NUMBER(info_of(error).elapsed_ms, 1000);
    CHECK_NUMBER((long long)info_of(error).rank_count, !points_to_zero);
    if (!points_to_zero) CHECK_NUMBER(info_of(error).ranks[0], missing);
    const bool is_named = !points_to_zero && name != NULL;
    CHECK_NUMBER((long long)info_of(error).node_count, is_named);
    if (is_named) CHECK_NODE(error, 0, names);
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
  OK(rdzv_store_set(store, TEXT("kept0"), TEXT("v"), -1, &error));
  OK(rdzv_store_get_all(store, 0, TEXT("kept"), 1, -1, values, &error));
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
  rdzv_store_info info = {.struct_size = sizeof info};
  OK(rdzv_store_info_build(member->store, 1, TEXT("not published"), 0, PATIENCE_MS, &info, &error));
  CHECK_TEXT(info.master_addr, "127.0.0.1");
  CHECK_NUMBER(info.listen_fd, 0);
  // Where there is a server soon.
  rdzv_store *store = connect_store(NULL, info.master_port);
  OK(rdzv_store_set(store, TEXT("k"), TEXT("v"), -1, &error));
  rdzv_store_free(store);
  return NULL;
}

void address_of_the_store_is_published(void) {
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(NULL, PATIENCE_MS, &store, &error));
  struct member other = {.store = store};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, read_address, &other) == 0);
  rdzv_store_info info = {.struct_size = sizeof info};
  OK(rdzv_store_info_build(store, 0, TEXT("127.0.0.1"), 0, PATIENCE_MS, &info, &error));
  CHECK(info.struct_size == sizeof info && info.master_port != 0 && info.listen_fd > 0);
  int listens = 0;
  socklen_t size = sizeof listens;
  CHECK(getsockopt(info.listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1);
  // The other rank connects before the server takes the socket over.
  const rdzv_server_options options = {.struct_size = sizeof options, .listen_fd = info.listen_fd};
  rdzv_server *server = NULL;
  OK(rdzv_server_new(NULL, &options, &server, &error));
  CHECK(close(info.listen_fd) == 0);
  CHECK_NUMBER(rdzv_server_port(server), info.master_port);
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_server_free(server);

  // The name of this host; and a server that runs already.
  OK(rdzv_store_info_build(store, 0, NULL, 0, 0, PATIENCE_MS, &info, &error));
  CHECK(info.master_addr[0] != '\0' && close(info.listen_fd) == 0);
  OK(rdzv_store_info_build(store, 0, TEXT("h"), 29500, PATIENCE_MS, &info, &error));
  CHECK(info.master_port == 29500 && info.listen_fd == 0);

  // Failures write nothing.
  OK(rdzv_store_set(store, TEXT("MASTER_PORT"), TEXT("http"), -1, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_RENDEZVOUS_STATE,
                               .message_part = "MASTER_PORT: invalid literal for int() with base 10: 'http'"}),
             rdzv_store_info_build(store, 1, NULL, 0, 0, PATIENCE_MS, &info, &error));
  char name[256];
  memset(name, 'h', sizeof name);
  FAILS_LIKE(((struct failure){.status = RDZV_RENDEZVOUS_STATE, .message_part = "MASTER_ADDR has 256 bytes"}),
             rdzv_store_info_build(store, 0, (const uint8_t *)name, sizeof name, 1, PATIENCE_MS, &info, &error));
  int32_t deleted = 0;
  OK(rdzv_store_delete_key(store, TEXT("MASTER_ADDR"), -1, &deleted, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_TIMED_OUT, .operation = "get", .message_part = "MASTER_ADDR"}),
             rdzv_store_info_build(store, 1, NULL, 0, 0, 20, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(NULL, 0, NULL, 0, 0, -1, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, -1, NULL, 0, 0, -1, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, 0, TEXT("\xff"), 0, -1, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, 0, NULL, 0, 0, -2, &info, &error));
  FAILS(INVALID, rdzv_store_info_build(store, 0, NULL, 0, 0, -1, NULL, &error));
  CHECK(info.master_port == 29500 && info.listen_fd == 0);
  rdzv_store_free(store);
}
