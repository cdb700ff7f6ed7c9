//! Settings of the `static` backend, read from its parameters: node ranks are given, and node 0 hosts the store.

use super::parameters::{ConfigValue, ParametersError, RendezvousParameters, fractional_seconds};
use super::parse::{Endpoint, EndpointError};
use super::store_info::RendezvousStoreInfo;
use crate::prelude::*;

/// Name of the backend.
pub const STATIC_BACKEND: &str = "static";
const TIMEOUT_DEFAULT_S: i64 = 600;

/// Invalid parameters of the `static` backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaticError {
    /// The option `rank` is missing. (The missing space in the text is PyTorch's.)
    #[error("rank is absent in RendezvousParameters.Try add --node-rank to the cmd request")]
    RankAbsent,
    /// The endpoint is empty.
    #[error(
        "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request"
    )]
    EndpointAbsent,
    /// The endpoint has no port.
    #[error("Port is absent in endpoint: {endpoint}. Try launching with --master-port")]
    PortAbsent {
        /// The endpoint, trimmed.
        endpoint: Box<str>,
    },
    /// The endpoint cannot be parsed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// An option cannot be parsed, or is unknown.
    #[error(transparent)]
    Option(#[from] ParametersError),
    /// The rank is out of range. PyTorch accepts it, and waits until its timeout.
    #[error("The rank ({rank}) must be at least 0 and less than the number of nodes ({world_size}).")]
    RankRange {
        /// The given rank.
        rank: i64,
        /// Number of nodes.
        world_size: i64,
    },
    /// Two processes have the same node rank.
    #[error(
        "{one} and {two} both have node rank {rank} of run '{run_id}'. Give each node a node rank of its own: --node-rank \
         of rdzv run, the option 'rank' elsewhere."
    )]
    RankTaken {
        /// The node rank.
        rank: u64,
        /// The run's id.
        run_id: Box<str>,
        /// The process that had the rank first.
        one: Box<str>,
        /// The other process.
        two: Box<str>,
    },
    /// The timeout is not positive.
    #[error("The timeout ({timeout_s} s) must be positive.")]
    Timeout {
        /// The given timeout, in seconds.
        timeout_s: i64,
    },
}

/// One node's settings of a static rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticSettings {
    /// Address at which node 0 hosts the store.
    pub master: RendezvousStoreInfo,
    /// Address at which node 0 listens, where it differs from the endpoint.
    pub listen_host: Option<String>,
    /// This node's rank.
    pub rank: i64,
    /// Number of nodes: the maximum of the parameters.
    pub world_size: i64,
    /// The run's id, with which all keys of the run begin.
    pub run_id: String,
    /// Time that one store call may take, and the wait for the other nodes.
    pub timeout: Duration,
}

impl StaticSettings {
    /// Reads the parameters; options are `rank`, `timeout` (in seconds) and, not in PyTorch, `listen_host`.
    ///
    /// # Errors
    /// The first missing or invalid parameter.
    pub fn read(parameters: &RendezvousParameters) -> Result<Self, StaticError> {
        let rank = parameters.get_as_int("rank", None);
        if matches!(rank, Ok(None)) {
            return Err(StaticError::RankAbsent);
        }
        let endpoint = parameters.endpoint.trim();
        if endpoint.is_empty() {
            return Err(StaticError::EndpointAbsent);
        }
        let Endpoint { host, port } = Endpoint::parse(endpoint)?;
        let master_port = port.ok_or_else(|| StaticError::PortAbsent { endpoint: endpoint.into() })?;
        parameters.check_known(&["rank", "timeout", "listen_host"])?;
        let (rank, world_size) = (rank?.unwrap_or_default(), parameters.max_nodes());
        if !(0..world_size).contains(&rank) {
            return Err(StaticError::RankRange { rank, world_size });
        }
        let timeout_s = parameters.get_as_int("timeout", None)?.unwrap_or(TIMEOUT_DEFAULT_S);
        let whole = u64::try_from(timeout_s).ok().filter(|&seconds| seconds > 0).map(Duration::from_secs);
        let timeout = fractional_seconds(parameters, "timeout").or(whole);
        let timeout = timeout.ok_or(StaticError::Timeout { timeout_s })?;
        let listen_host = match parameters.config.get("listen_host") {
            Some(ConfigValue::Text(host)) => Some(host.clone()),
            _ => None,
        };
        Ok(Self {
            master: RendezvousStoreInfo { master_addr: host, master_port },
            listen_host,
            rank,
            world_size,
            run_id: parameters.run_id.clone(),
            timeout,
        })
    }

    /// Returns the prefix of the run's keys on the wire: that of PyTorch's prefix store over its TCP store.
    pub fn scope(&self) -> Vec<u8> {
        [b"/", self.run_id.as_bytes(), b"/"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn parameters(endpoint: &str) -> RendezvousParameters {
        RendezvousParameters::new("static", endpoint, "run", 1, 4).expect("valid")
    }

    #[test]
    fn a_whole_set() {
        let settings = StaticSettings::read(&parameters(" node-0:29500 ").with("rank", "3")).expect("whole");
        let master = RendezvousStoreInfo { master_addr: "node-0".into(), master_port: 29500 };
        assert_eq!(
            settings,
            StaticSettings {
                master,
                listen_host: None,
                rank: 3,
                world_size: 4,
                run_id: "run".into(),
                timeout: Duration::from_secs(600),
            }
        );
        assert_eq!(settings.scope(), b"/run/");
        let nameless = RendezvousParameters::new("static", "h:1", "", 1, 1).expect("valid").with("rank", 0);
        assert_eq!(StaticSettings::read(&nameless).expect("as with PyTorch").scope(), b"//");
        let given = parameters("[::1]:1").with("rank", 0).with("timeout", "900").with("listen_host", "::");
        let settings = StaticSettings::read(&given).expect("whole");
        assert_eq!(settings.timeout, Duration::from_secs(900));
        assert_eq!(
            (settings.master.master_addr.as_str(), settings.listen_host.as_deref()),
            ("::1", Some("::"))
        );
    }

    #[test]
    fn missing_parameters_are_reported_in_order() {
        let with_rank = |endpoint| parameters(endpoint).with("rank", 0);
        for (given, text) in [
            (parameters(""), "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request"),
            (
                parameters("h").with("rank", ConfigValue::None),
                "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request",
            ),
            (
                with_rank(" ").with("timeout", "x"),
                "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request",
            ),
            (with_rank(" h "), "Port is absent in endpoint: h. Try launching with --master-port"),
            (with_rank("::1"), "Port is absent in endpoint: ::1. Try launching with --master-port"),
            (
                with_rank("h:x"),
                "The port number of the rendezvous endpoint 'h:x' must be an integer between 0 and 65536.",
            ),
            (
                parameters("h:1").with("rank", "first"),
                "The rendezvous configuration option 'rank' does not represent a valid integer value.",
            ),
            (
                parameters("h:1").with("rank", 4),
                "The rank (4) must be at least 0 and less than the number of nodes (4).",
            ),
            (
                parameters("h:1").with("rank", -1),
                "The rank (-1) must be at least 0 and less than the number of nodes (4).",
            ),
            (
                with_rank("h:1").with("timeout", "soon"),
                "The rendezvous configuration option 'timeout' does not represent a valid integer value.",
            ),
            (with_rank("h:1").with("timeout", 0), "The timeout (0 s) must be positive."),
        ] {
            assert_eq!(StaticSettings::read(&given).expect_err("refused").to_string(), text);
        }
    }
}
