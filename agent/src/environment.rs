//! Environment variables of a worker. Their names and values are those of PyTorch's elastic agent.

use super::group::{Worker, WorkerGroup};
use rendezvous_core::prelude::*;

/// Values common to all workers of one start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job<'a> {
    /// ID of the run.
    pub run_id: &'a str,
    /// Number of times that the group may be restarted in all.
    pub max_restarts: u32,
    /// Host of the workers' store.
    pub master_addr: &'a str,
    /// Port of the workers' store.
    pub master_port: u16,
    /// Which process serves the workers' store.
    pub agent_store: AgentStore,
    /// Devices that a worker sees.
    pub devices: Devices,
    /// Path of the pipe through which workers set timers, if timers are enabled.
    pub timer_file: Option<&'a str>,
}

/// Server of the workers' store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentStore {
    /// An agent: all workers are clients.
    Shared,
    /// The worker of rank 0.
    OfRankZero,
}

/// Devices that a worker sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// The devices that the agent sees.
    #[default]
    All,
    /// One device, selected by the local rank. It is the worker's first device, so its `LOCAL_RANK` is 0.
    OneEach,
}

/// AMD's list of visible devices. It is set for a worker only if the agent has it: together with `ROCR_VISIBLE_DEVICES`
/// it would select among devices that are selected already.
const HIP: &str = "HIP_VISIBLE_DEVICES";
/// The list of visible devices that PyTorch reads for both vendors.
const CUDA: &str = "CUDA_VISIBLE_DEVICES";
/// Variables that list the agent's devices; the first one that is set counts.
const VISIBLE_DEVICES: [&str; 2] = [HIP, CUDA];

/// Error of a worker without a device of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("local_rank {local_rank} exceeds available GPUs in {variable}={list}")]
pub struct NoDevice {
    /// Local rank of the worker.
    pub local_rank: u32,
    /// Variable that lists the devices.
    pub variable: &'static str,
    /// Value of the variable.
    pub list: String,
}

/// Name and value of an environment variable.
pub type Variable = (String, String);

/// Returns the variables of `worker`, which override those that it inherits from its agent. `agent_has` returns a
/// variable of the agent's own environment. `error_file` is the path of the worker's error file, or empty.
///
/// # Errors
/// Each worker gets a device of its own, and there are too few.
pub fn of_worker(
    job: &Job<'_>,
    group: &WorkerGroup,
    worker: &Worker,
    error_file: &str,
    agent_has: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Variable>, NoDevice> {
    let mut variables: Vec<Variable> = Vec::new();
    let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
    let seen_rank = match job.devices {
        Devices::All => worker.local_rank,
        Devices::OneEach => 0,
    };
    set("LOCAL_RANK", seen_rank.to_string());
    set("RANK", worker.global_rank.to_string());
    set("GROUP_RANK", group.group_rank.unwrap_or(0).to_string());
    set("ROLE_RANK", worker.role_rank.to_string());
    set("ROLE_NAME", group.role.as_ref().to_owned());
    set("LOCAL_WORLD_SIZE", group.workers.len().to_string());
    set("WORLD_SIZE", worker.world_size.to_string());
    set("GROUP_WORLD_SIZE", group.group_world_size.to_string());
    set("ROLE_WORLD_SIZE", worker.role_world_size.to_string());
    set("MASTER_ADDR", job.master_addr.to_owned());
    set("MASTER_PORT", job.master_port.to_string());
    set("TORCHELASTIC_RESTART_COUNT", group.restart_count.to_string());
    set("TORCHELASTIC_MAX_RESTARTS", job.max_restarts.to_string());
    set("TORCHELASTIC_RUN_ID", job.run_id.to_owned());
    set("TORCHELASTIC_USE_AGENT_STORE", python_bool(job.agent_store == AgentStore::Shared).to_owned());
    set("TORCHELASTIC_ERROR_FILE", error_file.to_owned());
    let nccl = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    set(nccl, agent_has(nccl).unwrap_or_else(|| "1".to_owned()));
    if let Some(timer_file) = job.timer_file {
        set("TORCHELASTIC_TIMER_FILE", timer_file.to_owned());
    }
    if job.devices == Devices::OneEach {
        let device = device_of(worker.local_rank, agent_has)?;
        if agent_has(HIP).is_some() {
            set(HIP, device.clone());
        }
        set(CUDA, device);
    }
    Ok(variables)
}

fn device_of(local_rank: u32, agent_has: &dyn Fn(&str) -> Option<String>) -> Result<String, NoDevice> {
    let listed = VISIBLE_DEVICES.iter().find_map(|&variable| Some((variable, agent_has(variable)?)));
    let Some((variable, list)) = listed.filter(|(_, list)| !list.is_empty()) else {
        return Ok(local_rank.to_string());
    };
    let index = usize::try_from(local_rank).unwrap_or(usize::MAX);
    match list.split(',').nth(index) {
        Some(device) => Ok(device.trim().to_owned()),
        None => Err(NoDevice { local_rank, variable, list }),
    }
}

/// Returns the value as Python prints it, and as readers compare it.
const fn python_bool(truth: bool) -> &'static str {
    if truth { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::Ranks;
    use alloc::collections::BTreeMap;

    fn job() -> Job<'static> {
        Job {
            run_id: "run-7",
            max_restarts: 3,
            master_addr: "node-0",
            master_port: 29500,
            agent_store: AgentStore::Shared,
            devices: Devices::All,
            timer_file: None,
        }
    }

    fn group() -> WorkerGroup {
        let ranks = Ranks { global_rank_first: 4, world_size: 6, role_rank_first: 1, role_world_size: 3 };
        WorkerGroup {
            role: "trainer".into(),
            group_rank: Some(2),
            group_world_size: 5,
            restart_count: 1,
            workers: ranks.workers(2),
            ..WorkerGroup::default()
        }
    }

    fn set(job: &Job<'_>, has: &[(&str, &str)]) -> Result<BTreeMap<String, String>, NoDevice> {
        let (group, has): (_, BTreeMap<_, _>) = (group(), has.iter().copied().collect());
        let look = |name: &str| has.get(name).map(|&value| value.to_owned());
        let variables = of_worker(job, &group, &group.workers[1], "/logs/error.json", &look)?;
        let count = variables.len();
        let map: BTreeMap<_, _> = variables.into_iter().collect();
        assert_eq!(map.len(), count, "each once");
        Ok(map)
    }

    #[test]
    fn each_variable_has_pytorchs_name_and_form() {
        let variables = set(&job(), &[]).expect("set");
        let wanted = [
            ("GROUP_RANK", "2"),
            ("GROUP_WORLD_SIZE", "5"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node-0"),
            ("MASTER_PORT", "29500"),
            ("RANK", "5"),
            ("ROLE_NAME", "trainer"),
            ("ROLE_RANK", "2"),
            ("ROLE_WORLD_SIZE", "3"),
            ("TORCHELASTIC_ERROR_FILE", "/logs/error.json"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_RUN_ID", "run-7"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("WORLD_SIZE", "6"),
        ];
        let wanted: BTreeMap<_, _> =
            wanted.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(variables, wanted);
    }

    #[test]
    fn what_the_agent_has_is_passed_on() {
        let variables = set(&job(), &[("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")]).expect("set");
        assert_eq!(variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
        let local = Job { agent_store: AgentStore::OfRankZero, timer_file: Some("/run/timer"), ..job() };
        let variables = set(&local, &[]).expect("set");
        assert_eq!(variables["TORCHELASTIC_USE_AGENT_STORE"], "False");
        assert_eq!(variables["TORCHELASTIC_TIMER_FILE"], "/run/timer");
    }

    #[test]
    fn a_worker_with_a_device_of_its_own_takes_it_for_the_first() {
        let local = Job { devices: Devices::OneEach, ..job() };
        let variables = set(&local, &[]).expect("set");
        assert_eq!((&*variables["LOCAL_RANK"], &*variables["CUDA_VISIBLE_DEVICES"]), ("0", "1"));
        assert!(!variables.contains_key("HIP_VISIBLE_DEVICES"), "{variables:?}");
        let variables = set(&local, &[("CUDA_VISIBLE_DEVICES", "4,6")]).expect("set");
        assert_eq!(&*variables["CUDA_VISIBLE_DEVICES"], "6");
        assert!(!variables.contains_key("HIP_VISIBLE_DEVICES"), "{variables:?}");
        let both = [("CUDA_VISIBLE_DEVICES", "4,6"), ("HIP_VISIBLE_DEVICES", "0, 3")];
        let variables = set(&local, &both).expect("set");
        assert_eq!((&*variables["CUDA_VISIBLE_DEVICES"], &*variables["HIP_VISIBLE_DEVICES"]), ("3", "3"));
        let error = set(&local, &[("CUDA_VISIBLE_DEVICES", "4")]).expect_err("too few");
        assert_eq!(error.to_string(), "local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4");
    }
}
