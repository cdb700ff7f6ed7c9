//! The blocks of code in README and guides: each is compiled or run by a test, or listed with the reason why it is not.

pub(crate) mod blocks;
mod names;
mod programs;

use crate::c_programs::{STANDARDS_OF_CPP, compiles, syntax_of};
use blocks::{Block, block, blocks};
use std::process::Command;

/// What becomes of a block.
enum Check {
    /// It is compiled within this text, once its own words are replaced by those of the frame.
    Compiled { before: &'static str, after: &'static str },
    /// The test of this name compiles and runs it, and asserts what the document says of it.
    Tested(&'static str),
    /// Each line is a command of `rdzv` whose flags exist.
    Commands,
    /// Each line is JSON.
    Json,
    /// It is not code, or cannot be run here, for this reason.
    Shown(&'static str),
}

/// A block, by its document and the beginning of its text.
struct Entry(&'static str, &'static str, Check);

/// A block of statements that needs nothing around it.
const IN_FUNCTION: Check = Check::Compiled { before: "void run() {", after: "}" };

const DIAGRAM: &str = "a diagram; tests compare those that show a table with that table";
const OUTPUT: &str = "what a program printed once, with times and process ids of that day";

const ENTRIES: &[Entry] = &[
    Entry("README.md", "make demo", Check::Shown("the targets themselves: the CI runs them")),
    Entry("README.md", "// hello.cpp", Check::Tested("the_commands_of_the_readme_do_what_it_says")),
    Entry("README.md", "make lib", Check::Tested("the_commands_of_the_readme_do_what_it_says")),
    Entry("README.md", "get \"/addr/3\"", Check::Tested("errors_in_documents_are_those_of_the_library")),
    Entry("README.md", "rdzv run --nproc-per-node 4", Check::Commands),
    Entry("README.md", "rdzv run: start 0", Check::Shown(OUTPUT)),
    Entry("README.md", "C, C++, any language", Check::Shown("a diagram")),
    Entry("README.md", "rdzv server --bind", Check::Commands),
    Entry(
        "docs/ARCHITECTURE.md",
        "L6  ffi",
        Check::Shown("a diagram; tidy compares the layers with the sources"),
    ),
    Entry("docs/ARCHITECTURE.md", "A   rdzv::store::set", Check::Shown("a call trace")),
    Entry("docs/ARCHITECTURE.md", "agent   rdzv run", Check::Shown("a call trace")),
    Entry("docs/agent-phases.md", "stateDiagram", Check::Shown(DIAGRAM)),
    Entry("docs/agent.md", "LOG_DIR/", Check::Shown("a list of files")),
    Entry("docs/agent.md", "====", Check::Shown(OUTPUT)),
    Entry("docs/agent.md", "{\"message\"", Check::Json),
    Entry("docs/agent.md", "{\"healthy\"", Check::Json),
    Entry("docs/agent.md", "{\"version\"", Check::Json),
    Entry("docs/barrier.md", "stateDiagram", Check::Shown(DIAGRAM)),
    Entry("docs/cpp-guide.md", "make lib", Check::Shown("the target itself: the CI runs it")),
    Entry(
        "docs/cpp-guide.md",
        "#include <rendezvous.hpp>",
        Check::Tested("the_commands_of_the_guide_do_what_it_says"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "g++ -std=c++17 -O2 -Iinclude ranks.cpp -o ranks -L",
        Check::Tested("the_commands_of_the_guide_do_what_it_says"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "g++ -std=c++17 -O2 -Iinclude ranks.cpp -o ranks target",
        Check::Tested("the_commands_of_the_guide_do_what_it_says"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "g++ -std=c++17 -O2 ranks.cpp",
        Check::Tested("outside_programs_build_with_pkg_config"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "cmake_minimum_required",
        Check::Tested("outside_project_builds_with_find_package"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "include(FetchContent)",
        Check::Tested("outside_project_builds_from_the_source_tree"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "make install",
        Check::Tested("install_brings_all_files_and_uninstall_leaves_none"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "target/release/rdzv server",
        Check::Tested("the_commands_of_the_guide_do_what_it_says"),
    ),
    Entry(
        "docs/cpp-guide.md",
        "if (auto value = store.get",
        Check::Compiled {
            before: "void use(const std::string&);\nvoid report(const rdzv::error&);\n\
                     void run(rdzv::store& store) {",
            after: "}",
        },
    ),
    Entry(
        "docs/cpp-guide.md",
        "connect to 127.0.0.1",
        Check::Tested("errors_in_documents_are_those_of_the_library"),
    ),
    Entry("docs/cpp-guide.md", "rdzv::server server", IN_FUNCTION),
    Entry("docs/cpp-guide.md", "auto url", IN_FUNCTION),
    Entry("docs/cpp-guide.md", "rdzv::rendezvous_parameters parameters", IN_FUNCTION),
    Entry(
        "docs/cpp-guide.md",
        "std::vector<std::string> all",
        Check::Compiled {
            before: "using namespace std::chrono_literals;\n\
                     void run(rdzv::store& store, const std::string& my_address, int rank, int world_size) {",
            after: "}",
        },
    ),
    Entry(
        "docs/cpp-guide.md",
        "rdzv::agent_options options;",
        Check::Compiled {
            before: "using namespace std::chrono_literals;\nvoid run(rdzv::rendezvous_handler& handler) {",
            after: "}",
        },
    ),
    Entry("docs/cpp-guide.md", "auto handlers", IN_FUNCTION),
    Entry(
        "docs/cpp-guide.md",
        "handlers.on_loop",
        Check::Compiled {
            before: "std::vector<double> scale(std::vector<double>, double);\n\
                     void run(rdzv::event_loop& loop, rdzv::loop_event& event, rdzv::rpc_handlers& handlers,\n\
                     const rdzv::rpc_options& options, std::vector<double>& numbers) {\n\
                     rdzv::operation asked;",
            after: "}",
        },
    ),
    Entry(
        "docs/cpp-guide.md",
        "import torch",
        Check::Shown("Python: `make interop` runs ranks of PyTorch in a store of ours"),
    ),
    Entry("docs/handlers.md", "stateDiagram", Check::Shown(DIAGRAM)),
    Entry(
        "docs/native-stores.md",
        "#include <rendezvous.hpp>",
        Check::Tested("program_of_native_stores_elects_one_leader_after_the_other"),
    ),
    Entry(
        "docs/rendezvous.md",
        "rdzv::rendezvous_parameters parameters",
        Check::Tested("nodes_of_the_guide_stay_in_one_round_while_all_are_well"),
    ),
    Entry("docs/rendezvous.md", "stateDiagram", Check::Shown(DIAGRAM)),
    Entry(
        "docs/rpc.md",
        "rdzv::rpc_options options;",
        Check::Compiled {
            before: "using numbers = std::vector<double>;\n\
                     void step(numbers& weights, const numbers& gradient);\n\
                     numbers gradient_at(const numbers& weights);\n\
                     void run(numbers& weights, const rdzv::rpc_handlers& own_handlers) {",
            after: "}",
        },
    ),
    Entry("docs/rpc.md", "stateDiagram", Check::Shown(DIAGRAM)),
    Entry("docs/run.md", "rdzv run --nproc-per-node 4", Check::Commands),
    Entry("docs/run.md", "2026-11-23T09:12:01.204Z info", Check::Shown(OUTPUT)),
    Entry("docs/run.md", "rdzv run: waiting for nodes", Check::Shown(OUTPUT)),
    Entry("docs/sessions.md", "stateDiagram", Check::Shown(DIAGRAM)),
    Entry("docs/testing.md", "make check", Check::Shown("the targets themselves: the CI runs them")),
    Entry(
        "docs/testing.md",
        "cargo run -p rendezvous-tests --bin sim",
        Check::Shown("a synopsis; the simulators have tests"),
    ),
    Entry(
        "docs/testing.md",
        "cd target/planted/copy",
        Check::Shown("what the test `planted` runs, with other numbers"),
    ),
];

fn entry_of(block: &Block) -> Vec<&'static Entry> {
    let fits = |entry: &&Entry| entry.0 == block.document && block.begins_with(entry.1);
    ENTRIES.iter().filter(fits).collect()
}

#[test]
fn each_block_is_compiled_or_run_or_listed_with_a_reason() {
    let blocks = blocks();
    let mut wrong = Vec::new();
    for block in &blocks {
        let entries = entry_of(block);
        if entries.len() != 1 {
            wrong.push(format!(
                "{}:{}: {} entries for {:?}",
                block.document,
                block.line,
                entries.len(),
                block.first_line()
            ));
        }
    }
    let sources =
        [include_str!("documents/programs.rs"), include_str!("documents.rs"), include_str!("install.rs")]
            .concat();
    for Entry(document, begins, check) in ENTRIES {
        if !blocks.iter().any(|block| block.document == *document && block.begins_with(begins)) {
            wrong.push(format!("{document} has no block that begins with {begins:?}"));
        }
        if let Check::Tested(name) = check
            && !sources.contains(&format!("fn {name}("))
        {
            wrong.push(format!("{document}, {begins:?}: there is no test {name}"));
        }
        if let Check::Shown(reason) = check {
            assert!(!reason.is_empty(), "{document}, {begins:?}: a reason");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(blocks.iter().filter(|block| block.language == "cpp").count() > 10, "{}", blocks.len());
}

#[test]
fn snippets_compile() {
    // One unit for all: the headers take the compiler longer than the snippets.
    let mut unit =
        String::from("#include <rendezvous.hpp>\n#include <cstdio>\n#include <mutex>\n#include <vector>\n");
    let mut count = 0;
    for block in blocks() {
        let [Entry(_, _, Check::Compiled { before, after })] = entry_of(&block)[..] else { continue };
        let name = format!(
            "{}_{}",
            block.document.replace(|character: char| !character.is_alphanumeric(), "_"),
            block.line
        );
        unit += &format!("namespace {name} {{\n{before}\n{}\n{after}\n}}\n", block.text);
        count += 1;
    }
    assert!(count >= 8, "{count}");
    for standard in STANDARDS_OF_CPP {
        syntax_of("document_snippets", standard, &unit, &["-Wno-unused"]);
    }
    // A snippet that does not compile is found.
    assert!(std::panic::catch_unwind(|| compiles("document_wrong", "c++17", "int x = ;\n", &[])).is_err());
}

#[test]
fn commands_have_flags_that_exist() {
    let mut count = 0;
    for block in blocks() {
        let [Entry(_, _, Check::Commands)] = entry_of(&block)[..] else { continue };
        for line in block.text.lines().map(|line| line.split(" # ").next().unwrap_or(line)) {
            let message: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(message.first(), Some(&"rdzv"), "{line}");
            // What is asked for after the last flag of ours is the help, which is given only if all before it is right.
            let is_program = |word: &&str| word.starts_with("./") || word.ends_with(".py");
            let end = message.iter().position(is_program).unwrap_or(message.len());
            let mut command = Command::new(crate::rdzv::program());
            command.args(&message[1..end]).arg("--help");
            crate::process::run(&mut command, crate::net::TIMEOUT).or_fail(line);
            count += 1;
        }
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn json_is_json() {
    for block in blocks() {
        let [Entry(_, _, Check::Json)] = entry_of(&block)[..] else { continue };
        for line in block.text.lines() {
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(line);
            assert!(parsed.is_ok_and(|value| value.is_object()), "{}: {line}", block.document);
        }
    }
}

#[test]
fn errors_in_documents_are_those_of_the_library() {
    use rendezvous_core::driver::call_error::CallError;
    use rendezvous_core::error::{Cause, Effect, ErrorKind, Failure, Operation, Phase};
    use rendezvous_core::store::op::Key;
    use rendezvous_core::time::Duration;
    let seconds = Duration::from_secs;
    let failure = |kind, phase, elapsed, cause| Failure { kind, phase, elapsed, cause, effect: Effect::None };
    let late = failure(ErrorKind::TimedOut, Phase::Waiting, seconds(300), Cause::NotReleased);
    let refused = failure(ErrorKind::Refused, Phase::Connecting, seconds(1), Cause::Os(111));
    for (document, begins, error) in [
        (
            "README.md",
            "get \"/addr/3\"",
            CallError::new(Operation::Get, (Some(Key::raw(b"/addr/3")), 1), "10.0.0.5:29500", late),
        ),
        (
            "docs/cpp-guide.md",
            "connect to 127.0.0.1",
            CallError::new(Operation::Connect, (None, 0), "127.0.0.1:29500", refused),
        ),
    ] {
        assert_eq!(block(document, begins).text.trim_end(), error.to_string(), "{document}");
    }
}
