//! The rules of the repository. Each is a sentence, a check that reads the files, and a proof that the check can fail.

mod boundary;
mod cycles;
mod layers;
mod planted;
mod references;
mod vocabulary;
mod words;

use sha2::{Digest, Sha256};
use std::path::Path;

/// A text file of the repository.
struct File {
    /// From the root, with `/` between the parts.
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether it holds unit tests alone: a file of their own beside the code, or one of a folder of theirs.
    fn is_of_tests(&self) -> bool {
        self.path
            .split_once("/src/")
            .is_some_and(|(_, module)| module.ends_with("/tests.rs") || module.contains("/tests/"))
    }

    /// The numbered lines of code: without comments, and without the tests, which stand at the end of a file or in
    /// files of their own.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = if self.is_of_tests() { "" } else { self.text.as_str() };
        let tests = lines.find("#[cfg(test)]\nmod ").unwrap_or(lines.len());
        (1..)
            .zip(lines[..tests].lines())
            .map(|(number, line)| (number, line.split_once("//").map_or(line, |(code, _)| code)))
    }

    /// Where the line stands, for a message.
    fn at(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {}", self.path, what.trim())
    }
}

struct Rule {
    sentence: &'static str,
    /// The places where it is broken.
    check: fn(&[File]) -> Vec<String>,
}

impl Rule {
    /// Fails with the rule's own sentence.
    fn holds(&self) {
        let broken = (self.check)(&repository());
        assert!(broken.is_empty(), "{}\nBroken here:\n  {}", self.sentence, broken.join("\n  "));
    }

    /// The check sees what breaks the rule.
    fn notices(&self, path: &str, text: &str) {
        self.notices_in(&[File::new(path, text)]);
    }

    fn notices_in(&self, files: &[File]) {
        let broken = (self.check)(files);
        assert!(
            !broken.is_empty(),
            "{}\nNot noticed in {}:\n{}",
            self.sentence,
            files[0].path,
            files[0].text
        );
    }

    /// The check lets pass what keeps the rule.
    fn allows(&self, path: &str, text: &str) {
        self.allows_in(&[File::new(path, text)]);
    }

    fn allows_in(&self, files: &[File]) {
        let broken = (self.check)(files);
        assert!(broken.is_empty(), "{}\nNot broken here: {broken:?}", self.sentence);
    }
}

/// Every text file, but for what is built, what is fetched, and the inputs of fuzz targets.
fn repository() -> Vec<File> {
    let mut files = Vec::new();
    read_folder(crate::repository(), "", &mut files);
    assert!(files.iter().any(|file| file.path == "core/src/lib.rs"), "this is the repository");
    files
}

/// Returns path and text of each text file.
pub(crate) fn text_files() -> impl Iterator<Item = (String, String)> {
    repository().into_iter().map(|file| (file.path, file.text))
}

fn read_folder(folder: &Path, prefix: &str, files: &mut Vec<File>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let path = format!("{prefix}{name}");
        if entry.file_type().expect("a type").is_dir() {
            let is_built = ["target", ".git", "__pycache__", "artifacts", "corpus"].contains(&name.as_str());
            if !is_built {
                read_folder(&entry.path(), &format!("{path}/"), files);
            }
        } else if name != ".git"
            && let Ok(text) = std::fs::read_to_string(entry.path())
        {
            files.push(File { path, text });
        }
    }
}

/// Lines of code in a file from which on somebody should ask whether it is two.
const LINES_MAX: usize = 800;

const SIZE: Rule = Rule {
    sentence: "A file holds at most 800 lines beside its tests: split it where its state splits.",
    check: |files| {
        let written = |file: &&File| {
            [".rs", ".hpp", ".cpp", ".c", ".py"].iter().any(|ending| file.path.ends_with(ending))
        };
        let lines =
            |file: &File| if file.is_rust() { file.code().count() } else { file.text.lines().count() };
        let long = files.iter().filter(written).filter(|file| lines(file) > LINES_MAX);
        long.map(|file| format!("{}: {} lines", file.path, lines(file))).collect()
    },
};

#[test]
fn files_are_small() {
    SIZE.notices("core/src/hub.rs", &"let x = 1;\n".repeat(801));
    SIZE.notices("include/rendezvous.hpp", &"int x;\n".repeat(801));
    let with_tests = ["x;\n".repeat(799), "#[cfg(test)]\nmod tests {\n".to_owned(), "x;\n".repeat(500)];
    SIZE.allows("core/src/hub.rs", &with_tests.concat());
    SIZE.notices("core/src/hub.rs", &format!("#[cfg(test)]\nuse x;\n{}", "x;\n".repeat(800)));
    SIZE.holds();
}

const DIGITS_SHA256: &str = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8";

const DIGITS: Rule = Rule {
    sentence: "The digits that the trainer learns from are those that its README names, byte for byte.",
    check: |files| {
        let has_examples = files.iter().any(|file| file.path.starts_with("cpp_examples/"));
        let data = files.iter().find(|file| file.path == "cpp_examples/data/digits.csv");
        let hash = data.map(|file| {
            Sha256::digest(&file.text).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        });
        match hash {
            None if has_examples => vec!["cpp_examples/data/digits.csv is missing".to_owned()],
            Some(hash) if hash != DIGITS_SHA256 => {
                vec![format!("cpp_examples/data/digits.csv has SHA-256 {hash}")]
            }
            _ => Vec::new(),
        }
    },
};

#[test]
fn the_digits_are_the_digits() {
    DIGITS.notices("cpp_examples/data/digits.csv", "0,1,2\n");
    DIGITS.notices("cpp_examples/store_basics.cpp", "int main() {}\n");
    DIGITS.holds();
}
