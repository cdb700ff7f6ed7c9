//! Bytes as the file of a file store, and requests on a file against a map.

use super::{Lists, any_request};
use crate::entropy::Entropy;
use rendezvous_core::limits::LogLimits;
use rendezvous_core::store::file_log::{Log, LogError, Remains, Reply, append};
use rendezvous_core::store::number::parse_leading;
use rendezvous_core::store::op::{Key, Request};
use std::collections::BTreeMap;

/// For any bytes: the log of a file is the same in any pieces. Requests on an empty file have the effect that a map
/// predicts, also for a reader that begins later, and a write that stops anywhere leaves a file that can be read.
///
/// # Panics
/// When that does not hold.
pub fn file_log(bytes: &[u8]) {
    for stored_bytes_max in [LogLimits::default().stored_bytes_max, 300] {
        let limits = LogLimits { stored_bytes_max };
        let all = replay(limits, bytes, bytes.len());
        // A driver reads at least the lengths of a record at once; with less, zeros at the end of a file would be taken for
        // a torn record rather than for one without a name.
        assert_eq!(replay(limits, bytes, 8), all);
        assert_eq!(replay(limits, bytes, 13), all);
    }
    requests(bytes);
}

/// What was read, up to which offset, and the error that ended it.
type Read = (u64, i64, Vec<Vec<u8>>, Option<LogError>);

/// Reads a file as a driver does, in reads that grow by `step` where a record is longer than the bytes at hand.
fn replay(limits: LogLimits, file: &[u8], step: usize) -> Read {
    let mut log = Log::new(limits);
    let mut length = step;
    let error = loop {
        let start = usize::try_from(log.offset()).expect("inside the file").min(file.len());
        let end = start.saturating_add(length).min(file.len());
        let before = log.offset();
        match log.replay(&file[start..end], file.len() as u64) {
            Ok(0) => break None,
            Ok(wanted) => {
                assert!(log.offset() < file.len() as u64, "{wanted} bytes of nothing");
                // A record is asked for as a whole, or the start of the next one.
                if log.offset() == before {
                    assert!(wanted > (end - start) as u64, "{wanted} bytes were there");
                }
                length = usize::try_from(wanted).expect("below the limit").max(step);
            }
            Err(error) => break Some(error),
        }
    };
    let mut records = Vec::new();
    let keys = match log.answer(&Request::ListKeys, &mut records) {
        Ok(Reply::Values(keys)) => keys.iter().map(|key| key.to_vec()).collect(),
        other => panic!("{other:?}"),
    };
    let count = match log.answer(&Request::NumKeys, &mut records) {
        Ok(Reply::Number(count)) => count,
        other => panic!("{other:?}"),
    };
    (log.offset(), count, keys, error)
}

/// A file whose writers may stop in the middle of a write.
#[derive(Clone, Default)]
struct File(Vec<u8>);

impl File {
    /// Returns whether all was written; else the writer stopped after `bytes` bytes.
    fn write(&mut self, at: u64, records: &[u8], bytes: Option<usize>) -> bool {
        let mut left = bytes.unwrap_or(usize::MAX);
        let done = append(records, at, |offset, piece| {
            let offset = usize::try_from(offset).expect("a short file");
            // The kernel stops at the boundaries of pages only; a write within one is whole.
            let whole_page = (offset / PAGE + 1) * PAGE;
            let within = offset + piece.len() <= whole_page;
            let taken = if within && left < piece.len() { 0 } else { piece.len().min(left) };
            let taken = if within { taken } else { boundary(offset, taken, piece.len()) };
            if self.0.len() < offset + taken {
                self.0.resize(offset + taken, 0);
            }
            self.0[offset..offset + taken].copy_from_slice(&piece[..taken]);
            left -= taken.min(left);
            if taken < piece.len() { Err(()) } else { Ok(()) }
        });
        done.is_ok()
    }
}

const PAGE: usize = 4096;

/// The last boundary of a page that a write of `length` bytes reaches with `taken` of them.
const fn boundary(offset: usize, taken: usize, length: usize) -> usize {
    if taken >= length { length } else { ((offset + taken) / PAGE * PAGE).saturating_sub(offset) }
}

fn requests(bytes: &[u8]) {
    let mut entropy = Entropy::new(bytes);
    let limits = LogLimits { stored_bytes_max: entropy.choose(&[1 << 20, 600]) };
    let (mut file, mut log, mut records) = (File::default(), Log::new(limits), Vec::new());
    log.enter(&mut records).expect("an empty file");
    assert!(file.write(0, &records, None));
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let long = vec![b'x'; 2 * PAGE];
    for step in 0..48 {
        if entropy.is_empty() {
            break;
        }
        catch_up(&mut log, &file);
        let mut lists = Lists::default();
        let request = match entropy.below(8) {
            0 => Request::Set { key: Key::raw(b"/a"), value: &long[..usize::from(entropy.byte()) * 20] },
            1 => Request::Append { key: Key::raw(b"/b"), value: &long[..usize::from(entropy.byte()) * 20] },
            _ => any_request(&mut entropy, &mut lists),
        };
        // A driver writes no key without the scope of its store, so none is empty.
        if keys_of(&request).any(|key| key.is_empty()) {
            continue;
        }
        let reply = match log.answer(&request, &mut records) {
            Ok(reply) => reply,
            Err(LogError::Torn(_) | LogError::Nameless(_)) => panic!("{request:?} reads no bytes"),
            // Nothing is written, so nothing changes.
            Err(_) => continue,
        };
        let (expected, next) = apply(&model, &request);
        assert_eq!(plain(&reply), expected, "{request:?}");
        if records.is_empty() {
            assert_eq!(next, model, "{request:?} wrote nothing");
            continue;
        }
        let stops_after = (entropy.below(4) == 0).then(|| entropy.below(64) * 256);
        let end = log.offset();
        let before = file.clone();
        if file.write(end, &records, stops_after) {
            model = next;
        } else {
            // What was written is a log already, of the state before or of a record more; the next one to write truncates
            // what remains, as the driver does when a write fails.
            let mut fresh = Log::new(LogLimits::default());
            match fresh.replay(&file.0, file.0.len() as u64) {
                Ok(wanted) => assert_eq!(wanted, 0),
                // Only a write that cannot be divided may be torn.
                Err(error) => panic!("{error:?} after a write of {} bytes that stopped", records.len()),
            }
            file = before;
        }
        if step % 16 > 0 {
            continue;
        }
        let mut later = Log::new(limits);
        if later.replay(&file.0, file.0.len() as u64) == Ok(0) {
            for (key, value) in &model {
                assert_eq!(later.value(key), Some(&value[..]));
            }
        }
    }
    catch_up(&mut log, &file);
    if log.leave(Some(1), &mut records).is_ok_and(|remains| remains == Remains::File) {
        panic!("the only object has closed the file");
    }
}

fn catch_up(log: &mut Log, file: &File) {
    let start = usize::try_from(log.offset()).expect("inside the file");
    assert_eq!(log.replay(&file.0[start..], file.0.len() as u64), Ok(0));
}

/// A reply without borrowed bytes.
#[derive(Debug, PartialEq)]
enum Plain {
    Applied,
    Number(i64),
    Value(Vec<u8>),
    Values(Vec<Vec<u8>>),
    Ready(bool),
    NotReady,
}

fn plain(reply: &Reply<'_>) -> Plain {
    match reply {
        Reply::Applied => Plain::Applied,
        Reply::Number(number) => Plain::Number(*number),
        Reply::Value(value) => Plain::Value(value.to_vec()),
        Reply::Values(values) => {
            let mut values: Vec<_> = values.iter().map(|value| value.to_vec()).collect();
            values.sort_unstable();
            Plain::Values(values)
        }
        Reply::Ready => Plain::Ready(true),
        Reply::NotReady => Plain::NotReady,
    }
}

/// The keys of a request that has no list.
fn keys_of<'a>(request: &Request<'a>) -> impl Iterator<Item = Key<'a>> {
    let key = match *request {
        Request::Set { key, .. }
        | Request::CompareSet { key, .. }
        | Request::Get { key }
        | Request::Add { key, .. }
        | Request::Delete { key }
        | Request::Append { key, .. } => Some(key),
        _ => None,
    };
    key.into_iter()
}

fn whole(key: Key<'_>) -> Vec<u8> {
    key.pieces().concat()
}

type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a request returns and leaves, of those that a file store has. The two counters of the file are keys, too.
fn apply(state: &State, request: &Request<'_>) -> (Plain, State) {
    let mut next = state.clone();
    let number = |value: Option<&Vec<u8>>| {
        let text = value.map(Vec::as_slice).unwrap_or_default();
        if text.is_empty() { 0 } else { parse_leading(text).expect("the log found a number") }
    };
    let all = |keys: Vec<Vec<u8>>| keys.iter().map(|key| state.get(key).cloned()).collect::<Option<Vec<_>>>();
    let reply = match *request {
        Request::Set { key, value } => {
            next.insert(whole(key), value.to_vec());
            Plain::Applied
        }
        Request::MultiSet { pairs } => {
            next.extend(pairs.iter().map(|(key, value)| (whole(key), value.to_vec())));
            Plain::Applied
        }
        Request::Append { key, value } => {
            next.entry(whole(key)).or_default().extend_from_slice(value);
            Plain::Applied
        }
        Request::Add { key, delta } => {
            let sum = number(state.get(&whole(key))).wrapping_add(delta);
            next.insert(whole(key), sum.to_string().into_bytes());
            Plain::Number(sum)
        }
        Request::CompareSet { key, expected, desired } => match state.get(&whole(key)) {
            Some(current) if current != expected => Plain::Value(current.clone()),
            None if !expected.is_empty() => Plain::Value(expected.to_vec()),
            _ => {
                next.insert(whole(key), desired.to_vec());
                Plain::Value(desired.to_vec())
            }
        },
        Request::Get { key } => state.get(&whole(key)).cloned().map_or(Plain::NotReady, Plain::Value),
        Request::Delete { key } => Plain::Number(i64::from(next.remove(&whole(key)).is_some())),
        Request::Check { keys } | Request::Wait { keys } => {
            if keys.iter().all(|key| state.contains_key(&whole(key))) {
                Plain::Ready(true)
            } else {
                Plain::NotReady
            }
        }
        Request::MultiGet { keys } => {
            all(keys.iter().map(whole).collect()).map_or(Plain::NotReady, |mut values| {
                values.sort_unstable();
                Plain::Values(values)
            })
        }
        // The counter of open objects is a key of the file.
        Request::NumKeys => Plain::Number(i64::try_from(state.len() + 1).expect("few")),
        Request::ListKeys => {
            let mut keys: Vec<_> = state.keys().cloned().chain([b"refcount/".to_vec()]).collect();
            keys.sort_unstable();
            Plain::Values(keys)
        }
        _ => unreachable!("a file store does not have {request:?}"),
    };
    (reply, next)
}
