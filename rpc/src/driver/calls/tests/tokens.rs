//! Calls between workers that prove a token.

use super::*;
use crate::driver::testing::TemporaryFolder;
use rendezvous_core::driver::token_file::ClientToken;
use std::path::PathBuf;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

/// Token files of two workers.
struct Files(TemporaryFolder, RefusalObserver);

impl Files {
    fn new(name: &str) -> Self {
        Self(TemporaryFolder::new(name), RefusalObserver::default())
    }

    /// Replaces a file, which changes it however soon that is after the last time.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, fresh) = (self.0.path().join(name), self.0.path().join("fresh"));
        std::fs::write(&fresh, text).expect("written");
        std::fs::rename(&fresh, &path).expect("replaced");
        path
    }

    fn token(&self, name: &str, text: Option<&str>) -> Option<Arc<GroupToken>> {
        let token = ClientToken::open(&self.write(name, text?)).expect("a token");
        Some(Arc::new(GroupToken::new(token, self.1.clone())))
    }

    fn scene(&self, callee: Option<&str>, caller: Option<&str>) -> Scene {
        let server = RpcServerOptions { token: self.token("callee", callee), ..server_options() };
        scene_with(server, RpcClientOptions { token: self.token("caller", caller), ..client_options() })
    }
}

#[test]
fn a_worker_that_other_hosts_may_reach_without_a_token_says_so_once() {
    let files = Files::new("rpc-exposed");
    let listen = |host: &str| Listen::Address { host: host.to_string(), port: 0, family: Family::AsGiven };
    for (host, token, is_told) in [
        ("0.0.0.0", None, true),
        ("::", None, true),
        ("0.0.0.0", Some(SECRET), false),
        ("127.0.0.1", None, false),
        ("::1", None, false),
    ] {
        let (notify, reported) = channel();
        let observer = RefusalObserver::new(move |event| _ = notify.send(event.to_string()));
        let token = files.token("callee", token);
        let options = RpcServerOptions { listen: listen(host), observer, token, ..server_options() };
        let scene = scene_with(options, client_options());
        if !is_told {
            assert_eq!(reported.try_recv().ok(), None, "{host}");
            continue;
        }
        let text = reported.try_recv().expect("a warning");
        let addr = scene.server.local_addr();
        assert!(text.starts_with(&format!("{addr} is not a loopback address")), "{text}");
        assert!(text.contains("auth_token_file") && text.ends_with("(host)"), "{text}");
        assert_eq!(reported.try_recv().ok(), None, "once");
    }
}

#[test]
fn workers_with_one_token_call_each_other_and_others_are_refused_with_the_reason() {
    let files = Files::new("rpc-tokens");
    for (callee, caller, reason) in [
        (Some(SECRET), Some(SECRET), None),
        (None, None, None),
        (Some(SECRET), None, Some("refused: it requires a token, and the caller has none")),
        (Some(SECRET), Some(OTHER), Some("refused: the caller has not proven its token")),
        (None, Some(SECRET), Some("it has not proven this worker's token, so nothing was sent to it")),
    ] {
        let scene = files.scene(callee, caller);
        let result = scene.call("echo", b"x");
        match reason {
            None => assert!(result == Ok(b"x".to_vec()), "{callee:?} {caller:?}"),
            Some(reason) => {
                let text = message(result);
                assert!(text.starts_with("echo at b (id 2)") && text.contains(reason), "{text}");
                assert!(text.ends_with("give all workers the same auth_token_file"), "{text}");
            }
        }
    }
}

#[test]
fn a_changed_file_holds_for_the_next_connection() {
    let files = Files::new("rpc-token-changes");
    let scene = files.scene(Some(SECRET), Some(OTHER));
    assert!(scene.call("echo", b"x").is_err());
    files.write("caller", SECRET);
    assert!(scene.call("echo", b"x") == Ok(b"x".to_vec()));
    files.write("callee", OTHER);
    assert!(scene.call("echo", b"x") == Ok(b"x".to_vec()), "the connection is open");
}

#[test]
fn tokens_are_rotated_while_calls_go_on_and_a_wrong_file_changes_nothing() {
    let (notify, reported) = channel();
    let observer = RefusalObserver::new(move |event| _ = notify.send(event.to_string()));
    let files = Files(TemporaryFolder::new("rpc-token-rotation"), observer);
    let (old, new) = (format!("old {SECRET}"), format!("new {OTHER}"));
    let (old_first, new_first) = (format!("{old}\n{new}"), format!("{new}\n{old}"));
    let scene = files.scene(Some(&old), Some(&old));
    let caller_token = files.token("caller", Some(&old));
    // Each call is of a new connection.
    let call = || {
        let client = LoneClient::new(RpcClientOptions { token: caller_token.clone(), ..client_options() });
        let client = client.expect("a client");
        let peer =
            client.peer(&worker("b", 2), "127.0.0.1", scene.server.local_addr().port()).expect("a peer");
        peer.call(Call::of("echo").with_timeout(SOON), &b"x"[..])
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(call(), Ok(()));
    for text in [&*old_first, &new_first, &new] {
        for file in ["callee", "caller"] {
            files.write(file, text);
            assert_eq!(call(), Ok(()), "{file}: {text}");
        }
    }
    files.write("callee", "short");
    assert_eq!((call(), call()), (Ok(()), Ok(())));
    let log = reported.recv_timeout(SOON).expect("it is reported");
    assert!(
        log.starts_with("the earlier tokens still hold: token file ") && log.contains("line 1: "),
        "{log}"
    );
    assert!(reported.try_recv().is_err(), "once");
}

#[test]
fn a_handler_is_called_by_its_callers_only() {
    let (notify, reported) = channel();
    let observer = RefusalObserver::new(move |event| _ = notify.send(event.to_string()));
    let scene = scene_with(RpcServerOptions { observer, ..server_options() }, client_options());
    for (name, callers) in [("for_a", "b,a*"), ("for_b", "b")] {
        let callers = Callers::parse(callers).expect("a list");
        let echo = |request: Request, responder: Responder| _ = responder.answer(request.payload);
        scene.handling.register_for(callers, name, Run::Inline, echo).expect("a name");
    }
    assert!(scene.call("for_a", b"x") == Ok(b"x".to_vec()));
    let denied = message(scene.call("for_b", b"x"));
    let reason = "the caller may not call this handler: a (id 1) is not in its list of callers";
    assert_eq!(denied, format!("for_b at b (id 2): {reason}"));
    let log = reported.recv_timeout(SOON).expect("it is reported");
    assert!(log.starts_with("call of a (id 1) from 127.0.0.1:"), "{log}");
    assert!(log.ends_with(&format!(" to for_b refused: {reason}")), "{log}");
}
