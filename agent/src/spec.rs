//! Configuration of an agent.
use rendezvous_core::prelude::*;

/// Maximum number of workers of one agent.
pub const LOCAL_WORLD_SIZE_MAX: u32 = 4096;
/// First pause before a restart. The others are multiples of it; see [`WorkerSpec::restart_backoff`].
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// Highest signal number.
const SIGNAL_MAX: i32 = 64;

/// Way of assigning ranks to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankAssignment {
    /// The agents exchange their roles and sizes through the round's store, and may differ in both.
    #[default]
    ThroughStore,
    /// All agents have the same role and number of workers. Each computes its ranks by itself.
    Identical,
}

/// Configuration of a supervised group of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Role of the workers of this agent. Workers of one role have role ranks among themselves.
    pub role: Box<str>,
    /// Number of workers of this agent, from 1 to [`LOCAL_WORLD_SIZE_MAX`].
    pub local_world_size: u32,
    /// Number of restarts after failures of this agent's workers; 0 for none.
    pub max_restarts: u32,
    /// Longest pause before a restart when starts fail in a row, that is, when their workers have run for less than
    /// this. The first restart has no pause, the second waits [`BACKOFF_FIRST`], and each further one twice as long. 0
    /// disables the pauses.
    pub restart_backoff: Duration,
    /// Interval of checks for waiting nodes with backends that do not report them; above 0.
    pub monitor_interval: Duration,
    /// Longest time until all workers of a start run. After that the start counts as failed: a program on a file system
    /// that does not respond may never start.
    pub start_timeout: Duration,
    /// Signal sent to workers to stop them.
    pub stop_signal: i32,
    /// Time that workers have to end after the stop signal, whatever the reason of the stop; 0 kills them at once.
    pub stop_timeout: Duration,
    /// Time that descendants of workers have to end after the last worker has ended. The stop timeout limits it, too.
    pub leftover_timeout: Duration,
    /// Time that killed workers have to end before they are abandoned: a process that hangs in the kernel may never
    /// end.
    pub kill_timeout: Duration,
    /// Timeout of the exit barrier, at which agents whose workers have succeeded wait for the others. Without it, the
    /// wait lasts as long as workers of other agents run, with backends that report deaths and ends of rounds; with
    /// others it lasts 300 s at most.
    pub exit_barrier_timeout: Option<Duration>,
    /// Way of assigning ranks to the workers.
    pub rank_assignment: RankAssignment,
    /// Timeout of waiting for the other agents when ranks are assigned.
    pub assign_timeout: Duration,
    /// Port of the workers' store, if an agent serves one for each round; without it, any free port.
    pub master_port: Option<u16>,
}

impl WorkerSpec {
    /// Creates a spec for workers of the role `default`, with PyTorch's number of restarts and timeouts.
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
            exit_barrier_timeout: None,
            rank_assignment: RankAssignment::ThroughStore,
            assign_timeout: Duration::from_secs(60),
            master_port: None,
        }
    }

    /// Checks the spec.
    ///
    /// # Errors
    /// The first invalid field.
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

/// Default of [`WorkerSpec::leftover_timeout`].
pub const LEFTOVER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// Number of `SIGTERM`.
pub const SIGTERM: i32 = 15;

/// Error of an invalid spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The number of workers is out of range.
    #[error("the local world size ({local_world_size}) must be from 1 to {LOCAL_WORLD_SIZE_MAX}")]
    LocalWorldSize {
        /// Given value.
        local_world_size: u32,
    },
    /// The interval is zero.
    #[error("the monitor interval must be greater than zero")]
    MonitorInterval,
    /// The signal does not exist.
    #[error("the stop signal ({signal}) must be from 1 to {SIGNAL_MAX}")]
    StopSignal {
        /// Given value.
        signal: i32,
    },
    /// The role contains a null byte, which an environment cannot hold.
    #[error("the role {role:?} contains a NUL byte")]
    Role {
        /// Given value.
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
