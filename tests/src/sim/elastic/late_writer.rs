//! Client without machines, like orphaned workers. It writes to the keys of rounds with c10d, whether the rounds have
//! ended or not. c10d has no errors, so the server closes the connection after a late write, and the client connects
//! again.

use super::super::world::{SimContext, WorldEvent};
use super::Cue;
use super::referee::prefix_of;
use crate::frames;
use crate::sim::harness::network::{Notice, Read, Route, Side, Stream};
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::time::Duration;

pub(super) struct LateWriter {
    /// Its number among the network's clients.
    number: usize,
    sim_rng: SimRng,
    runs: usize,
    stream: Option<Stream>,
    connected: bool,
    out: Vec<u8>,
    writes: u32,
    due: bool,
    pub(super) disconnects: u64,
}

/// Rounds whose keys it tries: early ones, which end soon.
const ROUNDS: usize = 6;

impl LateWriter {
    pub(super) fn new(number: usize, sim_rng: SimRng, runs: usize, context: &mut SimContext) -> Self {
        let mut new = Self {
            number,
            sim_rng,
            runs,
            stream: None,
            connected: false,
            out: Vec::new(),
            writes: 0,
            due: false,
            disconnects: 0,
        };
        new.come_back(context);
        new
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.stream == Some(stream)
    }

    pub(super) const fn is_done(&self) -> bool {
        self.stream.is_none()
    }

    fn come_back(&mut self, context: &mut SimContext) {
        if !self.due {
            self.due = true;
            let at = context.now + self.sim_rng.span(Duration::from_millis(1), Duration::from_millis(600));
            context.event_queue.schedule(at, WorldEvent::Elastic(Cue::LateWriterDue(self.number)));
        }
    }

    pub(super) fn poll(&mut self, context: &mut SimContext) {
        self.due = false;
        match self.stream {
            _ if !context.stormy => return self.leave(context),
            None => {
                self.stream = Some(context.network.connect(context.now, self.number, Route::Server));
                self.connected = false;
                self.out = frames::greeting();
            }
            Some(_) => {
                let write = self.write();
                self.out.extend(write);
                self.send(context);
            }
        }
        self.come_back(context);
    }

    pub(super) fn leave(&mut self, context: &mut SimContext) {
        if let Some(stream) = self.stream.take() {
            context.network.close(context.now, stream, Side::Client);
        }
    }

    fn write(&mut self) -> Vec<u8> {
        self.writes += 1;
        let (run, round) = (self.sim_rng.index(self.runs), self.sim_rng.index(ROUNDS));
        // Keys of the server's first process, or of its second one, which usually does not exist yet.
        let epoch = u32::from(self.sim_rng.percent(25));
        let prefix = prefix_of(epoch, &format!("run-{run}"), round as u64);
        let key = |name: &str| [&*prefix, name].concat().into_bytes();
        let value = format!("late write {}", self.writes).into_bytes();
        match self.sim_rng.index(4) {
            0 => frames::add(&key("t"), 1),
            1 => {
                let key = key("q");
                frames::request(Request::QueuePush { key: Key::raw(&key), value: &value })
            }
            2 => {
                let key = key("w/0");
                frames::request(Request::Delete { key: Key::raw(&key) })
            }
            _ => frames::set(&key("s"), &value),
        }
    }

    fn send(&mut self, context: &mut SimContext) {
        if let Some(stream) = self.stream.filter(|_| self.connected) {
            let count = context.network.write(context.now, stream, Side::Client, &self.out).unwrap_or(0);
            self.out.drain(..count);
        }
    }

    pub(super) fn noticed(&mut self, context: &mut SimContext, notice: Notice) {
        match notice {
            Notice::Connected(_) => {
                self.connected = true;
                self.send(context);
            }
            Notice::Refused(_) => self.leave(context),
            Notice::Readable(stream, _) => loop {
                match context.network.read(context.now, stream, Side::Client) {
                    Read::Nothing => return,
                    Read::Bytes(_) => {}
                    Read::End | Read::Reset => {
                        self.disconnects += 1;
                        return self.leave(context);
                    }
                }
            },
            Notice::Writable(..) => self.send(context),
            Notice::Accept(_) => {}
        }
    }
}
