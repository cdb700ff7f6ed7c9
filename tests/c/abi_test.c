// The C ABI as a program in C11 sees it. Each test prints its name when it has passed; the first thing that is not as
// it should be ends the program with 1.
#include "check.h"
#include "tests.h"

#include <stdio.h>

struct test {
  const char *name;
  void (*run)(void);
};

#define TEST(name) {#name, name}

static const struct test tests[] = {
    TEST(versions_and_names),
    TEST(every_operation_does_its_work),
    TEST(servers_start_and_stop),
    TEST(sockets_are_adopted),
    TEST(every_operation_refuses_bad_arguments),
    TEST(every_other_function_refuses_bad_arguments),
    TEST(null_handles_are_freed_and_read),
    TEST(failures_leave_outputs_alone),
    TEST(addresses_that_do_not_answer),
    TEST(peers_that_are_no_stores),
    TEST(servers_that_go_away),
    TEST(pending_wait_delays_nobody),
    TEST(cancel_ends_what_is_pending),
    TEST(handle_serves_many_threads),
    TEST(loops_do_every_operation),
    TEST(loop_events_tell_of_failures),
    TEST(loops_refuse_bad_arguments),
    TEST(log_lines_arrive_and_sink_is_destroyed_once),
    TEST(sink_may_not_call_its_own_context),
    TEST(sinks_are_checked),
    TEST(contexts_do_not_meet),
};

int main(void) {
  for (size_t i = 0; i < sizeof tests / sizeof *tests; ++i) {
    const int descriptors = descriptor_count();
    const long long began_ms = now_ms();
    tests[i].run();
    CHECK_NUMBER(descriptor_count(), descriptors);
    printf("%s (%lld ms)\n", tests[i].name, now_ms() - began_ms);
  }
  return 0;
}
