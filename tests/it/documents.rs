//! The blocks of code in all documents: each is compiled or run by a test, or listed with the reason why it is not.

pub(crate) mod blocks;
mod contents;
mod names;
pub(crate) mod output;
mod programs;

use crate::c_programs::{STANDARDS_OF_CPP, TIMEOUT, compiles, syntax_of};
use crate::tidy::text_files;
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
    /// Each line is a target of make, a script, or a command of cargo, with flags that exist.
    Steps,
    /// It is Python that compiles. `make interop` runs it in this test, because it needs PyTorch.
    Python(&'static str),
    /// A unit test in this source compares it with the code that it describes.
    Compared(&'static str),
    /// It is not code, for this reason.
    Shown(&'static str),
}

/// A block, by its document and the beginning of its text.
struct Entry(&'static str, &'static str, Check);

/// A block of statements that needs nothing around it.
const IN_FUNCTION: Check = Check::Compiled { before: "void run() {", after: "}" };

const ENTRIES: &[Entry] = &[
    Entry("README.md", "make demo", Check::Steps),
    Entry("README.md", "// hello.cpp", Check::Tested("the_commands_of_the_readme_do_what_it_says")),
    Entry("README.md", "make lib", Check::Tested("the_commands_of_the_readme_do_what_it_says")),
    Entry("README.md", "get \"addr/3\"", Check::Tested("errors_in_documents_are_those_of_the_library")),
    Entry("README.md", "rdzv run --nproc-per-node 4", Check::Commands),
    Entry("README.md", "rdzv run: start 0", Check::Tested("example_trainer_goes_on_from_its_checkpoint")),
    Entry("README.md", "C, C++, any language", Check::Shown("a diagram of the folders")),
    Entry("README.md", "rdzv server --bind", Check::Commands),
    Entry("CONTRIBUTING.md", "make check", Check::Steps),
    Entry("agent/README.md", "cargo test", Check::Steps),
    Entry("benches/peers/README.md", "benches/peers/run.py", Check::Steps),
    Entry("benches/peers/README.md", "make lib", Check::Steps),
    Entry("core/README.md", "cargo test", Check::Steps),
    Entry("docs/ARCHITECTURE.md", "L6  ffi", Check::Tested("documents_point_to_what_exists")),
    Entry("docs/ARCHITECTURE.md", "A   rdzv::store::set", Check::Tested("documents_point_to_what_exists")),
    Entry("docs/ARCHITECTURE.md", "agent   rdzv run", Check::Tested("documents_point_to_what_exists")),
    Entry("docs/adr/0009-three-crates.md", "core/", Check::Shown("a list of folders")),
    Entry("docs/agent-phases.md", "stateDiagram", Check::Compared("agent/src/phase.rs")),
    Entry("docs/agent.md", "LOG_DIR/", Check::Tested("rdzv_run_leaves_the_files_that_the_guide_lists")),
    Entry("docs/agent.md", "====", Check::Tested("the_report_of_the_guide_is_that_of_the_library")),
    Entry(
        "docs/agent.md",
        "{\"message\"",
        Check::Tested("json_of_the_guide_is_what_the_agent_reads_and_writes"),
    ),
    Entry(
        "docs/agent.md",
        "{\"healthy\"",
        Check::Tested("json_of_the_guide_is_what_the_agent_reads_and_writes"),
    ),
    Entry(
        "docs/agent.md",
        "{\"version\"",
        Check::Tested("json_of_the_guide_is_what_the_agent_reads_and_writes"),
    ),
    Entry("docs/barrier.md", "stateDiagram", Check::Compared("core/src/barrier/service/phase.rs")),
    Entry("docs/cpp-guide.md", "make lib", Check::Steps),
    Entry("docs/cpp-guide.md", "import os", Check::Tested("the_recipe_for_cffi_reads_and_writes_keys")),
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
        "export PKG_CONFIG_PATH",
        Check::Tested("outside_programs_build_with_pkg_config_as_the_guide_says"),
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
    Entry("docs/cpp-guide.md", "// node.c", Check::Tested("the_node_of_the_guide_joins_and_leaves")),
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
    Entry("docs/cpp-guide.md", "import torch", Check::Python("test_guide.py")),
    Entry("docs/handlers.md", "stateDiagram", Check::Compared("core/src/rendezvous/rejoin.rs")),
    Entry(
        "docs/native-stores.md",
        "#include <rendezvous.hpp>",
        Check::Tested("program_of_native_stores_elects_one_leader_after_the_other"),
    ),
    Entry(
        "docs/native-stores.md",
        "rdzv::store_options options;",
        Check::Tested("program_of_native_stores_proves_its_token_or_prints_why_not"),
    ),
    Entry(
        "docs/protocol/c10d.md",
        "> 00 ce",
        Check::Tested("the_exchanges_of_the_protocol_are_what_a_server_sends"),
    ),
    Entry(
        "docs/protocol/c10d.md",
        "> 01 02",
        Check::Tested("the_exchanges_of_the_protocol_are_what_a_server_sends"),
    ),
    Entry("docs/protocol/native.md", "> RDZV and Hello", Check::Compared("core/src/wire/native/tests.rs")),
    Entry(
        "docs/rendezvous.md",
        "rdzv::rendezvous_parameters parameters",
        Check::Tested("nodes_of_the_guide_stay_in_one_round_while_all_are_well"),
    ),
    Entry(
        "docs/rendezvous.md",
        "stateDiagram-v2\n    Gathering",
        Check::Compared("core/src/rendezvous/service/state.rs"),
    ),
    Entry(
        "docs/rendezvous.md",
        "stateDiagram-v2\n    Outside --> Standby",
        Check::Compared("core/src/rendezvous/service/state.rs"),
    ),
    Entry(
        "docs/rendezvous.md",
        "stateDiagram-v2\n    Outside --> Joining",
        Check::Compared("core/src/rendezvous/participant/tests.rs"),
    ),
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
    Entry("docs/rpc.md", "stateDiagram-v2\n    Joining", Check::Compared("rpc/src/agent/life.rs")),
    Entry(
        "docs/rpc.md",
        "stateDiagram-v2\n    Checking",
        Check::Compared("rpc/src/membership/changing/phase.rs"),
    ),
    Entry(
        "docs/rpc.md",
        "stateDiagram-v2\n    Claiming",
        Check::Compared("rpc/src/membership/token/state.rs"),
    ),
    Entry("docs/run.md", "rdzv run --nproc-per-node 4", Check::Commands),
    Entry(
        "docs/run.md",
        "2026-11-23T09:12:01.204Z info",
        Check::Tested("rdzv_run_prints_what_its_guide_shows"),
    ),
    Entry("SECURITY.md", "# NAME", Check::Tested("tokens_of_the_guide_are_what_a_server_reads")),
    Entry("docs/tls.md", "openssl req -x509", Check::Tested("certificates_of_the_guide_admit_a_client")),
    Entry("docs/tls.md", "rdzv server --bind", Check::Commands),
    Entry("docs/run.md", "rdzv run: waiting for nodes", Check::Compared("cli/src/run/waiting.rs")),
    Entry("docs/sessions.md", "stateDiagram-v2\n    Attached", Check::Compared("core/src/session/life.rs")),
    Entry("docs/sessions.md", "stateDiagram-v2\n    New", Check::Compared("core/src/session/life.rs")),
    Entry("docs/dependencies.md", "make sbom", Check::Steps),
    Entry("docs/testing.md", "make check", Check::Steps),
    Entry("docs/testing.md", "cargo run -p rendezvous-tests --bin sim", Check::Steps),
    Entry("docs/testing.md", "cd target/planted/copy", Check::Steps),
    Entry("fuzz/README.md", "make fuzz", Check::Steps),
    Entry("rpc/README.md", "cargo test", Check::Steps),
];

fn entry_of(block: &Block) -> Vec<&'static Entry> {
    let fits = |entry: &&Entry| entry.0 == block.document && block.begins_with(entry.1);
    ENTRIES.iter().filter(fits).collect()
}

/// What is wrong with the table of these blocks.
fn faults(blocks: &[Block], files: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    for block in blocks {
        let entries = entry_of(block).len();
        if entries != 1 {
            let Block { document, line, .. } = block;
            faults.push(format!("{document}:{line}: {entries} entries for {:?}", block.first_line()));
        }
    }
    let text = |path: &str| files.iter().find(|file| file.0 == path).map_or("", |file| &file.1);
    for Entry(document, begins, check) in ENTRIES {
        let count = blocks.iter().filter(|block| block.document == *document && block.begins_with(begins));
        let count = count.count();
        if count != 1 {
            faults.push(format!("{document}: {count} blocks begin with {begins:?}"));
        }
        let is_there = match check {
            Check::Tested(name) => files.iter().any(|(path, text)| {
                path.starts_with("tests/it/") && text.contains(&format!("#[test]\nfn {name}("))
            }),
            Check::Compared(source) => {
                let included = format!("/{document}\");");
                text(source).lines().any(|line| line.contains("include_str!(") && line.ends_with(&included))
            }
            Check::Python(test) => text(&format!("tests/interop/{test}")).contains(document),
            Check::Shown(reason) => !reason.is_empty(),
            Check::Compiled { .. } | Check::Commands | Check::Steps => true,
        };
        if !is_there {
            faults.push(format!("{document}, {begins:?}: nothing checks it as the table says"));
        }
    }
    faults
}

#[test]
fn each_block_is_compiled_or_run_or_listed_with_a_reason() {
    let files: Vec<_> = text_files().collect();
    let mut blocks = blocks();
    assert_eq!(faults(&blocks, &files), [""; 0]);
    // A new block is noticed, and one that is gone.
    let block = Block { text: "make nothing\n".into(), ..block("README.md", "make demo") };
    blocks.retain(|block| !block.begins_with("// hello.cpp"));
    blocks.push(block);
    let found = faults(&blocks, &files);
    assert!(found.len() == 2 && found[0].contains("0 entries for \"make nothing\""), "{found:?}");
    assert_eq!(found[1], "README.md: 0 blocks begin with \"// hello.cpp\"");
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

/// What a line of a document names that the repository does not have.
fn missing_in(line: &str, files: &[(String, String)]) -> Vec<String> {
    let line = line.split(" # ").next().unwrap_or(line).replace(['[', ']'], " ");
    // What stands after several blanks describes the command.
    let command = line.trim().split("  ").next().unwrap_or_default();
    let words: Vec<&str> = command.split_whitespace().collect();
    let text = |path: &str| files.iter().find(|file| file.0 == path).map(|file| &*file.1);
    let mut missing = Vec::new();
    let mut sources = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let value = || words.get(index + 1).copied().unwrap_or_default();
        match *word {
            "make" => {
                let mut make = Command::new("make");
                make.args(["--dry-run", "--silent", value()]).current_dir(crate::repository());
                make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
                if !crate::process::run(&mut make, TIMEOUT).status.success() {
                    missing.push(format!("make {}", value()));
                }
            }
            "-p" if !files.iter().any(|(path, text)| {
                path.ends_with("Cargo.toml") && text.contains(&format!("\nname = \"{}\"\n", value()))
            }) =>
            {
                missing.push(format!("package {}", value()));
            }
            "--bin" => sources.push(format!("tests/src/bin/{}.rs", value())),
            "run" if words.contains(&"fuzz") => sources.push(format!("fuzz/fuzz_targets/{}.rs", value())),
            path if path.ends_with(".py") || path == ".ci/run" => sources.push(path.to_owned()),
            _ => {}
        }
    }
    missing.extend(sources.iter().filter(|source| text(source).is_none()).cloned());
    // Flags behind the program, and variables before it, stand in its source or that of what it calls.
    let program = words.iter().position(|word| *word == "--" || word.ends_with(".py"));
    let flags = words[program.unwrap_or(words.len())..].iter().filter(|word| word.starts_with("--"));
    for flag in flags.filter(|flag| flag.len() > 2 && **flag != "--help") {
        // The programs of the tests read their flags in a module.
        let is_read = |source: &String| {
            let folder = if source.starts_with("tests/src/bin/") { "tests/src/" } else { source };
            files.iter().any(|(path, text)| path.starts_with(folder) && text.contains(&format!("\"{flag}\"")))
        };
        if !sources.iter().any(is_read) {
            missing.push((*flag).to_owned());
        }
    }
    let variables = words.iter().filter_map(|word| word.split_once('=')).map(|(name, _)| name);
    for name in variables.filter(|name| !name.starts_with('-')) {
        let is_code = |path: &str| path.starts_with("tests/") && path.ends_with(".rs") && path != file!();
        let is_read = |(path, text): &(String, String)| {
            let is_set =
                path == "Makefile" && words.contains(&"make") && text.contains(&format!("\n{name} ?="));
            is_set || is_code(path) && text.contains(&format!("\"{name}\""))
        };
        if !files.iter().any(is_read) {
            missing.push(name.to_owned());
        }
    }
    missing
}

#[test]
fn steps_name_what_exists() {
    let files: Vec<_> = text_files().collect();
    let mut count = 0;
    for block in blocks() {
        let [Entry(_, _, Check::Steps)] = entry_of(&block)[..] else { continue };
        for line in block.text.lines() {
            assert_eq!(missing_in(line, &files), [""; 0], "{}: {line}", block.document);
            count += 1;
        }
    }
    assert!(count >= 20, "{count}");
    for (line, missing) in [
        ("make nothing", "make nothing"),
        ("cargo run -p rendezvous-test --bin sim", "package rendezvous-test"),
        ("cargo run -p rendezvous-tests --bin simulator", "tests/src/bin/simulator.rs"),
        ("cargo run -p rendezvous-tests --bin sim -- --sead 7", "--sead"),
        ("SIM_SEADS=1 cargo nextest run sim", "SIM_SEADS"),
        ("make soak SEADS=1", "SEADS"),
        ("benches/peers/ran.py", "benches/peers/ran.py"),
    ] {
        assert_eq!(missing_in(line, &files), [missing]);
    }
}

#[test]
fn python_compiles() {
    for block in blocks() {
        let [Entry(_, _, Check::Python(_))] = entry_of(&block)[..] else { continue };
        let mut python = Command::new("python3");
        python.args(["-c", "import sys; compile(sys.argv[1], 'block', 'exec')", &block.text]);
        crate::process::run(&mut python, TIMEOUT).or_fail(&block.document);
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
            "get \"addr/3\"",
            CallError::new(Operation::Get, (Some(Key::scoped(b"/", b"addr/3")), 1), "10.0.0.5:29500", late),
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
