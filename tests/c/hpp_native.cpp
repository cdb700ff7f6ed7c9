// rendezvous/native_store.hpp, and native stores in rendezvous/loop.hpp, from a program's side.
#include "hpp_check.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
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
static_assert(is_move_only<rdzv::operation>);
// No store passes for a native one by itself.
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
  CHECK(store.incarnation() != 0 && store.incarnation() == VALUE(store.clone()).incarnation());
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
    CHECK(lease.number() > 0 && store.attach_lease(lease, {"k"}) && store.set("k", "1") && store.renew_lease(lease));
    CHECK(VALUE(watch.next())->value == "1" && !VALUE(lease.wait_over(0ms)));
    CHECK(VALUE(store.revoke_lease(lease)) == 1 && !VALUE(watch.next())->value);
    CHECK(store.renew_lease(lease).error().code() == rdzv::status::not_found);
  }
  rdzv::lease brief = VALUE(store.grant_lease(30ms));
  CHECK(store.attach_lease(brief, {"k"}) && store.set("k", "2"));
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
    CHECK(patient.attach_lease(VALUE(patient.grant_lease(0ms)), {"k"}) && patient.set("k", "3"));
  }
  CHECK(VALUE(watch.next())->value == "3" && !VALUE(watch.next())->value);
  CHECK(std::chrono::steady_clock::now() - began >= 199ms);
  options.heartbeat = 0ms;
  CHECK(rdzv::native_store::connect("127.0.0.1", server.port(), options).error().code() ==
        rdzv::status::invalid_argument);
}

void batches_and_transactions(const rdzv::server& server) {
  rdzv::native_store store = connect(server, "ada");
  rdzv::operation claim, part;
  claim.transaction().require_absent("leader").include(part.set("leader", "ada"));
  claim.otherwise().include(part.add("late", 1));
  CHECK(store.perform(claim));
  const rdzv_result won = VALUE(claim.outcome());
  CHECK(store.perform(claim));
  const rdzv_result lost = VALUE(claim.outcome());
  CHECK(won.holds && !lost.holds && lost.revision > won.revision && VALUE(store.get("late")) == "1");
  rdzv::operation rest;
  rest.transaction().require_present("leader").require_revision("leader", won.revision).require_value("late", "1");
  rest.include(part.append("leader", "!")).include(part.delete_key("late"));
  rest.include(part.set("dir/a", "")).include(part.delete_prefix("di"));
  CHECK(store.perform(rest) && VALUE(rest.outcome()).holds);
  CHECK(store.perform(rest) && !VALUE(rest.outcome()).holds);
  CHECK(VALUE(store.get("leader")) == "ada!" && !VALUE(store.check({"late"})) && !VALUE(store.check({"dir/a"})));
  // The first failure of a chain is that of the operation.
  part.get("k");
  CHECK(rest.transaction().include(part).include(rdzv::operation().set("k", "v")).failure()->code() ==
        rdzv::status::invalid_argument);
  CHECK(store.perform(rest).error().code() == rdzv::status::invalid_argument);

  rdzv::operation batch;
  batch.batch().include(part.set("a", "x")).include(part.add("a", 1)).include(part.add("n", 3));
  batch.include(part.compare_set("c", "", "new")).include(part.compare_set("no", "old", "new"));
  batch.include(part.queue_push("q", "item")).include(part.queue_len("q")).include(part.check({"a"}));
  CHECK(store.perform(batch) && VALUE(batch.outcome()).part_count == 8);
  CHECK(batch.part(1).error().code() == rdzv::status::invalid_argument);
  CHECK(batch.part(1).error().message().find("number") != std::string::npos);
  CHECK(VALUE(batch.part(2)).sum == 3 && value_in(VALUE(batch.part(3))) == "new");
  CHECK(VALUE(batch.part(4)).value == nullptr && VALUE(batch.part(6)).count == 1 && VALUE(batch.part(7)).ready == 1);
  CHECK(batch.part(8).error().code() == rdzv::status::invalid_argument);
  CHECK(VALUE(store.delete_prefix("")) > 0);
}

void barriers(const rdzv::server& server) {
  rdzv::native_store ada = connect(server, "ada"), bob = connect(server, "bob");
  auto arrived = std::async(std::launch::async, [&] { return VALUE(ada.named_barrier("gate", strings{"ada", "bob"})); });
  CHECK(VALUE(bob.named_barrier("gate", strings{"ada", "bob"})) == 1 && arrived.get() == 1);
  auto late = ada.named_barrier("gate", strings{"ada", "bob"}, 30ms);
  CHECK(!late && late.error().code() == rdzv::status::timed_out && late.error().generation() == 2);
  CHECK(late.error().nodes() == strings{"bob"} && late.error().phase() == "waiting");
  rdzv::operation alone;
  CHECK(ada.perform(alone.named_barrier("alone", 1, "eve", 1)) && VALUE(alone.outcome()).generation == 1);
  CHECK(ada.perform(alone.named_barrier("alone", 1, "eve", 7)).error().code() == rdzv::status::not_found);
  CHECK(!VALUE(ada.cancel_named_barrier("gate")));
  auto waits = std::async(std::launch::async, [&] { return ada.named_barrier("gate", 2).error().code(); });
  while (!VALUE(bob.cancel_named_barrier("gate"))) {
  }
  CHECK(waits.get() == rdzv::status::cancelled);
}

// Submits an operation, whose end comes next and goes well.
rdzv_result done(rdzv::event_loop& loop, rdzv::event_loop::member member, rdzv::operation& op) {
  CHECK(loop.submit(member, op));
  return VALUE(await_end(loop, op));
}

void loops(const rdzv::server& server) {
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  int mark = 0;
  const auto store = VALUE(loop.add_native_store(server.address(), named("ada"), &mark));
  rdzv::loop_event event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::session_open && event.member == store && event.member_data == &mark);
  CHECK(event.incarnation != 0 && event.incarnation == connect(server, "bob").incarnation());
  rdzv::operation op, part, watch, old(&mark);
  done(loop, store, op.set("k", "v"));
  CHECK(loop.submit(store, watch.watch_prefix("dir/")));
  CHECK(await_event(loop).kind == rdzv::event_kind::watching);
  const std::uint64_t began = VALUE(watch.outcome()).revision;
  CHECK(began > 0 && loop.submit(store, old.watch_key("k", began)));
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::watching && event.op_data == &mark);
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::change && event.op == old.c_handle() && event.changed->key == "k");
  CHECK(event.changed->revision == began && event.changed->value == "v");
  CHECK(loop.cancel(old));
  CHECK(await_end(loop, old).error().code() == rdzv::status::cancelled);

  const std::uint64_t lease = done(loop, store, op.grant_lease(0ms)).lease;
  done(loop, store, op.attach_lease(lease, {"dir/a"}));
  done(loop, store, op.renew_lease(lease));
  rdzv::native_store other = connect(server, "eve");
  op.transaction().require_absent("dir/a").include(part.set("dir/a", "1"));
  CHECK(other.perform(op));
  const std::uint64_t revision = VALUE(op.outcome()).revision;
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::change && event.changed->key == "dir/a");
  CHECK(event.changed->revision == revision);
  const rdzv_result again = done(loop, store, op);
  CHECK(!again.holds && again.revision == revision);
  op.batch().include(part.add("n", 5)).include(part.add("k", 1)).include(part.compare_set("c", "", "new"));
  CHECK(done(loop, store, op).part_count == 3 && VALUE(op.part(0)).sum == 5);
  CHECK(op.part(1).error().code() == rdzv::status::invalid_argument && value_in(VALUE(op.part(2))) == "new");
  CHECK(done(loop, store, op.delete_prefix("c")).deleted == 1);
  const std::uint64_t brief = done(loop, store, op.grant_lease(20ms)).lease;
  event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::lease_over && event.lease == brief && event.lease_why == RDZV_WHY_DEADLINE);
  // The key of a lease that is revoked goes before the response comes, or after it.
  CHECK(loop.submit(store, op.revoke_lease(lease)));
  for (int i = 0; i < 2; ++i) {
    event = await_event(loop);
    if (event.kind == rdzv::event_kind::change)
      CHECK(event.changed->key == "dir/a" && !event.changed->value);
    else
      CHECK(event.op == op.c_handle() && VALUE(op.outcome()).deleted == 1);
  }

  CHECK(loop.submit(store, op.named_barrier("gate", strings{"ada", "bob"}), 20ms));
  const auto late = await_end(loop, op);
  CHECK(late.error().code() == rdzv::status::timed_out && late.error().nodes() == strings{"bob"});
  CHECK(late.error().message().find("bob") != std::string::npos && late.error().generation() > 0);
  done(loop, store, op.end_session());
  CHECK(loop.add_native_store("127.0.0.1:0").error().code() == rdzv::status::invalid_argument);
}

rdzv::rendezvous_parameters node(const rdzv::server& server, const std::string& name, int nodes) {
  rdzv::rendezvous_parameters made{"rdzv", server.address(), "run" + name, nodes};
  made.options = {{"node", name}, {"local_world_size", "3"}};
  return made;
}

void nodes_of_a_loop(const rdzv::server& server) {
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  const auto parameters = node(server, "ada", 1);
  const auto ada = VALUE(loop.add_node(parameters));
  rdzv::operation op;
  CHECK(loop.submit(ada, op.next_rendezvous()));
  while (await_event(loop).kind != rdzv::event_kind::completed) {
  }
  const rdzv::joined_round round = VALUE(op.round());
  CHECK(round.world_size == 3 && !round.key_prefix.empty());
  done(loop, ada, op.members(round.round, 0, 8));
  const auto members = op.found_members();
  CHECK(members.size() == 1 && members[0].node == "ada" && members[0].local_world_size == 3);
  CHECK(members[0].node_rank == 0 && members[0].rank_first == 0 && !members[0].address.empty());
  done(loop, ada, op.run_info());
  CHECK(VALUE(op.state_of_run()).nodes == 1 && op.found_members().empty());
  CHECK(done(loop, ada, op.named_barrier("by name", strings{"ada"})).generation == 1);
  CHECK(done(loop, ada, op.named_barrier("by count", 1)).generation == 1);
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
  const std::uint64_t early_revision = VALUE(store.get_with_revision("early")).revision;
  CHECK(compacted().error().code() == rdzv::status::compacted && compacted().error().revision() == early_revision + 1);
  CHECK(store.watch_key("early", early_revision + 5000).error().code() == rdzv::status::compacted);

  rdzv::lease lease = VALUE(store.grant_lease(0ms));
  CHECK(store.revoke_lease(lease).has_value());
  CHECK(store.renew_lease(lease).error().code() == rdzv::status::not_found);

  // Three are awaited, and there it is said how; one of them dies.
  const strings all{"ada", "bob", "eve"};
  auto loop = VALUE(rdzv::event_loop::create());
  const auto bob = VALUE(loop.add_native_store(server.address(), named("bob")));
  rdzv::operation arrival;
  CHECK(loop.submit(bob, arrival.named_barrier("gate", all)));
  while (VALUE(server.stats()).waiting == 0) CHECK(loop.poll());
  const auto conflict = [&] { return store.named_barrier("gate", 2); };
  CHECK(conflict().error().code() == rdzv::status::conflict);
#if defined(__cpp_exceptions)
  throws<rdzv::conflict>(conflict());
#endif
  auto arrived = std::async(std::launch::async, [&] { return store.named_barrier("gate", all); });
  while (VALUE(server.stats()).waiting != 2) CHECK(loop.poll());
  CHECK(loop.remove(bob));
  auto broken = arrived.get();
  CHECK(!broken && broken.error().code() == rdzv::status::barrier_broken && broken.error().nodes() == strings{"bob"});
  CHECK(broken.error().generation() == 1);

  // The store of a round is a native one, and is fenced when the round is over.
  auto handler = VALUE(rdzv::rendezvous_handler::create(node(server, "bob", 1)));
  rdzv::native_store old(VALUE(VALUE(handler.next_rendezvous()).store()));
  CHECK(old.set("k", "v") && VALUE(old.get_with_revision("k")).revision > 0);
  CHECK(VALUE(handler.next_rendezvous()).round == 1);
  const auto stale = [&] {
    rdzv::operation txn;
    return old.perform(txn.transaction().include(rdzv::operation().set("k", "w")));
  };
  CHECK(stale().error().code() == rdzv::status::stale_round && !old.set("k", "w"));
#if defined(__cpp_exceptions)
  throws<rdzv::compacted>(compacted());
  throws<rdzv::not_found>(store.renew_lease(lease));
  throws<rdzv::barrier_broken>(std::move(broken));
  throws<rdzv::stale_round>(stale());
  throws<rdzv::stale_round>(old.set("k", "w"));
  throws<rdzv::exception>(stale());
#endif
  CHECK(VALUE(handler.shutdown()));
}

// A file, for as long as this lives.
struct temporary_file {
  temporary_file(const std::string& name, const std::string& content)
      : path(std::filesystem::temp_directory_path() / ("rdzv-hpp-" + std::to_string(getpid()) + name)) {
    CHECK(std::ofstream(path) << content << std::flush);
  }
  ~temporary_file() { std::filesystem::remove(path); }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;

  const std::filesystem::path path;
};

void tokens_and_tls() {
  const temporary_file right("right", "0123456789abcdef0123456789abcdef");
  const temporary_file wrong("wrong", "ffffffffffffffffffffffffffffffff");
  rdzv::server_options guarded;
  guarded.auth_token_file = right.path.string();
  guarded.c10d_from = "10.0.0.0/8";
  const rdzv::server server = VALUE(rdzv::server::start(guarded));
  rdzv::store_options client = named("ada");
  const auto connected = [&] { return rdzv::native_store::connect("127.0.0.1", server.port(), client); };
  CHECK(connected().error().code() == rdzv::status::unauthenticated);
  client.auth_token_file = wrong.path.string();
  CHECK(connected().error().code() == rdzv::status::unauthenticated);
  client.auth_token_file = "";
  CHECK(connected().error().code() == rdzv::status::invalid_argument);
  client.auth_token_file = right.path.string();
  CHECK(VALUE(connected()).set("k", "v"));
  // A client of c10d proves none, and comes from another network than those that need not.
  CHECK(rdzv::store::connect("127.0.0.1", server.port(), client).error().code() == rdzv::status::invalid_argument);
  CHECK(!rdzv::store::connect("127.0.0.1", server.port(), named("")));
  guarded.c10d_from = "10.0.0.0/8,loopback";
  const rdzv::server open = VALUE(rdzv::server::start(guarded));
  CHECK(VALUE(rdzv::store::connect("127.0.0.1", open.port(), named(""))).set("k", "v"));
  guarded.c10d_from = "here";
  CHECK(rdzv::server::start(guarded).error().code() == rdzv::status::invalid_argument);

  // The shipped library has no TLS.
  rdzv_tls_options tls{};
  tls.struct_size = sizeof tls;
  tls.ca_file = tls.cert_file = tls.key_file = "none.pem";
  client.tls = guarded.tls = &tls;
  guarded.c10d_from = std::nullopt;
  CHECK(connected().error().code() == rdzv::status::unsupported);
  CHECK(rdzv::server::start(guarded).error().code() == rdzv::status::unsupported);
}

}  // namespace

void native_stores_in_cpp() {
  const rdzv::server server = VALUE(rdzv::server::start());
  revisions_and_pages(server);
  watches(server);
  leases(server);
  batches_and_transactions(server);
  barriers(server);
  loops(server);
  nodes_of_a_loop(server);
  kinds_of_failure();
  tokens_and_tls();
}
