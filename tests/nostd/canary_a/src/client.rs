//! One link to a store, from dialling to an answer; a barrier of plain keys; and an error as a sentence.

use super::codec::letters_of;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use rendezvous_core::barrier::by_keys::KeyBarrier;
use rendezvous_core::error::{Cause, Operation, Sentence};
use rendezvous_core::limits::ClientLimits;
use rendezvous_core::node::client::link::Link;
use rendezvous_core::node::client::{Age, Attempts, Sent};
use rendezvous_core::store::call::{Call, CallId, GetMode, Outcome, WaitMode};
use rendezvous_core::store::client_conn::Event;
use rendezvous_core::store::dial::{DialInput, DialOptions, DialOutput, Rounds};
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::sink::Fill;

const NOW: Instant = Instant::ORIGIN;
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

pub(crate) fn sings() -> bool {
    links().is_some() && meets() && tells()
}

fn link() -> Link<4> {
    let deadline = NOW + Duration::from_secs(1);
    Link::new(NOW, deadline, Rounds::One, DialOptions::default(), ClientLimits::default(), 1)
}

fn links() -> Option<()> {
    let mut link = link();
    let resolves = link.dialer.poll_output()? == DialOutput::Resolve;
    link.dialer.handle(NOW, DialInput::Resolved(&[ADDRESS]));
    let connects = link.dialer.poll_output()? == DialOutput::Connect(ADDRESS);
    link.dialer.handle(NOW, DialInput::Connected);
    let greets = link.dialer.poll_output()? == DialOutput::Greet;
    let greeting = link.conn.greet();
    // The echo of the number behind the second opcode.
    link.receive(NOW, &mut &greeting[6..]).ok()?;
    let is_ready = link.dialer.poll_output()? == DialOutput::Ready;
    let call = Call::Store(Request::Add { key: Key::scoped(b"/", b"n"), delta: 2 }, WaitMode::Once);
    let mut buffer = [0; 64];
    let mut fill = Fill::new(&mut buffer);
    link.conn.begin(CallId(1), &call, GetMode::Pipelined, &mut fill).ok()?;
    let is_encoded = fill.finish() == Ok(19);
    let answer = 2i64.to_le_bytes();
    let event = link.receive(NOW, &mut answer.as_slice()).ok()??;
    let is_answered = event == Event::Done { id: CallId(1), outcome: Outcome::Number(2) };
    link.conn.begin(CallId(2), &call, GetMode::Pipelined, &mut Fill::new(&mut buffer)).ok()?;
    let loss = link.conn.lose()?;
    let mut attempts = Attempts::new(Operation::Add, GetMode::Pipelined);
    let result = attempts.connection_lost(Cause::Closed, Age::Used, Sent::Something, &loss);
    let fails = matches!(result, Some(Err(_)));
    (resolves && connects && greets && is_ready && is_encoded && is_answered && fails).then_some(())
}

fn meets() -> bool {
    let mut barrier = KeyBarrier::new(1, WaitMode::Wait);
    let outcomes = [Outcome::Number(1), Outcome::Applied];
    let continues_in =
        |outcome| barrier.next_call(Key::raw(b"/b")).is_some() && barrier.handle(outcome).is_ok();
    outcomes.into_iter().all(continues_in) && barrier.next_call(Key::raw(b"/b")).is_none()
}

fn tells() -> bool {
    let key = Key::raw(b"/k");
    let failure = link().dialer.failure(NOW);
    let sentence = Sentence {
        operation: Operation::Get,
        key: Some(&key),
        keys_count: 1,
        peer: &"peer",
        failure,
        os_text: None,
    };
    letters_of(&sentence) > 10
}
