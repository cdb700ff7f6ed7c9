//! Bytes against the formats that nodes and workers leave in stores, files, pipes and URLs and that operators write in token
//! files and lists of networks, and replies of a store against the token of an RPC group.

use crate::entropy::Entropy;
use rendezvous_agent::ranks::{assign, assigned, read_assigned};
use rendezvous_agent::watchdog::Watchdog;
use rendezvous_agent::{error_file, health, log_lines, numa, streams};
use rendezvous_core::access::{Network, Rights, Tokens};
use rendezvous_core::auth::{AuthField, Step};
use rendezvous_core::rendezvous::integer::parse_integer;
use rendezvous_core::rendezvous::parse::{Endpoint, parse_config};
use rendezvous_core::rendezvous::static_claim::Claim;
use rendezvous_core::rendezvous::static_rounds::Attendance;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::rendezvous::url::{RankEnvironment, RendezvousUrl, WorldSize};
use rendezvous_core::store::number::parse_leading;
use rendezvous_core::store::op::Key;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::ClientFrame;
use rendezvous_rpc::membership::Reply;
use rendezvous_rpc::membership::keys::{self, Aim, parse_roster, roster_text};
use rendezvous_rpc::membership::token::{Token, TokenTimes};

/// For any bytes: no parser panics, what is parsed is written to text that is parsed to the same, input in pieces has the
/// effect of the whole, and the token of a group is held at most as long as its heartbeats succeed.
///
/// # Panics
/// When that does not hold.
pub fn formats(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    store_values(bytes, &text);
    urls(&text);
    access(bytes, &text);
    agent_inputs(bytes, &text);
    token(bytes);
}

fn store_values(bytes: &[u8], text: &str) {
    if let Some(number) = parse_leading(bytes) {
        assert_eq!(parse_leading(number.to_string().as_bytes()), Some(number));
    }
    if let Ok(number) = parse_integer(text) {
        assert_eq!(parse_integer(&number.to_string()), Ok(number));
    }
    if let Some(claim) = Claim::parse(bytes) {
        assert_eq!(Claim::parse(claim.text().as_bytes()), Some(claim));
    }
    if let Ok(workers) = parse_roster(bytes) {
        assert_eq!(parse_roster(roster_text(&workers).as_bytes()), Ok(workers));
    }
    for world_size in [0, 1, 3] {
        let attendance = Attendance::read(bytes, world_size);
        assert!(attendance.arrived() <= world_size);
        assert!(
            attendance.present().is_sorted() && attendance.present().iter().all(|&rank| rank < world_size)
        );
    }
    if let Ok(ranks) = read_assigned(0, bytes) {
        assert_eq!(read_assigned(0, &assigned(&ranks)), Ok(ranks));
    }
    // Every part of the input is the entry of one agent.
    let infos: Vec<Vec<u8>> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    if let Ok(ranks) = assign(&infos) {
        assert_eq!(ranks.len(), infos.len());
        let firsts: Vec<u64> = ranks.iter().map(|ranks| ranks.global_rank_first).collect();
        assert!(firsts.is_sorted() && firsts[0] == 0, "ranks are numbered in the order of the agents");
        for ranks in ranks {
            assert!(ranks.global_rank_first <= ranks.world_size && ranks.role_world_size <= ranks.world_size);
        }
    }
    let half = bytes.len() / 2;
    let _ = RendezvousStoreInfo::from_values(&bytes[..half], &bytes[half..]);
}

fn urls(text: &str) {
    let environment = RankEnvironment {
        rank: Some("1".into()),
        world_size: Some("2".into()),
        master_addr: Some("host".into()),
        master_port: Some("1".into()),
        ..RankEnvironment::default()
    };
    for size in [WorldSize::InUrl, WorldSize::Known(2), WorldSize::Dynamic] {
        if let Ok(url) = RendezvousUrl::parse(text, -1, size, &environment) {
            let _ = url.scheme();
            let _ = (url.tcp(&environment), url.env(&environment), url.file());
        }
    }
    if let Ok(endpoint) = Endpoint::parse(text) {
        assert!(!endpoint.host.is_empty());
        if let Some(port) = endpoint.port {
            let again = format!("[{}]:{port}", endpoint.host);
            assert_eq!(Endpoint::parse(&again), Ok(endpoint));
        }
    }
    if let Ok(config) = parse_config(text) {
        assert!(config.iter().all(|(key, _)| !key.is_empty() && key.trim() == key), "{config:?}");
    }
}

/// Returns the run of a key here: what is before its first slash.
fn before_slash(key: &[u8]) -> Option<&[u8]> {
    key.iter().position(|&byte| byte == b'/').map(|end| &key[..end])
}

/// Rights that include others allow all that those allow, and no bytes prove a token.
fn access(bytes: &[u8], text: &str) {
    if let Ok(networks) = Network::parse_list(text) {
        let written: Vec<String> = networks.iter().map(Network::to_string).collect();
        assert_eq!(Network::parse_list(&written.join(",")), Ok(networks));
    }
    let (first, second) = text.split_once('\n').unwrap_or((text, text));
    if let (Ok(first), Ok(second)) = (Rights::parse(first), Rights::parse(second)) {
        assert!(first.include(&first) && Rights::All.include(&first));
        for word in text.split([':', ' ', '\n']).map(str::as_bytes) {
            let key = Key::raw(word);
            let get = ClientFrame::Get { timeout_ms: 0, key };
            for frame in [get, ClientFrame::Delete { key }, ClientFrame::Leave { run_id: key }] {
                let is_allowed = |rights: &Rights| rights.check(&frame, &before_slash).is_ok();
                assert!(
                    !first.include(&second) || !is_allowed(&second) || is_allowed(&first),
                    "{first:?} {second:?} {frame:?}"
                );
            }
        }
    }
    if let Ok(tokens) = Tokens::parse(text) {
        assert!(tokens.count() > 0);
        let token = text.split_whitespace().next().unwrap_or_default().as_bytes();
        let mut proof = [0; 32];
        proof.iter_mut().zip(bytes).for_each(|(byte, &other)| *byte = other);
        let [offer, proof] =
            [Step::Offer, Step::Proof].map(|step| AuthField { step, bytes: proof, token }.encode());
        let challenge = tokens.challenge(&offer, [1; 32]).expect("an offer");
        let hello = ClientFrame::Hello {
            version_min: 1,
            version_max: 1,
            incarnation: 0,
            session: 0,
            token: [0; 16],
            grace_ms: 0,
            heartbeat_ms: 0,
            heartbeats_missed_max: 0,
            node: b"n",
            auth: &proof,
        };
        assert!(challenge.verify(&tokens, &hello, [0; 32]).is_none());
    }
}

fn agent_inputs(bytes: &[u8], text: &str) {
    if let Ok(error) = error_file::parse(bytes) {
        assert!(error.data.is_object() || error.data.get("message").is_some());
    }
    if let Ok(setting) = streams::StdSetting::parse(text) {
        let _ = (setting.of(0), setting.of(u32::MAX));
    }
    if let Ok(filter) = streams::LocalRanksFilter::parse(text) {
        let _ = filter.lets_pass(1);
    }
    assert!(streams::parse_needles(text).iter().all(|needle| !needle.is_empty()));
    // Longer lists take long, and come from the kernel.
    if bytes.len() < 64
        && let Some(numbers) = numa::parse_list(text)
    {
        assert_eq!(numa::parse_list(&numa::write_list(&numbers)), Some(numbers));
    }
    let _ = health::Request::of(bytes);
    assert_eq!(lines(&[bytes]), lines(&bytes.chunks(1).collect::<Vec<_>>()));
    assert_eq!(timers(&[bytes]), timers(&bytes.chunks(3).collect::<Vec<_>>()));
}

/// What the lines of a worker's output become.
fn lines(pieces: &[&[u8]]) -> (Vec<u8>, Vec<String>) {
    let mut lines = log_lines::LogLines::new(b"[w]".to_vec(), &["a".to_owned()]);
    let mut out = log_lines::LineOutput::default();
    for piece in pieces {
        lines.push(piece, &mut out);
    }
    lines.finish(&mut out);
    (out.console, lines.tail())
}

/// The timers that a worker's pipe sets: how many, when the next one is due, and what was refused.
fn timers(pieces: &[&[u8]]) -> (usize, Option<Duration>, Vec<String>) {
    let mut watchdog = Watchdog::default();
    watchdog.wake(Instant::ORIGIN, Duration::from_secs(1_000_000));
    for piece in pieces {
        watchdog.read(piece, &mut |pid| pid % 2 == 1);
    }
    watchdog.rest(Instant::ORIGIN);
    let refused =
        core::iter::from_fn(|| watchdog.next_refusal()).map(|refusal| format!("{refusal:?}")).collect();
    let found = (watchdog.len(), watchdog.due(), refused);
    let ended = core::iter::from_fn(|| watchdog.next_expired(Duration::MAX)).count();
    assert!(ended <= found.0 && (found.0 == 0) == (ended == 0));
    found
}

/// One acquisition of the token, with any replies of the store, at any time.
fn token(bytes: &[u8]) {
    let mut entropy = Entropy::new(bytes);
    let times = TokenTimes::default();
    let mut now = Instant::ORIGIN;
    let deadline = now + Duration::from_secs(20);
    let mut token = Token::new(now, "w", Aim::Join, times, deadline, 7);
    let values: [&[u8]; 8] = [
        b"",
        b"Token_for_w_join",
        b"Token_for_v_leave",
        b"0000000000000007:1",
        b"0000000000000007:2",
        b"0000000000000009:1",
        b"doomed:0000000000000007",
        b"\xff",
    ];
    for _ in 0..256 {
        if entropy.is_empty() {
            break;
        }
        now = now + Duration::from_millis(entropy.choose(&[0, 1, 100, 1000, 6000]));
        let state = token.state();
        match entropy.below(8) {
            0 => token.tick(now),
            1 if token.is_held() => token.release(now),
            2 if entropy.below(4) == 0 => token.hurry(now),
            _ => {
                let Some(_) = token.next_step() else {
                    token.tick(now);
                    continue;
                };
                let reply = match entropy.below(10) {
                    0 => Reply::Done,
                    1 => Reply::Released,
                    2 => Reply::TimedOut,
                    3 => Reply::Number(1),
                    4 => Reply::Values(Vec::new()),
                    _ => Reply::Value(entropy.choose(&values).into()),
                };
                if token.handle(now, &reply).is_none() {
                    assert_eq!(token.state(), state, "a reply that does not fit changes nothing");
                }
            }
        }
        if let Some(victim) = token.victim() {
            assert!(keys::holder(token.holder().0).is_none_or(|holder| holder != victim) || !token.is_held());
        }
        // It waits for a reply, for a time, or for nothing more.
        assert!(token.next_step().is_none() || token.poll_timeout().is_none());
    }
}
