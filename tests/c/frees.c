// Objects that are freed inside their own callbacks stay: the free has no effect, is logged, and the next call says so.
#include "agents.h"
#include "ops.h"
#include "tests.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

// What the callbacks free, and what the log has of it. Each test has a static one: sanitizers do not see how threads of
// the library synchronize, and would take another test's use of the same stack for a race.
struct meddler {
  _Atomic(rdzv_store *) store;
  _Atomic(rdzv_op *) op;
  _Atomic(rdzv_agent *) agent;
  _Atomic(rdzv_context *) context;
  atomic_int calls, destroyed, refused, lines;
  sem_t was_refused;
};

static void keep(void *user_data, const rdzv_log_record *record) {
  struct meddler *meddler = user_data;
  if (strstr(record->message, "was called inside a callback of the object") != NULL) {
    ++meddler->refused;
    CHECK(sem_post(&meddler->was_refused) == 0);
  }
  if (meddler->lines++ == 0) rdzv_context_free(meddler->context);
}

static rdzv_context *logged(struct meddler *meddler) {
  rdzv_context *context = rdzv_context_new();
  CHECK(sem_init(&meddler->was_refused, 0, 0) == 0);
  const rdzv_log_sink sink = {sizeof sink, RDZV_LOG_INFO, meddler, keep, NULL};
  OK(rdzv_context_set_log_sink(context, &sink, &error));
  return context;
}

static rdzv_status perform(void *user_data, const rdzv_store_request *request, rdzv_reply *reply) {
  struct meddler *meddler = user_data;
  (void)request;
  (void)reply;
  ++meddler->calls;
  rdzv_store_free(meddler->store);
  rdzv_op_free(meddler->op);
  return RDZV_OK;
}

static void destroy(void *user_data) {
  struct meddler *meddler = user_data;
  ++meddler->destroyed;
  rdzv_store_free(meddler->store);
}

void stores_and_operations_are_not_freed_while_they_work(void) {
  static struct meddler meddler;
  meddler.op = rdzv_op_new(NULL);
  rdzv_context *context = logged(&meddler);
  const rdzv_store_vtable vtable = {
      .struct_size = sizeof vtable, .user_data = &meddler, .perform = perform, .destroy = destroy};
  rdzv_store *store = NULL;
  OK(rdzv_store_new_custom(context, &vtable, PATIENCE_MS, &store, &error));
  meddler.store = store;
  OK(rdzv_op_set(meddler.op, TEXT("k"), TEXT("v"), &error));
  OK(rdzv_store_perform(store, meddler.op, -1, &error));
  CHECK_NUMBER(meddler.calls, 1);
  // Each says it once.
  FAILS_LIKE(((struct failure){.status = RDZV_FREE_REFUSED, .message_part = "inside one of its own callbacks"}),
             rdzv_store_perform(store, meddler.op, -1, &error));
  FAILS(RDZV_FREE_REFUSED, rdzv_op_set(meddler.op, TEXT("k"), TEXT("v"), &error));
  rdzv_op *op = meddler.op;
  meddler.store = NULL;
  meddler.op = NULL;
  OK(rdzv_op_set(op, TEXT("k"), TEXT("v"), &error));
  OK(rdzv_store_perform(store, op, -1, &error));
  CHECK_NUMBER(meddler.destroyed, 0);
  rdzv_op_free(op);
  // Nor is it freed once more by what its end calls.
  meddler.store = store;
  rdzv_store_free(store);
  CHECK_NUMBER(meddler.destroyed, 1);
  // The sink has all lines when its last handle is gone.
  rdzv_context_free(context);
  CHECK_NUMBER(meddler.refused, 3);
}

static void free_agent(void *user_data, const rdzv_agent_event *event) {
  struct meddler *meddler = user_data;
  (void)event;
  ++meddler->calls;
  rdzv_agent_free(meddler->agent);
}

void agents_are_not_freed_by_their_listeners(void) {
  rdzv_server *server = start_server(NULL);
  const rdzv_agent_options options = agent_shell(1, "exit 0");
  static struct meddler meddler;
  meddler.agent = new_agent(server, &options);
  OK(rdzv_agent_run(meddler.agent, free_agent, &meddler, NULL, &error));
  CHECK(meddler.calls > 0);
  rdzv_agent_result result = {.struct_size = sizeof result};
  FAILS(RDZV_FREE_REFUSED, rdzv_agent_run(meddler.agent, NULL, NULL, &result, &error));
  run_to(meddler.agent, RDZV_OUTCOME_SUCCEEDED);
  rdzv_agent_free(meddler.agent);
  rdzv_server_free(server);
}

void contexts_are_not_freed_by_their_sinks(void) {
  static struct meddler meddler;
  meddler.context = logged(&meddler);
  rdzv_server_free(start_server(meddler.context));
  // The line about the free that was refused follows the one in which it was tried.
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += PATIENCE_MS / 1000;
  CHECK(sem_timedwait(&meddler.was_refused, &until) == 0);
  const rdzv_log_sink sink = {.struct_size = sizeof sink, .level_max = RDZV_LOG_INFO, .log = keep};
  FAILS(RDZV_FREE_REFUSED, rdzv_context_set_log_sink(meddler.context, &sink, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(meddler.context, &sink, &error));
  rdzv_context_free(meddler.context);
}
