//! Texts of programs that documents show: reports, JSON and bytes.

use super::blocks::block;
use crate::net::Client;
use rendezvous_agent::error_file;
use rendezvous_agent::failure::{NodeIdentity, ProcessFailure, WorkerEnd, WorkerGroupFailure};
use rendezvous_agent::group::WorkerGroup;
use rendezvous_agent::health::{Health, LivenessPolicy};
use rendezvous_agent::phase::Phase;
use rendezvous_agent::watchdog::timer_line;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::time::{Duration, Instant};
use serde_json::Value;

const GUIDE: &str = "docs/agent.md";

#[test]
fn the_report_of_the_guide_is_that_of_the_library() {
    let end = WorkerEnd {
        local_rank: 1,
        global_rank: 9,
        pid: 101,
        exit_code: -11,
        seen_at_s: 1_700_000_000,
        error_file: error_file::ErrorFile::Absent,
        stderr_tail: vec!["loading".into(), "step 17".into()],
    };
    let failure = ProcessFailure::new(NodeIdentity { host: "n1", group_rank: 4 }, end);
    let report = WorkerGroupFailure::new("trainer", vec![failure]).expect("a failure").to_string();
    assert_eq!(block(GUIDE, "====").text.trim_end(), report);
}

#[test]
fn json_of_the_guide_is_what_the_agent_reads_and_writes() {
    for line in block(GUIDE, "{\"message\"").text.lines() {
        let error = error_file::parse(line.as_bytes()).expect("an error file");
        assert!(error.message.ends_with("boom"), "{error:?}");
        assert_eq!(error.timestamp_s, 1_700_000_000);
    }

    let health = Health {
        round: Some(4),
        attempt: 2,
        restarts: 1,
        ..Health::new(Phase::Running, Instant::ORIGIN, &WorkerGroup::default(), LivenessPolicy::Watchful)
    };
    let answer = health.to_json(Instant::ORIGIN + Duration::from_millis(12));
    let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(parsed(&block(GUIDE, "{\"healthy\"").text), parsed(&answer));

    let expires = Some(Duration::from_millis(1_700_000_060_500));
    assert_eq!(Some(block(GUIDE, "{\"version\"").text), timer_line(4711, "train.py#12", expires, 9));
}

fn bytes_of<'a>(words: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16);
    words.flat_map(|word| word.as_bytes().chunks(2)).map(|pair| byte(pair).expect("a byte")).collect()
}

/// Sends the requests of a block, and requires its responses.
fn replay(client: &mut Client, begins: &str) {
    let exchange = block("docs/protocol/c10d.md", begins).text;
    for line in exchange.lines() {
        let (direction, text) = line.trim_start().split_at(1);
        // Several requests of a line stand in groups of bytes; what describes them comes last.
        let is_hex =
            |word: &&str| word.len().is_multiple_of(2) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes = bytes_of(text.split_whitespace().take_while(is_hex));
        match direction {
            ">" => client.send(&bytes),
            _ => assert_eq!(client.receive(bytes.len()), bytes, "{line}"),
        }
    }
}

#[test]
fn the_exchanges_of_the_protocol_are_what_a_server_sends() {
    let server = crate::net::start(ServerLimits::default());
    let mut client = Client::dial(server.local_addr());
    replay(&mut client, "> 00 ce");
    replay(&mut client, "> 01 02");
    // Nothing else has come.
    client.is_served();
}
