#![no_main]
use rendezvous_tests::fuzz::formats;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| formats(bytes));
