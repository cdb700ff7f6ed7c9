//! End of a session by its client.

use super::event::BeginError;
use super::{Awaited, Ending, NativeClient, Pending};
use crate::error::Operation;
use crate::session::life::ClientState;
use crate::store::dial::DialState;
use crate::time::{Duration, Instant};

/// Kind of a BYE frame.
const BYE: u16 = 0x0004;

impl<const PENDING: usize> NativeClient<PENDING> {
    /// Begins to end the session. The client ends when the server has answered BYE. The call has no body.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin_bye(&mut self, now: Instant, span: Duration) -> Result<u64, BeginError> {
        self.bye = self.begin(now, Operation::Bye, (BYE, 0), span)?;
        let bye = self.bye;
        self.end_unopened(now);
        Ok(bye)
    }

    /// Ends the client if it is to end a session that was never opened: the server does not know it, and there may be
    /// none. Other calls wait for the first attempt to connect, because a live server may execute them.
    pub(super) fn end_unopened(&mut self, now: Instant) {
        let is_unopened = self.session.state() == ClientState::New
            && matches!(
                self.dialer.state(),
                DialState::Resolving | DialState::Connecting | DialState::Pausing
            );
        let is_bye = |call: &Pending| call.id == self.bye && call.awaited == Awaited::Yes;
        let has_other = self.pending.iter().any(|call| !is_bye(call) && call.awaited == Awaited::Yes);
        if self.pending.iter().any(is_bye)
            && is_unopened
            && (!has_other || self.dialer.failed_try(now).is_some())
        {
            self.over(Ending::Left);
        }
    }
}
