#![no_main]
use rendezvous_tests::fuzz::server;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| server(bytes));
