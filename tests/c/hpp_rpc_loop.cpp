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

static_assert(is_move_only<rdzv::loop_rpc> && std::is_copy_constructible_v<rdzv::loop_event>);

rdzv::rpc_options worker_options() {
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  options.host = "127.0.0.1";
  return options;
}

// The next event, which is of this kind and of this worker.
rdzv::loop_event next_of(rdzv::event_loop& loop, const rdzv::loop_rpc& of, event_kind kind) {
  auto event = await_event(loop);
  CHECK(event.store == of.number() && event.kind == kind);
  return event;
}

// Of -1 the event tells, since a URL might have said it; the words are those of who waits.
void loops_refuse_the_same_numbers(const rdzv::store& store) {
  const auto nobody = VALUE(rdzv::rpc_handlers::create());
  auto loop = VALUE(rdzv::event_loop::create());
  for (const std::int32_t rank : {-2, 65536, 65536 + 1}) {
    const auto waiting = rdzv::rpc::init_over(store, "three", rank, -1, worker_options(), nobody);
    const auto refused = rdzv::loop_rpc::init_over(loop, store, "three", rank, -1, worker_options(), nobody);
    CHECK(refused.error().code() == rdzv::status::invalid_argument);
    CHECK(refused.error().message() == waiting.error().message());
  }
  const auto waiting = rdzv::rpc::init_over(store, "three", -1, -1, worker_options(), nobody);
  const auto nameless = VALUE(rdzv::loop_rpc::init_over(loop, store, "three", -1, -1, worker_options(), nobody));
  const auto event = next_of(loop, nameless, event_kind::rpc_joined);
  CHECK(event.code == rdzv::status::invalid_argument && event.message == waiting.error().message());
}

void attempts_in_a_loop_are_cancelled(const rdzv::store& store) {
  rdzv::rpc_canceller canceller;
  auto options = worker_options();
  options.canceller = &canceller;
  const auto nobody = VALUE(rdzv::rpc_handlers::create());
  auto loop = VALUE(rdzv::event_loop::create());
  // The other one does not come.
  const auto first = VALUE(rdzv::loop_rpc::init_over(loop, store, "first", 0, 2, options, nobody));
  canceller.cancel();
  CHECK(next_of(loop, first, event_kind::rpc_joined).code == rdzv::status::cancelled);
}

void workers_of_one_loop_call_each_other(const rdzv::store& store) {
  auto loop = VALUE(rdzv::event_loop::create());
  auto answering = VALUE(rdzv::rpc_handlers::create());
  CHECK(answering.on_loop("add"));
  CHECK(answering.on_loop("add").error().code() == rdzv::status::already_registered);
  const auto options = worker_options();
  auto one = VALUE(rdzv::loop_rpc::init_over(loop, store, "one", 1, 2, options, answering));
  auto two = VALUE(rdzv::loop_rpc::init_over(loop, store, "two", 0, 2, options, answering));
  for (int i = 0; i < 2; ++i) {
    const auto event = await_event(loop);
    CHECK(event.kind == event_kind::rpc_joined && event.code == rdzv::status::ok);
  }
  CHECK(VALUE(one.handle()).name() == "one" && VALUE(VALUE(two.handle()).workers()).size() == 2);
  const auto first = VALUE(one.call("two", "add", 1, 2));
  CHECK(next_of(loop, two, event_kind::rpc_request).value.empty());
  {
    auto asked = VALUE(rdzv::rpc_request_of(loop));
    CHECK(!rdzv::rpc_request_of(loop));
    CHECK(asked.request().caller() == "one" && asked.request().handler() == "add");
    asked.answer_with([](const rdzv::rpc_request& request, int a, int b) { return a + b + (request.caller_id() - 1); });
    CHECK(!asked.responder());
  }
  auto event = next_of(loop, one, event_kind::completed);
  CHECK(event.operation == first && VALUE(rdzv::rpc_answer_of<int>(event)) == 3);
  CHECK(event.failure == nullptr && VALUE(rdzv::rpc_answer_of<rdzv::rpc_bytes>(event)) == event.value);
  const auto other = rdzv::rpc_answer_of<std::string>(event).error();
  CHECK(other.code() == rdzv::status::rpc_malformed && other.nodes() == strings{"two"} && other.operation() == "call");
  CHECK(other.message() == "add at two: it answers (i32), and was called for (str)");
  CHECK(event.called.callee == "two" && event.called.callee_id == -1 && event.called.handler == "add");

  // One that is answered later, after one whose arguments cannot be read.
  CHECK(two.call("one", "add", 5));
  next_of(loop, one, event_kind::rpc_request);
  auto kept = VALUE(rdzv::rpc_request_of(loop));
  rdzv::rpc_responder later = std::move(kept.responder());
  CHECK(two.call("one", "add", 7));
  next_of(loop, one, event_kind::rpc_request);
  VALUE(rdzv::rpc_request_of(loop)).answer_with([](int a, int b) { return a * b; });
  event = next_of(loop, two, event_kind::completed);
  const auto malformed = rdzv::rpc_answer_of<int>(event);
  CHECK(malformed.error().code() == rdzv::status::rpc_malformed && malformed.error().nodes() == strings{"one"});
  CHECK(malformed.error().cause() == "the types of the arguments do not match: add takes (i32,i32), was called with (i32)");
  std::move(later).answer_value(25);
  CHECK(VALUE(rdzv::rpc_answer_of<int>(next_of(loop, two, event_kind::completed))) == 25);
#if defined(__cpp_exceptions)
  CHECK(one.call("two", "add"));
  next_of(loop, two, event_kind::rpc_request);
  VALUE(rdzv::rpc_request_of(loop)).answer_with([]() -> int { throw std::runtime_error("no such luck"); });
  event = next_of(loop, one, event_kind::completed);
  CHECK(event.cause == "no such luck" && !rdzv::rpc_answer_of<int>(event));
#endif
  // What nobody answers.
  CHECK(one.on_loop("more") && one.notify("one", "more", 7));
  next_of(loop, one, event_kind::rpc_request);
  CHECK(!VALUE(rdzv::rpc_request_of(loop)).request().answer_is_wanted());
  const std::string large(std::size_t{1} << 20, 'x');
  CHECK(one.notify_bytes("two", "add", large));
  CHECK(next_of(loop, two, event_kind::rpc_request).value.empty());
  {
    // They may outlive the event.
    const auto asked = VALUE(rdzv::rpc_request_of(loop));
    const std::string_view lay_there = asked.request().bytes();
    const rdzv::rpc_payload taken = asked.request().take();
    CHECK(!VALUE(loop.next_event()) && taken.bytes() == large && taken.bytes().data() == lay_there.data());
  }
  // Bytes are taken out of the event of the answer.
  CHECK(one.call_bytes("two", "add", large));
  next_of(loop, two, event_kind::rpc_request);
  {
    auto asked = VALUE(rdzv::rpc_request_of(loop));
    std::move(asked.responder()).answer(std::string(asked.request().bytes()));
  }
  event = next_of(loop, one, event_kind::completed);
  const char* const place = event.value.data();
  const auto bytes = VALUE(rdzv::rpc_answer_of<rdzv::rpc_bytes>(std::move(event)));
  CHECK(bytes == large && bytes.data() == place);
  // One that is given up while its handler has not answered.
  const auto given_up = VALUE(one.call("two", "add", 1, 2));
  next_of(loop, two, event_kind::rpc_request);
  {
    const auto asked = VALUE(rdzv::rpc_request_of(loop));
    CHECK(one.cancel(given_up));
    event = next_of(loop, one, event_kind::completed);
    CHECK(event.operation == given_up && event.code == rdzv::status::cancelled);
    CHECK(rdzv::rpc_answer_of<int>(event).error().nodes() == strings{"two"});
  }

  CHECK(one.shutdown() && two.shutdown(rdzv::rpc_shutdown::graceful));
  // Who goes first may be told of to the other.
  for (int over = 0; over < 2;) {
    const auto happened = await_event(loop);
    CHECK(happened.kind == event_kind::rpc && happened.code == rdzv::status::ok);
    over += VALUE(rdzv::rpc_event_of(loop)).kind == rdzv::rpc_event_kind::over ? 1 : 0;
  }
  CHECK(!one.call("two", "add", 1, 2));
}

// A worker that waits and one of a loop, which meet by URL.
class mixed_group {
 public:
  explicit mixed_group(std::uint16_t port) : loop_(VALUE(rdzv::event_loop::create())) {
    auto options = worker_options();
    options.init_method = "tcp://127.0.0.1:" + std::to_string(port);
    auto of_waiting = VALUE(rdzv::rpc_handlers::create());
    CHECK(of_waiting.on("refuse", [](int) -> rdzv::result<int> { return rdzv::error(RDZV_CONFLICT, nullptr); }));
    CHECK(of_waiting.on_bytes("keep", [this](const rdzv::rpc_request&, rdzv::rpc_responder& responder) {
      const std::lock_guard<std::mutex> lock(mutex_);
      kept_.push_back(std::move(responder));
    }));
    CHECK(of_waiting.on("add", [](int a, int b) { return a + b; }));
    waiting_.emplace(VALUE(rdzv::rpc::init("waiting", 1, -1, options, of_waiting)));
    auto of_looping = VALUE(rdzv::rpc_handlers::create());
    CHECK(of_looping.on_loop("add"));
    CHECK(of_looping.on("inline", [](int given) { return given + 1; }, rdzv::rpc_run::on_reactor));
    CHECK(of_looping.on("pooled", [](int given) { return given + 2; }));
    looping_.emplace(VALUE(rdzv::loop_rpc::init(loop_, "looping", 2, -1, options, of_looping)));
    CHECK(next_of(loop_, *looping_, event_kind::rpc_joined).code == rdzv::status::ok);
    CHECK(VALUE(waiting_->next_event(patience))->name == "looping");
  }

  void handlers_of_all_kinds_answer() {
    // Nobody turns the loop meanwhile.
    CHECK(VALUE(waiting_->call<int>("looping", "inline", 1)) == 2);
    CHECK(VALUE(waiting_->call<int>(2, "pooled", 1)) == 3);
    auto sum = VALUE(waiting_->start<int>("looping", "add", 3, 4));
    next_of(loop_, *looping_, event_kind::rpc_request);
    VALUE(rdzv::rpc_request_of(loop_)).answer_with([](int a, int b) { return a + b; });
    CHECK(VALUE(sum.get()) == 7);
    // Whom a number names.
    CHECK(looping_->call(1, "add", 5, 6));
    CHECK(VALUE(rdzv::rpc_answer_of<int>(next_of(loop_, *looping_, event_kind::completed))) == 11);
    CHECK(looping_->call(2, "inline", 7));
    CHECK(VALUE(rdzv::rpc_answer_of<int>(next_of(loop_, *looping_, event_kind::completed))) == 8);
    CHECK(looping_->call(3, "add", 5, 6).error().code() == rdzv::status::rpc_unknown_worker);
  }

  // As who waits is told.
  void failures_are_told_whole() {
    CHECK(looping_->call("waiting", "refuse", 1));
    const auto event = next_of(loop_, *looping_, event_kind::completed);
    const auto refused = rdzv::rpc_answer_of<int>(event);
    const auto waited = waiting_->call<int>("waiting", "refuse", 1);
    CHECK(refused.error().code() == rdzv::status::rpc_handler_failed && refused.error().code() == event.code);
    CHECK(refused.error().cause() == "conflict" && refused.error().cause() == waited.error().cause());
    CHECK(refused.error().nodes() == strings{"waiting"} && refused.error().nodes() == waited.error().nodes());
    CHECK(refused.error().operation() == "call" && refused.error().operation() == waited.error().operation());
    CHECK(refused.error().phase() == waited.error().phase());
    CHECK(event.failure->cause() == event.cause && event.failure->message() == event.message);
    CHECK(event.failure->nodes() == event.nodes && refused.error().message() == event.message);

    const std::chrono::milliseconds patient{50};
    CHECK(looping_->call_within(patient, "waiting", "keep"));
    const auto late = rdzv::rpc_answer_of(next_of(loop_, *looping_, event_kind::completed));
    CHECK(late.error().code() == rdzv::status::timed_out && late.error().elapsed() >= patient);
    CHECK(late.error().nodes() == strings{"waiting"});
    CHECK(looping_->call("waiting", "none"));
    const auto none = rdzv::rpc_answer_of(next_of(loop_, *looping_, event_kind::completed));
    CHECK(none.error().code() == rdzv::status::rpc_no_handler && none.error().nodes() == strings{"waiting"});
  }

  // A member that is brought into the loop, until both have gone.
  void members_come_into_loops() {
    auto added = VALUE(rdzv::loop_rpc::add(loop_, *waiting_));
    CHECK(rdzv::loop_rpc::add(loop_, *waiting_).error().code() == rdzv::status::already_registered);
    CHECK(added.number() != looping_->number() && added.on_loop("asked"));
    CHECK(looping_->call("waiting", "asked", 20));
    next_of(loop_, added, event_kind::rpc_request);
    VALUE(rdzv::rpc_request_of(loop_)).answer_with([](int given) { return given + 1; });
    CHECK(VALUE(rdzv::rpc_answer_of<int>(next_of(loop_, *looping_, event_kind::completed))) == 21);
    CHECK(added.call("looping", "pooled", 1));
    CHECK(VALUE(rdzv::rpc_answer_of<int>(next_of(loop_, added, event_kind::completed))) == 3);

    CHECK(looping_->shutdown());
    bool has_left = false, is_over = false;
    while (!has_left || !is_over) {
      const auto event = await_event(loop_);
      CHECK(event.kind == event_kind::rpc && event.code == rdzv::status::ok);
      const auto happened = VALUE(rdzv::rpc_event_of(loop_));
      CHECK(happened.kind == (event.store == added.number() ? rdzv::rpc_event_kind::left : rdzv::rpc_event_kind::over));
      has_left = has_left || event.store == added.number();
      is_over = is_over || event.store == looping_->number();
    }
    CHECK(waiting_->shutdown());
    next_of(loop_, added, event_kind::rpc);
    CHECK(VALUE(rdzv::rpc_event_of(loop_)).kind == rdzv::rpc_event_kind::over);
  }

 private:
  // Handlers have them, and end first.
  std::mutex mutex_;
  std::vector<rdzv::rpc_responder> kept_;
  rdzv::event_loop loop_;
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
