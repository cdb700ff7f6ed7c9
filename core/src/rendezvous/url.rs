//! Rendezvous by URL: `file://`, `tcp://` and `env://`, with the rules and the messages of PyTorch, so that a launch
//! script can use one URL for ranks in Python and in C++.

mod split;

pub use split::SplitError;

use super::integer::{NotAnInteger, parse_integer};
use crate::prelude::*;

/// A URL that does not describe a rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The URL cannot be split.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Both the URL and the caller give the rank or the world size.
    #[error("The url: {url} has node-specific arguments(rank, world_size) already.")]
    NodeArgumentsTwice {
        /// The URL.
        url: Box<str>,
    },
    /// The scheme has no handler.
    #[error("No rendezvous handler for {scheme}://")]
    NoHandler {
        /// The scheme.
        scheme: Box<str>,
    },
    /// A part of the URL or an environment variable is missing.
    #[error("Error initializing torch.distributed using {scheme}:// rendezvous: {what}")]
    Missing {
        /// The scheme.
        scheme: &'static str,
        /// The missing part.
        what: Missing,
    },
    /// The URL names no host.
    #[error("hostname cannot be None")]
    NoHost,
    /// A part of the query has no value. (The end of the text is Python's error for such a query.)
    #[error("the query's part '{part}' has no value: list index out of range")]
    NoValue {
        /// The part of the query.
        part: Box<str>,
    },
    /// A rank, a world size or a port is not an integer.
    #[error(transparent)]
    NotAnInteger(#[from] NotAnInteger),
    /// `MASTER_PORT` is out of range.
    #[error("port must have value from 0 to 65535 but was {port}.")]
    PortRange {
        /// The given number.
        port: i64,
    },
    /// The world size is zero.
    #[error("TCPStore world size cannot be 0")]
    NoWorld,
    /// A second call of a rendezvous that meets only once.
    #[error("{}", Again(.scheme))]
    NotAgain {
        /// The scheme.
        scheme: Box<str>,
    },
}

struct Again<'a>(&'a str);

impl fmt::Display for Again<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // PyTorch omits the hyphen for files.
        let verb = if self.0 == "file" { "rerendezvous" } else { "re-rendezvous" };
        write!(f, "Unable to perform {verb} using {}:// method", self.0)
    }
}

/// A missing part of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The path of a file.
    #[error("path missing")]
    Path,
    /// The port.
    #[error("port number missing")]
    Port,
    /// The rank.
    #[error("rank parameter missing")]
    Rank,
    /// The world size.
    #[error("world size parameter missing")]
    WorldSize,
    /// An environment variable.
    #[error("environment variable {0} expected, but not set")]
    Variable(&'static str),
}

/// Number of ranks, as far as the caller of a rendezvous knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorldSize {
    /// The URL or the environment gives it.
    #[default]
    InUrl,
    /// The number.
    Known(i64),
    /// Unknown: the group is dynamic. For `env://` the environment may still give it.
    Dynamic,
}

/// The environment variables of a rank. The caller reads them, since the core does not access the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankEnvironment {
    /// `RANK`
    pub rank: Option<String>,
    /// `WORLD_SIZE`
    pub world_size: Option<String>,
    /// `MASTER_ADDR`
    pub master_addr: Option<String>,
    /// `MASTER_PORT`
    pub master_port: Option<String>,
    /// `TORCHELASTIC_USE_AGENT_STORE`
    pub use_agent_store: Option<String>,
}

impl RankEnvironment {
    /// Whether the agent that started this rank hosts a store at `host:port`. `TORCHELASTIC_USE_AGENT_STORE` must be
    /// exactly `True`. It applies only to the agent's own address, compared as text.
    pub fn agent_serves(&self, host: &str, port: u16) -> bool {
        self.use_agent_store.as_deref() == Some("True")
            && self.master_addr.as_deref() == Some(host)
            && self.master_port.as_deref() == Some(port.to_string().as_str())
    }
}

/// A rendezvous over a TCP store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpRendezvous {
    /// Host of the store.
    pub host: String,
    /// Port of the store; 0 only for the rank that hosts it.
    pub port: u16,
    /// This process's rank.
    pub rank: i64,
    /// Number of ranks; negative: unknown.
    pub world_size: i64,
    /// Whether this process hosts the store.
    pub role: StoreRole,
}

/// Whether a process hosts the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRole {
    /// This process hosts it.
    Host,
    /// Rank 0 or the agent hosts it.
    Client,
}

/// A rendezvous over a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRendezvous {
    /// Path of the file.
    pub path: String,
    /// This process's rank.
    pub rank: i64,
    /// Number of ranks; negative: unknown.
    pub world_size: i64,
}

/// A parsed URL, with the caller's rank and world size in its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousUrl {
    parts: split::Parts,
}

impl RendezvousUrl {
    /// Parses a URL and adds the caller's `rank` (−1: unknown) and world size to its query.
    ///
    /// # Errors
    /// The URL is malformed, or both it and the caller give a rank or a world size.
    pub fn parse(
        url: &str,
        rank: i64,
        world_size: WorldSize,
        environment: &RankEnvironment,
    ) -> Result<Self, UrlError> {
        let mut parts = split::split(url)?;
        let (mut rank, mut size) = (rank, if let WorldSize::Known(size) = world_size { size } else { -1 });
        let is_dynamic = world_size == WorldSize::Dynamic;
        if is_dynamic && parts.scheme == "env" {
            rank = environment.rank.as_deref().map_or(Ok(rank), parse_integer)?;
            size = environment.world_size.as_deref().map_or(Ok(size), parse_integer)?;
        }
        if rank != -1 || size != -1 || is_dynamic {
            let mut query = Query::read(&parts.query)?;
            if query.get("rank").or(query.get("world_size")).is_some() {
                return Err(UrlError::NodeArgumentsTwice { url: url.into() });
            }
            if rank != -1 {
                query.0.push(("rank".to_string(), rank.to_string()));
            }
            if size != -1 || is_dynamic {
                query.0.push(("world_size".to_string(), size.to_string()));
            }
            parts.query = query.to_string();
            // Python rebuilds such a URL with an absolute path, and ranks in Python and in C++ must use the same
            // file.
            if parts.scheme == "file" && !parts.path.is_empty() && !parts.path.starts_with('/') {
                parts.path.insert(0, '/');
            }
        }
        Ok(Self { parts })
    }

    /// Returns the scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.parts.scheme
    }

    /// Reads a `tcp://` URL. `use_libuv` and other parameters are ignored.
    ///
    /// # Errors
    /// A part is missing or invalid.
    pub fn tcp(&self, environment: &RankEnvironment) -> Result<TcpRendezvous, UrlError> {
        let missing = |what| UrlError::Missing { scheme: "tcp", what };
        let port = self.parts.port()?.ok_or_else(|| missing(Missing::Port))?;
        let (rank, world_size) = self.rank_and_world_size("tcp")?;
        let host = self.parts.host().ok_or(UrlError::NoHost)?;
        TcpRendezvous::new(host, port, rank, world_size, environment)
    }

    /// Reads an `env://` URL, with the environment for the parts that the URL lacks. An empty variable counts as
    /// unset.
    ///
    /// # Errors
    /// A part is missing or invalid.
    pub fn env(&self, environment: &RankEnvironment) -> Result<TcpRendezvous, UrlError> {
        let variable = |value: &Option<String>, name| match value {
            Some(value) if !value.is_empty() => Ok(value.clone()),
            _ => Err(UrlError::Missing { scheme: "env", what: Missing::Variable(name) }),
        };
        let query = Query::read(&self.parts.query)?;
        let number = |parameter, value, name| match query.get(parameter) {
            Some(text) => Ok(parse_integer(text)?),
            None => Ok::<_, UrlError>(parse_integer(&variable(value, name)?)?),
        };
        let rank = number("rank", &environment.rank, "RANK")?;
        let world_size = number("world_size", &environment.world_size, "WORLD_SIZE")?;
        let host = variable(&environment.master_addr, "MASTER_ADDR")?;
        let port = parse_integer(&variable(&environment.master_port, "MASTER_PORT")?)?;
        let port = u16::try_from(port).map_err(|_| UrlError::PortRange { port })?;
        TcpRendezvous::new(host, port, rank, world_size, environment)
    }

    /// Reads a `file://` URL. Its host is ignored.
    ///
    /// # Errors
    /// A part is missing or invalid.
    pub fn file(&self) -> Result<FileRendezvous, UrlError> {
        if self.parts.path.is_empty() {
            return Err(UrlError::Missing { scheme: "file", what: Missing::Path });
        }
        let (rank, world_size) = self.rank_and_world_size("file")?;
        Ok(FileRendezvous { path: self.parts.path.clone(), rank, world_size })
    }

    /// Reads the rank and the world size. A missing one is reported before an invalid one.
    fn rank_and_world_size(&self, scheme: &'static str) -> Result<(i64, i64), UrlError> {
        let query = Query::read(&self.parts.query)?;
        let named = |name, what| query.get(name).ok_or(UrlError::Missing { scheme, what });
        let (rank, size) = (named("rank", Missing::Rank)?, named("world_size", Missing::WorldSize)?);
        Ok((parse_integer(rank)?, parse_integer(size)?))
    }
}

impl fmt::Display for RendezvousUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let split::Parts { scheme, authority, path, query, fragment } = &self.parts;
        if !scheme.is_empty() {
            write!(f, "{scheme}:")?;
        }
        if let Some(authority) = authority {
            write!(f, "//{authority}")?;
        }
        f.write_str(path)?;
        for (mark, part) in [('?', query), ('#', fragment)] {
            if !part.is_empty() {
                write!(f, "{mark}{part}")?;
            }
        }
        Ok(())
    }
}

impl TcpRendezvous {
    fn new(
        host: String,
        port: u16,
        rank: i64,
        world_size: i64,
        environment: &RankEnvironment,
    ) -> Result<Self, UrlError> {
        if world_size == 0 {
            return Err(UrlError::NoWorld);
        }
        let is_host = rank == 0 && !environment.agent_serves(&host, port);
        let role = if is_host { StoreRole::Host } else { StoreRole::Client };
        Ok(Self { host, port, rank, world_size, role })
    }
}

/// The parameters of a query, in order.
struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the parts between `&`, except empty ones; a name ends at the first `=`, its value at the second. A
    /// later value of a name replaces the earlier one.
    fn read(text: &str) -> Result<Self, UrlError> {
        let mut query = Self(Vec::new());
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let mut pieces = part.split('=');
            let name = pieces.next().unwrap_or_default();
            let value = pieces.next().ok_or_else(|| UrlError::NoValue { part: part.into() })?.to_string();
            match query.0.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = value,
                None => query.0.push((name.to_string(), value)),
            }
        }
        Ok(query)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "&" };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
