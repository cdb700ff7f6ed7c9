//! The text of the C headers, made by cbindgen from the doc comments of `ffi/src`.

use super::LINE_BYTES_MAX;
use cbindgen::{Builder, Config};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The conditions of `ffi/src/lib.rs` that hold for the headers: the library has both features.
const IN_THE_HEADERS: [&str; 2] = ["#[cfg(feature = \"agent\")]", "#[cfg(feature = \"rpc\")]"];

/// A header of one subject, and the modules of the library that it presents.
pub(super) struct Subject {
    pub(super) name: String,
    title: String,
    modules: Vec<String>,
}

/// The subjects in the order of `ffi/src/lib.rs`, with the modules that are in the library as it ships.
pub(super) fn subjects() -> Vec<Subject> {
    subjects_of(&read_source("lib"))
}

fn subjects_of(source: &str) -> Vec<Subject> {
    let mut is_left_out = false;
    let mut subjects: Vec<Subject> = Vec::new();
    for line in source.lines().take_while(|line| *line != "// In no header") {
        if line.starts_with("#[") {
            is_left_out |= line.starts_with("#[cfg(") && !IN_THE_HEADERS.contains(&line);
            continue;
        }
        if let Some(subject) = line.strip_prefix("// Header ") {
            let (name, title) = subject.split_once(": ").expect("`// Header NAME: TITLE` in ffi/src/lib.rs");
            subjects.push(Subject { name: name.into(), title: title.into(), modules: Vec::new() });
        } else if let Some(module) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
            && !is_left_out
        {
            let subject = subjects.last_mut();
            let subject = subject
                .unwrap_or_else(|| panic!("no `// Header NAME: TITLE` above {module} in ffi/src/lib.rs"));
            subject.modules.push(module.to_string());
        }
        is_left_out = false;
    }
    subjects
}

fn read_source(module: &str) -> String {
    let path = crate::repository().join("ffi/src").join(format!("{module}.rs"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What C sees of one module; empty when that is nothing.
fn section(config: &Config, module: &str) -> String {
    let source = crate::repository().join("ffi/src").join(format!("{module}.rs"));
    let bindings = Builder::new().with_config(config.clone()).with_src(source).generate();
    let mut text = Vec::new();
    bindings.unwrap_or_else(|error| panic!("{module}: {error}")).write(&mut text);
    fill_lines(String::from_utf8(text).expect("UTF-8").trim())
}

/// Puts as many parameters in a line as fit; cbindgen gives each a line of its own where one line is not enough.
fn fill_lines(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last)
                if last.ends_with(',')
                    && !last.trim_start().starts_with("//")
                    && last.len() + 1 + line.trim_start().len() <= LINE_BYTES_MAX =>
            {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => lines.push(line.to_string()),
        }
    }
    lines.join("\n")
}

/// Macros with the release, which is the workspace's: cbindgen writes no constants that are text.
fn version_macros() -> String {
    let mut text = String::from(
        "\n// Release that this header is part of. `rdzv_version` returns the loaded library's.\n",
    );
    let version = env!("CARGO_PKG_VERSION");
    for (part, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(version.split('.')) {
        writeln!(text, "#define RDZV_VERSION_{part} {number}").expect("memory");
    }
    text + &format!("#define RDZV_VERSION_STRING \"{version}\"\n")
}

/// What C sees of all modules of a subject.
fn sections(config: &Config, subject: &Subject) -> String {
    let rule = "-".repeat(LINE_BYTES_MAX - 3);
    let mut text = String::new();
    for module in &subject.modules {
        let section = section(config, module);
        if section.is_empty() {
            continue;
        }
        let source = read_source(module);
        let title = source.lines().next().and_then(|line| line.strip_prefix("//! "));
        let title = title.unwrap_or_else(|| panic!("{module}.rs has no title for its section"));
        write!(text, "\n// {rule}\n// {title}\n// {rule}\n\n{section}\n").expect("memory");
        if module == "version" {
            text.push_str(&version_macros());
        }
    }
    text
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// The types that a header declares, each with whether it is opaque.
fn declared_types(text: &str) -> Vec<(&str, bool)> {
    let types = code(text).filter_map(|line| {
        let Some(declared) = line.strip_prefix("typedef ") else {
            return Some((line.strip_prefix("} ")?.strip_suffix(';')?, false));
        };
        if let Some((_, function)) = declared.split_once("(*") {
            return Some((function.split(')').next()?, false));
        }
        let name = declared.strip_suffix(';')?.rsplit(' ').next()?;
        Some((name, declared == format!("struct {name} {name};")))
    });
    types.collect()
}

fn named_types(text: &str) -> BTreeSet<&str> {
    let is_outside = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    code(text).flat_map(|line| line.split(is_outside)).filter(|name| name.starts_with("rdzv_")).collect()
}

/// A type, as the headers declare it.
struct Declared {
    header: usize,
    is_opaque: bool,
}

/// The includes of a header, and the opaque types of later headers that it names.
fn preamble(at: usize, subjects: &[Subject], texts: &[String], types: &BTreeMap<&str, Declared>) -> String {
    let (mut includes, mut opaque) = (BTreeSet::new(), String::new());
    for name in named_types(&texts[at]) {
        let Some(&Declared { header, is_opaque }) = types.get(name) else { continue };
        if header < at {
            includes.insert(header);
        } else if header > at {
            let (this, later) = (&subjects[at].name, &subjects[header].name);
            assert!(
                is_opaque,
                "{this}.h names {name}, whose content stands in {later}.h, a later header: \
                 move the module of one of them in ffi/src/lib.rs"
            );
            writeln!(opaque, "typedef struct {name} {name};  // {later}.h").expect("memory");
        }
    }
    let mut preamble = String::from("#include <stddef.h>\n#include <stdint.h>\n");
    for header in includes {
        writeln!(preamble, "#include \"{}.h\"", subjects[header].name).expect("memory");
    }
    preamble
        + "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
        + if opaque.is_empty() { "" } else { "\n" }
        + &opaque
}

/// Where each type is declared. One that several modules name may be in several headers: it belongs to the first.
fn owners(texts: &[String]) -> BTreeMap<&str, Declared> {
    let mut types = BTreeMap::new();
    for (header, text) in texts.iter().enumerate() {
        for (name, is_opaque) in declared_types(text) {
            types.entry(name).or_insert(Declared { header, is_opaque });
        }
    }
    types
}

/// The headers: their paths below `include/`, and their texts.
pub(super) fn generate() -> Vec<(String, String)> {
    let settings = crate::repository().join("ffi/cbindgen.toml");
    let mut config = Config::from_file(settings.to_str().expect("a path in UTF-8")).expect("cbindgen.toml");
    let conventions = config.header.take().expect("a header in cbindgen.toml");
    let subjects = subjects();
    let texts: Vec<String> = subjects.iter().map(|subject| sections(&config, subject)).collect();
    let types = owners(&texts);

    let mut all = format!("{conventions}\n#ifndef RENDEZVOUS_H\n#define RENDEZVOUS_H\n\n");
    let mut headers = Vec::new();
    for (at, Subject { name, title, .. }) in subjects.iter().enumerate() {
        let include = format!("#include \"rendezvous/{name}.h\"");
        writeln!(all, "{include:<34}  // {title}").expect("memory");
        let guard = format!("RENDEZVOUS_{}_H", name.to_uppercase());
        let text = format!(
            "// rendezvous/{name}.h: {title}.\n\
             //\n\
             // Generated by `make header`: edit the doc comments in ffi/src instead. The conventions of all\n\
             // functions stand in rendezvous.h.\n\n\
             #ifndef {guard}\n#define {guard}\n\n{preamble}{text}\n\
             #ifdef __cplusplus\n}}  // extern \"C\"\n#endif\n\n#endif  // {guard}\n",
            preamble = preamble(at, &subjects, &texts, &types),
            text = texts[at],
        );
        headers.push((format!("rendezvous/{name}.h"), text));
    }
    all += "\n#endif  // RENDEZVOUS_H\n";
    headers.insert(0, ("rendezvous.h".to_string(), all));
    headers
}

#[test]
fn modules_belong_to_the_header_above_them() {
    let source = "// Header one: the first\nmod a;\n\n#[cfg(feature = \"rpc\")]\nmod b;\n#[cfg(not(feature = \"rpc\"))]\n\
                  #[path = \"x.rs\"]\nmod b;\n\n// Header two: the second\nmod c;\n\n// In no header\nmod d;\n";
    let subjects = subjects_of(source);
    let found: Vec<_> =
        subjects.iter().map(|subject| (&*subject.name, &*subject.title, &*subject.modules)).collect();
    let modules = [["a", "b"].map(String::from).to_vec(), vec![String::from("c")]];
    assert_eq!(found, [("one", "the first", &*modules[0]), ("two", "the second", &*modules[1])]);
}

#[test]
fn parameters_fill_their_lines() {
    let text = "// One,\nvoid rdzv_f(int a,\n            int b);";
    assert_eq!(fill_lines(text), "// One,\nvoid rdzv_f(int a, int b);");
    let name = "x".repeat(LINE_BYTES_MAX - 28);
    let text = format!("void rdzv_f(int {name},\n            int second,\n            int third);");
    let filled = format!("void rdzv_f(int {name},\n            int second, int third);");
    assert_eq!(fill_lines(&text), filled);
}

fn preamble_of(at: usize, texts: [&str; 2]) -> String {
    let subject = |name: &str| Subject { name: name.into(), title: String::new(), modules: Vec::new() };
    let (subjects, texts) = ([subject("one"), subject("two")], texts.map(String::from));
    preamble(at, &subjects, &texts, &owners(&texts))
}

#[test]
fn headers_include_earlier_ones_and_declare_opaque_types_of_later_ones() {
    let one = "typedef struct {\n  int32_t x;\n} rdzv_a;\nvoid rdzv_f(rdzv_b *b);\n";
    let two = "typedef struct rdzv_b rdzv_b;\nvoid rdzv_g(const rdzv_a *a);\n// rdzv_c\n";
    let includes = |text: String| text.matches("#include \"").count();
    let of_one = preamble_of(0, [one, two]);
    assert!(
        of_one.ends_with("\n\ntypedef struct rdzv_b rdzv_b;  // two.h\n") && includes(of_one.clone()) == 0,
        "{of_one}"
    );
    let of_two = preamble_of(1, [one, two]);
    assert!(of_two.contains("\n#include \"one.h\"\n") && !of_two.contains("typedef"), "{of_two}");
    assert_eq!(includes(preamble_of(1, ["typedef struct rdzv_a rdzv_a;\n", "// rdzv_a\n"])), 0);
}

#[test]
#[should_panic(expected = "one.h names rdzv_b, whose content stands in two.h, a later header")]
fn structs_of_later_headers_are_refused() {
    preamble_of(0, ["void rdzv_f(rdzv_b *b);\n", "typedef struct {\n  int32_t x;\n} rdzv_b;\n"]);
}
