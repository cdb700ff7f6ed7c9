//! The integration tests of librendezvous, in one binary.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

mod abi;
mod bad_input;
mod c_calls;
mod c_programs;
#[path = "../../core/src/tls/tests/certificates.rs"]
mod certificates;
mod costs;
mod counting;
mod dependencies;
mod documents;
mod fuzz;
mod golden;
mod group;
mod header;
mod install;
mod library;
mod liveness;
mod memory;
mod models;
mod net;
mod nostd;
mod parsers;
mod planted;
mod process;
mod rdzv;
mod restarts;
mod rpc_groups;
mod run;
mod sim;
mod soak;
mod tidy;
mod tls;
mod watching;

/// The folder of the repository.
fn repository() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ stands in the repository")
}

/// The folder of this binary's profile; it stands in `target/PROFILE/deps`.
fn profile_folder() -> std::path::PathBuf {
    let this = std::env::current_exe().expect("the path of this binary");
    this.ancestors().nth(2).expect("a folder for the profile").to_owned()
}

/// The folder of all that is built.
fn target_folder() -> std::path::PathBuf {
    profile_folder().parent().expect("a folder for the profiles").to_owned()
}
