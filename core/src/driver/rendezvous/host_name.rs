//! The name of this host.

use crate::driver::cancel::CancelToken;
use crate::driver::resolve;
use alloc::string::String;

/// Returns the host's name as `gethostname` gives it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the name under which other hosts look for this one: the fully qualified name if the resolver knows it within
/// two seconds and before `token` is cancelled, otherwise that of [`host_name`]. As torchrun publishes it.
pub fn full_host_name(token: &CancelToken) -> String {
    let name = host_name();
    if name.contains('.') {
        return name;
    }
    let asked = name.clone();
    let full = resolve::within_limit(token, move || resolve::canonical_name(&asked));
    // A host that knows itself only as `localhost` is not found under that name elsewhere.
    full.filter(|full| is_full_name(full, &name)).unwrap_or(name)
}

fn is_full_name(full: &str, name: &str) -> bool {
    let labels = full.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
    labels.is_some_and(|domain| !domain.is_empty() && !domain.starts_with("localdomain"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_is_the_name_in_a_domain() {
        assert!(is_full_name("node-3.cluster.example", "node-3"));
        for other in ["node-3", "node-3.", "localhost", "node-33.example", "node-3.localdomain", "10.0.0.1"] {
            assert!(!is_full_name(other, "node-3"), "{other}");
        }
    }

    #[test]
    fn the_published_name_begins_with_the_name_of_the_host() {
        let (name, full) = (host_name(), full_host_name(&CancelToken::new()));
        assert!(full == name || is_full_name(&full, &name), "{full} of {name}");
    }
}
