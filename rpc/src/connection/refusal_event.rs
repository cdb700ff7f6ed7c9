//! Refusals of a worker that is called, and what is wrong with its settings, for its log.

use super::{ConnectionError, Status};
use crate::name::WorkerInfo;
use core::fmt::Write as _;
use core::net::SocketAddr;
use rendezvous_core::error::OneLine;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::prelude::*;

/// Refusal of a connection, of a call or of a token file, or a warning of an open port. Its text is one line: what comes
/// from the caller is escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalEvent {
    /// The worker ended a connection because of what its caller sent, or did not send.
    Connection {
        /// Address of the caller.
        peer: Option<SocketAddr>,
        /// The caller as it identified itself, if it did.
        caller: Option<WorkerInfo>,
        /// The reason.
        why: ConnectionError,
    },
    /// No handler gets this call.
    Call {
        /// Address of the caller.
        peer: Option<SocketAddr>,
        /// The caller as it identified itself.
        caller: Option<WorkerInfo>,
        /// Name of the handler, if it is known here.
        handler: Box<str>,
        /// The reason, as the caller gets it. The caller of a one-way call gets nothing.
        status: Status,
        /// More about the reason.
        message: Box<str>,
    },
    /// The worker listens at an address that other hosts may reach, and callers need not authenticate themselves. Reported
    /// once, when it starts, on the thread that starts it.
    Exposed {
        /// The address.
        addr: SocketAddr,
    },
    /// The changed token file cannot be used. The earlier tokens still hold.
    TokenFile {
        /// The file and the reason.
        error: Box<str>,
    },
}

impl ConnectionError {
    /// Whether the callee ends the connection for this reason because of its caller.
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Frame(_)
                | Self::UnexpectedFrame(_)
                | Self::TooMuchData(_)
                | Self::TooManyInFlight
                | Self::NoWorker
                | Self::Refused { .. }
                | Self::NoGreeting(_)
                | Self::Displaced
                | Self::TooManyConnections(_)
                | Self::Stalled(_)
        )
    }
}

impl fmt::Display for RefusalEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut OneLine(f);
        let (what, peer, caller) = match self {
            Self::Connection { peer, caller, .. } => ("connection", peer, caller),
            Self::Call { peer, caller, .. } => ("call", peer, caller),
            Self::Exposed { addr } => {
                return write!(
                    f,
                    "{addr} is not a loopback address, and callers need not authenticate themselves: a process that \
                     reaches it and the store can call all handlers. Give the workers an auth_token_file, or \
                     certificates (tls), or bind a loopback address (host)"
                );
            }
            Self::TokenFile { error } => return write!(f, "the earlier tokens still hold: {error}"),
        };
        f.write_str(what)?;
        if let Some(caller) = caller {
            write!(f, " of {caller}")?;
        }
        if let Some(peer) = peer {
            write!(f, " from {peer}")?;
        }
        match self {
            Self::Connection { why: ConnectionError::Refused { why, message }, .. } => {
                write!(f, " refused: {why}")?;
                tail(f, message)
            }
            Self::Connection { why, .. } => write!(f, " refused: {why}"),
            Self::Call { handler, status, message, .. } => {
                if !handler.is_empty() {
                    write!(f, " to {handler}")?;
                }
                write!(f, " refused: {status}")?;
                tail(f, message)
            }
            Self::Exposed { .. } | Self::TokenFile { .. } => Ok(()),
        }
    }
}

fn tail(f: &mut impl fmt::Write, message: &str) -> fmt::Result {
    if message.is_empty() { Ok(()) } else { write!(f, ": {message}") }
}

/// Function that gets the refusals of a worker, on the worker's threads. It must not block, and may not use the worker.
#[derive(Clone)]
pub struct RefusalObserver(Arc<dyn Fn(&RefusalEvent) + Send + Sync>);

opaque_debug!(RefusalObserver);

impl Default for RefusalObserver {
    fn default() -> Self {
        Self::new(|_| ())
    }
}

impl RefusalObserver {
    /// Makes an observer of a function.
    pub fn new(observe: impl Fn(&RefusalEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Reports a refusal.
    pub fn notify(&self, event: &RefusalEvent) {
        (self.0)(event);
    }
}
