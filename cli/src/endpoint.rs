//! `HOST` and `HOST:PORT`, as people write them.

use rendezvous_core::rendezvous::rdzv_settings::PORT_DEFAULT;
use std::fmt;
use std::str::FromStr;

/// A host (a name or an address, without brackets) and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        if host.contains(':') && without_brackets(host) == host {
            return Err(format!("an IPv6 address goes in brackets: [{text}] or [{text}]:PORT"));
        }
        if without_brackets(host).is_empty() {
            return Err("a host is missing: HOST or HOST:PORT is expected".into());
        }
        match port {
            Some(port) => Self::new(host, port),
            None => Ok(Self { host: without_brackets(host).to_owned(), port: PORT_DEFAULT }),
        }
    }
}

impl Endpoint {
    /// An endpoint out of its two texts; the host may have brackets.
    pub(crate) fn new(host: &str, port: &str) -> Result<Self, String> {
        let port = port.parse().map_err(|_| format!("\"{port}\" is not a port (0 to 65535)"))?;
        Ok(Self { host: without_brackets(host).to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn endpoints_are_read_and_written_as_people_write_them() {
        for (text, host, port) in [
            ("127.0.0.1:0", "127.0.0.1", 0),
            ("[::1]:29500", "::1", 29500),
            ("node-1:29500", "node-1", 29500),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
            assert_eq!(endpoint.to_string(), text);
        }
        for (bad, reason) in [
            ("::1", "in brackets"),
            ("", "a host is missing"),
            (":1", "a host is missing"),
            ("[]", "a host is missing"),
            ("h:70000", "not a port"),
            ("h:", "not a port"),
        ] {
            let problem = bad.parse::<Endpoint>().unwrap_err();
            assert!(problem.contains(reason), "{bad}: {problem}");
        }
    }

    #[test]
    fn an_endpoint_without_a_port_has_the_default_port() {
        for (text, endpoint) in [("node-1", "node-1:29400"), ("[::1]", "[::1]:29400")] {
            assert_eq!(
                text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()).as_deref(),
                Ok(endpoint)
            );
        }
    }

    #[test]
    fn a_bare_ipv6_host_is_fine_where_the_port_stands_apart() {
        assert_eq!(Endpoint::new("::1", "29500").unwrap().to_string(), "[::1]:29500");
    }
}
