//! The simulator over many seeds, the proof that it can fail, and recorded exchanges on its network.

use crate::golden::{World, replay_all};
use rendezvous_tests::frames;
use rendezvous_tests::sim::command::sum_of_counts;
use rendezvous_tests::sim::{Failure, Kind, Options, Report, Sabotage, Verbosity, replay::Replay, run};

/// Seeds of a normal run; `SIM_SEEDS` in the environment sets another number.
const SEEDS: u64 = 200;
/// The same for worlds of nodes.
const ELASTIC_SEEDS: u64 = 1000;

/// The same for worlds of agents.
const AGENTS_SEEDS: u64 = 3000;
/// The same for worlds of members of RPC groups.
const MEMBERSHIP_SEEDS: u64 = 300;

const AGENTS: Options =
    Options { world: Kind::Agents, sabotage: Sabotage::None, verbosity: Verbosity::Quiet };
const ELASTIC: Options =
    Options { world: Kind::Elastic, sabotage: Sabotage::None, verbosity: Verbosity::Quiet };
const MEMBERSHIP: Options =
    Options { world: Kind::Membership, sabotage: Sabotage::None, verbosity: Verbosity::Quiet };

#[expect(clippy::disallowed_methods, reason = "who runs the tests decides how long they take")]
fn seeds(plain: u64) -> u64 {
    std::env::var("SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(plain)
}

/// Runs a range of seeds on several threads.
fn play(seeds: core::ops::Range<u64>, options: Options) -> Vec<Result<Report, Failure>> {
    const SHARES: u64 = 2;
    let share = |number| {
        let seeds = seeds.clone().filter(move |seed| seed % SHARES == number);
        move || seeds.map(|seed| run(seed, &options)).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SHARES).map(|number| scope.spawn(share(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic in a run")).collect()
    })
}

/// Runs a range of seeds, none of which may fail.
fn play_well(seeds: core::ops::Range<u64>, options: Options) -> Vec<Report> {
    let (reports, failures): (Vec<_>, Vec<_>) = play(seeds, options).into_iter().partition(Result::is_ok);
    let failures: Vec<String> =
        failures.iter().filter_map(|failure| failure.as_ref().err()).map(Failure::to_string).collect();
    assert!(failures.is_empty(), "{} seeds failed\n{}", failures.len(), failures.join("\n\n"));
    reports.into_iter().flatten().collect()
}

#[test]
fn every_seed_keeps_every_promise() {
    let reports = play_well(0..seeds(SEEDS), Options::default());
    let (operations, answered) = reports.iter().fold((0, 0), |(operations, answered), report| {
        (operations + report.operations, answered + report.answered)
    });
    // The storm causes failures, but leaves enough answers to check.
    assert!(
        answered * 100 > operations * 70 && answered * 100 < operations * 99,
        "{answered} of {operations} answered"
    );
    for (what, count) in sum_of_counts(&reports) {
        assert!(count * 3 >= reports.len() as u64, "{what}: {count} in {} runs", reports.len());
    }
    let undecided: usize = reports.iter().map(|report| report.undecided).sum();
    assert!(undecided <= 1 + reports.len() / 50, "{undecided} histories were not decided");
    let partial_reads: usize = reports.iter().map(|report| report.partial_reads).sum();
    assert!(partial_reads > 0, "no request came between the parts of another one");
}

#[test]
fn every_seed_of_nodes_keeps_every_promise() {
    let reports = play_well(0..seeds(ELASTIC_SEEDS), ELASTIC);
    let mut counts = sum_of_counts(&reports);
    counts.push(("answers", reports.iter().map(|report| report.answered as u64).sum()));
    // Each of these must happen often, or the test proves nothing; two runs of three resume a session.
    let least = [
        4.0, 0.5, 100.0, 1.0, 5.0, 1.0, 1.0, 10.0, 10.0, 0.2, 0.5, 0.5, 0.3, 0.5, 20.0, 20.0, 1.0, 2.0, 0.5,
        0.5, 0.1, 0.1, 40.0,
    ];
    assert_eq!(counts.len(), least.len());
    for ((what, count), least) in counts.into_iter().zip(least) {
        assert!(count as f64 >= least * reports.len() as f64, "{what}: {count} in {} runs", reports.len());
    }
    let undecided: usize = reports.iter().map(|report| report.undecided).sum();
    assert!(undecided <= 1 + reports.len() / 50, "{undecided} histories were not decided");
}

#[test]
fn every_seed_of_agents_keeps_every_promise() {
    let reports = play_well(0..seeds(AGENTS_SEEDS), AGENTS);
    // Each of these must happen, or the test proves nothing.
    for (what, count) in sum_of_counts(&reports) {
        assert!(count * 1000 >= reports.len() as u64, "{what}: {count} in {} runs", reports.len());
    }
}

#[test]
fn every_seed_of_members_keeps_every_promise() {
    let reports = play_well(0..seeds(MEMBERSHIP_SEEDS), MEMBERSHIP);
    // What never happened was not tested. Twins die once in three runs.
    for ((what, count), least) in sum_of_counts(&reports).into_iter().zip([20, 10, 1, 1]) {
        assert!(count * 3 >= least * reports.len() as u64, "{what}: {count} in {} runs", reports.len());
    }
}

#[test]
fn a_seed_is_played_the_same_each_time() {
    // From seed 64 on, the world has RPC workers and agents.
    for (from, options) in
        [(0, Options::default()), (0, ELASTIC), (64, ELASTIC), (0, AGENTS), (0, MEMBERSHIP)]
    {
        let seeds = from..from + 20;
        let (first, second) = (play(seeds.clone(), options), play(seeds, options));
        assert_eq!(first, second);
        let mut hashes: Vec<u64> = first.iter().flatten().map(|report| report.trace_hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 20, "different seeds are different runs");
    }
}

/// Every fault is detected in many runs, though not in those where it has no effect, and in some of them by the check
/// that is meant for it.
#[test]
fn every_sabotage_is_noticed() {
    const RUNS: u64 = 24;
    for sabotage in Sabotage::STORE {
        let own_reason = match sabotage {
            Sabotage::DroppedByte | Sabotage::DoubledByte | Sabotage::FlippedBit => "breach of the protocol",
            Sabotage::DoubledAdd => "calm/n: ",
            Sabotage::LostSet => "calm/own",
            Sabotage::StaleSet => "no order that explains",
            Sabotage::DoubledArrival => "opened to",
            Sabotage::LostItem => "q/",
            Sabotage::LeakedWait => "does not return to its floor",
            Sabotage::SleepyClient => "outlives its deadline",
            _ => continue,
        };
        let options = Options { sabotage, ..Options::default() };
        let reports = play(0..RUNS, options);
        let failures: Vec<&Failure> = reports.iter().filter_map(|report| report.as_ref().err()).collect();
        assert!(failures.len() * 4 > reports.len(), "{sabotage:?} was noticed in {} runs", failures.len());
        let reasons: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
        assert!(reasons.iter().any(|reason| reason.contains(own_reason)), "{sabotage:?}: {reasons:#?}");
    }
}

/// The same for nodes: each fault is detected, and the first report comes from the check that is meant for it.
#[test]
fn every_sabotage_of_nodes_is_noticed() {
    /// Most runs until a fault must be detected by its own check.
    const RUNS: u64 = 120;
    for &sabotage in Kind::Elastic.sabotages() {
        let own_reason = match sabotage {
            Sabotage::SkippedFence => "is over, and its keys changed",
            Sabotage::ForgottenWaiter => "was not answered in time",
            Sabotage::TwoRounds => "two rounds",
            Sabotage::DoubledRank => "was given twice",
            Sabotage::RepeatedRequest => "no more than",
            Sabotage::UntoldSurvivor => "was not notified that",
            Sabotage::ReopenedRun => "the closed run",
            Sabotage::LostChange => "leaves out revision",
            Sabotage::EarlyBarrier => "opened for",
            Sabotage::UndyingSession => "outlives its grace",
            Sabotage::SleepyNode => "outlives its deadline",
            _ => continue,
        };
        let options = Options { sabotage, ..ELASTIC };
        let mut others = Vec::new();
        let found = (0..RUNS).filter_map(|seed| run(seed, &options).err()).find(|failure| {
            let is_local = failure.what.contains(own_reason);
            if !is_local {
                others.push(failure.what.clone());
            }
            is_local
        });
        assert!(found.is_some(), "{sabotage:?} was not found, but for {others:#?}");
    }
}

#[test]
fn a_failure_names_its_seed_and_how_to_play_it_again() {
    for (world, sabotage) in [(Kind::Store, Sabotage::DoubledByte), (Kind::Elastic, Sabotage::DoubledRank)] {
        let options = Options { world, sabotage, ..Options::default() };
        let failure = (0..50).find_map(|seed| run(seed, &options).err()).expect("a seed that fails");
        let text = failure.to_string();
        let command = format!(
            "cargo run -p rendezvous-tests --bin sim -- --world {} --seed {} --trace --sabotage {sabotage:?}",
            world.name(),
            failure.seed
        );
        assert!(text.ends_with(&command), "{text}");
        assert!(text.lines().count() > 10, "a trace stands before it: {text}");
    }
}

impl World for Replay {
    fn connect(&mut self) -> usize {
        Self::connect(self)
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) {
        Self::send(self, conn, bytes);
    }

    fn receive(&mut self, conn: usize, bytes: usize) -> Vec<u8> {
        Self::receive(self, conn, bytes)
    }

    fn receive_all(&mut self, conn: usize) -> Vec<u8> {
        Self::receive_all(self, conn)
    }
}

#[test]
fn recorded_exchanges_pass_through_the_network() {
    for seed in 0..50 {
        assert_eq!(replay_all(|| Replay::new(seed)), 89, "seed {seed}");
    }
}

/// The network delays and splits: what is sent at once arrives in many pieces, but completely.
#[test]
fn the_network_delivers_everything_in_order() {
    for seed in 0..20 {
        let mut replay = Replay::new(seed);
        let conn = Replay::connect(&mut replay);
        let value: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
        let request = [frames::greeting(), frames::set(b"/k", &value), frames::get(b"/k")].concat();
        Replay::send(&mut replay, conn, &request);
        assert_eq!(
            Replay::receive(&mut replay, conn, 8 + value.len()),
            frames::string(&value),
            "seed {seed}"
        );
    }
}
