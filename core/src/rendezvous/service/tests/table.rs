//! The effect of every input in every situation, as a snapshot.

use super::*;

type SubmitPath = fn(&mut World);
type Give = fn(&mut World) -> String;

/// Paths to each phase of a run in which the node `a` is in each possible state.
const SITUATIONS: [(&str, SubmitPath); 12] = [
    ("no node", |_| {}),
    ("gathering", |world| drop(world.join("a"))),
    ("gathering, a stands by", |world| drop(world.standby("a"))),
    ("last call", |world| drop(world.join_all("a b"))),
    ("complete, full", |world| drop(world.join_all("a b c"))),
    ("complete, full, a stands by", |world| drop(world.join_all("b c d a"))),
    ("complete, room", |world| {
        world.join_all("a b");
        world.pass(secs(30));
    }),
    ("complete, room, a waits", |world| {
        world.join_all("b c");
        world.pass(secs(30));
        world.join("a");
    }),
    ("complete, room, a came back", |world| {
        world.join_all("a b c");
        world.join("a");
    }),
    ("gathering again, a is due", |world| {
        world.join_all("a b c");
        world.die("c");
        world.join("b");
    }),
    ("draining", |world| {
        world.join_all("a b c");
        world.close("a");
    }),
    ("closed", |world| drop(world.close("a"))),
];

const INPUTS: [(&str, Give); 9] = [
    ("join a", |world| world.join("a")),
    ("join n", |world| world.join("n")),
    ("standby a", |world| world.standby("a")),
    ("standby n", |world| world.standby("n")),
    ("leave a", |world| world.leave("a")),
    ("ended a", |world| world.die("a")),
    ("close", |world| world.close("x")),
    ("the job fails", |world| world.fail("x", "code 1")),
    ("much time", |world| world.pass(secs(600))),
];

#[test]
fn every_input_in_every_situation_is_in_the_snapshot() {
    let mut table = String::new();
    for (situation, method) in SITUATIONS {
        for (input, give) in INPUTS {
            let mut world = World::new(settings(2, 3));
            method(&mut world);
            let before = world.status();
            let reported = give(&mut world);
            table += &format!("{situation} [{before}] + {input} -> [{}]", world.status());
            reported
                .split("; ")
                .filter(|line| !line.is_empty())
                .for_each(|line| table += &format!("\n    {line}"));
            table += "\n";
        }
    }
    assert_eq!(table, include_str!("table.snapshot"), "\n{table}");
}
