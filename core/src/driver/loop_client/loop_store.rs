//! One store of a loop: its state machine, its sockets and its look-ups.

use super::member::{Member, MemberEvents, MemberId, MemberStore};
use super::{CallOver, LoopEvent, SubmitResult, names_of};
use crate::driver::ack_watch::AckWatch;
use crate::driver::connection::Connection;
use crate::driver::event_loop::Ready;
use crate::driver::prelude::*;
use crate::driver::resolve::{Found, HostLookup};
use crate::driver::socket::{classify, endpoint_text};
use crate::driver::store_client::StoreOptions;
use crate::driver::take::strip_scope;
use crate::error::{Cause, Failure, Operation, Phase};
use crate::ids::ConnId;
use crate::node::multi_client::{Answer, FailedCall, Input, MultiClient, MultiClientOptions, Output};
use crate::sorted::SortedMap;
use crate::store::call::{Call, CallId};
use crate::store::clue::{CLUE_TIMEOUT, Clue};

/// Maximum number of reads of one socket in one iteration, so that the other sockets are read, too.
const READS_MAX: usize = 8;

/// One store of a loop.
#[derive(Debug)]
pub(super) struct LoopStore {
    id: MemberId,
    pub(super) peer: Box<str>,
    options: StoreOptions,
    client: MultiClient,
    /// By the generation of the connection's id.
    connections: SortedMap<u32, (ConnId, Connection)>,
    /// For all connections together.
    ack_watch: AckWatch,
    lookup: HostLookup,
    /// Connections whose bytes are sent in the next iteration.
    unflushed: Vec<ConnId>,
    /// Failed calls, each with the number of the call that reads why.
    unexplained: Vec<(CallId, (CallId, Operation, FailedCall))>,
}

impl LoopStore {
    pub(super) fn new(id: MemberId, (host, port): (&str, u16), options: StoreOptions, seed: u64) -> Self {
        let (connect_timeout, rounds) = options.connect_budget();
        let machine =
            MultiClientOptions { connect_timeout, rounds, dial: options.dial, limits: options.limits };
        let mut client = MultiClient::new(machine, seed);
        // Calls of different stores have different numbers, because only its number identifies a call in the loop's events.
        client.number_calls_from(id.call(1).0);
        Self {
            id,
            peer: endpoint_text(host, port).into(),
            options,
            client,
            connections: SortedMap::new(),
            ack_watch: AckWatch::default(),
            lookup: HostLookup::new(host, port),
            unflushed: Vec::new(),
            unexplained: Vec::new(),
        }
    }

    /// Executes the outputs of the machine and queues the events.
    fn execute(&mut self, events: &mut MemberEvents<'_>) {
        let event_loop = events.event_loop;
        while let Some(output) = self.client.poll_output() {
            let now = events.now();
            match output {
                Output::Resolve => {
                    if let Some(found) = self.lookup.begin(event_loop.waker()) {
                        self.looked_up(now, &found);
                    }
                }
                Output::Connect(conn, address) => {
                    self.close(conn);
                    let token = self.id.token(conn.generation);
                    match Connection::start(address, self.options.keep_alive.as_ref(), event_loop, token) {
                        Ok(connection) => drop(self.connections.insert(conn.generation, (conn, connection))),
                        Err(error) => self.connect_failed(now, conn, &error),
                    }
                }
                // On an idle connection a request is sent at once. Behind others it waits for the next iteration, and
                // is sent together with those that the program submits until then.
                Output::Transmit(conn) if self.client.pending_on(conn) > 1 => {
                    self.unflushed.push(conn);
                    event_loop.waker().wake();
                }
                Output::Transmit(conn) => self.flush(now, conn),
                Output::Disconnect(conn) => self.close(conn),
                Output::Completed(call, operation, result) => {
                    let Some((call, operation, result)) = self.explained(now, call, operation, result) else {
                        continue;
                    };
                    let (keys, result) = match result {
                        Ok(mut answer) => {
                            if operation == Operation::ListKeys {
                                strip_scope(&mut answer.values, &self.options.scope);
                            }
                            (Vec::new(), Ok(answer))
                        }
                        Err(failed) => {
                            let error = CallError::of_call(&failed.call(), &self.peer, failed.failure)
                                .without_scope(&self.options.scope);
                            (names_of(&failed.call(), &self.options.scope), Err(error))
                        }
                    };
                    let over = CallOver { store: self.id, call, operation, keys, result };
                    events.queue.push_back(LoopEvent::Store(over));
                }
            }
        }
        for (_, (conn, connection)) in self.connections.iter_mut() {
            connection.update_interest(!self.client.unsent(*conn).is_empty());
        }
    }

    /// Returns a completed call, unless its failure may be explained by a value of the store, which is then read first.
    fn explained(
        &mut self,
        now: Instant,
        call: CallId,
        operation: Operation,
        result: Result<Answer, FailedCall>,
    ) -> Option<(CallId, Operation, Result<Answer, FailedCall>)> {
        if let Some(at) = self.unexplained.iter().position(|(reading, _)| *reading == call) {
            let (_, (call, operation, mut failed)) = self.unexplained.swap_remove(at);
            if let (Some(clue), Some(value)) = (
                Clue::of(&failed.call(), &failed.failure),
                result.ok().and_then(|mut answer| answer.values.pop()),
            ) {
                failed.failure = clue.explain(failed.failure, &value);
            }
            return Some((call, operation, Err(failed)));
        }
        if let Err(failed) = &result
            && let Some(clue) = Clue::of(&failed.call(), &failed.failure)
            && let Ok(reading) = self.client.submit(now, &clue.call(), CLUE_TIMEOUT)
        {
            self.unexplained.extend(result.err().map(|failed| (reading, (call, operation, failed))));
            return None;
        }
        Some((call, operation, result))
    }

    fn looked_up(&mut self, now: Instant, found: &Found) {
        let classified = found.as_deref().map_err(|error| error.classify());
        let input = classified.map_or_else(|(kind, cause)| Input::Unresolved(kind, cause), Input::Resolved);
        self.client.handle(now, input);
    }

    fn connect_failed(&mut self, now: Instant, conn: ConnId, error: &io::Error) {
        self.close(conn);
        let (kind, cause) = classify(error);
        self.client.handle(now, Input::ConnectFailed(conn, kind, cause));
    }

    fn read(&mut self, now: Instant, conn: ConnId, buffer: &mut [u8]) {
        for _ in 0..READS_MAX {
            let Some((_, connection)) = self.connections.get(&conn.generation) else { return };
            match connection.receive(buffer) {
                Ok(0) => return,
                Ok(count) => {
                    self.client.handle(now, Input::Received(conn, &buffer[..count]));
                    if count < buffer.len() {
                        return;
                    }
                }
                Err(cause) => return self.ended(now, conn, cause),
            }
        }
    }

    /// Sends until nothing is left, or the socket is full.
    fn flush(&mut self, now: Instant, conn: ConnId) {
        loop {
            let bytes = self.client.unsent(conn);
            let Some((_, connection)) = self.connections.get(&conn.generation) else { return };
            if bytes.is_empty() || !connection.is_connected() {
                return;
            }
            match connection.send(bytes) {
                Ok(0) => return,
                Ok(count) => {
                    self.ack_watch.sent(now);
                    self.client.handle(now, Input::Sent(conn, count));
                }
                Err(cause) => return self.ended(now, conn, cause),
            }
        }
    }

    /// Looks whether the server's host still acknowledges what is sent.
    fn watch_acks(&mut self, now: Instant) {
        let looks = self.connections.values().map(|(conn, connection)| (*conn, connection.has_in_flight()));
        for (conn, in_flight) in looks.collect::<Vec<_>>() {
            match in_flight {
                Ok(true) => self.ack_watch.sent(now),
                Ok(false) => {}
                Err(cause) => self.ended(now, conn, cause),
            }
        }
    }

    fn ended(&mut self, now: Instant, conn: ConnId, cause: Cause) {
        self.close(conn);
        self.client.handle(now, Input::Ended(conn, cause));
    }

    fn close(&mut self, conn: ConnId) {
        self.connections.remove(&conn.generation);
    }
}

impl Member for LoopStore {
    /// Sends the requests that were submitted since the last iteration.
    fn wake(&mut self, now: Instant, events: &mut MemberEvents<'_>) {
        while let Some(conn) = self.unflushed.pop() {
            self.flush(now, conn);
        }
        self.execute(events);
    }

    fn ready(&mut self, now: Instant, ready: Ready, events: &mut MemberEvents<'_>) -> io::Result<()> {
        let generation = (ready.token.0 << 32 >> 32) as u32;
        let Some((conn, connection)) = self.connections.get_mut(&generation) else { return Ok(()) };
        let conn = *conn;
        if connection.is_connected() {
            if ready.writable {
                self.flush(now, conn);
            }
            if ready.readable {
                self.read(now, conn, events.buffer);
            }
        } else {
            match connection.finish() {
                Ok(()) => self.client.handle(now, Input::Connected(conn)),
                Err(error) => self.connect_failed(now, conn, &error),
            }
        }
        self.execute(events);
        Ok(())
    }

    fn poll(&mut self, now: Instant, events: &mut MemberEvents<'_>) {
        let found = self.lookup.take();
        if let Some(found) = &found {
            self.looked_up(now, found);
        }
        let is_look_due = self.ack_watch.take_due(now);
        if is_look_due {
            self.watch_acks(now);
        }
        let is_due = self.client.poll_timeout().is_some_and(|due| due <= now);
        if is_due {
            self.client.handle(now, Input::Tick);
        }
        if is_due || is_look_due || found.is_some() {
            self.execute(events);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.client.poll_timeout(), self.ack_watch.poll_timeout()].into_iter().flatten().min()
    }

    fn store(&self) -> Option<MemberStore<'_>> {
        let Self { options, client, .. } = self;
        let (scope, timeouts, pending) = (&*options.scope, options.timeouts(), client.pending());
        Some(MemberStore { scope, timeouts, pending })
    }

    fn submit(&mut self, call: &Call<'_>, span: Duration, events: &mut MemberEvents<'_>) -> SubmitResult {
        let submitted = self.client.submit(events.now(), call, span);
        let error = |limit| CallError::of_call(call, &self.peer, Failure::limit(Phase::Sending, limit));
        let id = submitted.map_err(error)?;
        self.execute(events);
        Ok(id)
    }

    fn cancel(&mut self, call: CallId, events: &mut MemberEvents<'_>) {
        self.client.cancel(events.now(), call);
        self.execute(events);
    }
}

#[cfg(test)]
mod tests {
    use super::LoopStore;
    use crate::driver::loop_client::{Loop, LoopEvent, MemberId};
    use crate::driver::server::{Server, ServerOptions};
    use crate::driver::store::Timeout;
    use crate::driver::store_client::StoreOptions;
    use crate::driver::testing::becomes_readable;
    use crate::store::op::{Key, Request};
    use crate::time::Duration;
    use std::net::TcpListener;

    const SOON: Duration = Duration::from_secs(20);

    /// Submits gets, each of which needs a connection of its own.
    fn submit_gets(events: &mut Loop, store: MemberId, count: usize) {
        for _ in 0..count {
            let get = Request::Get { key: Key::raw(b"/k") };
            events.submit(store, get, Timeout::After(SOON)).expect("submitted");
        }
    }

    fn turn_until(events: &mut Loop, mut done: impl FnMut(&mut Loop) -> bool) {
        while !done(events) {
            assert!(becomes_readable(events.fd(), SOON), "no further event");
            events.poll().expect("polled");
        }
    }

    #[test]
    fn connections_that_are_made_together_share_one_look_up() {
        let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
        let mut events = Loop::new().expect("a loop");
        let store = events.add_store("localhost", server.local_addr().port(), StoreOptions::default());
        submit_gets(&mut events, store, 3);
        let member = events.members.get_as::<LoopStore>(store).expect("it is there");
        assert_eq!((member.client.connections(), member.connections.len()), (3, 0));
        while !events.members.get_as::<LoopStore>(store).is_some_and(|store| store.lookup.has_ended()) {
            assert!(becomes_readable(events.fd(), SOON), "localhost");
            assert_eq!(events.events.poll().expect("polled").count(), 0, "no socket yet");
        }
        events.poll().expect("polled");
        let member = events.members.get_as::<LoopStore>(store).expect("it is there");
        assert_eq!(member.connections.len(), 3, "each has its own socket");
        let set = Request::Set { key: Key::raw(b"/k"), value: b"v" };
        events.submit(store, set, Timeout::After(SOON)).expect("submitted");
        turn_until(&mut events, |events| events.pending(store) == 0);
        assert!(
            events
                .event_queue
                .iter()
                .all(|event| matches!(event, LoopEvent::Store(over) if over.result.is_ok()))
        );
    }

    #[test]
    fn nothing_is_left_of_connections_that_were_not_made() {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut events = Loop::new().expect("a loop");
        let options = StoreOptions { connect_timeout: Duration::from_millis(50), ..StoreOptions::default() };
        let store = events.add_store("127.0.0.1", port, options);
        for _ in 0..3 {
            submit_gets(&mut events, store, 3);
            turn_until(&mut events, |events| events.pending(store) == 0);
        }
        assert_eq!(events.event_queue.len(), 9);
        let member = events.members.get_as::<LoopStore>(store).expect("it is there");
        assert_eq!((member.connections.len(), member.client.connections()), (0, 0));
    }
}
