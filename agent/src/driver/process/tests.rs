mod ends;
mod limits;
mod scenes;

use super::*;
use crate::driver::testing::TemporaryFile;
use crate::driver::testing::becomes_readable;
use std::ffi::{OsStr, OsString};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::process::Command;
use std::string::{String, ToString};

const SOON: Duration = Duration::from_secs(20);

fn start() -> Guard {
    let function = Some(Registered::new(scenes::play));
    Guard::start(&GuardOptions { function, ..GuardOptions::default() }).expect("a guard")
}

/// Returns the next event.
#[track_caller]
fn next_or_lost(guard: &mut Guard) -> Result<GuardEvent, GuardLost> {
    loop {
        if let Some(event) = guard.next_event()? {
            return Ok(event);
        }
        assert!(becomes_readable(guard.as_raw_fd(), SOON), "something happens");
    }
}

#[track_caller]
fn next(guard: &mut Guard) -> GuardEvent {
    next_or_lost(guard).expect("the guard lives")
}

/// Returns the process ID of a worker whose start is the next event.
#[track_caller]
fn started(guard: &mut Guard, number: u32) -> u32 {
    match next(guard) {
        GuardEvent::Started { worker, pid } if worker == number => pid,
        other => panic!("worker {number} is not started: {other:?}"),
    }
}

/// Returns the exit of a worker, which is the next event.
#[track_caller]
fn ended(guard: &mut Guard, number: u32) -> (ExitStatus, Returned) {
    match next(guard) {
        GuardEvent::Exited { worker, status, returned, .. } if worker == number => (status, returned),
        other => panic!("worker {number} has not ended: {other:?}"),
    }
}

/// Returns why a worker could not be started.
#[track_caller]
fn refused(guard: &mut Guard, number: u32) -> (SpawnStep, i32) {
    match next(guard) {
        GuardEvent::NotStarted { worker, step, errno } if worker == number => {
            assert_eq!(next(guard), GuardEvent::Empty);
            (step, errno)
        }
        other => panic!("worker {number}: {other:?}"),
    }
}

const fn killed_by(signal: i32) -> ExitStatus {
    ExitStatus::Signal(signal)
}

fn message(message: &[&str]) -> Vec<OsString> {
    message.iter().map(OsString::from).collect()
}

fn shell(script: &str) -> Vec<OsString> {
    message(&["sh", "-c", script])
}

const SHELL: &str = "/bin/sh";

fn at(path: &str) -> Entry<'_> {
    Entry::Path(Path::new(path))
}

/// A shell that runs a script with this standard output.
fn saying<'a>(script: &'a [OsString], stdout: &'a PipeWriter) -> Program<'a> {
    Program { arguments: script, stdout: Stdio::Fd(stdout.as_fd()), ..Program::new(at(SHELL)) }
}

/// A scene of the tests' function, with this standard output.
fn playing<'a>(scene: &'a [OsString], stdout: &'a PipeWriter) -> Program<'a> {
    Program { arguments: scene, stdout: Stdio::Fd(stdout.as_fd()), ..Program::new(Entry::Function) }
}

/// Reads `count` bytes, or fails after a timeout.
#[track_caller]
fn take(from: &mut PipeReader, count: usize) -> Vec<u8> {
    let mut taken = std::vec![0; count];
    let mut filled = 0;
    while filled < count {
        assert!(becomes_readable(from.as_raw_fd(), SOON), "{filled} of {count} bytes came");
        let read = from.read(&mut taken[filled..]).expect("a pipe");
        assert!(read > 0, "{filled} of {count} bytes came before the end");
        filled += read;
    }
    taken
}

/// Reads to the end, or fails after a timeout.
#[track_caller]
fn rest(from: &mut PipeReader) -> Vec<u8> {
    let mut taken = Vec::new();
    let mut capacity = [0; 4096];
    loop {
        assert!(becomes_readable(from.as_raw_fd(), SOON), "the pipe's last writer is gone");
        match from.read(&mut capacity).expect("a pipe") {
            0 => return taken,
            count => taken.extend_from_slice(&capacity[..count]),
        }
    }
}

/// Returns the IDs that processes have written.
#[track_caller]
fn reported(from: &mut PipeReader, count: usize) -> Vec<u32> {
    let bytes = take(from, 4 * count);
    bytes.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number)).collect()
}

fn is_dead(pid: u32) -> bool {
    process_state(pid).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the output of a program.
fn said_by(program: &Program<'_>) -> String {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    guard.spawn(1, &Program { stdout: Stdio::Fd(theirs.as_fd()), ..*program }).expect("asked");
    drop(theirs);
    started(&mut guard, 1);
    let said = rest(&mut ours);
    assert_eq!(ended(&mut guard, 1), (ExitStatus::Code(0), Returned::Nothing));
    String::from_utf8(said).expect("text")
}

#[test]
fn a_worker_starts_and_ends_and_how_it_ended_is_told() {
    let before = system::now_ns();
    let mut guard = start();
    for (script, status) in [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 3", ExitStatus::Code(3)),
        ("exit 255", ExitStatus::Code(255)),
        ("kill -KILL $$", killed_by(libc::SIGKILL)),
        ("kill -USR1 $$", killed_by(libc::SIGUSR1)),
    ] {
        guard.spawn(7, &Program { arguments: &shell(script), ..Program::new(at(SHELL)) }).expect("asked");
        assert_eq!(guard.spawn(7, &Program::new(at(SHELL))), Err(GuardError::Runs(7)));
        let process = started(&mut guard, 7);
        match next(&mut guard) {
            GuardEvent::Exited { worker, pid, status: how, at_ns, was_ending, returned } => {
                assert_eq!((worker, pid, how, returned), (7, process, status, Returned::Nothing), "{script}");
                assert!((before..=system::now_ns()).contains(&at_ns) && was_ending, "{script}");
            }
            other => panic!("{script}: {other:?}"),
        }
        assert_eq!(next(&mut guard), GuardEvent::Empty);
        assert!(is_dead(process), "it was reaped");
    }
    assert_eq!(guard.next_event(), Ok(None));
}

#[test]
fn a_worker_has_what_was_asked_for_and_nothing_else() {
    let environment = [("A", "1"), ("LONG NAME", "a=b\nc"), ("EMPTY", "")].map(|(n, v)| (n.into(), v.into()));
    let arguments = message(&["env", "-0"]);
    let env = at("/usr/bin/env");
    let program = Program { environment: &environment, arguments: &arguments, ..Program::new(env) };
    assert_eq!(said_by(&program), "A=1\0LONG NAME=a=b\nc\0EMPTY=\0");

    let arguments = message(&["sh", "-c", "printf '%s|' \"$0\" \"$@\"", "zero", "", "a b", "\u{e4}"]);
    assert_eq!(said_by(&Program { arguments: &arguments, ..Program::new(at(SHELL)) }), "zero||a b|\u{e4}|");

    let pwd = message(&["pwd"]);
    let index = std::env::temp_dir().canonicalize().expect("a folder");
    let in_folder = Program { directory: Some(&index), arguments: &pwd, ..Program::new(at("/bin/pwd")) };
    assert_eq!(said_by(&in_folder).trim_end(), index.to_str().expect("text"));
    let local = std::env::current_dir().expect("a folder");
    assert_eq!(said_by(&Program { directory: None, ..in_folder }).trim_end(), local.to_str().expect("text"));

    // The listing's own descriptor is the fourth; the lifeline has a number that is not used otherwise.
    let list = message(&["ls", "/proc/self/fd"]);
    let ls = at("/bin/ls");
    assert_eq!(
        said_by(&Program { arguments: &list, stdin: Stdio::Null, ..Program::new(ls) }),
        "0\n1\n1023\n2\n3\n"
    );

    let script =
        shell("read line; echo \"in: $line\"; echo err >&2; ls -l /proc/self/fd/2 | sed 's/.*-> //'");
    let null =
        Program { arguments: &script, stdin: Stdio::Null, stderr: Stdio::Null, ..Program::new(at(SHELL)) };
    assert_eq!(said_by(&null), "in: \n/dev/null\n");
    let (fed, mut feeder) = pipe().expect("a pipe");
    feeder.write_all(b"words\n").expect("written");
    assert_eq!(said_by(&Program { stdin: Stdio::Fd(fed.as_fd()), ..null }), "in: words\n/dev/null\n");

    // Signals: none ignored, the requested ones blocked (as bits, signal 1 is the lowest). Two belong to the C library.
    let signals = shell("grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2");
    let signals_in = |blocked: &[i32]| -> Vec<u64> {
        let said = said_by(&Program { arguments: &signals, blocked, ..Program::new(at(SHELL)) });
        said.lines().map(|bits| u64::from_str_radix(bits, 16).expect("bits") & !(3 << 31)).collect()
    };
    assert_eq!(signals_in(&[]), [0, 0]);
    assert_eq!(signals_in(&[libc::SIGUSR1, 64]), [1 << 63 | 1 << (libc::SIGUSR1 - 1), 0]);

    // A session and a group of its own.
    let ids = shell("cut -d' ' -f1,5,6 /proc/$$/stat");
    let said = said_by(&Program { arguments: &ids, ..Program::new(at(SHELL)) });
    let said: Vec<&str> = said.split_whitespace().collect();
    assert!(said.len() == 3 && said.iter().all(|id| *id == said[0]), "{said:?}");
}

/// A file that another process has written, so that no open descriptor prevents its execution.
fn program_file(name: &str, contents: &[u8], mode: &str) -> TemporaryFile {
    let file = TemporaryFile::new(name);
    let mut child = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod \"$1\" \"$0\""])
        .args([file.path().as_os_str(), OsStr::new(mode)])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("a shell");
    child.stdin.take().expect("a pipe").write_all(contents).expect("written");
    assert!(child.wait().expect("a child of ours").success());
    file
}

#[test]
fn what_cannot_be_started_is_told_by_step_and_number() {
    let mut guard = start();
    let mut refusal = |program: &Program<'_>| {
        guard.spawn(3, program).expect("asked");
        refused(&mut guard, 3)
    };
    let plain = program_file("plain", b"#!/bin/sh\nexit 0\n", "644");
    let folder = std::env::temp_dir();
    let orphan = program_file("orphan", b"#!/nowhere/interpreter\n", "755");
    let text = program_file("text", b"exit 0\n", "755");
    for (path, errno) in [
        (Path::new("/nowhere/program"), libc::ENOENT),
        (Path::new(""), libc::ENOENT),
        (plain.path(), libc::EACCES),
        (&folder, libc::EACCES),
        (orphan.path(), libc::ENOENT),
        (text.path(), libc::ENOEXEC),
    ] {
        let arguments = message(&["program"]);
        let program = Program { arguments: &arguments, ..Program::new(Entry::Path(path)) };
        assert_eq!(refusal(&program), (SpawnStep::Exec, errno), "{}", path.display());
    }
    let long = shell(&"x".repeat(200_000));
    assert_eq!(
        refusal(&Program { arguments: &long, ..Program::new(at(SHELL)) }),
        (SpawnStep::Exec, libc::E2BIG)
    );
    for entry in [at(SHELL), Entry::Function] {
        for (index, errno) in [(Path::new("/nowhere"), libc::ENOENT), (plain.path(), libc::ENOTDIR)] {
            let program = Program { directory: Some(index), ..Program::new(entry) };
            assert_eq!(refusal(&program), (SpawnStep::Directory, errno), "{}", index.display());
        }
    }
    guard.spawn(3, &Program { arguments: &shell("exit 0"), ..Program::new(at(SHELL)) }).expect("asked");
    started(&mut guard, 3);
    assert_eq!(ended(&mut guard, 3).0, ExitStatus::Code(0), "nothing is left of what failed");
}

#[test]
fn what_is_wrong_by_itself_is_told_at_once() {
    let mut guard =
        Guard::start(&GuardOptions { workers_max: 1, ..GuardOptions::default() }).expect("a guard");
    assert_eq!(guard.spawn(1, &Program::new(Entry::Function)), Err(GuardError::NoFunction));
    let zero = message(&["a\0b"]);
    let program = Program { arguments: &zero, ..Program::new(at(SHELL)) };
    assert_eq!(guard.spawn(1, &program), Err(GuardError::ZeroByte(Part::Argument)));
    let program = Program::new(at("a\0b"));
    assert_eq!(guard.spawn(1, &program), Err(GuardError::ZeroByte(Part::Path)));
    let program = Program { directory: Some(Path::new("a\0b")), ..Program::new(at(SHELL)) };
    assert_eq!(guard.spawn(1, &program), Err(GuardError::ZeroByte(Part::Directory)));
    for name in ["", "a=b"] {
        let environment = [(OsString::from(name), OsString::new())];
        let program = Program { environment: &environment, ..Program::new(at(SHELL)) };
        assert_eq!(guard.spawn(1, &program), Err(GuardError::NotAName(name.into())));
    }
    let environment = [(OsString::from("a"), OsString::from("\0"))];
    let program = Program { environment: &environment, ..Program::new(at(SHELL)) };
    assert_eq!(guard.spawn(1, &program), Err(GuardError::ZeroByte(Part::Environment)));
    for signal in [-1, 0, 65] {
        assert_eq!(guard.signal(signal), Err(GuardError::NoSignal(signal)));
        assert_eq!(guard.pass(signal), Err(GuardError::NoSignal(signal)));
        let program = Program { blocked: &[signal], ..Program::new(at(SHELL)) };
        assert_eq!(guard.spawn(1, &program), Err(GuardError::NoSignal(signal)));
    }
    let idle = shell("exec cat");
    let (fed, feeder) = pipe().expect("a pipe");
    let program = Program { arguments: &idle, stdin: Stdio::Fd(fed.as_fd()), ..Program::new(at(SHELL)) };
    guard.spawn(1, &program).expect("nothing of all that was asked for");
    assert_eq!(guard.spawn(2, &program), Err(GuardError::TooMany(1)));
    started(&mut guard, 1);
    drop(feeder);
    assert_eq!(ended(&mut guard, 1).0, ExitStatus::Code(0));
    guard.spawn(2, &program).expect("there is room again");
}

/// An x86-64 program whose only segment has an impossible address. The kernel has replaced the old program by the time
/// it notices that.
fn misplaced_program() -> Vec<u8> {
    let mut head = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let machine = if cfg!(target_arch = "aarch64") { 183_u16 } else { 62 };
    head.extend([2_u16, machine].iter().flat_map(|half| half.to_le_bytes()));
    head.extend(1_u32.to_le_bytes());
    head.extend([0x40_0000_u64, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    head.extend(0_u32.to_le_bytes());
    head.extend([64_u16, 56, 1, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    head.extend([1_u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    let index = 0xffff_8000_0000_0000_u64;
    head.extend([0, index, index, 120, 120, 4096].iter().flat_map(|word| word.to_le_bytes()));
    head
}

#[test]
fn who_dies_while_becoming_a_program_has_started_and_ended() {
    let file = program_file("misplaced", &misplaced_program(), "755");
    let mut guard = start();
    guard.spawn(1, &Program::new(Entry::Path(file.path()))).expect("asked");
    started(&mut guard, 1);
    let ExitStatus::Signal(signal) = ended(&mut guard, 1).0 else { panic!("it was killed") };
    assert!([libc::SIGSEGV, libc::SIGKILL].contains(&signal), "{signal}");
}

#[test]
fn a_function_returns_bytes() {
    let mut guard = start();
    let (_ours, theirs) = pipe().expect("a pipe");
    for (count, code) in [(0, 0), (1, 9), (100_000, 1), (1 << 20, 255), (40 << 20, 0)] {
        let scene = message(&["return", &count.to_string(), &code.to_string()]);
        guard.spawn(count, &playing(&scene, &theirs)).expect("asked");
        started(&mut guard, count);
        let (status, returned) = ended(&mut guard, count);
        assert_eq!(status, ExitStatus::Code(code));
        assert!(returned == Returned::Bytes(std::vec![7; count as usize]), "{count} bytes");
        assert_eq!(next(&mut guard), GuardEvent::Empty);
    }
    let mut end_of = |scene: &[&str]| {
        guard.spawn(1, &playing(&message(scene), &theirs)).expect("asked");
        started(&mut guard, 1);
        let ended = ended(&mut guard, 1);
        guard.kill().expect("asked");
        while next(&mut guard) != GuardEvent::Empty {}
        ended
    };
    assert_eq!(end_of(&["panic"]), (ExitStatus::Code(PANICKED), Returned::Nothing));
    assert_eq!(end_of(&["exit", "5"]), (ExitStatus::Code(5), Returned::Nothing));
    // A child of the worker holds the file open, which delays nothing.
    assert_eq!(end_of(&["leave"]), (ExitStatus::Code(0), Returned::Bytes(Vec::from(*b"left"))));
}

#[test]
fn what_a_function_returns_arrives_whole_or_fails() {
    let function = Some(Registered::new(scenes::play));
    let bytes_max = 3000;
    let options = GuardOptions { function, returned_bytes_max: bytes_max, ..GuardOptions::default() };
    let mut guard = Guard::start(&options).expect("a guard");
    let (_ours, theirs) = pipe().expect("a pipe");
    let mut end_of = |scene: &[&str]| {
        guard.spawn(1, &playing(&message(scene), &theirs)).expect("asked");
        started(&mut guard, 1);
        let ended = ended(&mut guard, 1);
        assert_eq!(next(&mut guard), GuardEvent::Empty);
        ended
    };
    let whole = Returned::Bytes(std::vec![7; bytes_max]);
    assert_eq!(end_of(&["return", "3000", "0"]), (ExitStatus::Code(0), whole));
    // A function that has closed the file can return nothing more, and another file with its number is not changed.
    assert_eq!(end_of(&["close all and return", "0"]), (ExitStatus::Code(0), Returned::Nothing));
    assert_eq!(end_of(&["close all and return", "3"]), (ExitStatus::Code(NOT_RETURNED), Returned::Nothing));
    let too_long = Returned::TooLong { bytes: 3001, bytes_max };
    assert_eq!(
        too_long.failure().expect("a failure"),
        "the function returned 3001 bytes, and the limit of a worker's return value is 3000 bytes"
    );
    assert_eq!(end_of(&["return", "3001", "0"]), (ExitStatus::Code(NOT_RETURNED), too_long.clone()));
    assert_eq!(end_of(&["return", "3001", "256"]), (ExitStatus::Code(NOT_RETURNED), too_long.clone()));
    // The exit code of a failure does not change.
    assert_eq!(end_of(&["return", "3001", "9"]), (ExitStatus::Code(9), too_long));
    // A file may have 1000 bytes.
    let full = Returned::Failed(libc::EFBIG);
    assert!(
        full.failure()
            .expect("a failure")
            .starts_with("the return value of the function could not be transferred: ")
    );
    assert_eq!(end_of(&["return to a small file", "3000"]), (ExitStatus::Code(NOT_RETURNED), full));
    // It dies when half of the value is written.
    assert_eq!(end_of(&["die while returning"]), (killed_by(libc::SIGKILL), Returned::Nothing));
}

#[test]
fn a_function_has_its_call_and_a_world_of_its_own() {
    let mut guard = start();
    let (_ours, theirs) = pipe().expect("a pipe");
    let index = std::env::temp_dir().canonicalize().expect("a folder");
    let environment = [(OsString::from("A"), OsString::from("1"))];
    let scene = message(&["world", "", "\u{e4}"]);
    let program = Program { environment: &environment, directory: Some(&index), ..playing(&scene, &theirs) };
    guard.spawn(77, &program).expect("asked");
    let pid = started(&mut guard, 77);
    let (status, Returned::Bytes(seen)) = ended(&mut guard, 77) else { panic!("it returns") };
    assert_eq!(status, ExitStatus::Code(0));
    // Open are the standard descriptors, the file for the return value, that of the listing itself, and the lifeline.
    let seen = String::from_utf8(seen).expect("text");
    let expected = std::format!("77|world,,\u{e4}|A=1|{}|0,1,2,3,4,1023|{pid},{pid}", index.display());
    assert_eq!(seen, expected);
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let folder = std::env::temp_dir();
    let plain = program_file("find-plain", b"", "644");
    let program = program_file("find-program", b"", "755");
    let name_of = |file: &TemporaryFile| file.path().file_name().map(OsString::from).expect("a name");
    let search = std::env::join_paths([Path::new("/nowhere"), &folder]).expect("a search path");
    let found = find_program(&name_of(&program), Some(&search));
    assert_eq!(found, Ok(program.path().into()));
    assert_eq!(find_program(program.path().as_os_str(), None), Ok(program.path().into()));
    // A program below a relative path or folder is found from every directory.
    let here = std::env::current_dir().expect("a directory");
    let up = "../".repeat(here.components().count());
    let with_scope = |path: &Path| Path::new(&up).join(path.strip_prefix("/").expect("absolute"));
    for found in [
        find_program(with_scope(program.path()).as_os_str(), None),
        find_program(&name_of(&program), Some(with_scope(&folder).as_os_str())),
    ] {
        assert_eq!(found, Ok(here.join(with_scope(program.path()))));
    }
    let not = FindError::NotExecutable(plain.path().into());
    assert_eq!(find_program(&name_of(&plain), Some(&search)), Err(not.clone()));
    assert_eq!(find_program(plain.path().as_os_str(), Some(&search)), Err(not));
    let is = FindError::IsDirectory(folder.clone());
    assert_eq!(find_program(folder.as_os_str(), Some(&search)), Err(is));
    let Err(error) = find_program(OsStr::new("no-such"), Some(&search)) else { panic!("there is none") };
    let places = [Path::new("/nowhere").join("no-such"), folder.join("no-such")];
    assert_eq!(error, FindError::NotFound { name: "no-such".into(), looked_at: places.clone().into() });
    let sentence = error.to_string();
    assert!(places.iter().all(|index| sentence.contains(index.to_str().expect("text"))), "{sentence}");
    for (name, search) in [("", Some(search.as_os_str())), ("no-such", None)] {
        let Err(FindError::NotFound { looked_at, .. }) = find_program(OsStr::new(name), search) else {
            panic!("there is none")
        };
        assert!(looked_at.is_empty());
    }
}
