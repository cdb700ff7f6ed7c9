use super::*;

fn environment(values: [&str; 5]) -> RankEnvironment {
    let [rank, world_size, master_addr, master_port, use_agent_store] =
        values.map(|value| (value != "-").then(|| value.to_string()));
    RankEnvironment { rank, world_size, master_addr, master_port, use_agent_store }
}

fn none() -> RankEnvironment {
    RankEnvironment::default()
}

/// Reads a URL by the rules of its scheme.
fn read(
    url: &str,
    rank: i64,
    world_size: WorldSize,
    environment: &RankEnvironment,
) -> Result<String, UrlError> {
    let url = RendezvousUrl::parse(url, rank, world_size, environment)?;
    let visible = |TcpRendezvous { host, port, rank, world_size, role }| {
        alloc::format!("{role:?} {host} {port} {rank}/{world_size}")
    };
    match url.scheme() {
        "tcp" => url.tcp(environment).map(visible),
        "env" => url.env(environment).map(visible),
        "file" => {
            let FileRendezvous { path, rank, world_size } = url.file()?;
            Ok(alloc::format!("{path} {rank}/{world_size}"))
        }
        scheme => Err(UrlError::NoHandler { scheme: scheme.into() }),
    }
}

fn expect(url: &str, rank: i64, world_size: WorldSize, environment: &RankEnvironment, expected: &str) {
    let found = read(url, rank, world_size, environment);
    let found = found.unwrap_or_else(|error| alloc::format!("{error}"));
    assert_eq!(found, expected, "{url:?} {rank} {world_size:?}");
}

use WorldSize::{Dynamic, InUrl, Known};

#[test]
fn tcp_urls() {
    let wrong = "Error initializing torch.distributed using tcp:// rendezvous:";
    let missing = |what: &str| alloc::format!("{wrong} {what}");
    for (url, rank, world_size, expected) in [
        ("tcp://h:1?rank=0&world_size=2", -1, InUrl, "Host h 1 0/2"),
        ("tcp://h:1?rank=1&world_size=2", -1, InUrl, "Client h 1 1/2"),
        ("tcp://h:1", 1, Known(2), "Client h 1 1/2"),
        ("TCP://Node-0.Example:29500", 0, Known(2), "Host node-0.example 29500 0/2"),
        ("tcp://[::1]:5/path?&&rank=0&world_size=2#f", -1, InUrl, "Host ::1 5 0/2"),
        ("tcp://[fe80::1%Eth0]:5", 1, Known(2), "Client fe80::1%Eth0 5 1/2"),
        ("tcp://user:word@h:7", 1, Known(2), "Client h 7 1/2"),
        ("tcp://h:0", 0, Known(1), "Host h 0 0/1"),
        ("tcp://h:00029500", 0, Known(1), "Host h 29500 0/1"),
        ("tcp://h:1?rank=0=1&world_size=+2_0", -1, InUrl, "Host h 1 0/20"),
        ("tcp://h:1?rank=3&rank=0&world_size=2", -1, InUrl, "Host h 1 0/2"),
        ("tcp://h:1?rank=0&world_size=2&use_libuv=0", -1, InUrl, "Host h 1 0/2"),
        ("tcp://h:1?use_libuv=0", 0, Known(2), "Host h 1 0/2"),
        ("  tcp://h\n:1?rank=\t0&world_size=2", -1, InUrl, "Host h 1 0/2"),
        ("tcp://h:1", 1, Dynamic, "Client h 1 1/-1"),
        ("tcp://h", 0, Known(2), &missing("port number missing")),
        ("tcp://h:", 0, Known(2), &missing("port number missing")),
        ("tcp:h:1", 0, Known(2), &missing("port number missing")),
        ("tcp://h:65536", -1, InUrl, "Port out of range 0-65535"),
        ("tcp://h:99999999999999999999", -1, InUrl, "Port out of range 0-65535"),
        ("tcp://h:x", -1, InUrl, "Port could not be cast to integer value as 'x'"),
        ("tcp://h:-1", -1, InUrl, "Port could not be cast to integer value as '-1'"),
        ("tcp://[::1", -1, InUrl, "Invalid IPv6 URL"),
        ("tcp://::1]:5", -1, InUrl, "Invalid IPv6 URL"),
        ("tcp://[x]:5", -1, InUrl, "'x' does not appear to be an IPv4 or IPv6 address"),
        ("tcp://h:1", -1, InUrl, &missing("rank parameter missing")),
        ("tcp://h:1?world_size=2", -1, InUrl, &missing("rank parameter missing")),
        ("tcp://h:1", -1, Known(2), &missing("rank parameter missing")),
        ("tcp://h:1", -1, Dynamic, &missing("rank parameter missing")),
        ("tcp://h:1?rank=x", -1, InUrl, &missing("world size parameter missing")),
        ("tcp://h:1", 0, InUrl, &missing("world size parameter missing")),
        ("tcp://:1", 0, Known(2), "hostname cannot be None"),
        ("tcp://:1?rank=x&world_size=2", -1, InUrl, "invalid literal for int() with base 10: 'x'"),
        ("tcp://h:1?rank=0&world_size=two", -1, InUrl, "invalid literal for int() with base 10: 'two'"),
        ("tcp://h:1?rank=0&world_size=", -1, InUrl, "invalid literal for int() with base 10: ''"),
        ("tcp://h:1?rank=0&world_size=0", -1, InUrl, "TCPStore world size cannot be 0"),
        ("tcp://h:1?rank", -1, InUrl, "the query's part 'rank' has no value: list index out of range"),
    ] {
        expect(url, rank, world_size, &none(), expected);
    }
}

#[test]
fn rank_and_world_size_are_given_once() {
    let text = |url| alloc::format!("The url: {url} has node-specific arguments(rank, world_size) already.");
    for (url, rank, world_size) in [
        ("tcp://h:1?rank=0", 0, InUrl),
        ("tcp://h:1?rank=0", -1, Known(2)),
        ("tcp://h:1?world_size=2", 0, InUrl),
        ("tcp://h?world_size=2", -1, Known(2)),
        ("absent://h?rank=2", -1, Known(2)),
        ("env://?rank=2", -1, Dynamic),
        ("file:///f?rank=0&world_size=1", 0, Known(1)),
    ] {
        expect(url, rank, world_size, &none(), &text(url));
    }
}

#[test]
fn schemes_without_a_handler() {
    for (url, scheme) in [
        ("absent://h:1", "absent"),
        ("AbSent://h:1", "absent"),
        ("", ""),
        ("h:1", "h"),
        ("//h:1", ""),
        ("1tcp://h:1", ""),
        ("t_p://h:1", ""),
        ("://h", ""),
    ] {
        expect(url, 0, Known(1), &none(), &alloc::format!("No rendezvous handler for {scheme}://"));
    }
}

#[test]
fn env_urls() {
    let whole = ["1", "4", "node-0", "29500", "-"];
    let without = |index: usize, value| {
        let mut values = whole;
        values[index] = value;
        environment(values)
    };
    let whole = environment(whole);
    let missing = |name: &str| {
        alloc::format!(
            "Error initializing torch.distributed using env:// rendezvous: environment variable {name} \
             expected, but not set"
        )
    };
    for (url, rank, world_size, environment, expected) in [
        ("env://", -1, InUrl, &whole, "Client node-0 29500 1/4"),
        ("env:", -1, InUrl, &whole, "Client node-0 29500 1/4"),
        ("env://anything:7/x?rank=0", -1, InUrl, &whole, "Host node-0 29500 0/4"),
        ("env://?world_size=9", -1, InUrl, &whole, "Client node-0 29500 1/9"),
        ("env://", 0, Known(3), &whole, "Host node-0 29500 0/3"),
        ("env://", 3, InUrl, &without(0, "-"), "Client node-0 29500 3/4"),
        ("env://", -1, Known(3), &without(1, "-"), "Client node-0 29500 1/3"),
        ("env://", -1, InUrl, &without(3, " 29500\n"), "Client node-0 29500 1/4"),
        // The environment is asked first when the group is dynamic.
        ("env://", 3, Dynamic, &whole, "Client node-0 29500 1/4"),
        ("env://", 3, Dynamic, &without(0, "-"), "Client node-0 29500 3/4"),
        ("env://", -1, Dynamic, &without(1, "-"), "Client node-0 29500 1/-1"),
        ("env://", -1, InUrl, &without(0, "-"), &missing("RANK")),
        ("env://", -1, InUrl, &without(0, ""), &missing("RANK")),
        ("env://", -1, InUrl, &without(1, "-"), &missing("WORLD_SIZE")),
        ("env://", -1, InUrl, &without(2, ""), &missing("MASTER_ADDR")),
        ("env://", -1, InUrl, &without(3, "-"), &missing("MASTER_PORT")),
        ("env://", -1, InUrl, &none(), &missing("RANK")),
        ("env://", 0, InUrl, &none(), &missing("WORLD_SIZE")),
        ("env://", 0, Known(1), &none(), &missing("MASTER_ADDR")),
        ("env://", -1, InUrl, &without(0, "first"), "invalid literal for int() with base 10: 'first'"),
        ("env://", -1, InUrl, &without(3, "http"), "invalid literal for int() with base 10: 'http'"),
        ("env://", -1, Dynamic, &without(0, ""), "invalid literal for int() with base 10: ''"),
        ("env://", -1, InUrl, &without(3, "65536"), "port must have value from 0 to 65535 but was 65536."),
        ("env://", -1, InUrl, &without(3, "-1"), "port must have value from 0 to 65535 but was -1."),
    ] {
        expect(url, rank, world_size, environment, expected);
    }
}

#[test]
fn file_urls() {
    let missing =
        |what: &str| alloc::format!("Error initializing torch.distributed using file:// rendezvous: {what}");
    for (url, rank, world_size, expected) in [
        ("file:///some/f?rank=1&world_size=2", -1, InUrl, "/some/f 1/2"),
        ("file://host/some/f", 1, Known(2), "/some/f 1/2"),
        ("file:/p", 0, Known(2), "/p 0/2"),
        ("file:p", 0, Known(2), "/p 0/2"),
        ("file:p?rank=0&world_size=2", -1, InUrl, "p 0/2"),
        ("file:///a%20b", 0, Known(2), "/a%20b 0/2"),
        ("file:///a", 0, Dynamic, "/a 0/-1"),
        ("file:///a?rank=-1&world_size=-1", -1, InUrl, "/a -1/-1"),
        ("file:///a?rank=0&world_size=0", -1, InUrl, "/a 0/0"),
        // A path is not decoded.
        ("file:///a%2Fb%", 0, Known(2), "/a%2Fb% 0/2"),
        ("file:///a;b:c@d\\e/../f ", 0, Known(2), "/a;b:c@d\\e/../f  0/2"),
        ("file:///é/ü", 0, Known(2), "/é/ü 0/2"),
        ("FILE:///A/b", 0, Known(2), "/A/b 0/2"),
        (" file:///a\tb\n", 0, Known(2), "/ab 0/2"),
        ("file:///", 0, Known(2), "/ 0/2"),
        ("file:////a/b?rank=0&world_size=2", -1, InUrl, "//a/b 0/2"),
        // Python 3.11 takes the first part of such a path for a host when it adds the caller's rank and world size.
        ("file:////a/b", 0, Known(2), "//a/b 0/2"),
        // A query and a fragment end the path.
        ("file:///a?x=1#b", 0, Known(2), "/a 0/2"),
        ("file:///a#?rank=0&world_size=2", 1, Known(3), "/a 1/3"),
        ("file:///a?rank=1&rank=0&world_size=2=3", -1, InUrl, "/a 0/2"),
        // The part in the position of a host is parsed, and ignored.
        ("file://user:word@Host:99999/a", 0, Known(2), "/a 0/2"),
        ("file://h:x/a", 0, Known(2), "/a 0/2"),
        ("file://[::1]/a", 0, Known(2), "/a 0/2"),
        ("file://[::1/a", 0, Known(2), "Invalid IPv6 URL"),
        ("file://[x]/a", 0, Known(2), "'x' does not appear to be an IPv4 or IPv6 address"),
        ("file:", 0, Known(2), &missing("path missing")),
        ("file:?rank=0&world_size=2", -1, InUrl, &missing("path missing")),
        ("file://host?rank=x", -1, InUrl, &missing("path missing")),
        ("file:///a?world_size=2", -1, InUrl, &missing("rank parameter missing")),
        ("file:///a?rank=x", -1, InUrl, &missing("world size parameter missing")),
        ("file:///a", -1, Known(2), &missing("rank parameter missing")),
        ("file:///a?rank=0&world_size=", -1, InUrl, "invalid literal for int() with base 10: ''"),
        ("file:///a?x", -1, InUrl, "the query's part 'x' has no value: list index out of range"),
        ("file://?x", -1, InUrl, &missing("path missing")),
        ("file://", 0, Known(2), &missing("path missing")),
        ("file://host", 0, Known(2), &missing("path missing")),
        ("file:///a", -1, InUrl, &missing("rank parameter missing")),
        ("file:///a", 0, InUrl, &missing("world size parameter missing")),
        ("file:///a?rank=x&world_size=1", -1, InUrl, "invalid literal for int() with base 10: 'x'"),
    ] {
        expect(url, rank, world_size, &none(), expected);
    }
}

#[test]
fn a_second_step() {
    for (scheme, text) in [
        ("tcp", "Unable to perform re-rendezvous using tcp:// method"),
        ("env", "Unable to perform re-rendezvous using env:// method"),
        ("file", "Unable to perform rerendezvous using file:// method"),
    ] {
        let error = UrlError::NotAgain { scheme: scheme.into() };
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn the_agents_store_is_used_at_its_own_address_only() {
    for (values, role) in [
        (["0", "2", "h", "1", "True"], StoreRole::Client),
        (["0", "2", "h", "1", "true"], StoreRole::Host),
        (["0", "2", "h", "1", "1"], StoreRole::Host),
        (["0", "2", "h", "1", "-"], StoreRole::Host),
    ] {
        let environment = environment(values);
        let url = RendezvousUrl::parse("env://", -1, InUrl, &environment).expect("a URL");
        assert_eq!(url.env(&environment).expect("whole").role, role, "{values:?}");
    }
    let agent = environment(["-", "-", "h", "1", "True"]);
    for (url, role) in
        [("tcp://h:1", StoreRole::Client), ("tcp://h:2", StoreRole::Host), ("tcp://g:1", StoreRole::Host)]
    {
        let url = RendezvousUrl::parse(url, 0, Known(2), &agent).expect("a URL");
        assert_eq!(url.tcp(&agent).expect("whole").role, role, "{url}");
    }
}

#[test]
fn own_schemes_see_the_whole_url() {
    let url = RendezvousUrl::parse("own://H:7/p?x=1#f", 2, Known(3), &none()).expect("a URL");
    assert_eq!(url.to_string(), "own://H:7/p?x=1&rank=2&world_size=3#f");
    assert_eq!((url.scheme(), url.parts.host().as_deref(), &*url.parts.path), ("own", Some("h"), "/p"));
    assert_eq!(url.parts.port().ok().flatten(), Some(7));
    assert_eq!(Query::read(&url.parts.query).expect("a query").get("x").map(AsRef::as_ref), Some("1"));
    let url = RendezvousUrl::parse("own:p", -1, InUrl, &none()).expect("a URL");
    assert_eq!((url.to_string().as_str(), url.parts.host()), ("own:p", None));
}

/// Any text gives a result or an error; and a URL that was formatted parses as the same URL.
#[test]
fn any_text_is_read() {
    const PIECES: [&str; 24] = [
        "tcp://",
        "env:",
        "file:/",
        ":",
        "/",
        "//",
        "?",
        "#",
        "[",
        "]",
        "@",
        "%",
        "&",
        "=",
        "?rank=0&",
        "world_size=2",
        "::1",
        "h:1",
        "é",
        " ",
        "\n",
        "99999",
        "-",
        "h",
    ];
    let mut rng = crate::rng::Rng::new(7);
    let mut understood = 0;
    for _ in 0..20_000 {
        let count = rng.below(8);
        let pieces = (0..count).map(|_| PIECES[usize::try_from(rng.below(24)).expect("small")]);
        let text: String = pieces.collect();
        let Ok(url) = RendezvousUrl::parse(&text, -1, InUrl, &none()) else { continue };
        let again = RendezvousUrl::parse(&url.to_string(), -1, InUrl, &none());
        assert_eq!(again.as_ref(), Ok(&url), "{text:?}");
        understood += usize::from(url.tcp(&none()).is_ok() || url.file().is_ok());
    }
    assert!(understood > 10, "the pieces make URLs: {understood}");
}
