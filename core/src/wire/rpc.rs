//! What workers of an RPC group tell each other. The grammar and its meaning are in `docs/protocol/rpc.md`.

pub mod card;
