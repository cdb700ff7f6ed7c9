/* A store inside a program's own event loop: C11, one thread, nothing that blocks.
 *
 *     event_loop            starts a server of its own and talks to it
 *     event_loop HOST PORT  talks to that one
 *
 * The program has an epoll of its own, in which stand a timer of its own (its "work") and the loop of
 * librendezvous, which is one descriptor. While a get waits for a key, the work goes on; the program itself sets
 * the key after three ticks.
 */
#define _POSIX_C_SOURCE 200809L

#include <rendezvous.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Where every call below leaves what went wrong. A program that goes on after a failure frees the error and sets this
 * to NULL first: the next failure would overwrite it. */
static rdzv_error *error;

/* Ends the program with the sentence that the library has for the failure. */
static void check(rdzv_status status) {
  if (status == RDZV_OK) return;
  fprintf(stderr, "event_loop: %s\n", rdzv_error_message(error));
  rdzv_error_free(error);
  exit(EXIT_FAILURE);
}

static void check_system(int result, const char *what) {
  if (result >= 0) return;
  perror(what);
  exit(EXIT_FAILURE);
}

static const uint8_t *bytes(const char *text) { return (const uint8_t *)text; }

/* Everything that the program does at a time. */
struct program {
  rdzv_loop *loop;
  rdzv_loop_member *store;
  rdzv_op *get; /* the operations, which can be used again and again */
  rdzv_op *set;
  rdzv_op *barrier;
  int ticks;
  int finished;
};

static void watch(int epoll, int fd) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  check_system(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/* The program's own work: here, counting. */
static void tick(struct program *program, int timer) {
  uint64_t expirations;
  check_system((int)read(timer, &expirations, sizeof expirations), "read of the timer");
  printf("tick %d: the get is still waiting\n", ++program->ticks);
  if (program->ticks == 3) {
    check(rdzv_op_set(program->set, bytes("greeting"), 8, bytes("hello"), 5, &error));
    check(rdzv_loop_submit(program->store, program->set, -1, &error));
  }
}

/* An operation is over. Its result is in it until it is used again. */
static void completed(struct program *program, const rdzv_op *op) {
  rdzv_result result = {.struct_size = sizeof result};
  check(rdzv_op_get_result(op, &result, &error));
  if (result.status != RDZV_OK) {
    fprintf(stderr, "event_loop: %s\n", rdzv_error_message(result.error));
    exit(EXIT_FAILURE);
  }
  if (op == program->set) {
    printf("the server has the key\n");
  } else if (op == program->get) {
    printf("the get is over: \"%.*s\"\n", (int)result.value_len, (const char *)result.value);
    if (result.value_len != 5 || memcmp(result.value, "hello", 5) != 0) exit(EXIT_FAILURE);
    check(rdzv_op_barrier(program->barrier, bytes("done"), 4, 1, &error));
    check(rdzv_loop_submit(program->store, program->barrier, 5000, &error));
  } else if (op == program->barrier) {
    printf("the barrier is open after %d ticks\n", program->ticks);
    program->finished = 1;
  }
}

static void turn(struct program *program) {
  check(rdzv_loop_poll(program->loop, &error));
  for (;;) {
    rdzv_event event = {.struct_size = sizeof event};
    check(rdzv_loop_next_event(program->loop, &event, &error));
    if (event.kind == RDZV_EVENT_NONE) return;
    if (event.kind == RDZV_EVENT_COMPLETED) completed(program, event.op);
  }
}

int main(int argc, char **argv) {
  rdzv_server *server = NULL;
  const char *host = argc > 2 ? argv[1] : "127.0.0.1";
  long port = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
  if (port < 0 || port > 65535) {
    fprintf(stderr, "event_loop: %s is not a port\n", argv[2]);
    return EXIT_FAILURE;
  }
  if (argc <= 2) {
    check(rdzv_server_new(NULL, NULL, &server, &error));
    port = rdzv_server_port(server);
  }

  struct program program = {0};
  const rdzv_store_options options = {.struct_size = sizeof options, .host = host, .port = (uint16_t)port};
  check(rdzv_loop_new(NULL, &program.loop, &error));
  check(rdzv_loop_add_store(program.loop, &options, NULL, &program.store, &error));

  /* The key is not set yet: the request waits, the program does not. */
  program.get = rdzv_op_new(NULL);
  program.set = rdzv_op_new(NULL);
  program.barrier = rdzv_op_new(NULL);
  check(rdzv_op_get(program.get, bytes("greeting"), 8, &error));
  check(rdzv_loop_submit(program.store, program.get, 10000, &error));

  int epoll = epoll_create1(EPOLL_CLOEXEC);
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  check_system(epoll, "epoll_create1");
  check_system(timer, "timerfd_create");
  const struct itimerspec every_20_ms = {.it_interval.tv_nsec = 20000000, .it_value.tv_nsec = 20000000};
  check_system(timerfd_settime(timer, 0, &every_20_ms, NULL), "timerfd_settime");
  watch(epoll, timer);
  watch(epoll, rdzv_loop_fd(program.loop));

  while (!program.finished) {
    struct epoll_event ready;
    int count = epoll_wait(epoll, &ready, 1, -1);
    check_system(count, "epoll_wait");
    if (count == 1 && ready.data.fd == timer) tick(&program, timer);
    if (count == 1 && ready.data.fd == rdzv_loop_fd(program.loop)) turn(&program);
  }

  close(timer);
  close(epoll);
  rdzv_loop_free(program.loop);
  rdzv_op_free(program.get);
  rdzv_op_free(program.set);
  rdzv_op_free(program.barrier);
  rdzv_server_free(server);
  return EXIT_SUCCESS;
}
