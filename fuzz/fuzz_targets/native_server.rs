#![no_main]
use rendezvous_tests::fuzz::native_server;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| native_server(bytes));
