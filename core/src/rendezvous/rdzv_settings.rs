//! Settings of the `rdzv` backend, read from its parameters.

use super::parameters::{ConfigValue, ParametersError, RendezvousParameters, fractional_seconds};
use super::parse::{Endpoint, EndpointError};
use super::timeouts::{TimeoutError, Timeouts};
use crate::prelude::*;
use crate::time::Seconds;
use crate::wire::native::{LastCall, RankOrder, Terms};

/// Name of the backend.
pub const RDZV_BACKEND: &str = "rdzv";
/// Port of an endpoint that names none.
pub const PORT_DEFAULT: u16 = 29400;
/// Names of the backend's options.
const OPTIONS: &[&str] = &[
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "is_host",
    "listen_host",
    "node",
    "auth_token_file",
    "node_rank",
    "local_world_size",
    "standby",
    "label.",
    "read_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "grace",
    "min_to_continue",
    "last_call",
    "fast_quorum",
    "rank_order",
    "rank_label",
    "cool_down_failures",
    "cool_down_window",
    "cool_down_pause",
    "cool_down_pause_max",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "tls_server_name",
];
/// Prefix of the options that set a label; the rest is the label's name.
const LABEL_PREFIX: &str = "label.";

/// Invalid parameters of the `rdzv` backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdzvError {
    /// The endpoint cannot be parsed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// An option cannot be parsed, or is unknown.
    #[error(transparent)]
    Option(#[from] ParametersError),
    /// A timeout is not positive, or too long.
    #[error(transparent)]
    Timeout(#[from] TimeoutError),
    /// The run id is empty.
    #[error("The run id must be a non-empty string.")]
    RunId,
    /// An option has none of its keywords as value.
    #[error("The rendezvous configuration option '{key}' is '{value}', not one of: {message}.")]
    Keyword {
        /// Name of the option.
        key: &'static str,
        /// The given value.
        value: Box<str>,
        /// The keywords that the option accepts, separated by commas.
        message: &'static str,
    },
    /// An option is out of its range.
    #[error("The rendezvous configuration option '{key}' is {value}, not from {least} to {most}.")]
    Range {
        /// Name of the option.
        key: &'static str,
        /// The given value.
        value: i64,
        /// Smallest accepted value.
        least: i64,
        /// Largest accepted value.
        most: i64,
    },
    /// An option of TLS is missing that another one needs.
    #[error("The rendezvous configuration option '{key}' is missing: {reason}.")]
    Tls {
        /// Name of the missing option.
        key: &'static str,
        /// Why it is needed.
        reason: &'static str,
    },
    /// A loop has no nodes of this backend.
    #[error(
        "A node in an event loop needs the rendezvous backend 'rdzv', not '{backend}'. Use a rendezvous handler for \
         '{backend}'."
    )]
    BackendInLoop {
        /// The backend.
        backend: Box<str>,
    },
    /// The option is for a node that may host the server, which one in a loop does not.
    #[error(
        "A node in an event loop hosts no server, so it cannot have the rendezvous configuration option '{key}'. Start \
         the server first and omit the option."
    )]
    HostInLoop {
        /// Name of the option.
        key: &'static str,
    },
}

/// Where the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosting {
    /// In this node.
    Here,
    /// Elsewhere; this node only connects.
    Stored,
    /// In the first node on the endpoint's host that finds the port free.
    WhereTheEndpointIs,
}

/// One node's settings of a rendezvous at a librendezvous server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdzvSettings {
    /// Host of the server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Where the server runs.
    pub hosting: Hosting,
    /// Address at which the server listens, where it differs from the endpoint.
    pub listen_host: Option<String>,
    /// The run's id.
    pub run_id: String,
    /// The node's name; `None`: a name made of its host and process.
    pub node: Option<String>,
    /// Address at which other nodes reach the node, if the caller gave one.
    pub address: Option<String>,
    /// Number of workers of the node.
    pub local_world_size: u32,
    /// The node rank that it asks for; -1: any.
    pub node_rank: i32,
    /// Whether the node is only a spare.
    pub standby: Standby,
    /// Labels of the node, as names and values.
    pub labels: Vec<(String, String)>,
    /// Path of the file with the token that the node proves, and with all tokens if it hosts the server.
    pub auth_token_file: Option<String>,
    /// Timeouts of the rendezvous.
    pub timeouts: Timeouts,
    /// Timeout of calls of the rounds' stores.
    pub read_timeout: Duration,
    /// Interval of heartbeats.
    pub keep_alive_interval: Duration,
    /// Number of missed heartbeats after which the node counts as dead.
    pub keep_alive_max_attempt: u32,
    /// Time that the node's session outlives its connection.
    pub grace: Duration,
    /// TLS of the node's session, and of the server if this node hosts it.
    pub tls: Option<TlsSettings>,
    /// The terms without their label, which is the next field.
    terms: Terms<'static>,
    rank_label: String,
}

/// Files of a node's TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Trusted CAs of the server.
    pub ca: String,
    /// Certificate and private key: of the server if this node hosts it, and of the node if the server asks for one.
    pub identity: Option<(String, String)>,
    /// Trusted CAs of clients, if this node hosts the server.
    pub client_ca: Option<String>,
    /// Name that the server's certificate must contain.
    pub server_name: String,
}

impl TlsSettings {
    /// Error of a node that hosts the server and has no certificate.
    pub const NO_IDENTITY: RdzvError = RdzvError::Tls {
        key: "tls_cert",
        reason: "this node hosts the server, which needs a certificate; with is_host=false it only connects",
    };
}

/// How a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standby {
    /// As a member of the next round.
    No,
    /// As a spare.
    Only,
}

impl RdzvSettings {
    /// Reads the parameters. `docs/handlers.md` lists the options.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn read(parameters: &RendezvousParameters) -> Result<Self, RdzvError> {
        let Endpoint { host, port } = Endpoint::parse(&parameters.endpoint)?;
        if parameters.run_id.is_empty() {
            return Err(RdzvError::RunId);
        }
        parameters.check_known(OPTIONS)?;
        let read = Reader(parameters);
        let timeouts = Timeouts {
            join: read.timeout("join_timeout", "join", 600)?,
            last_call: read.timeout("last_call_timeout", "last_call", 30)?,
            close: read.timeout("close_timeout", "close", 30)?,
            heartbeat: read.timeout("heartbeat_timeout", "heartbeat", 5)?,
        };
        let hosting = match parameters.get_as_bool("is_host", None)? {
            Some(true) => Hosting::Here,
            Some(false) => Hosting::Stored,
            None => Hosting::WhereTheEndpointIs,
        };
        let last_call = read.keyword(
            "last_call",
            &[
                ("fixed", LastCall::Fixed),
                ("last_arrival", LastCall::FromLastArrival),
                ("none", LastCall::Off),
            ],
            "fixed, last_arrival, none",
        )?;
        let rank_order = read.keyword(
            "rank_order",
            &[
                ("sticky", RankOrder::Sticky),
                ("host", RankOrder::Host),
                ("node_rank", RankOrder::NodeRank),
                ("label", RankOrder::Label),
            ],
            "sticky, host, node_rank, label",
        )?;
        let standby = if read.flag("standby", false)? { Standby::Only } else { Standby::No };
        let tls = read.tls(&host)?;
        if hosting == Hosting::Here && tls.as_ref().is_some_and(|tls| tls.identity.is_none()) {
            return Err(TlsSettings::NO_IDENTITY);
        }
        let labels = parameters.config.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(LABEL_PREFIX)?;
            Some((name.to_string(), text_of(value)))
        });
        Ok(Self {
            host,
            port: port.unwrap_or(PORT_DEFAULT),
            hosting,
            listen_host: read.text("listen_host"),
            run_id: parameters.run_id.clone(),
            node: read.text("node"),
            address: parameters.local_addr.clone(),
            local_world_size: read.count("local_world_size", 1, 1)?,
            node_rank: ranged("node_rank", read.number("node_rank", -1)?, -1, i32::MAX.into())?,
            standby,
            labels: labels.collect(),
            auth_token_file: read.text("auth_token_file"),
            timeouts,
            read_timeout: read.seconds("read_timeout", 60, 1)?,
            keep_alive_interval: read.seconds("keep_alive_interval", 5, 1)?,
            keep_alive_max_attempt: read.count("keep_alive_max_attempt", 3, 1)?,
            grace: read.seconds("grace", 0, 0)?,
            tls,
            terms: Terms {
                nodes_min: ranged("min_nodes", parameters.min_nodes(), 1, u32::MAX.into())?,
                nodes_max: ranged("max_nodes", parameters.max_nodes(), 1, u32::MAX.into())?,
                continue_min: read.minimum_to_continue(parameters.min_nodes())?,
                last_call,
                last_call_ms: u64::try_from(timeouts.last_call.as_millis()).unwrap_or(u64::MAX),
                fast_quorum: read.flag("fast_quorum", true)?,
                rank_order,
                rank_label: b"",
                cool_down_failures: read.count("cool_down_failures", 0, 0)?,
                cool_down_window_ms: read.millis("cool_down_window", 300)?,
                cool_down_pause_ms: read.millis("cool_down_pause", 10)?,
                cool_down_pause_ms_max: read.millis("cool_down_pause_max", 600)?,
            },
            rank_label: read.text("rank_label").unwrap_or_default(),
        })
    }

    /// Reads the parameters of a node in an event loop, which hosts no server.
    ///
    /// # Errors
    /// The parameters are invalid, or of another backend, or want the node to host the server.
    pub fn read_for_loop(parameters: &RendezvousParameters) -> Result<Self, RdzvError> {
        if parameters.backend != RDZV_BACKEND {
            return Err(RdzvError::BackendInLoop { backend: parameters.backend.as_str().into() });
        }
        let settings = Self::read(parameters)?;
        let for_hosts =
            [("is_host", settings.hosting == Hosting::Here), ("listen_host", settings.listen_host.is_some())];
        match for_hosts.iter().find(|(_, is_given)| *is_given) {
            Some(&(key, _)) => Err(RdzvError::HostInLoop { key }),
            None => Ok(settings),
        }
    }

    /// Returns the time that more nodes may still join once there are enough, if it is counted from then on without
    /// extension.
    pub fn last_call_span(&self) -> Option<Duration> {
        Some(self.timeouts.last_call).filter(|_| self.terms.last_call == LastCall::Fixed)
    }

    /// Returns the terms, on which all nodes of the run must agree.
    pub fn terms(&self) -> Terms<'_> {
        Terms { rank_label: self.rank_label.as_bytes(), ..self.terms }
    }

    /// Returns the name of the `local_id`th node of process `pid` on `host`, unless the settings name it.
    pub fn node_name(&self, host: &str, pid: u32, local_id: u32) -> String {
        self.node.clone().unwrap_or_else(|| format!("{host}_{pid}_{local_id}"))
    }
}

struct Reader<'p>(&'p RendezvousParameters);

impl Reader<'_> {
    fn number(&self, key: &'static str, default: i64) -> Result<i64, RdzvError> {
        Ok(self.0.get_as_int(key, Some(&ConfigValue::Int(default)))?.unwrap_or(default))
    }

    fn count(&self, key: &'static str, default: i64, least: i64) -> Result<u32, RdzvError> {
        ranged(key, self.number(key, default)?, least, u32::MAX.into())
    }

    fn timeout(&self, key: &'static str, which: &'static str, default: i64) -> Result<Duration, RdzvError> {
        match fractional_seconds(self.0, key) {
            Some(span) => Ok(span),
            None => Ok(Timeouts::from_seconds(which, self.number(key, default)?)?),
        }
    }

    fn seconds(&self, key: &'static str, default: i64, least: i64) -> Result<Duration, RdzvError> {
        match fractional_seconds(self.0, key) {
            Some(span) => Ok(span),
            None => Ok(Duration::from_secs(self.count(key, default, least)?.into())),
        }
    }

    /// Reads seconds, and returns them in milliseconds.
    fn millis(&self, key: &'static str, default: i64) -> Result<u64, RdzvError> {
        Ok(u64::try_from(self.seconds(key, default, 0)?.as_millis()).unwrap_or(u64::MAX))
    }

    fn flag(&self, key: &'static str, default: bool) -> Result<bool, RdzvError> {
        Ok(self.0.get_as_bool(key, Some(&default.into()))?.unwrap_or(default))
    }

    /// Reads a number from 1 to the minimum of nodes. Returns 0 if the option is not set, which stands for the
    /// minimum in the run's terms.
    fn minimum_to_continue(&self, min_nodes: i64) -> Result<u32, RdzvError> {
        let key = "min_to_continue";
        let Some(value) = self.0.get_as_int(key, None)? else { return Ok(0) };
        ranged(key, value, 1, min_nodes.min(u32::MAX.into()))
    }

    fn text(&self, key: &str) -> Option<String> {
        self.0.config.get(key).map(text_of).filter(|text| !text.is_empty())
    }

    /// Reads the options of TLS of a server on `host`.
    fn tls(&self, host: &str) -> Result<Option<TlsSettings>, RdzvError> {
        let missing = |key, reason| RdzvError::Tls { key, reason };
        let identity = match (self.text("tls_cert"), self.text("tls_key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(missing("tls_key", "tls_cert needs its private key")),
            (None, Some(_)) => return Err(missing("tls_cert", "tls_key needs its certificate")),
        };
        let (client_ca, server_name) = (self.text("tls_client_ca"), self.text("tls_server_name"));
        let Some(ca) = self.text("tls_ca") else {
            return match identity.is_some() || client_ca.is_some() || server_name.is_some() {
                true => Err(missing("tls_ca", "TLS needs the file of trusted CAs")),
                false => Ok(None),
            };
        };
        let server_name = server_name.unwrap_or_else(|| host.to_string());
        Ok(Some(TlsSettings { ca, identity, client_ca, server_name }))
    }

    /// Reads a keyword; the first one of `known` is the default.
    fn keyword<T: Copy>(
        &self,
        key: &'static str,
        known: &[(&str, T)],
        message: &'static str,
    ) -> Result<T, RdzvError> {
        let given = self.text(key);
        let wanted = given.as_deref().map_or(known[0].0, str::trim);
        let found = known.iter().find(|(keyword, _)| keyword.eq_ignore_ascii_case(wanted));
        found.map(|&(_, value)| value).ok_or_else(|| RdzvError::Keyword {
            key,
            value: wanted.into(),
            message,
        })
    }
}

/// Checks that the value of an option is from `least` to `most`.
fn ranged<T: TryFrom<i64>>(key: &'static str, value: i64, least: i64, most: i64) -> Result<T, RdzvError> {
    let number = T::try_from(value).ok().filter(|_| (least..=most).contains(&value));
    number.ok_or(RdzvError::Range { key, value, least, most })
}

fn text_of(value: &ConfigValue) -> String {
    match value {
        ConfigValue::None => String::new(),
        ConfigValue::Bool(value) => value.to_string(),
        ConfigValue::Int(value) => value.to_string(),
        ConfigValue::Duration(span) => Seconds(*span).to_string(),
        ConfigValue::Text(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> RendezvousParameters {
        RendezvousParameters::new(RDZV_BACKEND, "node-0", "run", 2, 4).expect("valid")
    }

    #[test]
    fn defaults_are_those_that_users_of_the_dynamic_rendezvous_know() {
        let settings = RdzvSettings::read(&parameters()).expect("nothing is needed");
        assert_eq!((settings.host.as_str(), settings.port), ("node-0", PORT_DEFAULT));
        assert_eq!(settings.hosting, Hosting::WhereTheEndpointIs);
        assert_eq!(settings.timeouts, Timeouts::DEFAULT);
        assert_eq!(
            (settings.keep_alive_interval, settings.keep_alive_max_attempt),
            (Duration::from_secs(5), 3)
        );
        let terms = settings.terms();
        assert_eq!((terms.nodes_min, terms.nodes_max, terms.continue_min), (2, 4, 0));
        assert_eq!((terms.last_call, terms.last_call_ms), (LastCall::Fixed, 30_000));
        assert!(terms.fast_quorum);
        assert_eq!((terms.rank_order, terms.cool_down_failures), (RankOrder::Sticky, 0));
        assert_eq!(settings.node_name("h", 7, 1), "h_7_1");
    }

    #[test]
    fn nodes_of_loops_host_nothing() {
        let text = |parameters: &RendezvousParameters| {
            RdzvSettings::read_for_loop(parameters).expect_err("refused").to_string()
        };
        for (key, value) in [("is_host", "true"), ("listen_host", "0.0.0.0")] {
            let expected = format!("cannot have the rendezvous configuration option '{key}'.");
            let refused = text(&parameters().with(key, value));
            assert!(refused.contains(&expected), "{refused}");
        }
        let other = RendezvousParameters::new("static", "node-0:1", "run", 1, 1).expect("parameters");
        assert!(text(&other).contains("needs the rendezvous backend 'rdzv', not 'static'"));
        let elsewhere = parameters().with("is_host", "false");
        assert!(RdzvSettings::read_for_loop(&elsewhere).is_ok());
    }

    #[test]
    fn options_are_read() {
        let given = parameters()
            .with_local_addr("10.0.0.7")
            .with("is_host", "yes")
            .with("node", "n")
            .with("last_call", "Last_Arrival")
            .with("last_call_timeout", "7")
            .with("rank_order", "label")
            .with("rank_label", "rack")
            .with("label.rack", "b")
            .with("standby", true)
            .with("min_to_continue", 1)
            .with("fast_quorum", "0")
            .with("cool_down_failures", 3)
            .with("node_rank", 2)
            .with("local_world_size", 8)
            .with("grace", 4)
            .with("timeout", 900);
        let settings = RdzvSettings::read(&given).expect("valid");
        assert_eq!((settings.hosting, settings.standby), (Hosting::Here, Standby::Only));
        assert_eq!(settings.address.as_deref(), Some("10.0.0.7"));
        assert_eq!(settings.node_name("h", 7, 1), "n");
        assert_eq!(settings.labels, [("rack".to_string(), "b".to_string())]);
        assert_eq!((settings.node_rank, settings.local_world_size), (2, 8));
        assert_eq!(settings.grace, Duration::from_secs(4));
        let terms = settings.terms();
        assert_eq!((terms.last_call, terms.last_call_ms), (LastCall::FromLastArrival, 7000));
        assert_eq!((terms.rank_order, terms.rank_label), (RankOrder::Label, &b"rack"[..]));
        assert_eq!((terms.continue_min, terms.fast_quorum, terms.cool_down_failures), (1, false, 3));
        assert_eq!(terms.cool_down_pause_ms_max, 600_000);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let text =
            |given: RendezvousParameters| RdzvSettings::read(&given).expect_err("no sense").to_string();
        let run = RendezvousParameters::new(RDZV_BACKEND, "h", "", 1, 1).expect("valid");
        assert_eq!(text(run), "The run id must be a non-empty string.");
        let endpoint = RendezvousParameters::new(RDZV_BACKEND, "h:x", "run", 1, 1).expect("valid");
        assert!(text(endpoint).starts_with("The port number of the rendezvous endpoint 'h:x'"));
        assert_eq!(
            text(parameters().with("join_timeout", 0)),
            "The join timeout (0:00:00) must be positive."
        );
        assert_eq!(
            text(parameters().with("rank_order", "best")),
            "The rendezvous configuration option 'rank_order' is 'best', not one of: sticky, host, node_rank, label."
        );
        assert_eq!(
            text(parameters().with("keep_alive_interval", 0)),
            "The rendezvous configuration option 'keep_alive_interval' is 0, not from 1 to 4294967295."
        );
        assert_eq!(
            text(parameters().with("is_host", "maybe")),
            "The rendezvous configuration option 'is_host' does not represent a valid boolean value."
        );
        assert_eq!(
            text(parameters().with("node_rank", 99_999_999_999)),
            "The rendezvous configuration option 'node_rank' is 99999999999, not from -1 to 2147483647."
        );
        let typo = text(parameters().with("join_timeot", 7));
        let expected =
            "The rendezvous backend 'rdzv' has no configuration option 'join_timeot'. It has: join_timeout,";
        assert!(typo.starts_with(expected), "{typo}");
        let many = RendezvousParameters::new(RDZV_BACKEND, "h", "run", 1, 1 << 40).expect("valid");
        assert_eq!(
            text(many),
            "The rendezvous configuration option 'max_nodes' is 1099511627776, not from 1 to 4294967295."
        );
    }
}
