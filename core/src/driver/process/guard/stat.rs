//! The line that the system tells of a process in `/proc/PID/stat`.

use super::system::{ShortPath, close, decimal, open, read};
use libc::{c_int, pid_t};

/// What is of interest in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// A letter; see proc(5).
    pub(crate) state: u8,
    pub(crate) parent: pid_t,
}

impl Stat {
    /// # Errors
    /// The system's number: `ENOENT` or `ESRCH` when there is no such process.
    pub(crate) fn of(pid: pid_t) -> Result<Self, c_int> {
        let path = ShortPath::new().text(b"/proc/").number(pid).text(b"/stat");
        let fd = open(libc::AT_FDCWD, path.as_c_str(), libc::O_RDONLY)?;
        // The name has 16 bytes at most (64 for threads of the kernel), and what matters follows it.
        let mut line = [0_u8; 256];
        let length = read(fd, &mut line);
        close(fd);
        Self::parse(line.get(..length?).unwrap_or(&[])).ok_or(libc::EIO)
    }

    /// `PID (NAME) STATE PARENT ...`, where the name may hold anything.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let name_end = line.iter().rposition(|letter| *letter == b')')?;
        let mut words = line.get(name_end.wrapping_add(2)..)?.split(|letter| *letter == b' ');
        let state = *words.next()?.first()?;
        let parent = decimal(words.next()?)?;
        Some(Self { state, parent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = b"17 (a) R 1 (b) D 42 17 17 0 -1";
        assert_eq!(Stat::parse(line), Some(Stat { state: b'D', parent: 42 }));
        assert_eq!(Stat::parse(b"17 (cut"), None);
        assert_eq!(Stat::parse(b"17 (cut) "), None);
        assert_eq!(Stat::parse(b"17 (cut) S x"), None);
    }

    #[test]
    fn it_is_read_from_the_system() {
        // SAFETY: they have no arguments and cannot fail.
        let (own, parent) = unsafe { (libc::getpid(), libc::getppid()) };
        let own = Stat::of(own).expect("it lives");
        assert_eq!(own.parent, parent);
        assert!(b"RS".contains(&own.state), "{own:?}");
        assert!(matches!(Stat::of(pid_t::MAX), Err(libc::ENOENT)));
    }
}
