//! Siege of a server: strangers who cost as much as they can, and good clients whose waits are measured.
//!
//! Two servers (`rdzv server`) run on the first core, all clients on the second. 64 sessions of each server meet at one barrier
//! after the other: alone at the one, and at the other beside connections that are idle, that send a byte now and then, that
//! never read, and that send costly requests as fast as the server takes them. Of the slow senders, some never complete their
//! greeting; with `--tls` native clients use TLS, and some begin a handshake, slowly or again and again. The program measures at
//! the two servers in turn, so that other load on the machine affects both figures alike. While it measures at one server, it
//! stops the other. With the besieged server it stops the strangers, too; a process that spins then keeps the core of the
//! clients from sleeping, as the strangers do otherwise: waking a core takes long. The good clients and the servers have a
//! real-time priority, since strangers have machines of their own: at any other priority Linux may let a stranger run until
//! the next tick before a client that has its answer. The program fails when the server does not hold its bounds.

#![expect(clippy::disallowed_methods, reason = "a program reads the clock")]

use crate::entropy::{Entropy, noise};
use crate::frames;
use crate::fuzz::drawn::{Names, Ticket, any_hello, c10d_request, native_request, opening};
use crate::sim::tls::client;
use rendezvous_core::driver::native_client::{NativeClientOptions, NativeRequest};
use rendezvous_core::driver::socket::wait_readable;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::driver::tls::{TlsClientOptions, TlsConnector};
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use rendezvous_core::tls::TlsStage;
use rendezvous_core::wire::native::{Batched, ClientFrame, Label, List, Participants};
use rendezvous_core::{Loop, LoopEvent, MemberId, SessionEvent};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: siege --rdzv PATH [--seconds N] [--tls]";
/// Folder of the certificates, and the name in that of the server.
const CERTIFICATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sim/tls");
const SERVER_NAME: &str = "server";
const GOOD: usize = 64;
const IDLE: usize = 5000;
const SLOW: u32 = 100;
const NEVER_READ: usize = 50;
const COSTLY: u64 = 20;
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Bytes that the server may store, so that its memory has a bound that the strangers reach.
const STORED_BYTES_MAX: u64 = 256 << 20;
const LONG_KEY: &[u8] = b"siege/long";
const LONG_BYTES: usize = 1 << 20;
/// How many times as long the sessions may wait beside the strangers (99th percentile).
const P99_RATIO_MAX: f64 = 2.0;
const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(60));
/// Time for which the program measures at one server before it measures at the other: longer than a costly connection waits
/// for its next slice.
const WINDOW: Duration = Duration::from_secs(10);
/// Time before that for which clients and server do the same, unmeasured: a server that was stopped has forgiven some work.
const SETTLING: Duration = Duration::from_secs(2);
/// Time of each slow sender between two bytes.
const SLOW_PAUSE: Duration = Duration::from_millis(500);

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs what the arguments of the program say.
///
/// # Errors
/// A good client that was refused or closed, an idle connection that was closed, a server that ended, held up the good clients
/// or used more memory than it may store, and what the system refuses.
pub fn main(arguments: impl Iterator<Item = String>) -> Outcome<()> {
    let arguments: Vec<String> = arguments.collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (arguments, security) = match arguments[..] {
        [ref others @ .., "--tls"] => (others, Security::Tls),
        ref all => (all, Security::Plain),
    };
    match *arguments {
        ["strangers", port] => strangers(port.parse()?, security),
        // Its parent ends it.
        ["spin"] => loop {
            std::hint::spin_loop();
        },
        ["--rdzv", rdzv] => siege(Path::new(rdzv), Duration::from_secs(60), security),
        ["--rdzv", rdzv, "--seconds", seconds] => {
            siege(Path::new(rdzv), Duration::from_secs(seconds.parse()?), security)
        }
        _ => Err(USAGE.into()),
    }
}

/// Whether native clients use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    Plain,
    Tls,
}

fn siege(rdzv: &Path, span: Duration, security: Security) -> Outcome<()> {
    set_core(CLIENT_CORE)?;
    let is_realtime = set_scheduler(libc::SCHED_RR, 5);
    let (mut calm, mut besieged) = (Target::new(rdzv, security)?, Target::new(rdzv, security)?);
    besieged.good.meet(SETTLING)?;
    let own = std::env::current_exe()?;
    let mut command = Command::new(&own);
    command
        .args(["strangers", &besieged.port.to_string()])
        .args((security == Security::Tls).then_some("--tls"));
    let mut strangers = Process::start(&mut command, CLIENT_CORE, Priority::Idle)?;
    // They are all there.
    strangers.read_line()?;
    let spinner = Process::start(Command::new(own).arg("spin"), CLIENT_CORE, Priority::Idle)?;
    let (mut alone, mut beside) = (Waits::default(), Waits::default());
    let (mut busy, mut measured) = (Duration::ZERO, Duration::ZERO);
    while measured < span {
        strangers.signal(libc::SIGSTOP)?;
        besieged.server.signal(libc::SIGSTOP)?;
        calm.server.signal(libc::SIGCONT)?;
        spinner.signal(libc::SIGCONT)?;
        calm.good.meet(SETTLING)?;
        let waits = calm.good.meet(WINDOW)?;
        alone.sorted_ns.extend(waits);
        spinner.signal(libc::SIGSTOP)?;
        calm.server.signal(libc::SIGSTOP)?;
        besieged.server.signal(libc::SIGCONT)?;
        strangers.signal(libc::SIGCONT)?;
        besieged.good.meet(SETTLING)?;
        let (began, used) = (Instant::now(), besieged.server.cpu_time()?);
        let waits = besieged.good.meet(WINDOW)?;
        busy += besieged.server.cpu_time()? - used;
        measured += began.elapsed();
        beside.sorted_ns.extend(waits);
    }
    alone.sorted_ns.sort_unstable();
    beside.sorted_ns.sort_unstable();
    let peak = peak_kib(&besieged.server.folder().join("status")).ok_or("no VmHWM")?;
    // The end of its stdin ends it.
    drop(strangers.child.stdin.take());
    let report = strangers.read_line()?;
    println!("64 sessions at a barrier         waits   p50 us   p99 us   max us");
    println!("alone                       {alone}");
    println!("beside the strangers        {beside}");
    let ratio = beside.at(99) / alone.at(99);
    println!("p99 beside the strangers: {ratio:.2} times that alone");
    println!(
        "server: {} MiB resident at most ({} MiB may be stored), busy for {:.0} % of the time",
        peak >> 10,
        STORED_BYTES_MAX >> 20,
        100.0 * busy.as_secs_f64() / measured.as_secs_f64()
    );
    print!("strangers: {report}");
    if !strangers.child.wait()?.success() {
        return Err("the strangers failed, or idle connections were closed".into());
    }
    if peak << 10 > STORED_BYTES_MAX {
        return Err(format!("the server had {} MiB resident", peak >> 10).into());
    }
    if !is_realtime {
        println!(
            "not judged: without the right to a real-time priority (chrt -r 5) clients wait for the core of the strangers"
        );
    } else if ratio.is_nan() || ratio > P99_RATIO_MAX {
        return Err(format!("the p99 may be {P99_RATIO_MAX} times that alone").into());
    }
    Ok(())
}

/// A server, and the sessions that meet there.
struct Target {
    server: Process,
    port: u16,
    good: Good,
}

impl Target {
    fn new(rdzv: &Path, security: Security) -> Outcome<Self> {
        let stored = STORED_BYTES_MAX.to_string();
        let arguments = ["server", "--bind", "127.0.0.1:0", "--stored-bytes-max", &stored, "--log", "error"];
        let mut command = Command::new(rdzv);
        command.args(arguments);
        if security == Security::Tls {
            let [cert, key] = ["server.pem", "server.key"].map(certificate_file);
            command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
        }
        let mut server = Process::start(&mut command, SERVER_CORE, Priority::Inherited)?;
        let line = server.read_line()?;
        let port = line.rsplit(':').next().and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let port: u16 = port.ok_or_else(|| format!("the server said {line:?}"))?;
        Ok(Self { server, port, good: Good::new(port, security)? })
    }
}

fn certificate_file(name: &str) -> PathBuf {
    Path::new(CERTIFICATES).join(name)
}

/// Time from the arrival of a session at a barrier to its answer.
#[derive(Debug, Default)]
struct Waits {
    sorted_ns: Vec<u64>,
}

impl Waits {
    /// Returns the wait, in microseconds, that this percentage of all waits does not exceed.
    fn at(&self, percent: usize) -> f64 {
        let last = self.sorted_ns.len().saturating_sub(1);
        self.sorted_ns.get(last * percent / 100).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [50, 99, 100].map(|percent| self.at(percent));
        write!(f, "{:>10} {p50:>8.0} {p99:>8.0} {max:>8.0}", self.sorted_ns.len())
    }
}

/// Sessions that no stranger may disturb.
struct Good {
    events: Loop,
    sessions: Vec<MemberId>,
}

impl Good {
    fn new(port: u16, security: Security) -> Outcome<Self> {
        let mut events = Loop::new()?;
        let mut options = NativeClientOptions::default();
        if security == Security::Tls {
            let (ca_file, server_name) = (certificate_file("ca.pem"), Some(SERVER_NAME.to_owned()));
            options.tls = Some(TlsConnector::new(TlsClientOptions { ca_file, identity: None, server_name })?);
        }
        let sessions = (0..GOOD).map(|_| events.add_session("127.0.0.1", port, options.clone())).collect();
        let mut good = Self { events, sessions };
        let mut open = 0;
        while open < GOOD {
            open += usize::from(matches!(good.next()?, (_, SessionEvent::Open)));
        }
        Ok(good)
    }

    /// Waits for the next event. A session that is lost, and a request that fails, is an error.
    fn next(&mut self) -> Outcome<(MemberId, SessionEvent)> {
        loop {
            match self.events.next_event() {
                Some(LoopEvent::Session(session, SessionEvent::Completed { result: Err(error), .. })) => {
                    return Err(format!("session {session:?}: {error}").into());
                }
                Some(LoopEvent::Session(
                    session,
                    event @ (SessionEvent::Open | SessionEvent::Completed { .. }),
                )) => return Ok((session, event)),
                Some(other) => return Err(format!("a good client was disturbed: {other:?}").into()),
                None => {
                    // SAFETY: the loop keeps its descriptor open.
                    let fd = unsafe { BorrowedFd::borrow_raw(self.events.fd()) };
                    wait_readable(fd, Duration::from_secs(60))?;
                    self.events.poll()?;
                }
            }
        }
    }

    /// Meets at one barrier after the other for `span`. Returns each wait, in nanoseconds.
    fn meet(&mut self, span: Duration) -> Outcome<Vec<u64>> {
        let mut waits = Vec::new();
        let began = Instant::now();
        while began.elapsed() < span {
            let mut arrived = HashMap::new();
            for (rank, &session) in self.sessions.iter().enumerate() {
                let name = rank.to_le_bytes();
                let participants = Participants::Count(u32::try_from(GOOD)?);
                let key = b"good";
                let arrival = NativeRequest::Barrier { key, generation: 0, name: &name, participants };
                arrived.insert(session, Instant::now());
                let mut session = self.events.session(session).ok_or("no session")?;
                session.submit(&arrival, TIMEOUT).map_err(|error| format!("{error:?}"))?;
            }
            while !arrived.is_empty() {
                let (session, _) = self.next()?;
                let since = arrived.remove(&session).ok_or("an answer without a request")?;
                waits.push(u64::try_from(since.elapsed().as_nanos())?);
            }
        }
        Ok(waits)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    /// That of this process.
    Inherited,
    /// It runs when no other process wants the core.
    Idle,
}

/// A process that ends with this one.
struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command, core: usize, priority: Priority) -> Outcome<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: the function calls the system only.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if priority == Priority::Idle {
                    set_scheduler(libc::SCHED_IDLE, 0);
                }
                set_core(core)
            });
        }
        let mut child = command.spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self { child, stdout })
    }

    fn read_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            return Err("a process ended".into());
        }
        Ok(line)
    }

    fn signal(&self, signal: libc::c_int) -> Outcome<()> {
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: passes numbers only, and the child has not been waited for.
        if unsafe { libc::kill(pid, signal) } == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.child.id()))
    }

    fn cpu_time(&self) -> Outcome<Duration> {
        let stat = std::fs::read_to_string(self.folder().join("stat"))?;
        // proc(5): after the name in parentheses come the state as field 3, and utime and stime as fields 14 and 15.
        let rest = stat.rsplit(')').next().ok_or("no stat")?;
        let ticks: u64 =
            rest.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap_or(0)).sum();
        // SAFETY: passes a number only.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_s as f64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the most memory that a process has had resident, in KiB.
fn peak_kib(status: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(status).ok()?;
    text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}

/// Sets how this process is scheduled. Returns whether it may.
fn set_scheduler(policy: libc::c_int, sched_priority: libc::c_int) -> bool {
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the parameter stays valid for the call.
    unsafe { libc::sched_setscheduler(0, policy, &raw const priority) == 0 }
}

/// Moves this process to a core.
fn set_core(core: usize) -> io::Result<()> {
    // SAFETY: the set is plain data, and stays valid for the calls.
    let moved = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if moved == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What the strangers count.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    request_bytes: AtomicU64,
    closed: AtomicU64,
}

/// Disturbs the server until stdin ends.
fn strangers(port: u16, security: Security) -> Outcome<()> {
    let counts = Arc::new(Counts::default());
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let mut stream = connect(port)?;
        stream.write_all(&frames::greeting())?;
        idle.push(stream);
    }
    for number in 0..COSTLY {
        let counts = Arc::clone(&counts);
        thread::spawn(move || {
            let mut turn = number << 32;
            loop {
                // The server may end the connection, as it does after some requests.
                send_costly_requests(port, security, turn, &counts).ok();
                counts.closed.fetch_add(1, Ordering::Relaxed);
                turn += 1;
            }
        });
    }
    let others = thread::spawn(move || slow_and_never_read(port, security));
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    let is_besieged = !others.is_finished() && counts.requests.load(Ordering::Relaxed) > 0;
    let gone = idle.iter().filter(|stream| is_closed(stream)).count();
    println!(
        "{} costly requests of {} MiB in total, {} costly connections that ended; of {IDLE} idle ones {gone} were closed",
        counts.requests.load(Ordering::Relaxed),
        counts.request_bytes.load(Ordering::Relaxed) >> 20,
        counts.closed.load(Ordering::Relaxed),
    );
    match (gone, is_besieged) {
        (0, true) => Ok(()),
        (0, false) => Err("strangers could not connect".into()),
        _ => Err("idle connections were closed".into()),
    }
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).ok();
    !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Sends requests that cost much on one connection, as fast as the server takes them. Every fourth client speaks c10d.
fn send_costly_requests(port: u16, security: Security, turn: u64, counts: &Counts) -> io::Result<()> {
    let is_native = !(turn >> 32).is_multiple_of(4);
    let stream = connect(port)?;
    let mut answers = stream.try_clone()?;
    let tls = if is_native && security == Security::Tls { Some(handshake(&stream)?) } else { None };
    let mut stream = Writer { stream, tls };
    stream.write_all(&if is_native {
        opening(&any_hello(&mut Entropy::new(&[]), Ticket::default()), 0)
    } else {
        frames::greeting()
    })?;
    thread::spawn(move || io::copy(&mut answers, &mut io::sink()));
    let names = Names::many(5000);
    for id in 1..2000 {
        let noise = noise(turn * 4099 + id, 4096);
        let mut entropy = Entropy::new(&noise);
        let label = Label { id, sequence: 0, flags: 0 };
        let bytes = match (is_native, entropy.below(8)) {
            (_, 0) => long_list(&mut entropy, is_native, label),
            (true, _) => native_request(&mut entropy, &names, label, 255),
            (false, _) => c10d_request(&mut entropy, &names, 255),
        };
        stream.write_all(&bytes)?;
        counts.requests.fetch_add(1, Ordering::Relaxed);
        counts.request_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Sending side of a connection, of which all answers are discarded.
struct Writer {
    stream: TcpStream,
    tls: Option<TlsStage>,
}

impl Writer {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.stream.write_all(bytes) };
        while !bytes.is_empty() {
            bytes = &bytes[tls.send(bytes)..];
            flush(&self.stream, tls)?;
        }
        Ok(())
    }
}

/// Does the handshake of TLS as a client.
fn handshake(mut stream: &TcpStream) -> io::Result<TlsStage> {
    let mut tls = client();
    let mut buffer = [0; 4096];
    flush(stream, &mut tls)?;
    while tls.is_handshaking() {
        let count = stream.read(&mut buffer)?;
        tls.receive(&buffer[..count], &mut Vec::new())
            .map_err(|fault| io::Error::other(format!("{fault:?}")))?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        flush(stream, &mut tls)?;
    }
    Ok(tls)
}

fn flush(mut stream: &TcpStream, tls: &mut TlsStage) -> io::Result<()> {
    let unsent = tls.unsent();
    stream.write_all(unsent)?;
    let count = unsent.len();
    tls.sent(count);
    Ok(())
}

/// Returns one of the requests that cost most, with a list of thousands.
fn long_list(entropy: &mut Entropy<'_>, is_native: bool, label: Label) -> Vec<u8> {
    let count = entropy.choose(&[1000, 4000, 20_000]);
    let names: Vec<Vec<u8>> = (0..count).map(|number: u32| format!("{number}").into_bytes()).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &b"x"[..])).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let (pairs, keys) = (Pairs::scoped(b"", &pairs), Keys::scoped(b"", &keys));
    let prefix = Key::raw(b"");
    let kind = entropy.below(5);
    if !is_native {
        return frames::request(match kind {
            0 => Request::MultiSet { pairs },
            1 => Request::Check { keys },
            2 => Request::MultiGet { keys },
            3 => Request::ListKeys,
            _ => Request::Wait { keys },
        });
    }
    let removals = vec![Batched(ClientFrame::DeletePrefix { prefix }); 50];
    frames::native(
        label,
        &match kind {
            0 => ClientFrame::MultiSet { pairs },
            1 => ClientFrame::Check { keys },
            2 => ClientFrame::MultiGet { timeout_ms: 0, keys },
            3 => ClientFrame::Batch { requests: List::new(&removals) },
            _ => ClientFrame::WatchPrefix { prefix, from_revision: 1 },
        },
    )
}

/// Client that sends its bytes piece by piece, with a pause after each. Then it connects again.
struct SlowSender {
    bytes: Vec<u8>,
    piece: usize,
    /// The connection, and the number of bytes sent.
    open: Option<(TcpStream, usize)>,
}

impl SlowSender {
    /// Of ten, four greet and send a request, and the others begin what takes longer than the server gives them: a
    /// greeting, or with TLS three of them a handshake. Of these, one sends the first message at once, and is then gone.
    fn new(number: u32, security: Security) -> Self {
        let (bytes, piece) = match (number % 10, security) {
            (0..4, _) => ([frames::greeting(), frames::set(b"slow", &[b'x'; 4096])].concat(), 1),
            (7..9, Security::Tls) => (client().unsent().to_vec(), 1),
            (9, Security::Tls) => (client().unsent().to_vec(), usize::MAX),
            _ => (frames::hello(&[b'n'; 1024]), 1),
        };
        Self { piece: piece.min(bytes.len()), bytes, open: None }
    }

    fn send(&mut self, port: u16) -> io::Result<()> {
        let (mut stream, sent) = match self.open.take() {
            Some((stream, sent)) if sent < self.bytes.len() => (stream, sent),
            _ => (connect(port)?, 0),
        };
        if stream.write_all(&self.bytes[sent..][..self.piece]).is_ok() {
            self.open = Some((stream, sent + self.piece));
        }
        Ok(())
    }
}

/// Slow senders, and clients that ask for long values and read nothing. Those that the server closes come again.
fn slow_and_never_read(port: u16, security: Security) -> io::Result<()> {
    let mut writer = connect(port)?;
    writer.write_all(&frames::greeting())?;
    writer.write_all(&frames::set(LONG_KEY, &vec![b'x'; LONG_BYTES]))?;
    let get_bytes = [frames::greeting(), frames::get(LONG_KEY).repeat(64)].concat();
    let mut slow: Vec<SlowSender> = (0..SLOW).map(|number| SlowSender::new(number, security)).collect();
    let mut never_read: Vec<Option<TcpStream>> = (0..NEVER_READ).map(|_| None).collect();
    let (_open, never) = mpsc::channel::<()>();
    loop {
        for sender in &mut slow {
            sender.send(port)?;
            never.recv_timeout(SLOW_PAUSE / SLOW).ok();
        }
        for client in &mut never_read {
            if client.as_ref().is_none_or(is_over) {
                let mut stream = connect(port)?;
                if stream.write_all(&get_bytes).is_ok() {
                    *client = Some(stream);
                }
            }
        }
    }
}

/// Returns whether the server has closed a connection that holds unread answers.
fn is_over(stream: &TcpStream) -> bool {
    !matches!(stream.take_error(), Ok(None)) || stream.peer_addr().is_err()
}
