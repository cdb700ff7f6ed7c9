//! Result of every input in every situation, as a snapshot.

use super::*;
use crate::connection::{Refusal, Status};

/// One of the two ends, and the other as far as there is a connection.
struct World {
    peer: Caller,
    callee: Option<Callee>,
}

type SubmitPath = fn(&mut World);
type Give = fn(&mut World) -> String;

impl World {
    fn new() -> Self {
        Self { peer: peer(), callee: None }
    }

    fn begin(&mut self, kind: CallKind) -> String {
        let call = NewCall { handler: "f", payload_bytes: 0, deadline: None, kind };
        match self.peer.begin(NOW, call) {
            Ok(id) => format!("it is call {id}"),
            Err(error) => format!("error: {error}"),
        }
    }

    fn calls(&mut self, count: u64) {
        for _ in 0..count {
            self.begin(CallKind::Responded);
        }
        self.settle();
    }

    fn connect(&mut self) {
        self.peer.connected(NOW, None);
        self.callee = Some(callee());
    }

    /// Opens the connection, with this many calls pending or waiting.
    fn open(&mut self, count: u64) {
        self.calls(count.max(1));
        self.connect();
        self.settle();
        if count == 0 {
            self.answer(1);
            self.settle();
        }
    }

    fn answer(&mut self, id: u64) -> String {
        self.of_callee(|callee| _ = callee.answer(id, 0))
    }

    fn of_callee(&mut self, act: impl FnOnce(&mut Callee)) -> String {
        if let Some(callee) = &mut self.callee {
            act(callee);
        }
        String::new()
    }

    fn receive(&mut self, bytes: &[u8]) -> String {
        reported(&mut self.peer, bytes).join("; ")
    }

    fn pass(&mut self, span: Duration) -> String {
        self.peer.tick(NOW + span);
        String::new()
    }

    /// Collects everything that follows.
    fn settle(&mut self) -> Vec<String> {
        let mut last_received_at = reported(&mut self.peer, b"");
        if let Some(callee) = &mut self.callee {
            last_received_at.extend(talk(&mut self.peer, callee).1);
            last_received_at.extend(reported(&mut self.peer, b""));
        }
        last_received_at
    }

    /// State as text.
    fn status(&self) -> String {
        let line = match self.peer.state {
            LineState::Down => "down",
            LineState::Connecting => "connecting",
            LineState::Open => "open",
            LineState::Leaving => "closing",
            LineState::Greeting => "greeting",
        };
        let waiting = self.peer.waiting.len();
        let in_flight = self.peer.in_flight() - waiting;
        let acceptance = if self.peer.takes_calls() { "Taking" } else { "Leaving" };
        format!("{acceptance}, {line}, {in_flight} under way, {waiting} waiting")
    }
}

/// Two calls may be pending, and three wait.
const SITUATIONS: [(&str, SubmitPath); 13] = [
    ("nothing was called", |_| {}),
    ("a call waits for the connection", |world| world.calls(1)),
    ("as many wait as may", |world| world.calls(3)),
    ("the handshake has not begun", |world| {
        world.calls(1);
        world.connect();
    }),
    ("the connection rests", |world| world.open(0)),
    ("a call is under way", |world| world.open(1)),
    ("one waits for its turn", |world| world.open(3)),
    ("the connection was lost", |world| {
        world.open(1);
        world.peer.lost(ConnectionError::Lost("reset".into()));
        world.settle();
        world.callee = None;
    }),
    ("it was lost, and one goes over the next", |world| {
        world.open(3);
        world.peer.lost(ConnectionError::Lost("reset".into()));
        world.settle();
        world.callee = None;
    }),
    ("the other one leaves, and a call is under way", |world| {
        world.open(1);
        world.of_callee(Callee::goodbye);
        world.settle();
    }),
    ("this one leaves, and a call is under way", |world| {
        world.open(1);
        world.peer.goodbye();
        world.settle();
    }),
    ("this one has left", |world| {
        world.peer.goodbye();
        world.settle();
    }),
    ("this one has ended", |world| {
        world.open(1);
        world.peer.end(&ConnectionError::CallerEnded("it was shut down".into()));
        world.settle();
        world.callee = None;
    }),
];

const INPUTS: [(&str, Give); 23] = [
    ("a call", |world| world.begin(CallKind::Responded)),
    ("a notice", |world| world.begin(CallKind::OneWay)),
    ("a call that is too long", |world| {
        let payload_bytes = world.peer.limits.payload_bytes_max + 1;
        let call = NewCall { handler: "f", payload_bytes, deadline: None, kind: CallKind::Responded };
        world
            .peer
            .begin(NOW, call)
            .map_or_else(|error| format!("error: {error}"), |id| format!("it is call {id}"))
    }),
    ("a call whose time is up", |world| {
        let call = NewCall { handler: "f", payload_bytes: 0, deadline: Some(NOW), kind: CallKind::Responded };
        world
            .peer
            .begin(NOW, call)
            .map_or_else(|error| format!("error: {error}"), |id| format!("it is call {id}"))
    }),
    ("a call of a second, and its time passes", |world| {
        let deadline = Some(NOW + Duration::from_secs(1));
        let call = NewCall { handler: "f", payload_bytes: 0, deadline, kind: CallKind::Responded };
        let begun = world.peer.begin(NOW, call);
        world.pass(Duration::from_secs(1));
        begun.map_or_else(|error| format!("error: {error}"), |id| format!("it is call {id}"))
    }),
    ("the first call is cancelled", |world| format!("it was under way: {}", world.peer.cancel(1))),
    ("the third call is cancelled", |world| format!("it was under way: {}", world.peer.cancel(3))),
    ("there is no memory for the first answer", |world| {
        format!("it was under way: {}", world.peer.no_memory(1))
    }),
    ("there is a connection", |world| {
        if world.peer.state == LineState::Connecting {
            world.callee = Some(callee());
        }
        world.peer.connected(NOW, None);
        String::new()
    }),
    ("the callee cannot be reached", |world| {
        world.peer.unreachable(&ConnectionError::NotListening("refused".into()));
        String::new()
    }),
    ("the connection ends", |world| {
        world.peer.lost(ConnectionError::Lost("reset".into()));
        world.callee = None;
        String::new()
    }),
    ("the callee is known to have ended", |world| {
        world.peer.abort(&ConnectionError::GivenUp("it died".into()));
        world.callee = None;
        String::new()
    }),
    ("this one ends", |world| {
        world.peer.end(&ConnectionError::CallerEnded("it was shut down".into()));
        world.callee = None;
        String::new()
    }),
    ("this one leaves", |world| {
        world.peer.goodbye();
        String::new()
    }),
    ("ten seconds pass", |world| world.pass(Duration::from_secs(10))),
    ("a minute passes", |world| world.pass(Duration::from_secs(60))),
    ("the first call is answered", |world| world.answer(1)),
    ("the first call fails", |world| world.of_callee(|callee| _ = callee.fail(1, Status::Failed, "no luck"))),
    ("the other one leaves", |world| world.of_callee(Callee::goodbye)),
    ("the other one refuses", |world| {
        let Some(callee) = &mut world.callee else { return String::new() };
        while let Some(ToWrite::Bytes(bytes)) = world.peer.poll_write() {
            let mut bytes = &bytes[..];
            while let Some(event) = callee.next_event(NOW, &mut bytes) {
                if let CalleeEvent::Claimed(_) = event {
                    callee.refuse(Refusal::NotMe, "another one");
                }
            }
        }
        String::new()
    }),
    ("nonsense comes", |world| world.receive(&[0xff; 32])),
    ("an answer to an unknown call comes", |world| {
        // A Response to call 77 of no bytes.
        let mut frame = alloc::vec![18, 0, 0, 0, 2, 0x80, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0];
        frame.extend([0; 18]);
        world.receive(&frame)
    }),
    ("nothing comes", |world| world.receive(&[])),
];

#[test]
fn every_input_in_every_situation_is_in_the_snapshot() {
    let mut table = String::new();
    for (situation, method) in SITUATIONS {
        let mut silent = Vec::new();
        let begin = || {
            let mut world = World::new();
            method(&mut world);
            world
        };
        let before = begin().status();
        table += &format!("{situation} [{before}]\n");
        for (input, give) in INPUTS {
            let mut world = begin();
            let reported = give(&mut world);
            let reported = reported.split("; ").filter(|line| !line.is_empty()).map(String::from);
            let last_received_at: Vec<String> = reported.chain(world.settle()).collect();
            let after = world.status();
            if last_received_at.is_empty() && after == before {
                silent.push(input);
                continue;
            }
            let after = if after == before { "as before".into() } else { after };
            table += &format!("  {input} -> [{after}]\n");
            last_received_at.iter().for_each(|line| table += &format!("    {line}\n"));
        }
        table += &format!("  nothing comes of: {}\n\n", silent.join("; "));
    }
    assert_eq!(table, include_str!("table.snapshot"), "\n{table}");
}
