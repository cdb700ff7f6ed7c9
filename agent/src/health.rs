//! Health of an agent, served over HTTP.

use super::events::Watched;
use super::group::WorkerGroup;
use super::phase::Phase;
use rendezvous_core::prelude::*;
use serde_json::json;

/// Longest time without progress of a healthy agent that monitors its workers' timers.
pub const PROGRESS_MAX: Duration = Duration::from_secs(60);
/// Interval at which such an agent records progress if nothing else happens.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum length of a request in bytes.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 64;

/// Whether an agent without progress is unhealthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LivenessPolicy {
    /// It is not: it may have nothing to do.
    #[default]
    Trusting,
    /// It is: it polls the timers of its workers, so it always makes progress.
    Watchful,
}

impl From<Watched> for LivenessPolicy {
    fn from(watched: Watched) -> Self {
        match watched {
            Watched::No => Self::Trusting,
            Watched::ByTimers => Self::Watchful,
        }
    }
}

/// Health of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Phase of the agent.
    pub phase: Phase,
    /// Time of its last progress.
    pub progress: Instant,
    /// Number of the round, for backends that number their rounds.
    pub round: Option<u64>,
    /// Number of the current start of its workers; 0 is the first.
    pub attempt: u64,
    /// Number of restarts because its workers failed.
    pub restarts: u32,
    /// Whether the agent must make progress.
    pub liveness_policy: LivenessPolicy,
}

impl Health {
    /// Creates the health of an agent that makes progress at `now`.
    pub const fn new(
        phase: Phase,
        now: Instant,
        group: &WorkerGroup,
        liveness_policy: LivenessPolicy,
    ) -> Self {
        Self {
            phase,
            progress: now,
            round: group.round,
            attempt: group.attempt,
            restarts: group.restart_count,
            liveness_policy,
        }
    }

    /// Returns whether the agent is healthy: it has made progress recently, if it must.
    pub fn is_well(&self, now: Instant) -> bool {
        let must = self.liveness_policy == LivenessPolicy::Watchful && self.phase == Phase::Running;
        !must || now.since(self.progress) <= PROGRESS_MAX
    }

    /// Returns the body of a response.
    pub fn to_json(&self, now: Instant) -> String {
        let age_ms = u64::try_from(now.since(self.progress).as_millis()).unwrap_or(u64::MAX);
        json!({
            "healthy": self.is_well(now),
            "phase": self.phase.name(),
            "last_progress_age_ms": age_ms,
            "round": self.round,
            "attempt": self.attempt,
            "restarts": self.restarts,
        })
        .to_string()
    }
}

/// Request read from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// More bytes are needed.
    Incomplete,
    /// A `GET` request.
    Get,
    /// A `HEAD` request.
    Head,
    /// A request with another method.
    Other,
    /// The bytes are not an HTTP request, or it is too long.
    Nonsense,
}

impl Request {
    /// Parses all bytes that were read from a connection so far.
    pub fn of(bytes: &[u8]) -> Self {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => Self::Incomplete,
            Ok(httparse::Status::Complete(_)) => match request.method {
                Some("GET") => Self::Get,
                Some("HEAD") => Self::Head,
                _ => Self::Other,
            },
            Ok(httparse::Status::Partial) | Err(_) => Self::Nonsense,
        }
    }

    /// Returns the whole response, after which the connection is closed; `None` while the request is incomplete.
    pub fn answer(self, health: &Health, now: Instant) -> Option<String> {
        let (status, body) = match self {
            Self::Incomplete => return None,
            Self::Get | Self::Head if health.is_well(now) => ("200 OK", health.to_json(now)),
            Self::Get | Self::Head => ("503 Service Unavailable", health.to_json(now)),
            Self::Other => ("405 Method Not Allowed", String::new()),
            Self::Nonsense => ("400 Bad Request", String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             Connection: close\r\n\r\n",
            body.len()
        );
        Some(if self == Self::Head { head } else { head + &body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(phase: Phase, liveness_policy: LivenessPolicy) -> Health {
        let group = WorkerGroup { round: Some(4), attempt: 2, restart_count: 1, ..WorkerGroup::default() };
        Health::new(phase, Instant::from_millis(1000), &group, liveness_policy)
    }

    #[test]
    fn only_who_watches_running_workers_must_get_on() {
        let late = Instant::from_millis(61_001);
        for (phase, liveness_policy, is_well) in [
            (Phase::Running, LivenessPolicy::Watchful, false),
            (Phase::Running, LivenessPolicy::Trusting, true),
            (Phase::Meeting, LivenessPolicy::Watchful, true),
            (Phase::ExitBarrier, LivenessPolicy::Watchful, true),
        ] {
            let health = health(phase, liveness_policy);
            assert_eq!(health.is_well(late), is_well, "{phase:?} {liveness_policy:?}");
            assert!(health.is_well(Instant::from_millis(61_000)));
        }
        assert!(PROGRESS_INTERVAL * 4 < PROGRESS_MAX);
    }

    #[test]
    fn the_answer_says_how_it_is() {
        let health = health(Phase::Running, LivenessPolicy::Watchful);
        let answer = Request::Get.answer(&health, Instant::from_millis(1012)).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        let wanted = json!({
            "healthy": true, "phase": "running", "last_progress_age_ms": 12, "round": 4, "attempt": 2, "restarts": 1
        });
        assert_eq!(body.parse::<serde_json::Value>().expect("JSON"), wanted);
        let answer = Request::Get.answer(&health, Instant::from_millis(90_000)).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let answer = Request::Head.answer(&health, Instant::from_millis(1012)).expect("an answer");
        assert!(answer.ends_with("\r\n\r\n") && answer.starts_with("HTTP/1.1 200 "), "{answer}");
        for (request, status) in [(Request::Other, "405"), (Request::Nonsense, "400")] {
            let answer = request.answer(&health, Instant::ORIGIN).expect("an answer");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }

    #[test]
    fn requests_come_in_pieces_and_in_any_shape() {
        let get = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..get.len() {
            assert_eq!(Request::of(&get[..end]), Request::Incomplete, "{end}");
        }
        let long = [&b"GET /"[..], &[b'a'; REQUEST_BYTES_MAX]].concat();
        for (bytes, request) in [
            (&get[..], Request::Get),
            (b"GET / HTTP/1.0\n\n", Request::Get),
            (b"HEAD / HTTP/1.1\r\n\r\n", Request::Head),
            (b"POST / HTTP/1.1\r\n\r\n", Request::Other),
            (b"GET /\r\n\r\n", Request::Nonsense),
            (b"\x16\x03\x01\x02\x00", Request::Nonsense),
            (b"\0", Request::Nonsense),
            (b"GET@/ HTTP/1.1\r\n\r\n", Request::Nonsense),
            (&long, Request::Nonsense),
        ] {
            assert_eq!(Request::of(bytes), request, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
