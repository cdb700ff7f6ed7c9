//! Decoder of incoming frames. Small frames are buffered until they are complete; parts of payloads are not buffered.

use crate::wire::{Chunk, DATA, FrameError, Header, Splitter};
use alloc::vec::Vec;

#[derive(Clone, Debug)]
pub(super) struct FramesIn {
    splitter: Splitter,
    header: Option<Header>,
    /// Number of frames that have begun.
    count: u64,
    body: Vec<u8>,
}

/// A decoded part of the stream.
#[derive(Debug)]
pub(super) enum FramePart<'b> {
    /// Data of this length for this call begins.
    Data(u64, u32),
    /// A part of the data.
    Bytes(u64, &'b [u8]),
    /// The data is complete.
    DataEnd(u64),
    /// A complete small frame.
    Frame(Header, Vec<u8>),
}

impl FramesIn {
    pub(super) const fn new(splitter: Splitter) -> Self {
        Self { splitter, header: None, count: 0, body: Vec::new() }
    }

    /// Returns the call whose data comes next, and how many bytes of it at least.
    pub(super) fn due(&self) -> Option<(u64, u32)> {
        let header = self.header.filter(|header| header.kind == DATA)?;
        let left = self.splitter.body_left();
        (left > 0).then_some((header.id, left))
    }

    /// Returns the number of the incomplete small frame and its missing bytes.
    pub(super) fn unfinished(&self) -> Option<(u64, u32)> {
        let left = self.splitter.body_left();
        let is_small = left > 0 && self.header.is_some_and(|header| header.kind != DATA);
        is_small.then_some((self.count, left))
    }

    /// Records that this many bytes of what is due were read to their destination.
    pub(super) const fn filled(&mut self, bytes: u32) {
        self.splitter.pass_over(bytes);
    }

    pub(super) fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<FramePart<'b>>, FrameError> {
        while let Some(chunk) = self.splitter.next(bytes)? {
            match (chunk, self.header) {
                (Chunk::Head(header), _) => {
                    self.header = Some(header);
                    self.count += 1;
                    if header.kind == DATA {
                        return Ok(Some(FramePart::Data(header.id, header.body_bytes)));
                    }
                }
                (Chunk::Body(bytes), Some(header)) if header.kind == DATA => {
                    return Ok(Some(FramePart::Bytes(header.id, bytes)));
                }
                (Chunk::Body(bytes), _) => self.body.extend_from_slice(bytes),
                (Chunk::End, Some(header)) if header.kind == DATA => {
                    return Ok(Some(FramePart::DataEnd(header.id)));
                }
                (Chunk::End, Some(header)) => {
                    return Ok(Some(FramePart::Frame(header, core::mem::take(&mut self.body))));
                }
                (Chunk::End, None) => {}
            }
        }
        Ok(None)
    }
}
