//! Conversion of rendezvous failures to C errors.

use crate::prelude::*;
use crate::server::start_fault;
use crate::store::{call_fault, kind_of, status_of};
use rendezvous_core::driver::call_error::CallError;
use rendezvous_core::driver::elastic_store::MeetingError;
use rendezvous_core::driver::native_client::NativeError;
use rendezvous_core::driver::rendezvous::{HandlerError, PublishError, refusal};
use rendezvous_core::elastic_store::get_all::Lacking;
use rendezvous_core::rendezvous::error::{RendezvousError, RendezvousErrorKind};
use rendezvous_core::rendezvous::registry::RegistryError;
use rendezvous_core::rendezvous::url::UrlError;
use std::error::Error;

const fn status_of_rendezvous(kind: RendezvousErrorKind) -> rdzv_status {
    match kind {
        RendezvousErrorKind::Closed => RDZV_RENDEZVOUS_CLOSED,
        RendezvousErrorKind::Timeout => RDZV_RENDEZVOUS_TIMED_OUT,
        RendezvousErrorKind::Connection => RDZV_RENDEZVOUS_CONNECTION,
        RendezvousErrorKind::State => RDZV_RENDEZVOUS_STATE,
        RendezvousErrorKind::GracefulExit => RDZV_RENDEZVOUS_GRACEFUL_EXIT,
        RendezvousErrorKind::Replaced => RDZV_RENDEZVOUS_REPLACED,
    }
}

/// Converts the failure of a node's request, with the text that handlers have for it.
pub(crate) fn fault_of_node(error: NativeError, (run_id, node): (&str, &str)) -> Fault {
    let fault = call_fault(error.call());
    let elapsed = error.call().elapsed();
    let refused = handler_fault(&refusal(error, (run_id, node), elapsed));
    fault.with(|details| {
        (details.status, details.message, details.cause) =
            (refused.status, refused.message.clone(), refused.cause.clone());
    })
}

/// Converts a failure that user code reported by its status.
pub(crate) fn reported_by(plugin: &str, status: rdzv_status, message: Option<String>) -> HandlerError {
    let message =
        message.unwrap_or_else(|| format!("{plugin} failed: {}", name_of(status).to_string_lossy()));
    let message = message.into();
    let kind = match status {
        RDZV_RENDEZVOUS_CLOSED => RendezvousErrorKind::Closed,
        RDZV_RENDEZVOUS_TIMED_OUT => RendezvousErrorKind::Timeout,
        RDZV_RENDEZVOUS_CONNECTION => RendezvousErrorKind::Connection,
        RDZV_RENDEZVOUS_STATE => RendezvousErrorKind::State,
        RDZV_RENDEZVOUS_GRACEFUL_EXIT => RendezvousErrorKind::GracefulExit,
        RDZV_RENDEZVOUS_REPLACED => RendezvousErrorKind::Replaced,
        _ => return HandlerError::Plugin { kind: kind_of(status), message },
    };
    RendezvousError::Refused { kind, message }.into()
}

faults! {
    HandlerError => handler_fault,
    PublishError => publish_fault,
    RegistryError => registry_fault,
}

pub(crate) fn registry_fault(error: &RegistryError) -> Fault {
    let status = match error {
        RegistryError::BackendEmpty => RDZV_INVALID_ARGUMENT,
        RegistryError::Conflict { .. } | RegistryError::SchemeTaken { .. } => RDZV_ALREADY_REGISTERED,
        RegistryError::NotRegistered { .. } | RegistryError::NotBuiltIn { .. } => RDZV_NOT_REGISTERED,
        RegistryError::Mismatch { .. } => RDZV_BACKEND_MISMATCH,
    };
    Fault::new(status, error.to_string())
}

fn url_fault(error: &UrlError) -> Fault {
    let status = match error {
        UrlError::NoHandler { .. } => RDZV_NOT_REGISTERED,
        UrlError::NotAgain { .. } => RDZV_UNSUPPORTED,
        _ => RDZV_INVALID_ARGUMENT,
    };
    Fault::new(status, error.to_string())
}

fn rendezvous_fault(error: &RendezvousError) -> Fault {
    let status = status_of_rendezvous(error.kind());
    let Some(inner) = error.source() else {
        return Fault::new(status, error.to_string()).with(|details| {
            if let RendezvousError::Incomplete { missing, timeout, .. } = error {
                details.ranks = missing.iter().map(|&rank| i64::try_from(rank).unwrap_or(i64::MAX)).collect();
                details.elapsed_ms = millis(*timeout);
            }
        });
    };
    // The error of the store has more details than its message.
    let known = inner.downcast_ref::<CallError>().map(call_fault);
    let cause = inner.to_string();
    let message = error.to_string();
    known.unwrap_or_else(|| Fault::new(status, "")).with(|details| {
        (details.status, details.message, details.cause) = (status, message, cause);
    })
}

pub(crate) fn publish_fault(error: &PublishError) -> Fault {
    let io = |error: &std::io::Error| error.raw_os_error().unwrap_or(0);
    let (status, os_error) = match error {
        PublishError::Store(error) => return call_fault(error),
        PublishError::Info(_) => (RDZV_RENDEZVOUS_STATE, 0),
        PublishError::Port(error) => {
            (RDZV_EXHAUSTED, error.source().and_then(|source| source.downcast_ref()).map_or(0, io))
        }
    };
    Fault::new(status, error.to_string()).with_os_error(os_error)
}

#[cold]
#[inline(never)]
pub(crate) fn handler_fault(error: &HandlerError) -> Fault {
    match error {
        HandlerError::Rendezvous(error) => rendezvous_fault(error),
        HandlerError::Parameters(error) => invalid(error),
        HandlerError::Static(error) => invalid(error),
        HandlerError::Rdzv(error) => invalid(error),
        HandlerError::Tls(error) => crate::tls_options::tls_fault(error),
        HandlerError::Token(error) => invalid(error),
        HandlerError::NotJoined { .. } => Fault::new(RDZV_INVALID_ARGUMENT, error.to_string()),
        HandlerError::Joining { .. } => Fault::new(RDZV_REENTRANT, error.to_string()),
        HandlerError::Registry(error) => registry_fault(error),
        HandlerError::Url(error) => url_fault(error),
        HandlerError::Hosting(error) => {
            start_fault(&error.cause).with(|details| details.message = error.to_string())
        }
        HandlerError::Store(error) => call_fault(error),
        HandlerError::Publish(error) => publish_fault(error),
        HandlerError::NoEvents { .. } => Fault::new(RDZV_UNSUPPORTED, error.to_string()),
        HandlerError::Foreign(_) => Fault::new(RDZV_IO, error.to_string()),
        HandlerError::Plugin { kind, .. } => Fault::new(status_of(*kind), error.to_string()),
    }
}

/// Converts a failure to meet. `peer` is the address of the store; `are_named` is true if the caller gave
/// names to the ranks.
#[cold]
#[inline(never)]
pub(crate) fn meeting_fault(error: &MeetingError, peer: &str, are_named: bool) -> Fault {
    match error {
        MeetingError::Group(error) => invalid(error),
        MeetingError::Store(error) => call_fault(error),
        MeetingError::Missing(missing) => {
            Fault::new(RDZV_TIMED_OUT, error.to_string()).during("barrier").with(|details| {
                (details.peer, details.phase) = (peer.into(), "waiting".into());
                details.elapsed_ms = millis(missing.timeout);
                details.ranks.clone_from(&missing.missing);
                if are_named {
                    let names = missing.missing_names();
                    details.nodes = names.iter().map(|name| name.clone().into_bytes()).collect();
                }
            })
        }
        MeetingError::Exchange(exchange) => {
            Fault::new(RDZV_TIMED_OUT, error.to_string()).during("get_all").with(|details| {
                (details.peer, details.phase) = (peer.into(), "waiting".into());
                details.elapsed_ms = millis(exchange.timeout);
                if let Lacking::Data { ranks, .. } = &exchange.lacking {
                    details.ranks.clone_from(ranks);
                }
            })
        }
        MeetingError::Unexpected(_) => Fault::new(RDZV_PANIC, format!("a bug in librendezvous: {error}")),
    }
}
