//! Writers that are killed while they append, or whose file size is limited, as real processes.

use super::*;
use crate::driver::testing::{end_of, in_a_child};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Longer than two pages at most, so that most writes end in another page than they began in.
fn value(number: u64) -> Vec<u8> {
    let length = 100 + usize::try_from(number.wrapping_mul(7919) % 9000).expect("small");
    std::vec![b'a' + u8::try_from(number % 26).expect("small"); length]
}

/// Starts a process that sets `number` to 0, 1, …, each with a value of its own, and reports each when it is done.
fn start_writer(file: &TemporaryFile) -> (libc::pid_t, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let child = in_a_child(|| {
        let store = Store::open_file(file.path(), options(None)).ok()?;
        (0_u64..).try_for_each(|number| {
            let number_text = number.to_le_bytes();
            store.multi_set(&[(b"number", &number_text), (b"value", &value(number))], DEFAULT).ok()?;
            theirs.write_all(&number_text).ok()
        })
    });
    (child, ours)
}

#[test]
fn a_writer_that_is_killed_leaves_whole_records_and_all_that_it_told_of() {
    let file = TemporaryFile::new("killed");
    let mut rng = crate::rng::Rng::new(11);
    for round in 0..200_u64 {
        std::fs::remove_file(file.path()).ok();
        let (child, mut reported) = start_writer(&file);
        let mut number = [0; 8];
        for _ in 0..1 + rng.below(12) {
            reported.read_exact(&mut number).expect("it writes");
        }
        (0..rng.below(3000)).for_each(|_| core::hint::spin_loop());
        // SAFETY: the process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        assert_eq!(end_of(child), libc::SIGKILL);
        let mut rest = Vec::new();
        reported.read_to_end(&mut rest).expect("all that it reported");
        let last = rest.as_chunks::<8>().0.last().map_or(number, |last| *last);
        let store = Store::open_file(file.path(), options(None))
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        let found = store.get_owned(b"number", Timeout::Once).expect("whole");
        let found = u64::from_le_bytes(found.try_into().expect("eight bytes"));
        let reported = u64::from_le_bytes(last);
        // The file may already hold the number that was to be reported next.
        assert!(
            found == reported || found == reported + 1,
            "round {round}: {found} is there, {reported} was reported"
        );
        assert!(store.get_owned(b"value", Timeout::Once).expect("whole") == value(found), "both or none");
        store.set(b"number", b"", DEFAULT).expect("it goes on");
    }
}

#[test]
fn a_limit_of_the_process_is_an_error_and_not_its_end() {
    for length in [0, 50, 5000, 100_000] {
        let file = TemporaryFile::new("limit");
        let child = in_a_child(|| {
            let store = Store::open_file(file.path(), options(None)).ok()?;
            store.set(b"k", b"v", DEFAULT).ok()?;
            let before = fs::read(file.path()).ok()?;
            // At the end of the file, and within the record.
            for capacity in [0, 9] {
                let limit = before.len() as u64 + capacity;
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: `limit` is valid for reading.
                (unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0).then_some(())?;
                let error = store.set(b"k", &std::vec![7; length], DEFAULT).err()?;
                let reported = (error.kind(), error.cause(), error.phase());
                (reported == (ErrorKind::Io, Cause::Os(libc::EFBIG), Phase::Writing)).then_some(())?;
                (fs::read(file.path()).ok()? == before).then_some(())?;
            }
            (store.get_owned(b"k", Timeout::Once).ok()? == b"v").then_some(())
        });
        assert_eq!(end_of(child), 0, "with a value of {length} bytes");
    }
}
