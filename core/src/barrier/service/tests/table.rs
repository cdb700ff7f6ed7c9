//! Snapshot of the result of every input in every situation.

use super::*;

type SubmitPath = fn(&mut World);
type Give = fn(&mut World) -> String;

/// Steps that lead to each phase, with and without `a` waiting.
const SITUATIONS: [(&str, SubmitPath); 9] = [
    ("nothing", |_| {}),
    ("open, a waits", |world| drop(world.arrive("a"))),
    ("open, a and b wait", |world| drop(world.arrive_all("a b"))),
    ("open, b waits", |world| drop(world.arrive("b"))),
    ("released", |world| drop(world.arrive_all("a b c"))),
    ("broken, a was there", |world| {
        world.arrive_all("a b");
        world.die("b");
    }),
    ("timed out, a was not there", |world| {
        world.arrive("b");
        world.pass(secs(60));
    }),
    ("cancelled, a was not there", |world| {
        world.arrive("b");
        world.cancel("b");
    }),
    ("begun again, a was not there the last time", |world| {
        world.arrive("b");
        world.pass(secs(60));
        world.arrive("b");
    }),
];

const INPUTS: [(&str, Give); 18] = [
    ("a arrives", |world| world.arrive("a")),
    ("a tries once", |world| world.attempt("a")),
    ("a arrives at 1", |world| world.arrive_at("a", 1)),
    ("a arrives at 2", |world| world.arrive_at("a", 2)),
    ("a arrives at 3", |world| world.arrive_at("a", 3)),
    ("c arrives", |world| world.arrive("c")),
    ("x arrives", |world| world.arrive("x")),
    ("a arrives with others", |world| world.arrive_with("a", list(&[b"a", b"b"]))),
    ("a arrives without a name", |world| {
        let request = Arrive { name: b"", ..world.request("a") };
        world.give(Input::Arrive(request))
    }),
    ("a names no participants", |world| world.arrive_with("a", count(0))),
    ("a lists itself twice", |world| world.arrive_with("a", list(&[b"a", b"a"]))),
    ("a goes back", |world| world.withdraw("a")),
    ("a leaves", |world| world.end("a", Why::Left)),
    ("a dies", |world| world.die("a")),
    ("c dies", |world| world.die("c")),
    ("x dies", |world| world.die("x")),
    ("x cancels", |world| world.cancel("x")),
    ("much time", |world| world.pass(secs(60))),
];

#[test]
fn every_input_in_every_situation_is_in_the_snapshot() {
    let mut table = String::new();
    for (kind, participants) in [("count", count(3)), ("list", list(ABC))] {
        for (situation, method) in SITUATIONS {
            for (input, give) in INPUTS {
                let mut world = World::new(participants);
                method(&mut world);
                let before = world.status();
                let reported = give(&mut world);
                table += &format!("{kind}: {situation} [{before}] + {input} -> [{}]", world.status());
                reported
                    .split("; ")
                    .filter(|line| !line.is_empty())
                    .for_each(|line| table += &format!("\n    {line}"));
                table += "\n";
            }
        }
    }
    assert_eq!(table, include_str!("table.snapshot"), "\n{table}");
}
