//! Placeholders in texts: `${local_rank}` in a worker's arguments, and `${role_name}`, `${local_rank}`, `${rank}` and
//! `${hostname}` in the prefix of its log lines.
//!
//! The rules are those of Python's `string.Template.safe_substitute`, so that a command line has the same meaning here
//! as with torchrun: `${name}` and `$name` become the value of a known name, `$$` becomes `$`, and everything else is
//! unchanged. Texts are bytes, because arguments need not be UTF-8.

use crate::limits::PREFIX_BYTES_MAX;
use rendezvous_core::prelude::*;

/// Returns the template with names replaced by values.
pub fn substitute(template: &[u8], values: &[(&str, &str)]) -> Vec<u8> {
    let mut text = Vec::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        text.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let (length, value) = match rest.get(1) {
            Some(b'$') => (2, Some(&b"$"[..])),
            Some(b'{') => {
                let name = name_at(&rest[2..]);
                let is_closed = !name.is_empty() && rest.get(2 + name.len()) == Some(&b'}');
                if is_closed { (name.len() + 3, value_of(name, values)) } else { (1, None) }
            }
            _ => {
                let name = name_at(&rest[1..]);
                (name.len() + 1, value_of(name, values))
            }
        };
        text.extend_from_slice(value.unwrap_or(&rest[..length]));
        rest = &rest[length..];
    }
    text.extend_from_slice(rest);
    text
}

/// Returns the name at the beginning of the text; empty if there is none.
fn name_at(text: &[u8]) -> &[u8] {
    let belongs = |(at, byte): (usize, &u8)| {
        *byte == b'_' || byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit())
    };
    let length = text.iter().enumerate().take_while(|&pair| belongs(pair)).count();
    &text[..length]
}

fn value_of<'a>(name: &[u8], values: &[(&str, &'a str)]) -> Option<&'a [u8]> {
    values.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, value)| value.as_bytes())
}

/// Returns an argument of a worker.
pub fn argument(template: &[u8], local_rank: u32) -> Vec<u8> {
    substitute(template, &[("local_rank", &local_rank.to_string())])
}

/// Worker of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Role of the worker's group.
    pub role_name: &'a str,
    /// Local rank of the worker.
    pub local_rank: u32,
    /// Global rank of the worker.
    pub rank: u64,
    /// Short name of this host.
    pub hostname: &'a str,
}

/// Returns the prefix of a worker's lines on the console: the template with its values, or torchrun's `[role0]:`
/// without a template. It is cut to [`PREFIX_BYTES_MAX`], because it is written once for each line.
pub fn line_prefix(template: Option<&str>, origin: &Origin<'_>) -> Vec<u8> {
    let local_rank = origin.local_rank.to_string();
    let mut prefix = match template {
        None => format!("[{}{local_rank}]:", origin.role_name).into_bytes(),
        Some(template) => substitute(
            template.as_bytes(),
            &[
                ("role_name", origin.role_name),
                ("local_rank", &local_rank),
                ("rank", &origin.rank.to_string()),
                ("hostname", origin.hostname),
            ],
        ),
    };
    prefix.truncate(PREFIX_BYTES_MAX);
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[track_caller]
    fn becomes(template: &str, expected: &str) {
        let text = substitute(template.as_bytes(), &[("local_rank", "7"), ("_x1", "under"), ("empty", "")]);
        assert_eq!(String::from_utf8_lossy(&text), expected, "{template}");
    }

    #[test]
    fn known_names_become_values() {
        becomes("--rank=${local_rank}", "--rank=7");
        becomes("$local_rank/${local_rank}${_x1}", "7/7under");
        becomes("a${empty}b", "ab");
        becomes("", "");
        becomes("no names", "no names");
    }

    #[test]
    fn unknown_names_and_what_is_no_name_stay() {
        for text in [
            "${rank}",
            "$rank",
            "${local_rank",
            "${local_rank }",
            "${}",
            "$",
            "a$",
            "$1",
            "${1}",
            "$-",
            "${",
            "é$é",
        ] {
            becomes(text, text);
        }
        // Names end at the first other character than letters, digits and underscores, and are case-sensitive.
        becomes("$local_rank2", "$local_rank2");
        becomes("$local_rank-2", "7-2");
        becomes("${Local_Rank}", "${Local_Rank}");
    }

    #[test]
    fn two_dollars_are_one_and_keep_a_name_from_being_one() {
        becomes("$$", "$");
        becomes("$$$", "$$");
        becomes("$$local_rank", "$local_rank");
        becomes("$${local_rank}", "${local_rank}");
        becomes("$$$local_rank", "$7");
    }

    #[test]
    fn values_are_not_substituted_again() {
        assert_eq!(substitute(b"$a", &[("a", "$b"), ("b", "no")]), b"$b");
    }

    #[test]
    fn arguments_need_not_be_utf8() {
        assert_eq!(argument(b"\xff${local_rank}\xfe", 12), b"\xff12\xfe");
        assert_eq!(argument(b"${rank}", 12), b"${rank}");
    }

    #[test]
    fn prefixes() {
        let origin = Origin { role_name: "trainer", local_rank: 3, rank: 11, hostname: "n1" };
        assert_eq!(line_prefix(None, &origin), b"[trainer3]:");
        let template = "[${role_name}-${local_rank}/${rank}@${hostname} ${pid}] ";
        assert_eq!(line_prefix(Some(template), &origin), b"[trainer-3/11@n1 ${pid}] ");
        assert_eq!(line_prefix(Some(""), &origin), b"");
        assert_eq!(line_prefix(Some(&"x".repeat(100_000)), &origin).len(), PREFIX_BYTES_MAX);
    }
}
