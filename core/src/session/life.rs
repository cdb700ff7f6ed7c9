//! The lives of a session as data: which event leads from which state to which, at the server and at the client.

/// Where a session stands at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It has a connection.
    Attached,
    /// Its connection ended, and its grace runs.
    Detached,
    /// It has ended.
    Over,
}

/// What can happen to a session at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A HELLO with its token.
    Resumed,
    /// A HELLO with another token.
    Forged,
    /// Its connection ended; it was granted time to come back.
    Lost,
    /// Its connection ended; it was granted no time.
    LostForGood,
    /// Heartbeats were missed.
    Silent,
    /// The time to come back has passed.
    GracePassed,
    /// BYE.
    Left,
    /// The server stops.
    Stopped,
}

/// What its server does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerAction {
    /// Gives it the connection.
    Attach,
    /// Gives it the connection, and closes the one that it had.
    Supersede,
    /// Refuses, and leaves everything as it is.
    Refuse,
    /// Starts the grace.
    Wait,
    /// Ends it.
    End,
}

impl ServerState {
    /// What follows; `None` when the event cannot happen in this state.
    #[must_use]
    pub const fn on(self, event: ServerEvent) -> Option<(Self, ServerAction)> {
        use ServerEvent as E;
        Some(match (self, event) {
            (Self::Detached, E::Resumed) => (Self::Attached, ServerAction::Attach),
            (Self::Attached, E::Resumed) => (Self::Attached, ServerAction::Supersede),
            (_, E::Forged) | (Self::Over, E::Resumed) => (self, ServerAction::Refuse),
            (Self::Attached, E::Lost) => (Self::Detached, ServerAction::Wait),
            (Self::Attached, E::LostForGood | E::Silent | E::Left)
            | (Self::Detached, E::GracePassed)
            | (Self::Attached | Self::Detached, E::Stopped) => (Self::Over, ServerAction::End),
            _ => return None,
        })
    }
}

/// Where a session stands at its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// There is no connection and was no WELCOME.
    New,
    /// The first HELLO is out.
    Greeting,
    /// It has a connection.
    Live,
    /// Its connection ended; it may be resumed.
    Broken,
    /// A HELLO is out that is to resume it.
    Resuming,
    /// It has ended; a new one takes another machine.
    Over,
}

/// What can happen to a session at its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// There is a connection, and HELLO goes out.
    Connected,
    /// WELCOME of a new session.
    Opened,
    /// WELCOME of this session.
    Resumed,
    /// An error in the place of WELCOME, or at any time for the connection as a whole.
    Refused,
    /// The connection ended; the session was granted time to come back.
    Lost,
    /// The connection ended; the session was granted no time.
    LostForGood,
    /// The server said that the session is over.
    Ended,
}

impl ClientState {
    /// The state that follows; `None` when the event cannot happen in this state.
    #[must_use]
    pub const fn on(self, event: ClientEvent) -> Option<Self> {
        use ClientEvent as E;
        Some(match (self, event) {
            (Self::New, E::Connected) => Self::Greeting,
            (Self::Broken, E::Connected) => Self::Resuming,
            (Self::Greeting, E::Opened) | (Self::Resuming, E::Resumed) => Self::Live,
            // Nothing is known of the session yet, so nothing is lost with it.
            (Self::Greeting, E::Lost) => Self::New,
            (Self::Live | Self::Resuming, E::Lost) => Self::Broken,
            (Self::Greeting | Self::Live | Self::Resuming, E::LostForGood | E::Refused | E::Ended) => {
                Self::Over
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::fmt::Write;
    use std::string::String;

    #[test]
    fn tables_of_states_and_events_are_as_written_down() {
        use ServerEvent as S;
        let mut table = String::from("server\n");
        let events =
            [S::Resumed, S::Forged, S::Lost, S::LostForGood, S::Silent, S::GracePassed, S::Left, S::Stopped];
        for state in [ServerState::Attached, ServerState::Detached, ServerState::Over] {
            for event in events {
                let next =
                    state.on(event).map_or("-".into(), |(next, action)| std::format!("{next:?}, {action:?}"));
                writeln!(table, "  {state:?} {event:?} -> {next}").expect("a string");
            }
        }
        table.push_str("client\n");
        use ClientEvent as C;
        use ClientState as T;
        let events = [C::Connected, C::Opened, C::Resumed, C::Refused, C::Lost, C::LostForGood, C::Ended];
        for state in [T::New, T::Greeting, T::Live, T::Broken, T::Resuming, T::Over] {
            for event in events {
                let next = state.on(event).map_or("-".into(), |next| std::format!("{next:?}"));
                writeln!(table, "  {state:?} {event:?} -> {next}").expect("a string");
            }
        }
        assert_eq!(table, include_str!("life.snapshot"), "\n{table}");
    }
}
