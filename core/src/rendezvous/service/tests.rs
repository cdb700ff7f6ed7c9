extern crate alloc;

mod forgetting;
mod scenarios;
mod simulation;
mod spares;
mod table;

use super::*;
use crate::time::Duration;
use crate::wire::native::Why;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

const RUN: &str = "j";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn settings(min_nodes: u32, max_nodes: u32) -> RunSettings {
    RunSettings::between(min_nodes, max_nodes)
}

/// One run in which each node has a name of one letter; outputs are described as text.
struct World {
    service: Rendezvous,
    now: Instant,
    settings: RunSettings,
}

fn id(name: &str) -> ParticipantId {
    ParticipantId(name.bytes().fold(0, |id, byte| id * 256 + u64::from(byte)))
}

fn name(participant: ParticipantId) -> String {
    let bytes: Vec<u8> = participant.0.to_be_bytes().into_iter().filter(|&byte| byte != 0).collect();
    let is_name =
        bytes.iter().all(u8::is_ascii_alphanumeric) && id(&String::from_utf8_lossy(&bytes)) == participant;
    if is_name { String::from_utf8_lossy(&bytes).into_owned() } else { participant.to_string() }
}

impl World {
    fn new(settings: RunSettings) -> Self {
        Self { service: Rendezvous::new(RendezvousLimits::default()), now: Instant::ORIGIN, settings }
    }

    fn request(&self, node: &str) -> Join {
        Join {
            run_id: RUN.into(),
            node: NodeName::plain(node),
            address: node.as_bytes().into(),
            local_world_size: 1,
            labels: Vec::new(),
            round_min: 0,
            node_rank: None,
            join_timeout: secs(600),
            settings: self.settings.clone(),
        }
    }

    fn give(&mut self, input: Input) -> String {
        let result = self.service.handle(self.now, input);
        self.check_records();
        match result {
            Ok(()) => self.drain(),
            Err(error) => {
                let reported = self.drain();
                let separator = if reported.is_empty() { "" } else { "; " };
                format!("{reported}{separator}error: {error}")
            }
        }
    }

    /// Checks that the nodes of each last round whose bytes no session is charged for are those that are gone.
    fn check_records(&self) {
        for (_, run) in &self.service.runs {
            let Some(record) = &run.record else { continue };
            let (gone, there): (Vec<_>, Vec<_>) =
                record.members.iter().partition(|member| member.member_state.is_gone());
            assert!(there.iter().all(|member| run.has_node(&member.node)), "{record:?}");
            assert_eq!(record.gone_bytes, gone.iter().map(|member| member.bytes()).sum::<usize>());
        }
    }

    fn join_as(&mut self, participant: &str, join: Join) -> String {
        self.give(Input::Join { participant: id(participant), join })
    }

    fn join(&mut self, node: &str) -> String {
        let join = self.request(node);
        self.join_as(node, join)
    }

    /// Lets all of them join; returns the outputs of the last join.
    fn join_all(&mut self, nodes: &str) -> String {
        nodes.split(' ').map(|node| self.join(node)).last().unwrap_or_default()
    }

    fn standby(&mut self, node: &str) -> String {
        let join = self.request(node);
        self.give(Input::Standby { participant: id(node), join })
    }

    fn leave(&mut self, node: &str) -> String {
        self.give(Input::Leave { participant: id(node) })
    }

    fn die(&mut self, node: &str) -> String {
        self.give(Input::Ended { participant: id(node), why: Why::Connection })
    }

    fn close(&mut self, node: &str) -> String {
        self.give(Input::Close { participant: id(node), run_id: RUN.into() })
    }

    fn fail(&mut self, node: &str, message: &str) -> String {
        self.give(Input::Fail { participant: id(node), run_id: RUN.into(), message: message.into() })
    }

    fn pass(&mut self, span: Duration) -> String {
        self.now = self.now + span;
        self.give(Input::Tick)
    }

    fn drain(&mut self) -> String {
        let mut reported = Vec::new();
        while let Some(output) = self.service.poll_output() {
            reported.extend(notify(&output));
        }
        reported.join("; ")
    }

    fn status(&self) -> String {
        self.service.status(RUN).map_or_else(
            || String::from("unknown"),
            |status| {
                let Counts { joining, waiting, active, due, standby } = status.counts;
                format!("{:?} {} {joining}/{waiting}/{active}/{due}/{standby}", status.phase, status.round)
            },
        )
    }
}

fn notify(output: &Output) -> Option<String> {
    Some(match output {
        Output::RoundOpened(keys) => format!("open {}", keys.round),
        Output::Fence(keys) => format!("fence {}", keys.round),
        Output::Delete(keys) => format!("delete {}", keys.round),
        Output::Forgotten(run_id) => format!("forget {run_id}"),
        Output::Decided { .. } => return None,
        Output::Notify { participant, event } => {
            let reported = match event {
                Event::Seated => String::from("seated"),
                Event::Standby { ahead } => format!("stands by after {ahead}"),
                Event::RoundFormed(round) => {
                    format!("is {}/{} in {}", round.rank, round.world_size, round.namespace.round)
                }
                Event::JoinFailed(failure) => format!("fails: {failure}"),
                Event::NodesWaiting { nodes } => format!("gets {nodes} waiting"),
                Event::NodeLost(loss) => {
                    let Loss { node, rank, round, why } = &**loss;
                    format!("gets node {node} (rank {rank} of round {round}) was lost: {why}")
                }
                Event::RoundEnded { round, reason } => format!("is out of {round}: {reason}"),
                Event::Excluded { round } => format!("left behind by {round}"),
                Event::RunClosed { .. } => String::from("gets closed"),
                Event::JobFailed { message } => format!("gets that {message}"),
                Event::Replaced { by } => format!("replaced by {}", name(*by)),
            };
            format!("{} {reported}", name(*participant))
        }
    })
}
