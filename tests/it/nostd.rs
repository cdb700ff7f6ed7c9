//! The core builds without std and, with no features, without an allocator. See `tests/nostd/README.md`.

// The canaries' songs, compiled here with std as well, so that they can be heard.
#[path = "../nostd/canary_b/src/barrier.rs"]
mod barrier;
#[path = "../nostd/canary_b/src/calls.rs"]
mod calls;
#[path = "../nostd/canary_a/src/client.rs"]
mod client;
#[path = "../nostd/canary_a/src/codec.rs"]
mod codec;
#[path = "../nostd/canary_a/src/ground.rs"]
mod ground;
#[path = "../nostd/canary_b/src/handlers.rs"]
mod handlers;
#[path = "../nostd/canary_b/src/client.rs"]
mod multi_client;
#[path = "../nostd/canary_a/src/native.rs"]
mod native;
#[path = "../nostd/canary_b/src/node.rs"]
mod node;
#[path = "../nostd/canary_a/src/node.rs"]
mod node_of_a_run;
#[path = "../nostd/canary_b/src/rendezvous.rs"]
mod rendezvous;
#[path = "../nostd/canary_b/src/reports.rs"]
mod reports;
#[path = "../nostd/canary_b/src/session.rs"]
mod session;
#[path = "../nostd/canary_b/src/store.rs"]
mod store;

use std::process::{Command, Output};

const STD_CAME_IN: &str = "found duplicate lang item `panic_impl`";
const ALLOCATOR_NEEDED: &str = "no global memory allocator found";

/// Builds a canary, with these arguments for its own compilation.
fn build(canary: &str, own_arguments: &[&str]) -> Output {
    let folder = crate::repository().join("tests/nostd").join(canary);
    Command::new(env!("CARGO"))
        .args(["rustc", "--quiet", "--lib", "--color=never", "--target-dir"])
        .arg(crate::target_folder().join("nostd"))
        .arg("--")
        .args(own_arguments)
        .current_dir(&folder)
        .output()
        .unwrap_or_else(|error| panic!("cargo in {}: {error}", folder.display()))
}

fn sings(canary: &str) {
    let built = build(canary, &[]);
    let reported = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{canary}: something needs what the core must do without:\n{reported}");
}

fn is_alive(canary: &str, trip: &str, due: &str) {
    let built = build(canary, &["--cfg", trip]);
    let reported = String::from_utf8_lossy(&built.stderr);
    assert!(!built.status.success(), "{canary} does not notice {trip}: it proves nothing");
    assert!(reported.contains(due), "{canary} with {trip} failed, but not as it should:\n{reported}");
}

#[test]
fn canary_a_sings_without_an_allocator_and_notices_std_and_alloc() {
    sings("canary_a");
    is_alive("canary_a", "canary_trip", STD_CAME_IN);
    is_alive("canary_a", "canary_trip_alloc", ALLOCATOR_NEEDED);
}

#[test]
fn canary_b_sings_with_an_allocator_and_notices_std() {
    sings("canary_b");
    is_alive("canary_b", "canary_trip", STD_CAME_IN);
}

#[test]
fn every_song_is_right() {
    assert!(ground::sings() && codec::sings() && client::sings() && native::sings());
    assert!(node_of_a_run::sings());
    assert!(store::sings() && node::sings() && multi_client::sings() && session::sings());
    assert!(rendezvous::sings() && handlers::sings() && barrier::sings() && reports::sings());
    assert!(calls::sings());
}
