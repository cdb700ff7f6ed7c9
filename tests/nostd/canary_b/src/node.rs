//! The server machine, with all that it owns.

use core::net::SocketAddr;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::{Input, Server, ServerInstance};
use rendezvous_core::time::Instant;

pub(crate) fn sings() -> bool {
    let mut server = Server::new(ServerLimits::default(), ServerInstance::from_seed(1));
    let conn = ConnId { index: 0, generation: 0 };
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let greeting_and_ping = [0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4];
    let inputs =
        [Input::Accepted { conn, peer }, Input::Received { conn, bytes: &greeting_and_ping }, Input::Tick];
    let taken = inputs.into_iter().all(|input| server.handle(Instant::ORIGIN, input).is_ok());
    taken
        && server.poll_output().is_some()
        && server.unsent(conn) == [1, 2, 3, 4]
        && server.poll_timeout().is_some()
}
