//! TLS over loopback sockets, with files.

use super::certificates::Authority;
use crate::access::Network;
use crate::driver::loop_client::{Loop, LoopEvent, SessionEvent};
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::prelude::*;
use crate::driver::server::{Server, ServerOptions};
use crate::driver::store::{Store, Timeout};
use crate::driver::store_client::StoreOptions;
use crate::driver::testing::{TemporaryFolder, becomes_readable};
use crate::driver::tls::{TlsAcceptor, TlsClientOptions, TlsConnector, TlsServerOptions};
use crate::driver::token_file::{ClientToken, ServerTokens};
use crate::error::ErrorKind;
use crate::node::server::{CloseReason, Event};
use crate::tls_fault::TlsFault;
use std::path::Path;
use std::sync::mpsc;

const SOON: Duration = Duration::from_secs(20);
const WHILE: Timeout = Timeout::After(SOON);

/// A CA and a folder for files.
struct Files {
    folder: TemporaryFolder,
    authority: Authority,
}

impl Files {
    fn new(test: &str) -> Self {
        Self { folder: TemporaryFolder::new(test), authority: Authority::new() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a certificate for these names.
    fn server(&self, names: &[&str]) -> TlsServerOptions {
        let (cert_file, key_file) = self.authority.issue(names).write(self.path(), "server");
        TlsServerOptions { cert_file, key_file, client_ca_file: None }
    }

    fn client(&self) -> TlsClientOptions {
        let ca_file = self.authority.write(self.path(), "ca.pem");
        TlsClientOptions { ca_file, ..TlsClientOptions::default() }
    }
}

/// Returns a server, and the reasons why its connections end.
fn server(tls: Option<TlsServerOptions>) -> (Server, mpsc::Receiver<Event>) {
    let (events, reported) = mpsc::channel();
    let options = ServerOptions {
        tls: tls.map(|options| TlsAcceptor::new(options).expect("usable files")),
        observer: Box::new(move |event| drop(events.send(event.clone()))),
        ..ServerOptions::on("127.0.0.1", 0)
    };
    (Server::start(options).expect("a server"), reported)
}

fn options(tls: Option<TlsClientOptions>) -> NativeClientOptions {
    NativeClientOptions {
        node: "n0".into(),
        connect_timeout: SOON,
        tls: tls.map(|options| TlsConnector::new(options).expect("usable files")),
        ..NativeClientOptions::default()
    }
}

fn connect(server: &Server, tls: Option<TlsClientOptions>) -> Result<Store, CallError> {
    Store::connect_native("127.0.0.1", server.local_addr().port(), options(tls))
}

/// Returns why the next connection ended.
fn next_close(reported: &mpsc::Receiver<Event>) -> CloseReason {
    loop {
        if let Event::Closed { reason, .. } = reported.recv_timeout(SOON).expect("an event") {
            return reason;
        }
    }
}

#[test]
fn a_store_works_through_tls_with_values_of_any_length() {
    let files = Files::new("tls-store");
    let (server, _reported) = server(Some(files.server(&["127.0.0.1"])));
    let store = connect(&server, Some(files.client())).expect("connected");
    let value: Vec<u8> = (0..5_000_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    store.set(b"long", &value, WHILE).expect("applied");
    assert!(store.get_owned(b"long", WHILE).expect("present") == value);
    assert_eq!(store.add(b"n", 2, WHILE).expect("applied"), 2);
    let other = store.duplicate().expect("connected");
    let waiting = std::thread::spawn(move || other.get_owned(b"later", WHILE));
    store.set(b"later", b"v", WHILE).expect("applied");
    assert_eq!(waiting.join().expect("no panic").expect("set"), b"v");
}

#[test]
fn a_client_with_a_certificate_is_admitted_and_one_without_learns_why_not() {
    let files = Files::new("tls-mutual");
    let ca = files.client();
    let tls = TlsServerOptions { client_ca_file: Some(ca.ca_file.clone()), ..files.server(&["127.0.0.1"]) };
    let (server, reported) = server(Some(tls));
    let identity = Some(files.authority.issue(&["n0"]).write(files.path(), "n0"));
    let admitted = connect(&server, Some(TlsClientOptions { identity, ..ca.clone() })).expect("connected");
    admitted.set(b"k", b"v", WHILE).expect("applied");
    let refused = connect(&server, Some(ca)).expect_err("no certificate").to_string();
    assert!(
        refused.contains("it requires a certificate of this side (--tls-cert and --tls-key)"),
        "{refused}"
    );
    assert_eq!(next_close(&reported), CloseReason::Tls(TlsFault::NoCertificate));
}

#[test]
fn wrong_certificates_fail_at_once_and_say_what_to_do() {
    let files = Files::new("tls-wrong");
    let strangers = Files::new("tls-strangers");
    let (server, _reported) = server(Some(files.server(&["store.example"])));
    let named =
        |server_name: &str| TlsClientOptions { server_name: Some(server_name.into()), ..files.client() };
    for (expected, tls) in [
        ("no trusted CA has issued the peer's certificate", strangers.client()),
        ("give one with --tls-server-name", files.client()),
        ("the server's certificate is for other names", named("other.example")),
    ] {
        let clock = Clock::new();
        let error = connect(&server, Some(tls)).expect_err("not trusted").to_string();
        assert!(error.contains(expected), "{error}");
        assert!(clock.now().since(Instant::ORIGIN) < SOON / 2, "no attempt follows");
    }
    connect(&server, Some(named("store.example"))).expect("connected");
}

#[test]
fn sides_that_do_not_agree_on_tls_both_say_so() {
    let files = Files::new("tls-mixed");
    let (encrypted, reported) = server(Some(files.server(&["127.0.0.1"])));
    let error = connect(&encrypted, None).expect_err("TLS is required").to_string();
    assert!(error.contains("the server requires TLS"), "{error}");
    assert_eq!(next_close(&reported), CloseReason::PlaintextRefused);
    let (plain, reported) = server(None);
    let error = connect(&plain, Some(files.client())).expect_err("there is no TLS").to_string();
    assert!(error.contains("it has no TLS"), "{error}");
    assert_eq!(next_close(&reported), CloseReason::TlsNotConfigured);
}

#[test]
fn a_peer_that_closes_within_the_handshake_is_tried_again_until_the_deadline() {
    let files = Files::new("tls-closes");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let brief =
        NativeClientOptions { connect_timeout: Duration::from_millis(300), ..options(Some(files.client())) };
    let client = std::thread::spawn(move || NativeClient::connect("127.0.0.1", port, brief).map(drop));
    for _ in 0..2 {
        drop(listener.accept().expect("a connection"));
    }
    drop(listener);
    let error = client.join().expect("no panic").expect_err("no server").to_string();
    assert!(error.contains("127.0.0.1"), "{error}");
}

#[test]
fn new_certificates_are_used_and_unusable_ones_are_not() {
    let files = Files::new("tls-renewed");
    let tls = files.server(&["127.0.0.1"]);
    let (server, reported) = server(Some(tls.clone()));
    connect(&server, Some(files.client())).expect("connected");
    let next_change = || loop {
        let event = reported.recv_timeout(SOON).expect("an event");
        if matches!(event, Event::CertificatesKept { .. } | Event::CertificatesRenewed) {
            return event;
        }
    };
    // The certificate is replaced first, so that its key does not belong to it.
    let renewed = files.authority.issue(&["127.0.0.1", "store.example"]);
    std::fs::write(&tls.cert_file, &renewed.certificate).expect("written");
    connect(&server, Some(files.client())).expect("with the earlier certificate");
    let Event::CertificatesKept { error } = next_change() else { panic!("they were used") };
    assert!(error.contains("server.key") && error.contains("does not belong"), "{error}");
    std::fs::write(&tls.key_file, &renewed.key).expect("written");
    let named = TlsClientOptions { server_name: Some("store.example".into()), ..files.client() };
    connect(&server, Some(named)).expect("with the new certificate");
    assert_eq!(next_change(), Event::CertificatesRenewed);
}

#[test]
fn c10d_clients_are_refused_where_native_ones_need_a_certificate() {
    let files = Files::new("tls-c10d");
    let ca = files.client().ca_file;
    let own = files.server(&["127.0.0.1"]);
    let mutual = TlsServerOptions { client_ca_file: Some(ca), ..own.clone() };
    for (tls, c10d_from, is_served) in
        [(&own, None, true), (&mutual, None, false), (&mutual, Network::parse_list("loopback").ok(), true)]
    {
        let (events, reported) = mpsc::channel();
        let options = ServerOptions {
            tls: Some(TlsAcceptor::new(tls.clone()).expect("usable files")),
            c10d_from,
            observer: Box::new(move |event| drop(events.send(event.clone()))),
            ..ServerOptions::on("0.0.0.0", 0)
        };
        let server = Server::start(options).expect("a server");
        let options = StoreOptions { connect_timeout: Duration::ZERO, ..StoreOptions::default() };
        let store = Store::connect("127.0.0.1", server.local_addr().port(), options);
        assert_eq!(store.is_ok(), is_served);
        if !is_served {
            assert_eq!(next_close(&reported), CloseReason::C10dNotAllowed);
            continue;
        }
        // The first event, if clients need not authenticate themselves.
        let is_exposed = matches!(reported.recv_timeout(SOON), Ok(Event::Exposed { .. }));
        assert_eq!(is_exposed, tls.client_ca_file.is_none());
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let files = Files::new("tls-unusable");
    let tls = files.server(&["127.0.0.1"]);
    let missing = TlsServerOptions { key_file: files.path().join("none"), ..tls.clone() };
    let error = TlsAcceptor::new(missing).expect_err("no file").to_string();
    assert!(error.contains("none: No such file"), "{error}");
    let folder = TlsServerOptions { key_file: files.path().into(), ..tls.clone() };
    let error = TlsAcceptor::new(folder).expect_err("a folder").to_string();
    assert!(error.ends_with(": it is not a regular file"), "{error}");
    let swapped = TlsServerOptions { cert_file: tls.key_file.clone(), ..tls };
    let error = TlsAcceptor::new(swapped).expect_err("no certificate").to_string();
    assert!(error.contains("server.key: the file has no certificate in PEM"), "{error}");
    let named = TlsClientOptions { server_name: Some("no name".into()), ..files.client() };
    let error = TlsConnector::new(named).expect_err("no name").to_string();
    assert!(error.contains("no name: the server's name is neither"), "{error}");
}

#[test]
fn a_session_of_a_loop_uses_tls() {
    let files = Files::new("tls-loop");
    let (server, _reported) = server(Some(files.server(&["127.0.0.1"])));
    let mut events = Loop::new().expect("a loop");
    let port = server.local_addr().port();
    let session = events.add_session("127.0.0.1", port, options(Some(files.client())));
    let stopped = Loop::add_session(&mut events, "127.0.0.1", port, options(None));
    let (mut is_open, mut refusal) = (false, None);
    while !is_open || refusal.is_none() {
        match events.next_event() {
            Some(LoopEvent::Session(of, SessionEvent::Open)) => is_open |= of == session,
            Some(LoopEvent::Session(of, SessionEvent::Over(result))) => {
                assert_eq!(of, stopped);
                refusal = result.err();
            }
            Some(other) => panic!("{other:?}"),
            None => {
                assert!(becomes_readable(events.fd(), SOON), "no further event");
                events.poll().expect("polled");
            }
        }
    }
    assert!(refusal.expect("refused").to_string().contains("the server requires TLS"));
}

#[test]
fn a_token_is_proven_for_the_channel_of_both_ends() {
    let files = Files::new("tls-token");
    let token = files.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").expect("a token file");
    let tls = TlsAcceptor::new(files.server(&["127.0.0.1"])).expect("usable files");
    let auth_tokens = Some(ServerTokens::open(&token).expect("tokens"));
    let guarded = ServerOptions { tls: Some(tls), auth_tokens, ..ServerOptions::on("127.0.0.1", 0) };
    let server = Server::start(guarded).expect("a server");
    let auth_token = Some(ClientToken::open(&token).expect("a token"));
    let secured = NativeClientOptions { auth_token, ..options(Some(files.client())) };
    let port = server.local_addr().port();
    // Only with the same binding at both ends is the proof right: `a_proof_that_was_made_for_another_channel_opens_nothing`.
    let store = Store::connect_native("127.0.0.1", port, secured).expect("connected");
    store.set(b"k", b"v", WHILE).expect("applied");
    let error = connect(&server, Some(files.client())).expect_err("it has no token");
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
}
