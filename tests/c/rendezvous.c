// Parameters, their parsers, and handlers of the static backend.
#include "check.h"
#include "peers.h"
#include "tests.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define INVALID RDZV_INVALID_ARGUMENT
#define SAYS(message) ((struct failure){.status = INVALID, .message_part = (message)})

static rdzv_rendezvous_parameters *parameters_for(const char *backend, const char *endpoint, int64_t nodes) {
  rdzv_rendezvous_parameters *made = NULL;
  OK(rdzv_rendezvous_parameters_new(TEXT(backend), TEXT(endpoint), TEXT("run"), 1, nodes, &made, &error));
  CHECK(made != NULL);
  return made;
}

static rdzv_config_value text_value(const char *text) {
  return (rdzv_config_value){.struct_size = sizeof(rdzv_config_value),
                             .kind = RDZV_CONFIG_TEXT,
                             .text = (const uint8_t *)text,
                             .text_len = strlen(text)};
}

static rdzv_config_value value_of(int32_t kind, int64_t number, double fraction) {
  return (rdzv_config_value){
      .struct_size = sizeof(rdzv_config_value), .kind = kind, .number = number, .fraction = fraction};
}

static void parameters_are_checked(void) {
  rdzv_rendezvous_parameters *made = NULL;
  // In this order: the first that does not hold is told.
  FAILS_LIKE(SAYS("The rendezvous backend name must be a non-empty string."),
             rdzv_rendezvous_parameters_new(NULL, 0, TEXT("h"), TEXT("run"), 0, -1, &made, &error));
  FAILS_LIKE(SAYS("The minimum number of rendezvous nodes (0) must be greater than zero."),
             rdzv_rendezvous_parameters_new(TEXT("b"), TEXT("h"), TEXT("run"), 0, -1, &made, &error));
  FAILS_LIKE(SAYS("The maximum number of rendezvous nodes (2) must be greater than or equal to the minimum number of "
                  "rendezvous nodes (3)."),
             rdzv_rendezvous_parameters_new(TEXT("b"), TEXT("h"), TEXT("run"), 3, 2, &made, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_new(TEXT("b"), TEXT("h"), TEXT("run"), 1, 1, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_new(TEXT("\xff"), TEXT("h"), TEXT("run"), 1, 1, &made, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_new(TEXT("b"), NULL, 3, TEXT("run"), 1, 1, &made, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_new(TEXT("b"), TEXT("h"), NULL, 3, 1, 1, &made, &error));
  CHECK(made == NULL);

  made = parameters_for("static", "h:1", 3);
  const rdzv_config_value good = value_of(RDZV_CONFIG_INT, 7, 0);
  rdzv_config_value bad = good;
  FAILS(INVALID, rdzv_rendezvous_parameters_set(NULL, TEXT("k"), &good, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set(made, NULL, 1, &good, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set(made, TEXT("k"), NULL, &error));
  bad.kind = RDZV_CONFIG_MISSING;
  FAILS(INVALID, rdzv_rendezvous_parameters_set(made, TEXT("k"), &bad, &error));
  bad.kind = 6;
  FAILS(INVALID, rdzv_rendezvous_parameters_set(made, TEXT("k"), &bad, &error));
  bad = value_of(RDZV_CONFIG_BOOL, 2, 0);
  FAILS(INVALID, rdzv_rendezvous_parameters_set(made, TEXT("k"), &bad, &error));
  bad = good;
  bad.struct_size = 8;
  FAILS(INVALID, rdzv_rendezvous_parameters_set(made, TEXT("k"), &bad, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set_text(NULL, TEXT("k"), TEXT("v"), &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set_text(made, TEXT("k"), NULL, 1, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set_int(NULL, TEXT("k"), 1, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set_local_addr(NULL, TEXT("h"), &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_set_config(NULL, TEXT("k=v"), &error));
  FAILS_LIKE(SAYS("The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>."),
             rdzv_rendezvous_parameters_set_config(made, TEXT("k=v,=w"), &error));
  FAILS_LIKE(SAYS("The rendezvous configuration option 'b' must have a value specified."),
             rdzv_rendezvous_parameters_set_config(made, TEXT("a=1,b="), &error));
  rdzv_list *keys = rdzv_list_new();
  FAILS(INVALID, rdzv_rendezvous_parameters_list(NULL, keys, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_list(made, NULL, &error));
  OK(rdzv_rendezvous_parameters_list(made, keys, &error));
  CHECK_NUMBER((long long)rdzv_list_count(keys), 0);
  rdzv_list_free(keys);
  rdzv_config_value value = {.struct_size = sizeof value, .number = 77};
  FAILS(INVALID, rdzv_rendezvous_parameters_get(NULL, TEXT("k"), &value, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get(made, NULL, 1, &value, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get(made, TEXT("k"), NULL, &error));
  CHECK_NUMBER(value.number, 77);
  int32_t found = 77, flag = 77;
  int64_t number = 77;
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_bool(NULL, TEXT("k"), NULL, &found, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_bool(made, TEXT("k"), NULL, NULL, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_bool(made, TEXT("k"), NULL, &found, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_bool(made, TEXT("k"), &bad, &found, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_int(NULL, TEXT("k"), NULL, &found, &number, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_int(made, TEXT("k"), NULL, &found, NULL, &error));
  CHECK(found == 77 && flag == 77 && number == 77);
  rdzv_rendezvous_parameters_free(made);

  rdzv_rendezvous_parameters_free(NULL);
  size_t len = 77;
  CHECK(rdzv_rendezvous_parameters_backend(NULL, &len) == NULL);
  CHECK(rdzv_rendezvous_parameters_endpoint(NULL, &len) == NULL);
  CHECK(rdzv_rendezvous_parameters_run_id(NULL, &len) == NULL);
  CHECK(rdzv_rendezvous_parameters_local_addr(NULL, &len) == NULL);
  CHECK_NUMBER((long long)len, 77);
  CHECK_NUMBER(rdzv_rendezvous_parameters_min_nodes(NULL), 0);
  CHECK_NUMBER(rdzv_rendezvous_parameters_max_nodes(NULL), 0);
}

struct conversion {
  rdzv_config_value value;
  // -1: there is none; -2: it is refused.
  long long as_bool, as_int;
};

static void options_are_converted(void) {
  const struct conversion conversions[] = {
      {value_of(RDZV_CONFIG_NONE, 0, 0), -1, -1},   {value_of(RDZV_CONFIG_BOOL, 1, 0), 1, 1},
      {value_of(RDZV_CONFIG_BOOL, 0, 0), 0, 0},     {value_of(RDZV_CONFIG_INT, 1, 0), 1, 1},
      {value_of(RDZV_CONFIG_INT, 7, 0), -2, 7},     {value_of(RDZV_CONFIG_FLOAT, 0, 2.9), -2, 2},
      {value_of(RDZV_CONFIG_FLOAT, 0, 1e30), -2, -2}, {text_value("YES"), 1, -2},
      {text_value("f"), 0, -2},                     {text_value(" 7 "), -2, 7},
      {text_value("1"), 1, 1},                      {text_value(" yes"), -2, -2},
      {text_value(""), -2, -2},
  };
  rdzv_rendezvous_parameters *made = parameters_for("b", "h", 2);
  for (size_t i = 0; i < 2 * (sizeof conversions / sizeof *conversions); ++i) {
    // Each is set once, and is the stand-in for a missing option once.
    const struct conversion *wanted = &conversions[i / 2];
    const rdzv_config_value *stand_in = i % 2 == 0 ? NULL : &wanted->value;
    const char *key = stand_in == NULL ? "option" : "missing";
    if (stand_in == NULL) OK(rdzv_rendezvous_parameters_set(made, TEXT(key), &wanted->value, &error));
    int32_t found = 77, flag = 77;
    int64_t number = 77;
    if (wanted->as_bool == -2) {
      FAILS_LIKE(SAYS("does not represent a valid boolean value."),
                 rdzv_rendezvous_parameters_get_as_bool(made, TEXT(key), stand_in, &found, &flag, &error));
    } else {
      OK(rdzv_rendezvous_parameters_get_as_bool(made, TEXT(key), stand_in, &found, &flag, &error));
      CHECK_NUMBER(found, wanted->as_bool != -1);
      CHECK_NUMBER(flag, wanted->as_bool == 1);
    }
    if (wanted->as_int == -2) {
      FAILS_LIKE(SAYS("does not represent a valid integer value."),
                 rdzv_rendezvous_parameters_get_as_int(made, TEXT(key), stand_in, &found, &number, &error));
    } else {
      OK(rdzv_rendezvous_parameters_get_as_int(made, TEXT(key), stand_in, &found, &number, &error));
      CHECK_NUMBER(found, wanted->as_int != -1);
      CHECK_NUMBER(number, wanted->as_int == -1 ? 0 : wanted->as_int);
    }
  }
  int32_t found = 77, flag = 77;
  OK(rdzv_rendezvous_parameters_get_as_bool(made, TEXT("missing"), NULL, &found, &flag, &error));
  CHECK(found == 0 && flag == 0);
  rdzv_rendezvous_parameters_free(made);
}

static void parameters_are_kept(void) {
  rdzv_rendezvous_parameters *made = NULL;
  OK(rdzv_rendezvous_parameters_new(TEXT("b"), TEXT("h:1"), TEXT("run 7"), 2, 3, &made, &error));
  size_t len = 0;
  CHECK(rdzv_rendezvous_parameters_local_addr(made, &len) == NULL);
  OK(rdzv_rendezvous_parameters_set_local_addr(made, TEXT("10.0.0.1"), &error));
  OK(rdzv_rendezvous_parameters_set_config(made, TEXT(" z = 1 , a=x=y"), &error));
  OK(rdzv_rendezvous_parameters_set_int(made, TEXT("rank"), -3, &error));
  OK(rdzv_rendezvous_parameters_set_text(made, TEXT("a"), TEXT("later"), &error));
  CHECK_LENT(rdzv_rendezvous_parameters_backend(made, &len), len, "b");
  CHECK_LENT(rdzv_rendezvous_parameters_endpoint(made, &len), len, "h:1");
  CHECK_LENT(rdzv_rendezvous_parameters_run_id(made, &len), len, "run 7");
  CHECK_LENT(rdzv_rendezvous_parameters_local_addr(made, &len), len, "10.0.0.1");
  CHECK(rdzv_rendezvous_parameters_backend(made, NULL) != NULL);
  CHECK_NUMBER(rdzv_rendezvous_parameters_min_nodes(made), 2);
  CHECK_NUMBER(rdzv_rendezvous_parameters_max_nodes(made), 3);
  rdzv_list *keys = rdzv_list_new();
  OK(rdzv_rendezvous_parameters_list(made, keys, &error));
  CHECK_NUMBER((long long)rdzv_list_count(keys), 3);
  CHECK_ITEM(keys, 0, "a");
  CHECK_ITEM(keys, 1, "rank");
  CHECK_ITEM(keys, 2, "z");
  rdzv_list_free(keys);
  rdzv_config_value value = {.struct_size = sizeof value};
  OK(rdzv_rendezvous_parameters_get(made, TEXT("a"), &value, &error));
  CHECK_NUMBER(value.kind, RDZV_CONFIG_TEXT);
  CHECK_LENT(value.text, value.text_len, "later");
  OK(rdzv_rendezvous_parameters_get(made, TEXT("rank"), &value, &error));
  CHECK(value.kind == RDZV_CONFIG_INT && value.number == -3);
  const rdzv_config_value half = value_of(RDZV_CONFIG_FLOAT, 0, 0.5), yes = value_of(RDZV_CONFIG_BOOL, 1, 0);
  OK(rdzv_rendezvous_parameters_set(made, TEXT("half"), &half, &error));
  OK(rdzv_rendezvous_parameters_get(made, TEXT("half"), &value, &error));
  CHECK(value.kind == RDZV_CONFIG_FLOAT && value.fraction == 0.5);
  OK(rdzv_rendezvous_parameters_set(made, TEXT("half"), &yes, &error));
  OK(rdzv_rendezvous_parameters_get(made, TEXT("half"), &value, &error));
  CHECK(value.kind == RDZV_CONFIG_BOOL && value.number == 1);
  OK(rdzv_rendezvous_parameters_get(made, TEXT("nothing"), &value, &error));
  CHECK_NUMBER(value.kind, RDZV_CONFIG_MISSING);
  rdzv_rendezvous_parameters_free(made);
}

void rendezvous_parameters_are_kept_checked_and_converted(void) {
  parameters_are_checked();
  options_are_converted();
  parameters_are_kept();
}

void endpoints_and_configurations_are_parsed(void) {
  static const struct {
    const char *text, *host;
    int port;
  } good[] = {{"", "localhost", -1},     {"  ", "localhost", -1}, {"h", "h", -1},       {" h:3 ", "h", 3},
              {"h:65535", "h", 65535}, {"h:0", "h", 0},         {"[::1]", "::1", -1}, {"[::1]:5", "::1", 5},
              {"::1", "::1", -1},      {"h_x:3", "h_x", 3}};
  static const struct {
    const char *text, *message;
  } bad[] = {
      {"h:", "The port number of the rendezvous endpoint 'h:' must be an integer between 0 and 65536."},
      {"h:65536", "The port number of the rendezvous endpoint 'h:65536' must be an integer"},
      {"h:123456", "The port number"},
      {"h:-1", "The port number"},
      {":80", "The hostname of the rendezvous endpoint ':80' must be a dot-separated list of labels, an IPv4 address, "
              "or an IPv6 address."},
      {"[]:3", "The hostname"},
      {"a b:3", "The hostname"},
      {"http://x:3", "The hostname"},
  };
  rdzv_buffer *host = rdzv_buffer_new();
  int32_t port = 77;
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
    OK(rdzv_parse_endpoint(TEXT(good[i].text), host, &port, &error));
    CHECK_BUFFER(host, good[i].host);
    CHECK_NUMBER(port, good[i].port);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    FAILS_LIKE(SAYS(bad[i].message), rdzv_parse_endpoint(TEXT(bad[i].text), host, &port, &error));
  }
  FAILS(INVALID, rdzv_parse_endpoint(NULL, 1, host, &port, &error));
  FAILS(INVALID, rdzv_parse_endpoint(TEXT("h"), NULL, &port, &error));
  FAILS(INVALID, rdzv_parse_endpoint(TEXT("h"), host, NULL, &error));
  CHECK_BUFFER(host, "h_x");
  CHECK_NUMBER(port, 3);
  rdzv_buffer_free(host);

  rdzv_list *keys = rdzv_list_new(), *values = rdzv_list_new();
  OK(rdzv_parse_config(TEXT(" b = x y , a=1=2,b=3"), keys, values, &error));
  CHECK_NUMBER((long long)rdzv_list_count(keys), 2);
  CHECK_ITEM(keys, 0, "a");
  CHECK_ITEM(values, 0, "1=2");
  CHECK_ITEM(keys, 1, "b");
  CHECK_ITEM(values, 1, "3");
  FAILS(INVALID, rdzv_parse_config(TEXT("a"), keys, values, &error));
  FAILS(INVALID, rdzv_parse_config(TEXT("=a"), keys, values, &error));
  FAILS(INVALID, rdzv_parse_config(TEXT("a=1"), NULL, values, &error));
  FAILS(INVALID, rdzv_parse_config(TEXT("a=1"), keys, NULL, &error));
  CHECK_NUMBER((long long)rdzv_list_count(values), 2);
  OK(rdzv_parse_config(NULL, 0, keys, values, &error));
  CHECK_NUMBER((long long)rdzv_list_count(keys), 0);
  rdzv_list_free(keys);
  rdzv_list_free(values);
}

static rdzv_rendezvous_handler *static_handler(const rdzv_context *context, uint16_t port, int64_t rank, int64_t nodes,
                                               int64_t timeout_s) {
  rdzv_rendezvous_parameters *parameters = parameters_for("static", peer_text(port), nodes);
  OK(rdzv_rendezvous_parameters_set_int(parameters, TEXT("rank"), rank, &error));
  OK(rdzv_rendezvous_parameters_set_int(parameters, TEXT("timeout"), timeout_s, &error));
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(context, parameters, &handler, &error));
  rdzv_rendezvous_parameters_free(parameters);
  return handler;
}

struct node {
  rdzv_rendezvous_handler *handler;
  rdzv_rendezvous_info *info;
  rdzv_store *store;
  atomic_int is_over;
  rdzv_status outcome;
  rdzv_error *error;
};

static void *join(void *argument) {
  struct node *node = argument;
  node->outcome = rdzv_rendezvous_handler_next_rendezvous(node->handler, &node->info, &node->error);
  if (node->outcome == RDZV_OK) OK(rdzv_rendezvous_info_store(node->info, &node->store, &error));
  node->is_over = 1;
  return NULL;
}

void static_nodes_meet(void) {
  const uint16_t port = free_port();
  struct node nodes[2] = {{0}};
  pthread_t threads[2];
  for (int rank = 0; rank < 2; ++rank) {
    nodes[rank].handler = static_handler(NULL, port, rank, 2, 20);
    CHECK(pthread_create(&threads[rank], NULL, join, &nodes[rank]) == 0);
  }
  size_t len = 0;
  for (int rank = 0; rank < 2; ++rank) {
    struct node *node = &nodes[rank];
    CHECK(pthread_join(threads[rank], NULL) == 0);
    CHECK_NUMBER(node->outcome, RDZV_OK);
    CHECK_NUMBER(rdzv_rendezvous_info_rank(node->info), rank);
    CHECK_NUMBER(rdzv_rendezvous_info_world_size(node->info), 2);
    CHECK_LENT(rdzv_rendezvous_info_master_addr(node->info, &len), len, "127.0.0.1");
    CHECK_NUMBER(rdzv_rendezvous_info_master_port(node->info), port);
    CHECK_NUMBER(rdzv_rendezvous_info_hosts_store(node->info), rank == 0);
    CHECK_LENT(rdzv_rendezvous_handler_backend(node->handler, &len), len, "static");
    CHECK_LENT(rdzv_rendezvous_handler_run_id(node->handler, &len), len, "run");
    CHECK_NUMBER(rdzv_rendezvous_handler_use_agent_store(node->handler), 1);
    int32_t closed = 77, clean = 77;
    int64_t waiting = 77;
    OK(rdzv_rendezvous_handler_is_closed(node->handler, &closed, &error));
    OK(rdzv_rendezvous_handler_num_nodes_waiting(node->handler, &waiting, &error));
    CHECK(closed == 0 && waiting == 0);
    CHECK_NUMBER(rdzv_rendezvous_info_round(node->info), -1);
    rdzv_round_event event = {.struct_size = sizeof event};
    FAILS_LIKE(((struct failure){.status = RDZV_UNSUPPORTED,
                                 .message_part = "the rendezvous backend 'static' has no events"}),
               rdzv_rendezvous_handler_next_event(node->handler, 0, &event, NULL, &error));
    OK(rdzv_rendezvous_handler_shutdown(node->handler, &clean, &error));
    OK(rdzv_rendezvous_handler_shutdown(node->handler, NULL, &error));
    CHECK_NUMBER(clean, 1);
    // Nobody is in a call: nothing is cancelled.
    rdzv_rendezvous_handler_cancel(node->handler);
    rdzv_rendezvous_info_free(node->info);
    rdzv_rendezvous_handler_free(node->handler);
  }
  // The store lives as long as its handles, the clone and the prefixed one too. Keys are beneath the run.
  rdzv_store *twin = NULL, *beneath = NULL, *bare = connect_store(NULL, port);
  OK(rdzv_store_clone(nodes[0].store, &twin, &error));
  OK(rdzv_store_with_prefix(nodes[0].store, TEXT("p"), &beneath, &error));
  rdzv_store_free(nodes[0].store);
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_set(nodes[1].store, TEXT("k"), TEXT("v"), -1, &error));
  OK(rdzv_store_get(bare, TEXT("run/k"), -1, value, &error));
  CHECK_BUFFER(value, "v");
  rdzv_store_free(twin);
  OK(rdzv_store_set(beneath, TEXT("k"), TEXT("w"), -1, &error));
  OK(rdzv_store_get(bare, TEXT("run/p/k"), -1, value, &error));
  CHECK_BUFFER(value, "w");
  rdzv_store_free(beneath);
  // With the last of the host's handles the server went.
  rdzv_store_options *options = options_for(port);
  OK(rdzv_store_options_set_connect_timeout_ms(options, 0, &error));
  FAILS(RDZV_REFUSED, rdzv_store_connect(NULL, options, &twin, &error));
  rdzv_store_options_free(options);
  rdzv_buffer_free(value);
  rdzv_store_free(bare);
  rdzv_store_free(nodes[1].store);
}

static void join_both(struct node nodes[2]) {
  pthread_t threads[2];
  for (int rank = 0; rank < 2; ++rank) CHECK(pthread_create(&threads[rank], NULL, join, &nodes[rank]) == 0);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(pthread_join(threads[rank], NULL) == 0);
    check_success(__FILE__, __LINE__, "joining", nodes[rank].outcome, nodes[rank].error);
  }
}

static void forget(struct node *node) {
  rdzv_store_free(node->store);
  rdzv_rendezvous_info_free(node->info);
  node->store = NULL;
  node->info = NULL;
}

void static_nodes_meet_again(void) {
  const uint16_t port = free_port();
  struct node nodes[2] = {{.handler = static_handler(NULL, port, 0, 2, 20)},
                          {.handler = static_handler(NULL, port, 1, 2, 20)}};
  join_both(nodes);
  OK(rdzv_store_set(nodes[0].store, TEXT("left"), TEXT("1"), -1, &error));
  struct node before = nodes[1];
  forget(&nodes[0]);
  join_both(nodes);
  CHECK_NUMBER(rdzv_rendezvous_info_round(nodes[0].info), 1);
  CHECK_NUMBER(rdzv_rendezvous_info_round(nodes[1].info), 1);
  CHECK_NUMBER(rdzv_rendezvous_info_rank_first(nodes[1].info), -1);
  // The round's keys are its own.
  const rdzv_bytes key = {(const uint8_t *)"left", 4};
  int32_t ready = 77;
  OK(rdzv_store_check(before.store, &key, 1, -1, &ready, &error));
  CHECK_NUMBER(ready, 1);
  OK(rdzv_store_check(nodes[1].store, &key, 1, -1, &ready, &error));
  CHECK_NUMBER(ready, 0);
  forget(&before);
  // Who closes the run closes it for all.
  OK(rdzv_rendezvous_handler_set_closed(nodes[0].handler, &error));
  int32_t closed = 77;
  OK(rdzv_rendezvous_handler_is_closed(nodes[1].handler, &closed, &error));
  CHECK_NUMBER(closed, 1);
  rdzv_rendezvous_info *again = NULL;
  FAILS(RDZV_RENDEZVOUS_CLOSED, rdzv_rendezvous_handler_next_rendezvous(nodes[1].handler, &again, &error));
  for (int rank = 0; rank < 2; ++rank) {
    forget(&nodes[rank]);
    rdzv_rendezvous_handler_free(nodes[rank].handler);
  }
}

void static_nodes_that_do_not_meet_are_told_why(void) {
  uint16_t absent = 0;
  const int nobody = refusing_socket(&absent);
  // Rank 0 waits for rank 1, rank 1 for a host that is not there.
  struct node nodes[2] = {{.handler = static_handler(NULL, free_port(), 0, 2, 1)},
                          {.handler = static_handler(NULL, absent, 1, 2, 1)}};
  const char *missing = "1 of 2 nodes joined round 0 within 1 s; missing node rank: 1";
  const struct failure wanted[2] = {
      {.status = RDZV_RENDEZVOUS_TIMED_OUT, .message_part = missing},
      {.status = RDZV_RENDEZVOUS_CONNECTION, .peer = peer_text(absent), .message_part = "refused"}};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, join, &nodes[i]) == 0);
  for (int i = 0; i < 2; ++i) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    check_failure(__FILE__, __LINE__, "joining", nodes[i].outcome, nodes[i].error, wanted[i]);
    CHECK(nodes[i].info == NULL);
    rdzv_rendezvous_handler_free(nodes[i].handler);
  }
  CHECK_NUMBER((long long)rdzv_error_rank_count(nodes[0].error), 1);
  CHECK_NUMBER(rdzv_error_rank(nodes[0].error, 0), 1);
  for (int i = 0; i < 2; ++i) rdzv_error_free(nodes[i].error);
  CHECK(close(nobody) == 0);
}

void handlers_that_wait_are_cancelled(void) {
  uint16_t port = 0;
  const int nobody = refusing_socket(&port);
  // Rank 0 waits for the others, rank 1 for a server at a port where there is none.
  struct node nodes[2] = {{.handler = static_handler(NULL, free_port(), 0, 2, 600)},
                          {.handler = static_handler(NULL, port, 1, 2, 600)}};
  for (int i = 0; i < 2; ++i) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, join, &nodes[i]) == 0);
    while (!nodes[i].is_over) {
      rdzv_rendezvous_handler_cancel(nodes[i].handler);
      sched_yield();
    }
    CHECK(pthread_join(thread, NULL) == 0);
    const struct failure wanted = {.status = RDZV_CANCELLED};
    check_failure(__FILE__, __LINE__, "joining", nodes[i].outcome, nodes[i].error, wanted);
    CHECK(nodes[i].info == NULL);
    rdzv_error_free(nodes[i].error);
    rdzv_rendezvous_handler_free(nodes[i].handler);
  }
  CHECK(close(nobody) == 0);
}

// Alone at the backend whose nodes meet at a server, which this one hosts: it has rounds.
void node_of_a_round_knows_its_place(void) {
  rdzv_rendezvous_parameters *parameters = NULL;
  const char *endpoint = peer_text(free_port());
  OK(rdzv_rendezvous_parameters_new(TEXT("rdzv"), TEXT(endpoint), TEXT("run"), 1, 1, &parameters, &error));
  struct node node = {0};
  OK(rdzv_rendezvous_handler_new(NULL, parameters, &node.handler, &error));
  rdzv_rendezvous_parameters_free(parameters);
  join(&node);
  check_success(__FILE__, __LINE__, "joining", node.outcome, node.error);
  CHECK(rdzv_rendezvous_info_rank(node.info) == 0 && rdzv_rendezvous_info_world_size(node.info) == 1);
  CHECK_NUMBER(rdzv_rendezvous_info_round(node.info), 0);
  CHECK_NUMBER(rdzv_rendezvous_info_rank_first(node.info), 0);
  CHECK_NUMBER(rdzv_rendezvous_info_worker_count(node.info), 1);
  size_t len = 0;
  CHECK(rdzv_rendezvous_info_leader(node.info, &len) != NULL && len > 0);
  OK(rdzv_store_set(node.store, TEXT("k"), TEXT("v"), -1, &error));
  // Whoever puts the round's prefix before its keys shares them.
  const uint8_t *prefix = rdzv_rendezvous_info_key_prefix(node.info, &len);
  char key[128];
  snprintf(key, sizeof key, "%.*sk", (int)len, (const char *)prefix);
  rdzv_store *bare = connect_store(NULL, rdzv_rendezvous_info_master_port(node.info));
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_get(bare, TEXT(key), -1, value, &error));
  CHECK_BUFFER(value, "v");
  rdzv_buffer_free(value);
  rdzv_store_free(bare);
  // It closes the run, and hears of it.
  int32_t closed = 0;
  rdzv_round_event event = {.struct_size = sizeof event};
  OK(rdzv_rendezvous_handler_set_closed(node.handler, &error));
  OK(rdzv_rendezvous_handler_is_closed(node.handler, &closed, &error));
  CHECK_NUMBER(closed, 1);
  OK(rdzv_rendezvous_handler_next_event(node.handler, PATIENCE_MS, &event, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_ROUND_EVENT_RUN_CLOSED);
  // Why it failed can still be said, and once.
  rdzv_buffer *message = rdzv_buffer_new();
  OK(rdzv_rendezvous_handler_fail(node.handler, (const uint8_t *)"code 1", 6, &error));
  OK(rdzv_rendezvous_handler_fail(node.handler, (const uint8_t *)"code 2", 6, &error));
  OK(rdzv_rendezvous_handler_next_event(node.handler, PATIENCE_MS, &event, message, &error));
  CHECK_NUMBER(event.kind, RDZV_ROUND_EVENT_JOB_FAILED);
  CHECK_BUFFER(message, "code 1");
  rdzv_buffer_free(message);
  rdzv_rendezvous_info *again = NULL;
  FAILS(RDZV_RENDEZVOUS_CLOSED, rdzv_rendezvous_handler_next_rendezvous(node.handler, &again, &error));
  rdzv_store_free(node.store);
  rdzv_rendezvous_info_free(node.info);
  OK(rdzv_rendezvous_handler_shutdown(node.handler, NULL, &error));
  rdzv_rendezvous_handler_free(node.handler);
}

static rdzv_rendezvous_parameters *with_rank(const char *endpoint, int64_t rank) {
  rdzv_rendezvous_parameters *made = parameters_for("static", endpoint, 2);
  OK(rdzv_rendezvous_parameters_set_int(made, TEXT("rank"), rank, &error));
  return made;
}

void handlers_that_cannot_be(void) {
  rdzv_rendezvous_handler *handler = NULL;
  const struct {
    rdzv_rendezvous_parameters *parameters;
    rdzv_status status;
    const char *message;
  } refused[] = {
      {parameters_for("nobody", "h:1", 2), RDZV_NOT_REGISTERED,
       "The rendezvous backend 'nobody' is not registered. Did you forget to call `register`?"},
      {parameters_for("static", "h:1", 2), INVALID,
       "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
    const struct failure wanted = {.status = refused[i].status, .message_part = refused[i].message};
    FAILS_LIKE(wanted, rdzv_rendezvous_handler_new(NULL, refused[i].parameters, &handler, &error));
    rdzv_rendezvous_parameters_free(refused[i].parameters);
  }
  FAILS(INVALID, rdzv_rendezvous_handler_new(NULL, NULL, &handler, &error));
  rdzv_rendezvous_parameters *good = with_rank("127.0.0.1:0", 0);
  FAILS(INVALID, rdzv_rendezvous_handler_new(NULL, good, NULL, &error));
  CHECK(handler == NULL);
  OK(rdzv_rendezvous_handler_new(NULL, good, &handler, &error));
  rdzv_rendezvous_parameters_free(good);
  FAILS(INVALID, rdzv_rendezvous_handler_next_rendezvous(handler, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_is_closed(handler, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_num_nodes_waiting(handler, NULL, &error));
  rdzv_round_event event = {.struct_size = sizeof event};
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(handler, 0, NULL, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(handler, -2, &event, NULL, &error));
  event.struct_size = 4;
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(handler, 0, &event, NULL, &error));
  rdzv_rendezvous_handler_free(handler);

  rdzv_rendezvous_info *info = NULL;
  int32_t flag = 77;
  int64_t number = 77;
  FAILS(INVALID, rdzv_rendezvous_handler_next_rendezvous(NULL, &info, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_is_closed(NULL, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_set_closed(NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_fail(NULL, (const uint8_t *)"x", 1, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_num_nodes_waiting(NULL, &number, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(NULL, 0, &event, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_shutdown(NULL, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_set_cancel_token(NULL, NULL, &error));
  rdzv_rendezvous_handler_cancel(NULL);
  rdzv_rendezvous_handler_free(NULL);
  rdzv_rendezvous_info_free(NULL);
  CHECK(rdzv_rendezvous_handler_backend(NULL, NULL) == NULL && rdzv_rendezvous_handler_run_id(NULL, NULL) == NULL);
  CHECK_NUMBER(rdzv_rendezvous_handler_use_agent_store(NULL), 0);
  rdzv_store *store = NULL;
  FAILS(INVALID, rdzv_rendezvous_info_store(NULL, &store, &error));
  CHECK_NUMBER(rdzv_rendezvous_info_rank(NULL), -1);
  CHECK_NUMBER(rdzv_rendezvous_info_world_size(NULL), -1);
  CHECK(rdzv_rendezvous_info_master_addr(NULL, NULL) == NULL);
  CHECK_NUMBER(rdzv_rendezvous_info_master_port(NULL), 0);
  CHECK_NUMBER(rdzv_rendezvous_info_hosts_store(NULL), 0);
  CHECK_NUMBER(rdzv_rendezvous_info_round(NULL), -1);
  CHECK_NUMBER(rdzv_rendezvous_info_rank_first(NULL), -1);
  CHECK_NUMBER(rdzv_rendezvous_info_worker_count(NULL), -1);
  CHECK(rdzv_rendezvous_info_leader(NULL, NULL) == NULL && rdzv_rendezvous_info_key_prefix(NULL, NULL) == NULL);

  // Another store is at the port where a node wants to host one.
  rdzv_server *server = start_server(NULL);
  char message[64];
  snprintf(message, sizeof message, "cannot host the store at %s", peer_text(rdzv_server_port(server)));
  handler = static_handler(NULL, rdzv_server_port(server), 0, 1, 20);
  FAILS_LIKE(((struct failure){.status = RDZV_ADDRESS_IN_USE, .message_part = message}),
             rdzv_rendezvous_handler_next_rendezvous(handler, &info, &error));
  CHECK(info == NULL);
  rdzv_rendezvous_handler_free(handler);
  rdzv_server_free(server);
}
