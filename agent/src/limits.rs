//! All limits of this crate, in one place.

use rendezvous_core::time::Duration;

/// Maximum length of the prefix of a console line, in bytes. The prefix is written once per line, however short the
/// line is.
pub const PREFIX_BYTES_MAX: usize = 256;
/// Maximum length of a line that is buffered until it ends, in bytes; a longer line is passed on in pieces of this
/// length.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Number of last lines of a worker's standard error in a failure report.
pub const TAIL_LINES: usize = 20;
/// Maximum length of such a line, in bytes; the rest is omitted and counted.
pub const TAIL_LINE_BYTES_MAX: usize = 1024;
/// Maximum length of an error file, in bytes; a longer file is not read.
pub const ERROR_FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum length of the return value of a worker that is a function, in bytes.
pub const RETURNED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Maximum length of a folder name made from a run id, in bytes.
pub const RUN_FOLDER_BYTES_MAX: usize = 100;
/// Size of the pending console output, in bytes, from which on workers wait for the console. One read may exceed
/// it.
pub const CONSOLE_FULL_BYTES: usize = 256 * 1024;
/// Size of the pending console output, in bytes, from which on further output is dropped and counted.
pub const CONSOLE_BYTES_MAX: usize = 1 << 20;
/// Time without progress of the console after which workers whose output also goes to a file no longer wait for it.
pub const CONSOLE_STALL: Duration = Duration::from_secs(1);
/// Length of the end of a redirected standard error in which its last lines are searched, in bytes.
pub const TAIL_BYTES_MAX: usize = 64 * 1024;
