//! `rdzv`: the command line of librendezvous.

// These macros panic when the reader of the stream has closed it.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use log::Configuration;
use std::process::ExitCode;

mod bench;
mod endpoint;
mod failure;
mod group;
mod json;
mod log;
mod open_files;
#[cfg(test)]
mod pages;
mod run;
mod security;
mod server;
mod sessions;
mod store;
mod units;

/// Start-up and membership of distributed training: a launcher, a rendezvous, and a store that PyTorch's ranks can use
#[derive(Parser)]
#[command(name = "rdzv", version, propagate_version = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::RunArguments>),
    Server(server::ServerArguments),
    Store(store::StoreArguments),
    Group(group::GroupArguments),
    Sessions(sessions::SessionsArguments),
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    let mut command = Arguments::command();
    let parsed = command.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| {
        let arguments = Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        Ok((arguments, Configuration::of(&command, &matches)))
    });
    let (arguments, configuration) = parsed.unwrap_or_else(|error| with_candidates(error).exit());
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments, &configuration),
        Command::Server(arguments) => server::run(&arguments, &configuration),
        Command::Store(arguments) => store::run(arguments),
        Command::Group(arguments) => group::run(&arguments),
        Command::Sessions(arguments) => sessions::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

/// Lists the flags that an ambiguous flag of `rdzv run` may stand for, in place of one similar flag.
fn with_candidates(mut error: clap::Error) -> clap::Error {
    let given = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(given))) => given.clone(),
        _ => return error,
    };
    let is_run = std::env::args_os().nth(1).is_some_and(|name| name == "run");
    let (Some(short), true) = (given.strip_prefix("--"), is_run) else { return error };
    // clap's tip to put `--` before the flag: no program's name begins like one.
    error.remove(ContextKind::Suggested);
    let command = Arguments::command();
    let run = command.find_subcommand("run").into_iter().flat_map(clap::Command::get_arguments);
    let candidates: Vec<String> = run
        .filter(|argument| !argument.is_hide_set())
        .filter_map(clap::Arg::get_long)
        .filter(|long| long.starts_with(&short.replace('_', "-")))
        .map(|long| format!("--{long}"))
        .collect();
    if candidates.len() > 1 {
        let tip = format!("{given} may be short for {}", candidates.join(", "));
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}
