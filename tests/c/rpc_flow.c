// When bytes that are lent are given back, and how long the text of a failure may be.
#include "rpc_pair.h"
#include "tests.h"

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

void long_failure_texts_are_cut_with_a_mark(void) {
  struct kept kept = new_kept();
  struct pair pair = new_pair(&kept);
  OK(rdzv_rpc_add_handler(pair.two, TEXT("long"), RDZV_RPC_INLINE, fail_at_length, &kept, NULL, &error));
  rdzv_error *failure = NULL;
  const rdzv_rpc_call_spec call = call_of("two", "long", "");
  CHECK_NUMBER(rdzv_rpc_call(pair.one, &call, NULL, &failure), RDZV_RPC_HANDLER_FAILED);
  const char *cause = info_of(failure).cause, *mark = " [cut: 20000 bytes, at most 16384]";
  CHECK_NUMBER(strlen(cause), 16 * 1024);
  CHECK_TEXT(cause + strlen(cause) - strlen(mark), mark);
  rdzv_error_free(failure);
  end_pair(&pair);
}
