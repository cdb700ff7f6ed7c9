//! Server: the rendezvous service, and a store for each round, which is fenced when the round ends. It handles one
//! request at a time and returns the messages to send.

use rendezvous_core::limits::RendezvousLimits;
use rendezvous_core::rendezvous::participant::Role;
use rendezvous_core::rendezvous::service::{
    Event, Input, InputError, Join, NodeState, Output, ParticipantId, Rendezvous, Round,
};
use rendezvous_core::time::Instant;
use rendezvous_core::wire::native::Why;
use std::collections::BTreeMap;

pub(super) const RUN: &str = "job";

/// Request of a node.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Join(Role, Box<Join>),
    Leave,
    /// Withdraws a join. If the node is in a round already, it will get that round.
    Unjoin,
    Fail {
        id: u64,
        message: Box<str>,
    },
    Close {
        id: u64,
    },
    Waiting {
        id: u64,
    },
    Store {
        id: u64,
        round: u64,
        op: Op,
    },
    GiveUp {
        id: u64,
    },
    Bye {
        id: u64,
    },
}

/// Operation on the store of a round.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Set(Vec<(String, Vec<u8>)>),
    Add(String, i64),
    /// Waits until all keys are present.
    Get(Vec<String>),
    /// Reads the keys, if all are present.
    Look(Vec<String>),
    /// Sets the key if it is missing, and reads it.
    Begin(String, Vec<u8>),
    Append(String, Vec<u8>),
}

/// Message to a node.
#[derive(Clone, Debug)]
pub(super) enum ServerMessage {
    Event(Event),
    Refused(InputError),
    Waiting { id: u64, nodes: u32 },
    Done { id: u64 },
    Stored { id: u64, answer: Answer },
}

#[derive(Clone, Debug)]
pub(super) enum Answer {
    Done,
    Number(i64),
    Values(Vec<Vec<u8>>),
    Missing,
    /// The round has ended.
    Stale,
}

#[derive(Debug, Default)]
struct Board {
    keys: BTreeMap<String, Vec<u8>>,
    is_over: bool,
    waits: Vec<(u64, u64, Vec<String>)>,
}

/// A round as the server formed it, with the slots of the sessions.
#[derive(Clone, Debug)]
pub(super) struct Formed {
    pub(super) session: u64,
    pub(super) round: Round,
}

pub(super) struct MasterServer {
    service: Rendezvous,
    boards: BTreeMap<u64, Board>,
    out: Vec<(u64, ServerMessage)>,
    pub(super) formed: Vec<Formed>,
}

impl MasterServer {
    pub(super) fn new() -> Self {
        Self {
            service: Rendezvous::new(RendezvousLimits::default()),
            boards: BTreeMap::new(),
            out: Vec::new(),
            formed: Vec::new(),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.service.poll_timeout()
    }

    /// Returns the messages to send, in order.
    pub(super) fn take(&mut self) -> Vec<(u64, ServerMessage)> {
        core::mem::take(&mut self.out)
    }

    pub(super) fn tick(&mut self, now: Instant) {
        // A tick is never refused.
        self.service.handle(now, Input::Tick).ok();
        self.drain();
    }

    pub(super) fn ended(&mut self, now: Instant, session: u64, why: Why) {
        for board in self.boards.values_mut() {
            board.waits.retain(|(waiting, ..)| *waiting != session);
        }
        self.service.handle(now, Input::Ended { participant: ParticipantId(session), why }).ok();
        self.drain();
    }

    pub(super) fn close(&mut self, now: Instant) {
        let close = Input::Close { participant: ParticipantId(u64::MAX), run_id: RUN.into() };
        self.service.handle(now, close).ok();
        self.drain();
    }

    pub(super) fn handle(&mut self, now: Instant, session: u64, request: Request) {
        let participant = ParticipantId(session);
        match request {
            Request::Join(role, join) => {
                let join = *join;
                let input = match role {
                    Role::Member => Input::Join { participant, join },
                    Role::Spare => Input::Standby { participant, join },
                };
                let result = self.service.handle(now, input);
                self.drain();
                if let Err(error) = result {
                    self.out.push((session, ServerMessage::Refused(error)));
                }
            }
            Request::Unjoin => {
                let is_in_round =
                    self.service.node_state(participant).is_some_and(|(_, slot)| slot == NodeState::Active);
                if !is_in_round {
                    self.handle(now, session, Request::Leave);
                }
            }
            Request::Leave => {
                // The session may no longer be in a run.
                self.service.handle(now, Input::Leave { participant }).ok();
                self.drain();
            }
            Request::Close { id } => {
                self.service.handle(now, Input::Close { participant, run_id: RUN.into() }).ok();
                self.drain();
                self.out.push((session, ServerMessage::Done { id }));
            }
            Request::Fail { id, message } => {
                self.service.handle(now, Input::Fail { participant, run_id: RUN.into(), message }).ok();
                self.drain();
                self.out.push((session, ServerMessage::Done { id }));
            }
            Request::Waiting { id } => {
                let nodes = self.service.status(RUN).map_or(0, |status| status.counts.waiting);
                self.out.push((session, ServerMessage::Waiting { id, nodes }));
            }
            Request::Store { id, round, op } => self.store(session, id, round, op),
            Request::GiveUp { id } => {
                for board in self.boards.values_mut() {
                    board.waits.retain(|(waiting, call, _)| (*waiting, *call) != (session, id));
                }
            }
            Request::Bye { id } => {
                self.service.handle(now, Input::Leave { participant }).ok();
                self.drain();
                self.out.push((session, ServerMessage::Done { id }));
            }
        }
    }

    fn store(&mut self, session: u64, id: u64, round: u64, op: Op) {
        let board = self.boards.entry(round).or_default();
        let answer = match op {
            Op::Set(_) | Op::Add(..) | Op::Begin(..) | Op::Append(..) if board.is_over => Some(Answer::Stale),
            Op::Set(pairs) => {
                board.keys.extend(pairs);
                Some(Answer::Done)
            }
            Op::Begin(key, value) => {
                let value = board.keys.entry(key).or_insert(value).clone();
                Some(Answer::Values(vec![value]))
            }
            Op::Append(key, value) => {
                board.keys.entry(key).or_default().extend(value);
                Some(Answer::Done)
            }
            Op::Add(key, delta) => {
                let text = board.keys.get(&key).map(|value| String::from_utf8_lossy(value).into_owned());
                let sum = text.and_then(|text| text.parse::<i64>().ok()).unwrap_or(0) + delta;
                board.keys.insert(key, sum.to_string().into_bytes());
                Some(Answer::Number(sum))
            }
            Op::Look(keys) => Some(board.values(&keys).map_or(Answer::Missing, Answer::Values)),
            Op::Get(keys) => match board.values(&keys) {
                Some(values) => Some(Answer::Values(values)),
                None if board.is_over => Some(Answer::Stale),
                None => {
                    board.waits.push((session, id, keys));
                    None
                }
            },
        };
        if let Some(answer) = answer {
            self.out.push((session, ServerMessage::Stored { id, answer }));
        }
        for (session, id, keys) in core::mem::take(&mut board.waits) {
            match board.values(&keys) {
                Some(values) => {
                    self.out.push((session, ServerMessage::Stored { id, answer: Answer::Values(values) }));
                }
                None => board.waits.push((session, id, keys)),
            }
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.service.poll_output() {
            match output {
                Output::RoundOpened(space) => {
                    self.boards.insert(space.round, Board::default());
                }
                Output::Fence(space) => {
                    let board = self.boards.entry(space.round).or_default();
                    board.is_over = true;
                    for (session, id, _) in core::mem::take(&mut board.waits) {
                        self.out.push((session, ServerMessage::Stored { id, answer: Answer::Stale }));
                    }
                }
                Output::Delete(space) => {
                    self.boards.insert(space.round, Board { is_over: true, ..Board::default() });
                }
                Output::Forgotten(_) | Output::Decided { .. } => {}
                Output::Notify { participant, event } => {
                    if let Event::RoundFormed(round) = &event {
                        self.formed.push(Formed { session: participant.0, round: round.clone() });
                    }
                    self.out.push((participant.0, ServerMessage::Event(event)));
                }
            }
        }
    }
}

impl Board {
    fn values(&self, keys: &[String]) -> Option<Vec<Vec<u8>>> {
        keys.iter().map(|key| self.keys.get(key).cloned()).collect()
    }
}
