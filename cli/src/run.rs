//! `rdzv run`.

mod arguments;
mod command;
mod lines;
mod numa;
mod processors;
mod screen;
mod signals;
mod surroundings;
mod watching;

pub(crate) use arguments::RunArguments;

use arguments::Usage;
use command::WorkerCommand;
use rendezvous_core::agent::environment::Devices;
use rendezvous_core::agent::events::EventFacts;
use rendezvous_core::agent::failure::WorkerGroupFailure;
use rendezvous_core::agent::spec::WorkerSpec;
use rendezvous_core::agent::supervisor::Verdict;
use rendezvous_core::driver::agent::{
    Agent, AgentOptions, AgentResult, LocalEntry, LocalOptions, LocalWorkers,
};
use rendezvous_core::driver::rendezvous::{Context, RendezvousHandler, host_name};
use screen::Screen;
use std::process::ExitCode;
use std::sync::Arc;
use watching::Watching;

/// Why the agent did not come to its end; what it says is all there is to say.
type Failure = Box<dyn std::error::Error>;

pub(crate) fn run(arguments: &RunArguments) -> ExitCode {
    match supervise(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rdzv run: {error}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

fn supervise(arguments: &RunArguments) -> Result<ExitCode, Failure> {
    let screen = Screen::new(arguments.log);
    let host = host_name()?;
    let workers = arguments.workers()?;
    let spec = spec(arguments, workers)?;
    let command = WorkerCommand::of(arguments)?;
    let binding = arguments.numa_binding.map(|binding| numa::bindings(binding, workers)).transpose()?;
    let watching = Watching::new(arguments)?;
    let rendezvous = arguments.rendezvous()?;
    for note in &rendezvous.notes {
        screen.note(note);
    }
    let mut environment = Vec::new();
    if workers > 1 && surroundings::variable("OMP_NUM_THREADS").is_none() {
        screen.note(
            "OMP_NUM_THREADS is not set: each worker gets 1, so that together they do not ask for too much",
        );
        environment.push(("OMP_NUM_THREADS".into(), "1".into()));
    }
    let options = LocalOptions {
        entry: LocalEntry::Program(command.path),
        arguments: command.arguments,
        environment,
        directory: None,
        devices: if arguments.virtual_local_rank { Devices::OneEach } else { Devices::All },
        host: host.clone(),
        logs: arguments.logs(),
        log_dir: arguments.log_dir.clone(),
    };
    // Before there are threads: the guard is forked from this process.
    let mut local = LocalWorkers::new(options, rendezvous.parameters.run_id(), workers)?;
    if let Some((program, arguments)) = binding {
        local.run_through(program, arguments);
    }
    let watched = watching::look_after(&mut local, &screen)?;
    let signals = signals::Signals::watch(&arguments.signals_to_handle, &screen)?;
    let handler = Context::default().create_handler(&rendezvous.parameters)?;
    let options = AgentOptions {
        spec,
        name: host,
        entry_name: command.name,
        local_addr: arguments.local_addr.clone(),
        master: rendezvous.master,
    };
    let handler: Arc<dyn RendezvousHandler> = Arc::from(handler);
    let facts = EventFacts {
        run_id: handler.run_id().into(),
        rdzv_backend: handler.backend().into(),
        hostname: options.name.clone(),
        entry_point: options.entry_name.clone(),
        watchdog: watched,
    };
    let mut agent = Agent::new(options, Arc::clone(&handler), Box::new(local))?;
    watching.watch(&mut agent, facts);
    watching::serve_health(&mut agent, watched, &screen);
    signals.direct_to(agent.control());
    screen.joining(&handler, &rendezvous.parameters);
    let result = agent.run(|agent, event| screen.show(agent, &event))?;
    if let Some(path) = &arguments.report {
        write_report(path, result.failure.as_ref())
            .map_err(|error| format!("the report cannot be written to {}: {error}", path.display()))?;
    }
    Ok(exit_code(&result))
}

fn spec(arguments: &RunArguments, workers: u32) -> Result<WorkerSpec, Failure> {
    let spec = WorkerSpec {
        role: arguments.role.as_str().into(),
        max_restarts: arguments.max_restarts,
        monitor_interval: arguments.monitor_interval,
        stop_timeout: arguments.shutdown_timeout,
        rank_assignment: arguments::rank_assignment(),
        ..WorkerSpec::new(workers)
    };
    spec.check().map_err(|error| Usage(error.to_string()))?;
    Ok(spec)
}

/// As torchrun has it: 1 for whatever is no success.
fn exit_code(result: &AgentResult) -> ExitCode {
    match result.verdict {
        Verdict::Succeeded { .. } | Verdict::NotNeeded => ExitCode::SUCCESS,
        Verdict::Stopped { .. } | Verdict::Failed { .. } | Verdict::LostSight { .. } => ExitCode::FAILURE,
    }
}

/// Without failures the report says so: whoever reads it need not ask whether it is an old one.
fn write_report(path: &std::path::Path, failure: Option<&WorkerGroupFailure>) -> std::io::Result<()> {
    let report = failure.map_or(serde_json::Value::Null, WorkerGroupFailure::to_json);
    std::fs::write(path, format!("{report}\n"))
}
