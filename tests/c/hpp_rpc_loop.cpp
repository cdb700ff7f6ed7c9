// Workers of RPC groups in event loops, through the C++ header: one thread, nothing that blocks.
#include "hpp_check.hpp"

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

namespace {

using rdzv::event_kind;
using strings = std::vector<std::string>;

static_assert(is_move_only<rdzv::loop_rpc> && is_move_only<rdzv::loop_event>);

rdzv::rpc_options worker_options() {
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  options.host = "127.0.0.1";
  return options;
}

// The next event, which is of this kind and of this worker.
rdzv::loop_event next_of(rdzv::event_loop& loop, const rdzv::loop_rpc& of, event_kind kind) {
  auto event = await_event(loop);
  CHECK(event.member == of.member() && event.kind == kind);
  return event;
}

// The next event ends this call of this worker.
void end_of(rdzv::event_loop& loop, const rdzv::loop_rpc& of, const rdzv::operation& op) {
  CHECK(next_of(loop, of, event_kind::completed).op == op.c_handle());
}

// Of -1 the event tells, since a URL might have said it; the words are those of who waits.
void loops_refuse_the_same_numbers(const rdzv::store& store) {
  const auto nobody = VALUE(rdzv::rpc_handlers::create());
  auto loop = VALUE(rdzv::event_loop::create());
  for (const std::int32_t rank : {-2, 65536, 65536 + 1}) {
    const auto waiting = rdzv::rpc::create("three", rank, -1, over(store, worker_options()), nobody);
    const auto refused = rdzv::loop_rpc::create(loop, "three", rank, -1, over(store, worker_options()), nobody);
    CHECK(refused.error().code() == rdzv::status::invalid_argument);
    CHECK(refused.error().message() == waiting.error().message());
  }
  const auto waiting = rdzv::rpc::create("three", -1, -1, over(store, worker_options()), nobody);
  const auto nameless = VALUE(rdzv::loop_rpc::create(loop, "three", -1, -1, over(store, worker_options()), nobody));
  const auto event = next_of(loop, nameless, event_kind::rpc_joined);
  CHECK(event.failure->code() == rdzv::status::invalid_argument);
  CHECK(event.failure->message() == waiting.error().message());
}

void attempts_in_a_loop_are_cancelled(const rdzv::store& store) {
  const rdzv::cancel_token token;
  auto options = worker_options();
  options.token = &token;
  const auto nobody = VALUE(rdzv::rpc_handlers::create());
  auto loop = VALUE(rdzv::event_loop::create());
  // The other one does not come.
  const auto first = VALUE(rdzv::loop_rpc::create(loop, "first", 0, 2, over(store, options), nobody));
  token.cancel();
  CHECK(next_of(loop, first, event_kind::rpc_joined).failure->code() == rdzv::status::cancelled);
}

void workers_of_one_loop_call_each_other(const rdzv::store& store) {
  auto loop = VALUE(rdzv::event_loop::create());
  auto answering = VALUE(rdzv::rpc_handlers::create());
  CHECK(answering.on_loop("add"));
  CHECK(answering.on_loop("add").error().code() == rdzv::status::already_registered);
  const auto options = worker_options();
  auto one = VALUE(rdzv::loop_rpc::create(loop, "one", 1, 2, over(store, options), answering));
  auto two = VALUE(rdzv::loop_rpc::create(loop, "two", 0, 2, over(store, options), answering));
  for (int i = 0; i < 2; ++i) {
    const auto event = await_event(loop);
    CHECK(event.kind == event_kind::rpc_joined && !event.failure);
  }
  CHECK(VALUE(one.handle()).info().name == "one" && VALUE(VALUE(two.handle()).workers()).size() == 2);
  rdzv::operation first, second;
  CHECK(one.call(first, "two", "add", 1, 2));
  next_of(loop, two, event_kind::rpc_request);
  {
    auto asked = VALUE(rdzv::rpc_request_of(loop));
    CHECK(!rdzv::rpc_request_of(loop));
    CHECK(asked.request.caller() == "one" && asked.request.handler() == "add");
    asked.respond_with([](const rdzv::rpc_request& request, int a, int b) { return a + b + (request.caller_id() - 1); });
    CHECK(!asked.responder);
  }
  end_of(loop, one, first);
  CHECK(VALUE(rdzv::rpc_response_of<int>(first)) == 3);
  CHECK(VALUE(rdzv::rpc_response_of<rdzv::rpc_bytes>(first)) == value_in(VALUE(first.outcome())));
  const auto other = rdzv::rpc_response_of<std::string>(first, "two", "add").error();
  CHECK(other.code() == rdzv::status::rpc_malformed && other.nodes() == strings{"two"} && other.operation() == "call");
  CHECK(other.message() == "add at two: it returns (i32), and was called for (str)");

  // One that is answered later, after one whose arguments cannot be read.
  CHECK(two.call(first, "one", "add", 5));
  next_of(loop, one, event_kind::rpc_request);
  auto kept = VALUE(rdzv::rpc_request_of(loop));
  rdzv::rpc_responder later = std::move(kept.responder);
  CHECK(two.call(second, "one", "add", 7));
  next_of(loop, one, event_kind::rpc_request);
  VALUE(rdzv::rpc_request_of(loop)).respond_with([](int a, int b) { return a * b; });
  end_of(loop, two, second);
  const auto malformed = rdzv::rpc_response_of<int>(second);
  CHECK(malformed.error().code() == rdzv::status::rpc_malformed && malformed.error().nodes() == strings{"one"});
  CHECK(malformed.error().cause() == "the types of the arguments do not match: add takes (i32,i32), was called with (i32)");
  std::move(later).send_value(25);
  end_of(loop, two, first);
  CHECK(VALUE(rdzv::rpc_response_of<int>(first)) == 25);
#if defined(__cpp_exceptions)
  CHECK(one.call(first, "two", "add"));
  next_of(loop, two, event_kind::rpc_request);
  VALUE(rdzv::rpc_request_of(loop)).respond_with([]() -> int { throw std::runtime_error("no such luck"); });
  end_of(loop, one, first);
  CHECK(rdzv::rpc_response_of<int>(first).error().cause() == "no such luck");
#endif
  // What nobody answers.
  auto caller = VALUE(one.handle());
  CHECK(one.on_loop("more") && caller.notify("one", "more", 7));
  next_of(loop, one, event_kind::rpc_request);
  CHECK(!VALUE(rdzv::rpc_request_of(loop)).request.response_is_wanted());
  const std::string large(std::size_t{1} << 20, 'x');
  CHECK(caller.notify("two", "add", rdzv::rpc_bytes{large}));
  next_of(loop, two, event_kind::rpc_request);
  {
    // They may outlive the event.
    const auto asked = VALUE(rdzv::rpc_request_of(loop));
    const std::string_view lay_there = asked.request.bytes();
    const rdzv::rpc_payload taken = asked.request.take();
    CHECK(!VALUE(loop.next_event()) && taken.bytes() == large && taken.bytes().data() == lay_there.data());
  }
  CHECK(one.call(first, "two", "add", rdzv::rpc_bytes{large}));
  next_of(loop, two, event_kind::rpc_request);
  {
    auto asked = VALUE(rdzv::rpc_request_of(loop));
    std::move(asked.responder).send(std::string(asked.request.bytes()));
  }
  end_of(loop, one, first);
  CHECK(VALUE(rdzv::rpc_response_of<rdzv::rpc_bytes>(first)) == large);
  // One that is cancelled while its handler has not answered.
  CHECK(one.call(first, "two", "add", 1, 2));
  next_of(loop, two, event_kind::rpc_request);
  {
    const auto asked = VALUE(rdzv::rpc_request_of(loop));
    CHECK(loop.cancel(first));
    end_of(loop, one, first);
    CHECK(rdzv::rpc_response_of<int>(first).error().code() == rdzv::status::cancelled);
    CHECK(rdzv::rpc_response_of<int>(first).error().nodes() == strings{"two"});
  }

  CHECK(one.shutdown() && two.shutdown(rdzv::rpc_shutdown::graceful));
  // Who goes first may be told of to the other.
  for (int over = 0; over < 2;) {
    const auto happened = await_event(loop);
    CHECK(!happened.failure);
    over += happened.kind == event_kind::rpc_over ? 1 : 0;
  }
  CHECK(!one.call(first, "two", "add", 1, 2));
}

// A worker that waits and one of a loop, which meet by URL.
class mixed_group {
 public:
  explicit mixed_group(std::uint16_t port) : loop_(VALUE(rdzv::event_loop::create())) {
    auto options = worker_options();
    options.init_method = "tcp://127.0.0.1:" + std::to_string(port);
    auto of_waiting = VALUE(rdzv::rpc_handlers::create());
    CHECK(of_waiting.on("refuse", [](int) -> rdzv::result<int> { return rdzv::error(RDZV_CONFLICT, nullptr); }));
    CHECK(of_waiting.on("keep", [this](const rdzv::rpc_request&, rdzv::rpc_responder& responder) {
      const std::lock_guard<std::mutex> lock(mutex_);
      kept_.push_back(std::move(responder));
    }));
    CHECK(of_waiting.on("add", [](int a, int b) { return a + b; }));
    waiting_.emplace(VALUE(rdzv::rpc::create("waiting", 1, -1, options, of_waiting)));
    auto of_looping = VALUE(rdzv::rpc_handlers::create());
    CHECK(of_looping.on_loop("add"));
    CHECK(of_looping.on("inline", [](int given) { return given + 1; }, rdzv::rpc_run::on_reactor));
    CHECK(of_looping.on("pooled", [](int given) { return given + 2; }));
    looping_.emplace(VALUE(rdzv::loop_rpc::create(loop_, "looping", 2, -1, options, of_looping)));
    CHECK(!next_of(loop_, *looping_, event_kind::rpc_joined).failure);
    CHECK(VALUE(waiting_->next_event(patience))->name == "looping");
  }

  void handlers_of_all_kinds_answer() {
    // Nobody turns the loop meanwhile.
    CHECK(VALUE(waiting_->call<int>("looping", "inline", 1)) == 2);
    CHECK(VALUE(waiting_->call<int>(2, "pooled", 1)) == 3);
    auto sum = VALUE(waiting_->start<int>("looping", "add", 3, 4));
    next_of(loop_, *looping_, event_kind::rpc_request);
    VALUE(rdzv::rpc_request_of(loop_)).respond_with([](int a, int b) { return a + b; });
    CHECK(VALUE(sum.get()) == 7);
    // Whom a number names.
    CHECK(looping_->call(op_, 1, "add", 5, 6));
    end_of(loop_, *looping_, op_);
    CHECK(VALUE(rdzv::rpc_response_of<int>(op_)) == 11);
    CHECK(looping_->call(op_, 2, "inline", 7));
    end_of(loop_, *looping_, op_);
    CHECK(VALUE(rdzv::rpc_response_of<int>(op_)) == 8);
    CHECK(looping_->call(op_, 3, "add", 5, 6).error().code() == rdzv::status::rpc_unknown_worker);
  }

  // As who waits is told.
  void failures_are_told_whole() {
    CHECK(looping_->call(op_, "waiting", "refuse", 1));
    end_of(loop_, *looping_, op_);
    const auto refused = rdzv::rpc_response_of<int>(op_);
    const auto waited = waiting_->call<int>("waiting", "refuse", 1);
    CHECK(refused.error().code() == rdzv::status::rpc_handler_failed);
    CHECK(refused.error().cause() == "conflict" && refused.error().cause() == waited.error().cause());
    CHECK(refused.error().nodes() == strings{"waiting"} && refused.error().nodes() == waited.error().nodes());
    CHECK(refused.error().operation() == "call" && refused.error().operation() == waited.error().operation());
    CHECK(refused.error().phase() == waited.error().phase());
    const std::chrono::milliseconds patient{50};
    CHECK(looping_->call(op_, {"waiting", patient}, "keep"));
    end_of(loop_, *looping_, op_);
    const auto late = rdzv::rpc_response_of(op_);
    CHECK(late.error().code() == rdzv::status::timed_out && late.error().elapsed() >= patient);
    CHECK(late.error().nodes() == strings{"waiting"});
    CHECK(looping_->call(op_, "waiting", "none"));
    end_of(loop_, *looping_, op_);
    const auto none = rdzv::rpc_response_of(op_);
    CHECK(none.error().code() == rdzv::status::rpc_no_handler && none.error().nodes() == strings{"waiting"});
  }

  // A member that is brought into the loop, until both have gone.
  void members_come_into_loops() {
    auto added = VALUE(rdzv::loop_rpc::add(loop_, *waiting_));
    CHECK(rdzv::loop_rpc::add(loop_, *waiting_).error().code() == rdzv::status::already_registered);
    CHECK(added.member() != looping_->member() && added.on_loop("asked"));
    CHECK(looping_->call(op_, "waiting", "asked", 20));
    next_of(loop_, added, event_kind::rpc_request);
    VALUE(rdzv::rpc_request_of(loop_)).respond_with([](int given) { return given + 1; });
    end_of(loop_, *looping_, op_);
    CHECK(VALUE(rdzv::rpc_response_of<int>(op_)) == 21);
    CHECK(added.call(op_, "looping", "pooled", 1));
    end_of(loop_, added, op_);
    CHECK(VALUE(rdzv::rpc_response_of<int>(op_)) == 3);

    CHECK(looping_->shutdown());
    bool has_left = false, is_over = false;
    while (!has_left || !is_over) {
      const auto event = await_event(loop_);
      const bool is_added = event.member == added.member();
      CHECK(event.kind == (is_added ? event_kind::rpc : event_kind::rpc_over) && !event.failure);
      if (is_added) CHECK(VALUE(rdzv::rpc_event_of(loop_)).kind == rdzv::rpc_event_kind::left);
      (is_added ? has_left : is_over) = true;
    }
    CHECK(waiting_->shutdown());
    next_of(loop_, added, event_kind::rpc_over);
  }

 private:
  // Handlers have them, and end first.
  std::mutex mutex_;
  std::vector<rdzv::rpc_responder> kept_;
  rdzv::event_loop loop_;
  rdzv::operation op_;
  std::optional<rdzv::rpc> waiting_;
  std::optional<rdzv::loop_rpc> looping_;
};

}  // namespace

void rpc_in_loops_in_cpp() {
  const auto server = VALUE(rdzv::server::start());
  const auto store = VALUE(rdzv::store::connect("127.0.0.1", server.port()));
  workers_of_one_loop_call_each_other(VALUE(store.with_prefix("loop")));
  loops_refuse_the_same_numbers(VALUE(store.with_prefix("numbers")));
  attempts_in_a_loop_are_cancelled(VALUE(store.with_prefix("cancelled")));
  mixed_group group(server.port());
  group.handlers_of_all_kinds_answer();
  group.failures_are_told_whole();
  group.members_come_into_loops();
}
