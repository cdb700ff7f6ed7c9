//! Deliberate bugs in the state machines, each of which a simulator or a unit test must find.
//!
//! `tests/planted` holds one patch for each bug. This test applies all of them to a copy of the repository and builds
//! that copy once: `RDZV_PLANTED` in the environment says which bug is active. See `docs/testing.md`.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Environment variable with the name of the active bug.
const SWITCH: &str = "RDZV_PLANTED";

/// Name of the patch that adds the switch. It contains no bug.
const SWITCH_PATCH: &str = "switch";

/// Worlds of the simulator: name, seeds within which each bug must be found, seeds of one run of the program.
pub(crate) const WORLDS: [(&str, u64, u64); 3] =
    [("elastic", 400, 2), ("agents", 2000, 20), ("membership", 200, 5)];

/// A bug and what must find it.
pub(crate) struct Bug {
    /// File name without its ending, and the argument of `planted::has`.
    pub(crate) name: String,
    pub(crate) patch: String,
    pub(crate) findings: Vec<Finding>,
}

/// One program that finds the bug.
pub(crate) struct Finding {
    /// `sim` or a crate of the workspace.
    pub(crate) program: String,
    /// World of the simulator, or path of a unit test.
    pub(crate) name: String,
    /// Text of the failure.
    pub(crate) report: Option<String>,
}

/// Returns the bugs of `tests/planted`, by name.
pub(crate) fn bugs() -> Vec<Bug> {
    let files = std::fs::read_dir(crate::repository().join("tests/planted")).expect("the patches");
    let mut bugs: Vec<Bug> = files
        .map(|file| file.expect("a patch").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "patch"))
        .map(|path| {
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned();
            let patch = std::fs::read_to_string(&path).expect("patches are text");
            let mut findings: Vec<Finding> = Vec::new();
            for line in patch.lines().take_while(|line| !line.starts_with("--- ")) {
                if let Some(by) = line.strip_prefix("Found by: ") {
                    let (program, name) = by.split_once(' ').expect("a program and a name");
                    findings.push(Finding {
                        program: program.to_owned(),
                        name: name.to_owned(),
                        report: None,
                    });
                } else if let Some(report) = line.strip_prefix("Reported as: ") {
                    findings.last_mut().expect("`Found by` comes first").report = Some(report.to_owned());
                }
            }
            Bug { name, patch, findings }
        })
        .filter(|bug| bug.name != SWITCH_PATCH)
        .collect();
    bugs.sort_by(|one, other| one.name.cmp(&other.name));
    bugs
}

/// Copies the text files of the repository to `folder`, which is replaced, and applies all patches there.
pub(crate) fn patched_copy(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    for (path, text) in crate::tidy::text_files() {
        let copy = folder.join(path);
        std::fs::create_dir_all(copy.parent().expect("it is in the folder")).expect("a folder");
        std::fs::write(copy, text).expect("a copy");
    }
    let names = bugs().into_iter().map(|bug| bug.name).chain([SWITCH_PATCH.to_owned()]);
    for patch in
        names.map(|name| crate::repository().join("tests/planted").join(name).with_extension("patch"))
    {
        // Outside of a repository, `git apply` does not look for an index. The change of one patch may be in the context of
        // another.
        let applied = Command::new("git")
            .args(["apply", "-C2"])
            .arg(&patch)
            .env("GIT_CEILING_DIRECTORIES", folder.parent().expect("it is below target/"))
            .current_dir(folder)
            .output()
            .unwrap_or_else(|error| panic!("git apply: {error}"));
        assert!(
            applied.status.success(),
            "{} no longer applies; CONTRIBUTING.md says how to refresh it:\n{}",
            patch.display(),
            String::from_utf8_lossy(&applied.stderr)
        );
    }
}

/// Copies the files below `from` that differ from those below `to`, so that cargo builds what has changed.
fn update(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            update(&entry.path(), &target);
        } else {
            let text = std::fs::read(entry.path()).expect("a file");
            if !std::fs::read(&target).is_ok_and(|before| before == text) {
                std::fs::write(&target, text).expect("a copy");
            }
        }
    }
}

/// Builds targets of the copy. Returns the path of each program, by the name of its target.
///
/// The simulator must find the bugs, not an assertion: the copy is built without those of debug builds. Nothing is
/// optimized: that would take the compiler longer than it saves the programs, and the simulator and the unit tests
/// would not share the crates that they depend on.
fn build(copy: &Path, arguments: &[&str]) -> BTreeMap<String, PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--locked", "--message-format=json-render-diagnostics", "--target-dir"])
        .arg(copy.with_file_name("build"))
        .current_dir(copy)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false")
        .env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "false")
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages.filter_map(|message| {
        let executable = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), executable.into()))
    });
    programs.collect()
}

/// The patched copy with its programs.
struct Programs {
    copy: PathBuf,
    paths: BTreeMap<String, PathBuf>,
}

impl Programs {
    fn run(&self, bug: &str, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.paths[&program.replace('-', "_")]);
        command.args(arguments).env(SWITCH, bug).current_dir(&self.copy).output().expect("it runs")
    }

    /// Returns the seed after the last that was run, or `None` if the bug was not found.
    fn find_in_world(&self, bug: &str, finding: &Finding) -> Option<u64> {
        let (world, count, step) = WORLDS.into_iter().find(|(world, ..)| *world == finding.name)?;
        let report = finding.report.as_deref()?;
        let step_size = step.to_string();
        let is_found = |from: &u64| {
            let from = from.to_string();
            let arguments = ["--world", world, "--from", &from, "--count", &step_size];
            let reported = self.run(bug, "sim", &arguments).stderr;
            let reported = String::from_utf8_lossy(&reported);
            reported.lines().any(|line| line.starts_with("seed ") && line.contains(report))
        };
        (0..count).step_by(usize::try_from(step).ok()?).find(is_found).map(|from| from + step)
    }

    fn unit_test(&self, bug: &str, finding: &Finding) -> Output {
        self.run(bug, &finding.program, &["--exact", "--nocapture", &finding.name])
    }
}

#[test]
fn every_planted_bug_is_found() {
    let folder = crate::target_folder().join("planted");
    let (fresh, copy) = (folder.join("fresh"), folder.join("copy"));
    patched_copy(&fresh);
    update(&fresh, &copy);
    let mut paths = build(&copy, &["build", "-p", "rendezvous-tests", "--bin", "sim"]);
    paths.extend(build(
        &copy,
        &["test", "--no-run", "--lib", "-p", "rendezvous-core", "-p", "rendezvous-rpc"],
    ));
    let programs = Programs { copy, paths };

    let (mut missed, mut seeds, mut tests) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    let bugs = bugs();
    for bug in &bugs {
        for finding in &bug.findings {
            let is_found = if finding.program == "sim" {
                let run = programs.find_in_world(&bug.name, finding);
                let seeds: &mut u64 = seeds.entry(finding.name.as_str()).or_default();
                *seeds = run.unwrap_or_default().max(*seeds);
                run.is_some()
            } else {
                tests.insert((finding.program.as_str(), finding.name.as_str()));
                let output = programs.unit_test(&bug.name, finding);
                let reported = [output.stdout, output.stderr].concat();
                let reported = String::from_utf8_lossy(&reported);
                !output.status.success()
                    && reported.contains(&format!("    {}\n", finding.name))
                    && finding.report.as_ref().is_none_or(|report| reported.contains(report))
            };
            if !is_found {
                missed.push(format!("{} was not found by {} {}", bug.name, finding.program, finding.name));
            }
        }
    }
    // The same seeds and tests pass when no bug is active.
    for (world, count) in seeds {
        let output =
            programs.run("", "sim", &["--world", world, "--from", "0", "--count", &count.to_string()]);
        if !output.status.success() {
            missed.push(format!("no bug is active:\n{}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    for (program, name) in tests {
        let output = programs.run("", program, &["--exact", name]);
        let reported = String::from_utf8_lossy(&output.stdout);
        if !reported.contains("test result: ok. 1 passed") {
            missed.push(format!("no bug is active:\n{reported}"));
        }
    }
    assert!(bugs.len() >= 50 && missed.is_empty(), "{} bugs:\n{}", bugs.len(), missed.join("\n"));
}
