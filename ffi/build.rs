//! Gives the shared library its name: the part of the file name that programs remember.
//!
//! Programs that link `librendezvous.so` ask for `librendezvous.so.1` when they start, so that a later ABI can stand beside
//! this one. The link of that name is made where the library is, so that a plain `cargo build` leaves a library that
//! programs can run with.

use std::path::PathBuf;

/// Grows with `RDZV_ABI_VERSION`; a test compares the two.
const SONAME: &str = "librendezvous.so.1";

#[allow(clippy::disallowed_methods, reason = "a build script is told by the environment")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // One copy of functions that come out alike: 12 KB. Where Rust brings its own linker it is one that can.
    if std::env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--icf=all");
    }
    // target/PROFILE/build/PACKAGE/out
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let Some(profile) = out.ancestors().nth(3) else { return };
    for folder in [profile.to_owned(), profile.join("deps")] {
        let link = folder.join(SONAME);
        // Another build may have made it a moment ago; if it is not there, the program's loader says what it misses.
        std::os::unix::fs::symlink("librendezvous.so", link).ok();
    }
}
