//! One connection between two workers, at both its ends: [`caller::Caller`] and [`callee::Callee`].
//!
//! Neither owns a payload. What is received is handed out where it lies, by `next_event`, which takes bytes off the front of
//! what was read. What is to be written is asked for with `poll_write` when the socket takes bytes, and not before: a part
//! of a payload is named by its place, for its owner to write from there. So a gigabyte needs no copy here, small calls
//! pass between its parts, and a peer that does not read holds up the one who writes to it, and nothing grows.

pub mod by_number;
pub mod callee;
pub mod caller;
mod error;
mod frames_in;
pub(super) mod in_flight;
mod outgoing;

pub use error::{
    CallError, CallFailure, CallPhase, ConnectionError, PoolLoad, Refusal, Status, cut_failure_text,
};
pub use outgoing::ToWrite;

/// Whether a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// It is.
    Responded,
    /// Nobody waits for an answer.
    OneWay,
}

#[cfg(test)]
mod tests;
