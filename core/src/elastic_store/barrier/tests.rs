use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;

/// Several arrivals at one barrier, in virtual milliseconds, over a store in memory.
#[derive(Default)]
struct World {
    keys: BTreeSet<Box<str>>,
    numbers: BTreeMap<Box<str>, i64>,
    ended: BTreeMap<i64, (u64, String)>,
}

impl World {
    fn answer(&mut self, step: &Step, now: Instant) -> Option<Outcome> {
        match step {
            Step::Add { key, delta } => {
                let number = self.numbers.entry(key.clone()).or_default();
                *number += delta;
                Some(Outcome::Number(*number))
            }
            Step::Mark { key } => {
                self.keys.insert(key.clone());
                Some(Outcome::Applied)
            }
            Step::Check { keys } => {
                let all = keys.iter().all(|key| self.keys.contains(key));
                Some(if all { Outcome::Ready } else { Outcome::NotReady })
            }
            Step::Wait { key, .. } if self.keys.contains(key) => Some(Outcome::Released),
            &Step::Wait { until, .. } => (until <= now).then_some(Outcome::Missing),
        }
    }

    /// Runs arrivals of ranks at times in ms. Returns when and how each ended.
    fn run(
        world_size: i64,
        timeout_ms: u64,
        trace_ms: u64,
        arrivals: &[(i64, u64)],
    ) -> Vec<(i64, u64, String)> {
        let mut world = Self::default();
        let mut options = BarrierOptions::new(world_size, "b/");
        options.timeout = Duration::from_millis(timeout_ms);
        options.trace_timeout = Duration::from_millis(trace_ms);
        let mut machines: BTreeMap<i64, TracedBarrier> = BTreeMap::new();
        for now_ms in 0..100_000 {
            let now = Instant::from_millis(now_ms);
            for &(rank, _) in arrivals.iter().filter(|&&(_, at_ms)| at_ms == now_ms) {
                let options = BarrierOptions { rank: Some(rank), ..options.clone() };
                machines.insert(rank, TracedBarrier::new(options).expect("sound"));
            }
            // Until no rank can proceed at this time, so that the result does not depend on the order of the ranks.
            let mut is_moving = true;
            while is_moving {
                is_moving = false;
                for machine in machines.values_mut() {
                    while let Some(outcome) = machine.next_step().and_then(|step| world.answer(&step, now)) {
                        machine.handle(now, outcome).expect("belongs to the step");
                        is_moving = true;
                    }
                }
            }
            for (rank, machine) in &machines {
                if let Some(barrier_outcome) = machine.barrier_outcome() {
                    let options = BarrierOptions { rank: Some(*rank), ..options.clone() };
                    let reported =
                        BarrierTimeout::of(&options, barrier_outcome, &|rank| format!("host{rank}"));
                    let reported = reported
                        .map_or_else(|| format!("{barrier_outcome:?}"), |reported| reported.names.join(", "));
                    world.ended.entry(*rank).or_insert((now_ms, reported));
                }
            }
            if world.ended.len() == arrivals.len() {
                break;
            }
        }
        world.ended.into_iter().map(|(rank, (at, reported))| (rank, at, reported)).collect()
    }
}

const ASK: &str = "[<check rank 0 (host0) for missing rank info>]";

#[test]
fn all_come() {
    let ended = World::run(3, 100, 1000, &[(0, 0), (2, 20), (1, 90)]);
    assert_eq!(ended, [0, 1, 2].map(|rank| (rank, 90, "Released".to_string())));
}

#[test]
fn rank_zero_names_the_missing_and_the_others_point_to_it() {
    // No rank waits for the whole trace timeout: with the last trace, there are as many traces as arrivals.
    let ended = World::run(5, 1000, 10_000, &[(0, 0), (1, 30), (3, 5)]);
    assert_eq!(ended.len(), 3);
    for (rank, at_ms, reported) in ended {
        assert_eq!(reported, if rank == 0 { "host2, host4" } else { ASK });
        assert!((1000..1100).contains(&at_ms), "rank {rank} at {at_ms}");
    }
}

#[test]
fn a_missing_rank_zero_is_named_at_once() {
    for (world_size, arrivals, reported) in [
        (2, &[(1, 0)][..], "host0"),
        (4, &[(1, 0), (2, 40), (3, 20)], "host0"),
        (5, &[(1, 0), (3, 40)], "host0, host2, host4"),
    ] {
        for (rank, at_ms, found) in World::run(world_size, 1000, 10_000, arrivals) {
            assert_eq!(found, reported, "rank {rank} of {world_size}");
            assert!((1000..1200).contains(&at_ms), "rank {rank} at {at_ms}");
        }
    }
}

#[test]
fn a_rank_zero_that_came_late_is_waited_for() {
    let ended = World::run(3, 1000, 10_000, &[(1, 0), (0, 900)]);
    assert_eq!(ended[0], (0, 1900, "host2".to_string()));
    assert_eq!((ended[1].0, ended[1].2.as_str()), (1, ASK));
    assert!((1900..2500).contains(&ended[1].1), "{}", ended[1].1);
}

/// An arrival without a rank leaves no trace, so the missing ranks are never certain.
fn with_a_stranger(rank: i64, timeout_ms: u64, trace_ms: u64) -> (u64, BarrierOutcome) {
    let mut world = World::default();
    world.numbers.insert("b//num_members".into(), 1);
    let mut options = BarrierOptions::new(3, "b/");
    options.rank = Some(rank);
    options.timeout = Duration::from_millis(timeout_ms);
    options.trace_timeout = Duration::from_millis(trace_ms);
    let mut machine = TracedBarrier::new(options).expect("sound");
    for now_ms in 0.. {
        let now = Instant::from_millis(now_ms);
        while let Some(step) = machine.next_step() {
            let Some(outcome) = world.answer(&step, now) else { break };
            machine.handle(now, outcome).expect("belongs to the step");
        }
        if let Some(barrier_outcome) = machine.barrier_outcome() {
            return (now_ms, barrier_outcome.clone());
        }
    }
    unreachable!()
}

#[test]
fn what_is_not_certain_is_waited_for_as_long_as_traces_are() {
    assert_eq!(with_a_stranger(0, 100, 2000), (2100, BarrierOutcome::Missing(vec![1, 2])));
    assert_eq!(with_a_stranger(1, 3000, 2000), (5000, BarrierOutcome::Missing(vec![0, 2])));
    // At most the timeout of the barrier.
    assert_eq!(with_a_stranger(1, 100, 2000), (200, BarrierOutcome::Missing(vec![0, 2])));
}

#[test]
fn sixteen_are_named() {
    let ended = World::run(100, 50, 100, &[(0, 0), (7, 0)]);
    let expected: Vec<String> = (1..18).filter(|&rank| rank != 7).map(|rank| format!("host{rank}")).collect();
    assert_eq!(ended[0].2, expected.join(", "));
}

#[test]
fn keys_are_those_of_pytorch() {
    let mut options = BarrierOptions::new(2, "tr");
    options.rank = Some(0);
    options.timeout = Duration::from_millis(1000);
    let mut machine = TracedBarrier::new(options).expect("sound");
    let now = Instant::from_millis(0);
    let mut keys = Vec::new();
    for outcome in [
        Outcome::Number(1),
        Outcome::Missing,
        Outcome::Applied,
        Outcome::Number(1),
        Outcome::Ready,
        Outcome::NotReady,
        Outcome::Applied,
    ] {
        match machine.next_step().expect("not at the end") {
            Step::Add { key, .. } | Step::Mark { key } | Step::Wait { key, .. } => keys.push(key),
            Step::Check { keys: range } => keys.extend(range),
        }
        machine.handle(now, outcome).expect("fits");
    }
    assert_eq!(
        keys,
        [
            "tr/num_members",
            "tr/last_member",
            "tr0/TRACE",
            "tr/num_members",
            "tr0/TRACE",
            "tr1/TRACE",
            "tr/TRACING_GATE"
        ]
        .map(Box::from)
    );
    assert_eq!(machine.barrier_outcome(), Some(&BarrierOutcome::Missing(vec![1])));
    assert_eq!(machine.next_step(), None);
}

#[test]
fn the_message_is_that_of_pytorch() {
    let mut options = BarrierOptions::new(5, "tr");
    options.timeout = Duration::from_secs(1);
    options.rank = Some(0);
    let names = |rank| format!("host{rank}");
    let reported =
        |options: &BarrierOptions, barrier_outcome| BarrierTimeout::of(options, &barrier_outcome, &names);
    assert_eq!(
        reported(&options, BarrierOutcome::Missing(vec![2, 4])).expect("words").to_string(),
        "Timed out waiting on barrier on rank 0, for key prefix: tr (world_size=5, missing_ranks=[host2, host4], \
         timeout=1.0)"
    );
    options.rank = Some(3);
    options.timeout = Duration::from_millis(250);
    assert_eq!(
        reported(&options, BarrierOutcome::AskRankZero).expect("words").to_string(),
        "Timed out waiting on barrier on rank 3, for key prefix: tr (world_size=5, missing_ranks=[[<check rank 0 \
         (host0) for missing rank info>]], timeout=0.25)"
    );
    assert_eq!(reported(&options, BarrierOutcome::Released), None);
    assert_eq!(reported(&options, BarrierOutcome::TimedOut), None);
}

#[test]
fn without_a_rank_there_is_no_search() {
    let mut machine = TracedBarrier::new(BarrierOptions::new(2, "tr")).expect("sound");
    let now = Instant::from_millis(0);
    machine.handle(now, Outcome::Number(1)).expect("fits");
    let until = now + BARRIER_TIMEOUT;
    assert_eq!(machine.next_step(), Some(Step::Wait { key: "tr/last_member".into(), until }));
    assert!(!machine.is_tracing());
    let error = machine.handle(now, Outcome::Applied).expect_err("of another step");
    assert_eq!(error.step, machine.next_step());
    machine.handle(now, Outcome::Missing).expect("fits");
    assert_eq!(machine.barrier_outcome(), Some(&BarrierOutcome::TimedOut));
}

#[test]
fn groups_that_make_no_sense() {
    for (world_size, rank, text) in [
        (0, None, "The world size (0) must be greater than zero."),
        (-1, Some(0), "The world size (-1) must be greater than zero."),
        (2, Some(2), "The rank (2) must be at least 0 and less than the world size (2)."),
        (2, Some(-1), "The rank (-1) must be at least 0 and less than the world size (2)."),
    ] {
        let options = BarrierOptions { rank, ..BarrierOptions::new(world_size, "b") };
        assert_eq!(TracedBarrier::new(options).expect_err("refused").to_string(), text);
    }
}
