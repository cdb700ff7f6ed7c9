extern crate alloc;
use super::*;
use crate::store::op::Pairs;
use crate::wire::native::Terms;
use crate::wire::native::{LastCall, RankOrder};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const PARTS_ALL: [Part; 11] =
    [Outside, Joining, Seated, Standby, InRound, InLastRound, Between, Leaving, Lost, Replaced, Closed];
const EVENTS_ALL: [PartEvent; 16] = [
    PartEvent::Ask,
    PartEvent::Slot,
    PartEvent::Park,
    PartEvent::Form,
    PartEvent::Refuse,
    PartEvent::KeepRound,
    PartEvent::KeepLastRound,
    PartEvent::KeepSlot,
    PartEvent::Dismiss,
    PartEvent::EndRound,
    PartEvent::CloseRun,
    PartEvent::Exclude,
    PartEvent::Replace,
    PartEvent::AskToLeave,
    PartEvent::Go,
    PartEvent::EndSession,
];

#[test]
fn every_transition_is_in_the_snapshot_and_none_contradicts_another() {
    let mut table = String::new();
    for part in PARTS_ALL {
        for event in EVENTS_ALL {
            let to = part.on_event(event).map_or_else(|| String::from("-"), |to| format!("{to:?}"));
            table += &format!("{part:?} {event:?} -> {to}\n");
            let rows = PARTS.iter().filter(|(from, on, _)| *on == event && from.contains(&part));
            assert!(rows.count() <= 1, "{part:?} {event:?}");
        }
    }
    assert_eq!(table, include_str!("transitions.snapshot"), "\n{table}");
}

#[test]
fn the_graph_in_the_guide_is_that_of_the_table() {
    let mut graph = String::from("stateDiagram-v2\n");
    for from in PARTS_ALL {
        for to in PARTS_ALL {
            let between = EVENTS_ALL.iter().filter(|&&event| from.on_event(event) == Some(to));
            let names: Vec<String> = between.map(|event| format!("{event:?}")).collect();
            if !names.is_empty() {
                graph += &format!("    {from:?} --> {to:?}: {}\n", names.join(", "));
            }
        }
    }
    let block = format!("```mermaid\n{graph}```\n");
    let guide = include_str!("../../../../docs/rendezvous.md");
    assert!(guide.contains(&block), "docs/rendezvous.md does not hold this graph:\n{block}");
}

const RUN: Key<'static> = Key::raw(b"run");

fn round(round: u64) -> ServerFrame<'static> {
    ServerFrame::Round {
        run_id: RUN,
        round,
        node_rank: 1,
        nodes: 2,
        rank_first: 4,
        world_size: 8,
        leader: b"h0",
        namespace: Key::raw(b"torch.rendezvous.run.0/"),
    }
}

const SEAT: ServerFrame<'static> = ServerFrame::Placed { run_id: RUN, is_participant: true, ahead: 0 };
const PARK: ServerFrame<'static> = ServerFrame::Placed { run_id: RUN, is_participant: false, ahead: 2 };
const WAITING: ServerFrame<'static> = ServerFrame::NodesWaiting { run_id: RUN, nodes: 1 };
const DONE: ServerFrame<'static> = ServerFrame::Done { revision: 1 };

fn over(round: u64) -> ServerFrame<'static> {
    ServerFrame::RoundOver { run_id: RUN, round, why: Why::TooFewNodes }
}

fn error(code: FaultCode) -> ServerFrame<'static> {
    ServerFrame::Error { fault: Fault::new(code, 0, 0) }
}

fn joined() -> Participant {
    let mut node = Participant::new();
    node.join(1).expect("outside");
    assert!(
        matches!(node.answer(1, &round(0)), Ok(Some(Event::Formed(position))) if position.node_rank == 1)
    );
    node
}

#[test]
fn a_node_joins_is_notified_of_its_round_and_rejoins() {
    let mut node = Participant::new();
    assert_eq!(node.leave(9), Err(InvalidState(Outside)));
    node.join(1).expect("outside");
    assert_eq!(node.join(2), Err(InvalidState(Joining)));
    assert_eq!(node.push(1, &PARK), Some(Event::Standby { ahead: 2 }));
    assert_eq!(node.push(1, &SEAT), Some(Event::Seated));
    assert_eq!(node.push(1, &WAITING), None, "it is in no round");
    assert!(matches!(node.answer(1, &round(0)), Ok(Some(Event::Formed(_)))));
    assert_eq!((node.part(), node.round), (InRound, Some(0)));
    assert_eq!(node.push(1, &WAITING), Some(Event::NodesWaiting { nodes: 1 }));
    let died = ServerFrame::PeerDied { run_id: RUN, round: 0, node_rank: 0, node: b"a", why: Why::Heartbeat };
    assert!(matches!(node.push(1, &died), Some(Event::PeerDied { node: b"a", .. })));
    assert!(matches!(node.push(1, &over(0)), Some(Event::RoundOver { round: 0, .. })));
    node.join(3).expect("its round is over");
    assert_eq!(node.push(1, &WAITING), None, "that round is over");
    assert_eq!(node.push(1, &died), None);
    assert_eq!(node.answer(1, &round(0)), Ok(None));
    assert!(matches!(node.answer(3, &round(1)), Ok(Some(Event::Formed(_)))));
    assert_eq!(node.round, Some(1));
}

#[test]
fn a_refused_node_gets_the_reason() {
    for (code, node_event, part) in [
        (FaultCode::RunClosed, Event::Closed { by: b"" }, Closed),
        (FaultCode::NotNeeded, Event::NotNeeded, Closed),
        (FaultCode::TimedOut, Event::Refused(Fault::new(FaultCode::TimedOut, 0, 0)), Outside),
        (FaultCode::CoolingDown, Event::Refused(Fault::new(FaultCode::CoolingDown, 0, 0)), Outside),
    ] {
        let mut node = Participant::new();
        node.join(1).expect("outside");
        assert_eq!(node.answer(1, &error(code)), Ok(Some(node_event)));
        assert_eq!((node.part(), node.join(2)), (part, Ok(())));
    }
}

#[test]
fn a_closed_run_ends_with_its_round() {
    let mut node = joined();
    let closed = ServerFrame::RunClosed { run_id: RUN, by: b"b" };
    assert_eq!(node.push(1, &closed), Some(Event::Closed { by: b"b" }));
    assert_eq!(node.part(), InLastRound);
    assert!(node.push(1, &over(0)).is_some());
    assert_eq!(node.part(), Closed);
    // A further request gets the reason from the server.
    node.join(2).expect("in no round");
    assert!(matches!(node.answer(2, &error(FaultCode::RunClosed)), Ok(Some(Event::Closed { .. }))));
    assert_eq!(node.part(), Closed);
}

#[test]
fn a_leaving_node_gets_the_events_of_its_round_until_it_has_left() {
    let mut node = joined();
    node.leave(2).expect("in a round");
    assert!(node.push(1, &WAITING).is_some() && node.push(1, &over(0)).is_some());
    assert_eq!(node.push(1, &WAITING), None, "the round is over");
    assert_eq!(node.answer(2, &DONE), Ok(Some(Event::Left)));
    assert_eq!((node.part(), node.push(1, &over(0))), (Outside, None));

    // Also if it asked to rejoin before it left.
    let mut node = joined();
    node.join(2).expect("it rejoins");
    node.leave(3).expect("joining");
    assert!(node.push(1, &WAITING).is_some() && node.push(1, &over(0)).is_some());

    // Its join is still pending when it leaves, and may even succeed at the last moment.
    for last in [error(FaultCode::Cancelled), round(0)] {
        let mut node = Participant::new();
        node.join(1).expect("outside");
        node.leave(2).expect("joining");
        assert_eq!(node.answer(1, &last), Ok(None));
        assert_eq!(node.answer(2, &DONE), Ok(Some(Event::Left)));
    }
}

#[test]
fn a_replaced_node_stays_away_and_a_lost_one_may_rejoin() {
    let mut node = joined();
    let replaced = ServerFrame::Replaced { run_id: RUN, session: 7 };
    assert_eq!(node.push(1, &replaced), Some(Event::Replaced { session: 7 }));
    assert!(!node.session_ended());
    assert_eq!(node.join(2), Err(InvalidState(Replaced)));

    let mut node = joined();
    assert!(node.session_ended());
    assert_eq!(node.push(1, &WAITING), None, "its requests went with its session");
    assert_eq!(node.part(), Lost);
    node.join(1).expect("in a new session");
}

#[test]
fn a_withdrawn_leave_keeps_the_state_of_the_node() {
    // It knows that other nodes wait for it.
    let mut node = joined();
    node.leave(2).expect("in a round");
    assert_eq!(node.push(1, &WAITING), Some(Event::NodesWaiting { nodes: 1 }));
    node.withdraw(2);
    assert_eq!((node.part(), node.join(3)), (InRound, Ok(())));

    // The state changed while it was leaving.
    let mut node = Participant::new();
    node.join(1).expect("outside");
    node.leave(2).expect("joining");
    let seated = ServerFrame::Placed { run_id: RUN, is_participant: true, ahead: 0 };
    assert_eq!(node.push(1, &seated), Some(Event::Seated));
    node.withdraw(2);
    assert_eq!((node.part(), node.join(3)), (Seated, Err(InvalidState(Seated))));
}

/// The server still has the node in its former state: it never received the request, or refused it at once.
#[test]
fn a_failed_rejoin_keeps_the_state_of_the_node() {
    let closed = ServerFrame::RunClosed { run_id: RUN, by: b"b" };
    let left_behind = ServerFrame::Excluded { run_id: RUN, round: 1 };
    let died = ServerFrame::PeerDied { run_id: RUN, round: 0, node_rank: 0, node: b"a", why: Why::Heartbeat };
    type SubmitPath = fn(&mut Participant);
    let refused = |node: &mut Participant, code| {
        let node_event = node.answer(2, &error(code));
        assert!(matches!(node_event, Ok(Some(Event::Refused(_)))), "{node_event:?}");
    };
    let routes: [SubmitPath; 5] = [
        |node| node.withdraw(2),
        |node| {
            node.leave(3).expect("joining");
            node.withdraw(2);
            node.withdraw(3);
        },
        |node| {
            node.leave(3).expect("joining");
            node.answer(2, &error(FaultCode::TooMany)).expect("an answer");
            node.withdraw(3);
        },
        |node| assert!(matches!(node.answer(2, &error(FaultCode::BoundsConflict)), Ok(Some(_)))),
        |node| assert!(matches!(node.answer(2, &error(FaultCode::AlreadyJoined)), Ok(Some(_)))),
    ];
    for method in routes {
        for (before, meanwhile, part) in [
            (&[][..], &[][..], InRound),
            (&[], &[over(0)], Between),
            (&[], &[over(0), left_behind], Outside),
            (&[], &[closed, over(0)], Closed),
            (&[], &[ServerFrame::Replaced { run_id: RUN, session: 7 }], Replaced),
            (&[closed], &[], InLastRound),
            (&[over(0)], &[], Between),
        ] {
            let mut node = joined();
            assert!(before.iter().all(|frame| node.push(1, frame).is_some()));
            node.join(2).expect("it rejoins");
            assert!(node.is_local(1));
            let hears = matches!((before, part), (_, InRound | InLastRound) | ([], _));
            assert_eq!(node.push(1, &died).is_some(), hears, "{before:?}: it is in that round still");
            assert_eq!(node.push(1, &WAITING).is_some(), hears);
            assert!(meanwhile.iter().all(|frame| node.push(1, frame).is_some()), "{meanwhile:?}");
            assert_eq!(node.part(), Joining);
            method(&mut node);
            assert_eq!((node.part(), node.is_local(2)), (part, false), "{before:?} {meanwhile:?}");
            let hears = matches!(part, InRound | InLastRound);
            assert_eq!(node.push(1, &died).is_some(), hears);
            assert_eq!(node.push(1, &over(0)).is_some(), hears);
            assert_eq!(node.push(2, &SEAT), None);
        }
    }
    let mut node = joined();
    node.join(2).expect("it rejoins");
    refused(&mut node, FaultCode::InvalidArgument);
    node.leave(3).expect("in a round");
    assert_eq!(node.answer(3, &DONE), Ok(Some(Event::Left)));

    // The server had accepted the request, or knows of no round that the node is in.
    for code in [FaultCode::TimedOut, FaultCode::Cancelled] {
        let mut node = joined();
        node.join(2).expect("it rejoins");
        refused(&mut node, code);
        assert_eq!((node.part(), node.push(1, &died)), (Outside, None));
    }
    let mut node = joined();
    node.join(2).expect("it rejoins");
    assert_eq!(node.push(2, &SEAT), Some(Event::Seated));
    assert_eq!((node.push(1, &over(0)), node.push(1, &died), node.is_local(1)), (None, None, false));
    refused(&mut node, FaultCode::TooMany);
    assert_eq!(node.part(), Outside);
}

#[test]
fn an_answer_of_another_kind_is_an_error() {
    let mut node = Participant::new();
    node.join(1).expect("outside");
    assert_eq!(node.answer(1, &DONE), Err(NoAnswerToThat));
    assert_eq!(node.answer(5, &DONE), Ok(None), "not one of its own");
    assert_eq!(node.push(1, &DONE), None);
}

#[test]
fn a_join_is_a_frame() {
    let terms = Terms {
        nodes_min: 1,
        nodes_max: 2,
        continue_min: 0,
        last_call: LastCall::Fixed,
        last_call_ms: 30_000,
        fast_quorum: true,
        rank_order: RankOrder::Sticky,
        rank_label: b"",
        cool_down_failures: 0,
        cool_down_window_ms: 0,
        cool_down_pause_ms: 0,
        cool_down_pause_ms_max: 0,
    };
    let labels = Pairs::scoped(b"", &[]);
    let entry = Entry {
        run_id: b"run",
        node: b"a",
        address: b"h",
        local_world_size: 4,
        node_rank: -1,
        join_timeout_ms: 600,
        terms,
        labels,
        round_min: 3,
    };
    assert!(matches!(entry.frame(Role::Member), ClientFrame::Join { entry: Entry { node: b"a", .. } }));
    assert!(matches!(
        entry.frame(Role::Spare),
        ClientFrame::Standby { entry: Entry { local_world_size: 4, .. } }
    ));
}
