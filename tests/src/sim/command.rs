//! Command line of the simulator: it runs one seed, with a trace if requested, or many.

use super::{Counts, Kind, Options, Report, Sabotage, Verbosity, run};
use std::process::ExitCode;

const USAGE: &str = "\
usage: sim --seed N [--world store|elastic|agents|membership] [--sabotage NAME] [--trace]
           run one seed, and with --trace print its trace; without a world, in all worlds
       sim --from N --count M [--world store|elastic|agents|membership] [--sabotage NAME]
           run many seeds and print those that fail
bugs of the state machines are patches: see docs/testing.md";

/// Runs what the arguments say.
#[must_use]
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let Some(command) = Command::read(arguments) else {
        eprintln!("{USAGE}");
        for kind in Kind::ALL {
            eprintln!("names for --world {}: {:?}", kind.name(), kind.sabotages());
        }
        return ExitCode::from(2);
    };
    let played = command.worlds.iter().map(|&world| match command.seeds {
        Seeds::One(seed) => one(seed, command.options(world)),
        Seeds::Many { from, count } => many(from, count, command.options(world)),
    });
    // All worlds are run, even after a failure.
    let played: Vec<bool> = played.collect();
    if played.into_iter().all(|well| well) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

enum Seeds {
    One(u64),
    Many { from: u64, count: u64 },
}

struct Command {
    seeds: Seeds,
    worlds: Vec<Kind>,
    sabotage: Sabotage,
    verbosity: Verbosity,
}

impl Command {
    fn read(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let (mut seed, mut from, mut count, mut sabotage) = (None, None, None, Sabotage::None);
        let (mut world, mut verbosity) = (None, Verbosity::Quiet);
        while let Some(name) = arguments.next() {
            if name == "--trace" {
                verbosity = Verbosity::Loud;
                continue;
            }
            let value = arguments.next()?;
            match name.as_str() {
                "--seed" => seed = Some(value.parse().ok()?),
                "--from" => from = Some(value.parse().ok()?),
                "--count" => count = Some(value.parse().ok()?),
                "--world" => world = Some(Kind::ALL.into_iter().find(|kind| kind.name() == value)?),
                "--sabotage" => {
                    let all = Kind::ALL.iter().flat_map(|kind| kind.sabotages());
                    sabotage = *all.into_iter().find(|one| format!("{one:?}") == value)?;
                }
                _ => return None,
            }
        }
        let seeds = match (seed, from, count) {
            (Some(seed), None, None) => Seeds::One(seed),
            (None, Some(from), Some(count)) => Seeds::Many { from, count },
            _ => return None,
        };
        // A fault belongs to one kind of world.
        let fits = |kind: &Kind| {
            world.is_none_or(|world| world == *kind)
                && (sabotage == Sabotage::None || kind.sabotages().contains(&sabotage))
        };
        let worlds: Vec<Kind> = Kind::ALL.into_iter().filter(fits).collect();
        (!worlds.is_empty()).then_some(Self { seeds, worlds, sabotage, verbosity })
    }

    const fn options(&self, world: Kind) -> Options {
        Options { world, sabotage: self.sabotage, verbosity: self.verbosity }
    }
}

fn one(seed: u64, options: Options) -> bool {
    let played = run(seed, &options);
    match &played {
        Ok(report) => println!("{}: passed: {report:?}", options.world.name()),
        // The trace was printed already.
        Err(failure) if options.verbosity == Verbosity::Loud => {
            eprintln!("{}: seed {seed}: {}", options.world.name(), failure.what);
        }
        Err(failure) => eprintln!("{failure}"),
    }
    played.is_ok()
}

fn many(from: u64, count: u64, options: Options) -> bool {
    let (mut failed, mut reports) = (0, Vec::new());
    for seed in from..from.saturating_add(count) {
        match run(seed, &options) {
            Ok(report) => reports.push(report),
            Err(failure) => {
                failed += 1;
                eprintln!("{failure}\n");
            }
        }
    }
    let sum = |number: fn(&Report) -> u64| reports.iter().map(number).sum::<u64>();
    println!(
        "{}: {count} seeds, {failed} failed; {} events, {} operations, {} of them answered, {} s of virtual time, {} keys undecided",
        options.world.name(),
        sum(|report| report.events),
        sum(|report| report.operations as u64),
        sum(|report| report.answered as u64),
        sum(|report| report.virtual_time.as_secs()),
        sum(|report| report.undecided as u64),
    );
    let total: Vec<String> =
        sum_of_counts(&reports).iter().map(|(what, count)| format!("{count} {what}")).collect();
    if !total.is_empty() {
        println!("{}", total.join(", "));
    }
    failed == 0
}

/// Returns the sums of the counts of runs of one kind of world.
#[must_use]
pub fn sum_of_counts(reports: &[Report]) -> Counts {
    let mut sums = Counts::new();
    for &(what, count) in reports.iter().flat_map(|report| &report.counts) {
        match sums.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum += count,
            None => sums.push((what, count)),
        }
    }
    sums
}
