// Nodes of the rdzv backend: their names, the keys and numbers of their rounds, and how a handler goes.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <pthread.h>
#include <time.h>

// A node that joins in a thread of its own.
struct node {
  rdzv_rendezvous_handler *handler;
  rdzv_rendezvous *info;
  rdzv_status outcome;
  rdzv_error *error;
  struct group *group;
  bool has_returned;
};

// Two nodes whose test waits for the first one that returns.
struct group {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  struct node nodes[2];
};

static rdzv_rendezvous_handler *new_handler(rdzv_context *context, uint16_t port, int64_t nodes, const char *options) {
  static const rdzv_pair always[] = {{"is_host", "0"}, {"join_timeout", "20"}};
  const rdzv_rendezvous_parameters parameters = {.struct_size = sizeof parameters,
                                                 .backend = "rdzv",
                                                 .endpoint = peer_text(port),
                                                 .run_id = "run",
                                                 .min_nodes = nodes,
                                                 .config = options,
                                                 .options = always,
                                                 .option_count = 2};
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(context, &parameters, &handler, &error));
  return handler;
}

static rdzv_server *server_at(uint16_t port) {
  const rdzv_server_options options = {.struct_size = sizeof options, .host = "127.0.0.1", .port = port};
  rdzv_server *server = NULL;
  OK(rdzv_server_new(NULL, &options, &server, &error));
  return server;
}

static void *join(void *argument) {
  struct node *node = argument;
  node->outcome = rdzv_rendezvous_handler_next_rendezvous(node->handler, &node->info, &node->error);
  CHECK(pthread_mutex_lock(&node->group->mutex) == 0);
  node->has_returned = true;
  CHECK(pthread_cond_broadcast(&node->group->changed) == 0);
  CHECK(pthread_mutex_unlock(&node->group->mutex) == 0);
  return NULL;
}

// Both nodes join; returns the index of one that has returned.
static int begin_both(struct group *group, pthread_t threads[2]) {
  CHECK(pthread_mutex_init(&group->mutex, NULL) == 0 && pthread_cond_init(&group->changed, NULL) == 0);
  for (int i = 0; i < 2; ++i) {
    group->nodes[i].group = group;
    CHECK(pthread_create(&threads[i], NULL, join, &group->nodes[i]) == 0);
  }
  CHECK(pthread_mutex_lock(&group->mutex) == 0);
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += 2 * PATIENCE_MS / 1000;
  while (!group->nodes[0].has_returned && !group->nodes[1].has_returned) {
    CHECK(pthread_cond_timedwait(&group->changed, &group->mutex, &deadline) == 0);
  }
  const int first = group->nodes[0].has_returned ? 0 : 1;
  CHECK(pthread_mutex_unlock(&group->mutex) == 0);
  return first;
}

static void meet(struct group *group) {
  pthread_t threads[2];
  begin_both(group, threads);
  for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  for (int i = 0; i < 2; ++i) {
    check_success(__FILE__, __LINE__, "joining", group->nodes[i].outcome, group->nodes[i].error);
  }
}

static rdzv_rendezvous *next_round(rdzv_rendezvous_handler *handler) {
  rdzv_rendezvous *info = NULL;
  OK(rdzv_rendezvous_handler_next_rendezvous(handler, &info, &error));
  return info;
}

void nodes_of_two_contexts_are_two_nodes(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_context *contexts[2] = {NULL, NULL};
  struct group group = {0};
  for (int i = 0; i < 2; ++i) {
    contexts[i] = rdzv_context_new();
    group.nodes[i].handler = new_handler(contexts[i], rdzv_server_port(server), 2, "rank_order=host");
  }
  meet(&group);
  CHECK_NUMBER(joined_info(group.nodes[0].info).rank + joined_info(group.nodes[1].info).rank, 1);
  for (int i = 0; i < 2; ++i) {
    rdzv_rendezvous_free(group.nodes[i].info);
    rdzv_rendezvous_handler_free(group.nodes[i].handler);
    rdzv_context_free(contexts[i]);
  }
  rdzv_server_free(server);
}

void node_that_was_replaced_is_told_so(void) {
  rdzv_server *server = start_server(NULL);
  const uint16_t port = rdzv_server_port(server);
  struct group group = {0};
  for (int i = 0; i < 2; ++i) group.nodes[i].handler = new_handler(NULL, port, 2, "node=ada");
  pthread_t threads[2];
  const int gone = begin_both(&group, threads);
  CHECK(pthread_join(threads[gone], NULL) == 0);
  struct node *replaced = &group.nodes[gone], *other = &group.nodes[1 - gone];
  const struct failure wanted = {.status = RDZV_RENDEZVOUS_REPLACED,
                                 .message_part = "another session joined under this node's name"};
  check_failure(__FILE__, __LINE__, "joining", replaced->outcome, replaced->error, wanted);
  rdzv_error_free(replaced->error);
  // It must not come back, so that the two do not replace each other in turns; each attempt tells it why.
  for (int i = 0; i < 2; ++i) {
    FAILS_LIKE(wanted, rdzv_rendezvous_handler_next_rendezvous(replaced->handler, &replaced->info, &error));
  }
  // Its replacement has its place.
  rdzv_rendezvous_handler *bob = new_handler(NULL, port, 2, "node=bob");
  rdzv_rendezvous *info = next_round(bob);
  CHECK_NUMBER(joined_info(info).world_size, 2);
  CHECK(pthread_join(threads[1 - gone], NULL) == 0);
  check_success(__FILE__, __LINE__, "joining", other->outcome, other->error);
  rdzv_rendezvous_free(info);
  rdzv_rendezvous_free(other->info);
  rdzv_rendezvous_handler_free(bob);

  // Nor does it come back over a new session, when the server has gone and come back.
  rdzv_server_free(server);
  server = server_at(port);
  FAILS_LIKE(wanted, rdzv_rendezvous_handler_next_rendezvous(replaced->handler, &replaced->info, &error));
  // After it was shut down it begins anew.
  OK(rdzv_rendezvous_handler_shutdown(replaced->handler, NULL, &error));
  rdzv_rendezvous_handler *eve = new_handler(NULL, port, 2, "node=eve");
  struct group anew = {.nodes = {{.handler = replaced->handler}, {.handler = eve}}};
  meet(&anew);
  for (int i = 0; i < 2; ++i) {
    rdzv_rendezvous_free(anew.nodes[i].info);
    rdzv_rendezvous_handler_free(anew.nodes[i].handler);
  }
  rdzv_rendezvous_handler_free(other->handler);
  rdzv_server_free(server);
}

// A node in an event loop: adds it, joins, and returns its round. The prefix of its keys goes to `prefix`.
static uint64_t round_in_loop(rdzv_loop *loop, uint16_t port, char *prefix, size_t size) {
  const rdzv_rendezvous_parameters parameters = {
      .struct_size = sizeof parameters, .backend = "rdzv", .endpoint = peer_text(port), .run_id = "run"};
  rdzv_loop_member *node = NULL;
  OK(rdzv_loop_add_node(loop, &parameters, NULL, &node, &error));
  rdzv_op *op = rdzv_op_new(NULL);
  OK(rdzv_op_next_rendezvous(op, &error));
  OK(rdzv_loop_submit(node, op, -1, &error));
  rdzv_event event = await_event(loop);
  while (event.kind != RDZV_EVENT_COMPLETED) event = await_event(loop);
  CHECK(event.op == op && event.member == node);
  if (result_of(op).status != RDZV_OK) FAIL("%s", rdzv_error_message(result_of(op).error));
  rdzv_round round = {.struct_size = sizeof round};
  OK(rdzv_op_get_round(op, &round, &error));
  CHECK(round.key_prefix_len > 1 && round.key_prefix_len < size);
  memcpy(prefix, round.key_prefix, round.key_prefix_len);
  prefix[round.key_prefix_len] = '\0';
  const uint64_t number = round.round;
  rdzv_op_free(op);
  OK(rdzv_loop_remove(node, &error));
  return number;
}

// The key `name` beneath the prefix of a round.
static const char *key_beneath(const char *prefix, const char *name) {
  static char key[256];
  snprintf(key, sizeof key, "%s%s", prefix, name);
  return key;
}

// The server goes, and another one comes at its port. A worker of a round of the former one knows of nothing, and
// writes to the keys of its round.
static void restart(rdzv_server **server, uint16_t port, const char *prefix) {
  rdzv_server_free(*server);
  *server = server_at(port);
  rdzv_store *orphan = connect_store(NULL, port);
  OK(rdzv_store_set(orphan, TEXT(key_beneath(prefix, "rank0")), TEXT("of yore"), -1, &error));
  rdzv_store_free(orphan);
}

void round_of_a_restarted_server_has_its_own_keys_and_a_later_number(void) {
  rdzv_server *server = start_server(NULL);
  const uint16_t port = rdzv_server_port(server);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  char former[128], prefix[128];
  CHECK_NUMBER((long long)round_in_loop(loop, port, former, sizeof former), 0);

  // A loop remembers the rounds that it was in, also where its nodes are added anew.
  restart(&server, port, former);
  CHECK_NUMBER((long long)round_in_loop(loop, port, prefix, sizeof prefix), 1);
  CHECK(strcmp(prefix, former) != 0);
  rdzv_loop_free(loop);

  // So does a context, where handlers are made anew.
  rdzv_context *context = rdzv_context_new();
  for (int64_t round = 2; round < 5; ++round) {
    rdzv_rendezvous_handler *handler = new_handler(context, port, 1, "node=ada");
    rdzv_rendezvous *info = next_round(handler);
    CHECK_NUMBER(joined_info(info).round, round);
    rdzv_rendezvous_free(info);
    if (round == 3) restart(&server, port, former);
    if (round == 4) OK(rdzv_rendezvous_handler_shutdown(handler, NULL, &error));
    rdzv_rendezvous_handler_free(handler);
  }
  rdzv_context_free(context);

  // A program that was in no round before begins with round 0 of this server, whose keys are its own.
  restart(&server, port, former);
  rdzv_rendezvous_handler *handler = new_handler(NULL, port, 1, "node=bob");
  rdzv_rendezvous *info = next_round(handler);
  CHECK_NUMBER(joined_info(info).round, 0);
  rdzv_store *store = NULL;
  OK(rdzv_store_new_rendezvous(info, &store, &error));
  const rdzv_bytes key = BYTES("rank0");
  int32_t ready = 77;
  OK(rdzv_store_check(store, &key, 1, -1, &ready, &error));
  CHECK_NUMBER(ready, 0);
  rdzv_store_free(store);
  rdzv_rendezvous_free(info);
  // The same handler goes on where it was.
  restart(&server, port, former);
  info = next_round(handler);
  CHECK_NUMBER(joined_info(info).round, 1);
  rdzv_rendezvous_free(info);
  rdzv_rendezvous_handler_free(handler);
  rdzv_server_free(server);
}

void keys_written_before_a_round_opens_are_not_in_it(void) {
  rdzv_server *server = start_server(NULL);
  const uint16_t port = rdzv_server_port(server);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  char prefix[128];
  CHECK_NUMBER((long long)round_in_loop(loop, port, prefix, sizeof prefix), 0);
  rdzv_loop_free(loop);
  // The prefix of the round that follows ends in 1/.
  prefix[strlen(prefix) - 2] = '1';
  rdzv_store *early = connect_store(NULL, port);
  OK(rdzv_store_set(early, TEXT(key_beneath(prefix, "k")), TEXT("too early"), -1, &error));
  OK(store_queue_push(early, TEXT(key_beneath(prefix, "q")), TEXT("too early"), -1, &error));

  rdzv_rendezvous_handler *handler = new_handler(NULL, port, 1, "node=ada");
  rdzv_rendezvous *info = next_round(handler);
  CHECK_NUMBER(joined_info(info).round, 1);
  rdzv_store *store = NULL;
  OK(rdzv_store_new_rendezvous(info, &store, &error));
  const rdzv_bytes key = BYTES("k");
  int32_t ready = 77;
  OK(rdzv_store_check(store, &key, 1, -1, &ready, &error));
  CHECK_NUMBER(ready, 0);
  rdzv_op *op = rdzv_op_new(NULL);
  PERFORM(store, op, rdzv_op_queue_len(op, TEXT("q"), &error));
  CHECK_NUMBER(result_of(op).count, 0);
  rdzv_op_free(op);
  // It is that round: what is written there now can be read in it.
  OK(rdzv_store_set(early, TEXT(key_beneath(prefix, "k")), TEXT("in time"), -1, &error));
  OK(rdzv_store_check(store, &key, 1, -1, &ready, &error));
  CHECK_NUMBER(ready, 1);
  rdzv_store_free(store);
  rdzv_store_free(early);
  rdzv_rendezvous_free(info);
  rdzv_rendezvous_handler_free(handler);
  rdzv_server_free(server);
}

void handler_that_is_freed_leaves_its_round(void) {
  rdzv_server *server = start_server(NULL);
  const uint16_t port = rdzv_server_port(server);
  struct group group = {0};
  group.nodes[0].handler = new_handler(NULL, port, 2, "node=ada,min_to_continue=1");
  group.nodes[1].handler = new_handler(NULL, port, 2, "node=bob,min_to_continue=1");
  meet(&group);
  rdzv_store *store = NULL;
  OK(rdzv_store_new_rendezvous(group.nodes[0].info, &store, &error));
  OK(rdzv_store_set(store, TEXT("k"), TEXT("v"), -1, &error));
  rdzv_rendezvous_handler_free(group.nodes[0].handler);
  // A store of the round and what ada learned of it live on; bob hears of ada's end all the same.
  rdzv_round_event event = {.struct_size = sizeof event};
  rdzv_buffer *name = rdzv_buffer_new();
  OK(rdzv_rendezvous_handler_next_event(group.nodes[1].handler, PATIENCE_MS, &event, name, NULL, &error));
  CHECK_NUMBER(event.kind, RDZV_ROUND_EVENT_PEER_DIED);
  CHECK_BUFFER(name, "ada");
  rdzv_buffer_free(name);
  // The store's session ended with the handler, and says so.
  FAILS(RDZV_SERVER_GONE, rdzv_store_set(store, TEXT("k"), TEXT("w"), -1, &error));
  rdzv_store_free(store);
  for (int i = 0; i < 2; ++i) rdzv_rendezvous_free(group.nodes[i].info);
  rdzv_rendezvous_handler_free(group.nodes[1].handler);
  rdzv_server_free(server);
}

void minimum_to_continue_is_at_least_one(void) {
  rdzv_rendezvous_handler *handler = NULL;
  for (int64_t minimum = 0; minimum <= 3; ++minimum) {
    char config[32];
    snprintf(config, sizeof config, "min_to_continue=%d", (int)minimum);
    const rdzv_rendezvous_parameters parameters = {.struct_size = sizeof parameters,
                                                   .backend = "rdzv",
                                                   .endpoint = "127.0.0.1:1",
                                                   .run_id = "run",
                                                   .min_nodes = 2,
                                                   .max_nodes = 4,
                                                   .config = config};
    if (minimum == 1 || minimum == 2) {
      OK(rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));
      rdzv_rendezvous_handler_free(handler);
      handler = NULL;
    } else {
      char message[96];
      snprintf(message, sizeof message, "option 'min_to_continue' is %d, not from 1 to 2", (int)minimum);
      FAILS_LIKE(((struct failure){.status = RDZV_INVALID_ARGUMENT, .message_part = message}),
                 rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));
      CHECK(handler == NULL);
    }
  }
}
