//! Calls of agents. Their workers are mostly custom ones, which need no process.

use super::*;
use std::sync::Mutex;

/// Handles of one input that belong to agents.
pub(super) struct Agents {
    agents: [*mut rdzv_agent; 2],
    group: *const rdzv_worker_group,
    /// Agents that may still be created with a guard process.
    guards_left: usize,
}

impl Default for Agents {
    fn default() -> Self {
        Self { agents: [null_mut(); 2], group: null(), guards_left: 1 }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // SAFETY: each handle is owned, or NULL.
        unsafe {
            self.agents.iter().for_each(|&agent| rdzv_agent_free(agent));
            rdzv_worker_group_free(self.group);
        }
    }
}

/// Workers that exist in this process alone.
struct Workers {
    /// What they do: 0 and 1 succeed at once, 2 fails at once, 3 ends by the stop signal, 4 and 5 refuse to start, 6 never
    /// reports a start, 7 could not start, 8 loses the workers, 9 ignores the kill.
    mode: usize,
    running: Mutex<Running>,
}

struct Running {
    handle: *mut rdzv_workers,
    attempt: u64,
    local_ranks: Vec<u32>,
}

impl Running {
    fn notify(&self, kind: i32, local_rank: u32, exit_code: i32) {
        // SAFETY: zeros are a valid event, and the handle is owned.
        unsafe {
            let event: rdzv_worker_event = core::mem::zeroed();
            let event = rdzv_worker_event {
                struct_size: size_of_u32::<rdzv_worker_event>(),
                kind,
                attempt: self.attempt,
                local_rank,
                pid: 1000 + local_rank,
                exit_code,
                may_retry: exit_code & 1,
                ..event
            };
            let mut error = null_mut();
            check(rdzv_workers_notify(self.handle, &raw const event, &raw mut error), error);
        }
    }

    fn end(&mut self, exit_code: i32) {
        for local_rank in core::mem::take(&mut self.local_ranks) {
            self.notify(RDZV_WORKER_EXITED, local_rank, exit_code);
        }
    }
}

/// # Safety
/// `user_data` is that of a vtable of [`vtable`] which was not destroyed.
unsafe fn running<'a>(user_data: *mut c_void) -> (usize, std::sync::MutexGuard<'a, Running>) {
    // SAFETY: the caller's promise.
    let workers = unsafe { &*user_data.cast::<Workers>() };
    (workers.mode, workers.running.lock().expect("no call panics"))
}

unsafe extern "C" fn begin(user_data: *mut c_void, handle: *mut rdzv_workers) {
    // SAFETY: the user data of the vtable.
    unsafe { running(user_data) }.1.handle = handle;
}

unsafe extern "C" fn start(user_data: *mut c_void, start: *const rdzv_worker_start) -> rdzv_status {
    // SAFETY: the user data of the vtable, and a group that is valid during the call.
    let ((mode, mut running), group) = unsafe { (running(user_data), &*(*start).group) };
    running.attempt = group.attempt;
    let ranks = 0..u32::try_from(group.worker_count).expect("few workers");
    match mode {
        4 => return RDZV_EXHAUSTED,
        5 => return RDZV_IO,
        6 => return RDZV_OK,
        7 => ranks.clone().for_each(|rank| running.notify(RDZV_WORKER_NOT_STARTED, rank, 1)),
        8 => running.notify(RDZV_WORKERS_LOST, 0, 0),
        _ => {
            ranks.clone().for_each(|rank| running.notify(RDZV_WORKER_STARTED, rank, 0));
            running.local_ranks = ranks.collect();
        }
    }
    match mode {
        0 | 1 => running.end(0),
        2 => running.end(1),
        _ => {}
    }
    RDZV_OK
}

unsafe extern "C" fn signal(user_data: *mut c_void, signal: i32) {
    // SAFETY: the user data of the vtable.
    let (mode, mut running) = unsafe { running(user_data) };
    if mode == 3 {
        running.end(-signal);
    }
}

unsafe extern "C" fn kill(user_data: *mut c_void) {
    // SAFETY: the user data of the vtable.
    let (mode, mut running) = unsafe { running(user_data) };
    if mode != 9 {
        running.end(-9);
    }
}

unsafe extern "C" fn destroy_workers(user_data: *mut c_void) {
    // SAFETY: the library has owned the user data, and this is the last call with it.
    unsafe {
        let workers = Box::from_raw(user_data.cast::<Workers>());
        rdzv_workers_free(workers.running.lock().expect("no call panics").handle);
    }
}

fn vtable(mode: usize) -> rdzv_workers_vtable {
    let running = Running { handle: null_mut(), attempt: 0, local_ranks: Vec::new() };
    let workers = Box::new(Workers { mode, running: Mutex::new(running) });
    rdzv_workers_vtable {
        struct_size: size_of_u32::<rdzv_workers_vtable>(),
        reserved: 0,
        user_data: Box::into_raw(workers).cast(),
        begin: Some(begin),
        start: Some(start),
        signal: Some(signal),
        kill: Some(kill),
        pass: None,
        destroy: Some(destroy_workers),
    }
}

/// Stops the agent once its workers run, or when it tries again, so that a run ends.
unsafe extern "C" fn stops(user_data: *mut c_void, event: *const rdzv_agent_event) {
    // SAFETY: the user data is the agent, and the event is valid during the call.
    unsafe {
        touch_text((*event).message);
        touch_text(rdzv_agent_phase_name((*event).to));
        if (*event).kind == RDZV_AGENT_EVENT_RUNNING || (*event).attempt > 1 {
            let mut error = null_mut();
            check(rdzv_agent_stop(user_data.cast(), 0, &raw mut error), error);
        }
    }
}

unsafe extern "C" fn metric(_: *mut c_void, name: *const u8, len: usize, _: i64) {
    // SAFETY: the bytes are valid during the call.
    unsafe { touch(name, len) };
}

unsafe extern "C" fn record(_: *mut c_void, json: *const u8, len: usize) {
    // SAFETY: the bytes are valid during the call.
    unsafe { touch(json, len) };
}

fn agent_options(entropy: &mut Entropy<'_>) -> rdzv_agent_options {
    // SAFETY: zeros are valid options.
    let options: rdzv_agent_options = unsafe { core::mem::zeroed() };
    rdzv_agent_options {
        struct_size: size_of_u32::<rdzv_agent_options>(),
        local_world_size: entropy.choose(&[1, 0, 2, 4097]),
        role: entropy.choose(&[null(), c"role".as_ptr(), c"\xff".as_ptr()]),
        rank_assignment: entropy.choose(&[RDZV_RANKS_IDENTICAL, RDZV_RANKS_THROUGH_STORE, 0, 7]),
        max_restarts: entropy.choose(&[-1, 1]),
        stop_signal: entropy.choose(&[0, 2, 0, 65]),
        stop_timeout_ms: entropy.choose(&[-1, 2]),
        leftover_timeout_ms: -1,
        kill_timeout_ms: 5,
        start_timeout_ms: 10,
        restart_backoff_ms: -1,
        exit_barrier_timeout_ms: entropy.choose(&[-1, 2]),
        assign_timeout_ms: 10,
        monitor_interval_ms: 1,
        log_dir: c"/dev/null".as_ptr(),
        ..options
    }
}

impl Calls {
    pub(super) fn new_agent(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let at = at % 2;
        if !self.agents.agents[at].is_null() {
            return;
        }
        let context = self.contexts[entropy.below(SLOTS)];
        let handler = self.rounds.handlers[entropy.below(SLOTS)];
        let mut options = agent_options(entropy);
        let mode = entropy.below(32);
        if mode < 16 {
            let vtable = vtable(mode % 10);
            create!(
                entropy,
                self.agents.agents[at],
                rdzv_agent_new_custom(context, &raw const options, handler, &raw const vtable)
            );
            if self.agents.agents[at].is_null() {
                // SAFETY: on failure the user data was not taken.
                drop(unsafe { Box::from_raw(vtable.user_data.cast::<Workers>()) });
            }
            return;
        }
        // A guard process takes more time than all other calls.
        let may_fork = mode >= 30 && self.agents.guards_left > 0;
        let program = if may_fork { c"/bin/true" } else { c"/no-such-program" };
        options.program = if mode == 16 { null() } else { program.as_ptr() };
        create!(entropy, self.agents.agents[at], rdzv_agent_new(context, &raw const options, handler));
        if may_fork && !self.agents.agents[at].is_null() {
            self.agents.guards_left -= 1;
        }
    }

    pub(super) fn use_agent(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let agent = self.agents.agents[at % 2];
        // SAFETY: zeros are a valid result.
        let mut result: rdzv_agent_result = unsafe { core::mem::zeroed() };
        result.struct_size = size_of_u32::<rdzv_agent_result>();
        let is_done = match entropy.below(12) {
            0..=3 => {
                if !self.may_wait() {
                    return;
                }
                // With no listener the agent is stopped before: nothing else would end the run.
                let listener: rdzv_agent_listener = if entropy.below(4) == 0 {
                    call!(entropy, rdzv_agent_stop(agent, 0));
                    None
                } else {
                    Some(stops)
                };
                call!(entropy, rdzv_agent_run(agent, listener, agent.cast(), &raw mut result))
            }
            4 => call!(entropy, rdzv_agent_get_result(agent, &raw mut result)),
            5 => {
                call!(entropy, rdzv_agent_stop(agent, entropy.choose(&[0, 15, 65, -1])));
                return;
            }
            6 => {
                call!(entropy, rdzv_agent_pass_signal(agent, entropy.choose(&[10, 0, 65])));
                return;
            }
            7 => return self.worker_group(entropy, agent),
            8 => {
                let data = boxed(b"sink");
                let sink = rdzv_agent_sink {
                    struct_size: size_of_u32::<rdzv_agent_sink>(),
                    reserved: 0,
                    user_data: data,
                    metric: entropy.choose(&[Some(metric), None]),
                    record: entropy.choose(&[Some(record), None]),
                    destroy: Some(destroy_box),
                };
                if !call!(entropy, rdzv_agent_add_sink(agent, &raw const sink)) {
                    // SAFETY: on failure the user data was not taken.
                    unsafe { destroy_box(data) };
                }
                return;
            }
            9 => {
                let (host, mut bound) = (entropy.choose(&[&b"127.0.0.1"[..], b"no-address"]), 0);
                let is_served = call!(
                    entropy,
                    rdzv_agent_serve_health(agent, host.as_ptr(), host.len(), 0, &raw mut bound)
                );
                assert_eq!(is_served, bound != 0, "{bound}");
                return;
            }
            10 => {
                let (scope, mut recorded) = (entropy.choose(&[c"scope".as_ptr(), null()]), -77);
                call!(entropy, rdzv_worker_set_timer(scope, entropy.choose(&[1, 0]), 0));
                call!(entropy, rdzv_worker_clear_timer(scope));
                call!(entropy, rdzv_record_error(b"m".as_ptr(), 1, null(), 0, &raw mut recorded));
                return;
            }
            _ => {
                if self.members[at].is_null() {
                    let data: *mut c_void = core::ptr::without_provenance_mut(100 + at);
                    create!(entropy, self.members[at], rdzv_loop_add_agent(self.loops[0], agent, data));
                }
                return;
            }
        };
        assert_eq!(is_done, !result.reason.is_null(), "a result is written on success only");
        for text in [result.reason, result.report, result.report_json] {
            touch_text(text);
        }
        for index in 0..result.failure_count {
            // SAFETY: the result is valid as long as the agent.
            unsafe { touch_text((**result.failures.add(index)).message) };
        }
    }

    fn worker_group(&mut self, entropy: &mut Entropy<'_>, agent: *mut rdzv_agent) {
        // SAFETY: the group is owned, or NULL.
        unsafe { rdzv_worker_group_free(core::mem::replace(&mut self.agents.group, null())) };
        let is_done = call!(entropy, rdzv_agent_get_worker_group(agent, &raw mut self.agents.group));
        assert_eq!(is_done, !self.agents.group.is_null());
        // SAFETY: the group is owned, or NULL, and what it points to lives as long as it.
        unsafe {
            if let Some(group) = self.agents.group.as_ref() {
                touch_text(group.role);
                touch_text(rdzv_worker_state_name(group.state));
                for index in 0..group.worker_count {
                    core::hint::black_box((**group.workers.add(index)).global_rank);
                }
            }
        }
    }

    pub(super) fn free_agent(&mut self, at: usize) {
        // SAFETY: the agent is owned, or NULL, and no call on it is in progress: there is one thread.
        unsafe { rdzv_agent_free(core::mem::replace(&mut self.agents.agents[at % 2], null_mut())) };
    }

    pub(super) fn agent_event(&self, entropy: &mut Entropy<'_>, is_of_agent: bool) {
        // SAFETY: zeros are a valid event.
        let mut event: rdzv_agent_event = unsafe { core::mem::zeroed() };
        event.struct_size = size_of_u32::<rdzv_agent_event>();
        let is_done = call!(entropy, rdzv_loop_agent_event(self.loops[0], &raw mut event));
        assert_eq!(is_done, is_of_agent);
        touch_text(event.message);
    }
}
