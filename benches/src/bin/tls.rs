//! What tokens and TLS cost: `tls [CLIENTS]`. Run it on one core: `chrt -r 5 taskset -c 1 target/release/tls`.
//!
//! This process has two plain servers, one with a token and one with TLS. Sessions of one event loop meet at a
//! barrier of each server in turn, for some 20 ms each, and the median of the ratios counts: a short disturbance of the
//! machine does not. Then one client after the other opens a session at each server. At a plain one that takes a connection
//! and a greeting; the difference is the handshake. The certificates are of ECDSA P-256.
//!
//! The program fails if a bound of [`judge`] is exceeded.

#[path = "../../../core/src/tls/tests/certificates.rs"]
mod certificates;

use certificates::Authority;
use rendezvous_core::driver::native_client::{NativeClient, NativeClientOptions, NativeRequest};
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::socket::wait_readable;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::driver::token_file::{ClientToken, ServerTokens};
use rendezvous_core::wire::native::Participants;
use rendezvous_core::{
    Loop, LoopEvent, MemberId, SessionEvent, TlsAcceptor, TlsClientOptions, TlsConnector, TlsServerOptions,
};
use std::error::Error;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of slices of each barrier that count.
const SLICES: usize = 600;
/// Number of arrivals in a slice.
const ARRIVALS: usize = 1280;
/// Number of slices before the first that counts.
const SLICES_BEFORE: usize = 20;
/// Part by which two measurements of the same may differ.
const NOISE: f64 = 0.01;
const OPENINGS: usize = 9;
const SESSIONS_OPENED: usize = 200;
const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(30));

fn main() -> Result<(), Box<dyn Error>> {
    let clients = std::env::args().nth(1).map(|text| text.parse::<NonZeroUsize>()).transpose()?;
    let folder = std::env::temp_dir().join(format!("rdzv-{}-bench-tls", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = measure(&folder, clients.map_or(8, NonZeroUsize::get));
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn measure(folder: &Path, clients: usize) -> Result<(), Box<dyn Error>> {
    let authority = Authority::new();
    let (cert_file, key_file) = authority.issue(&["127.0.0.1"]).write(folder, "server");
    let ca_file = authority.write(folder, "ca.pem");
    let identity = Some(authority.issue(&["node"]).write(folder, "node"));
    let client_ca_file = Some(ca_file.clone());
    let acceptor = TlsAcceptor::new(TlsServerOptions { cert_file, key_file, client_ca_file })?;
    let connector = TlsConnector::new(TlsClientOptions { ca_file, identity, server_name: None })?;
    let plain = Side::new(ServerOptions::on("127.0.0.1", 0), NativeClientOptions::default(), clients)?;
    let server = ServerOptions { tls: Some(acceptor), ..ServerOptions::on("127.0.0.1", 0) };
    let client = NativeClientOptions { tls: Some(connector), ..NativeClientOptions::default() };
    let secured = Side::new(server, client, clients)?;
    let token_file = folder.join("token");
    std::fs::write(&token_file, "bench 0123456789abcdef0123456789abcdef all\n")?;
    let server = ServerOptions {
        auth_tokens: Some(ServerTokens::open(&token_file)?),
        ..ServerOptions::on("127.0.0.1", 0)
    };
    let client = NativeClientOptions {
        auth_token: Some(ClientToken::open(&token_file)?),
        ..NativeClientOptions::default()
    };
    let proven = Side::new(server, client, clients)?;
    let again = Side::new(ServerOptions::on("127.0.0.1", 0), NativeClientOptions::default(), clients)?;
    let mut sides = [plain, proven, secured, again];
    let (mut barriers, mut openings) = ([const { Vec::new() }; 4], [const { Vec::new() }; 4]);
    let rounds = (ARRIVALS / clients).max(1);
    for slice in 0..SLICES_BEFORE + SLICES {
        for step in 0..sides.len() {
            // None is always the first.
            let at = (slice + step) % sides.len();
            let time = sides[at].meet(rounds)?;
            if slice >= SLICES_BEFORE {
                barriers[at].push(time);
            }
        }
    }
    for _ in 0..OPENINGS {
        for (side, times) in sides.iter_mut().zip(&mut openings) {
            times.push(side.open(SESSIONS_OPENED)?);
        }
    }
    Ok(judge(clients, barriers, openings)?)
}

/// Prints the figures of a plain side, one with a token, one with TLS, and the second plain one.
///
/// # Errors
/// A steady barrier takes more than 1.15 times as long with TLS, or more than 1.01 times with a token; a handshake takes more
/// than 2 ms; or the machine is too unsteady to tell.
fn judge(clients: usize, barriers: [Vec<f64>; 4], openings: [Vec<f64>; 4]) -> Result<(), &'static str> {
    // The geometric mean of both plain sides: one slow slice does not dominate it.
    let plain_time = |at: usize| (barriers[0][at] * barriers[3][at]).sqrt();
    let ratio = |times: &[f64]| median((0..SLICES).map(|at| times[at] / plain_time(at)).collect());
    let again = median((0..SLICES).map(|at| barriers[3][at] / barriers[0][at]).collect());
    let (proven, secured) = (ratio(&barriers[1]), ratio(&barriers[2]));
    let [time, ..] = barriers.map(median);
    println!("native barrier of {clients}: {time:.1} us, {again:.3} times when measured again;");
    println!("with a token {proven:.3} times, with TLS {secured:.3} times");
    let [plain, with_token, with_tls, again_opened] = openings.map(median);
    let handshake = with_tls - plain;
    println!(
        "session opened: {plain:.1} us, {again_opened:.1} us when measured again; with a token {with_token:.1} us;"
    );
    println!("with mutual TLS {with_tls:.1} us, of which the handshake takes {handshake:.1} us");
    if (again - 1.0).abs() > NOISE {
        return Err("the machine is too unsteady: measure again");
    }
    if secured > 1.15 {
        return Err("with TLS, a barrier takes more than 1.15 times as long");
    }
    if proven > 1.0 + NOISE {
        return Err("with a token, a barrier takes more than 1.01 times as long");
    }
    if handshake > 2000.0 {
        return Err("a handshake takes more than 2 ms");
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A server, and the sessions of a loop.
struct Side {
    server: Server,
    options: NativeClientOptions,
    events: Loop,
    sessions: Vec<MemberId>,
}

impl Side {
    fn new(
        server: ServerOptions,
        options: NativeClientOptions,
        clients: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let server = Server::start(server)?;
        let mut events = Loop::new()?;
        let port = server.local_addr().port();
        let sessions = (0..clients).map(|_| events.add_session("127.0.0.1", port, options.clone())).collect();
        let mut side = Self { server, options, events, sessions };
        side.until(clients, |event| matches!(event, SessionEvent::Open))?;
        Ok(side)
    }

    /// Polls until so many events have come.
    fn until(&mut self, count: usize, is_it: fn(&SessionEvent) -> bool) -> Result<(), Box<dyn Error>> {
        let mut seen = 0;
        while seen < count {
            match self.events.next_event() {
                Some(LoopEvent::Session(_, SessionEvent::Completed { result: Err(error), .. })) => {
                    return Err(error.into());
                }
                Some(LoopEvent::Session(_, event)) => seen += usize::from(is_it(&event)),
                Some(_) => {}
                None => {
                    // SAFETY: the loop keeps its descriptor open.
                    let fd = unsafe { BorrowedFd::borrow_raw(self.events.fd()) };
                    wait_readable(fd, Duration::from_secs(30))?;
                    self.events.poll()?;
                }
            }
        }
        Ok(())
    }

    /// Returns the time of a round of a barrier, in microseconds.
    #[expect(clippy::disallowed_methods, reason = "a program reads the clock itself")]
    fn meet(&mut self, rounds: usize) -> Result<f64, Box<dyn Error>> {
        let count = u32::try_from(self.sessions.len())?;
        let began = Instant::now();
        for _ in 0..rounds {
            for at in 0..self.sessions.len() {
                let (name, participants) = (at.to_le_bytes(), Participants::Count(count));
                let arrival =
                    NativeRequest::Barrier { key: b"epoch", generation: 0, name: &name, participants };
                let mut session = self.events.session(self.sessions[at]).ok_or("no session")?;
                session.submit(&arrival, TIMEOUT).map_err(|error| format!("{error:?}"))?;
            }
            self.until(self.sessions.len(), |event| matches!(event, SessionEvent::Completed { .. }))?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / rounds as f64)
    }

    /// Returns the time in which a session is opened, in microseconds.
    #[expect(clippy::disallowed_methods, reason = "a program reads the clock itself")]
    fn open(&self, count: usize) -> Result<f64, Box<dyn Error>> {
        let port = self.server.local_addr().port();
        let began = Instant::now();
        for _ in 0..count {
            drop(NativeClient::connect("127.0.0.1", port, self.options.clone())?);
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / count as f64)
    }
}
