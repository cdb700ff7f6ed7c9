//! What a linked program depends on without seeing it: symbols, sizes, offsets, numbers, and what the library needs.

use crate::header::{self, compare};
use crate::process::run;
use crate::{c_programs, library};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::process::Command;
use std::time::Duration;

const HINT: &str =
    "if the change is wanted, run these tests with RDZV_UPDATE_ABI=1, and see whether RDZV_ABI_VERSION grows";
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most that the stripped library may have with everything (ADR-0020).
const STRIPPED_BYTES_MAX: u64 = 2_725_000;

/// The releases whose programs run with each other's libraries: of 0.2.1, it is 0.2.
fn series() -> &'static str {
    env!("CARGO_PKG_VERSION").rsplit_once('.').expect("three numbers").0
}

fn readelf(flags: &str) -> String {
    let reported = run(Command::new("readelf").arg(flags).arg(library::shipped()), TIMEOUT);
    reported.or_fail("readelf of binutils").stdout
}

/// Names of the exported functions. Each has the version of the series, and so has the symbol that GNU ld makes of the
/// version itself.
fn exported() -> BTreeSet<String> {
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library::shipped()), TIMEOUT);
    let listed = listed.or_fail("nm of binutils").stdout;
    let symbols = listed.lines().filter_map(|line| line.split(' ').nth(2));
    let version = format!("RDZV_{}", series());
    symbols
        .filter(|symbol| !symbol.starts_with(&version))
        .map(|symbol| {
            let name = symbol.strip_suffix(&format!("@@{version}"));
            name.unwrap_or_else(|| panic!("{symbol} has not the version {version}")).to_owned()
        })
        .collect()
}

#[test]
fn symbols_are_those_of_the_list() {
    let mut list = String::new();
    for name in exported() {
        assert!(name.starts_with("rdzv_"), "the library exports {name}");
        assert!(!name.starts_with("rdzv_fault_"), "the shipped library exports {name}");
        writeln!(list, "{name}").expect("memory");
    }
    compare(&crate::repository().join("ffi/abi/symbols.txt"), &list, "RDZV_UPDATE_ABI", HINT);
}

#[test]
fn header_declares_what_the_library_exports() {
    let declared = header::functions(&header::text());
    let exported = exported();
    let missing: Vec<_> = exported.difference(&declared).collect();
    let invented: Vec<_> = declared.difference(&exported).collect();
    assert!(missing.is_empty(), "exported, but not in the header: {missing:?}");
    assert!(invented.is_empty(), "in the header, but not exported: {invented:?}");
}

/// A C program that prints all numbers and layouts of the header.
fn layout_program(header: &str) -> String {
    let mut body = String::new();
    for name in header::constants(header) {
        writeln!(body, "  printf(\"{name} %lld\\n\", (long long){name});").expect("memory");
    }
    for header::Struct { name, fields } in header::structs(header) {
        let of_all = format!("sizeof({name}), _Alignof({name})");
        writeln!(body, "  printf(\"{name} size %zu align %zu\\n\", {of_all});").expect("memory");
        for field in fields {
            // An array as a whole.
            let field = field.split('[').next().expect("a field has a name");
            let of_field = format!("offsetof({name}, {field}), sizeof((({name} *)0)->{field})");
            writeln!(body, "  printf(\"{name}.{field} offset %zu size %zu\\n\", {of_field});")
                .expect("memory");
        }
    }
    format!("#include <rendezvous.h>\n#include <stdio.h>\nint main(void) {{\n{body}  return 0;\n}}\n")
}

fn layout_of_c() -> String {
    let folder = c_programs::folder("layout");
    let source = folder.join("layout.c");
    std::fs::write(&source, layout_program(&header::text())).expect("the folder of this test");
    let program = c_programs::Build::c11("layout", &[source]).plain();
    run(&mut Command::new(program), TIMEOUT).or_fail("the program that prints the layout").stdout
}

macro_rules! numbers {
    ($text:ident, $($name:ident)+) => {
        $(writeln!($text, "{} {}", stringify!($name), rendezvous::$name).expect("memory");)+
    };
}

macro_rules! layout {
    ($text:ident, $name:ident { $($field:ident)+ }) => {
        let (size, align) = (size_of::<rendezvous::$name>(), align_of::<rendezvous::$name>());
        writeln!($text, "{} size {size} align {align}", stringify!($name)).expect("memory");
        $(
            let offset = offset_of!(rendezvous::$name, $field);
            let size = size_of_field(|of: &rendezvous::$name| &raw const of.$field);
            let field = concat!(stringify!($name), ".", stringify!($field));
            writeln!($text, "{field} offset {offset} size {size}").expect("memory");
        )+
    };
}

const fn size_of_field<S, F>(_: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

fn layout_of_rust() -> String {
    let mut text = String::new();
    numbers!(text, RDZV_OK RDZV_INVALID_ARGUMENT RDZV_PANIC RDZV_POISONED RDZV_TIMED_OUT RDZV_REFUSED
        RDZV_SERVER_GONE RDZV_WRONG_PROTOCOL RDZV_UNRESOLVED RDZV_UNREACHABLE RDZV_CANCELLED RDZV_LIMIT_EXCEEDED
        RDZV_QUEUE_EMPTY RDZV_ADDRESS_IN_USE RDZV_IO RDZV_CLOSED RDZV_REENTRANT RDZV_EXHAUSTED
        RDZV_UNSUPPORTED RDZV_CORRUPT RDZV_RENDEZVOUS_CLOSED RDZV_RENDEZVOUS_TIMED_OUT RDZV_RENDEZVOUS_CONNECTION
        RDZV_RENDEZVOUS_STATE RDZV_RENDEZVOUS_GRACEFUL_EXIT RDZV_NOT_REGISTERED RDZV_ALREADY_REGISTERED
        RDZV_BACKEND_MISMATCH RDZV_BARRIER_BROKEN RDZV_COMPACTED RDZV_STALE_ROUND RDZV_NOT_FOUND RDZV_CONFLICT);
    numbers!(text, RDZV_RPC_UNKNOWN_WORKER RDZV_RPC_NO_HANDLER RDZV_RPC_HANDLER_FAILED RDZV_RPC_PEER_DIED RDZV_RPC_NO_MEMBER
        RDZV_RPC_LEAVING RDZV_RPC_ALREADY_INITIALIZED RDZV_RPC_MIXED_GROUP RDZV_RPC_NAME_TAKEN
        RDZV_RPC_DEVICE_MAP RDZV_RPC_UNREACHED RDZV_RPC_EVICTED RDZV_RPC_MEMBERSHIP RDZV_RPC_MALFORMED RDZV_RENDEZVOUS_REPLACED RDZV_FREE_REFUSED
        RDZV_UNAUTHENTICATED RDZV_PERMISSION_DENIED);
    numbers!(text, RDZV_CHANGE_NONE RDZV_CHANGE_PUT RDZV_CHANGE_DELETE);
    numbers!(text, RDZV_STORE_SET RDZV_STORE_GET RDZV_STORE_ADD RDZV_STORE_COMPARE_SET RDZV_STORE_WAIT
        RDZV_STORE_CHECK RDZV_STORE_DELETE_KEY RDZV_STORE_NUM_KEYS RDZV_STORE_LIST_KEYS RDZV_STORE_APPEND
        RDZV_STORE_MULTI_GET RDZV_STORE_MULTI_SET RDZV_STORE_QUEUE_PUSH RDZV_STORE_QUEUE_POP
        RDZV_STORE_QUEUE_LEN);
    numbers!(text, RDZV_ABI_VERSION);
    numbers!(text, RDZV_LOG_ERROR RDZV_LOG_WARN RDZV_LOG_INFO RDZV_LOG_DEBUG);
    numbers!(text, RDZV_FAMILY_AS_GIVEN RDZV_FAMILY_DUAL_STACK);
    numbers!(text, RDZV_EVENT_NONE RDZV_EVENT_COMPLETED RDZV_EVENT_SESSION_OPEN RDZV_EVENT_NODE_SEATED
        RDZV_EVENT_NODE_STANDING_BY RDZV_EVENT_ROUND RDZV_EVENT_SESSION_OVER RDZV_EVENT_WATCHING RDZV_EVENT_CHANGE
        RDZV_EVENT_LEASE_OVER RDZV_EVENT_AGENT RDZV_EVENT_RPC_JOINED RDZV_EVENT_RPC RDZV_EVENT_RPC_REQUEST
        RDZV_EVENT_RPC_OVER);
    numbers!(text, RDZV_DEVICES_ALL RDZV_DEVICES_ONE_EACH RDZV_RANKS_THROUGH_STORE RDZV_RANKS_IDENTICAL);
    numbers!(text, RDZV_NUMA_NONE RDZV_NUMA_NODE RDZV_NUMA_SOCKET RDZV_NUMA_EXCLUSIVE RDZV_NUMA_CORE_COMPLEX);
    numbers!(text, RDZV_WORKERS_UNKNOWN RDZV_WORKERS_INIT RDZV_WORKERS_HEALTHY RDZV_WORKERS_UNHEALTHY
        RDZV_WORKERS_STOPPED RDZV_WORKERS_SUCCEEDED RDZV_WORKERS_FAILED);
    numbers!(text, RDZV_PHASE_IDLE RDZV_PHASE_MEETING RDZV_PHASE_ASSIGNING RDZV_PHASE_STARTING RDZV_PHASE_RUNNING
        RDZV_PHASE_RESTARTING RDZV_PHASE_EXIT_BARRIER RDZV_PHASE_ENDING RDZV_PHASE_CLOSING RDZV_PHASE_OVER);
    numbers!(text, RDZV_AGENT_EVENT_PHASE RDZV_AGENT_EVENT_RUNNING RDZV_AGENT_EVENT_EXITED RDZV_AGENT_EVENT_KILLING
        RDZV_AGENT_EVENT_GAVE_UP RDZV_AGENT_EVENT_WORKERS_FAILED RDZV_AGENT_EVENT_OVER RDZV_AGENT_EVENT_TIMER_EXPIRED RDZV_AGENT_EVENT_REMARK);
    numbers!(text, RDZV_OUTCOME_SUCCEEDED RDZV_OUTCOME_NOT_NEEDED RDZV_OUTCOME_STOPPED RDZV_OUTCOME_FAILED
        RDZV_OUTCOME_GUARD_LOST);
    numbers!(text, RDZV_WORKER_STARTED RDZV_WORKER_NOT_STARTED RDZV_WORKER_EXITED RDZV_WORKER_STUCK
        RDZV_WORKERS_LOST);
    numbers!(text, RDZV_ROUND_EVENT_NONE RDZV_ROUND_EVENT_NODES_WAITING RDZV_ROUND_EVENT_PEER_DIED
        RDZV_ROUND_EVENT_ROUND_OVER RDZV_ROUND_EVENT_RUN_CLOSED RDZV_ROUND_EVENT_EXCLUDED
        RDZV_ROUND_EVENT_REPLACED RDZV_ROUND_EVENT_JOB_FAILED);
    numbers!(text, RDZV_WHY_LEFT RDZV_WHY_CONNECTION RDZV_WHY_HEARTBEAT RDZV_WHY_HOST_SILENT RDZV_WHY_SERVER_STOPPED
        RDZV_WHY_DEADLINE RDZV_WHY_CANCELLED RDZV_WHY_SUPERSEDED RDZV_WHY_PROTOCOL RDZV_WHY_LIMIT RDZV_WHY_CLOSED
        RDZV_WHY_DESERTED RDZV_WHY_TOO_FEW_NODES RDZV_WHY_COMPACTED
        RDZV_WHY_STALLED RDZV_WHY_REPLACED RDZV_WHY_REFUSED RDZV_WHY_GAVE_UP RDZV_WHY_STOPPED
        RDZV_WHY_ENDED_BY_ADMIN);
    numbers!(text, RDZV_RPC_INLINE RDZV_RPC_POOLED RDZV_RPC_LOOP RDZV_RPC_GRACEFUL RDZV_RPC_ABRUPT);
    numbers!(text, RDZV_RPC_EVENT_NONE RDZV_RPC_EVENT_JOINED RDZV_RPC_EVENT_LEFT RDZV_RPC_EVENT_DIED
        RDZV_RPC_EVENT_OVER RDZV_RPC_EVENT_WATCH_LOST);
    numbers!(text, RDZV_RPC_OBSERVATION_NONE RDZV_RPC_OBSERVATION_STATIC RDZV_RPC_OBSERVATION_DYNAMIC RDZV_RPC_OBSERVATION_JOINED
        RDZV_RPC_OBSERVATION_LEFT);
    layout!(text, rdzv_bytes { data len });
    layout!(text, rdzv_event {
        struct_size kind member member_data op op_data error change round_event lease lease_why spares_ahead incarnation
    });
    layout!(text, rdzv_change { struct_size kind revision key key_len value value_len });
    layout!(text, rdzv_result {
        struct_size status error value value_len items item_count revisions sum count deleted left ready more holds
        was_waiting revision generation lease part_count
    });
    layout!(text, rdzv_round_member {
        struct_size node_rank rank_first local_world_size reserved node node_len address address_len
    });
    layout!(text, rdzv_log_record { struct_size level target message message_len });
    layout!(text, rdzv_log_sink { struct_size level_max user_data log destroy });
    layout!(text, rdzv_store_request {
        struct_size operation keys key_count values value_count number timeout_ms
    });
    layout!(text, rdzv_store_vtable { struct_size reserved user_data name perform destroy });
    layout!(text, rdzv_error_info {
        struct_size status message operation peer phase cause elapsed_ms os_error reserved revision generation keys
        key_count nodes node_count ranks rank_count
    });
    layout!(text, rdzv_tls_options { struct_size reserved ca_file cert_file key_file server_name });
    layout!(text, rdzv_keep_alive { idle_ms interval_ms probes unacknowledged_max_ms });
    layout!(text, rdzv_server_options {
        struct_size family host port reserved listen_fd connections_max stored_bytes_max handshake_timeout_ms
        frame_timeout_ms keep_alive tls auth_token_file c10d_from
    });
    layout!(text, rdzv_store_options {
        struct_size port reserved host timeout_ms connect_timeout_ms response_timeout_ms keep_alive cancel_token node
        grace_ms heartbeat_ms heartbeats_missed_max reserved_too tls auth_token_file
    });
    layout!(text, rdzv_server_stats {
        struct_size reserved connections accepted expelled requests keys stored_bytes buffered_bytes waiting
    });
    layout!(text, rdzv_pair { name value });
    layout!(text, rdzv_rendezvous_parameters {
        struct_size reserved backend endpoint run_id min_nodes max_nodes local_addr config options option_count
    });
    layout!(text, rdzv_round_event {
        struct_size kind round nodes node_rank why reserved node node_len message message_len
    });
    layout!(text, rdzv_round {
        struct_size node_rank round nodes reserved rank_first world_size leader leader_len key_prefix
        key_prefix_len
    });
    layout!(text, rdzv_run_info { struct_size complete round closed nodes nodes_waiting nodes_standby });
    layout!(text, rdzv_rendezvous_backend_vtable {
        struct_size reserved user_data name timeout_ms create destroy
    });
    layout!(text, rdzv_rendezvous_handler_vtable {
        struct_size use_agent_store user_data backend run_id next_rendezvous is_closed set_closed num_nodes_waiting
        next_event shutdown cancel fail abandon reports_deaths reserved destroy
    });
    layout!(text, rdzv_rendezvous_group {
        struct_size has_round store rank world_size round master_addr master_port
    });
    layout!(text, rdzv_rendezvous_info {
        struct_size hosts_store rank world_size master_addr master_port reserved round rank_first worker_count leader
        key_prefix
    });
    layout!(text, rdzv_store_info { struct_size listen_fd master_port reserved master_addr });
    layout!(text, rdzv_rendezvous_url_options {
        struct_size has_rank rank world_size timeout_ms listen_host variables variable_count
    });
    layout!(text, rdzv_url_request {
        struct_size reserved url url_len timeout_ms listen_host listen_host_len
    });
    layout!(text, rdzv_url_scheme_vtable { struct_size reserved user_data timeout_ms create destroy });
    layout!(text, rdzv_url_rendezvous_vtable { struct_size reserved user_data next cancel destroy });
    layout!(text, rdzv_agent_options {
        struct_size local_world_size program function user_data arguments argument_count environment
        environment_count directory role host_name local_addr listen_addr master_addr master_port reserved
        rank_assignment devices max_restarts stop_signal numa_binding stop_timeout_ms leftover_timeout_ms
        kill_timeout_ms start_timeout_ms restart_backoff_ms exit_barrier_timeout_ms assign_timeout_ms
        monitor_interval_ms stuck_timeout_ms timer_file log_dir redirects tee line_prefix local_ranks_filter
        duplicate_stdout_filters duplicate_stderr_filters
    });
    layout!(text, rdzv_worker_call { struct_size reserved arguments argument_count });
    layout!(text, rdzv_worker_group {
        struct_size state group_rank group_world_size round attempt restart_count reserved role workers worker_count
    });
    layout!(text, rdzv_worker {
        struct_size local_rank global_rank role_rank world_size role_world_size pid has_exited exit_code reserved
    });
    layout!(text, rdzv_agent_event {
        struct_size kind from to attempt local_rank exit_code was_stopped restarts_left detect_us stop_us rendezvous_us
        assign_us start_us message group
    });
    layout!(text, rdzv_agent_result {
        struct_size outcome reason report report_json failures failure_count returned returned_count
    });
    layout!(text, rdzv_returned_value { global_rank data len });
    layout!(text, rdzv_worker_failure {
        struct_size local_rank global_rank group_rank pid exit_code timestamp_s signal host message callstack
        stderr_lines stderr_line_count
    });
    layout!(text, rdzv_worker_start { struct_size reserved group environments });
    layout!(text, rdzv_worker_event {
        struct_size kind attempt local_rank pid exit_code may_retry since_ms returned returned_len message host
    });
    layout!(text, rdzv_agent_sink { struct_size reserved user_data metric record destroy });
    layout!(text, rdzv_rpc_event { struct_size kind id reserved });
    layout!(text, rdzv_rpc_observation { struct_size kind id reserved });
    layout!(text, rdzv_rpc_options {
        struct_size worker_threads backend init_method store token rpc_timeout_ms membership_timeout_ms variables
        variable_count listen_host host transports transport_count channels channel_count device_maps device_map_count
        devices device_count accelerator accelerator_count reserved extra_options extra_option_count tls auth_token_file
    });
    layout!(text, rdzv_pair { name value });
    layout!(text, rdzv_rpc_info { struct_size id name address events_lost });
    layout!(text, rdzv_rpc_worker_info { name address id reserved });
    layout!(text, rdzv_rpc_workers { struct_size reserved workers count });
    layout!(text, rdzv_rpc_device_pair { from to });
    layout!(text, rdzv_rpc_device_map { worker pairs pair_count });
    layout!(text, rdzv_rpc_devices {
        struct_size reserved devices device_count reverse_maps reverse_map_count });
    layout!(text, rdzv_rpc_request_info {
        struct_size caller_id caller handler payload time_left_ms response_is_wanted reserved });
    layout!(text, rdzv_rpc_call_spec {
        struct_size callee_id callee callee_len handler handler_len payload payload_len timeout_ms release user_data
    });
    layout!(text, rdzv_rpc_worker_request { struct_size id world_size reserved name store options handlers });
    layout!(text, rdzv_rpc_backend_vtable { struct_size reserved user_data new_worker destroy });
    layout!(text, rdzv_rpc_agent_vtable { struct_size reserved user_data call list_workers shutdown destroy });
    layout!(text, rdzv_workers_vtable {
        struct_size reserved user_data begin start signal kill pass destroy
    });
    text
}

fn sorted(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn layout_is_that_of_the_list_in_c_and_in_rust() {
    let of_c = layout_of_c();
    compare(&crate::repository().join("ffi/abi/layout.txt"), &of_c, "RDZV_UPDATE_ABI", HINT);
    let of_rust = layout_of_rust();
    let (c, rust) = (sorted(&of_c), sorted(&of_rust));
    let only_c: Vec<_> = c.difference(&rust).collect();
    let only_rust: Vec<_> = rust.difference(&c).collect();
    assert!(only_c.is_empty() && only_rust.is_empty(), "only in C: {only_c:?}\nonly in Rust: {only_rust:?}");
}

#[test]
fn stripped_library_stays_within_its_bound() {
    let stripped = c_programs::folder("stripped").join("librendezvous.so");
    run(Command::new("strip").arg("-o").arg(&stripped).arg(library::shipped()), TIMEOUT)
        .or_fail("strip of binutils");
    let bytes = std::fs::metadata(&stripped).expect("the stripped library").len();
    assert!(bytes <= STRIPPED_BYTES_MAX, "{bytes} bytes, and {STRIPPED_BYTES_MAX} are allowed");
}

#[test]
fn library_needs_libc_libm_and_libgcc_only() {
    let reported = readelf("-dW");
    let mut needed = reported.lines().filter(|line| line.contains("(NEEDED)"));
    let allowed = ["[libc.so.6]", "[libm.so.6]", "[libgcc_s.so.1]", "[ld-linux"];
    assert!(needed.clone().count() > 0, "readelf shows nothing: {reported}");
    let odd = needed.find(|line| !allowed.iter().any(|name| line.contains(name)));
    assert_eq!(odd, None, "a library that no program should have to bring");
}

/// What programs remember of the library's name is that of the release series, and a link of that name stands beside it.
#[test]
fn library_bears_the_name_of_its_series() {
    let name = format!("librendezvous.so.{}", series());
    let reported = readelf("-dW");
    let line = reported.lines().find(|line| line.contains("(SONAME)")).unwrap_or_default();
    assert!(line.contains(&format!("[{name}]")), "{line}");
    let link = library::shipped().with_file_name(&name);
    let (link, library) = (link.canonicalize(), library::shipped().canonicalize());
    assert_eq!(link.expect("the link is there"), library.expect("the library is there"));
}

/// The dynamic linker compares the versions that a program needs with those that the library defines.
#[test]
fn library_defines_the_version_of_its_series_only() {
    let versions = readelf("-VW");
    let (_, defined) = versions.split_once("Version definition section").expect("a section");
    let defined = defined.split("Version needs section").next().unwrap_or_default();
    let names: Vec<_> = defined.lines().filter_map(|line| line.split("Name: ").nth(1)).collect();
    let series = series();
    assert_eq!(names, [format!("librendezvous.so.{series}"), format!("RDZV_{series}")], "{defined}");
    assert!(exported().len() > 100, "each of them has that version, or `exported` fails");
}
