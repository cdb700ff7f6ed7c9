//! Siege of a server: how long good clients wait beside strangers who cost as much as they can.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

use std::process::ExitCode;

fn main() -> ExitCode {
    match rendezvous_tests::siege::main(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("siege: {error}");
            ExitCode::FAILURE
        }
    }
}
