//! Frames of a header and a body, taken apart as their bytes arrive.

/// A part of the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'b, H> {
    /// A frame begins.
    Head(H),
    /// Bytes of its body, as they lie in the buffer that they were received in.
    Body(&'b [u8]),
    /// The frame is complete.
    End,
}

/// Where in a frame of a header of `N` bytes the next one belongs. It keeps none but those of a header.
#[derive(Clone, Copy, Debug)]
pub struct Split<const N: usize> {
    head: [u8; N],
    have: usize,
    /// Bytes of the body that are to come, while within a frame.
    left: Option<u32>,
}

impl<const N: usize> Default for Split<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Split<N> {
    /// Before a header.
    #[must_use]
    pub const fn new() -> Self {
        Self { head: [0; N], have: 0, left: None }
    }

    /// How many bytes of a body are to come before anything else.
    pub const fn body_left(&self) -> u32 {
        match self.left {
            Some(left) => left,
            None => 0,
        }
    }

    /// So many bytes of the body were taken elsewhere; no more than there are.
    pub const fn pass_over(&mut self, bytes: u32) {
        if let Some(left) = self.left {
            self.left = Some(left.saturating_sub(bytes));
        }
    }

    /// The next piece, taken off the front of `bytes`; `None` when more bytes are needed. `read` makes a header of its bytes,
    /// and tells how long the body is.
    ///
    /// # Errors
    /// That of `read`.
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
                // The piece is no longer than `left`, which is a `u32`.
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
