//! What ends with a worker's session, and what continues without it.

use super::*;
use std::sync::mpsc::channel;

/// The keys of the group, without those that every group leaves.
fn keys_left(port: u16) -> Vec<String> {
    let mut keys = store(port).list_keys(Timeout::Default).expect("listed");
    keys.sort_unstable();
    let keys = keys.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned());
    let of_all = ["RpcGroupManagementToken", "names/_ALL_WORKER_INFOS", "rdzv/group", "rpcIsStaticGroup"];
    keys.filter(|key| !of_all.contains(&key.as_str())).collect()
}

#[test]
fn nothing_of_a_worker_stays_in_the_store_when_it_has_ended() {
    let (_server, port) = server();
    let (a, b, c) = (joined(port, "a", 0), joined(port, "b", 1), joined(port, "c", 2));
    b.shutdown(Shutdown::Graceful).expect("it leaves");
    eventually(|| keys_left(port).iter().all(|key| !key.contains("/b") && !key.contains("_b_")));
    // A worker that ends abruptly is struck out by the next one that joins or leaves.
    c.shutdown(Shutdown::Abrupt).expect("it wants to");
    while !matches!(next_event(&a), GroupEvent::PeerDied { .. }) {}
    a.shutdown(Shutdown::Graceful).expect("it leaves");
    eventually(|| keys_left(port).is_empty());
}

#[test]
fn a_worker_whose_session_ended_leaves_gracefully() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("b", 1)));
    drop(b.drop_liveness());
    assert!(matches!(next_event(&a), GroupEvent::PeerDied { .. }));
    assert_eq!(b.call("a", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()), "the group goes on");
    assert_eq!(b.shutdown(Shutdown::Graceful), Ok(()));
    assert_eq!(names(&a), "a");
    let listed = store(port).get_owned(b"names/_ALL_WORKER_INFOS", Timeout::Once).expect("it is there");
    assert_eq!(listed, b"a-0,");
}

/// Its session has ended, and the thread of its connections does nothing.
fn frozen(port: u16, a: &RpcAgent, b: &RpcAgent) -> std::sync::mpsc::Sender<()> {
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let (notify, is_stuck) = channel();
    let stuck = move |_, _| {
        notify.send(()).ok();
        may_go_on.lock().expect("no panic").recv_timeout(SOON * 5).ok();
    };
    b.register("stuck", Run::Inline, stuck).expect("free");
    a.notify("b", "stuck", Vec::new(), None).expect("made");
    is_stuck.recv_timeout(SOON).expect("asked");
    drop(b.drop_liveness());
    while !matches!(next_event(a), GroupEvent::PeerDied { .. }) {}
    eventually(|| !keys_left(port).iter().any(|key| key.starts_with("rdzv/alive/b/")));
    go_on
}

#[test]
fn a_frozen_member_holds_up_nobody_who_comes_or_goes() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let go_on = frozen(port, &a, &b);
    let began = std::time::Instant::now();
    let c = joined(port, "c", 2);
    assert_eq!((names(&c).as_str(), names(&a).as_str()), ("a c", "a c"));
    let again = joined(port, "b", 1);
    assert_eq!(a.call("b", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    c.shutdown(Shutdown::Graceful).expect("it leaves");
    // No handshake is waited for, which takes 10 s; the rest of the time is for slow machines.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    drop((go_on, again));
}

#[test]
fn who_leaves_does_not_wait_for_a_frozen_member() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let go_on = frozen(port, &a, &b);
    let began = std::time::Instant::now();
    a.shutdown(Shutdown::Graceful).expect("it leaves");
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    eventually(|| keys_left(port).is_empty());
    drop((go_on, b));
}
