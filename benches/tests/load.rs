//! `load`, with few operations: that it runs, reports and cleans up. Its figures do not matter here.

#[path = "../../cli/tests/cli/process.rs"]
#[allow(dead_code, reason = "the tests of rdzv use the rest")]
mod process;

use process::{Ended, command, greet, run, start_impostor, start_server};
use rendezvous_core::driver::server::Server;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

const WORKS: [&str; 9] = ["barrier", "legacy", "set", "get", "add", "check", "mixed", "connect", "storm"];
const RENDEZVOUS_WORKS: [&str; 3] = ["join", "death", "reform"];
const FEW: [&str; 8] = ["--connections", "3", "--operations", "5", "--depth", "2", "--repetitions", "2"];

fn load(arguments: &[&str]) -> Command {
    command(env!("CARGO_BIN_EXE_load"), arguments)
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = load(&FEW);
    command.args(arguments);
    command
}

fn lines(ended: &Ended) -> Vec<Value> {
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{}", ended.text());
    ended.text().lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn check_figures(target: &Value) {
    for figure in ["time_us", "time_ratio", "per_second", "p50_us", "p90_us", "p99_us", "max_us"] {
        assert!(target[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {target}");
    }
    let percentiles = ["p50_us", "p90_us", "p99_us", "max_us"].map(|name| target[name].as_f64());
    assert!(percentiles.is_sorted(), "{target}");
}

fn endpoint(server: &Server) -> String {
    server.local_addr().to_string()
}

/// Runs one work on a server, and checks what is reported and what stays behind.
fn check_work(server: &Server, work: &str, language: &str, spoken: &str) {
    let before = server.stats().unwrap();
    let arguments = ["--json", "--language", language, "--work", work, &endpoint(server)];
    let results = lines(&run(&mut bench(&arguments)));
    assert_eq!(results.len(), 1);
    let result = &results[0];
    assert_eq!((&result["work"], &result["connections"]), (&work.into(), &3.into()));
    assert_eq!(result["language"], spoken, "{work}");
    assert_eq!(result["targets"].as_array().map(Vec::len), Some(1), "{result}");
    check_figures(&result["targets"][0]);
    assert_eq!(result["targets"][0]["name"], endpoint(server));
    assert_eq!(result["targets"][0]["server_cpu_us"], Value::Null, "no process was named");
    let stats = server.stats().unwrap();
    assert_eq!((stats.keys, stats.expelled), (0, 0), "{work}: {stats:?}");
    // Three connections; three repetitions, with the one that warms up. A greeting of c10d is no request.
    let (accepted, requests) = (stats.accepted - before.accepted, stats.requests - before.requests);
    match work {
        "connect" | "storm" => assert!(accepted >= 3 * 3, "{work}: {stats:?}"),
        // Hello and Join; or with them what the two that are left say: that they leave, or join once more, too.
        "join" => assert!(requests >= 3 * 3 * 2, "{work}: {stats:?}"),
        "death" => assert!(requests >= 3 * (3 * 2 + 2), "{work}: {stats:?}"),
        "reform" => assert!(requests >= 3 * (3 * 2 + 2 * 2), "{work}: {stats:?}"),
        _ => assert!(requests >= 3 * 3 * 5, "{work}: {stats:?}"),
    }
}

#[test]
fn every_work_runs_in_both_languages_and_leaves_no_key_behind() {
    let server = start_server();
    for language in ["c10d", "native"] {
        for work in WORKS {
            check_work(&server, work, language, language);
        }
    }
}

#[test]
fn nodes_meet_and_die_and_meet_again_whatever_language_the_others_speak() {
    let server = start_server();
    for work in RENDEZVOUS_WORKS {
        check_work(&server, work, "c10d", "native");
    }
}

#[test]
fn keys_can_be_kept() {
    let server = start_server();
    let ended = run(&mut bench(&["--work", "barrier", "--keep-keys", &endpoint(&server)]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(server.stats().unwrap().keys, 3 * 5, "one for each round, the warm-up's too");
}

#[test]
fn targets_are_compared_with_the_first() {
    let servers = [start_server(), start_server(), start_server()];
    let pid = std::process::id();
    let targets = ["ref", "ref2", "other"];
    let targets: Vec<String> = targets
        .iter()
        .zip(&servers)
        .map(|(name, server)| format!("{name}={}:{pid}", endpoint(server)))
        .collect();
    let ended = run(bench(&["--json", "--work", "add,set", "--value-bytes", "100000"]).args(&targets));
    // Whether the machine is quiet is not for a test to say; that a doubt is told is.
    let warnings: Vec<String> = ended.stderr.lines().map(str::to_owned).collect();
    assert!(warnings.iter().all(|line| line.starts_with("warning: ")), "{warnings:?}");
    let results = lines(&Ended { stderr: String::new(), ..ended });
    assert_eq!(results.len(), 2);
    for result in &results {
        let rows = result["targets"].as_array().unwrap();
        assert_eq!(
            rows.iter().map(|row| row["name"].as_str().unwrap()).collect::<Vec<_>>(),
            ["ref", "ref2", "other"]
        );
        rows.iter().for_each(check_figures);
        assert_eq!(rows[0]["time_ratio"], 1.0);
        if cfg!(target_os = "linux") {
            assert!(rows[0]["server_cpu_us"].as_f64().is_some(), "{result}");
        }
        let again = rows[1]["time_ratio"].as_f64().unwrap();
        // The report rounds.
        if !(0.9495..=1.0505).contains(&again) || (0.9505..=1.0495).contains(&again) {
            assert_eq!(result["reference_steady"], (0.95..=1.05).contains(&again), "{result}");
        }
    }
    let doubts = results.iter().filter(|result| result["reference_steady"] == false).count();
    assert_eq!(warnings.len(), doubts, "{warnings:?}");
    let ended = run(bench(&["--json", "--work", "add,set"]).args(&targets[2..]));
    assert!(lines(&ended).iter().all(|result| result.get("reference_steady").is_none()), "one target alone");
}

#[test]
fn without_a_target_it_loads_a_server_of_its_own() {
    let ended = run(&mut bench(&["--work", "mixed"]));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    for message in [
        "no target: loading a server of our own",
        "127.0.0.1:",
        "embedded",
        "mixed, c10d: 3 connections",
        "p99 us",
    ] {
        assert!(ended.text().contains(message), "no {message:?} in\n{}", ended.text());
    }
    if cfg!(target_os = "linux") {
        assert!(ended.text().contains("server CPU us"), "{}", ended.text());
    }
    let results = lines(&run(&mut bench(&["--json", "--work", "get,check"])));
    assert_eq!(
        results.iter().map(|result| result["work"].as_str().unwrap()).collect::<Vec<_>>(),
        ["get", "check"]
    );
}

#[test]
fn values_that_no_socket_takes_at_once_get_through() {
    let server = start_server();
    let arguments = ["--connections", "2", "--operations", "4", "--depth", "4", "--repetitions", "1"];
    let mut command = load(&["--work", "set,get", "--json", "--value-bytes", "1000000"]);
    let results = lines(&run(command.args(arguments).arg(endpoint(&server))));
    assert_eq!(results.len(), 2);
    results.iter().for_each(|result| check_figures(&result["targets"][0]));
}

/// An error of this code, with these words.
fn expect_error(command: &mut Command, code: i32, message: &str) {
    let ended = run(command);
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("load: ") && ended.stderr.contains(message), "{}", ended.stderr);
}

#[test]
fn failures_have_the_exit_codes_of_the_help() {
    expect_error(&mut bench(&["127.0.0.1:1"]), 4, "connect to 127.0.0.1:1 was refused");
    expect_error(&mut bench(&["no..host:1"]), 4, "found no address for no..host");
    let silent = start_impostor(|mut stream| {
        greet(&mut stream);
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let target = silent.to_string();
    let load = ["--work", "add", "--timeout-ms", "200", &target];
    expect_error(&mut bench(&load), 3, "add on 127.0.0.1:");
    expect_error(&mut bench(&load), 3, "no answer came within 200 ms, 3 of 3 connections are waiting");
    let closing = start_impostor(|mut stream| {
        greet(&mut stream);
        stream.read_exact(&mut [0; 1]).ok();
    });
    expect_error(&mut bench(&["--work", "add", &format!("gone={closing}")]), 5, "add on gone at 127.0.0.1:");
    let babbling = start_impostor(|mut stream| {
        greet(&mut stream);
        stream.read_exact(&mut [0; 1]).ok();
        stream.write_all(&[7; 100]).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    let target = babbling.to_string();
    expect_error(&mut bench(&["--work", "barrier", &target]), 5, "the server sent what is no answer");
    // It is no server of the native language, as its first answer shows.
    let answers = ["--work", "join", "--timeout-ms", "2000", &target];
    expect_error(&mut bench(&answers), 5, "join on 127.0.0.1:");
    let json = run(&mut bench(&["--json", "127.0.0.1:1"]));
    let error: Value = serde_json::from_str(&json.stderr).expect("one object");
    assert_eq!((json.code, &error["error"]["kind"]), (4, &"Refused".into()));
}

#[test]
fn too_few_open_files_are_reported_before_the_load_begins() {
    let program = env!("CARGO_BIN_EXE_load");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 200 && exec \"$0\" --connections 100", program]);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    expect_error(&mut shell, 6, "takes 264 open files and the limit is 200");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for (arguments, reason) in [
        (&["--work", "sleep"][..], "sleep"),
        (&["--connections", "0"], "0 is not in 1.."),
        (&["a=127.0.0.1:"], "not a port"),
        (&["=127.0.0.1:1"], "a name is missing"),
        (&["a=127.0.0.1:1:me"], "not a process id"),
        (&["--depth", "65536", "--value-bytes", "8388608"], "--depth times --value-bytes is over the limit"),
        (
            &["--language", "native", "--operations", "1000", "--value-bytes", "8388608"],
            "--operations times --value-bytes is over the limit",
        ),
        (&["--language", "morse"], "morse"),
        (&["--work", "reform", "--connections", "1"], "reform takes at least 2 --connections"),
    ] {
        let ended = run(load(&[]).args(arguments));
        assert_eq!((ended.code, ended.text()), (2, ""), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(reason), "{arguments:?}: {}", ended.stderr);
    }
}
