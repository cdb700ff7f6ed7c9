#![no_main]
use rendezvous_tests::fuzz::file_log;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| file_log(bytes));
