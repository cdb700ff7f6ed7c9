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

/* Where every call below leaves what went wrong. */
static rdzv_error *error;

/* Ends the program with the sentence that the library has for it. */
static void check(rdzv_status status) {
  if (status == RDZV_OK) return;
  fprintf(stderr, "event_loop: %s\n", error ? rdzv_error_message(error) : rdzv_status_name(status));
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
  uint32_t store;
  uint64_t waiting_get; /* the operations under way; 0 when there is none */
  uint64_t setting;
  uint64_t barrier;
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
      check(rdzv_loop_store_set(program->loop, program->store, bytes("greeting"), 8, bytes("hello"), 5, -1,
                              &program->setting, &error));
  }
}

/* An operation is over. What the event points to is ours until the next call on the loop. */
static void completed(struct program *program, const rdzv_event *event) {
  if (event->status != RDZV_OK) {
    fprintf(stderr, "event_loop: %s\n", rdzv_error_message(event->error));
    exit(EXIT_FAILURE);
  }
  if (event->operation == program->setting) {
    printf("the server has the key\n");
  } else if (event->operation == program->waiting_get) {
    printf("the get is over: \"%.*s\"\n", (int)event->len, (const char *)event->data);
    if (event->len != 5 || memcmp(event->data, "hello", 5) != 0) exit(EXIT_FAILURE);
    check(rdzv_loop_store_barrier(program->loop, program->store, bytes("done"), 4, 1, 5000, &program->barrier,
                                  &error));
  } else if (event->operation == program->barrier) {
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
    completed(program, &event);
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
    check(rdzv_server_start(NULL, NULL, &server, &error));
    port = rdzv_server_port(server);
  }

  struct program program = {0};
  rdzv_store_options *options = NULL;
  check(rdzv_store_options_new(&options, &error));
  check(rdzv_store_options_set_endpoint(options, bytes(host), strlen(host), (uint16_t)port, &error));
  check(rdzv_loop_new(NULL, &program.loop, &error));
  check(rdzv_loop_add_store(program.loop, options, &program.store, &error));
  rdzv_store_options_free(options);

  /* The key is not set yet: the request waits, the program does not. */
  check(rdzv_loop_store_get(program.loop, program.store, bytes("greeting"), 8, 10000, &program.waiting_get,
                            &error));

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
  rdzv_server_free(server);
  return EXIT_SUCCESS;
}
