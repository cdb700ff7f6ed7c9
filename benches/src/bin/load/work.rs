//! The kinds of load, and the languages they are put in.

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
    Join,
    Death,
    Reform,
}

/// What the connections speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Language {
    C10d,
    Native,
}

impl Language {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::C10d => "c10d",
            Self::Native => "native",
        }
    }
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
            Self::Join => "join",
            Self::Death => "death",
            Self::Reform => "reform",
        }
    }

    /// Whether each repetition has connections of its own.
    pub(super) const fn connects_anew(self) -> bool {
        matches!(self, Self::Connect | Self::Storm) || self.is_rendezvous()
    }

    /// Whether its connections are nodes of a run.
    pub(super) const fn is_rendezvous(self) -> bool {
        matches!(self, Self::Join | Self::Death | Self::Reform)
    }

    /// What it is done in, where the user asked for `language`: only the native one has a rendezvous.
    pub(super) const fn language(self, language: Language) -> Language {
        if self.is_rendezvous() { Language::Native } else { language }
    }

    /// The fewest connections with which it makes sense.
    pub(super) const fn connections_min(self) -> usize {
        if matches!(self, Self::Death | Self::Reform) { 2 } else { 1 }
    }

    /// What a time is of.
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Barrier | Self::Legacy => "round",
            Self::Connect | Self::Storm => "connection",
            Self::Set | Self::Get | Self::Add | Self::Check | Self::Mixed => "operation",
            Self::Join => "node",
            Self::Death | Self::Reform => "death",
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
