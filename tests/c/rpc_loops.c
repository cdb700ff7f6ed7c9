// Workers of RPC groups in an event loop: one thread, and nothing that blocks.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <pthread.h>
#include <stdatomic.h>

#define INVALID RDZV_INVALID_ARGUMENT

// Two workers of a dynamic group in one loop, and an operation.
struct looped {
  rdzv_server *server;
  rdzv_store *store;
  rdzv_loop *loop;
  rdzv_loop_member *one, *two;
  rdzv_op *op;
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
static rdzv_event await_kind(rdzv_loop *loop, const rdzv_loop_member *worker, int32_t kind) {
  const rdzv_event event = await_event(loop);
  CHECK_NUMBER(event.kind, kind);
  CHECK(event.member == worker);
  return event;
}

static rdzv_event await_success(rdzv_loop *loop, const rdzv_loop_member *worker, int32_t kind) {
  const rdzv_event event = await_kind(loop, worker, kind);
  if (event.error != NULL) FAIL("%s", rdzv_error_message(event.error));
  return event;
}

// The end of this call.
static void await_answer(rdzv_loop *loop, const rdzv_loop_member *worker, const rdzv_op *op, const char *answer) {
  const rdzv_event event = await_kind(loop, worker, RDZV_EVENT_COMPLETED);
  CHECK(event.op == op);
  const rdzv_result result = result_of(op);
  if (result.status != RDZV_OK) FAIL("%s", rdzv_error_message(result.error));
  CHECK_VALUE(result, answer);
}

static void await_failure(rdzv_loop *loop, const rdzv_loop_member *worker, const rdzv_op *op, rdzv_status status,
                          const char *part) {
  const rdzv_event event = await_kind(loop, worker, RDZV_EVENT_COMPLETED);
  CHECK(event.op == op);
  const rdzv_result result = result_of(op);
  const struct failure wanted = {.status = status, .message_part = part};
  check_failure(__FILE__, __LINE__, "an RPC call", result.status, result.error, wanted);
}

// The group of this worker has changed so.
static void check_change(rdzv_loop *loop, int32_t kind, const char *name) {
  rdzv_rpc_event change = {.struct_size = sizeof change};
  rdzv_buffer *who = rdzv_buffer_new(), *why = rdzv_buffer_new();
  OK(rdzv_loop_rpc_event(loop, &change, who, why, &error));
  CHECK_NUMBER(change.kind, kind);
  CHECK_BUFFER(who, name);
  CHECK((rdzv_buffer_len(why) > 0) == (kind == RDZV_RPC_EVENT_DIED));
  rdzv_buffer_free(who);
  rdzv_buffer_free(why);
}

// A request that comes next.
static rdzv_rpc_responder *await_request(rdzv_loop *loop, const rdzv_loop_member *worker, const char *caller, const char *payload) {
  await_success(loop, worker, RDZV_EVENT_RPC_REQUEST);
  const rdzv_rpc_request *request = rdzv_loop_rpc_request(loop);
  const rdzv_rpc_request_info info = request_info(request);
  CHECK_BYTES(info.payload, payload);
  CHECK_BYTES(info.caller, caller);
  CHECK_BYTES(info.handler, "ask");
  rdzv_rpc_responder *responder = NULL;
  OK(rdzv_loop_rpc_responder(loop, &responder, &error));
  FAILS(INVALID, rdzv_loop_rpc_responder(loop, &responder, &error));
  return responder;
}

static rdzv_rpc_handlers *handlers_of_loop(void) {
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  OK(rdzv_rpc_handlers_add(handlers, TEXT("ask"), RDZV_RPC_LOOP, NULL, NULL, NULL, NULL, &error));
  return handlers;
}

static rdzv_loop_member *join(struct looped *at, const char *name, int rank) {
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  rdzv_loop_member *member = NULL;
  OK(rdzv_loop_rpc_new(at->loop, NULL, TEXT(name), rank, -1, OVER(at->store, NULL), handlers, NULL, &member, &error));
  CHECK(member != NULL);
  rdzv_rpc_handlers_free(handlers);
  return member;
}

static struct looped new_pair(void) {
  struct looped at = {.server = start_server(NULL), .op = rdzv_op_new(NULL)};
  at.store = connect_store(NULL, rdzv_server_port(at.server));
  OK(rdzv_loop_new(NULL, &at.loop, &error));
  at.one = join(&at, "one", 1);
  await_success(at.loop, at.one, RDZV_EVENT_RPC_JOINED);
  at.two = join(&at, "two", 2);
  // The one hears of the other, and the other that it is there; which comes first nobody says.
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = await_event(at.loop);
    CHECK(event.error == NULL);
    if (event.kind == RDZV_EVENT_RPC) {
      CHECK(event.member == at.one);
      check_change(at.loop, RDZV_RPC_EVENT_JOINED, "two");
    } else {
      CHECK_NUMBER(event.kind, RDZV_EVENT_RPC_JOINED);
      CHECK(event.member == at.two);
    }
  }
  return at;
}

static void end_pair(struct looped *at) {
  rdzv_loop_free(at->loop);
  rdzv_op_free(at->op);
  rdzv_store_free(at->store);
  rdzv_server_free(at->server);
}

// A thread of the library may release a payload.
static void count_up(void *user_data) {
  atomic_fetch_add((atomic_int *)user_data, 1);
}

void workers_of_a_loop_call_each_other(void) {
  struct looped at = new_pair();
  rdzv_op *first = at.op, *second = rdzv_op_new(NULL);
  rdzv_rpc_call_spec call = call_of("two", "ask", "hello");
  OK(rdzv_loop_rpc_call(at.one, first, &call, &error));
  rdzv_rpc_responder *late = await_request(at.loop, at.two, "one", "hello");
  // One that is answered at once, though it came later, and one that the worker asks itself.
  call = call_of("two", "ask", "me");
  OK(rdzv_loop_rpc_call(at.two, second, &call, &error));
  rdzv_rpc_responder *soon = await_request(at.loop, at.two, "two", "me");
  OK(rdzv_rpc_responder_send(soon, TEXT("myself"), NULL, NULL, &error));
  await_answer(at.loop, at.two, second, "myself");
  OK(rdzv_rpc_responder_send(late, TEXT("at last"), NULL, NULL, &error));
  await_answer(at.loop, at.one, first, "at last");

  // The bytes of a request may be kept until it is answered.
  OK(rdzv_loop_rpc_call(at.two, second, &call, &error));
  late = await_request(at.loop, at.two, "two", "me");
  rdzv_buffer *taken = rdzv_buffer_new();
  const rdzv_rpc_request *request = rdzv_loop_rpc_request(at.loop);
  const uint8_t *lay_at = request_info(request).payload.data;
  OK(rdzv_rpc_request_take(request, taken, &error));
  CHECK(rdzv_buffer_data(taken) == lay_at && request_info(request).payload.len == 0);
  rdzv_event nothing = {.struct_size = sizeof nothing};
  OK(rdzv_loop_next_event(at.loop, &nothing, &error));
  CHECK_BUFFER(taken, "me");
  rdzv_buffer_free(taken);
  OK(rdzv_rpc_responder_send(late, TEXT("kept"), NULL, NULL, &error));
  await_answer(at.loop, at.two, second, "kept");

  call = call_of("two", "ask", "psst");
  // One-way calls go through a handle of the worker.
  rdzv_rpc *caller = NULL;
  OK(rdzv_loop_rpc_handle(at.one, &caller, &error));
  OK(rdzv_rpc_notify(caller, &call, &error));
  rdzv_rpc_free(caller);
  rdzv_rpc_responder_free(await_request(at.loop, at.two, "one", "psst"));
  // Whoever does not ask for the way back does not answer.
  OK(rdzv_loop_rpc_call(at.one, first, &call, &error));
  await_success(at.loop, at.two, RDZV_EVENT_RPC_REQUEST);
  await_failure(at.loop, at.one, first, RDZV_RPC_HANDLER_FAILED, "ask gave no answer");
  CHECK(rdzv_loop_rpc_request(at.loop) == NULL);
  OK(rdzv_loop_rpc_call(at.one, first, &call, &error));
  OK(rdzv_rpc_responder_fail(await_request(at.loop, at.two, "one", "psst"), RDZV_RPC_HANDLER_FAILED, TEXT("no such luck"), &error));
  await_failure(at.loop, at.one, first, RDZV_RPC_HANDLER_FAILED, "no such luck");

  OK(rdzv_loop_rpc_call(at.one, first, &call, &error));
  late = await_request(at.loop, at.two, "one", "psst");
  OK(rdzv_loop_cancel(at.loop, first, &error));
  await_failure(at.loop, at.one, first, RDZV_CANCELLED, "cancelled");
  rdzv_rpc_responder_free(late);
  call.timeout_ms = 0;
  FAILS(RDZV_TIMED_OUT, rdzv_loop_rpc_call(at.one, first, &call, &error));
  call = call_of("three", "ask", "");
  atomic_int released = 0;
  call.release = count_up;
  call.user_data = &released;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.one, first, &call, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(NULL, first, &call, &error));
  CHECK_NUMBER(released, 2);

  // What a handle of the worker tells; freed, it ends nothing.
  rdzv_rpc *handle = NULL;
  OK(rdzv_loop_rpc_handle(at.two, &handle, &error));
  CHECK_NUMBER(worker_info(handle).id, 2);
  rdzv_rpc_free(handle);
  // A handler that is added later.
  call = call_of("one", "more", "");
  FAILS(INVALID, rdzv_loop_rpc_add_handler(at.one, TEXT("more"), "", &error));
  OK(rdzv_loop_rpc_add_handler(at.one, TEXT("more"), NULL, &error));
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_loop_rpc_add_handler(at.one, TEXT("more"), NULL, &error));
  OK(rdzv_loop_rpc_call(at.two, first, &call, &error));
  await_success(at.loop, at.one, RDZV_EVENT_RPC_REQUEST);
  OK(rdzv_loop_rpc_responder(at.loop, &soon, &error));
  OK(rdzv_rpc_responder_send(soon, NULL, 0, NULL, NULL, &error));
  await_answer(at.loop, at.two, first, "");

  OK(rdzv_loop_rpc_shutdown(at.two, RDZV_RPC_GRACEFUL, &error));
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = await_event(at.loop);
    const bool is_one = event.member == at.one;
    CHECK_NUMBER(event.kind, is_one ? RDZV_EVENT_RPC : RDZV_EVENT_RPC_OVER);
    CHECK(event.error == NULL);
    if (is_one) check_change(at.loop, RDZV_RPC_EVENT_LEFT, "two");
  }
  FAILS(INVALID, rdzv_loop_rpc_shutdown(at.two, RDZV_RPC_GRACEFUL, &error));
  rdzv_op_free(second);
  end_pair(&at);
}

void workers_of_a_loop_die_and_end(void) {
  struct looped at = new_pair();
  const rdzv_rpc_call_spec call = call_of("two", "ask", "");
  OK(rdzv_loop_rpc_call(at.one, at.op, &call, &error));
  rdzv_rpc_responder *responder = await_request(at.loop, at.two, "one", "");
  OK(rdzv_loop_remove(at.two, &error));
  for (int i = 0; i < 2; ++i) {
    const rdzv_event event = await_event(at.loop);
    CHECK(event.member == at.one);
    if (event.kind == RDZV_EVENT_COMPLETED) {
      CHECK_NUMBER(result_of(at.op).status, RDZV_RPC_PEER_DIED);
    } else {
      check_change(at.loop, RDZV_RPC_EVENT_DIED, "two");
    }
  }
  CHECK_NUMBER(rdzv_rpc_responder_is_wanted(responder), 0);
  rdzv_rpc_responder_free(responder);
  // A name that is taken.
  const rdzv_loop_member *again = join(&at, "one", 7);
  const rdzv_event event = await_kind(at.loop, again, RDZV_EVENT_RPC_JOINED);
  CHECK_NUMBER(rdzv_error_status(event.error), RDZV_RPC_NAME_TAKEN);
  // The loop goes while a call is under way, another worker joins, and a request waits.
  const rdzv_rpc_call_spec own = call_of("one", "ask", "");
  OK(rdzv_loop_rpc_call(at.one, at.op, &own, &error));
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
             rdzv_rpc_new(NULL, TEXT("one"), 1, -1, OVER(store, NULL), handlers, &one, &error));
  rdzv_rpc_handlers_free(handlers);
  OK(rdzv_rpc_new(NULL, TEXT("one"), 1, -1, OVER(store, NULL), NULL, &one, &error));
  OK(rdzv_rpc_new(NULL, TEXT("two"), 2, -1, OVER(store, NULL), NULL, &two, &error));
  rdzv_loop_member *member = NULL, *none = NULL;
  OK(rdzv_loop_add_rpc(loop, one, NULL, &member, &error));
  FAILS(RDZV_ALREADY_REGISTERED, rdzv_loop_add_rpc(loop, one, NULL, &none, &error));
  await_success(loop, member, RDZV_EVENT_RPC);
  check_change(loop, RDZV_RPC_EVENT_JOINED, "two");
  OK(rdzv_loop_rpc_add_handler(member, TEXT("ask"), NULL, &error));
  rdzv_rpc_future *future = NULL;
  const rdzv_rpc_call_spec call = call_of("one", "ask", "x");
  OK(rdzv_rpc_future_new(two, &call, &future, &error));
  OK(rdzv_rpc_responder_send(await_request(loop, member, "two", "x"), TEXT("y"), NULL, NULL, &error));
  int32_t ended = 0;
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, answer, &error));
  CHECK_BUFFER(answer, "y");
  rdzv_buffer_free(answer);
  rdzv_rpc_future_free(future);
  rdzv_rpc_free(two);
  await_success(loop, member, RDZV_EVENT_RPC);
  check_change(loop, RDZV_RPC_EVENT_DIED, "two");
  // The handle ends it, and the loop hears so.
  rdzv_rpc_free(one);
  await_kind(loop, member, RDZV_EVENT_RPC_OVER);
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

static rdzv_rpc_request_info request_of(const rdzv_rpc_call_spec *call) {
  return (rdzv_rpc_request_info){.struct_size = sizeof(rdzv_rpc_request_info),
                                 .caller_id = 5,
                                 .caller = BYTES("me"),
                                 .handler = {call->handler, call->handler_len},
                                 .payload = {call->payload, call->payload_len},
                                 .time_left_ms = -1};
}

static rdzv_status own_call(void *user_data, const rdzv_rpc_call_spec *call, rdzv_rpc_responder *responder) {
  struct own *own = user_data;
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  const bool is_kept = call->handler_len == 4;
  if (is_kept) own->kept = responder;
  rdzv_rpc_handlers *handlers = own->handlers;
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  if (is_kept) return RDZV_OK;
  const rdzv_rpc_request_info request = request_of(call);
  return rdzv_rpc_handlers_dispatch(handlers, &request, responder, NULL);
}

static rdzv_status own_list_workers(void *user_data, rdzv_reply *reply) {
  (void)user_data;
  rdzv_reply_add_worker(reply, TEXT("me"), 5);
  return RDZV_OK;
}

static rdzv_status own_shutdown(void *user_data, int32_t how, rdzv_reply *reply) {
  struct own *own = user_data;
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  own->ended += 1;
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  if (how == RDZV_RPC_ABRUPT) return RDZV_OK;
  rdzv_reply_set_message(reply, TEXT("it goes in a huff"));
  return RDZV_CONFLICT;
}

static rdzv_status own_new_worker(void *user_data, const rdzv_rpc_worker_request *request, rdzv_reply *reply) {
  struct own *own = user_data;
  CHECK_NUMBER(request->id, 5);
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  own->handlers = rdzv_rpc_handlers_clone(request->handlers);
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  const rdzv_rpc_agent_vtable vtable = {.struct_size = sizeof vtable,
                                        .user_data = own,
                                        .call = own_call,
                                        .list_workers = own_list_workers,
                                        .shutdown = own_shutdown};
  rdzv_reply_set_rpc_agent(reply, &vtable);
  return RDZV_OK;
}

void own_rpc_backend_lives_in_a_loop(void) {
  struct own own = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  const rdzv_rpc_backend_vtable vtable = {.struct_size = sizeof vtable, .user_data = &own, .new_worker = own_new_worker};
  rdzv_context *context = NULL;
  rdzv_store *store = NULL;
  rdzv_loop *loop = NULL;
  rdzv_loop_member *me = NULL;
  rdzv_op *op = rdzv_op_new(NULL);
  context = rdzv_context_new();
  OK(rdzv_context_register_rpc_backend(context, TEXT("mine"), &vtable, &error));
  OK(rdzv_store_new_hash(context, PATIENCE_MS, &store, &error));
  const rdzv_rpc_options options = {.struct_size = sizeof options, .backend = "mine"};
  OK(rdzv_loop_new(context, &loop, &error));
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  OK(rdzv_loop_rpc_new(loop, context, TEXT("me"), 5, -1, OVER(store, &options), handlers, NULL, &me, &error));
  rdzv_rpc_handlers_free(handlers);
  await_success(loop, me, RDZV_EVENT_RPC_JOINED);
  FAILS(RDZV_UNSUPPORTED, rdzv_loop_rpc_add_handler(me, TEXT("x"), NULL, &error));

  rdzv_rpc_call_spec call = call_of("me", "ask", "abc");
  OK(rdzv_loop_rpc_call(me, op, &call, &error));
  OK(rdzv_rpc_responder_send(await_request(loop, me, "me", "abc"), TEXT("cba"), NULL, NULL, &error));
  await_answer(loop, me, op, "cba");
  OK(rdzv_loop_rpc_call(me, op, &call, &error));
  OK(rdzv_rpc_responder_fail(await_request(loop, me, "me", "abc"), RDZV_RPC_HANDLER_FAILED, TEXT("no such luck"), &error));
  await_failure(loop, me, op, RDZV_RPC_HANDLER_FAILED, "no such luck");
  rdzv_rpc *handle = NULL;
  OK(rdzv_loop_rpc_handle(me, &handle, &error));
  OK(rdzv_rpc_notify(handle, &call, &error));
  rdzv_rpc_free(handle);
  rdzv_rpc_responder_free(await_request(loop, me, "me", "abc"));
  call = call_of("me", "x", "");
  FAILS(RDZV_RPC_NO_HANDLER, rdzv_loop_rpc_call(me, op, &call, &error));
  // One that is not answered in time, and one that is given up.
  call = call_of("me", "keep", "");
  call.timeout_ms = 20;
  OK(rdzv_loop_rpc_call(me, op, &call, &error));
  await_failure(loop, me, op, RDZV_TIMED_OUT, "keep at me");
  rdzv_rpc_responder_free(own.kept);
  call.timeout_ms = PATIENCE_MS;
  OK(rdzv_loop_rpc_call(me, op, &call, &error));
  OK(rdzv_loop_cancel(loop, op, &error));
  await_failure(loop, me, op, RDZV_CANCELLED, "keep at me");
  rdzv_rpc_responder_free(own.kept);
  // One that ends with its worker.
  OK(rdzv_loop_rpc_call(me, op, &call, &error));
  OK(rdzv_loop_rpc_shutdown(me, RDZV_RPC_GRACEFUL, &error));
  await_failure(loop, me, op, RDZV_RPC_NO_MEMBER, NULL);
  rdzv_rpc_responder_free(own.kept);
  const rdzv_event event = await_kind(loop, me, RDZV_EVENT_RPC_OVER);
  check_failure(__FILE__, __LINE__, "shutdown", rdzv_error_status(event.error), event.error,
                (struct failure){.status = RDZV_CONFLICT, .message_part = "it goes in a huff"});
  rdzv_loop_free(loop);
  rdzv_op_free(op);
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
  rdzv_loop_member *member = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  context = rdzv_context_new();
  // One that hosts the store itself, and is all of its group.
  rdzv_cancel_token *token = NULL;
  token = rdzv_cancel_token_new();
  const rdzv_rpc_options options = {
      .struct_size = sizeof options, .init_method = "tcp://127.0.0.1:0", .token = token};
  OK(rdzv_loop_rpc_new(loop, context, TEXT("alone"), 0, 1, &options, NULL, NULL, &member, &error));
  await_success(loop, member, RDZV_EVENT_RPC_JOINED);
  OK(rdzv_loop_rpc_shutdown(member, RDZV_RPC_GRACEFUL, &error));
  await_success(loop, member, RDZV_EVENT_RPC_OVER);
  // One whose group will not be complete; whoever has its token gives it up.
  OK(rdzv_loop_rpc_new(loop, context, TEXT("waits"), 0, 2, &options, NULL, NULL, &member, &error));
  rdzv_cancel_token_cancel(token);
  const rdzv_event event = await_kind(loop, member, RDZV_EVENT_RPC_JOINED);
  CHECK_NUMBER(rdzv_error_status(event.error), RDZV_CANCELLED);
  rdzv_cancel_token_free(token);
  rdzv_loop_free(loop);
  rdzv_context_free(context);
}

void workers_of_a_loop_end_when_their_calls_have(void) {
  struct looped at = new_pair();
  rdzv_rpc_call_spec call = call_of("", "ask", "x");
  atomic_int released = 0;
  call.callee = NULL;
  call.callee_id = 2;
  call.release = count_up;
  call.user_data = &released;
  OK(rdzv_loop_rpc_call(at.one, at.op, &call, &error));
  rdzv_rpc_responder *responder = await_request(at.loop, at.two, "one", "x");
  OK(rdzv_loop_rpc_shutdown(at.one, RDZV_RPC_GRACEFUL, &error));
  OK(rdzv_rpc_responder_send(responder, TEXT("y"), NULL, NULL, &error));
  bool has_answer = false;
  for (int left = 3; left > 0; --left) {
    const rdzv_event event = await_event(at.loop);
    CHECK(event.error == NULL);
    if (event.kind == RDZV_EVENT_COMPLETED) {
      CHECK_VALUE(result_of(at.op), "y");
      has_answer = true;
    } else {
      // The call is over before its worker is, and the others hear of that.
      const bool is_one = event.member == at.one;
      CHECK(has_answer || !is_one);
      CHECK_NUMBER(event.kind, is_one ? RDZV_EVENT_RPC_OVER : RDZV_EVENT_RPC);
      if (!is_one) check_change(at.loop, RDZV_RPC_EVENT_LEFT, "one");
    }
  }
  // What fails names whom it was for.
  rdzv_error *fault = NULL;
  call = call_of("three", "ask", "");
  CHECK_NUMBER(rdzv_loop_rpc_call(at.two, at.op, &call, &fault), RDZV_RPC_UNKNOWN_WORKER);
  CHECK_NODE(fault, 0, "three");
  rdzv_error_free(fault);
  call = call_of("two", "ask", "");
  OK(rdzv_loop_rpc_call(at.two, at.op, &call, &error));
  responder = await_request(at.loop, at.two, "two", "");
  OK(rdzv_loop_cancel(at.loop, at.op, &error));
  await_kind(at.loop, at.two, RDZV_EVENT_COMPLETED);
  CHECK_NUMBER(result_of(at.op).status, RDZV_CANCELLED);
  CHECK_NODE(result_of(at.op).error, 0, "two");
  rdzv_rpc_responder_free(responder);
  end_pair(&at);
  CHECK_NUMBER(released, 1);
}

static void *remove_from_elsewhere(void *argument) {
  const struct looped *at = argument;
  FAILS(RDZV_REENTRANT, rdzv_loop_remove(at->one, &error));
  return NULL;
}

// Released bytes of a call: their owner uses the loop whose call runs it in every way, and may try to free it.
struct meddler {
  struct looped *at;
  enum { USES, FREES } last;
};

static void meddle(void *user_data) {
  const struct meddler *meddler = user_data;
  struct looped *at = meddler->at;
  rdzv_loop_member *none = NULL;
  rdzv_event event = {.struct_size = sizeof event};
  const rdzv_rpc_call_spec call = call_of("one", "ask", "");
  FAILS(RDZV_REENTRANT, rdzv_loop_poll(at->loop, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_next_event(at->loop, &event, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_rpc_call(at->one, at->op, &call, &error));
  FAILS(RDZV_REENTRANT,
        rdzv_loop_rpc_new(at->loop, NULL, TEXT("x"), 9, -1, OVER(at->store, NULL), NULL, NULL, &none, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_rpc_shutdown(at->one, RDZV_RPC_ABRUPT, &error));
  FAILS(RDZV_REENTRANT, rdzv_loop_remove(at->one, &error));
  CHECK(rdzv_loop_rpc_request(at->loop) == NULL);
  CHECK(rdzv_loop_fd(at->loop) >= 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, remove_from_elsewhere, at) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  if (meddler->last == FREES) rdzv_loop_free(at->loop);
}

void code_within_a_call_does_not_use_its_loop(void) {
  struct looped at = {.server = start_server(NULL), .op = rdzv_op_new(NULL)};
  struct meddler meddler = {.at = &at, .last = USES};
  at.store = connect_store(NULL, rdzv_server_port(at.server));
  OK(rdzv_loop_new(NULL, &at.loop, &error));
  at.one = join(&at, "one", 1);
  await_success(at.loop, at.one, RDZV_EVENT_RPC_JOINED);
  // A call that is refused releases its bytes before it returns.
  rdzv_rpc_call_spec call = call_of("none", "ask", "bytes");
  call.release = meddle;
  call.user_data = &meddler;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.one, at.op, &call, &error));
  // Freed within, the loop stays; its next call says so, and it can be used and freed afterwards.
  meddler.last = FREES;
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_loop_rpc_call(at.one, at.op, &call, &error));
  FAILS(RDZV_FREE_REFUSED, rdzv_loop_poll(at.loop, &error));
  OK(rdzv_loop_poll(at.loop, &error));
  end_pair(&at);
}

static void free_loop(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure) {
  struct looped *at = user_data;
  (void)data;
  (void)len;
  (void)failure;
  CHECK_NUMBER(status, RDZV_RPC_HANDLER_FAILED);
  rdzv_loop_free(at->loop);
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
  const rdzv_rpc_backend_vtable vtable = {.struct_size = sizeof vtable, .user_data = &alone->own, .new_worker = own_new_worker};
  struct looped *at = &alone->at;
  rdzv_rpc_handlers *handlers = handlers_of_loop();
  alone->context = rdzv_context_new();
  OK(rdzv_context_register_rpc_backend(alone->context, TEXT("mine"), &vtable, &error));
  OK(rdzv_store_new_hash(alone->context, PATIENCE_MS, &at->store, &error));
  const rdzv_rpc_options options = {.struct_size = sizeof options, .backend = "mine"};
  OK(rdzv_loop_new(alone->context, &at->loop, &error));
  OK(rdzv_loop_rpc_new(at->loop, alone->context, TEXT("me"), 5, -1, OVER(at->store, &options), handlers, NULL,
                       &at->one, &error));
  rdzv_rpc_handlers_free(handlers);
  await_success(at->loop, at->one, RDZV_EVENT_RPC_JOINED);
}

// The handlers that a thread of the library has put there.
static rdzv_rpc_handlers *handlers_of(struct own *own) {
  CHECK(pthread_mutex_lock(&own->mutex) == 0);
  rdzv_rpc_handlers *handlers = own->handlers;
  CHECK(pthread_mutex_unlock(&own->mutex) == 0);
  return handlers;
}

static void end_alone(struct alone *alone) {
  rdzv_rpc_handlers_free(handlers_of(&alone->own));
  rdzv_store_free(alone->at.store);
  rdzv_context_free(alone->context);
}

typedef void on_end(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure);

// A request that comes through the worker's code, which hears on the thread that takes the events what comes of it.
static void dispatch(struct alone *alone, on_end *done) {
  const rdzv_rpc_request_info request = {.struct_size = sizeof request,
                                         .caller_id = 9,
                                         .caller = BYTES("x"),
                                         .handler = BYTES("ask"),
                                         .payload = BYTES("x"),
                                         .time_left_ms = -1};
  rdzv_rpc_responder *responder = NULL;
  OK(rdzv_rpc_responder_new(done, &alone->at, &responder, &error));
  OK(rdzv_rpc_handlers_dispatch(handlers_of(&alone->own), &request, responder, &error));
}

void loop_that_is_freed_while_an_event_is_taken_stays(void) {
  struct alone alone = {.own = {.mutex = PTHREAD_MUTEX_INITIALIZER}};
  join_alone(&alone);
  dispatch(&alone, free_loop);
  dispatch(&alone, pass_over);
  await_success(alone.at.loop, alone.at.one, RDZV_EVENT_RPC_REQUEST);
  // The responder was not taken, so its caller gets the failure when the next event is taken, and that is a request, too.
  rdzv_event event = {.struct_size = sizeof event};
  OK(rdzv_loop_next_event(alone.at.loop, &event, &error));
  CHECK_NUMBER(event.kind, RDZV_EVENT_RPC_REQUEST);
  FAILS(RDZV_FREE_REFUSED, rdzv_loop_next_event(alone.at.loop, &event, &error));
  rdzv_loop_free(alone.at.loop);
  end_alone(&alone);
}

void workers_of_a_loop_refuse_bad_arguments(void) {
  rdzv_loop *loop = NULL;
  rdzv_rpc *handle = NULL;
  rdzv_rpc_responder *responder = NULL;
  rdzv_rpc_event change = {.struct_size = sizeof change};
  const rdzv_rpc_call_spec call = call_of("x", "x", "");
  rdzv_loop_member *member = NULL;
  rdzv_op *op = rdzv_op_new(NULL);
  OK(rdzv_loop_new(NULL, &loop, &error));
  FAILS(INVALID, rdzv_loop_rpc_new(NULL, NULL, TEXT("x"), 0, -1, NULL, NULL, NULL, &member, &error));
  FAILS(INVALID, rdzv_loop_rpc_new(loop, NULL, TEXT("x"), 0, -1, NULL, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_new(loop, NULL, TEXT("x"), 65536, -1, NULL, NULL, NULL, &member, &error));
  FAILS(INVALID, rdzv_loop_add_rpc(loop, NULL, NULL, &member, &error));
  FAILS(INVALID, rdzv_loop_add_rpc(NULL, NULL, NULL, &member, &error));
  FAILS(INVALID, rdzv_loop_rpc_handle(NULL, &handle, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(NULL, op, &call, &error));
  FAILS(INVALID, rdzv_loop_rpc_add_handler(NULL, TEXT("x"), NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_shutdown(NULL, RDZV_RPC_ABRUPT, &error));
  FAILS(INVALID, rdzv_loop_rpc_event(loop, &change, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_event(loop, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_responder(loop, &responder, &error));
  FAILS(INVALID, rdzv_loop_rpc_responder(loop, NULL, &error));
  CHECK(rdzv_loop_rpc_request(NULL) == NULL && rdzv_loop_rpc_request(loop) == NULL);
  CHECK(member == NULL && handle == NULL && responder == NULL);
  // What is wrong with the worker is in its event.
  OK(rdzv_loop_rpc_new(loop, NULL, TEXT("a b"), 0, -1, NULL, NULL, NULL, &member, &error));
  FAILS(INVALID, rdzv_loop_rpc_handle(member, &handle, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(member, op, NULL, &error));
  FAILS(INVALID, rdzv_loop_rpc_call(member, NULL, &call, &error));
  FAILS(INVALID, rdzv_loop_rpc_shutdown(member, 7, &error));
  OK(rdzv_op_ping(op, &error));
  FAILS(INVALID, rdzv_loop_submit(member, op, -1, &error));
  const rdzv_event event = await_kind(loop, member, RDZV_EVENT_RPC_JOINED);
  const struct failure wanted = {.status = INVALID, .message_part = "Worker name must match"};
  check_failure(__FILE__, __LINE__, "rdzv_loop_rpc_new", rdzv_error_status(event.error), event.error, wanted);
  rdzv_op_free(op);
  rdzv_loop_free(loop);
}
