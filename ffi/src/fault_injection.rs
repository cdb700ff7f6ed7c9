//! Panics on demand, for the tests of the guards. Absent from the released library.

use crate::agent::rdzv_agent;
use crate::prelude::*;
use crate::rpc::rdzv_rpc;
use crate::rpc_call::rdzv_rpc_future;
use crate::rpc_call_spec::{rdzv_rpc_call_spec, spec};
use crate::server::{PANIC_IN_REACTOR, rdzv_server};
use std::sync::atomic::{AtomicBool, Ordering};

/// Panics inside a call on `server`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_fault_panic(
    server: *const rdzv_server,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // NULL is allowed here.
    // SAFETY: NULL or a live server, as promised.
    unsafe {
        guard::call_on(server.as_ref().map(|server| &server.state), error, &mut || {
            panic!("provoked in a call")
        })
    }
}

/// Panics inside a call on `agent`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_fault_panic_in_agent(
    agent: *const rdzv_agent,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, |_| panic!("provoked in a call"))
}

/// Causes the thread that drives `agent` to panic at the agent's next event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_fault_panic_in_turns(
    agent: *const rdzv_agent,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, agent, |agent| {
        let is_added = Arc::new(AtomicBool::new(false));
        let is_armed = Arc::clone(&is_added);
        // A new observer is called with past events at once; the panic must not happen in this call.
        agent.enter()?.observe(Box::new(move |_, _, _| {
            if is_armed.load(Ordering::SeqCst) {
                panic!("provoked while driven");
            }
        }));
        is_added.store(true, Ordering::SeqCst);
        Ok(())
    })
}

/// Panics inside a call on `rpc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_fault_panic_in_rpc(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: NULL or a live call, as promised.
    let mut read = Some(unsafe { spec(call) });
    guard::on!(error, rpc, |_| {
        let _call = read.take().transpose()?;
        panic!("provoked in a call")
    })
}

/// Panics inside a call on `future`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_fault_panic_in_rpc_future(
    future: *const rdzv_rpc_future,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, future, |_| panic!("provoked in a call"))
}

/// Causes the next reactor thread that has an event to report to panic.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_fault_panic_in_reactor() {
    guard::quiet((), || PANIC_IN_REACTOR.store(true, Ordering::SeqCst));
}
