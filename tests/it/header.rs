//! `include/rendezvous.h` and `include/rendezvous/*.h`: made from the doc comments of `ffi/src`, committed, and never
//! behind them.

mod generator;

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The longest line of the headers, in bytes.
const LINE_BYTES_MAX: usize = 110;

fn folder() -> PathBuf {
    crate::repository().join("include")
}

/// The names of the headers as a program includes them: the one of everything first, then one for each subject.
pub(crate) fn names() -> Vec<String> {
    let subjects = generator::subjects().into_iter().map(|subject| format!("rendezvous/{}.h", subject.name));
    [String::from("rendezvous.h")].into_iter().chain(subjects).collect()
}

/// The texts of all headers, one behind the other.
pub(crate) fn text() -> String {
    let read = |name| std::fs::read_to_string(folder().join(name)).expect("a committed header");
    names().into_iter().map(read).collect()
}

#[expect(clippy::disallowed_methods, reason = "how `make header` and its kind tell these tests to write")]
pub(crate) fn is_wanted(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

/// Compares a committed file with what it should be, or writes it when `variable` asks for that.
#[track_caller]
pub(crate) fn compare(path: &std::path::Path, fresh: &str, variable: &str, hint: &str) {
    if is_wanted(variable) {
        std::fs::write(path, fresh).expect("the file can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let differing = committed.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    let line = differing.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count()));
    assert!(
        committed == fresh,
        "{} is not that of the sources, from line {} on: {hint}\n  committed: {}\n  now:       {}",
        path.display(),
        line + 1,
        committed.lines().nth(line).unwrap_or("(end)"),
        fresh.lines().nth(line).unwrap_or("(end)"),
    );
}

/// The names of the functions that a header declares.
pub(crate) fn functions(header: &str) -> BTreeSet<String> {
    let declarations =
        header.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    declarations
        .filter(|line| !line.starts_with("typedef "))
        .filter_map(|line| {
            let (before, _) = line.split_once('(')?;
            let name = before.rsplit([' ', '*']).next()?;
            name.starts_with("rdzv_").then(|| name.to_string())
        })
        .collect()
}

/// The names of the constants that a header defines.
pub(crate) fn constants(header: &str) -> Vec<String> {
    let defines = header.lines().filter_map(|line| line.strip_prefix("#define RDZV_"));
    // The release is not part of the ABI.
    let defines = defines.filter(|rest| !rest.starts_with("VERSION_"));
    defines.filter_map(|rest| Some(format!("RDZV_{}", rest.split_once(' ')?.0))).collect()
}

/// A struct whose content C can see: its name, and those of its fields.
pub(crate) struct Struct {
    pub(crate) name: String,
    pub(crate) fields: Vec<String>,
}

/// The structs that a header lays open.
pub(crate) fn structs(header: &str) -> Vec<Struct> {
    let bodies = header.split("\ntypedef struct {\n").skip(1).map(|rest| {
        let (body, rest) = rest.split_once("\n} ").expect("the end of a struct");
        (rest.split(';').next().expect("a name"), body)
    });
    bodies
        .map(|(name, body)| {
            let lines = body.lines().filter(|line| !line.trim_start().starts_with("//"));
            let declarations: String = lines.map(|line| line.to_string() + " ").collect();
            let fields = declarations.split(';').map(str::trim).filter(|line| !line.is_empty()).map(|line| {
                // `type name`, `type *name` or `type (*name)(arguments)`
                let declared = match line.split_once("(*") {
                    Some((_, rest)) => rest.split(')').next(),
                    None => line.rsplit([' ', '*']).next(),
                };
                declared.expect("a name").to_string()
            });
            Struct { name: name.into(), fields: fields.collect() }
        })
        .collect()
}

#[test]
fn headers_are_those_of_the_sources() {
    let variable = "RDZV_UPDATE_HEADER";
    let subjects = folder().join("rendezvous");
    std::fs::create_dir_all(&subjects).expect("the folder of the headers");
    let fresh = generator::generate();
    for (name, text) in &fresh {
        compare(&folder().join(name), text, variable, "run `make header`");
    }
    for entry in std::fs::read_dir(subjects).expect("the folder of the headers") {
        let path = entry.expect("an entry").path();
        let is_known = path.extension().is_none_or(|suffix| suffix != "h")
            || fresh.iter().any(|(name, _)| path == folder().join(name));
        if !is_known && is_wanted(variable) {
            std::fs::remove_file(path).expect("the file can be removed");
        } else {
            assert!(is_known, "{} is no header of ffi/src/lib.rs: run `make header`", path.display());
        }
    }
}

#[test]
fn headers_fit_a_page_and_are_plain_text() {
    for line in text().lines() {
        assert!(line.len() <= LINE_BYTES_MAX, "{} bytes: {line}", line.len());
        assert!(line.is_ascii(), "not ASCII: {line}");
    }
}

#[test]
fn header_is_read_rightly_by_these_tests() {
    let header = "typedef struct rdzv_a rdzv_a;\n\n// A doc(x).\ntypedef struct {\n  // One.\n  uint32_t one;\n  \
                  void *two;\n  void (*three)(void *x,\n                int y);\n} rdzv_b;\n#define RDZV_C 1\nconst char *rdzv_d(void);\n\
                  void rdzv_e(int32_t a,\n            int32_t b);\n";
    assert_eq!(functions(header), ["rdzv_d", "rdzv_e"].map(String::from).into());
    assert_eq!(constants(header), ["RDZV_C"]);
    let structs = structs(header);
    assert_eq!((structs.len(), structs[0].name.as_str()), (1, "rdzv_b"));
    assert_eq!(structs[0].fields, ["one", "two", "three"]);
}

/// What C++ programs get from C as it is, besides the release.
const NOT_IN_CPP: [(&str, &str); 3] = [
    ("RDZV_STORE_", "the numbers of the operations that a custom store is asked for"),
    ("RDZV_WHY_", "reasons for the end of a round, a lease or a session are these numbers in C++, too"),
    ("RDZV_CHANGE_DELETE", "a change without a value"),
];

#[test]
fn cpp_headers_use_every_function_and_constant_of_c() {
    let entries = std::fs::read_dir(folder().join("rendezvous")).expect("the folder of the headers");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let cpp = paths.filter(|path| path.extension().is_some_and(|suffix| suffix == "hpp"));
    let texts: Vec<String> = cpp.map(|path| std::fs::read_to_string(path).expect("a header")).collect();
    let code = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.trim_start().starts_with("//"));
    let is_part = |letter: char| letter == '_' || letter.is_ascii_alphanumeric();
    let used: BTreeSet<&str> = code.flat_map(|line| line.split(|letter| !is_part(letter))).collect();
    let header = text();
    let (with_reason, constants): (Vec<_>, Vec<_>) = constants(&header)
        .into_iter()
        .filter(|name| name != "RDZV_ABI_VERSION")
        .partition(|name| NOT_IN_CPP.iter().any(|(prefix, _)| name.starts_with(prefix)));
    let left_out: Vec<_> = functions(&header)
        .into_iter()
        .chain(constants)
        .filter(|name| !used.contains(name.as_str()))
        .collect();
    assert!(left_out.is_empty(), "no C++ header uses {left_out:?}");
    for (prefix, reason) in NOT_IN_CPP {
        let is_there =
            with_reason.iter().any(|name| name.starts_with(prefix) && !used.contains(name.as_str()));
        assert!(is_there, "nothing of C is left out because of: {reason}");
    }
}

#[test]
fn abi_version_is_the_same_in_header_and_sources() {
    let wanted = format!("#define RDZV_ABI_VERSION {}\n", rendezvous::RDZV_ABI_VERSION);
    assert!(text().contains(&wanted), "the header does not say {wanted}");
}

#[test]
fn every_function_tells_a_reader_of_c_what_it_does() {
    let header = text();
    let lines: Vec<&str> = header.lines().collect();
    for name in functions(&header) {
        let declared = |line: &&str| !line.starts_with("//") && line.contains(&format!("{name}("));
        let at = lines.iter().position(declared).expect("a declaration");
        assert!(lines[at - 1].starts_with("// "), "{name} has no comment in the header");
    }
}

#[test]
fn every_extern_function_has_a_doc_comment() {
    let folder = std::fs::read_dir(crate::repository().join("ffi/src")).expect("the sources");
    let mut functions_count = 0;
    for path in folder.map(|entry| entry.expect("an entry").path()) {
        let source = std::fs::read_to_string(&path).expect("a source");
        let lines: Vec<&str> = source.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            if !(line.starts_with("pub ") && line.contains("extern \"C\" fn ")) {
                continue;
            }
            functions_count += 1;
            let above = lines[..number].iter().rev().find(|line| !line.starts_with("#["));
            let is_documented = above.is_some_and(|line| line.starts_with("///"));
            assert!(is_documented, "{}:{}: no doc comment above: {line}", path.display(), number + 1);
        }
    }
    assert!(functions_count >= functions(&text()).len(), "{functions_count} functions were found in ffi/src");
}
