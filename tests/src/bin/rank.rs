//! Rank of a mixed job, for the interop tests: it joins Python ranks by URL or in a static rendezvous, takes part in
//! one exchange and one barrier, and prints what it saw. It also prints how it parses URLs and endpoints.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]
#![expect(clippy::disallowed_methods, reason = "a program may read its environment")]

use rendezvous_core::driver::elastic_store::{barrier, synchronize};
use rendezvous_core::driver::rendezvous::{Context, NodeStore, UrlOptions, build};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::elastic_store::barrier::BarrierOptions;
use rendezvous_core::rendezvous::parameters::{ConfigValue, RendezvousParameters};
use rendezvous_core::rendezvous::parse::{Endpoint, parse_config};
use rendezvous_core::rendezvous::url::{RankEnvironment, RendezvousUrl, TcpRendezvous, UrlError, WorldSize};
use std::error::Error;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const USAGE: &str = "\
usage: rank url URL RANK WORLD_SIZE                  meet by URL; -1: it or the environment says it
       rank static ENDPOINT RUN_ID RANK NODES        meet in a static rendezvous
       rank barrier HOST PORT RANK WORLD_SIZE TIMEOUT_MS TRACE_TIMEOUT_MS
       rank build HOST PORT RANK                     publish or read MASTER_ADDR and MASTER_PORT
       rank read                                     what lines on stdin mean; fields end at U+001F";

type Outcome = Result<(), Box<dyn Error>>;

const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["url", url, rank, world_size] => by_url(url, rank, world_size),
        ["static", endpoint, run_id, rank, nodes] => by_static(endpoint, run_id, rank, nodes),
        ["barrier", host, port, rank, world_size, timeout_ms, trace_timeout_ms] => {
            one_barrier([host, port, rank, world_size, timeout_ms, trace_timeout_ms])
        }
        ["build", host, port, rank] => publish(host, port, rank),
        ["read"] => read_lines(),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = outcome {
        eprintln!("rank: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn world_size_of(text: &str) -> Result<WorldSize, std::num::ParseIntError> {
    Ok(match text {
        "dynamic" => WorldSize::Dynamic,
        "-1" => WorldSize::InUrl,
        number => WorldSize::Known(number.parse()?),
    })
}

fn by_url(url: &str, rank: &str, world_size: &str) -> Outcome {
    let variable = |name| std::env::var(name).ok();
    let environment = RankEnvironment {
        rank: variable("RANK"),
        world_size: variable("WORLD_SIZE"),
        master_addr: variable("MASTER_ADDR"),
        master_port: variable("MASTER_PORT"),
        use_agent_store: variable("TORCHELASTIC_USE_AGENT_STORE"),
    };
    let (rank, world_size) = (rank.parse()?, world_size_of(world_size)?);
    let options = UrlOptions { rank, world_size, timeout: TIMEOUT, environment, ..UrlOptions::default() };
    let mut rendezvous = Context::default().rendezvous(url, options)?;
    let meeting = rendezvous.next()?;
    work(&meeting.store, meeting.rank, meeting.world_size)?;
    match rendezvous.next() {
        Ok(_) => Err("met twice".into()),
        Err(error) => {
            println!("again: {error}");
            Ok(())
        }
    }
}

fn by_static(endpoint: &str, run_id: &str, rank: &str, nodes: &str) -> Outcome {
    let parameters = RendezvousParameters::new("static", endpoint, run_id, 1, nodes.parse()?)?;
    let parameters = parameters.with("rank", rank).with("timeout", "30");
    let handler = Context::default().create_handler(&parameters)?;
    let info = handler.next_rendezvous()?;
    let address = info.bootstrap_store_info;
    println!("store at {}:{}", address.master_addr, address.master_port);
    work(&info.store, info.rank, info.world_size)
}

/// Does what every rank of the job does. The Python ranks do the same.
fn work(store: &Arc<NodeStore>, rank: i64, world_size: i64) -> Outcome {
    let role = if store.server().is_some() { "host" } else { "client" };
    println!("joined as {rank}/{world_size}, {role}");
    let local = format!("data of rank {rank} in Rust");
    let data = synchronize(store, local.as_bytes(), rank, world_size, "exchange/", TIMEOUT)?;
    for value in data {
        println!("{}", String::from_utf8_lossy(&value));
    }
    let door =
        BarrierOptions { rank: Some(rank), timeout: TIMEOUT, ..BarrierOptions::new(world_size, "door") };
    barrier(store, &door, None)?;
    println!("met");
    // The store ends with its host, so the others leave first.
    store.set(format!("left/{rank}").as_bytes(), b"", Timeout::Default)?;
    if rank == 0 {
        let left: Vec<String> = (1..world_size).map(|rank| format!("left/{rank}")).collect();
        let left: Vec<&[u8]> = left.iter().map(|key| key.as_bytes()).collect();
        store.wait(&left, Timeout::Default)?;
    }
    Ok(())
}

fn connect(host: &str, port: &str) -> Result<Store, Box<dyn Error>> {
    let options = StoreOptions { timeout: TIMEOUT, connect_timeout: TIMEOUT, ..StoreOptions::default() };
    Ok(Store::connect(host, port.parse()?, options)?)
}

fn one_barrier([host, port, rank, world_size, timeout_ms, trace_timeout_ms]: [&str; 6]) -> Outcome {
    let store = connect(host, port)?;
    let options = BarrierOptions {
        rank: Some(rank.parse()?),
        timeout: Duration::from_millis(timeout_ms.parse()?),
        trace_timeout: Duration::from_millis(trace_timeout_ms.parse()?),
        ..BarrierOptions::new(world_size.parse()?, "tr")
    };
    match barrier(&store, &options, Some(&|rank| format!("host{rank}"))) {
        Ok(()) => println!("met"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

fn publish(host: &str, port: &str, rank: &str) -> Outcome {
    let store = connect(host, port)?;
    let built = build(rank.parse()?, &store, Some("node-0.example"), None, Timeout::Default)?;
    println!("{}:{}", built.info.master_addr, built.info.master_port);
    Ok(())
}

fn read_lines() -> Outcome {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let fields: Vec<&str> = line.split('\u{1f}').collect();
        println!("{}", read(&fields)?);
    }
    Ok(())
}

fn read(fields: &[&str]) -> Result<String, Box<dyn Error>> {
    Ok(match *fields {
        ["endpoint", text] => match Endpoint::parse(text) {
            Ok(Endpoint { host, port }) => format!("{host} {}", port.map_or(-1, i32::from)),
            Err(error) => format!("ValueError: {error}"),
        },
        ["config", text] => match parse_config(text) {
            Ok(config) => {
                let options = config.iter().map(|(key, value)| match value {
                    ConfigValue::Text(value) => format!("{key}={value}"),
                    other => format!("{key}={other:?}"),
                });
                options.collect::<Vec<_>>().join(";")
            }
            Err(error) => format!("ValueError: {error}"),
        },
        ["url", url, rank, world_size, ref variables @ ..] => {
            let variable =
                |index: usize| variables.get(index).filter(|value| **value != "-").map(ToString::to_string);
            let environment = RankEnvironment {
                rank: variable(0),
                world_size: variable(1),
                master_addr: variable(2),
                master_port: variable(3),
                use_agent_store: variable(4),
            };
            match read_url(url, rank.parse()?, world_size_of(world_size)?, &environment) {
                Ok(text) => text,
                Err(error) => format!("{}: {error}", exception(&error)),
            }
        }
        _ => return Err(USAGE.into()),
    })
}

/// The exception that Python raises for an error.
const fn exception(error: &UrlError) -> &'static str {
    match error {
        UrlError::NodeArgumentsTwice { .. } | UrlError::NoHost => "AssertionError",
        UrlError::NoHandler { .. } | UrlError::NotAgain { .. } => "RuntimeError",
        UrlError::NoValue { .. } => "IndexError",
        _ => "ValueError",
    }
}

fn read_url(
    url: &str,
    rank: i64,
    world_size: WorldSize,
    environment: &RankEnvironment,
) -> Result<String, UrlError> {
    let url = RendezvousUrl::parse(url, rank, world_size, environment)?;
    let visible = |TcpRendezvous { host, port, rank, world_size, role }: TcpRendezvous| {
        format!("{role:?} {host} {port} {rank}/{world_size}")
    };
    match url.scheme() {
        "tcp" => url.tcp(environment).map(visible),
        "env" => url.env(environment).map(visible),
        "file" => url.file().map(|file| format!("{} {}/{}", file.path, file.rank, file.world_size)),
        scheme => Err(UrlError::NoHandler { scheme: scheme.into() }),
    }
}
