//! Calls of RPC workers, of their handlers and observers, and of workers in a loop.

use super::*;
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const NAMES: [&[u8]; 4] = [b"w0", b"w1", b"none", b""];
const HANDLERS: [&[u8]; 6] = [b"now", b"later", b"loop", b"none", b"", b"rdzv/x"];
/// Longest queue of responders, so that each is used soon.
const KEPT_MAX: usize = 8;
/// Workers of one input: each has threads and sockets.
const WORKERS_MAX: usize = 4;

/// Handles of one input that belong to RPC.
pub(super) struct Rpc {
    handlers: [*mut rdzv_rpc_handlers; 2],
    workers: [*mut rdzv_rpc; 2],
    futures: [*mut rdzv_rpc_future; 2],
    observer: *mut rdzv_rpc_observer,
    /// Workers that may still be created.
    workers_left: usize,
}

impl Default for Rpc {
    fn default() -> Self {
        Self {
            handlers: [null_mut(); 2],
            workers: [null_mut(); 2],
            futures: [null_mut(); 2],
            observer: null_mut(),
            workers_left: WORKERS_MAX,
        }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The input is at fault already, and what it left may hold the threads.
            return;
        }
        // SAFETY: each handle is owned, or NULL.
        unsafe {
            self.workers.iter().for_each(|&worker| rdzv_rpc_free(worker));
            self.futures.iter().for_each(|&future| rdzv_rpc_future_free(future));
            self.handlers.iter().for_each(|&handlers| rdzv_rpc_handlers_free(handlers));
            rdzv_rpc_observer_free(self.observer);
            for responder in core::mem::take(&mut *kept()) {
                rdzv_rpc_responder_free(responder.0);
            }
        }
        if self.workers_left < WORKERS_MAX {
            await_pool_threads();
        }
    }
}

/// Waits until the threads of freed workers have ended. The library does not join the threads of its pools, and what
/// belongs to a thread that is ending looks like a leak.
#[expect(clippy::disallowed_methods, reason = "a wait has a deadline")]
fn await_pool_threads() {
    let began = Instant::now();
    while has_pool_threads() {
        assert!(began.elapsed() < Duration::from_secs(10), "a thread of a pool outlives its worker by 10 s");
        std::thread::yield_now();
    }
}

fn has_pool_threads() -> bool {
    let threads = fs::read_dir("/proc/self/task").expect("Linux lists the threads of a process");
    // A thread may end in between.
    let mut names = threads.filter_map(|thread| fs::read(thread.ok()?.path().join("comm")).ok());
    names.any(|name| name == b"rdzv-rpc-work\n")
}

/// Responder that any thread may use.
struct Kept(*mut rdzv_rpc_responder);

// SAFETY: the header says so.
unsafe impl Send for Kept {}

/// Responders that handlers have kept for later.
fn kept() -> std::sync::MutexGuard<'static, Vec<Kept>> {
    static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());
    KEPT.lock().expect("no call panics")
}

fn read_request(request: *const rdzv_rpc_request) -> Vec<u8> {
    // SAFETY: zeros are valid information; the request is valid or NULL, and so is what it points to.
    unsafe {
        let mut info: rdzv_rpc_request_info = core::mem::zeroed();
        info.struct_size = size_of_u32::<rdzv_rpc_request_info>();
        let mut error = null_mut();
        if !check(rdzv_rpc_request_get_info(request, &raw mut info, &raw mut error), error) {
            return Vec::new();
        }
        touch(info.caller.data, info.caller.len);
        touch(info.handler.data, info.handler.len);
        touch(info.payload.data, info.payload.len);
        let buffer = rdzv_buffer_new();
        let mut error = null_mut();
        assert!(check(rdzv_rpc_request_take(request, buffer, &raw mut error), error));
        let (data, len) = (rdzv_buffer_data(buffer), rdzv_buffer_len(buffer));
        let payload = if len == 0 { Vec::new() } else { core::slice::from_raw_parts(data, len).to_vec() };
        rdzv_buffer_free(buffer);
        payload
    }
}

/// Uses a responder in the way that a number selects.
///
/// # Safety
/// The caller owns the responder, and does not use it again.
unsafe fn respond(responder: *mut rdzv_rpc_responder, how: u8, payload: Vec<u8>) {
    // SAFETY: the caller's promise. What is borrowed is in a box, which `release` frees.
    unsafe {
        let (mut error, status) = (null_mut(), rdzv_rpc_responder_is_wanted(responder));
        assert!((0..=1).contains(&status));
        match how % 4 {
            0 => {
                let (data, len) = (payload.as_ptr(), payload.len());
                let sent = rdzv_rpc_responder_send(responder, data, len, None, null_mut(), &raw mut error);
                check(sent, error);
            }
            1 => {
                let status = if how & 4 == 0 { RDZV_RPC_MALFORMED } else { RDZV_IO };
                check(rdzv_rpc_responder_fail(responder, status, b"no".as_ptr(), 2, &raw mut error), error);
            }
            2 => {
                let (data, len) = (payload.as_ptr(), payload.len());
                let owner = Box::into_raw(Box::new(payload)).cast();
                let release = Some(destroy_box as unsafe extern "C" fn(*mut c_void));
                check(rdzv_rpc_responder_send(responder, data, len, release, owner, &raw mut error), error);
            }
            _ => rdzv_rpc_responder_free(responder),
        }
    }
}

unsafe extern "C" fn responds_now(
    _: *mut c_void,
    request: *const rdzv_rpc_request,
    responder: *mut rdzv_rpc_responder,
) {
    let payload = read_request(request);
    // SAFETY: the handler owns the responder.
    unsafe { respond(responder, payload.first().copied().unwrap_or(0), payload) };
}

unsafe extern "C" fn responds_later(
    _: *mut c_void,
    request: *const rdzv_rpc_request,
    responder: *mut rdzv_rpc_responder,
) {
    read_request(request);
    keep(responder);
}

fn keep(responder: *mut rdzv_rpc_responder) {
    let mut kept = kept();
    kept.push(Kept(responder));
    if kept.len() > KEPT_MAX {
        let oldest = kept.remove(0);
        // Freeing it may call `done`.
        drop(kept);
        // SAFETY: it was owned here.
        unsafe { rdzv_rpc_responder_free(oldest.0) };
    }
}

/// Frees the box that the call was given.
unsafe extern "C" fn done(
    user_data: *mut c_void,
    status: rdzv_status,
    data: *const u8,
    len: usize,
    error: *const rdzv_error,
) {
    // SAFETY: both are valid during the call, which is the only one with this user data.
    unsafe {
        touch(data, len);
        assert_eq!(status == RDZV_OK, error.is_null());
        assert_eq!(rdzv_error_status(error), status);
        destroy_box(user_data);
    }
}

/// Draws a call. A borrowed payload is in a box, which `release` frees.
fn call_spec(entropy: &mut Entropy<'_>) -> rdzv_rpc_call_spec {
    let (callee, handler) = (entropy.choose(&NAMES), entropy.choose(&HANDLERS));
    let by_id = entropy.below(3) == 0;
    let payload = Box::new([entropy.byte(), 2, 3]);
    let is_borrowed = payload[0] & 8 != 0;
    static COPIED: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    let (payload, payload_len, user_data) = if is_borrowed {
        let owner = Box::into_raw(Box::new(payload.to_vec()));
        // SAFETY: the box is new.
        let (data, len) = unsafe { ((*owner).as_ptr(), (*owner).len()) };
        (data, len, owner.cast())
    } else {
        let from = &COPIED[usize::from(payload[0] & 7)..];
        (from.as_ptr(), from.len(), null_mut())
    };
    rdzv_rpc_call_spec {
        struct_size: size_of_u32::<rdzv_rpc_call_spec>(),
        callee_id: entropy.choose(&[0, 1, 7, -1]),
        callee: if by_id { null() } else { callee.as_ptr() },
        callee_len: callee.len(),
        handler: handler.as_ptr(),
        handler_len: handler.len(),
        payload,
        payload_len,
        timeout_ms: entropy.choose(&[5, 1, -1, 0, -2]),
        release: is_borrowed.then_some(destroy_box),
        user_data,
    }
}

fn rpc_options(
    entropy: &mut Entropy<'_>,
    store: *mut rdzv_store,
    token: *mut rdzv_cancel_token,
) -> rdzv_rpc_options {
    // SAFETY: zeros are valid options.
    let options: rdzv_rpc_options = unsafe { core::mem::zeroed() };
    rdzv_rpc_options {
        struct_size: size_of_u32::<rdzv_rpc_options>(),
        worker_threads: entropy.choose(&[1, 0, 2, 1025]),
        backend: entropy.choose(&[null(), null(), c"tcp".as_ptr(), c"no-backend".as_ptr()]),
        init_method: entropy.choose(&[null(), c"tcp://127.0.0.1:0".as_ptr(), c"no-url".as_ptr()]),
        store,
        token: if entropy.below(4) == 0 { token } else { null() },
        rpc_timeout_ms: entropy.choose(&[10, 1, 10, -1]),
        membership_timeout_ms: entropy.choose(&[20, 1, 0]),
        host: c"127.0.0.1".as_ptr(),
        accelerator_count: entropy.choose(&[0, 2]),
        ..options
    }
}

impl Calls {
    /// Returns a store whose keys no other input uses, NULL if there is none.
    fn group_store(&self, entropy: &mut Entropy<'_>) -> *mut rdzv_store {
        let store = self.stores[entropy.below(SLOTS)];
        let prefix = format!("group-{}", self.rounds.input);
        let out;
        create!(entropy, out, rdzv_store_new_prefix(store, prefix.as_ptr(), prefix.len()));
        out
    }

    pub(super) fn new_worker(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let to = at % 2;
        let is_of_loop = entropy.below(3) == 0;
        let slot_is_used =
            if is_of_loop { !self.members[at].is_null() } else { !self.rpc.workers[to].is_null() };
        if slot_is_used || self.rpc.workers_left == 0 || !self.may_wait() {
            return;
        }
        self.rpc.workers_left -= 1;
        let (context, handlers) = (self.contexts[at], self.rpc.handlers[entropy.below(2)]);
        let name = NAMES[if entropy.below(8) == 0 { 3 } else { to }];
        let rank = entropy.choose(&[to, to, to, 9]).try_into().expect("small");
        let world_size = entropy.choose(&[0, -1, 1, 1, 2, -7]);
        let store = self.group_store(entropy);
        let options = rpc_options(entropy, store, self.tokens[at]);
        let (name, len, options) = (name.as_ptr(), name.len(), &raw const options);
        if is_of_loop {
            let data: *mut c_void = core::ptr::without_provenance_mut(100 + at);
            create!(
                entropy,
                self.members[at],
                rdzv_loop_rpc_new(
                    self.loops[0],
                    context,
                    name,
                    len,
                    rank,
                    world_size,
                    options,
                    handlers,
                    data
                )
            );
        } else {
            create!(
                entropy,
                self.rpc.workers[to],
                rdzv_rpc_new(context, name, len, rank, world_size, options, handlers)
            );
        }
        // SAFETY: the store is owned, or NULL; a worker keeps a reference.
        unsafe { rdzv_store_free(store) };
    }

    pub(super) fn handlers(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let to = at % 2;
        let name = entropy.choose(&HANDLERS);
        let (name, len) = (name.as_ptr(), name.len());
        let callers = entropy.choose(&[null(), null(), c"w0,x*".as_ptr(), c"".as_ptr()]);
        let run = entropy.choose(&[RDZV_RPC_INLINE, RDZV_RPC_POOLED, RDZV_RPC_LOOP, 7]);
        let is_of_loop = run == RDZV_RPC_LOOP;
        let is_later = entropy.below(3) == 0;
        let handle: rdzv_rpc_handler_fn = match (is_of_loop, is_later) {
            (true, _) => None,
            (_, true) => Some(responds_later),
            _ => Some(responds_now),
        };
        let handlers = self.rpc.handlers[to];
        match entropy.below(8) {
            0 | 1 if handlers.is_null() => {
                // SAFETY: the handlers are owned, or NULL.
                self.rpc.handlers[to] = unsafe {
                    match self.rpc.handlers[1 - to] {
                        other if is_later => rdzv_rpc_handlers_clone(other),
                        _ => rdzv_rpc_handlers_new(),
                    }
                };
            }
            2 => {
                // SAFETY: zeros are valid information.
                let mut request: rdzv_rpc_request_info = unsafe { core::mem::zeroed() };
                request.struct_size = size_of_u32::<rdzv_rpc_request_info>();
                request.caller = bytes_of(NAMES[0]);
                request.handler = bytes_of(entropy.choose(&HANDLERS));
                request.payload = bytes_of(entropy.choose(&KEYS));
                request.time_left_ms = entropy.choose(&[5, -1, 0]);
                let (data, done): (_, rdzv_rpc_done_fn) = (boxed(b"done"), Some(done));
                let responder;
                create!(entropy, responder, rdzv_rpc_responder_new(done, data));
                if !call!(entropy, rdzv_rpc_handlers_dispatch(handlers, &raw const request, responder)) {
                    // SAFETY: on failure the responder was not taken.
                    unsafe { rdzv_rpc_responder_free(responder) };
                }
            }
            kind => {
                let (data, destroy) = if is_of_loop {
                    (null_mut(), None)
                } else {
                    (boxed(b"handler"), Some(destroy_box as unsafe extern "C" fn(*mut c_void)))
                };
                let rpc = self.rpc.workers[to];
                let is_added = if kind < 6 {
                    call!(
                        entropy,
                        rdzv_rpc_handlers_add(handlers, name, len, run, callers, handle, data, destroy)
                    )
                } else {
                    call!(entropy, rdzv_rpc_add_handler(rpc, name, len, run, callers, handle, data, destroy))
                };
                if !is_added && !is_of_loop {
                    // SAFETY: on failure the user data was not taken.
                    unsafe { destroy_box(data) };
                }
            }
        }
    }

    /// Calls a worker, or uses a call that is in progress.
    pub(super) fn rpc_call(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let to = at % 2;
        let (rpc, response) = (self.rpc.workers[to], self.buffers[at]);
        match entropy.below(12) {
            0..=2 if self.may_wait() => {
                let spec = call_spec(entropy);
                call!(entropy, rdzv_rpc_call(rpc, &raw const spec, response));
            }
            3 | 4 if self.rpc.futures[to].is_null() => {
                let spec = call_spec(entropy);
                create!(entropy, self.rpc.futures[to], rdzv_rpc_future_new(rpc, &raw const spec));
            }
            5 => {
                let (spec, data) = (call_spec(entropy), boxed(b"call"));
                if !call!(entropy, rdzv_rpc_call_with(rpc, &raw const spec, Some(done), data)) {
                    // SAFETY: on failure `done` is not called.
                    unsafe { destroy_box(data) };
                }
            }
            6 => {
                let spec = call_spec(entropy);
                call!(entropy, rdzv_rpc_notify(rpc, &raw const spec));
            }
            // SAFETY: the future is owned, or NULL.
            7 => unsafe { rdzv_rpc_future_cancel(self.rpc.futures[to]) },
            8 | 9 => {
                let mut ended = -77;
                let (future, timeout_ms) = (self.rpc.futures[to], entropy.choose(&TIMEOUTS_MS));
                let is_done =
                    call!(entropy, rdzv_rpc_future_wait(future, timeout_ms, &raw mut ended, response));
                assert!(!is_done || (0..=1).contains(&ended), "{ended}");
            }
            10 => {
                let responder = kept().pop();
                if let Some(Kept(responder)) = responder {
                    // SAFETY: it was owned by the queue.
                    unsafe { respond(responder, entropy.byte(), vec![1, 2]) };
                }
            }
            _ => {
                let spec = rdzv_rpc_call_spec { release: None, ..call_spec(entropy) };
                // SAFETY: the message and the call are valid, and the error is owned.
                unsafe {
                    let error = rdzv_error_new_of_call(RDZV_IO, b"m".as_ptr(), 1, &raw const spec);
                    assert!(!error.is_null());
                    check(rdzv_error_status(error), error);
                    if !spec.user_data.is_null() {
                        destroy_box(spec.user_data);
                    }
                }
            }
        }
    }

    pub(super) fn use_worker(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let rpc = self.rpc.workers[at % 2];
        let (name, why) = (self.buffers[0], self.buffers[1]);
        match entropy.below(10) {
            0 if self.may_wait() => {
                call!(entropy, rdzv_rpc_shutdown(rpc, entropy.choose(&[RDZV_RPC_GRACEFUL, 2, 7])));
            }
            1 => {
                // SAFETY: zeros are valid information.
                let mut info: rdzv_rpc_info = unsafe { core::mem::zeroed() };
                info.struct_size = size_of_u32::<rdzv_rpc_info>();
                assert_eq!(call!(entropy, rdzv_rpc_get_info(rpc, &raw mut info)), !rpc.is_null());
                // SAFETY: what it points to lives as long as the worker.
                unsafe {
                    touch(info.name.data, info.name.len);
                    touch(info.address.data, info.address.len);
                }
            }
            2 => {
                let workers;
                create!(entropy, workers, rdzv_rpc_list_workers(rpc));
                read_workers(workers);
            }
            3 => {
                let devices;
                create!(entropy, devices, rdzv_rpc_list_devices(rpc));
                // SAFETY: the devices are owned, or NULL.
                unsafe { rdzv_rpc_devices_free(devices) };
            }
            4 => {
                let (name, mut found) = (entropy.choose(&HANDLERS), -77);
                let is_done =
                    call!(entropy, rdzv_rpc_remove_handler(rpc, name.as_ptr(), name.len(), &raw mut found));
                assert!(if is_done { (0..=1).contains(&found) } else { found == -77 }, "{found}");
            }
            5 | 6 => {
                // SAFETY: zeros are a valid event.
                let mut event: rdzv_rpc_event = unsafe { core::mem::zeroed() };
                event.struct_size = size_of_u32::<rdzv_rpc_event>();
                let timeout_ms = entropy.choose(&TIMEOUTS_MS);
                call!(entropy, rdzv_rpc_next_event(rpc, timeout_ms, &raw mut event, name, why));
            }
            7 if self.rpc.observer.is_null() => {
                let store = self.group_store(entropy);
                let token = self.tokens[at];
                create!(entropy, self.rpc.observer, rdzv_rpc_observer_new(store, token));
                // SAFETY: the store is owned, or NULL; an observer keeps a reference.
                unsafe { rdzv_store_free(store) };
            }
            8 => {
                let workers;
                create!(entropy, workers, rdzv_rpc_observer_list(self.rpc.observer));
                read_workers(workers);
            }
            _ => {
                // SAFETY: zeros are a valid observation.
                let mut seen: rdzv_rpc_observation = unsafe { core::mem::zeroed() };
                seen.struct_size = size_of_u32::<rdzv_rpc_observation>();
                let (observer, timeout_ms) = (self.rpc.observer, entropy.choose(&TIMEOUTS_MS));
                call!(entropy, rdzv_rpc_observer_next(observer, timeout_ms, &raw mut seen, name, why));
            }
        }
    }

    pub(super) fn free_worker(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (rpc, to) = (&mut self.rpc, at % 2);
        // SAFETY: each handle is owned, or NULL, and no call on it is in progress: there is one thread.
        unsafe {
            match entropy.below(4) {
                0 => rdzv_rpc_free(core::mem::replace(&mut rpc.workers[to], null_mut())),
                1 => rdzv_rpc_future_free(core::mem::replace(&mut rpc.futures[to], null_mut())),
                2 => rdzv_rpc_handlers_free(core::mem::replace(&mut rpc.handlers[to], null_mut())),
                _ => rdzv_rpc_observer_free(core::mem::replace(&mut rpc.observer, null_mut())),
            }
        }
    }

    /// Uses a worker of the loop.
    pub(super) fn loop_worker(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (member, to, name) = (self.members[at], at % 2, entropy.choose(&HANDLERS));
        match entropy.below(7) {
            0 if member.is_null() => {
                let data: *mut c_void = core::ptr::without_provenance_mut(100 + at);
                let (event_loop, rpc) = (self.loops[0], self.rpc.workers[to]);
                create!(entropy, self.members[at], rdzv_loop_add_rpc(event_loop, rpc, data));
            }
            1 if self.rpc.workers[to].is_null() => {
                create!(entropy, self.rpc.workers[to], rdzv_loop_rpc_handle(member));
            }
            2 | 3 => {
                let (op, spec) = (self.ops[entropy.below(SLOTS)], call_spec(entropy));
                call!(entropy, rdzv_loop_rpc_call(member, op, &raw const spec));
            }
            4 => {
                call!(entropy, rdzv_loop_rpc_add_handler(member, name.as_ptr(), name.len(), null()));
            }
            _ => {
                call!(entropy, rdzv_loop_rpc_shutdown(member, entropy.choose(&[RDZV_RPC_GRACEFUL, 2, 7])));
            }
        }
    }

    pub(super) fn rpc_event(&self, entropy: &mut Entropy<'_>, kind: i32) {
        let event_loop = self.loops[0];
        // SAFETY: zeros are a valid event.
        let mut event: rdzv_rpc_event = unsafe { core::mem::zeroed() };
        event.struct_size = size_of_u32::<rdzv_rpc_event>();
        let (name, why) = (self.buffers[0], self.buffers[1]);
        let is_done = call!(entropy, rdzv_loop_rpc_event(event_loop, &raw mut event, name, why));
        assert_eq!(is_done, kind == RDZV_EVENT_RPC);
        // SAFETY: the loop is owned; the request is valid until its next event.
        let request = unsafe { rdzv_loop_rpc_request(event_loop) };
        assert_eq!(request.is_null(), kind != RDZV_EVENT_RPC_REQUEST);
        if entropy.below(4) == 0 {
            return;
        }
        let responder;
        create!(entropy, responder, rdzv_loop_rpc_responder(event_loop));
        assert_eq!(responder.is_null(), request.is_null());
        if !responder.is_null() {
            read_request(request);
            keep(responder);
        }
    }
}

fn read_workers(workers: *mut rdzv_rpc_workers) {
    // SAFETY: the list is owned, or NULL.
    unsafe {
        if let Some(list) = workers.as_ref() {
            for index in 0..list.count {
                let worker = &*list.workers.add(index);
                touch(worker.name.data, worker.name.len);
                touch(worker.address.data, worker.address.len);
            }
        }
        rdzv_rpc_workers_free(workers);
    }
}
