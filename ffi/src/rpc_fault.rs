//! Conversion of RPC failures to C errors.

use crate::prelude::*;
use crate::rendezvous_fault::handler_fault;
use crate::server::start_fault;
use crate::store::call_fault;
use rendezvous_core::time::Duration;
use rendezvous_rpc::agent::{NotCallable, indicates_death};
use rendezvous_rpc::connection::{CallError, CallFailure, CallPhase, ConnectionError, Refusal, Status};
use rendezvous_rpc::driver::group::registry::BackendError;
use rendezvous_rpc::driver::group::{GroupCallError, ObservingError, RpcInitError};
use rendezvous_rpc::handlers::HandlerError;
use rendezvous_rpc::membership::error::MembershipError;
use rendezvous_rpc::membership::observer::ObserverError;
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::OptionsError;
use std::io;

faults! {
    BackendError => backend_fault,
    HandlerError => name_fault,
    MembershipError => agent_fault,
    RpcInitError => init_fault,
    GroupCallError => group_call_fault,
    ObservingError => observing_fault,
    ObserverError => observer_fault,
    OptionsError => invalid,
}

pub(crate) fn backend_fault(error: &BackendError) -> Fault {
    let status = match error {
        BackendError::AlreadyRegistered { .. } => RDZV_ALREADY_REGISTERED,
        BackendError::Unnamed => RDZV_INVALID_ARGUMENT,
        BackendError::NotRegistered { .. } => RDZV_NOT_REGISTERED,
        BackendError::AlreadyInitialized => RDZV_RPC_ALREADY_INITIALIZED,
    };
    Fault::new(status, error.to_string())
}

pub(crate) fn name_fault(error: &HandlerError) -> Fault {
    let status = match error {
        HandlerError::Name(_) | HandlerError::Reserved(_) | HandlerError::Callers { .. } => {
            RDZV_INVALID_ARGUMENT
        }
        HandlerError::AlreadyRegistered(_) => RDZV_ALREADY_REGISTERED,
    };
    Fault::new(status, error.to_string())
}

fn system_fault(error: &io::Error, message: String) -> Fault {
    Fault::os(RDZV_EXHAUSTED, message, error)
}

#[cold]
#[inline(never)]
pub(crate) fn agent_fault(error: &MembershipError) -> Fault {
    let status = match error {
        MembershipError::Mixed { .. } => RDZV_RPC_MIXED_GROUP,
        MembershipError::Rank { .. } | MembershipError::WorldSize { .. } => RDZV_INVALID_ARGUMENT,
        MembershipError::NotUnique { .. }
        | MembershipError::Held { .. }
        | MembershipError::Begun { .. }
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
        MembershipError::NotMet { .. } | MembershipError::CallsCut { .. } | MembershipError::Stuck { .. } => {
            RDZV_TIMED_OUT
        }
        MembershipError::Leader { .. } => RDZV_RPC_UNREACHED,
        MembershipError::PeerDied { .. } => RDZV_RPC_PEER_DIED,
        MembershipError::Abandoned => RDZV_RPC_NO_MEMBER,
        MembershipError::Panicked { .. } => RDZV_PANIC,
        MembershipError::Reentrant => RDZV_REENTRANT,
        MembershipError::Foreign { status, .. } => *status,
    };
    let waited = error.absent().map_or(Duration::ZERO, |absent| absent.waited);
    Fault::new(status, error.to_string()).with(|details| {
        details.ranks = error.ids().into_iter().map(i64::from).collect();
        details.nodes = error.names().into_iter().map(|name| name.as_bytes().to_vec()).collect();
        details.elapsed_ms = millis(waited);
    })
}

#[cold]
#[inline(never)]
pub(crate) fn init_fault(error: &RpcInitError) -> Fault {
    let known = match error {
        RpcInitError::Name(error) => invalid(error),
        RpcInitError::Backend(error) => backend_fault(error),
        RpcInitError::Rendezvous(error) => handler_fault(error),
        RpcInitError::Rank { .. } => invalid(error),
        RpcInitError::Listen(error) => start_fault(error),
        RpcInitError::Tls(error) => crate::tls_options::tls_fault(error),
        RpcInitError::Store(error) => call_fault(error),
        RpcInitError::System(cause) => system_fault(cause, error.to_string()),
        RpcInitError::Handlers(error) => name_fault(error),
        RpcInitError::Agent(error) => agent_fault(error),
        RpcInitError::Stuck { .. } => Fault::new(RDZV_TIMED_OUT, error.to_string()),
        RpcInitError::Foreign { status, .. } => Fault::new(*status, error.to_string()),
    };
    known.during("init_rpc")
}

const fn status_of_call(error: &CallError) -> rdzv_status {
    match &error.why {
        CallFailure::Leaving => RDZV_RPC_LEAVING,
        CallFailure::TooMany { .. } | CallFailure::TooMuch { .. } | CallFailure::TooLong { .. } => {
            RDZV_LIMIT_EXCEEDED
        }
        CallFailure::Handler { .. } => RDZV_INVALID_ARGUMENT,
        CallFailure::NoMemory => RDZV_EXHAUSTED,
        CallFailure::Cancelled => RDZV_CANCELLED,
        CallFailure::Reentrant => RDZV_REENTRANT,
        CallFailure::DeadlinePassed { .. } => RDZV_TIMED_OUT,
        CallFailure::Remote { status, .. } => match status {
            Status::Failed | Status::Other(_) => RDZV_RPC_HANDLER_FAILED,
            Status::NoHandler => RDZV_RPC_NO_HANDLER,
            Status::Deadline | Status::Stalled => RDZV_TIMED_OUT,
            Status::TooLong => RDZV_LIMIT_EXCEEDED,
            Status::Leaving => RDZV_RPC_LEAVING,
            Status::Exhausted => RDZV_EXHAUSTED,
            Status::Malformed => RDZV_RPC_MALFORMED,
            Status::Denied => RDZV_PERMISSION_DENIED,
        },
        CallFailure::CallerEnded(_) | CallFailure::Unsent(ConnectionError::CallerEnded(_)) => {
            RDZV_RPC_NO_MEMBER
        }
        CallFailure::Panicked(_) | CallFailure::Unsent(ConnectionError::Panicked(_)) => RDZV_PANIC,
        CallFailure::ConnectionLost(_) | CallFailure::Unsent(ConnectionError::GivenUp(_)) => {
            RDZV_RPC_PEER_DIED
        }
        CallFailure::Unsent(
            ConnectionError::Unproven
            | ConnectionError::Refused { why: Refusal::NoToken | Refusal::WrongToken, .. },
        ) => RDZV_UNAUTHENTICATED,
        CallFailure::Unsent(_) if indicates_death(error) => RDZV_RPC_PEER_DIED,
        CallFailure::Unsent(_) => RDZV_RPC_UNREACHED,
    }
}

/// Returns the callee of a failed call if it is known.
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
        | GroupCallError::NoResult { .. }
        | GroupCallError::Reentrant { .. }
        | GroupCallError::Untaken { .. } => None,
        GroupCallError::Call(error) => Some(&error.peer),
    }
}

/// Converts the failure of a call that a backend in user code reported.
#[cold]
#[inline(never)]
pub(crate) fn foreign_error(call: &str, fault: &Fault) -> GroupCallError {
    let mut message = fault.message.clone();
    let mut cause = fault.cause.clone();
    if fault.status == RDZV_RPC_HANDLER_FAILED {
        cause = message;
        message = format!("the handler failed: {cause}");
    }
    GroupCallError::Foreign {
        call: call.into(),
        status: fault.status,
        message: message.into(),
        cause: cause.into(),
    }
}

#[cold]
#[inline(never)]
pub(crate) fn group_call_fault(error: &GroupCallError) -> Fault {
    let status = match error {
        GroupCallError::NotCallable(NotCallable::UnknownName { .. } | NotCallable::UnknownId { .. }) => {
            RDZV_RPC_UNKNOWN_WORKER
        }
        GroupCallError::NotCallable(NotCallable::Dead { .. }) => RDZV_RPC_PEER_DIED,
        GroupCallError::NotCallable(NotCallable::NoMember | NotCallable::Over { .. }) => RDZV_RPC_NO_MEMBER,
        GroupCallError::Call(error) => status_of_call(error),
        GroupCallError::Address { .. } => RDZV_RPC_UNREACHED,
        GroupCallError::System { .. } => RDZV_EXHAUSTED,
        GroupCallError::Panicked { .. } => RDZV_PANIC,
        GroupCallError::Foreign { status, .. } => *status,
        GroupCallError::Cancelled { .. } => RDZV_CANCELLED,
        GroupCallError::Late { .. } => RDZV_TIMED_OUT,
        GroupCallError::NoResult { .. } => RDZV_RPC_PEER_DIED,
        GroupCallError::Reentrant { .. } => RDZV_REENTRANT,
        GroupCallError::Untaken { .. } => RDZV_LIMIT_EXCEEDED,
    };
    Fault::new(status, error.to_string()).during("call").with(|details| {
        if let Some(callee) = callee_of(error) {
            details.nodes = vec![callee.name.as_bytes().to_vec()];
        }
        match error {
            GroupCallError::NotCallable(NotCallable::UnknownName { name }) => {
                details.nodes = vec![name.as_bytes().to_vec()];
            }
            GroupCallError::NotCallable(NotCallable::UnknownId { id }) => {
                details.ranks = vec![i64::from(*id)]
            }
            _ => {}
        }
        if let GroupCallError::Call(error) = error {
            details.peer = error.address.to_string();
            details.phase = error.phase().map_or("", CallPhase::name).into();
            match &error.why {
                CallFailure::DeadlinePassed { elapsed, .. } => {
                    details.elapsed_ms = millis(*elapsed);
                }
                CallFailure::Remote { message, .. } => details.cause = message.to_string(),
                _ => {}
            }
        }
        match error {
            GroupCallError::Foreign { cause, .. } => details.cause = cause.to_string(),
            GroupCallError::Late { elapsed, .. } => {
                details.phase = CallPhase::InFlight.name().into();
                details.elapsed_ms = millis(*elapsed);
            }
            _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use rendezvous_rpc::device_map::DeviceMapError;
    use rendezvous_rpc::membership::error::{Absent, Callees};

    fn worker(name: &str, id: u16) -> WorkerInfo {
        WorkerInfo { name: name.parse().expect("a name"), id }
    }

    fn nodes(fault: &Fault) -> Vec<&str> {
        fault.nodes.iter().map(|name| str::from_utf8(name).expect("UTF-8")).collect()
    }

    #[test]
    fn each_failure_of_a_call_has_its_status_and_names_handler_and_worker() {
        use CallFailure::*;
        let refused = |why| ConnectionError::Refused { why, message: "".into() };
        let remote = |status| Remote { status, message: "no luck".into() };
        let lost = || ConnectionError::Lost("reset".into());
        for (why, status, message) in [
            (Leaving, RDZV_RPC_LEAVING, "it takes no further calls"),
            (TooMany { count: 3 }, RDZV_LIMIT_EXCEEDED, "3 calls to it are under way, and that is the limit"),
            (
                TooMuch { bytes: 9, bytes_max: 8 },
                RDZV_LIMIT_EXCEEDED,
                "calls to it would have 9 bytes under way; the limit is 8",
            ),
            (
                TooLong { bytes: 9, bytes_max: 8 },
                RDZV_LIMIT_EXCEEDED,
                "a payload of 9 bytes is over the limit of 8",
            ),
            (Cancelled, RDZV_CANCELLED, "it was cancelled"),
            (Reentrant, RDZV_REENTRANT, "it cannot be awaited in an inline handler or in a callback"),
            (NoMemory, RDZV_EXHAUSTED, "there is no memory for the answer"),
            (
                DeadlinePassed { elapsed: Duration::from_millis(1500), phase: CallPhase::InFlight },
                RDZV_TIMED_OUT,
                "no answer in 1.5 s",
            ),
            (
                DeadlinePassed { elapsed: Duration::from_millis(1500), phase: CallPhase::Queued },
                RDZV_TIMED_OUT,
                "not sent in 1.5 s",
            ),
            (
                DeadlinePassed { elapsed: Duration::from_millis(1500), phase: CallPhase::Connecting },
                RDZV_TIMED_OUT,
                "not sent in 1.5 s: there is no connection yet",
            ),
            (remote(Status::Failed), RDZV_RPC_HANDLER_FAILED, "the handler failed: no luck"),
            (remote(Status::Other(99)), RDZV_RPC_HANDLER_FAILED, "reason 99: no luck"),
            (remote(Status::NoHandler), RDZV_RPC_NO_HANDLER, "there is no such handler: no luck"),
            (remote(Status::TooLong), RDZV_LIMIT_EXCEEDED, "the payload is over the limit: no luck"),
            (remote(Status::Leaving), RDZV_RPC_LEAVING, "the worker takes no further requests: no luck"),
            (remote(Status::Exhausted), RDZV_EXHAUSTED, "the worker has no capacity for it: no luck"),
            (remote(Status::Malformed), RDZV_RPC_MALFORMED, "no luck"),
            (remote(Status::Denied), RDZV_PERMISSION_DENIED, "the caller may not call this handler: no luck"),
            (remote(Status::Stalled), RDZV_TIMED_OUT, "the rest of the request did not arrive: no luck"),
            (
                ConnectionLost(lost()),
                RDZV_RPC_PEER_DIED,
                "contact with the worker was lost: the connection ended: reset",
            ),
            (Unsent(lost()), RDZV_RPC_PEER_DIED, "not sent: the connection ended: reset"),
            (
                Unsent(ConnectionError::GivenUp("its lease ended".into())),
                RDZV_RPC_PEER_DIED,
                "not sent: its lease ended",
            ),
            (CallerEnded("it was shut down".into()), RDZV_RPC_NO_MEMBER, "it was shut down"),
            (
                Unsent(ConnectionError::CallerEnded("it was shut down".into())),
                RDZV_RPC_NO_MEMBER,
                "not sent: it was shut down",
            ),
            (Panicked("a thread panicked".into()), RDZV_PANIC, "a thread panicked"),
            (
                Unsent(ConnectionError::Panicked("a thread panicked".into())),
                RDZV_PANIC,
                "not sent: a thread panicked",
            ),
            (
                Unsent(ConnectionError::NotListening("refused".into())),
                RDZV_RPC_PEER_DIED,
                "not sent: no process listens at its address: refused",
            ),
            (
                Unsent(ConnectionError::Unreachable("no route".into())),
                RDZV_RPC_UNREACHED,
                "not sent: it cannot be reached: no route",
            ),
            (
                Unsent(refused(Refusal::NoToken)),
                RDZV_UNAUTHENTICATED,
                "not sent: refused: it requires a token, and the caller has none: give all workers the \
                 same auth_token_file",
            ),
            (
                Unsent(refused(Refusal::WrongToken)),
                RDZV_UNAUTHENTICATED,
                "not sent: refused: the caller has not proven its token: give all workers the same \
                 auth_token_file",
            ),
            (
                Unsent(ConnectionError::Unproven),
                RDZV_UNAUTHENTICATED,
                "not sent: it has not proven this worker's token, so nothing was sent to it: give all \
                 workers the same auth_token_file",
            ),
            (
                Unsent(refused(Refusal::Unknown)),
                RDZV_RPC_UNREACHED,
                "not sent: refused: the caller is not a known member",
            ),
        ] {
            let error = why.of("push", &worker("ps", 3)).at("host:1");
            let phase = error.phase().map_or("", CallPhase::name);
            let fault = group_call_fault(&GroupCallError::Call(error));
            let is_connection_failure = !phase.is_empty() && !message.ends_with("no luck");
            let callee =
                if is_connection_failure { "push at ps (id 3, host:1)" } else { "push at ps (id 3)" };
            assert_eq!((fault.status, &*fault.message), (status, &*format!("{callee}: {message}")));
            assert_eq!((&*fault.operation, nodes(&fault)), ("call", vec!["ps"]), "{message}");
            assert_eq!((&*fault.peer, &*fault.phase), ("host:1", phase), "{message}");
            let says_unsent = message.contains("not sent: ") || message.ends_with(" yet");
            assert_eq!(phase == "connecting", says_unsent, "{message}");
            let is_timed = status == RDZV_TIMED_OUT && !message.ends_with("no luck");
            assert_eq!(fault.elapsed_ms, if is_timed { 1500 } else { 0 }, "{message}");
            let cause = if message.ends_with("no luck") { "no luck" } else { "" };
            assert_eq!(fault.cause, cause, "{message}");
        }
        let unnamed = Handler { bytes: 0 }.of("", &worker("ps", 3));
        let fault = group_call_fault(&GroupCallError::Call(unnamed));
        assert_eq!(fault.status, RDZV_INVALID_ARGUMENT);
        assert_eq!(fault.message, "a call to ps (id 3): the name of a handler has 0 bytes: from 1 to 1024");
    }

    #[test]
    fn each_call_that_was_not_made_has_its_status_and_names_whom_it_was_for() {
        let ps = || worker("ps", 3);
        let message = || Box::<str>::from("message");
        for (error, status, named) in [
            (NotCallable::UnknownName { name: "x".into() }.into(), RDZV_RPC_UNKNOWN_WORKER, vec!["x"]),
            (NotCallable::UnknownId { id: 9 }.into(), RDZV_RPC_UNKNOWN_WORKER, vec![]),
            (NotCallable::Dead { worker: ps(), why: message() }.into(), RDZV_RPC_PEER_DIED, vec!["ps"]),
            (NotCallable::NoMember.into(), RDZV_RPC_NO_MEMBER, vec![]),
            (NotCallable::Over { message: message() }.into(), RDZV_RPC_NO_MEMBER, vec![]),
            (GroupCallError::Address { worker: ps(), address: message() }, RDZV_RPC_UNREACHED, vec!["ps"]),
            (GroupCallError::System { worker: ps(), message: message() }, RDZV_EXHAUSTED, vec!["ps"]),
            (GroupCallError::Panicked { message: message() }, RDZV_PANIC, vec![]),
            (
                GroupCallError::Foreign { call: message(), status: 77, message: message(), cause: message() },
                77,
                vec![],
            ),
            (GroupCallError::Cancelled { call: message() }, RDZV_CANCELLED, vec![]),
            (
                GroupCallError::Late { call: message(), elapsed: Duration::from_secs(1) },
                RDZV_TIMED_OUT,
                vec![],
            ),
            (GroupCallError::NoResult { call: message() }, RDZV_RPC_PEER_DIED, vec![]),
            (GroupCallError::Reentrant { call: message() }, RDZV_REENTRANT, vec![]),
            (GroupCallError::Untaken { calls_max: 1 }, RDZV_LIMIT_EXCEEDED, vec![]),
        ] {
            let fault = group_call_fault(&error);
            assert_eq!((fault.status, nodes(&fault)), (status, named), "{error}");
            let ranks = if matches!(error, GroupCallError::NotCallable(NotCallable::UnknownId { .. })) {
                vec![9]
            } else {
                vec![]
            };
            assert_eq!((&fault.ranks, fault.message.is_empty()), (&ranks, false), "{error}");
        }
    }

    #[test]
    fn each_end_of_a_worker_has_its_status_and_names_who_is_to_blame() {
        let absent = || Absent::of([1, 4].into_iter(), Duration::from_secs(5));
        let named = || Absent { names: vec![worker("b", 1).name, worker("e", 4).name], ..absent() };
        let (ps, message) = (|| worker("ps", 3), || Box::<str>::from("message"));
        let name = || ps().name;
        for (error, status, named, ranks) in [
            (MembershipError::Mixed { stored: message(), local: true }, RDZV_RPC_MIXED_GROUP, vec![], vec![]),
            (MembershipError::Rank { rank: 2, world_size: 2 }, RDZV_INVALID_ARGUMENT, vec![], vec![]),
            (
                MembershipError::WorldSize { stored: message(), local: 2 },
                RDZV_INVALID_ARGUMENT,
                vec![],
                vec![],
            ),
            (MembershipError::NotUnique { name: name() }, RDZV_RPC_NAME_TAKEN, vec!["ps"], vec![]),
            (
                MembershipError::Shared { name: name(), first: 0, second: 1 },
                RDZV_RPC_NAME_TAKEN,
                vec!["ps"],
                vec![0, 1],
            ),
            (MembershipError::IdTaken { id: 1, by: message() }, RDZV_RPC_NAME_TAKEN, vec![], vec![1]),
            (
                MembershipError::Held { worker: ps(), address: message() },
                RDZV_RPC_NAME_TAKEN,
                vec!["ps"],
                vec![3],
            ),
            (
                MembershipError::Begun { worker: ps(), address: message() },
                RDZV_RPC_NAME_TAKEN,
                vec!["ps"],
                vec![3],
            ),
            (
                MembershipError::from(DeviceMapError::InvalidDevices {
                    node: name(),
                    devices: vec![],
                    count: 1,
                }),
                RDZV_RPC_DEVICE_MAP,
                vec!["ps"],
                vec![],
            ),
            (
                MembershipError::OtherCard { wanted: ps(), got: worker("b", 1) },
                RDZV_RPC_UNREACHED,
                vec!["ps"],
                vec![],
            ),
            (
                MembershipError::Unanswered { worker: ps(), message: message() },
                RDZV_RPC_UNREACHED,
                vec!["ps"],
                vec![],
            ),
            (MembershipError::Contended, RDZV_RPC_MEMBERSHIP, vec![], vec![]),
            (
                MembershipError::Absent { arrived: 3, world_size: 5, absent: absent() },
                RDZV_TIMED_OUT,
                vec![],
                vec![1, 4],
            ),
            (
                MembershipError::AbsentAtShutdown { arrived: 3, world_size: 5, absent: named() },
                RDZV_TIMED_OUT,
                vec!["b", "e"],
                vec![1, 4],
            ),
            (MembershipError::TokenLost, RDZV_RPC_EVICTED, vec![], vec![]),
            (MembershipError::Evicted { by: message() }, RDZV_RPC_EVICTED, vec![], vec![]),
            (MembershipError::Cancelled, RDZV_CANCELLED, vec![], vec![]),
            (MembershipError::Store { message: message() }, RDZV_SERVER_GONE, vec![], vec![]),
            (
                MembershipError::NotMet { leader: ps(), arrived: 3, world_size: 5, absent: named() },
                RDZV_TIMED_OUT,
                vec!["b", "e"],
                vec![1, 4],
            ),
            (
                MembershipError::Leader { leader: ps(), message: message() },
                RDZV_RPC_UNREACHED,
                vec!["ps"],
                vec![],
            ),
            (
                MembershipError::PeerDied { worker: ps(), phase: "joining", why: message() },
                RDZV_RPC_PEER_DIED,
                vec!["ps"],
                vec![],
            ),
            (MembershipError::Abandoned, RDZV_RPC_NO_MEMBER, vec![], vec![]),
            (
                MembershipError::CallsCut { callees: Callees::of(vec![worker("b", 4), ps(), ps()]) },
                RDZV_TIMED_OUT,
                vec!["ps", "b"],
                vec![],
            ),
            (MembershipError::Stuck { store: message() }, RDZV_TIMED_OUT, vec![], vec![]),
            (MembershipError::Panicked { message: message() }, RDZV_PANIC, vec![], vec![]),
            (MembershipError::Reentrant, RDZV_REENTRANT, vec![], vec![]),
            (MembershipError::Foreign { status: 77, message: message() }, 77, vec![], vec![]),
        ] {
            let fault = agent_fault(&error);
            assert_eq!((fault.status, nodes(&fault), &fault.ranks), (status, named, &ranks), "{error}");
            assert_eq!(fault.message, error.to_string());
            assert_eq!(fault.elapsed_ms, if error.absent().is_some() { 5000 } else { 0 }, "{error}");
        }
    }
}
