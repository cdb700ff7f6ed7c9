// Log sinks: what arrives, on which terms, and how they end.
#include "check.h"
#include "ops.h"
#include "tests.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { CALLS = 8 };

// Where a sink keeps what it was told.
struct journal {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  char lines[16][256];
  int count;
  int destroyed;
  // What the sink calls back into, when that is wanted; what it gets goes to `outcomes`.
  rdzv_context *context;
  rdzv_server *server;
  rdzv_store *store;
  rdzv_status outcomes[CALLS];
  bool has_called;
};

#define JOURNAL {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}

static void keep(void *user_data, const rdzv_log_record *record) {
  struct journal *journal = user_data;
  CHECK(record->struct_size == sizeof *record);
  CHECK(record->level >= RDZV_LOG_ERROR && record->level <= RDZV_LOG_DEBUG);
  CHECK_NUMBER((long long)strlen(record->message), (long long)record->message_len);
  CHECK(*record->target != '\0' && *record->message != '\0');
  pthread_mutex_lock(&journal->mutex);
  CHECK_NUMBER(journal->destroyed, 0);
  const int lines_max = sizeof journal->lines / sizeof *journal->lines;
  CHECK(journal->count < lines_max);
  snprintf(journal->lines[journal->count++], sizeof *journal->lines, "%d %s %s", record->level, record->target,
           record->message);
  pthread_cond_broadcast(&journal->changed);
  pthread_mutex_unlock(&journal->mutex);
}

static void end(void *user_data) {
  struct journal *journal = user_data;
  pthread_mutex_lock(&journal->mutex);
  ++journal->destroyed;
  pthread_mutex_unlock(&journal->mutex);
}

static rdzv_log_sink sink_into(struct journal *journal, int32_t level_max) {
  return (rdzv_log_sink){sizeof(rdzv_log_sink), level_max, journal, keep, end};
}

// Returns the number of the line that has both parts, when it is there.
static int await_line(struct journal *journal, const char *part, const char *other_part) {
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += PATIENCE_MS / 1000;
  pthread_mutex_lock(&journal->mutex);
  for (int at = 0;;) {
    for (; at < journal->count; ++at) {
      if (strstr(journal->lines[at], part) != NULL && strstr(journal->lines[at], other_part) != NULL) {
        pthread_mutex_unlock(&journal->mutex);
        return at;
      }
    }
    if (pthread_cond_timedwait(&journal->changed, &journal->mutex, &deadline) != 0) {
      FAIL("no line with \"%s\" and \"%s\" among %d", part, other_part, journal->count);
    }
  }
}

static int read_locked(struct journal *journal, const int *number) {
  pthread_mutex_lock(&journal->mutex);
  const int value = *number;
  pthread_mutex_unlock(&journal->mutex);
  return value;
}

void log_lines_arrive_and_sink_is_destroyed_once(void) {
  struct journal journal = JOURNAL;
  rdzv_context *context = rdzv_context_new();
  rdzv_log_sink sink = sink_into(&journal, RDZV_LOG_DEBUG);
  OK(rdzv_context_set_log_sink(context, &sink, &error));
  // The sink was copied.
  memset(&sink, 0, sizeof sink);
  rdzv_server *server = start_server(context);
  const int listening = await_line(&journal, "3 server listening on", rdzv_server_address(server));

  // The context goes first: what was made with it has all that it needs.
  rdzv_context_free(context);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  const int accepted = await_line(&journal, "4 server", "accepted");
  rdzv_store_free(store);
  CHECK(await_line(&journal, "4 server", "closed") > accepted && accepted > listening);
  OK(rdzv_server_stop(server, &error));
  await_line(&journal, "3 server", "stopped");
  CHECK_NUMBER(read_locked(&journal, &journal.destroyed), 0);
  rdzv_server_free(server);
  CHECK_NUMBER(read_locked(&journal, &journal.destroyed), 1);
}

// Everything that can be called on the context of a sink, from within the sink.
static void call_back(void *user_data, const rdzv_log_record *record) {
  struct journal *journal = user_data;
  (void)record;
  pthread_mutex_lock(&journal->mutex);
  if (journal->store != NULL && !journal->has_called) {
    const rdzv_log_sink sink = sink_into(journal, RDZV_LOG_INFO);
    rdzv_store_options options = options_for(rdzv_server_port(journal->server));
    rdzv_server_stats stats = {.struct_size = sizeof stats};
    rdzv_server *server = NULL;
    rdzv_store *store = NULL;
    rdzv_status *outcome = journal->outcomes;
    *outcome++ = rdzv_context_set_log_sink(journal->context, &sink, NULL);
    *outcome++ = rdzv_server_new(journal->context, NULL, &server, NULL);
    *outcome++ = rdzv_server_get_stats(journal->server, &stats, NULL);
    *outcome++ = rdzv_server_stop(journal->server, NULL);
    *outcome++ = rdzv_store_new(journal->context, &options, &store, NULL);
    *outcome++ = rdzv_store_clone(journal->store, &store, NULL);
    *outcome++ = store_ping(journal->store, 0, NULL);
    *outcome++ = rdzv_store_set(journal->store, NULL, 0, NULL, 0, -1, NULL);
    CHECK(outcome == journal->outcomes + CALLS && server == NULL && store == NULL);
    journal->has_called = true;
    pthread_cond_broadcast(&journal->changed);
  }
  pthread_mutex_unlock(&journal->mutex);
}

void sink_may_not_call_its_own_context(void) {
  struct journal journal = JOURNAL;
  rdzv_context *context = rdzv_context_new();
  rdzv_log_sink sink = sink_into(&journal, RDZV_LOG_DEBUG);
  sink.log = call_back;
  OK(rdzv_context_set_log_sink(context, &sink, &error));
  rdzv_server *server = start_server(context);
  rdzv_store *store = connect_store(context, rdzv_server_port(server));
  pthread_mutex_lock(&journal.mutex);
  journal.context = context;
  journal.server = server;
  journal.store = store;
  pthread_mutex_unlock(&journal.mutex);
  // One more connection is one more line.
  rdzv_store_free(connect_store(context, rdzv_server_port(server)));
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += PATIENCE_MS / 1000;
  pthread_mutex_lock(&journal.mutex);
  while (!journal.has_called) CHECK(pthread_cond_timedwait(&journal.changed, &journal.mutex, &deadline) == 0);
  for (int i = 0; i < CALLS; ++i) CHECK_NUMBER(journal.outcomes[i], RDZV_REENTRANT);
  pthread_mutex_unlock(&journal.mutex);
  // It was refused, and that is all.
  OK(store_ping(store, -1, &error));
  rdzv_store_free(store);
  rdzv_server_free(server);
  rdzv_context_free(context);
  CHECK_NUMBER(journal.destroyed, 1);
}

// Called while the last handle of its context is freed, be that the context itself.
static void call_back_at_the_end(void *user_data) {
  struct journal *journal = user_data;
  const rdzv_log_sink sink = sink_into(journal, RDZV_LOG_INFO);
  rdzv_server *server = NULL;
  rdzv_store *store = NULL;
  // It may be any thread's turn to end the sink.
  pthread_mutex_lock(&journal->mutex);
  rdzv_status *outcome = journal->outcomes;
  if (journal->context != NULL) {
    *outcome++ = rdzv_context_set_log_sink(journal->context, &sink, NULL);
    *outcome++ = rdzv_server_new(journal->context, NULL, &server, NULL);
    *outcome++ = rdzv_store_new_hash(journal->context, PATIENCE_MS, &store, NULL);
    // Once is enough.
    rdzv_context_free(journal->context);
  } else {
    rdzv_server_stats stats = {.struct_size = sizeof stats};
    *outcome++ = rdzv_server_get_stats(journal->server, &stats, NULL);
    *outcome++ = rdzv_server_stop(journal->server, NULL);
  }
  pthread_mutex_unlock(&journal->mutex);
  CHECK(server == NULL && store == NULL);
  end(user_data);
}

void sink_may_not_call_a_context_that_is_being_freed(void) {
  for (int with_server = 0; with_server < 2; ++with_server) {
    struct journal journal = JOURNAL;
    rdzv_context *context = rdzv_context_new();
    rdzv_log_sink sink = sink_into(&journal, RDZV_LOG_DEBUG);
    sink.destroy = call_back_at_the_end;
    OK(rdzv_context_set_log_sink(context, &sink, &error));
    rdzv_server *server = with_server == 0 ? NULL : start_server(context);
    pthread_mutex_lock(&journal.mutex);
    journal.context = with_server == 0 ? context : NULL;
    journal.server = server;
    pthread_mutex_unlock(&journal.mutex);
    rdzv_context_free(context);
    rdzv_server_free(server);
    CHECK_NUMBER(read_locked(&journal, &journal.destroyed), 1);
    pthread_mutex_lock(&journal.mutex);
    for (int i = 0; i < 3 - with_server; ++i) CHECK_NUMBER(journal.outcomes[i], RDZV_REENTRANT);
    pthread_mutex_unlock(&journal.mutex);
  }
}

void sinks_are_checked(void) {
  struct journal journal = JOURNAL;
  struct journal second = JOURNAL;
  rdzv_context *context = rdzv_context_new();
  const rdzv_log_sink good = sink_into(&journal, RDZV_LOG_INFO);
  rdzv_log_sink sink = good;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(NULL, &sink, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, NULL, &error));
  sink.struct_size = 0;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, &sink, &error));
  sink.struct_size = sizeof sink - 1;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, &sink, &error));
  sink = good;
  sink.log = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, &sink, &error));
  sink = good;
  sink.level_max = 0;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, &sink, &error));
  sink.level_max = RDZV_LOG_DEBUG + 1;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, &sink, &error));
  OK(rdzv_context_set_log_sink(context, &good, &error));
  // One sink a context. The second stays the caller's: nobody destroys it.
  sink = sink_into(&second, RDZV_LOG_INFO);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_context_set_log_sink(context, &sink, &error));
  rdzv_context_free(context);
  CHECK_NUMBER(journal.destroyed, 1);
  CHECK_NUMBER(second.destroyed, 0);

  // Without `destroy` a sink ends in silence; below its level nothing is said.
  struct journal quiet = JOURNAL;
  context = rdzv_context_new();
  sink = sink_into(&quiet, RDZV_LOG_WARN);
  sink.destroy = NULL;
  OK(rdzv_context_set_log_sink(context, &sink, &error));
  rdzv_server_free(start_server(context));
  rdzv_context_free(context);
  CHECK_NUMBER(quiet.count, 0);
}

void contexts_do_not_meet(void) {
  struct journal journals[2] = {JOURNAL, JOURNAL};
  rdzv_context *contexts[2] = {NULL, NULL};
  rdzv_server *servers[2];
  for (int i = 0; i < 2; ++i) {
    contexts[i] = rdzv_context_new();
    const rdzv_log_sink sink = sink_into(&journals[i], RDZV_LOG_INFO);
    OK(rdzv_context_set_log_sink(contexts[i], &sink, &error));
    servers[i] = start_server(contexts[i]);
  }
  for (int i = 0; i < 2; ++i) {
    await_line(&journals[i], "listening on", rdzv_server_address(servers[i]));
    OK(rdzv_server_stop(servers[i], &error));
    rdzv_server_free(servers[i]);
    rdzv_context_free(contexts[i]);
    CHECK_NUMBER(journals[i].destroyed, 1);
    // Its own two lines, and none of the other's.
    CHECK_NUMBER(journals[i].count, 2);
    CHECK_NUMBER(journals[1 - i].destroyed, i);
  }
}
