//! Saboteur on the connection of a node. It removes frames and renumbers the others, so that neither end notices, or it
//! writes into them what a machine with the bug would have written.
//!
//! What happens here is what the bug would do, seen from the node:
//!
//! | sabotage | what happens on the connection | the bug that looks so |
//! |---|---|---|
//! | `SkippedFence` | keys of rounds get a name that no fence covers, in both directions; the referee looks there | a
//! round that ends raises no fence |
//! | `ForgottenWaiter` | the answer to a request that waited before a resume is removed | the server drops waits at a
//! resume |
//! | `TwoRounds` | nodes with an odd number get the next round's number and keys | a round is formed while another is
//! live |
//! | `DoubledRank` | ranks above 0 are lowered by one | two nodes get one rank |
//! | `RepeatedRequest` | a request that had its effect before a resume is sent to the store again | a request that is
//! sent again is executed again |
//! | `UntoldSurvivor` | some `PeerDied` are removed | a survivor is not notified |
//! | `ReopenedRun` | a node that joins a closed run joins another run, whose frames have the first one's name | a
//! closed run accepts nodes |
//! | `LostChange` | the first Changed after a resume is removed | a watch that is resumed begins one too late |
//! | `EarlyBarrier` | barriers are requested with one participant less | a barrier counts one too many |

use super::super::faults::Sabotage;
use super::order::{Order, header_of};
use crate::frames;
use crate::sim::harness::sim_operation::SimOperation;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::node::native_client::NativeClient;
use rendezvous_core::store::op::Key;
use rendezvous_core::wire::native::{
    ClientFrame, From, HEADER_BYTES, Label, Participants, Scan, ServerFrame, scan,
};

/// The connection of one node.
#[derive(Debug)]
pub(super) struct Tamper {
    pub(super) sabotage: Sabotage,
    host: usize,
    /// Whether the run was known to be closed when the process began.
    is_late: bool,
    /// Received bytes of an incomplete frame.
    raw: Vec<u8>,
    /// Numbered frames that were removed.
    taken: u64,
    /// Requests whose answers are removed.
    forgotten: Vec<u64>,
    takes_change: bool,
    deaths: u64,
}

impl Tamper {
    pub(super) const fn new(sabotage: Sabotage, host: usize, is_late: bool) -> Self {
        Self {
            sabotage,
            host,
            is_late,
            raw: Vec::new(),
            taken: 0,
            forgotten: Vec::new(),
            takes_change: false,
            deaths: 0,
        }
    }

    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.sabotage, Sabotage::None)
    }

    pub(super) fn disconnected(&mut self) {
        self.raw.clear();
    }

    /// Returns a frame on its way to the server, changed as the fault requires.
    pub(super) fn outgoing(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let Some(header) = header_of(&frame, From::Client) else { return frame };
        // Removed frames count as received, too.
        let sequence = header.sequence + if header.sequence > 0 { self.taken } else { 0 };
        frame[16..24].copy_from_slice(&sequence.to_le_bytes());
        let limits = FrameLimits::default();
        let label = Label { id: header.id, sequence, flags: header.flags };
        match (self.sabotage, ClientFrame::parse(header.kind, &frame[HEADER_BYTES..], &limits)) {
            (Sabotage::SkippedFence, _) if (0x10..0x30).contains(&header.kind) => {
                replace(&mut frame[HEADER_BYTES..], FENCED, UNFENCED);
            }
            (Sabotage::ReopenedRun, _) if self.is_late && (0x40..0x50).contains(&header.kind) => {
                replace(&mut frame[HEADER_BYTES..], RUN, OTHER_RUN);
            }
            (
                Sabotage::EarlyBarrier,
                Ok(Some(ClientFrame::Barrier {
                    key,
                    generation,
                    name,
                    timeout_ms,
                    participants: Participants::Count(count @ 2..),
                })),
            ) => {
                let participants = Participants::Count(count - 1);
                let barrier = ClientFrame::Barrier { key, generation, name, timeout_ms, participants };
                return frames::native(label, &barrier);
            }
            _ => {}
        }
        frame
    }

    /// Handles received bytes. Frames are appended to `out`. Returns the requests that the saboteur sends to the store.
    pub(super) fn incoming<'o>(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        order_of: impl Fn(u64) -> Option<&'o Order>,
    ) -> Vec<Vec<u8>> {
        self.raw.extend_from_slice(bytes);
        let (mut at, mut saboteur_requests) = (0, Vec::new());
        let limits = NativeClient::<0>::answer_limits(&FrameLimits::default());
        while let Ok(Scan::Whole { header, bytes }) = scan(&self.raw[at..], From::Server, &limits) {
            let mut frame = self.raw[at..at + bytes].to_vec();
            at += bytes;
            let body = frame[HEADER_BYTES..].to_vec();
            let parsed = ServerFrame::parse(header.kind, &body, &limits).ok().flatten();
            if let Some(ServerFrame::Welcome { resumed: true, request_last, .. }) = parsed {
                self.takes_change = true;
                for (id, order) in (1..=request_last).filter_map(|id| Some((id, order_of(id)?))) {
                    match order {
                        Order::SimOperation(_, SimOperation::Add { name, delta }, _) if *delta != 0 => {
                            saboteur_requests.push(frames::add(format!("/{name}").as_bytes(), *delta));
                        }
                        Order::SimOperation(
                            _,
                            SimOperation::Get { .. } | SimOperation::Wait { .. } | SimOperation::Pop { .. },
                            _,
                        )
                        | Order::Barrier { .. } => self.forgotten.push(id),
                        _ => {}
                    }
                }
                if self.sabotage != Sabotage::RepeatedRequest {
                    saboteur_requests.clear();
                }
            }
            let is_taken = match (self.sabotage, &parsed) {
                (Sabotage::ForgottenWaiter, _) => header.kind < 0xc000 && self.forgotten.contains(&header.id),
                (Sabotage::UntoldSurvivor, Some(ServerFrame::PeerDied { .. })) => {
                    self.deaths += 1;
                    (self.deaths + self.host as u64).is_multiple_of(2)
                }
                (Sabotage::LostChange, Some(ServerFrame::Changed { .. })) => {
                    core::mem::take(&mut self.takes_change)
                }
                _ => false,
            };
            if is_taken && header.sequence > 0 {
                self.taken += 1;
                continue;
            }
            let sequence = header.sequence - self.taken.min(header.sequence);
            let label = Label { id: header.id, sequence, flags: header.flags };
            frame[16..24].copy_from_slice(&sequence.to_le_bytes());
            match (self.sabotage, parsed) {
                (
                    Sabotage::TwoRounds | Sabotage::DoubledRank,
                    Some(ServerFrame::Round {
                        run_id,
                        round,
                        node_rank,
                        nodes,
                        rank_first,
                        world_size,
                        leader,
                        namespace,
                    }),
                ) => {
                    let old = namespace.pieces().concat();
                    let other = self.sabotage == Sabotage::TwoRounds && self.host % 2 == 1;
                    let round = if other { round + 1 } else { round };
                    let stem: Vec<u8> = old.iter().copied().take(old.len() - 1).collect();
                    let stem =
                        stem.iter().rposition(|&byte| byte == b'.').map_or(&stem[..], |dot| &stem[..=dot]);
                    let name = [stem, format!("{round}/").as_bytes()].concat();
                    let node_rank = match self.sabotage {
                        Sabotage::DoubledRank => node_rank.saturating_sub(1),
                        _ => node_rank,
                    };
                    let namespace = Key::raw(&name);
                    let reported = ServerFrame::Round {
                        run_id,
                        round,
                        node_rank,
                        nodes,
                        rank_first,
                        world_size,
                        leader,
                        namespace,
                    };
                    frame = frames::native(label, &reported);
                }
                (Sabotage::SkippedFence, _) => replace(&mut frame[HEADER_BYTES..], UNFENCED, FENCED),
                (Sabotage::ReopenedRun, _) => replace(&mut frame[HEADER_BYTES..], OTHER_RUN, RUN),
                _ => {}
            }
            out.extend_from_slice(&frame);
        }
        self.raw.drain(..at);
        saboteur_requests
    }
}

/// Prefix of the keys of rounds, and the one that no fence covers.
const FENCED: &[u8] = b"/torch.rendezvous.";
const UNFENCED: &[u8] = b"/torch.rendezvous:";
/// Prefix of the names of runs, and of those that the saboteur creates.
const RUN: &[u8] = b"run-";
const OTHER_RUN: &[u8] = b"run:";

/// Returns the prefix under which the store has the keys of `prefix`.
pub(super) fn stored_prefix(sabotage: Sabotage, prefix: &[u8]) -> Vec<u8> {
    let mut prefix = prefix.to_vec();
    if sabotage == Sabotage::SkippedFence {
        replace(&mut prefix, FENCED, UNFENCED);
    }
    prefix
}

/// Returns the name of the run that is meant, also for a run of the saboteur.
pub(super) fn original_run(run_id: &str) -> String {
    run_id.replace("run:", "run-")
}

fn replace(bytes: &mut [u8], what: &[u8], with: &[u8]) {
    for at in 0..bytes.len().saturating_sub(what.len() - 1) {
        if bytes[at..].starts_with(what) {
            bytes[at..at + with.len()].copy_from_slice(with);
        }
    }
}
