//! Frames as they come: small ones are kept until they are whole, parts of payloads are not kept at all.

use crate::wire::{Chunk, DATA, FrameError, Header, Splitter};
use alloc::vec::Vec;

#[derive(Clone, Debug)]
pub(super) struct FramesIn {
    splitter: Splitter,
    header: Option<Header>,
    /// Frames that have begun.
    count: u64,
    body: Vec<u8>,
}

/// What came.
#[derive(Debug)]
pub(super) enum FramePart<'b> {
    /// Data of this length for this call begins.
    Data(u64, u32),
    /// A part of it.
    Bytes(u64, &'b [u8]),
    /// It is complete.
    DataEnd(u64),
    /// A small frame.
    Frame(Header, Vec<u8>),
}

impl FramesIn {
    pub(super) const fn new(splitter: Splitter) -> Self {
        Self { splitter, header: None, count: 0, body: Vec::new() }
    }

    /// The call whose data comes next, and how many bytes of it at least.
    pub(super) fn due(&self) -> Option<(u64, u32)> {
        let header = self.header.filter(|header| header.kind == DATA)?;
        let left = self.splitter.body_left();
        (left > 0).then_some((header.id, left))
    }

    /// The small frame that is kept until it is whole: which one it is, and how many bytes are to come.
    pub(super) fn unfinished(&self) -> Option<(u64, u32)> {
        let left = self.splitter.body_left();
        let is_small = left > 0 && self.header.is_some_and(|header| header.kind != DATA);
        is_small.then_some((self.count, left))
    }

    /// So many bytes of what is due were read to where they belong.
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
