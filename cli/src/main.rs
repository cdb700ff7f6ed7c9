//! `rdzv`: the command line of librendezvous.

// They end the program when whoever reads it has gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use clap::{Parser, Subcommand};
use std::process::ExitCode;

mod bench;
mod endpoint;
mod failure;
mod group;
mod json;
mod open_files;
mod run;
mod server;
mod store;

/// Strangers find each other: a key/value store that speaks PyTorch's own wire protocol.
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
    Bench(bench::BenchArguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Server(arguments) => server::run(&arguments),
        Command::Store(arguments) => store::run(arguments),
        Command::Group(arguments) => group::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}
