//! `include/rendezvous.h`: made from the doc comments of `ffi/src`, committed, and never behind them.

use cbindgen::{Builder, Config};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

/// The longest line of the header, in bytes.
const LINE_BYTES_MAX: usize = 110;

pub(crate) fn path() -> PathBuf {
    crate::repository().join("include/rendezvous.h")
}

pub(crate) fn text() -> String {
    std::fs::read_to_string(path()).expect("the committed header")
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

/// The conditions of `ffi/src/lib.rs` that hold for the header: the library has both features.
const IN_THE_HEADER: [&str; 2] = ["#[cfg(feature = \"agent\")]", "#[cfg(feature = \"rpc\")]"];

/// The modules of the library in the order of the header: those of `ffi/src/lib.rs` that are in the library as it ships.
fn modules() -> Vec<String> {
    let source = read_source("lib");
    let mut is_left_out = false;
    let mut modules = Vec::new();
    for line in source.lines() {
        if line.starts_with("#[") {
            is_left_out |= line.starts_with("#[cfg(") && !IN_THE_HEADER.contains(&line);
            continue;
        }
        if let Some(module) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
            && !is_left_out
        {
            modules.push(module.to_string());
        }
        is_left_out = false;
    }
    modules
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
    String::from_utf8(text).expect("UTF-8").trim().to_string()
}

fn generate() -> String {
    let settings = crate::repository().join("ffi/cbindgen.toml");
    let mut config = Config::from_file(settings.to_str().expect("a path in UTF-8")).expect("cbindgen.toml");
    let mut header = config.header.take().expect("a header in cbindgen.toml");
    let trailer = config.trailer.take().expect("a trailer in cbindgen.toml");
    for module in modules() {
        let section = section(&config, &module);
        if section.is_empty() {
            continue;
        }
        let source = read_source(&module);
        let title = source.lines().next().and_then(|line| line.strip_prefix("//! "));
        let title = title.unwrap_or_else(|| panic!("{module}.rs has no title for its section"));
        let rule = "-".repeat(LINE_BYTES_MAX - 3);
        write!(header, "\n// {rule}\n// {title}\n// {rule}\n\n{section}\n").expect("memory");
    }
    format!("{header}\n{trailer}")
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
fn header_is_that_of_the_sources() {
    compare(&path(), &generate(), "RDZV_UPDATE_HEADER", "run `make header`");
}

#[test]
fn header_fits_a_page_and_is_plain_text() {
    for (number, line) in text().lines().enumerate() {
        assert!(line.len() <= LINE_BYTES_MAX, "line {} has {} bytes: {line}", number + 1, line.len());
        assert!(line.is_ascii(), "line {} is not ASCII: {line}", number + 1);
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
