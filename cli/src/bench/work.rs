//! The kinds of load.

use clap::ValueEnum;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Work {
    Barrier,
    Legacy,
    Set,
    Get,
    Add,
    Check,
    Mixed,
    Connect,
    Storm,
}

impl Work {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Legacy => "legacy",
            Self::Set => "set",
            Self::Get => "get",
            Self::Add => "add",
            Self::Check => "check",
            Self::Mixed => "mixed",
            Self::Connect => "connect",
            Self::Storm => "storm",
        }
    }

    /// Whether connecting is what is measured.
    pub(super) const fn connects_anew(self) -> bool {
        matches!(self, Self::Connect | Self::Storm)
    }

    /// What a time is of.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Barrier | Self::Legacy => "round",
            Self::Connect | Self::Storm => "connection",
            Self::Set | Self::Get | Self::Add | Self::Check | Self::Mixed => "operation",
        }
    }

    /// What the server's CPU time is of.
    pub(super) const fn cpu_unit(self) -> &'static str {
        match self {
            Self::Barrier | Self::Legacy => "arrival",
            _ => self.unit(),
        }
    }
}
