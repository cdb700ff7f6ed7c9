//! Calls through TLS.

use super::*;
use crate::driver::certificates::Authority;
use crate::driver::testing::TemporaryFolder;
use rendezvous_core::driver::tls::{TlsAcceptor, TlsClientOptions, TlsConnector, TlsServerOptions};
use rendezvous_core::driver::token_file::ClientToken;
use rendezvous_core::tls::Protocol;

/// A CA and files of a worker that both sides use.
struct Files {
    folder: TemporaryFolder,
    authority: Authority,
}

impl Files {
    fn new(test: &str) -> Self {
        Self { folder: TemporaryFolder::new(test), authority: Authority::new() }
    }

    /// TLS of a worker that requires certificates of others.
    fn tls(&self) -> RpcTls {
        let ca_file = self.authority.write(self.folder.path(), "ca.pem");
        let (cert_file, key_file) = self.authority.issue(&["worker"]).write(self.folder.path(), "worker");
        let identity = Some((cert_file.clone(), key_file.clone()));
        let server = TlsServerOptions { cert_file, key_file, client_ca_file: Some(ca_file.clone()) };
        let client = TlsClientOptions { ca_file, identity, server_name: Some("worker".into()) };
        RpcTls {
            acceptor: TlsAcceptor::of(server, Protocol::Rpc).expect("usable files"),
            connector: TlsConnector::of(client, Protocol::Rpc).expect("usable files"),
        }
    }

    fn scene(&self) -> Scene {
        let tls = self.tls();
        let client = RpcClientOptions { tls: Some(tls.connector.clone()), ..client_options() };
        scene_with(RpcServerOptions { tls: Some(tls), ..server_options() }, client)
    }
}

#[test]
fn calls_of_any_size_are_answered_through_tls() {
    let files = Files::new("rpc-tls");
    let scene = files.scene();
    for size in [0, 1, 64, 5000, 8 * 1024 + 1, 70_000, 3 << 20] {
        let payload = bytes(size);
        for handler in ["echo", "pooled"] {
            assert!(scene.call(handler, &payload) == Ok(payload.clone()), "{handler} {size}");
            let started = scene.peer.start(Call::of(handler).with_timeout(SOON), &payload[..]).expect("made");
            assert!(started.wait() == Ok(payload.clone()), "{handler} {size}");
        }
    }
    scene.until_idle(1);
}

#[test]
fn a_token_is_proven_over_the_channel_of_tls() {
    let files = Files::new("rpc-tls-token");
    let path = files.folder.path().join("token");
    std::fs::write(&path, "0123456789abcdef0123456789abcdef").expect("written");
    let token = || {
        Some(Arc::new(GroupToken::new(
            ClientToken::open(&path).expect("a token"),
            RefusalObserver::default(),
        )))
    };
    let tls = files.tls();
    let client = RpcClientOptions { tls: Some(tls.connector.clone()), token: token(), ..client_options() };
    let server = RpcServerOptions { tls: Some(tls), token: token(), ..server_options() };
    let scene = scene_with(server, client);
    assert!(scene.call("echo", b"x") == Ok(b"x".to_vec()));
}

#[test]
fn many_threads_share_a_connection_with_tls() {
    let files = Files::new("rpc-tls-threads");
    let scene = files.scene();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let scene = &scene;
            scope.spawn(move || {
                for call in 0..50 {
                    let payload = bytes(thread * 3000 + call * 700);
                    assert!(scene.call("pooled", &payload) == Ok(payload), "{thread} {call}");
                }
            });
        }
    });
    scene.until_idle(1);
}

#[test]
fn a_worker_without_tls_is_refused_with_the_reason() {
    let files = Files::new("rpc-tls-plain");
    let scene = scene_with(RpcServerOptions { tls: Some(files.tls()), ..server_options() }, client_options());
    let refused = message(scene.call("echo", b"x"));
    assert!(refused.contains("this worker requires TLS"), "{refused}");
}

#[test]
fn a_caller_with_tls_fails_at_a_worker_without() {
    let files = Files::new("rpc-tls-only");
    let client = RpcClientOptions { tls: Some(files.tls().connector), ..client_options() };
    let scene = scene_with(server_options(), client);
    let failed = message(scene.call("echo", b"x"));
    assert!(failed.contains("TLS"), "{failed}");
}

#[test]
fn workers_of_another_ca_do_not_reach_each_other() {
    let (files, strangers) = (Files::new("rpc-tls-ca"), Files::new("rpc-tls-strangers"));
    let client = RpcClientOptions { tls: Some(strangers.tls().connector), ..client_options() };
    let scene = scene_with(RpcServerOptions { tls: Some(files.tls()), ..server_options() }, client);
    let failed = message(scene.call("echo", b"x"));
    assert!(failed.contains("no trusted CA has issued the peer's certificate"), "{failed}");
}

#[test]
fn a_caller_amid_the_handshake_of_tls_gets_the_goodbye() {
    let files = Files::new("rpc-tls-goodbye");
    let scene = files.scene();
    let address = scene.server.local_addr();
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(SOON)).expect("set");
    let mut stage = files.tls().connector.start("worker").expect("a name");
    let (mut plaintext, mut received) = (Vec::new(), [0; 4096]);
    socket.write_all(stage.unsent()).expect("the ClientHello");
    stage.sent(stage.unsent().len());
    while stage.is_handshaking() {
        let count = socket.read(&mut received).expect("the server's part");
        assert_ne!(count, 0);
        stage.receive(&received[..count], &mut plaintext).expect("a handshake");
    }
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| scene.server.leave(SOON));
        // The worker has said goodbye when it accepts no more.
        let by = std::time::Instant::now() + SOON;
        while TcpStream::connect(address).is_ok() {
            assert!(std::time::Instant::now() < by, "it still accepts");
        }
        socket.write_all(stage.unsent()).expect("the client's part");
        stage.sent(stage.unsent().len());
        while plaintext.is_empty() {
            let count = socket.read(&mut received).expect("the goodbye");
            assert_ne!(count, 0, "closed without a reason");
            stage.receive(&received[..count], &mut plaintext).expect("a goodbye");
        }
        assert!(leaving.join().expect("no panic"));
    });
}
