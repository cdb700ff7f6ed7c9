//! Descriptors and memory of many connections and of long calls.

use super::*;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("readable").count()
}

#[test]
fn a_thousand_connections_come_and_go_and_leave_nothing() {
    let (handling, _held) = handling();
    let server = RpcServer::start(server_options(), handling).expect("a free port");
    let port = server.local_addr().port();
    let client = LoneClient::new(client_options()).expect("descriptors");
    let before = descriptors();
    for round in 0..1000_u32 {
        let peer = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
        let payload = round.to_le_bytes();
        assert_eq!(peer.call(Call::of("echo").with_timeout(SOON), &payload[..]).as_deref(), Ok(&payload[..]));
    }
    let until = std::time::Instant::now() + SOON;
    while server.held() != (0, 0, 0) {
        assert!(std::time::Instant::now() < until, "{:?}", server.held());
    }
    // Other tests of this process open and close some, too.
    assert!(descriptors() < before + 200, "{before} and then {}", descriptors());
}

/// Untouched zero pages: as long as they are only read, they take no memory.
struct Zeros(*mut libc::c_void);

// SAFETY: no thread writes there.
unsafe impl Send for Zeros {}
// SAFETY: as above.
unsafe impl Sync for Zeros {}

const GIB: usize = 1 << 30;

impl Zeros {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, whose result is checked.
        let begin = unsafe { libc::mmap(std::ptr::null_mut(), GIB, libc::PROT_READ, flags, -1, 0) };
        assert_ne!(begin, libc::MAP_FAILED);
        Self(begin)
    }
}

impl AsRef<[u8]> for Zeros {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: this many bytes are mapped as long as this lives.
        unsafe { std::slice::from_raw_parts(self.0.cast(), GIB) }
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // SAFETY: its own mapping.
        unsafe { libc::munmap(self.0, GIB) };
    }
}

/// Maximum resident memory of this process.
fn most_resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line of it");
    let kib: usize = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    kib * 1024
}

#[test]
fn a_payload_of_a_gibibyte_is_there_once() {
    let scene = scene();
    let answer = |_: Request, responder: Responder| {
        responder.answer(Payload::foreign(Arc::new(Zeros::new())));
    };
    scene.handling.register("long", Run::Inline, answer).expect("a name");
    let before = most_resident_bytes();
    let call = Call::of("length").with_timeout(SOON);
    let reported = scene.peer.call(call, Payload::foreign(Arc::new(Zeros::new())));
    assert_eq!(reported, Ok(GIB.to_string().into_bytes()));
    let got = scene.peer.call(Call::of("long").with_timeout(SOON), &b""[..]).expect("in time");
    assert!(got.len() == GIB && got.iter().step_by(4099).all(|&byte| byte == 0));
    // Other tests of this process may use some at the same time.
    let grown = most_resident_bytes() - before;
    assert!(grown > GIB / 2 && grown < GIB + GIB / 2, "{grown} bytes more than before");
}
