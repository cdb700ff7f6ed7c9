//! Programs and commands of README and guides, run as a reader runs them.

use super::blocks::block;
use crate::c_programs::{Build, TIMEOUT, folder};
use crate::library;
use crate::process::{Ran, run};
use crate::rdzv::{self, RdzvServer};
use rendezvous_core::driver::rendezvous::Context;
use rendezvous_core::driver::server::{Server, ServerOptions};
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::time::Duration as Span;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A block as a source of its own.
fn source(document: &str, begins: &str, test: &str) -> PathBuf {
    let source = folder(test).join("program.cpp");
    std::fs::write(&source, block(document, begins).text).expect("the folder of this test");
    source
}

fn program(document: &str, begins: &str, test: &str) -> PathBuf {
    Build::cpp(test, "c++17", &[source(document, begins, test)]).linked_with(library::shipped()).plain()
}

/// Runs commands of a document in a folder that looks as the clone does after `make lib`.
struct Clone {
    folder: PathBuf,
}

impl Clone {
    /// With this program in it.
    fn with(test: &str, name: &str, program: &str) -> Self {
        let folder = folder(test);
        std::fs::remove_dir_all(&folder).expect("what an earlier test left goes");
        let release = folder.join("target/release");
        std::fs::create_dir_all(&release).expect("the folder of this test");
        let built = library::shipped().parent().expect("a folder");
        for entry in std::fs::read_dir(built).expect("what was built") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            if name.starts_with("librendezvous.") && !name.ends_with(".d") {
                symlink(&path, release.join(name)).expect("a link");
            }
        }
        symlink(crate::rdzv::program(), release.join("rdzv")).expect("a link");
        symlink(crate::repository().join("include"), folder.join("include")).expect("a link");
        std::fs::write(folder.join(name), program).expect("the folder of this test");
        Self { folder }
    }

    /// Runs these commands, the server among them on a port of the test's and as long as they take, and waits for the
    /// command that was begun last.
    fn run(&self, commands: &str) -> Ran {
        let mut script = "set -e\ntrap 'kill $server' EXIT\n".to_owned();
        for line in commands.lines().filter(|line| !line.starts_with("make ")) {
            let command = line.split(" # ").next().unwrap_or(line).trim_end().trim_end_matches(" &");
            match line.contains("rdzv server ") {
                true => script += &format!("{command} &\nserver=$!\n"),
                false => script += &format!("{line}\n"),
            }
        }
        script += "wait $!\n";
        let script = script.replace("29500", &crate::run::free_port());
        run(Command::new("sh").arg("-c").arg(script).current_dir(&self.folder), TIMEOUT).or_fail(commands)
    }
}

#[test]
fn the_commands_of_the_readme_do_what_it_says() {
    let hello = block("README.md", "// hello.cpp").text;
    let ran = Clone::with("readme", "hello.cpp", &hello).run(&block("README.md", "make lib").text);
    for rank in 0..2 {
        let line = format!("rank {rank} of 2: the leader is at 10.0.0.0:7000\n");
        assert!(ran.stdout.contains(&line), "{}", ran.stdout);
    }
    let program = program("README.md", "// hello.cpp", "readme_alone");
    let ran = run(Command::new(&program).env_remove("RANK").env("WORLD_SIZE", "1"), TIMEOUT);
    assert!(ran.stderr.contains("RANK is not set"), "{}", ran.stderr);
}

#[test]
fn the_node_of_the_guide_joins_and_leaves() {
    let source = folder("guide_node").join("node.c");
    std::fs::write(&source, block("docs/cpp-guide.md", "// node.c").text).expect("the folder of this test");
    let program = Build::c11("guide_node", &[source]).linked_with(library::shipped()).plain();
    let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a port");
    let endpoint = server.local_addr().to_string();
    let nodes = [0, 1].map(|_| {
        let (program, endpoint) = (program.clone(), endpoint.clone());
        std::thread::spawn(move || run(Command::new(&program).arg(&endpoint), TIMEOUT).or_fail("node").stdout)
    });
    let mut printed = nodes.map(|node| node.join().expect("no panic"));
    printed.sort();
    assert_eq!(printed, [0, 1].map(|rank| format!("node {rank} of 2 in round 0\n")));
    drop(server);
    let ran = run(Command::new(&program).arg("host:x"), TIMEOUT);
    assert!(ran.stderr.starts_with("node: "), "{}", ran.stderr);
}

#[test]
fn the_commands_of_the_guide_do_what_it_says() {
    const GUIDE: &str = "docs/cpp-guide.md";
    let ranks = block(GUIDE, "#include <rendezvous.hpp>").text;
    let clone = Clone::with("guide", "ranks.cpp", &ranks);
    let release = clone.folder.join("target/release");
    for linking in [
        "g++ -std=c++17 -O2 -Iinclude ranks.cpp -o ranks -L",
        "g++ -std=c++17 -O2 -Iinclude ranks.cpp -o ranks target",
    ] {
        let commands = block(GUIDE, linking).text + &block(GUIDE, "target/release/rdzv server").text;
        let ran = clone.run(&commands);
        for rank in 0..2 {
            for other in 0..2 {
                let line = format!("rank {rank} sees 10.0.0.{other}:4000\n");
                assert!(ran.stdout.contains(&line), "{}", ran.stdout);
            }
        }
    }
    // The last one is linked statically, and has the size that the guide gives.
    let program = clone.folder.join("ranks");
    let stripped = clone.folder.join("ranks_stripped");
    run(Command::new("strip").arg("-o").arg(&stripped).arg(&program), TIMEOUT).or_fail("strip");
    let size = stripped.metadata().expect("a file").len();
    assert!((400_000..700_000).contains(&size), "{size} bytes");
    // What the first one asks for is the name of the file to put beside a program.
    let soname = "librendezvous.so.0.2";
    assert!(block(GUIDE, "g++ -std=c++17 -O2 -Iinclude ranks.cpp -o ranks -L").text.contains("-rpath"));
    let shipped = clone.folder.join("shipped");
    std::fs::create_dir_all(&shipped).expect("the folder of this test");
    std::fs::copy(release.join("librendezvous.so"), shipped.join(soname)).expect("the library");
    let mut link = Command::new("g++");
    link.args([
        "-std=c++17",
        "-Iinclude",
        "ranks.cpp",
        "-o",
        "shipped/ranks",
        "-Ltarget/release",
        "-lrendezvous",
    ]);
    run(link.arg("-Wl,-rpath,$ORIGIN").current_dir(&clone.folder), TIMEOUT).or_fail("g++");
    let usage = |expected: &str| {
        let ran = run(&mut Command::new(shipped.join("ranks")), TIMEOUT);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    };
    usage("usage: ranks HOST PORT RANK WORLD_SIZE");
    std::fs::remove_file(shipped.join(soname)).expect("the library");
    usage(soname);
}

/// A barrier whose key was used once lets every later rank through at once, as the guide says.
#[test]
fn a_used_barrier_key_lets_the_next_job_through() {
    use rendezvous_core::driver::store::{Store, Timeout};
    use rendezvous_core::driver::store_client::StoreOptions;
    let guide = std::fs::read_to_string(crate::repository().join("docs/cpp-guide.md")).expect("the guide");
    assert!(guide.contains("**a barrier whose key was\nused once lets every later rank through at once.**"));
    let server = crate::net::start(rendezvous_core::limits::ServerLimits::default());
    let port = server.local_addr().port();
    let store = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("it runs");
    store.barrier(b"ready", 2, Timeout::Once).expect_err("one of two is missing");
    store.barrier(b"ready", 2, Timeout::Once).expect("both have arrived");
    // The next job has two ranks as well, and the first of them passes alone.
    store.barrier(b"ready", 2, Timeout::Once).expect("the key was used");
    let prefixed = store.with_prefix(b"job7");
    prefixed.barrier(b"ready", 2, Timeout::Once).expect_err("one of two is missing");
}

/// A process that runs the loop of the guide, and the lines that it prints.
struct GuideNode {
    child: Child,
    lines: Receiver<String>,
}

impl GuideNode {
    fn start(program: &Path, endpoint: &str) -> Self {
        let mut command = Command::new(program);
        command.arg(endpoint).env_remove("LD_LIBRARY_PATH").stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (notify, lines) = channel();
        let stdout = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| notify.send(line))
        });
        Self { child, lines }
    }
}

impl Drop for GuideNode {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Two nodes that run the loop of the guide, and one that observes, stay in the round in which they met, and are notified
/// of a death.
#[test]
fn nodes_of_the_guide_stay_in_one_round_while_all_are_well() {
    // The round forms when all three are there, and does not wait half a minute for a fourth one.
    let body = block("docs/rendezvous.md", "rdzv::rendezvous_parameters parameters")
        .text
        .replace("\"head-node:29400\"", "endpoint")
        .replace("2, 8", "3, 3");
    let text = format!(
        "#include <rendezvous.hpp>\n#include <cstdio>\n\
         int main(int, char** arguments) try {{\nconst char* endpoint = arguments[1];\n\
         std::setvbuf(stdout, nullptr, _IOLBF, 0);\n{body}\n}} catch (const std::exception& problem) {{\n\
         std::puts(problem.what());\nreturn 1;\n}}\n"
    );
    let source = folder("guide_nodes").join("program.cpp");
    std::fs::write(&source, text).expect("the folder of this test");
    let program = Build::cpp("guide_nodes", "c++17", &[source]).linked_with(library::shipped()).plain();
    let server = crate::net::start(rendezvous_core::limits::ServerLimits::default());
    let endpoint = server.local_addr().to_string();
    let nodes = [GuideNode::start(&program, &endpoint), GuideNode::start(&program, &endpoint)];
    let node = |name: &str| {
        let parameters = RendezvousParameters::new("rdzv", &endpoint, "my-run", 3, 3).expect("valid");
        let parameters = parameters.with("is_host", false).with("node", name);
        Context::default().create_handler(&parameters).expect("a handler")
    };
    let first = node("first");
    let info = first.next_rendezvous().expect("all meet");
    assert_eq!(info.round, Some(0));
    // The programs look for events every second. While nothing happens for 10 s they neither leave nor join, and the
    // round that the next death ends is still the first one.
    assert_eq!(first.next_event(Span::from_secs(10)).expect("the round goes on"), None);
    for node in &nodes {
        assert!(node.lines.try_recv().is_err(), "it has nothing to tell");
    }
    // As if its process had died.
    drop(first);
    for node in &nodes {
        let reported = node.lines.recv_timeout(crate::net::TIMEOUT).expect("it is notified of the death");
        assert!(
            reported.starts_with("node first (rank ") && reported.contains(" of round 0) died: "),
            "{reported}"
        );
    }
    let second = node("second");
    assert_eq!(second.next_rendezvous().expect("all meet again").round, Some(1));
    assert_eq!(second.next_event(Span::from_secs(2)).expect("the round goes on"), None);
}

/// A leader dies while the program follows: the program takes over, and others after it.
#[test]
fn program_of_native_stores_elects_one_leader_after_the_other() {
    use rendezvous_core::driver::native_client::NativeClientOptions;
    use rendezvous_core::driver::store::{Store, Timeout};
    use rendezvous_core::error::Operation;
    use rendezvous_core::time::Duration as Span;
    let program = program("docs/native-stores.md", "#include <rendezvous.hpp>", "native_stores");
    let server = crate::net::start(rendezvous_core::limits::ServerLimits::default());
    let port = server.local_addr().port();
    let connect = || {
        let store = Store::connect_native("127.0.0.1", port, NativeClientOptions::default());
        store.expect("it runs").with_prefix(b"election")
    };
    let elect = |name: &str| {
        run(Command::new(&program).args(["127.0.0.1", &port.to_string(), name]), TIMEOUT).or_fail(name).stdout
    };
    let (leader, witness) = (connect(), connect());
    let lease = leader.native(Operation::LeaseGrant).expect("native").lease(Span::ZERO, Timeout::Default);
    lease.expect("granted").attach(&[b"alive/ghost"], Timeout::Default).expect("attached");
    for (key, value) in [("alive/ghost", ""), ("leader", "ghost")] {
        leader.set(key.as_bytes(), value.as_bytes(), Timeout::Default).expect("set");
    }
    let alive = witness.native(Operation::Watch).expect("native");
    let alive = alive.watch_prefix(b"alive/ada/", 0, Timeout::Default).expect("begun");
    let message = std::thread::scope(|scope| {
        let follower = scope.spawn(|| elect("ada"));
        assert!(alive.next(Span::from_secs(20)).expect("it goes on").is_some(), "ada comes");
        drop(leader);
        follower.join().expect("it ends")
    });
    let lines: Vec<_> = message.lines().collect();
    assert!(
        lines.last().is_some_and(|line| line.starts_with("ada/") && line.contains(" leads in term ")),
        "{message}"
    );
    let term =
        |message: &str| message.trim_end().rsplit(' ').next().and_then(|term| term.parse::<u64>().ok());
    let plan = witness.get_owned(b"plan", Timeout::Once).expect("it is there");
    assert!(plan.starts_with(b"by ada/"), "{plan:?}");
    let next = elect("bob");
    assert!(next.starts_with("bob/") && next.contains(" leads") && term(&next) > term(&message), "{next}");
}

#[test]
fn program_of_native_stores_proves_its_token_or_prints_why_not() {
    let body = block("docs/native-stores.md", "rdzv::store_options options;").text;
    let body =
        body.replace("\"/etc/job/trainer.token\"", "arguments[1]").replace("\"10.0.0.5\"", "\"127.0.0.1\"");
    let body = body.replace("29500", "std::atoi(arguments[2])");
    let text = format!(
        "#include <rendezvous.hpp>\n#include <cstdio>\n#include <cstdlib>\n\
         int main(int, char** arguments) {{\n{body}\nreturn store ? 0 : 1;\n}}\n"
    );
    let folder = folder("token_of_native_stores");
    let source = folder.join("program.cpp");
    std::fs::write(&source, text).expect("the folder of this test");
    let program =
        Build::cpp("token_of_native_stores", "c++17", &[source]).linked_with(library::shipped()).plain();
    let file = |name: &str, secret: &str| {
        let path = folder.join(name);
        std::fs::write(&path, secret).expect("the folder of this test");
        path.to_str().expect("text").to_owned()
    };
    let right = file("right.token", "0123456789abcdef0123456789abcdef");
    let wrong = file("wrong.token", "ffffffffffffffffffffffffffffffff");
    let server = RdzvServer::with(&["--bind", "127.0.0.1:0", "--auth-token-file", &right], None);
    let port = server.address().port().to_string();
    let connect = |token: &str| run(Command::new(&program).args([token, &port]), TIMEOUT);
    assert_eq!(connect(&right).or_fail("the right token").stderr, "");
    let refused = connect(&wrong);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("the server does not know the client's token"), "{}", refused.stderr);
}

#[test]
fn certificates_of_the_guide_admit_a_client() {
    let folder = folder("guide_tls");
    let commands = block("docs/tls.md", "openssl req -x509").text;
    assert_eq!(commands.lines().count(), 5, "{commands}");
    let mut shell = Command::new("sh");
    run(shell.args(["-e", "-c", &commands]).current_dir(&folder), TIMEOUT).or_fail("openssl");
    let file = |name: &str| folder.join(name).to_str().expect("text").to_string();
    let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
    let tls = ["--bind", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let server = RdzvServer::with(&tls, None);
    let port = server.address().port();
    for host in ["localhost", "127.0.0.1"] {
        let mut client = Command::new(rdzv::program());
        let (endpoint, cert, key) = (format!("{host}:{port}"), file("node.pem"), file("node.key"));
        client.args([
            "store",
            "--endpoint",
            &endpoint,
            "--tls-ca",
            &ca,
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
        ]);
        let ran = run(client.args(["add", "n", "1"]), TIMEOUT).or_fail("rdzv store");
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn tokens_of_the_guide_are_what_a_server_reads() {
    let text = block("SECURITY.md", "# NAME").text;
    let tokens = rendezvous_core::access::Tokens::parse(&text).expect("three tokens");
    assert_eq!(tokens.count(), 3);
}
