//! Names of Linux signals.

const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];
const REAL_TIME_FIRST: i32 = 34;
const REAL_TIME_LAST: i32 = 64;

/// Returns the name of a signal. Of the real-time signals, the first and the last have a name, as in Python.
pub fn signal_name(signal: i32) -> Option<&'static str> {
    match signal {
        REAL_TIME_FIRST => Some("SIGRTMIN"),
        REAL_TIME_LAST => Some("SIGRTMAX"),
        _ => NAMES.get(usize::try_from(signal).ok()?.checked_sub(1)?).copied(),
    }
}
