//! Channels with little machine code, for messages of any type.
//!
//! Crossbeam's channels take about eight kilobytes of code for each type of message. So there is one, whose messages are
//! boxed. None of them is on the way of a request to a server. See docs/adr/0012-size-of-maps.md.

use crate::driver::clock::from_now;
use crate::time::Duration;
use alloc::boxed::Box;
use core::any::Any;
use core::fmt;
use core::marker::PhantomData;
use crossbeam_channel::{RecvTimeoutError, TryRecvError, TrySendError, select};

type Message = Box<dyn Any + Send>;

/// Error of a channel: it is full or empty, the timeout passed, or its other side is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelError {
    /// The channel is full or empty, also at the end of the timeout.
    Unready,
    /// The other side is gone.
    Closed,
}

/// Sending side of a channel.
pub struct Sender<T> {
    messages: crossbeam_channel::Sender<Message>,
    kind: PhantomData<fn(T)>,
}

/// Receiving side of a channel.
pub struct Receiver<T> {
    messages: crossbeam_channel::Receiver<Message>,
    kind: PhantomData<fn() -> T>,
}

/// Makes a channel without a bound.
#[must_use]
pub fn unbounded<T: Send + 'static>() -> (Sender<T>, Receiver<T>) {
    sides(crossbeam_channel::unbounded())
}

/// Makes a channel for at most `capacity` messages.
#[must_use]
pub fn bounded<T: Send + 'static>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    sides(crossbeam_channel::bounded(capacity))
}

type Sides = (crossbeam_channel::Sender<Message>, crossbeam_channel::Receiver<Message>);

fn sides<T>((sender, receiver): Sides) -> (Sender<T>, Receiver<T>) {
    (Sender { messages: sender, kind: PhantomData }, Receiver { messages: receiver, kind: PhantomData })
}

impl<T: Send + 'static> Sender<T> {
    /// Sends `message`; waits while the channel is full.
    ///
    /// # Errors
    /// `Closed`.
    pub fn send(&self, message: T) -> Result<(), ChannelError> {
        self.messages.send(Box::new(message)).map_err(|_| ChannelError::Closed)
    }

    /// Sends `message` unless the channel is full.
    ///
    /// # Errors
    /// The reason why it was not sent.
    pub fn try_send(&self, message: T) -> Result<(), ChannelError> {
        self.messages.try_send(Box::new(message)).map_err(|error| match error {
            TrySendError::Full(_) => ChannelError::Unready,
            TrySendError::Disconnected(_) => ChannelError::Closed,
        })
    }
}

impl<T: 'static> Receiver<T> {
    /// Returns the next message, and waits for it.
    ///
    /// # Errors
    /// `Closed`.
    pub fn recv(&self) -> Result<T, ChannelError> {
        self.messages.recv().map(unboxed).map_err(|_| ChannelError::Closed)
    }

    /// Returns the next message, if there is one.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn try_recv(&self) -> Result<T, ChannelError> {
        self.messages.try_recv().map(unboxed).map_err(|error| match error {
            TryRecvError::Empty => ChannelError::Unready,
            TryRecvError::Disconnected => ChannelError::Closed,
        })
    }

    /// Returns the next message, and waits for it until `deadline`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn recv_deadline(&self, deadline: std::time::Instant) -> Result<T, ChannelError> {
        self.messages.recv_deadline(deadline).map(unboxed).map_err(|error| match error {
            RecvTimeoutError::Timeout => ChannelError::Unready,
            RecvTimeoutError::Disconnected => ChannelError::Closed,
        })
    }

    /// Returns the next message, and waits for it for at most `timeout`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, ChannelError> {
        self.recv_deadline(from_now(timeout))
    }

    /// Returns the next message, or `None` after `timeout`, when `waker` gets a message, or when a channel is closed.
    #[must_use]
    pub fn recv_unless(&self, waker: &Receiver<()>, timeout: Duration) -> Option<T> {
        first(&self.messages, &waker.messages, timeout).map(unboxed)
    }

    /// Returns the number of messages in the channel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether the channel has no message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

fn unboxed<T: 'static>(message: Message) -> T {
    // invariant: the senders of this channel send this type only
    *message.downcast().expect("a message of the channel's type")
}

fn first(
    messages: &crossbeam_channel::Receiver<Message>,
    waker: &crossbeam_channel::Receiver<Message>,
    timeout: Duration,
) -> Option<Message> {
    select! {
        recv(messages) -> message => message.ok(),
        recv(waker) -> _ => None,
        default(timeout) => None,
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), kind: PhantomData }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), kind: PhantomData }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn messages_arrive_in_order_until_the_sender_is_gone() {
        let (sender, receiver) = unbounded();
        assert_eq!(receiver.try_recv(), Err(ChannelError::Unready));
        for number in 0..3_u64 {
            sender.clone().send(number).expect("received");
        }
        drop(sender);
        assert_eq!(receiver.len(), 3);
        assert_eq!(
            (receiver.recv(), receiver.recv_timeout(SOON), receiver.try_recv()),
            (Ok(0), Ok(1), Ok(2))
        );
        assert_eq!(receiver.try_recv(), Err(ChannelError::Closed));
        assert_eq!(receiver.recv_timeout(SOON), Err(ChannelError::Closed));
        assert_eq!(receiver.recv(), Err(ChannelError::Closed));
    }

    #[test]
    fn full_channel_refuses_and_closed_one_too() {
        let (sender, receiver) = bounded(1);
        assert_eq!((sender.try_send("a"), sender.try_send("b")), (Ok(()), Err(ChannelError::Unready)));
        drop(receiver);
        assert_eq!(
            (sender.try_send("c"), sender.send("d")),
            (Err(ChannelError::Closed), Err(ChannelError::Closed))
        );
    }

    #[test]
    fn waker_ends_a_wait() {
        let ((sender, receiver), (waker, woken)) = (unbounded(), bounded(1));
        sender.send(7_u32).expect("received");
        assert_eq!(receiver.recv_unless(&woken, SOON), Some(7));
        assert_eq!(receiver.recv_unless(&woken, Duration::ZERO), None);
        waker.send(()).expect("received");
        assert_eq!(receiver.recv_unless(&woken, SOON), None);
    }
}
