#![no_main]
use rendezvous_tests::fuzz::decoder;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| decoder(bytes));
