//! Node of a run, for the liveness tests: a process that can be killed, stopped and cut off. It uses the native
//! protocol, prints each event as one line on stdout, and executes the commands on stdin.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

use rendezvous_core::driver::native_client::{
    NativeClient, NativeClientOptions, NativeError, NativeRequest, NodeEvent,
};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::rendezvous::participant::{Entry, Role};
use rendezvous_core::store::op::Pairs;
use rendezvous_core::wire::native::{LastCall, RankOrder, Terms};
use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const USAGE: &str = "\
usage: node HOST PORT NAME [SETTING=NUMBER ...]
settings: nodes_min nodes_max continue_min join_ms grace_ms heartbeat_ms heartbeats_missed_max connect_ms
          keep_alive (0: the kernel does not watch) unacknowledged_ms
commands, a line each:
  open                 a new session; the first one is opened at the start
  join | standby       ask for a round
  leave | close        leave the run; close it for good
  bye                  end the session with BYE
  set KEY VALUE        KEY as PyTorch's clients name it
  get KEY              wait for it
  watch PREFIX         print changes of keys with it
  exit";

/// The only run of these tests.
const RUN: &[u8] = b"run";
const TIMEOUT: Duration = Duration::from_secs(40);
/// How long one poll for events takes. Nothing depends on it.
const LOOK: Duration = Duration::from_secs(3600);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("node: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Settings {
    host: String,
    port: u16,
    client: NativeClientOptions,
    terms: Terms<'static>,
    join_ms: u64,
}

impl Settings {
    fn read(arguments: &[String]) -> Result<Self, Box<dyn Error>> {
        let [host, port, node, settings @ ..] = arguments else { return Err(USAGE.into()) };
        let mut read = Self {
            host: host.clone(),
            port: port.parse()?,
            client: NativeClientOptions {
                node: node.clone(),
                connect_timeout: TIMEOUT,
                ..NativeClientOptions::default()
            },
            terms: Terms {
                nodes_min: 1,
                nodes_max: 1,
                continue_min: 0,
                last_call: LastCall::Off,
                last_call_ms: 0,
                fast_quorum: true,
                rank_order: RankOrder::Sticky,
                rank_label: b"",
                cool_down_failures: 0,
                cool_down_window_ms: 0,
                cool_down_pause_ms: 0,
                cool_down_pause_ms_max: 0,
            },
            join_ms: u64::try_from(TIMEOUT.as_millis())?,
        };
        for setting in settings {
            let (name, number) = setting.split_once('=').ok_or(USAGE)?;
            let number: u32 = number.parse()?;
            let span = Duration::from_millis(number.into());
            let Self { client, terms, .. } = &mut read;
            match name {
                "nodes_min" => terms.nodes_min = number,
                "nodes_max" => terms.nodes_max = number,
                "continue_min" => terms.continue_min = number,
                "join_ms" => read.join_ms = number.into(),
                "grace_ms" => client.grace = span,
                "heartbeat_ms" => client.heartbeat = span,
                "heartbeats_missed_max" => client.heartbeats_missed_max = number,
                "connect_ms" => client.connect_timeout = span,
                "keep_alive" => client.keep_alive = (number > 0).then(KeepAlive::default),
                "unacknowledged_ms" => {
                    let all_else = client.keep_alive.unwrap_or_default();
                    client.keep_alive = Some(KeepAlive { unacknowledged_max: Some(span), ..all_else });
                }
                _ => return Err(format!("{name} is no setting\n{USAGE}").into()),
            }
        }
        Ok(read)
    }

    fn join(&self, client: &NativeClient, role: Role) {
        let entry = Entry {
            run_id: RUN,
            node: self.client.node.as_bytes(),
            address: self.client.node.as_bytes(),
            local_world_size: 1,
            node_rank: -1,
            join_timeout_ms: self.join_ms,
            terms: self.terms,
            labels: Pairs::scoped(b"", &[]),
            round_min: 0,
        };
        match client.join(&entry, role) {
            Ok(joined) => say(&format!(
                "joined round {} as {}/{} with the prefix {}",
                joined.round,
                joined.node_rank,
                joined.nodes,
                String::from_utf8_lossy(&joined.namespace)
            )),
            Err(error) => say_failed("join", &error),
        }
    }
}

/// The test waits for whole lines. If it has ended, no lines are needed.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).ok();
}

fn say_failed(what: &str, error: &NativeError) {
    let call = error.call();
    say(&format!("{what} failed: {:?} {:?} {}: {error}", error.kind(), call.phase(), call.peer()));
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let settings = Arc::new(Settings::read(&arguments)?);
    let mut client = open(&settings);
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let message: Vec<&str> = line.split(' ').collect();
        if message == ["exit"] {
            return Ok(());
        }
        if message == ["open"] {
            client = open(&settings);
            continue;
        }
        let Some(client) = client.clone() else { return Err("there is no session".into()) };
        obey(&settings, client, &message)?;
    }
    // The test has closed stdin, so no further command can arrive.
    Ok(())
}

/// Opens a session, and prints its events from then on.
fn open(settings: &Settings) -> Option<NativeClient> {
    let client = match NativeClient::connect(&settings.host, settings.port, settings.client.clone()) {
        Ok(client) => client,
        Err(error) => {
            say_failed("open", &error);
            return None;
        }
    };
    say("open");
    let reported = client.clone();
    std::thread::spawn(move || {
        loop {
            match reported.next_event(LOOK) {
                Ok(None) => {}
                Ok(Some(NodeEvent::Seated)) => say("seated"),
                Ok(Some(NodeEvent::Round(event))) => say(&event.to_string()),
                Ok(Some(event)) => say(&format!("{event:?}")),
                Err(error) => return say_failed("session", &error),
            }
        }
    });
    Some(client)
}

/// Commands that may block run on a thread of their own, so that the next command is read.
fn obey(settings: &Arc<Settings>, client: NativeClient, message: &[&str]) -> Result<(), Box<dyn Error>> {
    let reported = |what: &str, outcome: Result<(), NativeError>| match outcome {
        Ok(()) => say(&format!("{what} done")),
        Err(error) => say_failed(what, &error),
    };
    match *message {
        ["join" | "standby"] => {
            let role = if message == ["join"] { Role::Member } else { Role::Spare };
            let settings = Arc::clone(settings);
            std::thread::spawn(move || settings.join(&client, role));
        }
        ["leave"] => reported(
            "leave",
            client.request(&NativeRequest::Leave { run_id: RUN }, Timeout::After(TIMEOUT)).map(drop),
        ),
        ["close"] => reported("close", client.close_run(RUN, TIMEOUT)),
        ["bye"] => reported("bye", client.close(TIMEOUT)),
        ["set", key, value] => match store(&client).set(key.as_bytes(), value.as_bytes(), Timeout::Default) {
            Ok(()) => say("set done"),
            Err(error) => say(&format!("set failed: {:?}: {error}", error.kind())),
        },
        ["get", key] => {
            let (key, store) = (key.to_owned(), store(&client));
            std::thread::spawn(move || match store.get_owned(key.as_bytes(), Timeout::After(TIMEOUT)) {
                Ok(value) => say(&format!("got {key} = {}", String::from_utf8_lossy(&value))),
                Err(error) => say(&format!("get failed: {:?}: {error}", error.kind())),
            });
        }
        ["watch", prefix] => {
            let watch = client.watch_prefix(prefix.as_bytes(), 0, Timeout::Default)?;
            say("watching");
            std::thread::spawn(move || {
                while let Ok(change) = watch.next(LOOK) {
                    if let Some(change) = change {
                        say(&format!("changed {}", String::from_utf8_lossy(&change.key)));
                    }
                }
            });
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn store(client: &NativeClient) -> Store {
    Store::over(Arc::new(client.clone()))
}
