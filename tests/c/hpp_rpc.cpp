// RPC groups through the C++ header: typed handlers and calls, what travels, and how calls end.
#include "hpp_check.hpp"
#include "hpp_rpc_values.hpp"

#include <rendezvous/plugin.hpp>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#if defined(__cpp_exceptions)
#include <stdexcept>
#endif

namespace {

static_assert(is_move_only<rdzv::rpc> && is_move_only<rdzv::rpc_handlers> && is_move_only<rdzv::rpc_observer> &&
              is_move_only<rdzv::rpc_future<int>> && is_move_only<rdzv::rpc_responder> &&
              is_move_only<rdzv::rpc_payload>);

rdzv::rpc_handlers handlers() {
  auto made = VALUE(rdzv::rpc_handlers::create());
  CHECK(made.on("add", [](int a, int b) { return a + b; }, rdzv::rpc_run::on_reactor));
  CHECK(made.on("greet", [](const rdzv::rpc_request& request, const std::string& message) {
    CHECK(request.handler() == "greet" && request.response_is_wanted() && request.time_left());
    return request.caller() + " " + std::to_string(request.caller_id()) + " says " + message;
  }));
  CHECK(made.on("flip", [](point p) { return point{p.y, p.x}; }));
  CHECK(made.on("double", [](named given) -> named {
    return {given.name + given.name, given.weight ? std::optional<double>(*given.weight * 2) : std::nullopt};
  }));
  CHECK(made.on("nothing", [](std::vector<double>) {}));
  CHECK(made.on("refuse", [](int) -> rdzv::result<int> { return rdzv::error(RDZV_CONFLICT, nullptr); }));
  CHECK(made.on("refuse to decode", []() -> rdzv::result<int> {
    const std::string_view message = "no number at all";
    return rdzv::error(RDZV_RPC_MALFORMED, rdzv_error_new(RDZV_RPC_MALFORMED, rdzv::detail::bytes(message), message.size()));
  }));
  CHECK(made.on("agree", [](int given) -> rdzv::result<int> { return given; }));
  CHECK(made.on("check", []() -> rdzv::result<void> { return {}; }));
  CHECK(made.on("echo", [](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    CHECK(responder.is_wanted() == request.response_is_wanted());
    std::move(responder).send(std::string(request.bytes()));
    CHECK(!responder);
  }));
  // Handlers may own what can only be moved, and change it.
  CHECK(made.on("keep", [kept = std::make_unique<int>(40)](int given) { return *kept + given; }));
  CHECK(made.on("count", [count = 0]() mutable { return ++count; }, rdzv::rpc_run::on_reactor));
  CHECK(made.on("append", [kept = std::make_unique<std::string>(" and so on")](
                                    const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    std::move(responder).send(std::string(request.bytes()) + *kept);
  }));
  // Who answers later keeps the bytes themselves.
  CHECK(made.on("keep bytes", [](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    const std::string_view lay_there = request.bytes();
    rdzv::rpc_payload taken = request.take();
    CHECK(taken.bytes().data() == lay_there.data() && taken.bytes().size() == lay_there.size());
    CHECK(request.bytes().empty() && request.take().bytes().empty());
    std::thread([kept = std::move(taken), way_back = std::move(responder)]() mutable {
      std::move(way_back).send(std::string(kept.bytes()));
    }).join();
  }));
  CHECK(made.on("forget", [](const rdzv::rpc_request&, rdzv::rpc_responder&) {}));
#if defined(__cpp_exceptions)
  CHECK(made.on("throw", [](int number) -> int { throw std::runtime_error("no such luck: " + std::to_string(number)); }));
  CHECK(made.on("throw an int", []() { throw 7; }));
#endif
  CHECK(made.on("for two", [] { return 2; }, rdzv::rpc_run::pooled, "ps,tw*"));
  CHECK(made.on("x", [] {}, rdzv::rpc_run::pooled, "a b").error().code() == rdzv::status::invalid_argument);
  CHECK(made.on("x", [] {}, rdzv::rpc_run::pooled, "").error().code() == rdzv::status::invalid_argument);
  CHECK(made.on_loop("x", "").error().code() == rdzv::status::invalid_argument);
  CHECK(made.on("add", [] { return 0; }).error().code() == rdzv::status::already_registered);
  const auto empty = made.on("x", static_cast<int (*)(int)>(nullptr));
  CHECK(empty.error().code() == rdzv::status::invalid_argument);
  CHECK(empty.error().message() == "handler x: its function is empty");
  CHECK(made.on("x", rdzv::rpc_function()).error().code() == rdzv::status::invalid_argument);
  CHECK(made.on("x", nullptr).error().code() == rdzv::status::invalid_argument);
  return made;
}

rdzv::rpc_options worker_options() {
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  options.host = "127.0.0.1";
  return options;
}

rdzv::rpc joined(const rdzv::store& store, const char* name, std::int32_t rank, const rdzv::rpc_handlers& answering) {
  auto options = worker_options();
  options.device_maps = {{"two", {{"cpu", "cpu"}}}};
  return VALUE(rdzv::rpc::create(name, rank, -1, over(store, options), answering));
}

void check_answer_of_add(const rdzv::error& failure) {
  CHECK(failure.code() == rdzv::status::rpc_malformed && failure.operation() == "call");
  CHECK(failure.message() == "add at two: it returns (i32), and was called for (str)");
}

void workers_call_each_other(const rdzv::rpc& one, const rdzv::rpc& two) {
  CHECK(one.info().name == "one" && one.info().id == 1 && !one.info().address.empty());
  CHECK(VALUE(two.workers()).size() == 2 && VALUE(two.workers())[0].name == "one");
  CHECK(VALUE(one.call<int>("two", "add", 1, 2)) == 3);
  CHECK(VALUE(one.call<std::string>(2, "greet", "hello")) == "one 1 says hello");
  CHECK(VALUE(two.call<point>(std::string("one"), "flip", point{1, 2})).x == 2);
  CHECK(*VALUE(two.call<named>("one", "double", named{"ab", 1.5})).weight == 3.0);
  CHECK(one.call("two", "nothing", std::vector<double>(1000)));
  CHECK(VALUE(one.call<int>("two", "agree", 5)) == 5);
  CHECK(VALUE(one.call<int>("two", "keep", 2)) == 42);
  CHECK(VALUE(one.call<int>("two", "count")) == 1 && VALUE(one.call<int>("two", "count")) == 2);
  CHECK(VALUE(one.call<rdzv::rpc_bytes>("two", "append", rdzv::rpc_bytes{"a"})) == "a and so on");
  CHECK(VALUE(one.devices()).devices.empty() && VALUE(one.devices()).reverse_maps.empty() && one.events_lost() == 0);
  const rdzv::rpc_device_maps reverse_maps{{"one", {{"cpu", "cpu"}}}, {"two", {{"cpu", "cpu"}}}};
  CHECK(VALUE(two.devices()).reverse_maps == reverse_maps);
  CHECK(one.call("two", "check"));
  // A caller that does not want the value names no type.
  CHECK(one.call("two", "add", 1, 2) && one.call("two", "echo", rdzv::rpc_bytes{"?"}));
  CHECK(VALUE(one.start("two", "agree", 5)).get());
  const std::string large(std::size_t{3} << 20, 'x');
  CHECK(VALUE(one.call<rdzv::rpc_bytes>("two", "echo", rdzv::rpc_bytes{large})) == large);
  CHECK(VALUE(one.call<rdzv::rpc_bytes>("two", "keep bytes", rdzv::rpc_bytes{large})) == large);
  CHECK(one.notify("two", "nothing", std::vector<double>()));
  CHECK(one.notify("two", "echo", rdzv::rpc_bytes{large}));
  CHECK(VALUE(VALUE(one.start<rdzv::rpc_bytes>("two", "echo", rdzv::rpc_bytes{large})).get()) == large);

  const auto code = [](const auto& outcome) { return outcome.error().code(); };
  const auto refused = one.call<int>("two", "refuse", 1);
  CHECK(code(refused) == rdzv::status::rpc_handler_failed && refused.error().cause() == "conflict");
  // What a handler says with its status reaches the caller, whatever its words are.
  const auto undecoded = one.call<int>("two", "refuse to decode");
  CHECK(code(undecoded) == rdzv::status::rpc_malformed && undecoded.error().cause() == "no number at all");
  CHECK(code(one.call<int>("two", "forget")) == rdzv::status::rpc_handler_failed);
  CHECK(code(one.call<int>("three", "add", 1, 2)) == rdzv::status::rpc_unknown_worker);
  CHECK(code(one.call<int>("", "add", 1, 2)) == rdzv::status::rpc_unknown_worker);
  CHECK(code(one.call<int>("two", "none")) == rdzv::status::rpc_no_handler);
  CHECK(code(one.call<int>("two", "for two")) == rdzv::status::permission_denied);
  const auto unnumbered = one.call<int>(-5, "add", 1, 2);
  CHECK(code(unnumbered) == rdzv::status::invalid_argument);
  CHECK(unnumbered.error().message() == "add: the callee has no name, and its id is -5: from 0 to 65535");
  const auto nameless = one.call<int>("two", std::string(1025, 'n'));
  CHECK(nameless.error().message().find("has 1025 bytes: from 1 to 1024") != std::string::npos);
  CHECK(code(one.call<int>({"two", std::chrono::milliseconds(0)}, "add", 1, 2)) == rdzv::status::timed_out);
  const auto few = one.call<int>("two", "add", 1);
  CHECK(code(few) == rdzv::status::rpc_malformed);
  CHECK(few.error().nodes() == std::vector<std::string>{"two"} && few.error().operation() == "call");
  CHECK(few.error().message().find("add takes (i32,i32), was called with (i32)") != std::string::npos);
  const auto many = one.call<int>("two", "add", 1, 2, 3);
  CHECK(code(many) == rdzv::status::rpc_malformed);
  CHECK(many.error().message().find("add takes (i32,i32), was called with (i32,i32,i32)") != std::string::npos);
  const auto other = one.call<std::string>("two", "add", 1, 2);
  check_answer_of_add(other.error());
  CHECK(other.error().nodes() == std::vector<std::string>{"two"});
  auto later = VALUE(one.start<std::string>("two", "add", 1, 2));
  const auto later_answer = later.get();
  check_answer_of_add(later_answer.error());
  CHECK(later_answer.error().nodes() == std::vector<std::string>{"two"});
  // By number where that is how it was called.
  const auto by_number = one.call<std::string>(2, "add", 1, 2);
  CHECK(by_number.error().message() == "add at id 2: it returns (i32), and was called for (str)");
  CHECK(by_number.error().nodes().empty() && by_number.error().ranks() == std::vector<std::int64_t>{2});
#if defined(__cpp_exceptions)
  CHECK(one.call<int>("two", "throw", 7).error().cause() == "no such luck: 7");
  CHECK(code(one.call("two", "throw an int")) == rdzv::status::rpc_handler_failed);
#endif
}

// Somebody who is told what came of a call, on another thread.
class listener {
 public:
  void tell(std::string message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    words_ = std::move(message);
    told_.notify_all();
  }
  std::string next() {
    std::unique_lock<std::mutex> lock(mutex_);
    CHECK(told_.wait_for(lock, patience, [this] { return words_.has_value(); }));
    std::string message = *std::exchange(words_, std::nullopt);
    return message;
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
  CHECK(VALUE(waited.wait(patience)) && VALUE(waited.get()) == 11);
  CHECK(waited.get().error().message() == "add at two: its response was taken before");

  // A handler that comes and goes while others call. It answers on another thread, when it has returned.
  listener asked;
  std::mutex mutex;
  std::optional<rdzv::rpc_responder> way_back;
  CHECK(two.on("answers late", [&](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      way_back = std::move(responder);
    }
    asked.tell(request.caller());
  }));
  auto slow = VALUE(one.start<std::string>("two", "answers late"));
  CHECK(asked.next() == "one");
  CHECK(!VALUE(slow.wait(std::chrono::milliseconds(0))));
  std::thread([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    std::move(*way_back).send_value(std::string("late"));
    CHECK(!*way_back);
  }).join();
  CHECK(VALUE(slow.get()) == "late");
  // A call that is cancelled ends, whatever its handler does.
  auto unwanted = VALUE(one.start<std::string>("two", "answers late"));
  CHECK(asked.next() == "one");
  std::thread([&] { unwanted.cancel(); }).join();
  const auto cancelled = unwanted.get();
  CHECK(cancelled.error().code() == rdzv::status::cancelled);
  CHECK(cancelled.error().nodes() == std::vector<std::string>{"two"});
  const auto forget = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    way_back.reset();
  };
  forget();

  listener done;
  CHECK(one.call_then<int>([&done](rdzv::result<int> answer) { done.tell(std::to_string(VALUE(std::move(answer)))); },
                           "two", "add", 20, 22));
  CHECK(done.next() == "42");
  CHECK(one.call_then<int>(
      [&done](rdzv::result<int> answer) { done.tell(std::string(rdzv::name(answer.error().code()))); }, "two", "add", 1));
  CHECK(done.next() == "malformed payload");
  CHECK(one.call_then<std::string>(
      [&done](rdzv::result<std::string> answer) { done.tell(answer.error().message() + answer.error().nodes().at(0)); },
      "two", "add", 1, 2));
  CHECK(done.next() == "add at two: it returns (i32), and was called for (str)two");
  CHECK(!one.call_then([](rdzv::result<void>) {}, "three", "add"));
  const std::string large(std::size_t{1} << 20, 'y');
  CHECK(one.call_then<rdzv::rpc_bytes>([&done](rdzv::result<std::string> answer) { done.tell(VALUE(std::move(answer))); }, "two", "echo", rdzv::rpc_bytes{large}));
  CHECK(done.next() == large);

  // Who is told of a failure hears all of it, as who waits does.
  std::optional<rdzv::error> failure;
  const auto keep_failure = [&](rdzv::result<int> answer) {
    failure = std::move(answer).error();
    done.tell("failed");
  };
  CHECK(one.call_then<int>(keep_failure, "two", "refuse", 1) && done.next() == "failed");
  CHECK(failure->code() == rdzv::status::rpc_handler_failed && failure->cause() == "conflict");
  CHECK(failure->nodes() == std::vector<std::string>{"two"} && failure->operation() == "call");
  CHECK(one.call_then<int>(keep_failure, {"two", std::chrono::milliseconds(50)}, "answers late"));
  CHECK(asked.next() == "one" && done.next() == "failed");
  CHECK(failure->code() == rdzv::status::timed_out && failure->nodes() == std::vector<std::string>{"two"});
  CHECK(failure->elapsed() >= std::chrono::milliseconds(50));
  forget();
  CHECK(VALUE(two.remove("answers late")) && !VALUE(two.remove("answers late")));
#if defined(__cpp_exceptions)
  // What is thrown there is dropped, and the next call is told of.
  const auto throwing = [&done](rdzv::result<int>) {
    done.tell("threw");
    throw std::runtime_error("nobody hears this");
  };
  CHECK(one.call_then<int>(throwing, "two", "add", 1, 2) && done.next() == "threw");
  CHECK(one.call_then<int>(throwing, "two", "add", 1, 2) && done.next() == "threw");
  // Where a call is not made, its bytes are given back.
  struct cannot_move {
    cannot_move() = default;
    cannot_move(const cannot_move&) { throw std::runtime_error("it stays"); }
    void operator()(const rdzv::result<std::string>&) const {}
  };
  const cannot_move stays;
  try {
    static_cast<void>(one.call_then<rdzv::rpc_bytes>(stays, "two", "echo", rdzv::rpc_bytes{large}));
    CHECK(false);
  } catch (const std::runtime_error& thrown) {
    CHECK(std::string_view(thrown.what()) == "it stays");
  }
#endif
}

void options_read_the_environment() {
  CHECK(setenv("MASTER_PORT", "29511", 1) == 0);
  const auto variables = rdzv::rpc_options().read_environment().variables;
  CHECK(unsetenv("MASTER_PORT") == 0);
  const std::pair<std::string, std::string> wanted{"MASTER_PORT", "29511"};
  CHECK(std::find(variables.begin(), variables.end(), wanted) != variables.end());
}

// Handlers and callbacks may do little with the worker that calls them.
void own_code_ends_no_worker(const rdzv::store& store) {
  auto answering = VALUE(rdzv::rpc_handlers::create());
  std::mutex mutex;
  std::unique_ptr<rdzv::rpc> own;
  const auto dare = [&mutex, &own] {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::string(rdzv::name(own->shutdown().error().code())) + ", " +
           std::string(rdzv::name(own->call<std::string>("own", "greet").error().code()));
  };
  CHECK(answering.on("dare", dare, rdzv::rpc_run::on_reactor));
  CHECK(answering.on("greet", [] { return std::string("hello"); }));
  // What a destructor would do there.
  const auto end = [&mutex, &own] {
    const std::lock_guard<std::mutex> lock(mutex);
    rdzv_rpc_free(own->c_handle());
  };
  CHECK(answering.on("end", end, rdzv::rpc_run::on_reactor));
  const auto other = joined(store, "other", 8, answering);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    own = std::make_unique<rdzv::rpc>(joined(store, "own", 7, answering));
  }
  CHECK(VALUE(other.call<std::string>("own", "dare")) == "re-entrant call, re-entrant call");
  CHECK(VALUE(other.call<std::string>("own", "greet")) == "hello");
  CHECK(other.call("own", "end"));
  const std::lock_guard<std::mutex> lock(mutex);
  CHECK(own->shutdown(rdzv::rpc_shutdown::abrupt).error().code() == rdzv::status::free_refused);
  CHECK(own->shutdown(rdzv::rpc_shutdown::abrupt));
  own.reset();
  CHECK(other.shutdown(rdzv::rpc_shutdown::abrupt));
}

// What waits in other threads ends, and the handles go on.
void waits_are_cancelled(const rdzv::store& store) {
  listener asked, ended;
  std::mutex mutex;
  std::optional<rdzv::rpc_responder> kept;
  auto answering = handlers();
  CHECK(answering.on("answers late", [&](const rdzv::rpc_request&, rdzv::rpc_responder& responder) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      kept = std::move(responder);
    }
    asked.tell("asked");
  }));
  const rdzv::cancel_token waits;
  auto options = worker_options();
  options.token = &waits;
  const auto own = VALUE(rdzv::rpc::create("own", 1, -1, over(store, options), answering));
  std::thread caller([&] {
    const auto cancelled = own.call("own", "answers late");
    CHECK(cancelled.error().nodes() == std::vector<std::string>{"own"});
    ended.tell(std::string(rdzv::name(cancelled.error().code())));
  });
  CHECK(asked.next() == "asked");
  waits.cancel();
  CHECK(ended.next() == "cancelled");
  caller.join();
  CHECK(VALUE(VALUE(own.start<int>("own", "add", 1, 2)).get()) == 3);

  const rdzv::cancel_token token;
  const auto observer = VALUE(rdzv::rpc_observer::create(store, &token));
  CHECK(VALUE(observer.next(patience)) && VALUE(observer.next(patience))->name == "own");
  auto told = std::async(std::launch::async, [&observer] {
    const auto seen = observer.next(patience);
    return seen ? rdzv::status::ok : seen.error().code();
  });
  token.cancel();
  CHECK(told.get() == rdzv::status::cancelled && VALUE(observer.seen()).size() == 1);
  CHECK(own.shutdown());
}

// Two workers with one handler thread each that wait for each other: the caller hears why it waited in vain.
void exhausted_workers_are_named(const rdzv::store& store) {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<rdzv::rpc>> workers;
  const auto worker = [&](const char* name) {
    const std::lock_guard<std::mutex> lock(mutex);
    return workers.at(name).get();
  };
  auto options = worker_options();
  options.worker_threads = 1;
  const auto deep = [&](const char* own, const char* other) {
    return [&worker, own, other](int depth) {
      if (depth == 0) return 0;
      const auto answer = worker(own)->call<int>(other, "deep", depth - 1);
      return answer ? *answer + 1 : -1;
    };
  };
  auto of_first = VALUE(rdzv::rpc_handlers::create()), of_second = VALUE(rdzv::rpc_handlers::create());
  CHECK(of_first.on("deep", deep("first", "second")) && of_second.on("deep", deep("second", "first")));
  auto first = VALUE(rdzv::rpc::create("first", 1, -1, over(store, options), of_first));
  auto second = VALUE(rdzv::rpc::create("second", 2, -1, over(store, options), of_second));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    workers["first"] = std::make_unique<rdzv::rpc>(std::move(first));
    workers["second"] = std::make_unique<rdzv::rpc>(std::move(second));
  }
  CHECK(VALUE(worker("first")->call<int>("second", "deep", 1)) == 1);
  // second waits for first, and that one for the only thread of second.
  const std::chrono::milliseconds brief{2000};
  const auto late = worker("first")->call<int>({"second", brief}, "deep", 2);
  CHECK(late.error().code() == rdzv::status::timed_out && late.error().phase() == "waiting");
  CHECK(late.error().nodes() == std::vector<std::string>{"second"});
  CHECK(late.error().message().find("all of its handler threads (1) were busy, and requests (1) waited for one") !=
        std::string::npos);
  for (const char* name : {"first", "second"}) CHECK(worker(name)->shutdown(rdzv::rpc_shutdown::abrupt));
}

void attempts_are_cancelled(rdzv::store store) {
  const rdzv::cancel_token token;
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  options.token = &token;
  const auto answering = handlers();
  // The other one of two does not come.
  listener ended;
  std::thread attempt([&] {
    const auto made = rdzv::rpc::create("w", 1, 2, over(store, options), answering);
    ended.tell(std::string(rdzv::name(made.error().code())));
  });
  CHECK(store.wait({"rdzv/cards/1"}, patience));
  token.cancel();
  CHECK(ended.next() == "cancelled");
  attempt.join();
}

// Workers of one process that call each other without a network.
struct network {
  struct end {
    std::uint16_t id;
    rdzv::rpc_handlers handlers;
  };
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<end>> ends;
  std::optional<rdzv::rpc_responder> kept;
};

[[noreturn]] void complain(const char* message) {
#if defined(__cpp_exceptions)
  throw std::runtime_error(message);
#else
  std::fprintf(stderr, "%s\n", message);
  std::_Exit(1);
#endif
}

class network_worker : public rdzv::custom_rpc_worker {
 public:
  network_worker(std::shared_ptr<network> over, std::string name, std::uint16_t id)
      : over_(std::move(over)), name_(std::move(name)), id_(id) {}

  rdzv::status call(const rdzv::rpc_outgoing_call& call, rdzv::rpc_responder& responder) override {
    std::shared_ptr<network::end> callee;
    {
      const std::lock_guard<std::mutex> lock(over_->mutex);
      if (call.handler == "keep") {
        over_->kept = std::move(responder);
        complain("it was taken all the same");
      }
      for (const auto& [name, end] : over_->ends)
        if (call.callee ? *call.callee == name : call.callee_id == end->id) callee = end;
    }
    if (call.handler == "complain") complain("out of order");
    if (call.handler == "nobody") return rdzv::status::ok;
    if (!callee) return rdzv::status::rpc_unknown_worker;
    const rdzv::rpc_incoming asked{name_, id_, call.handler, call.bytes, call.timeout};
    const auto begun = rdzv::dispatch(callee->handlers, asked, responder);
    return begun ? rdzv::status::ok : begun.error().code();
  }

  rdzv::status list_workers(rdzv::reply& reply) override {
    const std::lock_guard<std::mutex> lock(over_->mutex);
    for (const auto& [name, end] : over_->ends) reply.add_worker(name, end->id);
    return rdzv::status::ok;
  }

  rdzv::status shutdown(rdzv::rpc_shutdown how, rdzv::reply& reply) override {
    const std::lock_guard<std::mutex> lock(over_->mutex);
    over_->ends.erase(name_);
    if (how == rdzv::rpc_shutdown::abrupt) return rdzv::status::ok;
    reply.set_message(name_ + " was busy");
    return rdzv::status::conflict;
  }

 private:
  std::shared_ptr<network> over_;
  std::string name_;
  std::uint16_t id_;
};

class network_backend : public rdzv::custom_rpc_backend {
 public:
  explicit network_backend(std::shared_ptr<network> over) : over_(std::move(over)) {}

  rdzv::status new_worker(rdzv::rpc_worker_request request, rdzv::reply& reply) override {
    const rdzv::rpc_options& options = request.options;
    using strings = std::vector<std::string>;
    CHECK(options.backend == "net" && options.rpc_timeout == patience && options.membership_timeout == patience);
    CHECK(options.worker_threads == 16 && options.accelerator == "cuda" && options.accelerator_count == 0);
    CHECK(request.world_size == std::optional<std::int32_t>(2) && options.extra_options.size() == 1);
    const auto& [name, value] = options.extra_options[0];
    if (name != "mood") {
      reply.set_message("unknown option " + name);
      return rdzv::status::invalid_argument;
    }
    if (value == "bad") complain("not today");
    CHECK(options.init_method == "tcp://127.0.0.1:9" && options.devices == strings{"cuda:0"} && options.host.empty());
    CHECK((options.device_maps == rdzv::rpc_device_maps{{"two", {{"cpu", "cpu"}, {"cuda:0", "cuda:1"}}}}));
    CHECK((options.transports == std::optional<strings>({"shm", "uv"})));
    // None that may be used is not the same as whatever the backend chooses.
    CHECK(options.channels.has_value() == (request.name == "one") && (!options.channels || options.channels->empty()));
    if (request.name == "x") complain("x is not wanted");
    if (request.name == "y") return rdzv::status::ok;
    CHECK(request.shared.set(request.name, "came"));
    const std::lock_guard<std::mutex> lock(over_->mutex);
    over_->ends[request.name] =
        std::make_shared<network::end>(network::end{request.id, std::move(request.handlers)});
    reply.set_worker(std::make_unique<network_worker>(over_, request.name, request.id));
    return rdzv::status::ok;
  }

 private:
  std::shared_ptr<network> over_;
};

void own_rpc_backend() {
  const auto net = std::make_shared<network>();
  {
    rdzv::context first, second;
    for (rdzv::context* context : {&first, &second}) {
      CHECK(rdzv::register_rpc_backend(*context, "net", std::make_unique<network_backend>(net)));
      const auto again = rdzv::register_rpc_backend(*context, "net", std::make_unique<network_backend>(net));
      CHECK(again.error().code() == rdzv::status::already_registered);
      const auto empty = rdzv::register_rpc_backend(*context, "empty", nullptr);
      CHECK(empty.error().code() == rdzv::status::invalid_argument);
      CHECK(empty.error().message() == "`vtable.new_worker` is NULL");
    }
    auto store = VALUE(rdzv::store::in_process());
    const auto answering = handlers();
    rdzv::rpc_options options;
    options.backend = "net";
    options.rpc_timeout = patience;
    options.extra_options = {{"mood", "good"}};
    options.init_method = "tcp://127.0.0.1:9";
    options.device_maps = {{"two", {{"cuda:0", "cuda:1"}, {"cpu", "cpu"}}}};
    options.devices = {"cuda:0"};
    options.transports = {"shm", "uv"};
    options.channels.emplace();
    const auto one = VALUE(rdzv::rpc::create("one", 1, 2, over(store, options), answering, &first));
    options.channels.reset();
    const auto two = VALUE(rdzv::rpc::create("two", 2, 2, over(store, options), answering, &second));
    CHECK(VALUE(store.get("two")) == "came");
    CHECK(VALUE(one.workers()).size() == 2 && VALUE(two.workers())[0].id == 1);
    CHECK(VALUE(one.call<int>("two", "add", 1, 2)) == 3 && VALUE(two.call<int>(1, "add", 3, 4)) == 7);
    CHECK(VALUE(one.call<std::string>("two", "greet", "hello")) == "one 1 says hello");
    const std::string large(std::size_t{1} << 20, 'x');
    CHECK(VALUE(one.call<rdzv::rpc_bytes>("two", "echo", rdzv::rpc_bytes{large})) == large);
    CHECK(one.notify("two", "nothing", std::vector<double>()));
    auto sum = VALUE(one.start<int>("two", "add", 5, 6));
    CHECK(VALUE(sum.get()) == 11);
    listener done;
    CHECK(one.call_then<int>([&done](rdzv::result<int> told) { done.tell(std::to_string(VALUE(std::move(told)))); },
                             "two", "add", 20, 22));
    CHECK(done.next() == "42");

    const auto code = [](const auto& outcome) { return outcome.error().code(); };
    CHECK(code(one.call<int>("three", "add", 1, 2)) == rdzv::status::rpc_unknown_worker);
    CHECK(code(one.call<int>("two", "none")) == rdzv::status::rpc_no_handler);
    CHECK(code(one.call<int>("two", "add", 1)) == rdzv::status::rpc_malformed);
    const auto refused = one.call<int>("two", "refuse", 1);
    CHECK(code(refused) == rdzv::status::rpc_handler_failed && refused.error().cause() == "conflict");
    CHECK(refused.error().message() == "refuse at two: the handler failed: conflict");
    CHECK(refused.error().nodes() == std::vector<std::string>{"two"});
    CHECK(code(one.call("two", "nobody")) == rdzv::status::rpc_handler_failed);
    CHECK(code(one.notify("three", "nothing")) == rdzv::status::rpc_unknown_worker);
#if defined(__cpp_exceptions)
    const auto thrown = one.call("two", "complain");
    CHECK(code(thrown) == rdzv::status::io && thrown.error().message() == "complain at two: out of order");
    CHECK(code(one.notify("two", "complain")) == rdzv::status::io);
    // Whoever took the responder before it threw has the call.
    auto kept = VALUE(one.start<std::string>("two", "keep"));
    {
      const std::lock_guard<std::mutex> lock(net->mutex);
      std::move(*net->kept).send_value(std::string("late"));
      net->kept.reset();
    }
    CHECK(VALUE(kept.get()) == "late");
    const auto unwanted = rdzv::rpc::create("x", 3, 2, over(store, options), answering);
    CHECK(code(unwanted) == rdzv::status::not_registered);
    rdzv::context third;
    CHECK(rdzv::register_rpc_backend(third, "net", std::make_unique<network_backend>(net)));
    const auto angry = rdzv::rpc::create("x", 3, 2, over(store, options), answering, &third);
    CHECK(code(angry) == rdzv::status::io && angry.error().message() == "x is not wanted");
    CHECK(code(rdzv::rpc::create("y", 3, 2, over(store, options), answering, &third)) == rdzv::status::wrong_protocol);
    options.extra_options = {{"mood", "bad"}};
    const auto moody = rdzv::rpc::create("z", 3, 2, over(store, options), answering, &third);
    CHECK(moody.error().message() == "not today");
#endif
    options.extra_options = {{"colour", "red"}};
    rdzv::context fourth;
    CHECK(rdzv::register_rpc_backend(fourth, "net", std::make_unique<network_backend>(net)));
    const auto unknown = rdzv::rpc::create("z", 3, 2, over(store, options), answering, &fourth);
    CHECK(code(unknown) == rdzv::status::invalid_argument && unknown.error().message() == "unknown option colour");

    // A call that is given up is not wanted any more, neither by the backend nor by the handler that answers for it.
    listener asked;
    std::optional<rdzv::rpc_responder> way_back;
    auto waiting = handlers();
    CHECK(waiting.on("answers late", [&](const rdzv::rpc_request&, rdzv::rpc_responder& responder) {
      way_back = std::move(responder);
      asked.tell("asked");
    }));
    {
      const std::lock_guard<std::mutex> lock(net->mutex);
      net->ends["late"] = std::make_shared<network::end>(network::end{9, std::move(waiting)});
    }
    auto given_up = VALUE(one.start<std::string>("late", "answers late"));
    CHECK(asked.next() == "asked" && way_back->is_wanted());
    given_up.cancel();
    CHECK(!way_back->is_wanted() && code(given_up.get()) == rdzv::status::cancelled);
    const auto late = one.call<std::string>({"late", std::chrono::milliseconds(10)}, "answers late");
    CHECK(code(late) == rdzv::status::timed_out && !way_back->is_wanted());
    way_back.reset();
    {
      const std::lock_guard<std::mutex> lock(net->mutex);
      net->ends.erase("late");
    }

    const auto busy = two.shutdown();
    CHECK(code(busy) == rdzv::status::conflict && busy.error().message() == "two was busy");
    CHECK(VALUE(one.workers()).size() == 1);
    CHECK(one.shutdown(rdzv::rpc_shutdown::abrupt));
    const auto after = one.call<int>("two", "add", 1, 2);
    CHECK(code(after) == rdzv::status::rpc_no_member);
    CHECK(after.error().message() == "add at two: not sent: this worker was shut down");
    CHECK(code(one.notify("two", "nothing", std::vector<double>())) == rdzv::status::rpc_no_member);
  }
  CHECK(net.use_count() == 1 && net->ends.empty());
}

}  // namespace

void rpc_in_cpp() {
  own_rpc_backend();
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
    CHECK(VALUE(observer.next(patience))->kind == rdzv::rpc_observation_kind::dynamic_group);
    const auto came = VALUE(observer.next(patience));
    CHECK(came->kind == rdzv::rpc_observation_kind::joined && came->name == "one" && !came->address.empty());
    CHECK(!VALUE(observer.seen()).empty());
    CHECK(two.shutdown());
    const auto left = VALUE(one.next_event(patience));
    CHECK(left->kind == rdzv::rpc_event_kind::left && left->id == 2);
    CHECK(one.call<int>("two", "add", 1, 2).error().code() == rdzv::status::rpc_unknown_worker);
    CHECK(one.shutdown(rdzv::rpc_shutdown::abrupt));
    CHECK(VALUE(one.next_event(patience))->kind == rdzv::rpc_event_kind::over);
    CHECK(one.next_event(patience).error().code() == rdzv::status::rpc_no_member);
  }
  options_read_the_environment();
  own_code_ends_no_worker(VALUE(store.with_prefix("own")));
  waits_are_cancelled(VALUE(store.with_prefix("waits")));
  exhausted_workers_are_named(VALUE(store.with_prefix("exhausted")));
  attempts_are_cancelled(VALUE(store.with_prefix("cancelled")));
  // Numbers that are none of a worker's; -1 does not stand for one.
  const auto nobody = handlers();
  for (const std::int32_t rank : {-1, -2, 65536 + 1}) {
    const auto refused = rdzv::rpc::create("three", rank, -1, over(store, worker_options()), nobody);
    CHECK(refused.error().code() == rdzv::status::invalid_argument);
  }
  // By URL.
  auto by_url = worker_options();
  by_url.init_method = "tcp://127.0.0.1:" + std::to_string(server.port());
  {
    const auto alone = VALUE(rdzv::rpc::create("alone", 1, -1, by_url, nobody));
    CHECK(alone.info().id == 1 && VALUE(alone.call<int>("alone", "add", 1, 2)) == 3);
    CHECK(alone.shutdown());
  }
  // Workers prove a token to each other, though the store asks for none.
  const auto tokens = std::filesystem::temp_directory_path() / ("rdzv-rpc-token-" + std::to_string(server.port()));
  std::ofstream(tokens) << "job 0123456789abcdef0123456789abcdef all";
  {
    by_url.auth_token_file = tokens.string();
    const auto member = VALUE(rdzv::rpc::create("member", 1, -1, by_url, nobody));
    const auto second = VALUE(rdzv::rpc::create("second", 2, -1, by_url, handlers()));
    CHECK(VALUE(member.call<int>("second", "add", 1, 2)) == 3);
    by_url.auth_token_file = "";
    CHECK(!rdzv::rpc::create("stranger", 3, -1, by_url, handlers()));
    by_url.auth_token_file.reset();
    const auto refused = rdzv::rpc::create("stranger", 3, -1, by_url, handlers());
    CHECK(refused.error().code() == rdzv::status::rpc_unreached);
    CHECK(refused.error().message().find("it requires a token, and the caller has none") != std::string::npos);
    CHECK(second.shutdown() && member.shutdown());
  }
  std::filesystem::remove(tokens);
  rdzv::rpc_options options;
  options.rpc_timeout = std::chrono::milliseconds(-5);
  const auto negative = rdzv::rpc::create("x", 1, -1, options, handlers());
  CHECK(negative.error().message() == "`rpc_timeout_ms` is -5 ms; it must be above 0");
  options.rpc_timeout = options.membership_timeout = rdzv::default_timeout;
  options.extra_options = {{"threads", "3"}};
  const auto none = rdzv::rpc::create("x", 1, -1, options, handlers());
  CHECK(none.error().message() == "RPC backend tcp: unknown option threads");
}
