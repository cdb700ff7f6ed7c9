//! An agent that restarts its workers many times. The workspace's tests do the same with ten thousand restarts.

mod leaks;

#[test]
fn five_hundred_restarts_leave_nothing_behind() {
    leaks::leave_nothing_behind(500);
}
