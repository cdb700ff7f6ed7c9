//! Attempts to become a worker that another thread cancels.

use super::*;
use crate::agent::READY_HANDLER;
use crate::handlers::{Callers, Owner};
use crate::membership::error::MembershipError;
use core::net::SocketAddr;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::rendezvous::ReservedPort;
use socket2::{Domain, Socket, Type};
use std::sync::mpsc::channel;

const CANCELLED: RpcInitError = RpcInitError::Agent(MembershipError::Cancelled);

/// Returns why there is no worker when another thread cancels as soon as `is_there` says so. It ends whatever fails.
fn cancelled(
    token: &CancelToken,
    make: impl FnOnce() -> Result<(), RpcInitError> + Send,
    is_there: impl FnOnce(),
) -> String {
    struct CancelOnDrop<'a>(&'a CancelToken);
    impl Drop for CancelOnDrop<'_> {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    thread::scope(|scope| {
        let making = scope.spawn(make);
        let cancel = CancelOnDrop(token);
        is_there();
        drop(cancel);
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
        let (context, token) = (RpcContext::default(), CancelToken::new());
        let mut options = RpcOptions::new("tcp");
        options.set_init_method(&url).expect("a URL");
        let init = || {
            let (options, token) = (Some(options), token.clone());
            let init = RpcInit {
                name: "w",
                rank: Some(rank),
                world_size: size,
                options,
                token,
                ..RpcInit::default()
            };
            context.init(init).map(drop)
        };
        let message = cancelled(&token, init, || {});
        assert!(message.contains("cancel"), "{url}: {message}");
        assert!(context.agent().is_none());
    }
}

#[test]
fn a_worker_that_joins_is_cancelled_and_takes_back_what_it_said() {
    let (_server, port) = server();
    let over = Arc::new(NodeStore::new(store(port), None));
    let (context, token) = (RpcContext::default(), CancelToken::new());
    let init = |over: &Arc<NodeStore>, world_size, token: &CancelToken| {
        let (options, token) = (Some(RpcOptions::new("tcp")), token.clone());
        let init = RpcInit { name: "w", rank: Some(1), world_size, options, token, ..RpcInit::default() };
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
    let message = cancelled(&token, || init(&over, None, &token), || await_key(&group, liveness_key));
    assert_eq!(message, CANCELLED.to_string());
    let left: Vec<String> = keys(&group).into_iter().filter(|key| !before.contains(key)).collect();
    // The group id stays for the next member.
    assert_eq!(left, ["rdzv/group"]);
    assert!(context.agent().is_none());

    // It waits for the others of a static group.
    let fixed =
        Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected").with_prefix(b"fixed");
    let over = Arc::new(NodeStore::new(fixed.duplicate().expect("connected"), None));
    let token = CancelToken::new();
    let message = cancelled(&token, || init(&over, Some(2), &token), || await_key(&fixed, "rdzv/cards/1"));
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
    handling
        .register_as((Owner::Library, Callers::default()), READY_HANDLER, Run::Inline, Box::new(hold))
        .expect("free");
    let token = CancelToken::new();
    let tcp = TcpOptions { token: token.clone(), ..TcpOptions::default() };
    let make = || RpcAgent::start(&group, worker("b", 1), Some(2), &RpcOptions::new("tcp"), &tcp).map(drop);
    let mut unanswered = None;
    let message = cancelled(&token, make, || unanswered = Some(holds.recv_timeout(SOON).expect("it asks")));
    assert_eq!(message, CANCELLED.to_string());
    drop(unanswered);
    let message = "b (id 1) died while the group was starting: it gave up before the others were ready";
    assert_eq!(last_received_at.recv_timeout(SOON).expect("it ends"), Err(message.to_string()));
}

#[test]
fn a_call_that_was_cancelled_before_makes_no_worker() {
    let (_server, port) = server();
    let tcp = TcpOptions::default();
    tcp.token.cancel();
    for size in [None, Some(1)] {
        let error = RpcAgent::start(&store(port), worker("a", 0), size, &RpcOptions::new("tcp"), &tcp);
        assert_eq!(error.expect_err("cancelled").to_string(), CANCELLED.to_string());
    }
    assert_eq!(store(port).num_keys(Timeout::Default).expect("counted"), 0);
}
