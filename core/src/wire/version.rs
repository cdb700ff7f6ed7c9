//! Negotiation of the protocol version.

/// Returns the highest version that both ends support, given the range of each end; `None` if there is none.
pub const fn highest_in_common(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let best = if theirs.1 < ours.1 { theirs.1 } else { ours.1 };
    if theirs.0 > theirs.1 || best < ours.0 || best < theirs.0 { None } else { Some(best) }
}
