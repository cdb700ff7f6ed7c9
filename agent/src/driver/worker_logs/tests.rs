mod disks;

use super::*;
use crate::error_file::{ErrorFile, ErrorFileNote};
use crate::limits::{
    CONSOLE_BYTES_MAX, CONSOLE_FULL_BYTES, ERROR_FILE_BYTES_MAX, TAIL_BYTES_MAX, TAIL_LINES,
};
use crate::streams::{LocalRanksFilter, StdSetting};
use alloc::vec;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

/// Longer than anything here takes; a test that needs it has failed.
const SOON: Duration = Duration::from_secs(20);

/// A folder of one test, removed with this value.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rdzv-logs-{}-{number}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The reading ends of an agent's two outputs.
struct Screen {
    stdout: File,
    stderr: File,
}

impl Screen {
    fn new() -> (Self, Consoles) {
        let (stdout, out) = io::pipe().expect("a pipe");
        let (stderr, err) = io::pipe().expect("a pipe");
        let console = |far: io::PipeWriter| Some(Console::new(far.as_fd()).expect("a console"));
        let consoles = Consoles { stdout: console(out), stderr: console(err) };
        let file = |near: io::PipeReader| File::from(OwnedFd::from(near));
        (Self { stdout: file(stdout), stderr: file(stderr) }, consoles)
    }

    /// Returns everything that was shown, once both writers are closed.
    fn rest(self) -> [String; 2] {
        let Self { mut stdout, mut stderr } = self;
        let stderr = thread::spawn(move || all_of(&mut stderr));
        [all_of(&mut stdout), stderr.join().expect("read")]
    }
}

fn all_of(from: &mut File) -> String {
    let mut text = Vec::new();
    from.read_to_end(&mut text).expect("until its end");
    String::from_utf8(text).expect("UTF-8")
}

fn settings(files: Files, redirects: &str, tee: &str, ranks: &str) -> LogSettings {
    LogSettings {
        files,
        redirects: StdSetting::parse(redirects).expect("a setting"),
        tee: StdSetting::parse(tee).expect("a setting"),
        local_ranks: LocalRanksFilter::parse(ranks).expect("a list"),
        ..LogSettings::default()
    }
}

fn origin(local_rank: u32) -> Origin<'static> {
    Origin { role_name: "w", local_rank, rank: 10 + u64::from(local_rank), hostname: "n1" }
}

fn open(settings: LogSettings, folder: &TemporaryFolder) -> (WorkerLogs, Screen) {
    let (screen, consoles) = Screen::new();
    let logs = WorkerLogs::open(settings, "job", LogFolder::In(folder.path()), consoles).expect("opened");
    (logs, screen)
}

impl Output {
    /// The worker's end.
    fn file(self) -> File {
        match self {
            Output::Fd(fd) => fd.into(),
            other => panic!("{other:?}"),
        }
    }
}

/// Starts an attempt of one worker and returns its outputs.
fn start_one(logs: &mut WorkerLogs) -> (File, File) {
    let mut attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    assert_eq!(attempt.log_error, None);
    let worker = attempt.workers.remove(0);
    (worker.stdout.file(), worker.stderr.file())
}

fn finished(logs: &mut WorkerLogs) {
    assert_eq!(logs.finish_attempt(SOON), [], "all streams have ended");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("a file")
}

/// Writes on another thread. The result arrives when the write has returned.
fn write_elsewhere(mut to: File, bytes: Vec<u8>) -> Receiver<io::Result<()>> {
    let (done, written) = bounded(1);
    thread::spawn(move || done.send(to.write_all(&bytes)));
    written
}

#[test]
fn tees_go_into_files_as_they_are_and_to_the_console_behind_prefixes() {
    let folder = TemporaryFolder::new();
    let tee =
        LogSettings { stdout_needles: ["loss".to_string()].into(), ..settings(Files::Kept, "0", "3", "") };
    let (mut logs, screen) = open(tee, &folder);
    let run = logs.run_folder().expect("a folder").to_path_buf();
    let run_name = run.file_name().expect("a name").to_string_lossy().to_string();
    assert!(run.is_absolute() && run_name.starts_with("job_") && run_name.len() == 12, "{run_name}");
    let attempt = logs.start_attempt(0, &[origin(0), origin(12)]).expect("started");
    assert_eq!((attempt.number, attempt.folder.as_deref()), (0, Some(&*run.join("attempt_0"))));
    for worker in attempt.workers {
        let error_file = worker.error_file.expect("a path");
        assert_eq!(error_file, run.join(format!("attempt_0/{}/error.json", worker.local_rank)));
        let (mut stdout, mut stderr) = (worker.stdout.file(), worker.stderr.file());
        stdout.write_all(b"step 1\r\nloss 0.5\nno end").expect("written");
        stderr.write_all(b"warning\n\xff\n").expect("written");
        drop((stdout, stderr));
        assert_eq!(logs.tail(worker.local_rank), ["warning", "\u{fffd}"], "it is read by now");
    }
    finished(&mut logs);
    assert_eq!(logs.tail(12), ["warning", "\u{fffd}"]);
    assert_eq!(logs.tail(3), [""; 0]);
    drop(logs);
    let mut screen = screen;
    let mut lines: Vec<String> = all_of(&mut screen.stdout).lines().map(ToString::to_string).collect();
    lines.sort();
    let expected =
        ["[w0]:loss 0.5", "[w0]:no end", "[w0]:step 1", "[w12]:loss 0.5", "[w12]:no end", "[w12]:step 1"];
    assert_eq!(lines, expected);
    let mut visible = Vec::new();
    screen.stderr.read_to_end(&mut visible).expect("shown");
    assert_eq!(visible, b"[w0]:warning\n[w0]:\xff\n[w12]:warning\n[w12]:\xff\n");
    assert_eq!(names(&run.join("attempt_0")), ["0", "12", "filtered_stdout.log"]);
    assert_eq!(names(&run.join("attempt_0/12")), ["stderr.log", "stdout.log"]);
    assert_eq!(text(run.join("attempt_0/0/stdout.log")), "step 1\r\nloss 0.5\nno end");
    assert_eq!(fs::read(run.join("attempt_0/12/stderr.log")).expect("a file"), b"warning\n\xff\n");
    let mut filtered: Vec<String> =
        text(run.join("attempt_0/filtered_stdout.log")).lines().map(ToString::to_string).collect();
    filtered.sort();
    assert_eq!(filtered, ["[w0]:loss 0.5", "[w12]:loss 0.5"]);
}

#[test]
fn redirected_streams_are_files_of_the_workers_own_whose_end_is_read() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "3", "0", ""), &folder);
    let (mut stdout, mut stderr) = start_one(&mut logs);
    assert!(stdout.metadata().expect("a file").is_file() && stderr.metadata().expect("a file").is_file());
    stdout.write_all(b"out").expect("written");
    assert_eq!(logs.tail(0), [""; 0]);
    for number in 0..20_000 {
        writeln!(stderr, "line {number}").expect("written");
    }
    write!(stderr, "the end").expect("written");
    let tail = logs.tail(0);
    assert_eq!((tail.len(), tail[0].as_str(), tail[19].as_str()), (TAIL_LINES, "line 19981", "the end"));
    // The file was removed, but the worker still has it open.
    let run = logs.run_folder().expect("a folder").to_path_buf();
    assert_eq!(text(run.join("attempt_0/0/stdout.log")), "out");
    fs::remove_dir_all(&run).expect("removed");
    finished(&mut logs);
    assert_eq!(logs.tail(0), tail, "also when all is over");
    // The next attempt starts without lines.
    let (_, mut stderr) = start_one(&mut logs);
    assert_eq!(logs.tail(0), [""; 0]);
    // A line longer than the limit of the tail, and its end.
    stderr.write_all(&vec![b'x'; 3 * TAIL_BYTES_MAX]).expect("written");
    assert_eq!(logs.tail(0).len(), 1);
    stderr.write_all(b"\n").expect("written");
    assert_eq!(logs.tail(0).len(), 1, "the end of the only line");
    stderr.write_all(b"boom\n").expect("written");
    assert_eq!(logs.tail(0), ["boom"], "what is no whole line is left out");
    drop(logs);
    assert_eq!(screen.rest(), ["", ""]);
}

#[test]
fn without_settings_standard_output_is_inherited_and_standard_error_is_passed_on_at_once() {
    let folder = TemporaryFolder::new();
    let (mut logs, mut screen) = open(LogSettings::default(), &folder);
    let mut attempt = logs.start_attempt(0, &[origin(0), origin(1)]).expect("started");
    let [first, second] = [attempt.workers.remove(0), attempt.workers.remove(0)];
    assert!(matches!((first.stdout, second.stdout), (Output::Inherit, Output::Inherit)));
    let (mut first, second) = (first.stderr.file(), second.stderr.file());
    first.write_all(b"50 %").expect("written");
    let mut visible = [0; 4];
    screen.stderr.read_exact(&mut visible).expect("it comes without an end of the line");
    assert_eq!(&visible, b"50 %");
    assert_eq!(logs.tail(0), ["50 %"]);
    first.write_all(b"\r100 %\nboom").expect("written");
    assert_eq!(logs.tail(0), ["100 %", "boom"]);
    drop((first, second));
    finished(&mut logs);
    assert_eq!(names(&logs.run_folder().expect("a folder").join("attempt_0/0")), [""; 0]);
    drop(logs);
    assert_eq!(screen.rest(), ["", "\r100 %\nboom"]);
}

#[test]
fn who_is_not_shown_has_last_lines_all_the_same() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "0", "0", "0"), &folder);
    let mut attempt = logs.start_attempt(0, &[origin(1)]).expect("started");
    let worker = attempt.workers.remove(0);
    assert!(matches!(worker.stdout, Output::Null));
    worker.stderr.file().write_all(b"boom\n").expect("written");
    finished(&mut logs);
    assert_eq!(logs.tail(1), ["boom"]);
    drop(logs);
    assert_eq!(screen.rest(), ["", ""]);
}

#[test]
fn without_files_there_are_consoles_only() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Discarded, "2", "1", ""), &folder);
    let attempt = logs.start_attempt(3, &[origin(0)]).expect("started");
    assert_eq!((attempt.number, attempt.folder, logs.run_folder()), (3, None, None));
    for worker in attempt.workers {
        assert_eq!(worker.error_file, None);
        worker.stdout.file().write_all(b"shown").expect("written");
        worker.stderr.file().write_all(b"not shown").expect("written");
    }
    finished(&mut logs);
    assert_eq!(logs.tail(0), ["not shown"]);
    drop(logs);
    assert_eq!(screen.rest(), ["[w0]:shown\n", ""]);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_folder_for_temporary_files_is_the_users_own() {
    let logs = WorkerLogs::open(LogSettings::default(), "a/b", LogFolder::Temporary, Consoles::default());
    let logs = logs.expect("opened");
    let local = logs.run_folder().expect("a folder").parent().expect("a parent").to_path_buf();
    assert!(local.starts_with(std::env::temp_dir()), "{}", local.display());
    assert!(local.file_name().is_some_and(|name| name.to_string_lossy().starts_with("torchelastic_")));
    assert_eq!(local.metadata().expect("a folder").permissions().mode() & 0o777, 0o700);
    fs::remove_dir_all(local).expect("removed");
}

#[test]
fn a_folder_for_temporary_files_goes_if_nothing_came_into_it() {
    let start = || {
        let settings = LogSettings::default();
        let mut logs =
            WorkerLogs::open(settings, "job", LogFolder::Temporary, Consoles::default()).expect("opened");
        for number in 0..3 {
            logs.start_attempt(number, &[origin(0), origin(1)]).expect("started");
        }
        let local = logs.run_folder().and_then(Path::parent).expect("a folder").to_path_buf();
        (logs, local)
    };
    let (logs, local) = start();
    assert!(local.is_dir());
    drop(logs);
    assert!(!local.exists(), "{}", local.display());
    // A single file keeps the whole folder.
    let (mut logs, local) = start();
    let attempt = logs.start_attempt(3, &[origin(0)]).expect("started");
    let error_file = attempt.workers[0].error_file.clone().expect("a path");
    fs::write(&error_file, "").expect("written");
    drop((logs, attempt));
    assert!(error_file.exists());
    assert_eq!(fs::read_dir(error_file.ancestors().nth(3).expect("the run's")).expect("a folder").count(), 4);
    fs::remove_dir_all(local).expect("removed");
    // A folder given by the user stays.
    let folder = TemporaryFolder::new();
    let (logs, _screen) = open(LogSettings::default(), &folder);
    let run = logs.run_folder().expect("a folder").to_path_buf();
    drop(logs);
    assert!(run.exists());
}

#[test]
fn attempts_are_numbered_and_none_is_ever_erased() {
    let folder = TemporaryFolder::new();
    let (mut logs, _screen) = open(settings(Files::Kept, "3", "0", ""), &folder);
    let run = logs.run_folder().expect("a folder").to_path_buf();
    let write = |attempt: Attempt, text: &str| {
        for worker in attempt.workers {
            worker.stdout.file().write_all(text.as_bytes()).expect("written");
        }
        attempt.number
    };
    for number in [0, 1, 5] {
        assert_eq!(write(logs.start_attempt(number, &[origin(0)]).expect("started"), "before"), number);
    }
    // A number is never given twice, and one that exists already is skipped.
    fs::create_dir(run.join("attempt_11")).expect("made");
    for (request, given) in [(0, 6), (10, 10), (11, 12)] {
        assert_eq!(write(logs.start_attempt(request, &[origin(0)]).expect("started"), "after"), given);
    }
    for number in [0, 1, 5] {
        assert_eq!(text(run.join(format!("attempt_{number}/0/stdout.log"))), "before");
    }
    assert_eq!(names(&run).len(), 7);
    // Two runs of one name use different folders.
    let (other, _screen) = open(LogSettings::default(), &folder);
    assert_ne!(other.run_folder(), Some(&*run));
}

#[test]
fn a_file_in_the_place_of_the_folder_is_named() {
    let folder = TemporaryFolder::new();
    let file = folder.path().join("logs");
    fs::write(&file, "").expect("written");
    for request in [&file, &file.join("of/job")] {
        let error =
            WorkerLogs::open(LogSettings::default(), "job", LogFolder::In(request), Consoles::default());
        let error = error.expect_err("refused");
        assert_eq!(error, LogError::NotAFolder { path: file.clone() });
        assert_eq!(error.to_string(), format!("log_dir: {} is a file", file.display()));
        assert_eq!((error.path(), error.errno()), (Some(&*file), libc::ENOTDIR));
    }
}

#[test]
fn missing_folders_are_made() {
    let folder = TemporaryFolder::new();
    let deep = folder.path().join("a/b/c");
    let logs = WorkerLogs::open(LogSettings::default(), "job", LogFolder::In(&deep), Consoles::default());
    assert!(logs.expect("opened").run_folder().expect("a folder").starts_with(deep));
}

/// A process that a worker left behind holds its standard error open.
#[test]
fn nobody_waits_for_who_holds_a_stream_open() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "0", "3", ""), &folder);
    let (stdout, mut stderr) = start_one(&mut logs);
    stderr.write_all(b"left behind").expect("written");
    drop(stdout);
    let begun = Instant::now();
    let open = logs.finish_attempt(Duration::from_millis(50));
    assert_eq!(open, [OpenStream { local_rank: 0, stream: Stream::Stderr }]);
    assert!(begun.elapsed() < SOON);
    assert_eq!(logs.tail(0), ["left behind"]);
    assert!(stderr.write_all(b"more").is_err(), "nobody reads it any more");
    finished(&mut logs);
    drop(logs);
    assert_eq!(screen.rest(), ["", "[w0]:left behind\n"]);
}

#[test]
fn a_worker_that_closes_its_standard_output_goes_on() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "0", "3", ""), &folder);
    let (mut stdout, mut stderr) = start_one(&mut logs);
    stdout.write_all(b"out").expect("written");
    drop(stdout);
    assert_eq!(logs.tail(0), [""; 0]);
    assert_eq!(text(logs.run_folder().expect("a folder").join("attempt_0/0/stdout.log")), "out");
    stderr.write_all(b"err").expect("written");
    drop(stderr);
    finished(&mut logs);
    drop(logs);
    assert_eq!(screen.rest(), ["[w0]:out\n", "[w0]:err\n"]);
}

#[test]
fn processes_write_into_all_of_it() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "0:1", "0:2", ""), &folder);
    let attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    let run = logs.run_folder().expect("a folder").to_path_buf();
    for worker in attempt.workers {
        let status = std::process::Command::new("sh")
            .args(["-c", "echo out; echo err >&2; echo '{\"message\": \"boom\"}' > $ERROR_FILE; exit 3"])
            .env("ERROR_FILE", worker.error_file.expect("a path"))
            .stdout(worker.stdout.file())
            .stderr(worker.stderr.file())
            .status();
        assert_eq!(status.expect("it ran").code(), Some(3));
    }
    finished(&mut logs);
    assert_eq!(logs.tail(0), ["err"]);
    drop(logs);
    assert_eq!(screen.rest(), ["", "[w0]:err\n"]);
    assert_eq!(text(run.join("attempt_0/0/stdout.log")), "out\n");
    let ErrorFile::Read { content, .. } = read_error_file(&run.join("attempt_0/0/error.json")) else {
        panic!("it is there")
    };
    assert_eq!(content.expect("an error").message, "boom");
}

#[test]
fn a_closed_console_ends_nobody_and_loses_nothing_else() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "0", "3", ""), &folder);
    drop(screen);
    let (stdout, mut stderr) = start_one(&mut logs);
    let much = "x".repeat(99) + "\n";
    let much = much.repeat(2 * CONSOLE_BYTES_MAX / 100);
    let written = write_elsewhere(stdout, much.clone().into_bytes());
    written.recv_timeout(SOON).expect("in time").expect("it was read");
    stderr.write_all(b"boom").expect("written");
    drop(stderr);
    finished(&mut logs);
    assert_eq!(logs.tail(0), ["boom"]);
    let run = logs.run_folder().expect("a folder");
    assert!(text(run.join("attempt_0/0/stdout.log")) == much);
    assert_eq!(text(run.join("attempt_0/0/stderr.log")), "boom");
}

#[test]
fn a_slow_console_gets_everything_and_who_has_nothing_else_waits() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Discarded, "0", "1", ""), &folder);
    let attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    let line = "y".repeat(999) + "\n";
    let count = 4 * CONSOLE_BYTES_MAX / line.len();
    let mut workers = attempt.workers.into_iter().map(|worker| worker.stdout.file());
    let written = write_elsewhere(workers.next().expect("one"), line.repeat(count).into_bytes());
    // Longer than the stall after which streams with files continue.
    let stalled = crate::limits::CONSOLE_STALL + Duration::from_millis(200);
    assert!(written.recv_timeout(stalled).is_err(), "the worker waits");
    let reader = thread::spawn(|| screen.rest());
    written.recv_timeout(SOON).expect("in time").expect("it was read");
    finished(&mut logs);
    logs.flush(SOON);
    drop(logs);
    let [visible, _] = reader.join().expect("read");
    assert!(visible == ["[w0]:", &line].concat().repeat(count));
}

#[test]
fn who_has_a_file_does_without_a_console_that_stands_still() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Kept, "0", "3", ""), &folder);
    let (stdout, stderr) = start_one(&mut logs);
    let line = "y".repeat(999) + "\n";
    let much = line.repeat(4 * CONSOLE_BYTES_MAX / line.len());
    let written = write_elsewhere(stdout, much.clone().into_bytes());
    written.recv_timeout(SOON).expect("in time").expect("it was read");
    drop(stderr);
    finished(&mut logs);
    assert!(text(logs.run_folder().expect("a folder").join("attempt_0/0/stdout.log")) == much);
    let reader = thread::spawn(|| screen.rest());
    logs.flush(SOON);
    drop(logs);
    let [visible, _] = reader.join().expect("read");
    assert!(
        visible.len() > CONSOLE_FULL_BYTES && visible.len() < CONSOLE_BYTES_MAX + 200_000,
        "{}",
        visible.len()
    );
    assert!(visible.ends_with(" bytes of workers' output are missing here: the console did not take them\n"));
}

/// The worker is dead, its last lines are in its pipe, and the console accepts none of them.
#[test]
fn last_lines_are_not_lost_to_a_console_that_stands_still() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(LogSettings::default(), &folder);
    let mut attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    let stderr = attempt.workers.remove(0).stderr.file();
    let mut last = stderr.try_clone().expect("a descriptor");
    let filler = write_elsewhere(stderr, vec![b'\n'; 2 * CONSOLE_FULL_BYTES]);
    assert!(filler.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
    // Reading the last lines reads everything, so there is room again.
    let begun = Instant::now();
    while filler.is_empty() {
        assert!(logs.tail(0).iter().all(String::is_empty) && begun.elapsed() < SOON);
    }
    last.write_all(b"boom").expect("there is room");
    drop(last);
    assert_eq!(logs.tail(0).last().map(String::as_str), Some("boom"));
    finished(&mut logs);
    assert_eq!(logs.tail(0).last().map(String::as_str), Some("boom"));
    drop(logs);
    assert!(begun.elapsed() < SOON, "nobody waits for the console for ever");
    drop(screen);
}

/// What is left in the pipe of a dead worker is read although its console has been stalled for long.
#[test]
fn an_attempt_is_over_before_its_console_is() {
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(LogSettings::default(), &folder);
    let mut attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    let mut stderr = attempt.workers.remove(0).stderr.file();
    // The console's pipe has a quarter of it, the backlog is full, and the rest stays in the worker's pipe.
    stderr.write_all(&vec![b'x'; CONSOLE_FULL_BYTES + 100 * 1024]).expect("there is room");
    drop(stderr);
    logs.flush(crate::limits::CONSOLE_STALL + Duration::from_millis(200));
    let begun = Instant::now();
    finished(&mut logs);
    assert!(begun.elapsed() < SOON / 2, "it did not wait for the console");
    let reader = thread::spawn(|| screen.rest());
    logs.flush(SOON);
    drop(logs);
    let [_, visible] = reader.join().expect("read");
    assert_eq!(visible.len(), CONSOLE_FULL_BYTES + 100 * 1024, "and nothing is lost");
}

#[test]
fn a_gibibyte_without_a_line_feed_takes_little_memory() {
    let resident = || {
        let status = text("/proc/self/status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a figure");
        line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") * 1024
    };
    let folder = TemporaryFolder::new();
    let (mut logs, screen) = open(settings(Files::Discarded, "0", "1", ""), &folder);
    let mut attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    let mut worker = attempt.workers.remove(0).stdout.file();
    let before = resident();
    let writer = thread::spawn(move || {
        let chunk = vec![b'x'; 1 << 20];
        for _ in 0..1024 {
            worker.write_all(&chunk).expect("it is read");
        }
    });
    let reader = thread::spawn(move || {
        let (mut screen, mut buffer, mut count, mut most) = (screen, vec![0; 1 << 20], 0, 0);
        loop {
            match screen.stdout.read(&mut buffer).expect("shown") {
                0 => return (count, most),
                more => count += more,
            }
            if count % 64 == 0 {
                most = resident().max(most);
            }
        }
    });
    writer.join().expect("written");
    finished(&mut logs);
    most_is_small(resident(), before);
    logs.flush(SOON);
    drop(logs);
    let (count, most) = reader.join().expect("read");
    // Each piece of the line has a prefix and an end.
    let pieces = (1 << 30) / crate::limits::LINE_BYTES_MAX;
    assert_eq!(count, (1 << 30) + pieces * "[w0]:\n".len());
    most_is_small(most, before);
}

fn most_is_small(most: u64, before: u64) {
    assert!(most < before + (128 << 20), "{before} bytes became {most}");
}

#[test]
fn attempts_leave_no_descriptors_behind() {
    let folder = TemporaryFolder::new();
    let needles = ["x".to_string()];
    let tee = LogSettings { stderr_needles: needles.into(), ..settings(Files::Kept, "0:1", "0:2,1:3", "") };
    let (mut logs, screen) = open(tee, &folder);
    let count = || fs::read_dir("/proc/thread-self/fd").expect("a list").count();
    let begin = |logs: &mut WorkerLogs| logs.start_attempt(0, &[origin(0), origin(1)]).expect("started");
    drop(begin(&mut logs));
    finished(&mut logs);
    let before = count();
    for round in 0..200 {
        let attempt = begin(&mut logs);
        assert_eq!(attempt.number, round + 1);
        drop(attempt);
        // Finished or not.
        if round % 2 == 0 {
            finished(&mut logs);
        }
    }
    finished(&mut logs);
    // Tests that run in the same process open some, too.
    let allowed = 500;
    assert!(count() < before + allowed, "{before} became {}", count());
    drop(logs);
    assert_eq!(screen.rest(), ["", ""]);
}

#[test]
fn consoles_are_what_the_agent_has() {
    let folder = TemporaryFolder::new();
    let path = folder.path().join("console");
    let mut file = File::create(&path).expect("made");
    file.write_all(b"before\n").expect("written");
    let (mut near, far) = UnixStream::pair().expect("a pair");
    let flags = |fd: &dyn AsRawFd| {
        // SAFETY: passes an open descriptor.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) }
    };
    let before = (flags(&file), flags(&far));
    let console = |fd: BorrowedFd<'_>| Some(Console::new(fd).expect("a console"));
    let consoles = Consoles { stdout: console(file.as_fd()), stderr: console(far.as_fd()) };
    assert_eq!((flags(&file), flags(&far)), before, "others may share them");
    let tee = settings(Files::Discarded, "0", "3", "");
    let mut logs = WorkerLogs::open(tee, "job", LogFolder::In(folder.path()), consoles).expect("opened");
    let (mut stdout, mut stderr) = start_one(&mut logs);
    stdout.write_all("much\n".repeat(3000).as_bytes()).expect("written");
    stderr.write_all(b"err\n").expect("written");
    drop((stdout, stderr));
    finished(&mut logs);
    // It writes at the offset at which the agent's own output continues.
    file.write_all(b"after\n").expect("written");
    assert_eq!(text(&path), ["before\n", &"[w0]:much\n".repeat(3000), "after\n"].concat());
    let mut visible = [0; 9];
    near.read_exact(&mut visible).expect("shown");
    assert_eq!(&visible, b"[w0]:err\n");
    // A closed socket, and one that accepts nothing.
    near.shutdown(Shutdown::Both).expect("shut");
    let (stdout, mut stderr) = start_one(&mut logs);
    stderr.write_all(b"boom").expect("written");
    drop((stdout, stderr));
    finished(&mut logs);
    assert_eq!(logs.tail(0), ["boom"]);
}

/// Opens both ends of a new terminal.
fn terminal() -> (File, File) {
    // SAFETY: the result is checked before it is owned; the name has the stated length.
    let (near, name) = unsafe {
        let near = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(near >= 0 && libc::grantpt(near) == 0 && libc::unlockpt(near) == 0);
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(near, name.as_mut_ptr(), name.len()), 0);
        (File::from_raw_fd(near), std::ffi::CString::from(std::ffi::CStr::from_ptr(name.as_ptr())))
    };
    let far =
        fs::OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(name.to_str().expect("a path"));
    (near, far.expect("a terminal"))
}

/// The user has pressed Ctrl-S.
#[test]
fn a_terminal_that_is_paused_holds_up_nobody_but_workers() {
    let folder = TemporaryFolder::new();
    let (mut near, far) = terminal();
    let flow = |action| {
        // SAFETY: passes an open terminal.
        assert_eq!(unsafe { libc::tcflow(far.as_raw_fd(), action) }, 0);
    };
    let console = Some(Console::new(far.as_fd()).expect("a console"));
    let consoles = Consoles { stdout: None, stderr: console };
    let mut logs = WorkerLogs::open(LogSettings::default(), "job", LogFolder::In(folder.path()), consoles)
        .expect("opened");
    let mut attempt = logs.start_attempt(0, &[origin(0)]).expect("started");
    let mut stderr = attempt.workers.remove(0).stderr.file();
    flow(libc::TCOOFF);
    stderr.write_all(b"boom").expect("written");
    assert_eq!(logs.tail(0), ["boom"]);
    drop(stderr);
    finished(&mut logs);
    logs.flush(Duration::from_millis(50));
    flow(libc::TCOON);
    let mut visible = [0; 4];
    near.read_exact(&mut visible).expect("shown");
    assert_eq!(&visible, b"boom");
    // The terminal closes for good.
    drop(near);
    let mut attempt = logs.start_attempt(1, &[origin(0)]).expect("started");
    attempt.workers.remove(0).stderr.file().write_all(b"on").expect("written");
    finished(&mut logs);
    assert_eq!(logs.tail(0), ["on"]);
}

#[test]
fn consoles_that_cannot_be_opened_anew_are_asked_for_room() {
    let (near, far) = io::pipe().expect("a pipe");
    let mut console = Console::new(far.as_fd()).expect("a console");
    console.ask();
    let chunk = vec![b'x'; 100_000];
    let mut count = 0;
    let error = loop {
        match console.put(&chunk) {
            Ok(more) => count += more,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), count), (io::ErrorKind::WouldBlock, 64 * 1024), "as much as a pipe holds");
    drop(near);
    assert_eq!(console.put(&chunk).expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn whatever_stands_for_an_error_file_is_told() {
    let folder = TemporaryFolder::new();
    let path = |name: &str| folder.path().join(name);
    assert_eq!(read_error_file(&path("none")), ErrorFile::Absent);
    let note = |name: &str| match read_error_file(&path(name)) {
        ErrorFile::Read { path: named, content } => {
            assert_eq!(named, path(name).display().to_string());
            content.expect_err("no error file")
        }
        ErrorFile::Absent => panic!("{name} is there"),
    };
    fs::create_dir(path("folder")).expect("made");
    assert_eq!(note("folder"), ErrorFileNote::NotAFile);
    let fifo = std::ffi::CString::new(path("fifo").display().to_string()).expect("a path");
    // SAFETY: passes a null-terminated path.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    assert_eq!(note("fifo"), ErrorFileNote::NotAFile, "nobody waits for its writer");
    std::os::unix::fs::symlink("/dev/zero", path("zero")).expect("made");
    assert_eq!(note("zero"), ErrorFileNote::SymbolicLink);
    // A worker must not have the agent read for it what it may not read itself.
    fs::write(path("secret"), r#"{"message": "secret"}"#).expect("written");
    std::os::unix::fs::symlink(path("secret"), path("link")).expect("made");
    assert_eq!(note("link"), ErrorFileNote::SymbolicLink);
    assert_eq!(error_file_age(&path("link")), None);
    assert_eq!(hand_on_error_file(&path("link"), &path("to"), 1).expect_err("a link").errno(), libc::ELOOP);
    assert!(!path("to").exists());
    fs::write(path("long"), vec![b' '; ERROR_FILE_BYTES_MAX + 1]).expect("written");
    assert_eq!(note("long"), ErrorFileNote::TooLong);
    fs::write(path("empty"), "").expect("written");
    assert_eq!(note("empty"), ErrorFileNote::Empty);
}

#[test]
fn links_where_new_files_belong_are_not_followed() {
    let folder = TemporaryFolder::new();
    let path = |name: &str| folder.path().join(name);
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(path(to), path(at)).expect("made");
    // The draft of an error file has a name that can be guessed.
    fs::write(path("victim"), "as it was").expect("written");
    link("victim", "error.json.part");
    write_error_file(&path("error.json"), "boom", "").expect("written");
    assert_eq!(text(path("victim")), "as it was");
    assert!(matches!(read_error_file(&path("error.json")), ErrorFile::Read { content: Ok(_), .. }));

    let refused = |error: LogError, at: &Path| {
        assert_eq!(error, LogError::SymbolicLink { path: at.into() });
        let message = format!("{} is a symbolic link where a new log folder or file belongs; ", at.display());
        assert!(error.to_string().starts_with(&message), "{error}");
    };
    link("victim", "stdout.log");
    refused(files::LogFile::create(path("stdout.log")).expect_err("a link"), &path("stdout.log"));
    link("nowhere", "0");
    refused(files::make_folder(path("0")).expect_err("a link"), &path("0"));
    fs::create_dir(path("elsewhere")).expect("made");
    // The folder of a run, and that of an attempt in it.
    let mut run = files::RunFolder::open("run", LogFolder::In(folder.path())).expect("a folder");
    let run_path = run.path().to_path_buf();
    let attempt = run_path.join("attempt_0");
    std::os::unix::fs::symlink(path("elsewhere"), &attempt).expect("made");
    refused(run.make_attempt(0).expect_err("a link"), &attempt);
    fs::remove_file(&attempt).expect("removed");
    fs::remove_dir(&run_path).expect("removed");
    std::os::unix::fs::symlink(path("elsewhere"), &run_path).expect("made");
    refused(run.make_attempt(0).expect_err("a link"), &run_path);
    assert_eq!(names(&path("elsewhere")), Vec::<String>::new());
    fs::remove_file(&run_path).expect("removed");
    assert!(run.make_attempt(0).is_ok());
}

#[test]
fn the_root_causes_file_is_handed_on() {
    let folder = TemporaryFolder::new();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    let read = |path: &Path| hand_on_error_file(path, &to, -9);
    assert_eq!(read(&from).expect_err("none").errno(), libc::ENOENT);
    assert_eq!(read(folder.path()).expect_err("a folder").errno(), libc::EINVAL);
    fs::write(&from, r#"{"message": {"message": "boom"}}"#).expect("written");
    fs::write(&to, "what was there is replaced").expect("written");
    read(&from).expect("handed on");
    assert_eq!(text(&to), r#"{"message":{"errorCode":-9,"message":"boom"}}"#);
    let external = folder.path().join("none/to");
    let error = hand_on_error_file(&from, &external, 1).expect_err("no such folder");
    assert_eq!((error.path(), error.errno()), (Some(&*external), libc::ENOENT));
    assert_eq!(names(folder.path()), ["from", "to"]);
}

#[test]
fn a_worker_leaves_its_error_for_the_agent() {
    let folder = TemporaryFolder::new();
    let to = folder.path().join("error.json");
    fs::write(&to, "what was there is replaced").expect("written");
    write_error_file(&to, "boom", "main.c:7").expect("written");
    let ErrorFile::Read { content: Ok(error), .. } = read_error_file(&to) else { panic!("it is there") };
    assert_eq!((error.message.as_str(), error.callstack.as_deref()), ("boom", Some("boom\nmain.c:7")));
    assert!(error.timestamp_s > 1_700_000_000);
    let external = folder.path().join("none/error.json");
    let error = write_error_file(&external, "boom", "").expect_err("no such folder");
    assert_eq!((error.path(), error.errno()), (Some(&*external), libc::ENOENT));
    assert_eq!(names(folder.path()), ["error.json"]);
}
