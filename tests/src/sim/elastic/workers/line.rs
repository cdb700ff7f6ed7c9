//! Connection between two workers: a stream of the network with its TLS, driven as the driver of RPC groups does.

use crate::sim::harness::network::{Read, Side, Stream};
use crate::sim::world::SimContext;
use rendezvous_core::tls::TlsStage;
use rendezvous_rpc::connection::{ConnectionError, ToWrite};

/// Unsent bytes from which on the machine is not asked for more.
const UNSENT_BYTES_HIGH: usize = 2048;

pub(super) struct Line {
    pub(super) stream: Stream,
    side: Side,
    stage: Option<TlsStage>,
    /// Whether the connection is established.
    pub(super) is_up: bool,
    unsent: Vec<u8>,
}

impl Line {
    pub(super) const fn new(stream: Stream, side: Side, stage: Option<TlsStage>) -> Self {
        Self { stream, side, stage, is_up: matches!(side, Side::Server), unsent: Vec::new() }
    }

    pub(super) const fn has_capacity(&self) -> bool {
        self.is_up && self.unsent.len() < UNSENT_BYTES_HIGH
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.stage.as_ref().is_some_and(TlsStage::has_unsent)
    }

    /// Returns the binding of the channel, once TLS has one.
    pub(super) fn binding(&self) -> Option<[u8; 32]> {
        self.stage.as_ref().and_then(TlsStage::binding)
    }

    /// Appends what is read to `into`. Returns whether there may be more.
    pub(super) fn read(
        &mut self,
        context: &mut SimContext,
        into: &mut Vec<u8>,
    ) -> Result<bool, ConnectionError> {
        match (context.network.read(context.now, self.stream, self.side), &mut self.stage) {
            (Read::Nothing, _) => Ok(false),
            (Read::Bytes(bytes), None) => {
                into.extend_from_slice(&bytes);
                Ok(true)
            }
            (Read::Bytes(bytes), Some(stage)) => match stage.receive(&bytes, into) {
                Ok(()) => Ok(true),
                Err(fault) => Err(ConnectionError::Lost(fault.to_string().into())),
            },
            (Read::End, _) => Err(ConnectionError::Lost("the other end closed it".into())),
            (Read::Reset, _) => Err(ConnectionError::Lost("it was reset".into())),
        }
    }

    /// Continues to read later.
    pub(super) fn read_on(&self, context: &mut SimContext) {
        context.network.read_on(context.now, self.stream, self.side);
    }

    /// Appends what a machine writes. A part of the payload of a call is a part of what `payload` returns for it.
    pub(super) fn write<'p>(&mut self, write: ToWrite, payload: impl Fn(u64) -> Option<&'p [u8]>) {
        match write {
            ToWrite::Bytes(bytes) => self.unsent.extend_from_slice(&bytes),
            ToWrite::Part { header, call, offset, bytes } => {
                self.unsent.extend_from_slice(&header);
                let first = usize::try_from(offset).expect("a small payload");
                let end = first + usize::try_from(bytes).expect("a small payload");
                let payload = payload(call).expect("a payload is kept until it is written");
                self.unsent.extend_from_slice(&payload[first..end]);
            }
        }
    }

    /// Sends until there is nothing left or no capacity.
    pub(super) fn flush(&mut self, context: &mut SimContext) -> Result<(), ConnectionError> {
        while self.is_up {
            if let Some(stage) = &mut self.stage {
                let count = stage.send(&self.unsent);
                self.unsent.drain(..count);
            }
            let unsent = self.stage.as_ref().map_or(&self.unsent[..], TlsStage::unsent);
            if unsent.is_empty() {
                break;
            }
            let length = unsent.len();
            let written = context.network.write(context.now, self.stream, self.side, unsent);
            let count = written.map_err(|_| ConnectionError::Lost("it is broken".into()))?;
            match &mut self.stage {
                Some(stage) => stage.sent(count),
                None => drop(self.unsent.drain(..count)),
            }
            if count < length {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn close(mut self, context: &mut SimContext) {
        if let Some(stage) = &mut self.stage {
            stage.close();
            self.flush(context).ok();
        }
        context.network.close(context.now, self.stream, self.side);
    }

    /// Ends the connection because its process died: the other end finds the end of the stream, or a reset.
    pub(super) fn die(self, context: &mut SimContext, is_reset: bool) {
        if is_reset {
            context.network.abort(context.now, self.stream, self.side);
        } else {
            context.network.close(context.now, self.stream, self.side);
        }
    }
}
