//! The fuzz targets on a stable compiler: over their committed corpus, and over noise that follows from seeds.

use crate::c_calls::c_calls;
use rendezvous_tests::entropy::noise;
use rendezvous_tests::fuzz;

fn run(target: &str, body: fn(&[u8]), rounds: u64, made_up: fn(u64) -> Vec<u8>) {
    let corpus = crate::repository().join("fuzz/corpus").join(target);
    let seeds = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut names: Vec<_> = seeds.map(|entry| entry.expect("an entry").path()).collect();
    names.sort();
    assert!(!names.is_empty(), "{}: no corpus", corpus.display());
    for name in names {
        let _culprit = Culprit(name.display().to_string());
        body(&std::fs::read(&name).expect("a file of the corpus"));
    }
    for seed in 0..rounds {
        let _culprit = Culprit(format!("made up from seed {seed}"));
        body(&made_up(seed));
    }
}

/// Names the input when the body panics.
struct Culprit(String);

impl Drop for Culprit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input: {}", self.0);
        }
    }
}

/// Noise of any length below a thousand.
fn some_noise(seed: u64) -> Vec<u8> {
    noise(seed, usize::try_from(seed % 997).expect("below a thousand"))
}

#[test]
fn decoder_holds() {
    run("decoder", fuzz::decoder, 2000, some_noise);
    run("decoder", fuzz::decoder, 2000, fuzz::talk);
}

#[test]
fn native_decoder_holds() {
    run("native", fuzz::native, 1000, some_noise);
    run("native", fuzz::native, 2000, fuzz::native_talk);
}

#[test]
fn file_log_is_as_its_model() {
    run("file_log", fuzz::file_log, 2000, some_noise);
}

#[test]
fn formats_hold() {
    run("formats", fuzz::formats, 2000, some_noise);
}

#[test]
fn native_server_keeps_to_its_protocol() {
    run("native_server", fuzz::native_server, 1000, some_noise);
}

#[test]
fn c_calls_hold() {
    run("c_calls", c_calls, 1000, some_noise);
}

#[test]
fn no_input_costs_more_than_its_bound() {
    let body = |bytes: &[u8]| {
        fuzz::cost(bytes);
    };
    run("cost", body, 500, some_noise);
}

#[test]
fn engine_is_as_its_model() {
    run("engine", fuzz::engine, 3000, some_noise);
}

#[test]
fn rpc_holds() {
    run("rpc", fuzz::rpc, 2000, some_noise);
    run("rpc", fuzz::rpc, 4000, fuzz::rpc_talk);
}

#[test]
fn server_is_as_its_model() {
    run("server", fuzz::server, 3000, some_noise);
}
