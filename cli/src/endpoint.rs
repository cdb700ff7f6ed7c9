//! `HOST:PORT`, as people write it.

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
        let (host, port) = text.rsplit_once(':').ok_or("a port is missing: HOST:PORT is expected")?;
        let endpoint = Self::new(host, port)?;
        if endpoint.host.is_empty() {
            return Err("a host is missing: HOST:PORT is expected".into());
        }
        if endpoint.host == host && host.contains(':') {
            return Err(format!("an IPv6 address goes in brackets: [{text}]:PORT"));
        }
        Ok(endpoint)
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
            ("node", "a port is missing"),
            (":1", "a host is missing"),
            ("h:70000", "not a port"),
            ("h:", "not a port"),
            ("[::1]", "not a port"),
        ] {
            let problem = bad.parse::<Endpoint>().unwrap_err();
            assert!(problem.contains(reason), "{bad}: {problem}");
        }
    }

    #[test]
    fn a_bare_ipv6_host_is_fine_where_the_port_stands_apart() {
        assert_eq!(Endpoint::new("::1", "29500").unwrap().to_string(), "[::1]:29500");
    }
}
