//! State machines of one connection between two workers: [`caller::Caller`] at one end and [`callee::Callee`] at the
//! other.
//!
//! Neither owns a payload. `next_event` consumes bytes that were read and returns received payloads as slices of them.
//! The driver calls `poll_write` when the socket accepts bytes, and not before; a part of a payload is identified by
//! its offset, and the payload's owner writes it from there. So a gigabyte needs no copy here, small calls pass between
//! its parts, and a peer that does not read delays the sender without growth of any buffer.

pub mod callee;
pub mod caller;
mod error;
mod frames_in;
pub(super) mod in_flight;
mod outgoing;
mod refusal_event;
mod token;

pub use error::{
    CallError, CallFailure, CallPhase, ConnectionError, PoolLoad, Refusal, Status, cut_failure_text,
};
pub use outgoing::ToWrite;
pub use refusal_event::{RefusalEvent, RefusalObserver};
pub use token::TokenExchange;

/// Whether a call has a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// It has.
    Responded,
    /// It has none, and the caller does not wait for one.
    OneWay,
}

#[cfg(test)]
mod tests;
