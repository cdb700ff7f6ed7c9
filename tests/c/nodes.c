// Nodes of a rendezvous in an event loop: several in one loop and one thread.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <stdio.h>
#include <string.h>

// The next event that says more than that a session is open, or where a node waits.
static rdzv_event next_news(rdzv_loop *loop) {
  for (;;) {
    const rdzv_event event = await_event(loop);
    if (event.kind != RDZV_EVENT_SESSION_OPEN && event.kind != RDZV_EVENT_NODE_SEATED) return event;
  }
}

// The next news is the end of this operation.
static rdzv_result end_of(rdzv_loop *loop, const rdzv_op *op) {
  const rdzv_event event = next_news(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
  CHECK(event.op == op);
  return result_of(op);
}

static rdzv_result success_of(rdzv_loop *loop, const rdzv_op *op) {
  const rdzv_result result = end_of(loop, op);
  if (result.status != RDZV_OK) FAIL("%s", rdzv_error_message(result.error));
  return result;
}

// The same, after any number of events of the round.
static rdzv_result end_after_rounds(rdzv_loop *loop, const rdzv_op *op) {
  rdzv_event event;
  do event = next_news(loop);
  while (event.kind == RDZV_EVENT_ROUND);
  CHECK(event.kind == RDZV_EVENT_COMPLETED && event.op == op);
  return result_of(op);
}

static rdzv_loop_member *add_node(rdzv_loop *loop, const rdzv_server *server, const char *name, const char *more,
                                  void *user_data) {
  char endpoint[32], options[128];
  snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)rdzv_server_port(server));
  snprintf(options, sizeof options, "node=%s,local_world_size=2,min_to_continue=1%s", name, more);
  const rdzv_rendezvous_parameters parameters = {.struct_size = sizeof parameters,
                                                 .backend = "rdzv",
                                                 .endpoint = endpoint,
                                                 .run_id = "run",
                                                 .min_nodes = 2,
                                                 .config = options};
  rdzv_loop_member *node = NULL;
  OK(rdzv_loop_add_node(loop, &parameters, user_data, &node, &error));
  CHECK(node != NULL);
  return node;
}

void nodes_of_a_loop_meet_die_and_meet_again(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  int marks[2] = {0, 1};
  rdzv_loop_member *nodes[] = {add_node(loop, server, "ada", "", &marks[0]),
                               add_node(loop, server, "bob", "", &marks[1])};
  rdzv_op *ops[] = {rdzv_op_new(&marks[0]), rdzv_op_new(&marks[1])};
  rdzv_op *op = ops[0];
  for (int i = 0; i < 2; ++i) SUBMIT(nodes[i], ops[i], -1, rdzv_op_next_rendezvous(ops[i], &error));
  uint32_t ranks = 0;
  rdzv_round round = {.struct_size = sizeof round};
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = next_news(loop);
    CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
    CHECK(event.op_data == event.member_data && event.op == ops[*(int *)event.member_data]);
    if (result_of(event.op).status != RDZV_OK) FAIL("%s", rdzv_error_message(result_of(event.op).error));
    OK(rdzv_op_get_round(event.op, &round, &error));
    CHECK_NUMBER(round.struct_size, sizeof round);
    CHECK(round.round == 0 && round.nodes == 2 && round.world_size == 4);
    CHECK(round.rank_first == 2 * round.node_rank && round.leader_len > 0);
    ranks += 1U << round.node_rank;
  }
  CHECK_NUMBER(ranks, 3);

  // The keys of the round, over the node's own session.
  char key[128];
  snprintf(key, sizeof key, "%.*smine", (int)round.key_prefix_len, (const char *)round.key_prefix);
  SUBMIT(nodes[0], op, -1, rdzv_op_set(op, TEXT(key), TEXT("v"), &error));
  success_of(loop, op);

  SUBMIT(nodes[0], op, -1, rdzv_op_run_info(op, &error));
  success_of(loop, op);
  rdzv_run_info info = {.struct_size = sizeof info};
  OK(rdzv_op_get_run_info(op, &info, &error));
  CHECK(info.complete == 1 && info.closed == 0 && info.nodes == 2 && info.nodes_waiting == 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_op_get_round(op, &round, &error));
  SUBMIT(nodes[0], op, -1, rdzv_op_members(op, 0, 0, 8, &error));
  success_of(loop, op);
  rdzv_round_member member = {.struct_size = sizeof member};
  OK(rdzv_op_get_member(op, 1, &member, &error));
  CHECK(member.node_rank == 1 && member.local_world_size == 2 && member.rank_first == 2 && member.node_len == 3);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_op_get_member(op, 2, &member, &error));

  // Barriers release all, or name who is missing.
  for (int i = 0; i < 2; ++i)
    SUBMIT(nodes[i], ops[i], -1, rdzv_op_named_barrier(ops[i], TEXT("epoch"), 0, NULL, 0, 2, NULL, 0, &error));
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = next_news(loop);
    CHECK(event.kind == RDZV_EVENT_COMPLETED);
    CHECK(result_of(event.op).status == RDZV_OK && result_of(event.op).generation == 1);
  }
  const rdzv_bytes both[] = {BYTES("ada"), BYTES("bob")};
  SUBMIT(nodes[0], op, 50, rdzv_op_named_barrier(op, TEXT("epoch"), 0, NULL, 0, 0, both, 2, &error));
  const rdzv_result late = end_of(loop, op);
  CHECK_NUMBER(late.status, RDZV_TIMED_OUT);
  CHECK_NODE(late.error, 0, "bob");

  // A death is reported, and the survivor goes on alone.
  OK(rdzv_loop_remove(nodes[1], &error));
  const rdzv_event event = next_news(loop);
  CHECK(event.kind == RDZV_EVENT_ROUND && event.member == nodes[0]);
  check_bytes(__FILE__, __LINE__, event.round_event->node, event.round_event->node_len, "bob");
  CHECK(event.round_event->message == NULL && event.round_event->message_len == 0);
  CHECK(event.round_event->kind == RDZV_ROUND_EVENT_PEER_DIED && event.round_event->why == RDZV_WHY_CONNECTION);
  CHECK(event.round_event->struct_size == sizeof *event.round_event);
  rdzv_buffer *description = rdzv_buffer_new();
  OK(rdzv_round_event_describe(event.round_event, description, &error));
  rdzv_buffer_free(description);
  SUBMIT(nodes[0], op, -1, rdzv_op_next_rendezvous(op, &error));
  success_of(loop, op);
  OK(rdzv_op_get_round(op, &round, &error));
  CHECK(round.round == 1 && round.nodes == 1 && round.node_rank == 0);

  // A closed run is closed for all, and a node that ends its session leaves.
  SUBMIT(nodes[0], op, -1, rdzv_op_set_closed(op, &error));
  CHECK_NUMBER(end_after_rounds(loop, op).status, RDZV_OK);
  SUBMIT(nodes[0], op, -1, rdzv_op_fail(op, TEXT("code 1"), &error));
  CHECK_NUMBER(end_after_rounds(loop, op).status, RDZV_OK);
  rdzv_loop_member *eve = add_node(loop, server, "eve", "", NULL);
  SUBMIT(eve, ops[1], -1, rdzv_op_next_rendezvous(ops[1], &error));
  CHECK_NUMBER(end_after_rounds(loop, ops[1]).status, RDZV_RENDEZVOUS_CLOSED);
  SUBMIT(nodes[0], op, -1, rdzv_op_end_session(op, &error));
  success_of(loop, op);
  const rdzv_event last = next_news(loop);
  CHECK(last.kind == RDZV_EVENT_SESSION_OVER && last.error == NULL && last.member == nodes[0]);
  rdzv_loop_free(loop);
  for (int i = 0; i < 2; ++i) rdzv_op_free(ops[i]);
  rdzv_server_free(server);
}

void failure_of_a_job_reaches_the_other_nodes(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_loop_member *nodes[] = {add_node(loop, server, "ada", "", NULL), add_node(loop, server, "bob", "", NULL)};
  rdzv_op *ops[] = {rdzv_op_new(NULL), rdzv_op_new(NULL)};
  for (int i = 0; i < 2; ++i) SUBMIT(nodes[i], ops[i], -1, rdzv_op_next_rendezvous(ops[i], &error));
  for (int i = 0; i < 2; ++i) CHECK(next_news(loop).kind == RDZV_EVENT_COMPLETED);
  SUBMIT(nodes[0], ops[0], -1, rdzv_op_fail(ops[0], TEXT("code 1"), &error));
  rdzv_event event;
  do event = next_news(loop);
  while (event.member != nodes[1] || event.kind != RDZV_EVENT_ROUND ||
         event.round_event->kind != RDZV_ROUND_EVENT_JOB_FAILED);
  check_bytes(__FILE__, __LINE__, event.round_event->message, event.round_event->message_len, "code 1");
  CHECK(event.round_event->node == NULL && event.round_event->node_len == 0);
  rdzv_loop_free(loop);
  for (int i = 0; i < 2; ++i) rdzv_op_free(ops[i]);
  rdzv_server_free(server);
}

void nodes_of_a_loop_fail_with_the_reason(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_op *op = rdzv_op_new(NULL), *again = rdzv_op_new(NULL);
  rdzv_loop_member *node = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_node(loop, NULL, NULL, &node, &error));
  // What a loop does not do is refused, with what to do.
  rdzv_rendezvous_parameters refused = {.struct_size = sizeof refused,
                                        .backend = "static",
                                        .endpoint = "127.0.0.1:1",
                                        .run_id = "run",
                                        .config = "rank=0"};
  FAILS_LIKE(((struct failure){.status = RDZV_INVALID_ARGUMENT, .message_part = "Use a rendezvous handler for 'static'"}),
             rdzv_loop_add_node(loop, &refused, NULL, &node, &error));
  refused.backend = "rdzv";
  refused.config = "is_host=1";
  FAILS_LIKE(((struct failure){.status = RDZV_INVALID_ARGUMENT, .message_part = "'is_host'. Start the server first"}),
             rdzv_loop_add_node(loop, &refused, NULL, &node, &error));
  CHECK(node == NULL);
  node = add_node(loop, server, "ada", ",join_timeout=3", NULL);
  const struct failure invalid = {.status = RDZV_INVALID_ARGUMENT,
                                  .operation = "leave",
                                  .message_part = "is not possible now: the node is in no round"};
  const struct failure unsupported = {.status = RDZV_UNSUPPORTED};
  SUBMIT_FAILS_LIKE(invalid, node, op, rdzv_op_leave(op, &error));
  SUBMIT_FAILS_LIKE(unsupported, node, op, rdzv_op_barrier(op, TEXT("b"), 1, &error));
  SUBMIT(node, op, -1, rdzv_op_next_rendezvous(op, &error));
  const rdzv_result late = end_of(loop, op);
  CHECK_NUMBER(late.status, RDZV_RENDEZVOUS_TIMED_OUT);
  CHECK_TEXT(info_of(late.error).operation, "next_rendezvous");
  OK(rdzv_loop_submit(node, op, -1, &error));
  const struct failure twice = {.status = RDZV_INVALID_ARGUMENT,
                                .operation = "next_rendezvous",
                                .message_part = "the node is joining already; wait until that operation has ended"};
  SUBMIT_FAILS_LIKE(twice, node, again, rdzv_op_next_rendezvous(again, &error));
  OK(rdzv_loop_cancel(loop, op, &error));
  CHECK_NUMBER(end_of(loop, op).status, RDZV_CANCELLED);
  SUBMIT(node, op, -1, rdzv_op_get(op, TEXT("never"), &error));
  OK(rdzv_server_stop(server, &error));
  rdzv_event event;
  do event = next_news(loop);
  while (event.kind != RDZV_EVENT_COMPLETED);
  CHECK_NUMBER(result_of(op).status, RDZV_SERVER_GONE);
  event = next_news(loop);
  CHECK_NUMBER(event.kind, RDZV_EVENT_SESSION_OVER);
  CHECK_NUMBER(rdzv_error_status(event.error), RDZV_RENDEZVOUS_CONNECTION);
  const struct failure gone = {.status = RDZV_SERVER_GONE};
  SUBMIT_FAILS_LIKE(gone, node, op, rdzv_op_run_info(op, &error));
  // A node that has never reached a server ends at once.
  OK(rdzv_loop_remove(node, &error));
  const long long began_ms = now_ms();
  node = add_node(loop, server, "bob", "", NULL);
  SUBMIT(node, op, -1, rdzv_op_end_session(op, &error));
  CHECK_NUMBER(end_of(loop, op).status, RDZV_OK);
  CHECK(now_ms() - began_ms < PATIENCE_MS / 10);
  rdzv_loop_free(loop);
  rdzv_op_free(again);
  rdzv_op_free(op);
  rdzv_server_free(server);
}
