// rendezvous/rendezvous.hpp, rendezvous/store_utilities.hpp and rendezvous/plugin.hpp from a program's side.
#include "hpp_check.hpp"

#include <rendezvous/plugin.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

using namespace std::chrono_literals;

// Called by hpp_test.cpp.
void rendezvous_in_cpp();

namespace {

static_assert(std::is_aggregate_v<rdzv::rendezvous_parameters> && is_move_only<rdzv::rendezvous_handler>);
static_assert(is_move_only<rdzv::rendezvous_info> && is_move_only<rdzv::url_rendezvous>);
static_assert(is_move_only<rdzv::store_info> && !std::is_copy_constructible_v<rdzv::store_timeout>);

void parameters() {
  const rdzv::rendezvous_parameters made{
      "b", "h:1", "run", 1, 2, "10.0.0.1", "", {{"a", "yes"}, {"b", " 7 "}, {"c", "former"}, {"c", "text"}}};
  CHECK(rdzv::option(made, "c") == "text" && !rdzv::option(made, "missing"));
  CHECK(VALUE(rdzv::option_as_bool(made, "a", false)) && VALUE(rdzv::option_as_int(made, "b", 0)) == 7);
  CHECK(VALUE(rdzv::option_as_bool(made, "missing", true)) && VALUE(rdzv::option_as_int(made, "missing", -8)) == -8);
  CHECK(rdzv::option_as_bool(made, "c", true).error().code() == rdzv::status::invalid_argument);
  CHECK(rdzv::option_as_int(made, "c", 1).error().code() == rdzv::status::invalid_argument);
  const auto refused = rdzv::rendezvous_handler::create({"b", "h", "run", -1});
  CHECK(!refused && refused.error().message() ==
                        "The minimum number of rendezvous nodes (-1) must be greater than zero.");
  const rdzv::endpoint there = VALUE(rdzv::parse_endpoint("[::1]:5"));
  CHECK(there.host == "::1" && there.port == 5 && !VALUE(rdzv::parse_endpoint("h")).port);
  CHECK((VALUE(rdzv::parse_config("b=2,a=1")) ==
         std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"b", "2"}}));
}

// Options have the units that they have for `rdzv run`, as text and by name.
void durations() {
  rdzv::rendezvous_parameters made{"static", "127.0.0.1:0", "run", 2};
  made.config = "rank=0, timeout=100ms";
  const auto began = std::chrono::steady_clock::now();
  const auto alone = VALUE(rdzv::rendezvous_handler::create(made)).next_rendezvous();
  CHECK(alone.error().code() == rdzv::status::rendezvous_timed_out);
  CHECK(std::chrono::steady_clock::now() - began < 10s);
  made.options = {{"timeout", "soon"}};
  const auto refused = rdzv::rendezvous_handler::create(made).error();
  CHECK(refused.code() == rdzv::status::invalid_argument);
  CHECK(refused.message().find("'timeout' is 'soon', not a duration") != std::string::npos);
  rdzv::rendezvous_parameters elastic{"rdzv", "127.0.0.1:1", "run"};
  elastic.config = "join_timeout=1h 30min,grace=0.5";
  CHECK(rdzv::rendezvous_handler::create(elastic));
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  CHECK(loop.add_node(elastic));
  elastic.config = "keep_alive_interval=5 parsecs";
  CHECK(!rdzv::rendezvous_handler::create(elastic) && !loop.add_node(elastic));
}

void static_backend() {
  rdzv::rendezvous_parameters made{"static", "127.0.0.1:0", "run"};
  made.config = "rank=0";
  auto handler = VALUE(rdzv::rendezvous_handler::create(made));
  CHECK(handler.backend() == "static" && handler.run_id() == "run" && handler.use_agent_store());
  auto info = VALUE(handler.next_rendezvous());
  CHECK(info.rank == 0 && info.world_size == 1 && info.hosts_store);
  CHECK(info.master_addr == "127.0.0.1" && info.master_port == 0);
  CHECK(!info.round && !info.rank_first && !info.worker_count && info.leader.empty());
  auto store = VALUE(info.store());
  CHECK(store.set("k", "v") && VALUE(store.get("k")) == "v");
  CHECK(!VALUE(handler.is_closed()) && VALUE(handler.num_nodes_waiting()) == 0);
  CHECK(VALUE(handler.next_rendezvous()).round == 1);
  CHECK(handler.set_closed() && VALUE(handler.is_closed()));
  CHECK(handler.next_event(0ms).error().code() == rdzv::status::unsupported);
  CHECK(VALUE(handler.shutdown()));

  // Nobody else comes; another thread calls it off.
  made.min_nodes = 2;
  auto waiting = VALUE(rdzv::rendezvous_handler::create(made));
  auto joined = std::async(std::launch::async, [&] { return waiting.next_rendezvous(); });
  while (joined.wait_for(0s) != std::future_status::ready) waiting.cancel();
  CHECK(joined.get().error().code() == rdzv::status::cancelled);
}

void urls() {
  rdzv::url_options options;
  options.rank = 0;
  options.world_size = 1;
  options.timeout = patience;
  options.listen_host = "127.0.0.1";
  auto url = VALUE(rdzv::url_rendezvous::create("tcp://127.0.0.1:0", options));
  auto info = VALUE(url.next());
  CHECK(info.rank == 0 && info.world_size == 1 && info.hosts_store && info.master_addr.empty());
  auto again = url.next();
  CHECK(!again && again.error().message() == "Unable to perform re-rendezvous using tcp:// method");
  url.cancel();

  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "0", 1);
  auto by_environment = VALUE(rdzv::url_rendezvous::create("env://", rdzv::url_options().read_environment()));
  CHECK(VALUE(by_environment.next()).world_size == 1);
  unsetenv("RANK");
  auto without = VALUE(rdzv::url_rendezvous::create("env://", rdzv::url_options().read_environment()));
  CHECK(without.next().error().message().find("RANK expected, but not set") != std::string::npos);
  rdzv::url_options dynamic;
  dynamic.rank = 0;
  dynamic.is_dynamic = true;
  CHECK(VALUE(VALUE(rdzv::url_rendezvous::create("tcp://127.0.0.1:0", dynamic)).next()).world_size == -1);
  CHECK(rdzv::url_rendezvous::create("foo://").error().code() == rdzv::status::not_registered);
}

void utilities() {
  using strings = std::vector<std::string>;
  auto store = VALUE(rdzv::store::in_process(patience));
  {
    auto scope = VALUE(rdzv::store_timeout::set(store, 20ms));
    CHECK(rdzv::timeout_of(store) == 20ms);
    CHECK(store.get("missing").error().code() == rdzv::status::timed_out);
    auto moved = std::move(scope);
    CHECK(rdzv::timeout_of(store) == 20ms);
  }
  CHECK(rdzv::timeout_of(store) == patience);
  CHECK(!rdzv::store_timeout::set(store, 0ms));

  auto other = std::async(std::launch::async, [&] {
    auto values = VALUE(rdzv::synchronize(store, "b", 1, 2, "x"));
    CHECK(rdzv::elastic_barrier(store, "all", 2, patience, {1}));
    return values;
  });
  CHECK((VALUE(rdzv::synchronize(store, "a", 0, 2, "x")) == strings{"a", "b"}));
  CHECK(rdzv::elastic_barrier(store, "all", 2, patience, {0}));
  CHECK((other.get() == strings{"a", "b"}));
  CHECK(store.multi_set({{"y0", "0"}, {"y1", "1"}}));
  CHECK((VALUE(rdzv::get_all(store, 1, "y", 2)) == strings{"0", "1"}));

  rdzv::tracing traced{0};
  traced.name_of = [](std::int64_t rank) { return "host" + std::to_string(rank); };
  auto late = rdzv::elastic_barrier(store, "late", 3, 50ms, traced);
  CHECK(!late && late.error().code() == rdzv::status::timed_out);
  CHECK((late.error().ranks() == std::vector<std::int64_t>{1, 2} && late.error().nodes() == strings{"host1", "host2"}));
  CHECK(late.error().message().find("missing_ranks=[host1, host2]") != std::string::npos);
#if defined(__cpp_exceptions)
  traced.name_of = [](std::int64_t) -> std::string { throw std::runtime_error("no name"); };
  auto nameless = rdzv::elastic_barrier(store, "nameless", 2, 50ms, traced);
  CHECK(nameless.error().nodes() == strings{"(its name threw)"});
#endif

  auto info = VALUE(rdzv::store_info::build(store, 0, "127.0.0.1"));
  CHECK(info.has_socket() && info.master_port != 0 && info.master_addr == "127.0.0.1");
  auto server = VALUE(info.serve());
  CHECK(server.port() == info.master_port && !info.has_socket() && info.take_socket() == 0);
  CHECK(info.serve().error().code() == rdzv::status::invalid_argument);
  auto kept = VALUE(rdzv::store_info::build(store, 0, "h"));
  CHECK(close(kept.take_socket()) == 0);
}

// The library's own threads call what follows, and hand it over in ways that a sanitizer does not see. Whoever passes
// here comes after all who did before.
void in_order() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> guard(mutex);
}

// A backend whose rendezvous ends as its parameters say.
class own_handler : public rdzv::custom_handler {
 public:
  own_handler(std::string backend, rdzv::status outcome, std::shared_ptr<int> witness)
      : backend_(std::move(backend)), outcome_(outcome), witness_(std::move(witness)) {}

  std::string backend() const override { return backend_; }
  bool use_agent_store() const override { return true; }
  rdzv::status next_rendezvous(rdzv::reply& reply) override {
    in_order();
    if (outcome_ != rdzv::status::ok) {
      reply.set_message("so it was asked for");
      return outcome_;
    }
    auto store = rdzv::store::in_process();
    if (!store) return rdzv::status::io;
    reply.set_group(*store, 2, 3, "node-0", 29500, 5);
    return rdzv::status::ok;
  }
  rdzv::status is_closed(rdzv::reply& reply) override {
    in_order();
    reply.set_number(0);
    return rdzv::status::ok;
  }
  rdzv::status set_closed(rdzv::reply& reply) override {
    in_order();
#if defined(__cpp_exceptions)
    static_cast<void>(reply);
    throw std::runtime_error("it cannot close");
#else
    reply.set_message("it cannot close");
    return rdzv::status::io;
#endif
  }
  rdzv::status fail(std::string_view message, rdzv::reply& reply) override {
    in_order();
    reply.set_message(message);
    return rdzv::status::rendezvous_closed;
  }
  rdzv::status num_nodes_waiting(rdzv::reply& reply) override {
    in_order();
    reply.set_number(4);
    return rdzv::status::ok;
  }
  rdzv::status next_event(std::chrono::milliseconds timeout, rdzv::reply& reply) override {
    in_order();
    if (timeout == 0ms) return rdzv::status::ok;
    if (timeout >= 20s) {
      const auto until = std::chrono::steady_clock::now() + timeout;
      is_waiting = true;
      while (!is_cancelled && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      return rdzv::status::ok;
    }
    reply.set_event({rdzv::round_event_kind::peer_died, 1, 0, 2, RDZV_WHY_HEARTBEAT, "host-2", {}});
    return rdzv::status::ok;
  }
  bool shutdown() override {
    in_order();
    return true;
  }
  void cancel() override {
    in_order();
    is_cancelled = true;
  }

  static inline std::atomic<bool> is_waiting{false}, is_cancelled{false};

 private:
  std::string backend_;
  rdzv::status outcome_;
  std::shared_ptr<int> witness_;
};

rdzv::rendezvous_handler own(const rdzv::context& context, rdzv::status outcome) {
  rdzv::rendezvous_parameters made{"mine", "somewhere", "run", 1, 3};
  made.options = {{"outcome", std::to_string(static_cast<int>(outcome))}};
  auto handler = VALUE(rdzv::rendezvous_handler::create(made, &context));
  in_order();
  return handler;
}

rdzv::error failure_of(const rdzv::context& context, rdzv::status outcome) {
  auto handler = own(context, outcome);
  auto joined = handler.next_rendezvous();
  in_order();
  return std::move(joined).error();
}

#if defined(__cpp_exceptions)
template <class Exception>
bool throws(const rdzv::context& context, rdzv::status outcome) {
  auto handler = own(context, outcome);
  try {
    static_cast<void>(handler.next_rendezvous().or_throw());
  } catch (const Exception& caught) {
    in_order();
    return caught.error().code() == outcome && std::string(caught.what()) == "so it was asked for";
  } catch (...) {
  }
  return false;
}
#endif

void own_backend() {
  auto witness = std::make_shared<int>(0);
  {
    rdzv::context context;
    const auto code = [witness](const rdzv::rendezvous_parameters& asked, rdzv::reply& reply) {
      const auto outcome = VALUE(rdzv::option_as_int(asked, "outcome", 0));
      const std::string backend = asked.endpoint == "lie" ? "another" : asked.backend;
      reply.set_handler(std::make_unique<own_handler>(backend, static_cast<rdzv::status>(outcome), witness));
      in_order();
      return rdzv::status::ok;
    };
    CHECK(rdzv::register_backend(context, "mine", code, "the test's code", patience));
    CHECK(rdzv::register_backend(context, "mine", code).error().code() == rdzv::status::already_registered);
    CHECK(!rdzv::register_backend(context, "empty", nullptr));
    CHECK((VALUE(rdzv::list_backends(context)) == std::vector<std::string>{"mine", "rdzv", "static"}));
    auto handler = own(context, rdzv::status::ok);
    CHECK(handler.backend() == "mine" && handler.run_id() == "run" && handler.use_agent_store());
    auto info = VALUE(handler.next_rendezvous());
    CHECK(info.round == 5);
    CHECK(info.rank == 2 && info.world_size == 3 && info.master_port == 29500);
    CHECK(VALUE(info.store()).set("k", "v"));
    CHECK(!VALUE(handler.is_closed()) && VALUE(handler.num_nodes_waiting()) == 4 && VALUE(handler.shutdown()));
    auto told = handler.fail("code 1");
    CHECK(!told && told.error().message().find("code 1") != std::string::npos);
    auto refused = handler.set_closed();
    CHECK(refused.error().code() == rdzv::status::io && refused.error().message() == "it cannot close");
    CHECK(!VALUE(handler.next_event(0ms)));
    const auto event = VALUE(handler.next_event(30ms));
    CHECK(event && event->kind == rdzv::round_event_kind::peer_died && event->node_rank == 2);
    CHECK(event->ends_round() && !rdzv::round_event{}.ends_round());
    CHECK(VALUE(event->describe()) == "node host-2 (rank 2 of round 1) died: heartbeats were missed");
    handler.cancel();
    CHECK(!own_handler::is_cancelled);  // no function was in progress
    auto waiting = std::async(std::launch::async, [&handler] { return handler.next_event(20s); });
    while (!own_handler::is_waiting) std::this_thread::yield();
    handler.cancel();
    CHECK(waiting.get().error().code() == rdzv::status::cancelled && own_handler::is_cancelled);
    in_order();

    auto liar = rdzv::rendezvous_handler::create({"mine", "lie", "run"}, &context);
    CHECK(liar.error().code() == rdzv::status::backend_mismatch);
    const rdzv::error closed = failure_of(context, rdzv::status::rendezvous_closed);
    CHECK(closed.message() == "so it was asked for");
    for (const auto outcome :
         {rdzv::status::rendezvous_closed, rdzv::status::rendezvous_timed_out, rdzv::status::rendezvous_connection,
          rdzv::status::rendezvous_state, rdzv::status::rendezvous_graceful_exit, rdzv::status::rendezvous_replaced,
          rdzv::status::timed_out})
      CHECK(failure_of(context, outcome).code() == outcome);
    CHECK(closed.cause().empty() && closed.ranks().empty() && closed.nodes().empty());
#if defined(__cpp_exceptions)
    CHECK(throws<rdzv::rendezvous_closed>(context, rdzv::status::rendezvous_closed));
    CHECK(throws<rdzv::rendezvous_timeout>(context, rdzv::status::rendezvous_timed_out));
    CHECK(throws<rdzv::rendezvous_connection>(context, rdzv::status::rendezvous_connection));
    CHECK(throws<rdzv::rendezvous_state>(context, rdzv::status::rendezvous_state));
    CHECK(throws<rdzv::rendezvous_graceful_exit>(context, rdzv::status::rendezvous_graceful_exit));
    CHECK(throws<rdzv::rendezvous_replaced>(context, rdzv::status::rendezvous_replaced));
    CHECK(throws<rdzv::rendezvous_exception>(context, rdzv::status::rendezvous_closed));
    CHECK(throws<rdzv::exception>(context, rdzv::status::rendezvous_closed));
#endif
  }
  // What was told to cancel does so on a thread of its own.
  while (witness.use_count() != 1) std::this_thread::yield();
}

class own_rendezvous : public rdzv::custom_rendezvous {
 public:
  rdzv::status next(rdzv::reply& reply) override {
    in_order();
    auto store = rdzv::store::in_process();
    if (!store) return rdzv::status::io;
    if (rank_ == 3) {
      std::unique_lock<std::mutex> guard(mutex_);
      cancelled_.wait(guard, [this] { return is_cancelled_; });
      return rdzv::status::cancelled;
    }
    reply.set_group(*store, rank_, -1, "node-0", rank_ == 2 ? 99999 : 29500);
    ++rank_;
    in_order();
    return rdzv::status::ok;
  }
  void cancel() override {
    const std::lock_guard<std::mutex> guard(mutex_);
    is_cancelled_ = true;
    cancelled_.notify_all();
  }
  ~own_rendezvous() override { is_gone = true; }
  static inline std::atomic<bool> is_gone{false};

 private:
  std::int64_t rank_ = 0;
  std::mutex mutex_;
  std::condition_variable cancelled_;
  bool is_cancelled_ = false;
};

void own_scheme() {
  rdzv::context context;
  const auto code = [](const rdzv::url_request& asked, rdzv::reply& reply) {
    if (asked.url != "mine://x?rank=7" || asked.timeout != 1800s || !asked.listen_host.empty())
      return rdzv::status::invalid_argument;
    reply.set_rendezvous(std::make_unique<own_rendezvous>());
    in_order();
    return rdzv::status::ok;
  };
  CHECK(rdzv::register_url_scheme(context, "mine", code));
  CHECK(rdzv::register_url_scheme(context, "mine", code).error().code() == rdzv::status::already_registered);
  rdzv::url_options options;
  options.rank = 7;
  auto url = VALUE(rdzv::url_rendezvous::create("mine://x", options, &context));
  in_order();
  CHECK(VALUE(url.next()).rank == 0);
  auto second = VALUE(url.next());
  CHECK(second.rank == 1 && second.world_size == -1);
  in_order();
  // A port that none has is refused, and not cut down to one.
  const auto refused = url.next();
  CHECK(refused.error().code() == rdzv::status::invalid_argument);
  CHECK(refused.error().message().find("the port 99999 is not from 0 to 65535") != std::string::npos);
  // What waits in the code is ended by its own `cancel`, so that it can go.
  own_rendezvous::is_gone = false;
  {
    auto waiting = std::move(url);
    auto joined = std::async(std::launch::async, [&waiting] { return waiting.next(); });
    while (joined.wait_for(0s) != std::future_status::ready) waiting.cancel();
    CHECK(joined.get().error().code() == rdzv::status::cancelled);
  }
  while (!own_rendezvous::is_gone) std::this_thread::yield();
}

}  // namespace

void rendezvous_in_cpp() {
  parameters();
  durations();
  static_backend();
  urls();
  utilities();
  own_backend();
  own_scheme();
}
