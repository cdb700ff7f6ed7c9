//! What a worker is to be, and how that is handed to the guard.

use super::error::GuardError;
use super::guard::block::Head;
use super::guard::system::{check, errno};
use crate::driver::process::error::Part;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::size_of;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a worker is to be. Nothing of it is kept when [`Guard::spawn`](super::Guard::spawn) returns.
///
/// What is not said here a worker has from the agent's program as it was when the guard was started: limits, user and
/// groups, umask, priority, namespaces, and the directory if none is given. Signals have their default action.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What it runs.
    pub entry: Entry<'a>,
    /// Its arguments. For a program the first one is, by custom, its own name.
    pub arguments: &'a [OsString],
    /// Its whole environment: nothing is inherited.
    pub environment: &'a [(OsString, OsString)],
    /// Where it begins; a relative one is meant from the guard's.
    pub directory: Option<&'a Path>,
    /// Its standard input.
    pub stdin: Stdio<'a>,
    /// Its standard output.
    pub stdout: Stdio<'a>,
    /// Its standard error.
    pub stderr: Stdio<'a>,
    /// Signals that are blocked in it at its start; ordinarily none.
    pub blocked: &'a [i32],
}

impl<'a> Program<'a> {
    /// A worker without arguments and environment, which inherits its standard streams.
    #[must_use]
    pub const fn new(entry: Entry<'a>) -> Self {
        Self {
            entry,
            arguments: &[],
            environment: &[],
            directory: None,
            stdin: Stdio::Inherit,
            stdout: Stdio::Inherit,
            stderr: Stdio::Inherit,
            blocked: &[],
        }
    }
}

/// What a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The program at this path, as [`find_program`](super::find_program) finds it. A relative path is meant from the
    /// worker's directory. A text without `#!` is none: nobody guesses a shell.
    Path(&'a Path),
    /// The function that the guard's options hold.
    Function,
}

/// A standard stream of a worker.
#[derive(Clone, Copy, Debug)]
pub enum Stdio<'a> {
    /// That of the agent's program, as it was when the guard was started.
    Inherit,
    /// Nothing to read; what is written is thrown away.
    Null,
    /// This one. The worker gets its own copy.
    Fd(BorrowedFd<'a>),
}

/// A block, as a file without a name that nobody can change any more.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) file: OwnedFd,
    pub(super) bytes: u64,
}

impl Parcel {
    pub(super) fn pack(program: &Program<'_>) -> Result<Self, GuardError> {
        let block = block(program)?;
        let file = sealed(&block).map_err(GuardError::NotPrepared)?;
        Ok(Self { file, bytes: block.len() as u64 })
    }
}

/// Lists of offsets, then the texts that they point to.
fn block(program: &Program<'_>) -> Result<Vec<u8>, GuardError> {
    const WORD: usize = size_of::<u64>();
    let word_count = program.arguments.len() + 1 + program.environment.len() + 1;
    let mut texts = Texts { start: size_of::<Head>() + word_count * WORD, bytes: Vec::new() };
    let mut list = Vec::with_capacity(word_count);
    for argument in program.arguments {
        list.push(texts.add(&[argument], Part::Argument)?);
    }
    list.push(0);
    for (name, value) in program.environment {
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            return Err(GuardError::NotAName(name.clone()));
        }
        list.push(texts.add(&[name, OsStr::new("="), value], Part::Environment)?);
    }
    list.push(0);
    let path = match program.entry {
        Entry::Path(path) => path.as_os_str(),
        Entry::Function => OsStr::new(""),
    };
    let head = Head {
        path: texts.add(&[path], Part::Path)?,
        directory: match program.directory {
            Some(directory) => texts.add(&[directory.as_os_str()], Part::Directory)?,
            None => 0,
        },
        arguments: size_of::<Head>() as u64,
        environment: (size_of::<Head>() + (program.arguments.len() + 1) * WORD) as u64,
    };
    let head = [head.path, head.directory, head.arguments, head.environment];
    let mut block: Vec<u8> = head.into_iter().chain(list).flat_map(u64::to_ne_bytes).collect();
    block.append(&mut texts.bytes);
    Ok(block)
}

struct Texts {
    start: usize,
    bytes: Vec<u8>,
}

impl Texts {
    /// Where the text stands in the block.
    fn add(&mut self, parts: &[&OsStr], part: Part) -> Result<u64, GuardError> {
        let offset = self.start + self.bytes.len();
        for text in parts.iter().map(|text| text.as_bytes()) {
            if text.contains(&0) {
                return Err(GuardError::ZeroByte(part));
            }
            self.bytes.extend_from_slice(text);
        }
        self.bytes.push(0);
        Ok(offset as u64)
    }
}

/// A file in memory, without a name in any folder.
pub(super) fn memory_file(name: &CStr, flags: u32) -> Result<OwnedFd, i32> {
    let open = |flags| {
        // SAFETY: the name ends with a zero.
        let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        // SAFETY: it was opened just now, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // Some systems refuse one that might be a program, older ones do not know the word.
    open(flags | libc::MFD_NOEXEC_SEAL).or_else(|_: i32| open(flags))
}

fn sealed(bytes: &[u8]) -> Result<OwnedFd, i32> {
    let file = memory_file(c"rdzv-worker", libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: so many bytes are valid for reading.
        let written = unsafe { libc::write(file.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(written) => rest = &rest[written..],
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(errno()),
        }
    }
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: numbers only.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}
