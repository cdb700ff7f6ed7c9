#![no_main]
use rendezvous_tests::fuzz::native;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| native(bytes));
