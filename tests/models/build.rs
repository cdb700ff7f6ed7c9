//! Copies modules of the drivers, with the primitives of shuttle in place of those of std. What is modelled is the text
//! that ships: a substitution that no longer fits stops the build.

use std::path::Path;

/// The copies, and the modules that they are made of.
const MODULES: [(&str, &str); 15] = [
    ("backend", "core/src/driver/backend.rs"),
    ("cancel", "core/src/driver/cancel.rs"),
    ("lock", "core/src/driver/lock.rs"),
    ("take", "core/src/driver/take.rs"),
    ("timeout", "core/src/driver/timeout.rs"),
    ("hash_store", "core/src/driver/hash_store.rs"),
    ("connection_pool", "core/src/driver/store_client/pool.rs"),
    ("inbox", "core/src/driver/native_client/inbox.rs"),
    ("session", "core/src/driver/native_client/session.rs"),
    ("session_thread", "core/src/driver/native_client/session_thread.rs"),
    ("plugin_threads", "core/src/driver/plugin_threads.rs"),
    ("rpc_pool", "rpc/src/driver/calls/pool.rs"),
    ("io_thread", "rpc/src/driver/calls/io_thread.rs"),
    ("life", "rpc/src/driver/group/life.rs"),
    ("pending", "rpc/src/driver/group/pending.rs"),
];

/// What is replaced, wherever it occurs. `src/stand_ins.rs` has what is neither shuttle's nor pure.
const REPLACED: [(&str, &str); 25] = [
    ("use crate::driver::lock::Lock;", "use crate::lock::Lock;"),
    ("use crate::opaque::", "use rendezvous_core::opaque::"),
    ("use crate::prelude::", "use rendezvous_core::prelude::"),
    ("use crate::error::", "use rendezvous_core::error::"),
    ("use crate::ids::", "use rendezvous_core::ids::"),
    ("use crate::limits::", "use rendezvous_core::limits::"),
    ("use crate::node::", "use rendezvous_core::node::"),
    ("use crate::ordered::", "use rendezvous_core::ordered::"),
    ("use crate::store::", "use rendezvous_core::store::"),
    ("use crate::time::", "use rendezvous_core::time::"),
    ("use crate::membership::", "use rendezvous_rpc::membership::"),
    ("use crate::fair_queue::", "use rendezvous_rpc::fair_queue::"),
    ("use crate::driver::", "use crate::stand_ins::"),
    ("use rendezvous_core::driver::", "use crate::stand_ins::"),
    ("use super::wire::", "use crate::stand_ins::"),
    ("use super::session_driver::", "use crate::stand_ins::session::"),
    ("use super::node::", "use crate::stand_ins::session::"),
    ("use super::{Loss,", "use crate::stand_ins::session::{Loss,"),
    ("use super::{Begun, CallSpec,", "use crate::stand_ins::group::{Begun, CallSpec,"),
    ("pub(in crate::driver)", "pub"),
    ("use core::sync::atomic::", "use shuttle::sync::atomic::"),
    ("use std::thread::ThreadId;", "use shuttle::thread::ThreadId;"),
    ("std::thread::current()", "shuttle::thread::current()"),
    (
        "use std::sync::{Condvar, Mutex, OnceLock};",
        "use shuttle::sync::{Condvar, Mutex};\nuse std::sync::OnceLock;",
    ),
    (
        "use std::sync::{Mutex, MutexGuard, PoisonError};",
        "use shuttle::sync::{Mutex, MutexGuard};\nuse std::sync::PoisonError;",
    ),
];

/// What must not be left.
const NOT_MODELLED: [&str; 6] = [
    "std::sync::{",
    "std::sync::Mutex",
    "std::sync::Condvar",
    "core::sync::atomic",
    "std::thread",
    "crossbeam",
];

fn main() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let mut used = [false; REPLACED.len()];
    for (module, path) in MODULES {
        let path = repository.join(path);
        println!("cargo::rerun-if-changed={}", path.display());
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        for ((from, to), used) in REPLACED.iter().zip(&mut used) {
            *used |= text.contains(from);
            text = text.replace(from, to);
        }
        // The documentation of a module cannot stand in the middle of a file.
        text = text.replace("//! ", "// ").replace("//!", "//");
        for left in NOT_MODELLED {
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
