//! What `rdzv run` prints and leaves, as documents show it.

use super::blocks::block;
use crate::c_programs::{TIMEOUT, folder};
use crate::process::{Ran, run};
use std::process::Command;

/// A line without what differs from run to run: time and level, run ids, numbers with their units, and whether a worker
/// was killed or failed because another one was.
fn shape(line: &str) -> String {
    let message = line.split_once("rdzv run: ").map_or(line, |(_, message)| message);
    let is_id = |word: &str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = message.split_whitespace().map(|word| if is_id(word) { "#" } else { word });
    let mut shape = String::new();
    for character in words.collect::<Vec<_>>().join(" ").chars() {
        match character {
            '0'..='9' | '.' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            character => shape.push(character),
        }
    }
    for (from, to) in [
        ("# ms", "# s"),
        ("# us", "# s"),
        ("was ended by SIGKILL", "ended"),
        ("ended with exit code #", "ended"),
    ] {
        shape = shape.replace(from, to);
    }
    shape
}

/// Requires that a program has printed each line of a block. A line that begins with three dots stands for any lines, and
/// one that ends with them for any end.
#[track_caller]
pub(crate) fn shows(document: &str, begins: &str, printed: &str) {
    let printed_shapes: Vec<String> = printed.lines().map(shape).collect();
    let block = block(document, begins);
    for line in block.text.lines().filter(|line| !line.trim().starts_with("...")) {
        let is_shown = |found: &String| match line.trim_end_matches(')').strip_suffix("...") {
            Some(beginning) => found.starts_with(shape(beginning).trim_end_matches(',')),
            None => *found == shape(line),
        };
        assert!(printed_shapes.iter().any(is_shown), "{document} shows {line:?}, which is not in\n{printed}");
    }
}

/// Runs `rdzv run` with these flags and a shell's words as the program.
fn rdzv_run(flags: &[&str], script: &str) -> Ran {
    let mut command = Command::new(crate::rdzv::program());
    // Two dollars are one, as they are to torchrun.
    command.arg("run").args(flags).args(["sh", "-c", &script.replace("$$", "$$$$")]);
    run(command.env("OMP_NUM_THREADS", "1"), TIMEOUT).or_fail(script)
}

#[test]
fn rdzv_run_prints_what_its_guide_shows() {
    let command = block("docs/run.md", "rdzv run --nproc-per-node 4").text;
    let flags: Vec<&str> = command
        .split_whitespace()
        .skip(2)
        .take_while(|word| word.starts_with('-') || word.parse::<u32>().is_ok())
        .collect();
    // The last worker is killed in the first start, while the others still run.
    let script =
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 3 ] && kill -KILL $$; exec sleep 600";
    let ran = rdzv_run(&flags, script);
    shows("docs/run.md", "2026-11-23T09:12:01.204Z info", &ran.stderr);
    // The configuration has the values that were not given, too.
    for value in [" max_restarts=3 ", " rdzv_backend=rdzv", " shutdown_timeout=30s"] {
        assert!(ran.stderr.lines().next().is_some_and(|line| line.contains(value)), "{}", ran.stderr);
    }
    // Every line has the time and the level, but for the report.
    let is_stamped =
        |line: &str| line.get(..2) == Some("20") && line.contains("Z ") && line.contains(" rdzv run: ");
    let report = |line: &str| line.starts_with("===");
    let (before, behind) = (ran.stderr.lines().position(report), ran.stderr.lines().rev().position(report));
    let count = ran.stderr.lines().count();
    let (Some(before), Some(behind)) = (before, behind) else { panic!("{}", ran.stderr) };
    for line in ran.stderr.lines().take(before).chain(ran.stderr.lines().skip(count - behind)) {
        assert!(is_stamped(line), "{line}");
    }
}

#[test]
fn rdzv_run_leaves_the_files_that_the_guide_lists() {
    let logs = folder("guide_logs");
    std::fs::remove_dir_all(&logs).expect("the folder of this test");
    let flags = [
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--rdzv-id=job7",
        "--tee=3",
        "--duplicate-stdout-filters=out",
        "--duplicate-stderr-filters=err",
        "--log-dir",
        logs.to_str().expect("a path in UTF-8"),
    ];
    // The first worker fails with an error file; the other one is stopped.
    let script = "echo out; echo err >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; \
                  [ $RANK = 1 ] && exec sleep 600; echo '{\"message\": \"x\"}' > $TORCHELASTIC_ERROR_FILE; exit 1";
    rdzv_run(&flags, script);
    let mut entries = std::fs::read_dir(&logs).expect("a folder").map(|entry| entry.expect("an entry"));
    let run_folder = entries.next().expect("the folder of the run").path();
    let name = run_folder.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let random = name.strip_prefix("job7_").unwrap_or_default();
    assert!(random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    // A line continues the path of the line before, from its column on.
    let mut path = String::new();
    for line in block("docs/agent.md", "LOG_DIR/").text.lines() {
        let column = line.len() - line.trim_start().len();
        path.truncate(column);
        path += line.trim();
        let relative = path.strip_prefix("LOG_DIR/RUN-ID_RANDOM/").expect("a path of the run");
        let file = run_folder.join(relative.trim_end_matches("..."));
        assert!(file.exists(), "{}", file.display());
    }
}
