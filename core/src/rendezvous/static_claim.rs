//! Claims on node ranks: which process takes part in a static rendezvous with a node rank. Each node writes its claim
//! into the store before it joins a round, so that two nodes that were given the same rank detect each other.

use super::static_settings::StaticError;
use crate::prelude::*;

/// Returns the key of a node rank's claim, under the run's prefix.
pub fn claim_key(rank: u64) -> String {
    format!("rdzv/static/nodes/{rank}")
}

/// The process that takes part with a node rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name of the process's host.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// Start time of the process, in its system's ticks: the system may have reused the process id.
    pub started: u64,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.host.escape_debug(), self.pid)
    }
}

impl Claim {
    /// Returns the bytes to write.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.host, self.pid, self.started)
    }

    /// Parses what a node wrote; `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = core::str::from_utf8(text).ok()?.rsplitn(3, ' ');
        let (started, pid, host) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { host: host.into(), pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// What a node does about the claim on its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// The rank is this node's already.
    Keep,
    /// The node replaces the current claim by its own.
    Take,
    /// Another process has the rank.
    Refuse(Claim),
}

/// The state on which the decision about a claim depends.
#[derive(Clone, Copy, Debug)]
pub struct ClaimView<'a> {
    /// This node's claim.
    pub local_claim: &'a Claim,
    /// The value of the claim's key; empty if there is none.
    pub current: &'a [u8],
    /// Whether this node's claim was the key's value before.
    pub was_local: bool,
    /// Whether all nodes have joined the first round.
    pub is_complete: bool,
}

impl ClaimView<'_> {
    /// Decides about the claim. `runs_here` returns whether the process of a claim runs on this host.
    ///
    /// A node that died may rejoin, on its host at any time. On another host it may rejoin once the first round is
    /// complete: until then it cannot be distinguished from a second node with the same rank.
    pub fn decide(&self, runs_here: impl FnOnce(&Claim) -> bool) -> ClaimDecision {
        let Some(current) = Claim::parse(self.current) else { return ClaimDecision::Take };
        if current == *self.local_claim {
            ClaimDecision::Keep
        } else if self.was_local {
            ClaimDecision::Refuse(current)
        } else if current.host == self.local_claim.host {
            if runs_here(&current) { ClaimDecision::Refuse(current) } else { ClaimDecision::Take }
        } else if self.is_complete {
            ClaimDecision::Take
        } else {
            ClaimDecision::Refuse(current)
        }
    }

    /// Returns the error of a node whose rank another process has.
    pub fn refusal(&self, other: &Claim, rank: u64, run_id: &str) -> StaticError {
        let (one, two) = if self.was_local { (self.local_claim, other) } else { (other, self.local_claim) };
        let (one, two): (Box<str>, Box<str>) = (one.to_string().into(), two.to_string().into());
        StaticError::RankTaken { rank, run_id: run_id.into(), one, two }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(host: &str, pid: u32) -> Claim {
        Claim { host: host.into(), pid, started: 77 }
    }

    #[test]
    fn a_claim_is_read_as_it_was_written() {
        for host in ["node-1", "a host", ""] {
            assert_eq!(Claim::parse(claim(host, 12).text().as_bytes()), Some(claim(host, 12)));
        }
        for text in ["", "node", "node 1", "node x 1", "node 1 x", "\u{80}"] {
            assert_eq!(Claim::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_rank_is_refused_while_another_process_has_it() {
        let (local_claim, other) = (claim("a", 1), claim("a", 2));
        let external = claim("b", 1);
        let decide = |current: &str, was_local, is_complete, runs_here| {
            let view =
                ClaimView { local_claim: &local_claim, current: current.as_bytes(), was_local, is_complete };
            view.decide(|_| runs_here)
        };
        assert_eq!(decide("", false, false, false), ClaimDecision::Take);
        assert_eq!(decide(&local_claim.text(), false, false, true), ClaimDecision::Keep);
        assert_eq!(decide(&other.text(), false, true, true), ClaimDecision::Refuse(other.clone()));
        assert_eq!(decide(&other.text(), false, false, false), ClaimDecision::Take);
        assert_eq!(decide(&other.text(), true, true, false), ClaimDecision::Refuse(other.clone()));
        assert_eq!(decide(&external.text(), false, false, true), ClaimDecision::Refuse(external.clone()));
        assert_eq!(decide(&external.text(), false, true, true), ClaimDecision::Take);
        let view =
            ClaimView { local_claim: &local_claim, current: b"", was_local: false, is_complete: false };
        assert_eq!(
            view.refusal(&external, 3, "job").to_string(),
            "b (pid 1) and a (pid 1) both have node rank 3 of run 'job'. Give each node a node rank of its own: \
             --node-rank of rdzv run, the option 'rank' elsewhere."
        );
    }
}
