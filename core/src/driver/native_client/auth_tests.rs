//! Clients and servers with tokens, over loopback sockets.

use super::loopback_tests::{Cut, server};
use super::tests::options;
use super::*;
use crate::access::Network;
use crate::driver::server::{Server, ServerOptions};
use crate::driver::store::Store;
use crate::driver::store_client::StoreOptions;
use crate::driver::testing::TemporaryFile;
use crate::driver::timeout::Timeout;
use crate::driver::token_file::{ClientToken, ServerTokens};
use crate::wire::native::{Label, encode_frame};
use alloc::format;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "abcdef0123456789abcdef0123456789";
const WHILE: Timeout = Timeout::After(Duration::from_secs(20));

fn file(test: &str, text: &str) -> TemporaryFile {
    let file = TemporaryFile::new(test);
    fs::write(file.path(), text).expect("a token file");
    file
}

fn guarded(tokens: &TemporaryFile) -> Server {
    let auth_tokens = Some(ServerTokens::open(tokens.path()).expect("tokens"));
    Server::start(ServerOptions { auth_tokens, ..ServerOptions::on("127.0.0.1", 0) }).expect("a server")
}

fn connect(port: u16, token: Option<&TemporaryFile>, grace: Duration) -> Result<NativeClient, NativeError> {
    let auth_token = token.map(|file| ClientToken::open(file.path()).expect("a token"));
    let options = NativeClientOptions { auth_token, node: "n".into(), ..options(grace) };
    NativeClient::connect("127.0.0.1", port, options)
}

/// Replaces a file as editors and orchestrators do.
fn replace(file: &TemporaryFile, text: &str) {
    let fresh = file.path().with_extension("fresh");
    fs::write(&fresh, text).expect("a file");
    fs::rename(&fresh, file.path()).expect("its new content");
}

#[test]
fn a_token_opens_a_session_and_resumes_it() {
    let tokens = file("opens", SECRET);
    let server = guarded(&tokens);
    let client = connect(server.local_addr().port(), Some(&tokens), Duration::ZERO).expect("a session");
    Store::over(Arc::new(client)).set(b"k", b"v", WHILE).expect("allowed");
    let cut = Cut::before(&server);
    let client = connect(cut.address.port(), Some(&tokens), Duration::from_secs(20)).expect("a session");
    let store = Store::over(Arc::new(client.clone()));
    assert_eq!(store.get_owned(b"k", WHILE).expect("allowed"), b"v");
    cut.cut();
    assert_eq!(store.add(b"n", 1, WHILE).expect("resumed"), 1);
    assert_eq!(client.sessions(Duration::from_secs(20)).expect("all rights").len(), 1, "no second session");
}

#[test]
fn without_the_token_the_reason_is_told_at_once() {
    let tokens = file("told", SECRET);
    let wrong = file("wrong", OTHER);
    let (guarded, open) = (guarded(&tokens), server());
    for (server, token, why) in [
        (&guarded, None, "the server asks for a token"),
        (&guarded, Some(&wrong), "the server does not know the client's token"),
        (&open, Some(&tokens), "the server asks for none"),
    ] {
        for grace in [Duration::ZERO, Duration::from_secs(20)] {
            let error = connect(server.local_addr().port(), token, grace).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}

#[test]
fn a_request_without_the_right_is_refused_and_the_session_goes_on() {
    let tokens = file("rights", &format!("reader {SECRET} read:/open/\n"));
    let server = guarded(&tokens);
    let client = connect(server.local_addr().port(), Some(&tokens), Duration::ZERO).expect("a session");
    let store = Store::over(Arc::new(client));
    let error = store.set(b"open/k", b"v", WHILE).expect_err("not allowed");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("no right `write:` covers /open/k"), "{error}");
    assert!(!store.check(&[b"open/k"], WHILE).expect("allowed"));
}

#[test]
fn a_changed_file_holds_for_the_next_connection() {
    let tokens = file("rotated", SECRET);
    let server = guarded(&tokens);
    let port = server.local_addr().port();
    let before = connect(port, Some(&tokens), Duration::ZERO).expect("a session");
    let old = file("old", SECRET);
    replace(&tokens, OTHER);
    assert!(connect(port, Some(&tokens), Duration::ZERO).is_ok(), "the new token");
    let error = connect(port, Some(&old), Duration::ZERO).expect_err("the old token");
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    Store::over(Arc::new(before)).set(b"k", b"v", WHILE).expect("an open session keeps its rights");
    replace(&tokens, "too short");
    assert!(connect(port, Some(&file("new", OTHER)), Duration::ZERO).is_ok(), "a wrong file changes nothing");
}

#[test]
fn an_administrator_ends_the_session_of_another() {
    let tokens = file("admin", &format!("admin {SECRET} all\nuser {OTHER} write:\n"));
    let user = file("user", &format!("user {OTHER}"));
    let server = guarded(&tokens);
    let port = server.local_addr().port();
    let admin = connect(port, Some(&tokens), Duration::ZERO).expect("a session");
    let other = connect(port, Some(&user), Duration::ZERO).expect("a session");
    let timeout = Duration::from_secs(20);
    let denied = other.sessions(timeout).expect_err("not its right");
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    let sessions = admin.sessions(timeout).expect("its right");
    let found = sessions.iter().find(|session| &*session.auth_token == "user").expect("the other session");
    assert!(found.is_connected && &*found.node == "n");
    assert!(admin.end_session(found.session, timeout).expect("its right"));
    let error = Store::over(Arc::new(other)).set(b"k", b"v", WHILE).expect_err("ended");
    assert!(error.to_string().contains("an administrator ended it"), "{error}");
}

#[test]
fn clients_of_pytorch_are_served_where_they_are_allowed() {
    let tokens = file("c10d", SECRET);
    let auth_tokens = || Some(ServerTokens::open(tokens.path()).expect("tokens"));
    let on = |c10d_from| {
        let options = ServerOptions::on("127.0.0.1", 0);
        Server::start(ServerOptions { auth_tokens: auth_tokens(), c10d_from, ..options }).expect("a server")
    };
    let connect = |server: &Server| {
        let options = StoreOptions { connect_timeout: Duration::ZERO, ..StoreOptions::default() };
        Store::connect("127.0.0.1", server.local_addr().port(), options)
    };
    assert!(connect(&on(None)).is_err());
    assert!(connect(&on(Network::parse_list("10.0.0.0/8").ok())).is_err());
    connect(&on(Network::parse_list("loopback").ok()))
        .expect("allowed")
        .set(b"k", b"v", WHILE)
        .expect("served");
}

/// A server that does not know the token: it answers the first HELLO with each of these, and must see no request.
#[test]
fn a_server_that_proves_nothing_gets_no_request() {
    let tokens = file("impostor", SECRET);
    let challenge = || encoded(&ServerFrame::Challenge { nonce: [1; 32] });
    let proof = || encoded(&ServerFrame::Proof { proof: [2; 32] });
    let zeros = || encoded(&ServerFrame::Proof { proof: [0; 32] });
    for answer in [
        proof(),
        [challenge(), proof()].concat(),
        [challenge(), zeros()].concat(),
        [challenge(), challenge()].concat(),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let impostor = thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            socket.write_all(&answer).expect("accepted");
            let mut got = Vec::new();
            socket.read_to_end(&mut got).ok();
            got
        });
        let auth_token = Some(ClientToken::open(tokens.path()).expect("a token"));
        let options = NativeClientOptions { auth_token, ..options(Duration::ZERO) };
        let client = NativeClient::start("127.0.0.1", port, options).expect("a thread");
        let store = Store::over(Arc::new(client));
        let error = store.set(b"secret-key", b"secret-value", WHILE).expect_err("not proven");
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        let got = impostor.join().expect("no panic");
        let shown = String::from_utf8_lossy(&got);
        assert!(!shown.contains("secret-") && !shown.contains(SECRET), "{shown}");
    }
}

fn encoded(frame: &ServerFrame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, Label::default(), frame).expect("short");
    bytes
}
