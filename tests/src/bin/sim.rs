//! Runs one seed of the simulator, with a trace if requested, or many.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

use std::process::ExitCode;

fn main() -> ExitCode {
    rendezvous_tests::sim::command::main(std::env::args().skip(1))
}
