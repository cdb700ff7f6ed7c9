// What tests of agents begin with.
#ifndef AGENTS_H
#define AGENTS_H

#include "check.h"

#include <stdlib.h>

// A handler of the backend `rdzv` for a node with this number of workers.
rdzv_rendezvous_handler *agent_handler(const rdzv_server *server, const char *workers);

// One worker runs this line of shell; good until the next call.
rdzv_agent_options agent_shell(uint32_t workers, const char *script);
rdzv_agent_options agent_function(uint32_t workers, rdzv_worker_fn function, void *user_data);

// The handler is freed as soon as the agent has its share.
rdzv_agent *new_agent(const rdzv_server *server, const rdzv_agent_options *options);

// Runs an agent to this outcome; its result is good as long as the agent.
rdzv_agent_result run_to(const rdzv_agent *agent, int32_t wanted);

int skipped_under_valgrind(void);

#endif  // AGENTS_H
