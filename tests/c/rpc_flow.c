// When bytes that are lent are given back, and how long the text of a failure may be.
#include "rpc_pair.h"
#include "tests.h"

#include <semaphore.h>

static void fail_at_length(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  const size_t len = 20000;
  char *message = malloc(len);
  (void)user_data;
  (void)request;
  memset(message, 'x', len);
  OK(rdzv_rpc_responder_fail(responder, RDZV_RPC_HANDLER_FAILED, (const uint8_t *)message, len, &error));
  free(message);
}

void lent_bytes_are_given_back_before_a_call_returns(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  const size_t len = 64u << 20;
  uint8_t *bytes = malloc(len);
  memset(bytes, 7, len);
  rdzv_rpc_call_spec call = call_of("two", "missing", "");
  call.payload = bytes;
  call.payload_len = len;
  call.release = release;
  call.user_data = &kept;
  for (int round = 1; round <= 5; ++round) {
    call_fails(pair.one, call, RDZV_RPC_NO_HANDLER, "missing at two");
    CHECK_NUMBER(count_of(&kept, &kept.released), round);
  }
  rdzv_buffer *answer = rdzv_buffer_new();
  call = call_of("two", "echo", "still there");
  OK(rdzv_rpc_call(pair.one, &call, answer, &error));
  CHECK_BUFFER(answer, "still there");
  rdzv_buffer_free(answer);
  end_pair(&pair);
  CHECK_NUMBER(count_of(&kept, &kept.released), 5);
  free(bytes);
}

// What frees a worker or a future when bytes are given back.
struct giver {
  struct kept *kept;
  rdzv_rpc *rpc;
  rdzv_rpc_future *future;
};

static void free_on_release(void *user_data) {
  struct giver *giver = user_data;
  rdzv_rpc_free(giver->rpc);
  rdzv_rpc_future_free(giver->future);
  release(giver->kept);
}

static void block(void *user_data, const rdzv_rpc_request *request, rdzv_rpc_responder *responder) {
  (void)request;
  CHECK(sem_wait(user_data) == 0);
  rdzv_rpc_responder_free(responder);
}

void what_gives_back_lent_bytes_frees_no_future_and_no_worker(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  // A callee that reads nothing, so that the second call cannot be sent.
  sem_t gate;
  CHECK(sem_init(&gate, 0, 0) == 0);
  OK(rdzv_rpc_add_handler(pair.two, TEXT("block"), RDZV_RPC_INLINE, NULL, block, &gate, NULL, &error));
  rdzv_rpc_call_spec call = call_of("two", "block", "");
  OK(rdzv_rpc_notify(pair.one, &call, &error));
  const size_t len = 64u << 20;
  uint8_t *bytes = calloc(1, len);
  rdzv_rpc_future *first = NULL;
  call = call_of("two", "missing", "");
  call.payload = bytes;
  call.payload_len = len;
  OK(rdzv_rpc_future_new(pair.one, &call, &first, &error));
  struct giver giver = {.kept = &kept};
  call.release = free_on_release;
  call.user_data = &giver;
  OK(rdzv_rpc_future_new(pair.one, &call, &giver.future, &error));
  CHECK_NUMBER(count_of(&kept, &kept.released), 0);
  rdzv_rpc_future *second = giver.future;
  rdzv_rpc_future_cancel(second);
  CHECK_NUMBER(count_of(&kept, &kept.released), 1);
  giver.future = NULL;
  int32_t ended = 0;
  FAILS(RDZV_FREE_REFUSED, rdzv_rpc_future_wait(second, -1, &ended, NULL, &error));
  FAILS(RDZV_CANCELLED, rdzv_rpc_future_wait(second, -1, &ended, NULL, &error));
  rdzv_rpc_future_free(second);
  CHECK(sem_post(&gate) == 0);
  FAILS(RDZV_RPC_NO_HANDLER, rdzv_rpc_future_wait(first, -1, &ended, NULL, &error));
  rdzv_rpc_future_free(first);
  free(bytes);

  // A response that is given back on whichever thread has written it.
  call = call_of("two", "later", "");
  OK(rdzv_rpc_future_new(pair.one, &call, &first, &error));
  await_count(&kept, &kept.calls, 1);
  giver.rpc = pair.two;
  OK(rdzv_rpc_responder_send(take_responder(&kept), TEXT("here"), free_on_release, &giver, &error));
  OK(rdzv_rpc_future_wait(first, -1, &ended, NULL, &error));
  rdzv_rpc_future_free(first);
  await_count(&kept, &kept.released, 2);
  rdzv_rpc_workers *workers = NULL;
  FAILS(RDZV_FREE_REFUSED, rdzv_rpc_list_workers(pair.two, &workers, &error));
  end_pair(&pair);
  CHECK(sem_destroy(&gate) == 0);
}

void long_failure_texts_are_cut_with_a_mark(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  OK(rdzv_rpc_add_handler(pair.two, TEXT("long"), RDZV_RPC_INLINE, NULL, fail_at_length, &kept, NULL, &error));
  rdzv_error *failure = NULL;
  const rdzv_rpc_call_spec call = call_of("two", "long", "");
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &call, NULL, &failure), RDZV_RPC_HANDLER_FAILED);
  const char *cause = info_of(failure).cause, *mark = " [cut: 20000 bytes, at most 16384]";
  CHECK_NUMBER(strlen(cause), 16 * 1024);
  CHECK_TEXT(cause + strlen(cause) - strlen(mark), mark);
  rdzv_error_free(failure);
  end_pair(&pair);
}
