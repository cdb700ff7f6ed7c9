//! Settings of a run, validated before use.

use super::policy::{CoolDown, FastQuorum, LastCall, RankOrder};
use crate::prelude::*;
use crate::rendezvous::timeouts::{TimeoutError, Timeouts};

/// The settings on which all nodes of a run must agree. The first node of a run sets them; they hold while the run
/// has nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    /// Smallest number of nodes of the first round.
    pub min_nodes: u32,
    /// Largest number of nodes of a round.
    pub max_nodes: u32,
    /// Smallest number of nodes with which a run goes on after its first round: later rounds need this many nodes,
    /// and a live round with fewer ends at once. Nodes that left a live round count, since they are done. At most
    /// `min_nodes`.
    pub minimum_to_continue: u32,
    /// How long a round with enough nodes waits for more.
    pub last_call: LastCall,
    /// Whether a round is formed as soon as the last one's nodes have rejoined.
    pub fast_quorum: FastQuorum,
    /// Assignment of ranks.
    pub rank_order: RankOrder,
    /// Exclusion of hosts that fail repeatedly, if any.
    pub cool_down: Option<CoolDown>,
}

impl RunSettings {
    /// Creates settings for `min_nodes` to `max_nodes` nodes with defaults otherwise: last call of 30 s from the
    /// minimum, fast quorum, sticky ranks, a minimum to continue of `min_nodes`, no cool-down.
    pub const fn between(min_nodes: u32, max_nodes: u32) -> Self {
        Self {
            min_nodes,
            max_nodes,
            minimum_to_continue: min_nodes,
            last_call: LastCall::Fixed(Timeouts::DEFAULT.last_call),
            fast_quorum: FastQuorum::Enabled,
            rank_order: RankOrder::Sticky,
            cool_down: None,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.min_nodes == 0 {
            return Err(SettingsError::Minimum(self.min_nodes));
        }
        if self.max_nodes < self.min_nodes {
            return Err(SettingsError::Maximum { min_nodes: self.min_nodes, max_nodes: self.max_nodes });
        }
        if self.minimum_to_continue == 0 || self.minimum_to_continue > self.min_nodes {
            return Err(SettingsError::Continue {
                minimum_to_continue: self.minimum_to_continue,
                min_nodes: self.min_nodes,
            });
        }
        match self.last_call {
            LastCall::Fixed(span) | LastCall::FromLastArrival(span) if span.is_zero() => {
                Err(TimeoutError { which: "last_call", seconds: 0 }.into())
            }
            _ if self.cool_down.is_some_and(|policy| policy.failures == 0) => Err(SettingsError::CoolDown),
            _ => Ok(()),
        }
    }

    /// Returns the first setting in which another node's settings differ from these.
    pub fn difference(&self, offered: &Self) -> Option<SettingsDifference> {
        let pairs: [(&str, &dyn fmt::Debug, &dyn fmt::Debug, bool); 5] = [
            (
                "minimum to continue",
                &self.minimum_to_continue,
                &offered.minimum_to_continue,
                self.minimum_to_continue != offered.minimum_to_continue,
            ),
            ("last call", &self.last_call, &offered.last_call, self.last_call != offered.last_call),
            ("fast quorum", &self.fast_quorum, &offered.fast_quorum, self.fast_quorum != offered.fast_quorum),
            ("rank order", &self.rank_order, &offered.rank_order, self.rank_order != offered.rank_order),
            ("cool-down", &self.cool_down, &offered.cool_down, self.cool_down != offered.cool_down),
        ];
        if (self.min_nodes, self.max_nodes) != (offered.min_nodes, offered.max_nodes) {
            let nodes = |settings: &Self| format!("{}:{}", settings.min_nodes, settings.max_nodes).into();
            return Some(SettingsDifference {
                what: "min:max nodes",
                in_force: nodes(self),
                offered: nodes(offered),
            });
        }
        let (what, ours, theirs, _) = pairs.into_iter().find(|(.., differs)| *differs)?;
        let text = |value: &dyn fmt::Debug| format!("{value:?}").into();
        Some(SettingsDifference { what, in_force: text(ours), offered: text(theirs) })
    }
}

/// A setting in which two nodes of one run differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsDifference {
    /// Name of the setting.
    pub what: &'static str,
    /// Value of the run's first node.
    pub in_force: Box<str>,
    /// Value of the later node.
    pub offered: Box<str>,
}

/// Invalid settings. The texts are those of PyTorch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The run id is empty.
    #[error("The run id must be a non-empty string.")]
    RunId,
    /// The minimum is zero.
    #[error("The minimum number of nodes ({0}) must be greater than zero.")]
    Minimum(u32),
    /// The maximum is below the minimum.
    #[error(
        "The maximum number of nodes ({max_nodes}) must be greater than or equal to the minimum number of nodes \
         ({min_nodes})."
    )]
    Maximum {
        /// The given minimum.
        min_nodes: u32,
        /// The given maximum.
        max_nodes: u32,
    },
    /// The minimum to continue is zero, or above the minimum.
    #[error(
        "The minimum to continue ({minimum_to_continue}) must be between one and the minimum number of nodes ({min_nodes})."
    )]
    Continue {
        /// The given minimum to continue.
        minimum_to_continue: u32,
        /// The given minimum.
        min_nodes: u32,
    },
    /// A timeout is zero.
    #[error(transparent)]
    Timeout(#[from] TimeoutError),
    /// A cool-down after zero failures would exclude hosts that never failed.
    #[error("The number of failures before a cool-down must be greater than zero.")]
    CoolDown,
    /// A node without workers cannot have ranks.
    #[error("The number of local workers of a node must be greater than zero.")]
    NoWorkers,
    /// Events and errors need a name for the node.
    #[error("The name of a node must be a non-empty string.")]
    NodeName,
    /// The keys of this run would be among those of a round of another run.
    #[error(
        "The run id '{0}' must not contain a dot, digits and a slash in a row: its keys would be among \
         those of a round of another run."
    )]
    RunIdInsideRound(Box<str>),
}

/// Checks a run id. The keys of its rounds begin with `torch.rendezvous.<run id>.<round>/`, and those of no other run
/// may.
///
/// # Errors
/// The id is empty, or has the form of a path into a round of another run.
pub fn validate_run_id(run_id: &str) -> Result<(), SettingsError> {
    if run_id.is_empty() {
        return Err(SettingsError::RunId);
    }
    let is_inside = run_id.match_indices('/').any(|(at, _)| {
        let before = run_id[..at].trim_end_matches(|character: char| character.is_ascii_digit());
        before.len() < at && before.ends_with('.')
    });
    if is_inside { Err(SettingsError::RunIdInsideRound(run_id.into())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use alloc::string::ToString;

    const COOL_DOWN: CoolDown = CoolDown {
        failures: 3,
        window: Duration::from_secs(300),
        pause: Duration::from_secs(10),
        pause_max: Duration::from_secs(600),
    };

    #[test]
    fn refusals_say_what_peers_say() {
        let text = |settings: RunSettings| settings.validate().expect_err("makes no sense").to_string();
        let base = RunSettings::between(2, 4);
        assert_eq!(base.validate(), Ok(()));
        assert_eq!(
            text(RunSettings::between(0, 4)),
            "The minimum number of nodes (0) must be greater than zero."
        );
        assert_eq!(
            text(RunSettings::between(3, 2)),
            "The maximum number of nodes (2) must be greater than or equal to the minimum number of nodes (3)."
        );
        assert_eq!(
            text(RunSettings { minimum_to_continue: 3, ..base.clone() }),
            "The minimum to continue (3) must be between one and the minimum number of nodes (2)."
        );
        assert_eq!(
            text(RunSettings { last_call: LastCall::Fixed(Duration::ZERO), ..base.clone() }),
            "The last_call timeout (0:00:00) must be positive."
        );
        let cool_down = CoolDown { failures: 0, ..COOL_DOWN };
        assert_eq!(
            text(RunSettings { cool_down: Some(cool_down), ..base }),
            "The number of failures before a cool-down must be greater than zero."
        );
    }

    #[test]
    fn run_ids_stay_out_of_each_others_rounds() {
        for good in ["a", "a.1", "team/job", "1/2", "a.b/c", "a./c"] {
            assert_eq!(validate_run_id(good), Ok(()), "{good}");
        }
        assert_eq!(validate_run_id(""), Err(SettingsError::RunId));
        for bad in ["a.1/b", ".0/", "a.10/1/2"] {
            assert_eq!(validate_run_id(bad), Err(SettingsError::RunIdInsideRound(bad.into())));
        }
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let base = RunSettings::between(2, 4);
        let describe = |other: RunSettings| {
            let found = base.difference(&other).expect("differs");
            format!("{} {} {}", found.what, found.in_force, found.offered)
        };
        assert_eq!(base.difference(&base.clone()), None);
        assert_eq!(describe(RunSettings::between(2, 5)), "min:max nodes 2:4 2:5");
        assert_eq!(
            describe(RunSettings { minimum_to_continue: 1, ..base.clone() }),
            "minimum to continue 2 1"
        );
        assert_eq!(
            describe(RunSettings { last_call: LastCall::None, ..base.clone() }),
            "last call Fixed(30s) None"
        );
        assert_eq!(
            describe(RunSettings { rank_order: RankOrder::Host, ..base.clone() }),
            "rank order Sticky Host"
        );
        assert_eq!(
            describe(RunSettings { fast_quorum: FastQuorum::Disabled, ..base.clone() }),
            "fast quorum Enabled Disabled"
        );
        let cool_down = Some(COOL_DOWN);
        assert!(describe(RunSettings { cool_down, ..base.clone() }).starts_with("cool-down None Some"));
    }
}
