//! Lines of the logs on stderr: one set of levels and two formats for all commands.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, ValueEnum};
use humantime::format_rfc3339_millis;
use rendezvous_core::driver::clock::since_1970;
use rendezvous_core::error::OneLine;
use serde_json::{Map, Value, json};
use std::fmt::{self, Write as _};
use std::time::UNIX_EPOCH;

/// Least severe event that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing
    Off,
    /// What ends the program or the job
    Error,
    /// Also what an operator should look at
    Warn,
    /// Also what happens rarely, and the configuration at the start
    Info,
    /// Also every connection, or every change of the agent's phase
    Debug,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// TIME LEVEL COMMAND: MESSAGE
    Text,
    /// An object a line: time, level, command, message
    Json,
}

/// Flags of the log.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LogArguments {
    /// What to log on stderr
    #[arg(long, env = "RDZV_LOG", value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    log: LogLevel,
    /// How to write the log
    #[arg(long, env = "RDZV_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
}

/// Log of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogStyle {
    command: &'static str,
    arguments: LogArguments,
}

/// Returns the name of an argument's value.
pub(crate) fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns a text as one line: control characters are escaped. Names, keys and messages of other processes must not
/// begin a line, or send commands to a terminal.
pub(crate) fn one_line(text: impl fmt::Display) -> String {
    let mut line = String::new();
    // A string takes all.
    write!(OneLine(&mut line), "{text}").ok();
    line
}

impl LogArguments {
    pub(crate) const fn of(self, command: &'static str) -> LogStyle {
        LogStyle { command, arguments: self }
    }
}

impl LogStyle {
    pub(crate) fn includes(self, level: LogLevel) -> bool {
        level <= self.arguments.log
    }

    pub(crate) const fn command(self) -> &'static str {
        self.command
    }

    pub(crate) fn is_text(self) -> bool {
        self.arguments.log_format == LogFormat::Text
    }

    /// Returns the line for a message, without its end.
    pub(crate) fn line(self, level: LogLevel, message: &str) -> String {
        self.line_with(level, message, None)
    }

    /// Returns the line that tells the effective configuration after a message.
    pub(crate) fn configuration(self, message: &str, configuration: &Configuration) -> String {
        self.line_with(LogLevel::Info, message, Some(configuration))
    }

    fn line_with(self, level: LogLevel, message: &str, configuration: Option<&Configuration>) -> String {
        let Self { command, arguments } = self;
        let time = format_rfc3339_millis(UNIX_EPOCH + since_1970());
        let level = value_name(level);
        match arguments.log_format {
            LogFormat::Text => {
                let configuration = configuration.map_or_else(String::new, |values| format!(": {values}"));
                format!("{time} {level} {command}: {}{configuration}", one_line(message))
            }
            LogFormat::Json => {
                let (time, mut fields) = (time.to_string(), Map::new());
                let all = json!({ "time": time, "level": level, "command": command, "message": message });
                fields.extend(all.as_object().cloned().unwrap_or_default());
                if let Some(Configuration { values, .. }) = configuration {
                    let values =
                        values.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
                    fields.insert("configuration".into(), Value::Object(values.collect()));
                }
                Value::Object(fields).to_string()
            }
        }
    }
}

/// Names and values of a command's flags: given, from variables, or defaults. The program that `rdzv run` starts is not
/// among them, because its arguments are no business of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    values: Vec<(String, String)>,
    /// Names of the flags that the command line gives.
    given: Vec<String>,
}

impl Configuration {
    pub(crate) fn of(command: &Command, matches: &ArgMatches) -> Self {
        let Some((name, matches)) = matches.subcommand() else { return Self::default() };
        let arguments = command.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
        let mut given = Vec::new();
        let values = arguments.filter_map(|argument| {
            let name = argument.get_id().as_str();
            if name == "command" {
                return None;
            }
            if matches.value_source(name) == Some(ValueSource::CommandLine) {
                given.push(name.to_owned());
            }
            let values = matches.try_get_raw(name).ok().flatten()?;
            let values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
            let value = values.join(",").replace(char::is_control, "?");
            (!value.is_empty()).then(|| (name.to_owned(), value))
        });
        Self { values: values.collect(), given }
    }

    /// Returns whether the command line gives the flag, and not only its variable.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.iter().any(|given| given == name)
    }

    /// Adds the value that holds where a flag was not given and its default depends on others.
    pub(crate) fn add_default(&mut self, name: &str, value: impl fmt::Display) {
        if !self.values.iter().any(|(other, _)| other == name) {
            self.values.push((name.into(), value.to_string()));
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.values.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            if value.contains(|character: char| character.is_whitespace() || character == '"') {
                write!(f, "{separator}{name}={value:?}")?;
            } else {
                write!(f, "{separator}{name}={value}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_names_it_has() {
        let message = "node b\n2026-01-01T00:00:00.000Z error run: failed\r\x1b[2J died";
        let arguments = |log_format| LogArguments { log: LogLevel::Info, log_format };
        let text = arguments(LogFormat::Text).of("run").line(LogLevel::Warn, message);
        let expected = r" warn run: node b\n2026-01-01T00:00:00.000Z error run: failed\r\u{1b}[2J died";
        assert!(text.ends_with(expected) && !text.contains(char::is_control), "{text}");
        let json = arguments(LogFormat::Json).of("run").line(LogLevel::Warn, message);
        assert!(!json.contains(char::is_control), "{json}");
        let fields: Value = serde_json::from_str(&json).expect("an object");
        assert_eq!(fields["message"], message);
    }
}
