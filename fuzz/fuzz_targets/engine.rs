#![no_main]
use rendezvous_tests::fuzz::engine;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| engine(bytes));
