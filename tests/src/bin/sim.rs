//! Plays one seed of the simulator aloud, or many quietly.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

use rendezvous_tests::sim::{self, Options, Report, Sabotage, Voice};
use std::process::ExitCode;

const USAGE: &str = "\
usage: sim --seed N [--sabotage NAME]               play one seed and print its trace
       sim --from N --count M [--sabotage NAME]     play many and print those that fail";

fn main() -> ExitCode {
    match Command::read(std::env::args().skip(1)) {
        Some(Command::One { seed, sabotage }) => one(seed, sabotage),
        Some(Command::Many { from, count, sabotage }) => many(from, count, sabotage),
        None => {
            eprintln!("{USAGE}");
            eprintln!("names: {:?}", Sabotage::ALL);
            ExitCode::from(2)
        }
    }
}

enum Command {
    One { seed: u64, sabotage: Sabotage },
    Many { from: u64, count: u64, sabotage: Sabotage },
}

impl Command {
    fn read(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let (mut seed, mut from, mut count, mut sabotage) = (None, None, None, Sabotage::None);
        while let Some(name) = arguments.next() {
            let value = arguments.next()?;
            match name.as_str() {
                "--seed" => seed = Some(value.parse().ok()?),
                "--from" => from = Some(value.parse().ok()?),
                "--count" => count = Some(value.parse().ok()?),
                "--sabotage" => {
                    sabotage = Sabotage::ALL.into_iter().find(|one| format!("{one:?}") == value)?;
                }
                _ => return None,
            }
        }
        match (seed, from, count) {
            (Some(seed), None, None) => Some(Self::One { seed, sabotage }),
            (None, Some(from), Some(count)) => Some(Self::Many { from, count, sabotage }),
            _ => None,
        }
    }
}

fn one(seed: u64, sabotage: Sabotage) -> ExitCode {
    match sim::run(seed, &Options { sabotage, voice: Voice::Loud }) {
        Ok(report) => {
            println!("all is well: {report:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            // The trace stands above already.
            eprintln!("seed {seed}: {}", failure.what);
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, count: u64, sabotage: Sabotage) -> ExitCode {
    let options = Options { sabotage, voice: Voice::Quiet };
    let (mut failed, mut reports) = (0, Vec::new());
    for seed in from..from.saturating_add(count) {
        match sim::run(seed, &options) {
            Ok(report) => reports.push(report),
            Err(failure) => {
                failed += 1;
                eprintln!("{failure}\n");
            }
        }
    }
    let sum = |number: fn(&Report) -> u64| reports.iter().map(number).sum::<u64>();
    println!(
        "{count} seeds, {failed} failed; {} events, {} deeds, {} of them answered, {} s of virtual time, {} keys undecided",
        sum(|report| report.events),
        sum(|report| report.deeds as u64),
        sum(|report| report.answered as u64),
        sum(|report| report.virtual_time.as_secs()),
        sum(|report| report.undecided as u64),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
