//! State machine that connects to a server: it resolves the host, tries one address after the other, greets, and
//! retries after a pause, until there is a connection or the deadline passes.
//!
//! Transient failures are retried: an unknown name, or a refused, reset or silent connection. A peer that does not
//! answer as a store does is a final failure. The pauses grow from 50 ms by half each time, up to 5 s. Each is
//! randomised by ±50 %, so that thousands of clients that start together do not retry together. (PyTorch starts at
//! 500 ms and goes up to 60 s; a rank that starts a moment after the others should not cost them half a second.)

use crate::error::{Cause, Effect, ErrorKind, Failure, Phase, Violation};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use core::net::SocketAddr;
use heapless::{Deque, Vec};

/// Maximum number of addresses of one host that are tried.
pub const ADDRESSES_MAX: usize = 16;

/// Returns the order in which to try addresses: the resolver's order within a family, alternating between the
/// families, starting with the family of the resolver's first address. Addresses beyond [`ADDRESSES_MAX`] are left
/// out.
pub fn alternate_families(addresses: &[SocketAddr]) -> Vec<SocketAddr, ADDRESSES_MAX> {
    let first_is_v4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let of_family = |is_first| addresses.iter().filter(move |one| (one.is_ipv4() == first_is_v4) == is_first);
    let (mut firsts, mut others) = (of_family(true), of_family(false));
    let pairs = core::iter::from_fn(|| {
        let pair = [firsts.next(), others.next()];
        (pair != [None, None]).then_some(pair)
    });
    pairs.flatten().flatten().copied().take(ADDRESSES_MAX).collect()
}

/// Timing of connection attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialOptions {
    /// First pause, before randomisation; at most `pause_max`.
    pub pause_first: Duration,
    /// Longest pause, before randomisation.
    pub pause_max: Duration,
    /// Longest time for one address to accept a connection.
    pub connect_attempt_max: Duration,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self {
            pause_first: Duration::from_millis(50),
            pause_max: Duration::from_secs(5),
            connect_attempt_max: Duration::from_secs(10),
        }
    }
}

/// How often to try the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Each address once.
    One,
    /// Repeatedly, until the deadline.
    UntilDeadline,
}

/// Input of a [`Dialer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialInput<'a> {
    /// The host has these addresses, in the resolver's order.
    Resolved(&'a [SocketAddr]),
    /// No address of the host was found.
    Unresolved(ErrorKind, Cause),
    /// The address accepted the connection.
    Connected,
    /// The connection attempt failed, or the connection ended before the greeting was answered.
    Failed(ErrorKind, Cause),
    /// The greeting was answered.
    Greeted,
    /// The peer answered the greeting, but is not a store.
    Violated(Violation),
    /// The timeout of [`Dialer::poll_timeout`] has passed.
    Tick,
}

/// Action that a [`Dialer`] requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialOutput {
    /// Resolve the host's addresses.
    Resolve,
    /// Connect to this address.
    Connect(SocketAddr),
    /// Send the greeting.
    Greet,
    /// Close the connection, or abort the attempt.
    Disconnect,
    /// The connection is ready.
    Ready,
    /// There is no connection, and no further attempt follows.
    Failed(Failure),
}

/// State of a [`Dialer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialState {
    /// The host is being resolved.
    Resolving,
    /// A connection attempt is in progress.
    Connecting,
    /// The greeting has been sent.
    Greeting,
    /// All addresses failed; the next round has not started.
    Pausing,
    /// The connection is ready.
    Ready,
    /// There is no connection, and no further attempt follows.
    Failed,
}

/// Connection establishment to one server.
#[derive(Debug)]
pub struct Dialer {
    options: DialOptions,
    rounds: Rounds,
    rng: Rng,
    began: Instant,
    deadline: Instant,
    state: DialState,
    /// End of the current attempt or pause.
    until: Instant,
    pause: Duration,
    order: Vec<SocketAddr, ADDRESSES_MAX>,
    order_index: usize,
    last: Option<(ErrorKind, Phase, Cause)>,
    outputs: Deque<DialOutput, 4>,
}

impl Dialer {
    /// Starts at `now`. The first output is [`DialOutput::Resolve`].
    pub fn new(now: Instant, deadline: Instant, rounds: Rounds, options: DialOptions, seed: u64) -> Self {
        let mut dialer = Self {
            options,
            rounds,
            rng: Rng::new(seed),
            began: now,
            deadline,
            state: DialState::Resolving,
            until: deadline,
            pause: options.pause_first.min(options.pause_max),
            order: Vec::new(),
            order_index: 0,
            last: None,
            outputs: Deque::new(),
        };
        dialer.emit(DialOutput::Resolve);
        dialer
    }

    /// Handles an input. One that does not fit the state belongs to an earlier attempt and is ignored.
    pub fn handle(&mut self, now: Instant, input: DialInput<'_>) {
        use DialState::{Connecting, Failed, Greeting, Pausing, Ready, Resolving};
        match (self.state, input) {
            (Ready | Failed, _) => {}
            (_, DialInput::Tick) => self.tick(now),
            (Resolving, DialInput::Resolved(addresses)) => {
                self.order = alternate_families(addresses);
                self.order_index = 0;
                if self.order.is_empty() {
                    self.round_failed(now, ErrorKind::Unresolved, Cause::Resolver(0));
                } else {
                    self.connect(now);
                }
            }
            (Resolving, DialInput::Unresolved(kind, cause)) => self.round_failed(now, kind, cause),
            (Connecting, DialInput::Connected) => {
                self.state = Greeting;
                self.until = self.attempt_end(now);
                self.emit(DialOutput::Greet);
            }
            (Connecting | Greeting, DialInput::Failed(kind, cause)) => self.attempt_failed(now, kind, cause),
            (Greeting, DialInput::Greeted) => {
                self.state = Ready;
                self.emit(DialOutput::Ready);
            }
            (Greeting, DialInput::Violated(violation)) => {
                self.emit(DialOutput::Disconnect);
                self.note(ErrorKind::WrongProtocol, Cause::Violation(violation));
                self.fail(now);
            }
            (Resolving | Connecting | Greeting | Pausing, _) => {}
        }
    }

    /// Extends all deadlines by `span`, for which the process was not running.
    pub fn paused(&mut self, span: Duration) {
        self.until = self.until + span;
        self.deadline = self.deadline + span;
    }

    /// Returns the next action, in order.
    pub fn poll_output(&mut self) -> Option<DialOutput> {
        self.outputs.pop_front()
    }

    /// Returns when [`DialInput::Tick`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            DialState::Ready | DialState::Failed => None,
            _ => Some(self.until.min(self.deadline)),
        }
    }

    /// Returns the state.
    pub const fn state(&self) -> DialState {
        self.state
    }

    /// Returns the failure that a caller would get if dialing ended now.
    pub fn failure(&self, now: Instant) -> Failure {
        let (kind, phase, cause) = self.last.unwrap_or((ErrorKind::TimedOut, self.phase(), self.silence()));
        Failure { kind, phase, elapsed: now.since(self.began), cause, effect: Effect::None }
    }

    /// Returns the address that is being tried, or that is connected.
    pub fn current(&self) -> Option<SocketAddr> {
        self.order.get(self.order_index).copied()
    }

    /// Returns how the last attempt failed, if there was one and there is no connection.
    pub fn failed_try(&self, now: Instant) -> Option<Failure> {
        (self.state != DialState::Ready && self.last.is_some()).then(|| self.failure(now))
    }

    fn emit(&mut self, output: DialOutput) {
        // One input causes at most two outputs, and the caller drains them after each input.
        let _ = self.outputs.push_back(output);
    }

    fn tick(&mut self, now: Instant) {
        if now < self.until.min(self.deadline) {
            return;
        }
        match self.state {
            DialState::Connecting | DialState::Greeting => {
                self.emit(DialOutput::Disconnect);
                let cause = self.silence();
                self.attempt_failed(now, ErrorKind::TimedOut, cause);
            }
            DialState::Pausing if now < self.deadline => {
                self.state = DialState::Resolving;
                self.until = self.deadline;
                self.emit(DialOutput::Resolve);
            }
            DialState::Resolving => {
                self.note(ErrorKind::TimedOut, Cause::Unknown);
                self.fail(now);
            }
            DialState::Pausing | DialState::Ready | DialState::Failed => self.fail(now),
        }
    }

    fn connect(&mut self, now: Instant) {
        self.state = DialState::Connecting;
        self.until = self.attempt_end(now).min(now + self.options.connect_attempt_max);
        if let Some(address) = self.current() {
            self.emit(DialOutput::Connect(address));
        }
    }

    /// Returns the end of an attempt that starts now. An address that is not the last gets half of the remaining
    /// time.
    fn attempt_end(&self, now: Instant) -> Instant {
        if self.order_index + 1 < self.order.len() {
            now + self.deadline.since(now) / 2
        } else {
            self.deadline
        }
    }

    fn attempt_failed(&mut self, now: Instant, kind: ErrorKind, cause: Cause) {
        // Another attempt would find the same certificates.
        let is_final = matches!(cause, Cause::Tls(fault) if fault.is_final());
        self.note(if is_final { ErrorKind::WrongProtocol } else { kind }, cause);
        self.order_index += 1;
        if is_final || now >= self.deadline {
            self.fail(now);
        } else if self.order_index < self.order.len() {
            self.connect(now);
        } else {
            self.pause(now);
        }
    }

    fn round_failed(&mut self, now: Instant, kind: ErrorKind, cause: Cause) {
        self.note(kind, cause);
        if now >= self.deadline { self.fail(now) } else { self.pause(now) }
    }

    fn pause(&mut self, now: Instant) {
        if self.rounds == Rounds::One {
            return self.fail(now);
        }
        let nanos = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX);
        let over_half = self.rng.below(nanos.saturating_add(1));
        let spread = Duration::from_nanos((nanos / 2).saturating_add(over_half));
        self.pause = (self.pause.saturating_mul(3) / 2).min(self.options.pause_max);
        // A pause beyond the deadline would waste the remaining time, so one more attempt is made halfway.
        let left = self.deadline.since(now);
        let halved = if left < PAUSE_HALVED_MIN { left } else { left / 2 };
        self.until = now + if spread < left { spread } else { halved };
        self.state = DialState::Pausing;
    }

    fn note(&mut self, kind: ErrorKind, cause: Cause) {
        self.last = Some((kind, self.phase(), cause));
    }

    fn fail(&mut self, now: Instant) {
        let failure = self.failure(now);
        self.state = DialState::Failed;
        self.emit(DialOutput::Failed(failure));
    }

    const fn phase(&self) -> Phase {
        match self.state {
            DialState::Resolving => Phase::Resolving,
            DialState::Greeting => Phase::Greeting,
            _ => Phase::Connecting,
        }
    }

    const fn silence(&self) -> Cause {
        match self.state {
            DialState::Greeting => Cause::Silent,
            _ => Cause::Unknown,
        }
    }
}

/// Remaining time below which no further attempt is made.
const PAUSE_HALVED_MIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use crate::error::Due;
    use alloc::vec::Vec as AnyVec;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    const MS: fn(u64) -> Instant = Instant::from_millis;
    const REFUSED: DialInput<'static> = DialInput::Failed(ErrorKind::Refused, Cause::Os(111));

    const V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    const V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 2);

    fn dialer(deadline_ms: u64, rounds: Rounds) -> Dialer {
        Dialer::new(MS(0), MS(deadline_ms), rounds, DialOptions::default(), 7)
    }

    fn outputs(dialer: &mut Dialer) -> AnyVec<DialOutput> {
        core::iter::from_fn(|| dialer.poll_output()).collect()
    }

    fn failed(kind: ErrorKind, phase: Phase, elapsed_ms: u64, cause: Cause) -> DialOutput {
        let elapsed = Duration::from_millis(elapsed_ms);
        DialOutput::Failed(Failure { kind, phase, elapsed, cause, effect: Effect::None })
    }

    #[test]
    fn families_take_turns_and_keep_their_order() {
        for (families, expected) in [
            (&[][..], &[][..]),
            (&[V6, V6, V6, V4], &[0, 3, 1, 2]),
            (&[V4, V4, V6], &[0, 2, 1]),
            (&[V4], &[0]),
            (&[V6; 40], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        ] {
            // The port is the position in the resolver's list.
            let numbered: AnyVec<SocketAddr> =
                (0..).zip(families).map(|(port, one)| SocketAddr::new(one.ip(), port)).collect();
            let ports: AnyVec<u16> = alternate_families(&numbered).iter().map(SocketAddr::port).collect();
            assert_eq!(ports, expected);
        }
    }

    #[test]
    fn each_address_is_tried_then_greeted() {
        let mut dialer = dialer(1000, Rounds::One);
        assert_eq!(outputs(&mut dialer), [DialOutput::Resolve]);
        dialer.handle(MS(1), DialInput::Resolved(&[V6, V4]));
        assert_eq!(outputs(&mut dialer), [DialOutput::Connect(V6)]);
        dialer.handle(MS(2), REFUSED);
        assert_eq!(outputs(&mut dialer), [DialOutput::Connect(V4)]);
        dialer.handle(MS(3), DialInput::Connected);
        assert_eq!(outputs(&mut dialer), [DialOutput::Greet]);
        dialer.handle(MS(4), DialInput::Greeted);
        assert_eq!(outputs(&mut dialer), [DialOutput::Ready]);
        assert_eq!((dialer.state(), dialer.poll_timeout()), (DialState::Ready, None));
    }

    #[test]
    fn one_round_fails_with_the_last_cause() {
        let mut dialer = dialer(1000, Rounds::One);
        dialer.handle(MS(0), DialInput::Resolved(&[V4]));
        outputs(&mut dialer);
        dialer.handle(MS(5), REFUSED);
        let expected = failed(ErrorKind::Refused, Phase::Connecting, 5, Cause::Os(111));
        assert_eq!(outputs(&mut dialer), [expected]);
    }

    #[test]
    fn pauses_grow_stay_in_their_spread_and_end_at_the_deadline() {
        let mut dialer = dialer(60_000, Rounds::UntilDeadline);
        let (mut now, mut pause, mut rounds) = (MS(0), 50e6, 0);
        loop {
            outputs(&mut dialer);
            dialer.handle(now, DialInput::Resolved(&[V4]));
            outputs(&mut dialer);
            dialer.handle(now, REFUSED);
            let until = dialer.poll_timeout().expect("a pause");
            let span = until.since(now).as_nanos() as f64;
            if (until.since(MS(0)) + Duration::from_secs(8)) < Duration::from_secs(60) {
                assert!(span >= pause / 2.0 - 1.0 && span <= pause * 1.5 + 1.0, "{span} for {pause}");
            }
            pause = f64::min(pause * 1.5, 5e9);
            rounds += 1;
            now = until;
            dialer.handle(now, DialInput::Tick);
            if dialer.state() == DialState::Failed {
                break;
            }
        }
        assert_eq!(now, MS(60_000));
        assert!((15..60).contains(&rounds), "{rounds}");
        let expected = failed(ErrorKind::Refused, Phase::Connecting, 60_000, Cause::Os(111));
        assert_eq!(outputs(&mut dialer), [expected]);
    }

    #[test]
    fn pauses_of_any_length_stay_within_the_longest_and_the_deadline() {
        let (brief, endless) = (Duration::from_millis(10), Duration::MAX);
        for (pause_first, pause_max, expected_max) in [
            (endless, brief, Duration::from_millis(15)),
            (endless, endless, Duration::MAX),
            (brief, endless, Duration::MAX),
        ] {
            let options = DialOptions { pause_first, pause_max, connect_attempt_max: endless };
            for deadline in [MS(60_000), Instant::MAX] {
                let mut dialer = Dialer::new(MS(0), deadline, Rounds::UntilDeadline, options, 7);
                let mut now = MS(0);
                for _ in 0..100 {
                    outputs(&mut dialer);
                    dialer.handle(now, DialInput::Unresolved(ErrorKind::Unresolved, Cause::Resolver(-2)));
                    let Some(until) = dialer.poll_timeout() else { break };
                    assert!(until <= deadline && until.since(now) <= expected_max, "{options:?}");
                    now = until;
                    dialer.handle(now, DialInput::Tick);
                }
            }
        }
    }

    #[test]
    fn a_silent_address_leaves_time_for_the_next() {
        let mut dialer = dialer(1000, Rounds::One);
        dialer.handle(MS(0), DialInput::Resolved(&[V6, V4]));
        outputs(&mut dialer);
        assert_eq!(dialer.poll_timeout(), Some(MS(500)));
        dialer.handle(MS(500), DialInput::Tick);
        assert_eq!(outputs(&mut dialer), [DialOutput::Disconnect, DialOutput::Connect(V4)]);
        dialer.handle(MS(501), DialInput::Connected);
        outputs(&mut dialer);
        dialer.handle(MS(1000), DialInput::Tick);
        let expected = failed(ErrorKind::TimedOut, Phase::Greeting, 1000, Cause::Silent);
        assert_eq!(outputs(&mut dialer), [DialOutput::Disconnect, expected]);
    }

    #[test]
    fn a_stranger_is_final() {
        let mut dialer = dialer(1000, Rounds::UntilDeadline);
        dialer.handle(MS(0), DialInput::Resolved(&[V6, V4]));
        dialer.handle(MS(0), DialInput::Connected);
        outputs(&mut dialer);
        let violation = Violation { due: Due::Echo(1), seen: 2 };
        dialer.handle(MS(9), DialInput::Violated(violation));
        let expected = failed(ErrorKind::WrongProtocol, Phase::Greeting, 9, Cause::Violation(violation));
        assert_eq!(outputs(&mut dialer), [DialOutput::Disconnect, expected]);
    }

    #[test]
    fn every_state_takes_every_input_at_its_deadline() {
        let inputs = [
            DialInput::Resolved(&[V4]),
            DialInput::Resolved(&[]),
            DialInput::Unresolved(ErrorKind::Unresolved, Cause::Resolver(-2)),
            DialInput::Connected,
            REFUSED,
            DialInput::Greeted,
            DialInput::Violated(Violation { due: Due::Silence, seen: 0 }),
            DialInput::Tick,
        ];
        let routes: [&[DialInput<'_>]; 5] =
            [&[], &[inputs[0]], &[inputs[0], inputs[3]], &[inputs[2]], &[inputs[0], inputs[3], inputs[5]]];
        let mut table = alloc::string::String::new();
        for route in routes {
            for input in inputs {
                let mut dialer = dialer(1000, Rounds::UntilDeadline);
                for &step in route {
                    dialer.handle(MS(0), step);
                }
                outputs(&mut dialer);
                let before = dialer.state();
                dialer.handle(MS(1), input);
                table += &alloc::format!("{before:?} {input:?} -> {:?}\n", dialer.state());
                dialer.handle(MS(1000), DialInput::Tick);
                let ended = [DialState::Failed, DialState::Ready].contains(&dialer.state());
                assert!(ended || dialer.poll_timeout() > Some(MS(1000)), "{table}");
            }
        }
        let expected = "\
Resolving Resolved([127.0.0.1:1]) -> Connecting
Resolving Resolved([]) -> Pausing
Resolving Unresolved(Unresolved, Resolver(-2)) -> Pausing
Resolving Connected -> Resolving
Resolving Failed(Refused, Os(111)) -> Resolving
Resolving Greeted -> Resolving
Resolving Violated(Violation { due: Silence, seen: 0 }) -> Resolving
Resolving Tick -> Resolving
Connecting Resolved([127.0.0.1:1]) -> Connecting
Connecting Resolved([]) -> Connecting
Connecting Unresolved(Unresolved, Resolver(-2)) -> Connecting
Connecting Connected -> Greeting
Connecting Failed(Refused, Os(111)) -> Pausing
Connecting Greeted -> Connecting
Connecting Violated(Violation { due: Silence, seen: 0 }) -> Connecting
Connecting Tick -> Connecting
Greeting Resolved([127.0.0.1:1]) -> Greeting
Greeting Resolved([]) -> Greeting
Greeting Unresolved(Unresolved, Resolver(-2)) -> Greeting
Greeting Connected -> Greeting
Greeting Failed(Refused, Os(111)) -> Pausing
Greeting Greeted -> Ready
Greeting Violated(Violation { due: Silence, seen: 0 }) -> Failed
Greeting Tick -> Greeting
Pausing Resolved([127.0.0.1:1]) -> Pausing
Pausing Resolved([]) -> Pausing
Pausing Unresolved(Unresolved, Resolver(-2)) -> Pausing
Pausing Connected -> Pausing
Pausing Failed(Refused, Os(111)) -> Pausing
Pausing Greeted -> Pausing
Pausing Violated(Violation { due: Silence, seen: 0 }) -> Pausing
Pausing Tick -> Pausing
Ready Resolved([127.0.0.1:1]) -> Ready
Ready Resolved([]) -> Ready
Ready Unresolved(Unresolved, Resolver(-2)) -> Ready
Ready Connected -> Ready
Ready Failed(Refused, Os(111)) -> Ready
Ready Greeted -> Ready
Ready Violated(Violation { due: Silence, seen: 0 }) -> Ready
Ready Tick -> Ready
";
        assert_eq!(table, expected);
    }
}
