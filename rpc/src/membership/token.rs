//! The right to change a group, which one member has at a time.
//!
//! As with PyTorch: who finds [`keys::TOKEN`] empty puts its own token there, and who does not, waits for the key that the
//! token names. But a member that dies with the token blocks nobody: each of ours shows that it lives at a key of its own,
//! and whoever waits and sees no change there for a while takes the token, wakes those who wait for the dead, and undoes
//! what it left. Every change of the keys is a compare-set, so the one who was taken for dead notices.

mod state;

pub use state::{TokenEvent, TokenState};

use super::keys::{self, Aim};
use super::{Reply, StoreStep};
use crate::name::WorkerName;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use rendezvous_core::rng::Rng;
use rendezvous_core::time::{Duration, Instant};

/// How what stands in the place of a sign of life that was taken away begins; behind it, who took it.
const REVOKED: &str = "doomed:";

/// How often signs of life come and are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenTimes {
    /// Between two signs of life.
    pub beat: Duration,
    /// How long no sign of life is taken for death. Several times [`TokenTimes::beat`].
    pub silence: Duration,
    /// The first pause where a mark is an old one; each is twice as long as the one before.
    pub pause_min: Duration,
    /// The longest of them.
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

/// What is known of the holder that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessWatcher {
    /// It shows that it lives.
    Alive,
    /// It shows nothing, as PyTorch's members do: nobody can know whether it is dead.
    None,
}

/// One way to the token and back. Take [`Token::next_step`]s, and report each reply.
#[derive(Clone, Debug)]
pub struct Token {
    state: TokenState,
    local: Box<str>,
    local_alive: Box<str>,
    times: TokenTimes,
    deadline: Instant,
    nonce: u64,
    beats: u64,
    /// What is to stand at the own sign of life where the next one is put.
    expected: Box<str>,
    /// Who has the token, as far as is known.
    holder: Box<str>,
    liveness_watcher: LivenessWatcher,
    /// The holder whose mark was seen, so that it is an old one if the same holds the token still.
    marked: Option<Box<str>>,
    /// The sign of life that was last seen, of whom, and since when.
    seen: Option<(Box<str>, Box<str>, Instant)>,
    /// From whom the token was taken.
    victim: Option<Box<str>>,
    wakes_at: Instant,
    looks_at: Instant,
    pause: Duration,
    /// When the last sign of life that arrived was given.
    beaten_at: Instant,
    /// When the state began.
    since: Instant,
    /// When the holder was found dead.
    silent_at: Instant,
    rng: Rng,
}

impl Token {
    /// A member's way to the token, until `deadline`. `nonce` tells it from others of its name; it is random.
    #[must_use]
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
            liveness_watcher: LivenessWatcher::None,
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

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> TokenState {
        self.state
    }

    /// Whether the group may be changed now.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.state, TokenState::Held | TokenState::Beating)
    }

    /// The dead member that had it before, if it was taken from one.
    #[must_use]
    pub fn victim(&self) -> Option<WorkerName> {
        self.victim.as_deref().and_then(keys::holder)
    }

    /// Who has the token, as it stands at the key, and what is known of it.
    #[must_use]
    pub fn holder(&self) -> (&str, LivenessWatcher) {
        (&self.holder, self.liveness_watcher)
    }

    fn doom(&self) -> Box<str> {
        format!("{REVOKED}{:016x}", self.nonce).into()
    }

    /// Whether it was not so long ago that others may have acted meanwhile. What another worker of a name may do after
    /// [`TokenTimes::silence`], this one must have done well before.
    fn is_recent(&self, now: Instant, at: Instant) -> bool {
        now.since(at) < self.times.silence / 2
    }

    fn beat(&self, number: u64) -> Box<str> {
        format!("{:016x}:{number}", self.nonce).into()
    }

    /// The step that is due; `None`: nothing is, until [`Token::poll_timeout`] or for good.
    #[must_use]
    pub fn next_step(&self) -> Option<StoreStep> {
        let compare = |key: &str, expected: &str, desired: &str| StoreStep::CompareSet {
            key: key.into(),
            expected: expected.into(),
            desired: desired.into(),
        };
        let victim = self.victim.as_deref().unwrap_or(&self.holder);
        let next_beat = || compare(&self.local_alive, &self.beat(self.beats), &self.beat(self.beats + 1));
        Some(match self.state {
            TokenState::Claiming => compare(&self.local_alive, &self.expected, &self.beat(1)),
            TokenState::Trying => compare(keys::TOKEN, "", &self.local),
            TokenState::Waiting => StoreStep::Wait { key: self.holder.clone(), until: self.wakes_at },
            TokenState::Refreshing | TokenState::Proving | TokenState::Beating | TokenState::Confirming => {
                next_beat()
            }
            TokenState::Looking => StoreStep::Get { key: keys::alive(&self.holder) },
            TokenState::Dooming => compare(&keys::alive(&self.holder), self.seen_beat(), &self.doom()),
            TokenState::Seizing => compare(keys::TOKEN, &self.holder, &self.local),
            TokenState::Tidying => {
                StoreStep::Forget { key: keys::alive(&self.holder), expected: self.doom() }
            }
            TokenState::Waking => StoreStep::Set { key: victim.into(), value: keys::DONE.as_bytes().into() },
            TokenState::Clearing => StoreStep::Forget { key: keys::alive(victim), expected: self.doom() },
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

    /// When time alone changes something; `None`: never, or not before a reply.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let rests = matches!(self.state, TokenState::Outwaiting | TokenState::Pausing | TokenState::Held);
        rests.then_some(self.wakes_at)
    }

    /// Time passed.
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

    /// The member has done with the group.
    pub fn release(&mut self, now: Instant) {
        self.go(now, TokenEvent::Release);
    }

    /// Nobody waits for the token any longer: it is given up where that can be done.
    pub const fn hurry(&mut self, now: Instant) {
        self.deadline = now;
        if matches!(self.state, TokenState::Outwaiting | TokenState::Pausing) {
            self.wakes_at = now;
        }
    }

    /// The step that was due has ended so. `None`: that is no reply to it.
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
            // Nobody waits for it any more, and what it left is the caller's to undo.
            self.seen = None;
        }
        self.go(now, event);
        if self.state == TokenState::Held {
            self.wakes_at = now + self.times.beat;
        }
        Some(())
    }

    fn looked(&mut self, now: Instant, beat: &[u8]) -> TokenEvent {
        // A look that comes late says nothing about the time before it: this process may have been paused with the holder's.
        let is_late = now.since(self.looks_at) >= self.times.silence / 2;
        self.looks_at = now + self.times.beat;
        let beat = core::str::from_utf8(beat).unwrap_or_default();
        if beat.is_empty() {
            (self.seen, self.liveness_watcher) = (None, LivenessWatcher::None);
            return TokenEvent::NotSilent;
        }
        self.liveness_watcher = LivenessWatcher::Alive;
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
            TokenState::Claiming if *value == *self.beat(1) => {
                self.beats = 1;
                TokenEvent::Mine
            }
            TokenState::Claiming => self.claimed_by(now, value),
            TokenState::Trying if *value == *self.local => TokenEvent::Mine,
            TokenState::Trying => self.held_by(now, value),
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
            TokenState::Dooming if *value == *self.doom() => TokenEvent::Mine,
            TokenState::Seizing if *value == *self.local => {
                self.victim = Some(self.holder.clone());
                TokenEvent::MineOfDead
            }
            // A key that is gone holds nobody's token, whatever the store answers then.
            TokenState::Releasing if value.is_empty() || *value == *self.local => TokenEvent::Mine,
            TokenState::Dooming | TokenState::Seizing | TokenState::Releasing => TokenEvent::Others,
            _ => return None,
        })
    }

    /// Somebody of the same name has left a sign of life, or shows one.
    fn claimed_by(&mut self, now: Instant, beat: &str) -> TokenEvent {
        // PyTorch's server answers what was expected where the key is gone. Where it is not, it would be this one's now.
        let beat = if *beat == *self.expected { "" } else { beat };
        let is_liveness = |text: &str| !text.is_empty() && !text.starts_with(REVOKED);
        if is_liveness(&self.expected) && is_liveness(beat) && *beat != *self.expected {
            return TokenEvent::OthersAlive;
        }
        self.expected = beat.into();
        // What is nobody's is taken at once, but for a moment in which nothing turns in circles. Who takes a token from the
        // dead has the time to do it.
        let wait = if beat.is_empty() { self.times.pause_min } else { self.times.silence };
        self.wakes_at = (now + wait).min(self.deadline);
        TokenEvent::Others
    }

    /// Somebody else has the token.
    fn held_by(&mut self, now: Instant, holder: &str) -> TokenEvent {
        let is_another = *holder != *self.holder;
        if is_another {
            self.holder = holder.into();
            (self.liveness_watcher, self.pause, self.marked) =
                (LivenessWatcher::None, self.times.pause_min, None);
        }
        if now >= self.deadline {
            return TokenEvent::Deadline;
        }
        // An empty token that could not be had is a store's that answers late: there is nobody to wait for.
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
