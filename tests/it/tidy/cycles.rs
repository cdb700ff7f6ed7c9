//! The import graph of each crate has no cycle.

use super::layers::imports;
use super::{File, Rule};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The files of one crate, by module.
type Modules<'a> = BTreeMap<String, &'a File>;
/// The modules of one crate, each with the modules that it imports.
type Graph = BTreeMap<String, BTreeSet<String>>;

const CYCLES: Rule = Rule {
    sentence: "The modules of a crate do not import each other in a cycle, neither by `use` nor by a path in the code. \
               Imports between a module and its own ancestors and descendants do not count. Move what both modules \
               need to a lower module, or merge modules that are one thing.",
    check: |files| {
        let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
        for file in files {
            if let Some((name, module)) = module(&file.path) {
                crates.entry(name).or_default().insert(module, file);
            }
        }
        let in_crate = |(name, modules): (&&str, &Modules<'_>)| -> Vec<String> {
            let graph = graph(modules);
            let cycles = graph.keys().filter_map(|module| cycle(&graph, module));
            cycles.map(|cycle| format!("{name}: {}", cycle.join(" -> "))).collect()
        };
        crates.iter().flat_map(in_crate).collect()
    },
};

/// Crate and module of a file: `core/src/store/engine/slots.rs` is `store::engine::slots` of `core`, and the root of a crate
/// is the empty path. `None` for files of test crates.
fn module(path: &str) -> Option<(&str, String)> {
    let (name, module) = path.strip_suffix(".rs")?.split_once("/src/")?;
    if name.starts_with("tests") || name.starts_with("fuzz") {
        return None;
    }
    let module = module.strip_suffix("/mod").unwrap_or(module);
    let is_root = ["lib", "main"].contains(&module);
    Some((name, if is_root { String::new() } else { module.replace('/', "::") }))
}

/// The imports of one crate. Modules that are built for tests only are left out.
fn graph(modules: &Modules<'_>) -> Graph {
    let known: BTreeSet<&str> =
        modules.keys().map(String::as_str).filter(|module| !is_of_tests(modules, module)).collect();
    let edges = known.iter().map(|&module| {
        let code: String = modules[module].code().map(|(_, line)| format!("{line}\n")).collect();
        let targets = imports(&code, module, &[("crate::", "")])
            .into_iter()
            .map(|target| longest_known(&known, target));
        let others = targets.filter(|target| !is_inside(target, module) && !is_inside(module, target));
        (module.to_owned(), others.collect())
    });
    edges.collect()
}

/// Whether an ancestor declares the module, or a module that contains it, under `#[cfg(test)]`.
fn is_of_tests(modules: &Modules<'_>, module: &str) -> bool {
    let parts: Vec<&str> = module.split("::").collect();
    (0..parts.len()).any(|at| {
        let declaration = format!("mod {};", parts[at]);
        (0..=at).filter_map(|length| modules.get(&parts[..length].join("::"))).any(|above| {
            let lines = above.text.lines().map(str::trim);
            lines.clone().zip(lines.skip(1)).any(|(gate, line)| {
                let is_gated = gate.starts_with("#[cfg(test)]") || gate.starts_with("#[cfg(all(test,");
                is_gated && line.ends_with(&declaration)
            })
        })
    })
}

/// The longest prefix of a path that is a module; the rest names an item of that module.
fn longest_known(known: &BTreeSet<&str>, mut path: String) -> String {
    while !path.is_empty() && !known.contains(path.as_str()) {
        path.truncate(path.rfind("::").unwrap_or(0));
    }
    path
}

/// Whether a module is `ancestor` or one of its descendants.
fn is_inside(module: &str, ancestor: &str) -> bool {
    ancestor.is_empty()
        || module.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The shortest cycle through `start`, unless a module that sorts before `start` is part of it: each cycle is reported once.
fn cycle<'a>(graph: &'a Graph, start: &'a str) -> Option<Vec<&'a str>> {
    // For each module that was reached, the module that imports it on the shortest path.
    let mut importers: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(module) = queue.pop_front() {
        for target in &graph[module] {
            if !importers.contains_key(target.as_str()) {
                importers.insert(target, module);
                queue.push_back(target);
            }
        }
    }
    let mut path = vec![start, importers.get(start)?];
    while let Some(&last) = path.last().filter(|&&last| last != start) {
        path.push(importers[last]);
    }
    path.reverse();
    path.iter().all(|&module| module >= start).then_some(path)
}

#[test]
fn imports_have_no_cycle() {
    let file = |path, text| File::new(path, text);
    let pair = |one, other| [file("core/src/one.rs", one), file("core/src/other.rs", other)];
    CYCLES.notices_in(&pair("use crate::other::Other;\n", "use super::one::{self, One};\n"));
    CYCLES.notices_in(&pair("fn f() { crate::other::g() }\n", "use crate::{one::One, third::Third};\n"));
    CYCLES.allows_in(&pair("use crate::other::Other;\n", "// use crate::one::One;\n"));
    CYCLES
        .allows_in(&pair("use crate::other::Other;\n", "#[cfg(test)]\nmod tests { use crate::one::One; }\n"));
    CYCLES.allows_in(&pair("use crate::other::Other;\n", "use elsewhere::one::One;\n"));
    let declared = |how| {
        let [one, other] = pair("use crate::other::Bug;\n", "use crate::one::One;\n");
        [file("core/src/lib.rs", how), one, other]
    };
    CYCLES.notices_in(&declared("mod one;\nmod other;\n"));
    CYCLES.allows_in(&declared("mod one;\n#[cfg(all(test, feature = \"x\"))]\nmod other;\n"));
    let cycle = [
        file("cli/src/a.rs", "use super::b::c::C;\n"),
        file("cli/src/b/mod.rs", "mod c;\n"),
        file("cli/src/b/c.rs", "use crate::d::D;\n"),
        file("cli/src/d.rs", "use crate::a::A;\n"),
    ];
    CYCLES.notices_in(&cycle);
    assert_eq!((CYCLES.check)(&cycle), ["cli: a -> b::c -> d -> a"]);
    CYCLES.allows_in(&cycle[..3]);
    CYCLES.allows_in(&[
        file("core/src/lib.rs", "pub mod parent;\nuse crate::parent::Parent;\n"),
        file("core/src/parent.rs", "mod child;\nuse child::Child;\nuse crate::parent::child::deep::Deep;\n"),
        file("core/src/parent/child.rs", "use super::Parent;\nuse crate::Root;\n"),
        file("core/src/parent/child/deep.rs", "use super::super::Parent;\n"),
        file("ffi/src/parent.rs", "use crate::child::Child;\n"),
        file("cli/src/child.rs", "use crate::parent::Parent;\n"),
    ]);
    CYCLES.holds();
}
