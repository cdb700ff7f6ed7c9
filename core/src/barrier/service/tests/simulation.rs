//! Sessions that arrive, wait, withdraw, leave and die at random at three barriers, next to a model that follows the
//! rules without tables. A failure names its seed.

use super::*;
use crate::rng::Rng;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

const KEYS: [&str; 3] = ["k0", "k1", "k2"];
const NAMES: [&[u8]; 6] = [b"n0", b"n1", b"n2", b"n3", b"n4", b"n5"];
const STEPS: usize = 300;
const SEEDS: u64 = 400;
const ENDS_KEPT: usize = 3;

/// Participants: a number, or the names at these indices.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Awaited {
    Count(usize),
    Names(BTreeSet<usize>),
}

impl Awaited {
    fn len(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Names(names) => names.len(),
        }
    }

    fn lists(&self, name: usize) -> bool {
        matches!(self, Self::Names(names) if names.contains(&name))
    }

    fn admits(&self, name: usize) -> bool {
        matches!(self, Self::Count(_)) || self.lists(name)
    }
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Released(u64),
    Broken(u64, Vec<u8>, Why),
    /// The number of missing participants, and their sorted names.
    TimedOut(u64, usize, Vec<Vec<u8>>),
    Cancelled(u64, Vec<u8>),
    Superseded,
    CancelDone(bool),
    Refused(Refused),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Refused {
    Conflict(usize, usize),
    NotAParticipant,
    Unknown(u64, u64),
}

impl Answer {
    fn of(generation: u64, end: &End) -> Self {
        match end {
            End::Released => Self::Released(generation),
            End::Broken { participant, why } => Self::Broken(generation, participant.to_vec(), *why),
            End::TimedOut { absent_count, absent } => {
                let mut names: Vec<Vec<u8>> =
                    absent.as_keys().iter().map(|key| key.name().to_vec()).collect();
                names.sort();
                Self::TimedOut(generation, *absent_count as usize, names)
            }
            End::Cancelled { by } => Self::Cancelled(generation, by.to_vec()),
        }
    }
}

#[derive(Clone, Debug)]
struct Open {
    awaited: Awaited,
    deadline: Instant,
    set_by: usize,
    /// Arrival and deadline by name.
    waiting: BTreeMap<usize, (ArrivalId, Instant)>,
}

/// Model of one barrier, as the specification describes it.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Ends of all generations so far.
    ends: Vec<Answer>,
    /// Names that were notified of the last end. `whose` are the participants of that generation.
    last_seen_generation: BTreeSet<usize>,
    whose: Option<Awaited>,
    open: Option<Open>,
}

type Answers = Vec<(ArrivalId, Answer)>;

struct Asked {
    arrival: ArrivalId,
    generation: u64,
    name: usize,
    timeout: Duration,
    awaited: Awaited,
}

impl Model {
    fn next(&self) -> u64 {
        self.ends.len() as u64 + 1
    }

    fn has_failed(&self) -> bool {
        self.ends.last().is_some_and(|end| !matches!(end, Answer::Released(_)))
    }

    fn conclude(&mut self, end: Answer, answers: &mut Answers, departed: Option<OwnerId>) {
        let Some(open) = self.open.take() else { return };
        let reported = open.waiting.values().filter(|(arrival, _)| Some(arrival.owner) != departed);
        answers.extend(reported.map(|&(arrival, _)| (arrival, end.clone())));
        self.last_seen_generation = open.waiting.keys().copied().collect();
        self.whose = Some(open.awaited);
        self.ends.push(end);
    }

    /// Returns the timeout for a caller: the participants that are missing besides it.
    fn missed(&self, awaited: &Awaited, tasks: Option<usize>) -> Answer {
        let here: BTreeSet<usize> =
            self.open.iter().flat_map(|open| open.waiting.keys().copied()).chain(tasks).collect();
        let count = awaited.len() - here.len();
        let names: Vec<usize> = match awaited {
            Awaited::Names(names) => names.difference(&here).copied().collect(),
            Awaited::Count(_) => {
                let knows =
                    !self.ends.is_empty() && !self.has_failed() && self.whose.as_ref() == Some(awaited);
                let names: Vec<usize> = self.last_seen_generation.difference(&here).copied().collect();
                if knows && names.len() == count { names } else { Vec::new() }
            }
        };
        let names = names.into_iter().map(|name| NAMES[name].to_vec()).collect();
        Answer::TimedOut(self.next(), count, names)
    }

    /// Returns the next deadline, and whether it is that of a single arrival.
    fn due(&self) -> Option<(Instant, bool)> {
        let open = self.open.as_ref()?;
        let local = open.waiting.values().map(|&(_, until)| until).min();
        Some(
            local
                .filter(|&until| until < open.deadline)
                .map_or((open.deadline, false), |until| (until, true)),
        )
    }

    fn expire(&mut self, now: Instant, answers: &mut Answers) {
        while let Some((when, true)) = self.due().filter(|&(when, _)| when <= now) {
            let Some(open) = &self.open else { return };
            let departed: Vec<(usize, ArrivalId)> = open
                .waiting
                .iter()
                .filter(|(_, (_, until))| *until == when)
                .map(|(&name, &(arrival, _))| (name, arrival))
                .collect();
            let reported =
                departed.iter().map(|&(name, arrival)| (arrival, self.missed(&open.awaited, Some(name))));
            answers.extend(reported);
            departed.into_iter().for_each(|(_, arrival)| self.take_back(arrival));
        }
        if let Some(open) = self.open.as_ref().filter(|open| open.deadline <= now) {
            let end = self.missed(&open.awaited, None);
            self.conclude(end, answers, None);
        }
    }

    fn arrive(&mut self, now: Instant, request: &Asked, answers: &mut Answers) {
        let Asked { arrival, generation, name, timeout, ref awaited } = *request;
        let next = self.next();
        let mut answer = |answer| answers.push((arrival, answer));
        if generation > next {
            return answer(Answer::Refused(Refused::Unknown(self.oldest(), next)));
        }
        let is_late = generation == 0
            && self.open.is_none()
            && self.has_failed()
            && self.whose.as_ref() == Some(awaited)
            && awaited.admits(name)
            && !self.last_seen_generation.contains(&name);
        if is_late || (generation != 0 && generation < next) {
            let request = if is_late { next - 1 } else { generation };
            if request < self.oldest() {
                return answer(Answer::Refused(Refused::Unknown(self.oldest(), next)));
            }
            let is_last = request == next - 1 && self.open.is_none() && self.has_failed();
            if is_last && self.whose.as_ref() == Some(awaited) && awaited.admits(name) {
                self.last_seen_generation.insert(name);
            }
            return answer(self.ends[usize::try_from(request).expect("few") - 1].clone());
        }
        if let Some(open) = &self.open
            && open.awaited != *awaited
        {
            let count = match open.awaited {
                Awaited::Count(count) => count,
                Awaited::Names(_) => 0,
            };
            return answer(Answer::Refused(Refused::Conflict(open.set_by, count)));
        }
        if !awaited.admits(name) {
            return answer(Answer::Refused(Refused::NotAParticipant));
        }
        let earlier =
            self.open.as_ref().and_then(|open| open.waiting.get(&name)).map(|&(arrival, _)| arrival);
        let here = self.open.as_ref().map_or(0, |open| open.waiting.len()) + usize::from(earlier.is_none());
        if let Some(earlier) = earlier {
            answers.push((earlier, Answer::Superseded));
        }
        if timeout.is_zero() && here < awaited.len() {
            answers.push((arrival, self.missed(awaited, Some(name))));
            if let Some(earlier) = earlier {
                self.take_back(earlier);
            }
            return;
        }
        if self.open.is_none() && self.whose.as_ref() != Some(awaited) {
            // The result of other participants does not apply to these.
            self.whose = None;
        }
        let open = self.open.get_or_insert_with(|| Open {
            awaited: awaited.clone(),
            deadline: now + timeout,
            set_by: name,
            waiting: BTreeMap::new(),
        });
        open.waiting.insert(name, (arrival, now + timeout));
        if here == awaited.len() {
            self.conclude(Answer::Released(next), answers, None);
        }
    }

    fn oldest(&self) -> u64 {
        let over = self.ends.len();
        (over.min(over.saturating_sub(ENDS_KEPT) + 1)) as u64
    }

    fn take_back(&mut self, arrival: ArrivalId) {
        if let Some(open) = &mut self.open {
            open.waiting.retain(|_, waiting| waiting.0 != arrival);
            if open.waiting.is_empty() {
                self.open = None;
            }
        }
    }

    fn ended(&mut self, owner: OwnerId, node: Option<usize>, why: Why, answers: &mut Answers) {
        let Some(open) = &self.open else { return };
        let mut local: Vec<(ArrivalId, usize)> = open
            .waiting
            .iter()
            .filter(|(_, (arrival, _))| arrival.owner == owner)
            .map(|(&name, &(arrival, _))| (arrival, name))
            .collect();
        local.sort();
        if why == Why::Left && matches!(open.awaited, Awaited::Count(_)) {
            local.iter().for_each(|&(arrival, _)| self.take_back(arrival));
        } else if let Some(&(_, name)) = local.first() {
            let end = Answer::Broken(self.next(), NAMES[name].to_vec(), why);
            self.conclude(end, answers, Some(owner));
        } else if let Some(node) =
            node.filter(|node| open.awaited.lists(*node) && !open.waiting.contains_key(node))
        {
            let end = Answer::Broken(self.next(), NAMES[node].to_vec(), why);
            self.conclude(end, answers, None);
        }
    }
}

/// State of a request, as its client sees it.
struct MemberState {
    due: Instant,
    answers: u32,
}

struct Sim {
    rng: Rng,
    now: Instant,
    barriers: Barriers,
    models: [Model; 3],
    usual: [Awaited; 3],
    /// The session of each name, and a second one for the first name.
    sessions: Vec<(OwnerId, usize)>,
    session_last: u64,
    request_last: u64,
    fates: BTreeMap<ArrivalId, MemberState>,
    sights: BTreeMap<&'static str, u64>,
    trace: String,
}

type Checked = Result<(), String>;

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let limits = BarrierLimits { ends_kept_max: ENDS_KEPT, ..BarrierLimits::default() };
        let barriers = Barriers::new(limits, rng.next_u64().into());
        let usual = [0, 1, 2].map(|_| some_awaited(&mut rng));
        let owners = (0..).map(OwnerId);
        Self {
            rng,
            now: Instant::ORIGIN,
            barriers,
            models: Default::default(),
            usual,
            sessions: owners.zip((0..NAMES.len()).chain([0])).collect(),
            session_last: 100,
            request_last: 0,
            fates: BTreeMap::new(),
            sights: BTreeMap::new(),
            trace: String::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).expect("few")
    }

    fn saw(&mut self, observation: &'static str) {
        *self.sights.entry(observation).or_default() += 1;
    }

    fn next_id(&mut self, owner: OwnerId) -> ArrivalId {
        self.request_last += 1;
        ArrivalId { owner, request: self.request_last }
    }

    /// Passes the input to the machine, and compares its answers with those of the model.
    fn compare(
        &mut self,
        what: &str,
        input: Input<'_>,
        tasks: Option<ArrivalId>,
        expected: Answers,
    ) -> Checked {
        let refusal = self.barriers.handle(self.now, input).err();
        let mut answers = Answers::new();
        let mut ends: BTreeMap<(u64, usize), Arc<End>> = BTreeMap::new();
        while let Some(output) = self.barriers.poll_output() {
            answers.push(match output {
                Output::Over { arrival, generation, end } => {
                    if Some(arrival) != tasks {
                        ends.insert((generation, Arc::as_ptr(&end).addr()), end.clone());
                    }
                    (arrival, Answer::of(generation, &end))
                }
                Output::Superseded { arrival, .. } => (arrival, Answer::Superseded),
                Output::Stale { arrival, .. } => return Err(format!("{arrival:?} is at no key of a round")),
                Output::CancelDone { request, had_waiters } => (request, Answer::CancelDone(had_waiters)),
            });
        }
        if let (Some(refusal), Some(tasks)) = (refusal, tasks) {
            let refused = match &refusal {
                Refusal::Conflict { set_by, count } => {
                    let name = NAMES.iter().position(|name| **name == **set_by).expect("a name");
                    Refused::Conflict(name, *count as usize)
                }
                Refusal::NotAParticipant => Refused::NotAParticipant,
                Refusal::UnknownGeneration { oldest, next } => Refused::Unknown(*oldest, *next),
                other => return Err(format!("{other}")),
            };
            answers.push((tasks, Answer::Refused(refused)));
        }
        self.trace += &format!("{} {what}: {answers:?}\n", self.now.as_nanos());
        for (arrival, answer) in &answers {
            self.saw(observation(answer));
            let Some(member_state) = self.fates.get_mut(arrival) else {
                return Err(format!("{arrival:?} never asked"));
            };
            member_state.answers += 1;
            if member_state.answers > 1 || self.now > member_state.due {
                return Err(format!("{arrival:?} was answered {} times, or late", member_state.answers));
            }
        }
        let mut sorted = (answers, expected);
        sorted.0.sort();
        sorted.1.sort();
        if sorted.0 != sorted.1 {
            return Err(format!("{what}: {:?} and not {:?}", sorted.0, sorted.1));
        }
        let due = self.models.iter().filter_map(Model::due).map(|(when, _)| when).min();
        if self.barriers.poll_timeout() != due {
            return Err(format!("{:?} is due, not {due:?}", self.barriers.poll_timeout()));
        }
        let awaited =
            self.models.iter().filter_map(|model| model.open.as_ref()).map(|open| match &open.awaited {
                Awaited::Count(_) => 0,
                Awaited::Names(names) => names.len() - open.waiting.len(),
            });
        if self.barriers.awaited_names.len() != awaited.sum::<usize>() {
            return Err(format!("{:?} are awaited by name", self.barriers.awaited_names));
        }
        let waiting: usize =
            self.models.iter().filter_map(|model| model.open.as_ref()).map(|open| open.waiting.len()).sum();
        if self.barriers.waiting() != waiting {
            return Err(format!("{} wait, not {waiting}", self.barriers.waiting()));
        }
        Ok(())
    }

    fn expire(&mut self) -> Answers {
        let (mut answers, now) = (Answers::new(), self.now);
        self.models.iter_mut().for_each(|model| model.expire(now, &mut answers));
        answers
    }

    /// Advances the time as the machine requests it, and sometimes a little too far.
    fn pass(&mut self, until: Instant) -> Checked {
        while let Some(when) = self.barriers.poll_timeout().filter(|&when| when <= until) {
            self.now = self.now.max(when);
            let expected = self.expire();
            self.compare("tick", Input::Tick, None, expected)?;
        }
        self.now = until;
        Ok(())
    }

    fn arrive(&mut self) -> Checked {
        let at = self.below(KEYS.len());
        let session = self.below(self.sessions.len());
        let (owner, process_name) = self.sessions[session];
        // Sometimes a session uses the name of another.
        let name = if self.below(12) == 0 { self.below(NAMES.len()) } else { process_name };
        let over = self.models[at].ends.len();
        let generation = match self.below(20) {
            0..14 => 0,
            14..17 => over + 1,
            17 => over,
            _ => self.below(over + 4),
        } as u64;
        let timeout = Duration::from_millis(if self.below(7) == 0 { 0 } else { 1 + self.rng.below(300) });
        let awaited = if self.below(12) == 0 { some_awaited(&mut self.rng) } else { self.usual[at].clone() };
        let arrival = self.next_id(owner);
        let mut names: Vec<&[u8]> = match &awaited {
            Awaited::Count(_) => Vec::new(),
            Awaited::Names(names) => names.iter().map(|&name| NAMES[name]).collect(),
        };
        if self.below(4) == 0 {
            names.reverse();
        }
        let mut expected = self.expire();
        let open = self.models[at].open.as_ref();
        let due = open.map_or(Instant::MAX, |open| open.deadline).min(self.now + timeout);
        let due = if timeout.is_zero() { self.now } else { due };
        self.fates.insert(arrival, MemberState { due, answers: 0 });
        let request = Asked { arrival, generation, name, timeout, awaited: awaited.clone() };
        self.models[at].arrive(self.now, &request, &mut expected);
        let participants = match awaited {
            Awaited::Count(count) => Participants::Count(u32::try_from(count).expect("few")),
            Awaited::Names(_) => Participants::Names(Keys::scoped(b"", &names)),
        };
        let key = KEYS[at].as_bytes();
        let input = Arrive { arrival, key, generation, name: NAMES[name], timeout, participants };
        let what =
            format!("{arrival:?} arrives at {} {generation} as {name} {awaited:?} {timeout:?}", KEYS[at]);
        self.compare(&what, Input::Arrive(input), Some(arrival), expected)
    }

    fn withdraw(&mut self) -> Checked {
        let expected = self.expire();
        let waiting: Vec<ArrivalId> = self
            .models
            .iter()
            .flat_map(|model| &model.open)
            .flat_map(|open| open.waiting.values().map(|&(arrival, _)| arrival))
            .collect();
        if waiting.is_empty() {
            return self.compare("tick", Input::Tick, None, expected);
        }
        let arrival = waiting[self.below(waiting.len())];
        self.models.iter_mut().for_each(|model| model.take_back(arrival));
        // Its owner answers it.
        self.fates.remove(&arrival);
        self.saw("taken back");
        self.compare(&format!("{arrival:?} goes back"), Input::Withdraw { arrival }, None, expected)
    }

    fn cancel(&mut self) -> Checked {
        let at = self.below(KEYS.len());
        let session = self.below(self.sessions.len());
        let (owner, name) = self.sessions[session];
        let request = self.next_id(owner);
        self.fates.insert(request, MemberState { due: self.now, answers: 0 });
        let mut expected = self.expire();
        let model = &mut self.models[at];
        let had_waiters = model.open.is_some();
        let end = Answer::Cancelled(model.next(), NAMES[name].to_vec());
        model.conclude(end, &mut expected, None);
        expected.push((request, Answer::CancelDone(had_waiters)));
        let input = Input::Cancel { request, key: KEYS[at].as_bytes(), by: NAMES[name] };
        self.compare(&format!("{request:?} cancels {}", KEYS[at]), input, Some(request), expected)
    }

    fn end(&mut self) -> Checked {
        let session = self.below(self.sessions.len());
        let (owner, name) = self.sessions[session];
        let why = [Why::Connection, Why::Left, Why::Heartbeat][self.below(3)];
        self.session_last += 1;
        self.sessions[session].0 = OwnerId(self.session_last);
        let lives_on = self.sessions.iter().enumerate().any(|(at, other)| at != session && other.1 == name);
        let node = if lives_on { None } else { Some(name) };
        let mut expected = self.expire();
        self.models.iter_mut().for_each(|model| model.ended(owner, node, why, &mut expected));
        let reported: BTreeSet<ArrivalId> = expected.iter().map(|&(arrival, _)| arrival).collect();
        self.fates.retain(|arrival, member_state| {
            arrival.owner != owner || member_state.answers > 0 || reported.contains(arrival)
        });
        let input = Input::Ended { owner, node: node.map(|name| super::node(NAMES[name])), why };
        self.compare(&format!("{owner:?} {node:?} ends: {why}"), input, None, expected)
    }

    fn act(&mut self) -> Checked {
        match self.below(100) {
            0..76 => self.arrive(),
            76..84 => self.withdraw(),
            84..88 => self.cancel(),
            88..95 => self.end(),
            _ => {
                let at = self.below(KEYS.len());
                self.usual[at] = some_awaited(&mut self.rng);
                Ok(())
            }
        }
    }

    fn run(&mut self) -> Checked {
        for _ in 0..STEPS {
            let pause = Duration::from_millis(self.rng.below(20));
            self.pass(self.now + pause)?;
            self.act()?;
        }
        self.pass(self.now + secs(1))?;
        match self.fates.iter().find(|(_, member_state)| member_state.answers != 1) {
            Some((arrival, member_state)) => Err(format!("{arrival:?} has {} answers", member_state.answers)),
            None => Ok(()),
        }
    }
}

fn some_awaited(rng: &mut Rng) -> Awaited {
    let count = 1 + usize::try_from(rng.below(5)).expect("few");
    if rng.below(2) == 0 {
        return Awaited::Count(count);
    }
    let first = rng.below(NAMES.len() as u64);
    let names = (first..).take(count).map(|name| usize::try_from(name).expect("few") % NAMES.len());
    Awaited::Names(names.collect())
}

const fn observation(answer: &Answer) -> &'static str {
    match answer {
        Answer::Released(_) => "released",
        Answer::Broken(..) => "broken",
        Answer::TimedOut(_, _, names) if names.is_empty() => "timed out",
        Answer::TimedOut(..) => "timed out by name",
        Answer::Cancelled(..) => "cancelled",
        Answer::Superseded => "superseded",
        Answer::CancelDone(_) => "cancel",
        Answer::Refused(Refused::Conflict(..)) => "conflict",
        Answer::Refused(Refused::NotAParticipant) => "not a participant",
        Answer::Refused(Refused::Unknown(..)) => "unknown",
    }
}

fn simulate(seed: u64) -> Result<Sim, String> {
    let mut sim = Sim::new(seed);
    match sim.run() {
        Ok(()) => Ok(sim),
        Err(error) => {
            let lines: Vec<&str> = sim.trace.lines().collect();
            let last = lines[lines.len().saturating_sub(30)..].join("\n");
            Err(format!("seed {seed}: {error}\n{last}"))
        }
    }
}

#[test]
fn every_answer_is_that_of_the_model() {
    let mut sights: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let sim = simulate(seed).unwrap_or_else(|error| panic!("{error}"));
        sim.sights
            .into_iter()
            .for_each(|(observation, count)| *sights.entry(observation).or_default() += count);
    }
    // Every property was exercised.
    assert!(sights.len() == 11 && sights.values().all(|&count| count > SEEDS), "{sights:?}");
}

#[test]
fn a_seed_is_a_trace() {
    for seed in 0..5 {
        let trace = || simulate(seed).map(|sim| sim.trace).unwrap_or_default();
        let first = trace();
        assert!(first.lines().count() > 100 && first == trace());
    }
}
