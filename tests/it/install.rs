//! `make install` into a folder, and projects outside the repository that build with what is there.

use crate::c_programs::{TIMEOUT, folder};
use crate::documents::blocks::block;
use crate::library;
use crate::process::run;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const GUIDE: &str = "docs/cpp-guide.md";
const PREFIX: &str = "/opt/rendezvous";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const NO_EXCEPTIONS: &str = "-fno-exceptions";

/// A missing tool leaves a part of a test out, and the test's output says so.
fn is_installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("NOT TESTED: {tool} is not installed");
    }
    found
}

/// What `make lib pages` leaves in `target/release`, made of what the tests have built.
fn built(test: &str) -> PathBuf {
    let built = folder(test).join("built");
    fs::remove_dir_all(&built).ok();
    fs::create_dir_all(&built).expect("the folder of this test");
    for (name, path) in [
        ("librendezvous.so", library::shipped().to_owned()),
        ("librendezvous.a", library::shipped().with_extension("a")),
        ("rdzv", crate::rdzv::program().to_owned()),
    ] {
        symlink(path, built.join(name)).expect("a link");
    }
    let mut pages = Command::new(crate::rdzv::unit_tests());
    pages.args(["pages", "--quiet"]).env("RDZV_PAGES", built.join("share"));
    run(&mut pages, TIMEOUT).or_fail("the pages of rdzv");
    built
}

fn make(target: &str, built: &Path, staged: &Path) {
    let mut make = Command::new("make");
    make.args(["--silent", target, "CARGO=no-cargo", &format!("PREFIX={PREFIX}")]);
    make.arg(format!("BUILT={}", built.display())).arg(format!("DESTDIR={}", staged.display()));
    // The make that runs these tests has options of its own.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").current_dir(crate::repository());
    run(&mut make, TIMEOUT).or_fail(target);
}

/// An installation that was staged in one folder and lies in another.
struct Installed {
    prefix: PathBuf,
}

impl Installed {
    fn new(test: &str) -> Self {
        let built = built(test);
        let (staged, moved) = (folder(test).join("staged"), folder(test).join("moved"));
        for folder in [&staged, &moved] {
            fs::remove_dir_all(folder).ok();
        }
        make("install", &built, &staged);
        fs::rename(staged.join(&PREFIX[1..]), &moved).expect("one file system");
        Self { prefix: moved }
    }

    fn library_folder(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// What pkg-config prints of the package.
    fn flags(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command
            .args(arguments)
            .arg("rendezvous")
            .env("PKG_CONFIG_PATH", self.library_folder().join("pkgconfig"));
        let printed = run(&mut command, TIMEOUT).or_fail("pkg-config").stdout;
        printed.split_whitespace().map(String::from).collect()
    }

    /// Compiles a program with these flags and runs it.
    fn builds(&self, compiler: &str, source: &str, flags: &[&str], libraries: &[String]) {
        let program = self.prefix.join(format!("{compiler}_program"));
        let mut command = Command::new(compiler);
        command.args(self.flags(&["--cflags"])).args(flags);
        command.arg(outside(source)).arg("-o").arg(&program).args(libraries);
        command.arg(format!("-Wl,-rpath,{}", self.library_folder().display()));
        run(&mut command, TIMEOUT).or_fail(&format!("{command:?}"));
        says_version(&program);
    }
}

/// A source of a project that is not part of the repository.
fn outside(name: &str) -> PathBuf {
    crate::repository().join("tests/outside").join(name)
}

fn says_version(program: &Path) {
    let ran = run(&mut Command::new(program), TIMEOUT).or_fail(&program.display().to_string());
    assert!(ran.stdout.contains(&format!("with librendezvous {VERSION}\n")), "{}", ran.stdout);
}

/// Paths of all files and links beneath a folder, relative to it.
fn files_in(folder: &Path) -> Vec<String> {
    let ran = run(Command::new("find").arg(folder).args(["!", "-type", "d", "-printf", "%P\n"]), TIMEOUT);
    ran.or_fail("find").stdout.lines().map(String::from).collect()
}

#[test]
fn install_brings_all_files_and_uninstall_leaves_none() {
    let test = "install_files";
    assert!(block(GUIDE, "make install").text.contains("PREFIX="));
    let (built, staged) = (built(test), folder(test).join("staged"));
    fs::remove_dir_all(&staged).ok();
    make("install", &built, &staged);
    let prefix = staged.join(&PREFIX[1..]);
    let files = files_in(&prefix);
    for file in [
        "bin/rdzv",
        "include/rendezvous.h",
        "include/rendezvous.hpp",
        "include/rendezvous/store.h",
        "lib/librendezvous.a",
        "lib/librendezvous.so",
        "lib/pkgconfig/rendezvous.pc",
        "lib/cmake/rendezvous/rendezvousConfig.cmake",
        "lib/cmake/rendezvous/rendezvousConfigVersion.cmake",
        "lib/cmake/rendezvous/rendezvousTargets.cmake",
        "share/man/man1/rdzv.1",
        "share/man/man1/rdzv-run.1",
        "share/bash-completion/completions/rdzv",
        "share/zsh/site-functions/_rdzv",
        "share/fish/vendor_completions.d/rdzv.fish",
        "share/doc/rendezvous/README.md",
        "share/doc/rendezvous/CHANGELOG.md",
        "share/doc/rendezvous/SECURITY.md",
        "share/doc/rendezvous/LICENSE-APACHE",
        "share/doc/rendezvous/LICENSE-MIT",
        "share/doc/rendezvous/docs/cpp-guide.md",
    ] {
        assert!(files.iter().any(|found| found == file), "{file} is missing: {files:?}");
    }
    let headers = files_in(&crate::repository().join("include"));
    let installed = files.iter().filter(|file| file.starts_with("include/")).count();
    assert_eq!(installed, headers.len(), "{files:?}");
    // The loader follows the soname, and the linker the plain name, to one file.
    let (series, _) = VERSION.rsplit_once('.').expect("three numbers");
    for link in ["librendezvous.so".into(), format!("librendezvous.so.{series}")] {
        let link = prefix.join("lib").join(link);
        assert!(link.is_symlink(), "{}", link.display());
        let file = link.canonicalize().expect("the library");
        assert!(file.ends_with(format!("librendezvous.so.{VERSION}")), "{}", file.display());
    }
    let texts = ["lib/pkgconfig/rendezvous.pc", "lib/cmake/rendezvous/rendezvousConfig.cmake"];
    for text in texts.map(|file| fs::read_to_string(prefix.join(file)).expect("a text")) {
        assert!(!text.contains('@') && !text.contains(PREFIX), "{text}");
    }
    let rdzv = run(Command::new(prefix.join("bin/rdzv")).arg("--version"), TIMEOUT).or_fail("rdzv").stdout;
    assert_eq!(rdzv.trim_end(), format!("rdzv {VERSION}"));
    make("uninstall", &built, &staged);
    assert_eq!(files_in(&staged), Vec::<String>::new());
}

/// The commands of the guide, in a folder with one source, with the package in the prefix that they name.
#[test]
fn outside_programs_build_with_pkg_config_as_the_guide_says() {
    if !is_installed("pkg-config") {
        return;
    }
    let installed = Installed::new("install_guide");
    let home = folder("install_guide").join("home");
    fs::remove_dir_all(&home).ok();
    fs::create_dir_all(&home).expect("the folder of this test");
    symlink(&installed.prefix, home.join(".local")).expect("a link");
    fs::copy(outside("program.cpp"), home.join("ranks.cpp")).expect("a source");
    let commands = block(GUIDE, "export PKG_CONFIG_PATH").text;
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", &commands]).env("HOME", &home).current_dir(&home);
    run(&mut shell, TIMEOUT).or_fail(&commands);
    says_version(&home.join("ranks"));
    fs::remove_dir_all(installed.library_folder()).expect("the library");
    says_version(&home.join("ranks_static"));
    let ran = run(&mut Command::new(home.join("ranks")), TIMEOUT);
    assert!(!ran.status.success(), "it needs the shared library: {}", ran.stdout);
}

#[test]
fn outside_programs_build_with_pkg_config() {
    if !is_installed("pkg-config") {
        return;
    }
    let installed = Installed::new("install_pkg_config");
    assert_eq!(installed.flags(&["--modversion"]), [VERSION]);
    let shared = installed.flags(&["--libs"]);
    // -Bstatic chooses the archive where both are, as a linker does where only the archive is.
    let static_flags = installed.flags(&["--libs", "--static"]).into_iter().flat_map(|flag| match &*flag {
        "-lrendezvous" => vec!["-Wl,-Bstatic".into(), flag, "-Wl,-Bdynamic".into()],
        _ => vec![flag],
    });
    let static_flags: Vec<String> = static_flags.collect();
    assert!(static_flags.iter().any(|flag| flag == "-Wl,--gc-sections"), "{static_flags:?}");
    installed.builds("gcc", "program.c", &["-std=c11"], &static_flags);
    installed.builds("g++", "program.cpp", &["-std=c++17"], &shared);
    fs::remove_file(installed.library_folder().join("librendezvous.so")).expect("a link");
    installed.builds("g++", "program.cpp", &["-std=c++17", NO_EXCEPTIONS], &static_flags);
    symlink(format!("librendezvous.so.{VERSION}"), installed.library_folder().join("librendezvous.so"))
        .expect("a link");
    if is_installed("clang++") {
        installed.builds("clang++", "program.cpp", &["-std=c++17"], &shared);
        installed.builds("clang++", "program.cpp", &["-std=c++20", NO_EXCEPTIONS], &shared);
    }
}

/// Builds the project of the guide, with a second program, and runs both.
fn builds_with_cmake(test: &str, find: Option<&str>, definitions: &[String]) {
    let folder = folder(test).join("project");
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).expect("the folder of this test");
    let mut project = block(GUIDE, "cmake_minimum_required").text;
    if let Some(find) = find {
        let line = project.lines().find(|line| line.starts_with("find_package(")).expect("a line").to_owned();
        project = project.replace(&line, find);
    }
    project += "add_executable(in_c program.c)\ntarget_link_libraries(in_c PRIVATE rendezvous::static)\n";
    for (name, text) in [
        ("CMakeLists.txt", project),
        ("ranks.cpp", fs::read_to_string(outside("program.cpp")).expect("a source")),
        ("program.c", fs::read_to_string(outside("program.c")).expect("a source")),
    ] {
        fs::write(folder.join(name), text).expect("the folder of this test");
    }
    let build = folder.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(&build).args(definitions);
    // The compilers are those of the other tests, whatever the caller of these exports.
    configure.env_remove("CC").env_remove("CXX");
    run(&mut configure, TIMEOUT).or_fail("cmake configures");
    run(Command::new("cmake").arg("--build").arg(&build), library::BUILD_TIMEOUT).or_fail("cmake builds");
    for program in ["ranks", "in_c"] {
        says_version(&build.join(program));
    }
    // The static target leaves out what the program does not use.
    run(Command::new("strip").arg(build.join("in_c")), TIMEOUT).or_fail("strip");
    let size = |path: &Path| fs::metadata(path).expect("a file").len();
    let (program, library) = (size(&build.join("in_c")), size(library::shipped()));
    assert!(program < library / 2, "{program} bytes, and the library has {library}");
}

/// A project of C alone finds the package, and asks for no C++.
fn builds_in_c(test: &str, definition: &str) {
    let folder = folder(test).join("project_in_c");
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).expect("the folder of this test");
    fs::copy(outside("program.c"), folder.join("program.c")).expect("a source");
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(in_c C)\nfind_package(rendezvous REQUIRED)\n\
                   add_executable(in_c program.c)\ntarget_link_libraries(in_c PRIVATE rendezvous::rendezvous)\n";
    fs::write(folder.join("CMakeLists.txt"), project).expect("the folder of this test");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(folder.join("build")).arg(definition);
    configure.env_remove("CC").env_remove("CXX");
    run(&mut configure, TIMEOUT).or_fail("cmake configures");
    run(Command::new("cmake").arg("--build").arg(folder.join("build")), TIMEOUT).or_fail("cmake builds");
    says_version(&folder.join("build/in_c"));
}

#[test]
fn outside_project_builds_with_find_package() {
    if !is_installed("cmake") {
        return;
    }
    let installed = Installed::new("install_find_package");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", installed.prefix.display());
    builds_in_c("install_find_package", &prefix);
    // The targets ask for the C++ that the headers need, whatever the project has.
    builds_with_cmake("install_find_package", None, &[prefix, "-DCMAKE_CXX_STANDARD=14".into()]);
}

/// The library is that of the other tests, because cargo has their target folder; else it would take minutes.
#[test]
fn outside_project_builds_from_the_source_tree() {
    if !is_installed("cmake") {
        return;
    }
    library::shipped();
    let repository = crate::repository().display().to_string();
    let find = block(GUIDE, "include(FetchContent)").text.replace("$ENV{HOME}/librendezvous", &repository);
    let target = format!("-DRENDEZVOUS_TARGET_DIR={}", crate::target_folder().display());
    builds_with_cmake("install_fetch_content", Some(&find), &[target]);
}
