//! Endpoints and configuration strings.

use super::parameters::{Config, ConfigValue};
use crate::prelude::*;
use core::net::Ipv6Addr;

/// A configuration string that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value has no key before it.
    #[error("The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.")]
    Format,
    /// A key has no value.
    #[error("The rendezvous configuration option '{key}' must have a value specified.")]
    NoValue {
        /// The key without a value.
        key: Box<str>,
    },
}

/// Parses `key=value,key=value`. Whitespace around keys and values is ignored; a later value of a key replaces an
/// earlier one.
///
/// # Errors
/// A key or a value is empty.
pub fn parse_config(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::new();
    let text = text.trim();
    if text.is_empty() {
        return Ok(config);
    }
    for option in text.split(',') {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(ConfigError::Format);
        }
        if value.is_empty() {
            return Err(ConfigError::NoValue { key: key.into() });
        }
        config.insert(key.to_string(), ConfigValue::Text(value.to_string()));
    }
    Ok(config)
}

/// An endpoint that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The port is invalid.
    #[error(
        "The port number of the rendezvous endpoint '{endpoint}' must be an integer between 0 and 65536."
    )]
    Port {
        /// The endpoint, trimmed.
        endpoint: Box<str>,
    },
    /// The host is invalid.
    #[error(
        "The hostname of the rendezvous endpoint '{endpoint}' must be a dot-separated list of labels, an IPv4 \
         address, or an IPv6 address."
    )]
    Host {
        /// The endpoint, trimmed.
        endpoint: Box<str>,
    },
}

/// Address of a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A host name or an address, without brackets.
    pub host: String,
    /// The port, if the endpoint has one.
    pub port: Option<u16>,
}

impl Endpoint {
    /// Parses `host`, `host:port`, `[address]` and `[address]:port`; the empty string means `localhost`.
    ///
    /// An IPv6 address without a port needs no brackets: `::1` is that host. (PyTorch splits it at its last colon,
    /// into the host `:` and the port 1.) A string that is no IPv6 address as a whole is split at its last colon, as
    /// in PyTorch: `::1:29400` is the host `::1` with a port, since no part of an address has five digits.
    ///
    /// # Errors
    /// The port is no number below 65536, or the host contains characters that are invalid in a host.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let endpoint = text.trim();
        if endpoint.is_empty() {
            return Ok(Self { host: "localhost".to_string(), port: None });
        }
        let is_bracketed = |text: &str| text.len() > 1 && text.starts_with('[') && text.ends_with(']');
        let is_one_host = is_bracketed(endpoint) || endpoint.parse::<Ipv6Addr>().is_ok();
        let (host, port) = match endpoint.rsplit_once(':') {
            Some((host, port)) if !is_one_host => (host, Some(port)),
            _ => (endpoint, None),
        };
        let port = match port.map(parse_port) {
            Some(None) => return Err(EndpointError::Port { endpoint: endpoint.into() }),
            Some(port) => port,
            None => None,
        };
        let host = if is_bracketed(host) { &host[1..host.len() - 1] } else { host };
        let is_host_character = |character: char| character.is_alphanumeric() || "_.:-".contains(character);
        if host.is_empty() || !host.chars().all(is_host_character) {
            return Err(EndpointError::Host { endpoint: endpoint.into() });
        }
        Ok(Self { host: host.to_string(), port })
    }
}

/// Parses one to five digits, below 65536.
fn parse_port(text: &str) -> Option<u16> {
    let is_plain = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    #[test]
    fn configuration_strings() {
        for (text, expected) in [
            ("", &[][..]),
            ("  ", &[]),
            ("a=1", &[("a", "1")]),
            (" a = 1 , b= x y ", &[("a", "1"), ("b", "x y")]),
            ("a=1=2", &[("a", "1=2")]),
            ("b=2,a=1,b=3", &[("a", "1"), ("b", "3")]),
        ] {
            let config = parse_config(text).expect("a configuration");
            let expected: Vec<_> =
                expected.iter().map(|&(key, value)| (key.to_string(), value.into())).collect();
            assert!(config.iter().eq(&expected), "{text:?}");
        }
        let format =
            "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.";
        let no_value =
            |key| format!("The rendezvous configuration option '{key}' must have a value specified.");
        for (text, expected) in [
            ("=1", format.to_string()),
            ("a=1,", format.to_string()),
            (",a=1", format.to_string()),
            (" = ", format.to_string()),
            ("a", no_value("a")),
            ("a=", no_value("a")),
            ("x=1, a = ,b=2", no_value("a")),
        ] {
            assert_eq!(parse_config(text).expect_err("none").to_string(), expected, "{text:?}");
        }
    }

    #[test]
    fn endpoints() {
        for (text, host, port) in [
            ("", "localhost", None),
            ("  ", "localhost", None),
            ("h", "h", None),
            (" h:3 ", "h", Some(3)),
            ("h:0", "h", Some(0)),
            ("h:65535", "h", Some(65535)),
            ("h:00080", "h", Some(80)),
            ("10.0.0.1:5", "10.0.0.1", Some(5)),
            ("[::1]", "::1", None),
            ("[::1]:5", "::1", Some(5)),
            ("h_x:3", "h_x", Some(3)),
            ("a-b.c:3", "a-b.c", Some(3)),
            ("[h]:3", "h", Some(3)),
            ("münchen:3", "münchen", Some(3)),
            // Correct here; PyTorch splits these at the last colon.
            ("::1", "::1", None),
            ("::", "::", None),
            ("2001:db8::7", "2001:db8::7", None),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1", None),
            ("::1:2940", "::1:2940", None),
            ("::1:29400", "::1", Some(29400)),
            ("1:2:3:4:5:6:7:8:29400", "1:2:3:4:5:6:7:8", Some(29400)),
        ] {
            let expected = Endpoint { host: host.to_string(), port };
            assert_eq!(Endpoint::parse(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn endpoints_that_are_none() {
        let ports = ["h:", "h:65536", "h:123456", "h:-1", "h:+1", "h:x", "h: 1", ":", "[::1]:", "[::1]x:y"];
        let hosts = [":80", "[]:3", "[]", "[", "a b:3", "http://x:3", "[::1", "a/b", "[fe80::1%eth0]:3"];
        let expected = ports.iter().map(|endpoint| {
            let rule = "must be an integer between 0 and 65536.";
            (endpoint, format!("The port number of the rendezvous endpoint '{endpoint}' {rule}"))
        });
        let host_rule = "must be a dot-separated list of labels, an IPv4 address, or an IPv6 address.";
        let expected: Vec<_> = expected
            .chain(hosts.iter().map(|endpoint| {
                (endpoint, format!("The hostname of the rendezvous endpoint '{endpoint}' {host_rule}"))
            }))
            .collect();
        for (text, expected) in expected {
            assert_eq!(Endpoint::parse(text).expect_err("none").to_string(), expected, "{text:?}");
        }
    }
}
