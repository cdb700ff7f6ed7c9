//! Disks that are full or read-only: small ones in mount namespaces of the tests.

use super::*;
use crate::driver::testing::{end_of, in_a_child};
use std::ffi::CString;
use std::ptr;

/// Gives this process mounts of its own. A user other than root first gets a user namespace in which it is root.
fn own_mounts() -> io::Result<()> {
    // SAFETY: it has no arguments.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let flags = if user == 0 { libc::CLONE_NEWNS } else { libc::CLONE_NEWNS | libc::CLONE_NEWUSER };
    // SAFETY: passes flags; this process has one thread.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if user != 0 {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    let (none, flags) = (ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: passes null-terminated texts; the namespace belongs to this process.
    match unsafe { libc::mount(none, c"/".as_ptr(), none, flags, ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `body` with a folder on a new disk with these options. Other processes do not see it.
///
/// # Panics
/// When the machine forbids private mounts: such a disk is not available otherwise, so the test cannot succeed.
fn with_disk(options: &str, flags: libc::c_ulong, body: impl FnOnce(&TemporaryFolder)) {
    let options = CString::new(options).expect("options");
    let child = in_a_child(|| {
        let folder = TemporaryFolder::new();
        let path = CString::new(folder.path().display().to_string()).expect("a path");
        let tmpfs = c"tmpfs".as_ptr();
        let mounted = own_mounts().and_then(|()| {
            // SAFETY: passes null-terminated texts; the namespace belongs to this process.
            match unsafe { libc::mount(tmpfs, path.as_ptr(), tmpfs, flags, options.as_ptr().cast()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
        if let Err(error) = mounted {
            drop(folder);
            panic!("NOT TESTED: this machine forbids private mounts: {error}");
        }
        body(&folder);
        // SAFETY: as above.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        Some(())
    });
    assert_eq!(end_of(child), 0, "it holds, or the machine forbids private mounts: see above");
}

fn refused(settings: LogSettings, folder: &TemporaryFolder) -> LogError {
    let logs = WorkerLogs::open(settings, "job", LogFolder::In(folder.path()), Consoles::default());
    match logs {
        Ok(mut logs) => logs.start_attempt(0, &[origin(0)]).expect_err("refused"),
        Err(error) => error,
    }
}

#[test]
fn a_folder_that_may_not_be_written_is_named() {
    with_disk("size=64k", libc::MS_RDONLY, |folder| {
        let error = refused(LogSettings::default(), folder);
        assert!(matches!(error, LogError::Folder { errno: libc::EROFS, .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.starts_with(&format!("cannot make the log folder {}/job_", folder.path().display())));
        assert!(message.ends_with(": Read-only file system (os error 30)"), "{message}");
    });
}

#[test]
fn a_disk_that_is_full_from_the_beginning_is_named() {
    // There is room for this many files: the root, the run, the attempt, the worker.
    for inodes in 1..5 {
        with_disk(&format!("size=64k,nr_inodes={inodes}"), 0, move |folder| {
            let error = refused(settings(Files::Kept, "1", "0", ""), folder);
            let name = error.path().and_then(Path::file_name).expect("a name").to_string_lossy().to_string();
            let expected = ["job_", "attempt_0", "0", "stdout.log"][inodes - 1];
            assert!(name.starts_with(expected), "{error}");
            assert_eq!(error.errno(), libc::ENOSPC);
            assert_eq!(matches!(error, LogError::File { .. }), inodes == 4, "{error:?}");
        });
    }
}

#[test]
fn a_disk_that_fills_up_costs_its_files_and_nothing_else() {
    // Room for the files of one attempt, their folders and one more.
    with_disk("size=64k,nr_inodes=8", 0, |folder| {
        let needles = ["line".to_string()];
        let tee = LogSettings { stdout_needles: needles.into(), ..settings(Files::Kept, "0", "3", "") };
        let (mut logs, screen) = open(tee, folder);
        let reader = thread::spawn(|| screen.rest());
        let (stdout, stderr) = start_one(&mut logs);
        let run = logs.run_folder().expect("a folder").to_path_buf();
        let lines: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
        for (file, lines) in [(stdout, lines.clone()), (stderr, lines.clone())] {
            let written = write_elsewhere(file, lines.into_bytes());
            written.recv_timeout(SOON).expect("in time").expect("it is read as before");
        }
        finished(&mut logs);
        assert_eq!(logs.tail(0).last().map(String::as_str), Some("line 19999"));

        // The next attempt has no room for its files, and runs without.
        fs::write(run.join("rest"), vec![0; 1 << 20]).expect_err("there is no room");
        let attempt = logs.start_attempt(1, &[origin(0)]).expect("started without files");
        let log_error = attempt.log_error.expect("it says why");
        assert_eq!((log_error.errno(), attempt.folder), (libc::ENOSPC, None));
        for worker in attempt.workers {
            assert_eq!(worker.error_file, None);
            worker.stdout.file().write_all(b"on").expect("written");
            worker.stderr.file().write_all(b"boom").expect("written");
        }
        finished(&mut logs);
        assert_eq!(logs.tail(0), ["boom"]);
        logs.flush(SOON);
        drop(logs);

        let [stdout, stderr] = reader.join().expect("read");
        let visible: String = lines.lines().map(|line| ["[w0]:", line, "\n"].concat()).collect();
        assert!(stdout == visible.clone() + "[w0]:on\n");
        let is_note = |line: &&str| line.starts_with("rdzv: ");
        let mut notes: Vec<&str> = stderr.lines().filter(is_note).collect();
        let attempt = run.join("attempt_0");
        let given_up = |name: &str| {
            let full = "No space left on device (os error 28)";
            format!(
                "rdzv: cannot write {}: {full}; nothing more goes into this file",
                attempt.join(name).display()
            )
        };
        assert_eq!(notes.pop(), Some(&*format!("rdzv: {log_error}; this attempt has no log files")));
        notes.sort_unstable();
        assert_eq!(notes, ["0/stderr.log", "0/stdout.log", "filtered_stdout.log"].map(given_up));
        let lines_of_stderr: String =
            stderr.lines().filter(|line| !is_note(line)).map(|line| [line, "\n"].concat()).collect();
        assert!(lines_of_stderr == visible + "[w0]:boom\n");
        // The file contains the beginning.
        let kept = text(attempt.join("0/stdout.log"));
        assert!(!kept.is_empty() && lines.starts_with(&kept));
    });
}
