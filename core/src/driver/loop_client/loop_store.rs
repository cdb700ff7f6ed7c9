//! One store of a loop: its state machine, its sockets and its look-ups.

use super::{CALLS_PER_MEMBER_BITS, CallOver, LoopEvent, StoreId, names_of};
use crate::driver::call_error::CallError;
use crate::driver::event_loop::{EventLoop, Interest, Ready, Token, Watch};
use crate::driver::resolve::{Found, ResolveError, literal, look_up};
use crate::driver::socket::{classify, finish_connect, open_socket, start_connect};
use crate::driver::sorted_map::SortedMap;
use crate::driver::store_client::StoreOptions;
use crate::driver::take::strip_scope;
use crate::error::{Cause, Operation};
use crate::ids::ConnId;
use crate::node::multi_client::{Input, MultiClient, MultiClientOptions, Output};
use crate::store::dial::Family;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;
use socket2::Socket;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of reads of one socket in one iteration, so that the other sockets are read, too.
const READS_MAX: usize = 8;

/// Result of a look-up, and the store that requested it.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) store: StoreId,
    found: Found,
}

/// Results of look-ups that the loop has not processed yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Lookups(Arc<Mutex<Vec<Lookup>>>);

impl Lookups {
    fn lock(&self) -> MutexGuard<'_, Vec<Lookup>> {
        // No code that holds the lock panics in the middle of a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, lookup: Lookup) {
        self.lock().push(lookup);
    }

    pub(super) fn take(&self) -> Vec<Lookup> {
        core::mem::take(&mut *self.lock())
    }
}

/// Socket of one connection.
#[derive(Debug)]
struct Connection {
    /// Declared before the socket, so that it is dropped first.
    watch: Watch,
    socket: Socket,
    state: ConnectionState,
    address: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Connecting,
    Open,
}

/// One store of a loop.
#[derive(Debug)]
pub(super) struct LoopStore {
    id: StoreId,
    host: Box<str>,
    port: u16,
    pub(super) peer: Box<str>,
    pub(super) options: StoreOptions,
    pub(super) client: MultiClient,
    connections: SortedMap<ConnId, Connection>,
    conns: SortedMap<Token, ConnId>,
    tokens: u32,
    /// Resolved addresses of connections that are being made.
    addresses: SortedMap<ConnId, Vec<SocketAddr>>,
    /// Address of an earlier connection. Further ones need no look-up.
    known: Option<SocketAddr>,
    lookups: Lookups,
    /// Connections that wait for the look-up. One look-up is in progress whenever there are any, and all share it.
    resolving: Vec<ConnId>,
    /// Connections whose bytes are sent in the next iteration.
    unflushed: Vec<ConnId>,
}

impl LoopStore {
    pub(super) fn new(
        id: StoreId,
        host: &str,
        port: u16,
        peer: &str,
        options: StoreOptions,
        seed: u64,
        lookups: Lookups,
    ) -> Self {
        let (connect_timeout, rounds) = options.connect_budget();
        let machine =
            MultiClientOptions { connect_timeout, rounds, dial: options.dial, limits: options.limits };
        let mut client = MultiClient::new(machine, seed);
        // Calls of different stores have different numbers, because only its number identifies a call in the loop's events.
        client.number_calls_from((u64::from(id.as_u32()) << CALLS_PER_MEMBER_BITS) + 1);
        Self {
            id,
            host: host.into(),
            port,
            peer: peer.into(),
            options,
            client,
            connections: SortedMap::default(),
            conns: SortedMap::default(),
            tokens: 0,
            addresses: SortedMap::default(),
            known: None,
            lookups,
            resolving: Vec::new(),
            unflushed: Vec::new(),
        }
    }

    /// Returns the store that watches under this token.
    pub(super) const fn of_token(token: Token) -> StoreId {
        StoreId((token.0 >> 32) as u32)
    }

    fn new_token(&mut self) -> Token {
        self.tokens = self.tokens.wrapping_add(1);
        Token((u64::from(self.id.0) << 32) | u64::from(self.tokens))
    }

    /// Executes the outputs of the machine and queues the events.
    pub(super) fn execute(&mut self, events: &mut EventLoop, event_queue: &mut VecDeque<LoopEvent>) {
        while let Some(output) = self.client.poll_output() {
            let now = events.clock().now();
            match output {
                Output::Resolve(conn) => self.resolve(now, conn, events),
                Output::Connect(conn, index) => {
                    if let Err(error) = self.connect(conn, index, events) {
                        self.known = None;
                        let (kind, cause) = classify(&error);
                        self.client.handle(now, Input::ConnectFailed(conn, kind, cause));
                    }
                }
                // On an idle connection a request is sent at once. Behind others it waits for the next iteration, and
                // is sent together with those that the program submits until then.
                Output::Transmit(conn) if self.client.pending_on(conn) > 1 => {
                    self.unflushed.push(conn);
                    events.waker().wake();
                }
                Output::Transmit(conn) => self.flush(now, conn),
                Output::Disconnect(conn) => self.close(conn),
                Output::Completed(call, operation, result) => {
                    let (keys, result) = match result {
                        Ok(mut answer) => {
                            if operation == Operation::ListKeys {
                                strip_scope(&mut answer.values, &self.options.scope);
                            }
                            (Vec::new(), Ok(answer))
                        }
                        Err(failed) => {
                            let error = CallError::of_call(&failed.call(), &self.peer, failed.failure);
                            (names_of(&failed.call(), &self.options.scope), Err(error))
                        }
                    };
                    let over = CallOver { store: self.id, call, operation, keys, result };
                    event_queue.push_back(LoopEvent::Store(over));
                }
            }
        }
        self.addresses.retain(|conn| self.client.is_dialling(conn));
        self.update_interest();
    }

    fn resolve(&mut self, now: Instant, conn: ConnId, events: &EventLoop) {
        if let Some(address) = literal(&self.host, self.port).or(self.known) {
            return self.resolved(now, conn, Ok(alloc::vec![address]));
        }
        let in_flight = !self.resolving.is_empty();
        self.resolving.retain(|&conn| self.client.is_dialling(conn));
        self.resolving.push(conn);
        if in_flight {
            return;
        }
        let (store, lookups, waker) = (self.id, self.lookups.clone(), events.waker());
        let begun = look_up(&self.host, self.port, move |found| {
            // The loop may have ended by now; then the result is dropped.
            lookups.put(Lookup { store, found });
            waker.wake();
        });
        if let Err(error) = begun {
            self.looked_up(now, &Lookup { store, found: Err(ResolveError::of_thread(&error)) });
        }
    }

    pub(super) fn looked_up(&mut self, now: Instant, lookup: &Lookup) {
        for conn in core::mem::take(&mut self.resolving) {
            self.resolved(now, conn, lookup.found.clone());
        }
    }

    fn resolved(&mut self, now: Instant, conn: ConnId, found: Found) {
        match found {
            Ok(addresses) => {
                let families: Vec<Family> = addresses.iter().map(Family::of).collect();
                self.addresses.insert(conn, addresses);
                self.client.handle(now, Input::Resolved(conn, &families));
            }
            Err(error) => {
                let (kind, cause) = error.classify();
                self.client.handle(now, Input::Unresolved(conn, kind, cause));
            }
        }
    }

    fn connect(&mut self, conn: ConnId, index: u8, events: &EventLoop) -> io::Result<()> {
        self.close(conn);
        let addresses = self.addresses.get(conn);
        let Some(&address) = addresses.and_then(|addresses| addresses.get(usize::from(index))) else {
            return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        };
        let socket = open_socket(address)?;
        // The next iteration learns of the connection in either case.
        start_connect(&socket, address, self.options.keep_alive.as_ref())?;
        let token = self.new_token();
        let watch = events.watch(socket.as_raw_fd(), Interest::Write, token)?;
        self.conns.insert(token, conn);
        self.connections
            .insert(conn, Connection { watch, socket, state: ConnectionState::Connecting, address });
        Ok(())
    }

    /// Sends the requests that were submitted since the last iteration.
    pub(super) fn flush_all(&mut self, now: Instant) {
        while let Some(conn) = self.unflushed.pop() {
            self.flush(now, conn);
        }
    }

    /// Handles a ready socket.
    pub(super) fn ready(&mut self, now: Instant, ready: Ready, buffer: &mut [u8]) {
        let Some(&conn) = self.conns.get(ready.token) else { return };
        let Some(connection) = self.connections.get(conn) else { return };
        match connection.state {
            ConnectionState::Connecting => self.connected(now, conn),
            ConnectionState::Open => {
                if ready.writable {
                    self.flush(now, conn);
                }
                if ready.readable {
                    self.read(now, conn, buffer);
                }
            }
        }
    }

    fn connected(&mut self, now: Instant, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        match finish_connect(&connection.socket) {
            Ok(()) => {
                connection.state = ConnectionState::Open;
                self.known = Some(connection.address);
                self.client.handle(now, Input::Connected(conn));
            }
            Err(error) => {
                self.known = None;
                self.close(conn);
                let (kind, cause) = classify(&error);
                self.client.handle(now, Input::ConnectFailed(conn, kind, cause));
            }
        }
    }

    fn read(&mut self, now: Instant, conn: ConnId, buffer: &mut [u8]) {
        for _ in 0..READS_MAX {
            let Some(connection) = self.connections.get(conn) else { return };
            match (&connection.socket).read(buffer) {
                Ok(0) => return self.ended(now, conn, Cause::Closed),
                Ok(count) => {
                    self.client.handle(now, Input::Received(conn, &buffer[..count]));
                    if count < buffer.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.ended(now, conn, classify(&error).1),
            }
        }
    }

    /// Sends until nothing is left, or the socket is full.
    fn flush(&mut self, now: Instant, conn: ConnId) {
        loop {
            let bytes = self.client.unsent(conn);
            let open =
                |connection: &&Connection| connection.state == ConnectionState::Open && !bytes.is_empty();
            let Some(connection) = self.connections.get(conn).filter(open) else { return };
            match connection.socket.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
                Ok(count) => self.client.handle(now, Input::Sent(conn, count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.ended(now, conn, classify(&error).1),
            }
        }
    }

    fn ended(&mut self, now: Instant, conn: ConnId, cause: Cause) {
        self.close(conn);
        self.client.handle(now, Input::Ended(conn, cause));
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.remove(conn) {
            self.conns.remove(connection.watch.token());
        }
    }

    /// Watches each socket for the conditions that its connection waits for.
    fn update_interest(&mut self) {
        for (conn, connection) in self.connections.iter_mut() {
            let wanted = match connection.state {
                ConnectionState::Connecting => Interest::Write,
                ConnectionState::Open if self.client.unsent(conn).is_empty() => Interest::Read,
                ConnectionState::Open => Interest::Both,
            };
            // A change fails only for lack of memory. The next iteration tries again.
            let _ = connection.watch.change(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::driver::loop_client::{Loop, LoopEvent, StoreId};
    use crate::driver::server::{Server, ServerOptions};
    use crate::driver::store::Timeout;
    use crate::driver::store_client::StoreOptions;
    use crate::driver::testing::becomes_readable;
    use crate::store::op::{Key, Request};
    use crate::time::Duration;
    use std::net::TcpListener;

    const SOON: Duration = Duration::from_secs(20);

    /// Submits gets, each of which needs a connection of its own.
    fn submit_gets(events: &mut Loop, store: StoreId, count: usize) {
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
        assert_eq!(events.stores.get(store).map_or(0, |store| store.resolving.len()), 3);
        let lookup = loop {
            assert!(becomes_readable(events.fd(), SOON), "localhost");
            assert_eq!(events.events.poll().expect("polled").count(), 0, "no socket yet");
            if let Some(lookup) = events.lookups.take().pop() {
                break lookup;
            }
        };
        let now = events.events.clock().now();
        let member = events.stores.get_mut(store).expect("it is there");
        member.looked_up(now, &lookup);
        assert!(member.resolving.is_empty());
        assert_eq!(member.addresses.len(), 3, "each connection has its own");
        member.execute(&mut events.events, &mut events.event_queue);
        let set = Request::Set { key: Key::raw(b"/k"), value: b"v" };
        events.submit(store, set, Timeout::After(SOON)).expect("submitted");
        // The calls may be over while a connection that none of them needs any more is still being made.
        let is_over = |events: &mut Loop| {
            let made = events.stores.get(store).is_some_and(|store| store.addresses.len() == 0);
            made && events.pending(store) == 0
        };
        turn_until(&mut events, is_over);
        assert!(
            events
                .event_queue
                .iter()
                .all(|event| matches!(event, LoopEvent::Store(over) if over.result.is_ok()))
        );
        assert!(events.lookups.take().is_empty());
    }

    #[test]
    fn addresses_go_with_the_connection_that_was_not_made() {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut events = Loop::new().expect("a loop");
        let options = StoreOptions { connect_timeout: Duration::from_millis(50), ..StoreOptions::default() };
        let store = events.add_store("127.0.0.1", port, options);
        for _ in 0..3 {
            submit_gets(&mut events, store, 3);
            turn_until(&mut events, |events| events.pending(store) == 0);
        }
        assert_eq!(events.event_queue.len(), 9);
        let member = events.stores.get(store).expect("it is there");
        assert!([member.addresses.len(), member.connections.len(), member.conns.len()] == [0; 3]);
    }
}
