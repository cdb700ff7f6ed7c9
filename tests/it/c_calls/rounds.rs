//! Calls of rendezvous handlers, of rendezvous by URL, and of nodes in a loop.

use super::*;
use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Options of the backends; the last two are for `static`. No wait is long: by default, a node joins for ten minutes.
const CONFIGS: [&CStr; 6] = [
    c"is_host=false,join_timeout=10ms,last_call_timeout=1ms,close_timeout=10ms,heartbeat_timeout=10ms",
    c"is_host=0,join_timeout=10ms,last_call=none,close_timeout=10ms,heartbeat_timeout=10ms,node=n,grace=5ms",
    c"is_host=0,join_timeout=10ms,close_timeout=10ms,heartbeat_timeout=10ms,local_world_size=2",
    c"rank_order=no-order",
    c"rank=0,timeout=10ms",
    c"rank=1,timeout=10ms",
];

/// Handles of one input that belong to rendezvous.
pub(super) struct Rounds {
    pub(super) handlers: [*mut rdzv_rendezvous_handler; SLOTS],
    pub(super) rendezvous: [*mut rdzv_rendezvous; SLOTS],
    url: *mut rdzv_rendezvous_url,
    /// Number of this input: the server that all inputs share remembers its runs.
    pub(super) input: usize,
}

impl Default for Rounds {
    fn default() -> Self {
        static INPUTS: AtomicUsize = AtomicUsize::new(0);
        Self {
            handlers: [null_mut(); SLOTS],
            rendezvous: [null_mut(); SLOTS],
            url: null_mut(),
            input: INPUTS.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        // SAFETY: each handle is owned, or NULL.
        unsafe {
            self.rendezvous.iter().for_each(|&of| rdzv_rendezvous_free(of));
            self.handlers.iter().for_each(|&handler| rdzv_rendezvous_handler_free(handler));
            rdzv_rendezvous_url_free(self.url);
        }
    }
}

/// Parameters of a rendezvous with the strings that they point to.
struct Parameters {
    raw: rdzv_rendezvous_parameters,
    _strings: [CString; 2],
}

impl Parameters {
    fn new(entropy: &mut Entropy<'_>, input: usize) -> Self {
        // SAFETY: zeros are valid parameters.
        let raw: rdzv_rendezvous_parameters = unsafe { core::mem::zeroed() };
        let backend = entropy.choose(&[c"rdzv", c"rdzv", c"rdzv", c"static", c"static", c"no-backend"]);
        let is_static = backend == c"static";
        // `static` hosts its store at a free port.
        let port = if is_static { 0 } else { server_port() };
        let endpoint = CString::new(format!("127.0.0.1:{port}")).expect("no NUL");
        let run_id = CString::new(format!("run-{input}-{}", entropy.below(2))).expect("no NUL");
        let (of_rounds, of_static) = CONFIGS.split_at(4);
        let configs = if is_static { of_static } else { of_rounds };
        let config = configs[entropy.below(configs.len())].as_ptr();
        let min_nodes = entropy.choose(&[1, 1, 1, 2, 0, -1]);
        let raw = rdzv_rendezvous_parameters {
            struct_size: size_of_u32::<rdzv_rendezvous_parameters>(),
            backend: backend.as_ptr(),
            endpoint: endpoint.as_ptr(),
            run_id: run_id.as_ptr(),
            min_nodes,
            // A spare waits until it is needed, so there is room for all.
            max_nodes: entropy.choose(&[9, 9, 9, -1]),
            local_addr: entropy.choose(&[c"127.0.0.1".as_ptr(), null()]),
            config,
            ..raw
        };
        Self { raw, _strings: [endpoint, run_id] }
    }
}

impl Calls {
    pub(super) fn new_handler(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        if !self.rounds.handlers[at].is_null() {
            return;
        }
        let context = self.contexts[entropy.below(SLOTS)];
        let parameters = Parameters::new(entropy, self.rounds.input);
        let parameters = if entropy.below(16) == 0 { null() } else { &raw const parameters.raw };
        create!(entropy, self.rounds.handlers[at], rdzv_rendezvous_handler_new(context, parameters));
        let handler = self.rounds.handlers[at];
        let mut len = 0;
        // SAFETY: the handler is owned, or NULL, and its strings live as long as it.
        unsafe {
            let backend = rdzv_rendezvous_handler_backend(handler, &raw mut len);
            assert_eq!(backend.is_null(), handler.is_null());
            touch(backend, len);
            touch(rdzv_rendezvous_handler_run_id(handler, &raw mut len), len);
            assert!((0..=1).contains(&rdzv_rendezvous_handler_use_agent_store(handler)));
        }
    }

    pub(super) fn use_handler(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let handler = self.rounds.handlers[at];
        let to = entropy.below(SLOTS);
        let text = entropy.choose(&KEYS);
        let what = entropy.below(16);
        if what != 9 && what != 10 && !self.may_wait() {
            return;
        }
        match what {
            0..=4 if self.rounds.rendezvous[to].is_null() => {
                create!(
                    entropy,
                    self.rounds.rendezvous[to],
                    rdzv_rendezvous_handler_next_rendezvous(handler)
                );
            }
            5 => {
                let mut closed = -77;
                let is_done = call!(entropy, rdzv_rendezvous_handler_is_closed(handler, &raw mut closed));
                assert!(if is_done { (0..=1).contains(&closed) } else { closed == -77 }, "{closed}");
            }
            6 => {
                call!(entropy, rdzv_rendezvous_handler_set_closed(handler));
            }
            7 => {
                call!(entropy, rdzv_rendezvous_handler_fail(handler, text.as_ptr(), text.len()));
            }
            8 => {
                let mut count = -77;
                let is_done =
                    call!(entropy, rdzv_rendezvous_handler_num_nodes_waiting(handler, &raw mut count));
                assert_eq!(is_done, count != -77, "{count}");
            }
            // SAFETY: the handler is owned, or NULL.
            9 => unsafe { rdzv_rendezvous_handler_cancel(handler) },
            10 => {
                let token = self.tokens[to];
                call!(entropy, rdzv_rendezvous_handler_set_cancel_token(handler, token));
            }
            11 => {
                let mut clean = -77;
                let is_done = call!(entropy, rdzv_rendezvous_handler_shutdown(handler, &raw mut clean));
                assert!(if is_done { (0..=1).contains(&clean) } else { clean == -77 }, "{clean}");
            }
            _ => self.next_round_event(entropy, handler),
        }
    }

    fn next_round_event(&self, entropy: &mut Entropy<'_>, handler: *mut rdzv_rendezvous_handler) {
        // SAFETY: zeros are a valid event.
        let mut event: rdzv_round_event = unsafe { core::mem::zeroed() };
        event.struct_size = size_of_u32::<rdzv_round_event>();
        event.kind = -77;
        let timeout_ms = entropy.choose(&TIMEOUTS_MS);
        let (node, message) = (self.buffers[0], self.buffers[1]);
        let is_done = call!(
            entropy,
            rdzv_rendezvous_handler_next_event(handler, timeout_ms, &raw mut event, node, message)
        );
        assert_eq!(is_done, event.kind != -77, "an event is written on success only");
        // SAFETY: what the event points to is in the buffers, which were not used since.
        unsafe {
            touch(event.node, event.node_len);
            touch(event.message, event.message_len);
        }
        if is_done {
            call!(entropy, rdzv_round_event_describe(&raw const event, self.buffers[2]));
        }
    }

    pub(super) fn use_rendezvous(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let of = self.rounds.rendezvous[at];
        if entropy.below(2) == 0 {
            let to = entropy.below(SLOTS);
            if self.stores[to].is_null() {
                create!(entropy, self.stores[to], rdzv_store_new_rendezvous(of));
            }
            return;
        }
        // SAFETY: zeros are valid information.
        let mut info: rdzv_rendezvous_info = unsafe { core::mem::zeroed() };
        info.struct_size = size_of_u32::<rdzv_rendezvous_info>();
        let is_done = call!(entropy, rdzv_rendezvous_get_info(of, &raw mut info));
        assert!(is_done != of.is_null() && is_done != info.master_addr.is_null());
        touch_text(info.master_addr);
        touch_text(info.leader);
        touch_text(info.key_prefix);
    }

    pub(super) fn url(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        // SAFETY: zeros are valid options.
        let options: rdzv_rendezvous_url_options = unsafe { core::mem::zeroed() };
        let variables = [
            rdzv_pair { name: c"RANK".as_ptr(), value: c"0".as_ptr() },
            rdzv_pair {
                name: entropy.choose(&[c"WORLD_SIZE", c"HOME"]).as_ptr(),
                value: entropy.choose(&[c"1", c"x"]).as_ptr(),
            },
        ];
        let options = rdzv_rendezvous_url_options {
            struct_size: size_of_u32::<rdzv_rendezvous_url_options>(),
            has_rank: entropy.choose(&[1, 0]),
            world_size: entropy.choose(&[1, 0, -1, 2]),
            timeout_ms: entropy.choose(&[10, 1]),
            variables: variables.as_ptr(),
            variable_count: entropy.below(3),
            ..options
        };
        let file = format!("file://{}", path().to_str().expect("a folder for temporary files is UTF-8"));
        let urls: [&str; 6] = [
            "tcp://127.0.0.1:0",
            &file,
            "tcp://127.0.0.1:0?rank=0&world_size=1",
            "env://",
            "no-scheme://x?rank",
            "\u{7f}",
        ];
        let url = urls[entropy.below(urls.len())];
        match entropy.below(8) {
            0 | 1 if self.rounds.url.is_null() => {
                let (context, options) = (self.contexts[at], &raw const options);
                create!(
                    entropy,
                    self.rounds.url,
                    rdzv_rendezvous_url_new(context, url.as_ptr(), url.len(), options)
                );
            }
            2..=4 if self.rounds.rendezvous[at].is_null() && self.may_wait() => {
                create!(entropy, self.rounds.rendezvous[at], rdzv_rendezvous_url_next(self.rounds.url));
            }
            // SAFETY: the rendezvous is owned, or NULL.
            5 => unsafe { rdzv_rendezvous_url_cancel(self.rounds.url) },
            6 => {
                let mut port = -77;
                let host = self.buffers[at];
                let is_done =
                    call!(entropy, rdzv_parse_endpoint(url.as_ptr(), url.len(), host, &raw mut port));
                assert!(is_done == (port != -77) && (-1..=65_535).contains(&port.max(-1)), "{port}");
            }
            _ => {}
        }
    }

    pub(super) fn free_round(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let rounds = &mut self.rounds;
        // SAFETY: each handle is owned, or NULL, and no call on it is in progress: there is one thread.
        unsafe {
            match entropy.below(3) {
                0 => rdzv_rendezvous_handler_free(core::mem::replace(&mut rounds.handlers[at], null_mut())),
                1 => rdzv_rendezvous_free(core::mem::replace(&mut rounds.rendezvous[at], null_mut())),
                _ => rdzv_rendezvous_url_free(core::mem::replace(&mut rounds.url, null_mut())),
            }
        }
    }

    /// Adds a node to the loop, or gives an operation a request of nodes.
    pub(super) fn node(&mut self, entropy: &mut Entropy<'_>, at: usize) {
        let (op, text) = (self.ops[at], entropy.choose(&KEYS));
        match entropy.below(10) {
            0..=2 => {
                if self.members[at].is_null() {
                    let parameters = Parameters::new(entropy, self.rounds.input);
                    let data: *mut c_void = core::ptr::without_provenance_mut(100 + at);
                    let (event_loop, parameters) = (self.loops[0], &raw const parameters.raw);
                    create!(entropy, self.members[at], rdzv_loop_add_node(event_loop, parameters, data));
                }
                true
            }
            3 | 4 => call!(entropy, rdzv_op_next_rendezvous(op)),
            5 => call!(entropy, rdzv_op_leave(op)),
            6 => call!(entropy, rdzv_op_set_closed(op)),
            7 => call!(entropy, rdzv_op_fail(op, text.as_ptr(), text.len())),
            8 => call!(entropy, rdzv_op_run_info(op)),
            _ => call!(entropy, rdzv_op_members(op, 0, 0, entropy.choose(&[1, 0, u32::MAX]))),
        };
    }

    pub(super) fn node_results(&self, entropy: &mut Entropy<'_>, at: usize) {
        let op = self.ops[at];
        // SAFETY: zeros are valid results.
        let (mut round, mut info, mut member): (rdzv_round, rdzv_run_info, rdzv_round_member) =
            unsafe { (core::mem::zeroed(), core::mem::zeroed(), core::mem::zeroed()) };
        round.struct_size = size_of_u32::<rdzv_round>();
        info.struct_size = size_of_u32::<rdzv_run_info>();
        member.struct_size = size_of_u32::<rdzv_round_member>();
        let has_round = call!(entropy, rdzv_op_get_round(op, &raw mut round));
        assert_eq!(has_round, round.nodes > 0, "a round has nodes");
        let has_info = call!(entropy, rdzv_op_get_run_info(op, &raw mut info));
        assert!(!(has_round && has_info), "an operation has one result");
        for index in 0..2 {
            call!(entropy, rdzv_op_get_member(op, index, &raw mut member));
        }
        // SAFETY: the operation was not used since.
        unsafe {
            touch(round.leader, round.leader_len);
            touch(round.key_prefix, round.key_prefix_len);
            touch(member.node, member.node_len);
            touch(member.address, member.address_len);
        }
    }
}
