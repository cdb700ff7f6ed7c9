//! Crash-safe appending: the file is a complete log at every moment, even when the writing process is killed.
//!
//! The kernel carries out a write within one page completely or not at all. A longer write can stop at a page
//! boundary when the process is killed. That would leave a torn record, on which PyTorch's readers loop forever.
//! Records that span pages are therefore written under the cover of fillers. A filler is a record without effect: a
//! deletion of the empty key, whose value is ignored.
//! ```text
//! page by page     | filler …        | filler …            | filler … |    each write adds a whole record to the
//! file
//! merged           | filler ………………………………………………………………………………………………… |    four bytes: the length of the first filler
//! under its cover  | filler   the records without their first 9 bytes     |    the file's length does not change
//! uncovered        | records                                           |    nine bytes: the start of the records
//! ```

use super::{DELETION, length_of};
use alloc::vec::Vec;

/// Size of a write that is atomic, in bytes: the smallest page size of any system.
const PAGE_BYTES: u64 = 4096;
/// Size of a filler without a value, in bytes: two lengths and a key of one byte.
const FILLER_BYTES: u64 = 9;

/// Appends `records` at `offset`, the end of the file, by positioned writes. When a write fails, the caller must
/// truncate the file to `offset`.
///
/// # Errors
/// The first error of `write`.
pub fn append<E>(
    records: &[u8],
    offset: u64,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let header_bytes = usize::try_from(FILLER_BYTES).unwrap_or(usize::MAX);
    // Records written by this library always leave space for a filler before the end of a page. Those of other
    // writers may not; then a single write is made, which may be torn.
    let has_space = page_space(offset) >= FILLER_BYTES && !ends_too_early_in_a_page(records, offset);
    if !is_in_steps(records, offset) || !has_space {
        return write(offset, records);
    }
    let (mut page, mut rest, mut at) = (Vec::new(), records, offset);
    while !rest.is_empty() {
        let split = usize::try_from(page_space(at)).map_or(rest.len(), |space| space.min(rest.len()));
        let (here, tail) = rest.split_at(split);
        page.clear();
        push_header(&mut page, here.len().saturating_sub(header_bytes));
        page.extend_from_slice(here.get(header_bytes..).unwrap_or_default());
        write(at, &page)?;
        (rest, at) = (tail, at + split as u64);
    }
    let (header, tail) = records.split_at(header_bytes);
    write(offset + FILLER_BYTES - 4, &length_of(tail.len()))?;
    write(offset + FILLER_BYTES, tail)?;
    write(offset, header)
}

/// Returns whether appending takes more than one write.
const fn is_in_steps(records: &[u8], offset: u64) -> bool {
    records.len() as u64 > page_space(offset)
}

/// Adds fillers to records that will be appended at `offset`, so that each page that they reach into, and the
/// records appended after them, start with space for a filler.
pub(super) fn pad(records: &mut Vec<u8>, offset: u64) {
    if records.is_empty() {
        return;
    }
    if is_in_steps(records, offset) && ends_too_early_in_a_page(records, offset) {
        push_header(records, 0);
    }
    let left = page_space(offset + records.len() as u64);
    if left < FILLER_BYTES {
        let left = usize::try_from(left).unwrap_or_default();
        push_header(records, left);
        records.resize(records.len() + left, 0);
    }
}

/// Returns whether the part of `records` in their last page is too short for a filler.
const fn ends_too_early_in_a_page(records: &[u8], offset: u64) -> bool {
    let last = (offset + records.len() as u64) % PAGE_BYTES;
    last > 0 && last < FILLER_BYTES
}

/// Returns the number of bytes from `offset` to the end of its page.
const fn page_space(offset: u64) -> u64 {
    PAGE_BYTES - offset % PAGE_BYTES
}

/// Appends the header of a filler: everything before its value.
fn push_header(bytes: &mut Vec<u8>, value_bytes: usize) {
    bytes.extend_from_slice(&length_of(1));
    bytes.push(DELETION);
    bytes.extend_from_slice(&length_of(value_bytes));
}

#[cfg(test)]
mod tests {
    use super::super::{Log, push_record};
    use super::*;
    use crate::limits::LogLimits;
    use alloc::vec;

    /// Parses the file, which must be a complete log.
    fn read(file: &[u8]) -> Log {
        let mut log = Log::new(LogLimits::default());
        let replayed = log.replay(file, file.len() as u64);
        assert_eq!((replayed, log.offset()), (Ok(0), file.len() as u64));
        log
    }

    fn write_to(file: &mut Vec<u8>, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("small");
        assert!(at <= file.len(), "no holes");
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A file of one record that ends at `offset`.
    fn file_of(offset: u64) -> Vec<u8> {
        let mut file = Vec::new();
        push_record(&mut file, &[b"/x"], &vec![1; usize::try_from(offset).expect("small") - 10]);
        file
    }

    #[test]
    fn the_file_is_whole_after_each_write_and_within_it_at_each_page() {
        for offset in (4070..4097).chain([100, 8191 - 8, 8192]) {
            for length in (1..60).chain([4000, 4096 - 20, 4097, 8192, 9000, 12_288, 20_000]) {
                let mut records = Vec::new();
                push_record(&mut records, &[b"/k"], &vec![7; length / 2]);
                push_record(&mut records, &[b"/l"], &vec![8; length - length / 2]);
                pad(&mut records, offset);
                let end = offset + records.len() as u64;
                assert!(page_space(end) >= FILLER_BYTES, "{offset} {length}: the next one has room");
                let mut file = file_of(offset);
                let mut count = 0;
                append::<()>(&records, offset, |at, bytes| {
                    count += 1;
                    // A killed process has written the pages up to some boundary.
                    let is_single_write = page_space(offset) < FILLER_BYTES;
                    for kept in 1..bytes.len() {
                        if (at + kept as u64).is_multiple_of(PAGE_BYTES) && !is_single_write {
                            let mut cut = file.clone();
                            write_to(&mut cut, at, &bytes[..kept]);
                            let log = read(&cut);
                            assert!(log.value(b"/k").is_none() && log.value(b"/l").is_none(), "both or none");
                        }
                    }
                    write_to(&mut file, at, bytes);
                    let log = read(&file);
                    assert_eq!(log.value(b"/k").is_some(), log.value(b"/l").is_some(), "both or none");
                    Ok(())
                })
                .expect("written");
                assert_eq!(file[usize::try_from(offset).expect("small")..], records, "{offset} {length}");
                let log = read(&file);
                assert_eq!(log.values.len(), 3);
                assert_eq!(log.value(b"/l").expect("there").len(), length - length / 2);
                assert_eq!(count == 1, !is_in_steps(&records, offset) || page_space(offset) < FILLER_BYTES);
            }
        }
    }

    #[test]
    fn nothing_is_added_within_a_page() {
        for offset in [0, 18, 4096, 4096 * 3 + 5] {
            let mut records = Vec::new();
            pad(&mut records, offset);
            assert!(records.is_empty());
            push_record(&mut records, &[b"/k"], b"value");
            let before = records.clone();
            pad(&mut records, offset);
            assert_eq!(records, before);
        }
    }

    #[test]
    fn a_write_that_fails_is_the_last() {
        let records = vec![0; 9000];
        for fails in 0..6 {
            let mut count = 0;
            let result = append(&records, 10, |_, _| {
                count += 1;
                if count > fails { Err(count) } else { Ok(()) }
            });
            assert_eq!((result, count), (Err(fails + 1), fails + 1));
        }
    }
}
