//! `rdzv store`: one sentence or one object on stderr, nothing on stdout, and the exit code of the help.

use super::process::{Ended, greet, rdzv, run, run_with_input, start_impostor, start_server};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;

/// A port of this host that nobody listens on: it is kept for a service of the past.
const NO_CONNECTION: &str = "127.0.0.1:1";

fn store(endpoint: impl ToString, arguments: &[&str]) -> Command {
    let mut command = rdzv(&["store", "--endpoint", &endpoint.to_string()]);
    command.args(arguments);
    command
}

/// An error of this code, whose sentence has these words.
fn expect_error(ended: &Ended, code: i32, message: &[&str]) {
    assert_eq!((ended.code, ended.text()), (code, ""), "{}", ended.stderr);
    let sentence = ended.stderr.strip_prefix("rdzv store: ").unwrap_or_else(|| panic!("{}", ended.stderr));
    assert_eq!(sentence.matches('\n').count(), 1, "{sentence}");
    for word in message {
        assert!(sentence.contains(word), "no {word:?} in {sentence}");
    }
}

/// The same as JSON; returns the object.
fn expect_json_error(command: &mut Command, code: i32, kind: &str) -> Value {
    let ended = run(command.arg("--json"));
    assert_eq!((ended.code, ended.text()), (code, ""), "{}", ended.stderr);
    let error: Value = serde_json::from_str(&ended.stderr).expect("one object");
    assert_eq!(error["error"]["kind"], kind, "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    error["error"].clone()
}

#[test]
fn what_does_not_come_in_time_is_code_3() {
    let server = start_server();
    let endpoint = server.local_addr();
    for (arguments, message) in [
        (&["get", "missing"][..], &["get \"missing\"", "timed out", "the key was not set"][..]),
        (&["wait", "a", "b"], &["wait \"a\" and 1 more key", "timed out"]),
        (&["multi-get", "a", "b"], &["multi_get", "timed out"]),
        (&["queue-pop", "queue"], &["queue_pop \"queue\"", "nothing was pushed"]),
        (&["barrier", "gate", "2"], &["barrier \"gate\"", "1 of 2 have arrived"]),
        (&["barrier", "gate-by-keys", "2", "--by-keys"], &["1 of 2 have arrived"]),
    ] {
        let ended = run(store(endpoint, arguments).args(["--timeout-ms", "50"]));
        expect_error(&ended, 3, message);
        assert!(ended.stderr.contains(&endpoint.to_string()), "{}", ended.stderr);
    }
    let error =
        expect_json_error(store(endpoint, &["get", "missing"]).env("RDZV_TIMEOUT_MS", "50"), 3, "timed_out");
    assert_eq!(
        (&error["operation"], &error["key"], &error["phase"]),
        (&"get".into(), &"missing".into(), &"waiting".into())
    );
    assert_eq!(error["peer"], endpoint.to_string());
    assert!(error["elapsed_ms"].as_u64().is_some_and(|elapsed| (50..30_000).contains(&elapsed)), "{error}");
}

#[test]
fn to_look_once_ends_at_once() {
    let server = start_server();
    let endpoint = server.local_addr();
    expect_error(
        &run(&mut store(endpoint, &["get", "missing", "--timeout-ms", "0"])),
        3,
        &["get \"missing\""],
    );
    let pop = || store(endpoint, &["queue-pop", "queue", "--timeout-ms", "0"]);
    expect_error(&run(&mut pop()), 1, &["queue_pop \"queue\"", "found the queue empty"]);
    expect_json_error(&mut pop(), 1, "queue_empty");
}

#[test]
fn no_connection_is_code_4() {
    let refused = run(&mut store(NO_CONNECTION, &["get", "key", "--connect-timeout-ms", "100"]));
    expect_error(&refused, 4, &["connect to 127.0.0.1:1 was refused"]);
    let mut command = store(NO_CONNECTION, &["ping"]);
    let error = expect_json_error(command.env("RDZV_CONNECT_TIMEOUT_MS", "0"), 4, "refused");
    assert_eq!((&error["operation"], &error["phase"]), (&"connect".into(), &"connecting".into()));
    let unresolved = run(&mut store("no..host:1", &["ping", "--connect-timeout-ms", "0"]));
    expect_error(&unresolved, 4, &["connect to no..host:1 found no address"]);
}

#[test]
fn a_server_that_goes_away_is_code_5() {
    let address = start_impostor(|mut stream| {
        greet(&mut stream);
        stream.read_exact(&mut [0; 1]).ok();
    });
    expect_error(
        &run(&mut store(address, &["add", "n", "1"])),
        5,
        &["add \"n\"", "lost its server", "may have been applied"],
    );
    expect_json_error(&mut store(address, &["add", "n", "1"]), 5, "server_gone");
}

#[test]
fn an_add_to_what_is_no_number_says_so() {
    let server = start_server();
    assert_eq!(run(&mut store(server.local_addr(), &["set", "text", "none"])).code, 0);
    let ended = run(&mut store(server.local_addr(), &["add", "text", "1"]));
    expect_error(&ended, 2, &["add \"text\"", "the value is not a decimal number of 64 bits"]);
}

#[test]
fn a_server_of_another_protocol_is_code_5() {
    let address = start_impostor(|mut stream| {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let options = &["ping", "--connect-timeout-ms", "200"];
    expect_error(&run(&mut store(address, options)), 5, &["breaks the store protocol"]);
    expect_json_error(&mut store(address, options), 5, "wrong_protocol");
}

#[test]
fn a_server_that_never_answers_is_code_3() {
    let address = start_impostor(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let ended = run(&mut store(address, &["ping", "--connect-timeout-ms", "200"]));
    expect_error(&ended, 3, &["connect to", "timed out"]);
}

#[test]
fn what_is_over_a_limit_is_code_6() {
    let server = start_server();
    let endpoint = server.local_addr();
    let long = "k".repeat(8192);
    expect_error(&run(&mut store(endpoint, &["get", &long])), 6, &["8193 bytes", "limit of 8192"]);
    expect_json_error(&mut store(endpoint, &["get", &long]), 6, "limit_exceeded");
    let input = vec![b'x'; (8 << 20) + 1];
    let ended = run_with_input(&mut store(endpoint, &["set", "key", "-"]), &input);
    expect_error(&ended, 6, &["stdin", "8388608 bytes"]);
    let ended = run_with_input(&mut store(endpoint, &["set", "key", "-"]), &input[1..]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "the limit itself is allowed");
}

#[test]
#[cfg(target_os = "linux")]
fn an_answer_that_cannot_be_written_is_told() {
    let server = start_server();
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let ended = run(store(server.local_addr(), &["add", "n", "1"]).stdout(full));
    expect_error(&ended, 6, &["the operation is done", "not written"]);
}

#[test]
fn wrong_usage_is_code_2() {
    let server = start_server();
    let endpoint = server.local_addr().to_string();
    for (arguments, reason) in [
        (&["store", "get", "key"][..], "--endpoint HOST:PORT"),
        (&["store", "--endpoint", ":29400", "get", "key"], "a host is missing"),
        (&["store", "--endpoint", "::1", "get", "key"], "in brackets"),
        (&["store", "--endpoint", &endpoint], "requires a subcommand"),
        (&["store", "--endpoint", &endpoint, "steal", "key"], "steal"),
        (&["store", "--endpoint", &endpoint, "get"], "KEY"),
        (&["store", "--endpoint", &endpoint, "wait"], "KEY"),
        (&["store", "--endpoint", &endpoint, "add", "key", "one"], "one"),
        (&["store", "--endpoint", &endpoint, "set", "key", "--verbose"], "--verbose"),
        (&["store", "--endpoint", &endpoint, "barrier", "key", "0"], "0 is not in 1.."),
        (&["store", "--endpoint", &endpoint, "multi-set", "a=1", "b"], "KEY=VALUE"),
        (&["store", "--endpoint", &endpoint, "compare-set", "k", "-", "-"], "both"),
        (&["store", "--endpoint", &endpoint, "get", "key", "--timeout-ms", "-1"], "-1"),
        (&["store", "--endpoint", &endpoint, "get", "key", "--timeout-ms", "soon"], "such as 30s or 500ms"),
        (&["store", "--endpoint", &endpoint, "apend", "key"], "a similar subcommand exists: 'append'"),
        (&["store", "--endpont", &endpoint, "get", "key"], "a similar argument exists: '--endpoint'"),
        (&["store", "--endpoint", &endpoint, "get", "key", "--raw", "--json"], "--json"),
    ] {
        let ended = run(&mut rdzv(arguments));
        assert_eq!((ended.code, ended.text()), (2, ""), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(reason), "{arguments:?}: {}", ended.stderr);
    }
    let ended = run(rdzv(&["store", "get", "key"]).env("MASTER_ADDR", "h").env("MASTER_PORT", "p"));
    expect_error(&ended, 2, &["MASTER_PORT", "\"p\" is not a port"]);
    assert_eq!(server.stats().unwrap().accepted, 0, "wrong usage is found before anything is connected");
}
