//! Decisions of a run, with their reasons: when a round is formed, when it ends, and which node gets which rank.

use super::node::{NodeName, natural};
use super::state::Phase;
use crate::prelude::*;
use alloc::collections::BinaryHeap;
use core::cmp::Ordering;

/// How long a round with enough nodes waits for more. In every case the wait ends before the first of the waiting
/// nodes would time out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastCall {
    /// This time from when there were enough nodes.
    Fixed(Duration),
    /// This time from the last arrival: for nodes that join one after the other.
    FromLastArrival(Duration),
    /// Without a last call; but a node of the last round that may still rejoin is waited for.
    None,
}

/// Whether a round is formed as soon as every living node of the last one has rejoined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastQuorum {
    /// Yes: after a failure there is no wait for a last call.
    Enabled,
    /// No: the last call gives a restarting node time to be in the next round.
    Disabled,
}

/// Assignment of ranks. Ranks are dense in each order; ties are broken by name, with numbers in names compared as
/// numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankOrder {
    /// A node of the last round keeps its rank or, where there are fewer ranks, its order relative to the others. New
    /// nodes fill the gaps. Rank 0 goes to a node of the last round if there is one, because that node has the job's
    /// state.
    Sticky,
    /// By name of the host.
    Host,
    /// By the rank that each node asked for; nodes that asked for none come last.
    NodeRank,
    /// By the value of this label; nodes without it come last.
    Label(Box<str>),
}

/// Exclusion of a host after consecutive failures, each within `window` of the one before. The host is excluded for
/// `pause`, and twice as long after each further failure, up to `pause_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoolDown {
    /// Number of consecutive failures that exclude the host.
    pub failures: u32,
    /// A failure later than this after the last one starts the count again.
    pub window: Duration,
    /// Length of the first pause.
    pub pause: Duration,
    /// Length of the longest pause.
    pub pause_max: Duration,
}

/// The failures of one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostRecord {
    pub(super) failures: u32,
    pub(super) last: Instant,
}

impl HostRecord {
    /// Returns the record after one more failure.
    pub(super) fn add(record: Option<Self>, policy: &CoolDown, now: Instant) -> Self {
        let in_a_row = record.filter(|record| now.since(record.last) <= policy.window);
        Self { failures: in_a_row.map_or(0, |record| record.failures).saturating_add(1), last: now }
    }

    /// Returns the time for which the host is still excluded.
    pub(super) fn remaining(&self, policy: &CoolDown, now: Instant) -> Option<Duration> {
        let beyond = self.failures.checked_sub(policy.failures)?;
        let pause = policy.pause.saturating_mul(2_u32.saturating_pow(beyond)).min(policy.pause_max);
        pause.checked_sub(now.since(self.last)).filter(|remaining| !remaining.is_zero())
    }
}

/// The state of a run on which a decision depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Phase of the run.
    pub phase: Phase,
    /// Whether no round of this group was formed yet.
    pub is_first: bool,
    /// Number of nodes in the round that forms.
    pub joining: u32,
    /// Number of spares that would get a slot if the round were formed now.
    pub spares: u32,
    /// Number of nodes in the round that forms that were in the last round.
    pub returned: u32,
    /// Number of nodes of the last round that have not rejoined and may.
    pub due: u32,
    /// Number of nodes in the live round.
    pub active: u32,
    /// Number of nodes that left the live round because they were done.
    pub finished: u32,
    /// Number of nodes that the next round needs.
    pub minimum: u32,
    /// Largest number of nodes of a round.
    pub max_nodes: u32,
    /// Number of nodes that the live round needs.
    pub minimum_to_continue: u32,
    /// The run's setting.
    pub last_call: LastCall,
    /// The run's setting.
    pub fast_quorum: FastQuorum,
    /// When there were enough nodes.
    pub enough_since: Instant,
    /// When the last of them joined.
    pub last_arrival: Instant,
    /// When the first of them times out.
    pub first_timeout_at: Option<Instant>,
}

/// What a run is to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Action {
    /// Nothing until this time, or until the next input.
    #[error("waits")]
    Wait(Option<Instant>),
    /// Begin the last call.
    #[error("last call opens")]
    OpenLastCall,
    /// Cancel the last call.
    #[error("last call taken back")]
    CancelLastCall,
    /// Form the round.
    #[error("round formed")]
    CompleteRound,
    /// End the live round.
    #[error("round over")]
    EndRound,
}

/// The reason for an [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// As many nodes have joined as a round takes.
    #[error("the maximum of {nodes} nodes is there")]
    MaximumReached {
        /// Number of nodes.
        nodes: u32,
    },
    /// Every living node of the last round has rejoined.
    #[error("every living node of the last round is back; {nodes} nodes are there")]
    QuorumReturned {
        /// Number of all nodes that have joined.
        nodes: u32,
    },
    /// Enough nodes have joined, and no last call is set.
    #[error("the minimum is there, {nodes} nodes, and there is no last call")]
    MinimumReached {
        /// Number of nodes.
        nodes: u32,
    },
    /// The last call is over.
    #[error("the last call is over; {nodes} nodes are there")]
    LastCallEnded {
        /// Number of nodes.
        nodes: u32,
    },
    /// The first of the waiting nodes would time out now, and there are enough.
    #[error("{nodes} nodes are enough, and the first of them would give up now")]
    TimeoutNear {
        /// Number of nodes.
        nodes: u32,
    },
    /// Enough nodes have joined for the last call.
    #[error("{nodes} nodes are enough for the last call")]
    LastCallOpened {
        /// Number of nodes.
        nodes: u32,
    },
    /// There are not, or no longer, enough nodes.
    #[error("{nodes} of at least {minimum} nodes are there")]
    BelowMinimum {
        /// Number of nodes.
        nodes: u32,
        /// Number of nodes that are needed.
        minimum: u32,
    },
    /// All nodes have left the live round.
    #[error("none of its nodes is in it any more")]
    Deserted,
    /// Too few nodes are left in the live round.
    #[error("{nodes} of at least {minimum} nodes are left in it")]
    BelowMinimumToContinue {
        /// Number of nodes left, including those that were done.
        nodes: u32,
        /// Number of nodes that are needed.
        minimum: u32,
    },
    /// The live round goes on.
    #[error("the round goes on with {nodes} nodes")]
    RoundContinues {
        /// Number of nodes in it.
        nodes: u32,
    },
    /// There are enough nodes; others may still join.
    #[error("{nodes} nodes are enough; the last call runs")]
    LastCallRuns {
        /// Number of nodes.
        nodes: u32,
    },
    /// The run is closed.
    #[error("the run is closed")]
    Closed,
}

/// Returns what is to be done, and why.
pub fn decide(now: Instant, view: &View) -> (Action, Reason) {
    match view.phase {
        Phase::Closed => (Action::Wait(None), Reason::Closed),
        Phase::Complete | Phase::Draining => decide_live(view),
        Phase::Gathering | Phase::LastCall => decide_forming(now, view),
    }
}

fn decide_live(view: &View) -> (Action, Reason) {
    let (nodes, minimum) = (view.active + view.finished, view.minimum_to_continue);
    if view.active == 0 {
        (Action::EndRound, Reason::Deserted)
    } else if nodes < minimum {
        (Action::EndRound, Reason::BelowMinimumToContinue { nodes, minimum })
    } else {
        (Action::Wait(view.first_timeout_at), Reason::RoundContinues { nodes: view.active })
    }
}

fn decide_forming(now: Instant, view: &View) -> (Action, Reason) {
    // Spares fill a round, but no round counts as full, or as overdue, because of spares while the nodes that they
    // replace may still join.
    let (nodes, minimum) = (view.joining + view.spares, view.minimum);
    if view.joining >= view.max_nodes {
        return (Action::CompleteRound, Reason::MaximumReached { nodes });
    }
    if nodes < minimum {
        let reason = Reason::BelowMinimum { nodes, minimum };
        return match view.phase {
            Phase::LastCall => (Action::CancelLastCall, reason),
            _ => (Action::Wait(view.first_timeout_at), reason),
        };
    }
    if view.fast_quorum == FastQuorum::Enabled && view.returned > 0 && view.due == 0 {
        return (Action::CompleteRound, Reason::QuorumReturned { nodes });
    }
    // The nodes of a first round have yet to join, so no spare replaces one of them at once.
    let is_complete = view.due == 0 && !(view.is_first && view.joining < minimum);
    let ends = match view.last_call {
        LastCall::None if is_complete => {
            return (Action::CompleteRound, Reason::MinimumReached { nodes });
        }
        _ if view.phase == Phase::Gathering => {
            return (Action::OpenLastCall, Reason::LastCallOpened { nodes });
        }
        // New nodes are not waited for, but nodes that may rejoin are, and nodes of a first round that only a spare
        // replaces.
        LastCall::None => Instant::MAX,
        LastCall::Fixed(span) => view.enough_since + span,
        LastCall::FromLastArrival(span) => view.enough_since.max(view.last_arrival) + span,
    };
    if now >= ends {
        return (Action::CompleteRound, Reason::LastCallEnded { nodes });
    }
    match view.first_timeout_at {
        Some(first_timeout_at) if now >= first_timeout_at => {
            (Action::CompleteRound, Reason::TimeoutNear { nodes })
        }
        first_timeout_at => {
            let until = first_timeout_at.map_or(ends, |first_timeout_at| first_timeout_at.min(ends));
            let until = Some(until).filter(|&until| until != Instant::MAX);
            (Action::Wait(until), Reason::LastCallRuns { nodes })
        }
    }
}

/// The properties of a node on which the order of ranks depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) node: &'a NodeName,
    pub(super) last_rank: Option<u32>,
    pub(super) node_rank: Option<u32>,
    pub(super) label: Option<&'a str>,
}

/// Returns indexes into `candidates`, in the order of their ranks.
pub(super) fn order(policy: &RankOrder, candidates: &[Candidate<'_>]) -> Vec<usize> {
    // A heap sort compiles to far less code than a slice sort, and rounds are rare.
    let ranked = candidates.iter().enumerate().map(|(index, candidate)| Ranked { policy, candidate, index });
    let ranked = ranked.collect::<BinaryHeap<_>>().into_sorted_vec();
    let indexes: Vec<usize> = ranked.into_iter().map(|ranked| ranked.index).collect();
    match policy {
        RankOrder::Host | RankOrder::NodeRank | RankOrder::Label(_) => indexes,
        RankOrder::Sticky => keep_ranks(&indexes, candidates),
    }
}

/// A candidate, ordered by the policy, then by name, then by index.
#[derive(Debug)]
struct Ranked<'a> {
    policy: &'a RankOrder,
    candidate: &'a Candidate<'a>,
    index: usize,
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.candidate, other.candidate);
        let by_policy = match self.policy {
            RankOrder::Host => Ordering::Equal,
            RankOrder::NodeRank => last_if_none(a.node_rank, b.node_rank, u32::cmp),
            RankOrder::Label(_) => last_if_none(a.label, b.label, |a, b| natural(a, b)),
            RankOrder::Sticky => last_if_none(a.last_rank, b.last_rank, u32::cmp),
        };
        by_policy.then_with(|| a.node.cmp(b.node)).then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked<'_> {}

fn last_if_none<T>(a: Option<T>, b: Option<T>, compare: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => compare(&a, &b),
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}

/// Assigns ranks so that candidates with a last rank keep it where possible. `sorted` has these first, in that order.
/// From the last one down, each gets the highest rank that is not above its last one and below that of the candidate
/// after it.
fn keep_ranks(sorted: &[usize], candidates: &[Candidate<'_>]) -> Vec<usize> {
    let survivors = sorted.iter().take_while(|&&index| candidates[index].last_rank.is_some()).count();
    let (survivors, newcomers) = sorted.split_at(survivors);
    let mut ranks: Vec<Option<usize>> = Vec::new();
    ranks.resize(sorted.len(), None);
    let mut above = sorted.len();
    for (at, &index) in survivors.iter().enumerate().rev() {
        let last = candidates[index].last_rank.map_or(0, |rank| usize::try_from(rank).unwrap_or(usize::MAX));
        above = if at == 0 { 0 } else { last.min(above - 1) };
        ranks[above] = Some(index);
    }
    let mut newcomers = newcomers.iter().copied();
    ranks.into_iter().filter_map(|taken| taken.or_else(|| newcomers.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    type Row = (&'static str, Option<u32>, Option<u32>, Option<&'static str>);

    fn ranked(policy: &RankOrder, rows: &[Row]) -> String {
        let names: Vec<NodeName> = rows.iter().map(|row| NodeName::plain(row.0)).collect();
        let candidates: Vec<Candidate<'_>> = rows
            .iter()
            .zip(&names)
            .map(|(&(_, last_rank, node_rank, label), node)| Candidate { node, last_rank, node_rank, label })
            .collect();
        let order: Vec<&str> = order(policy, &candidates).into_iter().map(|index| rows[index].0).collect();
        order.join(" ")
    }

    fn sticky(rows: &[(&'static str, Option<u32>)]) -> String {
        let rows: Vec<Row> = rows.iter().map(|&(name, last)| (name, last, None, None)).collect();
        ranked(&RankOrder::Sticky, &rows)
    }

    #[test]
    fn sticky_ranks_keep_rank_or_order() {
        assert_eq!(sticky(&[("n10", None), ("n9", None), ("n1", None)]), "n1 n9 n10");
        // Growing: everybody stays, however small the newcomer's name.
        assert_eq!(sticky(&[("a", None), ("b", Some(0)), ("c", Some(1))]), "b c a");
        // A gap is filled by the newcomer.
        assert_eq!(sticky(&[("z", None), ("a", Some(0)), ("c", Some(2)), ("d", Some(3))]), "a z c d");
        // Shrinking: the order stays, and what rank can.
        assert_eq!(sticky(&[("a", Some(0)), ("c", Some(2)), ("d", Some(3))]), "a c d");
        assert_eq!(sticky(&[("a", Some(0)), ("d", Some(3)), ("z", None)]), "a z d");
        // Rank 0 is one that knows the job, not a newcomer.
        assert_eq!(sticky(&[("a", None), ("b", Some(1)), ("c", Some(2))]), "b a c");
    }

    #[test]
    fn other_orders_sort_by_what_they_name() {
        let rows = [
            ("n10", Some(0), Some(1), Some("rack2")),
            ("n9", Some(1), None, Some("rack10")),
            ("n1", None, Some(0), None),
            ("n2", None, Some(1), Some("rack2")),
        ];
        assert_eq!(ranked(&RankOrder::Host, &rows), "n1 n2 n9 n10");
        assert_eq!(ranked(&RankOrder::NodeRank, &rows), "n1 n2 n10 n9");
        assert_eq!(ranked(&RankOrder::Label("rack".into()), &rows), "n2 n10 n9 n1");
    }

    #[test]
    fn a_host_cools_down_longer_each_time_and_is_forgiven() {
        let policy = CoolDown {
            failures: 2,
            window: Duration::from_secs(60),
            pause: Duration::from_secs(10),
            pause_max: Duration::from_secs(25),
        };
        let at = |seconds: u64| Instant::from_millis(seconds * 1000);
        let mut record = HostRecord::add(None, &policy, at(0));
        assert_eq!(record.remaining(&policy, at(0)), None);
        let mut pauses = Vec::new();
        for second in [10, 20, 30] {
            record = HostRecord::add(Some(record), &policy, at(second));
            pauses.push(record.remaining(&policy, at(second)).map_or(0, |pause| pause.as_secs()));
        }
        assert_eq!(pauses, [10, 20, 25]);
        assert_eq!(record.remaining(&policy, at(54)), Some(Duration::from_secs(1)));
        assert_eq!(record.remaining(&policy, at(55)), None);
        let record = HostRecord::add(Some(record), &policy, at(91));
        assert_eq!((record.failures, record.remaining(&policy, at(91))), (1, None));
    }

    fn view(phase: Phase) -> View {
        View {
            phase,
            is_first: true,
            joining: 2,
            spares: 0,
            returned: 0,
            due: 0,
            active: 0,
            finished: 0,
            minimum: 2,
            max_nodes: 4,
            minimum_to_continue: 2,
            last_call: LastCall::Fixed(Duration::from_secs(30)),
            fast_quorum: FastQuorum::Enabled,
            enough_since: Instant::ORIGIN,
            last_arrival: Instant::from_millis(5_000),
            first_timeout_at: Some(Instant::from_millis(600_000)),
        }
    }

    #[test]
    fn decisions_come_with_their_reasons() {
        let base = view(Phase::LastCall);
        let describe = |now_ms: u64, view: View| {
            let (action, reason) = decide(Instant::from_millis(now_ms), &view);
            format!("{action:?}: {reason}")
        };
        let complete = |text: &str| format!("CompleteRound: {text}");
        assert_eq!(describe(0, View { joining: 4, ..base }), complete("the maximum of 4 nodes is there"));
        assert_eq!(
            describe(0, View { returned: 1, ..base }),
            complete("every living node of the last round is back; 2 nodes are there")
        );
        assert!(describe(0, View { returned: 1, due: 1, ..base }).starts_with("Wait"));
        assert!(
            describe(0, View { returned: 1, fast_quorum: FastQuorum::Disabled, ..base }).starts_with("Wait")
        );
        assert_eq!(
            describe(0, View { last_call: LastCall::None, ..view(Phase::Gathering) }),
            complete("the minimum is there, 2 nodes, and there is no last call")
        );
        // A spare makes the minimum, never the maximum.
        assert!(describe(0, View { joining: 3, spares: 1, ..base }).starts_with("Wait"));
        assert!(
            describe(0, View { joining: 1, spares: 1, ..view(Phase::Gathering) }).starts_with("OpenLastCall")
        );
        assert!(
            describe(0, View { joining: 1, spares: 1, returned: 1, ..base }).starts_with("CompleteRound")
        );
        // Without a last call, only those are waited for that are on their way back.
        let none = View { last_call: LastCall::None, due: 1, first_timeout_at: None, ..base };
        assert_eq!(describe(0, none), "Wait(None): 2 nodes are enough; the last call runs");
        // And for those in whose place there is only a spare, unless they have been there.
        let spare = View { due: 0, joining: 1, spares: 1, ..none };
        assert_eq!(describe(0, spare), "Wait(None): 2 nodes are enough; the last call runs");
        assert!(describe(0, View { is_first: false, ..spare }).starts_with("CompleteRound"));
        assert_eq!(describe(30_000, base), complete("the last call is over; 2 nodes are there"));
        let late = View { last_call: LastCall::FromLastArrival(Duration::from_secs(30)), ..base };
        assert!(describe(34_999, late).starts_with("Wait(Some(Instant(35000000000)))"));
        assert_eq!(describe(35_000, late), complete("the last call is over; 2 nodes are there"));
        assert_eq!(
            describe(9_000, View { first_timeout_at: Some(Instant::from_millis(9_000)), ..base }),
            complete("2 nodes are enough, and the first of them would give up now")
        );
        assert_eq!(
            describe(0, View { joining: 1, ..base }),
            "CancelLastCall: 1 of at least 2 nodes are there"
        );
        assert_eq!(describe(0, view(Phase::Gathering)), "OpenLastCall: 2 nodes are enough for the last call");
        let live = View { joining: 0, active: 2, ..view(Phase::Complete) };
        assert!(describe(0, live).ends_with("the round goes on with 2 nodes"));
        assert!(
            describe(0, View { active: 1, finished: 1, ..live }).ends_with("the round goes on with 1 nodes")
        );
        assert_eq!(describe(0, View { active: 1, ..live }), "EndRound: 1 of at least 2 nodes are left in it");
        assert_eq!(
            describe(0, View { active: 0, finished: 2, ..live }),
            "EndRound: none of its nodes is in it any more"
        );
        assert_eq!(describe(0, view(Phase::Closed)), "Wait(None): the run is closed");
    }
}
