// Panics within the library, provoked through functions that only a library for tests has: each ends at the border,
// as a status, and the program goes on.
#include "check.h"
#include "ops.h"

#include <poll.h>
#include <unistd.h>

rdzv_status rdzv_fault_panic(const rdzv_server *server, rdzv_error **error);
rdzv_status rdzv_fault_panic_in_agent(const rdzv_agent *agent, rdzv_error **error);
rdzv_status rdzv_fault_panic_in_turns(const rdzv_agent *agent, rdzv_error **error);
rdzv_status rdzv_fault_panic_in_rpc(const rdzv_rpc *rpc, const rdzv_rpc_call_spec *call, rdzv_error **error);
rdzv_status rdzv_fault_panic_in_rpc_future(const rdzv_rpc_future *future, rdzv_error **error);
void rdzv_fault_panic_in_reactor(void);

// The path is that of the sources as tests/abi/Cargo.toml names them.
#define PROVOKED "provoked in a call (tests/abi/../../ffi/src/fault_injection.rs:"

static void panic_within_a_call_poisons_the_handle(void) {
  rdzv_server *server = start_server(NULL);
  const uint16_t port = rdzv_server_port(server);
  rdzv_store *store = connect_store(NULL, port);
  const struct failure wanted = {.status = RDZV_PANIC, .message_part = PROVOKED};
  FAILS_LIKE(wanted, rdzv_fault_panic(server, &error));
  // From now on everything that can fail does.
  rdzv_server_stats stats = {.struct_size = sizeof stats, .keys = 77};
  FAILS(RDZV_POISONED, rdzv_server_get_stats(server, &stats, &error));
  CHECK_NUMBER(stats.keys, 77);
  FAILS(RDZV_POISONED, rdzv_server_stop(server, &error));
  FAILS(RDZV_POISONED, rdzv_fault_panic(server, &error));
  CHECK_NUMBER(rdzv_server_stop(server, NULL), RDZV_POISONED);
  // What cannot fail reads on, and other handles are whole.
  CHECK_NUMBER(rdzv_server_port(server), port);
  OK(store_ping(store, -1, &error));
  rdzv_server_free(server);
  rdzv_store_free(store);
}

static rdzv_agent *new_agent(void) {
  const rdzv_rendezvous_parameters parameters = {
      .struct_size = sizeof parameters, .backend = "rdzv", .endpoint = "localhost:0", .run_id = "run"};
  rdzv_rendezvous_handler *handler = NULL;
  OK(rdzv_rendezvous_handler_new(NULL, &parameters, &handler, &error));
  const rdzv_agent_options options = {.struct_size = sizeof options, .program = "true", .log_dir = "/dev/null"};
  rdzv_agent *agent = NULL;
  OK(rdzv_agent_new(NULL, &options, handler, &agent, &error));
  rdzv_rendezvous_handler_free(handler);
  return agent;
}

static void panic_within_a_call_poisons_the_agent(void) {
  rdzv_agent *agent = new_agent();
  FAILS(RDZV_PANIC, rdzv_fault_panic_in_agent(agent, &error));
  FAILS(RDZV_POISONED, rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  const rdzv_worker_group *group = NULL;
  FAILS(RDZV_POISONED, rdzv_agent_get_worker_group(agent, &group, &error));
  CHECK(group == NULL);
  // A stop is possible still, and freeing ends what there is.
  OK(rdzv_agent_stop(agent, 0, &error));
  rdzv_agent_free(agent);
}

static void panic_within_a_turn_of_a_loop_poisons_loop_and_agent(void) {
  rdzv_agent *agent = new_agent();
  OK(rdzv_fault_panic_in_turns(agent, &error));
  rdzv_loop *events = NULL;
  OK(rdzv_loop_new(NULL, &events, &error));
  rdzv_loop_member *member = NULL;
  OK(rdzv_loop_add_agent(events, agent, NULL, &member, &error));
  struct pollfd polled = {rdzv_loop_fd(events), POLLIN, 0};
  rdzv_status status = RDZV_OK;
  while (status == RDZV_OK && poll(&polled, 1, PATIENCE_MS) == 1) status = rdzv_loop_poll(events, NULL);
  CHECK_NUMBER(status, RDZV_PANIC);
  FAILS(RDZV_POISONED, rdzv_loop_poll(events, &error));
  rdzv_loop_free(events);
  const rdzv_worker_group *group = NULL;
  FAILS(RDZV_POISONED, rdzv_agent_get_worker_group(agent, &group, &error));
  FAILS(RDZV_POISONED, rdzv_agent_run(agent, NULL, NULL, NULL, &error));
  OK(rdzv_agent_stop(agent, 0, &error));
  rdzv_agent_free(agent);
}

static void answer_empty(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  (void)user_data;
  (void)request;
  OK(rdzv_rpc_responder_send(responder, NULL, 0, NULL, NULL, &error));
}

static void give_back(void *user_data) { *(int *)user_data += 1; }

static void never_told(void *user_data, rdzv_status status, const uint8_t *data, size_t len, const rdzv_error *error) {
  (void)user_data;
  (void)status;
  (void)data;
  (void)len;
  (void)error;
  FAIL("a call was made");
}

static rdzv_rpc *new_worker(const rdzv_context *context, const rdzv_store *store) {
  rdzv_rpc_handlers *handlers = rdzv_rpc_handlers_new();
  OK(rdzv_rpc_handlers_add(handlers, TEXT("empty"), RDZV_RPC_INLINE, NULL, answer_empty, NULL, NULL, &error));
  rdzv_rpc *rpc = NULL;
  OK(rdzv_rpc_new(context, TEXT("alone"), 3, -1, OVER(store, NULL), handlers, &rpc, &error));
  rdzv_rpc_handlers_free(handlers);
  return rpc;
}

static void panic_within_a_call_poisons_the_worker_and_gives_back_what_was_lent(void) {
  rdzv_context *context = NULL;
  rdzv_store *store = NULL;
  context = rdzv_context_new();
  OK(rdzv_store_new_hash(context, PATIENCE_MS, &store, &error));
  rdzv_rpc *rpc = new_worker(context, store);
  int given_back = 0;
  rdzv_rpc_call_spec call = {.struct_size = sizeof call,
                             .callee_id = 3,
                             .handler = (const uint8_t *)"empty",
                             .handler_len = 5,
                             .payload = (const uint8_t *)"lent",
                             .payload_len = 4,
                             .timeout_ms = PATIENCE_MS,
                             .release = give_back,
                             .user_data = &given_back};
  OK(rdzv_rpc_call(rpc, &call, NULL, &error));
  CHECK_NUMBER(given_back, 1);
  rdzv_rpc_future *future = NULL, *none = NULL;
  rdzv_rpc_call_spec copied = call;
  copied.release = NULL;
  OK(rdzv_rpc_future_new(rpc, &copied, &future, &error));
  const struct failure wanted = {.status = RDZV_PANIC, .message_part = PROVOKED};
  FAILS_LIKE(wanted, rdzv_fault_panic_in_rpc(rpc, &call, &error));
  CHECK_NUMBER(given_back, 2);
  // From now on everything that can fail does, and gives back.
  FAILS(RDZV_POISONED, rdzv_fault_panic_in_rpc(rpc, &call, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_call(rpc, &call, NULL, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_future_new(rpc, &call, &none, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_call_with(rpc, &call, never_told, NULL, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_notify(rpc, &call, &error));
  CHECK_NUMBER(given_back, 7);
  rdzv_rpc_workers *workers = NULL;
  rdzv_rpc_event event = {.struct_size = sizeof event};
  FAILS(RDZV_POISONED, rdzv_rpc_list_workers(rpc, &workers, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_next_event(rpc, 0, &event, NULL, NULL, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_add_handler(rpc, TEXT("x"), RDZV_RPC_INLINE, NULL, answer_empty, NULL, NULL, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  CHECK(none == NULL && workers == NULL);
  // What cannot fail reads on, and calls that were made before are whole.
  CHECK_NUMBER(worker_info(rpc).id, 3);
  int32_t ended = 0;
  OK(rdzv_rpc_future_wait(future, -1, &ended, NULL, &error));
  CHECK_NUMBER(ended, 1);
  FAILS_LIKE(wanted, rdzv_fault_panic_in_rpc_future(future, &error));
  FAILS(RDZV_POISONED, rdzv_rpc_future_wait(future, -1, &ended, NULL, &error));
  rdzv_rpc_future_cancel(future);
  rdzv_rpc_future_free(future);
  // Freeing it ends it, and the context may have another one.
  rdzv_rpc_free(rpc);
  rpc = new_worker(context, store);
  OK(rdzv_rpc_call(rpc, &call, NULL, &error));
  OK(rdzv_rpc_shutdown(rpc, RDZV_RPC_GRACEFUL, &error));
  rdzv_rpc_free(rpc);
  CHECK_NUMBER(given_back, 8);
  rdzv_store_free(store);
  rdzv_context_free(context);
}

static void panic_without_a_place_for_details_is_no_trouble(void) {
  rdzv_server *server = start_server(NULL);
  CHECK_NUMBER(rdzv_fault_panic(server, NULL), RDZV_PANIC);
  CHECK_NUMBER(rdzv_fault_panic(server, NULL), RDZV_POISONED);
  CHECK_NUMBER(rdzv_fault_panic(NULL, NULL), RDZV_PANIC);
  rdzv_server_free(server);
}

static void panic_within_the_reactor_ends_that_server_only(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_server *other = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  rdzv_store *other_store = connect_store(NULL, rdzv_server_port(other));
  rdzv_fault_panic_in_reactor();
  // The next connection is an event, and the end of its server: its clients are cut off.
  rdzv_store *late = NULL;
  rdzv_store_options options = options_for(rdzv_server_port(server));
  options.connect_timeout_ms = -1;
  CHECK(rdzv_store_new(NULL, &options, &late, NULL) != RDZV_OK);
  const rdzv_bytes keys[] = {BYTES("key")};
  CHECK(rdzv_store_wait(store, keys, 1, PATIENCE_MS, NULL) != RDZV_OK);
  // Its next call tells, and after that it is poisoned.
  rdzv_server_stats stats = {.struct_size = sizeof stats};
  const struct failure wanted = {.status = RDZV_PANIC, .message_part = "provoked in the reactor"};
  FAILS_LIKE(wanted, rdzv_server_get_stats(server, &stats, &error));
  FAILS(RDZV_POISONED, rdzv_server_stop(server, &error));
  // The other server never heard of it.
  OK(rdzv_store_set(other_store, TEXT("key"), TEXT("value"), -1, &error));
  OK(rdzv_server_get_stats(other, &stats, &error));
  CHECK_NUMBER(stats.keys, 1);
  rdzv_store_free(store);
  rdzv_store_free(other_store);
  rdzv_server_free(server);
  OK(rdzv_server_stop(other, &error));
  rdzv_server_free(other);
}

int main(void) {
  // The library writes nothing to stdout or stderr, not even when it panics: both lead into a file meanwhile.
  FILE *message = tmpfile();
  const int out = dup(STDOUT_FILENO);
  const int err = dup(STDERR_FILENO);
  words_go_to = fdopen(err, "w");
  CHECK(message != NULL && out >= 0 && words_go_to != NULL);
  CHECK(dup2(fileno(message), STDOUT_FILENO) >= 0 && dup2(fileno(message), STDERR_FILENO) >= 0);
  panic_within_a_call_poisons_the_handle();
  panic_within_a_call_poisons_the_agent();
  panic_within_a_turn_of_a_loop_poisons_loop_and_agent();
  panic_within_a_call_poisons_the_worker_and_gives_back_what_was_lent();
  panic_without_a_place_for_details_is_no_trouble();
  panic_within_the_reactor_ends_that_server_only();
  CHECK(dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0);
  rewind(message);
  char line[256];
  if (fgets(line, sizeof line, message) != NULL) FAIL("the library wrote: %s", line);
  fclose(message);
  fclose(words_go_to);
  close(out);
  return 0;
}
