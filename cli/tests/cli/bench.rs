//! `rdzv bench`, with few operations: that it runs, reports and cleans up. Its figures do not matter here.

use super::process::{rdzv, run, start_impostor, start_server};
use serde_json::Value;
use std::io::Read;

const FEW: [&str; 6] = ["--connections", "3", "--operations", "5", "--depth", "2"];

#[test]
fn every_work_is_measured_and_leaves_no_key() {
    let server = start_server();
    let ended = run(rdzv(&["bench", "--json"]).args(FEW).arg(server.local_addr().to_string()));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{}", ended.text());
    let results: Vec<Value> =
        ended.text().lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    let works: Vec<&str> = results.iter().filter_map(|result| result["work"].as_str()).collect();
    assert_eq!(works, ["set", "get", "add", "check", "barrier"]);
    for result in &results {
        assert_eq!(result["connections"], 3);
        let figures =
            ["p50_us", "p90_us", "p99_us", "max_us"].map(|name| result[name].as_f64().unwrap_or(-1.0));
        assert!(figures[0] > 0.0 && figures.is_sorted(), "{result}");
        assert!(result["per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{result}");
    }
    let stats = server.stats().expect("the server runs");
    assert_eq!((stats.keys, stats.expelled), (0, 0), "{stats:?}");
    assert!(stats.requests >= 5 * 3 * 5, "{stats:?}");
}

#[test]
fn without_a_target_it_loads_a_server_of_its_own() {
    let ended = run(rdzv(&["bench", "--work", "add"]).args(FEW));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert!(ended.text().starts_with("add ") && ended.text().contains("3 connections"), "{}", ended.text());
}

#[test]
fn failures_have_the_exit_codes_of_the_help() {
    let silent = start_impostor(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    for (target, code) in [("127.0.0.1:1", 4), ("no..host:1", 4), (silent.to_string().as_str(), 3)] {
        let ended = run(rdzv(&["bench", "--timeout-ms", "200"]).args(FEW).arg(target));
        assert_eq!(ended.code, code, "{target}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("rdzv bench: "), "{}", ended.stderr);
    }
    for arguments in [&["--depth", "0"], &["--connections", "0"], &["--work", "nothing"]] {
        assert_eq!(run(rdzv(&["bench"]).args(arguments)).code, 2);
    }
}
