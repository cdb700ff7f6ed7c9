//! Files with tokens. The options of clients and servers hold a path, never a secret.

use crate::access::{Tokens, TokensError};
use crate::driver::file_versions::{self, FileVersions, LoadError};
use crate::driver::prelude::*;
use crate::peer_tokens::PeerTokens;
use crate::proof::Credentials;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Longest token file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reason why a token file cannot be used. It never quotes a secret.
#[derive(Debug, thiserror::Error)]
#[error("token file {}: {cause}", path.display())]
pub struct TokenFileError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub cause: TokenFileCause,
}

/// Reasons of [`TokenFileError`].
#[derive(Debug, thiserror::Error)]
pub enum TokenFileCause {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is longer than 1 MiB.
    #[error("it has {0} bytes, and must not have more than {FILE_BYTES_MAX}")]
    TooLong(u64),
    /// A token in it is wrong, or there is none.
    #[error(transparent)]
    Tokens(#[from] TokensError),
}

impl LoadError for TokenFileError {
    fn is_unread(&self) -> bool {
        // Bytes that are no text have been read.
        matches!(&self.cause, TokenFileCause::Io(error) if error.kind() != ErrorKind::InvalidData)
    }
}

/// Tokens of a file, which is read again when it has changed.
#[derive(Clone, Debug)]
struct TokenFile<T> {
    path: PathBuf,
    versions: FileVersions,
    tokens: T,
    parse: fn(&str) -> Result<T, TokensError>,
}

impl<T> TokenFile<T> {
    fn open(path: &Path, parse: fn(&str) -> Result<T, TokensError>) -> Result<Self, TokenFileError> {
        let versions = FileVersions::of([Some(path), None, None]);
        let tokens = load(path, parse)?;
        Ok(Self { path: path.into(), versions, tokens, parse })
    }

    fn reload(&mut self) -> Result<bool, TokenFileError> {
        let Self { path, versions, tokens, parse } = self;
        let Some(loaded) = versions.reload([Some(path), None, None], || load(path, *parse)) else {
            return Ok(false);
        };
        *tokens = loaded?;
        Ok(true)
    }
}

/// Tokens of a process that connects, and of one that its peers call: all of a file, which is read again when it has
/// changed. The process proves the first one.
#[derive(Clone, Debug)]
pub struct ClientToken(TokenFile<PeerTokens>);

impl ClientToken {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or a token of it is wrong.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        TokenFile::open(path, PeerTokens::parse).map(Self)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the tokens as they were read last.
    pub const fn tokens(&self) -> &PeerTokens {
        &self.0.tokens
    }

    /// Reads the file again if it has changed. Returns whether its tokens are other ones now.
    ///
    /// # Errors
    /// The changed file cannot be used, and the tokens stay what they are. This is reported once for each change.
    pub fn reload(&mut self) -> Result<bool, TokenFileError> {
        self.0.reload()
    }

    /// Returns the first token that the file contains now, or else that it contained before.
    pub fn current(&mut self) -> &Credentials {
        self.reload().ok();
        self.tokens().first()
    }
}

/// Tokens of a server: all of a file, which is read again when it has changed.
#[derive(Clone, Debug)]
pub struct ServerTokens(TokenFile<Tokens>);

impl ServerTokens {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is wrong.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        TokenFile::open(path, Tokens::parse).map(Self)
    }

    pub(in crate::driver) const fn tokens(&self) -> &Tokens {
        &self.0.tokens
    }

    /// As [`ClientToken::reload`].
    pub(in crate::driver) fn reload(&mut self) -> Result<bool, TokenFileError> {
        self.0.reload()
    }
}

fn load<T>(path: &Path, parse: fn(&str) -> Result<T, TokensError>) -> Result<T, TokenFileError> {
    let read = || {
        let bytes = file_versions::read(path, FILE_BYTES_MAX + 1)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(TokenFileCause::TooLong(bytes.len() as u64));
        }
        let text =
            str::from_utf8(&bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))?;
        Ok(parse(text)?)
    };
    read().map_err(|cause| TokenFileError { path: path.into(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::testing::{TemporaryFile, is_alone, take_descriptors};
    use std::fs;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn errors_name_the_file_and_the_line_but_no_secret() {
        let file = TemporaryFile::new("tokens-errors");
        let path = file.path();
        let missing = ServerTokens::open(path).expect_err("no file").to_string();
        assert!(missing.contains(path.to_str().unwrap()) && missing.contains("No such file"), "{missing}");
        fs::write(path, format!("# tokens\nreader {SECRET} reads:/\n")).unwrap();
        let wrong = ServerTokens::open(path).expect_err("a wrong right").to_string();
        assert!(wrong.contains("line 2") && !wrong.contains(SECRET), "{wrong}");
        assert!(ClientToken::open(path).is_ok(), "a client has no use for the rights");
        fs::write(path, "").unwrap();
        let empty = ClientToken::open(path).expect_err("no token").to_string();
        assert!(empty.contains("no token"), "{empty}");
        fs::write(path, vec![b'#'; 2 << 20]).unwrap();
        assert!(matches!(ClientToken::open(path).unwrap_err().cause, TokenFileCause::TooLong(_)));
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_wrong_one_changes_nothing() {
        let (file, fresh) = (TemporaryFile::new("tokens-reload"), TemporaryFile::new("tokens-fresh"));
        let path = file.path();
        let replace = |text: &str| {
            fs::write(fresh.path(), text).unwrap();
            fs::rename(fresh.path(), path).unwrap();
        };
        replace(SECRET);
        let mut tokens = ServerTokens::open(path).unwrap();
        assert!(!tokens.reload().unwrap());
        replace("short");
        assert!(tokens.reload().is_err());
        assert!(!tokens.reload().unwrap(), "the error is reported once");
        replace(&format!("one {SECRET} all\ntwo {SECRET} read:/"));
        assert!(tokens.reload().unwrap());
        let mut peer = ClientToken::open(path).unwrap();
        replace(&format!("two {SECRET}\none short"));
        assert_eq!(peer.current().name(), b"one");
        replace(&format!("two {SECRET}\none {SECRET}"));
        assert_eq!(peer.current().name(), b"two");
        assert!(peer.tokens().find(b"one").is_some() && peer.tokens().find(b"three").is_none());
        fs::remove_file(path).unwrap();
        assert!(tokens.reload().is_err() && peer.reload().is_err());
    }

    #[test]
    fn a_pipe_in_place_of_the_file_blocks_no_server() {
        let file = TemporaryFile::new("tokens-pipe");
        fs::write(file.path(), SECRET).unwrap();
        let mut tokens = ServerTokens::open(file.path()).unwrap();
        fs::remove_file(file.path()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(file.path()).status().unwrap().success());
        let error = tokens.reload().unwrap_err();
        assert!(error.to_string().ends_with(": it is not a regular file"), "{error}");
        assert!(!tokens.reload().unwrap() && tokens.tokens().count() == 1, "the token holds");
        fs::remove_file(file.path()).unwrap();
        fs::write(file.path(), format!("one {SECRET} all\ntwo {SECRET} all")).unwrap();
        assert!(tokens.reload().unwrap() && tokens.tokens().count() == 2);
    }

    #[test]
    fn a_file_is_read_once_a_descriptor_is_left_for_it() {
        if !is_alone() {
            return;
        }
        let file = TemporaryFile::new("tokens-descriptors");
        fs::write(file.path(), format!("one {SECRET} all\ntwo {SECRET} all")).unwrap();
        let mut tokens = ServerTokens::open(file.path()).unwrap();
        fs::write(file.path(), format!("one {SECRET} all")).unwrap();
        let taken = take_descriptors();
        assert!(tokens.reload().is_err());
        assert!(!tokens.reload().unwrap(), "the error is reported once");
        drop(taken);
        assert!(tokens.reload().unwrap() && tokens.tokens().count() == 1);
    }

    #[test]
    fn a_file_that_is_no_text_is_not_read_again() {
        let file = TemporaryFile::new("tokens-binary");
        fs::write(file.path(), SECRET).unwrap();
        let mut tokens = ServerTokens::open(file.path()).unwrap();
        fs::write(file.path(), [0xff; 40]).unwrap();
        let error = tokens.reload().unwrap_err();
        assert!(!error.is_unread() && !tokens.reload().unwrap(), "{error}");
    }
}
