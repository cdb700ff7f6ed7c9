#![no_main]
use rendezvous_tests::counting::Counting;
use rendezvous_tests::fuzz::{Costs, cost};
use std::sync::atomic::{AtomicU8, Ordering};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counters for one kind of cost: four for each doubling.
const COUNTERS: usize = 4 * 32;

/// libFuzzer keeps an input that sets a counter which no earlier input has set: it searches for inputs that cost more.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static REACHED: [[AtomicU8; COUNTERS]; 2] = [const { [const { AtomicU8::new(0) }; COUNTERS] }; 2];

/// Sets the counters of all costs up to this one.
fn reach(counters: &[AtomicU8; COUNTERS], cost: u64) {
    let doublings = cost.max(1).ilog2();
    let quarter = if doublings < 2 { 0 } else { (cost >> (doublings - 2)) & 3 };
    let last = (4 * doublings as usize + quarter as usize).min(COUNTERS - 1);
    counters[..=last].iter().for_each(|counter| counter.store(1, Ordering::Relaxed));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Costs { work, allocated } = cost(bytes);
    reach(&REACHED[0], work);
    reach(&REACHED[1], allocated);
});
