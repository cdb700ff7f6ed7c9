// Workers of RPC groups in an event loop: one thread, and nothing that blocks.
#include "check.h"
#include "tests.h"

#include <pthread.h>

#define INVALID RDZV_INVALID_ARGUMENT

// Two workers of a dynamic group in one loop, and the number of each.
struct looped {
  rdzv_server *server;
  rdzv_store *store;
  rdzv_loop *loop;
  uint32_t one, two;
};

static rdzv_rpc_call_spec call_of(const char *callee, const char *handler, const char *payload) {
  return (rdzv_rpc_call_spec){.struct_size = sizeof(rdzv_rpc_call_spec),
                              .callee_id = -1,
                              .callee = (const uint8_t *)callee,
                              .callee_len = strlen(callee),
                              .handler = (const uint8_t *)handler,
                              .handler_len = strlen(handler),
                              .payload = (const uint8_t *)payload,
                              .payload_len = strlen(payload),
                              .timeout_ms = PATIENCE_MS};
}

// The next event, which is of this kind and of this worker.
static rdzv_event await_kind(rdzv_loop *loop, uint32_t worker, int32_t kind) {
  const rdzv_event event = await_event(loop);
  CHECK_NUMBER(event.kind, kind);
  CHECK_NUMBER(event.store, worker);
  return event;
}

static rdzv_event await_success(rdzv_loop *loop, uint32_t worker, int32_t kind) {
  const rdzv_event event = await_kind(loop, worker, kind);
  if (event.status != RDZV_OK) FAIL("%s", rdzv_error_message(event.error));
  CHECK(event.error == NULL);
  return event;
}

// The end of this call.
static void await_answer(rdzv_loop *loop, uint32_t worker, uint64_t operation, const char *answer) {
  const rdzv_event event = await_success(loop, worker, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
  check_bytes(__FILE__, __LINE__, event.data, event.len, answer);
  const rdzv_rpc_call_spec *called = rdzv_loop_rpc_called(loop);
  CHECK(called != NULL && called->handler_len > 0 && (called->callee != NULL) == (called->callee_id == -1));
}

static void await_failure(rdzv_loop *loop, uint32_t worker, uint64_t operation, rdzv_status status, const char *part) {
  const rdzv_event event = await_kind(loop, worker, RDZV_EVENT_COMPLETED);
  const struct failure wanted = {.status = status, .message_part = part};
  check_failure(__FILE__, __LINE__, "an RPC call", event.status, event.error, wanted);
  CHECK_NUMBER((long long)event.operation, (long long)operation);
}

// The group of this worker has changed so.
static void check_change(rdzv_loop *loop, int32_t kind, const char *name) {
  rdzv_rpc_event change = {.struct_size = sizeof change};
  rdzv_buffer *who = rdzv_buffer_new(), *why = rdzv_buffer_new();
  OK(rdzv_loop_rpc_event(loop, &change, who, why, &error));
  CHECK_NUMBER(change.kind, kind);
  CHECK_BUFFER(who, name);
  CHECK(kind == RDZV_RPC_EVENT_OVER || (rdzv_buffer_len(why) > 0) == (kind == RDZV_RPC_EVENT_DIED));
  rdzv_buffer_free(who);
  rdzv_buffer_free(why);
}

// A request that comes next.
static rdzv_rpc_responder *await_request(rdzv_loop *loop, uint32_t worker, const char *caller, const char *payload) {
  const rdzv_event event = await_success(loop, worker, RDZV_EVENT_RPC_REQUEST);
  const rdzv_rpc_request *request = rdzv_loop_rpc_request(loop);
  size_t len = 0;
  check_bytes(__FILE__, __LINE__, event.data, event.len, payload);
  CHECK_LENT(rdzv_rpc_request_payload(request, &len), len, payload);
  CHECK_LENT(rdzv_rpc_request_caller(request, &len), len, caller);
  CHECK_LENT(rdzv_rpc_request_handler(request, &len), len, "ask");
  rdzv_rpc_responder *responder = NULL;
  OK(rdzv_loop_rpc_responder(loop, &responder, &error));
  FAILS(INVALID, rdzv_loop_rpc_responder(loop, &responder, &error));
  return responder;
}

static rdzv_rpc_handlers *handlers_of_loop(void) {
  rdzv_rpc_handlers *handlers = NULL;
  OK(rdzv_rpc_handlers_new(&handlers, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("ask"), RDZV_RPC_LOOP, NULL, NULL, NULL, &error));
  return handlers;
}

static uint32_t join(struct looped *at, const char *name, int rank) {
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  uint32_t number = 0;
  OK(rdzv_loop_rpc_init_over_store(at->loop, NULL, at->store, TEXT(name), rank, -1, NULL, handlers, &number, &error));
  CHECK(number > 0);
  rdzv_rpc_handlers_free(handlers);
  return number;
}

static struct looped new_pair(void) {
  struct looped at = {.server = start_server(NULL)};
  at.store = connect_store(NULL, rdzv_server_port(at.server));
  OK(rdzv_loop_new(NULL, &at.loop, &error));
  at.one = join(&at, "one", 1);
  await_success(at.loop, at.one, RDZV_EVENT_RPC_JOINED);
  at.two = join(&at, "two", 2);
  // The one hears of the other, and the other that it is there; which comes first nobody says.
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = await_event(at.loop);
    CHECK_NUMBER(event.status, RDZV_OK);
    if (event.kind == RDZV_EVENT_RPC) {
      CHECK_NUMBER(event.store, at.one);
      check_change(at.loop, RDZV_RPC_EVENT_JOINED, "two");
    } else {
      CHECK_NUMBER(event.kind, RDZV_EVENT_RPC_JOINED);
      CHECK_NUMBER(event.store, at.two);
    }
  }
  return at;
}

static void end_pair(struct looped *at) {
  rdzv_loop_free(at->loop);
  rdzv_store_free(at->store);
  rdzv_server_free(at->server);
}

static void count_up(void *user_data) {
  *(int *)user_data += 1;
}

void workers_of_a_loop_call_each_other(void) {
  struct looped at = new_pair();
  uint64_t first = 0, second = 0;
  rdzv_rpc_call_spec call = call_of("two", "ask", "hello");
  OK(rdzv_loop_rpc_call(at.loop, at.one, &call, &first, &error));
  rdzv_rpc_responder *late = await_request(at.loop, at.two, "one", "hello");
  // One that is answered at once, though it came later, and one that the worker asks itself.
  call = call_of("two", "ask", "me");
  OK(rdzv_loop_rpc_call(at.loop, at.two, &call, &second, &error));
  CHECK(second != first);
  rdzv_rpc_responder *soon = await_request(at.loop, at.two, "two", "me");
  OK(rdzv_rpc_responder_answer(soon, TEXT("myself"), NULL, NULL, &error));
  await_answer(at.loop, at.two, second, "myself");
  CHECK_LENT(rdzv_loop_rpc_called(at.loop)->callee, rdzv_loop_rpc_called(at.loop)->callee_len, "two");
  CHECK_LENT(rdzv_loop_rpc_called(at.loop)->handler, rdzv_loop_rpc_called(at.loop)->handler_len, "ask");
  OK(rdzv_rpc_responder_answer(late, TEXT("at last"), NULL, NULL, &error));
  await_answer(at.loop, at.one, first, "at last");

  // The bytes of a request may be kept until it is answered.
  OK(rdzv_loop_rpc_call(at.loop, at.two, &call, &second, &error));
  late = await_request(at.loop, at.two, "two", "me");
  rdzv_buffer *taken = rdzv_buffer_new();
  size_t len = 77;
  const rdzv_rpc_request *request = rdzv_loop_rpc_request(at.loop);
  const uint8_t *lay_at = rdzv_rpc_request_payload(request, NULL);
  OK(rdzv_rpc_request_take(request, taken, &error));
  CHECK(rdzv_buffer_data(taken) == lay_at && rdzv_rpc_request_payload(request, &len) != NULL && len == 0);
  rdzv_event nothing = {.struct_size = sizeof nothing};
  OK(rdzv_loop_next_event(at.loop, &nothing, &error));
  CHECK_BUFFER(taken, "me");
  rdzv_buffer_free(taken);
  OK(rdzv_rpc_responder_answer(late, TEXT("kept"), NULL, NULL, &error));
  await_answer(at.loop, at.two, second, "kept");

  call = call_of("two", "ask", "psst");
  OK(rdzv_loop_rpc_notify(at.loop, at.one, &call, &error));
  rdzv_rpc_responder_free(await_request(at.loop, at.two, "one", "psst"));
  // Whoever does not ask for the way back does not answer.
  OK(rdzv_loop_rpc_call(at.loop, at.one, &call, &first, &error));
  await_success(at.loop, at.two, RDZV_EVENT_RPC_REQUEST);
  await_failure(at.loop, at.one, first, RDZV_RPC_HANDLER_FAILED, "ask gave no answer");
  CHECK(rdzv_loop_rpc_request(at.loop) == NULL);
  OK(rdzv_loop_rpc_call(at.loop, at.one, &call, &first, &error));
  OK(rdzv_rpc_responder_fail(await_request(at.loop, at.two, "one", "psst"), TEXT("no such luck"), &error));
  await_failure(at.loop, at.one, first, RDZV_RPC_HANDLER_FAILED, "no such luck");

  OK(rdzv_loop_rpc_call(at.loop, at.one, &call, &first, &error));
  late = await_request(at.loop, at.two, "one", "psst");
  OK(rdzv_loop_cancel(at.loop, at.one, first, &error));
  await_failure(at.loop, at.one, first, RDZV_CANCELLED, "cancelled");
  rdzv_rpc_responder_free(late);
  call.timeout_ms = 0;
  FAILS(RDZV_TIMED_OUT, rdzv_loop_rpc_call(at.loop, at.one, &call, &first, &error));
  call = call_of("three", "ask", "");
  int released = 0;
  call.release = count_up;
  call.user_data = &released;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.loop, at.one, &call, &first, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(NULL, at.one, &call, &first, &error));
  CHECK_NUMBER(released, 2);

  // What a handle of the worker tells; freed, it ends nothing.
  rdzv_rpc *handle = NULL;
  OK(rdzv_loop_rpc_handle(at.loop, at.two, &handle, &error));
  CHECK_NUMBER(rdzv_rpc_id(handle), 2);
  rdzv_rpc_free(handle);
  // A handler that is added later.
  call = call_of("one", "more", "");
  OK(rdzv_loop_rpc_add_handler(at.loop, at.one, TEXT("more"), &error));
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_loop_rpc_add_handler(at.loop, at.one, TEXT("more"), &error));
  OK(rdzv_loop_rpc_call(at.loop, at.two, &call, &first, &error));
  await_success(at.loop, at.one, RDZV_EVENT_RPC_REQUEST);
  OK(rdzv_loop_rpc_responder(at.loop, &soon, &error));
  OK(rdzv_rpc_responder_answer(soon, NULL, 0, NULL, NULL, &error));
  await_answer(at.loop, at.two, first, "");

  OK(rdzv_loop_rpc_shutdown(at.loop, at.two, RDZV_RPC_GRACEFUL, &error));
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = await_event(at.loop);
    CHECK_NUMBER(event.kind, RDZV_EVENT_RPC);
    CHECK_NUMBER(event.status, RDZV_OK);
    const bool is_one = event.store == at.one;
    check_change(at.loop, is_one ? RDZV_RPC_EVENT_LEFT : RDZV_RPC_EVENT_OVER, is_one ? "two" : "");
  }
  FAILS(INVALID, rdzv_loop_rpc_shutdown(at.loop, at.two, RDZV_RPC_GRACEFUL, &error));
  end_pair(&at);
}

void workers_of_a_loop_die_and_end(void) {
  struct looped at = new_pair();
  uint64_t operation = 0;
  const rdzv_rpc_call_spec call = call_of("two", "ask", "");
  OK(rdzv_loop_rpc_call(at.loop, at.one, &call, &operation, &error));
  rdzv_rpc_responder *responder = await_request(at.loop, at.two, "one", "");
  OK(rdzv_loop_remove_rpc(at.loop, at.two, &error));
  OK(rdzv_loop_remove_rpc(at.loop, at.two, &error));
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = await_event(at.loop);
    CHECK_NUMBER(event.store, at.one);
    if (event.kind == RDZV_EVENT_COMPLETED) {
      CHECK_NUMBER(event.status, RDZV_RPC_PEER_DIED);
    } else {
      check_change(at.loop, RDZV_RPC_EVENT_DIED, "two");
    }
  }
  CHECK_NUMBER(rdzv_rpc_responder_is_wanted(responder), 0);
  rdzv_rpc_responder_free(responder);
  // A name that is taken.
  const uint32_t again = join(&at, "one", 7);
  const rdzv_event event = await_kind(at.loop, again, RDZV_EVENT_RPC_JOINED);
  CHECK_NUMBER(event.status, RDZV_RPC_NAME_TAKEN);
  // The loop goes while a call is under way, another worker joins, and a request waits.
  const rdzv_rpc_call_spec own = call_of("one", "ask", "");
  OK(rdzv_loop_rpc_call(at.loop, at.one, &own, &operation, &error));
  join(&at, "three", 3);
  end_pair(&at);
}

void workers_that_block_may_come_into_a_loop(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_rpc *one = NULL, *two = NULL;
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  // Such handlers need a worker of an event loop.
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "needs a worker of an event loop"}),
             rdzv_rpc_init_over_store(NULL, store, TEXT("one"), 1, -1, NULL, handlers, &one, &error));
  rdzv_rpc_handlers_free(handlers);
  OK(rdzv_rpc_init_over_store(NULL, store, TEXT("one"), 1, -1, NULL, NULL, &one, &error));
  OK(rdzv_rpc_init_over_store(NULL, store, TEXT("two"), 2, -1, NULL, NULL, &two, &error));
  uint32_t number = 0;
  OK(rdzv_loop_add_rpc(loop, one, &number, &error));
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_loop_add_rpc(loop, one, &number, &error));
  await_success(loop, number, RDZV_EVENT_RPC);
  check_change(loop, RDZV_RPC_EVENT_JOINED, "two");
  OK(rdzv_loop_rpc_add_handler(loop, number, TEXT("ask"), &error));
  rdzv_rpc_future *future = NULL;
  const rdzv_rpc_call_spec call = call_of("one", "ask", "x");
  OK(rdzv_rpc_start_call(two, &call, &future, &error));
  OK(rdzv_rpc_responder_answer(await_request(loop, number, "two", "x"), TEXT("y"), NULL, NULL, &error));
  int32_t ended = 0;
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, answer, &error));
  CHECK_BUFFER(answer, "y");
  rdzv_buffer_free(answer);
  rdzv_rpc_future_free(future);
  rdzv_rpc_free(two);
  await_success(loop, number, RDZV_EVENT_RPC);
  check_change(loop, RDZV_RPC_EVENT_DIED, "two");
  // The handle ends it, and the loop hears so.
  rdzv_rpc_free(one);
  await_kind(loop, number, RDZV_EVENT_RPC);
  check_change(loop, RDZV_RPC_EVENT_OVER, "");
  rdzv_loop_free(loop);
  rdzv_store_free(store);
  rdzv_server_free(server);
}

// A worker in code of the test's own. It is made and ended on threads of the library's.
struct own {
  pthread_mutex_t mutex;
  rdzv_rpc_handlers *handlers;
  rdzv_rpc_responder *kept;
  int ended;
};

static void answered(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure) {
  if (status == RDZV_OK) {
    OK(rdzv_rpc_responder_answer(user_data, data, len, NULL, NULL, &error));
  } else {
    OK(rdzv_rpc_responder_fail_with(user_data, status, TEXT(rdzv_error_message(failure)), &error));
  }
}

static rdzv_status own_call(void *user_data, const rdzv_rpc_call_spec *call, rdzv_rpc_responder *responder) {
  struct own *own = user_data;
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  const bool is_kept = call->handler_len == 4;
  if (is_kept) own->kept = responder;
  rdzv_rpc_handlers *handlers = own->handlers;
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  if (is_kept) return RDZV_OK;
  return rdzv_rpc_handlers_dispatch(handlers, TEXT("me"), 5, call->handler, call->handler_len, call->payload,
                                    call->payload_len, -1, responder != NULL, responder == NULL ? NULL : answered,
                                    responder, NULL);
}

static rdzv_status own_list_workers(void *user_data, rdzv_rpc_answer *answer) {
  (void)user_data;
  rdzv_rpc_answer_add_worker(answer, TEXT("me"), 5);
  return RDZV_OK;
}

static rdzv_status own_shutdown(void *user_data, int32_t how, rdzv_rpc_answer *answer) {
  struct own *own = user_data;
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  own->ended += 1;
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  if (how == RDZV_RPC_ABRUPT) return RDZV_OK;
  rdzv_rpc_answer_set_message(answer, TEXT("it goes in a huff"));
  return RDZV_CONFLICT;
}

static rdzv_status own_init(void *user_data, const rdzv_rpc_init_request *request, const rdzv_rpc_options *options,
                            const rdzv_rpc_handlers *handlers, rdzv_rpc_answer *answer) {
  struct own *own = user_data;
  (void)options;
  CHECK_NUMBER(request->id, 5);
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  OK(rdzv_rpc_handlers_clone(handlers, &own->handlers, &error));
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  const rdzv_rpc_agent_vtable vtable = {.struct_size = sizeof vtable,
                                        .user_data = own,
                                        .call = own_call,
                                        .list_workers = own_list_workers,
                                        .shutdown = own_shutdown};
  rdzv_rpc_answer_set_agent(answer, &vtable);
  return RDZV_OK;
}

void own_rpc_backend_lives_in_a_loop(void) {
  struct own own = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  const rdzv_rpc_backend_vtable vtable = {.struct_size = sizeof vtable, .user_data = &own, .init = own_init};
  rdzv_context *context = NULL;
  rdzv_store *store = NULL;
  rdzv_rpc_options *options = NULL;
  rdzv_loop *loop = NULL;
  uint32_t me = 0;
  uint64_t operation = 0;
  OK(rdzv_context_new(&context, &error));
  OK(rdzv_context_register_rpc_backend(context, TEXT("mine"), &vtable, &error));
  OK(rdzv_store_new_hash(context, PATIENCE_MS, &store, &error));
  OK(rdzv_rpc_options_new(context, TEXT("mine"), -1, NULL, 0, NULL, NULL, 0, &options, &error));
  OK(rdzv_loop_new(context, &loop, &error));
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  OK(rdzv_loop_rpc_init_over_store(loop, context, store, TEXT("me"), 5, -1, options, handlers, &me, &error));
  rdzv_rpc_handlers_free(handlers);
  rdzv_rpc_options_free(options);
  await_success(loop, me, RDZV_EVENT_RPC_JOINED);
  FAILS(RDZV_UNSUPPORTED, rdzv_loop_rpc_add_handler(loop, me, TEXT("x"), &error));

  rdzv_rpc_call_spec call = call_of("me", "ask", "abc");
  OK(rdzv_loop_rpc_call(loop, me, &call, &operation, &error));
  OK(rdzv_rpc_responder_answer(await_request(loop, me, "me", "abc"), TEXT("cba"), NULL, NULL, &error));
  await_answer(loop, me, operation, "cba");
  OK(rdzv_loop_rpc_call(loop, me, &call, &operation, &error));
  OK(rdzv_rpc_responder_fail(await_request(loop, me, "me", "abc"), TEXT("no such luck"), &error));
  await_failure(loop, me, operation, RDZV_RPC_HANDLER_FAILED, "no such luck");
  OK(rdzv_loop_rpc_notify(loop, me, &call, &error));
  rdzv_rpc_responder_free(await_request(loop, me, "me", "abc"));
  call = call_of("me", "x", "");
  FAILS(RDZV_RPC_NO_HANDLER, rdzv_loop_rpc_call(loop, me, &call, &operation, &error));
  // One that is not answered in time, and one that is given up.
  call = call_of("me", "keep", "");
  call.timeout_ms = 20;
  OK(rdzv_loop_rpc_call(loop, me, &call, &operation, &error));
  await_failure(loop, me, operation, RDZV_TIMED_OUT, "keep at me");
  rdzv_rpc_responder_free(own.kept);
  call.timeout_ms = PATIENCE_MS;
  OK(rdzv_loop_rpc_call(loop, me, &call, &operation, &error));
  OK(rdzv_loop_cancel(loop, me, operation, &error));
  await_failure(loop, me, operation, RDZV_CANCELLED, "keep at me");
  rdzv_rpc_responder_free(own.kept);
  // One that ends with its worker.
  OK(rdzv_loop_rpc_call(loop, me, &call, &operation, &error));
  OK(rdzv_loop_rpc_shutdown(loop, me, RDZV_RPC_GRACEFUL, &error));
  await_failure(loop, me, operation, RDZV_RPC_NO_MEMBER, NULL);
  rdzv_rpc_responder_free(own.kept);
  const rdzv_event event = await_kind(loop, me, RDZV_EVENT_RPC);
  check_failure(__FILE__, __LINE__, "shutdown", event.status, event.error,
                (struct failure){.status = RDZV_CONFLICT, .message_part = "it goes in a huff"});
  check_change(loop, RDZV_RPC_EVENT_OVER, "");
  rdzv_loop_free(loop);
  CHECK(pthread_mutex_lock(&own.mutex) == 0);
  CHECK_NUMBER(own.ended, 1);
  CHECK(pthread_mutex_unlock(&own.mutex) == 0);
  rdzv_rpc_handlers_free(own.handlers);
  rdzv_store_free(store);
  rdzv_context_free(context);
}

void workers_of_a_loop_are_made_by_url_and_given_up(void) {
  rdzv_loop *loop = NULL;
  rdzv_context *context = NULL;
  rdzv_rpc_options *options = NULL;
  uint32_t number = 0;
  OK(rdzv_loop_new(NULL, &loop, &error));
  OK(rdzv_context_new(&context, &error));
  // One that hosts the store itself, and is all of its group.
  OK(rdzv_rpc_options_new(context, NULL, 0, -1, TEXT("tcp://127.0.0.1:0"), NULL, NULL, 0, &options, &error));
  OK(rdzv_loop_rpc_init(loop, context, TEXT("alone"), 0, 1, options, NULL, &number, &error));
  await_success(loop, number, RDZV_EVENT_RPC_JOINED);
  OK(rdzv_loop_rpc_shutdown(loop, number, RDZV_RPC_GRACEFUL, &error));
  await_success(loop, number, RDZV_EVENT_RPC);
  check_change(loop, RDZV_RPC_EVENT_OVER, "");
  // One whose group will not be complete; whoever has its options gives it up.
  OK(rdzv_loop_rpc_init(loop, context, TEXT("waits"), 0, 2, options, NULL, &number, &error));
  rdzv_rpc_options_cancel(options);
  const rdzv_event event = await_kind(loop, number, RDZV_EVENT_RPC_JOINED);
  CHECK_NUMBER(event.status, RDZV_CANCELLED);
  rdzv_rpc_options_free(options);
  rdzv_loop_free(loop);
  rdzv_context_free(context);
}

void workers_of_a_loop_end_when_their_calls_have(void) {
  struct looped at = new_pair();
  uint64_t operation = 0;
  rdzv_rpc_call_spec call = call_of("", "ask", "x");
  int released = 0;
  call.callee = NULL;
  call.callee_id = 2;
  call.release = count_up;
  call.user_data = &released;
  OK(rdzv_loop_rpc_call(at.loop, at.one, &call, &operation, &error));
  rdzv_rpc_responder *responder = await_request(at.loop, at.two, "one", "x");
  OK(rdzv_loop_rpc_shutdown(at.loop, at.one, RDZV_RPC_GRACEFUL, &error));
  OK(rdzv_rpc_responder_answer(responder, TEXT("y"), NULL, NULL, &error));
  bool has_answer = false;
  for (int left = 3; left > 0; --left) {
    const rdzv_event event = await_event(at.loop);
    CHECK_NUMBER(event.status, RDZV_OK);
    if (event.kind == RDZV_EVENT_COMPLETED) {
      check_bytes(__FILE__, __LINE__, event.data, event.len, "y");
      CHECK_NUMBER(rdzv_loop_rpc_called(at.loop)->callee_id, 2);
      CHECK(rdzv_loop_rpc_called(at.loop)->callee == NULL);
      has_answer = true;
    } else {
      // The call is over before its worker is, and the others hear of that.
      const bool is_one = event.store == at.one;
      CHECK(has_answer || !is_one);
      check_change(at.loop, is_one ? RDZV_RPC_EVENT_OVER : RDZV_RPC_EVENT_LEFT, is_one ? "" : "one");
    }
  }
  CHECK_NUMBER(released, 1);
  // What fails names whom it was for.
  rdzv_error *fault = NULL;
  size_t len = 0;
  call = call_of("one", "ask", "");
  CHECK_NUMBER(rdzv_loop_rpc_call(at.loop, 99, &call, &operation, &fault), INVALID);
  CHECK_LENT(rdzv_error_node(fault, 0, &len), len, "one");
  rdzv_error_free(fault);
  call = call_of("two", "ask", "");
  OK(rdzv_loop_rpc_call(at.loop, at.two, &call, &operation, &error));
  responder = await_request(at.loop, at.two, "two", "");
  OK(rdzv_loop_cancel(at.loop, at.two, operation, &error));
  const rdzv_event event = await_kind(at.loop, at.two, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER(event.status, RDZV_CANCELLED);
  CHECK_LENT(rdzv_error_node(event.error, 0, &len), len, "two");
  rdzv_rpc_responder_free(responder);
  end_pair(&at);
}

static void *remove_from_elsewhere(void *argument) {
  const struct looped *at = argument;
  FAILS(RDZV_REENTRANT, rdzv_loop_remove_rpc(at->loop, at->one, &error));
  return NULL;
}

// Released bytes of a call: their owner uses the loop whose call runs it in every way, and may end what it is within.
struct meddler {
  struct looped *at;
  enum { USES, REMOVES, FREES } last;
};

static void meddle(void *user_data) {
  const struct meddler *meddler = user_data;
  struct looped *at = meddler->at;
  size_t len = 0;
  uint32_t number = 0;
  rdzv_event event = {.struct_size = sizeof event};
  const rdzv_rpc_call_spec call = call_of("one", "ask", "");
  uint64_t operation = 0;
  FAILS(RDZV_REENTRANT, rdzv_loop_poll(at->loop, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_next_event(at->loop, &event, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_rpc_call(at->loop, at->one, &call, &operation, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_rpc_init_over_store(at->loop, NULL, at->store, TEXT("x"), 9, -1, NULL, NULL, &number, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_rpc_shutdown(at->loop, at->one, RDZV_RPC_ABRUPT, &error));
  CHECK(rdzv_loop_item(at->loop, 0, &len) == NULL && rdzv_loop_rpc_request(at->loop) == NULL);
  CHECK(rdzv_loop_fd(at->loop) >= 0);
  // Only this thread is within; another one may not even remove a worker.
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, remove_from_elsewhere, at) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  if (meddler->last == REMOVES) OK(rdzv_loop_remove_rpc(at->loop, at->one, &error));
  if (meddler->last == FREES) rdzv_loop_free(at->loop);
}

void code_within_a_call_does_not_use_its_loop(void) {
  struct looped at = {.server = start_server(NULL)};
  struct meddler meddler = {.at = &at, .last = USES};
  at.store = connect_store(NULL, rdzv_server_port(at.server));
  OK(rdzv_loop_new(NULL, &at.loop, &error));
  at.one = join(&at, "one", 1);
  await_success(at.loop, at.one, RDZV_EVENT_RPC_JOINED);
  // A call that is refused releases its bytes before it returns.
  uint64_t operation = 0;
  rdzv_rpc_call_spec call = call_of("none", "ask", "bytes");
  call.release = meddle;
  call.user_data = &meddler;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.loop, at.one, &call, &operation, &error));
  // Removed within, the worker goes when the call returns; and so does the loop when it is freed there.
  meddler.last = REMOVES;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.loop, at.one, &call, &operation, &error));
  call.release = NULL;
  FAILS(INVALID, rdzv_loop_rpc_call(at.loop, at.one, &call, &operation, &error));
  rdzv_loop_free(at.loop);
  OK(rdzv_loop_new(NULL, &at.loop, &error));
  at.one = join(&at, "one", 1);
  await_success(at.loop, at.one, RDZV_EVENT_RPC_JOINED);
  call.release = meddle;
  meddler.last = FREES;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.loop, at.one, &call, &operation, &error));
  rdzv_store_free(at.store);
  rdzv_server_free(at.server);
}

static void free_loop(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure) {
  struct looped *at = user_data;
  (void)data;
  (void)len;
  (void)failure;
  CHECK_NUMBER(status, RDZV_RPC_HANDLER_FAILED);
  rdzv_loop_free(at->loop);
  at->loop = NULL;
}

static void pass_over(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure) {
  (void)user_data;
  (void)data;
  (void)len;
  CHECK(status != RDZV_OK && failure != NULL);
}

// A worker in code of the test's own, alone in a loop.
struct alone {
  struct looped at;
  struct own own;
  rdzv_context *context;
};

static void join_alone(struct alone *alone) {
  const rdzv_rpc_backend_vtable vtable = {.struct_size = sizeof vtable, .user_data = &alone->own, .init = own_init};
  struct looped *at = &alone->at;
  rdzv_rpc_options *options = NULL;
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  OK(rdzv_context_new(&alone->context, &error));
  OK(rdzv_context_register_rpc_backend(alone->context, TEXT("mine"), &vtable, &error));
  OK(rdzv_store_new_hash(alone->context, PATIENCE_MS, &at->store, &error));
  OK(rdzv_rpc_options_new(alone->context, TEXT("mine"), -1, NULL, 0, NULL, NULL, 0, &options, &error));
  OK(rdzv_loop_new(alone->context, &at->loop, &error));
  OK(rdzv_loop_rpc_init_over_store(at->loop, alone->context, at->store, TEXT("me"), 5, -1, options, handlers, &at->one,
                                   &error));
  rdzv_rpc_handlers_free(handlers);
  rdzv_rpc_options_free(options);
  await_success(at->loop, at->one, RDZV_EVENT_RPC_JOINED);
}

static void end_alone(struct alone *alone) {
  rdzv_rpc_handlers_free(alone->own.handlers);
  rdzv_store_free(alone->at.store);
  rdzv_context_free(alone->context);
}

typedef void on_end(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure);

// A request that comes through the worker's code, which hears on the thread that takes the events what comes of it.
static void dispatch(struct alone *alone, on_end *done) {
  OK(rdzv_rpc_handlers_dispatch(alone->own.handlers, TEXT("x"), 9, TEXT("ask"), TEXT("x"), -1, 1, done, &alone->at,
                                &error));
}

void loop_that_is_freed_while_an_event_is_taken_shows_none(void) {
  struct alone alone = {.own = {.mutex = PTHREAD_MUTEX_INITIALIZER}};
  join_alone(&alone);
  dispatch(&alone, free_loop);
  dispatch(&alone, pass_over);
  await_success(alone.at.loop, alone.at.one, RDZV_EVENT_RPC_REQUEST);
  // Nobody took the way back, so that its caller is told when the next event is taken; and that is a request, too.
  rdzv_event event = {.struct_size = sizeof event};
  OK(rdzv_loop_next_event(alone.at.loop, &event, &error));
  CHECK(alone.at.loop == NULL);
  CHECK_NUMBER(event.kind, RDZV_EVENT_NONE);
  CHECK(event.data == NULL && event.error == NULL);
  end_alone(&alone);
}

static void remove_one(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure) {
  const struct looped *at = user_data;
  (void)data;
  (void)len;
  (void)failure;
  CHECK_NUMBER(status, RDZV_RPC_HANDLER_FAILED);
  OK(rdzv_loop_remove_rpc(at->loop, at->one, &error));
}

void worker_that_is_removed_while_its_event_is_taken_has_none(void) {
  struct alone alone = {.own = {.mutex = PTHREAD_MUTEX_INITIALIZER}};
  struct looped *at = &alone.at;
  join_alone(&alone);
  rdzv_event event = {.struct_size = sizeof event};
  dispatch(&alone, remove_one);
  dispatch(&alone, pass_over);
  await_success(at->loop, at->one, RDZV_EVENT_RPC_REQUEST);
  // Who asked first hears that there is no answer while the second request is taken, and removes the worker.
  OK(rdzv_loop_next_event(at->loop, &event, &error));
  CHECK_NUMBER(event.kind, RDZV_EVENT_NONE);
  CHECK(event.data == NULL && rdzv_loop_rpc_request(at->loop) == NULL);
  FAILS(INVALID, rdzv_loop_rpc_shutdown(at->loop, at->one, RDZV_RPC_ABRUPT, &error));
  // What happens to others is told as ever.
  at->two = join(at, "two", 2);
  await_success(at->loop, at->two, RDZV_EVENT_RPC_JOINED);
  rdzv_loop_free(at->loop);
  end_alone(&alone);
}

void workers_of_a_loop_refuse_bad_arguments(void) {
  rdzv_loop *loop = NULL;
  rdzv_rpc *handle = NULL;
  rdzv_rpc_responder *responder = NULL;
  rdzv_rpc_event change = {.struct_size = sizeof change};
  const rdzv_rpc_call_spec call = call_of("x", "x", "");
  uint32_t number = 77;
  uint64_t operation = 77;
  OK(rdzv_loop_new(NULL, &loop, &error));
  FAILS(INVALID, rdzv_loop_rpc_init(NULL, NULL, TEXT("x"), 0, -1, NULL, NULL, &number, &error));
  FAILS(INVALID, rdzv_loop_rpc_init(loop, NULL, TEXT("x"), 0, -1, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_init(loop, NULL, TEXT("x"), 65536, -1, NULL, NULL, &number, &error));
  FAILS(INVALID, rdzv_loop_rpc_init_over_store(loop, NULL, NULL, TEXT("x"), 0, -1, NULL, NULL, &number, &error));
  FAILS(INVALID, rdzv_loop_add_rpc(loop, NULL, &number, &error));
  FAILS(INVALID, rdzv_loop_add_rpc(NULL, NULL, &number, &error));
  FAILS(INVALID, rdzv_loop_remove_rpc(NULL, 1, &error));
  OK(rdzv_loop_remove_rpc(loop, 1, &error));
  FAILS(INVALID, rdzv_loop_rpc_handle(loop, 1, &handle, &error));
  FAILS(INVALID, rdzv_loop_rpc_handle(loop, 1, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(loop, 1, &call, &operation, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(loop, 1, NULL, &operation, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(loop, 1, &call, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_notify(loop, 1, &call, &error));
  FAILS(INVALID, rdzv_loop_rpc_add_handler(loop, 1, TEXT("x"), &error));
  FAILS(INVALID, rdzv_loop_rpc_shutdown(loop, 1, RDZV_RPC_ABRUPT, &error));
  FAILS(INVALID, rdzv_loop_rpc_shutdown(loop, 1, 7, &error));
  FAILS(INVALID, rdzv_loop_rpc_event(loop, &change, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_event(loop, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_responder(loop, &responder, &error));
  FAILS(INVALID, rdzv_loop_rpc_responder(loop, NULL, &error));
  CHECK(rdzv_loop_rpc_request(NULL) == NULL && rdzv_loop_rpc_request(loop) == NULL);
  CHECK(number == 77 && operation == 77 && handle == NULL && responder == NULL);
  // What is wrong with the worker is told by its event.
  OK(rdzv_loop_rpc_init(loop, NULL, TEXT("a b"), 0, -1, NULL, NULL, &number, &error));
  const rdzv_event event = await_kind(loop, number, RDZV_EVENT_RPC_JOINED);
  const struct failure wanted = {.status = INVALID, .message_part = "Worker name must match"};
  check_failure(__FILE__, __LINE__, "rdzv_loop_rpc_init", event.status, event.error, wanted);
  rdzv_loop_free(loop);
}
