// Timers that workers set for themselves.
#include "agents.h"
#include "check.h"
#include "tests.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Takes one timer back and waits for another one to end it; the second time it ends by itself.
static int32_t waits_for_its_timer(void *user_data, rdzv_worker_call *call) {
  (void)user_data;
  (void)call;
  if (strcmp(getenv("TORCHELASTIC_RESTART_COUNT"), "0") != 0) return 0;
  if (rdzv_worker_set_timer("loading", 3600000, 0, NULL) != RDZV_OK) return 3;
  if (rdzv_worker_clear_timer("loading", NULL) != RDZV_OK) return 4;
  if (rdzv_worker_set_timer("step \"1\"", 1, SIGTERM, NULL) != RDZV_OK) return 5;
  for (;;) pause();
}

static void keep_timer(void *user_data, const rdzv_agent_event *event) {
  if (event->kind == RDZV_AGENT_EVENT_TIMER_EXPIRED) snprintf(user_data, 200, "%s", event->message);
}

void workers_set_timers(void) {
  // It knows no pidfd_open, without which no process may set timers.
  if (skipped_under_valgrind()) return;
  rdzv_server *server = start_server(NULL);
  rdzv_agent_options options = agent_function(1, waits_for_its_timer, NULL);
  options.max_restarts = 1;
  options.timer_file = new_path();
  rdzv_agent *agent = new_agent(server, &options);
  char message[200] = "";
  rdzv_agent_result result = {.struct_size = sizeof result};
  OK(rdzv_agent_run(agent, keep_timer, message, &result, &error));
  CHECK_NUMBER(result.outcome, RDZV_OUTCOME_SUCCEEDED);
  const char *timer = "watchdog: timer step \"1\" (set for 0.0 s by pid ";
  CHECK(strncmp(message, timer, strlen(timer)) == 0);
  CHECK(strstr(message, ") of rank 0 (local rank 0) expired") != NULL);
  rdzv_agent_free(agent);
  rdzv_server_free(server);
}

static void check_line(int pipe_end, const char *wanted) {
  char line[256] = "", begin[64];
  CHECK(read(pipe_end, line, sizeof line - 1) > 0);
  snprintf(begin, sizeof begin, "{\"version\": 1, \"pid\": %d, \"scope_id\": \"step\", ", (int)getpid());
  CHECK(strncmp(line, begin, strlen(begin)) == 0);
  CHECK(strstr(line, wanted) != NULL && line[strlen(line) - 1] == '\n');
}

void timers_go_to_the_agent_or_fail(void) {
  FAILS(RDZV_UNSUPPORTED, rdzv_worker_set_timer("step", 1, 0, &error));
  const char *path = new_path();
  CHECK(setenv("TORCHELASTIC_TIMER_FILE", path, 1) == 0);
  FAILS(RDZV_IO, rdzv_worker_set_timer("step", 1, 0, &error));
  CHECK(mkfifo(path, 0600) == 0);
  const struct failure unread = {.status = RDZV_IO, .message_part = "the timer cannot be sent to the agent"};
  FAILS_LIKE(unread, rdzv_worker_set_timer("step", 1, 0, &error));
  const int pipe_end = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  CHECK(pipe_end >= 0);
  OK(rdzv_worker_set_timer("step", 1, 0, &error));
  check_line(pipe_end, ", \"signal\": 9}");
  OK(rdzv_worker_set_timer("step", INT64_MAX, SIGABRT, &error));
  check_line(pipe_end, ", \"signal\": 6}");
  OK(rdzv_worker_clear_timer("step", &error));
  check_line(pipe_end, "\"expiration_time\": -1.0, ");
  static char overlong[5000];
  memset(overlong, 'x', sizeof overlong - 1);
  FAILS(RDZV_LIMIT_EXCEEDED, rdzv_worker_set_timer(overlong, 1, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_set_timer(NULL, 1, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_set_timer("step", 0, 0, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_set_timer("step", 1, 65, &error));
  FAILS(RDZV_INVALID_ARGUMENT, rdzv_worker_clear_timer("\xff", &error));
  CHECK(close(pipe_end) == 0 && unlink(path) == 0 && unsetenv("TORCHELASTIC_TIMER_FILE") == 0);
}
