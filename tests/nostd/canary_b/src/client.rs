//! The client that has many calls under way, without I/O.

use core::time::Duration;
use rendezvous_core::node::multi_client::{MultiClient, MultiClientOptions, Output};
use rendezvous_core::store::call::{Call, WaitMode};
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::time::Instant;

pub(crate) fn sings() -> bool {
    let mut client = MultiClient::new(MultiClientOptions::default(), 1);
    let call = Call::Store(Request::Get { key: Key::scoped(b"/", b"k") }, WaitMode::Wait);
    let submitted = client.submit(Instant::ORIGIN, &call, Duration::from_secs(1));
    let resolves = matches!(client.poll_output(), Some(Output::Resolve));
    submitted.is_ok() && resolves && client.pending() == 1 && client.poll_timeout().is_some()
}
