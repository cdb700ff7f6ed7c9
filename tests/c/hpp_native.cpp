// rendezvous_native.hpp, and native stores in rendezvous_event_loop.hpp, from a program's side.
#include "hpp_check.hpp"

#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

// Called by hpp_test.cpp.
void native_stores_in_cpp();

namespace {

using strings = std::vector<std::string>;

static_assert(is_move_only<rdzv::native_store> && is_move_only<rdzv::watch> && is_move_only<rdzv::lease>);
// What is put together is a plain value, and no store passes for a native one by itself.
static_assert(std::is_copy_constructible_v<rdzv::txn> && std::is_copy_assignable_v<rdzv::batch>);
static_assert(!std::is_convertible_v<rdzv::store, rdzv::native_store>);

rdzv::store_options named(const std::string& node) {
  rdzv::store_options options;
  options.timeout = patience;
  options.connect_timeout = patience;
  options.node = node;
  return options;
}

rdzv::native_store connect(const rdzv::server& server, const std::string& node) {
  return VALUE(rdzv::native_store::connect("127.0.0.1", server.port(), named(node)));
}

void revisions_and_pages(const rdzv::server& server) {
  rdzv::native_store store = connect(server, "ada");
  CHECK(store.set("a", "1"));  // all that every store does
  const rdzv::versioned first = VALUE(store.get_with_revision("a"));
  CHECK(first.value == "1" && first.revision > 0);
  const rdzv::versioned missing = VALUE(store.get_with_revision("none", 0ms));
  CHECK(missing.value.empty() && missing.revision == 0);
  CHECK(store.set("b", ""));
  const auto both = VALUE(store.multi_get_with_revisions({"b", "a"}));
  CHECK(both.size() == 2 && both[0].revision > both[1].revision && both[1].value == "1");
  CHECK(VALUE(store.multi_get_with_revisions({})).empty());
  auto late = store.multi_get_with_revisions({"none"}, 20ms);
  CHECK(!late && late.error().code() == rdzv::status::timed_out && late.error().keys() == strings{"none"});

  rdzv::native_store beneath = VALUE(store.with_prefix("p"));
  CHECK(beneath.multi_set({{"k1", "v"}, {"k2", "v"}, {"k3", "v"}}));
  const rdzv::keys_page page = VALUE(beneath.list_keys_page("k", "", 2));
  CHECK((page.more && page.keys == strings{"k1", "k2"}));
  const rdzv::keys_page last = VALUE(beneath.list_keys_page("k", page.keys.back(), 2));
  CHECK((!last.more && last.keys == strings{"k3"}));
  CHECK(VALUE(beneath.delete_prefix("")) == 3);

  // Another session sees the same keys; this one ends with a word, and all its handles with it.
  rdzv::native_store twin = VALUE(store.clone());
  CHECK(VALUE(twin.get("a")) == "1");
  CHECK(beneath.end_session());
  CHECK(store.get("a").error().code() == rdzv::status::server_gone);
  CHECK(VALUE(twin.delete_prefix("")) == 2);
  // What is known to be native can be asked as such; of another kind, it says so.
  rdzv::native_store again = rdzv::native_store::adopt(twin.release());
  CHECK(VALUE(again.list_keys_page("", "", 1)).keys.empty());
  rdzv::native_store other(VALUE(rdzv::store::connect("127.0.0.1", server.port(), named(""))));
  CHECK(other.delete_prefix("x").error().code() == rdzv::status::unsupported);
  CHECK(again.watch_key("k").has_value() && twin.watch_key("k").error().code() == rdzv::status::invalid_argument);
}

void watches(const rdzv::server& server) {
  rdzv::native_store store = connect(server, "ada");
  rdzv::watch watch = VALUE(store.watch_prefix("dir/"));
  const std::uint64_t began = watch.revision();
  CHECK(!VALUE(watch.next(0ms)));
  CHECK(store.set("dir/a", "1") && store.set("else", "1") && store.set("dir/b", "") && store.delete_key("dir/a").has_value());
  auto change = VALUE(watch.next());
  CHECK(change && change->key == "dir/a" && change->value == "1" && change->revision == began + 1);
  change = VALUE(watch.next());
  CHECK(change && change->key == "dir/b" && change->value == "");
  change = VALUE(watch.next());
  CHECK(change && change->key == "dir/a" && !change->value && change->revision == began + 4);
  // From a revision on.
  rdzv::watch again = VALUE(store.watch_key("dir/a", began + 1));
  CHECK(VALUE(again.next())->value == "1" && !VALUE(again.next())->value);
  auto waiting = std::async(std::launch::async, [&] { return again.next(patience).error().code(); });
  again.cancel();
  CHECK(waiting.get() == rdzv::status::cancelled);
  rdzv::watch moved = std::move(watch);
  CHECK(moved.c_handle() != nullptr && watch.c_handle() == nullptr && watch.revision() == 0);
  CHECK(watch.next(0ms).error().code() == rdzv::status::invalid_argument);
  rdzv::watch adopted = rdzv::watch::adopt(moved.release());
  CHECK(!VALUE(adopted.next(0ms)));
}

void leases(const rdzv::server& server) {
  rdzv::native_store store = connect(server, "ada"), witness = connect(server, "eve");
  rdzv::watch watch = VALUE(witness.watch_key("k"));
  {
    rdzv::lease lease = VALUE(store.grant_lease(0ms));
    CHECK(lease.number() > 0 && lease.attach({"k"}) && store.set("k", "1") && lease.renew());
    CHECK(VALUE(watch.next())->value == "1" && !VALUE(lease.wait_over(0ms)));
    CHECK(VALUE(lease.revoke()) == 1 && !VALUE(watch.next())->value);
    CHECK(lease.renew().error().code() == rdzv::status::not_found);
  }
  rdzv::lease brief = VALUE(store.grant_lease(30ms));
  CHECK(brief.attach({"k"}) && store.set("k", "2"));
  CHECK(VALUE(brief.wait_over()) == RDZV_WHY_DEADLINE);
  CHECK(VALUE(watch.next())->value == "2" && !VALUE(watch.next())->value);
  rdzv::lease moved = rdzv::lease::adopt(brief.release());
  CHECK(moved.number() > 0 && brief.number() == 0);
  auto waiting = std::async(std::launch::async, [&] { return VALUE(store.grant_lease(0ms)).wait_over(20ms); });
  CHECK(!VALUE(waiting.get()));
  rdzv::lease kept = VALUE(store.grant_lease(0ms));
  auto waits = std::async(std::launch::async, [&] { return kept.wait_over(patience).error().code(); });
  kept.cancel();
  CHECK(waits.get() == rdzv::status::cancelled);

  // A session that may come back outlives its connection.
  rdzv::store_options options = named("ada");
  options.grace = 200ms;
  const auto began = std::chrono::steady_clock::now();
  {
    rdzv::native_store patient = VALUE(rdzv::native_store::connect("127.0.0.1", server.port(), options));
    CHECK(VALUE(patient.grant_lease(0ms)).attach({"k"}) && patient.set("k", "3"));
  }
  CHECK(VALUE(watch.next())->value == "3" && !VALUE(watch.next())->value);
  CHECK(std::chrono::steady_clock::now() - began >= 199ms);
  options.heartbeats_missed_max = 0;
  CHECK(rdzv::native_store::connect("127.0.0.1", server.port(), options).error().code() ==
        rdzv::status::invalid_argument);
}

void turns(const rdzv::server& server) {
  rdzv::native_store store = connect(server, "ada");
  rdzv::txn claim;
  claim.require_absent("leader").set("leader", "ada").otherwise().add("late", 1);
  const rdzv::txn_result won = VALUE(store.commit(claim)), lost = VALUE(store.commit(claim));
  CHECK(won.holds && !lost.holds && lost.revision > won.revision && VALUE(store.get("late")) == "1");
  rdzv::txn rest;
  rest.require_present("leader").require_revision("leader", won.revision).require_value("late", "1");
  rest.append("leader", "!").delete_key("late").set("dir/a", "").delete_prefix("di");
  const rdzv::txn copy = rest;
  CHECK(VALUE(store.commit(copy)).holds && !VALUE(store.commit(rest)).holds);
  CHECK(VALUE(store.get("leader")) == "ada!" && !VALUE(store.check({"late"})) && !VALUE(store.check({"dir/a"})));
  CHECK(VALUE(store.commit(rdzv::txn())).holds);
  rdzv::txn endless;
  for (int i = 0; i <= 131072; ++i) endless.require_absent("x");
  CHECK(store.commit(endless).error().code() == rdzv::status::limit_exceeded);

  rdzv::batch batch;
  batch.set("a", "x").append("a", "y").add("a", 1).add("n", 3).compare_set("c", "", "new").compare_set("no", "old", "new");
  batch.queue_push("q", "item").queue_len("q").check("a").delete_key("none").delete_prefix("a");
  const auto answers = VALUE(store.send(batch));
  CHECK(answers.size() == 11 && answers[0].code == rdzv::status::ok && !answers[0].value);
  CHECK(answers[2].code == rdzv::status::invalid_argument && answers[2].message.find("number") != std::string::npos);
  CHECK(answers[3].number == 3 && answers[4].value == "new" && !answers[5].value && answers[7].number == 1);
  CHECK(answers[8].number == 1 && answers[9].number == 0 && answers[10].number == 1);
  CHECK(VALUE(store.send(rdzv::batch())).empty());
  CHECK(VALUE(store.delete_prefix("")) > 0);
}

void barriers(const rdzv::server& server) {
  rdzv::native_store ada = connect(server, "ada"), bob = connect(server, "bob");
  auto arrived = std::async(std::launch::async, [&] { return VALUE(ada.named_barrier("gate", strings{"ada", "bob"})); });
  CHECK(VALUE(bob.named_barrier("gate", strings{"ada", "bob"})) == 1 && arrived.get() == 1);
  auto late = ada.named_barrier("gate", strings{"ada", "bob"}, 30ms);
  CHECK(!late && late.error().code() == rdzv::status::timed_out && late.error().generation() == 2);
  CHECK(late.error().nodes() == strings{"bob"} && late.error().phase() == "waiting");
  CHECK(VALUE(ada.named_barrier("alone", 1, patience, {"eve", 1})) == 1);
  CHECK(ada.named_barrier("alone", 1, patience, {"eve", 7}).error().code() == rdzv::status::not_found);
  CHECK(!VALUE(ada.cancel_named_barrier("gate")));
  auto waits = std::async(std::launch::async, [&] { return ada.named_barrier("gate", 2).error().code(); });
  while (!VALUE(bob.cancel_named_barrier("gate", patience, "eve"))) {
  }
  CHECK(waits.get() == rdzv::status::cancelled);
}

// The next event of this operation goes well.
rdzv::loop_event done(rdzv::event_loop& loop, rdzv::event_loop::operation operation) {
  rdzv::loop_event event = await_event(loop);
  if (event.code != rdzv::status::ok) std::fprintf(stderr, "%s\n", event.message.c_str());
  CHECK(event.kind == rdzv::event_kind::completed && event.code == rdzv::status::ok && event.operation == operation);
  return event;
}

void loops(const rdzv::server& server) {
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  const auto store = VALUE(loop.add_native_store("127.0.0.1", server.port(), named("ada")));
  CHECK(await_event(loop).kind == rdzv::event_kind::node_open);
  done(loop, VALUE(loop.set(store, "k", "v")));
  const auto watch = VALUE(loop.watch_prefix(store, "dir/"));
  const std::uint64_t began = done(loop, watch).revision;
  CHECK(began > 0);
  const auto old = VALUE(loop.watch_key(store, "k", began));
  done(loop, old);
  rdzv::loop_event event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::change && event.operation == old && event.value == "k");
  CHECK(event.revision == began && event.items == strings{"v"});
  CHECK(loop.cancel(store, old));
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::watch_over && event.code == rdzv::status::cancelled);

  const auto lease = static_cast<std::uint64_t>(done(loop, VALUE(loop.grant_lease(store, 0ms))).number);
  done(loop, VALUE(loop.attach_lease(store, lease, {"dir/a"})));
  done(loop, VALUE(loop.renew_lease(store, lease)));
  rdzv::native_store other = connect(server, "eve");
  rdzv::txn txn;
  txn.require_absent("dir/a").set("dir/a", "1");
  const auto revision = VALUE(other.commit(txn)).revision;
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::change && event.value == "dir/a" && event.revision == revision);
  event = done(loop, VALUE(loop.commit(store, txn)));
  CHECK(event.number == 0 && event.revision == revision);
  rdzv::batch batch;
  batch.add("n", 5).add("k", 1).compare_set("c", "", "new");
  event = done(loop, VALUE(loop.send(store, batch)));
  CHECK(event.answers.size() == 3 && event.answers[0].number == 5 && event.items.empty() && event.members.empty());
  CHECK(event.answers[1].code == rdzv::status::invalid_argument && event.answers[2].value == "new");
  CHECK(done(loop, VALUE(loop.delete_prefix(store, "c"))).number == 1);
  const auto brief = VALUE(loop.grant_lease(store, 20ms));
  done(loop, brief);
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::lease_over && event.operation == brief && event.number == RDZV_WHY_DEADLINE);
  // The key of a lease that is revoked goes before the answer comes, or behind it.
  const auto revoked = VALUE(loop.revoke_lease(store, lease));
  for (int i = 0; i < 2; ++i) {
    event = await_event(loop);
    if (event.kind == rdzv::event_kind::change)
      CHECK(event.value == "dir/a" && event.items.empty());
    else
      CHECK(event.operation == revoked && event.number == 1);
  }

  CHECK(VALUE(loop.node_barrier(store, "gate", strings{"ada", "bob"}, 20ms)) > 0);
  event = await_event(loop);
  CHECK(event.code == rdzv::status::timed_out && event.nodes == strings{"bob"} && event.number > 0);
  CHECK(event.message.find("bob") != std::string::npos);
  const auto goodbye = VALUE(loop.shutdown(store));
  done(loop, goodbye);
  CHECK(await_event(loop).kind == rdzv::event_kind::node_over);
  rdzv::txn endless;
  for (int i = 0; i <= 131072; ++i) endless.require_absent("x");
  CHECK(loop.commit(store, endless).error().code() == rdzv::status::limit_exceeded);
  CHECK(loop.add_native_store("127.0.0.1", 0).error().code() == rdzv::status::invalid_argument);
}

rdzv::rendezvous_parameters node(const rdzv::server& server, const std::string& name, int nodes) {
  auto made = VALUE(rdzv::rendezvous_parameters::create("rdzv", server.address(), "run" + name, nodes, nodes));
  CHECK(made.set("node", name) && made.set("local_world_size", 3));
  return made;
}

void members_of_a_loop(const rdzv::server& server) {
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  const auto parameters = node(server, "ada", 1);
  const auto ada = VALUE(loop.add_node(parameters.c_handle()));
  const auto joined = VALUE(loop.next_rendezvous(ada));
  rdzv::loop_event event = await_event(loop);
  while (event.kind != rdzv::event_kind::completed) event = await_event(loop);
  CHECK(event.operation == joined && event.joined && event.joined->world_size == 3);
  event = done(loop, VALUE(loop.members(ada, event.joined->round, 0, 8)));
  CHECK(event.members.size() == 1 && event.members[0].node == "ada" && event.members[0].local_world_size == 3);
  CHECK(event.members[0].node_rank == 0 && event.members[0].rank_first == 0 && !event.members[0].address.empty());
  CHECK(event.items.empty() && event.answers.empty());
  CHECK(done(loop, VALUE(loop.node_barrier(ada, "by name", strings{"ada"}))).number == 1);
  CHECK(done(loop, VALUE(loop.node_barrier(ada, "by count", 1))).number == 1);
}

#if defined(__cpp_exceptions)
// It comes as this exception, which tells the same.
template <class Exception, class Value>
void throws(rdzv::result<Value> failed) {
  CHECK(!failed.has_value());
  const std::string message = failed.error().message();
  try {
    static_cast<void>(std::move(failed).or_throw());
    CHECK(!"it went well");
  } catch (const Exception& caught) {
    CHECK(caught.what() == message && caught.error().message() == message);
  }
}
#endif

// The failures that a program decides by.
void kinds_of_failure() {
  rdzv::server server = VALUE(rdzv::server::start());
  auto early = VALUE(rdzv::store::connect("127.0.0.1", server.port(), named("")));
  CHECK(early.set("early", "1"));  // before the first session, so before the history
  rdzv::native_store store = connect(server, "ada");
  const auto compacted = [&] { return store.watch_key("early", 1); };
  CHECK(compacted().error().code() == rdzv::status::compacted && compacted().error().revision() == 2);

  rdzv::lease lease = VALUE(store.grant_lease(0ms));
  CHECK(lease.revoke().has_value());
  CHECK(lease.renew().error().code() == rdzv::status::not_found);

  // Three are awaited, and there it is said how; one of them dies.
  const strings all{"ada", "bob", "eve"};
  auto loop = VALUE(rdzv::event_loop::create());
  const auto bob = VALUE(loop.add_native_store("127.0.0.1", server.port(), named("bob")));
  CHECK(VALUE(loop.node_barrier(bob, "gate", all)) > 0);
  while (VALUE(server.stats()).waiting == 0) CHECK(loop.turn());
  const auto conflict = [&] { return store.named_barrier("gate", 2); };
  CHECK(conflict().error().code() == rdzv::status::conflict);
#if defined(__cpp_exceptions)
  throws<rdzv::conflict>(conflict());
#endif
  auto arrived = std::async(std::launch::async, [&] { return store.named_barrier("gate", all); });
  while (VALUE(server.stats()).waiting != 2) CHECK(loop.turn());
  CHECK(loop.remove_store(bob));
  auto broken = arrived.get();
  CHECK(!broken && broken.error().code() == rdzv::status::barrier_broken && broken.error().nodes() == strings{"bob"});
  CHECK(broken.error().generation() == 1);

  // The store of a round is a native one, and is fenced when the round is over.
  auto handler = VALUE(rdzv::rendezvous_handler::create(node(server, "bob", 1)));
  rdzv::native_store old(VALUE(VALUE(handler.next_rendezvous()).store()));
  CHECK(old.set("k", "v") && VALUE(old.get_with_revision("k")).revision > 0);
  CHECK(VALUE(handler.next_rendezvous()).round() == 1);
  const auto stale = [&] { return old.commit(rdzv::txn().set("k", "w")); };
  CHECK(stale().error().code() == rdzv::status::stale_round && !old.set("k", "w"));
#if defined(__cpp_exceptions)
  throws<rdzv::compacted>(compacted());
  throws<rdzv::not_found>(lease.renew());
  throws<rdzv::barrier_broken>(std::move(broken));
  throws<rdzv::stale_round>(stale());
  throws<rdzv::stale_round>(old.set("k", "w"));
  throws<rdzv::exception>(stale());
#endif
  CHECK(VALUE(handler.shutdown()));
}

}  // namespace

void native_stores_in_cpp() {
  const rdzv::server server = VALUE(rdzv::server::start());
  revisions_and_pages(server);
  watches(server);
  leases(server);
  turns(server);
  barriers(server);
  loops(server);
  members_of_a_loop(server);
  kinds_of_failure();
}
