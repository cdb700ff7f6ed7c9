//! Bytes as a sequence of calls of the C ABI. `fuzz/fuzz_targets/c_calls.rs` includes this module, too: the library of the
//! tests does not depend on the C ABI.

use core::ffi::{CStr, c_void};
use core::ptr::{null, null_mut};
use rendezvous::*;
use rendezvous_tests::entropy::Entropy;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// Calls of one input, so that none takes long.
const CALLS_MAX: usize = 200;
/// Handles of each kind.
const SLOTS: usize = 3;
/// Time that a call may wait, in milliseconds.
const TIMEOUTS_MS: [i64; 4] = [0, 0, 1, -2];
/// Calls of one input that may wait for longer, about 10 ms each.
const WAITS_MAX: usize = 8;
const KEYS: [&[u8]; 5] = [b"a", b"b", b"q", b"", b"\xff\0"];

/// For any sequence of calls that respects the ownership that the header describes, with NULL and meaningless numbers for
/// arguments: no call panics, its status has a name, an error comes with each failure and with no success, outputs are
/// written on success only, and all can be freed in any order.
///
/// # Panics
/// When that does not hold.
pub(crate) fn c_calls(bytes: &[u8]) {
    let mut entropy = Entropy::new(bytes);
    // What an earlier input has left there.
    std::fs::remove_file(std::ffi::OsStr::from_bytes(path().to_bytes())).ok();
    let mut calls = Calls::default();
    for _ in 0..CALLS_MAX {
        if entropy.is_empty() {
            break;
        }
        calls.step(&mut entropy);
    }
}

/// Handles that are owned, NULL where there is none.
struct Calls {
    contexts: [*mut rdzv_context; SLOTS],
    tokens: [*mut rdzv_cancel_token; SLOTS],
    stores: [*mut rdzv_store; SLOTS],
    ops: [*mut rdzv_op; SLOTS],
    loops: [*mut rdzv_loop; 1],
    members: [*mut rdzv_loop_member; SLOTS],
    watches: [*mut rdzv_watch; 1],
    leases: [*mut rdzv_lease; 1],
    buffers: [*mut rdzv_buffer; SLOTS],
    rounds: rounds::Rounds,
    rpc: workers::Rpc,
    agents: agents::Agents,
    waits: usize,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            contexts: [null_mut(); SLOTS],
            tokens: [null_mut(); SLOTS],
            stores: [null_mut(); SLOTS],
            ops: [null_mut(); SLOTS],
            loops: [null_mut()],
            members: [null_mut(); SLOTS],
            watches: [null_mut()],
            leases: [null_mut()],
            buffers: [null_mut(); SLOTS],
            rounds: rounds::Rounds::default(),
            rpc: workers::Rpc::default(),
            agents: agents::Agents::default(),
            waits: 0,
        }
    }
}

/// Checks a status with the error that came with it.
fn check(status: rdzv_status, error: *mut rdzv_error) -> bool {
    // SAFETY: the error is owned, or NULL; the strings live as long as it, or for ever.
    unsafe {
        let message = CStr::from_ptr(rdzv_error_message(error)).to_string_lossy().into_owned();
        assert!(status != RDZV_PANIC && status != RDZV_POISONED, "{status}: {message}");
        assert!(!CStr::from_ptr(rdzv_status_name(status)).is_empty(), "{status} has a name");
        assert_eq!((status == RDZV_OK, rdzv_error_status(error)), (error.is_null(), status), "{message}");
        assert_eq!(message.is_empty(), status == RDZV_OK, "{status}: {message}");
        let copy = rdzv_error_clone(error);
        rdzv_error_free(error);
        assert_eq!(CStr::from_ptr(rdzv_error_message(copy)).to_string_lossy(), message);
        rdzv_error_free(copy);
    }
    status == RDZV_OK
}

/// Calls a function whose last argument is an error, sometimes without asking for that error. Returns whether it succeeded.
macro_rules! call {
    ($entropy:ident, $function:ident($($argument:expr),*)) => {{
        let mut error: *mut rdzv_error = null_mut();
        let wants_error = $entropy.below(8) > 0;
        let out = if wants_error { &raw mut error } else { null_mut() };
        // SAFETY: each handle is NULL or owned by the caller, and every pointer is valid for its length.
        let status = unsafe { $function($($argument,)* out) };
        if wants_error { check(status, error) } else { status == RDZV_OK }
    }};
}

/// Calls a constructor, which writes its last but one argument on success only.
macro_rules! create {
    ($entropy:ident, $slot:expr, $function:ident($($argument:expr),*)) => {{
        let mut out = null_mut();
        let is_new = call!($entropy, $function($($argument,)* &raw mut out));
        assert_eq!(is_new, !out.is_null(), concat!(stringify!($function), " writes its output on success only"));
        $slot = out;
    }};
}

// After the macros that these modules use. `fuzz/fuzz_targets/c_calls.rs` needs the paths.
#[path = "c_calls/agents.rs"]
mod agents;
#[path = "c_calls/rounds.rs"]
mod rounds;
#[path = "c_calls/workers.rs"]
mod workers;

impl Calls {
    fn step(&mut self, entropy: &mut Entropy<'_>) {
        let at = entropy.below(SLOTS);
        match entropy.below(64) {
            0 => self.context_or_token(entropy, at),
            1 | 2 => self.new_store(entropy, at),
            3 => self.free(entropy, at),
            4 | 5 => self.new_op(at),
            6..=9 => self.request(entropy, at),
            10 | 11 => self.include(entropy, at),
            12..=14 => self.perform(entropy, at),
            15..=17 => self.blocking(entropy, at),
            18 => self.watch_or_lease(entropy, at),
            19 => self.new_loop(entropy, at),
            20 => self.submit(entropy, at),
            21..=23 => self.poll(entropy),
            24..=26 => self.new_handler(entropy, at),
            27..=30 => self.use_handler(entropy, at),
            31 | 32 => self.use_rendezvous(entropy, at),
            33 | 34 => self.url(entropy, at),
            35 => self.free_round(entropy, at),
            36..=38 => self.node(entropy, at),
            39 => self.node_results(entropy, at),
            40 | 41 => self.handlers(entropy, at),
            42..=44 => self.new_worker(entropy, at),
            45..=48 => self.rpc_call(entropy, at),
            49 | 50 => self.use_worker(entropy, at),
            51 => self.free_worker(entropy, at),
            52 | 53 => self.loop_worker(entropy, at),
            54..=56 => self.new_agent(entropy, at),
            57..=60 => self.use_agent(entropy, at),
            61 => self.free_agent(at),
            _ => self.wait_and_poll(entropy),
        }
    }

    /// Counts a call that may wait for longer. Returns whether it may be made.
    fn may_wait(&mut self) -> bool {
        self.waits += 1;
        self.waits <= WAITS_MAX
    }

    /// Waits until the loop has something to do, for a short time, and polls it.
    fn wait_and_poll(&mut self, entropy: &mut Entropy<'_>) {
        if self.may_wait() && !self.loops[0].is_null() {
            // SAFETY: the loop is owned, and its descriptor is open as long as it.
            let fd = unsafe { rdzv_loop_fd(self.loops[0]) };
            let mut waiting = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: there is one entry.
            unsafe { libc::poll(&raw mut waiting, 1, 2) };
        }
        self.poll(entropy);
    }

    fn context_or_token(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        match entropy.below(4) {
            0 if self.contexts[at].is_null() => self.contexts[at] = rdzv_context_new(),
            // SAFETY: the token is owned, or NULL.
            1 => unsafe { rdzv_cancel_token_cancel(self.tokens[at]) },
            2 if self.buffers[at].is_null() => self.buffers[at] = rdzv_buffer_new(),
            _ if self.tokens[at].is_null() => self.tokens[at] = rdzv_cancel_token_new(),
            _ => {}
        }
    }

    fn new_store(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        if !self.stores[at].is_null() {
            return;
        }
        let context = self.contexts[entropy.below(SLOTS)];
        let other = self.stores[entropy.below(SLOTS)];
        let path = match entropy.below(8) {
            0 => c"/dev/null/no-such-folder/f",
            _ => path(),
        };
        let options = options(entropy, self.tokens[at]);
        let slot = &mut self.stores[at];
        match entropy.below(10) {
            0..=2 => create!(entropy, *slot, rdzv_store_new_hash(context, entropy.choose(&[100, 0, -1]))),
            3 => create!(
                entropy,
                *slot,
                rdzv_store_new_file(context, path.as_ptr(), entropy.choose(&[2, 1, 0]), 100)
            ),
            4 => {
                let prefix = entropy.choose(&KEYS);
                create!(entropy, *slot, rdzv_store_new_prefix(other, prefix.as_ptr(), prefix.len()));
            }
            5 => create!(entropy, *slot, rdzv_store_new_cancellable(other, self.tokens[at])),
            6 => create!(entropy, *slot, rdzv_store_clone(other)),
            7 => create!(entropy, *slot, rdzv_store_new(context, &raw const options)),
            8 => create!(entropy, *slot, rdzv_store_new_native(context, &raw const options)),
            _ => create!(entropy, *slot, rdzv_store_new(context, null())),
        }
        // SAFETY: the store is owned, or NULL, and the string lives as long as it.
        let peer = unsafe { CStr::from_ptr(rdzv_store_peer(*slot)) };
        assert_eq!(peer.is_empty(), slot.is_null(), "{peer:?}");
    }

    fn free(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let kind = entropy.below(9);
        if kind == 8 {
            let member = core::mem::replace(&mut self.members[at], null_mut());
            call!(entropy, rdzv_loop_remove(member));
            return;
        }
        // SAFETY: each handle is owned, or NULL, and no call on it is in progress: there is one thread.
        unsafe {
            match kind {
                0 => rdzv_context_free(core::mem::replace(&mut self.contexts[at], null_mut())),
                1 => rdzv_cancel_token_free(core::mem::replace(&mut self.tokens[at], null_mut())),
                2 => rdzv_store_free(core::mem::replace(&mut self.stores[at], null_mut())),
                3 => rdzv_op_free(core::mem::replace(&mut self.ops[at], null_mut())),
                4 => rdzv_watch_free(core::mem::replace(&mut self.watches[0], null_mut())),
                5 => rdzv_lease_free(core::mem::replace(&mut self.leases[0], null_mut())),
                6 => rdzv_buffer_free(core::mem::replace(&mut self.buffers[at], null_mut())),
                _ => {
                    // The members belong to the loop.
                    self.members = [null_mut(); SLOTS];
                    rdzv_loop_free(core::mem::replace(&mut self.loops[0], null_mut()));
                }
            }
        }
    }

    fn new_op(&mut self, at: usize) {
        if self.ops[at].is_null() {
            self.ops[at] = rdzv_op_new(core::ptr::without_provenance_mut(at + 1));
        }
    }

    /// Gives an operation a request.
    fn request(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (op, key, value) = (self.ops[at], entropy.choose(&KEYS), entropy.bytes(20));
        let keys: Vec<rdzv_bytes> = (0..entropy.below(4)).map(|_| bytes_of(entropy.choose(&KEYS))).collect();
        let (keys, count) =
            if entropy.below(16) == 0 { (null(), keys.len()) } else { (keys.as_ptr(), keys.len()) };
        // A missing pointer with a length is refused.
        let (key, len) = if entropy.below(16) == 0 { (null(), key.len()) } else { (key.as_ptr(), key.len()) };
        let number = entropy.choose(&[0, 1, 2, i64::MAX, -1]);
        let lease = entropy.below(3) as u64;
        match entropy.below(30) {
            0..=2 => call!(entropy, rdzv_op_set(op, key, len, value.as_ptr(), value.len())),
            3 => call!(entropy, rdzv_op_get(op, key, len)),
            4 => call!(entropy, rdzv_op_add(op, key, len, number)),
            5 => call!(entropy, rdzv_op_compare_set(op, key, len, key, len, value.as_ptr(), value.len())),
            6 => call!(entropy, rdzv_op_append(op, key, len, value.as_ptr(), value.len())),
            7 => call!(entropy, rdzv_op_delete_key(op, key, len)),
            8 => call!(entropy, rdzv_op_wait(op, keys, count)),
            9 => call!(entropy, rdzv_op_check(op, keys, count)),
            10 => call!(entropy, rdzv_op_multi_get(op, keys, count)),
            11 => call!(entropy, rdzv_op_multi_set(op, keys, keys, count)),
            12 => call!(entropy, rdzv_op_num_keys(op)),
            13 => call!(entropy, rdzv_op_list_keys(op)),
            14 => call!(entropy, rdzv_op_queue_push(op, key, len, value.as_ptr(), value.len())),
            15 => call!(entropy, rdzv_op_queue_pop(op, key, len)),
            16 => call!(entropy, rdzv_op_queue_len(op, key, len)),
            17 => call!(entropy, rdzv_op_barrier(op, key, len, number)),
            18 => call!(entropy, rdzv_op_ping(op)),
            19 => call!(entropy, rdzv_op_read(op, keys, count)),
            20 => call!(entropy, rdzv_op_delete_prefix(op, key, len)),
            21 => call!(entropy, rdzv_op_watch_key(op, key, len, lease)),
            22 => call!(entropy, rdzv_op_watch_prefix(op, key, len, lease)),
            23 => call!(entropy, rdzv_op_grant_lease(op, number)),
            24 => call!(entropy, rdzv_op_attach_lease(op, lease, keys, count)),
            25 => call!(entropy, rdzv_op_revoke_lease(op, lease)),
            26 | 27 => call!(entropy, rdzv_op_batch(op)),
            28 => call!(entropy, rdzv_op_transaction(op)),
            _ => call!(entropy, rdzv_op_end_session(op)),
        };
    }

    fn include(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (op, part) = (self.ops[at], self.ops[entropy.below(SLOTS)]);
        let key = entropy.choose(&KEYS);
        match entropy.below(8) {
            0 => call!(entropy, rdzv_op_require_present(op, key.as_ptr(), key.len())),
            1 => call!(entropy, rdzv_op_require_absent(op, key.as_ptr(), key.len())),
            2 => call!(entropy, rdzv_op_require_revision(op, key.as_ptr(), key.len(), 0)),
            3 => call!(entropy, rdzv_op_require_value(op, key.as_ptr(), key.len(), key.as_ptr(), key.len())),
            4 => call!(entropy, rdzv_op_otherwise(op)),
            _ => call!(entropy, rdzv_op_include(op, part)),
        };
    }

    fn perform(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (store, op) = (self.stores[entropy.below(SLOTS)], self.ops[at]);
        let timeout_ms = entropy.choose(&TIMEOUTS_MS);
        let performed = call!(entropy, rdzv_store_perform(store, op, timeout_ms));
        let mut result = result();
        if call!(entropy, rdzv_op_get_result(op, &raw mut result)) {
            assert_eq!(result.struct_size as usize, size_of::<rdzv_result>());
            assert!(!performed || result.status == RDZV_OK);
            assert_eq!(result.status == RDZV_OK, result.error.is_null());
            read(&result);
            for index in 0..result.part_count + 1 {
                let mut part = self::result();
                let there = call!(entropy, rdzv_op_get_part(op, index, &raw mut part));
                assert_eq!(there, index < result.part_count);
                if there {
                    read(&part);
                }
            }
        } else {
            assert!(!performed, "an operation that is over has a result");
        }
    }

    fn blocking(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (store, key, value) = (self.stores[at], entropy.choose(&KEYS), entropy.bytes(20));
        let (timeout_ms, buffer) = (entropy.choose(&TIMEOUTS_MS), self.buffers[entropy.below(SLOTS)]);
        let (key, len) = (key.as_ptr(), key.len());
        const UNWRITTEN: i64 = -77;
        let mut number = UNWRITTEN;
        let mut flag = -77;
        let is_done = match entropy.below(12) {
            0 | 1 => call!(entropy, rdzv_store_set(store, key, len, value.as_ptr(), value.len(), timeout_ms)),
            2 | 3 => call!(entropy, rdzv_store_get(store, key, len, timeout_ms, buffer)),
            4 => {
                let is_done = call!(entropy, rdzv_store_add(store, key, len, 1, timeout_ms, &raw mut number));
                assert!(is_done || number == UNWRITTEN, "{number} without success");
                is_done
            }
            5 => call!(
                entropy,
                rdzv_store_compare_set(
                    store,
                    key,
                    len,
                    key,
                    len,
                    value.as_ptr(),
                    value.len(),
                    timeout_ms,
                    buffer
                )
            ),
            6 => {
                let keys = [bytes_of(entropy.choose(&KEYS)), bytes_of(entropy.choose(&KEYS))];
                call!(entropy, rdzv_store_wait(store, keys.as_ptr(), entropy.below(3), timeout_ms))
            }
            7 => {
                let keys = [bytes_of(entropy.choose(&KEYS)), bytes_of(entropy.choose(&KEYS))];
                let count = entropy.below(3);
                let is_done =
                    call!(entropy, rdzv_store_check(store, keys.as_ptr(), count, timeout_ms, &raw mut flag));
                assert!(if is_done { (0..=1).contains(&flag) } else { flag == -77 }, "{flag}");
                is_done
            }
            8 => {
                let is_done =
                    call!(entropy, rdzv_store_delete_key(store, key, len, timeout_ms, &raw mut flag));
                assert!(if is_done { (0..=1).contains(&flag) } else { flag == -77 }, "{flag}");
                is_done
            }
            9 => call!(entropy, rdzv_store_barrier(store, key, len, entropy.choose(&[1, 2, 0]), timeout_ms)),
            10 => call!(entropy, rdzv_store_check_in(store, timeout_ms, &raw mut number)),
            _ => {
                // SAFETY: the store is owned, or NULL.
                unsafe { rdzv_store_cancel(store) };
                false
            }
        };
        assert!(!is_done || !store.is_null(), "a call on no store succeeded");
        // SAFETY: the buffer is owned, or NULL; its bytes are valid until it is used again.
        unsafe {
            let (data, len) = (rdzv_buffer_data(buffer), rdzv_buffer_len(buffer));
            assert!(!buffer.is_null() || (data.is_null() && len == 0));
            touch(data, len);
        }
    }

    fn watch_or_lease(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (store, timeout_ms) = (self.stores[at], entropy.choose(&TIMEOUTS_MS));
        match entropy.below(4) {
            0 if self.watches[0].is_null() => {
                create!(entropy, self.watches[0], rdzv_watch_new(store, self.ops[at], timeout_ms));
            }
            1 if self.leases[0].is_null() => {
                create!(
                    entropy,
                    self.leases[0],
                    rdzv_lease_new(store, entropy.choose(&[0, 10, -1]), timeout_ms)
                );
            }
            2 => {
                let mut why = 0;
                call!(entropy, rdzv_lease_wait_over(self.leases[0], timeout_ms, &raw mut why));
            }
            _ => {
                let mut change = change();
                let (key, value) = (self.buffers[0], self.buffers[1]);
                if call!(entropy, rdzv_watch_next(self.watches[0], timeout_ms, &raw mut change, key, value)) {
                    // SAFETY: what a change points to is in the buffers, which are not used before.
                    unsafe {
                        touch(change.key, change.key_len);
                        touch(change.value, change.value_len);
                    }
                }
            }
        }
    }

    fn new_loop(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        if self.loops[0].is_null() {
            create!(entropy, self.loops[0], rdzv_loop_new(self.contexts[at]));
        } else if self.members[at].is_null() {
            let options = options(entropy, null_mut());
            let data: *mut c_void = core::ptr::without_provenance_mut(100 + at);
            let (event_loop, options) = (self.loops[0], &raw const options);
            if entropy.below(2) == 0 {
                create!(entropy, self.members[at], rdzv_loop_add_store(event_loop, options, data));
            } else {
                create!(entropy, self.members[at], rdzv_loop_add_native_store(event_loop, options, data));
            }
        }
    }

    fn submit(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let op = self.ops[entropy.below(SLOTS)];
        if entropy.below(4) == 0 {
            call!(entropy, rdzv_loop_cancel(self.loops[0], op));
        } else {
            call!(entropy, rdzv_loop_submit(self.members[at], op, entropy.choose(&TIMEOUTS_MS)));
        }
    }

    fn poll(&mut self, entropy: &mut Entropy<'_>) {
        let event_loop = self.loops[0];
        let polled = call!(entropy, rdzv_loop_poll(event_loop));
        assert_eq!(polled, !event_loop.is_null());
        for _ in 0..20 {
            // SAFETY: zeros are a valid event.
            let mut event: rdzv_event = unsafe { core::mem::zeroed() };
            event.struct_size = u32::try_from(size_of::<rdzv_event>()).expect("small");
            if !call!(entropy, rdzv_loop_next_event(event_loop, &raw mut event)) {
                assert!(event_loop.is_null());
                return;
            }
            if event.kind == RDZV_EVENT_NONE {
                return;
            }
            let at = self.members.iter().position(|&member| member == event.member);
            let at = at.expect("no event of a member that was removed");
            assert_eq!(event.member_data.addr(), 100 + at);
            if !event.op.is_null() {
                let at = self.ops.iter().position(|&op| op == event.op);
                assert_eq!(
                    at.map(|at| at + 1),
                    Some(event.op_data.addr()),
                    "no event of an operation that was freed"
                );
                let mut result = result();
                if call!(entropy, rdzv_op_get_result(event.op, &raw mut result)) {
                    read(&result);
                }
            }
            if event.kind == RDZV_EVENT_AGENT {
                self.agent_event(entropy, true);
            } else if event.kind >= RDZV_EVENT_RPC_JOINED {
                self.agent_event(entropy, false);
                self.rpc_event(entropy, event.kind);
            }
            // SAFETY: what the event points to is valid until the next one.
            unsafe {
                if let Some(change) = event.change.as_ref() {
                    touch(change.key, change.key_len);
                    touch(change.value, change.value_len);
                }
            }
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: each handle is owned, or NULL. The members belong to the loop.
        unsafe {
            self.ops.iter().for_each(|&op| rdzv_op_free(op));
            self.contexts.iter().for_each(|&context| rdzv_context_free(context));
            self.loops.iter().for_each(|&event_loop| rdzv_loop_free(event_loop));
            self.stores.iter().for_each(|&store| rdzv_store_free(store));
            self.watches.iter().for_each(|&watch| rdzv_watch_free(watch));
            self.leases.iter().for_each(|&lease| rdzv_lease_free(lease));
            self.tokens.iter().for_each(|&token| rdzv_cancel_token_free(token));
            self.buffers.iter().for_each(|&buffer| rdzv_buffer_free(buffer));
        }
    }
}

fn bytes_of(bytes: &'static [u8]) -> rdzv_bytes {
    rdzv_bytes { data: bytes.as_ptr(), len: bytes.len() }
}

fn result() -> rdzv_result {
    // SAFETY: zeros are a valid result.
    let result: rdzv_result = unsafe { core::mem::zeroed() };
    rdzv_result { struct_size: u32::try_from(size_of::<rdzv_result>()).expect("small"), ..result }
}

fn change() -> rdzv_change {
    // SAFETY: zeros are a valid change.
    let change: rdzv_change = unsafe { core::mem::zeroed() };
    rdzv_change { struct_size: u32::try_from(size_of::<rdzv_change>()).expect("small"), ..change }
}

/// Reads all that a result points to, so that a sanitizer sees what is not valid.
fn read(result: &rdzv_result) {
    // SAFETY: the result was just written, and its operation was not used since.
    unsafe {
        touch(result.value, result.value_len);
        for index in 0..result.item_count {
            let item = &*result.items.add(index);
            touch(item.data, item.len);
            if !result.revisions.is_null() {
                core::hint::black_box(*result.revisions.add(index));
            }
        }
        if !result.error.is_null() {
            assert!(!CStr::from_ptr(rdzv_error_message(result.error)).is_empty());
        }
    }
}

/// # Safety
/// The bytes are valid, unless the pointer is NULL.
unsafe fn touch(data: *const u8, len: usize) {
    if !data.is_null() {
        // SAFETY: the caller's promise.
        let sum = unsafe { core::slice::from_raw_parts(data, len) }
            .iter()
            .map(|&byte| u64::from(byte))
            .sum::<u64>();
        core::hint::black_box(sum);
    }
}

/// Returns user data that [`destroy_box`] frees.
fn boxed(bytes: &[u8]) -> *mut c_void {
    Box::into_raw(Box::new(bytes.to_vec())).cast()
}

unsafe extern "C" fn destroy_box(user_data: *mut c_void) {
    // SAFETY: the user data is of `boxed`, and this is the last call with it.
    drop(unsafe { Box::from_raw(user_data.cast::<Vec<u8>>()) });
}

fn touch_text(text: *const core::ffi::c_char) {
    if !text.is_null() {
        // SAFETY: the texts of the library end with NUL and are valid while their owner is.
        core::hint::black_box(unsafe { CStr::from_ptr(text) }.to_bytes().len());
    }
}

fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("small")
}

/// Options of a client: mostly those of the server that all inputs share.
fn options(entropy: &mut Entropy<'_>, token: *const rdzv_cancel_token) -> rdzv_store_options {
    // SAFETY: zeros are valid options.
    let options: rdzv_store_options = unsafe { core::mem::zeroed() };
    let has_endpoint = entropy.below(16) > 0;
    rdzv_store_options {
        struct_size: u32::try_from(size_of::<rdzv_store_options>()).expect("small"),
        port: if has_endpoint { server_port() } else { 0 },
        host: if has_endpoint { c"127.0.0.1".as_ptr() } else { null() },
        timeout_ms: 50,
        connect_timeout_ms: 1000,
        cancel_token: if entropy.below(4) == 0 { token } else { null() },
        grace_ms: entropy.choose(&[0, 0, 10, -1]),
        ..options
    }
}

/// Port of a server of this process, which is never stopped.
fn server_port() -> u16 {
    // The address, so that a sanitizer finds the server and does not take it for lost.
    static SERVER: OnceLock<usize> = OnceLock::new();
    let address = *SERVER.get_or_init(|| {
        let (mut server, mut error) = (null_mut(), null_mut());
        // SAFETY: NULL stands for the defaults; the outputs are valid for writing.
        let status = unsafe { rdzv_server_new(null(), null(), &raw mut server, &raw mut error) };
        assert_eq!(status, RDZV_OK);
        server.expose_provenance()
    });
    // SAFETY: the server is owned, for as long as this process lives.
    unsafe { rdzv_server_port(core::ptr::with_exposed_provenance(address)) }
}

/// Path of the file of file stores.
fn path() -> &'static CStr {
    static PATH: OnceLock<std::ffi::CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("rdzv-c-calls-{}", std::process::id()));
        std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).expect("no NUL")
    })
}
