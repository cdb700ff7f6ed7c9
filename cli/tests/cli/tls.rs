//! TLS: the server and its clients, with the files that the flags name.

use super::certificates::Authority;
use super::process::{Ended, finish, rdzv, run, signal};
use super::server::start;
use std::path::PathBuf;

/// A folder with a CA, and files of a server and of a client.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("rdzv-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let authority = Authority::new();
        authority.write(&folder, "ca.pem");
        authority.issue(&["127.0.0.1"]).write(&folder, "server");
        authority.issue(&["n0"]).write(&folder, "client");
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").into()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn store(endpoint: &str, arguments: &[&str]) -> Ended {
    run(&mut rdzv(&[&["store", "--endpoint", endpoint, "--connect-timeout-ms", "5s"], arguments].concat()))
}

#[test]
fn a_store_is_used_through_tls_and_the_log_names_who_was_refused() {
    let files = Files::new("cli-tls");
    let (cert, key, ca) = (files.path("server.pem"), files.path("server.key"), files.path("ca.pem"));
    let tls = ["server", "--bind", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key];
    let (child, _stdout, address) = start(&mut rdzv(&tls));
    let endpoint = address.to_string();
    let ended = store(&endpoint, &["--tls-ca", &ca, "add", "n", "7"]);
    assert_eq!((ended.code, ended.text()), (0, "7\n"), "{}", ended.stderr);
    // c10d has no TLS, and shares the keys.
    let ended = store(&endpoint, &["add", "n", "1"]);
    assert_eq!((ended.code, ended.text()), (0, "8\n"), "{}", ended.stderr);
    let mut named = rdzv(&["store", "--endpoint", &endpoint, "--tls-server-name", "other", "get", "n"]);
    let ended = run(named.env("RDZV_TLS_CA", &ca));
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("the server's certificate is for other names"), "{}", ended.stderr);
    // Handshakes take turns: when this one is over, the server has handled the end of the one before it.
    let ended = store(&endpoint, &["--tls-ca", &ca, "get", "n"]);
    assert_eq!((ended.code, ended.text()), (0, "8\n"), "{}", ended.stderr);
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("TLS: the peer refused the TLS connection"), "{}", ended.stderr);
}

#[test]
fn a_server_with_a_client_ca_requires_a_certificate() {
    let files = Files::new("cli-mutual");
    let (cert, key, ca) = (files.path("server.pem"), files.path("server.key"), files.path("ca.pem"));
    let mut server = rdzv(&["server", "--bind", "127.0.0.1:0"]);
    server.env("RDZV_TLS_CERT", &cert).env("RDZV_TLS_KEY", &key).env("RDZV_TLS_CLIENT_CA", &ca);
    let (child, _stdout, address) = start(&mut server);
    let endpoint = address.to_string();
    let ended = store(&endpoint, &["--tls-ca", &ca, "add", "n", "7"]);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("--tls-cert and --tls-key"), "{}", ended.stderr);
    let (cert, key) = (files.path("client.pem"), files.path("client.key"));
    let ended = store(&endpoint, &["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key, "add", "n", "7"]);
    assert_eq!((ended.code, ended.text()), (0, "7\n"), "{}", ended.stderr);
    // Without TLS, a client has no certificate.
    let once = ["store", "--endpoint", &endpoint, "--connect-timeout-ms", "100ms", "add", "n", "1"];
    let ended = run(&mut rdzv(&once));
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("c10d clients are not served from this address"), "{}", ended.stderr);
    let (child, _stdout, address) = start(server.args(["--allow-c10d-from", "loopback"]));
    let ended = store(&address.to_string(), &["add", "n", "1"]);
    assert_eq!((ended.code, ended.text()), (0, "1\n"), "{}", ended.stderr);
    signal(child.id(), libc::SIGTERM);
    assert_eq!(finish(child).code, 0);
}

#[test]
fn flags_that_do_not_fit_together_are_wrong_usage() {
    let files = Files::new("cli-usage");
    let (cert, key, ca) = (files.path("server.pem"), files.path("server.key"), files.path("ca.pem"));
    for (expected, code, arguments) in [
        ("--tls-key <FILE>", 2, &["server", "--tls-cert", &cert][..]),
        ("the file has no certificate in PEM", 1, &["server", "--tls-cert", &key, "--tls-key", &key]),
        ("No such file", 1, &["server", "--tls-cert", "none.pem", "--tls-key", &key]),
        ("--tls-key, its private key", 2, &["store", "--tls-ca", &ca, "--tls-cert", &cert, "get", "k"]),
        ("needs --tls-ca", 2, &["store", "--tls-server-name", "n", "get", "k"]),
        ("the file has no CA certificate", 2, &["store", "--tls-ca", &key, "get", "k"]),
        (
            "'tls_ca' is missing",
            2,
            &["run", "--rdzv-endpoint", "localhost", "--tls-server-name", "n", "true"],
        ),
        (
            "none.pem: No such file",
            2,
            &["run", "--rdzv-endpoint", "localhost", "--tls-ca", "none.pem", "true"],
        ),
    ] {
        let mut command = rdzv(arguments);
        let ended = run(command.env("RDZV_ENDPOINT", "127.0.0.1:1"));
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn nodes_meet_through_tls_at_the_one_that_hosts_the_server() {
    let files = Files::new("cli-run");
    let (cert, key, ca) = (files.path("server.pem"), files.path("server.key"), files.path("ca.pem"));
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let endpoint = format!("127.0.0.1:{port}");
    let node = || {
        let job = ["run", "--nnodes", "2", "--rdzv-endpoint", &endpoint, "--nproc-per-node", "1"];
        let tls = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
        let program = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE"];
        rdzv(&[&job[..], &tls, &program].concat()).spawn().expect("the program starts")
    };
    let nodes = [node(), node()];
    let ended = nodes.map(finish);
    for ended in &ended {
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    let mut lines: Vec<_> = ended.iter().map(|ended| ended.text().trim().to_string()).collect();
    lines.sort();
    assert!(lines[0].ends_with("rank 0 of 2") && lines[1].ends_with("rank 1 of 2"), "{lines:?}");
}
