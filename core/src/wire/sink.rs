//! Destinations of encoders. The same encoder computes the length of its output, with [`Length`] as the sink, and
//! the bytes.

use crate::shared::SharedBytes;

/// Destination of encoded bytes.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);

    /// Appends `bytes`. A sink that keeps them for long shares them instead of copying.
    fn put_shared(&mut self, bytes: &SharedBytes) {
        bytes.chunks().iter().for_each(|chunk| self.put(chunk));
    }

    /// Returns how many more bytes the sink accepts.
    fn space(&self) -> usize {
        usize::MAX
    }
}

/// Sink that only counts the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length(pub usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len());
    }
}

/// Sink that fills a caller's buffer. Bytes that do not fit are dropped and counted: see [`Fill::finish`].
#[derive(Debug)]
pub struct Fill<'b> {
    buffer: &'b mut [u8],
    used: usize,
    wanted: usize,
}

impl<'b> Fill<'b> {
    /// Creates a sink that fills `buffer` from its start.
    pub const fn new(buffer: &'b mut [u8]) -> Self {
        Self { buffer, used: 0, wanted: 0 }
    }

    /// Returns the number of bytes written.
    ///
    /// # Errors
    /// The number of bytes required, when the buffer is too small.
    pub const fn finish(self) -> Result<usize, usize> {
        if self.wanted == self.used { Ok(self.used) } else { Err(self.wanted) }
    }
}

impl Sink for Fill<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if self.used == self.wanted
            && let Some(target) = self.buffer.get_mut(self.used..self.used + bytes.len())
        {
            target.copy_from_slice(bytes);
            self.used += bytes.len();
        }
        self.wanted += bytes.len();
    }

    fn space(&self) -> usize {
        self.buffer.len().saturating_sub(self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_tells_what_it_would_have_needed() {
        let mut buffer = [0; 4];
        let mut fill = Fill::new(&mut buffer);
        fill.put(b"abc");
        assert_eq!(fill.finish(), Ok(3));
        let mut fill = Fill::new(&mut buffer);
        fill.put(b"abc");
        fill.put(b"de");
        fill.put(b"f");
        assert_eq!(fill.finish(), Err(6));
    }
}
