//! Copies modules of the core's driver, with the primitives of shuttle in place of those of std. What is modelled is the text
//! that ships: a substitution that no longer fits stops the build.

use std::path::Path;

const DRIVER: &str = "../../core/src/driver";
/// Modules of that folder.
const MODULES: [&str; 2] = ["cancel", "lock"];

/// What is replaced, wherever it occurs.
const REPLACED: [(&str, &str); 6] = [
    ("use crate::driver::lock::Lock;", "use crate::lock::Lock;"),
    ("use crate::opaque::", "use rendezvous_core::opaque::"),
    ("use crate::prelude::", "use rendezvous_core::prelude::"),
    ("use core::sync::atomic::", "use shuttle::sync::atomic::"),
    (
        "use std::sync::{Condvar, Mutex, OnceLock};",
        "use shuttle::sync::{Condvar, Mutex};\nuse std::sync::OnceLock;",
    ),
    (
        "use std::sync::{Mutex, MutexGuard, PoisonError};",
        "use shuttle::sync::{Mutex, MutexGuard};\nuse std::sync::PoisonError;",
    ),
];

fn main() {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join(DRIVER);
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let mut used = [false; REPLACED.len()];
    for module in MODULES {
        let path = driver.join(format!("{module}.rs"));
        println!("cargo::rerun-if-changed={}", path.display());
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        for ((from, to), used) in REPLACED.iter().zip(&mut used) {
            *used |= text.contains(from);
            text = text.replace(from, to);
        }
        // The documentation of a module cannot stand in the middle of a file.
        text = text.replace("//! ", "// ");
        for left in ["std::sync::{", "std::sync::Mutex", "std::sync::Condvar", "core::sync::atomic"] {
            let left = text.lines().find(|line| line.contains(left) && !line.contains("shuttle::"));
            assert!(
                left.is_none(),
                "{module}.rs uses {left:?}, which is not modelled: extend the list of build.rs"
            );
        }
        std::fs::write(Path::new(&out).join(format!("{module}.rs")), text).expect("the folder for output");
    }
    assert!(used.iter().all(|used| *used), "a replacement of build.rs fits nothing any more: {used:?}");
}
