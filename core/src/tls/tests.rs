//! Tests of TLS: of the stage, of a server with it, and over loopback sockets.

mod certificates;
mod driver;
mod pair;
mod server;
mod stage;
