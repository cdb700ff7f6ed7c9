// What the tests of RPC workers have in common: a pair of workers, and what their handlers keep.
#pragma once
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define INVALID RDZV_INVALID_ARGUMENT

// What a handler of the tests keeps. The library calls it on threads of its own, so the mutex is over all of it.
struct kept {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  rdzv_rpc_responder *responder;
  rdzv_rpc *rpc;
  // The bytes of a request, and where they lay before.
  rdzv_buffer *taken;
  const uint8_t *lay_at;
  int calls, destroyed, released, told;
  rdzv_status status;
  char message[200];
};

static inline struct kept new_kept(void) {
  return (struct kept){.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
}

static inline void count_up(struct kept *kept, int *count) {
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  *count += 1;
  CHECK(pthread_cond_broadcast(&kept->changed) == 0);
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
}

static inline int count_of(struct kept *kept, const int *count) {
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  const int now = *count;
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  return now;
}

static inline void await_count(struct kept *kept, const int *count, int wanted) {
  struct timespec until;
  CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
  until.tv_sec += PATIENCE_MS / 1000;
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  while (*count < wanted) CHECK(pthread_cond_timedwait(&kept->changed, &kept->mutex, &until) == 0);
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
}

static inline void destroy(void *user_data) {
  struct kept *kept = user_data;
  count_up(kept, &kept->destroyed);
}

static inline void release(void *user_data) {
  struct kept *kept = user_data;
  count_up(kept, &kept->released);
}

static inline void echo(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct kept *kept = user_data;
  const rdzv_bytes bytes = request_info(request).payload;
  OK(rdzv_rpc_responder_send(responder, bytes.data, bytes.len, NULL, NULL, &error));
  count_up(kept, &kept->calls);
}

// Answers who calls, what, and how long there is.
static inline void who(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  const rdzv_rpc_request_info info = request_info(request);
  char message[200];
  (void)user_data;
  CHECK(rdzv_rpc_responder_is_wanted(responder) == 1);
  snprintf(message, sizeof message, "%.*s %d %.*s %d %s", (int)info.caller.len, (const char *)info.caller.data,
           info.caller_id, (int)info.handler.len, (const char *)info.handler.data, info.response_is_wanted,
           info.time_left_ms > 0 ? "in time" : "for ever");
  OK(rdzv_rpc_responder_send(responder, TEXT(message), NULL, NULL, &error));
}

static inline void refuse(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  (void)user_data;
  (void)request;
  OK(rdzv_rpc_responder_fail(responder, RDZV_RPC_HANDLER_FAILED, TEXT("no such luck"), &error));
}

static inline void forget(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  (void)user_data;
  (void)request;
  rdzv_rpc_responder_free(responder);
}

// Answers when the test wants it.
static inline void later(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  struct kept *kept = user_data;
  (void)request;
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  rdzv_rpc_responder_free(kept->responder);
  kept->responder = responder;
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  count_up(kept, &kept->calls);
}

static inline rdzv_rpc_responder *take_responder(struct kept *kept) {
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  rdzv_rpc_responder *responder = kept->responder;
  kept->responder = NULL;
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  return responder;
}

static inline void done(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *error) {
  struct kept *kept = user_data;
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  kept->status = status;
  if (error == NULL) {
    snprintf(kept->message, sizeof kept->message, "%.*s", (int)len, (const char *)data);
  } else {
    snprintf(kept->message, sizeof kept->message, "%s", rdzv_error_message(error));
  }
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
  count_up(kept, &kept->told);
}

// What `done` is told last, which is the `count`th time.
static inline void is_told(struct kept *kept, int count, rdzv_status status, const char *part) {
  await_count(kept, &kept->told, count);
  CHECK(pthread_mutex_lock(&kept->mutex) == 0);
  CHECK_NUMBER(kept->status, status);
  if (strstr(kept->message, part) == NULL) CHECK_TEXT(kept->message, part);
  CHECK(pthread_mutex_unlock(&kept->mutex) == 0);
}

static inline rdzv_rpc_handlers *handlers_of(struct kept *kept) {
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  OK(rdzv_rpc_handlers_add(handlers, TEXT("echo"), RDZV_RPC_INLINE, NULL, echo, kept, destroy, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("who"), RDZV_RPC_POOLED, NULL, who, kept, NULL, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("refuse"), RDZV_RPC_POOLED, NULL, refuse, kept, NULL, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("forget"), RDZV_RPC_INLINE, NULL, forget, kept, NULL, &error));
  OK(rdzv_rpc_handlers_add(handlers, TEXT("later"), RDZV_RPC_INLINE, NULL, later, kept, NULL, &error));
  return handlers;
}

// Two workers of a dynamic group in two contexts, and what they meet over.
struct pair {
  rdzv_server *server;
  rdzv_store *store;
  rdzv_rpc *one, *two;
  struct kept *kept;
};

static inline rdzv_rpc *join(rdzv_store *store, const char *name, int rank, int world_size, const rdzv_rpc_options *options,
                      const rdzv_rpc_handlers *handlers) {
  rdzv_rpc *rpc = NULL;
  OK(rdzv_rpc_new(NULL, TEXT(name), rank, world_size, OVER(store, options), handlers, &rpc, &error));
  return rpc;
}

static inline struct pair new_pair(struct kept *kept) {
  struct pair pair = {.server = start_server(NULL), .kept = kept};
  rdzv_store *store = connect_store(NULL, rdzv_server_port(pair.server));
  OK(rdzv_store_new_prefix(store, TEXT("rpc_prefix_0"), &pair.store, &error));
  rdzv_store_free(store);
  rdzv_rpc_handlers *handlers = handlers_of(kept);
  pair.one = join(pair.store, "one", 1, -1, NULL, handlers);
  pair.two = join(pair.store, "two", 2, 0, NULL, handlers);
  rdzv_rpc_handlers_free(handlers);
  return pair;
}

static inline void end_pair(struct pair *pair) {
  rdzv_rpc_free(pair->one);
  rdzv_rpc_free(pair->two);
  rdzv_store_free(pair->store);
  rdzv_server_free(pair->server);
  // From then on no handler is called that uses it.
  await_count(pair->kept, &pair->kept->destroyed, 1);
}

static inline rdzv_rpc_call_spec call_of(const char *callee, const char *handler, const char *payload) {
  return (rdzv_rpc_call_spec){.struct_size = sizeof(rdzv_rpc_call_spec),
                              .callee_id = -1,
                              .callee = (const uint8_t *)callee,
                              .callee_len = callee == NULL ? 0 : strlen(callee),
                              .handler = (const uint8_t *)handler,
                              .handler_len = strlen(handler),
                              .payload = (const uint8_t *)payload,
                              .payload_len = strlen(payload),
                              .timeout_ms = PATIENCE_MS};
}

// A call that must fail so.
static inline void call_fails(const rdzv_rpc *rpc, rdzv_rpc_call_spec call, rdzv_status status, const char *part) {
  rdzv_buffer *answer = rdzv_buffer_new();
  FAILS_LIKE(((struct failure){.status = status, .message_part = part}), rdzv_rpc_call(rpc, &call, answer, &error));
  CHECK_BUFFER(answer, "");
  rdzv_buffer_free(answer);
}

// The next event of this kind; with a part of its words, which are there unless that is NULL.
static inline void await_group_event(const rdzv_rpc *rpc, int32_t kind, const char *name, const char *why_part) {
  rdzv_buffer *who_it_is = rdzv_buffer_new(), *why = rdzv_buffer_new();
  rdzv_rpc_event event = {.struct_size = sizeof event};
  OK(rdzv_rpc_next_event(rpc, PATIENCE_MS, &event, who_it_is, why, &error));
  CHECK_NUMBER(event.kind, kind);
  CHECK_BUFFER(who_it_is, name);
  if (why_part == NULL) {
    CHECK_NUMBER(rdzv_buffer_len(why), 0);
  } else {
    char message[200];
    snprintf(message, sizeof message, "%.*s", (int)rdzv_buffer_len(why), (const char *)rdzv_buffer_data(why));
    if (message[0] == '\0' || strstr(message, why_part) == NULL) CHECK_TEXT(message, why_part);
  }
  rdzv_buffer_free(who_it_is);
  rdzv_buffer_free(why);
}
