//! Bodies of the fuzz targets. Each takes any bytes and panics when a property does not hold. The integration tests run
//! them over the committed corpus and over seeded noise.

mod cost;
mod decoder;
pub(crate) mod drawn;
mod engine;
mod file_log;
mod formats;
mod native;
mod native_server;
mod rpc;
mod server;

pub use cost::{Costs, cost};
pub use decoder::decoder;
pub use engine::engine;
pub use file_log::file_log;
pub use formats::formats;
pub use native::{native, native_talk};
pub use native_server::native_server;
pub use rpc::{rpc, rpc_talk};
pub use server::server;

use crate::entropy::{Entropy, noise};
use crate::frames;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::rng::Rng;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};

/// Limits that short bytes exceed.
const SMALL: FrameLimits = FrameLimits {
    key_bytes_max: 8,
    value_bytes_max: 16,
    keys_max: 3,
    all_key_bytes_max: 20,
    frame_bytes_max: 64,
};
const NAMES: [&[u8]; 6] = [b"/a", b"/b", b"/c", b"", b"/a/longer-name", b"/q"];
const SHORT_NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"q"];
const VALUES: [&[u8]; 8] = [
    b"",
    b"v",
    b"7",
    b" -3x",
    b"9223372036854775807",
    b"a value of some length, longer than forty bytes",
    b"x",
    b"0",
];
const DELTAS: [i64; 6] = [0, 1, -1, 1000, i64::MAX, i64::MIN];
const WORLD_SIZES: [i64; 5] = [1, 2, 3, 0, -1];

/// Returns encoded requests with a few corrupted bytes, which pure noise hardly ever produces.
#[must_use]
pub fn talk(seed: u64) -> Vec<u8> {
    let noise = noise(seed, 200);
    let mut entropy = Entropy::new(&noise);
    let mut bytes = Vec::new();
    while !entropy.is_empty() {
        bytes.extend(frames::request(any_request(&mut entropy, &mut Lists::default())));
    }
    let mut rng = Rng::new(seed);
    for _ in 0..rng.below(4) {
        let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap_or(0);
        bytes[at] = rng.next_u64().to_le_bytes()[0];
    }
    bytes
}

/// Buffers for the lists of one request.
#[derive(Default)]
struct Lists<'a> {
    keys: Vec<&'a [u8]>,
    pairs: Vec<(&'a [u8], &'a [u8])>,
}

/// Returns a random request on few keys, so that requests interact.
fn any_request<'a>(entropy: &mut Entropy<'_>, lists: &'a mut Lists<'static>) -> Request<'a> {
    let kind = entropy.below(18);
    let key = match entropy.below(4) {
        0 => Key::scoped(b"/", entropy.choose(&SHORT_NAMES)),
        1 => Key::scoped(b"/", b"a").with_suffix(b"/longer-name"),
        _ => Key::raw(entropy.choose(&NAMES)),
    };
    let scope: &[u8] = if entropy.below(2) == 0 { b"/" } else { b"" };
    lists.keys = (0..entropy.below(4)).map(|_| entropy.choose(&SHORT_NAMES)).collect();
    lists.pairs = lists.keys.iter().map(|&name| (name, entropy.choose(&VALUES))).collect();
    let (keys, pairs) = (Keys::scoped(scope, &lists.keys), Pairs::scoped(scope, &lists.pairs));
    let (value, other) = (entropy.choose(&VALUES), entropy.choose(&VALUES));
    match kind {
        0 => Request::Set { key, value },
        1 => Request::CompareSet { key, expected: value, desired: other },
        2 => Request::Get { key },
        3 => Request::Add { key, delta: entropy.choose(&DELTAS) },
        4 => Request::Check { keys },
        5 | 6 => Request::Wait { keys },
        7 => Request::NumKeys,
        8 => Request::Delete { key },
        9 => Request::Append { key, value },
        10 => Request::MultiGet { keys },
        11 => Request::MultiSet { pairs },
        12 => Request::CancelWait,
        13 => Request::QueuePush { key, value },
        14 => Request::QueuePop { key },
        15 => Request::QueueLen { key },
        16 => Request::ListKeys,
        _ => Request::Barrier { key, world_size: entropy.choose(&WORLD_SIZES) },
    }
}
