//! Bugs that are planted in the machines are found by the simulator, and nothing that ships has them. See
//! `docs/testing.md`.

use std::process::Command;

/// Most seeds that one may take to be found for its own reason.
const SEEDS: &str = "200";

/// What stands in every program in which a bug could be planted.
const MARK: &[u8] = b"built so that bugs can be planted";

fn is_marked(program: &std::path::Path) -> bool {
    let bytes = std::fs::read(program).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    bytes.windows(MARK.len()).any(|bytes| bytes == MARK)
}

/// The simulator is built once more, in a workspace of its own: in the common one, the feature would be switched on for
/// the library, too.
#[test]
fn every_bug_that_is_planted_in_the_machines_is_found_and_none_ships() {
    let target = crate::target_folder().join("planted");
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--locked", "--color=never", "--target-dir"])
        .arg(&target)
        .args(["--", "--hunt", SEEDS])
        .current_dir(crate::repository().join("tests/planted"))
        .output()
        .expect("cargo runs");
    let reported = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reported}\n{complaints}");
    let found = reported.lines().filter(|line| line.contains(": seed ")).count();
    assert!(found >= 19 && reported.contains(&format!("{found} bugs found; without them ")), "{reported}");

    assert!(is_marked(&target.join("debug/sim")), "the search for the mark proves nothing");
    assert!(!is_marked(crate::library::shipped()), "bugs can be planted in the library that ships");
}
