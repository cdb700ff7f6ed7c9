//! Token files of a world. They change while it runs. Either the server accepts a second token, the hosts get it one by
//! one, and the server drops the first one; or the token gets another secret everywhere at one instant.

use super::harness::sim_rng::SimRng;
use rendezvous_core::access::{Access, Network, Tokens};
use rendezvous_core::time::{Duration, Instant};

/// Token of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// It allows all that a node does.
    Full,
    /// It allows reading only.
    ReadOnly,
    /// The server does not know it, or there is none.
    Wrong,
}

/// Nodes of a world with tokens, in addition to those that have the full one.
pub(super) const OTHERS: [TokenKind; 2] = [TokenKind::Wrong, TokenKind::ReadOnly];

pub(super) struct TokenFiles {
    /// When the server accepts the second token.
    added: Instant,
    /// When each host has the second token.
    replaced: Vec<Instant>,
    /// When the server drops the first token.
    removed: Instant,
    /// Whether both tokens have one name.
    keeps_name: bool,
}

const SECRETS: [&str; 2] = ["0123456789abcdef0123456789abcdef", "00112233445566778899aabbccddeeff"];
const WRONG_SECRET: &str = "ffffffffffffffffffffffffffffffff";
const READER: &str = "reader abcdef0123456789abcdef0123456789";
/// What nodes do: the keys of their rounds belong to the run.
const FULL_RIGHTS: &str = "run:run-* write:/r/ write:/n/ write:/p/ write:/q/ write:/w/ write:/l/";

impl TokenFiles {
    /// Returns the files of so many hosts. They do not change after `storm`.
    pub(super) fn new(mut sim_rng: SimRng, hosts: usize, storm: Duration) -> Self {
        let mut between = |low: Instant, high: Instant| {
            Instant::from_nanos(sim_rng.between(low.as_nanos(), high.as_nanos()))
        };
        let end = Instant::ORIGIN + storm;
        let (one, other) = (between(Instant::ORIGIN, end), between(Instant::ORIGIN, end));
        let keeps_name = one.as_nanos().is_multiple_of(2);
        let (added, removed) = if keeps_name { (one, one) } else { (one.min(other), one.max(other)) };
        let replaced = (0..hosts).map(|_| between(added, removed)).collect();
        Self { added, replaced, removed, keeps_name }
    }

    /// Returns a token of nodes: name and secret.
    fn full(&self, second: bool) -> String {
        let name = if second && !self.keeps_name { "node-2" } else { "node" };
        format!("{name} {}", SECRETS[usize::from(second)])
    }

    /// Returns the server's file.
    pub(super) fn server_file(&self, now: Instant) -> String {
        let tokens = [(false, now < self.removed), (true, now >= self.added)];
        let lines = tokens
            .into_iter()
            .filter(|(_, is_accepted)| *is_accepted)
            .map(|(second, _)| format!("{} {FULL_RIGHTS}\n", self.full(second)));
        lines.chain([format!("{READER} read:\n")]).collect()
    }

    /// Returns whether the server's file has this token.
    pub(super) fn accepts(&self, token: &str, now: Instant) -> bool {
        self.server_file(now).lines().any(|line| line.starts_with(token))
    }

    /// Returns the tokens in the file of the RPC workers of a host: the one that it proves, and those that it accepts.
    pub(super) fn of_worker(
        &self,
        kind: TokenKind,
        (host, process): (usize, u32),
        now: Instant,
    ) -> Vec<String> {
        let first = self.of_host(kind, (host, process), now);
        let others = [(false, now < self.removed), (true, now >= self.added)];
        let others = others
            .into_iter()
            .filter(|(_, is_accepted)| *is_accepted && kind == TokenKind::Full)
            .map(|(second, _)| self.full(second))
            .filter(|other| Some(other) != first.as_ref());
        first.iter().cloned().chain(others).collect()
    }

    /// Returns the token in the file of a host. Processes with a wrong token have different ones.
    pub(super) fn of_host(
        &self,
        kind: TokenKind,
        (host, process): (usize, u32),
        now: Instant,
    ) -> Option<String> {
        let current = self.full(now >= self.replaced[host]);
        match (kind, process % 4) {
            (TokenKind::Full, _) => Some(current),
            (TokenKind::ReadOnly, _) => Some(READER.to_owned()),
            (TokenKind::Wrong, 0) => None,
            (TokenKind::Wrong, 1) => Some(format!("unknown {}", SECRETS[0])),
            (TokenKind::Wrong, 2) if now >= self.removed => Some(self.full(false)),
            (TokenKind::Wrong, _) => Some(format!("{} {WRONG_SECRET}", name_of(&current))),
        }
    }
}

/// Returns the name of a token.
pub(super) fn name_of(token: &str) -> &str {
    token.split(' ').next().unwrap_or_default()
}

/// Returns the rules of a server with this file. All c10d clients are on its host.
pub(super) fn access(file: &str) -> Access {
    let tokens = Tokens::parse(file).expect("a token file");
    Access { tokens: Some(tokens), c10d_from: Some(Network::LOOPBACK.into()), ..Access::default() }
}
