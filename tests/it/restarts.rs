//! The agent's restarts, so many that what one of them leaves behind adds up.

#[path = "../../agent/tests/leaks/mod.rs"]
mod leaks;

#[test]
fn ten_thousand_restarts_leave_nothing_behind() {
    leaks::leave_nothing_behind(10_000);
}
