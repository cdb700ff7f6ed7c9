mod cancelling;
mod ends;
mod exit_barrier;
mod flow;
mod reentrancy;
mod sessions;
mod tokens;

use super::*;
use crate::agent::GroupEvent;
use crate::connection::{CallFailure, ConnectionError};
use crate::driver::calls::calling::{Call, RpcClientOptions};
use crate::driver::calls::handling::{Handling, Run};
use crate::driver::calls::tests::LoneClient;
use crate::driver::testing::is_alone;
use crate::limits::RpcLimits;
use crate::membership::observer::Observation;
use crate::options::RpcOptions;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::time::Duration;
use std::thread;

const SOON: Duration = Duration::from_secs(60);

pub(in crate::driver) fn server() -> (Server, u16) {
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let port = server.local_addr().port();
    (server, port)
}

pub(in crate::driver) fn store(port: u16) -> Store {
    Store::connect("127.0.0.1", port, StoreOptions::default())
        .expect("connected")
        .with_prefix(b"rpc_prefix_0")
}

pub(in crate::driver) fn worker(name: &str, id: u16) -> WorkerInfo {
    WorkerInfo { name: name.parse().expect("a name"), id }
}

/// Options with the handlers of each worker.
fn echoing() -> TcpOptions {
    let handling = Handling::new(2);
    handling
        .register("echo", Run::Inline, |request, responder| {
            responder.answer(request.payload);
        })
        .expect("free");
    handling
        .register("who", Run::Pooled, |request, responder| {
            responder.answer(request.caller.to_string().into_bytes());
        })
        .expect("free");
    TcpOptions { handling: Some(handling), ..TcpOptions::default() }
}

fn start(store: &Store, me: WorkerInfo, size: Option<u16>) -> Result<RpcAgent, RpcInitError> {
    RpcAgent::start(store, me, size, &RpcOptions::new("tcp"), &echoing())
}

fn joined(port: u16, name: &str, id: u16) -> RpcAgent {
    start(&store(port), worker(name, id), None).expect("a member")
}

/// The names of all workers that one knows.
fn names(agent: &RpcAgent) -> String {
    agent.workers().expect("a group").iter().map(|worker| worker.name.as_str()).collect::<Vec<_>>().join(" ")
}

impl RpcAgent {
    fn call_with(
        &self,
        callee: &str,
        handler: &str,
        payload: Vec<u8>,
        timeout: Option<Duration>,
        callback: impl FnOnce(GroupResult) + Send + 'static,
    ) -> Result<Begun, GroupCallError> {
        let call = CallSpec { callee: callee.into(), handler, payload: payload.into(), timeout };
        self.begin_call(call, Box::new(callback))
    }

    pub(in crate::driver) fn notify<'a>(
        &self,
        callee: impl Into<Callee<'a>>,
        handler: &str,
        payload: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<(), GroupCallError> {
        self.begin_notify(CallSpec { callee: callee.into(), handler, payload: payload.into(), timeout })
    }
}

/// Returns the failure of a call.
fn failure(result: Result<Vec<u8>, impl Into<GroupCallError>>) -> CallFailure {
    match result.map_err(Into::into) {
        Err(GroupCallError::Call(error)) => error.why,
        other => panic!("{other:?}"),
    }
}

/// Waits until the condition is true.
fn eventually(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < SOON, "it never comes to be");
        thread::yield_now();
    }
}

fn next_event(agent: &RpcAgent) -> GroupEvent {
    agent.next_event(SOON, &CancelToken::new()).expect("something happens")
}

#[test]
fn a_static_group_meets_calls_and_parts() {
    let (_server, port) = server();
    let ends: Vec<_> = (0..4_u16)
        .map(|id| {
            thread::spawn(move || {
                let me = worker(&format!("w{id}"), id);
                let agent = start(&store(port), me, Some(4)).map_err(|error| error.to_string())?;
                let mut reported = names(&agent);
                for id in 0..4_u16 {
                    let answer =
                        agent.call(id, "who", Vec::new(), None).map_err(|error| error.to_string())?;
                    reported += &format!(", {}", String::from_utf8_lossy(&answer));
                }
                agent.shutdown(Shutdown::Graceful).map_err(|error| error.to_string())?;
                Ok::<_, String>(reported)
            })
        })
        .collect();
    for (id, end) in ends.into_iter().enumerate() {
        let me = format!("w{id} (id {id})");
        let reported = end.join().expect("no panic");
        assert_eq!(reported, Ok(format!("w0 w1 w2 w3, {me}, {me}, {me}, {me}")));
    }
}

#[test]
fn workers_of_a_dynamic_group_come_call_and_go() {
    let (_server, port) = server();
    let a = joined(port, "a", 0);
    assert_eq!((names(&a).as_str(), a.me().id), ("a", 0));
    let b = joined(port, "b-1", 7);
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("b-1", 7)));
    assert_eq!((names(&a).as_str(), names(&b).as_str()), ("a b-1", "a b-1"));
    assert_eq!(a.call("b-1", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    assert_eq!(b.call(0, "who", Vec::new(), None), Ok(b"b-1 (id 7)".to_vec()));
    assert_eq!(b.call(7, "who", Vec::new(), None), Ok(b"b-1 (id 7)".to_vec()), "itself");
    let pending = a.start_call("b-1", "echo", b"later".to_vec(), None).expect("made");
    assert_eq!(pending.wait(), Ok(b"later".to_vec()));
    for (callee, message) in [
        (Callee::Name("c"), "there is no worker c in the group"),
        (Callee::Id(3), "there is no worker with the id 3 in the group"),
    ] {
        assert_eq!(a.call(callee, "echo", Vec::new(), None).expect_err("unknown").to_string(), message);
    }
    let error = a.call("b-1", "none", Vec::new(), None).expect_err("no handler");
    assert_eq!(error.to_string(), "none at b-1 (id 7): there is no such handler");

    assert_eq!(b.shutdown(Shutdown::Graceful), Ok(()));
    assert_eq!(next_event(&a), GroupEvent::Left(worker("b-1", 7)));
    assert_eq!(names(&a), "a");
    assert_eq!((names(&b).as_str(), b.shutdown(Shutdown::Graceful)), ("", Ok(())), "it has ended");
    let error = b.call("a", "echo", Vec::new(), None).expect_err("no member");
    assert_eq!(
        error.to_string(),
        "this worker is not a member of the group any more: this worker has left the group"
    );
    // Its name and number are free again.
    let b = joined(port, "b-1", 7);
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("b-1", 7)));
    drop(b);
}

#[test]
fn a_death_is_told_to_all_and_ends_calls() {
    let (_server, port) = server();
    let a = joined(port, "a", 0);
    let b = joined(port, "b", 1);
    let c = joined(port, "c", 2);
    for event in [worker("b", 1), worker("c", 2)].map(GroupEvent::Joined) {
        assert_eq!(next_event(&a), event);
    }
    assert_eq!(next_event(&b), GroupEvent::Joined(worker("c", 2)));
    let (held, holds) = std::sync::mpsc::channel();
    c.register("hold", Run::Inline, move |_, responder| held.send(responder).expect("received"))
        .expect("free");
    let pending = a.start_call("c", "hold", Vec::new(), Some(SOON)).expect("made");
    let responder = holds.recv_timeout(SOON).expect("it is asked");
    // Its session with the store ends, and its connections continue.
    let why: Box<str> = "its session with the store's server ended".into();
    drop(c.drop_liveness());
    for agent in [&a, &b] {
        assert_eq!(next_event(agent), GroupEvent::PeerDied { worker: worker("c", 2), why: why.clone() });
    }
    let error = pending.wait().expect_err("it is dead").to_string();
    let callee = format!("hold at c (id 2, {})", c.address());
    assert_eq!(
        error,
        format!("{callee}: contact with the worker was lost: its session with the store's server ended")
    );
    let error = a.call("c", "echo", Vec::new(), None).expect_err("it is dead").to_string();
    assert_eq!(error, "c (id 2) is dead: its session with the store's server ended");
    drop(responder);
    drop(c);
    // It rejoins.
    let c = joined(port, "c", 2);
    assert_eq!(next_event(&b), GroupEvent::Joined(worker("c", 2)));
    assert_eq!(b.call("c", "echo", b"again".to_vec(), None), Ok(b"again".to_vec()));
    assert_eq!((names(&a).as_str(), names(&c).as_str()), ("a b c", "a b c"));
}

/// Returns the IDs and names of this process's threads, in the order of the names, without the pool's.
fn named_threads() -> Vec<(String, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a list");
    let named = tasks.filter_map(|task| {
        let task = task.ok()?;
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        Some((name.trim().to_string(), task.file_name().to_string_lossy().into_owned()))
    });
    let mut named: Vec<_> = named.filter(|(name, _)| name != "rdzv-rpc-work").collect();
    named.sort_unstable();
    named
}

#[test]
fn a_worker_has_four_threads_beside_its_pool() {
    if !is_alone() {
        return;
    }
    let (_server, port) = server();
    let before = named_threads();
    let a = joined(port, "a", 0);
    // A thread that was just started may not have its name yet.
    let become_threads = |expected: &[&str]| {
        eventually(|| {
            let is_new = |id: &String| before.iter().all(|(_, known)| known != id);
            let now = named_threads().into_iter().filter(|(_, id)| is_new(id));
            now.map(|(name, _)| name).collect::<Vec<_>>() == expected
        });
    };
    let four = ["rdzv-rpc-group", "rdzv-rpc-io", "rdzv-rpc-store", "rdzv-session"];
    become_threads(&four);
    // Neither calls nor other members of the group add any.
    a.register("pooled", Run::Pooled, |request, responder| _ = responder.answer(request.payload))
        .expect("free");
    let b = joined(port, "b", 1);
    let (notify, reported) = std::sync::mpsc::channel();
    for callee in ["a", "b"] {
        assert_eq!(a.call(callee, "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
        let notify = notify.clone();
        a.call_with(callee, "echo", b"y".to_vec(), None, move |result| drop(notify.send(result)))
            .expect("made");
        assert_eq!(reported.recv_timeout(SOON).expect("in time"), Ok(b"y".to_vec()));
        assert_eq!(b.call("a", "pooled", b"z".to_vec(), None), Ok(b"z".to_vec()));
    }
    become_threads(&four.map(|name| [name; 2]).concat());
    b.shutdown(Shutdown::Graceful).expect("it leaves");
    become_threads(&four);
}

#[test]
fn who_is_no_member_leaves_nothing() {
    if !is_alone() {
        return;
    }
    let (server, port) = server();
    let a = joined(port, "a", 0);
    let store_of = || store(port);
    let keys = || {
        let mut keys = store_of().list_keys(Timeout::Default).expect("listed");
        keys.sort_unstable();
        keys.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()).collect::<Vec<_>>()
    };
    let before = keys();
    let held = (open_descriptors(), threads());
    for (me, size, message) in [
        (worker("a", 5), None, "RPC worker name a is not unique."),
        (worker("x", 0), None, "RPC worker id 0 is not unique: a has it."),
        (worker("y", 3), Some(3), "The rank (3) must be less than the world size (3)."),
        (
            worker("z", 1),
            Some(3),
            "RPC group mixes statically and dynamically initialized members which is not supported. Static group \
             property is initialized as false and is trying to be set as true",
        ),
    ] {
        let error = start(&store_of(), me, size).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
    let mut bad = RpcOptions::new("tcp");
    bad.set_devices(&["cuda:0".parse().expect("a device")]).expect("an accelerator");
    let error = RpcAgent::start(&store_of(), worker("w", 4), None, &bad, &echoing()).expect_err("no device");
    let message = "Node w has devices with invalid indices: devices = [cuda:0], device count = 0";
    assert_eq!(error.to_string(), message);
    assert_eq!(names(&a), "a");
    // What its session held is released a moment later.
    eventually(|| keys().iter().all(|key| before.contains(key)));
    let holds = (open_descriptors(), threads());
    // The other may still have connections to them, and close them later.
    assert!(holds.0 <= held.0 + 8 && holds.1 <= held.1, "descriptors and threads: {held:?}, {holds:?}");
    drop(a);
    drop(server);
    let error = start(&store_of_nothing(), worker("a", 0), None).expect_err("no store");
    assert!(matches!(error, RpcInitError::Agent(_) | RpcInitError::Store(_)), "{error}");
}

fn store_of_nothing() -> Store {
    let (server, port) = server();
    let options = StoreOptions { connect_timeout: Duration::ZERO, ..StoreOptions::default() };
    let store = Store::connect("127.0.0.1", port, options).expect("connected");
    drop(server);
    store
}

#[test]
fn a_context_has_one_worker_at_a_time_and_the_url_says_where() {
    let context = RpcContext::default();
    let url = "tcp://127.0.0.1:0";
    let init = |name| {
        let mut options = RpcOptions::new("tcp");
        options.set_init_method(url).expect("a URL");
        options.set_extra(Box::new(echoing()));
        context.init(RpcInit { name, rank: Some(0), options: Some(options), ..RpcInit::default() })
    };
    let agent = init("first").expect("a member");
    assert_eq!(agent.me(), &worker("first", 0));
    let tcp = agent.tcp().expect("of the library's own backend");
    assert_eq!(tcp.call("first", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    assert_eq!(init("second").err().expect("one is there").to_string(), "RPC is already initialized");
    assert!(context.agent().is_some());
    context.shutdown(Shutdown::Graceful).expect("alone");
    assert!(context.agent().is_none());
    assert_eq!(context.shutdown(Shutdown::Graceful), Ok(()));

    // An attempt that fails half-way frees the slot.
    let error = init("no name!").err().expect("none").to_string();
    assert!(error.starts_with("Worker name must match"), "{error}");
    let mut nowhere = RpcOptions::new("tcp");
    nowhere.set_init_method("tcp://127.0.0.1").expect("a URL");
    let error = context.init(RpcInit { name: "w", options: Some(nowhere), ..RpcInit::default() });
    assert!(matches!(error, Err(RpcInitError::Rendezvous(_))));
    let mut meets = RpcOptions::new("tcp");
    meets.set_init_method("tcp://127.0.0.1:0").expect("a URL");
    for (options, message) in [
        (meets, "Error initializing torch.distributed using tcp:// rendezvous: rank parameter missing"),
        (
            RpcOptions::new("tcp"),
            "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but \
             not set",
        ),
        (
            RpcOptions::new("other"),
            "Argument backend must be a member of BackendType, got other; registered are [\"tcp\"]",
        ),
    ] {
        let error = context.init(RpcInit { name: "w", options: Some(options), ..RpcInit::default() });
        assert_eq!(error.err().expect("none").to_string(), message);
    }
    let again = init("again").expect("a member");
    drop(again);
    context.shutdown(Shutdown::Abrupt).expect("it wants to");
}

/// A backend that reports the store that it was given, and creates no worker.
#[derive(Debug, Default)]
struct OnRequest(std::sync::Mutex<Vec<(String, Duration)>>);

impl crate::driver::group::registry::RpcBackend for OnRequest {
    fn init_backend(
        &self,
        request: crate::driver::group::registry::InitRequest,
        _: RpcOptions,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
        let scope = String::from_utf8_lossy(request.store.scope()).into_owned();
        self.0.lock().expect("no panic").push((scope, request.store.timeout()));
        Err(RpcInitError::Rank { rank: -1 })
    }
}

#[test]
fn each_attempt_has_a_prefix_of_its_own_and_the_store_waits_as_long_as_calls() {
    let context = RpcContext::default();
    let curious = Arc::new(OnRequest::default());
    let backend: Arc<dyn crate::driver::group::registry::RpcBackend> =
        Arc::clone(&curious) as Arc<dyn crate::driver::group::registry::RpcBackend>;
    context.register("curious", backend).expect("free");
    let attempt = |init_method: &str, timeout| {
        let mut options = RpcOptions::new("curious");
        options.set_init_method(init_method).expect("a URL");
        options.set_rpc_timeout(timeout);
        let init = RpcInit { name: "w", rank: Some(0), options: Some(options), ..RpcInit::default() };
        context.init(init).map(drop).expect_err("it makes none")
    };
    attempt("tcp://127.0.0.1:0", Duration::from_secs(7));
    // Its rendezvous fails, so it does not count.
    assert!(matches!(attempt("tcp://127.0.0.1", Duration::from_secs(8)), RpcInitError::Rendezvous(_)));
    attempt("tcp://127.0.0.1:0", Duration::from_secs(9));
    let reported = core::mem::take(&mut *curious.0.lock().expect("no panic"));
    let reported: Vec<(&str, u64)> =
        reported.iter().map(|(scope, timeout)| (scope.as_str(), timeout.as_secs())).collect();
    assert_eq!(reported, [("/rpc_prefix_0/", 7), ("/rpc_prefix_1/", 9)]);
}

#[test]
fn a_context_has_one_worker_after_the_other_each_by_another_url() {
    let context = RpcContext::default();
    let (_server, port) = server();
    let folder = std::env::temp_dir().join(format!("rdzv-rpc-urls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = format!("file://{}", folder.join("store").display());
    for (url, rank) in [(format!("tcp://127.0.0.1:{port}"), 1), ("tcp://127.0.0.1:0".into(), 0), (file, 0)] {
        let mut options = RpcOptions::new("tcp");
        options.set_init_method(&url).expect("a URL");
        options.set_extra(Box::new(echoing()));
        let init = RpcInit { name: "w", rank: Some(rank), options: Some(options), ..RpcInit::default() };
        let agent = context.init(init).unwrap_or_else(|error| panic!("{url}: {error}"));
        let tcp = agent.tcp().expect("of tcp");
        assert_eq!(tcp.call("w", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
        assert_eq!(context.shutdown(Shutdown::Graceful), Ok(()));
    }
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn devices_are_of_whatever_kind_the_group_counts() {
    let (_server, port) = server();
    let device = |text: &str| text.parse::<crate::device::Device>().expect("a device");
    let mut options = RpcOptions::new("tcp");
    options.set_devices(&[device("xpu:1"), device("xpu:0")]).expect("accelerators");
    let pairs = [(device("xpu:1"), device("xpu:0"))];
    options.set_device_map(&worker("a", 0).name, pairs).expect("one to one");
    let start = |kind: &str| {
        let accelerator = crate::device::DeviceKind::new(kind).expect("a kind");
        let local = TcpOptions { accelerator, device_count: 2, ..echoing() };
        RpcAgent::start(&store(port), worker("a", 0), None, &options, &local)
    };
    let agent = start("xpu").expect("a member");
    assert_eq!(agent.devices(), [device("xpu:0"), device("xpu:1")]);
    assert_eq!(
        agent.reverse_maps().get("a").map(|map| map.iter().collect::<Vec<_>>()),
        Some(alloc::vec![(device("xpu:0"), device("xpu:1"))])
    );
    agent.shutdown(Shutdown::Graceful).expect("alone");
    let error = start("cuda").expect_err("another kind").to_string();
    let message = "Node a has devices with invalid indices: devices = [xpu:1, xpu:0], device count = 2";
    assert_eq!(error, message);
}

#[test]
fn over_a_store_that_is_there_a_worker_is_made_and_ended_by_whoever_has_it() {
    let (_server, port) = server();
    let over = Arc::new(NodeStore::new(store(port), None));
    let (context, options) = (RpcContext::default(), RpcOptions::new("tcp"));
    let init = |name: &'static str, rank| RpcInit {
        name,
        rank,
        options: Some(options.clone()),
        ..RpcInit::default()
    };
    let error = context.init_over(Arc::clone(&over), init("first", None)).map(drop).expect_err("no rank");
    assert_eq!(error.to_string(), "the rank -1 is not a worker's number: those are from 0 to 65535");
    let first = context.init_over(Arc::clone(&over), init("first", Some(1))).expect("a member");
    let agent = first.tcp().expect("of tcp");
    assert!(agent.next_event(Duration::ZERO, &CancelToken::new()).is_none() && agent.end().is_none());
    thread::scope(|scope| {
        // A wait for an event ends with the membership.
        let waiting = scope.spawn(|| agent.next_event(SOON * 100, &CancelToken::new()));
        assert_eq!(context.end(&first, Shutdown::Graceful), Ok(()));
        assert_eq!(waiting.join().expect("no panic"), None);
    });
    assert_eq!(agent.end(), Some(Ok(())));
    let second = context.init_over(over, init("second", Some(2))).expect("a member");
    // The first one has ended, and the second one is not affected.
    assert_eq!(context.end(&first, Shutdown::Abrupt), Ok(()));
    assert!(context.agent().is_some_and(|agent| Arc::ptr_eq(&agent, &second)));
    assert_eq!(context.shutdown(Shutdown::Graceful), Ok(()));
    assert!(context.agent().is_none());
}

#[test]
fn a_static_group_hears_its_members_only() {
    let (_server, port) = server();
    let group = store(port);
    let agent = start(&group, worker("a", 0), Some(1)).expect("a member");
    let (host, port) = agent.address().rsplit_once(':').expect("host and port");
    for (me, message) in [
        (worker("a", 5), "a (id 5) claims to be a (id 0)"),
        (worker("x", 0), "x (id 0) claims to be a (id 0)"),
        (worker("x", 7), "x (id 7) is not a member of this group"),
    ] {
        let client = LoneClient::new(RpcClientOptions {
            me,
            group: greeting(&group),
            limits: RpcLimits::default(),
            keep_alive: None,
            tls: None,
            token: None,
        });
        let client = client.expect("a client");
        let peer = client.peer(agent.me(), host, port.parse().expect("a port")).expect("a peer");
        let error =
            peer.call(Call::of("echo").with_timeout(SOON), &b"x"[..]).expect_err("refused").to_string();
        assert!(error.ends_with(message), "{error}");
    }
    agent.shutdown(Shutdown::Graceful).expect("alone");
}

/// Returns the group id with which workers identify themselves.
fn greeting(group: &Store) -> Vec<u8> {
    let id = group.get_owned(b"rdzv/group", Timeout::Default).expect("it is there");
    [group.scope(), b"#", &id].concat()
}

#[test]
fn whoever_was_heard_before_a_static_group_was_complete_is_heard_no_more() {
    let (_server, port) = server();
    let group = store(port);
    thread::scope(|scope| {
        let (notify, reported) = std::sync::mpsc::channel();
        let (group, notify) = (&group, &notify);
        let begin = |name: &'static str, id| {
            let notify = notify.clone();
            scope.spawn(move || notify.send(start(group, worker(name, id), Some(2))).ok())
        };
        begin("a", 0);
        let address = group.get_owned(b"addrs/a", Timeout::After(SOON)).expect("it is there");
        let address = String::from_utf8(address).expect("text");
        let (host, port) = address.rsplit_once(':').expect("host and port");
        let client = LoneClient::new(RpcClientOptions {
            me: worker("x", 7),
            group: greeting(group),
            limits: RpcLimits::default(),
            keep_alive: None,
            tls: None,
            token: None,
        });
        let client = client.expect("a client");
        let peer = client.peer(&worker("a", 0), host, port.parse().expect("a port")).expect("a peer");
        // The members are not known yet.
        peer.call(Call::of("who").with_timeout(SOON), &b""[..]).expect("it is admitted");
        begin("b", 1);
        let agents: Vec<RpcAgent> =
            (0..2).map(|_| reported.recv_timeout(SOON).expect("in time").expect("a member")).collect();
        let error = peer.call(Call::of("who").with_timeout(SOON), &b""[..]).expect_err("refused").to_string();
        assert!(!error.contains("deadline"), "{error}");
        let error = peer.call(Call::of("who").with_timeout(SOON), &b""[..]).expect_err("refused").to_string();
        assert!(error.ends_with("x (id 7) is not a member of this group"), "{error}");
        drop(agents);
    });
}

#[test]
fn workers_of_other_groups_beneath_the_same_prefix_are_not_called() {
    let ((_server, port), (_others, other_port)) = (server(), server());
    let (a, b) = (joined(port, "a", 0), joined(other_port, "b", 1));
    let (host, to) = b.address().rsplit_once(':').expect("host and port");
    for (group, is_heard) in [(store(port), false), (store(other_port), true)] {
        let client = LoneClient::new(RpcClientOptions {
            me: a.me().clone(),
            group: greeting(&group),
            limits: RpcLimits::default(),
            keep_alive: None,
            tls: None,
            token: None,
        });
        let client = client.expect("a client");
        let peer = client.peer(b.me(), host, to.parse().expect("a port")).expect("a peer");
        let answer = peer.call(Call::of("who").with_timeout(SOON), &b""[..]);
        assert_eq!(answer.is_ok(), is_heard, "{answer:?}");
    }
}

#[test]
fn an_observer_sees_who_comes_and_goes() {
    let (_server, port) = server();
    let observer = GroupObserver::start(&store(port), ObserverOptions::default()).expect("it looks");
    let next = || observer.next(SOON, &CancelToken::new()).expect("it sees").expect("something");
    let a = joined(port, "a", 0);
    assert_eq!(next(), Observation::Begun(crate::device_map::GroupKind::Dynamic));
    let Observation::Joined(seen) = next() else { panic!("it came") };
    assert_eq!((seen.worker, &*seen.address), (worker("a", 0), a.address()));
    let b = joined(port, "b", 1);
    assert!(matches!(next(), Observation::Joined(seen) if seen.worker == worker("b", 1)));
    a.shutdown(Shutdown::Graceful).expect("it leaves");
    assert_eq!(next(), Observation::Left(worker("a", 0)));
    assert_eq!(observer.seen().len(), 1);
    drop(b);
}

#[test]
fn a_graceful_end_waits_for_calls_and_an_abrupt_one_ends_them() {
    let (_server, port) = server();
    let a = joined(port, "a", 0);
    let b = joined(port, "b", 1);
    let (held, holds) = std::sync::mpsc::channel();
    b.register("hold", Run::Inline, move |_, responder| held.send(responder).expect("received"))
        .expect("free");
    let pending = a.start_call("b", "hold", Vec::new(), Some(SOON)).expect("made");
    let responder = holds.recv_timeout(SOON).expect("it is asked");
    thread::scope(|scope| {
        let (reported, ended) = std::sync::mpsc::channel();
        let a = &a;
        scope.spawn(move || reported.send(a.shutdown(Shutdown::Graceful)).ok());
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err(), "its call is under way");
        responder.answer(b"at last".to_vec());
        assert_eq!(pending.wait(), Ok(b"at last".to_vec()));
        assert_eq!(ended.recv_timeout(SOON).expect("it ends"), Ok(()));
    });
    let c = joined(port, "c", 2);
    let pending = c.start_call("b", "hold", Vec::new(), Some(SOON)).expect("made");
    let responder = holds.recv_timeout(SOON).expect("it is asked");
    c.shutdown(Shutdown::Abrupt).expect("it wants to");
    assert_eq!(failure(pending.wait()), CallFailure::CallerEnded("this worker was shut down".into()));
    drop(responder);
}

#[test]
fn without_sessions_a_death_is_found_by_whoever_comes_next() {
    let folder = std::env::temp_dir().join(format!("rdzv-rpc-group-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("store");
    let open = || {
        let options = rendezvous_core::driver::file_store::FileStoreOptions::default();
        Store::open_file(&path, options).expect("a file").with_prefix(b"rpc_prefix_0")
    };
    let join = |name: &str, id| start(&open(), worker(name, id), None).expect("a member");
    let (a, b) = (join("a", 0), join("b", 1));
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("b", 1)));
    assert_eq!(a.call("b", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    drop(b);
    let error = a.call("b", "echo", Vec::new(), None).expect_err("no worker is there").to_string();
    assert!(error.starts_with("echo at b (id 1, 127.0.0.1:"), "{error}");
    let why = "no worker is at its address".into();
    assert_eq!(next_event(&a), GroupEvent::PeerDied { worker: worker("b", 1), why });
    let error = a.call("b", "echo", Vec::new(), None).expect_err("it is dead").to_string();
    assert_eq!(error, "b (id 1) is dead: no worker is at its address");
    assert_eq!(names(&a), "a b", "the next worker that joins strikes it out");
    let c = join("c", 2);
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("c", 2)));
    assert_eq!((names(&a).as_str(), names(&c).as_str()), ("a c", "a c"));
    c.shutdown(Shutdown::Graceful).expect("it leaves");
    a.shutdown(Shutdown::Graceful).expect("it leaves");
    std::fs::remove_dir_all(&folder).ok();
}

#[test]
fn a_group_goes_on_without_the_server_and_hears_that_deaths_are_told_no_more() {
    let (server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("b", 1)));
    drop(server);
    for agent in [&a, &b] {
        let event = next_event(agent);
        let GroupEvent::WatchLost { why } = &event else { panic!("{event:?}") };
        assert!(why.contains("127.0.0.1"), "{why}");
    }
    assert_eq!(a.call("b", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    assert_eq!((a.next_event(Duration::from_millis(1), &CancelToken::new()), a.end()), (None, None));
    drop(b);
    let error = a.call("b", "echo", Vec::new(), None).expect_err("no worker is there").to_string();
    assert!(error.starts_with("echo at b (id 1, 127.0.0.1:"), "{error}");
    assert_eq!(a.shutdown(Shutdown::Abrupt), Ok(()));
}

#[test]
fn a_static_group_that_loses_a_worker_says_who() {
    let (_server, port) = server();
    let (reported, last_received_at) = std::sync::mpsc::channel();
    for id in 0..3_u16 {
        let reported = reported.clone();
        thread::spawn(move || {
            let agent = start(&store(port), worker(&format!("w{id}"), id), Some(3));
            reported.send(agent.map_err(|error| error.to_string())).ok();
        });
    }
    let mut agents: Vec<RpcAgent> =
        (0..3).map(|_| last_received_at.recv_timeout(SOON).expect("in time").expect("a member")).collect();
    agents.sort_by_key(|agent| agent.me().id);
    drop(agents.pop());
    for agent in &agents {
        let why = "its session with the store's server ended".into();
        assert_eq!(next_event(agent), GroupEvent::PeerDied { worker: worker("w2", 2), why });
        let error = agent.shutdown(Shutdown::Graceful).expect_err("not all can agree").to_string();
        assert_eq!(
            error,
            "w2 (id 2) died while the group was ending: its session with the store's server ended"
        );
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a list").count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("a list").count()
}

#[test]
fn a_thousand_workers_come_and_go_and_leave_nothing() {
    if !is_alone() {
        return;
    }
    // It keeps little history, so that its growth is not counted.
    let mut options = ServerOptions::on("127.0.0.1", 0);
    options.limits.history.changes_max = 256;
    let server = Server::start(options).expect("a server");
    let port = server.local_addr().port();
    let base = store(port);
    let first = joined(port, "first", 0);
    let once = |number: u32| {
        let agent = start(&base, worker("guest", 1), None).expect("a member");
        assert_eq!(agent.call("first", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
        if number.is_multiple_of(8) {
            drop(agent);
        } else {
            agent.shutdown(Shutdown::Graceful).expect("it leaves");
        }
        while first.next_event(Duration::ZERO, &CancelToken::new()).is_some() {}
    };
    // What is created once and kept exists now.
    (0..200).for_each(once);
    let heap_bytes = held_bytes();
    let keys = base.num_keys(Timeout::Default).expect("counted");
    let (descriptors, tasks) = (open_descriptors(), threads());
    (0..1000).for_each(once);
    let grown = (
        base.num_keys(Timeout::Default).expect("counted") - keys,
        open_descriptors().saturating_sub(descriptors),
        threads().saturating_sub(tasks),
    );
    assert!(grown.0 <= 2 && grown.1 <= 8 && grown.2 <= 4, "keys, descriptors and threads: {grown:?}");
    let grown = held_bytes().saturating_sub(heap_bytes);
    assert!(grown <= 512 * 1000, "{grown} bytes of a thousand workers are kept");
    assert_eq!(first.events_lost(), 0);
}

/// Bytes that were allocated and not freed.
fn held_bytes() -> usize {
    // SAFETY: it reads counters.
    unsafe { libc::mallinfo2() }.uordblks
}
