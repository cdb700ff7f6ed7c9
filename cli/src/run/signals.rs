//! Signals that come to the agent.

use super::screen::Screen;
use rendezvous_agent::driver::agent::AgentControl;
use rendezvous_agent::failure::signal_name;
use signal_hook::consts::{SIGKILL, SIGSTOP, SIGUSR1, SIGUSR2};
use std::io;
use std::sync::mpsc::{Sender, channel};

/// Signals that are taken from now on, for an agent that is still to come.
pub(super) struct Signals(Sender<AgentControl>);

impl Signals {
    /// Takes those that `names` lists, separated by commas, to stop the agent, and the two for users to pass on.
    pub(super) fn watch(names: &str, screen: &Screen) -> io::Result<Self> {
        let mut stops = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match numbered(name) {
                Some(signal) => stops.push(signal),
                None => screen.note(&format!("--signals-to-handle: {name} is no signal that can be handled")),
            }
        }
        let mut taken = stops.clone();
        taken.extend([SIGUSR1, SIGUSR2]);
        let mut signals = signal_hook::iterator::Signals::new(&taken)?;
        let (direct, directed) = channel::<AgentControl>();
        std::thread::Builder::new().name("rdzv-signals".into()).spawn(move || {
            // What comes before there is an agent waits for it.
            let Ok(control) = directed.recv() else { return };
            for signal in signals.forever() {
                if stops.contains(&signal) {
                    control.stop_by_signal(signal);
                } else {
                    control.pass(signal);
                }
            }
        })?;
        Ok(Self(direct))
    }

    pub(super) fn direct_to(self, control: AgentControl) {
        // The thread waits for it.
        self.0.send(control).ok();
    }
}

/// The signal of this name, if a program may handle it.
fn numbered(name: &str) -> Option<i32> {
    let is_forbidden = |signal: &i32| {
        matches!(*signal, SIGKILL | SIGSTOP) || signal_hook::consts::FORBIDDEN.contains(signal)
    };
    (1..=31).find(|&signal| signal_name(signal) == Some(name)).filter(|signal| !is_forbidden(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_signals() {
        assert_eq!(numbered("SIGTERM"), Some(15));
        assert_eq!(numbered("SIGKILL"), None);
        assert_eq!(numbered("TERM"), None);
    }
}
