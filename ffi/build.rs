//! Gives the shared library its name: the part of the file name that programs remember.
//!
//! Programs that link `librendezvous.so` ask for `librendezvous.so.1` when they start, so that a later ABI can stand beside
//! this one. The link of that name is made where the library is, so that a plain `cargo build` leaves a library that
//! programs can run with.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Grows with `RDZV_ABI_VERSION`; a test compares the two.
const SONAME: &str = "librendezvous.so.1";

const FOLD_ALIKE: &str = "-Wl,--icf=all";

/// Whether the linker that will be used takes an argument: links an empty library as this one will be.
#[allow(clippy::disallowed_methods, reason = "a build script reads the environment")]
fn links_with(argument: &str, out: &Path) -> io::Result<bool> {
    let source = out.join("empty.rs");
    std::fs::write(&source, "")?;
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--crate-name=empty", "--crate-type=cdylib"]).arg(&source);
    rustc.arg("-o").arg(out.join("libempty.so"));
    if let Some(target) = env::var_os("TARGET").filter(|target| Some(target) != env::var_os("HOST").as_ref())
    {
        rustc.arg("--target").arg(target);
    }
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut argument = OsString::from("linker=");
        argument.push(linker);
        rustc.arg("-C").arg(argument);
    }
    rustc.arg("-C").arg(format!("link-arg={argument}"));
    rustc.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(rustc.status()?.success())
}

#[allow(clippy::disallowed_methods, reason = "a build script reads the environment")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // target/PROFILE/build/PACKAGE/out
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // One copy of functions that come out alike: 12 KB. Not every linker can do that, and one that cannot refuses to link.
    if links_with(FOLD_ALIKE, &out).unwrap_or(false) {
        println!("cargo:rustc-cdylib-link-arg={FOLD_ALIKE}");
    }
    let Some(profile) = out.ancestors().nth(3) else { return };
    for folder in [profile.to_owned(), profile.join("deps")] {
        let link = folder.join(SONAME);
        // Another build may have made it a moment ago; if it is not there, the program's loader says what it misses.
        std::os::unix::fs::symlink("librendezvous.so", link).ok();
    }
}
