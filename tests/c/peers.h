// Peers that are no good servers, each on a port of its own and a thread of its own.
#ifndef PEERS_H
#define PEERS_H

#include <stdint.h>

enum conduct {
  ACCEPTS_AND_IS_SILENT,
  ANSWERS_GARBAGE,
  CLOSES_AT_ONCE,
  // Greets, and closes when the first request comes.
  CLOSES_ON_REQUEST,
  // Greets, and takes requests without a word.
  IGNORES_REQUESTS,
  // Greets, and answers the first request with the start of a value, and closes.
  ENDS_WITHIN_A_VALUE,
  // Greets, and answers the first request with the end of a wait and an impossible length.
  ANSWERS_AN_IMPOSSIBLE_LENGTH,
};

struct peer;

struct peer *peer_start(enum conduct conduct);
uint16_t peer_port(const struct peer *peer);
void peer_stop(struct peer *peer);

// A port that is taken, and where nobody listens: connections to it are refused until the descriptor is closed.
int refusing_socket(uint16_t *port);

// A port that was free a moment ago.
uint16_t free_port(void);

#endif  // PEERS_H
