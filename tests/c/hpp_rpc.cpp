// RPC groups through the C++ header: typed handlers and calls, what travels, and how calls end.
#include "hpp_check.hpp"

#include <array>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

namespace {

struct point {
  int x = 0;
  int y = 0;
};

// A type with a codec of its own.
struct named {
  std::string name;
  std::optional<double> weight;
};

}  // namespace

template <>
struct rdzv::codec<point> : rdzv::codec_of_memory<point> {};

template <>
struct rdzv::codec<named> {
  static void write(writer& out, const named& value) {
    codec<std::string>::write(out, value.name);
    codec<std::optional<double>>::write(out, value.weight);
  }
  static bool read(reader& in, named& value) {
    return codec<std::string>::read(in, value.name) && codec<std::optional<double>>::read(in, value.weight);
  }
};

namespace {

static_assert(is_move_only<rdzv::rpc> && is_move_only<rdzv::rpc_handlers> && is_move_only<rdzv::rpc_observer> &&
              is_move_only<rdzv::rpc_future<int>> && is_move_only<rdzv::rpc_responder> && is_move_only<rdzv::loop_rpc>);

template <class T>
T there_and_back(const T& value) {
  rdzv::writer out;
  rdzv::codec<T>::write(out, value);
  const std::string bytes = out.take();
  T back{};
  rdzv::reader in(bytes);
  CHECK(rdzv::codec<T>::read(in, back) && in.left() == 0);
  // Whatever is cut off is missed.
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    T part{};
    rdzv::reader cut(std::string_view(bytes).substr(0, size));
    CHECK(!rdzv::codec<T>::read(cut, part));
  }
  return back;
}

void values_travel() {
  const std::string text("a\0b", 3);
  CHECK(there_and_back(text) == text);
  CHECK(there_and_back(std::numeric_limits<std::int64_t>::min()) == std::numeric_limits<std::int64_t>::min());
  CHECK(there_and_back(0.1) == 0.1 && there_and_back(true) && there_and_back('x') == 'x');
  const std::vector<double> numbers{1.5, -2.5};
  CHECK(there_and_back(numbers) == numbers);
  const std::vector<bool> flags{true, false, true};
  CHECK(there_and_back(flags) == flags);
  const std::vector<std::vector<std::string>> nested{{"a"}, {}, {"b", ""}};
  CHECK(there_and_back(nested) == nested);
  using mixed = std::tuple<int, std::array<std::pair<std::string, float>, 2>, std::optional<bool>>;
  const mixed value{7, {{{"x", 1.0F}, {"y", 2.0F}}}, std::nullopt};
  CHECK(there_and_back(value) == value);
  CHECK(there_and_back(point{3, 4}).y == 4);
  // Nobody makes room for what is not there, and a truth is 0 or 1.
  std::vector<std::string> many;
  rdzv::reader lie(std::string_view("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  CHECK(!rdzv::codec<std::vector<std::string>>::read(lie, many));
  bool flag = false;
  rdzv::reader two("\2");
  CHECK(!rdzv::codec<bool>::read(two, flag));
}

rdzv::rpc_handlers handlers() {
  auto made = VALUE(rdzv::rpc_handlers::create());
  CHECK(made.on("add", [](int a, int b) { return a + b; }, rdzv::rpc_run::on_reactor));
  CHECK(made.on("greet", [](const rdzv::rpc_request& request, const std::string& words) {
    CHECK(request.handler() == "greet" && request.answer_is_wanted() && request.time_left());
    return request.caller() + " " + std::to_string(request.caller_id()) + " says " + words;
  }));
  CHECK(made.on("flip", [](point p) { return point{p.y, p.x}; }));
  CHECK(made.on("double", [](named given) -> named {
    return {given.name + given.name, given.weight ? std::optional<double>(*given.weight * 2) : std::nullopt};
  }));
  CHECK(made.on("nothing", [](std::vector<double>) {}));
  CHECK(made.on("refuse", [](int) -> rdzv::result<int> { return rdzv::error(RDZV_CONFLICT, nullptr); }));
  CHECK(made.on("agree", [](int given) -> rdzv::result<int> { return given; }));
  CHECK(made.on("check", []() -> rdzv::result<void> { return {}; }));
  CHECK(made.on_bytes("echo", [](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    CHECK(responder.is_wanted());
    std::move(responder).answer(std::string(request.bytes()));
    CHECK(!responder);
  }));
  CHECK(made.on_bytes("forget", [](const rdzv::rpc_request&, rdzv::rpc_responder&) {}));
#if defined(__cpp_exceptions)
  CHECK(made.on("throw", [](int number) -> int { throw std::runtime_error("no such luck: " + std::to_string(number)); }));
  CHECK(made.on("throw an int", []() { throw 7; }));
#endif
  CHECK(made.on("add", [] { return 0; }).error().code() == rdzv::status::already_registered);
  CHECK(made.on_bytes("x", nullptr).error().code() == rdzv::status::invalid_argument);
  return made;
}

rdzv::rpc joined(const rdzv::store& store, const char* name, std::uint16_t rank, const rdzv::rpc_handlers& answering) {
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  options.host = "127.0.0.1";
  options.device_maps = {{"two", {{"cpu", "cpu"}}}};
  return VALUE(rdzv::rpc::init_over(store, name, rank, -1, options, answering));
}

void workers_call_each_other(const rdzv::rpc& one, const rdzv::rpc& two) {
  CHECK(one.name() == "one" && one.id() == 1 && !one.address().empty());
  CHECK(VALUE(two.workers()).size() == 2 && VALUE(two.workers())[0].name == "one");
  CHECK(VALUE(one.id_of("two")) == 2 && VALUE(one.name_of(2)) == "two");
  CHECK(VALUE(one.call<int>("two", "add", 1, 2)) == 3);
  CHECK(VALUE(one.call<std::string>(2, "greet", "hello")) == "one 1 says hello");
  CHECK(VALUE(two.call<point>(std::string("one"), "flip", point{1, 2})).x == 2);
  CHECK(*VALUE(two.call<named>("one", "double", named{"ab", 1.5})).weight == 3.0);
  CHECK(one.call("two", "nothing", std::vector<double>(1000)));
  CHECK(VALUE(one.call<int>("two", "agree", 5)) == 5);
  CHECK(one.call("two", "check"));
  const std::string large(std::size_t{3} << 20, 'x');
  CHECK(VALUE(one.call_bytes("two", "echo", large)) == large);
  CHECK(one.notify("two", "nothing", std::vector<double>()));

  const auto code = [](const auto& outcome) { return outcome.error().code(); };
  const auto refused = one.call<int>("two", "refuse", 1);
  CHECK(code(refused) == rdzv::status::rpc_handler_failed && refused.error().cause() == "conflict");
  CHECK(code(one.call<int>("two", "forget")) == rdzv::status::rpc_handler_failed);
  CHECK(code(one.call<int>("three", "add", 1, 2)) == rdzv::status::rpc_unknown_worker);
  CHECK(code(one.call<int>("", "add", 1, 2)) == rdzv::status::rpc_unknown_worker);
  CHECK(code(one.call<int>("two", "none")) == rdzv::status::rpc_no_handler);
  CHECK(code(one.call_within<int>(std::chrono::milliseconds(0), "two", "add", 1, 2)) == rdzv::status::timed_out);
  const auto few = one.call<int>("two", "add", 1);
  CHECK(code(few) == rdzv::status::rpc_malformed);
  CHECK(few.error().message().find("add: argument 2 of 2 cannot be read") != std::string::npos);
  const auto many = one.call<int>("two", "add", 1, 2, 3);
  CHECK(code(many) == rdzv::status::rpc_malformed);
  CHECK(many.error().message().find("add: 4 bytes follow its 2 arguments") != std::string::npos);
  const auto other = one.call<std::string>("two", "add", 1, 2);
  CHECK(code(other) == rdzv::status::rpc_malformed && other.error().message().find("answer of add") != std::string::npos);
#if defined(__cpp_exceptions)
  CHECK(one.call<int>("two", "throw", 7).error().cause() == "no such luck: 7");
  CHECK(code(one.call("two", "throw an int")) == rdzv::status::rpc_handler_failed);
#endif
}

// Somebody who is told what came of a call, on another thread.
class listener {
 public:
  void tell(std::string words) {
    const std::lock_guard<std::mutex> lock(mutex_);
    words_ = std::move(words);
    told_.notify_all();
  }
  std::string next() {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(told_.wait_for(lock, patience, [this] { return words_.has_value(); }));
    std::string words = *std::exchange(words_, std::nullopt);
    return words;
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  std::optional<std::string> words_;
};

void calls_do_not_wait(const rdzv::rpc& one, rdzv::rpc& two) {
  auto sum = VALUE(one.start<int>("two", "add", 3, 4));
  CHECK(VALUE(sum.get()) == 7);
  auto waited = VALUE(one.start<int>("two", "add", 5, 6));
  CHECK(VALUE(waited.wait(patience)) && waited.is_ready() && VALUE(waited.take()) == 11);
  CHECK(waited.take().error().code() == rdzv::status::invalid_argument);

  // A handler that comes and goes while others call.
  listener asked;
  CHECK(two.on("answers late", [&asked](const rdzv::rpc_request& request) {
    asked.tell(request.caller());
    return std::string("late");
  }));
  auto slow = VALUE(one.start<std::string>("two", "answers late"));
  CHECK(asked.next() == "one");
  CHECK(VALUE(slow.get()) == "late");
  CHECK(VALUE(two.remove("answers late")) && !VALUE(two.remove("answers late")));

  listener done;
  CHECK(one.call_then<int>([&done](rdzv::result<int> answer) { done.tell(std::to_string(VALUE(std::move(answer)))); },
                           "two", "add", 20, 22));
  CHECK(done.next() == "42");
  CHECK(one.call_then<int>(
      [&done](rdzv::result<int> answer) { done.tell(std::string(rdzv::name(answer.error().code()))); }, "two", "add", 1));
  CHECK(done.next() == "malformed payload");
  CHECK(!one.call_then([](rdzv::result<void>) {}, "three", "add"));
}

// The next event, which is of this kind and of this worker.
rdzv::loop_event next_of(rdzv::event_loop& loop, const rdzv::loop_rpc& of, rdzv::event_kind kind) {
  auto event = await_event(loop);
  CHECK(event.store == of.number() && event.kind == kind);
  return event;
}

void workers_of_one_loop_call_each_other(const rdzv::store& store) {
  using rdzv::event_kind;
  auto loop = VALUE(rdzv::event_loop::create());
  auto answering = VALUE(rdzv::rpc_handlers::create());
  CHECK(answering.on_loop("add"));
  CHECK(answering.on_loop("add").error().code() == rdzv::status::already_registered);
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  auto one = VALUE(rdzv::loop_rpc::init_over(loop, store, "one", 1, 2, options, answering));
  auto two = VALUE(rdzv::loop_rpc::init_over(loop, store, "two", 0, 2, options, answering));
  for (int i = 0; i < 2; ++i) {
    const auto event = await_event(loop);
    CHECK(event.kind == event_kind::rpc_joined && event.code == rdzv::status::ok);
  }
  CHECK(VALUE(one.handle()).name() == "one" && VALUE(VALUE(two.handle()).workers()).size() == 2);
  const auto first = VALUE(one.call("two", "add", 1, 2));
  next_of(loop, two, event_kind::rpc_request);
  {
    auto asked = VALUE(rdzv::rpc_request_of(loop));
    CHECK(!rdzv::rpc_request_of(loop));
    CHECK(asked.request().caller() == "one" && asked.request().handler() == "add");
    asked.answer_with([](const rdzv::rpc_request& request, int a, int b) { return a + b + (request.caller_id() - 1); });
    CHECK(!asked.responder());
  }
  auto event = next_of(loop, one, event_kind::completed);
  CHECK(event.operation == first && VALUE(rdzv::rpc_answer_of<int>(event)) == 3);
  CHECK(rdzv::rpc_answer_of<std::string>(event).error().code() == rdzv::status::rpc_malformed);

  // One that is answered later, after one whose arguments cannot be read.
  CHECK(two.call("one", "add", 5));
  next_of(loop, one, event_kind::rpc_request);
  auto kept = VALUE(rdzv::rpc_request_of(loop));
  rdzv::rpc_responder later = std::move(kept.responder());
  CHECK(two.call("one", "add", 7));
  next_of(loop, one, event_kind::rpc_request);
  VALUE(rdzv::rpc_request_of(loop)).answer_with([](int a, int b) { return a * b; });
  event = next_of(loop, two, event_kind::completed);
  CHECK(rdzv::rpc_answer_of<int>(event).error().code() == rdzv::status::rpc_malformed);
  std::move(later).answer_value(25);
  CHECK(VALUE(rdzv::rpc_answer_of<int>(next_of(loop, two, event_kind::completed))) == 25);
#if defined(__cpp_exceptions)
  CHECK(one.call("two", "add"));
  next_of(loop, two, event_kind::rpc_request);
  VALUE(rdzv::rpc_request_of(loop)).answer_with([]() -> int { throw std::runtime_error("no such luck"); });
  event = next_of(loop, one, event_kind::completed);
  CHECK(event.cause == "no such luck" && !rdzv::rpc_answer_of<int>(event));
#endif
  CHECK(one.on_loop("more") && one.notify("one", "more"));
  next_of(loop, one, event_kind::rpc_request);
  const std::string large(std::size_t{1} << 20, 'x');
  const auto given_up = VALUE(one.call_bytes("two", "add", large));
  next_of(loop, two, event_kind::rpc_request);
  CHECK(VALUE(rdzv::rpc_request_of(loop)).request().bytes() == large);
  CHECK(one.cancel(given_up));
  event = next_of(loop, one, event_kind::completed);
  CHECK(event.code == rdzv::status::cancelled || event.code == rdzv::status::rpc_handler_failed);

  CHECK(one.shutdown() && two.shutdown(rdzv::rpc_shutdown::graceful));
  // Who goes first may be told of to the other.
  for (int over = 0; over < 2;) {
    const auto happened = await_event(loop);
    CHECK(happened.kind == event_kind::rpc && happened.code == rdzv::status::ok);
    over += VALUE(rdzv::rpc_event_of(loop)).kind == rdzv::rpc_event_kind::over ? 1 : 0;
  }
  CHECK(!one.call("two", "add", 1, 2));
}

}  // namespace

void rpc_in_cpp() {
  values_travel();
  const auto server = VALUE(rdzv::server::start());
  const auto store = VALUE(rdzv::store::connect("127.0.0.1", server.port()));
  const auto observer = VALUE(rdzv::rpc_observer::create(store));
  {
    const auto answering = handlers();
    auto one = joined(store, "one", 1, answering);
    auto two = joined(store, "two", 2, answering);
    CHECK(VALUE(one.next_event(patience))->name == "two");
    CHECK(!VALUE(one.next_event(std::chrono::milliseconds(0))));
    workers_call_each_other(one, two);
    calls_do_not_wait(one, two);
    CHECK(VALUE(observer.next(patience))->kind == rdzv::rpc_sight_kind::dynamic_group);
    const auto came = VALUE(observer.next(patience));
    CHECK(came->kind == rdzv::rpc_sight_kind::came && came->name == "one" && !came->address.empty());
    CHECK(!VALUE(observer.seen()).empty());
    CHECK(two.shutdown());
    const auto left = VALUE(one.next_event(patience));
    CHECK(left->kind == rdzv::rpc_event_kind::left && left->id == 2);
    CHECK(one.call<int>("two", "add", 1, 2).error().code() == rdzv::status::rpc_unknown_worker);
    CHECK(one.shutdown(rdzv::rpc_shutdown::abrupt));
    CHECK(VALUE(one.next_event(patience))->kind == rdzv::rpc_event_kind::over);
  }
  workers_of_one_loop_call_each_other(VALUE(store.with_prefix("loop")));
  rdzv::rpc_options options;
  options.own = {{"threads", "3"}};
  const auto none = rdzv::rpc::init("x", 1, -1, options, handlers());
  CHECK(none.error().message() == "RPC backend tcp: unknown option threads");
}
