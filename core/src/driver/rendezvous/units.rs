//! Durations with units, in parameters of a rendezvous and elsewhere.

use crate::prelude::*;
use crate::rendezvous::integer::parse_integer;
use crate::rendezvous::parameters::{ConfigValue, DURATIONS, ParametersError, RendezvousParameters};

/// Parses `30s`, `500ms`, `1h 30min`, or a plain number of units of `unit_s` seconds.
pub fn parse_duration(text: &str, unit_s: f64) -> Option<Duration> {
    match text.trim().parse::<f64>() {
        Ok(number) => Duration::try_from_secs_f64(number * unit_s).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    }
}

/// Replaces durations with units or fractions by their seconds. Whole seconds stay text, as the backends read them.
///
/// # Errors
/// The first option that is no duration and should be one.
pub fn with_units(parameters: &RendezvousParameters) -> Result<RendezvousParameters, ParametersError> {
    let mut read = parameters.clone();
    for (key, value) in parameters.config.iter() {
        if let ConfigValue::Text(text) = value
            && DURATIONS.contains(&key.as_str())
            && parse_integer(text).is_err()
        {
            let not_a_duration =
                || ParametersError::NotDuration { key: key.as_str().into(), value: text.as_str().into() };
            let span = parse_duration(text, 1.0).ok_or_else(not_a_duration)?;
            read.config.insert(key.clone(), ConfigValue::Float(span.as_secs_f64()));
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::rdzv_settings::RdzvSettings;
    use crate::rendezvous::static_settings::StaticSettings;

    fn parameters() -> RendezvousParameters {
        RendezvousParameters::new("rdzv", "node-0:1", "run", 1, 2).expect("valid")
    }

    #[test]
    fn durations_of_parameters_have_units_or_are_seconds() {
        let given = parameters().with("join_timeout", "500ms").with("close_timeout", " 2min");
        let given = given.with("last_call_timeout", "1.5").with("heartbeat_timeout", "7").with("grace", "0s");
        let given = given.with("read_timeout", 9).with("node", "10s");
        let settings = RdzvSettings::read(&with_units(&given).expect("durations")).expect("valid");
        let timeouts = settings.timeouts;
        assert_eq!(
            [timeouts.join, timeouts.close, timeouts.last_call, timeouts.heartbeat, settings.read_timeout],
            [500, 120_000, 1500, 7000, 9000].map(Duration::from_millis)
        );
        assert_eq!((settings.grace, settings.node.as_deref()), (Duration::ZERO, Some("10s")));
        let given = parameters().with("timeout", "2h").with("rank", "1");
        let settings = StaticSettings::read(&with_units(&given).expect("durations")).expect("valid");
        assert_eq!(settings.timeout, Duration::from_secs(7200));
    }

    #[test]
    fn what_is_no_duration_is_refused_with_its_name() {
        for text in ["soon", "30 lightyears", "-1s", "1,5s", "nan", ""] {
            let error = with_units(&parameters().with("join_timeout", text)).expect_err("no duration");
            let expected =
                format!("The rendezvous configuration option 'join_timeout' is '{text}', not a duration");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
