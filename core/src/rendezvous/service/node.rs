//! Names of nodes, and their order.

use crate::prelude::*;
use core::cmp::Ordering;

/// The name that identifies a node to users and across processes: two processes with one name are one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeName {
    host: Box<str>,
    process: Option<(u32, u32)>,
}

impl NodeName {
    /// Creates the name of a node from any string; the node is its own host.
    pub fn plain(name: &str) -> Self {
        Self { host: name.into(), process: None }
    }

    /// Creates the name of the `local_id`th participant of process `pid` on `host`.
    pub fn process(host: &str, pid: u32, local_id: u32) -> Self {
        Self { host: host.into(), process: Some((pid, local_id)) }
    }

    /// Parses a name as it prints: a name that ends in two numbers after underscores identifies a process; any other
    /// name is its own host.
    pub fn parse(name: &str) -> Self {
        let mut parts = name.rsplitn(3, '_');
        let mut number = || {
            let digits = parts.next()?;
            let number: u32 = digits.parse().ok()?;
            // The leading zeros count: names that differ must stay different.
            (number.to_string() == digits).then_some(number)
        };
        let (local_id, pid) = (number(), number());
        match (parts.next(), pid, local_id) {
            (Some(host), Some(pid), Some(local_id)) if !host.is_empty() => Self::process(host, pid, local_id),
            _ => Self::plain(name),
        }
    }

    /// Returns a unique key for tables. It differs also for names of different kinds that print the same.
    pub(super) fn key(&self) -> Vec<u8> {
        let mut key = Vec::from(self.host.as_bytes());
        if let Some((pid, local_id)) = self.process {
            // 0xff occurs in no UTF-8 string.
            key.push(0xff);
            key.extend_from_slice(&pid.to_be_bytes());
            key.extend_from_slice(&local_id.to_be_bytes());
        }
        key
    }

    /// Returns the host on which the node runs.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.process.map_or(Ok(()), |(pid, local_id)| write!(f, "_{pid}_{local_id}"))
    }
}

impl Ord for NodeName {
    fn cmp(&self, other: &Self) -> Ordering {
        natural(&self.host, &other.host).then_with(|| self.process.cmp(&other.process))
    }
}

impl PartialOrd for NodeName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares strings with numbers by value: `node9` is before `node10`. Different strings never compare equal.
#[inline(never)]
pub fn natural(left: &str, right: &str) -> Ordering {
    let (mut a, mut b) = (left.as_bytes(), right.as_bytes());
    while let (Some(x), Some(y)) = (a.first(), b.first()) {
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (number_a, number_b);
            (number_a, a) = split_number(a);
            (number_b, b) = split_number(b);
            number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b))
        } else {
            let order = x.cmp(y);
            (a, b) = (&a[1..], &b[1..]);
            order
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len()).then_with(|| left.cmp(right))
}

/// Splits off the digits at the start, without leading zeros.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|&&byte| byte == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_compared_by_value() {
        let ordered =
            ["", "a", "node", "node-1", "node1", "node01", "node2", "node2b", "node10", "node10a2", "p"];
        for (at, left) in ordered.iter().enumerate() {
            for (other_at, right) in ordered.iter().enumerate() {
                let expected = at.cmp(&other_at);
                // Of two that count the same, the one with more zeros stands first.
                let (expected, tie) = match (*left, *right) {
                    ("node1", "node01") | ("node01", "node1") => (left.cmp(right), true),
                    _ => (expected, false),
                };
                assert_eq!(natural(left, right), expected, "{left} {right} {tie}");
            }
        }
    }

    #[test]
    fn names_are_read_as_they_print() {
        assert_eq!(NodeName::parse("a_b_12_3"), NodeName::process("a_b", 12, 3));
        for plain in ["", "h", "h_1", "h_1_x", "_1_2", "h_01_2", "h_1_+2", "h_1_4294967296", "h__1"] {
            assert_eq!(NodeName::parse(plain), NodeName::plain(plain), "{plain}");
        }
        for name in ["h_1_2", "h_01_2", "1_2_3", "spare-1"] {
            assert_eq!(NodeName::parse(name).to_string(), name);
        }
    }

    #[test]
    fn names_print_as_peers_print_them() {
        assert_eq!(NodeName::process("h", 12, 3).to_string(), "h_12_3");
        assert_eq!(NodeName::plain("spare-1").to_string(), "spare-1");
        assert!(NodeName::process("h", 9, 0) < NodeName::process("h", 10, 0));
        assert!(NodeName::plain("h") < NodeName::process("h", 0, 0));
    }
}
