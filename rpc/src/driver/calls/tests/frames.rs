//! Callers that write their own frames, and violate the protocol.

use super::*;

/// The first bytes of `a` to `b`.
pub(in crate::driver::calls) fn hello() -> Vec<u8> {
    let mut out = Bytes(MAGIC.to_vec());
    let hello = CallerFrame::Hello {
        version_min: 1,
        version_max: 1,
        group: b"group",
        caller: b"a",
        caller_id: 1,
        callee: b"b",
        callee_id: 2,
    };
    encode_frame(&mut out, 0, &hello).expect("short");
    out.0
}

pub(super) fn greeting(scene: &Scene) -> TcpStream {
    let mut stream = TcpStream::connect(scene.server.local_addr()).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream.write_all(&hello()).expect("written");
    stream.read_exact(&mut [0; 41]).expect("Welcome");
    stream
}

pub(super) fn frame(id: u64, frame: &CallerFrame<'_>) -> Vec<u8> {
    let mut out = Bytes(Vec::new());
    encode_frame(&mut out, id, frame).expect("short");
    out.0
}

#[test]
fn frames_that_no_caller_sends_end_the_connection_and_no_other() {
    let scene = scene();
    let request = frame(1, &CallerFrame::Request { deadline_ms: 0, payload_bytes: 4, handler: b"echo" });
    let data = |bytes: u32| Header::of_data(1, bytes).to_bytes();
    for bad in [
        Header { body_bytes: u32::MAX, kind: 2, flags: 0, id: 1 }.to_bytes().to_vec(),
        Header { body_bytes: u32::MAX, kind: 0x10, flags: 0, id: 1 }.to_bytes().to_vec(),
        [&request[..], &data(5)].concat(),
        data(1).to_vec(),
    ] {
        let mut stream = greeting(&scene);
        stream.write_all(&bad).expect("written");
        let end = stream.read(&mut [0; 1]);
        assert!(
            matches!(end, Ok(0)) || end.is_err_and(|error| error.raw_os_error() == Some(libc::ECONNRESET))
        );
    }
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    scene.until_idle(1);
}

#[test]
fn a_length_that_is_a_lie_costs_nothing_and_its_deadline_passes_while_it_streams() {
    let scene = scene();
    let mut stream = greeting(&scene);
    let lie = CallerFrame::Request { deadline_ms: 30, payload_bytes: 4 << 30, handler: b"echo" };
    let head = Header::of_data(1, 1 << 20).to_bytes();
    stream.write_all(&[&frame(1, &lie)[..], &head, &[7; 100_000]].concat()).expect("written");
    let mut header = [0; 16];
    stream.read_exact(&mut header).expect("Response");
    let mut body = [0; 18];
    stream.read_exact(&mut body).expect("its body");
    assert_eq!(
        (header[4..6].to_vec(), body[..2].to_vec()),
        (vec![2, 0x80], vec![3, 0]),
        "Response, Deadline"
    );
    // The bytes in flight are skipped, and the connection continues.
    stream.write_all(&vec![7; (1 << 20) - 100_000]).expect("written");
    let next = CallerFrame::Request { deadline_ms: 0, payload_bytes: 0, handler: b"echo" };
    stream.write_all(&frame(2, &next)).expect("written");
    stream.read_exact(&mut header).expect("Response");
    assert_eq!(header[8..], 2_u64.to_le_bytes());
    drop(stream);
    scene.until_idle(0);
}

/// Reads the next frame: kind, call, and body.
pub(super) fn next_frame(stream: &mut TcpStream) -> (u16, u64, Vec<u8>) {
    let mut header = [0; 16];
    stream.read_exact(&mut header).expect("a header");
    let [b0, b1, b2, b3, k0, k1, _, _, id @ ..] = header;
    let mut body = vec![0; u32::from_le_bytes([b0, b1, b2, b3]) as usize];
    stream.read_exact(&mut body).expect("its body");
    (u16::from_le_bytes([k0, k1]), u64::from_le_bytes(id), body)
}

/// The next frame that is no pong: a caller that is held up may get those at any time.
pub(super) fn next_response(stream: &mut TcpStream) -> (u16, u64, Vec<u8>) {
    loop {
        let frame = next_frame(stream);
        if frame.0 != PONG {
            return frame;
        }
    }
}

pub(super) const PONG: u16 = 0x8003;
pub(super) const RESPONSE: u16 = 0x8002;

pub(super) fn request_of(handler: &[u8], id: u64, deadline_ms: u64) -> Vec<u8> {
    frame(id, &CallerFrame::Request { deadline_ms, payload_bytes: 0, handler })
}

/// A caller that does not read holds up its own responses only. At the deadline the rest of a response is dropped.
#[test]
fn an_answer_that_streams_ends_at_the_deadline_and_the_connection_goes_on() {
    let scene = scene();
    let mut stream = greeting(&scene);
    let huge = Arc::new(vec![7_u8; 64 << 20]);
    let mut cut = None;
    for (deadline_ms, id) in (5..).map(|power| 1 << power).zip((1..).step_by(2)) {
        // The second one has no response. It ends no earlier than the first one.
        let both = [request_of(b"hold", id, deadline_ms), request_of(b"hold", id + 1, deadline_ms)].concat();
        stream.write_all(&both).expect("written");
        let ((_, first), (_, second)) = (scene.next_held(), scene.next_held());
        let is_in_time = first.answer(Payload::foreign(Arc::<Vec<u8>>::clone(&huge)));
        let until = std::time::Instant::now() + SOON;
        while second.is_wanted() {
            assert!(std::time::Instant::now() < until, "its deadline does not pass");
            std::thread::yield_now();
        }
        if is_in_time {
            cut = Some(id);
            break;
        }
    }
    let cut = cut.expect("there is always more time");
    stream.write_all(&request_of(b"echo", cut + 2, 0)).expect("written");
    let mut got = 0;
    loop {
        match next_frame(&mut stream) {
            (DATA, id, body) if id == cut => got += body.len(),
            (RESPONSE, id, body) if id == cut => assert_eq!(body[..2], [0, 0]),
            (RESPONSE, id, body) if id < cut || id == cut + 1 => assert_eq!(body[..2], [3, 0], "Deadline"),
            (RESPONSE, id, body) if id == cut + 2 => break assert_eq!(body[..2], [0, 0]),
            other => panic!("{other:?}"),
        }
    }
    assert!(got < huge.len(), "unread bytes were written");
    scene.until_idle(1);
}

/// A caller that sends and does not read.
#[test]
fn who_does_not_read_is_read_no_further_and_loses_nothing() {
    let scene = scene();
    let mut stream = greeting(&scene);
    let pings = frame(0, &CallerFrame::Ping { nonce: 9 }).repeat(2000);
    // As long as it is read, there is capacity at once.
    stream.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let mut sent = 0;
    loop {
        match stream.write(&pings[sent % pings.len()..]) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 64 << 20, "it is read on and on");
    }
    stream.set_write_timeout(None).expect("no timeout");
    let mut writer = stream.try_clone().expect("a descriptor");
    let rest = pings[sent % pings.len()..].to_vec();
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(&[rest, request_of(b"echo", 1, 0)].concat()));
        let count = sent.div_ceil(pings.len()) * 2000;
        for at in 0..count {
            let (kind, _, body) = next_frame(&mut stream);
            assert_eq!((kind, &body[..]), (PONG, &9_u64.to_le_bytes()[..]), "{at} of {count}");
        }
        assert_eq!(next_frame(&mut stream).0, RESPONSE);
    });
    scene.until_idle(1);
}

#[test]
fn who_says_goodbye_and_does_not_take_the_last_answer_is_left() {
    let limits = RpcLimits { ping_timeout: Duration::from_millis(50), ..RpcLimits::default() };
    let scene = scene_with(RpcServerOptions { limits, ..server_options() }, client_options());
    let mut stream = greeting(&scene);
    // So small that the response does not fit.
    socket2::SockRef::from(&stream).set_recv_buffer_size(4096).expect("a size");
    let last = [request_of(b"hold", 1, 0), frame(0, &CallerFrame::Goodbye {})].concat();
    stream.write_all(&last).expect("written");
    let (_, responder) = scene.next_held();
    assert!(responder.answer(Payload::foreign(Arc::new(bytes(1 << 20)))));
    scene.until_idle(0);
}

/// A worker without capacity for further requests, which one request occupies.
fn full() -> (Scene, Request, Responder) {
    let intake = IntakeLimits { requests_max: 1, reserved_requests: 0, ..IntakeLimits::default() };
    let limits = RpcLimits { ping_interval: Duration::from_millis(20), ..RpcLimits::default() };
    let server = RpcServerOptions { intake, limits, ..server_options() };
    let scene = scene_with(server, client_options());
    scene.peer.notify(Call::of("hold"), &b"x"[..], None).expect("made");
    let (request, responder) = scene.next_held();
    (scene, request, responder)
}

#[test]
fn who_is_held_up_is_greeted_and_hears_that_the_worker_lives() {
    let (scene, request, responder) = full();
    let mut stream = greeting(&scene);
    stream.write_all(&request_of(b"echo", 1, 0)).expect("written");
    for _ in 0..3 {
        let (kind, _, body) = next_frame(&mut stream);
        assert_eq!((kind, &body[..]), (PONG, &[0; 8][..]), "unsolicited");
    }
    drop((request, responder));
    let answered = (0..1_000_000).find(|_| next_frame(&mut stream).0 == RESPONSE);
    assert!(answered.is_some());
    scene.until_idle(2);
}

#[test]
fn that_a_caller_ended_is_noticed_while_it_is_held_up() {
    let (scene, request, responder) = full();
    let mut stream = greeting(&scene);
    let notice = CallerFrame::Notice { deadline_ms: 0, payload_bytes: 0, handler: b"hold" };
    stream.write_all(&frame(1, &notice)).expect("written");
    assert_eq!(next_frame(&mut stream).0, PONG, "it is held up");
    assert_eq!(scene.server.held().2, 2);
    drop(stream);
    // What it sent before is not lost.
    let (last, _) = scene.next_held();
    assert_eq!(last.kind, CallKind::OneWay);
    drop((request, responder, last));
    scene.until_idle(1);
}

/// State of a handler whose end uses the connections of its worker.
struct Ending(Admission, Sender<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ask_again();
        self.1.send(()).ok();
    }
}

#[test]
fn a_removed_handler_ends_with_its_last_request_when_no_connection_is_locked() {
    let scene = scene();
    let request = frame(1, &CallerFrame::Request { deadline_ms: 0, payload_bytes: 4, handler: b"brief" });
    for last in [Some(frame(1, &CallerFrame::Cancel {})), None] {
        let (ended, end) = channel();
        let ending = Ending(scene.server.admission(), ended);
        let brief = move |_: Request, _: Responder| _ = &ending;
        scene.handling.register("brief", Run::Inline, brief).expect("a name");
        let mut stream = greeting(&scene);
        // Half of its payload.
        stream.write_all(&[&request[..], &Header::of_data(1, 2).to_bytes(), b"ab"].concat()).expect("room");
        let until = std::time::Instant::now() + SOON;
        while scene.server.held().0 == 0 {
            assert!(std::time::Instant::now() < until, "the request does not arrive");
            std::thread::yield_now();
        }
        assert!(scene.handling.remove("brief"));
        assert!(end.try_recv().is_err(), "the request uses it");
        match last {
            Some(cancel) => stream.write_all(&cancel).expect("room"),
            None => drop(stream),
        }
        end.recv_timeout(SOON).expect("it ends");
    }
}
