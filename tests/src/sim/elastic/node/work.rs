//! Work of a node's workers: with the keys that all share, and with the keys of their round.

use super::super::order::{Order, Request};
use super::super::process::SubmitPath;
use super::super::referee::Referee;
use super::Node;
use super::traced::TRACED_KEYS;
use crate::sim::harness::revisions::TRACED;
use crate::sim::harness::sim_operation::{End, SimOperation};
use crate::sim::script::Next;
use crate::sim::world::SimContext;
use rendezvous_core::error::{Effect, ErrorKind, Operation};
use rendezvous_core::store::op::Key;
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::time::Duration;
use rendezvous_core::wire::native::{ClientFrame, List, Participants};

const WATCHES_MAX: usize = 3;
/// The same for all arrivals: the first one sets the deadline, and later ones must not give up before it.
const BARRIER_MS: u64 = 1500;

impl Node {
    /// Does what workers do: with the keys that all share, and with the keys of their round.
    pub(super) fn work(&mut self, context: &mut SimContext, referee: &mut Referee) {
        if !context.stormy {
            if self.sim_rng.percent(15) {
                self.mark(context, TRACED);
            }
            return;
        }
        let namespace = self.joined.as_ref().map(|joined| joined.namespace.clone());
        match (self.sim_rng.index(100), namespace) {
            (0..12, _) => self.use_traced(context),
            (12..17, _) => {
                let prefix = self.sim_rng.pick(&[TRACED, TRACED, TRACED, TRACED, b"/p/", b"/r/"]);
                self.watch(context, prefix);
            }
            (17..19, _) => {
                let grant = ClientFrame::LeaseGrant { ttl_ms: 0 };
                let local = self.leased_key();
                let granted = self.ask(
                    context,
                    SubmitPath::Plain,
                    Operation::LeaseGrant,
                    self.span(),
                    &grant,
                    Order::Grant,
                );
                if let Some(id) = granted {
                    self.leases.insert(id, local);
                }
            }
            (60..70, _) => {
                // Several are in flight at a time.
                let name = format!("n/{}", self.sim_rng.index(2));
                for _ in 0..4 {
                    self.perform(context, SimOperation::Add { name: name.clone(), delta: 1 }, self.span());
                }
            }
            (19..60, Some(namespace)) => self.work_in_round(context, referee, &namespace),
            _ => {
                if let Next::Do(order) = self.storm.next(&mut self.sim_rng) {
                    self.perform(context, order.sim_operation, order.timeout);
                }
            }
        }
    }

    /// Returns a key that is deleted with the session of its process.
    pub(super) fn leased_key(&self) -> Vec<u8> {
        let number = self.process.as_ref().map_or(0, |process| process.number);
        format!("/l/{number}").into_bytes()
    }

    /// Returns the key, and whether it is known to exist as long as the session lives.
    pub(in crate::sim::elastic) fn own_lease(&self) -> Option<(Vec<u8>, bool)> {
        self.process.as_ref().map(|_| (self.leased_key(), self.has_lease))
    }

    fn perform(&mut self, context: &mut SimContext, sim_operation: SimOperation, span: Duration) {
        let Some(request) = Request::of(&sim_operation, span) else { return };
        let Some(process) = self.process.as_mut().filter(|process| process.has_capacity()) else { return };
        let (id, began) = (context.history.begin(self.number, sim_operation.clone()), context.now);
        if process
            .begin(context, SubmitPath::Plain, request, Order::SimOperation(id, sim_operation, began))
            .is_none()
        {
            // It never began.
            let _ = context.history.end(id, End::Failed(ErrorKind::Cancelled, Effect::None), None);
        }
    }

    pub(super) fn mark(&mut self, context: &mut SimContext, prefix: &[u8]) {
        let key = [prefix, format!("{}", self.sim_rng.index(TRACED_KEYS)).as_bytes()].concat();
        let value = self.make_value();
        let set = ClientFrame::Set { key: Key::raw(&key), value: &value };
        let order = Order::Other { what: "mark", key: key.clone(), began: context.now };
        self.ask(context, SubmitPath::Plain, Operation::Set, self.span(), &set, order);
    }

    fn watch(&mut self, context: &mut SimContext, prefix: &[u8]) {
        if self.watches < WATCHES_MAX {
            // Some begin after a change that was found, which may be that of an earlier life.
            let found = self.found.values().map(|(revision, _)| revision + 1).max();
            let from_revision = found.filter(|_| self.sim_rng.percent(40)).unwrap_or(0);
            let watch = ClientFrame::WatchPrefix { prefix: Key::raw(prefix), from_revision };
            let order = Order::Watch { prefix: prefix.to_vec() };
            if self.ask(context, SubmitPath::Plain, Operation::Watch, self.span(), &watch, order).is_some() {
                self.watches += 1;
            }
        }
    }

    fn work_in_round(&mut self, context: &mut SimContext, referee: &mut Referee, namespace: &[u8]) {
        let at = |name: &str| [namespace, name.as_bytes()].concat();
        let (span, began) = (self.span(), context.now);
        let timeout = self.sim_rng.span(Duration::from_millis(100), Duration::from_secs(2));
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(0).max(1);
        match self.sim_rng.index(20) {
            0..4 => {
                let name = String::from_utf8_lossy(&at("n")).trim_start_matches('/').to_owned();
                // Several are in flight at a time.
                for _ in 0..self.sim_rng.pick(&[1, 1, 4]) {
                    let delta = 1 + i64::from(self.sim_rng.percent(30));
                    self.perform(context, SimOperation::Add { name: name.clone(), delta }, span);
                }
            }
            4..7 => self.mark(context, &at("w/")),
            7 | 8 => self.watch(context, &at("w/")),
            9..12 => {
                let (Some(process), Some(joined)) = (&self.process, &self.joined) else { return };
                let Some(epoch) = process.epoch.filter(|_| process.has_capacity()) else { return };
                let (key, count, name) = (at("b"), joined.nodes, process.name.clone());
                let participants = Participants::Count(count);
                let barrier = ClientFrame::Barrier {
                    key: Key::raw(&key),
                    generation: 0,
                    name: name.as_bytes(),
                    timeout_ms: BARRIER_MS,
                    participants,
                };
                let begun = referee.arrives(epoch, &key, &name, count);
                let order = Order::Barrier { key: key.clone(), count, begun };
                self.ask(
                    context,
                    SubmitPath::Plain,
                    Operation::Barrier,
                    Duration::from_millis(BARRIER_MS),
                    &barrier,
                    order,
                );
            }
            12 | 13 => {
                let key = at("q");
                let push = ClientFrame::QueuePush { key: Key::raw(&key), value: b"item" };
                let order = Order::Other { what: "push", key: key.clone(), began };
                self.ask(context, SubmitPath::Plain, Operation::QueuePush, span, &push, order);
            }
            14 | 15 => {
                let (never, t, v) = (at("never"), at("t"), at("v"));
                let compares = [Compare { key: Key::raw(&never), condition: Condition::Absent }];
                let writes = [
                    Write::Add { key: Key::raw(&t), delta: 1 },
                    Write::Set { key: Key::raw(&v), value: b"by a transaction" },
                ];
                let txn = ClientFrame::Txn {
                    compares: List::new(&compares),
                    then: List::new(&writes),
                    otherwise: List::new(&[]),
                };
                let order = Order::Other { what: "txn", key: t.clone(), began };
                self.ask(context, SubmitPath::Plain, Operation::Txn, span, &txn, order);
            }
            16 => {
                let ttl_ms = if self.sim_rng.percent(50) { 0 } else { millis };
                let grant = ClientFrame::LeaseGrant { ttl_ms };
                if let Some(id) =
                    self.ask(context, SubmitPath::Plain, Operation::LeaseGrant, span, &grant, Order::Grant)
                {
                    self.leases.insert(id, at(&format!("l/{}", self.number)));
                }
            }
            17 => {
                let key = at("absent");
                let get = ClientFrame::Get { timeout_ms: millis, key: Key::raw(&key) };
                let order = Order::Other { what: "wait", key: Vec::new(), began };
                self.ask(context, SubmitPath::Plain, Operation::Get, timeout, &get, order);
            }
            18 => {
                let (run, round) =
                    (self.run.clone().into_bytes(), self.joined.as_ref().map_or(0, |joined| joined.round));
                let (run_id, first_node_rank, count_max) = (Key::raw(&run), 0, 100);
                let members = ClientFrame::Members { run_id, round, first_node_rank, count_max };
                let order = Order::Other { what: "members", key: Vec::new(), began };
                self.ask(context, SubmitPath::Plain, Operation::Members, span, &members, order);
            }
            _ => {
                let prefix = at("v");
                let delete = ClientFrame::DeletePrefix { prefix: Key::raw(&prefix) };
                let order = Order::Other { what: "delete prefix", key: prefix.clone(), began };
                self.ask(context, SubmitPath::Plain, Operation::DeletePrefix, span, &delete, order);
            }
        }
    }
}
