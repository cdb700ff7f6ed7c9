//! The rules of a rendezvous and the machines of a barrier and an exchange.

use core::time::Duration;
use rendezvous_core::elastic_store::Step;
use rendezvous_core::elastic_store::barrier::{
    BarrierOptions, BarrierOutcome, BarrierTimeout, TracedBarrier,
};
use rendezvous_core::elastic_store::get_all::read_confirmation;
use rendezvous_core::rendezvous::error::{RendezvousError, RendezvousErrorKind};
use rendezvous_core::rendezvous::parameters::RendezvousParameters;
use rendezvous_core::rendezvous::parse::parse_config;
use rendezvous_core::rendezvous::registry::Registry;
use rendezvous_core::rendezvous::static_settings::StaticSettings;
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::rendezvous::url::{RankEnvironment, RendezvousUrl, WorldSize};
use rendezvous_core::store::call::Outcome;
use rendezvous_core::time::Instant;

pub(crate) fn sings() -> bool {
    rules_hold() && machines_run()
}

fn rules_hold() -> bool {
    let environment = RankEnvironment::default();
    let url = RendezvousUrl::parse("tcp://h:1", 0, WorldSize::Known(2), &environment);
    let by_url = url.and_then(|url| url.tcp(&environment)).is_ok_and(|node| node.port == 1);
    let parameters = RendezvousParameters::new("static", "h:1", "run", 1, 2);
    let settings = parameters.map(|parameters| StaticSettings::read(&parameters.with("rank", 1)));
    let by_rank = settings.is_ok_and(|settings| settings.is_ok_and(|settings| settings.rank == 1));
    let error = RendezvousError::Closed { run_id: "run".into() };
    let mut schemes = Registry::default();
    let registered = schemes.register_scheme("own", 1).is_ok() && schemes.register_scheme("own", 1).is_err();
    let info = RendezvousStoreInfo::from_values(b"h", b"1").is_ok();
    let config = parse_config("a=1").is_ok_and(|config| config.iter().len() == 1);
    by_url && by_rank && registered && info && config && error.kind() == RendezvousErrorKind::Closed
}

fn machines_run() -> bool {
    let options = BarrierOptions { rank: Some(0), ..BarrierOptions::new(2, "b") };
    let reported = BarrierTimeout::of(&options, &BarrierOutcome::AskRankZero, &|_| "h".into()).is_some();
    let released = TracedBarrier::new(options).is_ok_and(|mut barrier| {
        barrier.handle(Instant::ORIGIN, Outcome::Number(2)).is_ok()
            && matches!(barrier.next_step(), Some(Step::Mark { .. }))
            && barrier.handle(Instant::ORIGIN, Outcome::Applied).is_ok()
            && barrier.barrier_outcome() == Some(&BarrierOutcome::Released)
    });
    let confirmation = TracedBarrier::new(read_confirmation("x", 2, Duration::from_secs(1)));
    let left = confirmation.is_ok_and(|mut barrier| {
        barrier.handle(Instant::ORIGIN, Outcome::Number(1)).is_ok() && barrier.has_arrived()
    });
    reported && released && left
}
