//! Links, paths and names of code in the documents.

use super::{File, Rule};
use std::collections::BTreeSet;

const REFERENCES: Rule = Rule {
    sentence: "What a document points to exists: the target of each link and its heading; and in README, CONTRIBUTING, \
               SECURITY, docs/ (but for the decisions, which are history) and the READMEs of the crates each path of a \
               file, each module path and each name of code behind `::`.",
    check: |files| {
        let code = Code::of(files);
        let documents = || files.iter().filter(|file| file.path.ends_with(".md"));
        let mut broken: Vec<String> = documents().flat_map(|file| wrong_links(file, files)).collect();
        let is_current = |file: &&File| {
            let path = file.path.as_str();
            path != "CHANGELOG.md" && !path.starts_with("docs/adr/")
        };
        broken.extend(documents().filter(is_current).flat_map(|file| wrong_names(file, &code)));
        broken
    },
};

/// The lines outside fenced blocks, and those inside them.
fn lines(file: &File, inside: bool) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    file.text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        (!is_fence && in_block == inside).then_some((number, line))
    })
}

fn wrong_links(file: &File, files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, line) in lines(file, false) {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { file.path.clone() } else { resolved(&file.path, path) };
            let found = files.iter().find(|other| other.path == path);
            let folder = format!("{}/", path.trim_end_matches('/'));
            let is_folder = || files.iter().any(|other| other.path.starts_with(&folder));
            let is_right = match found {
                Some(found) => heading.is_empty() || headings(found).any(|other| other == heading),
                None => heading.is_empty() && is_folder(),
            };
            if !is_right {
                wrong.push(file.at(number, target));
            }
        }
    }
    wrong
}

/// The path of a link's target from the root.
fn resolved(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document: of its headings, and those written out.
fn headings(file: &File) -> impl Iterator<Item = String> {
    let anchors = file.text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let headings = lines(file, false).filter_map(|(_, line)| line.strip_prefix('#'));
    let headings = headings.map(|heading| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|&letter| letter.is_alphanumeric() || "-_ ".contains(letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    });
    anchors.map(str::to_owned).chain(headings)
}

/// What there is to be named.
struct Code<'a> {
    /// The modules of all crates, as `core::store::engine`, and their files.
    modules: Vec<(String, &'a File)>,
    /// The headers of the C and C++ interfaces.
    headers: Vec<&'a File>,
    paths: BTreeSet<&'a str>,
}

impl<'a> Code<'a> {
    fn of(files: &'a [File]) -> Self {
        let modules = files.iter().filter(|file| !file.is_of_tests()).filter_map(|file| {
            let path = file.path.strip_suffix(".rs")?.replace("/src/", "/");
            let path = path.strip_suffix("/lib").or(path.strip_suffix("/mod")).unwrap_or(&path);
            Some((path.replace('/', "::"), file))
        });
        Self {
            modules: modules.collect(),
            headers: files.iter().filter(|file| file.path.starts_with("include/")).collect(),
            paths: files.iter().map(|file| file.path.as_str()).collect(),
        }
    }

    /// Whether a path stands for a file or folder, from the root, from the document's folder, or by its last parts.
    fn has_path(&self, document: &str, path: &str) -> bool {
        let full = resolved(document, path);
        let (folder, suffix) = (format!("{}/", path.trim_end_matches('/')), format!("/{path}"));
        self.paths.iter().any(|other| {
            *other == path
                || *other == full
                || other.ends_with(&suffix)
                || other.starts_with(&folder)
                || other.contains(&format!("/{folder}"))
        })
    }

    /// Whether `a::b::Name::item` names a module, or something in a module or a type.
    fn has_name(&self, path: &str) -> bool {
        let path = path.strip_prefix("rendezvous_").unwrap_or(path);
        let parts: Vec<&str> = path.split("::").collect();
        let is_in_module = (1..=parts.len()).rev().any(|length| {
            let module = parts[..length].join("::");
            let (inside, suffix) = (format!("::{module}::"), format!("::{module}"));
            let is_meant = |name: &str| {
                name == module || name.ends_with(&suffix) || format!("::{name}::").contains(&inside)
            };
            let texts: Vec<&str> =
                self.modules.iter().filter(|(name, _)| is_meant(name)).map(|(_, file)| &*file.text).collect();
            !texts.is_empty()
                && parts[length..].iter().all(|part| texts.iter().any(|text| defines(text, part)))
        });
        let [.., owner, name] = parts[..] else { return is_in_module };
        let names_type = owner.starts_with(char::is_uppercase);
        let belongs = |text: &str| text.contains(owner) && defines(text, name);
        is_in_module
            || names_type && self.modules.iter().any(|(_, file)| belongs(&file.text))
            || !names_type && self.headers.iter().any(|file| has_member(&file.text, owner, name))
    }
}

/// Whether a header of C++ has a class, an enumeration or a namespace with a member of this name.
fn has_member(text: &str, owner: &str, name: &str) -> bool {
    let is_owner = |kind: &&str| has_word(text, &format!("{kind} {owner}"));
    ["class", "struct", "namespace"].iter().any(is_owner) && has_word(text, name)
}

/// Whether code defines a function, a type, a field or a constant of this name.
fn defines(text: &str, name: &str) -> bool {
    if name.starts_with(char::is_uppercase) {
        return has_word(text, name);
    }
    ["fn ", "mod ", "type ", "enum ", "struct "].iter().any(|kind| has_word(text, &format!("{kind}{name}")))
        || has_word(text, &format!("pub {name}:"))
        || has_word(text, &format!("pub(super) {name}:"))
}

fn has_word(text: &str, word: &str) -> bool {
    let of_a_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(of_a_word) && !text[at + word.len()..].starts_with(of_a_word))
}

fn wrong_names(file: &File, code: &Code<'_>) -> Vec<String> {
    let spans = lines(file, false)
        .flat_map(|(number, line)| line.split('`').skip(1).step_by(2).map(move |span| (number, span)));
    // The call traces of the architecture are text, not code of a language.
    let traces = lines(file, true).filter(|_| file.path == "docs/ARCHITECTURE.md");
    let traced = traces.flat_map(|(number, line)| {
        line.split([' ', ',', '(', ')']).map(move |word| (number, word.trim_end_matches(':')))
    });
    let mut wrong = Vec::new();
    for (number, span) in spans.chain(traced) {
        for path in ungrouped(span) {
            let is_name = |part: &str| {
                !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
            };
            let names_code = path.contains("::") && path.split("::").all(is_name);
            let is_foreign = ["std::", "alloc::"].iter().any(|start| path.starts_with(start));
            let is_path = path.contains('/')
                && path.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-./".contains(letter))
                && is_source(&path);
            if names_code && !is_foreign && !code.has_name(&path)
                || is_path && !code.has_path(&file.path, &path)
            {
                wrong.push(file.at(number, &path));
            }
        }
    }
    wrong.extend(wrong_modules_of_maps(file, code));
    wrong
}

/// Whether a path with a slash is that of a file or folder of the repository, rather than a key or a name.
fn is_source(path: &str) -> bool {
    let folders = [
        "core/",
        "agent/",
        "rpc/",
        "ffi/",
        "cli/",
        "tests/",
        "docs/",
        "include/",
        "cpp_examples/",
        "benches/",
    ];
    let endings = [".rs", ".md", ".snapshot", ".hpp", ".h", ".cpp", ".c", ".py"];
    folders.iter().any(|folder| path.starts_with(folder))
        || endings.iter().any(|ending| path.ends_with(ending))
}

/// `a::{b, c}` is `a::b` and `a::c`.
fn ungrouped(span: &str) -> Vec<String> {
    let Some((base, group)) = span.strip_suffix('}').and_then(|span| span.split_once('{')) else {
        return vec![span.trim_end_matches("()").to_owned()];
    };
    group.split(',').map(|name| format!("{base}{}", name.trim())).collect()
}

/// The modules of a table with the column `module` in a crate's README, which stand there without their crate.
fn wrong_modules_of_maps(file: &File, code: &Code<'_>) -> Vec<String> {
    let Some(name) = file.path.strip_suffix("/README.md") else { return Vec::new() };
    let mut wrong = Vec::new();
    let mut is_map = false;
    for (number, line) in lines(file, false) {
        is_map = line.starts_with("| module |") || is_map && line.starts_with('|');
        let cell = line.split('|').nth(1).filter(|_| is_map).unwrap_or_default();
        for module in cell.split('`').skip(1).step_by(2) {
            let path = format!("{name}::{module}");
            let (inside, inline) = (format!("{path}::"), format!("mod {module} "));
            let is_module = code.modules.iter().any(|(other, own)| {
                *other == path || other.starts_with(&inside) || other == name && own.text.contains(&inline)
            });
            if !is_module {
                wrong.push(file.at(number, module));
            }
        }
    }
    wrong
}

#[test]
fn documents_point_to_what_exists() {
    let engine = File::new("core/src/store/engine.rs", "impl Engine {\n    pub fn apply(&self) {}\n}\n");
    let header = File::new("include/rendezvous.hpp", "class store {\n  void set();\n};\n");
    let with = |path: &str, text: &str| {
        [File::new(path, text), File::new(&engine.path, &engine.text), File::new(&header.path, &header.text)]
    };
    for wrong in [
        "[engine](../core/src/store/motor.rs)",
        "[engine](../core/src/store/engine.rs#apply)",
        "# One\n[below](#two)",
        "`store::motor`",
        "`store::{engine, motor}`",
        "`store::engine::perform`",
        "`Engine::perform`",
        "`rdzv::store::get`",
        "`core/src/store/motor.rs`",
        "```\nEngine::perform > set   core/src/store/engine.rs\n```",
        "```\nEngine::apply > set   core/src/store/motor.rs\n```",
    ] {
        REFERENCES.notices_in(&with("docs/ARCHITECTURE.md", wrong));
    }
    REFERENCES.notices_in(&with("core/README.md", "| module | job |\n|---|---|\n| `store`, `motor` | x |\n"));
    REFERENCES.allows_in(&with("core/README.md", "| module | job |\n|---|---|\n| `store` | `motor` |\n"));
    REFERENCES.allows_in(&with(
        "docs/ARCHITECTURE.md",
        "# The `one`, two\n[one](#the-one-two) [engine](../core/src/store/engine.rs) [folder](../core/src/) `Engine::apply`\n\
         `store::engine::Engine` `store::{engine}` `engine::apply` `rdzv::store::set` `std::string` `store/engine.rs`\n\
         ```\nEngine::apply > set   core/src/store/engine.rs\n```\n",
    ));
    REFERENCES.allows_in(&with("docs/adr/0001-x.md", "`store::motor`"));
    REFERENCES.holds();
}
