//! Clients that a request of another one has woken.
//!
//! A push to a queue wakes one client. A c10d client pops with a request of its own afterwards. If it does not, the next
//! client is woken, so that no item stays in a queue whose other clients wait.

use super::Server;
use super::conns::Protocol;
use super::native::{Native, notify_released};
use crate::ids::ConnId;
use crate::prelude::*;
use crate::store::op::Key;

impl Server {
    /// Wakes the next client that waits for an item of each of these queues, after a client was woken and does not pop.
    #[cold]
    pub(super) fn pass_on(&mut self, queues: &[Box<[u8]>]) {
        for queue in queues {
            let Self { conns, engine, native, .. } = &mut *self;
            let key = Key::raw(queue);
            notify_released(conns, native.as_deref_mut(), engine.pass_on(key), Some(key));
            self.serve_released();
        }
    }

    /// As [`Server::pass_on`], if the last request of a c10d connection has cancelled its waits, and nothing follows it.
    #[inline]
    pub(super) fn pass_on_cancelled(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.at(id)
            && conn.inbox.is_empty()
            && let Protocol::C10d(machine) = &mut conn.protocol
        {
            let queues = machine.cancelled_wakes();
            if !queues.is_empty() {
                self.pass_on(&queues);
            }
        }
    }

    /// Answers the native requests that have been released.
    #[inline]
    pub(super) fn serve_released(&mut self) {
        if self.native.as_ref().is_some_and(|native| native.has_released()) {
            self.with_native(Native::serve_released);
        }
    }

    /// Ends the waits of a c10d connection that sends no more requests.
    pub(super) fn end_waits(&mut self, id: ConnId) {
        self.engine.forget_waits(id);
        if let Some(Protocol::C10d(machine)) = self.conns.at(id).map(|conn| &mut conn.protocol) {
            let queues = machine.take_wakes();
            if !queues.is_empty() {
                self.pass_on(&queues);
            }
        }
    }
}
