// Agents: workers that are programs, functions, and code of a cluster manager's, run to their end, stopped, and in a
// loop.
#include "agents.h"
#include "check.h"
#include "tests.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

rdzv_rendezvous_handler *agent_handler(const rdzv_server *server, const char *workers) {
  char endpoint[32], options[128];
  snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)rdzv_server_port(server));
  snprintf(options, sizeof options, "is_host=false,join_timeout=20,local_world_size=%s", workers);
  const rdzv_rendezvous_parameters parameters = {.struct_size = sizeof parameters,
                                                 .backend = "rdzv",
                                                 .endpoint = endpoint,
                                                 .run_id = "run",
                                                 .local_addr = "127.0.0.1",
                                                 .config = options};
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));
  return handler;
}

static rdzv_agent_options options_for_workers(uint32_t workers) {
  return (rdzv_agent_options){.struct_size = sizeof(rdzv_agent_options),
                              .local_world_size = workers,
                              .host_name = "here",
                              .local_addr = "127.0.0.1",
                              .listen_addr = "127.0.0.1",
                              .log_dir = "/dev/null"};
}

// Each worker runs this line of shell; good until the next call.
rdzv_agent_options agent_shell(uint32_t workers, const char *script) {
  static const char *arguments[] = {"-c", NULL, "worker", "${local_rank}"};
  arguments[1] = script;
  rdzv_agent_options options = options_for_workers(workers);
  options.program = "sh";
  options.arguments = arguments;
  options.argument_count = 4;
  return options;
}

// The handler is freed as soon as the agent has its share.
rdzv_agent *new_agent(const rdzv_server *server, const rdzv_agent_options *options) {
  char workers[12];
  snprintf(workers, sizeof workers, "%u", (unsigned)options->local_world_size);
  rdzv_rendezvous_handler *handler = agent_handler(server, workers);
  rdzv_agent *agent = NULL;
  OK(rdzv_agent_new(NULL, options, handler, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  return agent;
}

// Runs an agent to this outcome; its result is good as long as the agent.
rdzv_agent_result run_to(const rdzv_agent *agent, int32_t wanted) {
  rdzv_agent_result result = {.struct_size = sizeof result};
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  CHECK_NUMBER(result.struct_size, sizeof result);
  CHECK_NUMBER(result.outcome, wanted);
  return result;
}

// What a listener has heard.
struct heard {
  const rdzv_agent *agent;
  int running, exited, failed, over, killing;
  int64_t rendezvous_us;
  int last_exit_code;
  char restart_reason[200];
};

static void hear(void *user_data, const rdzv_agent_event *event) {
  struct heard *heard = user_data;
  CHECK_NUMBER(event->struct_size, sizeof *event);
  switch (event->kind) {
    case RDZV_AGENT_EVENT_PHASE:
      if (event->to == RDZV_PHASE_RESTARTING)
        snprintf(heard->restart_reason, sizeof heard->restart_reason, "%s", event->message);
      break;
    case RDZV_AGENT_EVENT_RUNNING:
      CHECK_NUMBER((long long)event->attempt, heard->running);
      heard->running += 1;
      CHECK_NUMBER(event->group->struct_size, sizeof *event->group);
      CHECK(event->group->state == RDZV_WORKERS_HEALTHY && event->group->attempt == event->attempt);
      CHECK(event->group->worker_count == 2 && event->group->workers[1]->pid > 0);
      CHECK_NUMBER(event->restarts_left, 2 - heard->running);
      heard->rendezvous_us = event->rendezvous_us;
      break;
    case RDZV_AGENT_EVENT_EXITED:
      heard->exited += 1;
      heard->last_exit_code = event->exit_code;
      if (event->was_stopped) {
        CHECK_TEXT(event->message, "rank 0 (local rank 0) was stopped: rank 1 (local rank 1) ended with exit code 3");
      } else if (event->exit_code == 3) {
        CHECK_TEXT(event->message, "rank 1 (local rank 1) ended with exit code 3");
      }
      break;
    case RDZV_AGENT_EVENT_KILLING: heard->killing += 1; break;
    case RDZV_AGENT_EVENT_WORKERS_FAILED:
      heard->failed += 1;
      CHECK(strlen(event->message) > 100);
      break;
    case RDZV_AGENT_EVENT_OVER: heard->over += 1; break;
    default: FAIL("event %d", event->kind);
  }
  // From within: what any thread may do goes on, running does not.
  FAILS(RDZV_REENTRANT, rdzv_agent_run(heard->agent, NULL, NULL, NULL, &error));
}

void agent_restarts_its_workers_and_succeeds(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options options = agent_shell(
      2, "test \"$1\" = \"$LOCAL_RANK\" && test \"$ROLE_NAME$COLOUR\" = trainerred=0 && test \"$PWD\" = / || exit 9; "
         "test $MASTER_PORT = $PORT || exit 8; "
         "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; test $RANK = 1 && exit 3; exec sleep 1000");
  // A port that a server had a moment ago.
  rdzv_server *other = start_server(NULL);
  options.master_port = rdzv_server_port(other);
  rdzv_server_free(other);
  char port[16];
  snprintf(port, sizeof port, "PORT=%u", (unsigned)options.master_port);
  const char *environment[] = {"COLOUR=red=0", port};
  options.environment = environment;
  options.environment_count = 2;
  options.role = "trainer";
  options.directory = "/";
  options.max_restarts = 1;
  options.stop_signal = SIGTERM;
  options.stop_timeout_ms = 10000;
  options.kill_timeout_ms = 10000;
  options.restart_backoff_ms = -1;
  options.leftover_timeout_ms = 10000;
  options.monitor_interval_ms = 100;
  options.exit_barrier_timeout_ms = 10000;
  options.start_timeout_ms = 60000;
  options.rank_assignment = RDZV_RANKS_IDENTICAL;
  options.assign_timeout_ms = 10000;
  options.redirects = "0:3";
  options.tee = "1:1";
  options.line_prefix = "${rank}: ";
  options.local_ranks_filter = "0,1";
  options.duplicate_stdout_filters = "loss";
  options.duplicate_stderr_filters = "";
  rdzv_agent *agent = new_agent(server, &options);

  const rdzv_worker_group *before = NULL, *after = NULL;
  OK(rdzv_agent_get_worker_group(agent, &before, &error));
  struct heard heard = {.agent = agent};
  rdzv_agent_result result = {.struct_size = sizeof result}, again = {.struct_size = sizeof again};
  FAILS(RDZV_UNSUPPORTED, rdzv_agent_get_result(agent, &result, &error));
  // A result that is too small is refused before the agent runs.
  rdzv_agent_result small = {.struct_size = 4};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_run(agent, NULL, NULL, &small, &error));
  FAILS(RDZV_UNSUPPORTED, rdzv_agent_get_result(agent, &result, &error));
  OK(rdzv_agent_run(agent, hear, &heard, &result, &error));
  CHECK_NUMBER(result.outcome, RDZV_OUTCOME_SUCCEEDED);
  CHECK_TEXT(result.reason, "all workers succeeded");
  CHECK_TEXT(result.report, "");
  CHECK_TEXT(result.report_json, "null");
  CHECK(result.failure_count == 0 && result.returned_count == 0);
  CHECK(heard.running == 2 && heard.exited == 4 && heard.failed == 1 && heard.over == 1 && heard.killing == 0);
  CHECK(heard.rendezvous_us > 0);
  CHECK_TEXT(heard.restart_reason, "rank 1 (local rank 1) ended with exit code 3");
  // It runs once, and keeps its result.
  OK(rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  OK(rdzv_agent_get_result(agent, &again, &error));
  CHECK(again.reason == result.reason);

  OK(rdzv_agent_get_worker_group(agent, &after, &error));
  rdzv_agent_free(agent);
  CHECK(before->state == RDZV_WORKERS_INIT && before->group_rank == -1 && before->round == -1);
  CHECK_NUMBER((long long)before->worker_count, 0);
  CHECK_NUMBER(after->struct_size, sizeof *after);
  CHECK(after->state == RDZV_WORKERS_SUCCEEDED && after->group_rank == 0 && after->group_world_size == 1);
  CHECK(after->round == 1 && after->attempt == 1 && after->restart_count == 1 && after->worker_count == 2);
  CHECK_TEXT(after->role, "trainer");
  const rdzv_worker *worker = after->workers[1];
  CHECK_NUMBER(worker->struct_size, sizeof *worker);
  CHECK(worker->local_rank == 1 && worker->global_rank == 1 && worker->role_rank == 1 && worker->world_size == 2);
  CHECK(worker->role_world_size == 2 && worker->pid > 0 && worker->has_exited == 1 && worker->exit_code == 0);
  rdzv_worker_group_free(before);
  rdzv_worker_group_free(after);
  rdzv_server_free(server);
}

void agent_tells_the_root_cause(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options options =
      agent_shell(2, "test $RANK = 0 && exec sleep 1000; echo one >&2; echo two >&2; kill -SEGV $$$$");
  options.max_restarts = -1;
  // Kept out of the tests' own output.
  options.redirects = "3";
  rdzv_agent *agent = new_agent(server, &options);
  const rdzv_agent_result result = run_to(agent, RDZV_OUTCOME_FAILED);
  CHECK_TEXT(result.reason, "rank 1 (local rank 1) was ended by SIGSEGV");
  CHECK_NUMBER((long long)result.failure_count, 1);
  const rdzv_worker_failure *failure = result.failures[0];
  CHECK_NUMBER(failure->struct_size, sizeof *failure);
  CHECK(failure->local_rank == 1 && failure->global_rank == 1 && failure->group_rank == 0 && failure->pid > 0);
  CHECK(failure->exit_code == -SIGSEGV && failure->timestamp_s > 1700000000);
  CHECK_TEXT(failure->signal, "SIGSEGV");
  CHECK_TEXT(failure->host, "here");
  CHECK(strlen(failure->message) > 0 && failure->callstack == NULL && failure->stderr_line_count == 2);
  CHECK_TEXT(failure->stderr_lines[0], "one");
  CHECK_TEXT(failure->stderr_lines[1], "two");
  CHECK(strstr(result.report, "Root Cause") != NULL && strstr(result.report, "(SIGSEGV)") != NULL);
  CHECK(strstr(result.report_json, "\"root_cause\":{") != NULL);
  rdzv_agent_free(agent);
  rdzv_server_free(server);
}

// What a sink and a listener have heard of an agent whose workers set timers.
struct watched {
  uint16_t health_port;
  int restarts_left, metrics, records, timers, gone;
  char message[100];
};

static void put_metric(void *user_data, const uint8_t *name, size_t name_len, int64_t value) {
  struct watched *watched = user_data;
  watched->metrics += 1;
  const char *const wanted = "workers.default.remaining_restarts";
  if (name_len == strlen(wanted) && memcmp(name, wanted, name_len) == 0) watched->restarts_left = (int)value;
}

static void put_record(void *user_data, const uint8_t *json, size_t json_len) {
  struct watched *watched = user_data;
  watched->records += 1;
  CHECK(json[0] == '{' && json[json_len - 1] == '}');
}

static void lose_sink(void *user_data) { ((struct watched *)user_data)->gone += 1; }

static void ask_health(uint16_t port) {
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
  CHECK(setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(connect(connection, (struct sockaddr *)&address, sizeof address) == 0);
  const char request[] = "GET / HTTP/1.0\r\n\r\n";
  CHECK(write(connection, request, sizeof request - 1) == (ssize_t)(sizeof request - 1));
  char answer[16] = "";
  for (size_t len = 0; len < 12;) {
    const ssize_t more = read(connection, answer + len, 12 - len);
    CHECK(more > 0);
    len += (size_t)more;
  }
  CHECK(strcmp(answer + 8, " 200") == 0);
  close(connection);
}

static void listen_to_timers(void *user_data, const rdzv_agent_event *event) {
  struct watched *watched = user_data;
  if (event->kind == RDZV_AGENT_EVENT_RUNNING) ask_health(watched->health_port);
  if (event->kind != RDZV_AGENT_EVENT_TIMER_EXPIRED) return;
  watched->timers += 1;
  CHECK_NUMBER(event->local_rank, 0);
  snprintf(watched->message, sizeof watched->message, "%s", event->message);
}

int skipped_under_valgrind(void) {
  const char *preloaded = getenv("LD_PRELOAD");
  if (preloaded == NULL || strstr(preloaded, "vgpreload") == NULL) return 0;
  printf("not under valgrind: ");
  return 1;
}

void agents_are_watched(void) {
  // It knows no pidfd_open, without which nobody may set timers.
  if (skipped_under_valgrind()) return;
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options options = agent_shell(
      1, "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; "
         "printf '{\"pid\": %d, \"scope_id\": \"step\", \"expiration_time\": 1, \"signal\": 9}\\n' $$$$ "
         "> $TORCHELASTIC_TIMER_FILE; exec sleep 1000");
  options.max_restarts = 1;
  options.timer_file = new_path();
  options.stuck_timeout_ms = 3600000;
  rdzv_agent *agent = new_agent(server, &options);
  struct watched watched = {0};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_serve_health(agent, TEXT("here"), 0, &watched.health_port, &error));
  OK(rdzv_agent_serve_health(agent, TEXT("127.0.0.1"), 0, &watched.health_port, &error));
  rdzv_agent_sink sink = {.struct_size = sizeof sink, .user_data = &watched, .destroy = lose_sink};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_add_sink(agent, &sink, &error));
  sink.metric = put_metric;
  sink.record = put_record;
  OK(rdzv_agent_add_sink(agent, &sink, &error));
  OK(rdzv_agent_run(agent, listen_to_timers, &watched, NULL, &error));
  run_to(agent, RDZV_OUTCOME_SUCCEEDED);
  CHECK_NUMBER(watched.gone, 0);
  rdzv_agent_free(agent);
  CHECK(watched.gone == 1 && watched.timers == 1 && watched.restarts_left == 0);
  CHECK(watched.metrics > 20 && watched.records > 2);
  const char *timer = "watchdog: timer step (set for 0.0 s by pid ";
  CHECK(strncmp(watched.message, timer, strlen(timer)) == 0);
  CHECK(strstr(watched.message, ") of rank 0 (local rank 0) expired") != NULL);
  rdzv_server_free(server);
}

// Stops an agent once its workers run.
static void *stop_soon(void *user_data) {
  const rdzv_agent *agent = user_data;
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  for (int32_t state = RDZV_WORKERS_INIT; state != RDZV_WORKERS_HEALTHY;) {
    CHECK(now_ms() < deadline_ms);
    const rdzv_worker_group *group = NULL;
    OK(rdzv_agent_get_worker_group(agent, &group, &error));
    state = group->state;
    rdzv_worker_group_free(group);
    poll(NULL, 0, 1);
  }
  rdzv_agent_result result = {.struct_size = sizeof result};
  FAILS(RDZV_REENTRANT, rdzv_agent_get_result(agent, &result, &error));
  OK(rdzv_agent_pass_signal(agent, SIGURG, &error));
  OK(rdzv_agent_stop(agent, 0, &error));
  return NULL;
}

void agent_is_stopped_by_another_thread(void) {
  rdzv_server *server = start_server(NULL);
  const rdzv_agent_options options = agent_shell(2, "exec sleep 1000");
  rdzv_agent *agent = new_agent(server, &options);
  pthread_t stopper;
  CHECK(pthread_create(&stopper, NULL, stop_soon, agent) == 0);
  run_to(agent, RDZV_OUTCOME_STOPPED);
  CHECK(pthread_join(stopper, NULL) == 0);
  rdzv_agent_free(agent);
  rdzv_server_free(server);
}

// The next thing that a loop tells of an agent.
static rdzv_agent_event next_of(rdzv_loop *loop, const rdzv_loop_member *member) {
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  rdzv_event event = {.struct_size = sizeof event};
  for (;;) {
    OK(rdzv_loop_poll(loop, &error));
    OK(rdzv_loop_next_event(loop, &event, &error));
    if (event.kind != RDZV_EVENT_NONE) break;
    struct pollfd polled = {rdzv_loop_fd(loop), POLLIN, 0};
    const long long left_ms = deadline_ms - now_ms();
    CHECK(left_ms > 0 && poll(&polled, 1, (int)left_ms) == 1);
  }
  CHECK(event.kind == RDZV_EVENT_AGENT && event.member == member);
  rdzv_agent_event happened = {.struct_size = sizeof happened};
  OK(rdzv_loop_agent_event(loop, &happened, &error));
  return happened;
}

void agents_live_in_a_loop(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_agent_options options = agent_shell(1, "trap 'exit 0' USR1; echo > \"$READY\"; while :; do sleep 0.01; done");
  char variable[512];
  snprintf(variable, sizeof variable, "READY=%s", new_path());
  const char *environment[] = {variable}, *ready = variable + strlen("READY=");
  options.environment = environment;
  options.environment_count = 1;
  rdzv_agent *agent = new_agent(server, &options);
  rdzv_loop_member *member = NULL, *again = NULL;
  OK(rdzv_loop_add_agent(loop, agent, NULL, &member, &error));
  CHECK(member != NULL);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_agent(loop, agent, NULL, &again, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  CHECK(again == NULL);
  rdzv_agent_event event;
  do event = next_of(loop, member);
  while (event.kind != RDZV_AGENT_EVENT_RUNNING);
  for (const long long deadline_ms = now_ms() + PATIENCE_MS; access(ready, F_OK) != 0; poll(NULL, 0, 1))
    CHECK(now_ms() < deadline_ms);
  OK(rdzv_agent_pass_signal(agent, SIGUSR1, &error));
  do event = next_of(loop, member);
  while (event.kind != RDZV_AGENT_EVENT_EXITED);
  CHECK(event.exit_code == 0 && event.was_stopped == 0 && event.local_rank == 0);
  do event = next_of(loop, member);
  while (event.kind != RDZV_AGENT_EVENT_OVER);
  rdzv_agent_result result = {.struct_size = sizeof result};
  OK(rdzv_agent_get_result(agent, &result, &error));
  CHECK_NUMBER(result.outcome, RDZV_OUTCOME_SUCCEEDED);
  OK(rdzv_loop_remove(member, &error));
  OK(rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  rdzv_agent_free(agent);
  unlink(ready);

  // One whose handle is freed goes on, and ends with the loop.
  options = agent_shell(1, "exec sleep 1000");
  agent = new_agent(server, &options);
  OK(rdzv_loop_add_agent(loop, agent, NULL, &member, &error));
  rdzv_agent_free(agent);
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}

static int32_t returns_its_rank(void *user_data, rdzv_worker_call *call) {
  if (call->struct_size != sizeof *call || call->argument_count != 1) return 2;
  char message[64];
  const int count = snprintf(message, sizeof message, "%s %s of %s", (const char *)user_data, call->arguments[0],
                             getenv("WORLD_SIZE"));
  rdzv_worker_call_return(call, (const uint8_t *)message, (size_t)count);
  return 0;
}

rdzv_agent_options agent_function(uint32_t workers, rdzv_worker_fn function, void *user_data) {
  rdzv_agent_options options = options_for_workers(workers);
  options.function = function;
  options.user_data = user_data;
  options.master_addr = "127.0.0.1";
  options.master_port = 1234;
  return options;
}

void functions_are_workers(void) {
  // It gives a function's process an exit code of its own: nothing of the program is freed there.
  if (skipped_under_valgrind()) return;
  rdzv_server *server = start_server(NULL);
  static char word[] = "rank";
  rdzv_agent_options options = agent_function(2, returns_its_rank, word);
  const char *arguments[] = {"${local_rank}"};
  options.arguments = arguments;
  options.argument_count = 1;
  rdzv_agent *agent = new_agent(server, &options);
  // Not seen by the workers: it came too late.
  word[0] = 'R';
  const rdzv_agent_result result = run_to(agent, RDZV_OUTCOME_SUCCEEDED);
  word[0] = 'r';
  CHECK_NUMBER((long long)result.returned_count, 2);
  CHECK_LENT(result.returned[1].data, result.returned[1].len, "rank 1 of 2");
  CHECK_NUMBER((long long)result.returned[1].global_rank, 1);
  rdzv_agent_free(agent);
  rdzv_server_free(server);
}

enum { LONG_VALUE = 8 * 1024 * 1024, VALUE_MAX = 256 * 1024 * 1024 };

// Returns as many bytes as the number that it is passed.
static int32_t returns_many_bytes(void *user_data, rdzv_worker_call *call) {
  const size_t len = *(size_t *)user_data;
  uint8_t *bytes = calloc(len, 1);
  if (bytes == NULL) return 2;
  for (size_t i = 0; i < len && i < LONG_VALUE; ++i) bytes[i] = (uint8_t)(i * 31 >> 8);
  rdzv_worker_call_return(call, bytes, len);
  return 0;
}

void functions_return_long_values(void) {
  // As above.
  if (skipped_under_valgrind()) return;
  rdzv_server *server = start_server(NULL);
  static size_t len = LONG_VALUE;
  rdzv_agent_options options = agent_function(2, returns_many_bytes, &len);
  rdzv_agent *agent = new_agent(server, &options);
  rdzv_agent_result result = run_to(agent, RDZV_OUTCOME_SUCCEEDED);
  CHECK_NUMBER((long long)result.returned_count, 2);
  for (size_t worker = 0; worker < 2; ++worker) {
    size_t wrong = 0;
    const rdzv_returned_value *value = &result.returned[worker];
    CHECK_NUMBER((long long)value->len, LONG_VALUE);
    for (size_t i = 0; i < value->len; ++i) wrong += value->data[i] != (uint8_t)(i * 31 >> 8);
    CHECK_NUMBER((long long)wrong, 0);
  }
  rdzv_agent_free(agent);
  rdzv_server_free(server);

  // A value beyond the limit is a failure that tells its length and the limit.
  server = start_server(NULL);
  len = VALUE_MAX + 1u;
  options.local_world_size = 1;
  options.max_restarts = -1;
  agent = new_agent(server, &options);
  result = run_to(agent, RDZV_OUTCOME_FAILED);
  CHECK(result.returned_count == 0 && result.failure_count == 1);
  CHECK_NUMBER(result.failures[0]->exit_code, 102);
  CHECK_TEXT(result.failures[0]->message,
             "the function returned 268435457 bytes, and the limit of a worker's return value is 268435456 bytes");
  rdzv_agent_free(agent);
  rdzv_server_free(server);
}

// A cluster manager whose workers are entries of a table: one fails by itself, the others when they are told to end.
struct cluster {
  rdzv_workers *workers;
  uint64_t attempt;
  uint32_t count;
  rdzv_status can_start;
  int starts, signals, kills, passes;
  int destroyed[2];  // a pipe
};

static void tell(const struct cluster *of, int32_t kind, uint32_t local_rank, int32_t code, const char *message) {
  const rdzv_worker_event event = {.struct_size = sizeof event,
                                   .kind = kind,
                                   .attempt = of->attempt,
                                   .local_rank = local_rank,
                                   .pid = 100 + local_rank,
                                   .exit_code = code,
                                   .message = message,
                                   .host = "far"};
  OK(rdzv_workers_notify(of->workers, &event, &error));
}

static void begin(void *user_data, rdzv_workers *workers) { ((struct cluster *)user_data)->workers = workers; }

static rdzv_status start(void *user_data, const rdzv_worker_start *given) {
  struct cluster *of = user_data;
  of->starts += 1;
  CHECK_NUMBER(given->struct_size, sizeof *given);
  of->attempt = given->group->attempt;
  of->count = (uint32_t)given->group->worker_count;
  int found = 0;
  for (const char *const *variable = given->environments[1]; *variable != NULL; ++variable)
    found += strcmp(*variable, "RANK=1") == 0;
  CHECK_NUMBER(found, 1);
  if (of->can_start != RDZV_OK) return of->can_start;
  for (uint32_t i = 0; i < of->count; ++i) tell(of, RDZV_WORKER_STARTED, i, 0, "");
  if (of->starts == 1) tell(of, RDZV_WORKER_EXITED, 1, -SIGBUS, "the memory of the far host is broken");
  if (of->starts == 2)
    for (uint32_t i = 0; i < of->count; ++i) tell(of, RDZV_WORKER_EXITED, i, 0, "");
  return RDZV_OK;
}

static void send_signal(void *user_data, int32_t number) {
  struct cluster *of = user_data;
  CHECK_NUMBER(number, SIGTERM);
  of->signals += 1;
  for (uint32_t i = 0; i < of->count; ++i) tell(of, RDZV_WORKER_EXITED, i, -number, "");
}

static void kill_all(void *user_data) {
  struct cluster *of = user_data;
  of->kills += 1;
}

static void pass(void *user_data, int32_t number) { ((struct cluster *)user_data)->passes += number; }

static void destroy(void *user_data) {
  struct cluster *of = user_data;
  rdzv_workers_free(of->workers);
  CHECK(write(of->destroyed[1], "x", 1) == 1);
}

static rdzv_workers_vtable vtable_of(struct cluster *cluster) {
  CHECK(pipe(cluster->destroyed) == 0);
  return (rdzv_workers_vtable){.struct_size = sizeof(rdzv_workers_vtable),
                               .user_data = cluster,
                               .begin = begin,
                               .start = start,
                               .signal = send_signal,
                               .kill = kill_all,
                               .pass = pass,
                               .destroy = destroy};
}

// Runs an agent over the cluster to this outcome, for a reason that contains these words.
static void run_cluster(const rdzv_server *server, struct cluster *cluster, int32_t wanted, const char *reason) {
  const rdzv_workers_vtable vtable = vtable_of(cluster);
  rdzv_agent_options options = options_for_workers(2);
  options.max_restarts = 1;
  rdzv_rendezvous_handler *handler = agent_handler(server, "2");
  rdzv_agent *agent = NULL;
  OK(rdzv_agent_new_custom(NULL, &options, handler, &vtable, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  const rdzv_agent_result result = run_to(agent, wanted);
  CHECK(strstr(result.reason, reason) != NULL);
  rdzv_agent_free(agent);
  // The program might end now: everything has been called.
  struct pollfd polled = {cluster->destroyed[0], POLLIN, 0};
  char told = 0;
  CHECK(poll(&polled, 1, 0) == 1 && read(cluster->destroyed[0], &told, 1) == 1);
  CHECK(close(cluster->destroyed[0]) == 0 && close(cluster->destroyed[1]) == 0);
}

void own_code_supervises_workers(void) {
  rdzv_server *server = start_server(NULL);
  struct cluster cluster = {.workers = NULL};
  run_cluster(server, &cluster, RDZV_OUTCOME_SUCCEEDED, "all workers succeeded");
  CHECK(cluster.starts == 2 && cluster.signals >= 1 && cluster.kills == 0 && cluster.passes == 0);

  rdzv_server *other = start_server(NULL);
  struct cluster full = {.can_start = RDZV_EXHAUSTED};
  run_cluster(other, &full, RDZV_OUTCOME_FAILED, "out of resources");
  CHECK(full.starts == 2);
  rdzv_server_free(other);
  rdzv_server_free(server);
}

void workers_record_their_errors(void) {
  int32_t recorded = 77;
  OK(rdzv_record_error(TEXT("boom"), TEXT(""), &recorded, &error));
  CHECK_NUMBER(recorded, 0);
  const char *path = new_path();
  CHECK(setenv("TORCHELASTIC_ERROR_FILE", path, 1) == 0);
  OK(rdzv_record_error(TEXT("first"), TEXT(""), NULL, &error));
  OK(rdzv_record_error(TEXT("boom"), TEXT("main.c:7"), &recorded, &error));
  CHECK_NUMBER(recorded, 1);
  char text[512] = "";
  FILE *file = fopen(path, "r");
  CHECK(file != NULL && fread(text, 1, sizeof text - 1, file) > 0 && fclose(file) == 0);
  CHECK(strstr(text, "\"message\":\"boom\"") != NULL && strstr(text, "\"py_callstack\":\"boom\\nmain.c:7\"") != NULL);
  CHECK(strstr(text, "first") == NULL);
  CHECK(unlink(path) == 0);
  CHECK(setenv("TORCHELASTIC_ERROR_FILE", "/nonexistent/error.json", 1) == 0);
  FAILS(RDZV_IO, rdzv_record_error(TEXT("boom"), TEXT(""), &recorded, &error));
  CHECK(unsetenv("TORCHELASTIC_ERROR_FILE") == 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_record_error(NULL, 4, TEXT(""), &recorded, &error));
}

// The program that was found runs, although its workers begin elsewhere.
void agent_runs_the_program_that_was_found(void) {
  const int here = open(".", O_RDONLY | O_DIRECTORY);
  char folder[512], *search = strdup(getenv("PATH"));
  snprintf(folder, sizeof folder, "%s", new_path());
  CHECK(here >= 0 && search != NULL && mkdir(folder, 0700) == 0 && chdir(folder) == 0);
  FILE *file = fopen("trainer", "w");
  CHECK(file != NULL && fputs("#!/bin/sh\ntest \"$PWD\" = / && test \"$BOUND\" = \"$WANTED\"\n", file) >= 0 && fclose(file) == 0);
  CHECK(chmod("trainer", 0700) == 0 && setenv("PATH", ".", 1) == 0);
  // The second time it is run by a numactl that says so.
  file = fopen("numactl", "w");
  const char *const numactl = "#!/bin/sh\ntest \"${1%%=*}\" = --physcpubind || exit 9\nshift\nexport BOUND=1\nexec \"$@\"\n";
  CHECK(file != NULL && fputs(numactl, file) >= 0 && fclose(file) == 0);
  const char *names[] = {"./trainer", "trainer"};
  for (int i = 0; i < 2; ++i) {
    rdzv_server *server = start_server(NULL);
    rdzv_agent_options options = options_for_workers(1);
    options.directory = "/";
    options.program = names[i];
    options.max_restarts = -1;
    options.numa_binding = i == 0 ? RDZV_NUMA_NONE : RDZV_NUMA_NODE;
    if (i == 1) {
      const struct failure missing = {.status = RDZV_INVALID_ARGUMENT, .message_part = "numactl may not be run"};
      rdzv_rendezvous_handler *handler = agent_handler(server, "1");
      FAILS_LIKE(missing, rdzv_agent_new(NULL, &options, handler, &(rdzv_agent *){NULL}, &error));
      rdzv_rendezvous_handler_free(handler);
      CHECK(chmod("numactl", 0700) == 0);
    }
    const char *environment[] = {i == 0 ? "WANTED=" : "WANTED=1"};
    options.environment = environment;
    options.environment_count = 1;
    rdzv_agent *agent = new_agent(server, &options);
    run_to(agent, RDZV_OUTCOME_SUCCEEDED);
    rdzv_agent_free(agent);
    rdzv_server_free(server);
  }
  CHECK(setenv("PATH", search, 1) == 0 && fchdir(here) == 0 && close(here) == 0);
  char path[520];
  snprintf(path, sizeof path, "%s/trainer", folder);
  CHECK(unlink(path) == 0);
  snprintf(path, sizeof path, "%s/numactl", folder);
  CHECK(unlink(path) == 0 && rmdir(folder) == 0);
  free(search);
}

// Each of these options makes one field of good options bad.
static void agent_options_are_checked(const rdzv_rendezvous_handler *handler) {
  const rdzv_agent_options good = agent_shell(1, "exit 0");
  const char *const empty_names[] = {"=x"}, *const no_values[] = {"A"}, *const nulls[] = {NULL};
#define BAD(field, bad)                                                                    \
  do {                                                                                     \
    rdzv_agent_options options = good;                                                     \
    options.field = (bad);                                                                 \
    rdzv_agent *agent = NULL;                                                              \
    FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new(NULL, &options, handler, &agent, &error)); \
    CHECK(agent == NULL);                                                                  \
  } while (false)
  BAD(struct_size, 8);
  BAD(local_world_size, 4097);
  BAD(program, "/nonexistent");
  BAD(program, "no-such-program");
  BAD(program, NULL);
  BAD(function, returns_its_rank);
  BAD(arguments, NULL);
  BAD(arguments, nulls);
  BAD(environment_count, 1);
  for (int i = 0; i < 2; ++i) {
    rdzv_agent_options options = good;
    options.environment = i == 0 ? empty_names : no_values;
    options.environment_count = 1;
    rdzv_agent *agent = NULL;
    const struct failure wrong = {.status = RDZV_INVALID_ARGUMENT, .message_part = "which is not NAME=VALUE"};
    FAILS_LIKE(wrong, rdzv_agent_new(NULL, &options, handler, &agent, &error));
  }
  BAD(role, "\xff");
  BAD(host_name, "\xff");
  BAD(local_addr, "\xff");
  BAD(listen_addr, "\xff");
  BAD(master_addr, "\xff");
  BAD(rank_assignment, 2);
  BAD(devices, 2);
  BAD(numa_binding, 5);
  BAD(max_restarts, -2);
  BAD(stop_signal, 65);
  BAD(stop_signal, -1);
  BAD(stop_timeout_ms, -2);
  BAD(leftover_timeout_ms, -2);
  BAD(kill_timeout_ms, -1);
  BAD(start_timeout_ms, -1);
  BAD(restart_backoff_ms, -2);
  BAD(exit_barrier_timeout_ms, -2);
  BAD(assign_timeout_ms, -1);
  BAD(monitor_interval_ms, -1);
  BAD(stuck_timeout_ms, -1);
  BAD(redirects, "4");
  BAD(tee, "x");
  BAD(line_prefix, "\xff");
  BAD(local_ranks_filter, "x");
  BAD(duplicate_stdout_filters, "\xff");
  BAD(duplicate_stderr_filters, "\xff");
#undef BAD
}

void agents_refuse_bad_arguments(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_rendezvous_handler *handler = agent_handler(server, "1");
  agent_options_are_checked(handler);
  rdzv_agent_options options = options_for_workers(1);
  rdzv_agent *agent = NULL;
  const struct failure nothing = {.status = RDZV_INVALID_ARGUMENT, .message_part = "no program and no function"};
  FAILS_LIKE(nothing, rdzv_agent_new(NULL, &options, handler, &agent, &error));
  options = agent_shell(1, "exit 0");
  options.log_dir = "/dev/zero";
  FAILS(RDZV_IO, rdzv_agent_new(NULL, &options, handler, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new(NULL, NULL, handler, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new(NULL, &options, NULL, &agent, &error));
  struct cluster cluster = {.workers = NULL};
  rdzv_workers_vtable vtable = vtable_of(&cluster);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, &options, handler, NULL, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, NULL, handler, &vtable, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, &options, NULL, &vtable, &agent, &error));
  vtable.start = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, &options, handler, &vtable, &agent, &error));
  vtable.struct_size = 8;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, &options, handler, &vtable, &agent, &error));
  CHECK(close(cluster.destroyed[0]) == 0 && close(cluster.destroyed[1]) == 0);
  CHECK(agent == NULL);

  options.log_dir = "/dev/null";
  OK(rdzv_agent_new(NULL, &options, handler, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_run(NULL, NULL, NULL, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_stop(agent, -1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_stop(NULL, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_pass_signal(agent, 65, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_get_worker_group(agent, NULL, &error));
  // Stopped before it has begun, it ends without workers.
  OK(rdzv_agent_stop(agent, SIGINT, &error));
  rdzv_agent_result result = run_to(agent, RDZV_OUTCOME_STOPPED);
  CHECK_TEXT(result.reason, "signal 2");
  result.struct_size = 8;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_get_result(agent, &result, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_get_result(agent, NULL, &error));
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_agent_event event = {.struct_size = sizeof event};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_agent_event(loop, &event, &error));
  rdzv_loop_member *member = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_agent(loop, NULL, NULL, &member, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_agent(loop, agent, NULL, NULL, &error));
  rdzv_loop_free(loop);
  rdzv_agent_free(agent);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_workers_notify(NULL, NULL, &error));

  // NULL is nobody.
  rdzv_agent_free(NULL);
  rdzv_worker_group_free(NULL);
  rdzv_workers_free(NULL);
  rdzv_worker_call_return(NULL, NULL, 0);
  CHECK_TEXT(rdzv_worker_state_name(RDZV_WORKERS_HEALTHY), "HEALTHY");
  CHECK_TEXT(rdzv_worker_state_name(99), "UNKNOWN");
  CHECK_TEXT(rdzv_agent_phase_name(RDZV_PHASE_EXIT_BARRIER), "exit_barrier");
  CHECK_TEXT(rdzv_agent_phase_name(-1), "unknown");
  rdzv_server_free(server);
}
