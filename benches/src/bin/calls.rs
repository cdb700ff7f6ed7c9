//! Calls between two workers of a dynamic group, measured: `calls serve [STORE_PORT]` is one of them, which hosts the store
//! unless STORE_PORT names one; `calls floor-echo` and `calls floor-sink BYTES` are the least that can be done for the
//! same bytes; `calls load` is the other worker, and puts loads on them.
//!
//! Servers say `listening on 127.0.0.1:PORT` and stay until they are killed. `load` reads commands from stdin, and answers
//! each with a line of JSON. A worker's PORT is that of its store:
//!
//! ```text
//! floor-echo PORT CALLS · floor-sink PORT CALLS BYTES
//! echo|pooled PORT CALLS · echo-many|pooled-many PORT CALLS DEPTH · payload PORT CALLS BYTES · death CALLS
//! ```

use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_rpc::driver::calls::Payload;
use rendezvous_rpc::driver::calls::handling::{Handling, Request, Responder, Run};
use rendezvous_rpc::driver::group::{CallSpec, GroupResult, RpcAgent, RpcWorker, TcpOptions};
use rendezvous_rpc::name::WorkerInfo;
use rendezvous_rpc::options::RpcOptions;
use std::io::{self, BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ECHO_BYTES: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["serve"] => serve(None),
        ["serve", port] => port.parse().map_err(Into::into).and_then(|port| serve(Some(port))),
        ["floor-echo"] => floor(None),
        ["floor-sink", bytes] => bytes.parse().map_err(Into::into).and_then(|bytes| floor(Some(bytes))),
        ["load"] => load(),
        _ => Err("usage: calls serve [STORE_PORT] | floor-echo | floor-sink BYTES | load".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("calls: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn join(port: u16, name: &str, id: u16, handling: Arc<Handling>) -> Outcome<RpcAgent> {
    let store = Store::connect("127.0.0.1", port, StoreOptions::default())?.with_prefix(b"rpc_prefix_0");
    let me = WorkerInfo { name: name.parse()?, id };
    let tcp = TcpOptions { handling: Some(handling), ..TcpOptions::default() };
    Ok(RpcAgent::start(&store, me, None, &RpcOptions::new("tcp"), &tcp)?)
}

fn serve(store: Option<u16>) -> Outcome<()> {
    let handling = Handling::new(4);
    let echo = |request: Request, responder: Responder| _ = responder.answer(request.payload);
    handling.register("echo", Run::Inline, echo)?;
    handling.register("pooled", Run::Pooled, echo)?;
    handling.register("length", Run::Inline, |request: Request, responder: Responder| {
        responder.answer(request.payload.len().to_string().into_bytes());
    })?;
    let held = Mutex::new(Vec::new());
    handling.register("hold", Run::Inline, move |_, responder| {
        held.lock().expect("no panic").push(responder);
    })?;
    let hosted = match store {
        Some(_) => None,
        None => Some(Server::start(ServerOptions::on("127.0.0.1", 0))?),
    };
    let port = store.or(hosted.as_ref().map(|server| server.local_addr().port())).ok_or("no store")?;
    let _worker = join(port, "b", 1, handling)?;
    say(&format!("listening on 127.0.0.1:{port}"))?;
    loop {
        std::thread::park();
    }
}

/// Waits for one event of a descriptor through epoll, as a server must.
struct Poll(i32);

impl Poll {
    fn of(fd: i32) -> io::Result<Self> {
        // SAFETY: a flag, and then a valid event for a descriptor that lives.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
        // SAFETY: as above.
        if epoll < 0 || unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(epoll))
    }

    fn wait(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        unsafe { libc::epoll_wait(self.0, &raw mut event, 1, -1) };
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        // SAFETY: its own descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Serves one connection after the other: sends back what comes, or one byte for so many.
fn floor(sink: Option<usize>) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(&format!("listening on {}", listener.local_addr()?))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let poll = Poll::of(stream.as_raw_fd())?;
        let mut have = 0;
        loop {
            poll.wait();
            let Ok(count @ 1..) = stream.read(&mut buffer) else { break };
            let Some(wanted) = sink else {
                stream.write_all(&buffer[..count])?;
                continue;
            };
            have += count;
            if have >= wanted {
                have -= wanted;
                stream.write_all(b"x")?;
            }
        }
    }
}

fn load() -> Outcome<()> {
    let mut workers: Vec<(String, Arc<RpcAgent>)> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let args: Vec<&str> = line.split_whitespace().collect();
        let samples = match args.as_slice() {
            ["floor-echo", port, calls] => floor_echo(port, calls.parse()?)?,
            ["floor-sink", port, calls, bytes] => floor_sink(port, calls.parse()?, bytes.parse()?)?,
            ["death", calls] => (0..calls.parse()?).map(|_| death()).collect::<Outcome<_>>()?,
            [work, port, rest @ ..] => {
                let known = workers.iter().position(|(known, _)| known == port);
                let at = known.unwrap_or(workers.len());
                if known.is_none() {
                    // It is kept, so that its connection is.
                    let worker = join(port.parse()?, "a", 0, Handling::new(1))?;
                    workers.push(((*port).to_owned(), Arc::new(worker)));
                }
                let worker = &workers[at].1;
                match (*work, rest) {
                    ("echo" | "pooled", [calls]) => one_by_one(worker, work, calls.parse()?)?,
                    ("echo-many", [calls, depth]) => many(worker, "echo", calls.parse()?, depth.parse()?)?,
                    ("pooled-many", [calls, depth]) => {
                        many(worker, "pooled", calls.parse()?, depth.parse()?)?
                    }
                    ("payload", [calls, bytes]) => payload(worker, calls.parse()?, bytes.parse()?)?,
                    _ => return Err(format!("what is {line:?}?").into()),
                }
            }
            _ => return Err(format!("what is {line:?}?").into()),
        };
        say(&samples_line(samples))?;
    }
    Ok(())
}

/// The times of single calls, in microseconds, as a line of JSON.
fn samples_line(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    let at = |share: usize| samples[(samples.len() - 1) * share / 100];
    let mean = samples.iter().sum::<f64>() / f64::from(u32::try_from(samples.len()).unwrap_or(u32::MAX));
    format!("{{\"median_us\": {:.3}, \"p99_us\": {:.3}, \"mean_us\": {mean:.3}}}", at(50), at(99))
}

#[expect(clippy::disallowed_methods, reason = "a program reads the clock itself")]
fn now() -> Instant {
    Instant::now()
}

fn timed(calls: usize, mut call: impl FnMut() -> Outcome<()>) -> Outcome<Vec<f64>> {
    // The first ones meet what is cold.
    for _ in 0..calls.div_ceil(20) {
        call()?;
    }
    let mut samples = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = now();
        call()?;
        samples.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(samples)
}

fn connected(port: &str) -> Outcome<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port.parse()?))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn floor_echo(port: &str, calls: usize) -> Outcome<Vec<f64>> {
    let mut stream = connected(port)?;
    let poll = Poll::of(stream.as_raw_fd())?;
    let mut bytes = [7; ECHO_BYTES];
    timed(calls, || {
        stream.write_all(&bytes)?;
        poll.wait();
        Ok(stream.read_exact(&mut bytes)?)
    })
}

fn floor_sink(port: &str, calls: usize, bytes: usize) -> Outcome<Vec<f64>> {
    let mut stream = connected(port)?;
    let payload = vec![7; bytes];
    timed(calls, || {
        stream.write_all(&payload)?;
        Ok(stream.read_exact(&mut [0])?)
    })
}

fn one_by_one(worker: &RpcAgent, handler: &str, calls: usize) -> Outcome<Vec<f64>> {
    let bytes = [7; ECHO_BYTES];
    timed(calls, || {
        let answer = worker.call("b", handler, &bytes[..], None)?;
        if answer == bytes { Ok(()) } else { Err("another answer".into()) }
    })
}

fn payload(worker: &RpcAgent, calls: usize, bytes: usize) -> Outcome<Vec<f64>> {
    let payload = Payload::from(vec![7; bytes]);
    let expected = bytes.to_string().into_bytes();
    timed(calls, || {
        let answer = worker.call("b", "length", payload.clone(), None)?;
        if answer == expected { Ok(()) } else { Err("another answer".into()) }
    })
}

/// One chain of calls, of which each is made when the one before is answered.
fn chain(worker: &Arc<RpcAgent>, handler: &'static str, left: usize, done: Sender<Result<(), String>>) {
    let (next, samples_line) = (Arc::clone(worker), done.clone());
    let on_result = move |result: GroupResult| match result {
        Ok(_) if left > 1 => chain(&next, handler, left - 1, samples_line),
        Ok(_) => _ = samples_line.send(Ok(())),
        Err(error) => _ = samples_line.send(Err(error.to_string())),
    };
    let payload = vec![7; ECHO_BYTES].into();
    let call = CallSpec { callee: "b".into(), handler, payload, timeout: None };
    let began = worker.begin_call(call, Box::new(on_result));
    if let Err(error) = began {
        done.send(Err(error.to_string())).ok();
    }
}

/// The time of each call where so many are in flight: that of all, shared out.
fn many(worker: &Arc<RpcAgent>, handler: &'static str, calls: usize, depth: usize) -> Outcome<Vec<f64>> {
    let each = calls.div_ceil(depth);
    let (sender, samples_line) = channel();
    let began = now();
    for _ in 0..depth {
        chain(worker, handler, each, sender.clone());
    }
    for _ in 0..depth {
        samples_line.recv_timeout(TIMEOUT)??;
    }
    let all = u32::try_from(each * depth)?;
    Ok(vec![began.elapsed().as_secs_f64() * 1e6 / f64::from(all)])
}

/// From the death of a worker to the failure of a call that it had.
fn death() -> Outcome<f64> {
    let server = Server::start(ServerOptions::on("127.0.0.1", 0))?;
    let port = server.local_addr().port();
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg("serve").arg(port.to_string()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    io::BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    let worker = join(port, "a", 0, Handling::new(1))?;
    let pending = worker.start_call("b", "hold", &b""[..], Some(TIMEOUT))?;
    worker.call("b", "echo", &b""[..], Some(TIMEOUT))?;
    let ended = Arc::new(Mutex::new(None));
    let samples_line = Arc::clone(&ended);
    let (sender, results) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let result = pending.wait();
            *samples_line.lock().expect("no panic") = Some(now());
            sender.send(result).ok();
        });
        let began = now();
        child.kill()?;
        let result = results.recv_timeout(TIMEOUT)?;
        child.wait()?;
        let ended = ended.lock().expect("no panic").ok_or("no end")?;
        if result.is_ok() { Err("it was answered".into()) } else { Ok((ended - began).as_secs_f64() * 1e6) }
    })
}
