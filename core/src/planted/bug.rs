//! List of the bugs. The shipped code checks for each where the bug belongs.

/// Bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `node::server`: a round that ends raises no fence.
    SkippedFence,
    /// `store::engine::fences`: the last ended round has no fence, only those before it.
    ShortFence,
    /// `node::server`: when a session is resumed, its pending waits are dropped.
    ForgottenWaiter,
    /// `session::table`: when a session is resumed, its last request is taken for a new one, and applied again.
    RepeatedRequest,
    /// `session::table`: answers to a session without a connection are not kept for it.
    LostAnswer,
    /// `rendezvous::service`: a round is formed twice under one number.
    ReusedRound,
    /// `rendezvous::service`: one survivor is not notified of a death.
    UntoldSurvivor,
    /// `rendezvous::service`: a closed run accepts nodes again after its last round has ended.
    ReopenedRun,
    /// `barrier::service`: the last participant but one releases the barrier.
    EarlyBarrier,
    /// `node::server`: leases do not end with their session.
    UndyingLease,
    /// `node::native_client`: a round that no caller waits for is not left.
    KeptSlot,
    /// `agent::supervisor`: a membership change uses up a restart.
    PaidNewcomer,
    /// `agent::supervisor`: an agent that is stopped during a rendezvous continues.
    UnheardStop,
    /// `agent::supervisor`: a failed exit barrier is taken for a released one.
    BlindExitBarrier,
    /// `agent::supervisor`: an agent that leaves the exit barrier before its arrival was counted does not announce
    /// it.
    SilentLeave,
    /// `agent::supervisor`: workers are started with the ranks of the previous round.
    FormerRanks,
    /// `agent::supervisor`: a failure that a peer's death caused counts as a failure of its own.
    UnforgivenFailure,
    /// `agent::supervisor`: workers that ignore the stop signal are not killed.
    SparedWorkers,
    /// `agent::supervisor`: a worker that was stopped counts as failed.
    BlamedVictim,
}
