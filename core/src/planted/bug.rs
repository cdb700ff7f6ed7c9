//! Which bugs there are. Each stands in the code that ships, where its name is.

/// One bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `node::server`: a round that ends raises no fence.
    SkippedFence,
    /// `store::engine::fences`: the last round that is over has no fence, only those before it.
    ShortFence,
    /// `node::server`: when a session is resumed, what waits there is dropped.
    ForgottenWaiter,
    /// `session::table`: when a session is resumed, its last request is taken for one that never came, and carried out
    /// again.
    RepeatedRequest,
    /// `session::table`: what is said to a session that has no connection is not kept for it.
    LostAnswer,
    /// `rendezvous::service`: a round is formed twice under one number.
    ReusedRound,
    /// `rendezvous::service`: one survivor is not told who died.
    UntoldSurvivor,
    /// `rendezvous::service`: a closed run whose last round ends takes nodes in again.
    ReopenedRun,
    /// `barrier::service`: the last participant but one releases all.
    EarlyBarrier,
    /// `node::server`: leases do not end with their session.
    UndyingLease,
    /// `node::native_client`: a round that nobody waits for is not left.
    KeptSlot,
    /// `agent::supervisor`: a change of membership spends the budget.
    PaidNewcomer,
    /// `agent::supervisor`: who is asked to stop while it meets goes on.
    UnheardStop,
    /// `agent::supervisor`: that not all have come to the exit barrier is taken for that all have.
    BlindExitBarrier,
    /// `agent::supervisor`: who leaves the exit barrier before it was counted there says nothing.
    SilentLeave,
    /// `agent::supervisor`: workers are started with the ranks that they had in the round before.
    FormerRanks,
    /// `agent::supervisor`: a peer's death excuses nothing.
    UnforgivenFailure,
    /// `agent::supervisor`: workers that do not care to be told to end are not killed.
    SparedWorkers,
    /// `agent::supervisor`: who was told to end has failed.
    BlamedVictim,
}
