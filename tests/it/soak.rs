//! `tests/soak.py`: it resumes, adds up, and a failure prints the command that replays it.

use crate::process::run;
use rendezvous_tests::sim::Kind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A simulator in which seed 1,000,007 of the agents fails.
const SIM: &str = r#"#!/bin/sh
failed=0
if [ "$2" = agents ] && [ "$4" -le 1000007 ] && [ $(($4 + $6)) -gt 1000007 ]; then
    failed=1
    echo "cargo run -p rendezvous-tests --bin sim -- --world agents --seed 1000007 --trace" >&2
fi
echo "$2: $6 seeds, $failed failed; 11 events, 5 operations, 4 of them answered, 7 s of virtual time, 0 keys undecided"
exit $failed
"#;

fn soak(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut python = Command::new("python3");
    python.arg(crate::repository().join("tests/soak.py")).args(arguments);
    python.arg("--record").arg(folder.join("record")).arg("--sim").arg(folder.join("sim"));
    let ran = run(&mut python, TIMEOUT);
    (ran.status.code(), ran.stdout)
}

#[test]
fn soak_resumes_and_names_the_command_that_replays_a_failure() {
    let folder = crate::target_folder().join(format!("soak-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("sim"), SIM).expect("a file");
    std::fs::set_permissions(folder.join("sim"), PermissionsExt::from_mode(0o755)).expect("a mode");

    let (code, printed) = soak(&folder, &["--seeds", "5", "--jobs", "2"]);
    assert_eq!(code, Some(0), "{printed}");
    for kind in Kind::ALL {
        assert!(printed.contains(&format!("| {} | 5 | 0 | 11 |", kind.name())), "{printed}");
    }
    let (code, printed) = soak(&folder, &["--seeds", "5", "--jobs", "2"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("| agents | 10 | 1 | 22 |"), "{printed}");
    assert!(printed.contains("| store | 10 | 0 | 22 |"), "{printed}");
    let replay = "replay: cargo run -p rendezvous-tests --bin sim -- --world agents --seed 1000007 --trace\n";
    assert!(printed.contains(replay), "{printed}");
    // A failure stays until the record is removed.
    let (code, printed) = soak(&folder, &["--summary"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains(replay), "{printed}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn soak_counts_a_simulator_that_crashes() {
    let folder = crate::target_folder().join(format!("soak-crash-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("sim"), "#!/bin/sh\nkill -SEGV $$\n").expect("a file");
    std::fs::set_permissions(folder.join("sim"), PermissionsExt::from_mode(0o755)).expect("a mode");
    let (code, printed) = soak(&folder, &["--seeds", "3", "--jobs", "1"]);
    assert_eq!(code, Some(1), "{printed}");
    let replay =
        "replay: cargo run --release -p rendezvous-tests --bin sim -- --world store --from 1000000 --count 3";
    assert!(printed.contains(replay), "{printed}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}
