//! `rdzv server`.

use super::process::{eventually, finish, rdzv, run, signal, start_server};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command};

pub(crate) fn start(command: &mut Command) -> (Child, BufReader<ChildStdout>, SocketAddr) {
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
    let (child, mut stdout, address) = start(&mut rdzv(&["server", "--bind", "127.0.0.1:0"]));
    assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
    let endpoint = address.to_string();
    let ended = run(&mut rdzv(&["store", "--endpoint", &endpoint, "add", "n", "7"]));
    assert_eq!((ended.code, ended.text()), (0, "7\n"), "{}", ended.stderr);
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    assert_eq!(ended.code, 0);
    let [line] = ended.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", ended.stderr) };
    let version = env!("CARGO_PKG_VERSION");
    let begin = format!("Z info rdzv server: version {version}, incarnation ");
    let (_, rest) = line.split_once(&begin).unwrap_or_else(|| panic!("{line}"));
    let (incarnation, rest) = rest.split_once(", ").unwrap_or_else(|| panic!("{line}"));
    assert!(incarnation.len() == 16 && u64::from_str_radix(incarnation, 16).is_ok_and(|it| it > 0), "{line}");
    assert!(rest.starts_with(&format!("listens on {address}: bind=")), "{line}");
    assert!(
        line.contains(" connections_max=1048576 stored_bytes_max=4GiB log=info log_format=text"),
        "{line}"
    );
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
}

#[test]
fn both_signals_end_it_cleanly_with_clients_waiting() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        let (child, _stdout, address) =
            start(&mut rdzv(&["server", "--bind", "127.0.0.1:0", "--log", "debug"]));
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
fn every_address_that_is_asked_for_is_served() {
    for together in
        [&["--bind", "127.0.0.1:0", "--bind", "127.0.0.2:0"][..], &["--bind", "127.0.0.1:0,127.0.0.2:0"]]
    {
        let (child, mut stdout, first) =
            start(rdzv(&["server", "--stored-bytes-max", "1MiB"]).args(together));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let second = line.trim_end().strip_prefix("listening on ").expect("the second address");
        assert!(second.starts_with("127.0.0.2:"), "{second}");
        for (number, endpoint) in [first.to_string().as_str(), second].into_iter().enumerate() {
            let ended = run(&mut rdzv(&["store", "--endpoint", endpoint, "add", "n", "1"]));
            assert_eq!((ended.code, ended.text()), (0, format!("{}\n", number + 1).as_str()), "one store");
        }
        signal(child.id(), libc::SIGTERM);
        assert_eq!(finish(child).code, 0);
    }
}

#[test]
fn an_address_in_use_beside_a_free_one_is_an_error() {
    let server = start_server();
    let address = server.local_addr().to_string();
    let ended = run(&mut rdzv(&["server", "--bind", "127.0.0.1:0", "--bind", &address]));
    assert_eq!((ended.code, ended.text()), (1, ""));
    assert!(
        ended.stderr.contains(&format!("cannot listen on {address}: the address is in use")),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let server = start_server();
    let address = server.local_addr().to_string();
    let ended = run(&mut rdzv(&["server", "--bind", &address]));
    assert_eq!((ended.code, ended.text()), (1, ""));
    let message = format!("rdzv server: cannot listen on {address}: the address is in use");
    assert!(ended.stderr.contains(&message), "{}", ended.stderr);
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
        (&["--bind", ":29400"], "a host is missing"),
        (&["--bind", "127.0.0.1:port"], "not a port"),
        (&["--log", "loud"], "loud"),
        (&["--connections-max", "many"], "many"),
        (&["--connections-max", "0"], "it must be above 0"),
        (&["--stored-bytes-max", "0MiB"], "it must be above 0"),
        (&["--stored-bytes-max", "4 buckets"], "such as 4GiB or 512MB"),
        (&["--bnd", "127.0.0.1"], "a similar argument exists: '--bind'"),
    ] {
        let ended = run(rdzv(&["server"]).args(arguments));
        assert_eq!((ended.code, ended.text()), (2, ""), "{arguments:?}");
        assert!(ended.stderr.contains(reason), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn a_log_of_json_has_an_object_a_line() {
    let json = ["server", "--bind", "127.0.0.1:0", "--log", "debug", "--log-format", "json"];
    let (child, _stdout, address) = start(&mut rdzv(&json));
    let endpoint = address.to_string();
    let ended = run(&mut rdzv(&["store", "--endpoint", &endpoint, "set", "k", "v"]));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    let lines: Vec<Value> = ended.stderr.lines().map(|line| line.parse().expect("an object")).collect();
    assert_eq!(lines[0]["configuration"]["stored_bytes_max"], "4GiB");
    assert!(
        lines[1]["message"].as_str().is_some_and(|text| text.contains(" accepted peer=127.0.0.1:")),
        "{lines:?}"
    );
    for line in &lines {
        assert_eq!(line["command"], "rdzv server");
        let time = line["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    }
    let taken = start_server();
    let address = taken.local_addr().to_string();
    let ended = run(&mut rdzv(&["server", "--log-format", "json", "--bind", &address]));
    let line: Value = ended.stderr.parse().expect("an object");
    assert_eq!(line["level"], "error");
    assert!(line["message"].as_str().is_some_and(|text| text.starts_with("cannot listen on ")), "{line}");
}

#[test]
fn clients_that_leave_cleanly_cause_no_warning() {
    let (child, _stdout, address) = start(&mut rdzv(&["server", "--bind", "127.0.0.1:0", "--log", "warn"]));
    let endpoint = address.to_string();
    for arguments in [
        &["store", "--endpoint", &endpoint, "set", "k", "v"][..],
        &["group", "--endpoint", &endpoint, "--quiet-ms", "1"],
        &["bench", "--connections", "2", "--operations", "2", &endpoint],
        &["run", "--rdzv-endpoint", &endpoint, "--rdzv-conf=is_host=false", "true"],
        &["run", "--rdzv-endpoint", &endpoint, "--rdzv-conf=is_host=false", "false"],
    ] {
        run(&mut rdzv(arguments));
    }
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
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
        let mut command = rdzv(&["server", "--bind", "127.0.0.1:0"]);
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

#[test]
fn a_server_or_a_job_that_other_hosts_reach_warns_once() {
    let warnings = |stderr: &str| {
        let lines: Vec<&str> =
            stderr.lines().filter(|line| line.contains("clients need not authenticate themselves")).collect();
        assert!(lines.iter().all(|line| line.contains("Z warn rdzv ")), "{lines:?}");
        lines.len()
    };
    for (bind, count) in [("127.0.0.1:0", 0), ("0.0.0.0:0", 1)] {
        let (child, _stdout, _) = start(&mut rdzv(&["server", "--bind", bind, "--bind", bind]));
        signal(child.id(), libc::SIGTERM);
        let ended = finish(child);
        assert_eq!((ended.code, warnings(&ended.stderr)), (0, count), "{}", ended.stderr);
    }
    let tokens = std::env::temp_dir().join(format!("rdzv-warn-{}", std::process::id()));
    std::fs::write(&tokens, "0123456789abcdef0123456789abcdef").expect("a token file");
    let guarded = ["server", "--bind", "0.0.0.0:0", "--auth-token-file", tokens.to_str().expect("text")];
    let (child, _stdout, _) = start(&mut rdzv(&guarded));
    signal(child.id(), libc::SIGTERM);
    let ended = finish(child);
    std::fs::remove_file(&tokens).expect("its own file");
    assert_eq!((ended.code, warnings(&ended.stderr)), (0, 0), "{}", ended.stderr);
    for (address, count) in [("127.0.0.1", 0), ("0.0.0.0", 1)] {
        let endpoint = format!("{address}:0");
        let ended =
            run(&mut rdzv(&["run", "--rdzv-endpoint", &endpoint, "--rdzv-conf=is_host=true", "true"]));
        assert_eq!((ended.code, warnings(&ended.stderr)), (0, count), "{}", ended.stderr);
    }
}
