// Rendezvous by URL: what is refused, who meets, and how it is ended.
#include "check.h"
#include "peers.h"
#include "tests.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define INVALID RDZV_INVALID_ARGUMENT

struct bad_url {
  const char *url;
  int64_t rank, world_size;
  // The environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; NULL is not set.
  const char *variables[4];
  rdzv_status status;
  const char *message;
};

static const char *const VARIABLES[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
#define NONE {NULL, NULL, NULL, NULL}
#define TCP "Error initializing torch.distributed using tcp:// rendezvous: "
#define FILE_URL "Error initializing torch.distributed using file:// rendezvous: "
#define ENV "Error initializing torch.distributed using env:// rendezvous: environment variable "

static const struct bad_url bad_urls[] = {
    {"tcp://h:1?rank=0", 1, 0, NONE, INVALID,
     "The url: tcp://h:1?rank=0 has node-specific arguments(rank, world_size) already."},
    {"tcp://h:1?world_size=2", -1, 2, NONE, INVALID, "has node-specific arguments(rank, world_size) already."},
    {"foo://h:1", -1, 0, NONE, RDZV_NOT_REGISTERED, "No rendezvous handler for foo://"},
    {"nothing", -1, 0, NONE, RDZV_NOT_REGISTERED, "No rendezvous handler for ://"},
    {"", -1, 0, NONE, RDZV_NOT_REGISTERED, "No rendezvous handler for ://"},
    {"tcp://[::1:1", -1, 0, NONE, INVALID, ""},
    {"tcp://h", 0, 1, NONE, INVALID, TCP "port number missing"},
    {"tcp://h:1", -1, 0, NONE, INVALID, TCP "rank parameter missing"},
    {"tcp://h:1?world_size=2", -1, 0, NONE, INVALID, TCP "rank parameter missing"},
    {"tcp://h:1?rank=0", -1, 0, NONE, INVALID, TCP "world size parameter missing"},
    {"tcp://h:1", 0, 0, NONE, INVALID, TCP "world size parameter missing"},
    {"tcp://:1", 0, 1, NONE, INVALID, "hostname cannot be None"},
    {"tcp://h:65536", 0, 1, NONE, INVALID, "Port out of range 0-65535"},
    {"tcp://h:x", 0, 1, NONE, INVALID, ""},
    {"tcp://h:1?rank=x&world_size=2", -1, 0, NONE, INVALID, "invalid literal for int() with base 10: 'x'"},
    {"tcp://h:1?rank&world_size=2", -1, 0, NONE, INVALID, "list index out of range"},
    {"tcp://h:1?world_size=0&rank=0", -1, 0, NONE, INVALID, "TCPStore world size cannot be 0"},
    {"env://", -1, 0, NONE, INVALID, ENV "RANK expected, but not set"},
    {"env://", -1, 0, {"", "2", "h", "1"}, INVALID, ENV "RANK expected, but not set"},
    {"env://", -1, 0, {"0", NULL, "h", "1"}, INVALID, ENV "WORLD_SIZE expected, but not set"},
    {"env://", 0, 2, NONE, INVALID, ENV "MASTER_ADDR expected, but not set"},
    {"env://", 0, 2, {NULL, NULL, "h", NULL}, INVALID, ENV "MASTER_PORT expected, but not set"},
    {"env://", 0, 2, {NULL, NULL, "h", "70000"}, INVALID, "port must have value from 0 to 65535 but was 70000."},
    {"env://", 0, 2, {NULL, NULL, "h", "http"}, INVALID, "invalid literal for int() with base 10: 'http'"},
    {"file://", 0, 2, NONE, INVALID, FILE_URL "path missing"},
    {"file:///x", -1, 0, NONE, INVALID, FILE_URL "rank parameter missing"},
    {"file:///x?rank=0", -1, 0, NONE, INVALID, FILE_URL "world size parameter missing"},
    {"file:///x?rank=0&world_size=two", -1, 0, NONE, INVALID, "invalid literal for int() with base 10: 'two'"},
    {"env://?rank=0=1&world_size=x", -1, 0, {NULL, NULL, "h", "1"}, INVALID, "base 10: 'x'"},
};

// Options that live until the call after the next.
static rdzv_rendezvous_url_options options_of(int64_t rank, int64_t world_size, const char *const variables[4]) {
  static rdzv_pair pairs[2][4];
  static int turn = 0;
  rdzv_pair *mine = pairs[turn++ % 2];
  rdzv_rendezvous_url_options options = {.struct_size = sizeof options,
                                         .has_rank = rank >= 0,
                                         .rank = rank,
                                         .world_size = world_size,
                                         .timeout_ms = PATIENCE_MS,
                                         .variables = mine};
  for (int i = 0; i < 4; ++i) {
    if (variables[i] != NULL) mine[options.variable_count++] = (rdzv_pair){VARIABLES[i], variables[i]};
  }
  return options;
}

void urls_that_make_no_sense(void) {
  for (size_t i = 0; i < sizeof bad_urls / sizeof *bad_urls; ++i) {
    const struct bad_url *bad = &bad_urls[i];
    const rdzv_rendezvous_url_options options = options_of(bad->rank, bad->world_size, bad->variables);
    rdzv_rendezvous_url *url = NULL;
    rdzv_rendezvous *info = NULL;
    rdzv_error *details = NULL;
    rdzv_status outcome = rdzv_rendezvous_url_new(NULL, TEXT(bad->url), &options, &url, &details);
    if (outcome == RDZV_OK) outcome = rdzv_rendezvous_url_next(url, &info, &details);
    const struct failure wanted = {.status = bad->status, .message_part = bad->message};
    check_failure(__FILE__, (int)i, bad->url, outcome, details, wanted);
    CHECK(info == NULL);
    rdzv_error_free(details);
    rdzv_rendezvous_url_free(url);
  }
}

void url_arguments_are_checked(void) {
  const rdzv_rendezvous_url_options good = {.struct_size = sizeof good};
  rdzv_rendezvous_url *url = NULL;
  rdzv_rendezvous *info = NULL;
  rdzv_pair variable = {"PATH", "0"};
  rdzv_rendezvous_url_options bad[6] = {good, good, good, good, good, good};
  bad[0].struct_size = 8;
  bad[1].timeout_ms = -1;
  bad[2].listen_host = "";
  bad[3].listen_host = "\xff";
  bad[4].variable_count = 1;
  bad[5].variable_count = 1;
  bad[5].variables = &variable;
  for (int i = 0; i < 6; ++i) FAILS(INVALID, rdzv_rendezvous_url_new(NULL, TEXT("tcp://h:1"), &bad[i], &url, &error));
  variable = (rdzv_pair){"RANK", NULL};
  FAILS(INVALID, rdzv_rendezvous_url_new(NULL, TEXT("tcp://h:1"), &bad[5], &url, &error));
  FAILS(INVALID, rdzv_rendezvous_url_new(NULL, NULL, 1, &good, &url, &error));
  FAILS(INVALID, rdzv_rendezvous_url_new(NULL, TEXT("tcp://h:1"), &good, NULL, &error));
  CHECK(url == NULL);
  FAILS(INVALID, rdzv_rendezvous_url_next(NULL, &info, &error));
  OK(rdzv_rendezvous_url_new(NULL, TEXT("tcp://127.0.0.1:0?rank=0&world_size=1"), NULL, &url, &error));
  FAILS(INVALID, rdzv_rendezvous_url_next(url, NULL, &error));
  // Nothing was tried: it may meet yet.
  OK(rdzv_rendezvous_url_next(url, &info, &error));
  rdzv_rendezvous_free(info);
  rdzv_rendezvous_url_free(url);
  rdzv_rendezvous_url_cancel(NULL);
  rdzv_rendezvous_url_free(NULL);
}

struct rank {
  rdzv_rendezvous_url *url;
  rdzv_rendezvous *info;
  atomic_int is_over;
  rdzv_status outcome;
  rdzv_error *error;
};

static void *meet(void *argument) {
  struct rank *rank = argument;
  rank->outcome = rdzv_rendezvous_url_next(rank->url, &rank->info, &rank->error);
  rank->is_over = 1;
  return NULL;
}

// Two ranks meet; `hosts` tells whether rank 0 hosts the store.
static void meet_by(const char *url, const char *again, const rdzv_rendezvous_url_options options[2], bool hosts) {
  struct rank ranks[2] = {{0}};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) {
    OK(rdzv_rendezvous_url_new(NULL, TEXT(url), &options[i], &ranks[i].url, &error));
    CHECK(pthread_create(&threads[i], NULL, meet, &ranks[i]) == 0);
  }
  rdzv_store *stores[2] = {NULL, NULL};
  for (int i = 0; i < 2; ++i) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    check_success(__FILE__, __LINE__, url, ranks[i].outcome, ranks[i].error);
    CHECK_NUMBER(joined_info(ranks[i].info).rank, i);
    CHECK_NUMBER(joined_info(ranks[i].info).world_size, 2);
    CHECK_NUMBER(joined_info(ranks[i].info).hosts_store, hosts && i == 0);
    CHECK_NUMBER(joined_info(ranks[i].info).master_port, 0);
    FAILS(INVALID, rdzv_store_new_rendezvous(ranks[i].info, NULL, &error));
    OK(rdzv_store_new_rendezvous(ranks[i].info, &stores[i], &error));
    rdzv_rendezvous *second = NULL;
    const struct failure wanted = {.status = RDZV_UNSUPPORTED, .message_part = again};
    FAILS_LIKE(wanted, rdzv_rendezvous_url_next(ranks[i].url, &second, &error));
    rdzv_rendezvous_url_free(ranks[i].url);
    rdzv_rendezvous_free(ranks[i].info);
  }
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_set(stores[1], TEXT("k"), TEXT("v"), -1, &error));
  OK(rdzv_store_get(stores[0], TEXT("k"), -1, value, &error));
  CHECK_BUFFER(value, "v");
  rdzv_buffer_free(value);
  rdzv_store_free(stores[1]);
  rdzv_store_free(stores[0]);
}

void ranks_meet_by_url(void) {
  const char *none[4] = NONE;
  char url[64], port_text[8];
  snprintf(url, sizeof url, "TCP://%s", peer_text(free_port()));
  rdzv_rendezvous_url_options by_tcp[] = {options_of(0, 2, none), options_of(1, 2, none)};
  meet_by(url, "Unable to perform re-rendezvous using tcp:// method", by_tcp, true);

  // Rank 0 listens on all interfaces, since it was told so.
  snprintf(port_text, sizeof port_text, "%u", (unsigned)free_port());
  const char *first[4] = {"0", "2", "127.0.0.1", port_text}, *second[4] = {"1", "2", "127.0.0.1", port_text};
  rdzv_rendezvous_url_options by_env[] = {options_of(-1, 0, first), options_of(-1, 0, second)};
  by_env[0].listen_host = "0.0.0.0";
  meet_by("env://", "Unable to perform re-rendezvous using env:// method", by_env, true);

  // Their agent hosts it.
  rdzv_server *agent = start_server(NULL);
  snprintf(port_text, sizeof port_text, "%u", (unsigned)rdzv_server_port(agent));
  rdzv_rendezvous_url_options by_agent[] = {options_of(-1, 0, first), options_of(-1, 0, second)};
  rdzv_pair of_agent[2][5];
  for (int i = 0; i < 2; ++i) {
    memcpy(of_agent[i], by_agent[i].variables, 4 * sizeof **of_agent);
    of_agent[i][4] = (rdzv_pair){"TORCHELASTIC_USE_AGENT_STORE", "True"};
    by_agent[i].variables = of_agent[i];
    by_agent[i].variable_count = 5;
  }
  meet_by("env://", "re-rendezvous using env://", by_agent, false);
  rdzv_server_free(agent);

  // In a file, which goes with the last of them.
  char file_url[600];
  const char *path = new_path();
  snprintf(file_url, sizeof file_url, "file://%s", path);
  rdzv_rendezvous_url_options by_file[] = {options_of(0, 2, none), options_of(1, 2, none)};
  meet_by(file_url, "Unable to perform rerendezvous using file:// method", by_file, false);
  CHECK(access(path, F_OK) != 0);

  // Nobody knows how many there are.
  const rdzv_rendezvous_url_options options = options_of(0, -1, none);
  struct rank alone = {0};
  OK(rdzv_rendezvous_url_new(NULL, TEXT("tcp://127.0.0.1:0"), &options, &alone.url, &error));
  meet(&alone);
  CHECK_NUMBER(alone.outcome, RDZV_OK);
  CHECK_NUMBER(joined_info(alone.info).world_size, -1);
  rdzv_rendezvous_free(alone.info);
  rdzv_rendezvous_url_free(alone.url);
}

void urls_that_wait_are_cancelled(void) {
  const char *none[4] = NONE;
  char url[64];
  snprintf(url, sizeof url, "tcp://%s", peer_text(free_port()));
  for (int i = 0; i < 2; ++i) {
    rdzv_rendezvous_url_options options = options_of(i, 2, none);
    options.timeout_ms = 600000;
    struct rank rank = {0};
    OK(rdzv_rendezvous_url_new(NULL, TEXT(url), &options, &rank.url, &error));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, meet, &rank) == 0);
    while (!rank.is_over) {
      rdzv_rendezvous_url_cancel(rank.url);
      sched_yield();
    }
    CHECK(pthread_join(thread, NULL) == 0);
    check_failure(__FILE__, __LINE__, url, rank.outcome, rank.error, (struct failure){.status = RDZV_CANCELLED});
    rdzv_error_free(rank.error);
    rdzv_rendezvous_url_free(rank.url);
  }
}
