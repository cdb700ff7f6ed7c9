//! Answers of the operations on stdout.

use crate::log::one_line;
use crate::{failure, json};
use rendezvous_core::error::Operation;
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::process::ExitCode;

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Each item, followed by a newline. Control characters of keys are escaped.
    Text,
    /// Each item as it is; those of lists are followed by a zero byte.
    Raw,
    /// An object a line.
    Json,
}

/// The answer to one operation.
#[derive(Debug)]
pub(super) struct Answer {
    operation: Operation,
    /// The one key, if there is one.
    key: Option<Vec<u8>>,
    body: AnswerBody,
}

/// Result of one operation.
#[derive(Debug)]
pub(super) enum AnswerBody {
    /// The operation has no result.
    Done,
    /// The server responds.
    Alive,
    /// Whether all keys exist.
    Present(bool),
    /// A number, with what JSON calls it.
    Number(&'static str, i64),
    Value(Vec<u8>),
    Keys(Vec<Vec<u8>>),
    /// Keys with their values.
    Pairs(Vec<(Vec<u8>, Vec<u8>)>),
}

impl Answer {
    pub(super) fn new(operation: Operation, key: Option<&[u8]>, body: AnswerBody) -> Self {
        Self { operation, key: key.map(<[u8]>::to_vec), body }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(u8::from(matches!(self.body, AnswerBody::Present(false))))
    }

    pub(super) fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        match format {
            Format::Text => self.write_items(b"\n", b"\n", out),
            Format::Raw => self.write_items(b"", b"\0", out),
            Format::Json => self.write_json(out),
        }?;
        out.flush()
    }

    fn write_items(&self, after_one: &[u8], after_each: &[u8], out: &mut impl Write) -> io::Result<()> {
        let mut one = |bytes: &[u8]| out.write_all(bytes).and_then(|()| out.write_all(after_one));
        match &self.body {
            AnswerBody::Done => Ok(()),
            AnswerBody::Alive => one(b"alive"),
            AnswerBody::Present(present) => one(present.to_string().as_bytes()),
            AnswerBody::Number(_, number) => one(number.to_string().as_bytes()),
            AnswerBody::Value(value) => one(value),
            AnswerBody::Keys(items) if after_each == b"\n" => {
                let lines: Vec<Vec<u8>> = items.iter().map(|key| key_line(key)).collect();
                write_each(lines.iter(), after_each, out)
            }
            AnswerBody::Keys(items) => write_each(items.iter(), after_each, out),
            AnswerBody::Pairs(pairs) => write_each(pairs.iter().map(|(_, value)| value), after_each, out),
        }
    }

    fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let mut line = |fields: &[(&str, Value)]| {
            let mut object = Map::new();
            object.insert("operation".into(), failure::operation_name(self.operation).into());
            if let Some(key) = &self.key {
                object.insert("key".into(), json::bytes(key));
            }
            object.extend(fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            writeln!(out, "{}", Value::Object(object))
        };
        match &self.body {
            AnswerBody::Done => line(&[("done", true.into())]),
            AnswerBody::Alive => line(&[("alive", true.into())]),
            AnswerBody::Present(present) => line(&[("present", (*present).into())]),
            AnswerBody::Number(name, number) => line(&[(name, (*number).into())]),
            AnswerBody::Value(value) => line(&[("value", json::bytes(value))]),
            AnswerBody::Keys(keys) => keys.iter().try_for_each(|key| line(&[("key", json::bytes(key))])),
            AnswerBody::Pairs(pairs) => pairs.iter().try_for_each(|(key, value)| {
                line(&[("key", json::bytes(key)), ("value", json::bytes(value))])
            }),
        }
    }
}

/// Returns a key as one line. Bytes that are no text stay as they are.
fn key_line(key: &[u8]) -> Vec<u8> {
    let parts = key.utf8_chunks();
    parts.flat_map(|part| [one_line(part.valid()).as_bytes(), part.invalid()].concat()).collect()
}

fn write_each<'a>(
    mut items: impl Iterator<Item = &'a Vec<u8>>,
    after_each: &[u8],
    out: &mut impl Write,
) -> io::Result<()> {
    items.try_for_each(|item| out.write_all(item).and_then(|()| out.write_all(after_each)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(answer: &Answer, format: Format) -> String {
        let mut out = Vec::new();
        answer.write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_answer_reads_as_the_help_says() {
        let key = Some(&b"k"[..]);
        for (answer, text, raw, json) in [
            (
                Answer::new(Operation::Set, key, AnswerBody::Done),
                "",
                "",
                "{\"done\":true,\"key\":\"k\",\"operation\":\"set\"}\n",
            ),
            (
                Answer::new(Operation::Ping, None, AnswerBody::Alive),
                "alive\n",
                "alive",
                "{\"alive\":true,\"operation\":\"ping\"}\n",
            ),
            (
                Answer::new(Operation::Check, None, AnswerBody::Present(false)),
                "false\n",
                "false",
                "{\"operation\":\"check\",\"present\":false}\n",
            ),
            (
                Answer::new(Operation::Add, key, AnswerBody::Number("value", -7)),
                "-7\n",
                "-7",
                "{\"key\":\"k\",\"operation\":\"add\",\"value\":-7}\n",
            ),
            (
                Answer::new(Operation::Get, key, AnswerBody::Value(b"v".to_vec())),
                "v\n",
                "v",
                "{\"key\":\"k\",\"operation\":\"get\",\"value\":\"v\"}\n",
            ),
            (
                Answer::new(Operation::ListKeys, None, AnswerBody::Keys(vec![b"k".to_vec(), b"l".to_vec()])),
                "k\nl\n",
                "k\0l\0",
                "{\"key\":\"k\",\"operation\":\"list\"}\n{\"key\":\"l\",\"operation\":\"list\"}\n",
            ),
            (
                Answer::new(
                    Operation::MultiGet,
                    None,
                    AnswerBody::Pairs(vec![(b"k".to_vec(), b"v".to_vec())]),
                ),
                "v\n",
                "v\0",
                "{\"key\":\"k\",\"operation\":\"multi-get\",\"value\":\"v\"}\n",
            ),
        ] {
            assert_eq!(written(&answer, Format::Text), text);
            assert_eq!(written(&answer, Format::Raw), raw);
            assert_eq!(written(&answer, Format::Json), json);
        }
        let key = b"k\nl\x1b[m\xff\xc3\xa4".to_vec();
        let answer = Answer::new(Operation::ListKeys, None, AnswerBody::Keys(vec![key.clone()]));
        let mut out = Vec::new();
        answer.write(Format::Text, &mut out).expect("a vector takes all");
        assert_eq!(out, b"k\\nl\\u{1b}[m\xff\xc3\xa4\n", "one line for each key");
        out.clear();
        answer.write(Format::Raw, &mut out).expect("a vector takes all");
        assert_eq!(out, [&key[..], b"\0"].concat(), "raw is raw");
    }
}
