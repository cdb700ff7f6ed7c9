#![no_main]
use rendezvous_tests::fuzz::rpc;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rpc(bytes));
