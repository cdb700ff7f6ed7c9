//! Clients on real sockets that know nothing but bytes, and servers for them.

use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::Stats;
use rendezvous_tests::frames;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// When a test gives up. Nothing is measured by it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// A moment after which a test gives up.
pub(crate) struct Deadline(Instant);

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "a test that waits for the outside world needs a clock")]
    pub(crate) fn new() -> Self {
        Self(Instant::now() + TIMEOUT)
    }

    #[expect(clippy::disallowed_methods, reason = "a test that waits for the outside world needs a clock")]
    pub(crate) fn has_passed(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// A server on a free port of this host.
pub(crate) fn start(limits: ServerLimits) -> Server {
    let options = ServerOptions { limits, ..ServerOptions::on("127.0.0.1", 0) };
    Server::start(options).expect("a free port")
}

/// Asks for the statistics until they are as wished; each answer is an event of the server's.
pub(crate) fn until(server: &Server, wished: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = Deadline::new();
    loop {
        let stats = server.stats().expect("it runs");
        if wished(&stats) {
            return stats;
        }
        assert!(!deadline.has_passed(), "{stats:?}");
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    /// Connects and says nothing.
    pub(crate) fn dial(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("the option can be set");
        Self(stream)
    }

    /// Connects and greets.
    pub(crate) fn greet(address: SocketAddr) -> Self {
        let mut client = Self::dial(address);
        client.send(&frames::greeting());
        client.is_served();
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server takes bytes");
    }

    /// Sends to a server that may have closed in the meantime.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).ok();
    }

    pub(crate) fn receive(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        self.0.read_exact(&mut buffer).expect("an answer in time");
        buffer
    }

    /// Sends a PING; its echo must be the next that comes.
    pub(crate) fn is_served(&mut self) {
        self.send(&frames::ping(0x5eed_cafe));
        assert_eq!(self.receive(4), 0x5eed_cafe_u32.to_le_bytes(), "an echo, and nothing before it");
    }

    /// All that comes until the server closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return all,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
                Err(error) => panic!("the server did not close: {error}"),
            }
        }
    }
}
