//! Splitting a URL as Python's `urllib.parse` does: ranks in Python and in C++ must read a URL alike.

use crate::prelude::*;
use crate::rendezvous::integer::Quoted;
use core::net::{Ipv4Addr, Ipv6Addr};

/// A URL that cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A bracket is unmatched.
    #[error("Invalid IPv6 URL")]
    Brackets,
    /// The host in brackets is no IPv6 address.
    #[error("{} does not appear to be an IPv4 or IPv6 address", Quoted(.host))]
    Host {
        /// The host in brackets.
        host: Box<str>,
    },
    /// The host in brackets is an IPv4 address.
    #[error("An IPv4 address cannot be in brackets")]
    BracketedIpv4,
    /// The port is not decimal.
    #[error("Port could not be cast to integer value as {}", Quoted(.port))]
    PortText {
        /// The given port.
        port: Box<str>,
    },
    /// The port is too large.
    #[error("Port out of range 0-65535")]
    PortRange,
}

/// The parts of a URL; missing parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// The scheme, in lower case.
    pub(super) scheme: String,
    /// The part between `//` and the path, if there is a `//`.
    pub(super) authority: Option<String>,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) fragment: String,
}

/// Splits a URL. Leading whitespace, and line ends and tabs anywhere in it, are ignored.
pub(super) fn split(text: &str) -> Result<Parts, SplitError> {
    let is_blank = |character: char| character <= ' ';
    let clean: String = text
        .trim_start_matches(is_blank)
        .chars()
        .filter(|character| !"\t\r\n".contains(*character))
        .collect();
    let (scheme, rest) = match clean.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
        _ => (String::new(), clean.as_str()),
    };
    let (authority, rest) = match rest.strip_prefix("//") {
        Some(tail) => {
            let end = tail.find(['/', '?', '#']).unwrap_or(tail.len());
            (Some(tail[..end].to_string()), &tail[end..])
        }
        None => (None, rest),
    };
    check_brackets(authority.as_deref().unwrap_or_default())?;
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let [path, query, fragment] = [path, query, fragment].map(ToString::to_string);
    Ok(Parts { scheme, authority, path, query, fragment })
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|character: char| character.is_ascii_alphabetic())
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "+-.".contains(character))
}

fn check_brackets(authority: &str) -> Result<(), SplitError> {
    if authority.contains('[') != authority.contains(']') {
        return Err(SplitError::Brackets);
    }
    let Some((before, tail)) = authority.split_once('[') else { return Ok(()) };
    let (host, tail) = tail.split_once(']').unwrap_or((tail, ""));
    let is_whole = (before.is_empty() || before.ends_with('@')) && (tail.is_empty() || tail.starts_with(':'));
    if !is_whole {
        return Err(SplitError::Brackets);
    }
    if host.parse::<Ipv4Addr>().is_ok() {
        return Err(SplitError::BracketedIpv4);
    }
    let (address, zone) = host.split_once('%').map_or((host, None), |(address, zone)| (address, Some(zone)));
    let is_address = address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(|zone| !zone.is_empty());
    if is_address { Ok(()) } else { Err(SplitError::Host { host: host.into() }) }
}

impl Parts {
    fn host_and_port(&self) -> (&str, &str) {
        let authority = self.authority.as_deref().unwrap_or_default();
        let host_port = authority.rsplit_once('@').map_or(authority, |(_, host_port)| host_port);
        match host_port.split_once('[') {
            Some((_, bracketed)) => {
                let (host, tail) = bracketed.split_once(']').unwrap_or((bracketed, ""));
                (host, tail.split_once(':').map_or("", |(_, port)| port))
            }
            None => host_port.split_once(':').unwrap_or((host_port, "")),
        }
    }

    /// Returns the host in lower case, without brackets; a zone keeps its case.
    pub(super) fn host(&self) -> Option<String> {
        let (host, _) = self.host_and_port();
        let lower = match host.split_once('%') {
            Some((address, zone)) => [&address.to_lowercase(), "%", zone].concat(),
            None => host.to_lowercase(),
        };
        (!lower.is_empty()).then_some(lower)
    }

    pub(super) fn port(&self) -> Result<Option<u16>, SplitError> {
        match self.host_and_port() {
            (_, "") => Ok(None),
            (_, port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                let digits = port.trim_start_matches('0');
                let number = if digits.is_empty() { Ok(0) } else { digits.parse() };
                number.map(Some).map_err(|_| SplitError::PortRange)
            }
            (_, port) => Err(SplitError::PortText { port: port.into() }),
        }
    }
}
