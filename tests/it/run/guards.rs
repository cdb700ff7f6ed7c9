//! Guards, and their keepers, that are killed alone: by the system for want of memory, or by a user.

use super::{IDLE, Launch, Launched, until_gone};

/// Workers that idle, each with a descendant in a session of its own that does not hold the output; those of the first
/// restart succeed.
fn launch(flags: &[&str]) -> Launched {
    let left = "setsid sh -c 'echo left $$; exec sleep 600 >/dev/null 2>&1' &";
    let script = format!("test $TORCHELASTIC_RESTART_COUNT = 1 && echo again && exit 0; {left} {IDLE}");
    Launch::shell(&[&["--nproc-per-node=2"], flags].concat(), &script).start()
}

/// The workers' descendants, and the processes above the workers: guard, keeper, agent.
#[track_caller]
fn processes(launched: &mut Launched) -> (Vec<libc::pid_t>, [libc::pid_t; 3]) {
    launched.until(2, "left ");
    launched.until(1, "start 0:");
    let worker = launched.until(2, "idle ");
    let number =
        |line: &str| line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number");
    let left =
        launched.seen.iter().filter(|line| line.starts_with("left ")).map(|line| number(line)).collect();
    let guard = parent_of(number(&worker));
    let keeper = parent_of(guard);
    (left, [guard, keeper, parent_of(keeper)])
}

fn parent_of(pid: libc::pid_t) -> libc::pid_t {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    parent.trim().parse().expect("a number")
}

fn is_dead(pid: libc::pid_t) -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, 0) != 0 }
}

fn kill(pid: libc::pid_t) {
    // SAFETY: no memory is involved; the process is this test's.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0, "process {pid}");
}

#[test]
fn a_guard_that_is_killed_leaves_nothing_and_costs_a_restart() {
    let mut launched = launch(&["--max-restarts=1"]);
    let (left, [guard, _, agent]) = processes(&mut launched);
    assert_eq!(agent.unsigned_abs(), launched.child.id());
    kill(guard);
    // The next workers start when nothing of the first ones lives.
    launched.until(1, "again");
    assert!(left.into_iter().all(is_dead));
    let ran = launched.finish().with(0);
    ran.says(2, "again").says(1, "start 1:").says(2, "left ");
    ran.tells(&format!("the guard of the workers (process {guard}) was ended by SIGKILL"));
}

#[test]
fn a_guard_that_is_killed_without_a_restart_left_ends_the_job_with_the_reason() {
    let mut launched = launch(&["--max-restarts=0"]);
    let (left, [guard, keeper, _]) = processes(&mut launched);
    kill(guard);
    let ran = launched.finish().with(1);
    left.into_iter().chain([keeper]).for_each(until_gone);
    ran.says(0, "again").says(0, "start 1:");
    ran.tells(&format!("the guard of the workers (process {guard}) was ended by SIGKILL"));
}

#[test]
fn a_keeper_that_is_killed_leaves_nothing_and_ends_the_job_with_the_reason() {
    let mut launched = launch(&["--max-restarts=3"]);
    let (left, [guard, keeper, _]) = processes(&mut launched);
    kill(keeper);
    let ran = launched.finish().with(1);
    left.into_iter().chain([guard]).for_each(until_gone);
    ran.says(0, "start 1:").tells(&format!(
        "the keeper of the workers' guard has ended (process {keeper}, ended by signal 9); no worker can be started without it"
    ));
}
