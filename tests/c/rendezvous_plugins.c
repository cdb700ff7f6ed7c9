// Backends and URL schemes in code of the program's.
#include "check.h"
#include "tests.h"

#include <pthread.h>
#include <time.h>

#define INVALID RDZV_INVALID_ARGUMENT

// What a backend of the test's does next.
struct plan {
  // What `create` does wrong.
  const char *flaw;
  // What joining does: it returns this, with these words; or it waits.
  rdzv_status outcome;
  const char *message;
  bool waits;
  uint64_t round;
  rdzv_round_event event;
};

// The backend, and what became of it. The library calls it on threads of its own, so the mutex is over all but the
// handles.
struct own {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  rdzv_context *context;
  rdzv_rendezvous_handler *handle;
  rdzv_rendezvous_url *url;
  rdzv_store *store;
  struct plan plan;
  bool is_waiting, is_released;
  int created, cancelled, handlers_destroyed, destroyed;
};

static struct own new_own(void) {
  struct own own = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  own.context = rdzv_context_new();
  OK(rdzv_store_new_hash(NULL, PATIENCE_MS, &own.store, &error));
  return own;
}

static void lock(struct own *own) { CHECK(pthread_mutex_lock(&own->mutex) == 0); }
static void unlock(struct own *own) { CHECK(pthread_mutex_unlock(&own->mutex) == 0); }

static struct plan plan_of(struct own *own) {
  lock(own);
  const struct plan plan = own->plan;
  unlock(own);
  return plan;
}

// Changes the plan.
#define PLAN(own, field, value) \
  do {                          \
    lock(own);                  \
    (own)->plan.field = (value); \
    unlock(own);                \
  } while (false)

static void count_up(struct own *own, int *count) {
  lock(own);
  *count += 1;
  CHECK(pthread_cond_broadcast(&own->changed) == 0);
  unlock(own);
}

static int count_of(struct own *own, const int *count) {
  lock(own);
  const int now = *count;
  unlock(own);
  return now;
}

static void await(struct own *own, const bool *flag) {
  lock(own);
  while (!*flag) CHECK(pthread_cond_wait(&own->changed, &own->mutex) == 0);
  unlock(own);
}

static void set(struct own *own, bool *flag, bool to) {
  lock(own);
  *flag = to;
  CHECK(pthread_cond_broadcast(&own->changed) == 0);
  unlock(own);
}

static rdzv_status own_join(void *user_data, rdzv_reply *reply) {
  struct own *own = user_data;
  const struct plan plan = plan_of(own);
  if (plan.waits) {
    set(own, &own->is_waiting, true);
    await(own, &own->is_released);
    return RDZV_CANCELLED;
  }
  if (plan.message != NULL) rdzv_reply_set_message(reply, TEXT(plan.message));
  if (plan.outcome == RDZV_OK) {
    const bool has_port = plan.flaw == NULL || strcmp(plan.flaw, "port") != 0;
    const rdzv_rendezvous_group group = {.struct_size = sizeof group,
                                         .has_round = plan.round > 0,
                                         .store = own->store,
                                         .rank = 1,
                                         .world_size = 3,
                                         .round = plan.round,
                                         .master_addr = "node-0",
                                         .master_port = has_port ? 29500 : 65536};
    rdzv_reply_set_group(reply, &group);
  }
  return plan.outcome;
}

static rdzv_status own_is_closed(void *user_data, rdzv_reply *reply) {
  (void)user_data;
  rdzv_reply_set_number(reply, 1);
  return RDZV_OK;
}

// Calls back into the handle that is calling.
static rdzv_status own_set_closed(void *user_data, rdzv_reply *reply) {
  struct own *own = user_data;
  (void)reply;
  int64_t count = 77;
  FAILS(RDZV_REENTRANT, rdzv_rendezvous_handler_num_nodes_waiting(own->handle, &count, &error));
  return rdzv_rendezvous_handler_set_closed(own->handle, NULL);
}

static rdzv_status own_num_nodes_waiting(void *user_data, rdzv_reply *reply) {
  struct own *own = user_data;
  rdzv_reply_set_number(reply, plan_of(own).outcome == RDZV_OK ? 5 : -5);
  return RDZV_OK;
}

static rdzv_status own_next_event(void *user_data, int64_t timeout_ms, rdzv_reply *reply) {
  struct own *own = user_data;
  const struct plan plan = plan_of(own);
  CHECK_NUMBER(timeout_ms, 30);
  if (plan.event.kind != RDZV_ROUND_EVENT_NONE) rdzv_reply_set_event(reply, &plan.event);
  return RDZV_OK;
}

static rdzv_status own_fail(void *user_data, const uint8_t *message, size_t message_len, rdzv_reply *reply) {
  (void)user_data;
  // It comes back as the error's message.
  rdzv_reply_set_message(reply, message, message_len);
  return RDZV_RENDEZVOUS_CLOSED;
}

static int32_t own_shutdown(void *user_data) {
  struct own *own = user_data;
  return plan_of(own).outcome == RDZV_OK;
}

static void own_cancel(void *user_data) {
  struct own *own = user_data;
  set(own, &own->is_released, true);
  count_up(own, &own->cancelled);
}

static void own_handler_destroy(void *user_data) {
  struct own *own = user_data;
  count_up(own, &own->handlers_destroyed);
}

static rdzv_status own_create(void *user_data, const rdzv_rendezvous_parameters *parameters,
                              rdzv_reply *reply) {
  struct own *own = user_data;
  const struct plan plan = plan_of(own);
  const char *flaw = plan.flaw == NULL ? "" : plan.flaw;
  CHECK_NUMBER(parameters->struct_size, sizeof *parameters);
  CHECK_TEXT(parameters->endpoint, "somewhere");
  CHECK_TEXT(parameters->run_id, "run");
  CHECK_TEXT(parameters->local_addr, "here");
  CHECK(parameters->min_nodes == 1 && parameters->max_nodes == 3);
  // All options are in one list, in the order of their names.
  CHECK(parameters->config == NULL && parameters->option_count == 2);
  CHECK_TEXT(parameters->options[0].name, "a");
  CHECK_TEXT(rdzv_rendezvous_parameters_get(parameters, "b"), "3");
  count_up(own, &own->created);
  rdzv_rendezvous_handler_vtable vtable = {
      .struct_size = sizeof vtable,
      .use_agent_store = 1,
      .user_data = own,
      .backend = "mine",
      .next_rendezvous = own_join,
      .is_closed = own_is_closed,
      .set_closed = own_set_closed,
      .num_nodes_waiting = own_num_nodes_waiting,
      .next_event = own_next_event,
      .shutdown = own_shutdown,
      .cancel = own_cancel,
      .fail = own_fail,
      .reports_deaths = 1,
      .destroy = own_handler_destroy,
  };
  if (strcmp(flaw, "nothing") == 0) return RDZV_OK;
  if (strcmp(flaw, "refusal") == 0) {
    rdzv_reply_set_message(reply, TEXT("no room"));
    return RDZV_RENDEZVOUS_CLOSED;
  }
  if (strcmp(flaw, "reentry") == 0) {
    rdzv_rendezvous_handler *second = NULL;
    const rdzv_status outcome = rdzv_rendezvous_handler_new(own->context, parameters, &second, NULL);
    CHECK(second == NULL);
    return outcome;
  }
  if (strcmp(flaw, "lie") == 0) vtable.backend = "another";
  if (strcmp(flaw, "no backend") == 0) vtable.backend = NULL;
  if (strcmp(flaw, "no join") == 0) vtable.next_rendezvous = NULL;
  if (strcmp(flaw, "no size") == 0) vtable.struct_size = 8;
  if (strcmp(flaw, "no text") == 0) vtable.run_id = "\xff";
  if (strcmp(flaw, "least") == 0) {
    vtable.next_event = NULL;
    vtable.shutdown = NULL;
    vtable.cancel = NULL;
    vtable.fail = NULL;
    vtable.run_id = "another run";
    vtable.use_agent_store = 0;
  }
  rdzv_reply_set_handler(reply, &vtable);
  return RDZV_OK;
}

static void own_destroy(void *user_data) {
  struct own *own = user_data;
  count_up(own, &own->destroyed);
}

static rdzv_rendezvous_backend_vtable backend_of(struct own *own) {
  return (rdzv_rendezvous_backend_vtable){.struct_size = sizeof(rdzv_rendezvous_backend_vtable),
                                          .user_data = own,
                                          .name = "the test's code",
                                          .timeout_ms = -1,
                                          .create = own_create,
                                          .destroy = own_destroy};
}

static const rdzv_rendezvous_parameters own_parameters = {.struct_size = sizeof own_parameters,
                                                          .backend = "mine",
                                                          .endpoint = "somewhere",
                                                          .run_id = "run",
                                                          .max_nodes = 3,
                                                          .local_addr = "here",
                                                          .config = "b=2, a=1",
                                                          .options = &(const rdzv_pair){"b", "3"},
                                                          .option_count = 1};

// Registers it, and makes a handler.
static void make(struct own *own, int64_t timeout_ms) {
  rdzv_rendezvous_backend_vtable vtable = backend_of(own);
  vtable.timeout_ms = timeout_ms;
  OK(rdzv_context_register_backend(own->context, TEXT("mine"), &vtable, &error));
  OK(rdzv_rendezvous_handler_new(own->context, &own_parameters, &own->handle, &error));
}

// Everything goes, and is destroyed once.
static void end(struct own *own, int handlers) {
  rdzv_context_free(own->context);
  CHECK_NUMBER(count_of(own, &own->destroyed), own->handle == NULL);
  rdzv_rendezvous_handler_free(own->handle);
  CHECK_NUMBER(count_of(own, &own->destroyed), 1);
  CHECK_NUMBER(count_of(own, &own->handlers_destroyed), handlers);
  rdzv_store_free(own->store);
}

static void *join(void *argument) {
  struct own *own = argument;
  rdzv_rendezvous *info = NULL;
  // The library's words, or those of the code that was quick to end.
  FAILS(RDZV_CANCELLED, rdzv_rendezvous_handler_next_rendezvous(own->handle, &info, &error));
  CHECK(info == NULL);
  return NULL;
}

void own_code_is_a_backend(void) {
  struct own own = new_own();
  make(&own, -1);
  size_t len = 0;
  CHECK_LENT(rdzv_rendezvous_handler_backend(own.handle, &len), len, "mine");
  CHECK_LENT(rdzv_rendezvous_handler_run_id(own.handle, &len), len, "run");
  CHECK_NUMBER(rdzv_rendezvous_handler_use_agent_store(own.handle), 1);
  rdzv_rendezvous *info = NULL;
  OK(rdzv_rendezvous_handler_next_rendezvous(own.handle, &info, &error));
  CHECK(joined_info(info).rank == 1 && joined_info(info).world_size == 3);
  CHECK_TEXT(joined_info(info).master_addr, "node-0");
  CHECK_NUMBER(joined_info(info).master_port, 29500);
  CHECK_NUMBER(joined_info(info).hosts_store, 0);
  // It is the very store that the code answered.
  rdzv_store *store = NULL;
  OK(rdzv_store_new_rendezvous(info, &store, &error));
  rdzv_rendezvous_free(info);
  OK(rdzv_store_set(store, TEXT("k"), TEXT("v"), -1, &error));
  rdzv_buffer *value = rdzv_buffer_new();
  OK(rdzv_store_get(own.store, TEXT("k"), -1, value, &error));
  CHECK_BUFFER(value, "v");
  rdzv_store_free(store);
  // What is written in a round has keys of its own.
  PLAN(&own, round, 7);
  OK(rdzv_rendezvous_handler_next_rendezvous(own.handle, &info, &error));
  CHECK_NUMBER(joined_info(info).round, 7);
  OK(rdzv_store_new_rendezvous(info, &store, &error));
  rdzv_rendezvous_free(info);
  OK(rdzv_store_set(store, TEXT("k"), TEXT("w"), -1, &error));
  OK(rdzv_store_get(own.store, TEXT("round/7/k"), -1, value, &error));
  CHECK_BUFFER(value, "w");
  rdzv_buffer_free(value);
  rdzv_store_free(store);
  int32_t closed = 0, clean = 0;
  int64_t waiting = 0;
  OK(rdzv_rendezvous_handler_is_closed(own.handle, &closed, &error));
  OK(rdzv_rendezvous_handler_num_nodes_waiting(own.handle, &waiting, &error));
  OK(rdzv_rendezvous_handler_shutdown(own.handle, &clean, &error));
  CHECK(closed == 1 && waiting == 5 && clean == 1);
  FAILS(RDZV_REENTRANT, rdzv_rendezvous_handler_set_closed(own.handle, &error));
  FAILS(RDZV_RENDEZVOUS_CLOSED, rdzv_rendezvous_handler_fail(own.handle, TEXT("code 1"), &error));

  // Who waits in it is called back from another thread, and the code hears of it.
  PLAN(&own, waits, true);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, join, &own) == 0);
  await(&own, &own.is_waiting);
  OK(rdzv_rendezvous_handler_is_closed(own.handle, &closed, &error));
  rdzv_rendezvous_handler_cancel(own.handle);
  CHECK(pthread_join(thread, NULL) == 0);
  await(&own, &own.is_released);
  lock(&own);
  while (own.cancelled == 0) CHECK(pthread_cond_wait(&own.changed, &own.mutex) == 0);
  unlock(&own);
  // The code is gone when what was left behind has come to its end.
  rdzv_context_free(own.context);
  rdzv_rendezvous_handler_free(own.handle);
  lock(&own);
  while (own.handlers_destroyed == 0) CHECK(pthread_cond_wait(&own.changed, &own.mutex) == 0);
  CHECK(own.handlers_destroyed == 1 && own.destroyed == 1 && own.created == 1);
  unlock(&own);
  rdzv_store_free(own.store);
}

void own_backend_fails_in_every_way(void) {
  struct own own = new_own();
  make(&own, -1);
  rdzv_rendezvous *info = NULL;
  static const rdzv_status statuses[] = {
      RDZV_RENDEZVOUS_CLOSED, RDZV_RENDEZVOUS_TIMED_OUT,     RDZV_RENDEZVOUS_CONNECTION,
      RDZV_RENDEZVOUS_STATE,  RDZV_RENDEZVOUS_GRACEFUL_EXIT, RDZV_RENDEZVOUS_REPLACED, RDZV_TIMED_OUT,
      RDZV_REFUSED,           RDZV_UNSUPPORTED,              RDZV_IO,
      RDZV_CANCELLED,         RDZV_LIMIT_EXCEEDED,           RDZV_CORRUPT};
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; ++i) {
    PLAN(&own, outcome, statuses[i]);
    const char *message = "in the code's own words";
    PLAN(&own, message, message);
    FAILS_LIKE(((struct failure){.status = statuses[i], .message_part = message}),
               rdzv_rendezvous_handler_next_rendezvous(own.handle, &info, &error));
    PLAN(&own, message, NULL);
    FAILS_LIKE(((struct failure){.status = statuses[i], .message_part = rdzv_status_name(statuses[i])}),
               rdzv_rendezvous_handler_next_rendezvous(own.handle, &info, &error));
    CHECK(strcmp(rdzv_status_name(statuses[i]), "unknown status") != 0);
  }
  // One that is none of the header's is a failure all the same.
  PLAN(&own, outcome, 4711);
  FAILS(RDZV_IO, rdzv_rendezvous_handler_next_rendezvous(own.handle, &info, &error));
  int64_t waiting = 77;
  FAILS(RDZV_WRONG_PROTOCOL, rdzv_rendezvous_handler_num_nodes_waiting(own.handle, &waiting, &error));
  int32_t clean = 77;
  OK(rdzv_rendezvous_handler_shutdown(own.handle, &clean, &error));
  CHECK(clean == 0 && waiting == 77 && info == NULL);
  end(&own, 1);

  // A backend that makes no handler, or no good one.
  static const struct {
    const char *flaw;
    rdzv_status status;
    const char *message;
  } flaws[] = {
      {"nothing", RDZV_WRONG_PROTOCOL, "the test's code: it gave no handler"},
      {"refusal", RDZV_RENDEZVOUS_CLOSED, "no room"},
      {"reentry", RDZV_REENTRANT, "re-entrant call"},
      {"lie", RDZV_BACKEND_MISMATCH,
       "The rendezvous backend 'another' does not match the requested backend 'mine'."},
      {"no backend", INVALID, "`vtable.backend` is NULL"},
      {"no join", INVALID, "`vtable.next_rendezvous` is NULL"},
      {"no size", INVALID, "`vtable.struct_size` is 8"},
      {"no text", INVALID, "`vtable.run_id` is not UTF-8"},
  };
  struct own flawed = new_own();
  rdzv_rendezvous_backend_vtable vtable = backend_of(&flawed);
  OK(rdzv_context_register_backend(flawed.context, TEXT("mine"), &vtable, &error));
  for (size_t i = 0; i < sizeof flaws / sizeof *flaws; ++i) {
    PLAN(&flawed, flaw, flaws[i].flaw);
    FAILS_LIKE(((struct failure){.status = flaws[i].status, .message_part = flaws[i].message}),
               rdzv_rendezvous_handler_new(flawed.context, &own_parameters, &flawed.handle, &error));
    CHECK(flawed.handle == NULL);
  }
  // Handlers that were taken and given back: the liar's, and that whose text is none.
  CHECK_NUMBER(count_of(&flawed, &flawed.handlers_destroyed), 2);
  PLAN(&flawed, flaw, "least");
  OK(rdzv_rendezvous_handler_new(flawed.context, &own_parameters, &flawed.handle, &error));
  size_t len = 0;
  CHECK_LENT(rdzv_rendezvous_handler_run_id(flawed.handle, &len), len, "another run");
  CHECK_NUMBER(rdzv_rendezvous_handler_use_agent_store(flawed.handle), 0);
  rdzv_round_event event = {.struct_size = sizeof event};
  FAILS(RDZV_UNSUPPORTED, rdzv_rendezvous_handler_next_event(flawed.handle, 0, &event, NULL, NULL, &error));
  OK(rdzv_rendezvous_handler_shutdown(flawed.handle, &clean, &error));
  CHECK_NUMBER(clean, 1);
  end(&flawed, 3);

  // One that does not come back in time.
  struct own slow = new_own();
  make(&slow, 1000);
  PLAN(&slow, waits, true);
  FAILS_LIKE(((struct failure){.status = RDZV_TIMED_OUT, .message_part = "did not return within 1 s"}),
             rdzv_rendezvous_handler_next_rendezvous(slow.handle, &info, &error));
  await(&slow, &slow.is_waiting);
  set(&slow, &slow.is_released, true);
  rdzv_context_free(slow.context);
  rdzv_rendezvous_handler_free(slow.handle);
  lock(&slow);
  while (slow.handlers_destroyed == 0) CHECK(pthread_cond_wait(&slow.changed, &slow.mutex) == 0);
  unlock(&slow);
  rdzv_store_free(slow.store);
}

void own_backend_tells_what_happened(void) {
  struct own own = new_own();
  make(&own, -1);
  static const struct {
    rdzv_round_event event;
    const char *node, *message, *description;
  } events[] = {
      {{.kind = RDZV_ROUND_EVENT_NODES_WAITING, .nodes = 3}, "", "", "3 nodes wait for the next round"},
      {{.kind = RDZV_ROUND_EVENT_PEER_DIED, .round = 1, .node_rank = 2, .why = RDZV_WHY_HEARTBEAT},
       "host-2",
       "",
       "node host-2 (rank 2 of round 1) died: heartbeats were missed"},
      {{.kind = RDZV_ROUND_EVENT_ROUND_OVER, .round = 7, .why = RDZV_WHY_TOO_FEW_NODES},
       "",
       "",
       "round 7 is over: fewer nodes are left than it needs to go on"},
      {{.kind = RDZV_ROUND_EVENT_RUN_CLOSED}, "host-2", "", "the run was closed by host-2"},
      {{.kind = RDZV_ROUND_EVENT_EXCLUDED, .round = 2}, "", "", "round 2 was formed without this node"},
      {{.kind = RDZV_ROUND_EVENT_REPLACED}, "", "", "another process joined under this node's name"},
      {{.kind = RDZV_ROUND_EVENT_JOB_FAILED}, "", "code 1", "code 1"},
      {{.kind = RDZV_ROUND_EVENT_PEER_DIED, .round = 1, .why = RDZV_WHY_REFUSED},
       "host-2",
       "",
       "node host-2 (rank 0 of round 1) was lost: it wanted another round, and the run is closed"},
      {{.kind = RDZV_ROUND_EVENT_NONE}, "", "", "nothing happened"},
  };
  rdzv_buffer *node = rdzv_buffer_new(), *message = rdzv_buffer_new(), *description = rdzv_buffer_new();
  for (size_t i = 0; i < sizeof events / sizeof *events; ++i) {
    rdzv_round_event planned = events[i].event;
    planned.struct_size = sizeof planned;
    // Texts that the kind does not have are dropped.
    const char *of_node = events[i].node[0] == '\0' ? "host-9" : events[i].node;
    const char *of_message = events[i].message[0] == '\0' ? "code 9" : events[i].message;
    planned.node = (const uint8_t *)of_node;
    planned.node_len = strlen(of_node);
    planned.message = (const uint8_t *)of_message;
    planned.message_len = strlen(of_message);
    PLAN(&own, event, planned);
    rdzv_round_event told = {.struct_size = sizeof told};
    OK(rdzv_rendezvous_handler_next_event(own.handle, 30, &told, NULL, NULL, &error));
    CHECK(told.node == NULL && told.message == NULL);
    OK(rdzv_rendezvous_handler_next_event(own.handle, 30, &told, node, message, &error));
    CHECK_NUMBER(told.struct_size, sizeof told);
    CHECK_NUMBER(told.kind, events[i].event.kind);
    CHECK(told.round == events[i].event.round && told.nodes == events[i].event.nodes);
    CHECK(told.node_rank == events[i].event.node_rank && told.why == events[i].event.why);
    CHECK_BUFFER(node, events[i].node);
    CHECK_BUFFER(message, events[i].message);
    CHECK(told.node == (told.node_len == 0 ? NULL : rdzv_buffer_data(node)));
    CHECK(told.message == (told.message_len == 0 ? NULL : rdzv_buffer_data(message)));
    CHECK(told.node_len == rdzv_buffer_len(node) && told.message_len == rdzv_buffer_len(message));
    OK(rdzv_round_event_describe(&told, description, &error));
    CHECK_BUFFER(description, events[i].description);
  }
  // Events that are none.
  rdzv_round_event told = {.struct_size = sizeof told, .kind = 77};
  rdzv_round_event bad = {.struct_size = sizeof bad, .kind = 99};
  PLAN(&own, event, bad);
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "`event.kind` is 99"}),
             rdzv_rendezvous_handler_next_event(own.handle, 30, &told, node, message, &error));
  bad.kind = RDZV_ROUND_EVENT_ROUND_OVER;
  PLAN(&own, event, bad);
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "`event.why` is 0"}),
             rdzv_rendezvous_handler_next_event(own.handle, 30, &told, node, message, &error));
  CHECK_NUMBER(told.kind, 77);
  FAILS(INVALID, rdzv_round_event_describe(NULL, description, &error));
  FAILS(INVALID, rdzv_round_event_describe(&bad, description, &error));
  bad.why = 1;
  FAILS(INVALID, rdzv_round_event_describe(&bad, NULL, &error));
  bad.node_len = 1;
  FAILS(INVALID, rdzv_round_event_describe(&bad, description, &error));
  bad.node_len = 0;
  bad.message_len = 1;
  FAILS(INVALID, rdzv_round_event_describe(&bad, description, &error));
  CHECK_BUFFER(description, "nothing happened");
  rdzv_buffer_free(node);
  rdzv_buffer_free(message);
  rdzv_buffer_free(description);
  end(&own, 1);
}

static rdzv_status own_next(void *user_data, rdzv_reply *reply) {
  struct own *own = user_data;
  const struct plan plan = plan_of(own);
  if (plan.flaw != NULL && strcmp(plan.flaw, "reentry") == 0) {
    rdzv_rendezvous *info = NULL;
    return rdzv_rendezvous_url_next(own->url, &info, NULL);
  }
  return own_join(user_data, reply);
}

static rdzv_status own_begin(void *user_data, const rdzv_url_request *request, rdzv_reply *reply) {
  struct own *own = user_data;
  CHECK_NUMBER(request->struct_size, sizeof *request);
  CHECK_LENT(request->url, request->url_len, "mine://place/x?a=b&rank=1");
  CHECK_LENT(request->listen_host, request->listen_host_len, "10.0.0.1");
  CHECK_NUMBER(request->timeout_ms, PATIENCE_MS);
  rdzv_url_rendezvous_vtable vtable = {
      .struct_size = sizeof vtable,
      .user_data = own,
      .next = own_next,
      .destroy = own_handler_destroy,
      .cancel = own_cancel,
  };
  const struct plan plan = plan_of(own);
  if (plan.flaw != NULL && strcmp(plan.flaw, "nothing") == 0) return RDZV_OK;
  if (plan.flaw != NULL && strcmp(plan.flaw, "refusal") == 0) return RDZV_UNREACHABLE;
  if (plan.flaw != NULL && strcmp(plan.flaw, "no next") == 0) vtable.next = NULL;
  rdzv_reply_set_url_rendezvous(reply, &vtable);
  return RDZV_OK;
}

static rdzv_status begin_own(struct own *own, rdzv_error **details) {
  const rdzv_rendezvous_url_options options = {.struct_size = sizeof options,
                                               .has_rank = 1,
                                               .rank = 1,
                                               .timeout_ms = PATIENCE_MS,
                                               .listen_host = "10.0.0.1"};
  return rdzv_rendezvous_url_new(own->context, TEXT("mine://place/x?a=b"), &options, &own->url, details);
}

static void *next_url(void *argument) {
  struct own *own = argument;
  rdzv_rendezvous *info = NULL;
  FAILS_LIKE(((struct failure){.status = RDZV_CANCELLED, .message_part = "next of the handler of mine://"}),
             rdzv_rendezvous_url_next(own->url, &info, &error));
  return NULL;
}

// Waits until the number is there.
static void await_count(struct own *own, const int *count, int number) {
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += PATIENCE_MS / 1000;
  lock(own);
  while (*count != number) CHECK(pthread_cond_timedwait(&own->changed, &own->mutex, &deadline) == 0);
  unlock(own);
}

void own_code_is_a_url_scheme(void) {
  struct own own = new_own();
  rdzv_url_scheme_vtable vtable = {.struct_size = sizeof vtable,
                                   .user_data = &own,
                                   .timeout_ms = -1,
                                   .create = own_begin,
                                   .destroy = own_destroy};
  OK(rdzv_context_register_url_scheme(own.context, TEXT("mine"), &vtable, &error));
  static const struct {
    const char *flaw;
    rdzv_status status;
  } flaws[] = {{"nothing", RDZV_WRONG_PROTOCOL}, {"refusal", RDZV_UNREACHABLE}, {"no next", INVALID}};
  for (size_t i = 0; i < sizeof flaws / sizeof *flaws; ++i) {
    PLAN(&own, flaw, flaws[i].flaw);
    FAILS(flaws[i].status, begin_own(&own, &error));
    CHECK(own.url == NULL);
  }
  PLAN(&own, flaw, NULL);
  OK(begin_own(&own, &error));
  rdzv_rendezvous *info = NULL;
  // A scheme of one's own may meet again.
  for (int i = 0; i < 2; ++i) {
    OK(rdzv_rendezvous_url_next(own.url, &info, &error));
    CHECK(joined_info(info).rank == 1 && joined_info(info).world_size == 3);
    rdzv_rendezvous_free(info);
    info = NULL;
  }
  PLAN(&own, outcome, RDZV_RENDEZVOUS_TIMED_OUT);
  FAILS(RDZV_RENDEZVOUS_TIMED_OUT, rdzv_rendezvous_url_next(own.url, &info, &error));
  PLAN(&own, outcome, RDZV_OK);
  PLAN(&own, flaw, "reentry");
  FAILS(RDZV_REENTRANT, rdzv_rendezvous_url_next(own.url, &info, &error));
  PLAN(&own, flaw, "port");
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "the port 65536 is not from 0 to 65535"}),
             rdzv_rendezvous_url_next(own.url, &info, &error));
  PLAN(&own, flaw, NULL);
  PLAN(&own, waits, true);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, next_url, &own) == 0);
  await(&own, &own.is_waiting);
  rdzv_rendezvous_url_cancel(own.url);
  CHECK(pthread_join(thread, NULL) == 0);
  // Its own `cancel` ends the wait that was left behind.
  await_count(&own, &own.cancelled, 1);
  rdzv_context_free(own.context);
  rdzv_rendezvous_url_free(own.url);
  lock(&own);
  while (own.handlers_destroyed == 0 || own.destroyed == 0) CHECK(pthread_cond_wait(&own.changed, &own.mutex) == 0);
  CHECK(own.handlers_destroyed == 1 && own.destroyed == 1);
  unlock(&own);
  rdzv_store_free(own.store);
}

void own_code_is_told_that_its_caller_has_gone(void) {
  struct own own = new_own();
  make(&own, 1000);
  PLAN(&own, waits, true);
  rdzv_rendezvous *info = NULL;
  FAILS(RDZV_TIMED_OUT, rdzv_rendezvous_handler_next_rendezvous(own.handle, &info, &error));
  // Its `cancel` ends the wait: nobody takes the group any more.
  await_count(&own, &own.cancelled, 1);
  rdzv_context_free(own.context);
  rdzv_rendezvous_handler_free(own.handle);
  await_count(&own, &own.handlers_destroyed, 1);
  await_count(&own, &own.destroyed, 1);
  rdzv_store_free(own.store);
}

// Gives back what the code owns, as a backend does that keeps a store for its handlers.
static void owner_destroy(void *user_data) {
  struct own *own = user_data;
  rdzv_store_free(own->store);
  own_destroy(user_data);
}

void own_backend_may_own_a_store_of_its_context(void) {
  for (int with_handler = 0; with_handler < 2; ++with_handler) {
    struct own own = new_own();
    rdzv_store_free(own.store);
    OK(rdzv_store_new_hash(own.context, PATIENCE_MS, &own.store, &error));
    rdzv_rendezvous_backend_vtable vtable = backend_of(&own);
    vtable.destroy = owner_destroy;
    OK(rdzv_context_register_backend(own.context, TEXT("mine"), &vtable, &error));
    rdzv_url_scheme_vtable scheme = {
        .struct_size = sizeof scheme, .user_data = &own, .timeout_ms = -1, .create = own_begin, .destroy = own_destroy};
    OK(rdzv_context_register_url_scheme(own.context, TEXT("mine"), &scheme, &error));
      if (with_handler == 1) OK(rdzv_rendezvous_handler_new(own.context, &own_parameters, &own.handle, &error));
      rdzv_context_free(own.context);
    // The code is there for as long as a handler that was made with the context.
    CHECK_NUMBER(count_of(&own, &own.destroyed), with_handler == 1 ? 0 : 2);
    rdzv_rendezvous_handler_free(own.handle);
    await_count(&own, &own.destroyed, 2);
    CHECK_NUMBER(count_of(&own, &own.handlers_destroyed), with_handler);
  }
}

static rdzv_status other_create(void *user_data, const rdzv_rendezvous_parameters *parameters,
                                rdzv_reply *reply) {
  (void)user_data, (void)parameters, (void)reply;
  return RDZV_IO;
}

void registries_keep_their_rules(void) {
  struct own own = new_own(), rival = new_own();
  rdzv_rendezvous_backend_vtable vtable = backend_of(&own), other = backend_of(&rival);
  other.name = "the rival";
  OK(rdzv_context_register_backend(own.context, TEXT("mine"), &vtable, &error));
  OK(rdzv_context_register_backend(own.context, TEXT("mine"), &vtable, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_ALREADY_REGISTERED,
                               .message_part = "The rendezvous backend 'mine' cannot be registered with 'the rival' as "
                                               "it is already registered with 'the test's code'."}),
             rdzv_context_register_backend(own.context, TEXT("mine"), &other, &error));
  other = vtable;
  other.create = other_create;
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_context_register_backend(own.context, TEXT("mine"), &other, &error));
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_context_register_backend(own.context, TEXT("static"), &other, &error));
  FAILS_LIKE(((struct failure){.status = INVALID,
                               .message_part = "The rendezvous backend name must be a non-empty string."}),
             rdzv_context_register_backend(own.context, NULL, 0, &other, &error));
  FAILS(INVALID, rdzv_context_register_backend(NULL, TEXT("x"), &other, &error));
  FAILS(INVALID, rdzv_context_register_backend(own.context, TEXT("\xff"), &other, &error));
  FAILS(INVALID, rdzv_context_register_backend(own.context, TEXT("x"), NULL, &error));
  other.timeout_ms = 0;
  FAILS(INVALID, rdzv_context_register_backend(own.context, TEXT("x"), &other, &error));
  other.timeout_ms = -1;
  other.name = "\xff";
  FAILS(INVALID, rdzv_context_register_backend(own.context, TEXT("x"), &other, &error));
  other.name = NULL;
  other.create = NULL;
  FAILS(INVALID, rdzv_context_register_backend(own.context, TEXT("x"), &other, &error));
  other.struct_size = 16;
  FAILS(INVALID, rdzv_context_register_backend(own.context, TEXT("x"), &other, &error));
  rdzv_list *names = rdzv_list_new();
  OK(rdzv_context_list_backends(own.context, names, &error));
  bool is_there = false;
  for (size_t i = 0; i < rdzv_list_count(names); ++i) {
    size_t len = 0;
    const uint8_t *name = rdzv_list_item(names, i, &len);
    is_there |= len == 4 && memcmp(name, "mine", len) == 0;
  }
  CHECK(is_there);
  FAILS(INVALID, rdzv_context_list_backends(NULL, names, &error));
  FAILS(INVALID, rdzv_context_list_backends(own.context, NULL, &error));
  rdzv_list_free(names);

  rdzv_url_scheme_vtable scheme = {
      .struct_size = sizeof scheme, .user_data = &rival, .timeout_ms = 100, .create = own_begin, .destroy = own_destroy};
  OK(rdzv_context_register_url_scheme(own.context, TEXT("mine"), &scheme, &error));
  // Taken, be it by the same.
  FAILS_LIKE(((struct failure){.status = RDZV_ALREADY_REGISTERED,
                               .message_part = "Rendezvous handler for mine:// already registered"}),
             rdzv_context_register_url_scheme(own.context, TEXT("mine"), &scheme, &error));
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_context_register_url_scheme(own.context, TEXT("tcp"), &scheme, &error));
  FAILS(INVALID, rdzv_context_register_url_scheme(NULL, TEXT("x"), &scheme, &error));
  FAILS(INVALID, rdzv_context_register_url_scheme(own.context, NULL, 1, &scheme, &error));
  FAILS(INVALID, rdzv_context_register_url_scheme(own.context, TEXT("x"), NULL, &error));
  scheme.create = NULL;
  FAILS(INVALID, rdzv_context_register_url_scheme(own.context, TEXT("x"), &scheme, &error));

  // Another context knows nothing of it.
  FAILS(RDZV_NOT_REGISTERED, rdzv_rendezvous_handler_new(rival.context, &own_parameters, &own.handle, &error));
  // What was refused stayed the caller's; what was taken is destroyed once.
  CHECK(count_of(&own, &own.destroyed) == 0 && count_of(&rival, &rival.destroyed) == 0);
  rdzv_context_free(own.context);
  rdzv_context_free(rival.context);
  CHECK(count_of(&own, &own.destroyed) == 1 && count_of(&rival, &rival.destroyed) == 1);
  rdzv_store_free(own.store);
  rdzv_store_free(rival.store);

  // NULL is the reply to no call.
  rdzv_reply_set_number(NULL, 1);
  rdzv_reply_add_value(NULL, TEXT("v"));
  rdzv_reply_set_message(NULL, TEXT("m"));
  rdzv_reply_set_group(NULL, NULL);
  rdzv_reply_set_event(NULL, NULL);
  rdzv_reply_set_handler(NULL, NULL);
  rdzv_reply_set_url_rendezvous(NULL, NULL);
  rdzv_reply_set_rpc_agent(NULL, NULL);
  rdzv_reply_add_worker(NULL, NULL, 0, 0);
}
