//! What must not be written anywhere. The words stand here in pieces, so that this file may be read like all others.

use super::{File, Rule};

/// The lines of all files in which `found` finds something.
fn lines_with(files: &[File], found: impl Fn(&File, &str) -> bool) -> Vec<String> {
    let lines = files
        .iter()
        .flat_map(|file| file.text.lines().zip(1..).map(move |(line, number)| (file, line, number)));
    let broken = lines.filter(|(file, line, _)| found(file, line));
    broken.map(|(file, line, number)| file.at(number, line)).collect()
}

/// Whether `word` stands in the line with nothing around it that makes it a part of another word.
fn has_word(line: &str, word: &str, part_before: fn(char) -> bool, part_behind: fn(char) -> bool) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part_before) && !line[at + word.len()..].starts_with(part_behind)
    })
}

fn of_a_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn of_a_path(character: char) -> bool {
    character.is_alphanumeric() || "_-.})$*".contains(character)
}

const FOLDERS: [&str; 5] = [
    concat!("/", "work"),
    concat!("/", "root"),
    concat!("/", "home"),
    concat!("/", "tmp"),
    concat!("/", "Users"),
];

const HOSTS: [&str; 7] = [
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.", "golang.org"),
    concat!("registry.npmjs", ".org"),
    concat!("arti", "factory"),
];

const LOCK_SOURCE: &str = concat!("source = \"registry+https://github.com/rust-lang/crates", ".io-index\"");

const MACHINE: Rule = Rule {
    sentence: "Nothing in the repository is true on one machine only: no absolute path of a home, work or temporary \
               folder (ask the system for one), no host of a package registry (the user's configuration names it).",
    check: |files| {
        lines_with(files, |file, line| {
            let names_folder = FOLDERS.iter().any(|folder| has_word(line, folder, of_a_path, of_a_path));
            let names_host = HOSTS.iter().any(|host| line.contains(host));
            let is_lock = file.path.ends_with("Cargo.lock");
            let locks_elsewhere = is_lock && line.starts_with("source = ") && line != LOCK_SOURCE;
            names_folder || names_host || locks_elsewhere
        })
    },
};

#[test]
fn nothing_belongs_to_one_machine() {
    for folder in FOLDERS {
        MACHINE.notices("Makefile", &format!("\tcp x {folder}/y\n"));
        MACHINE.notices("core/src/lib.rs", &format!("const X: &str = \"{folder}\";\n"));
        MACHINE.allows("README.md", &format!("see docs{folder}/x and {folder}ers/x and $(OUT){folder}\n"));
    }
    for host in HOSTS {
        MACHINE.notices("docs/guide.md", &format!("pip install --index-url https://{host}/simple\n"));
    }
    MACHINE.notices("Cargo.lock", "source = \"registry+https://example.org/index\"\n");
    MACHINE.allows("Cargo.lock", &format!("{LOCK_SOURCE}\n"));
    MACHINE.holds();
}

const MARKS: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
];

const LEFTOVERS: Rule = Rule {
    sentence: "Nothing is left for later in the code: finish it, or leave it out.",
    check: |files| {
        lines_with(files, |_, line| {
            MARKS.iter().any(|mark| has_word(line, mark, of_a_word, |character| character == '_'))
        })
    },
};

#[test]
fn nothing_is_left_for_later() {
    for mark in MARKS {
        LEFTOVERS.notices("core/src/lib.rs", &format!("    {mark}(\"later\") // {mark}: later\n"));
        LEFTOVERS.allows("core/src/lib.rs", &format!("let x{mark} = 1;\n"));
    }
    LEFTOVERS.holds();
}

const NAPS: [&str; 4] = [
    concat!("thread::", "sleep"),
    concat!("time.", "sleep("),
    concat!("sleep", "_for("),
    concat!("usl", "eep("),
];

const SLEEPS: Rule = Rule {
    sentence: "A test waits for an event, with a deadline; it never sleeps.",
    check: |files| {
        lines_with(files, |file, line| {
            let is_code =
                [".rs", ".py", ".cpp", ".c", ".hpp"].iter().any(|ending| file.path.ends_with(ending));
            // What is not a test has clippy's disallowed-methods over it, and its driver's own reasons.
            let may_hold_tests = file.is_rust() || file.path.starts_with("tests/");
            is_code && may_hold_tests && NAPS.iter().any(|nap| line.contains(nap))
        })
    },
};

#[test]
fn nobody_sleeps() {
    for nap in NAPS {
        SLEEPS.notices("tests/it/net.rs", &format!("std::{nap}(Duration::from_secs(1));\n"));
    }
    SLEEPS.notices("tests/interop/client.py", &format!("    {}1)\n", NAPS[1]));
    SLEEPS.allows("clippy.toml", &format!("path = \"std::{}\"\n", NAPS[0]));
    SLEEPS.holds();
}
