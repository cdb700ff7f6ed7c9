//! `rdzv server`.

use super::process::{eventually, finish, rdzv, run, signal, start_server};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command};

fn start(command: &mut Command) -> (Child, BufReader<ChildStdout>, SocketAddr) {
    let mut child = command.spawn().expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    let address = line.strip_prefix("listening on ").and_then(|rest| rest.strip_suffix('\n'));
    let address = address.and_then(|address| address.parse().ok());
    (child, stdout, address.unwrap_or_else(|| panic!("first line: {line:?}")))
}

#[test]
fn the_first_line_is_the_address_and_clients_can_connect() {
    let (child, mut stdout, address) = start(&mut rdzv(&["server"]));
    assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
    let endpoint = address.to_string();
    let ended = run(&mut rdzv(&["store", "--endpoint", &endpoint, "add", "n", "7"]));
    assert_eq!((ended.code, ended.text()), (0, "7\n"), "{}", ended.stderr);
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
}

#[test]
fn both_signals_end_it_cleanly_with_clients_waiting() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        let (child, _stdout, address) =
            start(&mut rdzv(&["server", "--bind", "127.0.0.1:0", "--log", "info"]));
        let endpoint = address.to_string();
        let ended = run(&mut rdzv(&["store", "--endpoint", &endpoint, "ping"]));
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let waiting =
            rdzv(&["store", "--endpoint", &endpoint, "barrier", "gate", "2"]).spawn().expect("it starts");
        // The barrier's own counter shows that it has arrived.
        eventually(|| run(&mut rdzv(&["store", "--endpoint", &endpoint, "check", "gate"])).code == 0);
        signal(child.id(), number);
        let ended = finish(child);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stderr.contains("accepted peer=127.0.0.1:"), "{}", ended.stderr);
        let waited = finish(waiting);
        assert_eq!(waited.code, 5, "{}", waited.stderr);
        assert!(waited.stderr.contains("lost its server"), "{}", waited.stderr);
    }
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let server = start_server();
    let address = server.local_addr().to_string();
    let ended = run(&mut rdzv(&["server", "--bind", &address]));
    assert_eq!((ended.code, ended.text()), (1, ""));
    let message = format!("rdzv server: cannot listen on {address}: the address is in use");
    assert!(ended.stderr.starts_with(&message), "{}", ended.stderr);
}

#[test]
fn the_environment_is_read_as_the_options_are() {
    let (child, _stdout, address) = start(
        rdzv(&["server"]).env("RDZV_BIND", "[::1]:0").env("RDZV_DUAL_STACK", "1").env("RDZV_LOG", "off"),
    );
    assert!(address.is_ipv6(), "{address}");
    signal(child.id(), libc::SIGTERM);
    assert_eq!(finish(child).code, 0);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for (arguments, reason) in [
        (&["--bind", "::1"][..], "in brackets"),
        (&["--bind", "127.0.0.1"], "a port is missing"),
        (&["--bind", "127.0.0.1:port"], "not a port"),
        (&["--log", "loud"], "loud"),
        (&["--connections-max", "many"], "many"),
    ] {
        let ended = run(rdzv(&["server"]).args(arguments));
        assert_eq!((ended.code, ended.text()), (2, ""), "{arguments:?}");
        assert!(ended.stderr.contains(reason), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn a_stderr_that_nobody_reads_or_that_is_closed_holds_up_nobody() {
    use std::net::TcpStream;
    use std::process::Stdio;
    let expel = |address: SocketAddr| {
        use std::io::Write;
        let mut stranger = TcpStream::connect(address).expect("it listens");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        // The end of the connection shows that the server has dealt with it.
        stranger.read_to_end(&mut Vec::new()).ok();
    };
    for (closed, strangers) in [(true, 3), (false, 3000)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = rdzv(&["server"]);
        let (mut child, _stdout, address) = start(command.stderr(Stdio::from(writer)));
        drop(command);
        let reader = if closed { None } else { Some(reader) };
        (0..strangers).for_each(|_| expel(address));
        let endpoint = address.to_string();
        let ended = run(&mut rdzv(&["store", "--endpoint", &endpoint, "ping"]));
        assert_eq!(ended.code, 0, "closed: {closed}: {}", ended.stderr);
        signal(child.id(), libc::SIGTERM);
        eventually(|| child.try_wait().expect("a child of ours").is_some());
        assert_eq!(child.wait().expect("it ended").code(), Some(0), "closed: {closed}");
        drop(reader);
    }
}
