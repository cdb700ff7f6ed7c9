//! Token of a dynamic group: the right to change it, which one member has at a time.
//!
//! The protocol is PyTorch's: a member that finds [`keys::TOKEN`] empty stores its own token there, and another waits
//! for the key that the token names. In addition, a member that dies with the token does not block the others. Each
//! member of this library sends heartbeats at a key of its own. A waiter that sees no change there for
//! [`TokenTimes::silence`] takes the token, releases those that wait for the dead member, and undoes its unfinished
//! change. All these changes of keys are compare-sets, so a member that was considered dead by mistake notices it.

mod state;

pub use state::{TokenEvent, TokenState};

use super::keys::{self, Aim};
use super::{Reply, StoreStep};
use crate::name::WorkerName;
use rendezvous_core::prelude::*;
use rendezvous_core::rng::Rng;

/// Prefix of the value that replaces a dead holder's heartbeat; the nonce of the worker that replaced it follows. Part
/// of the protocol in the store.
const REVOKED: &str = "doomed:";

/// Times of heartbeats and pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTimes {
    /// Time between two heartbeats, and between two reads of the holder's.
    pub beat: Duration,
    /// Time without a heartbeat after which a holder is considered dead; several times [`TokenTimes::beat`].
    pub silence: Duration,
    /// First pause after an old return mark; each further one is twice as long.
    pub pause_min: Duration,
    /// Maximum pause.
    pub pause_max: Duration,
}

impl Default for TokenTimes {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            pause_min: Duration::from_millis(10),
            pause_max: Duration::from_millis(500),
        }
    }
}

/// What is known of the holder of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderLiveness {
    /// The holder sends heartbeats.
    Alive,
    /// The holder has sent none, like PyTorch's members, so its death cannot be detected.
    None,
}

/// One acquisition and return of the token. The driver executes each [`Token::next_step`] and reports the reply.
#[derive(Clone, Debug)]
pub struct Token {
    state: TokenState,
    local: Box<str>,
    local_alive: Box<str>,
    times: TokenTimes,
    deadline: Instant,
    nonce: u64,
    beats: u64,
    /// Value that the own heartbeat key must have for the next compare-set.
    expected: Box<str>,
    /// Token at the key, as far as is known.
    holder: Box<str>,
    holder_liveness: HolderLiveness,
    /// Holder whose return mark was seen. If it still holds the token, the mark is an old one.
    marked: Option<Box<str>>,
    /// Holder, its last heartbeat, and the time when that value was first seen.
    seen: Option<(Box<str>, Box<str>, Instant)>,
    /// Dead holder from which the token was taken.
    victim: Option<Box<str>>,
    wakes_at: Instant,
    looks_at: Instant,
    pause: Duration,
    /// Time when the last successful heartbeat was sent.
    beaten_at: Instant,
    /// Time when the current state was entered.
    since: Instant,
    /// Time when the holder was found dead.
    silent_at: Instant,
    rng: Rng,
}

impl Token {
    /// Starts to acquire the token for the member `name`, until `deadline`. `nonce` is random and distinguishes this
    /// process from others with the same name.
    pub fn new(now: Instant, name: &str, aim: Aim, times: TokenTimes, deadline: Instant, nonce: u64) -> Self {
        let local = keys::token(name, aim);
        Self {
            state: TokenState::Claiming,
            local_alive: keys::alive(&local),
            local,
            times,
            deadline,
            nonce,
            beats: 0,
            expected: "".into(),
            holder: "".into(),
            holder_liveness: HolderLiveness::None,
            marked: None,
            seen: None,
            victim: None,
            wakes_at: now,
            looks_at: now + times.beat,
            pause: times.pause_min,
            beaten_at: now,
            since: now,
            silent_at: now,
            rng: Rng::new(nonce),
        }
    }

    /// The current state.
    pub const fn state(&self) -> TokenState {
        self.state
    }

    /// Whether the group may be changed now.
    pub const fn is_held(&self) -> bool {
        matches!(self.state, TokenState::Held | TokenState::Beating)
    }

    /// Returns the dead member from which the token was taken, if it was.
    pub fn victim(&self) -> Option<WorkerName> {
        self.victim.as_deref().and_then(keys::holder)
    }

    /// Returns the token at the key, and what is known of its owner.
    pub fn holder(&self) -> (&str, HolderLiveness) {
        (&self.holder, self.holder_liveness)
    }

    fn revocation(&self) -> Box<str> {
        format!("{REVOKED}{:016x}", self.nonce).into()
    }

    /// Whether `at` is recent enough that no other worker has acted since. Others act after [`TokenTimes::silence`], so
    /// this one must finish well before.
    fn is_recent(&self, now: Instant, at: Instant) -> bool {
        now.since(at) < self.times.silence / 2
    }

    fn beat(&self, number: u64) -> Box<str> {
        format!("{:016x}:{number}", self.nonce).into()
    }

    /// Returns the next step; `None` if none is due before [`Token::poll_timeout`], or the state is final.
    pub fn next_step(&self) -> Option<StoreStep> {
        let compare = |key: &str, expected: &str, desired: &str| StoreStep::CompareSet {
            key: key.into(),
            expected: expected.into(),
            desired: desired.into(),
        };
        let victim = self.victim.as_deref().unwrap_or(&self.holder);
        let next_beat = || compare(&self.local_alive, &self.beat(self.beats), &self.beat(self.beats + 1));
        Some(match self.state {
            TokenState::Claiming => compare(&self.local_alive, &self.expected, &self.beat(self.beats + 1)),
            TokenState::Trying => compare(keys::TOKEN, "", &self.local),
            TokenState::Waiting => StoreStep::Wait { key: self.holder.clone(), until: self.wakes_at },
            TokenState::Refreshing | TokenState::Proving | TokenState::Beating | TokenState::Confirming => {
                next_beat()
            }
            TokenState::Looking => StoreStep::Get { key: keys::alive(&self.holder) },
            TokenState::Revoking => compare(&keys::alive(&self.holder), self.seen_beat(), &self.revocation()),
            TokenState::Seizing => compare(keys::TOKEN, &self.holder, &self.local),
            TokenState::Tidying => {
                StoreStep::Forget { key: keys::alive(&self.holder), expected: self.revocation() }
            }
            TokenState::Waking => StoreStep::Set { key: victim.into(), value: keys::DONE.as_bytes().into() },
            TokenState::Clearing => {
                StoreStep::Forget { key: keys::alive(victim), expected: self.revocation() }
            }
            TokenState::Unmarking => StoreStep::Delete { keys: Vec::from([self.local.clone()]) },
            TokenState::Releasing => compare(keys::TOKEN, &self.local, ""),
            TokenState::Announcing => {
                StoreStep::SetForSession { key: self.local.clone(), value: keys::DONE.as_bytes().into() }
            }
            TokenState::Forgetting | TokenState::Withdrawing => {
                StoreStep::Forget { key: self.local_alive.clone(), expected: self.beat(self.beats) }
            }
            TokenState::Outwaiting
            | TokenState::Pausing
            | TokenState::Held
            | TokenState::Free
            | TokenState::GaveUp
            | TokenState::NotUnique
            | TokenState::Lost => return None,
        })
    }

    fn seen_beat(&self) -> &str {
        self.seen.as_ref().map_or("", |(_, beat, _)| beat)
    }

    /// Time of the next [`Token::tick`]; `None` if none is needed, or a reply must come first.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let rests = matches!(self.state, TokenState::Outwaiting | TokenState::Pausing | TokenState::Held);
        rests.then_some(self.wakes_at)
    }

    /// Processes the passage of time.
    pub fn tick(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            let is_late = now >= self.deadline && self.state == TokenState::Outwaiting;
            let looks = self.state == TokenState::Pausing && self.looks_at <= now;
            let event = match () {
                () if is_late => TokenEvent::Deadline,
                () if looks => TokenEvent::LookDue,
                () => TokenEvent::Due,
            };
            self.go(now, event);
        }
    }

    /// The member has finished its change of the group: returns the token.
    pub fn release(&mut self, now: Instant) {
        self.go(now, TokenEvent::Release);
    }

    /// Sets the deadline to `now`: the member stops waiting where that is possible.
    pub const fn hurry(&mut self, now: Instant) {
        self.deadline = now;
        if matches!(self.state, TokenState::Outwaiting | TokenState::Pausing) {
            self.wakes_at = now;
        }
    }

    /// Processes the reply to the current step. `None` if the reply does not match it.
    pub fn handle(&mut self, now: Instant, reply: &Reply) -> Option<()> {
        let event = match (self.state, reply) {
            (TokenState::Waiting, Reply::Released) => {
                self.marked = Some(self.holder.clone());
                TokenEvent::Released
            }
            (TokenState::Waiting, Reply::TimedOut) => TokenEvent::TimedOut,
            (TokenState::Looking, Reply::Value(value)) => self.looked(now, value),
            (
                TokenState::Tidying
                | TokenState::Clearing
                | TokenState::Forgetting
                | TokenState::Withdrawing
                | TokenState::Unmarking,
                Reply::Done,
            ) => TokenEvent::Done,
            (TokenState::Waking, Reply::Done) if !self.is_recent(now, self.silent_at) => TokenEvent::Due,
            (TokenState::Announcing, Reply::Done) if !self.is_recent(now, self.beaten_at) => TokenEvent::Due,
            (TokenState::Waking | TokenState::Announcing, Reply::Done) => TokenEvent::Done,
            (_, Reply::Value(value)) => self.compared(now, value)?,
            _ => return None,
        };
        if self.state == TokenState::Clearing {
            // No member waits for the victim any more, and its unfinished change is for the caller to undo.
            self.seen = None;
        }
        self.go(now, event);
        if self.state == TokenState::Held {
            self.wakes_at = now + self.times.beat;
        }
        Some(())
    }

    fn looked(&mut self, now: Instant, beat: &[u8]) -> TokenEvent {
        // A late read proves nothing about the time before it: this process may have been paused together with the
        // holder's.
        let is_late = now.since(self.looks_at) >= self.times.silence / 2;
        self.looks_at = now + self.times.beat;
        let beat = core::str::from_utf8(beat).unwrap_or_default();
        if beat.is_empty() {
            (self.seen, self.holder_liveness) = (None, HolderLiveness::None);
            return TokenEvent::NotSilent;
        }
        self.holder_liveness = HolderLiveness::Alive;
        match &self.seen {
            Some((holder, known, since)) if !is_late && *holder == self.holder && **known == *beat => {
                if now.since(*since) >= self.times.silence {
                    self.silent_at = now;
                    TokenEvent::Silent
                } else {
                    TokenEvent::NotSilent
                }
            }
            _ => {
                self.seen = Some((self.holder.clone(), beat.into(), now));
                TokenEvent::NotSilent
            }
        }
    }

    fn compared(&mut self, now: Instant, value: &[u8]) -> Option<TokenEvent> {
        let value = core::str::from_utf8(value).unwrap_or_default();
        Some(match self.state {
            TokenState::Claiming if *value == *self.beat(self.beats + 1) => {
                self.beats += 1;
                TokenEvent::Mine
            }
            TokenState::Claiming => self.claimed_by(now, value),
            TokenState::Trying if *value == *self.local => TokenEvent::Mine,
            TokenState::Trying => self.held_by(now, value),
            // For an absent key PyTorch's server returns the expected value.
            TokenState::Proving if value.is_empty() || *value == *self.beat(self.beats) => {
                self.expected = "".into();
                TokenEvent::Absent
            }
            TokenState::Refreshing | TokenState::Proving | TokenState::Beating | TokenState::Confirming => {
                let next = self.beat(self.beats + 1);
                if *value != *next {
                    return Some(TokenEvent::Others);
                }
                self.beats += 1;
                self.beaten_at = self.since;
                if self.state == TokenState::Proving && self.victim.is_some() {
                    TokenEvent::MineOfDead
                } else {
                    TokenEvent::Mine
                }
            }
            TokenState::Revoking if *value == *self.revocation() => TokenEvent::Mine,
            TokenState::Seizing if *value == *self.local => {
                self.victim = Some(self.holder.clone());
                TokenEvent::MineOfDead
            }
            // If the key is deleted, no worker has the token, whatever the store replies.
            TokenState::Releasing if value.is_empty() || *value == *self.local => TokenEvent::Mine,
            TokenState::Revoking | TokenState::Seizing | TokenState::Releasing => TokenEvent::Others,
            _ => return None,
        })
    }

    /// Another process with the same name has left a heartbeat, or sends heartbeats now.
    fn claimed_by(&mut self, now: Instant, beat: &str) -> TokenEvent {
        // For an absent key PyTorch's server returns the expected value. If the key existed, the compare-set would have
        // succeeded.
        let beat = if *beat == *self.expected { "" } else { beat };
        let is_liveness = |text: &str| !text.is_empty() && !text.starts_with(REVOKED);
        if is_liveness(&self.expected) && is_liveness(beat) && *beat != *self.expected {
            return TokenEvent::OthersAlive;
        }
        self.expected = beat.into();
        // A free key is taken at once; the short pause keeps this from being a busy loop. A worker that is taking the
        // token from a dead holder gets the time to finish.
        let wait = if beat.is_empty() { self.times.pause_min } else { self.times.silence };
        self.wakes_at = (now + wait).min(self.deadline);
        TokenEvent::Others
    }

    /// Another worker has the token.
    fn held_by(&mut self, now: Instant, holder: &str) -> TokenEvent {
        let is_another = *holder != *self.holder;
        if is_another {
            self.holder = holder.into();
            (self.holder_liveness, self.pause, self.marked) =
                (HolderLiveness::None, self.times.pause_min, None);
        }
        if now >= self.deadline {
            return TokenEvent::Deadline;
        }
        // If the token is empty but could not be acquired, the store's reply was late: there is no holder to wait for.
        let is_marked = holder.is_empty() || self.marked.as_deref() == Some(holder);
        if is_marked {
            let nanos = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX);
            let jittered = Duration::from_nanos(nanos / 2 + self.rng.below(nanos / 2 + 1));
            self.wakes_at = now + jittered;
            self.pause = (self.pause * 2).min(self.times.pause_max);
            TokenEvent::OthersMarked
        } else {
            self.wakes_at = (now + self.times.beat).min(self.deadline);
            TokenEvent::Others
        }
    }

    fn go(&mut self, now: Instant, event: TokenEvent) {
        if let Some(next) = self.state.on(event) {
            (self.state, self.since) = (next, now);
        }
    }
}

#[cfg(test)]
mod tests;
