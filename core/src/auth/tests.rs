use super::*;
use crate::wire::native::plain_hello;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn hello(number: u64) -> ClientFrame<'static> {
    let mut hello = plain_hello(b"node");
    if let ClientFrame::Hello { session, .. } = &mut hello {
        *session = number;
    }
    hello
}

#[test]
fn fields_are_read_as_they_were_written() {
    let field = AuthField { step: Step::Proof, bytes: [7; 32], token: b"name" };
    assert_eq!(AuthField::parse(&field.encode()), Some(field));
    assert_eq!(AuthField::parse(b""), None);
    assert_eq!(AuthField::parse(&[1; 32]), None, "the nonce is incomplete");
    assert_eq!(AuthField::parse(&[3; 33]), None, "no such step");
    assert_eq!(AuthField::parse(&[1; FIELD_BYTES_MAX + 1]), None, "the name is too long");
}

#[test]
fn a_proof_covers_its_end_the_exchange_and_every_field() {
    let key = TokenKey::new(SECRET.as_bytes());
    let exchange = Exchange { client: [1; 32], server: [2; 32], channel: [0; 32] };
    let proof = key.proof(Prover::Client, &exchange, &hello(0));
    assert!(key.accepts(Prover::Client, &exchange, &hello(0), &proof));
    let others = [
        key.proof(Prover::Server, &exchange, &hello(0)),
        key.proof(Prover::Caller, &exchange, &hello(0)),
        key.proof(Prover::Callee, &exchange, &hello(0)),
        key.proof(Prover::Client, &Exchange { client: [3; 32], ..exchange }, &hello(0)),
        key.proof(Prover::Client, &Exchange { server: [3; 32], ..exchange }, &hello(0)),
        key.proof(Prover::Client, &Exchange { channel: [3; 32], ..exchange }, &hello(0)),
        key.proof(Prover::Client, &exchange, &hello(1)),
        key.proof(Prover::Client, &exchange, &hello(0).with_auth(b"x")),
        TokenKey::new(b"another secret, also long enough").proof(Prover::Client, &exchange, &hello(0)),
    ];
    assert!(!others.contains(&proof));
}

#[test]
fn a_client_accepts_only_the_proof_for_what_it_sent() {
    let key = TokenKey::new(SECRET.as_bytes());
    let mut client = ClientAuth::new(Credentials::parse(SECRET).unwrap());
    client.offer([1; 32]);
    assert!(!client.proven(&[0; 32]), "the server has not been challenged");
    assert!(client.challenged([2; 32]));
    assert!(!client.challenged([2; 32]), "a second challenge is a violation");
    assert!(!client.proven(&[0; 32]), "the client has proven nothing yet");
    let field = client.prove(&hello(0), [0; 32]).to_vec();
    let exchange = Exchange { client: [1; 32], server: [2; 32], channel: [0; 32] };
    let own = AuthField::parse(&field).unwrap().bytes;
    assert!(!client.proven(&own), "the client's own proof, sent back");
    assert!(!client.is_proven());
    let right = key.proof(Prover::Server, &exchange, &hello(0).with_auth(&field));
    assert!(client.proven(&right));
    assert!(client.is_proven());
    client.offer([3; 32]);
    assert!(!client.is_proven(), "a new connection begins without trust");
    assert!(client.challenged([2; 32]));
    assert!(!client.proven(&right), "the proof of an earlier connection, before the client's");
    client.prove(&hello(0), [0; 32]);
    assert!(!client.proven(&right), "the proof of an earlier connection");
}

#[test]
fn secrets_are_not_printed() {
    extern crate alloc;
    let credentials = Credentials::parse(SECRET).unwrap();
    let shown = alloc::format!("{credentials:?} {:?}", ClientAuth::new(credentials.clone()));
    assert!(!shown.contains(SECRET) && shown.contains("default"), "{shown}");
}
