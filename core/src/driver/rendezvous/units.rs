//! Durations with units, in parameters of a rendezvous and elsewhere.

use crate::prelude::*;
use crate::rendezvous::integer::parse_integer;
use crate::rendezvous::parameters::{ConfigValue, DURATIONS, ParametersError, RendezvousParameters};

/// Parses `30s`, `500ms`, `1h 30min`, or a plain number of units, also with a fraction.
pub fn parse_duration(text: &str, unit: Duration) -> Option<Duration> {
    parse_decimal(text.trim(), unit).or_else(|| humantime::parse_duration(text).ok())
}

/// Parses digits with or without a point. (The parser of floating-point numbers would add 15 KB to the library.)
fn parse_decimal(text: &str, unit: Duration) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let mut nanos = whole.parse::<u64>().ok().map(|units| u128::from(units) * unit.as_nanos())?;
    let mut of_digit = unit.as_nanos();
    for digit in fraction.bytes() {
        of_digit /= 10;
        nanos += u128::from(digit - b'0') * of_digit;
    }
    let second = Duration::from_secs(1).as_nanos();
    let seconds = u64::try_from(nanos / second).ok()?;
    Some(Duration::new(seconds, u32::try_from(nanos % second).unwrap_or_default()))
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
            let span = parse_duration(text, Duration::from_secs(1)).ok_or_else(not_a_duration)?;
            read.config.insert(key.clone(), ConfigValue::Duration(span));
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
    fn a_plain_number_counts_its_units() {
        let (second, milli) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(parse_duration("0", second), Some(Duration::ZERO));
        assert_eq!(parse_duration(" 1.000000001 ", second), Some(Duration::new(1, 1)));
        assert_eq!(parse_duration("0.10", second), Some(Duration::from_millis(100)));
        assert_eq!(parse_duration("2.5", milli), Some(Duration::from_micros(2500)));
        assert_eq!(parse_duration("18446744073709551615", second), Some(Duration::from_secs(u64::MAX)));
    }

    #[test]
    fn what_is_no_duration_is_refused_with_its_name() {
        for text in [
            "soon",
            "30 lightyears",
            "-1s",
            "1,5s",
            "nan",
            "",
            ".",
            "1.",
            "1e3",
            "1.5.5",
            "99999999999999999999",
        ] {
            let error = with_units(&parameters().with("join_timeout", text)).expect_err("no duration");
            let expected =
                format!("The rendezvous configuration option 'join_timeout' is '{text}', not a duration");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
