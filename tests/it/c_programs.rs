//! The headers and the shared object in the hands of C and C++ compilers, and programs that use them: plain, under
//! sanitizers and under valgrind.

use crate::library;
use crate::process::{Ran, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For one compilation or one program on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
const STANDARDS_OF_CPP: [&str; 2] = ["c++17", "c++20"];

/// A folder for the files of one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c").join(test);
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

fn source(name: &str) -> PathBuf {
    crate::repository().join("tests/c").join(name)
}

fn example(name: &str) -> PathBuf {
    crate::repository().join("cpp_examples").join(name)
}

fn compiler(standard: &str) -> Command {
    let mut command = Command::new(if standard.starts_with("c++") { "g++" } else { "gcc" });
    command.arg(format!("-std={standard}")).args(WARNINGS);
    command.arg("-I").arg(crate::repository().join("include"));
    command
}

/// A program to be compiled.
#[derive(Clone)]
pub(crate) struct Build {
    name: String,
    standard: &'static str,
    sources: Vec<PathBuf>,
    library: Option<PathBuf>,
    flags: Vec<&'static str>,
}

impl Build {
    pub(crate) fn c11(name: &str, sources: &[PathBuf]) -> Self {
        Self { name: name.into(), standard: "c11", sources: sources.into(), library: None, flags: Vec::new() }
    }

    fn cpp(name: &str, standard: &'static str, sources: &[PathBuf]) -> Self {
        Self { standard, ..Self::c11(name, sources) }
    }

    fn linked_with(self, library: &Path) -> Self {
        Self { library: Some(library.into()), ..self }
    }

    fn with(mut self, flags: &[&'static str]) -> Self {
        self.flags.extend(flags);
        self
    }

    /// Compiles and links.
    pub(crate) fn plain(&self) -> PathBuf {
        let program = folder(&self.name).join("program");
        let mut command = compiler(self.standard);
        command.args(["-g", "-O1", "-pthread"]).args(&self.flags).args(&self.sources).arg("-o").arg(&program);
        if let Some(library) = &self.library {
            let folder = library.parent().expect("a folder");
            command.arg("-L").arg(folder).arg("-lrendezvous");
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        run(&mut command, PATIENCE).or_fail(&format!("compiling {}", self.name));
        program
    }

    fn run_plain(self) -> Ran {
        run(&mut Command::new(self.plain()), PATIENCE).or_fail(&self.name)
    }

    /// With the checks of memory, leaks and undefined behaviour; the library itself stays as it is.
    fn run_under_address_sanitizer(mut self) {
        self.name += "_address";
        let built = self.with(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        let mut command = Command::new(built.plain());
        command.env("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1");
        command.env("UBSAN_OPTIONS", "print_stacktrace=1");
        run(&mut command, PATIENCE).or_fail(&built.name);
    }

    fn run_under_valgrind(mut self) {
        self.name += "_valgrind";
        let found = Command::new("valgrind").arg("--version").output();
        assert!(found.is_ok(), "valgrind is missing: apt-get install valgrind");
        let mut command = Command::new("valgrind");
        command.args([
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--show-leak-kinds=definite,indirect",
        ]);
        command.arg("--errors-for-leak-kinds=definite,indirect").arg("--fair-sched=yes").arg(self.plain());
        run(&mut command, PATIENCE).or_fail(&self.name);
    }
}

/// Compiles without linking.
fn compiles(test: &str, standard: &str, text: &str, flags: &[&str]) {
    let suffix = if standard.starts_with("c++") { "cpp" } else { "c" };
    let source = folder(test).join(format!("unit_{standard}.{suffix}"));
    std::fs::write(&source, text).expect("the folder of this test");
    let mut command = compiler(standard);
    command.args(flags).arg("-Wconversion").arg("-fsyntax-only").arg(source);
    run(&mut command, PATIENCE).or_fail(&format!("{test}, {standard}, {flags:?}"));
}

#[test]
fn c_header_compiles_alone_and_twice() {
    let main = "int main(void) { return (int)rdzv_abi_version() - RDZV_ABI_VERSION; }\n";
    let text = "#include <rendezvous.h>\n".repeat(2) + main;
    for standard in ["c11", "c17"] {
        compiles("c_header", standard, &text, &["-Wstrict-prototypes"]);
    }
    for standard in STANDARDS_OF_CPP {
        compiles("c_header", standard, &text, &[]);
    }
}

#[test]
fn cpp_header_compiles_alone_and_twice() {
    let text = "#include <rendezvous.hpp>\n".repeat(2) + "int main() { return 0; }\n";
    for standard in STANDARDS_OF_CPP {
        compiles("cpp_header", standard, &text, &[]);
        compiles("cpp_header", standard, &text, &["-fno-exceptions", "-fno-rtti"]);
    }
}

/// The C ABI against the library as it is shipped.
fn abi_test(name: &str) -> Build {
    let units =
        ["abi_test", "bad_arguments", "check", "failures", "logging", "operations", "peers", "round_trip"];
    let units = units.iter().chain(&["threads"]).map(|unit| source(&format!("{unit}.c")));
    Build::c11(name, &units.collect::<Vec<_>>()).linked_with(library::shipped()).with(&["-D_GNU_SOURCE"])
}

#[test]
fn abi_test_passes() {
    let ran = abi_test("abi_test").run_plain();
    println!("{}", ran.stdout);
}

#[test]
fn abi_test_passes_under_address_sanitizer() {
    abi_test("abi_test").run_under_address_sanitizer();
}

#[test]
fn abi_test_passes_under_valgrind() {
    abi_test("abi_test").run_under_valgrind();
}
