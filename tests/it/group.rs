//! `rdzv group` beside a group of our own workers over our server.

use crate::process::run;
use crate::rdzv::{Following, RdzvServer, program};
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_rpc::driver::group::{RpcAgent, RpcWorker, Shutdown, TcpOptions};
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::RpcOptions;
use serde_json::{Value, json};
use std::process::Command;

fn join(server: &RdzvServer, group: &str, name: &str, id: u16, size: Option<u16>) -> RpcAgent {
    let address = server.address();
    let store = Store::connect(&address.ip().to_string(), address.port(), StoreOptions::default());
    let store = store.expect("connected").with_prefix(group.as_bytes());
    let me = WorkerInfo { name: name.parse().expect("a name"), id };
    let (options, tcp) = (RpcOptions::new("tcp"), TcpOptions::default());
    RpcAgent::start(&store, me, size, &options, &tcp).expect("a member")
}

fn follow(server: &RdzvServer, flags: &[&str]) -> Following {
    let endpoint = server.address().to_string();
    let arguments = [&["group", "--endpoint", &endpoint], flags].concat();
    Following::start(&arguments)
}

#[test]
fn workers_are_listed_and_those_who_come_and_go_are_seen() {
    let server = RdzvServer::start();
    let a = join(&server, "rpc_prefix_0", "a", 0, None);
    let mut text = follow(&server, &[]);
    let mut objects = follow(&server, &["--json"]);
    let mut object = || -> Value { objects.next_line().parse().expect("JSON") };
    assert_eq!([text.next_line(), text.next_line()], ["dynamic".into(), format!("came a 0 {}", a.address())]);
    assert_eq!(object(), json!({ "group": "dynamic" }));
    assert_eq!(object(), json!({ "came": "a", "id": 0, "address": a.address() }));
    let b = join(&server, "rpc_prefix_0", "b-1", 7, None);
    assert_eq!(text.next_line(), format!("came b-1 7 {}", b.address()));
    assert_eq!(object(), json!({ "came": "b-1", "id": 7, "address": b.address() }));
    b.shutdown(Shutdown::Graceful).expect("it leaves");
    assert_eq!(text.next_line(), "went b-1 7");
    assert_eq!(object(), json!({ "went": "b-1", "id": 7 }));

    // A group of another kind, beneath other keys.
    let alone = join(&server, "second", "alone", 0, Some(1));
    let mut second = follow(&server, &["--scope", "second"]);
    assert_eq!(second.next_line(), "static");
    assert_eq!(second.next_line(), format!("came alone 0 {}", alone.address()));
    alone.shutdown(Shutdown::Graceful).expect("alone");
}

#[test]
fn a_group_that_does_not_exist_is_told_with_exit_code_1() {
    let server = RdzvServer::start();
    let endpoint = server.address().to_string();
    let mut command = Command::new(program());
    command.args(["group", "--endpoint", &endpoint, "--quiet-ms", "1"]);
    let ran = run(&mut command, crate::net::TIMEOUT);
    let message =
        format!("rdzv group: there is no RPC group under the prefix \"rpc_prefix_0\" at {endpoint}\n");
    assert_eq!(
        (ran.status.code(), ran.stdout.as_str(), ran.stderr.as_str()),
        (Some(1), "", message.as_str())
    );
    drop(server);
    let mut command = Command::new(program());
    command.args(["group", "--endpoint", &endpoint, "--connect-timeout-ms", "0"]);
    let ran = run(&mut command, crate::net::TIMEOUT);
    assert!(!ran.status.success() && ran.stderr.contains(&endpoint), "{ran:?}");
}
