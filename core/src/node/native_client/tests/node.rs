//! A node's part in a run.

use super::*;
use crate::rendezvous::participant::InvalidState;

#[test]
fn a_node_joins_stands_by_without_a_deadline_and_leaves() {
    let mut client = live(0);
    let id = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    let again = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND);
    assert_eq!(again, Err(BeginError::InvalidState(InvalidState(Part::Joining))));
    writes(&mut client, 0);
    let placed = |is_participant, ahead| ServerFrame::Placed { run_id: RUN, is_participant, ahead };
    let reported = give(&mut client, 1, &bytes_of(id, 1, &placed(false, 3)));
    assert_eq!(reported, "Node(None, Standby { ahead: 3 })");
    assert_eq!(client.next_failed(NOW(60_000)), None, "no time counts");
    let reported = give(&mut client, 60_000, &bytes_of(id, 2, &placed(true, 0)));
    assert_eq!(reported, "Node(None, Seated)");
    assert_eq!(client.poll_timeout().map(|at| at > NOW(60_000)), Some(false), "a heartbeat is due");
    assert_eq!(client.next_failed(NOW(60_999)), None);
    let round = ServerFrame::Round {
        run_id: RUN,
        round: 0,
        node_rank: 0,
        nodes: 1,
        rank_first: 0,
        world_size: 2,
        leader: b"h",
        namespace: RUN,
    };
    let reported = give(&mut client, 60_001, &bytes_of(id, 3, &round));
    assert!(reported.starts_with("Node(Some(1), Formed(Assignment { round: 0"), "{reported}");
    let waiting = ServerFrame::NodesWaiting { run_id: RUN, nodes: 1 };
    let reported = give(&mut client, 60_002, &bytes_of(id, 4, &waiting));
    assert_eq!(reported, "Node(None, NodesWaiting { nodes: 1 })");
    let leave = client.begin_leave(NOW(60_003), (0x42, 8), SECOND).expect("in a round");
    writes(&mut client, 60_003);
    assert_eq!(give(&mut client, 60_004, &bytes_of(leave, 5, &DONE)), "Node(Some(2), Left)");
    let bye = client.begin_bye(NOW(60_005), SECOND).expect("live");
    writes(&mut client, 60_005);
    assert_eq!(give(&mut client, 60_006, &bytes_of(bye, 6, &DONE)), "over");
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Over(Ending::Left)]);
}

#[test]
fn a_join_that_was_given_up_is_cancelled_and_its_late_round_is_told() {
    let mut client = live(0);
    let id = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    writes(&mut client, 0);
    client.cancel(NOW(1), id).expect("under way");
    assert!(matches!(writes(&mut client, 1)[..], [ToWrite::Frame(_, ClientFrame::Cancel { request: 1 })]));
    let fault = Fault::new(FaultCode::Cancelled, 0, 0);
    let reported = give(&mut client, 2, &bytes_of(id, 1, &ServerFrame::Error { fault }));
    assert!(reported.starts_with("Node(None, Refused"), "{reported}");
    assert_eq!(client.participant().part(), Part::Outside);
}

fn round(round: u64) -> ServerFrame<'static> {
    ServerFrame::Round {
        run_id: RUN,
        round,
        node_rank: 0,
        nodes: 2,
        rank_first: 0,
        world_size: 2,
        leader: b"h",
        namespace: RUN,
    }
}

/// Returns a client whose join was given up after the server had formed its round, with `others` requests under way.
fn in_an_unwanted_round(grace_ms: u32, others: u64) -> Client {
    let mut client = live(grace_ms);
    let id = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    for _ in 0..others {
        begin(&mut client, 0, Operation::Get);
    }
    writes(&mut client, 0);
    client.cancel(NOW(1), id).expect("under way");
    let reported = give(&mut client, 2, &bytes_of(id, 1, &round(0)));
    assert!(reported.starts_with("Node(None, Formed"), "{reported}");
    client
}

#[test]
fn a_round_that_nobody_waits_for_is_left_at_once() {
    let mut client = in_an_unwanted_round(0, 0);
    let written = writes(&mut client, 2);
    let [ToWrite::Leave(label)] = written[..] else { panic!("{written:?}") };
    assert_eq!(client.participant().part(), Part::Leaving);
    assert_eq!(give(&mut client, 3, &bytes_of(label.id, 2, &DONE)), "Node(None, Left)");
    assert_eq!((client.participant().part(), writes(&mut client, 3).len()), (Part::Outside, 0));

    // A round of a join that was not given up is kept.
    let mut client = live(0);
    let id = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    writes(&mut client, 0);
    give(&mut client, 1, &bytes_of(id, 1, &round(0)));
    assert_eq!((writes(&mut client, 1), client.participant().part()), (Bytes::new(), Part::InRound));
}

#[test]
fn a_round_that_nobody_waits_for_is_left_over_a_broken_connection_too() {
    let mut client = in_an_unwanted_round(2000, 0);
    let written = writes(&mut client, 2);
    let [ToWrite::Leave(first)] = written[..] else { panic!("{written:?}") };
    client.handle(NOW(3), Input::Ended(Cause::Closed));
    outputs(&mut client);
    assert_eq!(client.next_failed(NOW(9000)), None, "no caller waits for it, and it has no deadline");
    connect(&mut client, 4);
    writes(&mut client, 4);
    // The server had the join, and a cancel that arrived too late.
    assert_eq!(give(&mut client, 5, &bytes_of(0, 0, &welcome(true, first.id - 1, 2000))), "Open");
    let written = writes(&mut client, 5);
    let [ToWrite::Leave(again)] = written[..] else { panic!("{written:?}") };
    assert_eq!((again.id, again.flags), (first.id, FLAG_RESENT));
    assert_eq!(give(&mut client, 6, &bytes_of(again.id, 2, &DONE)), "Node(None, Left)");
}

#[test]
fn a_round_that_nobody_waits_for_is_left_when_there_is_room_unless_it_is_over_or_wanted_again() {
    // The table is full of other requests, so the Leave has to wait.
    let mut client = in_an_unwanted_round(0, 3);
    begin(&mut client, 2, Operation::Get);
    assert_eq!(ids(&writes(&mut client, 2)), [5], "there is no room for more");
    give(&mut client, 3, &bytes_of(2, 2, &DONE));
    assert!(matches!(writes(&mut client, 3)[..], [ToWrite::Leave(_)]));

    let mut client = in_an_unwanted_round(0, 0);
    let over = ServerFrame::Excluded { run_id: RUN, round: 1 };
    give(&mut client, 3, &bytes_of(1, 2, &over));
    let leaves = |write: &ToWrite| matches!(write, ToWrite::Leave(_));
    assert!(!writes(&mut client, 3).iter().any(leaves), "its seat has gone with it");
    assert_eq!(client.participant().part(), Part::Outside);

    // A node that joins again gets a new slot.
    let mut client = in_an_unwanted_round(0, 0);
    let join = begin_join(&mut client, 3);
    let written = writes(&mut client, 3);
    let [ToWrite::Leave(label)] = written[..] else { panic!("{written:?}") };
    assert_eq!(give(&mut client, 4, &bytes_of(label.id, 2, &DONE)), "Node(None, Left)");
    assert_eq!(ids(&writes(&mut client, 4)), [join]);
}

fn begin_join(client: &mut Client, millis: u64) -> u64 {
    client.begin_join(NOW(millis), Operation::Join, (0x40, 8), SECOND).expect("its turn")
}

/// Returns a client whose join was given up after it was written, and so was its cancel.
fn with_a_join_given_up(grace_ms: u32) -> Client {
    let mut client = live(grace_ms);
    let id = begin_join(&mut client, 0);
    writes(&mut client, 0);
    client.cancel(NOW(1), id).expect("under way");
    assert!(matches!(writes(&mut client, 1)[..], [ToWrite::Frame(_, ClientFrame::Cancel { request: 1 })]));
    client
}

fn refused(code: FaultCode) -> ServerFrame<'static> {
    ServerFrame::Error { fault: Fault::new(code, 0, 0) }
}

#[test]
fn who_joins_again_before_his_last_wish_is_answered_joins_behind_it() {
    let mut client = with_a_join_given_up(0);
    let again = begin_join(&mut client, 1);
    let third = client.begin_join(NOW(1), Operation::Join, (0x40, 8), SECOND);
    assert_eq!(third, Err(BeginError::InvalidState(InvalidState(Part::Joining))));
    let get = begin(&mut client, 1, Operation::Get);
    assert_eq!(ids(&writes(&mut client, 1)), [get], "it holds nothing else up");
    // The caller does not get the position of the first join.
    let parked = ServerFrame::Placed { run_id: RUN, is_participant: false, ahead: 3 };
    assert_eq!(give(&mut client, 2, &bytes_of(1, 1, &parked)), "Nothing");
    let reported = give(&mut client, 2, &bytes_of(1, 2, &refused(FaultCode::Cancelled)));
    assert!(reported.starts_with("Node(None, Refused"), "{reported}");
    let written = writes(&mut client, 2);
    // An acknowledgement precedes it.
    let [_, ToWrite::Request(written, label)] = written[..] else { panic!("{written:?}") };
    assert!(written == again && label.id > get, "{label:?}");
    let reported = give(&mut client, 3, &bytes_of(label.id, 3, &parked));
    assert_eq!(reported, "Node(None, Standby { ahead: 3 })");
    let reported = give(&mut client, 3, &bytes_of(label.id, 4, &round(0)));
    assert!(reported.starts_with(&alloc::format!("Node(Some({again}), Formed")), "{reported}");
    let leaves = writes(&mut client, 3).iter().any(|write| matches!(write, ToWrite::Leave(_)));
    assert_eq!((leaves, client.participant().part()), (false, Part::InRound));
}

#[test]
fn a_round_that_comes_for_a_wish_given_up_is_left_before_the_next_one_is_asked_for() {
    let mut client = with_a_join_given_up(0);
    let again = begin_join(&mut client, 1);
    assert!(give(&mut client, 2, &bytes_of(1, 1, &round(0))).starts_with("Node(None, Formed"));
    let written = writes(&mut client, 2);
    let [ToWrite::Leave(label)] = written[..] else { panic!("{written:?}") };
    give(&mut client, 3, &bytes_of(label.id, 2, &DONE));
    assert_eq!(ids(&writes(&mut client, 3)), [again]);

    // The same holds while the node leaves.
    let mut client = in_an_unwanted_round(0, 0);
    let written = writes(&mut client, 2);
    let [ToWrite::Leave(label)] = written[..] else { panic!("{written:?}") };
    let again = begin_join(&mut client, 3);
    assert_eq!(writes(&mut client, 3), []);
    give(&mut client, 4, &bytes_of(label.id, 2, &DONE));
    assert_eq!(ids(&writes(&mut client, 4)), [again]);
}

#[test]
fn a_wish_that_is_held_ends_by_its_deadline_or_when_it_is_given_up_or_has_become_moot() {
    let ended = |client: &mut Client, millis| {
        let failed = client.next_failed(NOW(millis));
        assert_eq!(client.next_failed(NOW(millis)), None);
        failed.map(|failed| (failed.id, failed.failure.kind, failed.failure.effect))
    };
    // The server does not answer, or is not connected.
    for lost in [false, true] {
        let mut client = with_a_join_given_up(60_000);
        let again = begin_join(&mut client, 100);
        if lost {
            client.handle(NOW(101), Input::Ended(Cause::Closed));
        }
        assert!(client.poll_timeout().is_some_and(|at| at <= NOW(1100)));
        assert_eq!(ended(&mut client, 1099), None);
        assert_eq!(ended(&mut client, 1100), Some((again, ErrorKind::TimedOut, Effect::None)));
        let third = begin_join(&mut client, 1101);
        let failed = client.cancel(NOW(1102), third).expect("held");
        assert_eq!((failed.id, failed.failure.kind), (third, ErrorKind::Cancelled));
        assert_eq!(client.cancel(NOW(1102), third), None);
    }
    // A request to leave cancelled it.
    let mut client = with_a_join_given_up(0);
    let again = begin_join(&mut client, 1);
    client.begin_leave(NOW(2), (0x42, 8), SECOND).expect("joining");
    assert_eq!(ended(&mut client, 2), Some((again, ErrorKind::Cancelled, Effect::None)));
    // Another session has the name.
    let mut client = with_a_join_given_up(0);
    let again = begin_join(&mut client, 1);
    give(&mut client, 2, &bytes_of(1, 1, &ServerFrame::Replaced { run_id: RUN, session: 6 }));
    assert_eq!(ended(&mut client, 2), Some((again, ErrorKind::Replaced, Effect::None)));
    // The session has ended.
    let mut client = with_a_join_given_up(0);
    let again = begin_join(&mut client, 1);
    client.handle(NOW(2), Input::Ended(Cause::Closed));
    assert_eq!(ended(&mut client, 2), Some((again, ErrorKind::ServerGone, Effect::None)));
    // The run was closed: the server answers so again.
    let mut client = with_a_join_given_up(0);
    let again = begin_join(&mut client, 1);
    give(&mut client, 2, &bytes_of(1, 1, &refused(FaultCode::RunClosed)));
    let written = writes(&mut client, 2);
    let [ToWrite::Request(written, label)] = written[..] else { panic!("{written:?}") };
    assert_eq!(written, again);
    let reported = give(&mut client, 3, &bytes_of(label.id, 2, &refused(FaultCode::RunClosed)));
    assert!(reported.starts_with(&alloc::format!("Node(Some({again}), Closed")), "{reported}");
}

#[test]
fn an_unwanted_seat_is_left_although_a_later_wish_came_to_nothing() {
    // The round arrives, then the connection ends.
    for leaves in [false, true] {
        let mut client = in_an_unwanted_round(2000, 0);
        client.handle(NOW(2), Input::Ended(Cause::Closed));
        outputs(&mut client);
        let intent = if leaves {
            client.begin_leave(NOW(3), (0x42, 8), SECOND).expect("in a round")
        } else {
            begin_join(&mut client, 3)
        };
        client.cancel(NOW(4), intent).expect("given up");
        connect(&mut client, 5);
        writes(&mut client, 5);
        give(&mut client, 6, &bytes_of(0, 0, &welcome(true, 1, 2000)));
        let written = writes(&mut client, 6);
        assert!(matches!(written[..], [ToWrite::Leave(_)]), "{written:?}");
    }
}

/// The join that the server has still belongs to the node, and a second one would be refused.
#[test]
fn a_leave_that_was_given_up_before_it_left_changes_nothing() {
    let mut client = new(2000);
    let join = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    let leave = client.begin_leave(NOW(0), (0x42, 8), SECOND).expect("joining");
    client.cancel(NOW(1), leave).expect("under way");
    let again = client.begin_join(NOW(1), Operation::Join, (0x40, 8), SECOND);
    assert_eq!(again, Err(BeginError::InvalidState(InvalidState(Part::Joining))));
    connect(&mut client, 2);
    writes(&mut client, 2);
    give(&mut client, 3, &bytes_of(0, 0, &welcome(false, 0, 2000)));
    assert_eq!(ids(&writes(&mut client, 3)), [join]);
}

#[test]
fn a_wish_that_was_given_up_and_never_arrived_leaves_the_node_where_it_was() {
    let resumed = |client: &mut Client, request_last| {
        client.handle(NOW(2), Input::Resolved(&[ADDRESS]));
        client.handle(NOW(2), Input::Connected);
        outputs(client);
        writes(client, 2);
        assert_eq!(give(client, 3, &bytes_of(0, 0, &welcome(true, request_last, 2000))), "Open");
        assert!(ids(&writes(client, 3)).is_empty(), "it is not sent again");
    };
    let mut client = live(2000);
    let join = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    writes(&mut client, 0);
    client.handle(NOW(1), Input::Ended(Cause::Closed));
    client.cancel(NOW(1), join).expect("under way");
    resumed(&mut client, 0);
    assert_eq!(client.participant().part(), Part::Outside);

    let mut client = live(2000);
    client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    let leave = client.begin_leave(NOW(0), (0x42, 8), SECOND).expect("joining");
    writes(&mut client, 0);
    client.handle(NOW(1), Input::Ended(Cause::Closed));
    client.cancel(NOW(1), leave).expect("under way");
    resumed(&mut client, 1);
    assert_eq!(client.participant().part(), Part::Joining);
}

/// Events of the round right after WELCOME belong to the join that brought the node into it.
#[test]
fn a_wish_to_come_back_that_never_arrived_leaves_the_node_in_its_round() {
    let mut client = live(2000);
    let join = client.begin_join(NOW(0), Operation::Join, (0x40, 8), SECOND).expect("outside");
    writes(&mut client, 0);
    give(&mut client, 1, &bytes_of(join, 1, &round(0)));
    let again = client.begin_join(NOW(2), Operation::Join, (0x40, 8), SECOND).expect("in a round");
    writes(&mut client, 2);
    client.handle(NOW(3), Input::Ended(Cause::Closed));
    client.cancel(NOW(3), again).expect("under way");
    client.handle(NOW(4), Input::Resolved(&[ADDRESS]));
    client.handle(NOW(4), Input::Connected);
    outputs(&mut client);
    writes(&mut client, 4);
    give(&mut client, 5, &bytes_of(0, 0, &welcome(true, 1, 2000)));
    let died = ServerFrame::PeerDied { run_id: RUN, round: 0, node_rank: 1, node: b"b", why: Why::Heartbeat };
    let reported = give(&mut client, 5, &bytes_of(join, 2, &died));
    assert!(reported.starts_with("Node(None, PeerDied"), "{reported}");
    assert!(ids(&writes(&mut client, 5)).is_empty(), "it is not sent again");
    assert_eq!(client.participant().part(), Part::InRound);
    client.begin_leave(NOW(6), (0x42, 8), SECOND).expect("in a round");
}

#[test]
fn what_a_node_asked_with_a_greeting_that_was_lost_is_as_if_it_had_not() {
    // Number of its two requests that it gave up before.
    for given_up in 0..3 {
        let mut client = new(0);
        connect(&mut client, 0);
        let join = begin_join(&mut client, 0);
        let leave = client.begin_leave(NOW(0), (0x42, 8), SECOND).expect("it joins");
        assert_eq!(ids(&writes(&mut client, 0)), [0, join, leave]);
        for &id in &[leave, join][..given_up] {
            client.cancel(NOW(0), id).expect("under way");
        }
        client.handle(NOW(1), Input::Ended(Cause::Closed));
        assert_eq!(client.participant().part(), Part::Outside, "{given_up} given up");
        let failed = core::iter::from_fn(|| client.next_failed(NOW(1)));
        assert_eq!(failed.count(), 2 - given_up);
        begin_join(&mut client, 2);
    }
}
