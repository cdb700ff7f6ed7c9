//! Wrong usage of `rdzv run`, which ends it with exit code 2.

/// What a user has said makes no sense.
#[derive(Debug)]
pub(super) struct Usage(pub(super) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
