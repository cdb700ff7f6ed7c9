//! Groups whose members prove a token.

use super::*;
use crate::driver::testing::TemporaryFolder;
use rendezvous_core::driver::native_client::NativeClientOptions;
use rendezvous_core::driver::token_file::{ClientToken, ServerTokens};
use std::path::Path;

const TOKENS: &str = "job 0123456789abcdef0123456789abcdef all\nadmin fedcba9876543210fedcba9876543210 all\n";

fn native_store(port: u16, node: &str, file: &Path) -> Store {
    let options = NativeClientOptions {
        node: node.into(),
        auth_token: Some(ClientToken::open(file).expect("a token")),
        ..NativeClientOptions::default()
    };
    Store::connect_native("127.0.0.1", port, options).expect("connected").with_prefix(b"rpc_prefix_0")
}

#[test]
fn members_prove_the_token_of_their_stores() {
    let folder = TemporaryFolder::new("rpc-group-tokens");
    let [all, job, admin] = ["tokens", "job", "admin"].map(|name| folder.path().join(name));
    let (job_line, admin_line) = TOKENS.split_once('\n').expect("two lines");
    for (file, text) in [(&all, TOKENS), (&job, job_line), (&admin, admin_line)] {
        std::fs::write(file, text).expect("written");
    }
    let auth_tokens = Some(ServerTokens::open(&all).expect("tokens"));
    let server = Server::start(ServerOptions { auth_tokens, ..ServerOptions::on("127.0.0.1", 0) });
    let server = server.expect("a server");
    let port = server.local_addr().port();
    let group = native_store(port, "store", &job);
    let member = |name, id| start(&group, worker(name, id), None).expect("a member");
    let (a, b) = (member("a", 0), member("b", 1));
    assert_eq!(a.call("b", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    assert_eq!(b.call("a", "echo", b"y".to_vec(), None), Ok(b"y".to_vec()));

    // Over a store with another token of the same server, a worker reads the keys of the group, and calls no member.
    let (host, a_port) = a.address().rsplit_once(':').expect("host and port");
    let error = start(&native_store(port, "store", &admin), worker("c", 2), None).expect_err("refused");
    assert!(error.to_string().contains("the caller has not proven its token"), "{error}");
    let stranger = LoneClient::new(RpcClientOptions {
        me: worker("x", 7),
        group: greeting(&group),
        limits: RpcLimits::default(),
        keep_alive: None,
        tls: None,
        token: None,
    });
    let stranger = stranger.expect("a client");
    let peer = stranger.peer(a.me(), host, a_port.parse().expect("a port")).expect("a peer");
    let error = peer.call(Call::of("echo").with_timeout(SOON), &b"x"[..]).expect_err("refused").to_string();
    assert!(error.contains("it requires a token, and the caller has none"), "{error}");

    // The workers' own sessions proved the token, too: a death is noticed by its liveness key.
    assert_eq!(next_event(&a), GroupEvent::Joined(worker("b", 1)));
    drop(b.drop_liveness());
    assert!(matches!(next_event(&a), GroupEvent::PeerDied { .. }));
    drop(b);
    a.shutdown(Shutdown::Graceful).expect("it leaves");
}

#[test]
fn members_prove_a_token_of_their_own_over_a_store_without_one() {
    let folder = TemporaryFolder::new("rpc-group-own-tokens");
    let file = |name: &str, secret: char| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{name} {} all\n", secret.to_string().repeat(32))).expect("written");
        Some(ClientToken::open(&path).expect("a token"))
    };
    let (ours, theirs) = (file("ours", 'a'), file("theirs", 'b'));
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
    let port = server.local_addr().port();
    let member = |name, id, auth_token: &Option<ClientToken>| {
        let tcp = TcpOptions { auth_token: auth_token.clone(), ..echoing() };
        RpcAgent::start(&store(port), worker(name, id), None, &RpcOptions::new("tcp"), &tcp)
    };
    let a = member("a", 0, &ours).expect("a member");
    let b = member("b", 1, &ours).expect("a member");
    assert_eq!(a.call("b", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    for (auth_token, why) in [
        (theirs, "the caller has not proven its token"),
        (None, "it requires a token, and the caller has none"),
    ] {
        let error = member("c", 2, &auth_token).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
    b.shutdown(Shutdown::Graceful).expect("it leaves");
    a.shutdown(Shutdown::Graceful).expect("it leaves");
}
