//! Attempts to become a worker that another thread cancels.

use super::*;
use crate::agent::READY_HANDLER;
use crate::driver::group::store_connection::CancelGuard;
use crate::handlers::Owner;
use crate::membership::error::MembershipError;
use core::net::SocketAddr;
use rendezvous_core::driver::canceller::Canceller;
use rendezvous_core::driver::rendezvous::ReservedPort;
use socket2::{Domain, Socket, Type};
use std::sync::mpsc::channel;

const CANCELLED: RpcInitError = RpcInitError::Agent(AgentError::Membership(MembershipError::Cancelled));

/// Returns why there is no worker when another thread cancels as soon as `is_there` says so. It ends whatever fails.
fn cancelled(
    canceller: &Canceller,
    make: impl FnOnce() -> Result<(), RpcInitError> + Send,
    is_there: impl FnOnce(),
) -> String {
    /// An operation that has not begun is not cancelled.
    struct Press<'a>(&'a Canceller, std::sync::mpsc::Receiver<()>);
    impl Drop for Press<'_> {
        fn drop(&mut self) {
            self.0.cancel();
            while self.1.recv_timeout(Duration::from_millis(20)).is_err() {
                self.0.cancel();
            }
        }
    }
    thread::scope(|scope| {
        let (ended, ends) = channel();
        let making = scope.spawn(move || {
            let made = make();
            ended.send(()).ok();
            made
        });
        let interrupt = Press(canceller, ends);
        is_there();
        drop(interrupt);
        making.join().expect("no panic").expect_err("cancelled").to_string()
    })
}

fn await_key(store: &Store, key: &str) {
    store.wait(&[key.as_bytes()], Timeout::After(SOON)).expect("it comes");
}

#[test]
fn the_rendezvous_of_a_worker_is_cancelled() {
    let mute = ReservedPort::take().expect("a port");
    let nobody = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    nobody.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let refuses = nobody.local_addr().expect("bound").as_socket().expect("of IP").port();
    // A store that accepts connections and does not respond; one that is not started yet; and a group that no other
    // worker joins.
    for (url, rank, size) in [
        (format!("tcp://127.0.0.1:{}", mute.port()), 1, None),
        (format!("tcp://127.0.0.1:{refuses}"), 1, None),
        ("tcp://127.0.0.1:0".to_string(), 0, Some(2)),
    ] {
        let (context, canceller) = (RpcContext::default(), Canceller::default());
        let mut options = RpcOptions::new("tcp");
        options.set_init_method(&url).expect("a URL");
        let init = || {
            let (options, canceller) = (Some(options), canceller.clone());
            let init = RpcInit {
                name: "w",
                rank: Some(rank),
                world_size: size,
                options,
                canceller,
                ..RpcInit::default()
            };
            context.init(init).map(drop)
        };
        let message = cancelled(&canceller, init, || {});
        assert!(message.contains("cancel"), "{url}: {message}");
        assert!(context.agent().is_none());
    }
}

#[test]
fn a_worker_that_joins_is_cancelled_and_takes_back_what_it_said() {
    let (_server, port) = server();
    let over = Arc::new(NodeStore::new(store(port), None));
    let (context, canceller) = (RpcContext::default(), Canceller::default());
    let init = |over: &Arc<NodeStore>, world_size| {
        let (options, canceller) = (Some(RpcOptions::new("tcp")), canceller.clone());
        let init = RpcInit { name: "w", rank: Some(1), world_size, options, canceller, ..RpcInit::default() };
        context.init_over(Arc::clone(over), init).map(drop)
    };
    let keys = |store: &Store| {
        let mut keys = store.list_keys(Timeout::Default).expect("listed");
        keys.sort_unstable();
        keys.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()).collect::<Vec<_>>()
    };
    // A member of PyTorch has the token, and keeps it.
    let group = store(port);
    group.set(b"rpcIsStaticGroup", b"false", Timeout::Default).expect("set");
    group.set(b"RpcGroupManagementToken", b"Token_for_x_join", Timeout::Default).expect("set");
    let (before, liveness_key) = (keys(&group), "Token_for_w_join_alive");
    let message = cancelled(&canceller, || init(&over, None), || await_key(&group, liveness_key));
    assert_eq!(message, CANCELLED.to_string());
    let left: Vec<String> = keys(&group).into_iter().filter(|key| !before.contains(key)).collect();
    // The group id stays for the next member.
    assert_eq!(left, ["rdzv/group"]);
    assert!(context.agent().is_none());

    // It waits for the others of a static group.
    let fixed =
        Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected").with_prefix(b"fixed");
    let over = Arc::new(NodeStore::new(fixed.duplicate().expect("connected"), None));
    let message = cancelled(&canceller, || init(&over, Some(2)), || await_key(&fixed, "rdzv/cards/1"));
    assert_eq!(message, CANCELLED.to_string());
    assert!(keys(&fixed).iter().all(|key| !key.starts_with("rdzv/alive/")), "{:?}", keys(&fixed));
}

#[test]
fn a_worker_that_makes_sure_of_the_others_is_cancelled() {
    let (_server, port) = server();
    let (first, handling) = (store(port), Handling::new(1));
    let local = TcpOptions { handling: Some(Arc::clone(&handling)), ..TcpOptions::default() };
    let (reported, last_received_at) = channel();
    thread::spawn(move || {
        let agent = RpcAgent::start(&first, worker("a", 0), Some(2), &RpcOptions::new("tcp"), &local);
        reported.send(agent.map(drop).map_err(|error| error.to_string())).ok();
    });
    let group = store(port);
    await_key(&group, "rdzv/cards/0");
    // The leader does not get the calls of ready members.
    let (held, holds) = channel();
    assert!(handling.remove_as(Owner::Library, READY_HANDLER));
    let hold = move |_, responder| _ = held.send(responder);
    handling.register_as(Owner::Library, READY_HANDLER, Run::Inline, Box::new(hold)).expect("free");
    let canceller = Canceller::default();
    let tcp = TcpOptions { call: Some(canceller.begin()), ..TcpOptions::default() };
    let make = || RpcAgent::start(&group, worker("b", 1), Some(2), &RpcOptions::new("tcp"), &tcp).map(drop);
    let mut unanswered = None;
    let message =
        cancelled(&canceller, make, || unanswered = Some(holds.recv_timeout(SOON).expect("it asks")));
    assert_eq!(message, CANCELLED.to_string());
    drop(unanswered);
    let message = "b (id 1) died while the group was starting: it gave up before the others were ready";
    assert_eq!(last_received_at.recv_timeout(SOON).expect("it ends"), Err(message.to_string()));
}

#[test]
fn a_call_that_was_cancelled_before_makes_no_worker() {
    let (_server, port) = server();
    let canceller = Canceller::default();
    let tcp = TcpOptions { call: Some(canceller.begin()), ..TcpOptions::default() };
    canceller.cancel();
    for size in [None, Some(1)] {
        let error = RpcAgent::start(&store(port), worker("a", 0), size, &RpcOptions::new("tcp"), &tcp);
        assert_eq!(error.expect_err("cancelled").to_string(), CANCELLED.to_string());
    }
    assert_eq!(store(port).num_keys(Timeout::Default).expect("counted"), 0);
}

/// A cancellation between two operations of a store ends the next one.
#[test]
fn a_call_of_the_store_that_begins_just_after_it_was_cancelled_ends() {
    let (_server, port) = server();
    let (store, canceller) = (Arc::new(store(port)), Canceller::default());
    let call = canceller.begin();
    let cancel_guard = CancelGuard::begin(&store, &call);
    store.set(b"key", b"value", Timeout::Default).expect("not cancelled");
    canceller.cancel();
    let error = store.wait(&[b"never"], Timeout::After(SOON)).expect_err("it ends");
    assert_eq!(error.kind(), rendezvous_core::error::ErrorKind::Cancelled, "{error}");
    drop(cancel_guard);
    // Only this keeps the store now.
    while Arc::strong_count(&store) > 1 {
        thread::yield_now();
    }
    store.set(b"key", b"value", Timeout::Default).expect("it is pressed no more");
}
