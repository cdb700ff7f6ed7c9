mod killed;

use super::*;
use crate::driver::store::Store;
use crate::driver::testing::TemporaryFile;
use crate::driver::timeout::Timeout;
use crate::error::LimitError;
use crate::time::Instant;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::string::ToString;

const DEFAULT: Timeout = Timeout::Default;
const SOON: Duration = Duration::from_secs(20);

fn options(world_size: Option<u64>) -> FileStoreOptions {
    let timeouts = Timeouts { call: SOON, answer: SOON };
    FileStoreOptions { world_size, timeouts, ..FileStoreOptions::default() }
}

fn open(file: &TemporaryFile) -> Store {
    Store::open_file(file.path(), options(None)).expect("opened")
}

/// Appends bytes that another program left in the file.
fn append(file: &TemporaryFile, bytes: &[u8]) {
    let mut other = OpenOptions::new().append(true).open(file.path()).expect("the file");
    other.write_all(bytes).expect("written");
}

fn hex(bytes: &[u8]) -> std::string::String {
    bytes.iter().map(|byte| std::format!("{byte:02x}")).collect()
}

#[test]
fn the_file_is_byte_for_byte_what_pytorch_writes() {
    let file = TemporaryFile::new("bytes");
    let store = open(&file);
    store.set(b"foo", b"bar", DEFAULT).expect("set");
    store.add(b"n", 5, DEFAULT).expect("added");
    store.delete(b"foo", DEFAULT).expect("deleted");
    let entered = "09000000726566636f756e742f0100000031";
    let rest = "040000002f666f6f03000000626172020000002f6e0100000035050000002d2f666f6f00000000";
    assert_eq!(hex(&fs::read(file.path()).expect("the file")), std::format!("{entered}{rest}"));
}

#[test]
fn a_twin_of_a_store_whose_file_was_removed_does_not_make_it_anew() {
    let file = TemporaryFile::new("twin");
    let store = Store::open_file(file.path(), options(None)).expect("opened");
    std::fs::remove_file(file.path()).expect("removed");
    let error = store.duplicate().expect_err("the file is removed");
    assert_eq!(error.kind(), ErrorKind::ServerGone, "{error}");
    assert!(!file.path().exists());
}

#[test]
fn the_last_one_removes_the_file_when_enough_have_been_there() {
    let file = TemporaryFile::new("life");
    let first = Store::open_file(file.path(), options(Some(2))).expect("opened");
    let second = first.duplicate().expect("a twin");
    drop(second);
    assert!(file.path().exists(), "one is still there");
    drop(first);
    assert!(!file.path().exists(), "two have been opened and closed");

    drop(Store::open_file(file.path(), options(Some(2))).expect("opened"));
    assert!(file.path().exists(), "a second rank may yet come");
    let late = Store::open_file(file.path(), options(Some(2))).expect("opened");
    drop(late);
    assert!(!file.path().exists(), "now it has");

    drop(Store::open_file(file.path(), options(None)).expect("opened"));
    assert!(file.path().exists(), "it stays unless a world size is given");
    // Prefixes belong to the same store object.
    let store = Store::open_file(file.path(), options(Some(0))).expect("opened");
    let prefixed = store.with_prefix(b"p");
    drop(store);
    prefixed.set(b"k", b"v", DEFAULT).expect("the file is there");
    drop(prefixed);
    assert!(!file.path().exists(), "0: the last one to be closed removes it");
}

#[test]
fn a_torn_record_is_refused_with_its_offset_and_nothing_is_written() {
    let whole = hex_record(b"/k", b"value");
    for cut in 1..whole.len() {
        let file = TemporaryFile::new("torn");
        let store = open(&file);
        store.set(b"before", b"1", DEFAULT).expect("set");
        let offset = fs::metadata(file.path()).expect("the file").len();
        append(&file, &whole[..cut]);
        let torn = fs::read(file.path()).expect("the file");
        let attempts = [
            store.set(b"k", b"v", DEFAULT),
            store.get_owned(b"before", DEFAULT).map(drop),
            store.add(b"n", 1, DEFAULT).map(drop),
            store.num_keys(DEFAULT).map(drop),
            Store::open_file(file.path(), options(None)).map(drop),
        ];
        for attempt in attempts {
            let error = attempt.expect_err("a torn record");
            let reported = (error.kind(), error.cause(), error.phase());
            assert_eq!(
                reported,
                (ErrorKind::Corrupt, Cause::TornRecord(offset), Phase::Reading),
                "cut at {cut}"
            );
            let text = error.to_string();
            assert!(text.ends_with(&std::format!(": a torn record at offset {offset}")), "{text}");
            assert!(text.contains(&*file.path().to_string_lossy()), "{text}");
        }
        drop(store);
        assert_eq!(fs::read(file.path()).expect("the file"), torn, "cut at {cut}");
        // A process that writes the rest repairs the file.
        append(&file, &whole[cut..]);
        assert_eq!(open(&file).get_owned(b"k", Timeout::Once).expect("got"), b"value");
    }
}

fn hex_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
    [&length(key)[..], key, &length(value), value].concat()
}

#[test]
fn a_file_that_goes_is_noticed_at_once() {
    let reported = |error: CallError| (error.kind(), error.cause(), error.phase());
    let file = TemporaryFile::new("gone");
    let store = open(&file);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get_owned(b"never", DEFAULT));
        store.set(b"k", b"v", DEFAULT).expect("set");
        fs::remove_file(file.path()).expect("removed");
        let error = waiting.join().expect("no panic").expect_err("the file is removed");
        assert_eq!(reported(error), (ErrorKind::ServerGone, Cause::FileRemoved, Phase::Opening));
    });
    let error = store.set(b"k", b"v", DEFAULT).expect_err("removed");
    assert!(error.to_string().contains(" lost its file after 0 ms while opening: it was removed"), "{error}");
    assert!(!file.path().exists(), "it is not made anew");

    // A file that replaces it is another one, even where inode numbers are used again.
    let other = open(&file);
    let error = store.get_owned(b"k", DEFAULT).expect_err("replaced");
    assert_eq!(reported(error), (ErrorKind::ServerGone, Cause::FileReplaced, Phase::Opening));
    other.set(b"k", b"v", DEFAULT).expect("set");
    OpenOptions::new().write(true).open(file.path()).expect("the file").set_len(1).expect("cut");
    let error = other.get_owned(b"k", DEFAULT).expect_err("cut short");
    assert_eq!(reported(error), (ErrorKind::ServerGone, Cause::FileReplaced, Phase::Reading));
}

/// Holds the lock until the returned file is dropped.
fn hold(file: &TemporaryFile) -> fs::File {
    let holder = OpenOptions::new().read(true).write(true).open(file.path()).expect("the file");
    // SAFETY: the descriptor is that of an open file; `flock` touches no memory.
    let locked = unsafe { libc::flock(holder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    assert_eq!(locked, 0, "the lock is free");
    holder
}

#[test]
fn a_lock_that_nobody_gives_back_costs_the_deadline_and_no_more() {
    let file = TemporaryFile::new("lock");
    let store = open(&file);
    let holder = hold(&file);
    let short = Timeout::After(Duration::from_millis(80));
    for attempt in [
        store.set(b"k", b"v", short),
        store.get_owned(b"k", short).map(drop),
        store.num_keys(short).map(drop),
        store.barrier(b"b", 1, short),
    ] {
        let error = attempt.expect_err("locked");
        let reported = (error.kind(), error.cause(), error.phase());
        assert_eq!(reported, (ErrorKind::TimedOut, Cause::Locked, Phase::Locking), "{error}");
        assert!(error.elapsed() >= Duration::from_millis(79) && error.elapsed() < Duration::from_secs(5));
        assert!(error.to_string().ends_with("another process keeps the file locked"), "{error}");
    }
    let timeouts = Timeouts { call: Duration::from_millis(80), answer: SOON };
    let late = Store::open_file(file.path(), FileStoreOptions { timeouts, ..options(None) });
    assert_eq!(late.expect_err("locked").cause(), Cause::Locked);
    let token = CancelToken::new();
    let error = std::thread::scope(|scope| {
        let pending = scope.spawn(|| store.with_token(&token).set(b"k", b"v", DEFAULT));
        token.cancel();
        pending.join().expect("no panic").expect_err("cancelled")
    });
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    std::thread::scope(|scope| {
        let pending = scope.spawn(|| store.set(b"k", b"v", DEFAULT));
        drop(holder);
        pending.join().expect("no panic").expect("the lock came free");
    });
}

#[test]
fn paths_that_are_no_store_are_refused_with_the_reason() {
    let file = TemporaryFile::new("paths");
    let refused = |path: &Path| {
        let error = FileStore::open(path, options(None)).expect_err("no store");
        assert_eq!((error.operation(), error.peer()), (Operation::Open, &*path.to_string_lossy()));
        (error.kind(), error.cause(), error.phase())
    };
    let os = |number, kind| (kind, Cause::Os(number), Phase::Opening);
    assert_eq!(refused(&file.path().join("missing")), os(libc::ENOENT, ErrorKind::Io), "no such folder");
    assert_eq!(refused(&std::env::temp_dir()), os(libc::EISDIR, ErrorKind::Io));
    assert_eq!(refused(Path::new("/dev/null")), os(libc::EINVAL, ErrorKind::InvalidArgument));
    fs::write(file.path(), b"#!/bin/sh\necho this is no store\n").expect("written");
    assert_eq!(refused(file.path()), (ErrorKind::Corrupt, Cause::TornRecord(0), Phase::Reading));
    assert_eq!(fs::read(file.path()).expect("the file").len(), 32, "it is left as it was");
}

/// A rank with PyTorch's store writes beside this library, record by record.
#[test]
fn records_of_others_are_read_as_they_come() {
    let file = TemporaryFile::new("others");
    let store = open(&file);
    store.set(b"shared", b"ours", DEFAULT).expect("set");
    for (key, value) in
        [(&b"/shared"[..], &b"theirs"[..]), (b"/empty", b""), (b"strange", b"\xff"), (b"-/gone", b"")]
    {
        append(&file, &hex_record(key, value));
    }
    assert_eq!(store.get_owned(b"shared", Timeout::Once).expect("got"), b"theirs");
    assert_eq!(store.list_keys(DEFAULT).expect("listed"), [&b"empty"[..], b"shared"]);
    // PyTorch counts all keys: the two, the strange one and its own counter.
    assert_eq!(store.num_keys(DEFAULT).expect("counted"), 4);
    append(&file, &hex_record(b"-/shared", b""));
    assert!(!store.check(&[b"shared"], DEFAULT).expect("answered"));
    let large = std::vec![7; 3 << 20];
    append(&file, &hex_record(b"/large", &large));
    assert_eq!(store.get_owned(b"large", DEFAULT).expect("got"), large);
}

/// Appends records of another program: one key, again and again, with large values, which are holes and take no space
/// on the disk.
fn append_much(file: &TemporaryFile) {
    const RECORDS: u64 = 16_384;
    let length = 1u32 << 17;
    let header = [&2u32.to_le_bytes()[..], b"/k", &length.to_le_bytes()].concat();
    let other = OpenOptions::new().write(true).open(file.path()).expect("the file");
    let begin = other.metadata().expect("the file").len();
    let record_bytes = header.len() as u64 + u64::from(length);
    for record in 0..RECORDS {
        other.write_all_at(&header, begin + record * record_bytes).expect("written");
    }
    other.set_len(begin + RECORDS * record_bytes).expect("made longer");
}

#[test]
fn reading_a_large_file_ends_with_the_deadline_and_goes_on_with_the_next_call() {
    let file = TemporaryFile::new("large");
    let store = open(&file);
    append_much(&file);
    let before = fs::metadata(file.path()).expect("the file").len();
    let short = Timeouts { call: Duration::from_millis(20), answer: SOON };
    let late = Store::open_file(file.path(), FileStoreOptions { timeouts: short, ..options(None) });
    let reported = |error: &CallError| match (error.kind(), error.phase(), error.cause()) {
        (ErrorKind::TimedOut, Phase::Reading, Cause::ReadUpTo(offset)) => {
            let text = error.to_string();
            assert!(text.ends_with(&std::format!(": its records were read up to offset {offset}")), "{text}");
            assert!(text.contains(&*file.path().to_string_lossy()), "{text}");
            offset
        }
        _ => panic!("{error}"),
    };
    assert!(reported(&late.expect_err("there is too much to read")) < before);
    assert_eq!(
        fs::metadata(file.path()).expect("the file").len(),
        before,
        "a store that was not opened is not counted"
    );
    let (mut offset, mut attempts) = (0, 0);
    loop {
        match store.set(b"k", b"v", Timeout::After(Duration::from_millis(20))) {
            Ok(()) => break,
            Err(error) => {
                let reached = reported(&error);
                assert!(reached >= offset, "each goes on where the last one ended: {reached} after {offset}");
                offset = reached;
            }
        }
        attempts += 1;
    }
    assert!(attempts > 1, "it takes more than one of these deadlines");
    assert_eq!(store.get_owned(b"k", Timeout::Once).expect("all is read"), b"v");
}

#[test]
fn reading_a_large_file_keeps_nobody_out_and_can_be_cancelled() {
    let file = TemporaryFile::new("large-lock");
    let store = FileStore::open(file.path(), options(None)).expect("opened");
    let small = lock_state(&store.state).log.offset();
    append_much(&file);
    let end = fs::metadata(file.path()).expect("the file").len();
    let token = CancelToken::new();
    let (began, deadline) = (Instant::ORIGIN, Instant::MAX);
    let span = Span { began, deadline, wait_mode: WaitMode::Wait, token: &token };
    let call = Call::Store(Request::NumKeys, WaitMode::Wait);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| store.drive(&call, span, &mut crate::driver::take::NoValue));
        while lock_state(&store.state).log.offset() == small {
            std::thread::yield_now();
        }
        drop(hold(&file));
        let offset = lock_state(&store.state).log.offset();
        assert!(offset < end, "the lock was free while it was read");
        token.cancel();
        let failure = reading.join().expect("no panic").expect_err("cancelled");
        assert_eq!((failure.kind, failure.phase), (ErrorKind::Cancelled, Phase::Reading));
    });
}

#[test]
fn a_file_of_zeros_is_no_store() {
    let file = TemporaryFile::new("zeros");
    let store = open(&file);
    let offset = fs::metadata(file.path()).expect("the file").len();
    let other = OpenOptions::new().write(true).open(file.path()).expect("the file");
    other.set_len(1 << 40).expect("a hole");
    for error in [
        store.set(b"k", b"v", DEFAULT).expect_err("zeros"),
        Store::open_file(file.path(), options(None)).expect_err("zeros"),
    ] {
        let reported = (error.kind(), error.cause(), error.phase());
        assert_eq!(reported, (ErrorKind::Corrupt, Cause::NamelessRecord(offset), Phase::Reading), "{error}");
        assert!(
            error.to_string().ends_with(&std::format!(": a record without a key at offset {offset}")),
            "{error}"
        );
    }
    other.set_len(offset).expect("cut");
    store.set(b"k", b"v", DEFAULT).expect("it is a store again");
}

#[test]
fn reading_one_long_record_ends_with_the_deadline() {
    let file = TemporaryFile::new("long-record");
    let other = fs::File::create(file.path()).expect("the file");
    let bytes = 3u32 << 30;
    other.write_all_at(&[&2u32.to_le_bytes()[..], b"/k", &bytes.to_le_bytes()].concat(), 0).expect("written");
    other.set_len(10 + u64::from(bytes)).expect("a hole");
    let options = FileStoreOptions {
        timeouts: Timeouts { call: Duration::from_millis(50), answer: SOON },
        ..options(None)
    };
    let error = Store::open_file(file.path(), options).expect_err("there is too much to read");
    assert_eq!((error.kind(), error.cause()), (ErrorKind::TimedOut, Cause::ReadUpTo(0)), "{error}");
    assert!(error.elapsed() < Duration::from_secs(5), "{error}");
    assert_eq!(other.metadata().expect("the file").len(), 10 + u64::from(bytes), "left as it was");
}

/// Returns the file's two counters.
fn counters(file: &TemporaryFile) -> [i64; 2] {
    let bytes = fs::read(file.path()).expect("the file");
    let mut log = Log::new(LogLimits::default());
    log.replay(&bytes, bytes.len() as u64).expect("whole");
    [crate::store::file_log::REFERENCES_KEY, crate::store::file_log::CLOSED_KEY]
        .map(|key| log.number(key).expect("a number"))
}

#[test]
fn the_count_is_right_however_full_the_store_is() {
    let file = TemporaryFile::new("full");
    let limited = |stored_bytes_max| {
        Store::open_file(
            file.path(),
            FileStoreOptions { log: LogLimits { stored_bytes_max }, ..options(None) },
        )
    };
    let first = limited(0).expect("counting needs no room");
    assert_eq!(counters(&file), [1, 0]);
    let full = |error: CallError, bytes_max| {
        let reported = (error.kind(), error.cause());
        assert_eq!(
            reported,
            (ErrorKind::LimitExceeded, Cause::Limit(LimitError::Stored { bytes_max })),
            "{error}"
        );
    };
    full(first.set(b"k", b"", DEFAULT).expect_err("full"), 0);
    // From 9 to 10 the count takes a byte more.
    let others: Vec<Store> = (0..12).map(|_| limited(1 << 20).expect("opened")).collect();
    let roomy = open(&file);
    roomy.set(b"k", &std::vec![7; 2 << 20], DEFAULT).expect("set");
    let before = fs::read(file.path()).expect("the file");
    full(limited(1 << 20).expect_err("more than it may read"), 1 << 20);
    assert_eq!(
        fs::read(file.path()).expect("the file"),
        before,
        "a store that was not opened is not counted"
    );
    assert_eq!(counters(&file), [14, 0]);
    // A store that cannot read any more can leave.
    full(others[0].get_owned(b"k", DEFAULT).expect_err("more than it may read"), 1 << 20);
    drop(others);
    full(first.num_keys(DEFAULT).expect_err("more than it may read"), 0);
    assert_eq!(counters(&file), [2, 12]);
    drop(first);
    drop(roomy);
    assert_eq!(counters(&file), [0, 14]);
}
