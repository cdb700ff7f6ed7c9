//! `rdzv store`: what its operations do and print.

use super::process::{Ended, finish, rdzv, run, run_with_input, start_server, until};
use rendezvous_core::driver::server::Server;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::store_client::StoreOptions;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

fn store(server: &Server, arguments: &[&str]) -> Command {
    let mut command = rdzv(&["store", "--endpoint", &server.local_addr().to_string()]);
    command.args(arguments);
    command
}

fn client(server: &Server) -> Store {
    Store::connect("127.0.0.1", server.local_addr().port(), StoreOptions::default()).expect("it runs")
}

fn expect(ended: &Ended, stdout: &[u8]) {
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert_eq!(ended.stdout.escape_ascii().to_string(), stdout.escape_ascii().to_string());
}

#[test]
fn every_operation_prints_what_the_help_says() {
    let server = start_server();
    for (arguments, stdout) in [
        (&["set", "key", "value"][..], ""),
        (&["get", "key"], "value\n"),
        (&["get", "key", "--raw"], "value"),
        (&["set", "", ""], ""),
        (&["get", ""], "\n"),
        (&["set", "number", "-12"], ""),
        (&["add", "number", "5"], "-7\n"),
        (&["add", "number", "-1", "--raw"], "-8"),
        (&["compare-set", "new", "", "first"], "first\n"),
        (&["compare-set", "new", "first", "second"], "second\n"),
        (&["compare-set", "new", "first", "third"], "second\n"),
        (&["compare-set", "missing", "expected", "new"], "expected\n"),
        (&["wait", "key", "new"], ""),
        (&["check", "key", "new"], "true\n"),
        (&["list"], "\nkey\nnew\nnumber\n"),
        (&["list", "--prefix", "n"], "new\nnumber\n"),
        (&["list", "--prefix", "n", "--raw"], "new\0number\0"),
        (&["list", "--prefix", "none"], ""),
        (&["num-keys"], "4\n"),
        (&["delete", "number"], "1\n"),
        (&["delete", "number"], "0\n"),
        (&["append", "log", "one "], ""),
        (&["append", "log", "two"], ""),
        (&["multi-set", "a=1", "b=", "c=x=y"], ""),
        (&["multi-get", "c", "b", "a", "log"], "x=y\n\n1\none two\n"),
        (&["multi-get", "c", "b", "--raw"], "x=y\0\0"),
        (&["queue-len", "queue"], "0\n"),
        (&["queue-push", "queue", "first"], ""),
        (&["queue-push", "queue", "second"], ""),
        (&["queue-len", "queue"], "2\n"),
        (&["queue-pop", "queue"], "first\n"),
        (&["queue-pop", "queue", "--raw", "--timeout-ms", "0"], "second"),
        (&["barrier", "alone", "1"], ""),
        (&["barrier", "by-keys", "1", "--by-keys"], ""),
        (&["get", "by-keys/last_member"], "1\n"),
        (&["set", "--", "option", "--verbose"], ""),
        (&["get", "option"], "--verbose\n"),
        (&["ping"], "alive\n"),
    ] {
        let ended = run(&mut store(&server, arguments));
        assert_eq!((ended.code, ended.text(), ended.stderr.as_str()), (0, stdout, ""), "{arguments:?}");
    }
}

#[test]
fn json_is_one_object_a_line() {
    let server = start_server();
    client(&server).set(b"binary", b"\xff\0", Timeout::Default).unwrap();
    for (arguments, expected) in [
        (&["set", "key", "\"value\"\n"][..], json!([{ "operation": "set", "key": "key", "done": true }])),
        (&["get", "key"], json!([{ "operation": "get", "key": "key", "value": "\"value\"\n" }])),
        (&["get", "binary"], json!([{ "operation": "get", "key": "binary", "value": { "base64": "/wA=" } }])),
        (&["add", "n", "-3"], json!([{ "operation": "add", "key": "n", "value": -3 }])),
        (&["compare-set", "c", "", "v"], json!([{ "operation": "compare-set", "key": "c", "value": "v" }])),
        (&["wait", "key", "n"], json!([{ "operation": "wait", "done": true }])),
        (&["check", "key"], json!([{ "operation": "check", "present": true }])),
        (&["delete", "c"], json!([{ "operation": "delete", "key": "c", "count": 1 }])),
        (&["num-keys"], json!([{ "operation": "num-keys", "count": 3 }])),
        (
            &["list"],
            json!([
                { "operation": "list", "key": "binary" },
                { "operation": "list", "key": "key" },
                { "operation": "list", "key": "n" }
            ]),
        ),
        (&["append", "n", "0"], json!([{ "operation": "append", "key": "n", "done": true }])),
        (&["multi-set", "a=1", "b=2"], json!([{ "operation": "multi-set", "done": true }])),
        (
            &["multi-get", "a", "n"],
            json!([
                { "operation": "multi-get", "key": "a", "value": "1" },
                { "operation": "multi-get", "key": "n", "value": "-30" }
            ]),
        ),
        (&["queue-push", "q", "item"], json!([{ "operation": "queue-push", "key": "q", "done": true }])),
        (&["queue-len", "q"], json!([{ "operation": "queue-len", "key": "q", "count": 1 }])),
        (&["queue-pop", "q"], json!([{ "operation": "queue-pop", "key": "q", "value": "item" }])),
        (&["barrier", "gate", "1"], json!([{ "operation": "barrier", "key": "gate", "done": true }])),
        (&["barrier", "g", "1", "--by-keys"], json!([{ "operation": "barrier", "key": "g", "done": true }])),
        (&["ping"], json!([{ "operation": "ping", "alive": true }])),
    ] {
        let ended = run(store(&server, arguments).arg("--json"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{arguments:?}");
        let lines: Vec<Value> =
            ended.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(Value::Array(lines), expected, "{arguments:?}");
    }
}

#[test]
fn a_missing_key_is_a_negative_answer_to_check() {
    let server = start_server();
    let ended = run(&mut store(&server, &["check", "missing"]));
    assert_eq!((ended.code, ended.text(), ended.stderr.as_str()), (1, "false\n", ""));
    let ended = run(&mut store(&server, &["check", "missing", "--json"]));
    assert_eq!((ended.code, ended.text()), (1, "{\"operation\":\"check\",\"present\":false}\n"));
}

#[test]
fn a_dash_reads_the_value_from_stdin() {
    let server = start_server();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    expect(&run_with_input(&mut store(&server, &["set", "key", "-"]), &bytes), b"");
    expect(&run(&mut store(&server, &["get", "key", "--raw"])), &bytes);
    expect(&run_with_input(&mut store(&server, &["append", "log", "-"]), b"one\n"), b"");
    expect(&run_with_input(&mut store(&server, &["append", "log", "-"]), b""), b"");
    expect(&run(&mut store(&server, &["get", "log"])), b"one\n\n");
    expect(&run_with_input(&mut store(&server, &["queue-push", "queue", "-"]), b"\xff"), b"");
    expect(&run(&mut store(&server, &["queue-pop", "queue"])), b"\xff\n");
    expect(&run_with_input(&mut store(&server, &["compare-set", "log", "-", "two"]), b"one\n"), b"two\n");
    expect(&run_with_input(&mut store(&server, &["compare-set", "log", "two", "-"]), b"three"), b"three\n");
}

#[test]
fn keys_and_values_are_bytes() {
    let server = start_server();
    let odd = OsStr::from_bytes(b"k\xff");
    expect(&run(store(&server, &["set"]).arg(odd).arg(OsStr::from_bytes(b"v\xfe"))), b"");
    assert_eq!(client(&server).get_owned(b"k\xff", Timeout::Once).unwrap(), b"v\xfe");
    expect(&run(store(&server, &["multi-set"]).arg(OsStr::from_bytes(b"m\xff=\xfd"))), b"");
    expect(&run(&mut store(&server, &["list"])), b"k\xff\nm\xff\n");
    expect(
        &run(&mut store(&server, &["list", "--prefix", "m", "--json"])),
        b"{\"key\":{\"base64\":\"bf8=\"},\"operation\":\"list\"}\n",
    );
}

#[test]
fn whoever_waits_is_released() {
    let server = start_server();
    let waiting = [&["get", "late"][..], &["wait", "late", "later"], &["multi-get", "later", "late"]]
        .map(|arguments| store(&server, arguments).spawn().expect("it starts"));
    let popper = store(&server, &["queue-pop", "queue"]).spawn().expect("it starts");
    until(&server, |stats| stats.waiting == 4);
    let other = client(&server);
    other.set(b"late", b"came", Timeout::Default).unwrap();
    other.set(b"later", b"too", Timeout::Default).unwrap();
    other.queue_push(b"queue", b"item", Timeout::Default).unwrap();
    for (child, stdout) in waiting.into_iter().zip([&b"came\n"[..], b"", b"too\ncame\n"]) {
        expect(&finish(child), stdout);
    }
    expect(&finish(popper), b"item\n");
}

#[test]
fn barriers_of_both_kinds_meet_their_likes() {
    let server = start_server();
    for extra in [&[][..], &["--by-keys"]] {
        let key = format!("gate{}", extra.len());
        let members: Vec<_> = (0..3)
            .map(|_| store(&server, &["barrier", &key, "4"]).args(extra).spawn().expect("it starts"))
            .collect();
        until(&server, |stats| stats.waiting == 3);
        let other = client(&server);
        if extra.is_empty() {
            other.barrier(key.as_bytes(), 4, Timeout::Default).unwrap();
        } else {
            other.barrier_by_keys(key.as_bytes(), 4, Timeout::Default).unwrap();
        }
        for member in members {
            expect(&finish(member), b"");
        }
    }
}

#[test]
fn the_environment_names_the_store() {
    let server = start_server();
    let address = server.local_addr();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    client(&server).set(b"key", b"value", Timeout::Default).unwrap();
    let get = || rdzv(&["store", "get", "key"]);
    expect(&run(get().env("RDZV_ENDPOINT", address.to_string())), b"value\n");
    expect(&run(get().env("MASTER_ADDR", &ip).env("MASTER_PORT", &port)), b"value\n");
    // The more particular one counts.
    let nowhere = "127.0.0.1:1";
    let both =
        run(get().env("RDZV_ENDPOINT", address.to_string()).env("MASTER_ADDR", &ip).env("MASTER_PORT", "1"));
    expect(&both, b"value\n");
    expect(&run(get().arg("--endpoint").arg(address.to_string()).env("RDZV_ENDPOINT", nowhere)), b"value\n");
    let ended = run(get().env("RDZV_ENDPOINT", address.to_string()).env("RDZV_JSON", "1"));
    expect(&ended, b"{\"key\":\"key\",\"operation\":\"get\",\"value\":\"value\"}\n");
}

#[test]
fn a_file_is_a_store_and_prefixes_nest() {
    let file = std::env::temp_dir().join(format!("rdzv-cli-{}", std::process::id()));
    let path = file.to_str().expect("a path in UTF-8");
    let call = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_rdzv"))
            .args(["store", "--file", path])
            .args(arguments)
            .output()
            .expect("rdzv runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(call(&["set", "k", "value"]), (Some(0), String::new()));
    assert_eq!(call(&["get", "k"]), (Some(0), "value\n".into()));
    assert_eq!(call(&["set", "k", "deep", "--scope", "a", "--scope", "b"]), (Some(0), String::new()));
    assert_eq!(call(&["get", "a/b/k"]), (Some(0), "deep\n".into()));
    assert_eq!(call(&["list", "--scope", "a"]), (Some(0), "b/k\n".into()));
    assert_eq!(call(&["queue-len", "q"]).0, Some(6));
    std::fs::write(&file, "no store").expect("written");
    assert_eq!(call(&["get", "k"]).0, Some(5));
    std::fs::remove_file(&file).expect("removed");
}
