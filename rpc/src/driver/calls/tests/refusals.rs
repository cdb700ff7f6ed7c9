//! What a worker reports of connections and calls that it refuses.

use super::frames::greeting;
use super::*;

#[test]
fn refused_connections_and_calls_are_reported_on_one_line_each() {
    let (notify, reported) = channel();
    let observer = RefusalObserver::new(move |event| _ = notify.send(event.to_string()));
    let scene = scene_with(RpcServerOptions { observer, ..server_options() }, client_options());
    let port = scene.server.local_addr().port();
    let reports = |beginning: &str, end: &str| {
        let text = reported.recv_timeout(SOON).expect("it is reported");
        assert!(text.starts_with(beginning) && text.ends_with(end), "{text}");
        assert!(text.contains(" from 127.0.0.1:") && !text.contains('\n'), "{text}");
    };
    assert!(scene.call("none\nsuch", b"").is_err());
    reports("call of a (id 1) from ", " to none\\nsuch refused: there is no such handler");
    // The caller of a one-way call gets nothing.
    scene.peer.notify(Call::of("none"), &b""[..], None).expect("made");
    reports("call of a (id 1) from ", " to none refused: there is no such handler");

    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    reports("connection from ", " refused: the connection does not begin with RRPC");
    for (options, beginning, end) in [
        (
            RpcClientOptions { group: b"other".to_vec(), ..client_options() },
            "connection of a (id 1) from ",
            " refused: it belongs to another group",
        ),
        (
            RpcClientOptions { me: worker("c", 3), ..client_options() },
            "connection of c (id 3) from ",
            " refused: the caller is not a known member: no worker c here",
        ),
    ] {
        let client = LoneClient::new(options).expect("descriptors");
        let peer = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
        assert!(peer.call(Call::of("echo").with_timeout(SOON), &b""[..]).is_err());
        reports(beginning, end);
    }
    // A worker that is called and leaves, or dies, refuses nothing.
    assert!(scene.call("echo", b"").is_ok());
    assert!(scene.server.leave(SOON));
    assert_eq!(reported.try_recv().ok(), None);
}

#[test]
fn callers_that_do_not_greet_keep_no_other_out() {
    let (notify, reported) = channel();
    let observer = RefusalObserver::new(move |event| _ = notify.send(event.to_string()));
    let ungreeted = UngreetedLimits { count_max: 4, time_min: Duration::from_millis(20) };
    let connections = ConnectionLimits { count_max: 5, ungreeted };
    let limits = RpcLimits { greeting_timeout: Duration::from_secs(3600), ..RpcLimits::default() };
    let options = RpcServerOptions { observer, connections, limits, ..server_options() };
    let scene = scene_with(options, client_options());
    assert!(scene.call("echo", b"").is_ok());
    let dial = || {
        let stream = TcpStream::connect(scene.server.local_addr()).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        stream
    };
    let is_reported = |why: &str| {
        let text = reported.recv_timeout(SOON).expect("it is reported");
        assert!(text.starts_with("connection from 127.0.0.1:") && text.ends_with(why), "{text}");
    };
    let displaced = " refused: no greeting yet, and another caller needed the connection";
    let mut strangers: Vec<_> = (0..20).map(|_| dial()).collect();
    (0..16).for_each(|_| is_reported(displaced));
    assert_eq!(strangers[0].read(&mut [0]).expect("its end"), 0, "the oldest");
    assert!(scene.server.held().2 <= 5);
    // All connections are in use. Callers that greet take the places of those that do not.
    let members: Vec<_> = (0..4).map(|_| greeting(&scene)).collect();
    (0..4).for_each(|_| is_reported(displaced));
    let _late = dial();
    is_reported(" refused: too many connections (the limit is 5)");
    assert!(scene.call("echo", b"").is_ok());
    drop(members);
    scene.until_idle(1);
}
