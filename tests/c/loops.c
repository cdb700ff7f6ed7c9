// Stores in an event loop: the loop's descriptor is all that is watched here, and no call blocks.
#include "check.h"
#include "operations.h"
#include "peers.h"
#include "tests.h"

#include <stddef.h>

// A loop with one store in it.
struct looped {
  rdzv_loop *loop;
  uint32_t store;
};

static struct looped loop_with(rdzv_store_options *options) {
  struct looped made = {NULL, 0};
  OK(rdzv_loop_new(NULL, &made.loop, &error));
  OK(rdzv_loop_add_store(made.loop, options, &made.store, &error));
  CHECK(made.loop != NULL && made.store > 0);
  return made;
}

static struct looped loop_at(uint16_t port) {
  rdzv_store_options *options = options_for(port);
  const struct looped made = loop_with(options);
  // They were copied.
  rdzv_store_options_free(options);
  return made;
}

// The event of this operation, which comes next and ends well.
static rdzv_event await_success(struct looped at, uint64_t operation) {
  const rdzv_event event = await_event(at.loop);
  if (event.status != RDZV_OK) FAIL("%s", rdzv_error_message(event.error));
  CHECK(event.error == NULL);
  CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  CHECK_NUMBER(event.store, at.store);
  return event;
}

// A submission that must be taken, and its event. The call names `&operation` and `&error`.
#define DONE(at, call) DONE_WITH(at, call, (void)event)
#define DONE_WITH(at, call, what)                             \
  do {                                                        \
    uint64_t operation = 0;                                   \
    OK(call);                                                 \
    const rdzv_event event = await_success(at, operation);    \
    what;                                                     \
  } while (false)
#define DONE_NUMBER(at, call, expected) DONE_WITH(at, call, CHECK_NUMBER(event.number, expected))
#define DONE_VALUE(at, call, expected) \
  DONE_WITH(at, call, check_bytes(__FILE__, __LINE__, event.data, event.len, expected))

static void check_items(rdzv_loop *loop, rdzv_event event, const char *first, const char *second) {
  CHECK_NUMBER((long long)event.item_count, 2);
  size_t len = 0;
  const uint8_t *item = rdzv_loop_item(loop, 0, &len);
  check_bytes(__FILE__, __LINE__, item, len, first);
  item = rdzv_loop_item(loop, 1, &len);
  check_bytes(__FILE__, __LINE__, item, len, second);
  CHECK(rdzv_loop_item(loop, 0, NULL) != NULL && rdzv_loop_item(loop, 2, &len) == NULL);
}

void loops_do_every_operation(void) {
  rdzv_server *server = start_server(NULL);
  const struct looped at = loop_at(rdzv_server_port(server));
  rdzv_loop *loop = at.loop;
  const uint32_t store = at.store;
  const int fd = rdzv_loop_fd(loop);
  CHECK(fd >= 0);
  const rdzv_bytes keys[] = {BYTES("x"), BYTES("y")};
  const rdzv_bytes values[] = {BYTES("1"), {NULL, 0}};
  const rdzv_bytes missing[] = {BYTES("nowhere")};

  DONE(at, rdzv_loop_store_ping(loop, store, -1, &operation, &error));
  DONE_NUMBER(at, rdzv_loop_store_num_keys(loop, store, -1, &operation, &error), 0);
  DONE(at, rdzv_loop_store_multi_set(loop, store, keys, values, 2, -1, &operation, &error));
  DONE_WITH(at, rdzv_loop_store_multi_get(loop, store, keys, 2, -1, &operation, &error), check_items(loop, event, "1", ""));
  DONE_WITH(at, rdzv_loop_store_list_keys(loop, store, -1, &operation, &error), CHECK_NUMBER((long long)event.item_count, 2));
  DONE(at, rdzv_loop_store_wait(loop, store, keys, 2, -1, &operation, &error));
  DONE_NUMBER(at, rdzv_loop_store_check(loop, store, keys, 2, -1, &operation, &error), 1);
  DONE_NUMBER(at, rdzv_loop_store_check(loop, store, missing, 1, -1, &operation, &error), 0);
  DONE_NUMBER(at, rdzv_loop_store_delete_key(loop, store, TEXT("x"), -1, &operation, &error), 1);
  DONE_NUMBER(at, rdzv_loop_store_delete_key(loop, store, TEXT("x"), -1, &operation, &error), 0);
  DONE(at, rdzv_loop_store_set(loop, store, TEXT("key"), TEXT("value"), -1, &operation, &error));
  DONE(at, rdzv_loop_store_append(loop, store, TEXT("key"), TEXT("s"), -1, &operation, &error));
  DONE_VALUE(at, rdzv_loop_store_get(loop, store, TEXT("key"), -1, &operation, &error), "values");
  DONE_VALUE(at, rdzv_loop_store_get(loop, store, TEXT("y"), 0, &operation, &error), "");
  DONE_NUMBER(at, rdzv_loop_store_add(loop, store, TEXT("counter"), -3, -1, &operation, &error), -3);
  DONE_VALUE(at, rdzv_loop_store_compare_set(loop, store, TEXT("leader"), NULL, 0, TEXT("ada"), -1, &operation, &error), "ada");
  DONE(at, rdzv_loop_store_queue_push(loop, store, TEXT("jobs"), TEXT("first"), -1, &operation, &error));
  DONE_NUMBER(at, rdzv_loop_store_queue_len(loop, store, TEXT("jobs"), -1, &operation, &error), 1);
  DONE_VALUE(at, rdzv_loop_store_queue_pop(loop, store, TEXT("jobs"), -1, &operation, &error), "first");
  DONE(at, rdzv_loop_store_barrier(loop, store, TEXT("alone"), 1, -1, &operation, &error));

  // What is pending holds up nothing that comes later, and ends when its time has come.
  uint64_t wait = 0;
  OK(rdzv_loop_store_get(loop, store, TEXT("later"), -1, &wait, &error));
  DONE_NUMBER(at, rdzv_loop_store_add(loop, store, TEXT("counter"), 1, -1, &operation, &error), -2);
  await_waiting(server, 1);
  rdzv_store *other = connect_store(NULL, rdzv_server_port(server));
  OK(rdzv_store_set(other, TEXT("later"), TEXT("now"), -1, &error));
  rdzv_store_free(other);
  const rdzv_event event = await_success(at, wait);
  check_bytes(__FILE__, __LINE__, event.data, event.len, "now");
  CHECK_NUMBER(rdzv_loop_fd(loop), fd);

  // What is removed is heard of no more.
  uint64_t gone = 0;
  OK(rdzv_loop_store_get(loop, store, TEXT("never"), -1, &gone, &error));
  OK(rdzv_loop_remove_store(loop, store, &error));
  OK(rdzv_loop_remove_store(loop, store, &error));
  rdzv_event last = {.struct_size = sizeof last};
  OK(rdzv_loop_poll(loop, &error));
  OK(rdzv_loop_next_event(loop, &last, &error));
  CHECK_NUMBER(last.kind, RDZV_EVENT_NONE);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_store_ping(loop, store, -1, &gone, &error));
  await_waiting(server, 0);
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}

// The next event fails so.
static void await_failure(struct looped at, uint64_t operation, struct failure wanted) {
  const rdzv_event event = await_event(at.loop);
  check_failure(__FILE__, __LINE__, wanted.operation, event.status, event.error, wanted);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  CHECK(event.data == NULL && event.len == 0 && event.item_count == 0);
  // The key as the program named it.
  size_t len = 0;
  const uint8_t *key = rdzv_error_key(event.error, 0, &len);
  CHECK(rdzv_error_key_count(event.error) == 1);
  check_bytes(__FILE__, __LINE__, key, len, wanted.message_part);
}

static void peer_fails(enum conduct conduct, int64_t timeout_ms, rdzv_status status) {
  struct peer *peer = peer_start(conduct);
  const struct looped at = loop_at(peer_port(peer));
  uint64_t operation = 0;
  OK(rdzv_loop_store_get(at.loop, at.store, TEXT("key"), timeout_ms, &operation, &error));
  await_failure(at, operation, (struct failure){status, "get", peer_text(peer_port(peer)), NULL, "key"});
  rdzv_loop_free(at.loop);
  peer_stop(peer);
}

void loop_events_tell_of_failures(void) {
  rdzv_server *server = start_server(NULL);
  const struct looped at = loop_at(rdzv_server_port(server));
  const char *peer = rdzv_server_address(server);
  uint64_t operation = 0;
  OK(rdzv_loop_store_get(at.loop, at.store, TEXT("key"), 100, &operation, &error));
  await_failure(at, operation, (struct failure){RDZV_TIMED_OUT, "get", peer, "waiting", "key"});
  OK(rdzv_loop_store_queue_pop(at.loop, at.store, TEXT("key"), 0, &operation, &error));
  await_failure(at, operation, (struct failure){RDZV_QUEUE_EMPTY, "queue_pop", peer, NULL, "key"});
  OK(rdzv_loop_store_barrier(at.loop, at.store, TEXT("key"), 2, -1, &operation, &error));
  OK(rdzv_loop_cancel(at.loop, at.store, operation, &error));
  await_failure(at, operation, (struct failure){RDZV_CANCELLED, "barrier", peer, NULL, "key"});
  // What is over, or was never there, is ignored.
  OK(rdzv_loop_cancel(at.loop, at.store, operation, &error));
  OK(rdzv_loop_cancel(at.loop, at.store, UINT64_MAX, &error));
  OK(rdzv_loop_cancel(at.loop, UINT32_MAX, operation, &error));
  OK(rdzv_loop_store_wait(at.loop, at.store, (rdzv_bytes[]){BYTES("never")}, 1, -1, &operation, &error));
  // Turns until the wait has reached the server.
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  rdzv_server_stats stats = {.struct_size = sizeof stats};
  while (stats.waiting == 0) {
    CHECK(now_ms() < deadline_ms);
    OK(rdzv_loop_poll(at.loop, &error));
    OK(rdzv_server_get_stats(server, &stats, &error));
  }
  OK(rdzv_server_stop(server, &error));
  await_failure(at, operation, (struct failure){RDZV_SERVER_GONE, "wait", peer, NULL, "never"});
  rdzv_loop_free(at.loop);
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
  rdzv_store_options *options = NULL;
  OK(rdzv_store_options_new(&options, &error));
  rdzv_loop *loop = NULL;
  uint32_t store = 77;
  uint64_t operation = 77;
  FAILS(INVALID, rdzv_loop_new(NULL, NULL, &error));
  OK(rdzv_loop_new(NULL, &loop, &error));
  FAILS(INVALID, rdzv_loop_poll(NULL, &error));
  rdzv_event event = {.struct_size = sizeof event, .number = 77};
  FAILS(INVALID, rdzv_loop_next_event(NULL, &event, &error));
  FAILS(INVALID, rdzv_loop_next_event(loop, NULL, &error));
  event.struct_size = offsetof(rdzv_event, revision) - 1;
  FAILS(INVALID, rdzv_loop_next_event(loop, &event, &error));
  CHECK(event.number == 77 && event.struct_size == offsetof(rdzv_event, revision) - 1);
  // Programs that know no revisions yet are told what they know.
  event.struct_size = offsetof(rdzv_event, revision);
  event.revision = 77;
  OK(rdzv_loop_next_event(loop, &event, &error));
  CHECK(event.number == 0 && event.revision == 77 && event.struct_size == offsetof(rdzv_event, revision));
  event = (rdzv_event){.struct_size = sizeof event, .number = 77};
  FAILS(INVALID, rdzv_loop_add_store(NULL, options, &store, &error));
  FAILS(INVALID, rdzv_loop_add_store(loop, NULL, &store, &error));
  // There is no endpoint yet.
  FAILS(INVALID, rdzv_loop_add_store(loop, options, &store, &error));
  OK(rdzv_store_options_set_endpoint(options, TEXT("127.0.0.1"), rdzv_server_port(server), &error));
  FAILS(INVALID, rdzv_loop_add_store(loop, options, NULL, &error));
  FAILS(INVALID, rdzv_loop_remove_store(NULL, 1, &error));
  FAILS(INVALID, rdzv_loop_cancel(NULL, 1, 1, &error));
  CHECK_NUMBER(store, 77);
  // Before the first store, no number names one; afterwards, only its own does.
  FAILS(INVALID, rdzv_loop_store_ping(loop, 1, -1, &operation, &error));
  OK(rdzv_loop_add_store(loop, options, &store, &error));
  FAILS(INVALID, rdzv_loop_store_ping(loop, 0, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_ping(loop, store + 1, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_ping(loop, UINT32_MAX, -1, &operation, &error));
  FAILS(INVALID, rdzv_loop_store_ping(loop, store, -1, NULL, &error));
  CHECK_NUMBER((long long)operation, 77);
  rdzv_loop_free(NULL);
  CHECK_NUMBER(rdzv_loop_fd(NULL), -1);
  CHECK(rdzv_loop_item(NULL, 0, NULL) == NULL && rdzv_loop_item(loop, 0, NULL) == NULL);
  rdzv_loop_free(loop);
  rdzv_store_options_free(options);
  rdzv_server_free(server);
}
