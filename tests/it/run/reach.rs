//! What a user sees while the rendezvous cannot be reached.

use super::{Launch, Launched, free_port};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// A node that waits for a rendezvous that another host is to serve.
fn node(endpoint: &str) -> Launched {
    let flags = ["--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint", endpoint, "--rdzv-conf", "is_host=false"];
    Launch::shell(&flags, "echo started").start()
}

fn stop(node: Launched) {
    node.signal(libc::SIGTERM);
    node.finish().with(1).says(0, "started");
}

/// Serves connections until the test ends.
fn serve(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + 'static,
) -> SocketAddr {
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A peer that goes is none of the server's matter.
            serve(stream).ok();
        }
    });
    address
}

fn free() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

/// PyTorch's store closes a connection that begins with anything but its own greeting, and answers that.
fn as_tcp_store(mut stream: TcpStream) -> std::io::Result<()> {
    let mut greeting = [0; 10];
    stream.read_exact(&mut greeting[..1])?;
    if greeting[0] != 0 {
        return Ok(());
    }
    stream.read_exact(&mut greeting[1..])?;
    assert_eq!((&greeting[1..5], greeting[5]), (&0x3C85_F7CE_u32.to_le_bytes()[..], 13));
    stream.write_all(&greeting[6..])
}

#[test]
fn the_cause_of_the_last_try_is_told_while_nobody_listens_and_told_anew_when_it_changes() {
    let port = free_port();
    let endpoint = format!("127.0.0.1:{port}");
    let mut node = node(&endpoint);
    let refused = format!("waiting for the rendezvous at {endpoint}: refused: Connection refused");
    node.until(1, &refused);
    let listener = TcpListener::bind(&endpoint).expect("the port is still free");
    serve(listener, |_| Ok(()));
    node.until(1, &format!("waiting for the rendezvous at {endpoint}: the peer closed the connection"));
    node.signal(libc::SIGTERM);
    // Each cause has one line, however often it was met.
    node.finish().with(1).says(1, &refused);
}

#[test]
fn a_host_without_an_address_is_told() {
    let mut node = node("no-such-host.invalid:29400");
    node.until(1, "waiting for the rendezvous at no-such-host.invalid:29400: the host has no address");
    stop(node);
}

#[test]
fn a_node_zero_that_is_not_there_is_told() {
    let port = free_port();
    let flags = ["--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "--master-port", &port];
    let mut node = Launch::shell(&flags, "echo started").start();
    node.until(1, &format!("waiting for the rendezvous at 127.0.0.1:{port}: refused: Connection refused"));
    stop(node);
}

#[test]
fn a_peer_of_another_protocol_is_told() {
    let address = serve(free(), |mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let ran = node(&address.to_string()).finish().with(1);
    ran.tells("breaks the store protocol");
}

#[test]
fn a_store_of_pytorch_is_told_as_what_it_is() {
    let address = serve(free(), as_tcp_store);
    let mut node = node(&address.to_string());
    let reported = format!(
        "waiting for the rendezvous at {address}: wrong protocol: a PyTorch TCPStore: perhaps a torchrun agent"
    );
    node.until(1, &reported);
    node.signal(libc::SIGTERM);
    node.finish().with(1).says(1, &reported);
}
