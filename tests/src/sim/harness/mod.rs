//! What the worlds share: virtual time with its queue of events, seeds, the network, clocks of hosts, stores for state
//! machines, the trace, and histories with the checks of their linearizability.

pub(super) mod clock;
pub(super) mod event_queue;
pub(super) mod history;
pub(super) mod key_store;
pub(super) mod linear;
pub(super) mod network;
pub(super) mod oracle;
pub(super) mod revisions;
pub(super) mod sim_operation;
pub(super) mod sim_rng;
pub(super) mod timeline;
pub(super) mod trace;
