//! The parameters with which a node asks for a handler.

use super::integer::parse_integer;
use crate::prelude::*;

/// A value of a backend's configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigValue {
    /// The option is named without a value.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A time span.
    Duration(Duration),
    /// A string, as from a configuration string.
    Text(String),
}

impl From<bool> for ConfigValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for ConfigValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<&str> for ConfigValue {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

/// A backend's configuration, sorted by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config(Vec<(String, ConfigValue)>);

impl Config {
    /// Creates an empty configuration.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets an option; a later value replaces an earlier one.
    pub fn insert(&mut self, key: String, value: ConfigValue) {
        match self.0.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(index) => self.0[index].1 = value,
            Err(index) => self.0.insert(index, (key, value)),
        }
    }

    /// Returns the value of an option.
    pub fn get(&self, key: &str) -> Option<&ConfigValue> {
        let index = self.0.binary_search_by(|(known, _)| known.as_str().cmp(key)).ok()?;
        Some(&self.0[index].1)
    }

    /// Iterates over the options, sorted by key.
    pub fn iter(&self) -> core::slice::Iter<'_, (String, ConfigValue)> {
        self.0.iter()
    }
}

/// Options that PyTorch's launcher, or a job script for it, passes to every backend.
const GIVEN_TO_ALL: &[&str] = &["timeout", "rank", "local_world_size", "use_libuv"];

/// Options of the backends `rdzv` and `static` that are durations in seconds.
pub const DURATIONS: &[&str] = &[
    "timeout",
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "read_timeout",
    "keep_alive_interval",
    "grace",
    "cool_down_window",
    "cool_down_pause",
    "cool_down_pause_max",
];

/// Invalid parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    /// The backend's name is empty.
    #[error("The rendezvous backend name must be a non-empty string.")]
    BackendEmpty,
    /// The minimum is below 1.
    #[error("The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero.")]
    MinNodes {
        /// The given minimum.
        min_nodes: i64,
    },
    /// The maximum is below the minimum.
    #[error(
        "The maximum number of rendezvous nodes ({max_nodes}) must be greater than or equal to the minimum number \
         of rendezvous nodes ({min_nodes})."
    )]
    MaxNodes {
        /// The given minimum.
        min_nodes: i64,
        /// The given maximum.
        max_nodes: i64,
    },
    /// The backend has no such option.
    #[error(
        "The rendezvous backend '{backend}' has no configuration option '{key}'. It has: {}.",
        Names(known)
    )]
    Unknown {
        /// Name of the backend.
        backend: Box<str>,
        /// Name of the unknown option.
        key: Box<str>,
        /// Names of the backend's options.
        known: &'static [&'static str],
    },
    /// A value is not boolean.
    #[error("The rendezvous configuration option '{key}' does not represent a valid boolean value.")]
    NotBool {
        /// Name of the option.
        key: Box<str>,
    },
    /// A value is not an integer.
    #[error("The rendezvous configuration option '{key}' does not represent a valid integer value.")]
    NotInt {
        /// Name of the option.
        key: Box<str>,
    },
    /// A value is not a duration.
    #[error(
        "The rendezvous configuration option '{key}' is '{value}', not a duration: write a number with a unit, such \
         as 30s or 500ms; a plain number is in seconds."
    )]
    NotDuration {
        /// Name of the option.
        key: Box<str>,
        /// The given value.
        value: Box<str>,
    },
}

struct Names<'a>(&'a [&'a str]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Parameters of a handler. The backend checks the endpoint and the run id.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RendezvousParameters {
    /// Name of the backend.
    pub backend: String,
    /// Endpoint of the rendezvous, which the backend interprets.
    pub endpoint: String,
    /// The run's id.
    pub run_id: String,
    min_nodes: i64,
    max_nodes: i64,
    /// Address at which other nodes reach this node, if the caller gave one.
    pub local_addr: Option<String>,
    /// The backend's configuration.
    pub config: Config,
}

impl RendezvousParameters {
    /// Returns the least number of nodes of a round.
    pub const fn min_nodes(&self) -> i64 {
        self.min_nodes
    }

    /// Returns the largest number of nodes of a round.
    pub const fn max_nodes(&self) -> i64 {
        self.max_nodes
    }

    /// Creates parameters for `backend`, without an address of this node and without backend configuration.
    ///
    /// # Errors
    /// The first of these that fails: the backend has a name, `min_nodes` is above zero, `max_nodes` is at least
    /// `min_nodes`.
    pub fn new(
        backend: &str,
        endpoint: &str,
        run_id: &str,
        min_nodes: i64,
        max_nodes: i64,
    ) -> Result<Self, ParametersError> {
        if backend.is_empty() {
            return Err(ParametersError::BackendEmpty);
        }
        if min_nodes < 1 {
            return Err(ParametersError::MinNodes { min_nodes });
        }
        if max_nodes < min_nodes {
            return Err(ParametersError::MaxNodes { min_nodes, max_nodes });
        }
        Ok(Self {
            backend: backend.into(),
            endpoint: endpoint.into(),
            run_id: run_id.into(),
            min_nodes,
            max_nodes,
            local_addr: None,
            config: Config::new(),
        })
    }

    /// Sets the address at which other nodes reach this node, and returns the parameters.
    #[must_use]
    pub fn with_local_addr(mut self, local_addr: &str) -> Self {
        self.local_addr = Some(local_addr.into());
        self
    }

    /// Sets an option of the backend, and returns the parameters; a later value replaces an earlier one.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<ConfigValue>) -> Self {
        self.config.insert(key.into(), value.into());
        self
    }

    /// Refuses options that the backend does not have: a misspelled option would silently leave its default in force.
    /// `known` lists the backend's options; a name that ends with a dot matches all options that begin with it.
    /// Options that launchers pass to every backend are ignored.
    ///
    /// # Errors
    /// The first unknown option.
    pub fn check_known(&self, known: &'static [&'static str]) -> Result<(), ParametersError> {
        let is_one = |key: &str, name: &str| key == name || (name.ends_with('.') && key.starts_with(name));
        for (key, _) in self.config.iter() {
            let mut all = known.iter().chain(GIVEN_TO_ALL);
            if !all.any(|name| is_one(key, name)) {
                let (backend, key) = (self.backend.as_str().into(), key.as_str().into());
                return Err(ParametersError::Unknown { backend, key, known });
            }
        }
        Ok(())
    }

    /// Returns the value of an option as a boolean: a boolean, 1 or 0, or one of `1 true t yes y` and `0 false f no
    /// n` in any case. `default` replaces a missing option, and follows the same rules.
    ///
    /// # Errors
    /// The value is not boolean.
    pub fn get_as_bool(
        &self,
        key: &str,
        default: Option<&ConfigValue>,
    ) -> Result<Option<bool>, ParametersError> {
        let is_one_of =
            |text: &str, names: [&str; 5]| names.iter().any(|name| text.eq_ignore_ascii_case(name));
        match self.config.get(key).or(default) {
            None | Some(ConfigValue::None) => Ok(None),
            Some(&ConfigValue::Bool(value)) => Ok(Some(value)),
            Some(ConfigValue::Int(1)) => Ok(Some(true)),
            Some(ConfigValue::Int(0)) => Ok(Some(false)),
            Some(ConfigValue::Text(text)) if is_one_of(text, ["1", "true", "t", "yes", "y"]) => {
                Ok(Some(true))
            }
            Some(ConfigValue::Text(text)) if is_one_of(text, ["0", "false", "f", "no", "n"]) => {
                Ok(Some(false))
            }
            Some(_) => Err(ParametersError::NotBool { key: key.into() }),
        }
    }

    /// Returns the value of an option as an integer: a string is trimmed, a fraction is cut off, true is 1. `default`
    /// replaces a missing option, and follows the same rules.
    ///
    /// # Errors
    /// The value is not an integer of 64 bits.
    pub fn get_as_int(
        &self,
        key: &str,
        default: Option<&ConfigValue>,
    ) -> Result<Option<i64>, ParametersError> {
        let value = match self.config.get(key).or(default) {
            None | Some(ConfigValue::None) => return Ok(None),
            Some(&ConfigValue::Bool(value)) => Some(i64::from(value)),
            Some(&ConfigValue::Int(value)) => Some(value),
            Some(ConfigValue::Duration(span)) => i64::try_from(span.as_secs()).ok(),
            Some(ConfigValue::Text(text)) => parse_integer(text).ok(),
        };
        value.map(Some).ok_or_else(|| ParametersError::NotInt { key: key.into() })
    }
}

/// Returns a duration of a millisecond or more that is given as one. `None` for anything else, which is read as an
/// integer.
pub(super) fn fractional_seconds(parameters: &RendezvousParameters, key: &str) -> Option<Duration> {
    const SHORTEST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);
    match parameters.config.get(key) {
        Some(&ConfigValue::Duration(span)) if (SHORTEST..=LONGEST).contains(&span) => Some(span),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn parameters() -> RendezvousParameters {
        RendezvousParameters::new("static", "h:1", "run", 1, 2).expect("valid")
    }

    #[test]
    fn bounds_and_name_are_checked_in_order() {
        for (backend, min_nodes, max_nodes, text) in [
            ("", 0, -1, "The rendezvous backend name must be a non-empty string."),
            ("b", 0, -1, "The minimum number of rendezvous nodes (0) must be greater than zero."),
            ("b", -2, 1, "The minimum number of rendezvous nodes (-2) must be greater than zero."),
            (
                "b",
                3,
                2,
                "The maximum number of rendezvous nodes (2) must be greater than or equal to the minimum number of \
                 rendezvous nodes (3).",
            ),
        ] {
            let refused = RendezvousParameters::new(backend, "", "", min_nodes, max_nodes);
            assert_eq!(refused.expect_err("refused").to_string(), text);
        }
        let accepted =
            RendezvousParameters::new("b", "", "", 2, 2).expect("endpoint and run id are not judged");
        assert_eq!((accepted.min_nodes, accepted.max_nodes, &accepted.local_addr), (2, 2, &None));
        assert_eq!((&*accepted.backend, &*accepted.endpoint, &*accepted.run_id), ("b", "", ""));
        assert_eq!(accepted.with_local_addr("10.0.0.1").local_addr.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn truth_values() {
        let text = |text: &str| ConfigValue::from(text);
        for (value, truth) in [
            (ConfigValue::None, None),
            (true.into(), Some(true)),
            (false.into(), Some(false)),
            (1.into(), Some(true)),
            (0.into(), Some(false)),
            (text("1"), Some(true)),
            (text("TRUE"), Some(true)),
            (text("t"), Some(true)),
            (text("Yes"), Some(true)),
            (text("y"), Some(true)),
            (text("0"), Some(false)),
            (text("False"), Some(false)),
            (text("F"), Some(false)),
            (text("no"), Some(false)),
            (text("N"), Some(false)),
        ] {
            let given = parameters().with("key", value.clone());
            assert_eq!(given.get_as_bool("key", None), Ok(truth), "{value:?}");
            // A default follows the same rules; a given value takes precedence.
            assert_eq!(parameters().get_as_bool("key", Some(&value)), Ok(truth), "{value:?}");
            assert_eq!(given.get_as_bool("key", Some(&text("nonsense"))), Ok(truth), "{value:?}");
        }
        assert_eq!(parameters().get_as_bool("key", None), Ok(None));
        for value in [
            text(""),
            text(" 1"),
            text("on"),
            text("2"),
            2.into(),
            (-1).into(),
            ConfigValue::Duration(Duration::from_secs(1)),
        ] {
            let error = parameters().with("key", value.clone()).get_as_bool("key", None).expect_err("none");
            assert_eq!(
                error.to_string(),
                "The rendezvous configuration option 'key' does not represent a valid boolean value.",
                "{value:?}"
            );
            assert_eq!(parameters().get_as_bool("key", Some(&value)), Err(error));
        }
    }

    #[test]
    fn integers() {
        let text = |text: &str| ConfigValue::from(text);
        for (value, number) in [
            (ConfigValue::None, None),
            (true.into(), Some(1)),
            (false.into(), Some(0)),
            ((-5).into(), Some(-5)),
            (text(" 7 "), Some(7)),
            (text("+7"), Some(7)),
            (text("-7"), Some(-7)),
            (ConfigValue::Duration(Duration::from_millis(2900)), Some(2)),
        ] {
            assert_eq!(
                parameters().with("key", value.clone()).get_as_int("key", None),
                Ok(number),
                "{value:?}"
            );
            assert_eq!(parameters().get_as_int("key", Some(&value)), Ok(number), "{value:?}");
        }
        assert_eq!(parameters().get_as_int("key", None), Ok(None));
        for value in [text(""), text("x"), text("7.5"), ConfigValue::Duration(Duration::MAX)] {
            let error = parameters().with("key", value.clone()).get_as_int("key", None).expect_err("none");
            assert_eq!(
                error.to_string(),
                "The rendezvous configuration option 'key' does not represent a valid integer value.",
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_later_option_wins() {
        let given = parameters().with("a", 1).with("b", "x").with("a", 2);
        assert_eq!(given.config.get("a"), Some(&ConfigValue::Int(2)));
        assert_eq!(given.config.get("c"), None);
        assert_eq!(given.config.iter().count(), 2);
    }
}
