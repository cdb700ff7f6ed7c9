//! Incremental splitting of a byte stream into frames of a header and a body.

/// Part of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'b, H> {
    /// The header of a frame.
    Head(H),
    /// Bytes of the body, borrowed from the input.
    Body(&'b [u8]),
    /// The frame is complete.
    End,
}

/// Position within a stream of frames with a header of `N` bytes. It buffers only the bytes of a header.
#[derive(Clone, Copy, Debug)]
pub struct Split<const N: usize> {
    head: [u8; N],
    have: usize,
    /// Remaining bytes of the body, while within a frame.
    left: Option<u32>,
}

impl<const N: usize> Default for Split<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Split<N> {
    /// Creates the position before a header.
    pub const fn new() -> Self {
        Self { head: [0; N], have: 0, left: None }
    }

    /// Returns the number of remaining bytes of the current body.
    pub const fn body_left(&self) -> u32 {
        match self.left {
            Some(left) => left,
            None => 0,
        }
    }

    /// Skips bytes of the body that the caller has received by another path; at most those that remain.
    pub const fn pass_over(&mut self, bytes: u32) {
        if let Some(left) = self.left {
            self.left = Some(left.saturating_sub(bytes));
        }
    }

    /// Returns the next chunk and removes it from the front of `bytes`; `None` when more bytes are required. `read`
    /// parses a header, and returns it with the length of the body.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn next<'b, H, E>(
        &mut self,
        bytes: &mut &'b [u8],
        read: impl FnOnce(&[u8; N]) -> Result<(H, u32), E>,
    ) -> Result<Option<Chunk<'b, H>>, E> {
        match self.left {
            Some(0) => {
                self.left = None;
                Ok(Some(Chunk::End))
            }
            Some(_) if bytes.is_empty() => Ok(None),
            Some(left) => {
                let (chunk, rest) = bytes.split_at((left as usize).min(bytes.len()));
                *bytes = rest;
                // The chunk is no longer than `left`, which is a `u32`.
                self.left = Some(left - u32::try_from(chunk.len()).unwrap_or(left));
                Ok(Some(Chunk::Body(chunk)))
            }
            None => {
                let (chunk, rest) = bytes.split_at((N - self.have).min(bytes.len()));
                *bytes = rest;
                self.head[self.have..self.have + chunk.len()].copy_from_slice(chunk);
                self.have += chunk.len();
                if self.have < N {
                    return Ok(None);
                }
                self.have = 0;
                let (header, body_bytes) = read(&self.head)?;
                self.left = Some(body_bytes);
                Ok(Some(Chunk::Head(header)))
            }
        }
    }
}
