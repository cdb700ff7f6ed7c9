//! A node joins a run: session, participant and connection, composed.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use rendezvous_core::error::{ErrorKind, Operation};
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::node::native_client::{Input, NativeClient, NativeOptions, Output, Taken, ToWrite};
use rendezvous_core::rendezvous::participant::{Entry, Part, Participant, Role};
use rendezvous_core::rendezvous::rejoin::{self, Action, Reason, Rejoin, Waited};
use rendezvous_core::session::client::SessionOptions;
use rendezvous_core::store::op::Pairs;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{
    Fault, FaultCode, Label, LastCall, Message, RankOrder, ServerFrame, Terms, encode_frame,
};
use rendezvous_core::wire::sink::{Fill, Length};

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const NOW: Instant = Instant::ORIGIN;
type Client = NativeClient<4>;

pub(crate) fn sings() -> bool {
    joins() == Some(true) && comes_back() && Participant::new().part() == Part::Outside
}

fn comes_back() -> bool {
    let mut rejoin = Rejoin::new(NOW, Duration::from_secs(1));
    rejoin.handle(NOW, rejoin::Input::Failed(ErrorKind::ServerGone, Waited::Counted));
    rejoin.decide() == (Action::Rest(NOW + rejoin::PAUSE), Reason::SessionLost)
}

fn entry() -> Entry<'static> {
    let terms = Terms {
        nodes_min: 1,
        nodes_max: 1,
        continue_min: 0,
        last_call: LastCall::Off,
        last_call_ms: 0,
        fast_quorum: true,
        rank_order: RankOrder::Sticky,
        rank_label: b"",
        cool_down_failures: 0,
        cool_down_window_ms: 0,
        cool_down_pause_ms: 0,
        cool_down_pause_ms_max: 0,
    };
    Entry {
        run_id: b"run",
        node: b"node",
        address: b"host",
        local_world_size: 1,
        node_rank: -1,
        join_timeout_ms: 1000,
        terms,
        labels: Pairs::scoped(b"", &[]),
        round_min: 0,
    }
}

fn joins() -> Option<bool> {
    let session = SessionOptions { grace_ms: 0, ..SessionOptions::default() };
    let mut client = Client::new(NOW, NativeOptions { session, ..NativeOptions::default() }, 1);
    let join = entry().frame(Role::Member);
    let mut length = Length::default();
    join.write_body(&mut length);
    let span = Duration::from_secs(1);
    let id = client.begin_join(NOW, Operation::Join, (join.kind(), length.0), span).ok()?;
    let resolves = client.poll_output()? == Output::Resolve;
    client.handle(NOW, Input::Resolved(&[ADDRESS]));
    let connects = client.poll_output()? == Output::Connect(ADDRESS);
    client.handle(NOW, Input::Connected);

    let mut buffer = [0; 512];
    let mut fill = Fill::new(&mut buffer);
    let ToWrite::Opening(label, identity) = client.poll_write(NOW)? else { return None };
    encode_frame(&mut fill, label, &client.hello(identity, b"node", [0; 32])).ok()?;
    let ToWrite::Request(written, label) = client.poll_write(NOW)? else { return None };
    encode_frame(&mut fill, label, &join).ok()?;
    let sent = fill.finish().ok()? > length.0 && written == id;

    let mut answer = [0; 128];
    let mut fill = Fill::new(&mut answer);
    let fault = Fault::new(FaultCode::VersionUnsupported, 1, 1);
    encode_frame(&mut fill, Label::default(), &ServerFrame::Error { fault }).ok()?;
    let bytes = fill.finish().ok()?;
    let limits = Client::answer_limits(&FrameLimits::default());
    let refused = client.receive(NOW, &limits, &answer[..bytes]) == Taken::Over;
    let reported = client.next_failed(NOW)?.id == id;
    let lost = client.participant().part() == Part::Lost;
    Some(resolves && connects && sent && refused && reported && lost)
}
