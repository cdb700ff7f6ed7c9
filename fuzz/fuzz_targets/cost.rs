#![no_main]
use rendezvous_tests::counting::Counting;
use rendezvous_tests::fuzz::cost;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cost(bytes);
});
