use super::*;
use crate::access::{Access, Network};
use crate::auth::{ClientAuth, Credentials};
use crate::wire::native::plain_hello;
use core::sync::atomic::Ordering;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "abcdef0123456789abcdef0123456789";

fn tokens() -> Tokens {
    Tokens::parse(&format!("trainer {SECRET} run:job write:/job/\nreader {OTHER} read:\n")).unwrap()
}

/// Returns the exchange after the client's proof, which may be spoiled.
fn prove(text: &str, spoil: impl Fn(&mut Vec<u8>)) -> Option<(Arc<AuthToken>, Bytes32)> {
    prove_to(&tokens(), text, spoil)
}

fn prove_to(tokens: &Tokens, text: &str, spoil: impl Fn(&mut Vec<u8>)) -> Option<(Arc<AuthToken>, Bytes32)> {
    let mut client = ClientAuth::new(Credentials::parse(text).unwrap());
    let challenge = tokens.challenge(client.offer([1; 32]), [2; 32])?;
    assert!(client.challenged([2; 32]));
    let mut field = client.prove(&plain_hello(b"node"), [0; 32]).to_vec();
    spoil(&mut field);
    let verified = challenge.verify(tokens, &plain_hello(b"node").with_auth(&field), [0; 32]);
    if let Some((_, proof)) = &verified {
        assert!(client.proven(proof));
    }
    verified
}

#[test]
fn both_ends_prove_the_token_and_the_client_gets_its_rights() {
    let (token, _) = prove(&format!("trainer {SECRET}"), |_| ()).expect("proven");
    assert_eq!(
        (&*token.name, token.rights.clone()),
        ("trainer", Rights::parse("run:job write:/job/").unwrap())
    );
    let (token, _) = prove(&format!("reader {OTHER}"), |_| ()).expect("proven");
    assert_eq!(token.name, "reader");
}

#[test]
fn nothing_but_the_right_proof_of_the_offered_token_is_accepted() {
    assert!(prove(&format!("trainer {OTHER}"), |_| ()).is_none(), "the secret of another token");
    assert!(prove(&format!("nobodys {SECRET}"), |_| ()).is_none(), "an unknown name");
    let right = format!("trainer {SECRET}");
    for at in 0..33 {
        assert!(prove(&right, |field| field[at] ^= 1).is_none(), "byte {at}");
    }
    assert!(prove(&right, |field| field.extend(b"x")).is_none(), "another name than was offered");
    assert!(prove(&right, |field| field.truncate(10)).is_none());
    assert!(prove(&right, Vec::clear).is_none());
}

#[test]
fn an_unknown_name_takes_as_long_as_a_wrong_secret() {
    let proofs = |text: &str, spoil: fn(&mut Vec<u8>)| {
        let tokens = tokens();
        assert!(prove_to(&tokens, text, spoil).is_none());
        tokens.0.iter().map(|token| token.key.1.load(Ordering::Relaxed)).sum::<u32>()
    };
    assert_eq!(proofs(&format!("trainer {OTHER}"), |_| ()), 1);
    assert_eq!(proofs(&format!("nobodys {SECRET}"), |_| ()), 1);
    assert_eq!(proofs(&format!("trainer {SECRET}"), |field| field.extend(b"x")), 1);
}

#[test]
fn a_proof_for_another_name_than_was_offered_is_not_accepted() {
    let trainer = format!("trainer {SECRET}");
    let mut client = ClientAuth::new(Credentials::parse(&trainer).unwrap());
    client.offer([1; 32]);
    for offered in [&b"reader"[..], b"unknown"] {
        let offer = AuthField { step: Step::Offer, bytes: [1; 32], token: offered }.encode();
        let challenge = tokens().challenge(&offer, [2; 32]).unwrap();
        client.challenged([2; 32]);
        let field = client.prove(&plain_hello(b"node"), [0; 32]).to_vec();
        assert!(challenge.verify(&tokens(), &plain_hello(b"node").with_auth(&field), [0; 32]).is_none());
    }
}

#[test]
fn a_recorded_proof_is_worthless_on_another_connection_or_for_another_hello() {
    let mut client = ClientAuth::new(Credentials::parse(&format!("trainer {SECRET}")).unwrap());
    let offer = client.offer([1; 32]).to_vec();
    client.challenged([2; 32]);
    let field = client.prove(&plain_hello(b"node"), [0; 32]).to_vec();
    let challenge = |nonce| tokens().challenge(&offer, nonce).unwrap();
    let recorded = plain_hello(b"node").with_auth(&field);
    assert!(challenge([2; 32]).verify(&tokens(), &recorded, [0; 32]).is_some());
    assert!(
        challenge([3; 32]).verify(&tokens(), &recorded, [0; 32]).is_none(),
        "another nonce of the server"
    );
    assert!(challenge([2; 32]).verify(&tokens(), &recorded, [9; 32]).is_none(), "another channel");
    let changed = plain_hello(b"other").with_auth(&field);
    assert!(challenge([2; 32]).verify(&tokens(), &changed, [0; 32]).is_none(), "another node name");
    assert!(tokens().challenge(&field, [2; 32]).is_none(), "a proof offers nothing");
}

#[test]
fn errors_in_a_file_name_the_line() {
    let line = |text: &str| Tokens::parse(text).unwrap_err().to_string();
    assert!(line("").contains("no token"));
    assert!(line(&format!("a {SECRET} all\n\nb {SECRET}")).starts_with("line 3: after the secret"));
    assert!(line(&format!("a {SECRET} all\na {OTHER} all")).starts_with("line 2: another token is called a"));
    assert!(line("a short all").starts_with("line 1: the secret has 5 bytes"));
}

#[test]
fn c10d_clients_come_from_where_they_are_allowed() {
    let address = |text: &str| text.parse().unwrap();
    let everybody = Access::default();
    assert!(everybody.allows_c10d(address("10.0.0.1")));
    for authenticated in [
        Access { tokens: Some(tokens()), ..Access::default() },
        Access { requires_certificates: true, ..Access::default() },
    ] {
        assert!(!authenticated.allows_c10d(address("127.0.0.1")));
        let local = Access { c10d_from: Some(Network::LOOPBACK.into()), ..authenticated };
        assert!(local.allows_c10d(address("127.0.0.1")) && local.allows_c10d(address("::1")));
        assert!(!local.allows_c10d(address("10.0.0.1")));
    }
}
