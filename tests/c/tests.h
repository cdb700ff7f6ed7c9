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
void a_token_ends_calls_before_they_begin(void);
void handle_serves_many_threads(void);

// loops.c
void loops_do_every_operation(void);
void loop_events_tell_of_failures(void);
void loops_refuse_bad_arguments(void);

// ops.c
void operations_are_performed_and_used_again(void);
void native_operations_are_performed(void);
void batches_and_transactions_include_operations(void);
void operations_refuse_bad_arguments(void);

// native_stores.c
void native_stores_have_revisions_pages_and_prefixes(void);
void watches_tell_of_changes(void);
void watches_and_leases_are_cancelled_from_other_threads(void);
void leases_end_and_their_keys_with_them(void);
void named_barriers_tell_who_is_missing(void);
void other_stores_have_none_of_it(void);
void native_stores_prove_their_token(void);
void rpc_workers_prove_the_token_of_their_stores(void);
void native_stores_refuse_bad_arguments(void);

// errors.c
void errors_of_native_stores_name_operation_and_key(void);
void a_limit_is_one_number(void);
void messages_are_one_line(void);
void processes_without_descriptors_are_told_so(void);
void native_connections_take_their_whole_time(void);

// native_loops.c
void loops_have_native_stores(void);
void loops_refuse_what_native_stores_alone_have(void);

// nodes.c
void nodes_of_a_loop_meet_die_and_meet_again(void);
void failure_of_a_job_reaches_the_other_nodes(void);
void nodes_of_a_loop_fail_with_the_reason(void);

// agents.c
void agent_restarts_its_workers_and_succeeds(void);
void agent_tells_the_root_cause(void);
void agent_is_stopped_by_another_thread(void);
void agents_live_in_a_loop(void);
void agents_are_watched(void);
void functions_are_workers(void);
void functions_return_long_values(void);
void own_code_supervises_workers(void);
void workers_record_their_errors(void);
void agent_runs_the_program_that_was_found(void);
void agents_refuse_bad_arguments(void);

// worker_timers.c
void workers_set_timers(void);
void timers_go_to_the_agent_or_fail(void);

// logging.c
void log_lines_arrive_and_sink_is_destroyed_once(void);
void sink_may_not_call_its_own_context(void);
void sink_may_not_call_a_context_that_is_being_freed(void);
void sinks_are_checked(void);
void contexts_do_not_meet(void);

// stores.c
void stores_in_this_process_and_prefixes(void);
void files_are_stores(void);
void disk_that_is_full_leaves_no_torn_record(void);
void processes_share_a_file_and_lose_nothing(void);
void own_code_is_a_store(void);

// rendezvous.c
void rendezvous_parameters_are_checked_and_converted(void);
void endpoints_and_configurations_are_parsed(void);
void static_nodes_meet(void);
void static_nodes_meet_again(void);
void static_nodes_that_do_not_meet_are_told_why(void);
void handlers_that_wait_are_cancelled(void);
void node_of_a_round_knows_its_place(void);
void handlers_that_cannot_be(void);

// rendezvous_rounds.c
void nodes_of_two_contexts_are_two_nodes(void);
void node_that_was_replaced_is_told_so(void);
void round_of_a_restarted_server_has_its_own_keys_and_a_later_number(void);
void keys_written_before_a_round_opens_are_not_in_it(void);
void handler_that_is_freed_leaves_its_round(void);
void minimum_to_continue_is_at_least_one(void);

// urls.c
void urls_that_make_no_sense(void);
void url_arguments_are_checked(void);
void ranks_meet_by_url(void);
void urls_that_wait_are_cancelled(void);

// utilities.c
void default_timeout_is_set_and_restored(void);
void ranks_exchange_data(void);
void missing_ranks_are_named(void);
void meetings_are_cancelled_and_checked(void);
void address_of_the_store_is_published(void);

// rendezvous_plugins.c
void own_code_is_a_backend(void);
void own_backend_fails_in_every_way(void);
void own_backend_tells_what_happened(void);
void own_code_is_a_url_scheme(void);
void own_code_is_told_that_its_caller_has_gone(void);
void own_backend_may_own_a_store_of_its_context(void);
void registries_keep_their_rules(void);

// rpc.c
void workers_call_each_other(void);
void calls_fail_with_the_reason(void);
void futures_and_callbacks_tell_what_came_of_calls(void);
void futures_hold_up_nobody_who_looks_once(void);
void waits_are_cancelled_from_another_thread(void);
void lent_bytes_are_given_back_once(void);
void requests_are_taken_without_being_copied(void);
void workers_that_leave_answer_what_they_were_asked(void);
void workers_end_in_both_ways(void);
void workers_are_made_as_they_are_told(void);
void static_workers_agree_to_end(void);
void rpc_handles_may_be_null(void);

// rpc_flow.c
void lent_bytes_are_given_back_before_a_call_returns(void);
void what_gives_back_lent_bytes_frees_no_future_and_no_worker(void);
void long_failure_texts_are_cut_with_a_mark(void);

// rpc_ends.c
void workers_are_not_shut_down_and_calls_not_awaited_by_their_own_code(void);
void workers_are_not_freed_by_their_own_code(void);

// frees.c
void stores_and_operations_are_not_freed_while_they_work(void);
void agents_are_not_freed_by_their_listeners(void);
void contexts_are_not_freed_by_their_sinks(void);
void failures_of_groups_tell_who_where_and_when(void);
void attempts_to_become_a_worker_are_cancelled(void);
void workers_go_on_without_the_server_and_hear_of_it(void);

// rpc_plugins.c
void own_code_is_an_rpc_backend(void);
void workers_of_own_backends_are_not_freed_by_what_they_call(void);
void own_rpc_backend_fails_in_every_way(void);
void inline_handlers_do_not_wait_for_own_backends(void);
void observers_see_who_is_in_a_group(void);

// rpc_devices.c
void device_maps_are_exchanged_and_checked(void);

// rpc_loops.c
void workers_of_a_loop_call_each_other(void);
void workers_of_a_loop_die_and_end(void);
void workers_that_block_may_come_into_a_loop(void);
void own_rpc_backend_lives_in_a_loop(void);
void workers_of_a_loop_are_made_by_url_and_given_up(void);
void workers_of_a_loop_end_when_their_calls_have(void);
void code_within_a_call_does_not_use_its_loop(void);
void loop_that_is_freed_while_an_event_is_taken_stays(void);
void workers_of_a_loop_refuse_bad_arguments(void);

#endif  // TESTS_H
