//! A call from one worker to another, with nothing between them.

use rendezvous_core::time::Instant;
use rendezvous_rpc::connection::callee::{Callee, CalleeEvent};
use rendezvous_rpc::connection::caller::{Caller, CallerEvent, NewCall};
use rendezvous_rpc::connection::{CallKind, ToWrite};
use rendezvous_rpc::handlers::{Callers, Handlers, Owner};
use rendezvous_rpc::intake::Intake;
use rendezvous_rpc::limits::{IntakeLimits, RpcLimits};
use rendezvous_rpc::name::WorkerInfo;

pub(crate) fn sings() -> bool {
    is_answered() == Some(true)
}

fn is_answered() -> Option<bool> {
    let now = Instant::ORIGIN;
    let a = WorkerInfo { name: "a".parse().ok()?, id: 0 };
    let b = WorkerInfo { name: "b".parse().ok()?, id: 1 };
    let mut handlers = Handlers::new();
    handlers.register(Owner::Program, "f", Callers::default(), ()).ok()?;
    let mut intake = Intake::new(IntakeLimits::default());
    let mut caller = Caller::new(a, b.clone(), b"g", RpcLimits::default());
    let mut callee = Callee::new(now, b, b"g", RpcLimits::default());
    let call = NewCall { handler: "f", payload_bytes: 0, deadline: None, kind: CallKind::Responded };
    let id = caller.begin(now, call).ok()?;
    let mut nothing: &[u8] = &[];
    if caller.next_event(now, &mut nothing) != Some(CallerEvent::Connect) {
        return None;
    }
    caller.connected(now, None);
    let mut is_done = false;
    for _ in 0..4 {
        if let Some(ToWrite::Bytes(bytes)) = caller.poll_write() {
            let mut bytes = &bytes[..];
            while let Some(event) = callee.next_event(now, &mut bytes) {
                match event {
                    CalleeEvent::Claimed(_) => callee.admit(),
                    CalleeEvent::Request { handler, payload_bytes, .. } => {
                        handlers.find(&handler, "a").ok()?;
                        intake.enter(payload_bytes);
                    }
                    CalleeEvent::Complete(call) => _ = callee.answer(call, 0),
                    _ => {}
                }
            }
        }
        if let Some(ToWrite::Bytes(bytes)) = callee.poll_write() {
            let mut bytes = &bytes[..];
            while let Some(event) = caller.next_event(now, &mut bytes) {
                is_done |= event == CallerEvent::Done(id);
            }
        }
    }
    Some(is_done && intake.held() == (1, 0) && caller.is_at_rest())
}
