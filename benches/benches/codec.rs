//! The c10d codec: finding and reading frames, and writing them.
#![allow(missing_docs, reason = "criterion's macros make the entry points")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rendezvous_benches::frame;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::store::op::{Key, Keys, Request};
use rendezvous_core::wire::c10d::{Frame, Scan, Scanner, encode_frame, parse_frame};
use rendezvous_core::wire::sink::Fill;
use std::hint::black_box;

fn decode(bytes: &[u8], limits: &FrameLimits) -> usize {
    let (mut scanner, mut rest, mut frames) = (Scanner::default(), bytes, 0);
    while let Ok(Scan::Whole { bytes }) = scanner.scan(rest, limits) {
        black_box(parse_frame(&rest[..bytes]));
        rest = &rest[bytes..];
        frames += 1;
    }
    frames
}

fn codec(criterion: &mut Criterion) {
    let limits = FrameLimits::default();
    let key = Key::scoped(b"/", b"bench/key");
    let names: Vec<String> = (0..1000).map(|index| format!("rank/{index}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let value = vec![7; 256];
    let samples = [
        ("add", Request::Add { key, delta: 1 }),
        ("set_256", Request::Set { key, value: &value }),
        ("wait_1000", Request::Wait { keys: Keys::scoped(b"/", &names) }),
    ];
    let mut group = criterion.benchmark_group("codec");
    for (name, request) in samples {
        let one = frame(request);
        let many = one.repeat(64);
        group.throughput(Throughput::Elements(64));
        group.bench_with_input(BenchmarkId::new("decode", name), &many, |bencher, bytes| {
            bencher.iter(|| assert_eq!(decode(black_box(bytes), &limits), 64));
        });
        let mut buffer = vec![0; one.len()];
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("encode", name), |bencher| {
            bencher.iter(|| {
                let mut fill = Fill::new(black_box(&mut buffer));
                encode_frame(&mut fill, black_box(&Frame::Request(request)));
                fill.finish()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
