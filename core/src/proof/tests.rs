use super::*;
use heapless::Vec;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn lines_have_a_name_a_secret_and_rights() {
    let parse =
        |line| TokenLine::parse(line).map(|line| line.map(|line| (line.name, line.secret, line.rights)));
    assert_eq!(parse(SECRET), Ok(Some(("default", SECRET, None))));
    let line = "  job.7_a-b \t 0123456789abcdef0123456789abcdef   run:x  read:/  ";
    assert_eq!(parse(line), Ok(Some(("job.7_a-b", SECRET, Some("run:x  read:/")))));
    assert_eq!(parse("name 0123456789abcdef0123456789abcdef"), Ok(Some(("name", SECRET, Some("")))));
    assert_eq!(parse("  # a comment"), Ok(None));
    assert_eq!(parse(""), Ok(None));
    assert_eq!(parse("short"), Err(TokenError::Secret(5)));
    assert_eq!(parse("name short all"), Err(TokenError::Secret(5)));
    assert_eq!(parse("na/me 0123456789abcdef0123456789abcdef"), Err(TokenError::Name));
    let long = [b'n'; TOKEN_NAME_BYTES_MAX + 1];
    let mut line = String::<256>::from_utf8(Vec::from_slice(&long).unwrap()).unwrap();
    line.push(' ').unwrap();
    line.push_str(SECRET).unwrap();
    assert_eq!(parse(&line), Err(TokenError::Name));
    assert_eq!(Credentials::parse("\n# none\n").unwrap_err(), TokenError::Missing);
}

/// The HMAC of RFC 4231, test case 2, through this module's key.
#[test]
fn the_proof_is_hmac_sha_256() {
    let mut mac = TokenKey::new(b"Jefe").0;
    mac.update(b"what do ya want for nothing?");
    let expected = [
        0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a,
        0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43,
    ];
    assert_eq!(mac.finalize(), expected);
}
