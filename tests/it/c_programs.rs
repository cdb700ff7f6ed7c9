//! The headers and the shared object in the hands of C and C++ compilers, and programs that use them: plain, under
//! sanitizers and under valgrind.

use crate::process::{Ran, run};
use crate::{header, library};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// For one compilation or one program on a machine that does other things too.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);
/// Much C++ with checks of a sanitizer in it takes minutes on a busy machine.
const COMPILER_PATIENCE: Duration = Duration::from_secs(600);
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
pub(crate) const STANDARDS_OF_CPP: [&str; 2] = ["c++17", "c++20"];

/// A folder for the files of one test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c").join(test);
    fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8")
}

fn folder_of(part: &str) -> PathBuf {
    crate::repository().join(part)
}

/// The files with one of these suffixes that lie in a folder of the repository.
fn sources_in(part: &str, suffixes: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder_of(part)).expect("a folder of the repository");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let is_source = |file: &PathBuf| {
        file.extension().and_then(|suffix| suffix.to_str()).is_some_and(|suffix| suffixes.contains(&suffix))
    };
    let mut sources: Vec<PathBuf> = files.filter(is_source).collect();
    sources.sort();
    sources
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

    pub(crate) fn cpp(name: &str, standard: &'static str, sources: &[PathBuf]) -> Self {
        Self { standard, ..Self::c11(name, sources) }
    }

    pub(crate) fn linked_with(self, library: &Path) -> Self {
        Self { library: Some(library.into()), ..self }
    }

    fn with(mut self, flags: &[&'static str]) -> Self {
        self.flags.extend(flags);
        self
    }

    /// Compiles and links. Tests that need the same program share it: only the first of them compiles it.
    pub(crate) fn plain(&self) -> PathBuf {
        let folder = folder(&self.name);
        let program = folder.join("program");
        let mut command = compiler(self.standard);
        // Of debug information, only what a report needs: the rest takes the compiler a fifth of its time.
        command
            .args(["-g1", "-O1", "-pthread"])
            .args(&self.flags)
            .args(&self.sources)
            .arg("-o")
            .arg(&program);
        if let Some(library) = &self.library {
            let folder = library.parent().expect("a folder");
            let stem = library.file_stem().and_then(|stem| stem.to_str()).expect("a name");
            command.arg("-L").arg(folder).arg(stem.replacen("lib", "-l", 1));
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        let lock = File::create(folder.join("lock")).expect("the folder of this program");
        lock.lock().expect("a lock");
        let (built, wanted) = (folder.join("built"), format!("{command:?} {:?}", self.last_change()));
        if fs::read_to_string(&built).is_ok_and(|built| built == wanted) {
            return program;
        }
        fs::remove_file(&built).ok();
        run(&mut command, COMPILER_PATIENCE).or_fail(&format!("compiling {}", self.name));
        fs::write(built, wanted).expect("the folder of this program");
        program
    }

    /// Time of the last change to a source or a header.
    fn last_change(&self) -> SystemTime {
        let headers = ["include", "include/rendezvous", "tests/c", "cpp_examples/digits_trainer"]
            .into_iter()
            .flat_map(|part| sources_in(part, &["h", "hpp"]));
        let changed = |file: PathBuf| file.metadata().and_then(|file| file.modified()).expect("its time");
        headers.chain(self.sources.clone()).map(changed).max().expect("a source")
    }

    fn run_plain(self) -> Ran {
        run(&mut Command::new(self.plain()), TIMEOUT).or_fail(&self.name)
    }

    /// With the checks of memory, leaks and undefined behaviour; the library itself stays as it is.
    fn run_under_address_sanitizer(mut self) {
        self.name += "_address";
        let built = self.with(&["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
        let mut command = Command::new(built.plain());
        command.env("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1");
        command.env("UBSAN_OPTIONS", "print_stacktrace=1");
        run(&mut command, TIMEOUT).or_fail(&built.name);
    }

    /// The library is not instrumented, so what it does is not looked at: races of the program's own, and of the inline
    /// code of the C++ header, are.
    fn run_under_thread_sanitizer(mut self) {
        self.name += "_thread";
        let built = self.with(&["-fsanitize=thread"]);
        let mut command = Command::new(built.plain());
        command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:halt_on_error=1");
        run(&mut command, TIMEOUT).or_fail(&built.name);
    }

    fn run_under_valgrind(self) {
        let found = Command::new("valgrind").arg("--version").output();
        assert!(found.is_ok(), "valgrind is missing: apt-get install valgrind");
        let mut command = Command::new("valgrind");
        command.args([
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--show-leak-kinds=definite,indirect",
            // What a process has that only forks is its program's.
            "--child-silent-after-fork=yes",
        ]);
        command.arg(format!("--suppressions={}", folder_of("tests/c/valgrind.supp").display()));
        command.arg("--errors-for-leak-kinds=definite,indirect").arg("--fair-sched=yes").arg(self.plain());
        run(&mut command, TIMEOUT).or_fail(&self.name);
    }
}

/// Compiles without linking, with every warning.
pub(crate) fn compiles(test: &str, standard: &str, text: &str, flags: &[&str]) {
    syntax_of(test, standard, text, &[flags, &["-Wconversion"]].concat());
}

/// Writes a unit into the folder of a test.
fn source_of(test: &str, standard: &str, text: &str) -> PathBuf {
    let suffix = if standard.starts_with("c++") { "cpp" } else { "c" };
    let source = folder(test).join(format!("unit_{standard}.{suffix}"));
    fs::write(&source, text).expect("the folder of this test");
    source
}

/// Compiles without linking.
pub(crate) fn syntax_of(test: &str, standard: &str, text: &str, flags: &[&str]) {
    let source = source_of(test, standard, text);
    let mut command = compiler(standard);
    command.args(flags).arg("-fsyntax-only").arg(source);
    run(&mut command, TIMEOUT).or_fail(&format!("{test}, {standard}, {flags:?}"));
}

#[test]
fn values_that_do_not_travel_are_refused_with_what_to_do() {
    let how_to_add = "this type has no codec. Add one: template <> struct rdzv::codec<T>";
    let cases = [
        ("handlers.on(\"x\", [](thing) {})", how_to_add),
        ("worker.call<thing>(\"w\", \"x\")", how_to_add),
        ("worker.notify(\"w\", \"x\", std::vector<thing>())", how_to_add),
        ("worker.notify(\"w\", \"x\", nameless())", "a `static constexpr std::string_view name`"),
        ("worker.notify(\"w\", \"x\", a)", "name one, as in `enum colour : int`"),
        (
            "worker.call<std::vector<std::string_view>>(\"w\", \"x\")",
            "a std::string_view cannot outlive the response",
        ),
        (
            "worker.notify(\"w\", \"x\", rdzv::rpc_bytes(), 1)",
            "rdzv::rpc_bytes is the only argument of its call",
        ),
        ("handlers.on(\"x\", [](auto) {})", "a handler is a function, or an object with one call operator"),
    ];
    // One unit for all: the headers take the compiler longer than the cases. It refuses each type once.
    let mut unit = String::from(
        "#include <rendezvous.hpp>\nstruct nameless { int x; };\nenum loose { a, b };\n\
         template <> struct rdzv::codec<nameless> {\n\
         static void write(rdzv::writer&, const nameless&); static bool read(rdzv::reader&, nameless&); };\n",
    );
    for (index, (code, _)) in cases.iter().enumerate() {
        let code = code.replace("thing", &format!("thing_{index}"));
        unit += &format!(
            "struct thing_{index} {{ int x; }};\n#line 1 \"case_{index}\"\n\
             void use_{index}(rdzv::rpc_handlers& handlers, const rdzv::rpc& worker) {{\n\
             (void)handlers; (void)worker; (void){code};\n}}\n"
        );
    }
    for standard in STANDARDS_OF_CPP {
        let source = source_of("refused", standard, &unit);
        let ran = run(compiler(standard).arg("-fsyntax-only").arg(source), TIMEOUT);
        for (index, (code, reason)) in cases.iter().enumerate() {
            let mut reports =
                ran.stderr.split("\ncase_").filter(|part| part.starts_with(&format!("{index}:")));
            assert!(
                reports.any(|part| part.contains("required from here") && part.contains(reason)),
                "{standard}: {reason} is not reported for {code}:\n{}",
                ran.stderr
            );
        }
    }
}

#[test]
fn c_headers_compile_alone_and_twice() {
    for name in header::names() {
        let unit = format!("#include <{name}>\n").repeat(2) + "int main(void) { return 0; }\n";
        for standard in ["c11", "c17"] {
            compiles("c_header", standard, &unit, &["-Wstrict-prototypes"]);
        }
        for standard in STANDARDS_OF_CPP {
            compiles("c_header", standard, &unit, &[]);
        }
    }
}

/// Each header alone and twice, in one standard.
fn cpp_headers_compile(standard: &str, flags: &[&str]) {
    let test = format!("cpp_header{}", flags.concat());
    for folder in ["", "rendezvous/"] {
        for header in sources_in(&format!("include/{folder}"), &["hpp"]) {
            let include = format!("#include <{folder}{}>\n", file_name(&header));
            compiles(&test, standard, &(include.repeat(2) + "int main() { return 0; }\n"), flags);
        }
    }
}

const WITHOUT_EXCEPTIONS: [&str; 2] = ["-fno-exceptions", "-fno-rtti"];

#[test]
fn cpp_headers_compile_alone_and_twice() {
    cpp_headers_compile("c++17", &[]);
}

#[test]
fn cpp_headers_compile_alone_and_twice_without_exceptions() {
    cpp_headers_compile("c++17", &WITHOUT_EXCEPTIONS);
}

#[test]
fn cpp_headers_compile_alone_and_twice_as_cpp20() {
    cpp_headers_compile("c++20", &[]);
}

#[test]
fn cpp_headers_compile_alone_and_twice_as_cpp20_without_exceptions() {
    cpp_headers_compile("c++20", &WITHOUT_EXCEPTIONS);
}

/// The C ABI against the library as it is shipped.
fn abi_test(name: &str) -> Build {
    let mut units = sources_in("tests/c", &["c"]);
    units.retain(|unit| !unit.ends_with("fault_test.c"));
    Build::c11(name, &units).linked_with(library::shipped()).with(&["-D_GNU_SOURCE"])
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
fn abi_test_passes_under_thread_sanitizer() {
    abi_test("abi_test").run_under_thread_sanitizer();
}

#[test]
fn abi_test_passes_under_valgrind() {
    abi_test("abi_test").run_under_valgrind();
}

#[test]
fn abi_test_leaves_no_function_out() {
    let units = sources_in("tests/c", &["c"]);
    let texts: Vec<_> = units.iter().map(|unit| fs::read_to_string(unit).expect("a source")).collect();
    let is_called = |name: &String| texts.iter().any(|text| text.contains(&format!("{name}(")));
    let left_out: Vec<_> =
        header::functions(&header::text()).into_iter().filter(|name| !is_called(name)).collect();
    assert!(left_out.is_empty(), "tests/c calls none of {left_out:?}");
}

/// The panic guards, against a library that can be made to panic.
fn fault_test(name: &str) -> Build {
    let units = ["fault_test.c", "check.c"].map(|unit| folder_of("tests/c").join(unit));
    Build::c11(name, &units).linked_with(&library::with_faults()).with(&["-D_GNU_SOURCE"])
}

#[test]
fn fault_test_passes() {
    fault_test("fault_test").run_plain();
}

#[test]
fn fault_test_passes_under_address_sanitizer() {
    fault_test("fault_test").run_under_address_sanitizer();
}

#[test]
fn fault_test_passes_under_valgrind() {
    fault_test("fault_test").run_under_valgrind();
}

/// The C++ headers in several units of one program.
fn hpp_test(name: &str, standard: &'static str) -> Build {
    let units = [
        "hpp_test.cpp",
        "hpp_native.cpp",
        "hpp_rendezvous.cpp",
        "hpp_agent.cpp",
        "hpp_rpc.cpp",
        "hpp_rpc_types.cpp",
        "hpp_rpc_loop.cpp",
        "hpp_memory.cpp",
        "hpp_second.cpp",
    ];
    let units = units.map(|unit| folder_of("tests/c").join(unit));
    Build::cpp(name, standard, &units).linked_with(library::shipped()).with(&["-O0"])
}

#[test]
fn hpp_test_passes() {
    hpp_test("hpp_test", "c++17").run_plain();
}

#[test]
fn hpp_test_passes_as_cpp20_without_exceptions() {
    hpp_test("hpp_test_20", "c++20").with(&["-fno-exceptions", "-g0"]).run_plain();
}

/// Units with and without exceptions in one program, in both orders: the linker must not mix up their code.
#[test]
fn units_with_and_without_exceptions_live_in_one_program() {
    let index = folder("mixed");
    let unit = |name: &str, flags: &[&str]| {
        let object = index.join(name);
        let mut command = compiler("c++17");
        command.args(flags).arg("-c").arg(folder_of("tests/c").join("mixed.cpp")).arg("-o").arg(&object);
        run(&mut command, TIMEOUT).or_fail(name);
        object
    };
    let (with, without) = (unit("with.o", &[]), unit("without.o", &["-fno-exceptions"]));
    let library = library::shipped().parent().expect("a folder");
    for (name, units) in [("first", [&with, &without]), ("second", [&without, &with])] {
        let program = index.join(name);
        let mut command = Command::new("g++");
        command.args(units).arg("-o").arg(&program).arg("-L").arg(library).arg("-lrendezvous");
        command.arg(format!("-Wl,-rpath,{}", library.display()));
        run(&mut command, TIMEOUT).or_fail("linking");
        run(&mut Command::new(&program), TIMEOUT).or_fail(name);
    }
}

#[test]
fn hpp_test_passes_under_address_sanitizer() {
    hpp_test("hpp_test", "c++17").run_under_address_sanitizer();
}

#[test]
fn hpp_test_passes_under_thread_sanitizer() {
    hpp_test("hpp_test", "c++17").run_under_thread_sanitizer();
}

#[test]
fn hpp_test_passes_under_valgrind() {
    hpp_test("hpp_test", "c++17").run_under_valgrind();
}

/// Compiles a program of `cpp_examples`, one source or a folder with a `main.cpp`.
fn example(name: &str) -> PathBuf {
    let source = folder_of("cpp_examples").join(name);
    let unit = if source.is_dir() { source.join("main.cpp") } else { source };
    let folder = format!("example_{}", name.split('.').next().expect("a name"));
    let build = match name.ends_with(".c") {
        true => Build::c11(&folder, &[unit]),
        false => Build::cpp(&folder, "c++17", &[unit]),
    };
    build.linked_with(library::shipped()).with(&["-O2"]).plain()
}

#[test]
fn examples_of_one_source_run() {
    let sources = sources_in("cpp_examples", &["c", "cpp"]);
    let names = sources.iter().map(|path| file_name(path));
    // The launcher needs something to launch: it has its own tests.
    let names: Vec<_> = names.filter(|&name| name != "run_ranks.cpp").collect();
    assert!(names.contains(&"store_basics.cpp"), "{names:?}");
    for name in names {
        let program = example(name);
        let mut command = Command::new(program);
        // What they leave among temporary files stays in the folder of this test.
        command.env("TMPDIR", folder("examples")).current_dir(crate::repository());
        run(&mut command, TIMEOUT).or_fail(name);
    }
}

#[test]
fn example_parameter_server_survives_the_death_of_a_trainer() {
    let mut command = Command::new(example("parameter_server.cpp"));
    let ran =
        run(command.arg("--kill").current_dir(crate::repository()), TIMEOUT).or_fail("parameter_server");
    let lines: Vec<_> = ran.stdout.lines().collect();
    let reported = |name: &str, what: &str| {
        let line = format!("trainer-{name} {what} after ");
        lines.iter().filter(|found| found.starts_with(&line)).count()
    };
    for (trainer, end) in [("0", "left"), ("1", "died"), ("2", "left")] {
        assert_eq!((reported(trainer, "joined"), reported(trainer, end)), (1, 1), "{}", ran.stdout);
    }
    // The others have learned on, and the server has waited for them.
    assert!(lines.last().is_some_and(|line| line.starts_with("test accuracy ")), "{}", ran.stdout);
}

/// The launcher, a program for it, and where it finds its data.
struct Launcher {
    launcher: PathBuf,
    trainer: String,
}

impl Launcher {
    fn new() -> Self {
        let trainer = example("digits_trainer");
        let trainer = trainer.to_str().expect("a path in UTF-8").into();
        Self { launcher: example("run_ranks.cpp"), trainer }
    }

    fn run(&self, count: usize, program: &[&str]) -> Ran {
        let mut command = Command::new(&self.launcher);
        command.arg("-n").arg(count.to_string()).args(program).current_dir(crate::repository());
        run(&mut command, TIMEOUT)
    }

    /// Runs a line of shell as each rank, with the trainer as `$0`.
    fn run_shell(&self, count: usize, script: &str) -> Ran {
        self.run(count, &["sh", "-c", script, &self.trainer])
    }
}

/// Trains with so many ranks; the accuracy and the weights.
fn train(launcher: &Launcher, count: usize) -> (f64, Vec<f64>) {
    let weights = folder("trainer_weights").join(format!("of_{count}"));
    let program = [&launcher.trainer, "--weights-out", weights.to_str().expect("a path in UTF-8")];
    let ran = launcher.run(count, &program).or_fail("run_ranks digits_trainer");
    let mut accuracy =
        ran.stdout.lines().filter_map(|line| line.rsplit_once("test accuracy ")?.1.parse().ok());
    let weights = fs::read_to_string(weights).expect("the weights");
    let weights = weights.lines().map(|line| line.parse().expect("a number")).collect();
    (accuracy.next_back().unwrap_or_else(|| panic!("no accuracy in {}", ran.stdout)), weights)
}

#[test]
fn example_trainer_learns_the_same_alone_and_in_four_ranks() {
    let launcher = Launcher::new();
    let (accuracy_of_1, alone) = train(&launcher, 1);
    let (accuracy_of_4, together) = train(&launcher, 4);
    assert!(accuracy_of_1 >= 0.93 && accuracy_of_4 >= 0.93, "{accuracy_of_1} and {accuracy_of_4}");
    assert!(alone.len() == together.len() && !alone.is_empty(), "{} and {}", alone.len(), together.len());
    let mut pairs = alone.iter().zip(&together);
    assert!(pairs.all(|(one, four)| (one - four).abs() <= 1e-4), "the weights of 1 and of 4 ranks differ");
}

#[test]
fn example_trainer_goes_on_from_its_checkpoint() {
    let trainer = example("digits_trainer");
    let mut command = Command::new("cpp_examples/run_demo.sh");
    command.arg(&trainer).env("RDZV", crate::rdzv::program()).current_dir(crate::repository());
    let ran = run(&mut command, TIMEOUT).or_fail("run_demo.sh");
    crate::documents::output::shows("README.md", "rdzv run: start 0", &ran.stdout);

    let nonsense = folder("demo").join("nonsense");
    for bytes in [&b""[..], b"nonsense", &[b'd'; 100_000]] {
        fs::write(&nonsense, bytes).expect("the folder of this test");
        let mut command = Command::new(crate::rdzv::program());
        command.args(["run", "--log", "warn"]).arg(&trainer).arg("--checkpoint").arg(&nonsense);
        let ran = run(command.current_dir(crate::repository()), TIMEOUT);
        assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("nonsense is no checkpoint of this network"), "{}", ran.stderr);
    }
}

#[test]
fn example_launcher_names_the_rank_that_died() {
    let launcher = Launcher::new();
    // The third rank dies before it could tell anyone; the others wait for it, until they are stopped.
    let ran = launcher.run_shell(4, "if [ \"$RANK\" = 2 ]; then kill -KILL $$; fi; exec \"$0\"");
    assert_eq!(ran.status.code(), Some(128 + libc::SIGKILL), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 2 was ended by signal 9"), "{}", ran.stderr);

    // A rank that cannot go on tells why, and its exit code is that of the job.
    let script = "if [ \"$RANK\" = 1 ]; then exec \"$0\" --data /nowhere; fi; exec \"$0\"";
    let ran = launcher.run_shell(2, script);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 1: ") && ran.stderr.contains("/nowhere"), "{}", ran.stderr);
    assert!(ran.stderr.contains("rank 1 failed with exit code 1"), "{}", ran.stderr);
}
