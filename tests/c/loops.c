// Stores in an event loop: the loop's descriptor is all that is watched here, and no call blocks.
#include "check.h"
#include "ops.h"
#include "peers.h"
#include "tests.h"

#include <stddef.h>

// A loop with one store and one operation in it.
struct looped {
  rdzv_loop *loop;
  rdzv_loop_member *store;
  rdzv_op *op;
};

static struct looped loop_at(uint16_t port) {
  rdzv_store_options options = options_for(port);
  struct looped made = {NULL, NULL, rdzv_op_new(NULL)};
  OK(rdzv_loop_new(NULL, &made.loop, &error));
  OK(rdzv_loop_add_store(made.loop, &options, NULL, &made.store, &error));
  CHECK(made.loop != NULL && made.store != NULL);
  // They were copied.
  return made;
}

static void end_loop(struct looped at) {
  rdzv_loop_free(at.loop);
  rdzv_op_free(at.op);
}

void loops_do_every_operation(void) {
  rdzv_server *server = start_server(NULL);
  const struct looped at = loop_at(rdzv_server_port(server));
  rdzv_loop *loop = at.loop;
  rdzv_op *op = at.op;
  const int fd = rdzv_loop_fd(loop);
  CHECK(fd >= 0);
  const rdzv_bytes keys[] = {BYTES("x"), BYTES("y")};
  const rdzv_bytes values[] = {BYTES("1"), {NULL, 0}};
  const rdzv_bytes missing[] = {BYTES("nowhere")};
  rdzv_result result;

#define DONE(prepare)                          \
  do {                                         \
    SUBMIT(at.store, op, -1, prepare);         \
    result = await_success_of(loop, op);       \
  } while (false)
  DONE(rdzv_op_ping(op, &error));
  DONE(rdzv_op_num_keys(op, &error));
  CHECK_NUMBER(result.count, 0);
  DONE(rdzv_op_multi_set(op, keys, values, 2, &error));
  DONE(rdzv_op_multi_get(op, keys, 2, &error));
  CHECK_NUMBER((long long)result.item_count, 2);
  CHECK_RESULT_ITEM(result, 0, "1");
  CHECK_RESULT_ITEM(result, 1, "");
  DONE(rdzv_op_list_keys(op, &error));
  CHECK_NUMBER((long long)result.item_count, 2);
  DONE(rdzv_op_wait(op, keys, 2, &error));
  DONE(rdzv_op_check(op, keys, 2, &error));
  CHECK_NUMBER(result.ready, 1);
  DONE(rdzv_op_check(op, missing, 1, &error));
  CHECK_NUMBER(result.ready, 0);
  DONE(rdzv_op_delete_key(op, TEXT("x"), &error));
  CHECK_NUMBER(result.deleted, 1);
  DONE(rdzv_op_delete_key(op, TEXT("x"), &error));
  CHECK_NUMBER(result.deleted, 0);
  DONE(rdzv_op_set(op, TEXT("key"), TEXT("value"), &error));
  DONE(rdzv_op_append(op, TEXT("key"), TEXT("s"), &error));
  DONE(rdzv_op_get(op, TEXT("key"), &error));
  CHECK_VALUE(result, "values");
  DONE(rdzv_op_add(op, TEXT("counter"), -3, &error));
  CHECK_NUMBER(result.sum, -3);
  DONE(rdzv_op_compare_set(op, TEXT("leader"), NULL, 0, TEXT("ada"), &error));
  CHECK_VALUE(result, "ada");
  DONE(rdzv_op_queue_push(op, TEXT("jobs"), TEXT("first"), &error));
  DONE(rdzv_op_queue_len(op, TEXT("jobs"), &error));
  CHECK_NUMBER(result.count, 1);
  DONE(rdzv_op_queue_pop(op, TEXT("jobs"), &error));
  CHECK_VALUE(result, "first");
  DONE(rdzv_op_barrier(op, TEXT("alone"), 1, &error));

  // What is pending holds up nothing that comes later, and ends when its time has come. Each event has the pointers of its
  // member and of its operation.
  int mark = 0;
  rdzv_op *wait = rdzv_op_new(&mark);
  SUBMIT(at.store, wait, -1, rdzv_op_get(wait, TEXT("later"), &error));
  DONE(rdzv_op_add(op, TEXT("counter"), 1, &error));
  CHECK_NUMBER(result.sum, -2);
  await_waiting(server, 1);
  rdzv_store *other = connect_store(NULL, rdzv_server_port(server));
  OK(rdzv_store_set(other, TEXT("later"), TEXT("now"), -1, &error));
  rdzv_store_free(other);
  const rdzv_event event = await_event(loop);
  CHECK(event.op == wait && event.op_data == &mark && event.member == at.store && event.member_data == NULL);
  CHECK_VALUE(result_of(wait), "now");
  CHECK_NUMBER(rdzv_loop_fd(loop), fd);

  // While it is under way, an operation is not used otherwise; a member that is removed reports nothing any more.
  SUBMIT(at.store, wait, -1, rdzv_op_get(wait, TEXT("never"), &error));
  FAILS(RDZV_REENTRANT, rdzv_op_get(wait, TEXT("other"), &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_submit(at.store, wait, -1, &error));
  rdzv_store *blocking = connect_store(NULL, rdzv_server_port(server));
  FAILS(RDZV_REENTRANT, rdzv_store_perform(blocking, wait, -1, &error));
  rdzv_result none = {.struct_size = sizeof none};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_op_get_result(wait, &none, &error));
  OK(rdzv_loop_remove(at.store, &error));
  rdzv_event last = {.struct_size = sizeof last};
  OK(rdzv_loop_poll(loop, &error));
  OK(rdzv_loop_next_event(loop, &last, &error));
  CHECK_NUMBER(last.kind, RDZV_EVENT_NONE);
  PERFORM(blocking, wait, rdzv_op_ping(wait, &error));
  rdzv_store_free(blocking);
  await_waiting(server, 0);

  // An operation that is freed while it is under way has no event.
  rdzv_store_options options = options_for(rdzv_server_port(server));
  rdzv_loop_member *again = NULL;
  OK(rdzv_loop_add_store(loop, &options, &mark, &again, &error));
  SUBMIT(again, wait, -1, rdzv_op_set(wait, TEXT("freed"), TEXT("v"), &error));
  rdzv_op_free(wait);
  SUBMIT(again, op, -1, rdzv_op_get(op, TEXT("freed"), &error));
  CHECK_VALUE(await_success_of(loop, op), "v");
  // An operation outlives its loop.
  SUBMIT(again, op, -1, rdzv_op_get(op, TEXT("never"), &error));
  rdzv_loop_free(loop);
  OK(rdzv_op_ping(op, &error));
  rdzv_op_free(op);
  rdzv_server_free(server);
}

// The next event ends the operation with this failure, which names its one key.
static void await_failure(struct looped at, struct failure wanted) {
  const rdzv_result result = await_op(at.loop, at.op);
  check_failure(__FILE__, __LINE__, wanted.operation, result.status, result.error, wanted);
  CHECK(result.value == NULL && result.value_len == 0 && result.item_count == 0);
  // The key as the program named it.
  CHECK(info_of(result.error).key_count == 1);
  CHECK_KEY(result.error, 0, wanted.message_part);
}

static void peer_fails(enum conduct conduct, int64_t timeout_ms, rdzv_status status) {
  struct peer *peer = peer_start(conduct);
  const struct looped at = loop_at(peer_port(peer));
  SUBMIT(at.store, at.op, timeout_ms, rdzv_op_get(at.op, TEXT("key"), &error));
  await_failure(at, (struct failure){status, "get", peer_text(peer_port(peer)), NULL, "key"});
  end_loop(at);
  peer_stop(peer);
}

void loop_events_tell_of_failures(void) {
  rdzv_server *server = start_server(NULL);
  const struct looped at = loop_at(rdzv_server_port(server));
  const char *peer = rdzv_server_address(server);
  // The store is connected before the time of the first request begins.
  SUBMIT(at.store, at.op, -1, rdzv_op_ping(at.op, &error));
  await_success_of(at.loop, at.op);
  SUBMIT(at.store, at.op, 300, rdzv_op_get(at.op, TEXT("key"), &error));
  await_failure(at, (struct failure){RDZV_TIMED_OUT, "get", peer, "waiting", "key"});
  SUBMIT(at.store, at.op, 0, rdzv_op_queue_pop(at.op, TEXT("key"), &error));
  await_failure(at, (struct failure){RDZV_QUEUE_EMPTY, "queue_pop", peer, NULL, "key"});
  SUBMIT(at.store, at.op, -1, rdzv_op_barrier(at.op, TEXT("key"), 2, &error));
  OK(rdzv_loop_cancel(at.loop, at.op, &error));
  await_failure(at, (struct failure){RDZV_CANCELLED, "barrier", peer, NULL, "key"});
  // An operation that is over, or was never submitted, is ignored.
  OK(rdzv_loop_cancel(at.loop, at.op, &error));
  OK(rdzv_op_wait(at.op, (rdzv_bytes[]){BYTES("never")}, 1, &error));
  OK(rdzv_loop_cancel(at.loop, at.op, &error));
  OK(rdzv_loop_submit(at.store, at.op, -1, &error));
  // Polls until the wait has reached the server.
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  rdzv_server_stats stats = {.struct_size = sizeof stats};
  while (stats.waiting == 0) {
    CHECK(now_ms() < deadline_ms);
    OK(rdzv_loop_poll(at.loop, &error));
    OK(rdzv_server_get_stats(server, &stats, &error));
  }
  OK(rdzv_server_stop(server, &error));
  await_failure(at, (struct failure){RDZV_SERVER_GONE, "wait", peer, NULL, "never"});
  end_loop(at);
  rdzv_server_free(server);

  peer_fails(ACCEPTS_AND_IS_SILENT, 100, RDZV_TIMED_OUT);
  peer_fails(IGNORES_REQUESTS, 100, RDZV_TIMED_OUT);
  peer_fails(ANSWERS_GARBAGE, PATIENCE_MS, RDZV_WRONG_PROTOCOL);
  peer_fails(ANSWERS_AN_IMPOSSIBLE_LENGTH, PATIENCE_MS, RDZV_WRONG_PROTOCOL);
  peer_fails(ENDS_WITHIN_A_VALUE, PATIENCE_MS, RDZV_SERVER_GONE);
}

void loops_refuse_bad_arguments(void) {
  const rdzv_status INVALID = RDZV_INVALID_ARGUMENT;
  rdzv_server *server = start_server(NULL);
  rdzv_store_options options = {.struct_size = sizeof options, .port = rdzv_server_port(server)};
  rdzv_loop *loop = NULL;
  rdzv_loop_member *store = NULL;
  rdzv_op *op = rdzv_op_new(NULL);
  FAILS(INVALID, rdzv_loop_new(NULL, NULL, &error));
  OK(rdzv_loop_new(NULL, &loop, &error));
  FAILS(INVALID, rdzv_loop_poll(NULL, &error));
  rdzv_event event = {.struct_size = sizeof event, .kind = 77};
  FAILS(INVALID, rdzv_loop_next_event(NULL, &event, &error));
  FAILS(INVALID, rdzv_loop_next_event(loop, NULL, &error));
  event.struct_size = sizeof event - 1;
  FAILS(INVALID, rdzv_loop_next_event(loop, &event, &error));
  CHECK(event.kind == 77 && event.struct_size == sizeof event - 1);
  FAILS(INVALID, rdzv_loop_add_store(NULL, &options, NULL, &store, &error));
  FAILS(INVALID, rdzv_loop_add_store(loop, NULL, NULL, &store, &error));
  // There is no endpoint yet.
  FAILS(INVALID, rdzv_loop_add_store(loop, &options, NULL, &store, &error));
  options.host = "127.0.0.1";
  FAILS(INVALID, rdzv_loop_add_store(loop, &options, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_remove(NULL, &error));
  FAILS(INVALID, rdzv_loop_cancel(NULL, op, &error));
  FAILS(INVALID, rdzv_loop_cancel(loop, NULL, &error));
  CHECK(store == NULL);
  OK(rdzv_loop_add_store(loop, &options, NULL, &store, &error));
  FAILS(INVALID, rdzv_loop_submit(store, op, -1, &error));
  OK(rdzv_op_ping(op, &error));
  FAILS(INVALID, rdzv_loop_submit(NULL, op, -1, &error));
  FAILS(INVALID, rdzv_loop_submit(store, NULL, -1, &error));
  FAILS(INVALID, rdzv_loop_submit(store, op, -2, &error));
  rdzv_loop_free(NULL);
  CHECK_NUMBER(rdzv_loop_fd(NULL), -1);
  rdzv_loop_free(loop);
  rdzv_op_free(op);
  rdzv_server_free(server);
}
