use super::*;
use alloc::string::String;

const SECOND: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

struct SubmitPath {
    token: Token,
    now: u64,
}

impl SubmitPath {
    fn new() -> Self {
        let deadline = at(60_000);
        Self { token: Token::new(at(0), "w", Aim::Join, TokenTimes::default(), deadline, 0xabc), now: 0 }
    }

    fn step(&self) -> String {
        match self.token.next_step() {
            None => "-".into(),
            Some(StoreStep::CompareSet { key, expected, desired }) => {
                let short = |text: &str| text.replace("0000000000000abc", "own");
                format!("{key}: {} -> {}", short(&expected), short(&desired))
            }
            Some(StoreStep::Forget { key, expected }) => {
                format!("forget {key}: {}", expected.replace("0000000000000abc", "own"))
            }
            Some(StoreStep::Wait { key, until }) => format!("wait {key} {}", until.as_nanos() / 1_000_000),
            Some(other) => format!("{other:?}"),
        }
    }

    fn reply(&mut self, reply: &Reply) -> &mut Self {
        self.token.handle(at(self.now), reply).expect("fits");
        self
    }

    fn value(&mut self, value: &str) -> &mut Self {
        let value = value.replace("own", "0000000000000abc");
        self.reply(&Reply::Value(value.as_bytes().into()))
    }

    fn state(&self) -> TokenState {
        self.token.state()
    }

    fn tick(&mut self, now: u64) -> &mut Self {
        self.now = now;
        self.token.tick(at(now));
        self
    }

    /// Up to the first try.
    fn claimed() -> Self {
        let mut method = Self::new();
        assert_eq!(method.step(), "Token_for_w_join_alive:  -> own:1");
        method.value("own:1");
        assert_eq!(method.step(), "RpcGroupManagementToken:  -> Token_for_w_join");
        method
    }
}

#[test]
fn a_free_token_is_taken_and_given_back() {
    let mut method = SubmitPath::claimed();
    method.value("Token_for_w_join");
    assert_eq!(method.step(), "Token_for_w_join_alive: own:1 -> own:2");
    method.value("own:2").reply(&Reply::Done);
    assert!(method.token.is_held() && method.token.victim().is_none());
    assert_eq!((method.step().as_str(), method.token.poll_timeout()), ("-", Some(at(1000))));
    method.tick(999);
    assert_eq!(method.state(), TokenState::Held);
    method.tick(1000);
    assert_eq!(method.step(), "Token_for_w_join_alive: own:2 -> own:3");
    method.value("own:3");
    method.token.release(at(method.now));
    assert_eq!(
        method.token.next_step(),
        Some(StoreStep::SetForSession { key: "Token_for_w_join".into(), value: b"Done"[..].into() })
    );
    method.reply(&Reply::Done);
    assert_eq!(method.step(), "RpcGroupManagementToken: Token_for_w_join -> ");
    method.value("");
    assert_eq!(method.step(), "forget Token_for_w_join_alive: own:3");
    method.reply(&Reply::Done);
    assert_eq!(method.state(), TokenState::Free);
}

#[test]
fn the_living_are_waited_for_and_the_dead_are_not() {
    let mut method = SubmitPath::claimed();
    // Its own process is paused for half a minute, and reads again when the holder had no more time than it had itself.
    let looks = [("b:1", 1000), ("b:1", 31_000), ("b:2", 32_000), ("b:2", 34_000), ("b:2", 36_999)];
    for (beat, now) in looks {
        method.value("Token_for_b_leave");
        assert!(method.step().starts_with("wait Token_for_b_leave "), "{}", method.step());
        method.now = now;
        method.reply(&Reply::TimedOut);
        let local = method.step();
        let next = local.split_once("-> ").map(|(_, next)| String::from(next)).expect("a beat");
        method.value(&next).value(beat);
        assert_eq!(method.state(), TokenState::Trying);
    }
    assert_eq!(method.token.holder(), ("Token_for_b_leave", HolderLiveness::Alive));
    method.value("Token_for_b_leave");
    method.now = 37_000;
    method.reply(&Reply::TimedOut).value("own:7").value("b:2");
    assert_eq!(method.step(), "Token_for_b_leave_alive: b:2 -> doomed:own");
    method.value("doomed:own");
    let wakes = StoreStep::Set { key: "Token_for_b_leave".into(), value: b"Done"[..].into() };
    assert_eq!(method.token.next_step(), Some(wakes));
    method.reply(&Reply::Done);
    assert_eq!(method.step(), "RpcGroupManagementToken: Token_for_b_leave -> Token_for_w_join");
    method.value("Token_for_w_join");
    assert_eq!(method.step(), "Token_for_w_join_alive: own:7 -> own:8");
    method.value("own:8");
    assert_eq!(method.step(), "forget Token_for_b_leave_alive: doomed:own");
    method.reply(&Reply::Done).reply(&Reply::Done);
    assert_eq!((method.token.is_held(), method.token.victim().as_deref()), (true, Some("b")));
}

#[test]
fn of_several_who_take_it_from_the_dead_one_does() {
    let mut method = SubmitPath::claimed();
    method.token.state = TokenState::Seizing;
    method.token.holder = "Token_for_b_join".into();
    method.value("Token_for_c_join");
    assert_eq!(method.step(), "forget Token_for_b_join_alive: doomed:own");
    method.reply(&Reply::Done);
    assert_eq!(method.state(), TokenState::Trying);
}

#[test]
fn pytorch_gives_no_signs_and_is_left_in_peace() {
    let mut method = SubmitPath::claimed();
    while method.now < 60_000 {
        method.value("Token_for_b_join");
        method.now += 1000;
        method.reply(&Reply::TimedOut);
        let beat = method.step();
        let next = beat.split_once("-> ").map(|(_, next)| String::from(next)).expect("a beat");
        method.value(&next).value("");
        assert_eq!(method.state(), TokenState::Trying);
    }
    method.value("Token_for_b_join");
    assert_eq!(
        (method.state(), method.token.holder()),
        (TokenState::Withdrawing, ("Token_for_b_join", HolderLiveness::None))
    );
    method.reply(&Reply::Done);
    assert_eq!(method.state(), TokenState::GaveUp);
}

/// PyTorch's waiters do this without a pause, as long as the holder's work takes.
#[test]
fn an_old_mark_makes_nobody_spin() {
    let mut method = SubmitPath::claimed();
    let (mut tries, mut pauses) = (0, Vec::new());
    method.value("Token_for_b_join");
    while method.now < 20_000 {
        match method.state() {
            TokenState::Waiting => method.reply(&Reply::Released),
            TokenState::Trying => {
                tries += 1;
                assert!(tries < 100, "{tries} tries in {} ms", method.now);
                method.value("Token_for_b_join")
            }
            TokenState::Pausing => {
                let wakes = method.token.poll_timeout().expect("it wakes").as_nanos() / 1_000_000;
                pauses.push(wakes - method.now);
                method.tick(wakes + 1)
            }
            TokenState::Refreshing => {
                let beat = method.step();
                let next = beat.split_once("-> ").map(|(_, next)| String::from(next)).expect("a beat");
                method.value(&next)
            }
            TokenState::Looking => method.value(""),
            other => panic!("{other:?}"),
        };
    }
    assert!(pauses.iter().all(|&pause| pause <= 500) && pauses.iter().skip(8).all(|&pause| pause >= 249));
    // With another holder, it waits as before.
    while method.state() != TokenState::Trying {
        let now = method.now + 1000;
        match method.state() {
            TokenState::Pausing => method.tick(now),
            TokenState::Looking => method.value(""),
            _ => {
                let beat = method.step();
                let next = beat.split_once("-> ").map(|(_, next)| String::from(next)).expect("a beat");
                method.value(&next)
            }
        };
    }
    method.value("Token_for_c_join");
    assert_eq!(method.state(), TokenState::Waiting);
}

#[test]
fn who_was_taken_for_dead_learns_of_it() {
    for state in [TokenState::Beating, TokenState::Refreshing, TokenState::Proving, TokenState::Releasing] {
        let mut method = SubmitPath::claimed();
        method.token.state = state;
        let reported = if state == TokenState::Releasing { "Token_for_b_join" } else { "doomed:c" };
        method.value(reported);
        assert_eq!((method.state(), method.token.next_step()), (TokenState::Lost, None), "{state:?}");
    }
}

/// It took over the heartbeat of a dead namesake that had the token, and was paused. Meanwhile another worker took the
/// token from that namesake, and removed the heartbeat.
#[test]
fn no_token_is_held_without_a_heartbeat() {
    // PyTorch's server returns the expected value for an absent key.
    for absent in ["", "own:1"] {
        let mut method = SubmitPath::claimed();
        method.value("Token_for_w_join");
        assert_eq!(method.step(), "Token_for_w_join_alive: own:1 -> own:2");
        method.value(absent);
        assert_eq!(method.step(), "Token_for_w_join_alive:  -> own:2");
        method.value("own:2");
        assert_eq!(method.step(), "RpcGroupManagementToken:  -> Token_for_w_join");
        method.value("Token_for_w_join");
        assert_eq!(method.step(), "Token_for_w_join_alive: own:2 -> own:3");
        method.value("own:3").reply(&Reply::Done);
        assert!(method.token.is_held());
    }
}

#[test]
fn a_dead_namesake_is_outwaited_and_a_living_one_is_not() {
    let mut method = SubmitPath::new();
    method.value("other:7");
    assert_eq!((method.state(), method.token.poll_timeout()), (TokenState::Outwaiting, Some(at(5000))));
    method.tick(5000);
    assert_eq!(method.step(), "Token_for_w_join_alive: other:7 -> own:1");
    let mut living = SubmitPath { token: method.token.clone(), now: method.now };
    method.value("own:1");
    assert_eq!(method.state(), TokenState::Trying);
    living.value("other:9");
    assert_eq!(living.state(), TokenState::NotUnique);
    // A worker that takes the token from a dead one has the time to do it.
    for (left, until) in [("doomed:c", 10_000), ("", 5010)] {
        let mut method = SubmitPath::new();
        method.value("other:7").tick(5000).value(left);
        assert_eq!((method.state(), method.token.poll_timeout()), (TokenState::Outwaiting, Some(at(until))));
        method.tick(until);
        assert_eq!(method.step(), format!("Token_for_w_join_alive: {left} -> own:1"));
    }
    // The key is deleted; PyTorch's server returns the expected value.
    let mut method = SubmitPath::new();
    method.value("other:7").tick(5000).value("other:7");
    assert_eq!((method.state(), method.token.poll_timeout()), (TokenState::Outwaiting, Some(at(5010))));
    method.tick(5010);
    assert_eq!(method.step(), "Token_for_w_join_alive:  -> own:1");
    let mut late = SubmitPath::new();
    late.token.hurry(at(0));
    late.value("other:7").tick(0);
    assert_eq!(late.state(), TokenState::GaveUp);
}

#[test]
fn replies_to_other_steps_are_refused() {
    let mut method = SubmitPath::claimed();
    for reply in [Reply::Done, Reply::Released, Reply::TimedOut, Reply::Number(1), Reply::Values(Vec::new())]
    {
        assert_eq!(method.token.handle(at(0), &reply), None);
    }
    assert_eq!(TokenTimes::default().silence, 5 * SECOND);
}

/// A worker that was paused may have been replaced by another with its name, which writes the same token.
#[test]
fn nobody_acts_on_what_it_knew_long_ago() {
    let mut thief = SubmitPath::claimed();
    thief.token.state = TokenState::Waking;
    thief.token.holder = "Token_for_b_join".into();
    thief.now = 2499;
    let mut late = SubmitPath { token: thief.token.clone(), now: 2500 };
    thief.reply(&Reply::Done);
    assert_eq!(thief.state(), TokenState::Seizing);
    late.reply(&Reply::Done);
    // The replaced heartbeat stays, so that others can take the token from this holder.
    assert_eq!(late.step(), "RpcGroupManagementToken:  -> Token_for_w_join");
    let mut holder = SubmitPath::claimed();
    holder.token.state = TokenState::Announcing;
    holder.now = 2500;
    holder.reply(&Reply::Done);
    assert_eq!(holder.step(), "Token_for_w_join_alive: own:1 -> own:2");
    let mut robbed = SubmitPath { token: holder.token.clone(), now: 2500 };
    holder.value("own:2");
    assert_eq!(holder.step(), "RpcGroupManagementToken: Token_for_w_join -> ");
    robbed.value("doomed:c");
    assert_eq!(robbed.state(), TokenState::Lost);
}
