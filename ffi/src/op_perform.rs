//! Operations performed by a store.

use crate::native_store::{barrier_end, native, native_fault};
use crate::op::{OpBody, OpRequest, rdzv_op};
use crate::op_result::Answer;
use crate::prelude::*;
use crate::store::{call_fault, of_keys, rdzv_store, span, timeout};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::native_client::{NativeRequest, NativeResponse};
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::store::call::Outcome;

/// Performs an operation on a store and blocks until it is over. Its result is then in the operation. The
/// status is that of the result; `timeout_ms` is as described at `rdzv_store`.
///
/// Errors: those of `rdzv_store_set` and those that the functions name which give the operation its
/// request; `RDZV_UNSUPPORTED` for a request that this kind of store does not have, for a watch (see
/// `rdzv_watch_new`) and for the requests of nodes; `RDZV_REENTRANT` (the operation is under way).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_perform(
    store: *const rdzv_store,
    op: *mut rdzv_op,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // The result says so, too, if there is no store.
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.state), error, &mut || {
            let cell = &reference(op, "op")?.cell;
            let mut body = cell.enter()?;
            body.begin();
            let answer = reference(store, "store").and_then(|store| {
                let answer = perform(store, &mut body, timeout_ms);
                cell.warn_if_free_was_refused(&store.shared);
                answer
            });
            body.end(answer)
        })
    }
}

fn perform(store: &rdzv_store, body: &mut OpBody, timeout_ms: i64) -> Result<Answer, Fault> {
    store.shared.refuse_sink()?;
    let limit = timeout(timeout_ms)?;
    if body.kind.is_of_nodes() {
        return Err(for_nodes());
    }
    let mut values = std::mem::take(&mut body.result.values);
    let names = body.names();
    let answer = match body.request(&names, store.store.scope(), b"")? {
        OpRequest::Ping => store.store.ping(limit).map(|()| Answer::Store(Outcome::Alive)),
        OpRequest::Store(request) => store.store.request(request, limit, &mut values).map(Answer::Store),
        OpRequest::Native(request) => return perform_native(store, body, &request, (timeout_ms, limit)),
        OpRequest::NextRendezvous => return Err(for_nodes()),
    };
    let answer = answer.map_err(|error| of_keys(call_fault(&error), &body.keys()));
    drop(names);
    body.result.values = values;
    answer
}

fn perform_native(
    store: &rdzv_store,
    body: &OpBody,
    request: &NativeRequest<'_>,
    (timeout_ms, limit): (i64, Timeout),
) -> Result<Answer, Fault> {
    let client = native(store, request.operation())?;
    if matches!(request, NativeRequest::Close) {
        let closed = client.close(span(timeout_ms, client.timeouts().call)?);
        return closed.map(|()| Answer::Store(Outcome::Applied)).map_err(|error| native_fault(&error));
    }
    let clock = Clock::new();
    let began = clock.now();
    let response = client.request(request, limit).map_err(|error| {
        let fault = native_fault(&error);
        // The server names the key of a transaction that failed.
        let named = error.fault().filter(|_| matches!(request, NativeRequest::Txn(_)));
        match named.map(|fault| client.name_of(&fault.text)).filter(|key| !key.is_empty()) {
            Some(key) => of_keys(fault, &[&key]),
            None => of_keys(fault, &body.keys()),
        }
    })?;
    Answer::of_native(response, body, clock.now().since(began), client.peer())
}

impl Answer {
    /// Converts a response; a barrier that was not released is a failure.
    pub(crate) fn of_native(
        response: NativeResponse,
        body: &OpBody,
        elapsed: std::time::Duration,
        peer: &str,
    ) -> Result<Self, Fault> {
        match response {
            NativeResponse::Barrier(end) => {
                barrier_end(end, body.arguments.get(0), elapsed, peer).map(Self::Released)
            }
            response => Ok(Self::Native(response)),
        }
    }
}

pub(crate) fn for_nodes() -> Fault {
    Fault::new(RDZV_UNSUPPORTED, "the request is for nodes, not for stores")
}
