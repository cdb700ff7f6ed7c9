// Nodes of a rendezvous in an event loop: several in one loop and one thread.
#include "check.h"
#include "operations.h"
#include "tests.h"

#include <stdio.h>
#include <string.h>

// The next event that says more than that a session is open, or where a node waits.
static rdzv_event next_news(rdzv_loop *loop) {
  for (;;) {
    const rdzv_event event = await_event(loop);
    if (event.kind != RDZV_EVENT_NODE_OPEN && event.kind != RDZV_EVENT_NODE_SEATED) return event;
  }
}

static rdzv_event end_of(rdzv_loop *loop, uint64_t operation) {
  const rdzv_event event = next_news(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  return event;
}

static rdzv_event success_of(rdzv_loop *loop, uint64_t operation) {
  const rdzv_event event = end_of(loop, operation);
  if (event.status != RDZV_OK) FAIL("%s", rdzv_error_message(event.error));
  return event;
}

static uint32_t add_node(rdzv_loop *loop, const rdzv_server *server, const char *name, const char *more) {
  char endpoint[32], options[128];
  snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)rdzv_server_port(server));
  snprintf(options, sizeof options, "node=%s,local_world_size=2,min_to_continue=1%s", name, more);
  rdzv_rendezvous_parameters *parameters = NULL;
  OK(rdzv_rendezvous_parameters_new(TEXT("rdzv"), TEXT(endpoint), TEXT("run"), 2, 2, &parameters, &error));
  OK(rdzv_rendezvous_parameters_set_config(parameters, TEXT(options), &error));
  uint32_t node = 0;
  OK(rdzv_loop_add_node(loop, parameters, &node, &error));
  CHECK(node > 0);
  rdzv_rendezvous_parameters_free(parameters);
  return node;
}

void nodes_of_a_loop_meet_die_and_meet_again(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  const uint32_t nodes[] = {add_node(loop, server, "ada", ""), add_node(loop, server, "bob", "")};
  uint64_t joins[2] = {0, 0}, operation = 0;
  for (int i = 0; i < 2; ++i) OK(rdzv_loop_node_next_rendezvous(loop, nodes[i], &joins[i], &error));
  uint32_t ranks = 0;
  rdzv_round round = {.struct_size = sizeof round};
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = next_news(loop);
    CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
    if (event.status != RDZV_OK) FAIL("%s", rdzv_error_message(event.error));
    CHECK(event.operation == joins[event.store == nodes[1]]);
    OK(rdzv_loop_round(loop, &round, &error));
    CHECK_NUMBER(round.struct_size, sizeof round);
    CHECK(round.round == 0 && round.nodes == 2 && round.world_size == 4);
    CHECK(round.rank_first == 2 * round.node_rank && round.leader_len > 0);
    ranks += 1U << round.node_rank;
  }
  CHECK_NUMBER(ranks, 3);

  // The keys of the round, over the node's own session.
  char key[128];
  snprintf(key, sizeof key, "%.*smine", (int)round.key_prefix_len, (const char *)round.key_prefix);
  OK(rdzv_loop_store_set(loop, nodes[0], TEXT(key), TEXT("v"), -1, &operation, &error));
  success_of(loop, operation);

  OK(rdzv_loop_node_run_info(loop, nodes[0], -1, &operation, &error));
  success_of(loop, operation);
  rdzv_run_info info = {.struct_size = sizeof info};
  OK(rdzv_loop_run_info(loop, &info, &error));
  CHECK(info.complete == 1 && info.closed == 0 && info.nodes == 2 && info.nodes_waiting == 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_round(loop, &round, &error));
  OK(rdzv_loop_node_members(loop, nodes[0], 0, 0, 8, -1, &operation, &error));
  CHECK_NUMBER((long long)success_of(loop, operation).item_count, 2);
  rdzv_member member = {.struct_size = sizeof member};
  OK(rdzv_loop_member(loop, 1, &member, &error));
  CHECK(member.node_rank == 1 && member.local_world_size == 2 && member.rank_first == 2 && member.node_len == 3);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_member(loop, 2, &member, &error));

  // Barriers release all, or name who is missing.
  uint64_t arrivals[2] = {0, 0};
  for (int i = 0; i < 2; ++i)
    OK(rdzv_loop_node_barrier(loop, nodes[i], TEXT("epoch"), 2, NULL, 0, -1, &arrivals[i], &error));
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = next_news(loop);
    CHECK(event.kind == RDZV_EVENT_COMPLETED && event.status == RDZV_OK && event.number == 1);
  }
  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  OK(rdzv_loop_node_barrier(loop, nodes[0], TEXT("epoch"), 0, both, 2, 50, &operation, &error));
  rdzv_event event = end_of(loop, operation);
  CHECK_NUMBER(event.status, RDZV_TIMED_OUT);
  size_t len = 0;
  const uint8_t *missing = rdzv_error_node(event.error, 0, &len);
  check_bytes(__FILE__, __LINE__, missing, len, "bob");

  // A death is told, and the survivor goes on alone.
  OK(rdzv_loop_remove_node(loop, nodes[1], &error));
  event = next_news(loop);
  CHECK(event.kind == RDZV_EVENT_ROUND && event.store == nodes[0]);
  check_bytes(__FILE__, __LINE__, event.data, event.len, "bob");
  rdzv_round_event happened = {.struct_size = sizeof happened};
  OK(rdzv_loop_round_event(loop, &happened, &error));
  CHECK(happened.kind == RDZV_ROUND_EVENT_PEER_DIED && happened.why == RDZV_WHY_CONNECTION);
  OK(rdzv_loop_node_next_rendezvous(loop, nodes[0], &operation, &error));
  success_of(loop, operation);
  OK(rdzv_loop_round(loop, &round, &error));
  CHECK(round.round == 1 && round.nodes == 1 && round.node_rank == 0);

  // A closed run is closed for all, and a goodbye is heard.
  OK(rdzv_loop_node_set_closed(loop, nodes[0], -1, &operation, &error));
  while ((event = next_news(loop)).kind == RDZV_EVENT_ROUND) {
  }
  CHECK(event.operation == operation && event.status == RDZV_OK);
  OK(rdzv_loop_node_fail(loop, nodes[0], (const uint8_t *)"code 1", 6, -1, &operation, &error));
  while ((event = next_news(loop)).kind == RDZV_EVENT_ROUND) {
  }
  CHECK(event.operation == operation && event.status == RDZV_OK);
  const uint32_t late = add_node(loop, server, "eve", "");
  OK(rdzv_loop_node_next_rendezvous(loop, late, &operation, &error));
  while ((event = next_news(loop)).store != late) {
  }
  CHECK_NUMBER(event.status, RDZV_RENDEZVOUS_CLOSED);
  OK(rdzv_loop_node_shutdown(loop, nodes[0], -1, &operation, &error));
  success_of(loop, operation);
  event = next_news(loop);
  CHECK(event.kind == RDZV_EVENT_NODE_OVER && event.status == RDZV_OK && event.store == nodes[0]);
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}

void nodes_of_a_loop_fail_with_the_reason(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  uint64_t operation = 0;
  uint32_t node = 77;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_node(loop, NULL, &node, &error));
  CHECK_NUMBER(node, 77);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_node_next_rendezvous(loop, 1, &operation, &error));
  node = add_node(loop, server, "ada", ",join_timeout=1");
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_node_next_rendezvous(loop, node, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_node_leave(loop, node, -1, &operation, &error));
  FAILS(RDZV_UNSUPPORTED, rdzv_loop_store_barrier(loop, node, TEXT("b"), 1, -1, &operation, &error));
  OK(rdzv_loop_node_next_rendezvous(loop, node, &operation, &error));
  rdzv_event event = end_of(loop, operation);
  CHECK_NUMBER(event.status, RDZV_RENDEZVOUS_TIMED_OUT);
  CHECK(strcmp(rdzv_error_operation(event.error), "join") == 0);
  OK(rdzv_loop_node_next_rendezvous(loop, node, &operation, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_node_next_rendezvous(loop, node, &operation, &error));
  OK(rdzv_loop_cancel(loop, node, operation, &error));
  CHECK_NUMBER(end_of(loop, operation).status, RDZV_CANCELLED);
  OK(rdzv_loop_store_get(loop, node, TEXT("never"), -1, &operation, &error));
  OK(rdzv_server_stop(server, &error));
  do event = next_news(loop);
  while (event.kind != RDZV_EVENT_COMPLETED);
  CHECK_NUMBER(event.status, RDZV_SERVER_GONE);
  event = next_news(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_NODE_OVER);
  CHECK_NUMBER(event.status, RDZV_RENDEZVOUS_CONNECTION);
  FAILS(RDZV_SERVER_GONE, rdzv_loop_node_run_info(loop, node, -1, &operation, &error));
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}
