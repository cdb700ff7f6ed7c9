//! Client side of one c10d connection: a state machine that encodes calls and parses replies incrementally, without
//! buffers of its own.
//!
//! Replies carry no id. The machine therefore keeps a bounded table of what it sent, in order, and parses each
//! reply as that of the oldest entry. A call that may block has the connection to itself until it ends. This
//! removes the one ambiguity of the protocol: the byte that ends a WAIT can arrive between other replies.
//!
//! - `get` sends WAIT and GET in one write. A parked WAIT does not delay the GET behind it, so the replies are
//!   either `00` and the value, or an empty value and, later, `00`. Both start with nine bytes of which the first
//!   is 0. If the `u64` after it is not 0, it is the length of the value. If all nine bytes are 0, the WAIT has
//!   ended, and either the value is empty or the GET was served too early; CHECK and GET in one write resolve
//!   which.
//! - A waiting call that is cancelled sends CANCEL_WAIT, and the caller gets no more events of it. Its entry stays
//!   in the table, marked mute, and consumes the remaining replies, so that further calls can be sent behind it. An
//!   empty value followed by CANCEL_WAIT's `01` would read as a length of 2^56, which no limit allows, so the two
//!   cannot be confused.

mod step;

use crate::error::{Due, Effect, LimitError, Operation, Phase, Violation};
use crate::limits::ClientLimits;
use crate::store::call::{Call, CallId, GetMode, Outcome, WaitMode};
use crate::wire::c10d::{Frame, MAGIC, NOT_READY, Opcode, READY, STOP_WAITING, WAIT_CANCELED, encode_frame};
use crate::wire::sink::{Fill, Length, Sink};
use heapless::Deque;
use step::{After, Reply, Step, after, encode_step, first_step};

/// Size of the greeting, in bytes: VALIDATE and PING.
pub const GREETING_BYTES: usize = 10;

/// Event parsed from received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// The peer echoed the greeting, so it is a store.
    Greeted,
    /// A list of this many items begins.
    Count {
        /// The call.
        id: CallId,
        /// Number of items.
        count: u64,
    },
    /// A value (or a listed key) begins.
    ValueStart {
        /// The call.
        id: CallId,
        /// Length of the value, in bytes.
        bytes: u64,
    },
    /// The next bytes of the value.
    ValueChunk {
        /// The call.
        id: CallId,
        /// The bytes, borrowed from the input.
        bytes: &'b [u8],
    },
    /// The call needs another write, by [`ClientConn::proceed`].
    Proceed {
        /// The call.
        id: CallId,
    },
    /// The call has ended.
    Done {
        /// The call.
        id: CallId,
        /// The result of the call.
        outcome: Outcome,
    },
}

/// Error of starting a call; the connection is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// A call that may block is in progress on this connection.
    #[error("a call that may block is in progress on this connection")]
    Busy,
    /// The table of pending calls is full.
    #[error("the maximum number of calls is in progress on this connection")]
    Full,
    /// The sink has too little space; this many bytes are required.
    #[error("the request needs {0} bytes of buffer")]
    Space(usize),
    /// The request exceeds a limit.
    #[error(transparent)]
    Limit(LimitError),
    /// No call with this id waits for its next step.
    #[error("no such call")]
    Unknown,
}

/// What the caller must do after cancelling a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Nothing; the call has left the table.
    Nothing,
    /// Send this byte. The remaining replies of the call are ignored. An arrival at a barrier stays counted.
    Send([u8; 1], Effect),
    /// Close the connection: a reply that is due immediately is missing. The effect is what the call may have
    /// changed in the store.
    Close(Effect),
}

/// Call that was in progress when its connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The call.
    pub id: CallId,
    /// The phase that the call had reached.
    pub phase: Phase,
    /// Whether the store may have changed, provided that the request was sent.
    pub effect: Effect,
    /// What the end of the connection implies for the call.
    pub finding: Finding,
}

/// Conclusion about a call from the end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No conclusion.
    None,
    /// The peer may be one that drops connections that ask for missing keys. Retry with [`GetMode::WaitThenGet`].
    DropsOnMissing,
    /// The peer drops such connections, and the result of the call is known nevertheless.
    Responded(Outcome),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: CallId,
    operation: Operation,
    wait_mode: WaitMode,
    mode: GetMode,
    step: Step,
    /// Whether the call has the connection to itself: no other call may start behind it unless it is mute.
    exclusive: bool,
    nonce: u32,
    /// Number of keys of the call, and so of the values that MULTI_GET returns.
    keys_count: u64,
    /// A CANCEL_WAIT was sent before the step: its reply comes first.
    prefix: bool,
    /// A CANCEL_WAIT was sent after the step: its reply comes last.
    cancelled: bool,
    /// The caller has cancelled the call, and gets no events of it.
    mute: bool,
    /// The step has yet to be sent.
    parked: bool,
    /// At least one reply of the call was received, in this step or an earlier one.
    replied: bool,
    /// Reply to the CHECK of [`Step::CheckGet`].
    ready: Option<bool>,
    /// Number of times that a pop found its queue empty.
    failed_pops: u16,
}

/// Maximum number of times that a pop waits. WAIT returns at once if the key has a value, whether or not the queue of the
/// same name has items, so the call would send requests without a pause until its deadline. Without a value, each time
/// stands for an item that another client took first, so the limit is far above what a busy queue causes.
const FAILED_POPS_MAX: u16 = 1000;

/// Next part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyPart {
    /// Reply to a CANCEL_WAIT sent before the step.
    Prefix,
    /// Reply to a CANCEL_WAIT sent after the step.
    Suffix,
    Echo,
    Number,
    Flag,
    Stop,
    /// First nine bytes of the replies to WAIT and GET.
    Head,
    /// Length of a value; `left` more values follow, of `of` in all.
    Length {
        left: u64,
        of: u64,
    },
    /// Bytes of a value.
    Body {
        bytes: u64,
        left: u64,
        of: u64,
    },
    /// Item count of a list.
    Count,
    /// Length of a queue.
    Queued,
}

impl ReplyPart {
    const fn width(self) -> usize {
        match self {
            Self::Prefix | Self::Suffix | Self::Flag | Self::Stop => 1,
            Self::Echo => 4,
            Self::Number | Self::Length { .. } | Self::Count | Self::Queued => 8,
            Self::Head => 9,
            Self::Body { .. } => 0,
        }
    }
}

/// Most calls that are pipelined on one connection of this library's clients: one number for all of them, so that the
/// code exists once.
pub const PENDING: usize = 64;

/// Client side of one connection, with a table of up to `PENDING` calls.
#[derive(Debug)]
pub struct ClientConn<const PENDING: usize> {
    entries: Deque<Entry, PENDING>,
    limits: ClientLimits,
    /// The part of the front entry's reply that is due next; `None` before its first byte.
    part: Option<ReplyPart>,
    head: [u8; 9],
    head_bytes: usize,
    /// Total size of the values of the current reply, in bytes.
    reply_bytes: u64,
    nonce: u32,
    /// An earlier wait was released, but the server may still have it on a list.
    stale: bool,
}

impl<const PENDING: usize> ClientConn<PENDING> {
    /// Creates the state of a new connection. The numbers of its PINGs start after `nonce`.
    pub const fn new(limits: ClientLimits, nonce: u32) -> Self {
        Self {
            entries: Deque::new(),
            limits,
            part: None,
            head: [0; 9],
            head_bytes: 0,
            reply_bytes: 0,
            nonce,
            stale: false,
        }
    }

    /// Begins a new connection, and drops the state of an earlier one whose greeting was not answered. Returns the
    /// first bytes, which the caller sends in one write. [`Event::Greeted`] follows.
    pub fn greet(&mut self) -> [u8; GREETING_BYTES] {
        *self = Self::new(self.limits, self.nonce);
        let nonce = self.next_nonce();
        let greeting = Entry { nonce, ..Entry::new(CallId(0), &Call::Ping, GetMode::Pipelined, Step::Greet) };
        // The table of a new connection is empty.
        let _ = self.entries.push_back(greeting);
        let mut bytes = [0; GREETING_BYTES];
        let mut fill = Fill::new(&mut bytes);
        encode_frame(&mut fill, &Frame::Validate { magic: MAGIC });
        encode_frame(&mut fill, &Frame::Ping { nonce });
        bytes
    }

    /// Starts a call, and writes its first bytes to `out`.
    ///
    /// # Errors
    /// See [`BeginError`]; the connection and `out` are unchanged.
    pub fn begin(
        &mut self,
        id: CallId,
        call: &Call<'_>,
        mode: GetMode,
        out: &mut dyn Sink,
    ) -> Result<(), BeginError> {
        self.may_begin()?;
        call.check_limits(&self.limits.frame).map_err(BeginError::Limit)?;
        let step = first_step(call, mode);
        let mut entry = Entry::new(id, call, mode, step);
        self.encode(&mut entry, call, out)?;
        // `may_begin` has checked the capacity.
        let _ = self.entries.push_back(entry);
        Ok(())
    }

    /// Checks whether a call can start now.
    ///
    /// # Errors
    /// [`BeginError::Busy`] or [`BeginError::Full`].
    pub fn may_begin(&self) -> Result<(), BeginError> {
        if self.entries.back().is_some_and(|last| last.exclusive && !last.mute) {
            return Err(BeginError::Busy);
        }
        if self.entries.is_full() { Err(BeginError::Full) } else { Ok(()) }
    }

    /// Writes the next bytes of a call that requested it with [`Event::Proceed`] to `out`.
    ///
    /// # Errors
    /// [`BeginError::Unknown`] if the call did not request it, [`BeginError::Space`] if `out` has too little space.
    pub fn proceed(&mut self, id: CallId, call: &Call<'_>, out: &mut dyn Sink) -> Result<(), BeginError> {
        let mut entry = match self.entries.front() {
            Some(entry) if entry.id == id && entry.parked && entry.operation == call.operation() => *entry,
            _ => return Err(BeginError::Unknown),
        };
        entry.parked = false;
        self.encode(&mut entry, call, out)?;
        if let Some(front) = self.entries.front_mut() {
            *front = entry;
        }
        Ok(())
    }

    /// Cancels a call, because its deadline has passed or the caller wants to. No event of it follows.
    pub fn give_up(&mut self, id: CallId) -> GiveUp {
        let receiving_value = matches!(self.part, Some(ReplyPart::Body { .. } | ReplyPart::Length { .. }));
        let Some(index) = self.entries.iter().position(|entry| entry.id == id && !entry.mute) else {
            return GiveUp::Nothing;
        };
        let Some(entry) = self.entries.iter_mut().nth(index) else { return GiveUp::Nothing };
        if entry.parked {
            // It is the only entry: it may block, and all calls before it have ended.
            self.entries.pop_front();
            return GiveUp::Nothing;
        }
        entry.mute = true;
        if entry.step.waits() && !(index == 0 && receiving_value) {
            entry.cancelled = true;
            self.stale = false;
            let effect = entry.operation.effect_when_given_up();
            return GiveUp::Send([Opcode::CancelWait as u8], effect);
        }
        GiveUp::Close(entry.effect())
    }

    /// Parses `bytes`, and removes the parsed bytes from its front. Call it until it returns `None`; all bytes are
    /// then consumed.
    ///
    /// # Errors
    /// The peer violated the protocol; the caller must close the connection.
    pub fn receive<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<Event<'b>>, Violation> {
        loop {
            let entry = match self.entries.front() {
                Some(entry) if !entry.parked => entry,
                _ if bytes.is_empty() => return Ok(None),
                _ => return Err(Violation { due: Due::Silence, seen: u64::from(bytes[0]) }),
            };
            let part = self.part.unwrap_or_else(|| entry.first_part());
            if let ReplyPart::Body { bytes: body_bytes, left, of } = part
                && body_bytes > 0
            {
                let taken = bytes.len().min(usize::try_from(body_bytes).unwrap_or(usize::MAX));
                if taken == 0 {
                    return Ok(None);
                }
                let (chunk, rest) = bytes.split_at(taken);
                *bytes = rest;
                self.part = Some(ReplyPart::Body { bytes: body_bytes - taken as u64, left, of });
                if !entry.mute {
                    return Ok(Some(Event::ValueChunk { id: entry.id, bytes: chunk }));
                }
                continue;
            }
            let wanted = part.width() - self.head_bytes;
            let taken = wanted.min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            *bytes = rest;
            self.head[self.head_bytes..][..taken].copy_from_slice(head);
            self.head_bytes += taken;
            if taken < wanted {
                self.part = Some(part);
                return Ok(None);
            }
            self.head_bytes = 0;
            if let Some(event) = self.part_received(part)? {
                return Ok(Some(event));
            }
        }
    }

    /// Returns how many bytes of the current value are still to come, so that a caller can size its buffer.
    pub fn value_bytes_due(&self) -> u64 {
        match self.part {
            Some(ReplyPart::Body { bytes, .. }) => bytes,
            _ => 0,
        }
    }

    /// Returns whether no call is in progress, including calls that were cancelled.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of calls in progress, including cancelled ones whose replies are still to come.
    pub fn pending(&self) -> usize {
        self.entries.len()
    }

    /// Returns the phase of a call.
    pub fn phase(&self, id: CallId) -> Option<Phase> {
        let index = self.entries.iter().position(|entry| entry.id == id && !entry.mute)?;
        let receives =
            index == 0 && matches!(self.part, Some(ReplyPart::Body { .. } | ReplyPart::Length { .. }));
        Some(if receives { Phase::Receiving } else { Phase::Waiting })
    }

    /// Returns the next call that was in progress when the connection ended. Call it until it returns `None`.
    pub fn lose(&mut self) -> Option<Loss> {
        loop {
            let entry = self.entries.pop_front()?;
            let (part, head_bytes) = (self.part.take(), core::mem::take(&mut self.head_bytes));
            let receives = matches!(part, Some(ReplyPart::Body { .. } | ReplyPart::Length { .. }));
            if entry.mute || entry.step == Step::Greet {
                continue;
            }
            let value_untouched = head_bytes == 0 || part == Some(ReplyPart::Head);
            let finding = match (entry.step, entry.ready, entry.wait_mode) {
                // Eight bytes are the empty value of a GET: a peer that sends them does not drop connections.
                (Step::WaitGet, ..) if !receives && head_bytes <= 1 => Finding::DropsOnMissing,
                (Step::CheckGet, Some(false), WaitMode::Once) if value_untouched => {
                    Finding::Responded(Outcome::Missing)
                }
                (Step::CheckGet, Some(false), WaitMode::Wait) if value_untouched => Finding::DropsOnMissing,
                _ => Finding::None,
            };
            let begun = head_bytes > 0 && !matches!(part, Some(ReplyPart::Prefix | ReplyPart::Head));
            let replied = entry.replied || begun;
            let phase = if replied { Phase::Receiving } else { Phase::Waiting };
            return Some(Loss { id: entry.id, phase, effect: entry.effect(), finding });
        }
    }

    const fn next_nonce(&mut self) -> u32 {
        self.nonce = self.nonce.wrapping_add(1);
        self.nonce
    }

    fn encode(&mut self, entry: &mut Entry, call: &Call<'_>, out: &mut dyn Sink) -> Result<(), BeginError> {
        entry.prefix = self.stale && entry.step.clears_stale();
        entry.nonce = self.nonce.wrapping_add(1);
        entry.cancelled = entry.step == Step::BarrierOnce;
        let mut length = Length::default();
        encode_step(&mut length, entry.step, call, entry.prefix, entry.nonce);
        let (bytes, bytes_max) = (length.0, self.limits.frame.frame_bytes_max);
        if bytes > out.space() {
            return Err(BeginError::Space(bytes));
        }
        if bytes > bytes_max {
            let (bytes, bytes_max) = (bytes as u64, bytes_max as u64);
            return Err(BeginError::Limit(LimitError::Frame { bytes, bytes_max }));
        }
        encode_step(out, entry.step, call, entry.prefix, entry.nonce);
        self.next_nonce();
        self.stale &= !entry.prefix;
        Ok(())
    }

    /// Handles a complete part, which is in `self.head`.
    fn part_received(&mut self, part: ReplyPart) -> Result<Option<Event<'static>>, Violation> {
        let byte = self.head[0];
        let number = u64::from_le_bytes(*self.head.first_chunk().unwrap_or(&[0; 8]));
        let violation = |due, seen| Err(Violation { due, seen });
        let Some(entry) = self.entries.front_mut() else { return Ok(None) };
        entry.replied |= part != ReplyPart::Prefix;
        match part {
            ReplyPart::Prefix if byte != WAIT_CANCELED => violation(Due::WaitCanceled, u64::from(byte)),
            ReplyPart::Prefix => {
                self.part = Some(entry.step_part());
                Ok(None)
            }
            ReplyPart::Suffix if byte != WAIT_CANCELED => violation(Due::WaitCanceled, u64::from(byte)),
            ReplyPart::Suffix if entry.step == Step::BarrierOnce => self.reply_complete(Reply::Released),
            ReplyPart::Suffix => Ok(self.forget()),
            ReplyPart::Echo => {
                let seen = number & u64::from(u32::MAX);
                if seen == u64::from(entry.nonce) {
                    self.reply_complete(Reply::Echo)
                } else {
                    violation(Due::Echo(entry.nonce), seen)
                }
            }
            ReplyPart::Number => self.reply_complete(Reply::Number(number.cast_signed())),
            ReplyPart::Flag => {
                let reply = match byte {
                    READY => Reply::Ready,
                    NOT_READY => Reply::NotReady,
                    _ => return violation(Due::CheckAnswer, u64::from(byte)),
                };
                if entry.step != Step::CheckGet {
                    return self.reply_complete(reply);
                }
                entry.ready = Some(byte == READY);
                self.part = Some(ReplyPart::Length { left: 0, of: 1 });
                Ok(None)
            }
            ReplyPart::Stop => match (byte, entry.cancelled, entry.operation) {
                (WAIT_CANCELED, false, Operation::CancelWait) => self.reply_complete(Reply::Canceled),
                (_, _, Operation::CancelWait) => violation(Due::WaitCanceled, u64::from(byte)),
                (STOP_WAITING, true, _) => {
                    self.part = Some(ReplyPart::Suffix);
                    Ok(None)
                }
                (STOP_WAITING, false, _) => self.reply_complete(Reply::Released),
                (WAIT_CANCELED, true, _) if entry.mute => Ok(self.forget()),
                (WAIT_CANCELED, true, _) => self.reply_complete(Reply::Canceled),
                _ => violation(Due::StopWaiting, u64::from(byte)),
            },
            ReplyPart::Head => self.head_received(),
            ReplyPart::Length { left, of } => self.length_received(number, left, of),
            ReplyPart::Body { left: 0, of, .. } => {
                if entry.cancelled {
                    self.part = Some(ReplyPart::Suffix);
                    return Ok(None);
                }
                let reply = match (entry.operation, self.reply_bytes, entry.ready) {
                    (Operation::MultiGet | Operation::ListKeys, ..) => Reply::Values(of),
                    (_, 0, Some(true)) => Reply::ReadyEmpty,
                    (_, 0, _) => Reply::Empty,
                    _ => Reply::Value,
                };
                self.reply_complete(reply)
            }
            ReplyPart::Body { left, of, .. } => {
                self.part = Some(ReplyPart::Length { left: left - 1, of });
                Ok(None)
            }
            ReplyPart::Count => {
                let count_max = self.limits.reply_bytes_max / 8;
                if number > count_max {
                    return violation(Due::Count(count_max), number);
                }
                let (id, mute) = (entry.id, entry.mute);
                if number == 0 {
                    return self.reply_complete(Reply::Values(0));
                }
                self.part = Some(ReplyPart::Length { left: number - 1, of: number });
                Ok((!mute).then_some(Event::Count { id, count: number }))
            }
            ReplyPart::Queued if number.cast_signed() < 0 => violation(Due::Count(i64::MAX as u64), number),
            ReplyPart::Queued if number == 0 => self.reply_complete(Reply::NothingQueued),
            ReplyPart::Queued => {
                self.part = Some(ReplyPart::Length { left: 0, of: 1 });
                Ok(None)
            }
        }
    }

    /// First nine bytes of the replies to WAIT and GET.
    fn head_received(&mut self) -> Result<Option<Event<'static>>, Violation> {
        let first = self.head[0];
        let length = u64::from_le_bytes(*self.head.last_chunk().unwrap_or(&[0; 8]));
        let Some(entry) = self.entries.front() else { return Ok(None) };
        if first != STOP_WAITING {
            return Err(Violation { due: Due::StopWaiting, seen: u64::from(first) });
        }
        match (length, entry.cancelled) {
            // Eight zeros are the empty value of a GET that was served too early; the end of the cancelled wait
            // follows.
            (CANCELED_IN_HEAD, true) => Ok(self.forget()),
            (0, true) => {
                self.part = Some(ReplyPart::Suffix);
                Ok(None)
            }
            (0, false) => {
                self.stale = true;
                self.reply_complete(Reply::Empty)
            }
            (length, _) => self.length_received(length, 0, 1),
        }
    }

    fn length_received(
        &mut self,
        length: u64,
        left: u64,
        of: u64,
    ) -> Result<Option<Event<'static>>, Violation> {
        let Some(entry) = self.entries.front() else { return Ok(None) };
        let bytes_max = self.limits.reply_bytes_max.saturating_sub(self.reply_bytes);
        if length > bytes_max {
            return Err(Violation { due: Due::Length(bytes_max), seen: length });
        }
        self.reply_bytes += length;
        let silent = entry.mute || (length == 0 && entry.hides_empty_value());
        let event = Event::ValueStart { id: entry.id, bytes: length };
        self.part = Some(ReplyPart::Body { bytes: length, left, of });
        Ok((!silent).then_some(event))
    }

    /// Advances the front entry, all replies of whose step are complete.
    fn reply_complete(&mut self, reply: Reply) -> Result<Option<Event<'static>>, Violation> {
        self.part = None;
        self.reply_bytes = 0;
        let Some(entry) = self.entries.front_mut() else { return Ok(None) };
        let id = entry.id;
        if entry.step == Step::Greet {
            self.entries.pop_front();
            return Ok(Some(Event::Greeted));
        }
        self.stale |= entry.step == Step::Wait && reply == Reply::Released;
        if entry.mute {
            return Ok(self.forget());
        }
        let mut next = after(entry.operation, entry.wait_mode, entry.mode, entry.step, reply);
        if next == Some(After::Next(Step::MultiGet)) && entry.keys_count == 0 {
            next = Some(After::Done(Outcome::Values(0)));
        }
        if reply == Reply::NothingQueued {
            entry.failed_pops += 1;
            if entry.failed_pops >= FAILED_POPS_MAX {
                next = Some(After::Done(Outcome::NoItem));
            }
        }
        match next {
            Some(After::Done(outcome)) => {
                self.entries.pop_front();
                Ok(Some(Event::Done { id, outcome }))
            }
            Some(After::Next(step)) => {
                entry.step = step;
                entry.parked = true;
                entry.ready = None;
                Ok(Some(Event::Proceed { id }))
            }
            // `first_part` parses no reply that the step table lacks; a test checks all of them.
            None => Err(Violation { due: Due::Silence, seen: u64::from(self.head[0]) }),
        }
    }

    /// Removes a mute entry from the table.
    fn forget(&mut self) -> Option<Event<'static>> {
        self.part = None;
        self.reply_bytes = 0;
        self.entries.pop_front();
        None
    }
}

/// Value of the last eight bytes of the head when they are seven zeros and the reply to CANCEL_WAIT.
const CANCELED_IN_HEAD: u64 = (WAIT_CANCELED as u64) << 56;

impl Entry {
    fn new(id: CallId, call: &Call<'_>, mode: GetMode, step: Step) -> Self {
        Self {
            id,
            operation: call.operation(),
            wait_mode: call.wait_mode(),
            mode,
            step,
            exclusive: call.is_exclusive(mode),
            nonce: 0,
            keys_count: call.keys().1 as u64,
            prefix: false,
            cancelled: false,
            mute: false,
            parked: false,
            replied: false,
            ready: None,
            failed_pops: 0,
        }
    }

    const fn first_part(&self) -> ReplyPart {
        if self.prefix { ReplyPart::Prefix } else { self.step_part() }
    }

    const fn step_part(&self) -> ReplyPart {
        match (self.step, self.operation) {
            (Step::Greet | Step::Ping | Step::Confirm, _) => ReplyPart::Echo,
            (Step::WaitGet, _) => ReplyPart::Head,
            (Step::CheckGet | Step::Check, _) => ReplyPart::Flag,
            (Step::Wait | Step::Barrier | Step::BarrierOnce, _) | (Step::Plain, Operation::CancelWait) => {
                ReplyPart::Stop
            }
            (Step::Get, _) | (Step::Plain, Operation::CompareSet) => ReplyPart::Length { left: 0, of: 1 },
            (Step::MultiGet, _) => {
                ReplyPart::Length { left: self.keys_count.saturating_sub(1), of: self.keys_count }
            }
            (Step::Pop, _) => ReplyPart::Queued,
            (Step::Plain, Operation::ListKeys) => ReplyPart::Count,
            (Step::Plain, _) => ReplyPart::Number,
        }
    }

    /// Returns whether the current step may have changed the store.
    const fn effect(&self) -> Effect {
        match self.step {
            Step::Plain if self.operation.reads_only() => Effect::None,
            Step::Plain | Step::Confirm | Step::Pop | Step::Barrier | Step::BarrierOnce => Effect::Possible,
            _ => Effect::None,
        }
    }

    /// Returns whether an empty value must not be reported yet, because the key may turn out to be missing.
    const fn hides_empty_value(&self) -> bool {
        matches!(self.step, Step::Get) || matches!((self.step, self.ready), (Step::CheckGet, Some(false)))
    }
}

#[cfg(test)]
mod tests;
