// Agents: workers that are programs, functions, and code of a cluster manager's, run to their end, stopped, and in a
// loop.
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

static rdzv_rendezvous_handler *new_handler(const rdzv_server *server, const char *workers) {
  char endpoint[32], options[128];
  snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)rdzv_server_port(server));
  snprintf(options, sizeof options, "is_host=false,join_timeout=20,local_world_size=%s", workers);
  rdzv_rendezvous_parameters *parameters = NULL;
  OK(rdzv_rendezvous_parameters_new(TEXT("rdzv"), TEXT(endpoint), TEXT("run"), 1, 1, &parameters, &error));
  OK(rdzv_rendezvous_parameters_set_config(parameters, TEXT(options), &error));
  OK(rdzv_rendezvous_parameters_set_local_addr(parameters, TEXT("127.0.0.1"), &error));
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(NULL, parameters, &handler, &error));
  rdzv_rendezvous_parameters_free(parameters);
  return handler;
}

static rdzv_agent_options *new_options(uint32_t workers) {
  rdzv_agent_options *options = NULL;
  OK(rdzv_agent_options_new(workers, &options, &error));
  OK(rdzv_agent_options_set_name(options, TEXT("here"), &error));
  OK(rdzv_agent_options_set_local_addr(options, TEXT("127.0.0.1"), &error));
  OK(rdzv_agent_options_set_listen_addr(options, TEXT("127.0.0.1"), &error));
  OK(rdzv_agent_options_set_log_dir(options, TEXT("/dev/null"), &error));
  return options;
}

// Each worker runs this line of shell.
static void set_shell(rdzv_agent_options *options, const char *script) {
  const rdzv_bytes arguments[] = {BYTES("-c"), BYTES(script), BYTES("worker"), BYTES("${local_rank}")};
  OK(rdzv_agent_options_set_program(options, TEXT("sh"), arguments, 4, &error));
}

// The handler is freed as soon as the agent has its share.
static rdzv_agent *new_agent(const rdzv_server *server, rdzv_agent_options *options, const char *workers) {
  rdzv_rendezvous_handler *handler = new_handler(server, workers);
  rdzv_agent *agent = NULL;
  OK(rdzv_agent_new(NULL, options, handler, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  rdzv_agent_options_free(options);
  return agent;
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
        snprintf(heard->restart_reason, sizeof heard->restart_reason, "%.*s", (int)event->message_len,
                 (const char *)event->message);
      break;
    case RDZV_AGENT_EVENT_RUNNING:
      CHECK_NUMBER((long long)event->attempt, heard->running);
      heard->running += 1;
      rdzv_worker_group_info info = {.struct_size = sizeof info};
      OK(rdzv_worker_group_get_info(event->group, &info, &error));
      CHECK(info.state == RDZV_WORKERS_HEALTHY && info.attempt == event->attempt && info.worker_count == 2);
      CHECK_NUMBER(event->restarts_left, 2 - heard->running);
      heard->rendezvous_us = event->rendezvous_us;
      break;
    case RDZV_AGENT_EVENT_EXITED:
      heard->exited += 1;
      heard->last_exit_code = event->exit_code;
      break;
    case RDZV_AGENT_EVENT_KILLING: heard->killing += 1; break;
    case RDZV_AGENT_EVENT_WORKERS_FAILED:
      heard->failed += 1;
      CHECK(event->message_len > 100);
      break;
    case RDZV_AGENT_EVENT_OVER: heard->over += 1; break;
    default: FAIL("event %d", event->kind);
  }
  // From within: what any thread may do goes on, running does not.
  FAILS(RDZV_REENTRANT, rdzv_agent_run(heard->agent, NULL, NULL, NULL, &error));
}

void agent_restarts_its_workers_and_succeeds(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options *options = new_options(2);
  set_shell(options,
            "test \"$1\" = \"$LOCAL_RANK\" && test \"$ROLE_NAME$COLOUR\" = trainerred && test \"$PWD\" = / || exit 9; "
            "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; test $RANK = 1 && exit 3; exec sleep 1000");
  OK(rdzv_agent_options_set_role(options, TEXT("trainer"), &error));
  OK(rdzv_agent_options_set_variable(options, TEXT("COLOUR"), TEXT("red"), &error));
  OK(rdzv_agent_options_set_directory(options, TEXT("/"), &error));
  OK(rdzv_agent_options_set_max_restarts(options, 1, &error));
  OK(rdzv_agent_options_set_stop(options, SIGTERM, 10000, &error));
  OK(rdzv_agent_options_set_kill_timeout_ms(options, 10000, &error));
  OK(rdzv_agent_options_set_restart_backoff_ms(options, 0, &error));
  OK(rdzv_agent_options_set_leftover_timeout_ms(options, 1000, &error));
  OK(rdzv_agent_options_set_monitor_interval_ms(options, 100, &error));
  OK(rdzv_agent_options_set_exit_barrier_timeout_ms(options, 10000, &error));
  OK(rdzv_agent_options_set_start_timeout_ms(options, 60000, &error));
  OK(rdzv_agent_options_set_rank_assignment(options, RDZV_RANKS_IDENTICAL, 10000, &error));
  OK(rdzv_agent_options_set_devices(options, RDZV_DEVICES_ALL, &error));
  OK(rdzv_agent_options_set_redirects(options, TEXT("0:3"), &error));
  OK(rdzv_agent_options_set_tee(options, TEXT("1:1"), TEXT("${rank}: "), &error));
  OK(rdzv_agent_options_set_console_filters(options, TEXT("0,1"), TEXT("loss"), TEXT(""), &error));
  rdzv_agent *agent = new_agent(server, options, "2");

  rdzv_worker_group *before = NULL, *after = NULL;
  OK(rdzv_agent_get_worker_group(agent, &before, &error));
  struct heard heard = {.agent = agent};
  rdzv_agent_result *result = NULL;
  FAILS(RDZV_UNSUPPORTED, rdzv_agent_get_result(agent, &result, &error));
  OK(rdzv_agent_run(agent, hear, &heard, &result, &error));
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
  size_t len = 0;
  CHECK_LENT(rdzv_agent_result_reason(result, &len), len, "all workers succeeded");
  CHECK_LENT(rdzv_agent_result_report(result, &len), len, "");
  CHECK_LENT(rdzv_agent_result_report_json(result, &len), len, "null");
  CHECK_NUMBER((long long)rdzv_agent_result_failure_count(result), 0);
  CHECK_NUMBER((long long)rdzv_agent_result_returned_count(result), 0);
  CHECK(heard.running == 2 && heard.exited == 4 && heard.failed == 1 && heard.over == 1 && heard.killing == 0);
  CHECK(heard.rendezvous_us > 0);
  CHECK_TEXT(heard.restart_reason, "rank 1 (local rank 1) ended with exit code 3");
  rdzv_agent_result_free(result);
  // It runs once, and goes on telling how it ended.
  OK(rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  OK(rdzv_agent_get_result(agent, &result, &error));
  rdzv_agent_result_free(result);

  OK(rdzv_agent_get_worker_group(agent, &after, &error));
  rdzv_agent_free(agent);
  rdzv_worker_group_info info = {.struct_size = sizeof info};
  OK(rdzv_worker_group_get_info(before, &info, &error));
  CHECK(info.state == RDZV_WORKERS_INIT && info.group_rank == -1 && info.round == -1 && info.worker_count == 0);
  OK(rdzv_worker_group_get_info(after, &info, &error));
  CHECK_NUMBER(info.struct_size, sizeof info);
  CHECK(info.state == RDZV_WORKERS_SUCCEEDED && info.group_rank == 0 && info.group_world_size == 1);
  CHECK(info.round == 1 && info.attempt == 1 && info.restart_count == 1 && info.worker_count == 2);
  CHECK_LENT(rdzv_worker_group_role(after, &len), len, "trainer");
  rdzv_worker worker = {.struct_size = sizeof worker};
  OK(rdzv_worker_group_worker(after, 1, &worker, &error));
  CHECK(worker.local_rank == 1 && worker.global_rank == 1 && worker.role_rank == 1 && worker.world_size == 2);
  CHECK(worker.role_world_size == 2 && worker.pid > 0 && worker.has_exited == 1 && worker.exit_code == 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_group_worker(after, 2, &worker, &error));
  rdzv_worker_group_free(before);
  rdzv_worker_group_free(after);
  rdzv_server_free(server);
}

void agent_tells_the_root_cause(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options *options = new_options(2);
  set_shell(options, "test $RANK = 0 && exec sleep 1000; echo one >&2; echo two >&2; kill -SEGV $$$$");
  OK(rdzv_agent_options_set_max_restarts(options, 0, &error));
  // Kept out of the tests' own output.
  OK(rdzv_agent_options_set_redirects(options, TEXT("3"), &error));
  rdzv_agent *agent = new_agent(server, options, "2");
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  rdzv_agent_free(agent);
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_FAILED);
  size_t len = 0;
  CHECK_LENT(rdzv_agent_result_reason(result, &len), len, "rank 1 (local rank 1) was ended by SIGSEGV");
  CHECK_NUMBER((long long)rdzv_agent_result_failure_count(result), 1);
  rdzv_worker_failure failure = {.struct_size = sizeof failure};
  OK(rdzv_agent_result_failure(result, 0, &failure, &error));
  CHECK_NUMBER(failure.struct_size, sizeof failure);
  CHECK(failure.local_rank == 1 && failure.global_rank == 1 && failure.group_rank == 0 && failure.pid > 0);
  CHECK(failure.exit_code == -SIGSEGV && failure.timestamp_s > 1700000000);
  check_bytes(__FILE__, __LINE__, failure.signal, failure.signal_len, "SIGSEGV");
  check_bytes(__FILE__, __LINE__, failure.host, failure.host_len, "here");
  CHECK(failure.message_len > 0 && failure.callstack_len == 0 && failure.stderr_line_count == 2);
  CHECK_LENT(rdzv_agent_result_stderr_line(result, 0, 1, &len), len, "two");
  CHECK(rdzv_agent_result_stderr_line(result, 0, 2, &len) == NULL);
  CHECK(rdzv_agent_result_stderr_line(result, 1, 0, &len) == NULL);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_result_failure(result, 1, &failure, &error));
  const char *report = (const char *)rdzv_agent_result_report(result, &len);
  CHECK(memmem(report, len, "Root Cause", 10) != NULL && memmem(report, len, "(SIGSEGV)", 9) != NULL);
  report = (const char *)rdzv_agent_result_report_json(result, &len);
  CHECK(memmem(report, len, "\"root_cause\":{", 14) != NULL);
  rdzv_agent_result_free(result);
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
  snprintf(watched->message, sizeof watched->message, "%.*s", (int)event->message_len, (const char *)event->message);
}

static int skipped_under_valgrind(void) {
  const char *preloaded = getenv("LD_PRELOAD");
  if (preloaded == NULL || strstr(preloaded, "vgpreload") == NULL) return 0;
  printf("not under valgrind: ");
  return 1;
}

void agents_are_watched(void) {
  // It knows no pidfd_open, without which nobody may set timers.
  if (skipped_under_valgrind()) return;
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options *options = new_options(1);
  set_shell(options,
            "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; "
            "printf '{\"pid\": %d, \"scope_id\": \"step\", \"expiration_time\": 1, \"signal\": 9}\\n' $$$$ "
            "> $TORCHELASTIC_TIMER_FILE; exec sleep 1000");
  OK(rdzv_agent_options_set_max_restarts(options, 1, &error));
  OK(rdzv_agent_options_set_timer_file(options, TEXT(new_path()), &error));
  OK(rdzv_agent_options_set_stuck_timeout_ms(options, 3600000, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_stuck_timeout_ms(options, -1, &error));
  rdzv_agent *agent = new_agent(server, options, "1");
  struct watched watched = {0};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_serve_health(agent, TEXT("here"), 0, &watched.health_port, &error));
  OK(rdzv_agent_serve_health(agent, TEXT("127.0.0.1"), 0, &watched.health_port, &error));
  rdzv_agent_sink sink = {.struct_size = sizeof sink, .user_data = &watched, .destroy = lose_sink};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_add_sink(agent, &sink, &error));
  sink.metric = put_metric;
  sink.record = put_record;
  OK(rdzv_agent_add_sink(agent, &sink, &error));
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, listen_to_timers, &watched, &result, &error));
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
  rdzv_agent_result_free(result);
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
    rdzv_worker_group *group = NULL;
    OK(rdzv_agent_get_worker_group(agent, &group, &error));
    rdzv_worker_group_info info = {.struct_size = sizeof info};
    OK(rdzv_worker_group_get_info(group, &info, &error));
    state = info.state;
    rdzv_worker_group_free(group);
    poll(NULL, 0, 1);
  }
  FAILS(RDZV_REENTRANT, rdzv_agent_get_result(agent, &(rdzv_agent_result *){NULL}, &error));
  OK(rdzv_agent_pass_signal(agent, SIGURG, &error));
  rdzv_agent_stop(agent);
  return NULL;
}

void agent_is_stopped_by_another_thread(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options *options = new_options(2);
  set_shell(options, "exec sleep 1000");
  rdzv_agent *agent = new_agent(server, options, "2");
  pthread_t stopper;
  CHECK(pthread_create(&stopper, NULL, stop_soon, agent) == 0);
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  CHECK(pthread_join(stopper, NULL) == 0);
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_STOPPED);
  rdzv_agent_result_free(result);
  rdzv_agent_free(agent);
  rdzv_server_free(server);
}

// The next thing that a loop tells of an agent.
static rdzv_agent_event next_of(rdzv_loop *loop, uint32_t number) {
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
  CHECK(event.kind == RDZV_EVENT_AGENT && event.store == number);
  rdzv_agent_event happened = {.struct_size = sizeof happened};
  OK(rdzv_loop_agent_event(loop, &happened, &error));
  return happened;
}

void agents_live_in_a_loop(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_agent_options *options = new_options(1);
  set_shell(options, "trap 'exit 0' USR1; echo > \"$READY\"; while :; do sleep 0.01; done");
  const char *ready = new_path();
  OK(rdzv_agent_options_set_variable(options, TEXT("READY"), TEXT(ready), &error));
  rdzv_agent *agent = new_agent(server, options, "1");
  uint32_t number = 0, again = 77;
  OK(rdzv_loop_add_agent(loop, agent, &number, &error));
  CHECK(number > 0);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_agent(loop, agent, &again, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  CHECK_NUMBER(again, 77);
  rdzv_agent_event event;
  do event = next_of(loop, number);
  while (event.kind != RDZV_AGENT_EVENT_RUNNING);
  for (const long long deadline_ms = now_ms() + PATIENCE_MS; access(ready, F_OK) != 0; poll(NULL, 0, 1))
    CHECK(now_ms() < deadline_ms);
  OK(rdzv_agent_pass_signal(agent, SIGUSR1, &error));
  do event = next_of(loop, number);
  while (event.kind != RDZV_AGENT_EVENT_EXITED);
  CHECK(event.exit_code == 0 && event.was_stopped == 0 && event.local_rank == 0);
  do event = next_of(loop, number);
  while (event.kind != RDZV_AGENT_EVENT_OVER);
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_get_result(agent, &result, &error));
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
  rdzv_agent_result_free(result);
  OK(rdzv_loop_remove_agent(loop, number, &error));
  OK(rdzv_loop_remove_agent(loop, number, &error));
  OK(rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  rdzv_agent_free(agent);
  unlink(ready);

  // One whose handle is freed goes on, and ends with the loop.
  options = new_options(1);
  set_shell(options, "exec sleep 1000");
  agent = new_agent(server, options, "1");
  OK(rdzv_loop_add_agent(loop, agent, &number, &error));
  rdzv_agent_free(agent);
  rdzv_loop_free(loop);
  rdzv_server_free(server);
}

static int32_t returns_its_rank(void *user_data, rdzv_worker_call *call) {
  size_t len = 0;
  const char *argument = (const char *)rdzv_worker_call_argument(call, 0, &len);
  if (argument == NULL || rdzv_worker_call_argument(call, 1, NULL) != NULL) return 2;
  char message[64];
  const int count = snprintf(message, sizeof message, "%s %.*s of %s", (const char *)user_data, (int)len, argument,
                             getenv("WORLD_SIZE"));
  rdzv_worker_call_return(call, (const uint8_t *)message, (size_t)count);
  return 0;
}

void functions_are_workers(void) {
  // It gives a function's process an exit code of its own: nothing of the program is freed there.
  if (skipped_under_valgrind()) return;
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options *options = new_options(2);
  static char word[] = "rank";
  OK(rdzv_agent_options_set_function(options, returns_its_rank, word, &error));
  const rdzv_bytes arguments[] = {BYTES("${local_rank}")};
  OK(rdzv_agent_options_set_arguments(options, arguments, 1, &error));
  OK(rdzv_agent_options_set_master(options, TEXT("127.0.0.1"), 1234, &error));
  rdzv_agent *agent = new_agent(server, options, "2");
  // Not seen by the workers: it came too late.
  word[0] = 'R';
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  word[0] = 'r';
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
  CHECK_NUMBER((long long)rdzv_agent_result_returned_count(result), 2);
  uint64_t rank = 77;
  size_t len = 0;
  CHECK_LENT(rdzv_agent_result_returned(result, 1, &rank, &len), len, "rank 1 of 2");
  CHECK_NUMBER((long long)rank, 1);
  CHECK(rdzv_agent_result_returned(result, 2, &rank, &len) == NULL);
  rdzv_agent_result_free(result);
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
  rdzv_agent_options *options = new_options(2);
  static size_t len = LONG_VALUE;
  OK(rdzv_agent_options_set_function(options, returns_many_bytes, &len, &error));
  OK(rdzv_agent_options_set_master(options, TEXT("127.0.0.1"), 1234, &error));
  rdzv_agent *agent = new_agent(server, options, "2");
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
  CHECK_NUMBER((long long)rdzv_agent_result_returned_count(result), 2);
  for (size_t worker = 0; worker < 2; ++worker) {
    size_t got = 0, wrong = 0;
    const uint8_t *bytes = rdzv_agent_result_returned(result, worker, NULL, &got);
    CHECK_NUMBER((long long)got, LONG_VALUE);
    for (size_t i = 0; i < got; ++i) wrong += bytes[i] != (uint8_t)(i * 31 >> 8);
    CHECK_NUMBER((long long)wrong, 0);
  }
  rdzv_agent_result_free(result);
  rdzv_agent_free(agent);
  rdzv_server_free(server);

  // A value beyond the limit is a failure that tells its length and the limit.
  server = start_server(NULL);
  len = VALUE_MAX + 1u;
  options = new_options(1);
  OK(rdzv_agent_options_set_max_restarts(options, 0, &error));
  OK(rdzv_agent_options_set_function(options, returns_many_bytes, &len, &error));
  OK(rdzv_agent_options_set_master(options, TEXT("127.0.0.1"), 1234, &error));
  agent = new_agent(server, options, "1");
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_FAILED);
  CHECK_NUMBER((long long)rdzv_agent_result_returned_count(result), 0);
  rdzv_worker_failure failure = {.struct_size = sizeof failure};
  OK(rdzv_agent_result_failure(result, 0, &failure, &error));
  CHECK_NUMBER(failure.exit_code, 102);
  CHECK_LENT(failure.message, failure.message_len,
             "the function returned 268435457 bytes, and the limit of a worker's return value is 268435456 bytes");
  rdzv_agent_result_free(result);
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
                                   .message = (const uint8_t *)message,
                                   .message_len = strlen(message),
                                   .host = (const uint8_t *)"far",
                                   .host_len = 3};
  OK(rdzv_workers_notify(of->workers, &event, &error));
}

static void begin(void *user_data, rdzv_workers *workers) { ((struct cluster *)user_data)->workers = workers; }

static rdzv_status start(void *user_data, const rdzv_worker_start *given) {
  struct cluster *of = user_data;
  of->starts += 1;
  const rdzv_worker_group *group = rdzv_worker_start_group(given);
  rdzv_worker_group_info info = {.struct_size = sizeof info};
  OK(rdzv_worker_group_get_info(group, &info, &error));
  of->attempt = info.attempt;
  of->count = info.worker_count;
  rdzv_list *names = rdzv_list_new(), *values = rdzv_list_new();
  OK(rdzv_worker_start_environment(given, 1, names, values, &error));
  int found = 0;
  for (size_t i = 0; i < rdzv_list_count(names); ++i) {
    size_t len = 0;
    const uint8_t *name = rdzv_list_item(names, i, &len);
    if (len != 4 || memcmp(name, "RANK", 4) != 0) continue;
    CHECK_ITEM(values, i, "1");
    found += 1;
  }
  CHECK_NUMBER(found, 1);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_start_environment(given, 2, names, values, &error));
  rdzv_list_free(names);
  rdzv_list_free(values);
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

static rdzv_agent_result *run_cluster(const rdzv_server *server, struct cluster *cluster) {
  const rdzv_workers_vtable vtable = vtable_of(cluster);
  rdzv_agent_options *options = new_options(2);
  OK(rdzv_agent_options_set_max_restarts(options, 1, &error));
  rdzv_rendezvous_handler *handler = new_handler(server, "2");
  rdzv_agent *agent = NULL;
  OK(rdzv_agent_new_custom(NULL, options, handler, &vtable, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  rdzv_agent_options_free(options);
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  rdzv_agent_free(agent);
  // The program might end now: everything has been called.
  struct pollfd polled = {cluster->destroyed[0], POLLIN, 0};
  char told = 0;
  CHECK(poll(&polled, 1, 0) == 1 && read(cluster->destroyed[0], &told, 1) == 1);
  CHECK(close(cluster->destroyed[0]) == 0 && close(cluster->destroyed[1]) == 0);
  return result;
}

void own_code_supervises_workers(void) {
  rdzv_server *server = start_server(NULL);
  struct cluster cluster = {.workers = NULL};
  rdzv_agent_result *result = run_cluster(server, &cluster);
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
  CHECK(cluster.starts == 2 && cluster.signals >= 1 && cluster.kills == 0 && cluster.passes == 0);
  rdzv_agent_result_free(result);

  rdzv_server *other = start_server(NULL);
  struct cluster full = {.can_start = RDZV_EXHAUSTED};
  result = run_cluster(other, &full);
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_FAILED);
  CHECK(full.starts == 2);
  size_t len = 0;
  const char *reason = (const char *)rdzv_agent_result_reason(result, &len);
  CHECK(memmem(reason, len, "out of resources", 16) != NULL);
  rdzv_agent_result_free(result);
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
  CHECK(file != NULL && fputs("#!/bin/sh\ntest \"$PWD\" = /\n", file) >= 0 && fclose(file) == 0);
  CHECK(chmod("trainer", 0700) == 0 && setenv("PATH", ".", 1) == 0);
  const char *names[] = {"./trainer", "trainer"};
  for (int i = 0; i < 2; ++i) {
    rdzv_server *server = start_server(NULL);
    rdzv_agent_options *options = new_options(1);
    OK(rdzv_agent_options_set_directory(options, TEXT("/"), &error));
    OK(rdzv_agent_options_set_program(options, TEXT(names[i]), NULL, 0, &error));
    OK(rdzv_agent_options_set_max_restarts(options, 0, &error));
    rdzv_agent *agent = new_agent(server, options, "1");
    rdzv_agent_result *result = NULL;
    OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
    CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_SUCCEEDED);
    rdzv_agent_result_free(result);
    rdzv_agent_free(agent);
    rdzv_server_free(server);
  }
  CHECK(setenv("PATH", search, 1) == 0 && fchdir(here) == 0 && close(here) == 0);
  char path[520];
  snprintf(path, sizeof path, "%s/trainer", folder);
  CHECK(unlink(path) == 0 && rmdir(folder) == 0);
  free(search);
}

void agents_refuse_bad_arguments(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options *options = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_new(0, &options, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_new(4097, &options, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_new(1, NULL, &error));
  options = new_options(1);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_program(options, TEXT("/nonexistent"), NULL, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_program(options, TEXT("no-such-program"), NULL, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_program(options, TEXT("sh"), NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_program(NULL, TEXT("sh"), NULL, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_function(options, NULL, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_arguments(options, NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_variable(options, TEXT(""), TEXT("x"), &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_variable(options, TEXT("A=B"), TEXT("x"), &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_directory(options, NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_role(options, TEXT("\xff"), &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_name(options, NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_max_restarts(NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_stop(options, 0, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_stop(options, SIGTERM, -1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_kill_timeout_ms(options, -1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_restart_backoff_ms(options, -1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_leftover_timeout_ms(options, -1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_monitor_interval_ms(options, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_exit_barrier_timeout_ms(options, -1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_start_timeout_ms(options, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_rank_assignment(options, 2, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_devices(options, 2, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_local_addr(options, NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_listen_addr(options, NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_master(options, NULL, 1, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_log_dir(options, NULL, 1, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_redirects(options, TEXT("4"), &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_options_set_tee(options, TEXT("x"), NULL, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT,
        rdzv_agent_options_set_console_filters(options, TEXT("x"), NULL, 0, NULL, 0, &error));

  rdzv_rendezvous_handler *handler = new_handler(server, "1");
  rdzv_agent *agent = NULL;
  const struct failure nothing = {.status = RDZV_INVALID_ARGUMENT, .message_part = "no program and no function"};
  FAILS_LIKE(nothing, rdzv_agent_new(NULL, options, handler, &agent, &error));
  set_shell(options, "exit 0");
  OK(rdzv_agent_options_set_log_dir(options, TEXT("/dev/zero"), &error));
  FAILS(RDZV_IO, rdzv_agent_new(NULL, options, handler, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new(NULL, NULL, handler, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new(NULL, options, NULL, &agent, &error));
  struct cluster cluster = {.workers = NULL};
  rdzv_workers_vtable vtable = vtable_of(&cluster);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, options, handler, NULL, &agent, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, options, NULL, &vtable, &agent, &error));
  vtable.start = NULL;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, options, handler, &vtable, &agent, &error));
  vtable.struct_size = 8;
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_new_custom(NULL, options, handler, &vtable, &agent, &error));
  CHECK(close(cluster.destroyed[0]) == 0 && close(cluster.destroyed[1]) == 0);
  CHECK(agent == NULL);

  OK(rdzv_agent_options_set_log_dir(options, TEXT("/dev/null"), &error));
  OK(rdzv_agent_new(NULL, options, handler, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  rdzv_agent_options_free(options);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_run(NULL, NULL, NULL, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_stop_by_signal(agent, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_pass_signal(agent, 65, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_get_result(agent, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_get_worker_group(agent, NULL, &error));
  // Stopped before it has begun, it ends without workers.
  OK(rdzv_agent_stop_by_signal(agent, SIGINT, &error));
  rdzv_agent_result *result = NULL;
  OK(rdzv_agent_run(agent, NULL, NULL, &result, &error));
  CHECK_NUMBER(rdzv_agent_result_outcome(result), RDZV_OUTCOME_STOPPED);
  size_t len = 0;
  CHECK_LENT(rdzv_agent_result_reason(result, &len), len, "signal 2");
  rdzv_worker_failure failure = {.struct_size = 8};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_agent_result_failure(result, 0, &failure, &error));
  rdzv_agent_result_free(result);
  rdzv_loop *loop = NULL;
  OK(rdzv_loop_new(NULL, &loop, &error));
  rdzv_agent_event event = {.struct_size = sizeof event};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_agent_event(loop, &event, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_agent(loop, NULL, &(uint32_t){0}, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_add_agent(loop, agent, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_loop_remove_agent(NULL, 1, &error));
  rdzv_loop_free(loop);
  rdzv_agent_free(agent);
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_workers_notify(NULL, NULL, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_start_environment(NULL, 0, NULL, NULL, &error));
  rdzv_worker_group_info info = {.struct_size = sizeof info};
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_group_get_info(NULL, &info, &error));

  // NULL is nobody.
  rdzv_agent_free(NULL);
  rdzv_agent_options_free(NULL);
  rdzv_agent_result_free(NULL);
  rdzv_worker_group_free(NULL);
  rdzv_workers_free(NULL);
  rdzv_agent_stop(NULL);
  rdzv_worker_call_return(NULL, NULL, 0);
  CHECK(rdzv_worker_start_group(NULL) == NULL && rdzv_worker_call_argument(NULL, 0, NULL) == NULL);
  CHECK(rdzv_agent_result_outcome(NULL) == -1 && rdzv_agent_result_report(NULL, NULL) == NULL);
  CHECK_TEXT(rdzv_worker_state_name(RDZV_WORKERS_HEALTHY), "HEALTHY");
  CHECK_TEXT(rdzv_worker_state_name(99), "UNKNOWN");
  CHECK_TEXT(rdzv_agent_phase_name(RDZV_PHASE_EXIT_BARRIER), "exit_barrier");
  CHECK_TEXT(rdzv_agent_phase_name(-1), "unknown");
  rdzv_server_free(server);
}
