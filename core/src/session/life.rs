//! State tables of a session: transitions at the server and at the client.

/// State of a session at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It has a connection.
    Attached,
    /// Its connection ended, and its grace period is running.
    Detached,
    /// It has ended.
    Over,
}

/// Event of a session at its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// HELLO with its token arrived.
    Resumed,
    /// Its connection ended, and it has a grace period.
    Lost,
    /// Its connection ended, and it has no grace period.
    LostForGood,
    /// Too many heartbeats were missed.
    Silent,
    /// The grace period has ended.
    GracePassed,
    /// BYE arrived.
    Left,
    /// It exceeds the server's limits.
    Expelled,
    /// The server stops.
    Stopped,
}

/// Action of the server on an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerAction {
    /// Attaches the connection to the session.
    Attach,
    /// Attaches the connection, and closes the one that the session had.
    Supersede,
    /// Refuses, and leaves everything unchanged.
    Refuse,
    /// Starts the grace period.
    Wait,
    /// Ends the session.
    End,
}

impl ServerState {
    /// Returns the next state and the action; `None` if the event cannot happen in this state.
    #[must_use]
    pub const fn on(self, event: ServerEvent) -> Option<(Self, ServerAction)> {
        use ServerEvent as E;
        Some(match (self, event) {
            (Self::Detached, E::Resumed) => (Self::Attached, ServerAction::Attach),
            (Self::Attached, E::Resumed) => (Self::Attached, ServerAction::Supersede),
            (Self::Over, E::Resumed) => (self, ServerAction::Refuse),
            (Self::Attached, E::Lost) => (Self::Detached, ServerAction::Wait),
            (Self::Attached, E::LostForGood | E::Silent | E::Left)
            | (Self::Detached, E::GracePassed)
            | (Self::Attached | Self::Detached, E::Expelled | E::Stopped) => (Self::Over, ServerAction::End),
            _ => return None,
        })
    }
}

/// State of a session at its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// It has no connection, and no WELCOME has arrived.
    New,
    /// The first HELLO was sent.
    Greeting,
    /// It has a connection.
    Live,
    /// Its connection ended; it may be resumed.
    Broken,
    /// HELLO was sent to resume it.
    Resuming,
    /// It has ended. A new session needs a new machine.
    Over,
}

/// Event of a session at its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A connection was established, and HELLO is sent.
    Connected,
    /// WELCOME of a new session arrived.
    Opened,
    /// WELCOME of this session arrived.
    Resumed,
    /// An error arrived instead of WELCOME, or at any time for the connection as a whole.
    Refused,
    /// The connection ended, and the session has a grace period.
    Lost,
    /// The connection ended, and the session has no grace period.
    LostForGood,
    /// The server ended the session.
    Ended,
}

impl ClientState {
    /// Returns the next state; `None` if the event cannot happen in this state.
    #[must_use]
    pub const fn on(self, event: ClientEvent) -> Option<Self> {
        use ClientEvent as E;
        Some(match (self, event) {
            (Self::New, E::Connected) => Self::Greeting,
            (Self::Broken, E::Connected) => Self::Resuming,
            (Self::Greeting, E::Opened) | (Self::Resuming, E::Resumed) => Self::Live,
            // The session was not open yet, so nothing is lost with it.
            (Self::Greeting, E::Lost | E::LostForGood) => Self::New,
            (Self::Live | Self::Resuming, E::Lost) => Self::Broken,
            (Self::Live | Self::Resuming, E::LostForGood) => Self::Over,
            (Self::Greeting | Self::Live | Self::Resuming, E::Refused | E::Ended) => Self::Over,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::fmt::{Debug, Write};
    use std::string::String;
    use std::vec::Vec;

    use ClientEvent as C;
    use ClientState as T;
    use ServerEvent as S;

    const SERVER_STATES: [ServerState; 3] = [ServerState::Attached, ServerState::Detached, ServerState::Over];
    const SERVER_EVENTS: [S; 8] =
        [S::Resumed, S::Lost, S::LostForGood, S::Silent, S::GracePassed, S::Left, S::Expelled, S::Stopped];
    const CLIENT_STATES: [T; 6] = [T::New, T::Greeting, T::Live, T::Broken, T::Resuming, T::Over];
    const CLIENT_EVENTS: [C; 7] =
        [C::Connected, C::Opened, C::Resumed, C::Refused, C::Lost, C::LostForGood, C::Ended];

    #[test]
    fn tables_of_states_and_events_are_as_written_down() {
        let mut table = String::from("server\n");
        for state in SERVER_STATES {
            for event in SERVER_EVENTS {
                let next =
                    state.on(event).map_or("-".into(), |(next, action)| std::format!("{next:?}, {action:?}"));
                writeln!(table, "  {state:?} {event:?} -> {next}").expect("a string");
            }
        }
        table.push_str("client\n");
        for state in CLIENT_STATES {
            for event in CLIENT_EVENTS {
                let next = state.on(event).map_or("-".into(), |next| std::format!("{next:?}"));
                writeln!(table, "  {state:?} {event:?} -> {next}").expect("a string");
            }
        }
        assert_eq!(table, include_str!("life.snapshot"), "\n{table}");
    }

    /// Returns the graph of a table in the form that docs/sessions.md has.
    fn graph<State: Copy + Debug + PartialEq, Event: Copy + Debug>(
        states: &[State],
        events: &[Event],
        next: impl Fn(State, Event) -> Option<State>,
    ) -> String {
        let mut graph = String::from("```mermaid\nstateDiagram-v2\n");
        for &from in states {
            for &to in states {
                let between = events.iter().filter(|&&event| next(from, event) == Some(to));
                let names: Vec<String> = between.map(|event| std::format!("{event:?}")).collect();
                if !names.is_empty() {
                    writeln!(graph, "    {from:?} --> {to:?}: {}", names.join(", ")).expect("a string");
                }
            }
        }
        graph + "```\n"
    }

    #[test]
    fn the_graphs_in_the_guide_are_those_of_the_tables() {
        let server =
            graph(&SERVER_STATES, &SERVER_EVENTS, |state, event| state.on(event).map(|(next, _)| next));
        let client = graph(&CLIENT_STATES, &CLIENT_EVENTS, T::on);
        let guide = include_str!("../../../docs/sessions.md");
        for graph in [server, client] {
            assert!(guide.contains(&graph), "docs/sessions.md does not hold this graph:\n{graph}");
        }
    }
}
