//! `docs/dependencies.md` and the software bill of materials name what the lock file has.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(300);

/// Headings of the tables, with the scope of their packages in the bill of materials.
const TABLES: [(&str, Option<&str>); 3] = [
    ("## Linked into librendezvous or rdzv", Some("required")),
    ("## Run while they are built", Some("excluded")),
    ("## Only in tests and benches, or for other systems", None),
];

/// Names of the packages of a lock file that come from a registry.
fn locked(lock: &str) -> BTreeSet<String> {
    let packages = lock.split("[[package]]").filter(|package| package.contains("\nsource = "));
    let name = |package: &str| Some(package.split_once("name = \"")?.1.split_once('"')?.0.to_owned());
    packages.filter_map(name).collect()
}

/// The rows of a table: crate and licence.
fn rows(document: &str, heading: &str) -> BTreeMap<String, String> {
    let (_, table) = document.split_once(heading).unwrap_or_else(|| panic!("no {heading}"));
    let table = table.split("\n## ").next().unwrap_or_default();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, licence) = (cells.next()?.trim_end_matches('`'), cells.next()?);
        assert!(
            cells.clone().count() == 3 && cells.all(|cell| !cell.trim_matches([' ', '|']).is_empty()),
            "{line}"
        );
        Some((name.to_owned(), licence.to_owned()))
    };
    table.lines().filter_map(row).collect()
}

/// Returns what is wrong.
fn compare(lock: &str, document: &str) -> Vec<String> {
    let listed: Vec<String> =
        TABLES.iter().flat_map(|(heading, _)| rows(document, heading).into_keys()).collect();
    let known: BTreeSet<String> = listed.iter().cloned().collect();
    let mut broken = Vec::new();
    if known.len() != listed.len() {
        broken.push("a package is listed twice".to_owned());
    }
    let locked = locked(lock);
    broken
        .extend(locked.difference(&known).map(|name| format!("{name} is not listed: say why it is needed")));
    broken
        .extend(known.difference(&locked).map(|name| format!("{name} is listed, but not in the lock file")));
    broken
}

#[test]
fn tidy_each_dependency_is_listed_with_its_reason() {
    let read = |path: &str| std::fs::read_to_string(crate::repository().join(path)).expect("a file");
    let (lock, document) = (read("Cargo.lock"), read("docs/dependencies.md"));
    let broken = compare(&lock, &document);
    assert!(broken.is_empty(), "docs/dependencies.md: {broken:#?}");
    let more =
        format!("{lock}\n[[package]]\nname = \"left-pad\"\nversion = \"1.0.0\"\nsource = \"registry\"\n");
    assert_eq!(compare(&more, &document), ["left-pad is not listed: say why it is needed"]);
    let fewer = lock.replace("name = \"mio\"", "name = \"nio\"");
    assert_eq!(compare(&fewer, &document).len(), 2);
}

fn component<'v>(component: &'v Value, field: &str) -> &'v str {
    component.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn bill_of_materials_names_every_package_that_is_shipped() {
    let output = crate::target_folder().join(format!("sbom-{}.json", std::process::id()));
    let mut python = Command::new("python3");
    python.arg(crate::repository().join("tests/sbom.py")).arg("--output").arg(&output);
    crate::process::run(&mut python, TIMEOUT).or_fail("tests/sbom.py");
    let bill: Value = serde_json::from_slice(&std::fs::read(&output).expect("a file"))
        .expect("a bill of materials is JSON");
    std::fs::remove_file(&output).expect("the file");
    assert_eq!((component(&bill, "bomFormat"), component(&bill, "specVersion")), ("CycloneDX", "1.5"));
    let components = bill["components"].as_array().expect("components");

    // Another way to the same packages: cargo's own tree of what is linked or runs in the compiler.
    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(crate::repository()).args([
        "tree",
        "--locked",
        "--edges=normal",
        "--prefix=none",
        "--no-dedupe",
    ]);
    tree.args(["-p", "rendezvous-ffi", "-p", "rendezvous-cli", "--target=x86_64-unknown-linux-gnu"]);
    let tree = crate::process::run(&mut tree, TIMEOUT).or_fail("cargo tree").stdout;
    let name_and_version = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned()))
    };
    let shipped: BTreeSet<_> = tree.lines().filter_map(name_and_version).collect();
    let named: BTreeSet<_> = components
        .iter()
        .map(|one| (component(one, "name").to_owned(), component(one, "version").to_owned()))
        .collect();
    assert_eq!(named, shipped);
    assert!(named.len() > 40, "{}", named.len());

    let document = std::fs::read_to_string(crate::repository().join("docs/dependencies.md")).expect("a file");
    for (heading, scope) in TABLES {
        let licences = rows(&document, heading);
        let of_scope = |one: &&Value| {
            !component(one, "name").starts_with("rendezvous-") && Some(component(one, "scope")) == scope
        };
        for one in components.iter().filter(of_scope) {
            let name = component(one, "name");
            let licence = component(&one["licenses"][0], "expression");
            let listed = licences.get(name).unwrap_or_else(|| panic!("{name} belongs to {heading:?}"));
            assert_eq!(listed.replace('/', " OR "), licence.replace('/', " OR "), "{name}");
            let hash = component(&one["hashes"][0], "content");
            assert_eq!(hash.len(), 64, "{name} has the SHA-256 of the lock file");
        }
        if scope.is_some() {
            let names: BTreeSet<&str> =
                components.iter().filter(of_scope).map(|one| component(one, "name")).collect();
            assert_eq!(licences.keys().map(String::as_str).collect::<BTreeSet<_>>(), names, "{heading}");
        }
    }
}
