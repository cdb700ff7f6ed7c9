//! The servers under load.

use super::Plan;
use super::cpu::CpuMeter;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::error::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Duration;

/// `NAME=HOST:PORT[:PID]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetName {
    name: String,
    endpoint: Endpoint,
    pid: Option<u32>,
}

impl TargetName {
    pub(super) fn new(name: &str, address: SocketAddr) -> Self {
        let endpoint = Endpoint { host: address.ip().to_string(), port: address.port() };
        Self { name: name.into(), endpoint, pid: None }
    }
}

impl FromStr for TargetName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) =
            text.split_once('=').map_or((None, text), |(name, address)| (Some(name), address));
        if name == Some("") {
            return Err("a name is missing: NAME=HOST:PORT[:PID] is expected".into());
        }
        // A PID stands behind the second colon of what follows the host.
        let host_bytes = if address.starts_with('[') { address.find(']').unwrap_or(0) } else { 0 };
        let (endpoint, pid) = match address[host_bytes..].match_indices(':').nth(1) {
            Some((colon, _)) => {
                let (endpoint, pid) = (&address[..host_bytes + colon], &address[host_bytes + colon + 1..]);
                let number = pid.parse().map_err(|_| format!("\"{pid}\" is not a process id"))?;
                (endpoint, Some(number))
            }
            None => (address, None),
        };
        let endpoint: Endpoint = endpoint.parse()?;
        Ok(Self { name: name.map_or_else(|| endpoint.to_string(), str::to_owned), endpoint, pid })
    }
}

/// A server that has shown that it speaks the protocol.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    /// For what is not load.
    pub(super) store: Store,
    pub(super) cpu: CpuMeter,
}

impl Target {
    pub(super) fn connect(name: &TargetName, cpu: Option<CpuMeter>, plan: &Plan) -> Result<Self, Failure> {
        let TargetName { name, endpoint, pid } = name;
        let cpu = match (cpu, pid) {
            (Some(cpu), _) => cpu,
            (None, Some(pid)) => CpuMeter::of_process(*pid)?,
            (None, None) => CpuMeter::Unknown,
        };
        let options = StoreOptions {
            timeout: plan.timeout,
            connect_timeout: Duration::ZERO,
            response_timeout: plan.timeout,
            ..StoreOptions::default()
        };
        let mut failure = None;
        for address in addresses(endpoint, plan.timeout)? {
            match Store::connect(&address.ip().to_string(), address.port(), options.clone()) {
                Ok(store) => return Ok(Self { name: name.clone(), address, store, cpu }),
                Err(error) => failure = Some(error.into()),
            }
        }
        Err(failure.unwrap_or_else(|| unresolved(endpoint, "it has no address")))
    }

    /// Returns when the server has dealt with what came before: it answers the greeting of a new connection.
    pub(super) fn settle(&self) -> Result<(), Failure> {
        self.store.duplicate().map(drop).map_err(Failure::from)
    }
}

/// The resolver has no deadline of its own, so it works on another thread.
fn addresses(endpoint: &Endpoint, timeout: Duration) -> Result<Vec<SocketAddr>, Failure> {
    if let Ok(address) = endpoint.host.parse() {
        return Ok(vec![SocketAddr::new(address, endpoint.port)]);
    }
    let (found, answer) = mpsc::channel();
    let Endpoint { host, port } = endpoint.clone();
    std::thread::spawn(move || {
        found.send((host.as_str(), port).to_socket_addrs().map(Iterator::collect)).ok();
    });
    match answer.recv_timeout(timeout) {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(unresolved(endpoint, &error.to_string())),
        Err(_) => Err(unresolved(endpoint, &format!("no answer within {} ms", timeout.as_millis()))),
    }
}

fn unresolved(endpoint: &Endpoint, why: &str) -> Failure {
    Failure::new(ErrorKind::Unresolved, format!("found no address for {}: {why}", endpoint.host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_the_help_says() {
        for (text, name, endpoint, pid) in [
            ("a=127.0.0.1:29500", "a", "127.0.0.1:29500", None),
            ("a=node-1:29500:77", "a", "node-1:29500", Some(77)),
            ("a=[::1]:29500", "a", "[::1]:29500", None),
            ("a=[::1]:29500:77", "a", "[::1]:29500", Some(77)),
            ("node-1:29500", "node-1:29500", "node-1:29500", None),
            ("[::1]:29500:77", "[::1]:29500", "[::1]:29500", Some(77)),
        ] {
            let target: TargetName = text.parse().unwrap();
            assert_eq!((target.name.as_str(), target.pid), (name, pid), "{text}");
            assert_eq!(target.endpoint.to_string(), endpoint);
        }
        for (text, reason) in [
            ("=h:1", "a name is missing"),
            ("a=h:", "not a port"),
            ("a=h:1:x", "not a process id"),
            ("a=h:1:2:3", "not a process id"),
            ("a=::1", "a host is missing"),
            ("a=[::1", "not a port"),
        ] {
            let problem = text.parse::<TargetName>().unwrap_err();
            assert!(problem.contains(reason), "{text}: {problem}");
        }
    }
}
