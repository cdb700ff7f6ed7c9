//! Which module of the three crates may import which.

use super::{File, Rule};

/// The crates of state machines and drivers; those of the agent's and of RPC are modules `agent` and `rpc` in the table.
const CRATES: [&str; 3] = ["core", "agent", "rpc"];

/// A module: its path, its layer, and the group that it is a part of. Modules of one group may import each other.
struct Module {
    path: &'static str,
    layer: u8,
    group: &'static str,
}

const fn module(path: &'static str, layer: u8, group: &'static str) -> Module {
    Module { path, layer, group }
}

/// The layer of state machines without I/O; those of one group know none of another.
const MACHINES: u8 = 3;

const MODULES: [Module; 74] = [
    module("error", 0, "ground"),
    module("hash_index", 0, "ground"),
    module("ids", 0, "ground"),
    module("key_hash", 0, "ground"),
    module("limits", 0, "ground"),
    module("named", 0, "ground"),
    module("opaque", 0, "ground"),
    module("ordered", 0, "ground"),
    module("prelude", 0, "ground"),
    module("rng", 0, "ground"),
    module("secret", 0, "ground"),
    module("shared", 0, "ground"),
    module("sorted", 0, "ground"),
    module("time", 0, "ground"),
    module("tls_fault", 0, "ground"),
    module("ungreeted", 0, "ground"),
    module("store::op", 1, "requests"),
    module("store::call", 1, "requests"),
    module("store::number", 1, "numbers"),
    module("store::txn", 1, "requests"),
    module("store::value_ref", 1, "numbers"),
    module("rendezvous::timeouts", 1, "timeouts"),
    module("store::clue", 2, "clue"),
    module("wire", 2, "wire"),
    module("proof", 2, "wire"),
    module("peer_tokens", 2, "wire"),
    module("store::engine", 2, "engine"),
    module("store::file_log", 2, "file_log"),
    module("store::server_conn", MACHINES, "server_conn"),
    module("store::client_conn", MACHINES, "client_conn"),
    module("store::dial", MACHINES, "dial"),
    module("session", MACHINES, "session"),
    module("auth", MACHINES, "auth"),
    module("access", MACHINES, "auth"),
    module("barrier::by_keys", MACHINES, "barrier::by_keys"),
    module("barrier::service", MACHINES, "barrier::service"),
    module("workers", MACHINES, "workers"),
    module("rendezvous::service", MACHINES, "rendezvous::service"),
    module("rendezvous::participant", MACHINES, "rendezvous::participant"),
    module("rendezvous::rejoin", MACHINES, "rendezvous::rejoin"),
    module("tls", MACHINES, "tls"),
    module("tls_off", MACHINES, "tls"),
    module("elastic_store", MACHINES, "elastic_store"),
    module("rendezvous", MACHINES, "rendezvous"),
    module("node::server", 4, "node::server"),
    module("node::tls_server", 4, "node::server"),
    module("node::client", 4, "node::client"),
    module("node::multi_client", 4, "node::client"),
    module("node::native_client", 4, "node::native_client"),
    module("driver", 5, "driver"),
    module("agent::limits", 0, "ground"),
    module("agent::spec", 1, "agent::spec"),
    module("agent::streams", 1, "agent::streams"),
    module("agent::error_file", 1, "agent::error_file"),
    module("agent::node", 4, "agent::node"),
    module("agent::driver", 6, "agent::driver"),
    module("agent", MACHINES, "agent"),
    module("rpc::limits", 0, "ground"),
    module("rpc::name", 1, "rpc::data"),
    module("rpc::device", 1, "rpc::data"),
    module("rpc::device_map", 1, "rpc::data"),
    module("rpc::options", 1, "rpc::data"),
    module("rpc::shutdown", 1, "rpc::data"),
    module("rpc::wire", 2, "wire"),
    module("rpc::exchange", 2, "wire"),
    module("rpc::connection", MACHINES, "rpc::connection"),
    module("rpc::handlers", MACHINES, "rpc::connection"),
    module("rpc::intake", MACHINES, "rpc::connection"),
    module("rpc::inbox", MACHINES, "rpc::connection"),
    module("rpc::fair_queue", MACHINES, "rpc::fair_queue"),
    module("rpc::membership::changing", 4, "rpc::agent"),
    module("rpc::membership", MACHINES, "rpc::membership"),
    module("rpc::agent", 4, "rpc::agent"),
    module("rpc::driver", 6, "rpc::driver"),
];

const LAYERS: Rule = Rule {
    sentence: "A layer imports only lower layers. Machines (layer 3) of one group never import those of another; only \
               layer 4 composes them; nothing imports the driver but the drivers of agent and rpc, which are above \
               it. Of those two crates, only the crate itself imports modules. A new module first gets its place in \
               the table of this test.",
    check: |files| files.iter().flat_map(wrong_arrows).collect(),
};

fn find(path: &str) -> Option<&'static Module> {
    let contains = |module: &&Module| {
        path.strip_prefix(module.path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    MODULES.iter().find(contains)
}

fn wrong_arrows(file: &File) -> Vec<String> {
    let Some(own_path) = module_path(&file.path) else { return Vec::new() };
    if matches!(own_path.as_str(), "" | "store" | "node" | "rpc") {
        return Vec::new();
    }
    let Some(local) = find(&own_path) else {
        return vec![format!("{}: {own_path} has no place in the table", file.path)];
    };
    let code: String = file.code().map(|(_, line)| format!("{line}\n")).collect();
    let wrong = |target: &String| match find(target) {
        Some(other) => {
            let is_foreign = !["", root_of(local.path)].contains(&root_of(other.path));
            is_foreign || other.group != local.group && other.layer >= local.layer
        }
        // A module that only holds others says nothing by itself; anything else has no place in the table.
        None => !matches!(target.as_str(), "" | "store" | "node" | "rpc"),
    };
    let starts = [
        ("crate::", root_of(&own_path)),
        ("rendezvous_core::", ""),
        ("rendezvous_agent::", "agent"),
        ("rendezvous_rpc::", "rpc"),
    ];
    let targets = imports(&code, &own_path, &starts).into_iter().filter(wrong);
    targets.map(|target| format!("{}: {own_path} imports {target}", file.path)).collect()
}

/// `core/src/store/engine/slots.rs` is `store::engine::slots`, and `rpc/src/agent.rs` is `rpc::agent`.
fn module_path(path: &str) -> Option<String> {
    let (name, path) = path.split_once("/src/")?;
    let path = path.strip_suffix(".rs").filter(|_| CRATES.contains(&name))?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let module = if path == "lib" { String::new() } else { path.replace('/', "::") };
    Some(match (name, module.as_str()) {
        ("core", _) => module,
        (_, "") => name.to_owned(),
        _ => format!("{name}::{module}"),
    })
}

/// The module that a crate is in the table.
fn root_of(own_path: &str) -> &str {
    CRATES.into_iter().find(|name| own_path.split("::").next() == Some(name)).unwrap_or_default()
}

/// Every path that the code names from `super::` or one of `starts`, each of which is followed by the module that it stands
/// for; with the groups in braces taken apart.
pub(super) fn imports(code: &str, own_path: &str, starts: &[(&str, &str)]) -> Vec<String> {
    let first = |rest: &str| {
        let places = starts.iter().map(|(start, _)| rest.find(start)).chain([rest.find("super::")]);
        places.flatten().min()
    };
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = first(rest) {
        let starts_a_path =
            !rest[..at].ends_with(|character: char| character.is_alphanumeric() || "_:$".contains(character));
        let (mut base, mut tail) = (String::new(), &rest[at..]);
        if let Some((start, root)) = starts.iter().find(|(start, _)| tail.starts_with(start)) {
            base = (*root).to_owned();
            tail = &tail[start.len()..];
        } else {
            let mut modules: Vec<_> = own_path.split("::").collect();
            while let Some(remaining) = tail.strip_prefix("super::") {
                modules.pop();
                tail = remaining;
            }
            base.push_str(&modules.join("::"));
        }
        if starts_a_path {
            collect(&base, tail, &mut found);
        }
        rest = tail;
    }
    found
}

fn collect(base: &str, tail: &str, found: &mut Vec<String>) {
    let join = |name: &str| if base.is_empty() { name.to_owned() } else { format!("{base}::{name}") };
    if let Some(group) = tail.strip_prefix('{') {
        let (mut depth, mut start) = (0, 0);
        for (at, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    collect(base, group[start..at].trim(), found);
                    start = at + 1;
                    if character == '}' {
                        return;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        return;
    }
    let length =
        tail.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(tail.len());
    let (name, remaining) = tail.split_at(length);
    // Types and functions are not modules: the path ends before them.
    let is_module = !name.is_empty() && name.chars().all(|character| !character.is_uppercase());
    match remaining.strip_prefix("::") {
        Some(deeper) if is_module => collect(&join(name), deeper, found),
        _ if is_module && name != "self" => found.push(join(name)),
        _ => found.push(base.to_owned()),
    }
}

#[test]
fn layers_hold() {
    LAYERS.notices("core/src/store/server_conn.rs", "use crate::store::client_conn::ClientConn;\n");
    LAYERS.notices("core/src/store/server_conn/outbox.rs", "use crate::node::server::Server;\n");
    LAYERS.notices("core/src/store/engine/slots.rs", "use crate::wire::sink::Sink;\n");
    LAYERS.notices("core/src/store/engine.rs", "use crate::{limits, store::{op::Key, server_conn}};\n");
    LAYERS.notices("core/src/store/engine.rs", "use super::server_conn::ServerConn;\n");
    LAYERS.notices("core/src/store/op.rs", "fn f() { crate::wire::c10d::encode_frame() }\n");
    LAYERS.notices("core/src/time.rs", "use crate::driver::clock::Clock;\n");
    LAYERS.notices("core/src/node/server.rs", "use super::client::Client;\n");
    LAYERS.notices("core/src/driver/server.rs", "use rendezvous_rpc::wire::Status;\n");
    LAYERS.notices("agent/src/supervisor.rs", "use crate::driver::process::Guard;\n");
    LAYERS.notices("agent/src/supervisor.rs", "use rendezvous_core::driver::clock::Clock;\n");
    LAYERS.notices("agent/src/supervisor/blame.rs", "use super::super::node::rounds;\n");
    LAYERS.notices("agent/src/driver/agent.rs", "use rendezvous_rpc::driver::group::RpcAgent;\n");
    LAYERS.notices("rpc/src/driver/mod.rs", "use rendezvous_agent::{spec, supervisor::Supervisor};\n");
    LAYERS
        .allows("rpc/src/driver/group.rs", "use rendezvous_core::driver::store;\nuse crate::agent::Agent;\n");
    LAYERS
        .allows("rpc/src/agent.rs", "use crate::connection::Status;\nuse rendezvous_core::time::Instant;\n");
    LAYERS.notices("rpc/src/membership/token.rs", "use super::changing::ChangingGroup;\n");
    LAYERS.notices("rpc/src/connection.rs", "use crate::membership::keys;\n");
    LAYERS.notices("rpc/src/device.rs", "use crate::wire::Header;\n");
    LAYERS.notices("core/src/somewhere.rs", "");
    LAYERS.notices("core/src/node/server.rs", "use crate::somewhere::Thing;\n");
    LAYERS.allows(
        "core/src/node/server.rs",
        "use crate::store::{engine::Engine, server_conn};\nmod deadlines;\n",
    );
    LAYERS.allows("core/src/store/engine/slots.rs", "use super::value::Value;\nuse crate::store::op::Key;\n");
    LAYERS.allows("core/src/limits.rs", "use crate::time::Duration;\n// use crate::driver\n");
    LAYERS.allows("core/src/rng.rs", "#[cfg(test)]\nmod tests { use crate::store::engine::Engine; }\n");
    LAYERS.allows(
        "core/src/driver/server.rs",
        "pub(in crate::driver) fn f() {}\nuse crate::node::server as node;\n",
    );
    LAYERS.holds();
}

const OUTSIDE: Rule = Rule {
    sentence: "Only the folder driver of each crate names std, mio, libc and socket2: a machine gets bytes and time as \
               arguments. rustls takes and gives bytes by the traits of std::io, which the stage of TLS names.",
    check: |files| {
        let pure = |file: &&File| {
            let module = file.path.split_once("/src/").filter(|(name, _)| CRATES.contains(name));
            file.is_rust()
                && module.is_some_and(|(_, module)| module != "lib.rs" && !module.starts_with("driver"))
        };
        let names = ["std", "mio", "libc", "socket2"];
        let names_one = |line: &str| {
            let mut words =
                line.split(|character: char| !character.is_alphanumeric() && !"_:".contains(character));
            words.any(|word| {
                let first = word.trim_start_matches(':').split("::").next().unwrap_or_default();
                names.contains(&first)
            })
        };
        let broken = |file: &File| {
            let is_stage = file.path == "core/src/tls/stage.rs";
            let is_allowed = |line: &str| is_stage && line == "use std::io::{BufRead, Write};";
            let lines = file.code().filter(|(_, line)| names_one(line) && !is_allowed(line));
            lines.map(|(number, line)| file.at(number, line)).collect::<Vec<_>>()
        };
        files.iter().filter(pure).flat_map(broken).collect()
    },
};

#[test]
fn only_the_driver_knows_the_world() {
    OUTSIDE.notices("core/src/store/engine.rs", "use std::collections::HashMap;\n");
    OUTSIDE.notices("core/src/store/engine.rs", "extern crate std;\n");
    OUTSIDE.notices("core/src/node/client.rs", "fn f() { ::libc::getpid(); }\n");
    OUTSIDE.allows("core/src/store/engine.rs", "// std::time\nuse alloc::vec::Vec;\nuse core::fmt;\n");
    OUTSIDE.notices("agent/src/spec.rs", "use std::path::PathBuf;\n");
    OUTSIDE.notices("rpc/src/intake.rs", "use std::net::SocketAddr;\n");
    OUTSIDE.notices("core/src/tls/stage.rs", "use std::io::Stdin;\n");
    OUTSIDE.allows("core/src/driver/server.rs", "use std::net::SocketAddr;\n");
    OUTSIDE.allows("rpc/src/driver/group.rs", "use std::net::SocketAddr;\n");
    OUTSIDE.allows("core/src/store/engine/tests.rs", "extern crate std;\n");
    OUTSIDE.allows("core/src/store/engine/tests/scenes.rs", "extern crate std;\n");
    OUTSIDE.notices("core/src/store/tests_of.rs", "extern crate std;\n");
    OUTSIDE.holds();
}

const FEATURES: Rule = Rule {
    sentence: "The crates core, agent and rpc are #![no_std] without conditions, and their features are gated in \
               their lib.rs and nowhere else.",
    check: |files| {
        let gates = |file: &File| {
            let lines = file.text.lines().zip(1..).map(|(line, number)| (number, line.trim()));
            let gates = lines.filter(|(_, line)| !line.starts_with("//") && line.contains("cfg"));
            let gates = gates.filter(|(_, line)| line.contains("feature =") || line.contains("feature="));
            gates.map(|(number, line)| file.at(number, line)).collect::<Vec<_>>()
        };
        let mut broken = Vec::new();
        for name in CRATES {
            let (folder, root) = (format!("{name}/"), format!("{name}/src/lib.rs"));
            let local = files.iter().filter(|file| file.path.starts_with(&folder) && file.is_rust());
            broken.extend(local.filter(|file| file.path != root).flat_map(gates));
            let lib = files.iter().find(|file| file.path == root);
            if lib.is_some_and(|file| !file.text.lines().any(|line| line == "#![no_std]")) {
                broken.push(format!("{root}: #![no_std] is missing, or has a condition"));
            }
        }
        broken
    },
};

#[test]
fn features_are_gated_in_one_place() {
    FEATURES.notices("core/src/wire/mod.rs", "#[cfg(feature = \"alloc\")]\nmod c10d;\n");
    FEATURES.notices("core/src/store/engine.rs", "#![cfg_attr(not(feature=\"std\"), allow(x))]\n");
    FEATURES.notices("core/src/lib.rs", "#![cfg_attr(not(feature = \"std\"), no_std)]\n");
    FEATURES.notices("rpc/src/intake.rs", "#[cfg(feature = \"std\")]\nfn f() {}\n");
    FEATURES.notices("agent/src/lib.rs", "extern crate alloc;\n");
    FEATURES.allows("core/src/lib.rs", "#![no_std]\n#[cfg(feature = \"alloc\")]\nextern crate alloc;\n");
    FEATURES.holds();
}
