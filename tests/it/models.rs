//! Models of the driver's lock protocols (`tests/models`), which have a workspace of their own.

use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(420);

#[test]
fn lock_protocols_hold_in_each_order_that_is_tried() {
    let folder = crate::repository().join("tests/models");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--manifest-path"]).arg(folder.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(crate::target_folder().join("models"));
    // The flags of this build are for the library.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let ran = crate::process::run(&mut cargo, TIMEOUT).or_fail("the models");
    assert!(ran.stdout.contains("test tests::a_deadlock_is_found ... ok"), "{}", ran.stdout);
}
