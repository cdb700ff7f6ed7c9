//! What an agent is to supervise, and by which rules.

use alloc::boxed::Box;
use alloc::string::String;
use rendezvous_core::time::Duration;

/// The most workers that one agent has.
pub const LOCAL_WORLD_SIZE_MAX: u32 = 4096;
/// The first pause before a restart, and what the others are multiples of; see [`WorkerSpec::restart_backoff`].
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Signals are numbers from 1 to this.
const SIGNAL_MAX: i32 = 64;

/// How workers get their ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankAssignment {
    /// The agents tell each other their roles and sizes through the round's store: they may differ.
    #[default]
    ThroughStore,
    /// All agents have as many workers and one role; each reckons its ranks by itself.
    Identical,
}

/// What an agent is to supervise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// What the workers of this agent do; workers of one role are numbered among themselves.
    pub role: Box<str>,
    /// How many workers this agent has; from 1 to [`LOCAL_WORLD_SIZE_MAX`].
    pub local_world_size: u32,
    /// How often the group may be started again after a failure of its own workers; 0: never.
    pub max_restarts: u32,
    /// The longest pause before a restart, where starts fail at once one after the other: their workers have not run for as
    /// long as this. The first restart has no pause, the second waits [`BACKOFF_FIRST`], and each next one twice as long; 0:
    /// no pauses.
    pub restart_backoff: Duration,
    /// How often to look for waiting nodes where the rendezvous does not tell of them; above 0.
    pub monitor_interval: Duration,
    /// How long it may take until all workers of a start run: a program on a file system that does not answer may take for
    /// ever. Then it counts as a failure.
    pub start_timeout: Duration,
    /// What workers are told when they are to end.
    pub stop_signal: i32,
    /// How long they may take then; 0: they are killed at once. It holds on every path.
    pub stop_timeout: Duration,
    /// How long processes that workers leave behind may take to end, once no worker lives; no longer than the stop timeout
    /// lets them in any case.
    pub leftover_timeout: Duration,
    /// How long killed workers may take to vanish before they are given up: one that hangs in the kernel may never.
    pub kill_timeout: Duration,
    /// How long agents whose workers have succeeded wait for each other where the rendezvous tells nothing of them. Where it
    /// tells of deaths and of rounds that are over, they wait as long as the others' workers take.
    pub exit_barrier_timeout: Duration,
    /// How workers get their ranks.
    pub rank_assignment: RankAssignment,
    /// How long to wait for the other agents when ranks are assigned.
    pub assign_timeout: Duration,
    /// The port of the workers' store, of those that an agent serves for each round; without one, any that is free.
    pub master_port: Option<u16>,
}

impl WorkerSpec {
    /// Workers of the role `default`, with PyTorch's own budget and timeouts.
    #[must_use]
    pub fn new(local_world_size: u32) -> Self {
        Self {
            role: "default".into(),
            local_world_size,
            max_restarts: 3,
            restart_backoff: Duration::from_secs(10),
            monitor_interval: Duration::from_secs(1),
            start_timeout: Duration::from_secs(300),
            stop_signal: SIGTERM,
            stop_timeout: Duration::from_secs(30),
            leftover_timeout: LEFTOVER_TIMEOUT_DEFAULT,
            kill_timeout: Duration::from_secs(5),
            exit_barrier_timeout: Duration::from_secs(300),
            rank_assignment: RankAssignment::ThroughStore,
            assign_timeout: Duration::from_secs(60),
            master_port: None,
        }
    }

    /// Whether the spec makes sense.
    ///
    /// # Errors
    /// The first field that does not.
    pub fn check(&self) -> Result<(), SpecError> {
        if !(1..=LOCAL_WORLD_SIZE_MAX).contains(&self.local_world_size) {
            return Err(SpecError::LocalWorldSize { local_world_size: self.local_world_size });
        }
        if self.monitor_interval.is_zero() {
            return Err(SpecError::MonitorInterval);
        }
        if !(1..=SIGNAL_MAX).contains(&self.stop_signal) {
            return Err(SpecError::StopSignal { signal: self.stop_signal });
        }
        if self.role.contains('\0') {
            return Err(SpecError::Role { role: self.role.as_ref().into() });
        }
        Ok(())
    }
}

/// How long processes that workers leave behind have, unless somebody says otherwise.
pub const LEFTOVER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// The polite way to end a process, everywhere.
pub const SIGTERM: i32 = 15;

/// A spec that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No workers, or too many.
    #[error("the local world size ({local_world_size}) must be from 1 to {LOCAL_WORLD_SIZE_MAX}")]
    LocalWorldSize {
        /// What was given.
        local_world_size: u32,
    },
    /// A loop without a pause.
    #[error("the monitor interval must be greater than zero")]
    MonitorInterval,
    /// No such signal.
    #[error("the stop signal ({signal}) must be from 1 to {SIGNAL_MAX}")]
    StopSignal {
        /// What was given.
        signal: i32,
    },
    /// Environments cannot hold it.
    #[error("the role {role:?} contains a NUL byte")]
    Role {
        /// What was given.
        role: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn each_field_is_checked() {
        let good = WorkerSpec::new(4);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(WorkerSpec { max_restarts: 0, ..good.clone() }.check(), Ok(()), "no restarts is legal");
        let wrong = [
            (WorkerSpec::new(0), "the local world size (0) must be from 1 to 4096"),
            (WorkerSpec::new(4097), "the local world size (4097) must be from 1 to 4096"),
            (
                WorkerSpec { monitor_interval: Duration::ZERO, ..good.clone() },
                "the monitor interval must be greater than zero",
            ),
            (WorkerSpec { stop_signal: 0, ..good.clone() }, "the stop signal (0) must be from 1 to 64"),
            (WorkerSpec { stop_signal: 65, ..good.clone() }, "the stop signal (65) must be from 1 to 64"),
            (WorkerSpec { role: "a\0b".into(), ..good }, "the role \"a\\0b\" contains a NUL byte"),
        ];
        for (spec, message) in wrong {
            assert_eq!(spec.check().expect_err("refused").to_string(), message);
        }
    }
}
