//! What the crates depend on, and what the C boundary must not forget.

use super::{File, Rule};

/// The lines of a section of a manifest, as names and what is said of them.
fn section<'a>(manifest: &'a str, header: &str) -> Vec<(&'a str, &'a str)> {
    let lines = manifest.lines().skip_while(|line| line.trim() != header).skip(1);
    let local = lines.take_while(|line| !line.starts_with('['));
    let entries = local.filter(|line| !line.trim_start().starts_with('#'));
    entries.filter_map(|line| line.split_once('=')).map(|(name, said)| (name.trim(), said.trim())).collect()
}

const DEPENDENCIES: Rule = Rule {
    sentence: "Every dependency of core, agent and rpc comes from the workspace, without its default features: they \
               would bring std back. The core depends on neither of the others, and these not on each other.",
    check: |files| {
        let text =
            |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
        let shared = section(text("Cargo.toml"), "[workspace.dependencies]");
        let wrong = |(name, said): &(&str, &str)| {
            let bare = shared
                .iter()
                .any(|(shared, said)| shared == name && said.contains("default-features = false"));
            !bare || !said.contains("workspace = true") || said.contains("default-features = true")
        };
        let mut broken = Vec::new();
        for (path, strangers) in [
            ("core/Cargo.toml", ["rendezvous-agent", "rendezvous-rpc"].as_slice()),
            ("agent/Cargo.toml", &["rendezvous-rpc"]),
            ("rpc/Cargo.toml", &["rendezvous-agent"]),
        ] {
            let is_strange = |(name, _): &(&str, &str)| strangers.contains(name);
            let local = section(text(path), "[dependencies]").into_iter();
            let local = local.filter(|entry| wrong(entry) || is_strange(entry));
            let in_tests = section(text(path), "[dev-dependencies]").into_iter().filter(is_strange);
            broken.extend(local.chain(in_tests).map(|(name, said)| format!("{path}: {name} = {said}")));
        }
        broken
    },
};

#[test]
fn the_crates_depend_on_no_default_features_and_in_one_direction() {
    let shared =
        "[workspace.dependencies]\nbare = { version = \"1\", default-features = false }\nrich = \"1\"\n";
    let with = |local: &str| {
        let local =
            format!("[package]\nname = \"core\"\n[dependencies]\n{local}\n[lints]\nworkspace = true\n");
        [File::new("core/Cargo.toml", &local), File::new("Cargo.toml", shared)]
    };
    DEPENDENCIES.notices_in(&with("rich = { workspace = true }"));
    DEPENDENCIES.notices_in(&with("bare = { workspace = true, default-features = true }"));
    DEPENDENCIES.notices_in(&with("bare = { version = \"1\", default-features = false }"));
    DEPENDENCIES.notices_in(&with("unknown = { workspace = true }"));
    let shared = "[workspace.dependencies]\nrendezvous-rpc = { path = \"rpc\", default-features = false }\n";
    for (path, of) in [("agent/Cargo.toml", "[dependencies]"), ("core/Cargo.toml", "[dev-dependencies]")] {
        let local = File::new(path, &format!("{of}\nrendezvous-rpc = {{ workspace = true }}\n"));
        DEPENDENCIES.notices_in(&[local, File::new("Cargo.toml", shared)]);
    }
    DEPENDENCIES.allows_in(&with("# why\nbare = { workspace = true, optional = true, features = [\"x\"] }"));
    let found = super::repository();
    let core = found.iter().find(|file| file.path == "core/Cargo.toml").expect("the core has a manifest");
    assert!(section(&core.text, "[dependencies]").len() > 3, "the check reads them");
    DEPENDENCIES.holds();
}

const GUARDS: Rule = Rule {
    sentence: "Every extern \"C\" function runs its whole body in one guard: its own, that of a helper in the same file, \
               or that of a helper which it calls by its file's name. No panic crosses into C.",
    check: |files| {
        let mut broken = Vec::new();
        let mut exported_in_all = 0;
        let of_border: Vec<(&File, Vec<Function>)> = files
            .iter()
            .filter(|file| file.path.starts_with("ffi/src/") && file.is_rust())
            .map(|file| (file, functions(file)))
            .collect();
        // What guards in one file, others call as `file::helper(`.
        let shared: Vec<String> =
            of_border.iter().flat_map(|(file, functions)| shared_guards(file, functions)).collect();
        for (file, functions) in &of_border {
            let guarding = guarding(functions, &shared);
            for function in functions.iter().filter(|function| function.is_exported) {
                exported_in_all += 1;
                let count = guards(function, &guarding);
                if count != 1 {
                    broken.push(file.at(function.line, &format!("{} has {count} guards", function.name)));
                }
            }
        }
        let is_member = files.iter().any(|file| file.path == "ffi/Cargo.toml");
        if is_member && exported_in_all == 0 {
            broken.push("ffi/src: no extern \"C\" function was found: this check reads nothing".to_owned());
        }
        broken
    },
};

/// How often a function begins a guard, by itself or by what guards.
fn guards(function: &Function, guarding: &[String]) -> usize {
    let local = function.body.matches("guard::").count();
    local + guarding.iter().map(|call| function.body.matches(call.as_str()).count()).sum::<usize>()
}

/// Calls that run what they are given in one guard: those of helpers of the same file, and the shared ones.
fn guarding(functions: &[Function], shared: &[String]) -> Vec<String> {
    let helpers: Vec<_> = functions.iter().filter(|function| !function.is_exported).collect();
    let mut guarding = shared.to_vec();
    // A helper may rest on another one: as many rounds as there are helpers find them all.
    for _ in 0..helpers.len() {
        let found = helpers.iter().filter(|helper| guards(helper, &guarding) == 1);
        let local = found.map(|helper| format!(" {}(", helper.name));
        guarding = shared.iter().cloned().chain(local).collect();
    }
    guarding
}

/// The calls of a file's own guarding helpers, as other files write them.
fn shared_guards(file: &File, functions: &[Function]) -> Vec<String> {
    let module = file.path.trim_start_matches("ffi/src/").trim_end_matches(".rs");
    let local = guarding(functions, &[]).into_iter();
    local.map(|call| format!(" {module}::{}", call.trim_start())).collect()
}

struct Function {
    line: usize,
    name: String,
    is_exported: bool,
    body: String,
}

/// The functions at the outermost level of a file. Types of function pointers have no name, and are none.
fn functions(file: &File) -> Vec<Function> {
    let mut found: Vec<Function> = Vec::new();
    let mut is_open = false;
    for (line, code) in file.code() {
        let is_outermost = !code.starts_with(char::is_whitespace);
        let signature = code.split_once("fn ").filter(|(before, _)| {
            is_outermost && before.split_whitespace().all(|word| !word.ends_with(['=', ':', '<', '(']))
        });
        let mut body = code;
        if let Some((before, remaining)) = signature {
            let end = remaining
                .find(|character: char| !character.is_alphanumeric() && character != '_')
                .unwrap_or(remaining.len());
            let (name, is_exported) = (remaining[..end].to_owned(), before.contains("extern \"C\""));
            found.push(Function { line, name, is_exported, body: String::new() });
            is_open = true;
            body = &remaining[end..];
        }
        if let Some(function) = found.last_mut().filter(|_| is_open) {
            function.body.push_str(body);
            function.body.push('\n');
        }
        is_open &= !(is_outermost && code.trim_end().ends_with('}'));
    }
    found
}

#[test]
fn every_c_function_is_guarded() {
    let guarded = "pub unsafe extern \"C\" fn rdzv_f(x: i32) -> i32 {\n    guard::call(|| x)\n}\n";
    let bare = "pub extern \"C\" fn rdzv_g() -> i32 {\n    1\n}\n";
    let twice = "pub extern \"C\" fn rdzv_h() {\n    guard::call(|| ());\n    guard::call(|| ());\n}\n";
    GUARDS.notices("ffi/src/store.rs", bare);
    GUARDS.notices("ffi/src/store.rs", &[guarded, bare].concat());
    // Two guards in one do not make up for none in the other.
    GUARDS.notices("ffi/src/store.rs", &[twice, bare].concat());
    let helped = "pub extern \"C\" fn rdzv_k() { f() }\n";
    GUARDS.notices("ffi/src/store.rs", &[helped, "fn f() {\n    1;\n}\n"].concat());
    GUARDS.notices("ffi/src/store.rs", &[helped, "fn g() {\n    guard::call(|| ());\n}\n"].concat());
    GUARDS.allows("ffi/src/store.rs", &[helped, "unsafe fn f() {\n    guard::call(|| ());\n}\n"].concat());
    let twofold = [helped, "fn f() {\n    g(1)\n}\n", "fn g() {\n    guard::call(|| ());\n}\n"].concat();
    GUARDS.allows("ffi/src/store.rs", &twofold);
    // A helper of another file is called by that file's name, and has to guard as well.
    let with = |path: &str, helper: &str| {
        let caller = "pub extern \"C\" fn rdzv_l() {\n    gate::run(1)\n}\n";
        [File::new("ffi/src/store.rs", caller), File::new(path, helper)]
    };
    let run = "pub(crate) fn run(x: i32) {\n    guard::call(|| x);\n}\n";
    GUARDS.allows_in(&with("ffi/src/gate.rs", run));
    GUARDS.allows_in(&with(
        "ffi/src/gate.rs",
        &[run.replace("guard::call", "walk"), run.replace("run", "walk")].concat(),
    ));
    GUARDS.notices_in(&with("ffi/src/gate.rs", "pub(crate) fn run(x: i32) {\n    x;\n}\n"));
    GUARDS.notices_in(&with("ffi/src/gate.rs", &run.replace("run", "walk")));
    GUARDS.notices_in(&with("ffi/src/door.rs", run));
    GUARDS.notices("ffi/Cargo.toml", "[package]\n");
    GUARDS.allows("ffi/src/store.rs", &guarded.repeat(2));
    GUARDS.allows(
        "ffi/src/hooks.rs",
        "type Hook = Option<unsafe extern \"C\" fn(*mut c_void)>;\nuse crate::guard::call;\n",
    );
    GUARDS.holds();
}
