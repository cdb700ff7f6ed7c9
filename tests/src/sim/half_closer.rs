//! Client without machines that sends all its requests, closes its sending side, and reads the answers.

use super::world::SimContext;
use crate::frames;
use crate::sim::harness::history::{CheckError, OperationId};
use crate::sim::harness::network::{Notice, Read, Route, Side, Stream};
use crate::sim::harness::sim_operation::{Answer, End, SimOperation};
use rendezvous_core::error::{Effect, ErrorKind};

pub(super) struct HalfCloser {
    /// Its number among the clients of the network.
    number: usize,
    stream: Option<Stream>,
    operations: Vec<OperationId>,
    out: Vec<u8>,
    got: Vec<u8>,
    /// It connected in the calm phase, so everything must be answered.
    calm: bool,
}

impl HalfCloser {
    pub(super) fn start(number: usize, context: &mut SimContext) -> Self {
        let stream = context.network.connect(context.now, number, Route::Server);
        context.note(format_args!("c{number}, which half-closes, connects {stream}"));
        let calm = !context.stormy;
        Self { number, stream: Some(stream), operations: Vec::new(), out: Vec::new(), got: Vec::new(), calm }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.stream.is_none()
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.stream == Some(stream)
    }

    pub(super) fn noticed(&mut self, context: &mut SimContext, notice: Notice) -> Result<(), CheckError> {
        let Some(stream) = self.stream else { return Ok(()) };
        match notice {
            Notice::Refused(_) => self.finish(context, stream, Read::Reset),
            Notice::Connected(_) => {
                self.out = frames::greeting();
                for _ in 0..context.sim_rng.index(20) {
                    let name = format!("n/{}", context.sim_rng.index(context.key_space.counters));
                    self.out.extend(frames::add(format!("/{name}").as_bytes(), 1));
                    self.operations
                        .push(context.history.begin(self.number, SimOperation::Add { name, delta: 1 }));
                }
                if context.sim_rng.percent(50) {
                    // The key is never set, and a client that has closed its sending side no longer waits.
                    self.out.extend(frames::wait(b"/never"));
                }
                self.send(context, stream);
                Ok(())
            }
            Notice::Writable(..) => {
                self.send(context, stream);
                Ok(())
            }
            Notice::Readable(..) => loop {
                match context.network.read(context.now, stream, Side::Client) {
                    Read::Nothing => return Ok(()),
                    Read::Bytes(bytes) => self.got.extend(bytes),
                    end => return self.finish(context, stream, end),
                }
            },
            Notice::Accept(_) => Ok(()),
        }
    }

    fn send(&mut self, context: &mut SimContext, stream: Stream) {
        let count = context.network.write(context.now, stream, Side::Client, &self.out).unwrap_or(0);
        self.out.drain(..count);
        if self.out.is_empty() {
            context.network.shut(context.now, stream, Side::Client);
        }
    }

    fn finish(&mut self, context: &mut SimContext, stream: Stream, end: Read) -> Result<(), CheckError> {
        let epoch = context.network.epoch(stream);
        context.network.close(context.now, stream, Side::Client);
        self.stream = None;
        let (due, got) = (self.operations.len() * 8, self.got.len());
        context.note(format_args!("c{} got {got} of {due} bytes, then {end:?}", self.number));
        if got > due || (self.calm && (got < due || end != Read::End)) {
            return Err(CheckError(format!("c{} half-closed and got {got} of {due} bytes", self.number)));
        }
        let mut answers = self.got.chunks_exact(8);
        for &sim_operation in &self.operations {
            let end = match answers.next().map(<[u8; 8]>::try_from) {
                Some(Ok(number)) => End::Responded(Answer::Number(i64::from_le_bytes(number))),
                _ => End::Failed(ErrorKind::ServerGone, Effect::Possible),
            };
            context.history.end(sim_operation, end, epoch)?;
        }
        Ok(())
    }
}
