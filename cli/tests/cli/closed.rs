//! Whoever reads the program may be gone: what it ends with does not change.

use super::process::{finish, rdzv, run, start_server};
use std::process::Stdio;

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn exit_codes_do_not_depend_on_who_reads_stderr() {
    let server = start_server();
    let endpoint = server.local_addr().to_string();
    for arguments in [
        &["run", "no-such-program"][..],
        &["run", "--nnodes", "2", "true"],
        &["run", "true"],
        &["server", "--bind", "192.0.2.1:0"],
        &["store", "--endpoint", &endpoint, "wait", "k", "--timeout-ms", "1"],
        &["store", "--endpoint", &endpoint, "--json", "wait", "k", "--timeout-ms", "1"],
        &["bench", "--targets", "no-such-target"],
        &["--bogus"],
    ] {
        let read = run(&mut rdzv(arguments));
        let unread = finish(rdzv(arguments).stderr(closed()).spawn().expect("the program starts"));
        assert_eq!(unread.code, read.code, "{arguments:?}: {}", read.stderr);
        assert_ne!(read.code, 101);
    }
}

#[test]
fn help_for_nobody_is_no_panic() {
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended = finish(rdzv(arguments).stdout(closed()).spawn().expect("the program starts"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}
