//! The words of the project are those of its field: gRPC, etcd, libuv and torchrun.

use super::{File, Rule};
use std::collections::BTreeSet;

/// Beginnings of words that do not occur in code, comments and documents: a private vocabulary that this project once
/// had, and pronouns that leave the actor unnamed.
const NOWHERE: [&str; 25] = [
    "told",
    "teller",
    "errand",
    "haste",
    "vigil",
    "mourn",
    "doomed",
    "cursed",
    "oddity",
    "hindrance",
    "farewell",
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "patience",
    "beneath",
    "desk",
    "tongue",
    "comer",
    "agency",
    "invain",
    "dice",
    "lent",
    "warden",
];

/// Words that are no part of an identifier: the field has others for what they stood for here.
const NOT_IN_NAMES: [&str; 36] = [
    "tell", "hear", "heard", "ear", "room", "place", "seat", "footing", "trouble", "letters", "letter",
    "birth", "parting", "verdict", "fate", "sight", "shelf", "weighed", "liar", "deed", "weather", "lane",
    "carrier", "carry", "shown", "asks", "turner", "turning", "who", "whom", "doubt", "curious", "wish",
    "office", "piece", "nudge",
];

/// Keys and values in a store: they are part of a protocol.
const PROTOCOL: [&str; 4] = ["ROUND/told", "\"told\")", "doomed:", "TOLD_KEY"];

const VOCABULARY: Rule = Rule {
    sentence: "Names, comments and documents use the words of gRPC, etcd, libuv and torchrun. A sentence names its \
               actor: client, server, node, worker, rank, session, caller, thread. See CONTRIBUTING.md, \"Language\".",
    check: |files| {
        let mut broken = Vec::new();
        for file in files.iter().filter(|file| is_read(file)) {
            let code: BTreeSet<usize> = if file.is_rust() {
                file.code().map(|(number, _)| number).collect()
            } else {
                BTreeSet::new()
            };
            for (line, number) in shipped_lines(file).zip(1..) {
                if PROTOCOL.iter().any(|text| line.contains(text)) {
                    continue;
                }
                let begins = |word: &String| NOWHERE.iter().any(|banned| word.starts_with(banned));
                let mut found = words(line).into_iter().find(begins);
                if found.is_none() && code.contains(&number) {
                    let is_banned = |word: &String| NOT_IN_NAMES.contains(&word.as_str());
                    found = words(&without_strings(line)).into_iter().find(is_banned);
                }
                if let Some(word) = found {
                    broken.push(file.at(number, &format!("{word}: {line}")));
                }
            }
        }
        broken
    },
};

/// Documents, headers, examples, and Rust but its tests.
fn is_read(file: &File) -> bool {
    let path = &file.path;
    let is_text =
        [".rs", ".md", ".hpp", ".h", ".sh", ".cpp", ".c"].iter().any(|ending| path.ends_with(ending));
    let is_test = path.starts_with("tests/")
        || path.starts_with("fuzz/")
        || path.contains("/tests/")
        || path.ends_with("tests.rs")
        || path.ends_with("/simulation.rs")
        || path.ends_with("/testing.rs");
    is_text && !is_test && path != "CHANGELOG.md"
}

/// The lines of a file, but for the unit tests at its end.
fn shipped_lines(file: &File) -> impl Iterator<Item = &str> {
    let tests = file.is_rust().then(|| file.text.find("#[cfg(test)]\nmod ")).flatten();
    file.text[..tests.unwrap_or(file.text.len())].lines()
}

/// The words of a line in lower case; names are split where their case changes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for character in line.chars() {
        if !character.is_ascii_alphabetic() || (was_lower && character.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if character.is_ascii_alphabetic()
            && let Some(word) = words.last_mut()
        {
            word.push(character.to_ascii_lowercase());
        }
        was_lower = character.is_ascii_lowercase();
    }
    words
}

/// The code of a line, without comment and string literals.
fn without_strings(line: &str) -> String {
    let code = line.split("//").next().unwrap_or_default();
    code.split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_words_are_those_of_the_field() {
    for word in NOWHERE {
        VOCABULARY.notices("docs/guide.md", &format!("The server {word} it.\n"));
        VOCABULARY.notices("core/src/lib.rs", &format!("// The server {word} it.\n"));
    }
    for word in NOT_IN_NAMES {
        VOCABULARY.notices("core/src/lib.rs", &format!("fn a_{word}() {{}}\n"));
    }
    VOCABULARY.notices("core/src/lib.rs", "struct SessionTold;\n");
    VOCABULARY.allows("core/src/lib.rs", "// A place to read.\nlet x = \"a place\"; // tell\n");
    VOCABULARY.allows("core/src/lib.rs", "fn replace() {}\n\n#[cfg(test)]\nmod tests {\n    // nobody\n}\n");
    VOCABULARY.allows("tests/it/x.rs", "// nobody\n");
    VOCABULARY.holds();
}
