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

static rdzv_rendezvous_parameters parameters_for(const char *backend, const char *endpoint, int64_t nodes) {
  return (rdzv_rendezvous_parameters){.struct_size = sizeof(rdzv_rendezvous_parameters),
                                      .backend = backend,
                                      .endpoint = endpoint,
                                      .run_id = "run",
                                      .min_nodes = 1,
                                      .max_nodes = nodes};
}

static void refused(rdzv_rendezvous_parameters parameters, const char *message) {
  rdzv_rendezvous_handler *handler = NULL;
  FAILS_LIKE(SAYS(message), rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));
  CHECK(handler == NULL);
}

static void parameters_are_checked(void) {
  // In this order: the first that does not hold is told.
  rdzv_rendezvous_parameters bad = parameters_for(NULL, "h:1", -1);
  bad.min_nodes = -2;
  refused(bad, "The rendezvous backend name must be a non-empty string.");
  bad.backend = "";
  refused(bad, "The rendezvous backend name must be a non-empty string.");
  bad.backend = "static";
  refused(bad, "The minimum number of rendezvous nodes (-2) must be greater than zero.");
  bad.min_nodes = 3;
  bad.max_nodes = 2;
  refused(bad,
          "The maximum number of rendezvous nodes (2) must be greater than or equal to the minimum number of "
          "rendezvous nodes (3).");
  const rdzv_rendezvous_parameters good = parameters_for("static", "h:1", 3);
  bad = good;
  bad.struct_size = 8;
  refused(bad, "`parameters.struct_size` is 8");
  bad = good;
  bad.endpoint = "\xff";
  refused(bad, "`parameters.endpoint` is not UTF-8");
  bad = good;
  bad.config = "k=v,=w";
  refused(bad, "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.");
  bad.config = "a=1,b=";
  refused(bad, "The rendezvous configuration option 'b' must have a value specified.");
  const rdzv_pair options[] = {{"rank", "0"}, {"timeout", NULL}};
  bad = good;
  bad.option_count = 2;
  refused(bad, "`parameters.options` is NULL");
  bad.options = options;
  refused(bad, "`parameters.options[1]` has a NULL");

  int32_t flag = 77;
  int64_t number = 77;
  CHECK(rdzv_rendezvous_parameters_get(NULL, "k") == NULL && rdzv_rendezvous_parameters_get(&good, NULL) == NULL);
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_bool(NULL, "k", 0, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_bool(&good, "k", 0, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_int(NULL, "k", 0, &number, &error));
  FAILS(INVALID, rdzv_rendezvous_parameters_get_as_int(&good, "k", 0, NULL, &error));
  CHECK(flag == 77 && number == 77);
}

struct conversion {
  const char *text;
  // -2: it is refused.
  long long as_bool, as_int;
};

static void options_are_converted(void) {
  static const struct conversion conversions[] = {
      {"YES", 1, -2}, {"f", 0, -2}, {" 7 ", -2, 7}, {"1", 1, 1}, {"0", 0, 0}, {" yes", -2, -2}, {"", -2, -2}, {"2.5", -2, -2},
  };
  rdzv_rendezvous_parameters made = parameters_for("b", "h", 2);
  for (size_t i = 0; i < sizeof conversions / sizeof *conversions; ++i) {
    const struct conversion *wanted = &conversions[i];
    // The later of two counts.
    const rdzv_pair options[] = {{"option", "former"}, {"option", wanted->text}};
    made.options = options;
    made.option_count = 2;
    CHECK_TEXT(rdzv_rendezvous_parameters_get(&made, "option"), wanted->text);
    CHECK(rdzv_rendezvous_parameters_get(&made, "missing") == NULL);
    int32_t flag = 77;
    int64_t number = 77;
    if (wanted->as_bool == -2) {
      FAILS_LIKE(SAYS("does not represent a valid boolean value."),
                 rdzv_rendezvous_parameters_get_as_bool(&made, "option", 5, &flag, &error));
    } else {
      OK(rdzv_rendezvous_parameters_get_as_bool(&made, "option", 5, &flag, &error));
      CHECK_NUMBER(flag, wanted->as_bool);
    }
    if (wanted->as_int == -2) {
      FAILS_LIKE(SAYS("does not represent a valid integer value."),
                 rdzv_rendezvous_parameters_get_as_int(&made, "option", 5, &number, &error));
    } else {
      OK(rdzv_rendezvous_parameters_get_as_int(&made, "option", 5, &number, &error));
      CHECK_NUMBER(number, wanted->as_int);
    }
    OK(rdzv_rendezvous_parameters_get_as_bool(&made, "missing", -1, &flag, &error));
    OK(rdzv_rendezvous_parameters_get_as_int(&made, "missing", -7, &number, &error));
    CHECK(flag == -1 && number == -7);
  }
}

void rendezvous_parameters_are_checked_and_converted(void) {
  parameters_are_checked();
  options_are_converted();
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
  rdzv_rendezvous_parameters parameters = parameters_for("static", peer_text(port), nodes);
  char config[64];
  snprintf(config, sizeof config, "rank=%d, timeout=%d", (int)rank, (int)timeout_s);
  parameters.config = config;
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(context, &parameters, &handler, &error));
  return handler;
}

struct node {
  rdzv_rendezvous_handler *handler;
  rdzv_rendezvous *info;
  rdzv_store *store;
  atomic_int is_over;
  rdzv_status outcome;
  rdzv_error *error;
};

static void *join(void *argument) {
  struct node *node = argument;
  node->outcome = rdzv_rendezvous_handler_next_rendezvous(node->handler, &node->info, &node->error);
  if (node->outcome == RDZV_OK) OK(rdzv_store_new_rendezvous(node->info, &node->store, &error));
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
    CHECK_NUMBER(joined_info(node->info).rank, rank);
    CHECK_NUMBER(joined_info(node->info).world_size, 2);
    CHECK_TEXT(joined_info(node->info).master_addr, "127.0.0.1");
    CHECK_NUMBER(joined_info(node->info).master_port, port);
    CHECK_NUMBER(joined_info(node->info).hosts_store, rank == 0);
    CHECK_LENT(rdzv_rendezvous_handler_backend(node->handler, &len), len, "static");
    CHECK_LENT(rdzv_rendezvous_handler_run_id(node->handler, &len), len, "run");
    CHECK_NUMBER(rdzv_rendezvous_handler_use_agent_store(node->handler), 1);
    int32_t closed = 77, clean = 77;
    int64_t waiting = 77;
    OK(rdzv_rendezvous_handler_is_closed(node->handler, &closed, &error));
    OK(rdzv_rendezvous_handler_num_nodes_waiting(node->handler, &waiting, &error));
    CHECK(closed == 0 && waiting == 0);
    CHECK_NUMBER(joined_info(node->info).round, -1);
    rdzv_round_event event = {.struct_size = sizeof event};
    FAILS_LIKE(((struct failure){.status = RDZV_UNSUPPORTED,
                                 .message_part = "the rendezvous backend 'static' has no events"}),
               rdzv_rendezvous_handler_next_event(node->handler, 0, &event, NULL, NULL, &error));
    OK(rdzv_rendezvous_handler_shutdown(node->handler, &clean, &error));
    OK(rdzv_rendezvous_handler_shutdown(node->handler, NULL, &error));
    CHECK_NUMBER(clean, 1);
    // Nobody is in a call: nothing is cancelled.
    rdzv_rendezvous_handler_cancel(node->handler);
    rdzv_rendezvous_free(node->info);
    rdzv_rendezvous_handler_free(node->handler);
  }
  // The store lives as long as its handles, the clone and the prefixed one too. Keys are beneath the run.
  rdzv_store *twin = NULL, *beneath = NULL, *bare = connect_store(NULL, port);
  OK(rdzv_store_clone(nodes[0].store, &twin, &error));
  OK(rdzv_store_new_prefix(nodes[0].store, TEXT("p"), &beneath, &error));
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
  rdzv_store_options options = options_for(port);
  options.connect_timeout_ms = -1;
  FAILS(RDZV_REFUSED, rdzv_store_new(NULL, &options, &twin, &error));
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
  rdzv_rendezvous_free(node->info);
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
  CHECK_NUMBER(joined_info(nodes[0].info).round, 1);
  CHECK_NUMBER(joined_info(nodes[1].info).round, 1);
  CHECK_NUMBER(joined_info(nodes[1].info).rank_first, -1);
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
  rdzv_rendezvous *again = NULL;
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
  struct node nodes[2] = {{.handler = static_handler(NULL, free_port(), 0, 2, 4)},
                          {.handler = static_handler(NULL, absent, 1, 2, 4)}};
  const char *missing = "1 of 2 nodes joined round 0 within 4 s; missing node rank: 1";
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
  CHECK_NUMBER((long long)info_of(nodes[0].error).rank_count, 1);
  CHECK_NUMBER(info_of(nodes[0].error).ranks[0], 1);
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
  rdzv_rendezvous_parameters parameters = parameters_for("rdzv", peer_text(free_port()), 0);
  parameters.min_nodes = 0;
  struct node node = {0};
  OK(rdzv_rendezvous_handler_new(NULL, &parameters, &node.handler, &error));
  join(&node);
  check_success(__FILE__, __LINE__, "joining", node.outcome, node.error);
  CHECK(joined_info(node.info).rank == 0 && joined_info(node.info).world_size == 1);
  CHECK_NUMBER(joined_info(node.info).round, 0);
  CHECK_NUMBER(joined_info(node.info).rank_first, 0);
  CHECK_NUMBER(joined_info(node.info).worker_count, 1);
  CHECK(joined_info(node.info).leader != NULL && *joined_info(node.info).leader != '\0');
  rdzv_rendezvous_info small = {.struct_size = 8};
  FAILS(INVALID, rdzv_rendezvous_get_info(node.info, &small, &error));
  FAILS(INVALID, rdzv_rendezvous_get_info(node.info, NULL, &error));
  OK(rdzv_store_set(node.store, TEXT("k"), TEXT("v"), -1, &error));
  // Whoever puts the round's prefix before its keys shares them.
  char key[128];
  snprintf(key, sizeof key, "%sk", joined_info(node.info).key_prefix);
  rdzv_store *bare = connect_store(NULL, (uint16_t)joined_info(node.info).master_port);
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
  OK(rdzv_rendezvous_handler_next_event(node.handler, PATIENCE_MS, &event, NULL, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_ROUND_EVENT_RUN_CLOSED);
  // Why it failed can still be said, and once.
  rdzv_buffer *closer = rdzv_buffer_new(), *message = rdzv_buffer_new();
  OK(rdzv_rendezvous_handler_fail(node.handler, (const uint8_t *)"code 1", 6, &error));
  OK(rdzv_rendezvous_handler_fail(node.handler, (const uint8_t *)"code 2", 6, &error));
  OK(rdzv_rendezvous_handler_next_event(node.handler, PATIENCE_MS, &event, closer, message, &error));
  CHECK_NUMBER(event.kind, RDZV_ROUND_EVENT_JOB_FAILED);
  CHECK_BUFFER(message, "code 1");
  CHECK(event.message == rdzv_buffer_data(message) && event.message_len == 6);
  CHECK(rdzv_buffer_len(closer) == 0 && event.node == NULL && event.node_len == 0);
  rdzv_buffer_free(closer);
  rdzv_buffer_free(message);
  rdzv_rendezvous *again = NULL;
  FAILS(RDZV_RENDEZVOUS_CLOSED, rdzv_rendezvous_handler_next_rendezvous(node.handler, &again, &error));
  rdzv_store_free(node.store);
  rdzv_rendezvous_free(node.info);
  OK(rdzv_rendezvous_handler_shutdown(node.handler, NULL, &error));
  rdzv_rendezvous_handler_free(node.handler);
}

void handlers_that_cannot_be(void) {
  rdzv_rendezvous_handler *handler = NULL;
  rdzv_rendezvous_parameters good = parameters_for("nobody", "127.0.0.1:0", 2);
  const struct failure unknown = {
      .status = RDZV_NOT_REGISTERED,
      .message_part = "The rendezvous backend 'nobody' is not registered. Did you forget to call `register`?"};
  FAILS_LIKE(unknown, rdzv_rendezvous_handler_new(NULL, &good, &handler, &error));
  good.backend = "static";
  refused(good, "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request");
  FAILS(INVALID, rdzv_rendezvous_handler_new(NULL, NULL, &handler, &error));
  good.options = &(rdzv_pair){"rank", "0"};
  good.option_count = 1;
  FAILS(INVALID, rdzv_rendezvous_handler_new(NULL, &good, NULL, &error));
  CHECK(handler == NULL);
  OK(rdzv_rendezvous_handler_new(NULL, &good, &handler, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_next_rendezvous(handler, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_is_closed(handler, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_num_nodes_waiting(handler, NULL, &error));
  rdzv_round_event event = {.struct_size = sizeof event};
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(handler, 0, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(handler, -2, &event, NULL, NULL, &error));
  event.struct_size = 4;
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(handler, 0, &event, NULL, NULL, &error));
  rdzv_rendezvous_handler_free(handler);

  rdzv_rendezvous *info = NULL;
  int32_t flag = 77;
  int64_t number = 77;
  FAILS(INVALID, rdzv_rendezvous_handler_next_rendezvous(NULL, &info, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_is_closed(NULL, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_set_closed(NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_fail(NULL, (const uint8_t *)"x", 1, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_num_nodes_waiting(NULL, &number, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_next_event(NULL, 0, &event, NULL, NULL, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_shutdown(NULL, &flag, &error));
  FAILS(INVALID, rdzv_rendezvous_handler_set_cancel_token(NULL, NULL, &error));
  rdzv_rendezvous_handler_cancel(NULL);
  rdzv_rendezvous_handler_free(NULL);
  rdzv_rendezvous_free(NULL);
  CHECK(rdzv_rendezvous_handler_backend(NULL, NULL) == NULL && rdzv_rendezvous_handler_run_id(NULL, NULL) == NULL);
  CHECK_NUMBER(rdzv_rendezvous_handler_use_agent_store(NULL), 0);
  rdzv_store *store = NULL;
  FAILS(INVALID, rdzv_store_new_rendezvous(NULL, &store, &error));
  rdzv_rendezvous_info learned = {.struct_size = sizeof learned, .rank = 77};
  FAILS(INVALID, rdzv_rendezvous_get_info(NULL, &learned, &error));
  CHECK_NUMBER(learned.rank, 77);

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
