//! Names of C and C++ in documents and headers.

use crate::tidy::text_files;
use std::collections::BTreeSet;

/// The functions of 0.1, which end with `()`, and its types and constants.
const OLD_NAMES: &str = include_str!("names-0.1.txt");

const PAGE: &str = "docs/c-names.md";

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
}

fn is_of_c(word: &&str) -> bool {
    word.starts_with("rdzv_") || word.starts_with("RDZV_")
}

fn is_header(path: &str, ending: &str) -> bool {
    path.starts_with("include/") && path.ends_with(ending)
}

/// The code of all headers with this ending, without comments.
fn code_of_headers(ending: &str) -> String {
    let headers = text_files().filter(|(path, _)| is_header(path, ending));
    let mut code = String::new();
    for (_, text) in headers {
        for line in text.lines() {
            code += line.split("//").next().unwrap_or_default();
            code.push('\n');
        }
    }
    code
}

/// The functions that the C headers declare: `NAME(` at the end of a return type.
fn functions(code: &str) -> BTreeSet<&str> {
    let outside = code.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let declarations = outside.filter(|line| !line.starts_with("typedef"));
    let names = declarations.filter_map(|line| words(line.split_once('(')?.0).filter(is_of_c).last());
    names.collect()
}

/// The C names of 0.1 that the page does not explain, and the names of 0.2 on it that do not exist.
fn faults_of_page(page: &str, code: &str) -> Vec<String> {
    let declared: BTreeSet<&str> = words(code).filter(is_of_c).collect();
    let functions = functions(code);
    let mut faults = Vec::new();
    let mut explained = BTreeSet::new();
    let tables = page.split_once("\n## Other arguments").map_or(page, |(tables, _)| tables);
    for line in tables.lines().filter(|line| line.starts_with('|')) {
        let mut cells = line.split('|').skip(1);
        let (old, new) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        explained.extend(words(old).filter(is_of_c));
        for name in words(new).filter(is_of_c).filter(|name| !declared.contains(name)) {
            faults.push(format!("{name} does not exist: {line}"));
        }
    }
    for name in OLD_NAMES.lines() {
        let is_unchanged = match name.strip_suffix("()") {
            Some(function) => functions.contains(function),
            None => declared.contains(name),
        };
        if !is_unchanged && !explained.contains(name.trim_end_matches("()")) {
            faults.push(format!("{name} of 0.1 is missing"));
        }
    }
    let old: BTreeSet<&str> = OLD_NAMES.lines().map(|name| name.trim_end_matches("()")).collect();
    faults.extend(explained.difference(&old).map(|name| format!("{name} is no name of 0.1")));
    faults
}

#[test]
fn each_c_name_of_0_1_has_its_successor() {
    let page = std::fs::read_to_string(crate::repository().join(PAGE)).expect("the page");
    let code = code_of_headers(".h");
    let faults = faults_of_page(&page, &code);
    assert!(faults.is_empty(), "{PAGE}:\n{}", faults.join("\n"));
    for (from, to, fault) in [
        ("rdzv_store_open_file", "rdzv_store_open_fil", "rdzv_store_open_file() of 0.1 is missing"),
        ("rdzv_store_open_file", "rdzv_store_open_fil", "rdzv_store_open_fil is no name of 0.1"),
        ("rdzv_store_new_file", "rdzv_store_new_fil", "rdzv_store_new_fil does not exist"),
    ] {
        let faults = faults_of_page(&page.replace(from, to), &code);
        assert!(faults.iter().any(|found| found.starts_with(fault)), "{fault}: {faults:?}");
    }
}

/// Where names of C are, and older ones are not history.
fn is_current(path: &str) -> bool {
    let is_document = path.ends_with(".md") && !path.starts_with("docs/adr/");
    let is_code = is_header(path, ".h") || is_header(path, ".hpp") || path.starts_with("cpp_examples/");
    (is_document || is_code) && path != PAGE && path != "CHANGELOG.md"
}

/// The words of a text that look like names of the library, and that its headers do not have.
fn unknown_names(text: &str, of_c: &BTreeSet<&str>, of_cpp: &BTreeSet<&str>) -> Vec<String> {
    // Variables of the environment and of tests, a setting of PyTorch, and macros of the C++ headers.
    const OTHERS: &[&str] = &[
        "RDZV_HEALTH_CHECK_HOST",
        "RDZV_INTEROP_SEED",
        "RDZV_LOG",
        "RDZV_METRICS",
        "RDZV_PLANTED",
        "RDZV_TLS_CA",
        "RDZV_TLS_CERT",
        "RDZV_TLS_CLIENT_CA",
        "RDZV_TLS_KEY",
        "RDZV_TLS_SERVER_NAME",
        "RDZV_TOKEN_FILE",
        "RDZV_UPDATE_ABI",
        "rdzv_id",
    ];
    let is_known = |name: &str| {
        // `rdzv_op_` stands for all names that begin so.
        let is_beginning = || name.ends_with('_') && of_c.iter().any(|other| other.starts_with(name));
        of_c.contains(name) || of_cpp.contains(name) || OTHERS.contains(&name) || is_beginning()
    };
    let mut unknown: Vec<String> =
        words(text).filter(is_of_c).filter(|name| !is_known(name)).map(String::from).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    for path in text.split("rdzv::").skip(1) {
        let path = path.split(|c| !is_part(c)).next().unwrap_or_default();
        let names = path.split("::").map(|name| name.trim_end_matches(':')).filter(|name| !name.is_empty());
        unknown.extend(names.filter(|name| !of_cpp.contains(name)).map(|name| format!("rdzv::{name}")));
    }
    unknown
}

#[test]
fn documents_and_comments_name_what_the_headers_declare() {
    let (c, cpp) = (code_of_headers(".h"), code_of_headers(".hpp"));
    let (of_c, of_cpp) = (words(&c).filter(is_of_c).collect(), words(&cpp).collect());
    let mut wrong = Vec::new();
    for (path, text) in text_files().filter(|(path, _)| is_current(path)) {
        for (line, number) in text.lines().zip(1..) {
            let unknown = unknown_names(line, &of_c, &of_cpp);
            wrong.extend(unknown.iter().map(|name| format!("{path}:{number}: {name}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for text in ["`rdzv_store_connect`", "`rdzv_nothing_*`", "`rdzv::store::connekt`", "RDZV_NO_STATUS"] {
        assert_eq!(unknown_names(text, &of_c, &of_cpp).len(), 1, "{text}");
    }
    assert_eq!(unknown_names("`rdzv_op_*`, rdzv::store::connect", &of_c, &of_cpp), [""; 0]);
}

#[test]
fn each_status_has_a_row_in_the_guide() {
    let guide = std::fs::read_to_string(crate::repository().join("docs/cpp-guide.md")).expect("the guide");
    let base = std::fs::read_to_string(crate::repository().join("include/rendezvous/base.hpp"));
    let base = base.expect("a header");
    let (_, statuses) = base.split_once("enum class status : std::int32_t {").expect("the enum");
    let (statuses, _) = statuses.split_once("};").expect("its end");
    let names: Vec<&str> =
        statuses.lines().filter_map(|line| Some(line.split_once(" = RDZV_")?.0.trim())).collect();
    assert!(names.len() > 40, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !guide.contains(&format!("\n| `{name}` | "))).collect();
    assert!(missing.is_empty(), "docs/cpp-guide.md has no row for {missing:?}");
}
