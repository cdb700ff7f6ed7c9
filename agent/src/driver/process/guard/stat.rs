//! Fields of `/proc/PID/stat`.

use super::system::{ShortPath, close, decimal, open, read};
use libc::{c_int, pid_t};

/// The fields in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// State letter; see proc(5).
    pub(crate) state: u8,
    pub(crate) parent: pid_t,
    /// Flags of the leading thread: `PF_EXITING` and the like.
    flags: u32,
    threads: c_int,
    /// Start time of the process, in hundredths of a second since boot.
    pub(crate) started: u64,
}

const PF_EXITING: u32 = 4;
/// A signal is killing it, and the kernel is writing a core dump.
const PF_DUMPCORE: u32 = 0x200;

impl Stat {
    /// Reads the fields of a process.
    ///
    /// # Errors
    /// The error number: `ENOENT` or `ESRCH` if there is no such process.
    pub(crate) fn of(pid: pid_t) -> Result<Self, c_int> {
        let path = ShortPath::new().text(b"/proc/").number(pid).text(b"/stat");
        let fd = open(libc::AT_FDCWD, path.as_c_str(), libc::O_RDONLY)?;
        // The name has 16 bytes at most (64 for kernel threads), and only the first 22 fields matter.
        let mut line = [0_u8; 512];
        let length = read(fd, &mut line);
        close(fd);
        Self::parse(line.get(..length?).unwrap_or(&[])).ok_or(libc::EIO)
    }

    /// Parses `PID (NAME) STATE PARENT ...`. The name may contain any character.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let mut fields = line.get(name_end.wrapping_add(2)..)?.split(|byte| *byte == b' ');
        let state = *fields.next()?.first()?;
        let parent = decimal(fields.next()?)?;
        // proc(5) counts fields from 1; the two above are the third and the fourth.
        let flags = number(fields.nth(4)?)?;
        let threads = decimal(fields.nth(10)?)?;
        let started = number(fields.nth(1)?)?;
        let flags = u32::try_from(flags).ok()?;
        Some(Self { state, parent, flags, threads, started })
    }

    /// Returns whether the process has begun to end. A leading thread may end alone, so the other threads are counted
    /// then.
    pub(crate) const fn is_ending(&self) -> bool {
        match self.state {
            b'Z' | b'X' => self.threads <= 1,
            _ => self.flags & (PF_EXITING | PF_DUMPCORE) != 0,
        }
    }
}

/// Parses a number that may be too large for [`decimal`].
fn number(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit.wrapping_sub(b'0')))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = b"17 (a) R 1 (b) D 42 17 17 0 -1 4194308 7 0 0 0 1 2 3 4 20 0 6 0 5000000000 8192 1 18446744073709551615";
        let stat = Stat::parse(line).expect("a line");
        assert_eq!(
            (stat.state, stat.parent, stat.flags, stat.threads, stat.started),
            (b'D', 42, 4_194_308, 6, 5_000_000_000)
        );
        assert!(stat.is_ending());
        assert!(!Stat { flags: 0, ..stat }.is_ending());
        // The first thread has ended, and others continue.
        assert!(!Stat { state: b'Z', ..stat }.is_ending());
        assert!(Stat { state: b'Z', threads: 1, ..stat }.is_ending());
        assert_eq!(Stat::parse(b"17 (cut"), None);
        assert_eq!(Stat::parse(b"17 (cut) "), None);
        assert_eq!(Stat::parse(b"17 (cut) S x"), None);
    }

    #[test]
    fn it_is_read_from_the_system() {
        // SAFETY: they have no arguments and cannot fail.
        let (local, parent) = unsafe { (libc::getpid(), libc::getppid()) };
        let local = Stat::of(local).expect("it lives");
        assert_eq!(local.parent, parent);
        assert!(b"RS".contains(&local.state) && !local.is_ending() && local.started > 0, "{local:?}");
        assert!(matches!(Stat::of(pid_t::MAX), Err(libc::ENOENT)));
    }
}
