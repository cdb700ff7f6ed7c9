//! Description of a worker, and its transfer to the guard.

use super::error::GuardError;
use super::guard::block::Head;
use super::number_of;
use crate::driver::process::error::Part;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::size_of;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Description of a worker. [`Guard::spawn`](super::Guard::spawn) copies it.
///
/// A worker inherits everything else from the agent's program as it was when the guard was started: limits, user and
/// groups, umask, priority, namespaces, and the working directory if none is given. Signals have their default action.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What the worker runs.
    pub entry: Entry<'a>,
    /// Arguments. The first argument of a program is its own name by convention.
    pub arguments: &'a [OsString],
    /// The complete environment: nothing is inherited.
    pub environment: &'a [(OsString, OsString)],
    /// Working directory; a relative path is resolved against that of the guard.
    pub directory: Option<&'a Path>,
    /// Standard input.
    pub stdin: Stdio<'a>,
    /// Standard output.
    pub stdout: Stdio<'a>,
    /// Standard error.
    pub stderr: Stdio<'a>,
    /// Signals that are blocked in the worker at its start; usually none.
    pub blocked: &'a [i32],
}

impl<'a> Program<'a> {
    /// Creates a description without arguments and environment, with inherited standard streams.
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
    /// The program at this path, as [`find_program`](super::find_program) returns it. A relative path is resolved
    /// against the worker's directory. A text file without `#!` is not a program: no shell is assumed.
    Path(&'a Path),
    /// The function in the guard's options.
    Function,
}

/// A standard stream of a worker.
#[derive(Clone, Copy, Debug)]
pub enum Stdio<'a> {
    /// The stream of the agent's program, as it was when the guard was started.
    Inherit,
    /// `/dev/null`.
    Null,
    /// This descriptor. The worker gets its own copy.
    Fd(BorrowedFd<'a>),
}

/// A sealed, unnamed file with the description of a worker ([`Head`]).
#[derive(Debug)]
pub(super) struct SealedBlock {
    pub(super) file: File,
    pub(super) bytes: u64,
}

impl SealedBlock {
    pub(super) fn pack(program: &Program<'_>) -> Result<Self, GuardError> {
        let block = block(program)?;
        let file = sealed(&block).map_err(|error| GuardError::NotPrepared(number_of(&error)))?;
        Ok(Self { file, bytes: block.len() as u64 })
    }
}

/// Serializes a worker: lists of offsets, then the strings to which they point.
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
    /// Appends a string. Returns its offset in the block.
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

/// Creates an unnamed file in memory.
pub(super) fn memory_file(name: &CStr, flags: MemfdFlags) -> io::Result<File> {
    // Some systems refuse a file that could be executed; older kernels do not know the flag.
    let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd_create(name, flags))?;
    Ok(File::from(file))
}

fn sealed(bytes: &[u8]) -> io::Result<File> {
    let mut file = memory_file(c"rdzv-worker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file)
}
