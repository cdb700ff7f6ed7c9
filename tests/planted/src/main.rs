//! Runs the simulator over machines in which a bug is planted: it searches all bugs, or runs seeds with one of them.

use rendezvous_core::planted::{Bug, MARK, plant};
use rendezvous_tests::sim::{Failure, Kind, Options, Sabotage, Verbosity, command, run};
use std::process::ExitCode;

const USAGE: &str = "\
usage: sim --hunt COUNT
           find each bug within COUNT seeds, and play the same seeds without it
       sim --planted NAME, and what the simulator of the workspace takes behind it, as
       sim --planted NAME --seed N [--trace]
       sim --planted NAME --from N --count M";

/// Returns the kind of world in which a bug can be detected.
const fn world(bug: Bug) -> Kind {
    match bug {
        Bug::SkippedFence
        | Bug::ShortFence
        | Bug::ForgottenWaiter
        | Bug::RepeatedRequest
        | Bug::LostAnswer
        | Bug::ReusedRound
        | Bug::UntoldSurvivor
        | Bug::ReopenedRun
        | Bug::EarlyBarrier
        | Bug::UndyingLease
        | Bug::KeptSlot => Kind::Elastic,
        Bug::PaidNewcomer
        | Bug::UnheardStop
        | Bug::BlindExitBarrier
        | Bug::SilentLeave
        | Bug::FormerRanks
        | Bug::UnforgivenFailure
        | Bug::SparedWorkers
        | Bug::BlamedVictim => Kind::Agents,
    }
}

const fn options(world: Kind) -> Options {
    Options { world, sabotage: Sabotage::None, verbosity: Verbosity::Quiet }
}

/// This many jobs take as long as one run of nodes.
const JOBS_PER_RUN: u64 = 10;

/// Returns the number of seeds that take as long as `count` seeds of nodes.
const fn seeds(world: Kind, count: u64) -> u64 {
    match world {
        Kind::Agents => count * JOBS_PER_RUN,
        Kind::Store | Kind::Elastic => count,
    }
}

/// Returns the text that identifies the report of this bug.
const fn own_reason(bug: Bug) -> &'static str {
    match bug {
        Bug::SkippedFence | Bug::ShortFence => "which is over since",
        Bug::ForgottenWaiter => "was not answered in time",
        // The client finds a gap in the sequence numbers of its frames.
        Bug::LostAnswer => "breach of the protocol",
        Bug::KeptSlot => "stays in a round",
        Bug::RepeatedRequest => "refused: AlreadyJoined",
        Bug::ReusedRound => "was formed behind",
        Bug::UntoldSurvivor => "was not notified that",
        Bug::ReopenedRun => "the closed run",
        Bug::EarlyBarrier => "opened for",
        Bug::UndyingLease => "outlives the session that it hangs on",
        Bug::PaidNewcomer => "paid for Some(Member(",
        Bug::UnheardStop => "was asked to stop at",
        Bug::BlindExitBarrier => "closes round",
        Bug::SilentLeave => "is ExitBarrier at the end of time",
        Bug::FormerRanks => "ranks: ",
        Bug::UnforgivenFailure => "paid for the death of a peer",
        Bug::SparedWorkers => "at the end of time",
        Bug::BlamedVictim => "was asked to end, and is listed",
    }
}

fn main() -> ExitCode {
    println!("{MARK}");
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("--hunt"), Some(count)) => match count.parse() {
            Ok(count) => hunt(count),
            Err(_) => usage(),
        },
        (Some("--planted"), Some(name)) => {
            match Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name) {
                Some(bug) => {
                    plant(Some(bug));
                    let world = ["--world", world(bug).name()].map(str::to_owned);
                    let ended = command::main(world.into_iter().chain(arguments));
                    println!(
                        "with {bug:?}: cargo run --manifest-path tests/planted/Cargo.toml -- --planted {bug:?} --seed N"
                    );
                    ended
                }
                None => usage(),
            }
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}\nnames: {:?}", Bug::ALL);
    ExitCode::from(2)
}

/// Each bug is detected by its own check, and without the bugs the same seeds pass.
fn hunt(count: u64) -> ExitCode {
    let (mut played, mut missed) = (Vec::new(), false);
    for bug in Bug::ALL {
        plant(Some(bug));
        let count = seeds(world(bug), count);
        let is_local = |failure: &Failure| failure.what.contains(own_reason(bug));
        let (mut first, mut local) = (None, None);
        for seed in 0..count {
            if let Err(failure) = run(seed, &options(world(bug))) {
                first.get_or_insert(seed);
                if is_local(&failure) {
                    local = Some(failure);
                    break;
                }
            }
        }
        match (local, first) {
            (Some(Failure { seed, what, .. }), first) => {
                println!("{bug:?}: seed {seed}: {what}; first noticed at {}", first.unwrap_or(seed));
                played.push((world(bug), seed + 1));
            }
            (None, first) => {
                missed = true;
                println!("{bug:?}: not found in {count} seeds; first noticed at {first:?}");
            }
        }
    }
    plant(None);
    let mut clean = 0;
    for world in Kind::ALL {
        let last = played.iter().filter(|(of, _)| *of == world).map(|(_, last)| *last).max().unwrap_or(0);
        for failure in (0..last).filter_map(|seed| run(seed, &options(world)).err()) {
            missed = true;
            println!("nothing is planted: {failure}");
        }
        clean += last;
    }
    if missed {
        return ExitCode::FAILURE;
    }
    println!("{} bugs found; without them {clean} seeds are clean", Bug::ALL.len());
    ExitCode::SUCCESS
}
