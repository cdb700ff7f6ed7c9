//! Bytes in JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Text where the bytes are UTF-8, else `{"base64": …}`.
pub(crate) fn bytes(bytes: &[u8]) -> Value {
    match str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(bytes("größe \"1\"".as_bytes()), json!("größe \"1\""));
        assert_eq!(bytes(b"\xff\0"), json!({ "base64": "/wA=" }));
    }
}
