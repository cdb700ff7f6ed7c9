//! The allocator of these tests.

pub(crate) use rendezvous_tests::counting::{
    allocated_bytes, allocations, allocations_of_all_threads, held_bytes,
};

#[global_allocator]
static ALLOCATOR: rendezvous_tests::counting::Counting = rendezvous_tests::counting::Counting;

#[test]
fn allocations_are_counted() {
    let mut kept = Vec::new();
    assert_eq!(allocations(|| kept.push(1)), 1);
    assert_eq!(allocations(|| kept.reserve(100)), 1, "growing counts, too");
    assert_eq!(allocations(|| assert_eq!(kept.pop(), Some(1))), 0);
    assert_eq!(allocated_bytes(|| drop(std::hint::black_box(vec![0_u8; 100]))), 100);
    let (made, held) = held_bytes(|| vec![0_u8; 100]);
    assert_eq!((held, held_bytes(|| drop(made)).1), (100, -100));
    let external =
        || std::thread::scope(|scope| scope.spawn(|| vec![1; 10]).join().map(drop).expect("a thread"));
    assert!(allocations_of_all_threads(external) > allocations(|| ()), "those of another thread count, too");
}
