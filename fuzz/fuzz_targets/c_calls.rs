#![no_main]
#[path = "../../tests/it/c_calls.rs"]
mod c_calls;
use c_calls::c_calls;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| c_calls(bytes));
