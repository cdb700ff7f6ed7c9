//! Values of `--numa-binding`.

use clap::ValueEnum;
use rendezvous_agent::numa::NumaBinding;

/// What a worker is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Binding {
    /// All processors of its NUMA node
    Node,
    /// All processors of its node's socket
    Socket,
    /// Its own share of the cores of its node
    Exclusive,
    /// Cores of its node that share a cache
    CoreComplex,
}

impl From<Binding> for NumaBinding {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::Node => Self::Node,
            Binding::Socket => Self::Socket,
            Binding::Exclusive => Self::Exclusive,
            Binding::CoreComplex => Self::CoreComplex,
        }
    }
}
