// RPC backends in code of the program's, and observers.
#include "check.h"
#include "tests.h"

#include <pthread.h>
#include <stdlib.h>

#define INVALID RDZV_INVALID_ARGUMENT

// A backend whose workers are alone: whatever they call, their own handlers answer.
struct own {
  rdzv_context *context;
  rdzv_rpc_handlers *handlers;
  rdzv_store *store;
  rdzv_rpc_responder *kept;
  const rdzv_rpc *rpc;
  // What `init` does wrong.
  const char *flaw;
  int made, called, shut_down, agents_destroyed, destroyed;
  int32_t how;
};

static void answered(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *failure) {
  rdzv_rpc_responder *responder = user_data;
  if (status == RDZV_OK) {
    OK(rdzv_rpc_responder_send(responder, data, len, NULL, NULL, &error));
  } else {
    const char *message = rdzv_error_message(failure);
    OK(rdzv_rpc_responder_fail(responder, status, TEXT(message), &error));
  }
}

static rdzv_status own_call(void *user_data, const rdzv_rpc_call_spec *call, rdzv_rpc_responder *responder) {
  struct own *own = user_data;
  own->called += 1;
  CHECK_NUMBER(call->struct_size, sizeof *call);
  CHECK(call->release == NULL);
  if (call->callee == NULL || call->callee_len != 2) return RDZV_RPC_UNKNOWN_WORKER;
  if (call->handler_len == 4 && memcmp(call->handler, "keep", 4) == 0) {
    own->kept = responder;
    return RDZV_OK;
  }
  const rdzv_rpc_request_info request = {.struct_size = sizeof request,
                                         .caller_id = 5,
                                         .caller = BYTES("me"),
                                         .handler = {call->handler, call->handler_len},
                                         .payload = {call->payload, call->payload_len},
                                         .time_left_ms = call->timeout_ms};
  // The handler answers the call itself.
  if (responder == NULL || (call->handler_len == 5 && memcmp(call->handler, "defer", 5) == 0))
    return rdzv_rpc_handlers_dispatch(own->handlers, &request, responder, NULL);
  // The code hears what came of it, and passes that on.
  rdzv_rpc_responder *between = NULL;
  OK(rdzv_rpc_responder_new(answered, responder, &between, &error));
  rdzv_error *failure = NULL;
  const rdzv_status begun = rdzv_rpc_handlers_dispatch(own->handlers, &request, between, &failure);
  if (begun != RDZV_OK) OK(rdzv_rpc_responder_fail(between, begun, TEXT(rdzv_error_message(failure)), &error));
  rdzv_error_free(failure);
  return RDZV_OK;
}

static rdzv_rpc_call_spec call_of(const char *callee, const char *handler, const char *payload) {
  return (rdzv_rpc_call_spec){.struct_size = sizeof(rdzv_rpc_call_spec),
                              .callee = (const uint8_t *)callee,
                              .callee_len = strlen(callee),
                              .handler = (const uint8_t *)handler,
                              .handler_len = strlen(handler),
                              .payload = (const uint8_t *)payload,
                              .payload_len = strlen(payload),
                              .timeout_ms = PATIENCE_MS};
}

static rdzv_rpc_request_info request_for(const char *handler) {
  return (rdzv_rpc_request_info){.struct_size = sizeof(rdzv_rpc_request_info),
                                 .caller_id = 1,
                                 .caller = BYTES("a"),
                                 .handler = BYTES(handler),
                                 .time_left_ms = -1};
}

static rdzv_status own_list_workers(void *user_data, rdzv_reply *reply) {
  struct own *own = user_data;
  if (strcmp(own->flaw, "no list") == 0) {
    rdzv_reply_set_message(reply, TEXT("nobody knows"));
    return RDZV_CONFLICT;
  }
  if (strcmp(own->flaw, "bad worker") == 0) rdzv_reply_add_worker(reply, TEXT("a b"), 7);
  if (strcmp(own->flaw, "comes back") == 0) {
    rdzv_rpc_workers *workers = NULL;
    rdzv_rpc_call_spec call = call_of("me", "reverse", "");
    FAILS(RDZV_REENTRANT, rdzv_rpc_list_workers(own->rpc, &workers, &error));
    FAILS(RDZV_REENTRANT, rdzv_rpc_call(own->rpc, &call, NULL, &error));
    FAILS(RDZV_REENTRANT, rdzv_rpc_shutdown(own->rpc, RDZV_RPC_ABRUPT, &error));
  }
  rdzv_reply_add_worker(reply, TEXT("you"), 6);
  rdzv_reply_add_worker(reply, TEXT("me"), 5);
  return RDZV_OK;
}

static rdzv_status own_shutdown(void *user_data, int32_t how, rdzv_reply *reply) {
  struct own *own = user_data;
  own->shut_down += 1;
  own->how = how;
  if (strcmp(own->flaw, "comes back") == 0) {
    FAILS(RDZV_REENTRANT, rdzv_rpc_shutdown(own->rpc, RDZV_RPC_GRACEFUL, &error));
    return RDZV_OK;
  }
  if (how == RDZV_RPC_GRACEFUL && strcmp(own->flaw, "stays") == 0) {
    rdzv_reply_set_message(reply, TEXT("it will not go"));
    return RDZV_CONFLICT;
  }
  return RDZV_OK;
}

static void own_agent_destroy(void *user_data) {
  struct own *own = user_data;
  own->agents_destroyed += 1;
  rdzv_rpc_handlers_free(own->handlers);
  rdzv_store_free(own->store);
  rdzv_rpc_responder_free(own->kept);
  own->handlers = NULL;
  own->store = NULL;
  own->kept = NULL;
}

static rdzv_status own_new_worker(void *user_data, const rdzv_rpc_worker_request *request, rdzv_reply *reply) {
  struct own *own = user_data;
  rdzv_rpc_agent_vtable vtable = {.struct_size = sizeof vtable,
                                  .user_data = own,
                                  .call = own_call,
                                  .list_workers = own_list_workers,
                                  .shutdown = own_shutdown,
                                  .destroy = own_agent_destroy};
  const rdzv_rpc_options *options = request->options;
  own->made += 1;
  CHECK_NUMBER(request->struct_size, sizeof *request);
  CHECK_NUMBER(request->id, 5);
  CHECK_NUMBER(request->world_size, 2);
  CHECK_BYTES(request->name, "me");
  CHECK_NUMBER(options->struct_size, sizeof *options);
  if (strcmp(options->extra_options[0].name, "bad") == 0) {
    rdzv_reply_set_message(reply, TEXT(options->extra_options[0].value));
    return INVALID;
  }
  // The options have each value, also those that were not given; none to use is not the same as any.
  CHECK_TEXT(options->backend, "mine");
  CHECK_TEXT(options->init_method, "env://");
  CHECK_TEXT(options->accelerator, "cuda");
  CHECK_NUMBER(options->worker_threads, 16);
  CHECK_NUMBER(options->rpc_timeout_ms, PATIENCE_MS);
  CHECK_NUMBER(options->membership_timeout_ms, PATIENCE_MS);
  CHECK(options->transports == NULL && options->channels != NULL && options->channel_count == 0);
  CHECK(options->store == NULL && options->token == NULL && options->host == NULL);
  CHECK_NUMBER(options->device_map_count, 1);
  CHECK_TEXT(options->device_maps[0].worker, "you");
  CHECK_TEXT(options->device_maps[0].pairs[0].to, "cuda:1");
  CHECK_NUMBER(options->extra_option_count, 1);
  CHECK_TEXT(options->extra_options[0].name, "colour");
  CHECK_TEXT(options->extra_options[0].value, "red");
  if (strcmp(own->flaw, "nothing") == 0) return RDZV_OK;
  if (strcmp(own->flaw, "refusal") == 0) {
    rdzv_reply_set_message(reply, TEXT("no room"));
    return RDZV_EXHAUSTED;
  }
  if (strcmp(own->flaw, "no words") == 0) return RDZV_RPC_NAME_TAKEN;
  if (strcmp(own->flaw, "no call") == 0) vtable.call = NULL;
  if (strcmp(own->flaw, "no size") == 0) vtable.struct_size = 8;
  if (strcmp(own->flaw, "bad words") == 0) rdzv_reply_set_message(reply, NULL, 5);
  if (vtable.call != NULL && vtable.struct_size != 8) {
    own->handlers = rdzv_rpc_handlers_clone(request->handlers);
    OK(rdzv_store_clone(request->store, &own->store, &error));
    OK(rdzv_store_set(own->store, TEXT("came"), TEXT("me"), PATIENCE_MS, &error));
  }
  rdzv_reply_set_rpc_agent(reply, &vtable);
  return RDZV_OK;
}

static void own_destroy(void *user_data) {
  struct own *own = user_data;
  own->destroyed += 1;
}

static rdzv_rpc_backend_vtable backend_of(struct own *own) {
  return (rdzv_rpc_backend_vtable){.struct_size = sizeof(rdzv_rpc_backend_vtable),
                                   .user_data = own,
                                   .new_worker = own_new_worker,
                                   .destroy = own_destroy};
}

static void reverse(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  const rdzv_rpc_request_info info = request_info(request);
  const size_t len = info.payload.len;
  uint8_t turned[16];
  (void)user_data;
  CHECK_BYTES(info.caller, "me");
  for (size_t i = 0; i < len; ++i) turned[i] = info.payload.data[len - 1 - i];
  OK(rdzv_rpc_responder_send(responder, turned, len, NULL, NULL, &error));
}

static void swallow(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  (void)user_data;
  (void)request;
  rdzv_rpc_responder_free(responder);
}

static void refuse(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  (void)user_data;
  (void)request;
  OK(rdzv_rpc_responder_fail(responder, RDZV_RPC_HANDLER_FAILED, TEXT("no luck"), &error));
}

// Keeps the way back for a test, or frees it where nobody wants an answer.
static void defer(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct own *own = user_data;
  const int32_t is_wanted = request_info(request).response_is_wanted;
  CHECK_NUMBER(rdzv_rpc_responder_is_wanted(responder), is_wanted);
  if (is_wanted == 0) {
    rdzv_rpc_responder_free(responder);
    return;
  }
  own->kept = responder;
}

static rdzv_rpc_options own_options(const rdzv_pair *extra) {
  static const rdzv_rpc_device_pair pair = {"cuda:0", "cuda:1"};
  static const rdzv_rpc_device_map map = {"you", &pair, 1};
  static const char *const none[] = {NULL};
  return (rdzv_rpc_options){.struct_size = sizeof(rdzv_rpc_options),
                            .backend = "mine",
                            .rpc_timeout_ms = PATIENCE_MS,
                            .channels = none,
                            .device_maps = &map,
                            .device_map_count = 1,
                            .extra_options = extra,
                            .extra_option_count = 1};
}

static void told(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *error) {
  (void)data;
  (void)len;
  (void)error;
  *(rdzv_status *)user_data = status;
}

// Calls that a backend fails, or whose handler does: the error says which call it was, and why it failed.
static void failures_name_handler_and_callee(struct own *own, const rdzv_rpc *rpc) {
  rdzv_error *failure = NULL;
  rdzv_rpc_call_spec call = call_of("me", "refuse", "");
  CHECK_NUMBER(rdzv_rpc_call(rpc, &call, NULL, &failure), RDZV_RPC_HANDLER_FAILED);
  CHECK_TEXT(rdzv_error_message(failure), "refuse at me: the handler failed: no luck");
  CHECK_TEXT(info_of(failure).cause, "no luck");
  CHECK_TEXT(info_of(failure).operation, "call");
  CHECK_NODE(failure, 0, "me");
  rdzv_error_free(failure);
  call = call_of("you know", "reverse", "");
  FAILS_LIKE(((struct failure){.status = RDZV_RPC_UNKNOWN_WORKER, .message_part = "reverse at you know: "}),
             rdzv_rpc_call(rpc, &call, NULL, &error));
  call = call_of("me", "swallow", "");
  FAILS_LIKE(((struct failure){.status = RDZV_RPC_HANDLER_FAILED, .message_part = "swallow at me: the handler failed: "}),
             rdzv_rpc_call(rpc, &call, NULL, &error));
  // By number, and of a call that the backend fails in its own words.
  call = call_of("me", "keep", "");
  rdzv_rpc_future *future = NULL;
  OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
  OK(rdzv_rpc_responder_fail(own->kept, RDZV_EXHAUSTED, TEXT("no room"), &error));
  own->kept = NULL;
  int32_t ended = 0;
  CHECK_NUMBER(rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, NULL, &failure), RDZV_EXHAUSTED);
  CHECK_TEXT(rdzv_error_message(failure), "keep at me: no room");
  rdzv_error_free(failure);
  rdzv_rpc_future_free(future);
  // The deadline says how long it was.
  call.timeout_ms = 20;
  CHECK_NUMBER(rdzv_rpc_call(rpc, &call, NULL, &failure), RDZV_TIMED_OUT);
  CHECK(strstr(rdzv_error_message(failure), "keep at me: no answer in ") == rdzv_error_message(failure));
  CHECK(info_of(failure).elapsed_ms >= 20);
  rdzv_error_free(failure);
  CHECK_NUMBER(rdzv_rpc_responder_is_wanted(own->kept), 0);
  rdzv_rpc_responder_free(own->kept);
  own->kept = NULL;
}

// A backend, and a handler that answers for it, see that nobody waits for an answer any more.
static void what_is_cancelled_is_not_wanted(struct own *own, const rdzv_rpc *rpc) {
  const char *const handlers[] = {"keep", "defer"};
  int32_t ended = 0;
  for (size_t i = 0; i < 2; ++i) {
    rdzv_rpc_call_spec call = call_of("me", handlers[i], "");
    rdzv_rpc_future *future = NULL;
    OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
    CHECK_NUMBER(rdzv_rpc_responder_is_wanted(own->kept), 1);
    rdzv_rpc_future_cancel(future);
    CHECK_NUMBER(rdzv_rpc_responder_is_wanted(own->kept), 0);
    OK(rdzv_rpc_responder_send(own->kept, TEXT("too late"), NULL, NULL, &error));
    own->kept = NULL;
    FAILS(RDZV_CANCELLED, rdzv_rpc_future_wait(future, -1, &ended, NULL, &error));
    rdzv_rpc_future_free(future);
    // A future that is freed has given its call up.
    OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
    rdzv_rpc_future_free(future);
    CHECK_NUMBER(rdzv_rpc_responder_is_wanted(own->kept), 0);
    rdzv_rpc_responder_free(own->kept);
    own->kept = NULL;
  }
  // An answer goes through, and a notice wants none.
  rdzv_rpc_call_spec call = call_of("me", "defer", "");
  rdzv_rpc_future *future = NULL;
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
  OK(rdzv_rpc_responder_send(own->kept, TEXT("here"), NULL, NULL, &error));
  own->kept = NULL;
  OK(rdzv_rpc_future_wait(future, PATIENCE_MS, &ended, answer, &error));
  CHECK_BUFFER(answer, "here");
  rdzv_buffer_free(answer);
  rdzv_rpc_future_free(future);
  OK(rdzv_rpc_notify(rpc, &call, &error));
  CHECK(own->kept == NULL);
}

// What is called after the end does not reach the code of the backend, nor what that asks the handlers.
static void nothing_is_called_after_the_end(struct own *own, const rdzv_rpc *rpc) {
  const int called = own->called;
  rdzv_rpc_call_spec call = call_of("me", "reverse", "abc");
  FAILS_LIKE(((struct failure){.status = RDZV_RPC_NO_MEMBER, .message_part = "reverse at me: "}),
             rdzv_rpc_call(rpc, &call, NULL, &error));
  rdzv_status status = RDZV_OK;
  FAILS(RDZV_RPC_NO_MEMBER, rdzv_rpc_call_with(rpc, &call, told, &status, &error));
  FAILS(RDZV_RPC_NO_MEMBER, rdzv_rpc_notify(rpc, &call, &error));
  const rdzv_rpc_request_info request = request_for("reverse");
  FAILS(RDZV_RPC_NO_MEMBER, rdzv_rpc_handlers_dispatch(own->handlers, &request, NULL, &error));
  CHECK_NUMBER(own->called, called);
}

void own_code_is_an_rpc_backend(void) {
  struct own own = {.flaw = ""};
  own.context = rdzv_context_new();
  rdzv_rpc_backend_vtable vtable = backend_of(&own);
  OK(rdzv_context_register_rpc_backend(own.context, TEXT("mine"), &vtable, &error));
  FAILS_LIKE(((struct failure){.status = RDZV_ALREADY_REGISTERED, .message_part = "RPC backend mine: already registered"}),
             rdzv_context_register_rpc_backend(own.context, TEXT("mine"), &vtable, &error));
  CHECK_NUMBER(own.destroyed, 0);
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(own.context, PATIENCE_MS, &store, &error));
  const rdzv_pair red = {"colour", "red"};
  rdzv_rpc_options options = own_options(&red);
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  OK(rdzv_rpc_handlers_add(handlers, TEXT("reverse"), RDZV_RPC_INLINE, NULL, reverse, NULL, NULL, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("refuse"), RDZV_RPC_INLINE, NULL, refuse, NULL, NULL, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("swallow"), RDZV_RPC_POOLED, NULL, swallow, NULL, NULL, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("defer"), RDZV_RPC_POOLED, NULL, defer, &own, NULL, &error));
  rdzv_rpc *rpc = NULL;
  OK(rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &options), handlers, &rpc, &error));
  rdzv_rpc_handlers_free(handlers);
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_store_get(store, TEXT("came"), PATIENCE_MS, answer, &error));
  rdzv_store_free(store);

  rdzv_rpc_call_spec call = call_of("me", "reverse", "abc");
  OK(rdzv_rpc_call(rpc, &call, answer, &error));
  CHECK_BUFFER(answer, "cba");
  rdzv_status status = -1;
  OK(rdzv_rpc_call_with(rpc, &call, told, &status, &error));
  CHECK_NUMBER(status, RDZV_OK);
  OK(rdzv_rpc_notify(rpc, &call, &error));
  call = call_of("nobody", "reverse", "");
  FAILS(RDZV_RPC_UNKNOWN_WORKER, rdzv_rpc_call(rpc, &call, answer, &error));
  call = call_of("me", "nothing", "");
  FAILS(RDZV_RPC_NO_HANDLER, rdzv_rpc_call(rpc, &call, answer, &error));
  // One that is not answered in time, one that is cancelled, and one that is answered.
  call = call_of("me", "keep", "");
  call.timeout_ms = 20;
  FAILS_LIKE(((struct failure){.status = RDZV_TIMED_OUT, .message_part = "keep at me"}),
             rdzv_rpc_call(rpc, &call, answer, &error));
  rdzv_rpc_responder_free(own.kept);
  call.timeout_ms = PATIENCE_MS;
  rdzv_rpc_future *future = NULL;
  int32_t ended = 77;
  OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
  rdzv_rpc_future_cancel(future);
  FAILS(RDZV_CANCELLED, rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
  rdzv_rpc_future_free(future);
  rdzv_rpc_responder_free(own.kept);
  OK(rdzv_rpc_future_new(rpc, &call, &future, &error));
  OK(rdzv_rpc_future_wait(future, 0, &ended, answer, &error));
  CHECK_NUMBER(ended, 0);
  OK(rdzv_rpc_responder_fail(own.kept, RDZV_STALE_ROUND, TEXT("too late"), &error));
  own.kept = NULL;
  FAILS_LIKE(((struct failure){.status = RDZV_STALE_ROUND, .message_part = "too late"}),
             rdzv_rpc_future_wait(future, -1, &ended, answer, &error));
  rdzv_rpc_future_free(future);

  failures_name_handler_and_callee(&own, rpc);
  what_is_cancelled_is_not_wanted(&own, rpc);

  rdzv_rpc_workers *workers = NULL;
  OK(rdzv_rpc_list_workers(rpc, &workers, &error));
  CHECK_BYTES(workers->workers[0].name, "me");
  CHECK_NUMBER(workers->workers[1].id, 6);
  CHECK_NUMBER(workers->workers[1].address.len, 0);
  rdzv_rpc_workers_free(workers);
  CHECK_NUMBER(worker_info(rpc).address.len, 0);
  // That the code does not know is no empty list.
  own.flaw = "no list";
  FAILS_LIKE(((struct failure){.status = RDZV_CONFLICT, .message_part = "nobody knows"}),
             rdzv_rpc_list_workers(rpc, &workers, &error));
  own.flaw = "bad worker";
  FAILS(INVALID, rdzv_rpc_list_workers(rpc, &workers, &error));
  // A worker's own code does not come back to the worker.
  own.flaw = "comes back";
  own.rpc = rpc;
  OK(rdzv_rpc_list_workers(rpc, &workers, &error));
  CHECK_NUMBER(workers->count, 2);
  rdzv_rpc_workers_free(workers);
  own.flaw = "";
  // What such a backend has not.
  rdzv_rpc_event event = {.struct_size = sizeof event};
  FAILS(RDZV_UNSUPPORTED, rdzv_rpc_next_event(rpc, 0, &event, NULL, NULL, &error));
  rdzv_rpc_devices *devices = NULL;
  FAILS(RDZV_UNSUPPORTED, rdzv_rpc_list_devices(rpc, &devices, &error));
  FAILS(RDZV_UNSUPPORTED, rdzv_rpc_add_handler(rpc, TEXT("x"), RDZV_RPC_INLINE, NULL, reverse, NULL, NULL, &error));
  FAILS(RDZV_UNSUPPORTED, rdzv_rpc_remove_handler(rpc, TEXT("x"), NULL, &error));

  own.flaw = "comes back";
  OK(rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  nothing_is_called_after_the_end(&own, rpc);
  own.flaw = "stays";
  FAILS_LIKE(((struct failure){.status = RDZV_CONFLICT, .message_part = "it will not go"}),
             rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  rdzv_rpc_free(rpc);
  CHECK_NUMBER(own.how, RDZV_RPC_ABRUPT);
  CHECK_NUMBER(own.agents_destroyed, 1);
  CHECK_NUMBER(own.destroyed, 0);
  rdzv_context_free(own.context);
  CHECK_NUMBER(own.destroyed, 1);
  rdzv_buffer_free(answer);
}

// Calls the worker that it is given, and answers with what came of that.
static void call_on(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  const rdzv_rpc_call_spec call = call_of("me", "keep", "");
  rdzv_error *fault = NULL;
  (void)request;
  const rdzv_status status = rdzv_rpc_call(user_data, &call, NULL, &fault);
  const char *message = status == RDZV_REENTRANT ? "re-entrant" : rdzv_error_message(fault);
  OK(rdzv_rpc_responder_send(responder, TEXT(message), NULL, NULL, &error));
  rdzv_error_free(fault);
}

void inline_handlers_do_not_wait_for_own_backends(void) {
  struct own own = {.flaw = ""};
  own.context = rdzv_context_new();
  const rdzv_rpc_backend_vtable vtable = backend_of(&own);
  OK(rdzv_context_register_rpc_backend(own.context, TEXT("mine"), &vtable, &error));
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  const rdzv_pair red = {"colour", "red"};
  rdzv_rpc_options options = own_options(&red);
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  rdzv_rpc *mine = NULL, *one = NULL, *two = NULL;
  OK(rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &options), handlers, &mine, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("call on"), RDZV_RPC_INLINE, NULL, call_on, mine, NULL, &error));
  OK(rdzv_rpc_new(NULL, TEXT("one"), 1, -1, OVER(store, NULL), handlers, &one, &error));
  OK(rdzv_rpc_new(NULL, TEXT("two"), 2, -1, OVER(store, NULL), NULL, &two, &error));
  const rdzv_rpc_call_spec call = call_of("one", "call on", "");
  rdzv_buffer *answer = rdzv_buffer_new();
  OK(rdzv_rpc_call(two, &call, answer, &error));
  CHECK_BUFFER(answer, "re-entrant");
  // Nothing was sent.
  CHECK(own.kept == NULL);
  rdzv_buffer_free(answer);
  rdzv_rpc_free(two);
  rdzv_rpc_free(one);
  rdzv_rpc_free(mine);
  rdzv_rpc_handlers_free(handlers);
  rdzv_store_free(store);
  rdzv_server_free(server);
  rdzv_context_free(own.context);
}

static void free_worker(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct own *own = user_data;
  (void)request;
  rdzv_rpc_free((rdzv_rpc *)own->rpc);
  rdzv_rpc_responder_free(responder);
}

static void free_worker_when_told(void *user_data, rdzv_status status, const uint8_t *data, size_t len,
                                  const rdzv_error *failure) {
  struct own *own = user_data;
  (void)data;
  (void)len;
  (void)failure;
  CHECK_NUMBER(status, RDZV_OK);
  rdzv_rpc_free((rdzv_rpc *)own->rpc);
}

void workers_of_own_backends_are_not_freed_by_what_they_call(void) {
  struct own own = {.flaw = ""};
  own.context = rdzv_context_new();
  const rdzv_rpc_backend_vtable vtable = backend_of(&own);
  OK(rdzv_context_register_rpc_backend(own.context, TEXT("mine"), &vtable, &error));
  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(own.context, PATIENCE_MS, &store, &error));
  const rdzv_pair red = {"colour", "red"};
  rdzv_rpc_options options = own_options(&red);
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  OK(rdzv_rpc_handlers_add(handlers, TEXT("free"), RDZV_RPC_POOLED, NULL, free_worker, &own, NULL, &error));
  rdzv_rpc *rpc = NULL;
  OK(rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &options), handlers, &rpc, &error));
  own.rpc = rpc;
  rdzv_rpc_workers *workers = NULL;
  // By a handler that the backend calls for a request from elsewhere, in no call of the program.
  const rdzv_rpc_request_info request = request_for("free");
  OK(rdzv_rpc_handlers_dispatch(own.handlers, &request, NULL, &error));
  CHECK_NUMBER(own.agents_destroyed, 0);
  FAILS(RDZV_FREE_REFUSED, rdzv_rpc_list_workers(rpc, &workers, &error));
  // By what gets the outcome of a call.
  const rdzv_rpc_call_spec call = call_of("me", "keep", "");
  OK(rdzv_rpc_call_with(rpc, &call, free_worker_when_told, &own, &error));
  OK(rdzv_rpc_responder_send(own.kept, TEXT("here"), NULL, NULL, &error));
  own.kept = NULL;
  CHECK_NUMBER(own.agents_destroyed, 0);
  FAILS(RDZV_FREE_REFUSED, rdzv_rpc_list_workers(rpc, &workers, &error));
  rdzv_rpc_free(rpc);
  CHECK_NUMBER(own.agents_destroyed, 1);
  rdzv_rpc_handlers_free(handlers);
  rdzv_store_free(store);
  rdzv_context_free(own.context);
}

void own_rpc_backend_fails_in_every_way(void) {
  struct own own = {.flaw = ""};
  own.context = rdzv_context_new();
  rdzv_rpc_backend_vtable vtable = backend_of(&own);
  FAILS(INVALID, rdzv_context_register_rpc_backend(NULL, TEXT("mine"), &vtable, &error));
  FAILS(INVALID, rdzv_context_register_rpc_backend(own.context, TEXT(""), &vtable, &error));
  FAILS(INVALID, rdzv_context_register_rpc_backend(own.context, TEXT("mine"), NULL, &error));
  vtable.new_worker = NULL;
  FAILS(INVALID, rdzv_context_register_rpc_backend(own.context, TEXT("mine"), &vtable, &error));
  CHECK_NUMBER(own.destroyed, 0);
  vtable = backend_of(&own);
  OK(rdzv_context_register_rpc_backend(own.context, TEXT("mine"), &vtable, &error));

  rdzv_store *store = NULL;
  OK(rdzv_store_new_hash(own.context, PATIENCE_MS, &store, &error));
  const rdzv_pair red = {"colour", "red"};
  rdzv_rpc_options options = own_options(&red);
  const struct {
    const char *flaw;
    struct failure failure;
  } flaws[] = {
      {"nothing", {.status = RDZV_WRONG_PROTOCOL, .message_part = "it gave no worker"}},
      {"refusal", {.status = RDZV_EXHAUSTED, .message_part = "no room"}},
      {"no words", {.status = RDZV_RPC_NAME_TAKEN, .message_part = "RPC backend mine: name taken"}},
      {"no call", {.status = INVALID, .message_part = "`vtable.call` is NULL"}},
      {"no size", {.status = INVALID, .message_part = "struct_size"}},
      {"bad words", {.status = INVALID, .message_part = "message"}},
  };
  rdzv_rpc *rpc = NULL;
  for (size_t i = 0; i < sizeof flaws / sizeof *flaws; ++i) {
    own.flaw = flaws[i].flaw;
    FAILS_LIKE(flaws[i].failure,
               rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &options), NULL, &rpc, &error));
    CHECK(rpc == NULL);
  }
  // Options that the code does not know, in its words.
  const rdzv_pair bad = {"bad", "nobody wants that"};
  const rdzv_rpc_options unknown = own_options(&bad);
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "nobody wants that"}),
             rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &unknown), NULL, &rpc, &error));
  // What the library would have to protect the calls with, but these are not its calls.
  char tokens[512];
  token_file(tokens, "job 0123456789abcdef0123456789abcdef all\n");
  rdzv_rpc_options secure = own_options(&red);
  secure.auth_token_file = tokens;
  const int made = own.made;
  FAILS_LIKE(((struct failure){.status = INVALID, .message_part = "mine: unknown option auth_token_file, which is for tcp"}),
             rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &secure), NULL, &rpc, &error));
  CHECK(remove(tokens) == 0);
  // The shipped library has no TLS, so this is refused for any backend.
  const rdzv_tls_options tls = {.struct_size = sizeof tls, .ca_file = "ca.pem", .cert_file = "c.pem", .key_file = "k.pem"};
  secure = own_options(&red);
  secure.tls = &tls;
  FAILS(RDZV_UNSUPPORTED, rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &secure), NULL, &rpc, &error));
  CHECK_NUMBER(own.made, made);
  // What came of a failed attempt is destroyed, and another one may follow.
  CHECK_NUMBER(own.agents_destroyed, 1);
  own.flaw = "";
  OK(rdzv_rpc_new(own.context, TEXT("me"), 5, 2, OVER(store, &options), NULL, &rpc, &error));
  rdzv_rpc_free(rpc);
  // Another context does not have the backend.
  FAILS(RDZV_NOT_REGISTERED, rdzv_rpc_new(NULL, TEXT("me"), 5, 2, OVER(store, &options), NULL, &rpc, &error));
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  // Who fails to dispatch keeps the responder.
  rdzv_status status = -1;
  rdzv_rpc_responder *responder = NULL;
  OK(rdzv_rpc_responder_new(told, &status, &responder, &error));
  rdzv_rpc_request_info request = request_for("x");
  FAILS(RDZV_RPC_NO_HANDLER, rdzv_rpc_handlers_dispatch(handlers, &request, responder, &error));
  FAILS(INVALID, rdzv_rpc_handlers_dispatch(handlers, NULL, responder, &error));
  FAILS(INVALID, rdzv_rpc_handlers_dispatch(NULL, &request, responder, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("y"), RDZV_RPC_INLINE, NULL, swallow, NULL, NULL, &error));
  request = request_for("y");
  request.caller_id = -1;
  FAILS(INVALID, rdzv_rpc_handlers_dispatch(handlers, &request, responder, &error));
  request.caller_id = 1;
  CHECK_NUMBER(status, -1);
  OK(rdzv_rpc_handlers_dispatch(handlers, &request, responder, &error));
  CHECK_NUMBER(status, RDZV_RPC_HANDLER_FAILED);
  rdzv_rpc_handlers_free(handlers);
  rdzv_store_free(store);
  // The group meets by the variables, which have the rank, too.
  rdzv_server *server = start_server(NULL);
  char port[8];
  snprintf(port, sizeof port, "%d", rdzv_server_port(server));
  const rdzv_pair variables[] = {{"RANK", "5"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  options.variables = variables;
  options.variable_count = 3;
  OK(rdzv_rpc_new(own.context, TEXT("me"), -1, 2, &options, NULL, &rpc, &error));
  rdzv_rpc_free(rpc);
  rdzv_server_free(server);
  rdzv_context_free(own.context);
  CHECK_NUMBER(own.destroyed, 1);
}

static void await_sight(const rdzv_rpc_observer *observer, int32_t kind, const char *name) {
  rdzv_buffer *who = rdzv_buffer_new(), *address = rdzv_buffer_new();
  rdzv_rpc_observation sight = {.struct_size = sizeof sight};
  OK(rdzv_rpc_observer_next(observer, PATIENCE_MS, &sight, who, address, &error));
  CHECK_NUMBER(sight.kind, kind);
  CHECK_BUFFER(who, name);
  CHECK((rdzv_buffer_len(address) > 0) == (kind == RDZV_RPC_OBSERVATION_JOINED));
  rdzv_buffer_free(who);
  rdzv_buffer_free(address);
}

static void *watch_until_cancelled(void *observer) {
  rdzv_rpc_observation sight = {.struct_size = sizeof sight};
  FAILS(RDZV_CANCELLED, rdzv_rpc_observer_next(observer, PATIENCE_MS, &sight, NULL, NULL, &error));
  return NULL;
}

void observers_see_who_is_in_a_group(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_rpc_observer *observer = NULL;
  rdzv_cancel_token *token = NULL;
  token = rdzv_cancel_token_new();
  OK(rdzv_rpc_observer_new(store, token, &observer, &error));
  rdzv_rpc *rpc = NULL;
  OK(rdzv_rpc_new(NULL, TEXT("seen"), 3, -1, OVER(store, NULL), NULL, &rpc, &error));
  await_sight(observer, RDZV_RPC_OBSERVATION_DYNAMIC, "");
  await_sight(observer, RDZV_RPC_OBSERVATION_JOINED, "seen");
  rdzv_rpc_workers *workers = NULL;
  OK(rdzv_rpc_observer_list(observer, &workers, &error));
  CHECK_NUMBER(workers->count, 1);
  CHECK_BYTES(workers->workers[0].name, "seen");
  CHECK(workers->workers[0].address.len > 0);
  rdzv_rpc_workers_free(workers);
  OK(rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  rdzv_rpc_free(rpc);
  await_sight(observer, RDZV_RPC_OBSERVATION_LEFT, "seen");
  rdzv_rpc_observation sight = {.struct_size = sizeof sight};
  OK(rdzv_rpc_observer_next(observer, 0, &sight, NULL, NULL, &error));
  CHECK_NUMBER(sight.kind, RDZV_RPC_OBSERVATION_NONE);
  FAILS(INVALID, rdzv_rpc_observer_next(observer, 0, NULL, NULL, NULL, &error));
  FAILS(INVALID, rdzv_rpc_observer_next(NULL, 0, &sight, NULL, NULL, &error));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, watch_until_cancelled, observer) == 0);
  // A thread that begins to wait a moment later is cancelled, too.
  rdzv_cancel_token_cancel(token);
  CHECK(pthread_join(thread, NULL) == 0);
  rdzv_cancel_token_free(token);
  FAILS(INVALID, rdzv_rpc_observer_list(NULL, &workers, &error));
  FAILS(INVALID, rdzv_rpc_observer_list(observer, NULL, &error));
  FAILS(INVALID, rdzv_rpc_observer_new(NULL, NULL, &observer, &error));
  rdzv_rpc_observer_free(observer);
  rdzv_rpc_observer_free(NULL);
  rdzv_store_free(store);
  rdzv_server_free(server);
}
