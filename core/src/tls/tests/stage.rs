//! The stage alone.

use super::certificates::{Authority, Issued};
use super::pair::Pair;
use crate::driver::clock::since_1970;
use crate::prelude::*;
use crate::tls::stage::RecordCounter;
use crate::tls::{ClientConfig, ConfigError, Protocol, ServerConfig, TlsStage};
use crate::tls_fault::TlsFault;

const HOST: &str = "store.example";

fn pair() -> Pair {
    let authority = Authority::new();
    Pair::new(&authority.client(None), HOST, &authority.server(&[HOST], None)).expect("a name")
}

#[test]
fn both_sides_read_what_the_other_has_sent() {
    let mut pair = pair();
    assert_eq!(pair.client.send(b"early"), 0, "nothing is sent before the handshake");
    pair.handshake();
    assert_eq!(pair.client.send(b"request"), 7);
    assert_eq!(pair.server.send(b"answer"), 6);
    assert_eq!(pair.deliver(), (None, None));
    assert_eq!((&*pair.at_server, &*pair.at_client), (&b"request"[..], &b"answer"[..]));
}

#[test]
fn bytes_may_arrive_one_by_one() {
    let mut pair = pair();
    pair.chunk = 1;
    pair.handshake();
    let value: Vec<u8> = (0..40_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    assert_eq!(pair.client.send(&value), value.len());
    assert_eq!(pair.deliver(), (None, None));
    assert!(pair.at_server == value);
}

#[test]
fn ciphertext_that_is_kept_has_a_limit() {
    let mut pair = pair();
    pair.handshake();
    let value = vec![7; 10 << 20];
    let mut taken = 0;
    while let count @ 1.. = pair.client.send(&value) {
        taken += count;
    }
    assert!(taken > 0 && taken <= 64 * 1024, "{taken}");
    assert!(pair.client.unsent().len() < taken + 1024);
    assert_eq!(pair.client.send(&value), 0, "the reader is slow");
    pair.client.sent(1000);
    assert_eq!(pair.client.send(&value), 0);
    let rest = pair.client.unsent().len();
    pair.client.sent(rest);
    assert!(pair.client.send(&value) > 0);
}

#[test]
fn both_sides_have_the_same_binding_and_other_connections_another() {
    let authority = Authority::new();
    let (client, server) = (authority.client(None), authority.server(&[HOST], None));
    let bindings = [0, 1].map(|_| {
        let mut pair = Pair::new(&client, HOST, &server).expect("a name");
        assert_eq!((pair.client.binding(), pair.server.binding()), (None, None));
        pair.handshake();
        assert_eq!(pair.client.binding(), pair.server.binding());
        pair.client.binding().expect("after the handshake")
    });
    assert_ne!(bindings[0], bindings[1]);
}

#[test]
fn the_end_is_regular_only_after_the_peer_has_said_so() {
    let mut pair = pair();
    assert_eq!(pair.client.end_of_stream(), Some(TlsFault::ClosedInHandshake));
    pair.handshake();
    assert_eq!(pair.client.end_of_stream(), Some(TlsFault::Truncated));
    pair.server.close();
    assert_eq!(pair.deliver(), (None, None));
    assert_eq!((pair.client.is_ended(), pair.client.end_of_stream()), (true, None));
}

#[test]
fn changed_bytes_are_a_violation() {
    let mut pair = pair();
    pair.handshake();
    assert_eq!(pair.client.send(b"value"), 5);
    let mut bytes = pair.client.unsent().to_vec();
    *bytes.last_mut().expect("ciphertext") ^= 1;
    let mut plaintext = Vec::new();
    assert_eq!(pair.server.receive(&bytes, &mut plaintext), Err(TlsFault::Violation));
    assert!(plaintext.is_empty());
    assert_eq!(pair.server.receive(b"more", &mut plaintext), Err(TlsFault::Violation), "it stays so");
}

#[test]
fn a_certificate_that_cannot_be_trusted_is_refused_with_its_reason() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    // rcgen's certificates are valid from 1975 to 4096.
    fn before() -> Duration {
        YEAR
    }
    fn after() -> Duration {
        YEAR.saturating_mul(3000)
    }
    let (authority, anew, other) = (Authority::new(), Authority::new(), Authority::named("another CA"));
    let server = authority.server(&[HOST, "10.0.0.5"], None);
    for (client, name, expected, alert) in [
        (other.client(None), HOST, TlsFault::UnknownIssuer, 48),
        (anew.client(None), HOST, TlsFault::UnknownIssuer, 51),
        (authority.client(None), "other.example", TlsFault::WrongName, 42),
        (authority.client(None), "10.0.0.6", TlsFault::WrongName, 42),
        (authority.client_at(None, after), HOST, TlsFault::Expired, 45),
        (authority.client_at(None, before), HOST, TlsFault::NotYetValid, 45),
    ] {
        let mut pair = Pair::new(&client, name, &server).expect("a name");
        assert_eq!(pair.deliver(), (Some(expected), Some(TlsFault::Alert(alert))), "{name}");
        assert!(expected.is_final());
    }
    Pair::new(&authority.client(None), "10.0.0.5", &server).expect("an address").handshake();
}

#[test]
fn a_server_with_a_client_ca_admits_only_its_clients() {
    let (authority, other) = (Authority::new(), Authority::named("another CA"));
    let server = authority.server(&[HOST], Some(&authority));
    let admitted = authority.issue(&["node-7"]);
    Pair::new(&authority.client(Some(&admitted)), HOST, &server).expect("a name").handshake();
    let mut nameless = Pair::new(&authority.client(None), HOST, &server).expect("a name");
    assert_eq!(nameless.deliver(), (Some(TlsFault::Alert(116)), Some(TlsFault::NoCertificate)));
    let stranger = other.issue(&["node-7"]);
    let mut strange = Pair::new(&authority.client(Some(&stranger)), HOST, &server).expect("a name");
    assert_eq!(strange.deliver(), (Some(TlsFault::Alert(48)), Some(TlsFault::UnknownIssuer)));
}

#[test]
fn a_client_and_a_server_of_two_protocols_do_not_agree() {
    let authority = Authority::new();
    let issued = authority.issue(&[HOST]);
    let identity = (issued.certificate.as_bytes(), issued.key.as_bytes());
    let worker = ServerConfig::from_pem(Protocol::Rpc, identity, None, since_1970).expect("a worker");
    let mut pair = Pair::new(&authority.client(None), HOST, &worker).expect("a name");
    assert_eq!(pair.deliver().0, Some(TlsFault::Alert(120)));
}

#[test]
fn a_peer_that_names_no_protocol_is_refused() {
    let authority = Authority::new();
    let (client, server) = (authority.client(None), authority.server(&[HOST], None));
    let (mut silent_client, mut silent_server) = ((*client.0).clone(), (*server.0).clone());
    silent_client.alpn_protocols.clear();
    silent_server.alpn_protocols.clear();
    let mut pair = Pair::new(&ClientConfig(silent_client.into()), HOST, &server).expect("a name");
    assert_eq!(pair.deliver().1, Some(TlsFault::OtherProtocol));
    let mut pair = Pair::new(&client, HOST, &ServerConfig(silent_server.into())).expect("a name");
    assert_eq!(pair.deliver().0, Some(TlsFault::OtherProtocol));
    assert_eq!(pair.client.send(b"a secret"), 0);
}

#[test]
fn a_peer_without_tls_is_recognised() {
    let authority = Authority::new();
    let mut client = TlsStage::client(&authority.client(None), HOST).expect("a name");
    assert_eq!(client.receive(b"HTTP/1.1 400", &mut Vec::new()), Err(TlsFault::NotTls));
    // The alert of a server that has no certificate.
    let mut client = TlsStage::client(&authority.client(None), HOST).expect("a name");
    let refused = client.receive(&[0x15, 3, 3, 0, 2, 2, 70], &mut Vec::new());
    assert_eq!(refused, Err(TlsFault::Alert(70)));
}

#[test]
fn what_cannot_be_used_is_named() {
    let authority = Authority::new();
    let (one, other) = (authority.issue(&[HOST]), authority.issue(&[HOST]));
    let server = |certificate: &[u8], key: &[u8], ca: Option<&[u8]>| {
        ServerConfig::from_pem(Protocol::Native, (certificate, key), ca, since_1970).map(drop)
    };
    let (certificate, key) = (one.certificate.as_bytes(), one.key.as_bytes());
    for (expected, made) in [
        (Ok(()), server(certificate, key, None)),
        (Err(ConfigError::NoCertificate), server(b"text", key, None)),
        (Err(ConfigError::NoCertificate), server(key, key, None)),
        (Err(ConfigError::NoKey), server(certificate, certificate, None)),
        (Err(ConfigError::KeyMismatch), server(certificate, other.key.as_bytes(), None)),
        (Err(ConfigError::NoCa), server(certificate, key, Some(b""))),
    ] {
        assert_eq!(made, expected);
    }
    let client = ClientConfig::from_pem(Protocol::Native, b"", None, since_1970).map(drop);
    assert_eq!(client, Err(ConfigError::NoCa));
    assert_eq!(ClientConfig::check_name("no name"), Err(ConfigError::BadName));
    assert_eq!(ClientConfig::check_name("[::1]"), Ok(()));
}

/// Returns a client's certificate, and those of `count` CAs, which all have the same name. None of these has issued another.
fn with_namesakes(count: usize) -> Issued {
    let namesakes: Vec<Authority> = (0..count).map(|_| Authority::named("namesake")).collect();
    let mut issued = namesakes[0].issue(&["node"]);
    issued.certificate.extend(namesakes.iter().map(Authority::pem));
    issued
}

#[test]
fn a_client_with_many_certificates_is_refused_before_a_chain_is_searched() {
    let authority = Authority::new();
    let server = authority.server(&[HOST], Some(&authority));
    let [unknown, long] = [(48, TlsFault::UnknownIssuer), (49, TlsFault::LongChain)];
    for (count, (alert, due)) in [(3, unknown), (4, long), (10, long)] {
        let client = authority.client(Some(&with_namesakes(count)));
        let mut pair = Pair::new(&client, HOST, &server).expect("a name");
        assert_eq!(pair.deliver(), (Some(TlsFault::Alert(alert)), Some(due)), "{count}");
    }
}

#[test]
fn a_chain_of_three_cas_is_accepted() {
    let authority = Authority::new();
    let mut issued = authority.issue(&["node"]);
    for other in ["a", "b", "c"] {
        issued.certificate += &Authority::named(other).pem();
    }
    let server = authority.server(&[HOST], Some(&authority));
    Pair::new(&authority.client(Some(&issued)), HOST, &server).expect("a name").handshake();
}

#[test]
fn records_without_data_are_refused_when_they_are_many() {
    let mut pair = pair();
    pair.handshake();
    // Each changes the key, and a byte of data follows.
    let mut rounds = 0;
    let fault = loop {
        pair.client.refresh_key();
        assert_eq!(pair.client.send(b"x"), 1);
        if let (_, Some(fault)) = pair.deliver() {
            break fault;
        }
        rounds += 1;
    };
    assert_eq!((fault, rounds), (TlsFault::BareRecords, 34));
    assert!(pair.at_server.len() <= rounds, "{}", pair.at_server.len());
    // Records with data pay for others.
    let mut pair = self::pair();
    pair.handshake();
    for _ in 0..1000 {
        pair.client.refresh_key();
        assert_eq!(pair.client.send(b"a request"), 9);
        assert_eq!(pair.deliver(), (None, None));
    }
    assert_eq!(pair.server.take_records(), 2000 + 3, "those of the handshake, too");
}

#[test]
fn a_handshake_in_many_records_is_refused() {
    let mut server = pair().server;
    // The beginning of a CLIENT_HELLO of 65,520 bytes, one in each record.
    let mut plaintext = Vec::new();
    for (count, byte) in [1, 0, 0xff, 0xf0].into_iter().chain([0; 60]).enumerate() {
        assert_eq!(server.receive(&[0x16, 3, 1, 0, 1, byte], &mut plaintext), Ok(()), "{count}");
    }
    assert_eq!(server.receive(&[0x16, 3, 1, 0, 1, 0], &mut plaintext), Err(TlsFault::BareRecords));
}

#[test]
fn records_are_counted_however_their_bytes_arrive() {
    let stream: Vec<u8> = [0, 1, 2, 300, 0, 7]
        .into_iter()
        .flat_map(|length: u16| {
            let [high, low] = length.to_be_bytes();
            [&[0x17, 3, 3, high, low][..], &vec![9; length.into()]].concat()
        })
        .collect();
    for chunk in [1, 2, 3, 5, 6, 7, 64, 1000] {
        let mut counter = RecordCounter::default();
        assert_eq!(stream.chunks(chunk).map(|bytes| counter.count(bytes)).sum::<usize>(), 6, "{chunk}");
    }
}
