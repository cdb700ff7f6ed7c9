// Stores in an event loop: every operation, its event, and what is refused.
#include "check.h"
#include "tests.h"

#include <limits.h>
#include <poll.h>

struct rig {
  rdzv_server *server;
  rdzv_loop *loop;
  uint32_t store;
};

static struct rig begin(void) {
  struct rig rig = {.server = start_server(NULL)};
  rdzv_store_options *options = options_for(rdzv_server_port(rig.server));
  OK(rdzv_loop_new(NULL, &rig.loop, &error));
  OK(rdzv_loop_add_store(rig.loop, options, &rig.store, &error));
  CHECK(rig.store > 0 && rdzv_loop_fd(rig.loop) >= 0);
  rdzv_store_options_free(options);
  return rig;
}

static void end(struct rig *rig) {
  rdzv_loop_free(rig->loop);
  rdzv_server_free(rig->server);
}

// The next event; the program waits for it in its own poll.
static rdzv_event next(const struct rig *rig) {
  const int fd = rdzv_loop_fd(rig->loop);
  for (const long long until = now_ms() + PATIENCE_MS; now_ms() < until;) {
    rdzv_event event = {.struct_size = sizeof event};
    OK(rdzv_loop_turn(rig->loop, &error));
    OK(rdzv_loop_next_event(rig->loop, &event, &error));
    CHECK_NUMBER(rdzv_loop_fd(rig->loop), fd);
    if (event.kind != RDZV_EVENT_NONE) return event;
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    poll(&readable, 1, (int)(until - now_ms()));
  }
  FAIL("no event in time");
}

// The event of this operation, which must have succeeded and must be the next one.
static rdzv_event success(const struct rig *rig, uint64_t operation) {
  const rdzv_event event = next(rig);
  CHECK_NUMBER(event.kind, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  CHECK_NUMBER(event.store, rig->store);
  if (event.status != RDZV_OK) FAIL("%s", rdzv_error_message(event.error));
  CHECK(event.error == NULL);
  return event;
}

static void check_item(const struct rig *rig, size_t index, const char *expected) {
  size_t len = 0;
  const uint8_t *item = rdzv_loop_item(rig->loop, index, &len);
  check_bytes(__FILE__, __LINE__, item, len, expected);
}

void every_operation_of_a_loop_has_its_event(void) {
  struct rig rig = begin();
  rdzv_loop *loop = rig.loop;
  const uint32_t store = rig.store;
  const rdzv_bytes keys[] = {BYTES("a"), BYTES("b")}, values[] = {BYTES("1"), BYTES("")};
  uint64_t operation = 0;

  OK(rdzv_loop_set(loop, store, TEXT("k"), TEXT("v"), -1, &operation, &error));
  success(&rig, operation);
  OK(rdzv_loop_append(loop, store, TEXT("k"), TEXT("w"), -1, &operation, &error));
  success(&rig, operation);
  OK(rdzv_loop_get(loop, store, TEXT("k"), -1, &operation, &error));
  rdzv_event event = success(&rig, operation);
  check_bytes(__FILE__, __LINE__, event.data, event.len, "vw");
  OK(rdzv_loop_compare_set(loop, store, TEXT("k"), TEXT("vw"), TEXT("x"), -1, &operation, &error));
  event = success(&rig, operation);
  check_bytes(__FILE__, __LINE__, event.data, event.len, "x");
  OK(rdzv_loop_add(loop, store, TEXT("n"), -7, -1, &operation, &error));
  CHECK_NUMBER(success(&rig, operation).number, -7);
  OK(rdzv_loop_multi_set(loop, store, keys, values, 2, -1, &operation, &error));
  success(&rig, operation);
  OK(rdzv_loop_multi_get(loop, store, keys, 2, -1, &operation, &error));
  CHECK_NUMBER((long long)success(&rig, operation).item_count, 2);
  check_item(&rig, 0, "1");
  check_item(&rig, 1, "");
  CHECK(rdzv_loop_item(loop, 2, NULL) == NULL);
  OK(rdzv_loop_check(loop, store, keys, 2, -1, &operation, &error));
  CHECK_NUMBER(success(&rig, operation).number, 1);
  OK(rdzv_loop_wait(loop, store, keys, 2, -1, &operation, &error));
  success(&rig, operation);
  OK(rdzv_loop_num_keys(loop, store, -1, &operation, &error));
  CHECK_NUMBER(success(&rig, operation).number, 4);
  OK(rdzv_loop_delete_key(loop, store, TEXT("n"), -1, &operation, &error));
  CHECK_NUMBER(success(&rig, operation).number, 1);
  OK(rdzv_loop_check(loop, store, (const rdzv_bytes[]){BYTES("n")}, 1, 0, &operation, &error));
  CHECK_NUMBER(success(&rig, operation).number, 0);
  OK(rdzv_loop_list_keys(loop, store, -1, &operation, &error));
  CHECK_NUMBER((long long)success(&rig, operation).item_count, 3);
  OK(rdzv_loop_queue_push(loop, store, TEXT("q"), TEXT("item"), -1, &operation, &error));
  success(&rig, operation);
  OK(rdzv_loop_queue_len(loop, store, TEXT("q"), -1, &operation, &error));
  CHECK_NUMBER(success(&rig, operation).number, 1);
  OK(rdzv_loop_queue_pop(loop, store, TEXT("q"), -1, &operation, &error));
  event = success(&rig, operation);
  check_bytes(__FILE__, __LINE__, event.data, event.len, "item");
  OK(rdzv_loop_barrier(loop, store, TEXT("all"), 1, -1, &operation, &error));
  success(&rig, operation);
  OK(rdzv_loop_ping(loop, store, -1, &operation, &error));
  success(&rig, operation);
  end(&rig);
}

static rdzv_event failure(const struct rig *rig, uint64_t operation, rdzv_status status, const char *name) {
  const rdzv_event event = next(rig);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  CHECK_NUMBER(event.status, status);
  CHECK_NUMBER(rdzv_error_status(event.error), status);
  CHECK_TEXT(rdzv_error_operation(event.error), name);
  return event;
}

void loop_events_tell_how_operations_failed(void) {
  struct rig rig = begin();
  uint64_t get = 0, second = 0, pop = 0, lost = 0;
  OK(rdzv_loop_get(rig.loop, rig.store, TEXT("never"), 30, &get, &error));
  const rdzv_event event = failure(&rig, get, RDZV_TIMED_OUT, "get");
  CHECK_TEXT(rdzv_error_peer(event.error), peer_text(rdzv_server_port(rig.server)));
  CHECK_TEXT(rdzv_error_phase(event.error), "waiting");
  OK(rdzv_loop_queue_pop(rig.loop, rig.store, TEXT("empty"), 0, &pop, &error));
  failure(&rig, pop, RDZV_QUEUE_EMPTY, "queue_pop");

  // A wait that is given up, while another goes on.
  OK(rdzv_loop_get(rig.loop, rig.store, TEXT("late"), PATIENCE_MS, &get, &error));
  OK(rdzv_loop_get(rig.loop, rig.store, TEXT("later"), PATIENCE_MS, &second, &error));
  OK(rdzv_loop_cancel(rig.loop, rig.store, get, &error));
  OK(rdzv_loop_cancel(rig.loop, rig.store, get + 1000, &error));
  failure(&rig, get, RDZV_CANCELLED, "get");
  await_waiting(rig.server, 1);

  // The server goes away under the other.
  OK(rdzv_server_stop(rig.server, &error));
  const rdzv_event gone = next(&rig);
  CHECK_NUMBER((long long)gone.operation, (long long)second);
  CHECK(gone.status == RDZV_SERVER_GONE || gone.status == RDZV_REFUSED);

  OK(rdzv_loop_add(rig.loop, rig.store, TEXT("n"), 1, 200, &lost, &error));
  const rdzv_event refused = next(&rig);
  CHECK_NUMBER((long long)refused.operation, (long long)lost);
  CHECK(refused.status != RDZV_OK && rdzv_error_message(refused.error)[0] != '\0');

  // A store that is removed says nothing more.
  OK(rdzv_loop_get(rig.loop, rig.store, TEXT("k"), 100, &get, &error));
  OK(rdzv_loop_remove_store(rig.loop, rig.store, &error));
  OK(rdzv_loop_remove_store(rig.loop, rig.store, &error));
  rdzv_event none = {.struct_size = sizeof none};
  OK(rdzv_loop_turn(rig.loop, &error));
  OK(rdzv_loop_next_event(rig.loop, &none, &error));
  CHECK_NUMBER(none.kind, RDZV_EVENT_NONE);
  end(&rig);
}

void loops_refuse_bad_arguments(void) {
  struct rig rig = begin();
  rdzv_loop *loop = rig.loop;
  const uint32_t store = rig.store;
  const rdzv_bytes keys[] = {BYTES("a")};
  uint64_t operation = 77;
  uint32_t made = 78;
  rdzv_event event = {.struct_size = sizeof event};
  const rdzv_status bad = RDZV_INVALID_ARGUMENT;

  FAILS(bad, rdzv_loop_new(NULL, NULL, &error));
  FAILS(bad, rdzv_loop_turn(NULL, &error));
  FAILS(bad, rdzv_loop_next_event(NULL, &event, &error));
  FAILS(bad, rdzv_loop_next_event(loop, NULL, &error));
  event.struct_size = 8;
  FAILS(bad, rdzv_loop_next_event(loop, &event, &error));
  FAILS(bad, rdzv_loop_add_store(loop, NULL, &made, &error));
  rdzv_store_options *options = NULL;
  OK(rdzv_store_options_new(&options, &error));
  FAILS(bad, rdzv_loop_add_store(loop, options, &made, &error));
  FAILS(bad, rdzv_loop_add_store(loop, options, NULL, &error));
  rdzv_store_options_free(options);
  FAILS(bad, rdzv_loop_remove_store(NULL, store, &error));
  FAILS(bad, rdzv_loop_cancel(NULL, store, 1, &error));

  FAILS(bad, rdzv_loop_set(NULL, store, TEXT("k"), TEXT("v"), -1, &operation, &error));
  FAILS(bad, rdzv_loop_set(loop, store + 1, TEXT("k"), TEXT("v"), -1, &operation, &error));
  FAILS(bad, rdzv_loop_set(loop, store, NULL, 1, TEXT("v"), -1, &operation, &error));
  FAILS(bad, rdzv_loop_set(loop, store, TEXT("k"), NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_set(loop, store, TEXT("k"), TEXT("v"), -2, &operation, &error));
  FAILS(bad, rdzv_loop_set(loop, store, TEXT("k"), TEXT("v"), -1, NULL, &error));
  FAILS(bad, rdzv_loop_get(loop, store, (const uint8_t *)"k", SIZE_MAX, -1, &operation, &error));
  FAILS(bad, rdzv_loop_add(loop, store, NULL, 1, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_compare_set(loop, store, TEXT("k"), NULL, 1, TEXT("d"), -1, &operation, &error));
  FAILS(bad, rdzv_loop_compare_set(loop, store, TEXT("k"), TEXT("e"), NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_wait(loop, store, NULL, 1, -1, &operation, &error));
  FAILS(RDZV_LIMIT_EXCEEDED, rdzv_loop_check(loop, store, keys, SIZE_MAX, -1, &operation, &error));
  FAILS(bad, rdzv_loop_multi_get(loop, store, NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_multi_set(loop, store, keys, NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_append(loop, store, NULL, 1, TEXT("v"), -1, &operation, &error));
  FAILS(bad, rdzv_loop_delete_key(loop, store, NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_num_keys(loop, store, INT64_MIN, &operation, &error));
  FAILS(bad, rdzv_loop_list_keys(loop, store, -1, NULL, &error));
  FAILS(bad, rdzv_loop_queue_push(loop, store, TEXT("q"), NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_queue_pop(loop, store, NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_queue_len(loop, store, NULL, 1, -1, &operation, &error));
  FAILS(bad, rdzv_loop_barrier(loop, store, TEXT("b"), 0, -1, &operation, &error));
  FAILS(bad, rdzv_loop_ping(loop, store + 1, -1, &operation, &error));
  static const uint8_t zeros[9000];
  FAILS(RDZV_LIMIT_EXCEEDED, rdzv_loop_get(loop, store, zeros, sizeof zeros, -1, &operation, &error));

  CHECK_NUMBER((long long)operation, 77);
  CHECK_NUMBER(made, 78);
  CHECK_NUMBER(rdzv_loop_fd(NULL), -1);
  CHECK(rdzv_loop_item(NULL, 0, NULL) == NULL);
  rdzv_loop_free(NULL);
  end(&rig);
}
