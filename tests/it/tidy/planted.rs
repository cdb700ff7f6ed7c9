//! The patches with deliberate bugs fit the source.

use crate::planted::{Bug, WORLDS, bugs, patched_copy};
use crate::target_folder;
use std::path::Path;

/// Returns what is wrong with a patch, apart from whether it applies.
fn faults(bug: &Bug) -> Vec<String> {
    let mut faults = Vec::new();
    let switch = format!("planted::has(\"{}\")", bug.name);
    let switches = bug.patch.lines().filter(|line| line.starts_with('+') && line.contains("planted::has("));
    if bug.findings.is_empty() {
        faults.push(format!("{}: no line says `Found by: PROGRAM NAME`", bug.name));
    }
    if !switches.clone().all(|line| line.contains(&switch)) || switches.count() == 0 {
        faults.push(format!("{}: each of its changes asks {switch}", bug.name));
    }
    for finding in &bug.findings {
        let is_known = match finding.program.as_str() {
            "sim" => WORLDS.iter().any(|(world, ..)| *world == finding.name) && finding.report.is_some(),
            program => is_unit_test(program.trim_start_matches("rendezvous-"), &finding.name),
        };
        if !is_known {
            faults.push(format!("{}: {} {} does not exist", bug.name, finding.program, finding.name));
        }
    }
    faults
}

/// Returns whether a file of the crate has a function with the name of the test.
fn is_unit_test(folder: &str, path: &str) -> bool {
    let function = format!("fn {}()", path.rsplit("::").next().unwrap_or(path));
    let source = Path::new(folder).join("src");
    super::repository()
        .iter()
        .any(|file| Path::new(&file.path).starts_with(&source) && file.text.contains(&function))
}

#[test]
fn each_patch_applies_and_says_what_finds_its_bug() {
    let faults: Vec<String> = bugs().iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    patched_copy(&target_folder().join("planted/tidy"));
}

#[test]
fn a_patch_without_a_switch_or_a_finding_is_noticed() {
    let bug = |patch: &str| Bug { name: "some".to_owned(), patch: patch.to_owned(), findings: Vec::new() };
    assert_eq!(faults(&bug("+if x {\n")).len(), 2);
    assert_eq!(faults(&bug("+if planted::has(\"other\") {\n")).len(), 2);
    assert_eq!(faults(&bug("+if planted::has(\"some\") {\n")).len(), 1);
}
