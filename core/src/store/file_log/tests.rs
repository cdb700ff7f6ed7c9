extern crate std;
use super::*;
use crate::rng::Rng;
use crate::store::op::Pairs;
use alloc::vec;
use std::collections::BTreeMap as Model;

fn hex(bytes: &[u8]) -> alloc::string::String {
    bytes.iter().map(|byte| alloc::format!("{byte:02x}")).collect()
}

fn key(name: &str) -> Key<'_> {
    Key::scoped(KEY_SCOPE, name.as_bytes())
}

/// File in memory. Appended bytes are read as those of another process.
struct Paper {
    log: Log,
    bytes: Vec<u8>,
}

impl Paper {
    fn new() -> Self {
        Self { log: Log::new(LogLimits::default()), bytes: Vec::new() }
    }

    /// Applies a request, and returns its reply as text and its records.
    fn ask(&mut self, request: &Request<'_>) -> (alloc::string::String, Vec<u8>) {
        let mut records = Vec::new();
        let reply = match self.log.answer(request, &mut records) {
            Ok(Reply::Value(value)) => std::string::String::from_utf8_lossy(&value).into_owned(),
            Ok(Reply::Values(values)) => values
                .iter()
                .map(|value| std::string::String::from_utf8_lossy(value))
                .collect::<Vec<_>>()
                .join(","),
            Ok(reply) => alloc::format!("{reply:?}"),
            Err(error) => alloc::format!("{error:?}"),
        };
        self.write(&records);
        (reply, records)
    }

    fn write(&mut self, records: &[u8]) {
        self.bytes.extend_from_slice(records);
        let end = self.log.offset() + records.len() as u64;
        assert_eq!(self.log.replay(records, end), Ok(0));
        assert_eq!(self.log.offset(), self.bytes.len() as u64);
    }
}

/// The bytes that PyTorch 2.15 appends. Source: the format's description, "Format".
#[test]
fn records_are_those_of_pytorch() {
    let mut paper = Paper::new();
    let mut records = Vec::new();
    paper.log.enter(&mut records).expect("an empty file");
    assert_eq!(hex(&records), "09000000726566636f756e742f0100000031");
    paper.write(&records);
    for (request, written) in [
        (Request::Set { key: key("foo"), value: b"bar" }, "040000002f666f6f03000000626172"),
        (Request::Add { key: key("n"), delta: 5 }, "020000002f6e0100000035"),
        (Request::Add { key: key("n"), delta: -7 }, "020000002f6e020000002d32"),
        (Request::CompareSet { key: key("c"), expected: b"", desired: b"1" }, "020000002f630100000031"),
        (Request::CompareSet { key: key("c"), expected: b"2", desired: b"3" }, ""),
        (Request::Delete { key: key("foo") }, "050000002d2f666f6f00000000"),
        (Request::Delete { key: key("foo") }, ""),
        (Request::Set { key: key("e"), value: b"" }, "020000002f6500000000"),
    ] {
        assert_eq!(hex(&paper.ask(&request).1), written, "{request:?}");
    }
}

#[test]
fn requests_are_answered_as_the_format_has_it() {
    let mut paper = Paper::new();
    let compare = |expected, desired| Request::CompareSet { key: key("c"), expected, desired };
    let names: [&[u8]; 2] = [b"a", b"b"];
    let both = Keys::scoped(KEY_SCOPE, &names);
    let pairs: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"b", b"")];
    for (request, reply) in [
        (Request::Get { key: key("a") }, "NotReady"),
        (Request::Check { keys: both }, "NotReady"),
        (Request::MultiGet { keys: both }, "NotReady"),
        (Request::MultiSet { pairs: Pairs::scoped(KEY_SCOPE, &pairs) }, "Applied"),
        (Request::Check { keys: both }, "Ready"),
        (Request::Wait { keys: Keys::scoped(KEY_SCOPE, &[]) }, "Ready"),
        (Request::MultiGet { keys: both }, "1,"),
        (Request::Get { key: key("b") }, ""),
        (compare(b"x", b"1"), "x"),
        (Request::Get { key: key("c") }, "NotReady"),
        (compare(b"", b"1"), "1"),
        (compare(b"", b"2"), "1"),
        (compare(b"1", b"2"), "2"),
        (Request::Add { key: key("b"), delta: 0 }, "Number(0)"),
        (Request::Set { key: key("n"), value: b" 12abc" }, "Applied"),
        (Request::Add { key: key("n"), delta: 1 }, "Number(13)"),
        (Request::Set { key: key("n"), value: b"9223372036854775807" }, "Applied"),
        (Request::Add { key: key("n"), delta: 1 }, "Number(-9223372036854775808)"),
        (Request::Set { key: key("n"), value: b"words" }, "Applied"),
        (Request::Add { key: key("n"), delta: 1 }, "NotANumber"),
        (Request::Get { key: key("n") }, "words"),
        (Request::Set { key: key("-x"), value: b"no deletion" }, "Applied"),
        (Request::Get { key: key("-x") }, "no deletion"),
        (Request::NumKeys, "Number(5)"),
        (Request::ListKeys, "/-x,/a,/b,/c,/n"),
        (Request::Delete { key: key("a") }, "Number(1)"),
        (Request::Delete { key: key("a") }, "Number(0)"),
        (Request::QueuePush { key: key("q"), value: b"" }, "Unsupported"),
        (Request::Barrier { key: key("q"), world_size: 1 }, "Unsupported"),
    ] {
        assert_eq!(paper.ask(&request).0, reply, "{request:?}");
    }
}

/// PyTorch's own file store loses the second of two equal appends.
#[test]
fn equal_appends_are_both_kept() {
    let mut paper = Paper::new();
    for whole in ["x", "xx", "xxx"] {
        paper.ask(&Request::Append { key: key("log"), value: b"x" });
        assert_eq!(paper.ask(&Request::Get { key: key("log") }).0, whole);
    }
}

#[test]
fn counters_identify_the_last_object() {
    let mut records = Vec::new();
    let mut paper = Paper::new();
    let enter = |paper: &mut Paper| {
        let mut records = Vec::new();
        paper.log.enter(&mut records).expect("numbers");
        paper.write(&records);
    };
    enter(&mut paper);
    enter(&mut paper);
    assert_eq!(paper.log.leave(Some(0), &mut records), Ok(Remains::File), "one is still there");
    paper.write(&records);
    let last = |closed_min| {
        let mut records = Vec::new();
        let remains = paper.log.leave(closed_min, &mut records).expect("numbers");
        (remains, records)
    };
    assert_eq!(last(None).0, Remains::File);
    assert_eq!(last(Some(3)).0, Remains::File, "a rank has yet to come");
    assert_eq!(last(Some(2)).0, Remains::Nothing);
    let (remains, records) = last(Some(0));
    assert_eq!((remains, records.len()), (Remains::Nothing, 17 + 18));
    paper.write(&records);
    assert_eq!(paper.log.value(REFERENCES_KEY), Some(&b"0"[..]));
    assert_eq!(paper.log.value(CLOSED_KEY), Some(&b"2"[..]));
    assert_eq!(
        paper.log.values.iter().filter(|(key, _)| key.starts_with(KEY_SCOPE)).count(),
        0,
        "they are no user's"
    );
}

/// Returns a log of a few records, and the offset of each.
fn some_log() -> (Vec<u8>, Vec<u64>) {
    let (mut bytes, mut starts) = (Vec::new(), vec![0]);
    let records: [(&[u8], &[u8]); 5] = [
        (b"refcount/", b"1"),
        (b"/a", b"value"),
        (b"/", b""),
        // A key of unknown origin is kept, and has no effect.
        (b"strange", b"\xff\x00"),
        (b"-/a", b""),
    ];
    for (key, value) in records {
        push_record(&mut bytes, &[key], value);
        starts.push(bytes.len() as u64);
    }
    (bytes, starts)
}

#[test]
fn a_log_torn_at_any_byte_names_the_record() {
    let (bytes, starts) = some_log();
    for end in 0..=bytes.len() {
        let mut log = Log::new(LogLimits::default());
        let reported = log.replay(&bytes[..end], end as u64);
        let whole = *starts.iter().rfind(|&&start| start <= end as u64).expect("the first begins at 0");
        let expected = if whole == end as u64 { Ok(0) } else { Err(LogError::Torn(whole)) };
        assert_eq!((reported, log.offset()), (expected, whole), "cut at {end}");
    }
}

#[test]
fn a_log_reads_the_same_in_pieces_of_any_size() {
    let (bytes, _) = some_log();
    let mut whole = Log::new(LogLimits::default());
    assert_eq!(whole.replay(&bytes, bytes.len() as u64), Ok(0));
    assert_eq!((whole.values.len(), whole.value(b"strange")), (3, Some(&b"\xff\x00"[..])));
    for chunk in 1..bytes.len() {
        let (mut log, mut wanted) = (Log::new(LogLimits::default()), 0);
        let end = bytes.len() as u64;
        while log.offset() < end {
            let from = usize::try_from(log.offset()).expect("small");
            let to = (from + chunk.max(usize::try_from(wanted).expect("small"))).min(bytes.len());
            let before = (log.offset(), wanted);
            wanted = log.replay(&bytes[from..to], end).expect("whole records");
            assert!(before != (log.offset(), wanted), "no progress at {before:?} in pieces of {chunk}");
        }
        assert_eq!(
            (log.values == whole.values, log.stored_bytes),
            (true, whole.stored_bytes),
            "pieces of {chunk}"
        );
    }
}

#[test]
fn bytes_that_are_no_log_are_refused_without_room_for_them() {
    let mut log = Log::new(LogLimits::default());
    let text = b"#!/bin/sh\necho this is no store\n";
    assert_eq!(log.replay(text, text.len() as u64), Err(LogError::Torn(0)));
    // A length within the file is requested, and no more than that.
    let header = [&1u32.to_le_bytes()[..], b"k", &1000u32.to_le_bytes()].concat();
    assert_eq!(log.replay(&header, 1009), Ok(1009));
    assert_eq!(log.replay(&header, 1008), Err(LogError::Torn(0)));

    let limits = LogLimits { stored_bytes_max: 300 };
    let mut small = Log::new(limits);
    let full = LogError::Limit(LimitError::Stored { bytes_max: 300 });
    let mut records = Vec::new();
    let set = Request::Set { key: key("k"), value: &[7; 200] };
    assert_eq!(small.answer(&set, &mut records), Err(full), "ours is not written");
    push_record(&mut records, &[b"/k"], &[7; 200]);
    assert_eq!(small.replay(&records, records.len() as u64), Err(full), "the data of others is not kept");
    assert_eq!(small.offset(), 0);
}

/// PyTorch reads them, counts the empty key, and fails when it lists its keys.
#[test]
fn records_without_a_key_are_refused_with_their_offset() {
    let (mut bytes, _) = some_log();
    let offset = bytes.len() as u64;
    for value in [&b""[..], b"value"] {
        bytes.truncate(usize::try_from(offset).expect("small"));
        push_record(&mut bytes, &[], value);
        for there in offset + 4..=bytes.len() as u64 {
            let mut log = Log::new(LogLimits::default());
            let reported = log.replay(&bytes[..usize::try_from(there).expect("small")], bytes.len() as u64);
            assert_eq!((reported, log.offset()), (Err(LogError::Nameless(offset)), offset), "{there}");
        }
    }
    // Zeros are recognised by the first of them, however many there are.
    let mut log = Log::new(LogLimits::default());
    assert_eq!(log.replay(&[0; 4], u64::MAX), Err(LogError::Nameless(0)));
}

/// How much of it is read at once makes no difference.
#[test]
fn a_rest_that_is_too_short_for_a_record_is_torn() {
    let (whole, _) = some_log();
    let offset = whole.len();
    for rest in 1..8 {
        let bytes = [&whole[..], &vec![0; rest]].concat();
        for there in offset..=bytes.len() {
            let mut log = Log::new(LogLimits::default());
            let reported = log.replay(&bytes[..there], bytes.len() as u64);
            assert_eq!(reported, Err(LogError::Torn(offset as u64)), "{there} of {}", bytes.len());
        }
    }
}

#[test]
fn open_objects_are_counted_even_when_the_store_is_full() {
    let limits = LogLimits { stored_bytes_max: 2 + 10 + KEY_COST_BYTES };
    let full = LogError::Limit(LimitError::Stored { bytes_max: limits.stored_bytes_max });
    let (mut log, mut records) = (Log::new(limits), Vec::new());
    let write = |log: &mut Log, records: &[u8]| log.replay(records, log.offset() + records.len() as u64);
    push_record(&mut records, &[b"/k"], &[7; 10]);
    assert_eq!(write(&mut log, &records), Ok(0));
    // From 9 to 10, the counter grows by a byte.
    for _ in 0..12 {
        log.enter(&mut records).expect("a number");
        assert_eq!(write(&mut log, &records), Ok(0));
    }
    assert_eq!((log.value(REFERENCES_KEY), log.stored_bytes), (Some(&b"12"[..]), limits.stored_bytes_max));
    assert_eq!(log.answer(&Request::Set { key: key("l"), value: b"" }, &mut records), Err(full));
    // An object that closes needs no capacity for what others stored meanwhile, and does not read it.
    records.clear();
    for name in [&b"/more"[..], b"/and more"] {
        push_record(&mut records, &[name], &[8; 5000]);
    }
    log.leave(None, &mut Vec::new()).expect("numbers");
    assert_eq!(write(&mut log, &records), Err(full));
    let offset = log.offset();
    log.keep_counters_only();
    assert_eq!(log.replay(&records[..100], offset + records.len() as u64), Ok(LENGTHS_BYTES));
    let second = usize::try_from(log.offset() - offset).expect("small");
    assert_eq!(second, records.len() / 2 - 2, "the first is passed over");
    assert_eq!(log.replay(&records[second..][..16], offset + records.len() as u64), Ok(17));
    assert_eq!(log.replay(&records[second..], offset + records.len() as u64), Ok(0));
    assert_eq!(log.leave(Some(1), &mut records), Ok(Remains::File));
    assert_eq!(write(&mut log, &records), Ok(0));
    let counted = (log.value(REFERENCES_KEY), log.value(CLOSED_KEY), log.stored_bytes);
    assert_eq!(counted, (Some(&b"11"[..]), Some(&b"1"[..]), 0));
}

#[test]
fn deleting_needs_no_room() {
    let mut log = Log::new(LogLimits { stored_bytes_max: 2 + 10 + KEY_COST_BYTES });
    let mut records = Vec::new();
    push_record(&mut records, &[b"/k"], &[7; 10]);
    assert_eq!(log.replay(&records, records.len() as u64), Ok(0));
    assert_eq!(log.answer(&Request::Delete { key: key("k") }, &mut records), Ok(Reply::Number(1)));
    let end = log.offset() + records.len() as u64;
    assert_eq!((log.replay(&records, end), log.stored_bytes), (Ok(0), 0));
}

#[test]
fn what_fits_is_taken_to_the_byte_and_read_again() {
    let limits = LogLimits { stored_bytes_max: 2 * (2 + KEY_COST_BYTES) + 20 };
    let full = LogError::Limit(LimitError::Stored { bytes_max: limits.stored_bytes_max });
    let (mut log, mut records, mut file) = (Log::new(limits), Vec::new(), Vec::new());
    let mut attempt = |log: &mut Log, request: &Request<'static>| {
        log.answer(request, &mut records).map(drop)?;
        file.extend_from_slice(&records);
        assert_eq!(log.replay(&records, file.len() as u64), Ok(0));
        assert_eq!(Log::new(limits).replay(&file, file.len() as u64), Ok(0), "another reader");
        Ok(())
    };
    let key = |name: &'static str| Key::scoped(KEY_SCOPE, name.as_bytes());
    const SOME: &[u8] = b"0123456789";
    let set = |name, value| Request::Set { key: key(name), value };
    for _ in 0..2 {
        assert_eq!(attempt(&mut log, &set("k", SOME)), Ok(()));
        assert_eq!(attempt(&mut log, &set("l", SOME)), Ok(()));
    }
    assert_eq!(log.stored_bytes, limits.stored_bytes_max);
    assert_eq!(attempt(&mut log, &set("l", b"01234567890")), Err(full));
    assert_eq!(attempt(&mut log, &Request::Append { key: key("l"), value: b"0" }), Err(full));
    assert_eq!(
        attempt(&mut log, &Request::CompareSet { key: key("l"), expected: SOME, desired: SOME }),
        Ok(())
    );
    let sets = |pairs| Request::MultiSet { pairs: Pairs::scoped(KEY_SCOPE, pairs) };
    const SHRINKS_FIRST: &[(&[u8], &[u8])] = &[(b"k", b""), (b"l", b"01234567890123456789")];
    const SHRINKS_LAST: &[(&[u8], &[u8])] = &[(b"k", SOME), (b"l", SOME)];
    assert_eq!(attempt(&mut log, &sets(SHRINKS_FIRST)), Ok(()));
    // A reader could not replay the first record.
    assert_eq!(attempt(&mut log, &sets(SHRINKS_LAST)), Err(full));
    assert_eq!(log.stored_bytes, limits.stored_bytes_max);
}

#[test]
fn a_record_that_may_not_be_kept_is_not_read() {
    let mut log = Log::new(LogLimits { stored_bytes_max: 1 << 21 });
    let header = |value_bytes: u32| [&2u32.to_le_bytes()[..], b"/k", &value_bytes.to_le_bytes()].concat();
    let fits = (1 << 21) - 10;
    assert_eq!(log.replay(&header(fits), 1 << 40), Ok(1 << 21));
    let full = LogError::Limit(LimitError::Stored { bytes_max: 1 << 21 });
    assert_eq!((log.replay(&header(fits + 1), 1 << 40), log.offset()), (Err(full), 0));
}

/// Compares random requests with a map.
#[test]
fn random_requests_do_what_a_map_does() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut roll = |sides: u64| rng.next_u64() % sides;
        let (mut paper, mut model) = (Paper::new(), Model::<Vec<u8>, Vec<u8>>::new());
        for step in 0..100 {
            let name = [b'a' + u8::try_from(roll(4)).expect("small")];
            let key = Key::scoped(KEY_SCOPE, &name);
            let mut whole = KEY_SCOPE.to_vec();
            whole.extend_from_slice(&name);
            let value =
                vec![b'0' + u8::try_from(roll(10)).expect("small"); usize::try_from(roll(3)).expect("small")];
            let current = model.get(&whole).cloned();
            match roll(6) {
                0 => {
                    paper.ask(&Request::Set { key, value: &value });
                    model.insert(whole.clone(), value);
                }
                1 => {
                    let reported = paper.ask(&Request::Delete { key }).0;
                    let was_there = model.remove(&whole).is_some();
                    assert_eq!(reported, alloc::format!("Number({})", i64::from(was_there)));
                }
                2 => {
                    paper.ask(&Request::Append { key, value: &value });
                    model.entry(whole.clone()).or_default().extend_from_slice(&value);
                }
                3 => {
                    let expected = current.clone().unwrap_or_default();
                    paper.ask(&Request::CompareSet { key, expected: &expected, desired: &value });
                    model.insert(whole.clone(), value);
                }
                4 => {
                    let text = std::string::String::from_utf8(current.unwrap_or_default()).expect("digits");
                    match if text.is_empty() { Some(0) } else { text.parse::<i64>().ok() } {
                        Some(number) => {
                            let sum = number.wrapping_add(3);
                            assert_eq!(
                                paper.ask(&Request::Add { key, delta: 3 }).0,
                                alloc::format!("Number({sum})")
                            );
                            model.insert(whole.clone(), alloc::format!("{sum}").into_bytes());
                        }
                        None => assert_eq!(paper.ask(&Request::Add { key, delta: 3 }).0, "NotANumber"),
                    }
                }
                _ => {
                    let mut records = Vec::new();
                    let read = paper.log.answer(&Request::Get { key }, &mut records).expect("a get");
                    let expected = match &current {
                        Some(value) => Reply::Value(Cow::Borrowed(&**value)),
                        None => Reply::NotReady,
                    };
                    assert_eq!((read, records.len()), (expected, 0), "seed {seed}, step {step}");
                }
            }
            assert_eq!(
                paper.log.value(&whole),
                model.get(&whole).map(Vec::as_slice),
                "seed {seed}, step {step}"
            );
        }
        // A later reader gets the same state.
        let mut late = Log::new(LogLimits::default());
        assert_eq!(late.replay(&paper.bytes, paper.bytes.len() as u64), Ok(0));
        assert!(
            late.values
                .iter()
                .map(|(key, value)| (key, &**value))
                .eq(model.iter().map(|(key, value)| (&**key, &**value)))
        );
        assert_eq!(late.stored_bytes, paper.log.stored_bytes, "seed {seed}");
    }
}
