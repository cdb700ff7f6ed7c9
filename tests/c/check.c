#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

FILE *words_go_to;

void fail_at(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  FILE *to = words_go_to == NULL ? stderr : words_go_to;
  fprintf(to, "%s:%d: ", file, line);
  vfprintf(to, format, arguments);
  fputc('\n', to);
  va_end(arguments);
  fflush(NULL);
  _Exit(1);
}

void check_number(const char *file, int line, const char *what, long long actual, long long expected) {
  if (actual != expected) fail_at(file, line, "%s is %lld, and %lld was expected", what, actual, expected);
}

void check_text(const char *file, int line, const char *what, const char *actual, const char *expected) {
  if (strcmp(actual, expected) != 0) {
    fail_at(file, line, "%s is \"%s\", and \"%s\" was expected", what, actual, expected);
  }
}

void check_success(const char *file, int line, const char *call, rdzv_status outcome, rdzv_error *error) {
  if (outcome != RDZV_OK) {
    fail_at(file, line, "%s: %s: %s", call, rdzv_status_name(outcome), rdzv_error_message(error));
  }
  if (error != NULL) fail_at(file, line, "%s wrote an error and succeeded", call);
}

void check_failure(const char *file, int line, const char *call, rdzv_status outcome, const rdzv_error *error,
                   struct failure wanted) {
  if (outcome != wanted.status) {
    fail_at(file, line, "%s gave `%s` (%s), and `%s` was expected", call, rdzv_status_name(outcome),
            rdzv_error_message(error), rdzv_status_name(wanted.status));
  }
  if (error == NULL) fail_at(file, line, "%s failed without details", call);
  check_number(file, line, "the error's status", rdzv_error_status(error), wanted.status);
  const char *message = rdzv_error_message(error);
  if (*message == '\0') fail_at(file, line, "%s failed without a word", call);
  if (info_of(error).elapsed_ms < 0) fail_at(file, line, "%s took less than no time", call);
  if (wanted.operation) check_text(file, line, "the operation", info_of(error).operation, wanted.operation);
  if (wanted.peer) check_text(file, line, "the peer", info_of(error).peer, wanted.peer);
  if (wanted.phase) check_text(file, line, "the phase", info_of(error).phase, wanted.phase);
  // What the error tells in parts, its sentence tells too; of a lookup in other words.
  const char *phase = wanted.status == RDZV_UNRESOLVED ? "no address" : wanted.phase;
  const char *parts[] = {wanted.operation, wanted.peer, phase, wanted.message_part};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    if (parts[i] != NULL && strstr(message, parts[i]) == NULL) {
      fail_at(file, line, "\"%s\" does not tell \"%s\"", message, parts[i]);
    }
  }
}

void check_bytes(const char *file, int line, const uint8_t *data, size_t len, const char *expected) {
  if (len != strlen(expected) || (len > 0 && memcmp(data, expected, len) != 0)) {
    fail_at(file, line, "\"%.*s\" (%zu bytes), and \"%s\" was expected", (int)len, (const char *)data, len, expected);
  }
}

rdzv_error_info info_of(const rdzv_error *error) {
  rdzv_error_info info = {.struct_size = sizeof info};
  CHECK_NUMBER(rdzv_error_get_info(error, &info), RDZV_OK);
  CHECK_NUMBER(info.struct_size, sizeof info);
  return info;
}

rdzv_server *start_server(const rdzv_context *context) {
  rdzv_server *server = NULL;
  OK(rdzv_server_new(context, NULL, &server, &error));
  CHECK(server != NULL);
  return server;
}

rdzv_store_options options_for(uint16_t port) {
  return (rdzv_store_options){
      .struct_size = sizeof(rdzv_store_options),
      .port = port,
      .host = "127.0.0.1",
      .timeout_ms = PATIENCE_MS,
      .connect_timeout_ms = PATIENCE_MS,
      .response_timeout_ms = PATIENCE_MS,
  };
}

rdzv_store *connect_store(const rdzv_context *context, uint16_t port) {
  const rdzv_store_options options = options_for(port);
  rdzv_store *store = NULL;
  OK(rdzv_store_new(context, &options, &store, &error));
  CHECK(store != NULL);
  return store;
}

const char *peer_text(uint16_t port) {
  static char texts[2][32];
  static int next;
  next = 1 - next;
  snprintf(texts[next], sizeof texts[next], "127.0.0.1:%u", (unsigned)port);
  return texts[next];
}

void await_waiting(const rdzv_server *server, uint64_t count) {
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  rdzv_server_stats stats = {.struct_size = sizeof stats};
  do {
    if (now_ms() > deadline_ms) FAIL("%llu waits are pending", (unsigned long long)stats.waiting);
    OK(rdzv_server_get_stats(server, &stats, &error));
  } while (stats.waiting != count);
}

rdzv_event await_event(rdzv_loop *loop) {
  const long long deadline_ms = now_ms() + PATIENCE_MS;
  rdzv_event event = {.struct_size = sizeof event};
  for (;;) {
    OK(rdzv_loop_poll(loop, &error));
    OK(rdzv_loop_next_event(loop, &event, &error));
    CHECK_NUMBER(event.struct_size, sizeof event);
    if (event.kind != RDZV_EVENT_NONE) return event;
    struct pollfd polled = {rdzv_loop_fd(loop), POLLIN, 0};
    const long long left_ms = deadline_ms - now_ms();
    CHECK(left_ms > 0 && poll(&polled, 1, (int)left_ms) == 1);
  }
}

long long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int descriptor_count(void) {
  DIR *folder = opendir("/proc/self/fd");
  CHECK(folder != NULL);
  int count = -3;  // `.`, `..` and the folder itself
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

const char *new_path(void) {
  static char path[512];
  const char *folder = getenv("TMPDIR");
  if (folder == NULL || *folder == '\0') folder = P_tmpdir;
  static int made;
  const int len = snprintf(path, sizeof path, "%s/rdzv-test-%ld-%d", folder, (long)getpid(), ++made);
  CHECK(len < (int)sizeof path);
  CHECK(unlink(path) == 0 || errno == ENOENT);
  return path;
}

void token_file(char path[512], const char *content) {
  strcpy(path, new_path());
  FILE *file = fopen(path, "w");
  CHECK(file != NULL && fputs(content, file) >= 0 && fclose(file) == 0);
}

rdzv_rendezvous_info joined_info(const rdzv_rendezvous *joined) {
  rdzv_rendezvous_info info = {.struct_size = sizeof info};
  OK(rdzv_rendezvous_get_info(joined, &info, &error));
  CHECK_NUMBER(info.struct_size, sizeof info);
  return info;
}
