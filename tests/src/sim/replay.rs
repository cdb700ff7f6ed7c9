//! One server on the simulated network with connections that a test steers, to replay recorded exchanges of bytes.

use super::Options;
use super::accepting::Accepting;
use super::faults::Sabotage;
use super::host::{ClientConduct, Host, Security};
use super::script::KeySpace;
use super::world::{SimContext, random_network_model};
use crate::sim::harness::network::{Network, Notice, Read, Route, Side, Stream};
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::limits::ServerLimits;

struct Peer {
    stream: Stream,
    connected: bool,
    out: Vec<u8>,
    got: Vec<u8>,
    ended: bool,
}

/// A server and its clients.
#[expect(missing_debug_implementations, reason = "a network is never printed")]
pub struct Replay {
    context: SimContext,
    host: Host,
    peers: Vec<Peer>,
}

impl Replay {
    /// Creates a server that has just started, on a network that the seed determines.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let network_model = random_network_model(&mut SimRng::new(seed, 0));
        let network = Network::new(SimRng::new(seed, 1), network_model, 1);
        let host = Host::new(
            (SimRng::new(seed, 2), Accepting::new(SimRng::new(seed, 4), false)),
            ServerLimits::default(),
            Sabotage::None,
            (ClientConduct::Any, Security::Plain),
        );
        let context =
            SimContext::new(network, SimRng::new(seed, 3), KeySpace::default(), &Options::default());
        Self { context, host, peers: Vec::new() }
    }

    /// Opens a connection.
    pub fn connect(&mut self) -> usize {
        let stream = self.context.network.connect(self.context.now, 0, Route::Server);
        self.peers.push(Peer { stream, connected: false, out: Vec::new(), got: Vec::new(), ended: false });
        self.peers.len() - 1
    }

    /// Sends bytes as soon as the network accepts them.
    pub fn send(&mut self, peer: usize, bytes: &[u8]) {
        self.peers[peer].out.extend_from_slice(bytes);
        self.flush(peer);
    }

    /// Returns the next bytes.
    ///
    /// # Panics
    /// When fewer bytes arrive.
    pub fn receive(&mut self, peer: usize, bytes: usize) -> Vec<u8> {
        while self.peers[peer].got.len() < bytes && self.step() {}
        let got = &mut self.peers[peer].got;
        assert!(got.len() >= bytes, "{bytes} bytes are due, {} have arrived", got.len());
        got.drain(..bytes).collect()
    }

    /// Returns all bytes until the server closes the connection.
    ///
    /// # Panics
    /// When it does not.
    pub fn receive_all(&mut self, peer: usize) -> Vec<u8> {
        while !self.peers[peer].ended && self.step() {}
        assert!(self.peers[peer].ended, "the server did not close");
        core::mem::take(&mut self.peers[peer].got)
    }

    fn flush(&mut self, peer: usize) {
        let peer = &mut self.peers[peer];
        if peer.connected && !peer.out.is_empty() {
            let taken = self.context.network.write(self.context.now, peer.stream, Side::Client, &peer.out);
            peer.out.drain(..taken.unwrap_or(0));
        }
    }

    /// Processes one event of the network. Returns false if there is none. Time passes only with events.
    fn step(&mut self) -> bool {
        let Some((now, notice)) = self.context.network.step() else { return false };
        self.context.now = now;
        let Some(notice) = notice else { return true };
        let (Notice::Accept(stream)
        | Notice::Connected(stream)
        | Notice::Refused(stream)
        | Notice::Readable(stream, _)
        | Notice::Writable(stream, _)) = notice;
        let peer = self.peers.iter().position(|peer| peer.stream == stream);
        match (notice, peer) {
            (Notice::Connected(_), Some(peer)) => {
                self.peers[peer].connected = true;
                self.flush(peer);
            }
            (Notice::Writable(_, Side::Client), Some(peer)) => self.flush(peer),
            (Notice::Readable(_, Side::Client), Some(peer)) => loop {
                match self.context.network.read(now, stream, Side::Client) {
                    Read::Nothing => break,
                    Read::Bytes(bytes) => self.peers[peer].got.extend(bytes),
                    Read::End | Read::Reset => {
                        self.peers[peer].ended = true;
                        break;
                    }
                }
            },
            _ => {
                let reported = self.host.noticed(&mut self.context, notice);
                assert_eq!(reported, Ok(()), "the server and its driver agree");
            }
        }
        true
    }
}
