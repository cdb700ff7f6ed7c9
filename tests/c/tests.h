// The tests of abi_test.c, one a function; each ends the program when something is not as it should be.
#ifndef TESTS_H
#define TESTS_H

// round_trip.c
void versions_and_names(void);
void every_operation_does_its_work(void);
void servers_start_and_stop(void);
void sockets_are_adopted(void);

// bad_arguments.c
void every_operation_refuses_bad_arguments(void);
void every_other_function_refuses_bad_arguments(void);
void null_handles_are_freed_and_read(void);

// failures.c
void failures_leave_outputs_alone(void);
void addresses_that_do_not_answer(void);
void peers_that_are_no_stores(void);
void servers_that_go_away(void);

// threads.c
void pending_wait_delays_nobody(void);
void cancel_ends_what_is_pending(void);
void handle_serves_many_threads(void);

// loops.c
void loops_do_every_operation(void);
void loop_events_tell_of_failures(void);
void loops_refuse_bad_arguments(void);

// logging.c
void log_lines_arrive_and_sink_is_destroyed_once(void);
void sink_may_not_call_its_own_context(void);
void sinks_are_checked(void);
void contexts_do_not_meet(void);

#endif  // TESTS_H
