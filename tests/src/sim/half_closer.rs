//! Client without machines that sends all its requests, closes its sending side, and reads the answers.

use super::history::{DeedId, Wrong};
use super::network::{Notice, Read, Route, Side, Stream};
use super::sim_operation::{Answer, End, SimOperation};
use super::world::Stage;
use crate::frames;
use rendezvous_core::error::{Effect, ErrorKind};

pub(super) struct HalfCloser {
    /// Its number among the clients of the network.
    number: usize,
    stream: Option<Stream>,
    deeds: Vec<DeedId>,
    out: Vec<u8>,
    got: Vec<u8>,
    /// It connected in the calm phase, so everything must be answered.
    calm: bool,
}

impl HalfCloser {
    pub(super) fn start(number: usize, stage: &mut Stage) -> Self {
        let stream = stage.network.connect(stage.now, number, Route::Server);
        stage.note(format_args!("c{number}, which half-closes, connects {stream}"));
        let calm = !stage.stormy;
        Self { number, stream: Some(stream), deeds: Vec::new(), out: Vec::new(), got: Vec::new(), calm }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.stream.is_none()
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.stream == Some(stream)
    }

    pub(super) fn noticed(&mut self, stage: &mut Stage, notice: Notice) -> Result<(), Wrong> {
        let Some(stream) = self.stream else { return Ok(()) };
        match notice {
            Notice::Refused(_) => self.finish(stage, stream, Read::Reset),
            Notice::Connected(_) => {
                self.out = frames::greeting();
                for _ in 0..stage.sim_rng.index(20) {
                    let name = format!("n/{}", stage.sim_rng.index(stage.field.counters));
                    self.out.extend(frames::add(format!("/{name}").as_bytes(), 1));
                    self.deeds.push(stage.history.begin(self.number, SimOperation::Add { name, delta: 1 }));
                }
                if stage.sim_rng.percent(50) {
                    // The key is never set, and a client that has closed its sending side no longer waits.
                    self.out.extend(frames::wait(b"/never"));
                }
                self.send(stage, stream);
                Ok(())
            }
            Notice::Writable(..) => {
                self.send(stage, stream);
                Ok(())
            }
            Notice::Readable(..) => loop {
                match stage.network.read(stage.now, stream, Side::Client) {
                    Read::Nothing => return Ok(()),
                    Read::Bytes(bytes) => self.got.extend(bytes),
                    end => return self.finish(stage, stream, end),
                }
            },
            Notice::Accept(_) => Ok(()),
        }
    }

    fn send(&mut self, stage: &mut Stage, stream: Stream) {
        let count = stage.network.write(stage.now, stream, Side::Client, &self.out).unwrap_or(0);
        self.out.drain(..count);
        if self.out.is_empty() {
            stage.network.shut(stage.now, stream, Side::Client);
        }
    }

    fn finish(&mut self, stage: &mut Stage, stream: Stream, end: Read) -> Result<(), Wrong> {
        let epoch = stage.network.epoch(stream);
        stage.network.close(stage.now, stream, Side::Client);
        self.stream = None;
        let (due, got) = (self.deeds.len() * 8, self.got.len());
        stage.note(format_args!("c{} got {got} of {due} bytes, then {end:?}", self.number));
        if got > due || (self.calm && (got < due || end != Read::End)) {
            return Err(Wrong(format!("c{} half-closed and got {got} of {due} bytes", self.number)));
        }
        let mut answers = self.got.chunks_exact(8);
        for &sim_operation in &self.deeds {
            let end = match answers.next().map(<[u8; 8]>::try_from) {
                Some(Ok(number)) => End::Responded(Answer::Number(i64::from_le_bytes(number))),
                _ => End::Failed(ErrorKind::ServerGone, Effect::Possible),
            };
            stage.history.end(sim_operation, end, epoch)?;
        }
        Ok(())
    }
}
