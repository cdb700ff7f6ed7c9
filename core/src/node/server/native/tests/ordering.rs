//! Requests that need the keys in order, beside others that add many keys.

use super::turns::{TURN, fill};
use super::*;

/// New keys of one request: more than it puts in order itself.
const MANY: usize = 4000;

/// A store of which the keys were listed once.
fn listed() -> (Rig, ConnId) {
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() });
    let conn = rig.open(0, "n");
    fill(&mut rig, "/l/", 3);
    let list = ClientFrame::ListKeys { prefix: key("/l/"), after: key(""), count_max: 2 };
    rig.ask(conn, 1, &list);
    rig.finish();
    assert_eq!(rig.lines(conn).len(), 1);
    (rig, conn)
}

fn add_keys(rig: &mut Rig, conn: ConnId, id: u64) {
    let names: Vec<String> = (0..MANY).map(|number| format!("/new/{id}/{number}")).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b"v"[..])).collect();
    rig.ask(conn, id, &ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) });
}

#[test]
fn those_who_add_many_keys_do_not_hold_up_those_who_need_the_keys_in_order() {
    let otherwise = List::new(&[]);
    let then = [Write::DeletePrefix { prefix: key("/l/") }];
    let compares = List::new(&[]);
    for frame in [
        ClientFrame::ListKeys { prefix: key("/l/"), after: key(""), count_max: 10 },
        ClientFrame::DeletePrefix { prefix: key("/l/") },
        ClientFrame::Txn { compares, then: List::new(&then), otherwise },
        ClientFrame::Batch {
            requests: List::new(&[Batched(ClientFrame::DeletePrefix { prefix: key("/l/") })]),
        },
    ] {
        let (mut rig, conn) = listed();
        let writers: Vec<ConnId> = (1..4).map(|index| rig.open(index, "writer")).collect();
        let (mut sent, mut done) = (0, 0);
        for writer in &writers {
            sent += 1;
            add_keys(&mut rig, *writer, sent);
        }
        rig.ask(conn, 2, &frame);
        // The writers never rest.
        while rig.lines(conn).is_empty() {
            for writer in &writers {
                if !rig.lines(*writer).is_empty() {
                    (sent, done) = (sent + 1, done + 1);
                    add_keys(&mut rig, *writer, sent);
                }
            }
            assert!(done < 50, "{frame:?} waits");
            if let Some(due) = rig.server.poll_timeout() {
                rig.now = rig.now.max(due);
            }
            rig.feed(Input::Tick);
        }
        assert!(rig.has_work(), "the writers have more to do");
    }
}

#[test]
fn a_batch_that_adds_many_keys_removes_no_prefix() {
    let (mut rig, conn) = listed();
    let names: Vec<String> = (0..10_000).map(|number| format!("/new/{number}")).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b"v"[..])).collect();
    let delete = Batched(ClientFrame::DeletePrefix { prefix: key("/l/") });
    let set = Batched(ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) });
    let batch = [set, delete];
    rig.ask(conn, 2, &ClientFrame::Batch { requests: List::new(&batch) });
    rig.finish_at_once();
    assert_eq!(rig.lines(conn), ["2 BatchDone 0x8010,TooMany"]);
    // Alone, it waits until they are in order.
    rig.ask(conn, 3, &ClientFrame::Batch { requests: List::new(&[delete]) });
    assert!(rig.lines(conn).is_empty());
    rig.finish_at_once();
    assert_eq!(rig.lines(conn), ["3 BatchDone 3"]);
}
