//! `rdzv run`.

mod arguments;
mod backlog;
mod command;
mod console;
mod lines;
mod numa;
mod plain;
mod processors;
mod report;
mod screen;
mod signals;
mod surroundings;
mod usage;
mod waiting;
mod watching;

pub(crate) use arguments::RunArguments;

use crate::log::Configuration;
use command::WorkerCommand;
use humantime::format_duration;
use rendezvous_agent::driver::agent::{
    Agent, AgentOptions, AgentResult, LocalEntry, LocalOptions, LocalWorkers,
};
use rendezvous_agent::driver::process::numactl;
use rendezvous_agent::driver::worker_logs::hand_on_error_file;
use rendezvous_agent::environment::Devices;
use rendezvous_agent::events::EventFacts;
use rendezvous_agent::failure::ProcessFailure;
use rendezvous_agent::spec::WorkerSpec;
use rendezvous_agent::supervisor::Outcome;
use rendezvous_core::driver::rendezvous::{Context, HandlerError, RendezvousHandler, host_name};
use report::Report;
use screen::Screen;
use std::process::ExitCode;
use std::sync::Arc;
use usage::Usage;
use watching::Watching;

/// Why the agent did not come to its end; what it says is all there is to say.
type Failure = Box<dyn std::error::Error>;

pub(crate) fn run(arguments: &RunArguments, configuration: &Configuration) -> ExitCode {
    let mut screen = Screen::new(arguments.log.of("rdzv run"), configuration.clone());
    let code = match Report::begin(arguments.report.as_deref()) {
        Ok(report) => {
            let ended = supervise(arguments, configuration, &mut screen);
            if let Err(error) = &ended {
                screen.error(&error.to_string());
            }
            // The job has ended; a report that cannot be written does not change the exit code.
            if let Err(message) = report.end(ended.as_ref().map_err(ToString::to_string)) {
                screen.warn(&message);
            }
            ended.map_or_else(|error| ExitCode::from(if error.is::<Usage>() { 2 } else { 1 }), exit_code)
        }
        Err(message) => {
            screen.error(&message);
            ExitCode::FAILURE
        }
    };
    screen.finish();
    code
}

fn supervise(
    arguments: &RunArguments,
    configuration: &Configuration,
    screen: &mut Screen,
) -> Result<AgentResult, Failure> {
    let host = host_name();
    let workers = arguments.workers()?;
    let command = WorkerCommand::of(arguments)?;
    let path = surroundings::variable("PATH");
    let binding = arguments.numa_binding.map(|binding| numactl(binding.into(), workers, path.as_deref()));
    let binding = binding.transpose().map_err(|error| Usage(format!("--numa-binding: {error}")))?;
    let watching = Watching::new(arguments, screen)?;
    let rendezvous = arguments.rendezvous(configuration)?;
    let spec = WorkerSpec { master_port: rendezvous.master_port, ..spec(arguments, workers)? };
    for note in &rendezvous.notes {
        screen.note(note);
    }
    // As torchrun does it, so that workers that start elastic jobs of their own have them handled alike.
    let signals = ("TORCHELASTIC_SIGNALS_TO_HANDLE".into(), arguments.signals_to_handle.as_str().into());
    let mut environment = vec![signals];
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
    let mut local = LocalWorkers::new(options, &rendezvous.parameters.run_id, workers)?;
    if let Some((program, arguments)) = binding {
        local.run_through(program, arguments);
    }
    screen.add_default("rdzv_backend", &rendezvous.parameters.backend);
    screen.add_default("shutdown_timeout", format_duration(spec.stop_timeout));
    screen.begin()?;
    let watched = watching::look_after(&mut local, screen)?;
    let signals = signals::Signals::watch(&arguments.signals_to_handle, screen)?;
    let context = Context::default();
    context.observe_servers(screen.exposure());
    let handler = context.create_handler(&rendezvous.parameters).map_err(no_handler)?;
    let options = AgentOptions {
        spec,
        name: host,
        entry_name: command.name,
        local_addr: rendezvous.local_addr,
        listen_addr: rendezvous.listen_addr,
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
    watching::serve_health(&mut agent, watched, screen);
    signals.direct_to(agent.control());
    screen.joining(&handler, &rendezvous.parameters)?;
    let result = agent.run(|agent, event| screen.show(agent, &event))?;
    if let (Outcome::Failed { .. }, Some(failure)) = (&result.outcome, &result.failure) {
        hand_on(&failure.root, screen);
    }
    Ok(result)
}

/// What the user has said of the rendezvous may make no sense.
fn no_handler(error: HandlerError) -> Failure {
    match error {
        HandlerError::Parameters(_)
        | HandlerError::Rdzv(_)
        | HandlerError::Token(_)
        | HandlerError::Static(_)
        | HandlerError::Tls(_)
        | HandlerError::Registry(_) => Usage(error.to_string()).into(),
        error => error.into(),
    }
}

fn spec(arguments: &RunArguments, workers: u32) -> Result<WorkerSpec, Failure> {
    let spec = WorkerSpec {
        role: arguments.role.as_str().into(),
        max_restarts: arguments.max_restarts,
        restart_backoff: arguments.restart_backoff,
        monitor_interval: arguments.monitor_interval,
        stop_timeout: arguments.stop_timeout()?,
        leftover_timeout: arguments.leftover_timeout,
        exit_barrier_timeout: arguments.exit_barrier_timeout,
        rank_assignment: arguments::rank_assignment(),
        ..WorkerSpec::new(workers)
    };
    spec.check().map_err(|error| Usage(error.to_string()))?;
    Ok(spec)
}

/// Copies the root cause's error file to this process's own `TORCHELASTIC_ERROR_FILE`: an agent may be a worker of
/// another agent.
fn hand_on(root: &ProcessFailure, screen: &Screen) {
    let error_path = surroundings::variable("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty());
    let (Some(error_path), Some(from)) = (error_path, &root.error_file) else { return };
    if let Err(error) = hand_on_error_file(from.as_ref(), error_path.as_ref(), root.exit_code) {
        screen.note(&format!("the error file is not handed on: {error}"));
    }
}

/// As torchrun has it: 1 for whatever is no success.
fn exit_code(result: AgentResult) -> ExitCode {
    match result.outcome {
        Outcome::Succeeded { .. } | Outcome::NotNeeded => ExitCode::SUCCESS,
        Outcome::Stopped { .. } | Outcome::Failed { .. } | Outcome::GuardLost { .. } => ExitCode::FAILURE,
    }
}
