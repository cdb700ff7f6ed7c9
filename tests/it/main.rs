//! The integration tests of librendezvous, in one binary.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

mod bad_input;
mod fuzz;
mod golden;
mod net;
mod rdzv;
mod sim;

/// The folder of the repository.
fn repository() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ stands in the repository")
}
