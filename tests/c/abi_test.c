// The C ABI as a program in C11 sees it. Each test prints its name when it has passed; the first thing that is not as
// it should be ends the program with 1.
#include "check.h"
#include "tests.h"

#include <sched.h>
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
    TEST(a_token_ends_calls_before_they_begin),
    TEST(handle_serves_many_threads),
    TEST(operations_are_performed_and_used_again),
    TEST(native_operations_are_performed),
    TEST(batches_and_transactions_include_operations),
    TEST(operations_refuse_bad_arguments),
    TEST(loops_do_every_operation),
    TEST(loop_events_tell_of_failures),
    TEST(loops_refuse_bad_arguments),
    TEST(native_stores_have_revisions_pages_and_prefixes),
    TEST(watches_tell_of_changes),
    TEST(watches_and_leases_are_cancelled_from_other_threads),
    TEST(leases_end_and_their_keys_with_them),
    TEST(named_barriers_tell_who_is_missing),
    TEST(other_stores_have_none_of_it),
    TEST(native_stores_prove_their_token),
    TEST(rpc_workers_prove_the_token_of_their_stores),
    TEST(native_stores_refuse_bad_arguments),
    TEST(errors_of_native_stores_name_operation_and_key),
    TEST(a_limit_is_one_number),
    TEST(messages_are_one_line),
    TEST(processes_without_descriptors_are_told_so),
    TEST(native_connections_take_their_whole_time),
    TEST(loops_have_native_stores),
    TEST(loops_refuse_what_native_stores_alone_have),
    TEST(nodes_of_a_loop_meet_die_and_meet_again),
    TEST(failure_of_a_job_reaches_the_other_nodes),
    TEST(nodes_of_a_loop_fail_with_the_reason),
    TEST(stores_in_this_process_and_prefixes),
    TEST(files_are_stores),
    TEST(disk_that_is_full_leaves_no_torn_record),
    TEST(processes_share_a_file_and_lose_nothing),
    TEST(own_code_is_a_store),
    TEST(rendezvous_parameters_are_checked_and_converted),
    TEST(endpoints_and_configurations_are_parsed),
    TEST(static_nodes_meet),
    TEST(static_nodes_meet_again),
    TEST(static_nodes_that_do_not_meet_are_told_why),
    TEST(handlers_that_wait_are_cancelled),
    TEST(node_of_a_round_knows_its_place),
    TEST(handlers_that_cannot_be),
    TEST(nodes_of_two_contexts_are_two_nodes),
    TEST(node_that_was_replaced_is_told_so),
    TEST(round_of_a_restarted_server_has_its_own_keys_and_a_later_number),
    TEST(keys_written_before_a_round_opens_are_not_in_it),
    TEST(handler_that_is_freed_leaves_its_round),
    TEST(minimum_to_continue_is_at_least_one),
    TEST(urls_that_make_no_sense),
    TEST(url_arguments_are_checked),
    TEST(ranks_meet_by_url),
    TEST(urls_that_wait_are_cancelled),
    TEST(default_timeout_is_set_and_restored),
    TEST(ranks_exchange_data),
    TEST(missing_ranks_are_named),
    TEST(meetings_are_cancelled_and_checked),
    TEST(address_of_the_store_is_published),
    TEST(own_code_is_a_backend),
    TEST(own_backend_fails_in_every_way),
    TEST(own_backend_tells_what_happened),
    TEST(own_code_is_a_url_scheme),
    TEST(own_code_is_told_that_its_caller_has_gone),
    TEST(own_backend_may_own_a_store_of_its_context),
    TEST(registries_keep_their_rules),
    TEST(workers_call_each_other),
    TEST(calls_fail_with_the_reason),
    TEST(futures_and_callbacks_tell_what_came_of_calls),
    TEST(futures_hold_up_nobody_who_looks_once),
    TEST(waits_are_cancelled_from_another_thread),
    TEST(lent_bytes_are_given_back_once),
    TEST(requests_are_taken_without_being_copied),
    TEST(workers_that_leave_answer_what_they_were_asked),
    TEST(workers_end_in_both_ways),
    TEST(workers_are_made_as_they_are_told),
    TEST(lent_bytes_are_given_back_before_a_call_returns),
    TEST(what_gives_back_lent_bytes_frees_no_future_and_no_worker),
    TEST(long_failure_texts_are_cut_with_a_mark),
    TEST(workers_are_not_shut_down_and_calls_not_awaited_by_their_own_code),
    TEST(workers_are_not_freed_by_their_own_code),
    TEST(stores_and_operations_are_not_freed_while_they_work),
    TEST(agents_are_not_freed_by_their_listeners),
    TEST(contexts_are_not_freed_by_their_sinks),
    TEST(failures_of_groups_tell_who_where_and_when),
    TEST(attempts_to_become_a_worker_are_cancelled),
    TEST(workers_go_on_without_the_server_and_hear_of_it),
    TEST(static_workers_agree_to_end),
    TEST(device_maps_are_exchanged_and_checked),
    TEST(rpc_handles_may_be_null),
    TEST(own_code_is_an_rpc_backend),
    TEST(workers_of_own_backends_are_not_freed_by_what_they_call),
    TEST(own_rpc_backend_fails_in_every_way),
    TEST(inline_handlers_do_not_wait_for_own_backends),
    TEST(observers_see_who_is_in_a_group),
    TEST(workers_of_a_loop_call_each_other),
    TEST(workers_of_a_loop_die_and_end),
    TEST(workers_that_block_may_come_into_a_loop),
    TEST(own_rpc_backend_lives_in_a_loop),
    TEST(workers_of_a_loop_are_made_by_url_and_given_up),
    TEST(workers_of_a_loop_end_when_their_calls_have),
    TEST(code_within_a_call_does_not_use_its_loop),
    TEST(loop_that_is_freed_while_an_event_is_taken_stays),
    TEST(workers_of_a_loop_refuse_bad_arguments),
    TEST(agent_restarts_its_workers_and_succeeds),
    TEST(agent_tells_the_root_cause),
    TEST(agent_is_stopped_by_another_thread),
    TEST(agents_live_in_a_loop),
    TEST(agents_are_watched),
    TEST(functions_are_workers),
    TEST(functions_return_long_values),
    TEST(own_code_supervises_workers),
    TEST(workers_record_their_errors),
    TEST(agent_runs_the_program_that_was_found),
    TEST(agents_refuse_bad_arguments),
    TEST(workers_set_timers),
    TEST(timers_go_to_the_agent_or_fail),
    TEST(log_lines_arrive_and_sink_is_destroyed_once),
    TEST(sink_may_not_call_its_own_context),
    TEST(sink_may_not_call_a_context_that_is_being_freed),
    TEST(sinks_are_checked),
    TEST(contexts_do_not_meet),
};

int main(void) {
  for (size_t i = 0; i < sizeof tests / sizeof *tests; ++i) {
    const int descriptors = descriptor_count();
    const long long began_ms = now_ms();
    tests[i].run();
    // What its own code ends, ends when that has returned.
    const long long ended_ms = now_ms();
    while (descriptor_count() != descriptors && now_ms() - ended_ms < PATIENCE_MS) sched_yield();
    CHECK_NUMBER(descriptor_count(), descriptors);
    printf("%s (%lld ms)\n", tests[i].name, now_ms() - began_ms);
    // Not once more by a process that is forked in the next one.
    fflush(stdout);
  }
  return 0;
}
