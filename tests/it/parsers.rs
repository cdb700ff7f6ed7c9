//! The C header in the parsers that other languages use: cffi, and libclang, which bindgen reads headers with.

use crate::documents::blocks::block;
use crate::process::run;
use crate::{c_programs, header, library};
use rendezvous_core::driver::server::{Server, ServerOptions};
use std::process::Command;

/// The exit code of a check whose tool is not installed.
const MISSING: i32 = 77;

#[test]
fn header_is_read_by_cffi_as_it_is_shipped() {
    let repository = crate::repository();
    let mut python = Command::new("python3");
    python.arg(repository.join("tests/it/parsers/cffi_declarations.py")).arg(repository.join("include"));
    python.arg(library::shipped()).arg(rendezvous::RDZV_ABI_VERSION.to_string());
    let ran = run(&mut python, c_programs::TIMEOUT);
    if ran.status.code() == Some(MISSING) {
        println!("python3 has no cffi: the header was not read by it");
    } else {
        ran.or_fail("cffi_declarations.py");
    }
}

/// The recipe of the guide as it stands, with a server of this test.
#[test]
fn the_recipe_for_cffi_reads_and_writes_keys() {
    if !Command::new("python3").args(["-c", "import cffi"]).output().is_ok_and(|ran| ran.status.success()) {
        println!("python3 has no cffi: the recipe was not run");
        return;
    }
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a free port");
    let recipe = block("docs/cpp-guide.md", "import os")
        .text
        .replace("29500", &server.local_addr().port().to_string());
    let refused = "try:\n    get(store, b'missing', 0)\nexcept RuntimeError as error:\n    print(error)\n";
    let mut python = Command::new("python3");
    python.args(["-c", &(recipe + refused)]).arg(crate::repository().join("include")).arg(library::shipped());
    let printed = run(&mut python, c_programs::TIMEOUT).or_fail("the recipe").stdout;
    assert!(printed.starts_with("10.0.0.1:4000\nget \"missing\" from "), "{printed}");
}

#[test]
fn headers_are_read_by_libclang() {
    if Command::new("clang").arg("--version").output().is_err() {
        println!("clang is not installed: the headers were not read by it");
        return;
    }
    for name in header::names() {
        let mut clang = Command::new("clang");
        clang.args(["-std=c11", "-Weverything", "-Werror", "-Wno-padded", "-Wno-unused-macros"]);
        clang.args(["-fsyntax-only", "-x", "c"]).arg(crate::repository().join("include").join(&name));
        run(&mut clang, c_programs::TIMEOUT).or_fail(&name);
    }
}
