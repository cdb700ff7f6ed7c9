#include "peers.h"

#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  CONNECTIONS_MAX = 64,
  // VALIDATE with its magic number, and PING with a nonce that wants an echo.
  GREETING_BYTES = 10,
  NONCE_AT = 6,
  NONCE_BYTES = 4,
};

struct connection {
  int fd;
  size_t received;
  uint8_t greeting[GREETING_BYTES];
};

struct peer {
  enum conduct conduct;
  int listener;
  int stop[2];
  uint16_t port;
  pthread_t thread;
  struct connection connections[CONNECTIONS_MAX];
  size_t count;
};

static int bind_port(uint16_t *port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof address;
  CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0);
  CHECK(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

int refusing_socket(uint16_t *port) { return bind_port(port); }

uint16_t free_port(void) {
  uint16_t port = 0;
  CHECK(close(bind_port(&port)) == 0);
  return port;
}

// The client may be gone: that is its right.
static void say(const struct connection *to, const void *bytes, size_t len) {
  const ssize_t sent = send(to->fd, bytes, len, MSG_NOSIGNAL);
  (void)sent;
}

static const uint8_t released_and_half_a_value[] = {0, 100, 0, 0, 0, 0, 0, 0, 0, 'h', 'a', 'l', 'f'};
static const uint8_t released_and_endless_value[] = {0, 0, 0, 0, 0, 0, 0, 0, 0x80};

// What a request gets. Whether the connection lives on.
static bool answer(enum conduct conduct, const struct connection *to) {
  switch (conduct) {
    case CLOSES_ON_REQUEST:
      return false;
    case ENDS_WITHIN_A_VALUE:
      say(to, released_and_half_a_value, sizeof released_and_half_a_value);
      return false;
    case ANSWERS_AN_IMPOSSIBLE_LENGTH:
      say(to, released_and_endless_value, sizeof released_and_endless_value);
      return true;
    default:
      return true;
  }
}

// Whether the connection lives on.
static bool hear(enum conduct conduct, struct connection *from) {
  uint8_t bytes[4096];
  const ssize_t len = recv(from->fd, bytes, sizeof bytes, 0);
  if (len <= 0) return false;
  if (conduct == ACCEPTS_AND_IS_SILENT) return true;
  if (conduct == ANSWERS_GARBAGE) {
    const char garbage[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    say(from, garbage, sizeof garbage - 1);
    return true;
  }
  const size_t before = from->received;
  for (size_t i = 0; i < (size_t)len && before + i < GREETING_BYTES; ++i) from->greeting[before + i] = bytes[i];
  from->received += (size_t)len;
  if (before < GREETING_BYTES && from->received >= GREETING_BYTES) {
    say(from, from->greeting + NONCE_AT, NONCE_BYTES);
  }
  return from->received <= GREETING_BYTES || answer(conduct, from);
}

static void *serve(void *argument) {
  struct peer *peer = argument;
  for (;;) {
    struct pollfd polled[2 + CONNECTIONS_MAX] = {{peer->stop[0], POLLIN, 0}, {peer->listener, POLLIN, 0}};
    const size_t count = peer->count;
    for (size_t i = 0; i < count; ++i) polled[2 + i] = (struct pollfd){peer->connections[i].fd, POLLIN, 0};
    CHECK(poll(polled, 2 + count, -1) > 0);
    if (polled[0].revents != 0) break;
    // From the last to the first, so that one which goes moves none that is still to be looked at.
    for (size_t i = count; i-- > 0;) {
      if (polled[2 + i].revents == 0 || hear(peer->conduct, &peer->connections[i])) continue;
      close(peer->connections[i].fd);
      peer->connections[i] = peer->connections[--peer->count];
    }
    if (polled[1].revents != 0) {
      const int fd = accept(peer->listener, NULL, NULL);
      CHECK(fd >= 0 && peer->count < CONNECTIONS_MAX);
      if (peer->conduct == CLOSES_AT_ONCE) {
        close(fd);
      } else {
        peer->connections[peer->count++] = (struct connection){.fd = fd};
      }
    }
  }
  for (size_t i = 0; i < peer->count; ++i) close(peer->connections[i].fd);
  return NULL;
}

struct peer *peer_start(enum conduct conduct) {
  struct peer *peer = calloc(1, sizeof *peer);
  CHECK(peer != NULL && pipe(peer->stop) == 0);
  peer->conduct = conduct;
  peer->listener = bind_port(&peer->port);
  CHECK(listen(peer->listener, CONNECTIONS_MAX) == 0);
  CHECK(pthread_create(&peer->thread, NULL, serve, peer) == 0);
  return peer;
}

uint16_t peer_port(const struct peer *peer) { return peer->port; }

void peer_stop(struct peer *peer) {
  CHECK(close(peer->stop[1]) == 0);
  CHECK(pthread_join(peer->thread, NULL) == 0);
  CHECK(close(peer->stop[0]) == 0 && close(peer->listener) == 0);
  free(peer);
}
