//! Queue between the thread of a session and the threads that wait for its pushes.

use super::{FOREVER, check, join, spawn};
use crate::inbox::{Inbox, InboxLimit, Last, Queue, Weighted};
use crate::stand_ins::channel::bounded;
use rendezvous_core::node::native_client::Ending;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, Ordering};

impl Weighted for u32 {
    fn bytes(&self) -> usize {
        4
    }
}

fn inbox(items: usize) -> Arc<Inbox<u32>> {
    Arc::new(Inbox::new(InboxLimit { items, bytes: usize::MAX }))
}

fn next(inbox: &Inbox<u32>) -> Result<Option<u32>, Last> {
    inbox.next_with(FOREVER, || false, Queue::pop_front)
}

#[test]
fn each_item_goes_to_one_of_the_waiting_threads() {
    check(|| {
        let inbox = inbox(10);
        let waiting = [(); 3].map(|()| {
            let inbox = Arc::clone(&inbox);
            spawn(move || next(&inbox))
        });
        let adding = [1, 2, 3].map(|item| {
            let inbox = Arc::clone(&inbox);
            spawn(move || assert!(inbox.put(item)))
        });
        join(adding);
        let mut got = join(waiting);
        got.sort_by_key(|item| item.ok());
        assert_eq!(got, [Ok(Some(1)), Ok(Some(2)), Ok(Some(3))]);
    });
}

#[test]
fn the_end_comes_after_the_items_and_to_all() {
    check(|| {
        let inbox = inbox(10);
        let waiting = [(); 2].map(|()| {
            let inbox = Arc::clone(&inbox);
            spawn(move || [next(&inbox), next(&inbox)])
        });
        inbox.put(7);
        inbox.end(Ending::Left);
        let over = Err(Last::Over(Ending::Left));
        let mut got = join(waiting);
        got.sort_by_key(|[first, _]| first.is_err());
        assert_eq!(got, [[Ok(Some(7)), over], [over, over]]);
    });
}

#[test]
fn no_wait_misses_its_cancellation_and_the_others_go_on() {
    check(|| {
        let (inbox, is_cancelled) = (inbox(10), Arc::new(AtomicBool::new(false)));
        let cancelled = {
            let (inbox, is_cancelled) = (Arc::clone(&inbox), Arc::clone(&is_cancelled));
            spawn(move || inbox.next_with(FOREVER, || is_cancelled.load(Ordering::SeqCst), Queue::pop_front))
        };
        let other = {
            let inbox = Arc::clone(&inbox);
            spawn(move || next(&inbox))
        };
        is_cancelled.store(true, Ordering::SeqCst);
        inbox.recheck_cancellation();
        assert_eq!(join([cancelled]), [Err(Last::Interrupted)]);
        inbox.put(7);
        assert_eq!(join([other]), [Ok(Some(7))]);
    });
}

#[test]
fn a_full_inbox_ends_and_nothing_is_lost_before_that() {
    check(|| {
        let inbox = inbox(1);
        let adding = [1, 2].map(|item| {
            let inbox = Arc::clone(&inbox);
            spawn(move || inbox.put(item))
        });
        let first = next(&inbox).expect("an item").expect("an item");
        let added = join(adding);
        let rest = next_now(&inbox);
        let all_fit = added == [true, true];
        assert_eq!(rest, if all_fit { Ok(3 - first) } else { Err(Last::Overrun) }, "{added:?}");
    });
}

fn next_now(inbox: &Inbox<u32>) -> Result<u32, Last> {
    next(inbox).map(|item| item.expect("an item"))
}

#[test]
fn the_channel_gets_a_message_whatever_comes_first() {
    check(|| {
        let (inbox, (sender, receiver)) = (inbox(10), bounded(1));
        let adding = {
            let inbox = Arc::clone(&inbox);
            spawn(move || inbox.put(7))
        };
        inbox.wake(sender);
        loop {
            receiver.recv().expect("a message");
            let taken = inbox.next_with(std::time::Duration::ZERO, || false, Queue::pop_front);
            if let Ok(Some(item)) = taken {
                assert_eq!(item, 7);
                break;
            }
        }
        join([adding]);
    });
}
