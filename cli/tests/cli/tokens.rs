//! `rdzv server --auth-token-file` and its clients.

use super::process::{Ended, finish, rdzv, run, signal};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;

const ADMIN: &str = "admin 0123456789abcdef0123456789abcdef all";
const READER: &str = "reader 00112233445566778899aabbccddeeff read:/open/";

/// A folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rdzv-tokens-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        path.to_str().expect("text").into()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A guarded server, and the address where it listens. Dropping it kills it.
struct Guarded(Option<Child>, String);

impl Guarded {
    fn start(tokens: &str, flags: &[&str]) -> Self {
        let arguments = ["server", "--bind", "127.0.0.1:0", "--log", "debug", "--auth-token-file", tokens];
        let mut child = rdzv(&[&arguments[..], flags].concat()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
        Self(Some(child), address.into())
    }

    fn ask(&self, token: Option<&str>, words: &[&str]) -> Ended {
        let endpoint = ["--endpoint", &self.1, "--timeout-ms", "20s"];
        let mut command = rdzv(&[words, &endpoint].concat());
        if let Some(token) = token {
            command.env("RDZV_TOKEN_FILE", token);
        }
        run(&mut command)
    }

    /// Ends the server and returns its log.
    fn log(mut self) -> String {
        let child = self.0.take().expect("it runs");
        signal(child.id(), libc::SIGTERM);
        finish(child).stderr
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

#[test]
fn a_token_opens_the_store_as_far_as_its_rights_go() {
    let folder = Folder::new("rights");
    let tokens = folder.file("tokens", &format!("{ADMIN}\n{READER}\n"));
    let (admin, reader) = (folder.file("admin", ADMIN), folder.file("reader", READER));
    let wrong = folder.file("wrong", "admin ffffffffffffffffffffffffffffffff");
    let server = Guarded::start(&tokens, &[]);
    assert_eq!(server.ask(Some(&admin), &["store", "set", "open/k", "v"]).code, 0);
    let ended = server.ask(Some(&reader), &["store", "get", "open/k"]);
    assert_eq!((ended.code, ended.text()), (0, "v\n"), "{}", ended.stderr);
    let ended = server.ask(Some(&reader), &["store", "set", "open/k", "w"]);
    assert_eq!(ended.code, 7);
    assert!(ended.stderr.contains("no right `write:` covers /open/k"), "{}", ended.stderr);
    let ended = server.ask(Some(&wrong), &["store", "get", "open/k"]);
    assert_eq!(ended.code, 7);
    assert!(ended.stderr.contains("does not know the client's token"), "{}", ended.stderr);
    let ended = server.ask(None, &["sessions", "list"]);
    assert_eq!(ended.code, 7);
    assert!(ended.stderr.contains("the server asks for a token"), "{}", ended.stderr);
    // A client of PyTorch's protocol meets a closed connection: the protocol has no words for more.
    assert_eq!(server.ask(None, &["store", "--connect-timeout-ms", "0", "get", "open/k"]).code, 5);
    let log = server.log();
    assert!(log.contains("token=reader") && log.contains("c10d clients are not served"), "{log}");
    for secret in [ADMIN, READER].map(|line| line.split(' ').nth(1).expect("a secret")) {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn pytorch_is_served_from_where_it_is_allowed() {
    let folder = Folder::new("c10d");
    let tokens = folder.file("tokens", ADMIN);
    let server = Guarded::start(&tokens, &["--allow-c10d-from", "loopback"]);
    assert_eq!(server.ask(None, &["store", "set", "k", "v"]).code, 0);
}

#[test]
fn a_removed_token_opens_nothing_more_and_its_sessions_are_ended() {
    let folder = Folder::new("removed");
    let tokens = folder.file("tokens", &format!("{ADMIN}\n{READER}\n"));
    let (admin, reader) = (folder.file("admin", ADMIN), folder.file("reader", READER));
    let server = Guarded::start(&tokens, &[]);
    let waiting = ["store", "--endpoint", &server.1, "--auth-token-file", &reader, "get", "open/k"];
    let waiting = rdzv(&waiting).spawn().expect("the program starts");
    let listed = |server: &Guarded| server.ask(Some(&admin), &["sessions", "list", "--json"]);
    super::process::eventually(|| listed(&server).text().contains("\"token\":\"reader\""));
    let fresh = folder.file("fresh", ADMIN);
    fs::rename(fresh, Path::new(&tokens)).expect("the new file");
    assert_eq!(server.ask(Some(&reader), &["store", "check", "open/k"]).code, 7, "the token is gone");
    assert_eq!(server.ask(Some(&admin), &["sessions", "end", "--token", "reader"]).code, 0);
    let ended = finish(waiting);
    assert_eq!(ended.code, 5);
    assert!(ended.stderr.contains("an administrator ended it"), "{}", ended.stderr);
    // Its own token: the other session ends, and this one does its work.
    let waiting = ["store", "--endpoint", &server.1, "--auth-token-file", &admin, "get", "open/k"];
    let waiting = rdzv(&waiting).spawn().expect("the program starts");
    super::process::eventually(|| listed(&server).text().matches("\"token\":\"admin\"").count() == 2);
    assert_eq!(server.ask(Some(&admin), &["sessions", "end", "--token", "admin"]).code, 0);
    assert!(finish(waiting).stderr.contains("an administrator ended it"));
    assert_eq!(server.ask(Some(&admin), &["sessions", "end", "999"]).code, 1, "there is none");
    assert!(server.log().contains("1 tokens read from the changed token file"));
}

#[test]
fn a_file_that_cannot_be_used_is_named_and_the_server_does_not_start() {
    let folder = Folder::new("unusable");
    let short = folder.file("short", "admin 0123 all");
    for (path, why) in
        [(short.as_str(), "line 1: the secret has 4 bytes"), ("/nowhere/at/all", "No such file")]
    {
        let ended = run(&mut rdzv(&["server", "--bind", "127.0.0.1:0", "--auth-token-file", path]));
        assert_eq!(ended.code, 2);
        assert!(ended.stderr.contains(path) && ended.stderr.contains(why), "{}", ended.stderr);
    }
    let ended = run(&mut rdzv(&["server", "--bind", "127.0.0.1:0", "--allow-c10d-from", "here"]));
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("--allow-c10d-from: \"here\" is not a network"), "{}", ended.stderr);
}
