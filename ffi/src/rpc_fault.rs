//! Failures of RPC groups, on their way to C.

use crate::error::Fault;
use crate::native_store::native_fault;
use crate::rendezvous_fault::{handler_fault, invalid_fault};
use crate::server::start_fault;
use crate::status::*;
use crate::store::call_fault;
use crate::watch::watch_fault;
use rendezvous_core::driver::rpc_group::{GroupCallError, ObservingError, RpcInitError, SignsError};
use rendezvous_core::rpc::agent::{AgentError, NotCallable};
use rendezvous_core::rpc::connection::{CallError, Status};
use rendezvous_core::rpc::handlers::HandlerError;
use rendezvous_core::rpc::membership::error::MembershipError;
use rendezvous_core::rpc::membership::observer::ObserverError;
use rendezvous_core::rpc::name::WorkerInfo;
use rendezvous_core::rpc::options::OptionsError;
use rendezvous_core::rpc::registry::BackendError;
use std::io;

pub(crate) fn options_fault(error: &OptionsError) -> Fault {
    invalid_fault(error)
}

pub(crate) fn backend_fault(error: &BackendError) -> Fault {
    let status = match error {
        BackendError::AlreadyRegistered { .. } => RDZV_ALREADY_REGISTERED,
        BackendError::Unnamed => RDZV_INVALID_ARGUMENT,
        BackendError::NotRegistered { .. } => RDZV_NOT_REGISTERED,
        BackendError::CannotInfer { .. } | BackendError::OtherOptions { .. } => RDZV_BACKEND_MISMATCH,
        BackendError::AlreadyInitialized => RDZV_RPC_ALREADY_INITIALIZED,
        BackendError::Options(error) => return options_fault(error),
    };
    Fault::new(status, error.to_string())
}

pub(crate) fn name_fault(error: &HandlerError) -> Fault {
    let status = match error {
        HandlerError::Name(_) | HandlerError::Reserved(_) => RDZV_INVALID_ARGUMENT,
        HandlerError::AlreadyRegistered(_) => RDZV_ALREADY_REGISTERED,
    };
    Fault::new(status, error.to_string())
}

fn system_fault(error: &io::Error, words: String) -> Fault {
    Fault::new(RDZV_EXHAUSTED, words).with(|known| known.os_error = error.raw_os_error().unwrap_or(0))
}

const fn status_of_membership(error: &MembershipError) -> rdzv_status {
    match error {
        MembershipError::Mixed { .. } => RDZV_RPC_MIXED_GROUP,
        MembershipError::Rank { .. } | MembershipError::WorldSize { .. } => RDZV_INVALID_ARGUMENT,
        MembershipError::NotUnique { .. }
        | MembershipError::Shared { .. }
        | MembershipError::IdTaken { .. } => RDZV_RPC_NAME_TAKEN,
        MembershipError::Devices(_) | MembershipError::Card { .. } => RDZV_RPC_DEVICE_MAP,
        MembershipError::OtherCard { .. } | MembershipError::Unanswered { .. } => RDZV_RPC_UNREACHED,
        MembershipError::Roster(_) | MembershipError::Contended => RDZV_RPC_MEMBERSHIP,
        MembershipError::TokenTimedOut { .. }
        | MembershipError::Absent { .. }
        | MembershipError::AbsentAtShutdown { .. } => RDZV_TIMED_OUT,
        MembershipError::TokenLost | MembershipError::Evicted { .. } => RDZV_RPC_EVICTED,
        MembershipError::Cancelled => RDZV_CANCELLED,
        MembershipError::Store { .. } => RDZV_SERVER_GONE,
    }
}

#[cold]
#[inline(never)]
pub(crate) fn agent_fault(error: &AgentError) -> Fault {
    let (status, who) = match error {
        AgentError::Membership(error) => (status_of_membership(error), None),
        AgentError::NotMet { .. } => (RDZV_TIMED_OUT, None),
        AgentError::Leader { leader, .. } => (RDZV_RPC_UNREACHED, Some(leader)),
        AgentError::PeerDied { worker, .. } => (RDZV_RPC_PEER_DIED, Some(worker)),
        AgentError::Abandoned => (RDZV_RPC_NO_MEMBER, None),
        AgentError::Stuck { .. } => (RDZV_TIMED_OUT, None),
        AgentError::Panicked { .. } => (RDZV_PANIC, None),
        AgentError::Reentrant => (RDZV_REENTRANT, None),
        AgentError::Foreign { status, .. } => (*status, None),
    };
    let ranks = match error {
        AgentError::NotMet { absent, .. }
        | AgentError::Membership(
            MembershipError::Absent { absent, .. } | MembershipError::AbsentAtShutdown { absent, .. },
        ) => absent.listed.iter().map(|&id| i64::from(id)).collect(),
        _ => Vec::new(),
    };
    let nodes = who.into_iter().map(|who| who.name.as_bytes().to_vec()).collect();
    Fault::new(status, error.to_string()).with(|known| (known.ranks, known.nodes) = (ranks, nodes))
}

#[cold]
#[inline(never)]
pub(crate) fn init_fault(error: &RpcInitError) -> Fault {
    let known = match error {
        RpcInitError::Name(error) => invalid_fault(error),
        RpcInitError::Backend(error) => backend_fault(error),
        RpcInitError::Rendezvous(error) => handler_fault(error),
        RpcInitError::Rank { .. } => invalid_fault(error),
        RpcInitError::Listen(error) => start_fault(error),
        RpcInitError::Store(error) => call_fault(error),
        RpcInitError::Signs(error) => match error {
            SignsError::Native(error) => native_fault(error),
            SignsError::Store(error) => call_fault(error),
            SignsError::Watch(error) => watch_fault(error),
            SignsError::Thread(cause) => system_fault(cause, error.to_string()),
        },
        RpcInitError::System(cause) => system_fault(cause, error.to_string()),
        RpcInitError::Handlers(error) => name_fault(error),
        RpcInitError::Agent(error) => agent_fault(error),
        RpcInitError::Stuck { .. } => Fault::new(RDZV_TIMED_OUT, error.to_string()),
        RpcInitError::Foreign { status, .. } => Fault::new(*status, error.to_string()),
    };
    known.during("init_rpc")
}

const fn status_of_call(error: &CallError) -> rdzv_status {
    match error {
        CallError::NotOpen(_) | CallError::Leaving(_) => RDZV_RPC_LEAVING,
        CallError::TooMany { .. } | CallError::TooMuch { .. } | CallError::TooLong { .. } => {
            RDZV_LIMIT_EXCEEDED
        }
        CallError::Handler { .. } => RDZV_INVALID_ARGUMENT,
        CallError::NoMemory(_) => RDZV_EXHAUSTED,
        CallError::Cancelled(_) => RDZV_CANCELLED,
        CallError::Reentrant(_) => RDZV_REENTRANT,
        CallError::DeadlinePassed { .. } => RDZV_TIMED_OUT,
        CallError::Remote { status, .. } => match status {
            Status::Failed | Status::Other(_) => RDZV_RPC_HANDLER_FAILED,
            Status::NoHandler => RDZV_RPC_NO_HANDLER,
            Status::Deadline => RDZV_TIMED_OUT,
            Status::TooLong => RDZV_LIMIT_EXCEEDED,
            Status::Leaving => RDZV_RPC_LEAVING,
        },
        CallError::PeerGone { .. } => RDZV_RPC_PEER_DIED,
    }
}

/// Whom a failed call was for, as far as it is known.
const fn callee_of(error: &GroupCallError) -> Option<&WorkerInfo> {
    match error {
        GroupCallError::NotCallable(NotCallable::Dead { worker, .. })
        | GroupCallError::Address { worker, .. }
        | GroupCallError::System { worker, .. } => Some(worker),
        GroupCallError::NotCallable(_)
        | GroupCallError::Panicked { .. }
        | GroupCallError::Foreign { .. }
        | GroupCallError::Cancelled { .. }
        | GroupCallError::Late { .. }
        | GroupCallError::Untaken { .. } => None,
        GroupCallError::Call(error) => match error {
            CallError::NotOpen(peer)
            | CallError::Cancelled(peer)
            | CallError::Reentrant(peer)
            | CallError::Leaving(peer)
            | CallError::NoMemory(peer) => Some(peer),
            CallError::TooMany { peer, .. }
            | CallError::TooMuch { peer, .. }
            | CallError::TooLong { peer, .. }
            | CallError::Handler { peer, .. }
            | CallError::DeadlinePassed { peer, .. }
            | CallError::Remote { peer, .. }
            | CallError::PeerGone { peer, .. } => Some(peer),
        },
    }
}

/// What a backend of the program's own says of a call.
#[cold]
pub(crate) fn foreign_error(fault: &Fault) -> GroupCallError {
    GroupCallError::Foreign { status: fault.status, words: fault.message.as_str().into() }
}

#[cold]
#[inline(never)]
pub(crate) fn group_call_fault(error: &GroupCallError) -> Fault {
    let status = match error {
        GroupCallError::NotCallable(NotCallable::UnknownName { .. } | NotCallable::UnknownId { .. }) => {
            RDZV_RPC_UNKNOWN_WORKER
        }
        GroupCallError::NotCallable(NotCallable::Dead { .. }) => RDZV_RPC_PEER_DIED,
        GroupCallError::NotCallable(NotCallable::NoMember) => RDZV_RPC_NO_MEMBER,
        GroupCallError::Call(error) => status_of_call(error),
        GroupCallError::Address { .. } => RDZV_RPC_UNREACHED,
        GroupCallError::System { .. } => RDZV_EXHAUSTED,
        GroupCallError::Panicked { .. } => RDZV_PANIC,
        GroupCallError::Foreign { status, .. } => *status,
        GroupCallError::Cancelled { .. } => RDZV_CANCELLED,
        GroupCallError::Late { .. } => RDZV_TIMED_OUT,
        GroupCallError::Untaken { .. } => RDZV_LIMIT_EXCEEDED,
    };
    Fault::new(status, error.to_string()).during("call").with(|known| {
        if let Some(callee) = callee_of(error) {
            known.nodes = vec![callee.name.as_bytes().to_vec()];
        }
        match error {
            GroupCallError::NotCallable(NotCallable::UnknownName { name }) => {
                known.nodes = vec![name.as_bytes().to_vec()];
            }
            GroupCallError::NotCallable(NotCallable::UnknownId { id }) => known.ranks = vec![i64::from(*id)],
            _ => {}
        }
        if let GroupCallError::Call(CallError::DeadlinePassed { elapsed, .. }) = error {
            known.elapsed_ms = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        }
        if let GroupCallError::Call(CallError::Remote { words, .. }) = error {
            known.cause = words.to_string();
        }
        if let GroupCallError::Foreign { status: RDZV_RPC_HANDLER_FAILED, words } = error {
            known.cause = words.to_string();
        }
    })
}

pub(crate) fn observing_fault(error: &ObservingError) -> Fault {
    match error {
        ObservingError::Store(error) => call_fault(error),
        ObservingError::Thread(cause) => system_fault(cause, error.to_string()),
    }
}

pub(crate) fn observer_fault(error: &ObserverError) -> Fault {
    let status = match error {
        ObserverError::Roster(_) | ObserverError::Kind { .. } => RDZV_RPC_MEMBERSHIP,
        ObserverError::Store { .. } => RDZV_SERVER_GONE,
    };
    Fault::new(status, error.to_string()).during("observe")
}
