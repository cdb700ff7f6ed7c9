//! Text of the status line while the agent waits.

use super::plain;
use rendezvous_core::driver::rendezvous::{Progress, Stage};
use rendezvous_core::time::{Duration, Instant};

/// What the agent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A round.
    Round,
    /// The other nodes, at the end.
    OthersToEnd,
}

/// Content of the status line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StatusLine {
    /// What the agent waits for.
    pub(super) what: String,
    /// How long it has taken or will take; it changes all the time.
    pub(super) time: String,
    /// Who is in.
    pub(super) node_names: String,
}

/// One wait for one thing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) awaited: Awaited,
    pub(super) began: Instant,
    pub(super) nodes_min: u32,
    pub(super) nodes_max: u32,
}

impl Waiting {
    /// What is known. `known` is how the last try to reach the rendezvous failed, while it is not reached, or which
    /// nodes are still at work; `enough_since` is when there were first enough nodes.
    pub(super) fn status_line(
        &self,
        now: Instant,
        known: Option<&str>,
        progress: Option<&Progress>,
        enough_since: Option<Instant>,
    ) -> StatusLine {
        let mut node_names = String::new();
        let waited = format!(", {} s", now.since(self.began).as_secs());
        let status_line = match (self.awaited, progress) {
            (Awaited::OthersToEnd, _) => match known {
                Some(known) => format!("waiting for the other nodes' workers to end: {known}"),
                None => "waiting for the other nodes' workers to end".to_string(),
            },
            (Awaited::Round, None) => match known {
                Some(failed) => format!("waiting for the rendezvous at {failed}"),
                None => "waiting for the rendezvous".to_string(),
            },
            (Awaited::Round, Some(Progress { stage: Stage::Standby, nodes, .. })) => {
                format!("standing by: all places are taken ({nodes} of {})", self.nodes_max)
            }
            (Awaited::Round, Some(Progress { stage: Stage::Live, nodes, .. })) => {
                format!("waiting for the next round; nodes still in this one: {nodes}")
            }
            (
                Awaited::Round,
                Some(Progress { stage: Stage::Forming, nodes, last_call, waiting_nodes, .. }),
            ) => {
                node_names = names(waiting_nodes, *nodes);
                let (min, max) = (self.nodes_min, self.nodes_max);
                let least = if min < max { format!(" (min {min})") } else { String::new() };
                let status_line = format!("waiting for nodes {nodes}/{max}{least}");
                let ends = enough_since.zip(*last_call).map(|(since, span)| since + span);
                return match ends {
                    Some(ends) => {
                        let time = format!(", last call ends in {} s", seconds_up(ends.since(now)));
                        StatusLine { what: status_line, time, node_names }
                    }
                    None => StatusLine { what: status_line, time: waited, node_names },
                };
            }
        };
        StatusLine { what: status_line, time: waited, node_names }
    }

    /// Whether there are enough nodes for a round.
    pub(super) fn is_enough(&self, progress: Option<&Progress>) -> bool {
        progress.is_some_and(|progress| progress.stage == Stage::Forming && progress.nodes >= self.nodes_min)
    }
}

/// Lists the nodes that have joined, as far as their names are known.
fn names(waiting_nodes: &[Box<str>], nodes: u32) -> String {
    if waiting_nodes.is_empty() {
        return String::new();
    }
    let listed: Vec<String> = waiting_nodes.iter().map(|name| plain::label(name)).collect();
    let more = (nodes as usize).saturating_sub(listed.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(": {}{more}", listed.join(", "))
}

/// Begun seconds count.
fn seconds_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(awaited: Awaited, stage: Option<Stage>, enough_since_s: Option<u64>, expected: &str) {
        let at = |seconds| Instant::from_nanos(seconds * 1_000_000_000);
        let waiting = Waiting { awaited, began: at(100), nodes_min: 2, nodes_max: 8 };
        let last_call = Some(Duration::from_secs(30));
        let progress = stage.map(|stage| Progress {
            nodes: 3,
            nodes_waiting: 0,
            stage,
            last_call,
            waiting_nodes: ["a".into(), "b\x1b[m".into()].into(),
        });
        let now = at(114) + Duration::from_millis(400);
        let StatusLine { what, time, node_names } =
            waiting.status_line(now, None, progress.as_ref(), enough_since_s.map(at));
        assert_eq!(what + &time + &node_names, expected);
    }

    #[test]
    fn a_rendezvous_that_is_not_reached() {
        let waiting = Waiting { awaited: Awaited::Round, began: Instant::ORIGIN, nodes_min: 1, nodes_max: 2 };
        let now = Instant::ORIGIN + Duration::from_secs(3);
        let StatusLine { what, time, node_names } =
            waiting.status_line(now, Some("h:1: refused"), None, None);
        assert_eq!((what + &time + &node_names).as_str(), "waiting for the rendezvous at h:1: refused, 3 s");
    }

    #[test]
    fn nodes_that_are_still_at_work_are_named() {
        let waiting =
            Waiting { awaited: Awaited::OthersToEnd, began: Instant::ORIGIN, nodes_min: 2, nodes_max: 2 };
        let known = "1 of 2 agents have finished; still at work: b (group rank 1)";
        let StatusLine { what, .. } = waiting.status_line(Instant::ORIGIN, Some(known), None, None);
        assert_eq!(what, format!("waiting for the other nodes' workers to end: {known}"));
    }

    #[test]
    fn words_for_each_wait() {
        use Awaited::{OthersToEnd, Round};
        says(Round, None, None, "waiting for the rendezvous, 14 s");
        says(Round, Some(Stage::Forming), None, "waiting for nodes 3/8 (min 2), 14 s: a, b?[m and 1 more");
        says(
            Round,
            Some(Stage::Forming),
            Some(96),
            "waiting for nodes 3/8 (min 2), last call ends in 12 s: a, b?[m and 1 more",
        );
        says(
            Round,
            Some(Stage::Forming),
            Some(80),
            "waiting for nodes 3/8 (min 2), last call ends in 0 s: a, b?[m and 1 more",
        );
        says(Round, Some(Stage::Live), None, "waiting for the next round; nodes still in this one: 3, 14 s");
        says(Round, Some(Stage::Standby), None, "standing by: all places are taken (3 of 8), 14 s");
        says(OthersToEnd, None, None, "waiting for the other nodes' workers to end, 14 s");
    }

    #[test]
    fn the_lines_of_the_guide() {
        let progress = |nodes, stage, names: &[&str]| Progress {
            nodes,
            nodes_waiting: 0,
            stage,
            last_call: Some(Duration::from_secs(30)),
            waiting_nodes: names.iter().map(|name| Box::from(*name)).collect(),
        };
        let forming = progress(3, Stage::Forming, &["alpha_4711_0", "beta_812_0", "gamma_99_0"]);
        let standby = progress(8, Stage::Standby, &[]);
        let refused = Some("node0:29400: refused: Connection refused (os error 111)");
        let guide = include_str!("../../../docs/run.md");
        for (awaited, waited_s, known, progress, enough_since_s) in [
            (Awaited::Round, 18, None, Some(&forming), Some(0)),
            (Awaited::Round, 3, refused, None, None),
            (Awaited::Round, 340, None, Some(&standby), None),
            (Awaited::OthersToEnd, 7, None, None, None),
        ] {
            let waiting = Waiting { awaited, began: Instant::ORIGIN, nodes_min: 2, nodes_max: 8 };
            let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
            let StatusLine { what, time, node_names } =
                waiting.status_line(at(waited_s), known, progress, enough_since_s.map(at));
            let line = format!("\nrdzv run: {what}{time}{node_names}\n");
            assert!(guide.contains(&line), "docs/run.md does not have{line}");
        }
    }
}
