// rendezvous/agent.hpp and rendezvous/plugin.hpp from a program's side.
#include <rendezvous.hpp>
#include <rendezvous/plugin.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace std::chrono_literals;

// Called by hpp_test.cpp.
void agents_in_cpp();

namespace {

constexpr auto patience = 20s;

void check(bool is_so, const char* what, int line) {
  if (is_so) return;
  std::fprintf(stderr, "hpp_agent.cpp:%d: not so: %s\n", line, what);
  std::_Exit(1);
}
#define CHECK(condition) check(static_cast<bool>(condition), #condition, __LINE__)

template <class T>
T value_of(rdzv::result<T> result, int line) {
  if (!result.has_value()) {
    std::fprintf(stderr, "hpp_agent.cpp:%d: %s\n", line, result.error().message().c_str());
    std::_Exit(1);
  }
  return *std::move(result);
}
#define VALUE(call) value_of((call), __LINE__)

static_assert(std::is_nothrow_move_constructible_v<rdzv::agent> && !std::is_copy_constructible_v<rdzv::agent>);

rdzv::rendezvous_handler handler_of_one(int workers) {
  rdzv::rendezvous_parameters parameters{"rdzv", "localhost:0", "run"};
  parameters.config = "local_world_size=" + std::to_string(workers);
  return VALUE(rdzv::rendezvous_handler::create(parameters));
}

rdzv::agent_options options_of_two() {
  rdzv::agent_options options;
  options.local_world_size = 2;
  options.log_dir = "/dev/null";
  options.local_addr = "127.0.0.1";
  options.host_name = "here";
  return options;
}

void programs() {
  rdzv::agent_options options = options_of_two();
  options.program = "sh";
  options.arguments = {"-c", "test $RANK = 0 && exec sleep 1000; test $A = b=c && echo why >&2; exit 7"};
  options.redirects = "3";
  options.max_restarts = 1;
  options.environment = {{"A", "b=c"}};
  options.restart_backoff = 0ms;
  options.stop_timeout = 10s;
  options.rank_assignment = rdzv::rank_assignment::identical;
  options.duplicate_stderr_filters = "why";
  auto agent = VALUE(rdzv::agent::create(options, handler_of_one(2)));
  CHECK(VALUE(agent.worker_group()).state == rdzv::worker_state::init);
  struct {
    int metrics = 0, records = 0;
  } seen;
  rdzv::agent_sink sink;
  CHECK(!agent.add_sink(sink));
  sink.metric = [&](std::string_view name, std::int64_t value) {
    seen.metrics += name == "workers.default.failed" && value == 1 ? 1 : 0;
#if defined(__cpp_exceptions)
    throw std::runtime_error("nobody hears of this");
#endif
  };
  sink.record = [&](std::string_view json) { seen.records += json.front() == '{' ? 1 : 0; };
  CHECK(agent.add_sink(std::move(sink)));
  CHECK(VALUE(agent.serve_health("127.0.0.1", 0)) != 0);
  int running = 0, reports = 0;
  auto result = VALUE(agent.run([&](const rdzv::agent_event& event) {
    if (event.kind == rdzv::agent_event_kind::running) {
      CHECK(event.attempt == static_cast<std::uint64_t>(running++) && event.start > 0us);
      CHECK(event.group.workers.size() == 2 && event.group.state == rdzv::worker_state::healthy);
      CHECK(event.restarts_left == 2u - static_cast<unsigned>(running));
    }
    if (event.kind == rdzv::agent_event_kind::workers_failed) reports += event.message.empty() ? 0 : 1;
  }));
  CHECK(running == 2 && reports == 2 && seen.metrics > 0 && seen.records > 2);
  CHECK(!result.succeeded() && result.outcome == rdzv::agent_outcome::failed);
  CHECK(result.reason == "rank 1 (local rank 1) ended with exit code 7");
  const auto& failures = result.failures;
  CHECK(failures.size() == 1 && failures[0].exit_code == 7 && failures[0].signal.empty());
  CHECK(failures[0].host == "here" && failures[0].global_rank == 1);
  CHECK(failures[0].stderr_tail == std::vector<std::string>{"why"});
  CHECK(result.report.find("Root Cause") != std::string::npos && result.report_json.front() == '{');
  const auto group = VALUE(agent.worker_group());
  CHECK(group.state == rdzv::worker_state::failed && rdzv::name(group.state) == "FAILED");
  CHECK(group.role == "default" && group.restart_count == 1 && *group.group_rank == 0 && *group.round == 1);
  CHECK(*group.workers[1].exit_code == 7 && group.workers[1].world_size == 2);
  CHECK(VALUE(agent.get_result()).reason == result.reason);

  const auto refused = [&](const char* part, auto change) {
    rdzv::agent_options changed = options;
    change(changed);
    const auto failure = rdzv::agent::create(changed, handler_of_one(2)).error();
    CHECK(failure.code() == rdzv::status::invalid_argument);
    CHECK(failure.message().find(part) != std::string::npos);
  };
  refused("kill_timeout_ms", [](auto& of) { of.kill_timeout = 0ms; });
  refused("kill_timeout_ms", [](auto& of) { of.kill_timeout = -1ms; });
  refused("local world size", [](auto& of) { of.local_world_size = 0; });
  refused("program and a function", [](auto& of) { of.function = [](rdzv::worker_call&) { return 0; }; });
  refused("numa_binding", [](auto& of) {
    of.program.clear();
    of.function = [](rdzv::worker_call&) { return 0; };
    of.numa_binding = rdzv::numa_binding::socket;
  });
  refused("not NAME=VALUE", [](auto& of) { of.environment = {{"", "x"}}; });
  options.program = "/nonexistent";
  CHECK(rdzv::agent::create(options, handler_of_one(2)).error().code() == rdzv::status::invalid_argument);
}

void stopping() {
  rdzv::agent_options options = options_of_two();
  options.program = "sleep";
  options.arguments = {"1000"};
  auto agent = VALUE(rdzv::agent::create(options, handler_of_one(2)));
  std::promise<void> runs;
  std::thread stopper([&] {
    CHECK(runs.get_future().wait_for(patience) == std::future_status::ready);
    CHECK(agent.pass_signal(SIGURG));
    CHECK(!agent.pass_signal(0));
    CHECK(agent.stop(65).error().code() == rdzv::status::invalid_argument);
    CHECK(agent.stop());
  });
  auto result = VALUE(agent.run([&](const rdzv::agent_event& event) {
    if (event.kind == rdzv::agent_event_kind::running) runs.set_value();
  }));
  stopper.join();
  CHECK(result.outcome == rdzv::agent_outcome::stopped);
}

void loop() {
  auto loop = VALUE(rdzv::event_loop::create());
  rdzv::agent_options options = options_of_two();
  options.program = "true";
  auto agent = VALUE(rdzv::agent::create(options, handler_of_one(2)));
  const auto member = VALUE(rdzv::add_agent(loop, agent));
  bool over = false;
  for (const auto deadline = std::chrono::steady_clock::now() + patience; !over;) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    pollfd polled{loop.fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, 1000) >= 0);
    CHECK(loop.poll());
    while (auto event = VALUE(loop.next_event())) {
      CHECK(event->kind == rdzv::event_kind::agent && event->member == member);
      const auto happened = VALUE(rdzv::agent_event_of(loop));
      if (happened.kind == rdzv::agent_event_kind::phase) CHECK(!rdzv::name(happened.to).empty());
      over |= happened.kind == rdzv::agent_event_kind::over;
    }
  }
  CHECK(VALUE(agent.get_result()).succeeded());
  CHECK(loop.remove(member));
}

// Whether it gives forked processes an exit code of its own: nothing of the program is freed there.
bool under_valgrind() {
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::string_view(preloaded).find("vgpreload") != std::string_view::npos;
}

void functions() {
  if (under_valgrind()) return;
  rdzv::agent_options options = options_of_two();
  const std::string word = "rank ";
  options.arguments = {"${local_rank}"};
  options.master_addr = "127.0.0.1";
  options.master_port = 1234;
  options.max_restarts = 0;
  options.function = [word](rdzv::worker_call& call) {
    if (std::string(std::getenv("MASTER_PORT")) != "1234") return 2;
    call.set_returned(word + call.arguments().at(0));
    return 0;
  };
  auto agent = VALUE(rdzv::agent::create(options, handler_of_one(2)));
  auto result = VALUE(agent.run());
  using returned = std::vector<std::pair<std::uint64_t, std::string>>;
  CHECK(result.succeeded() && result.returned == (returned{{0, "rank 0"}, {1, "rank 1"}}));
}

void timers() {
  CHECK(rdzv::set_worker_timer("step", 1s).error().code() == rdzv::status::unsupported);
  CHECK(rdzv::clear_worker_timer("step").error().code() == rdzv::status::unsupported);
  if (under_valgrind()) return;
  const auto folder = std::filesystem::temp_directory_path();
  rdzv::agent_options options = options_of_two();
  options.timer_file = (folder / ("rdzv-timers-" + std::to_string(getpid()))).string();
  options.max_restarts = 0;
  options.function = [](rdzv::worker_call& call) {
    if (!rdzv::set_worker_timer("cleared", 10min, SIGKILL) || !rdzv::clear_worker_timer("cleared")) return 2;
    if (call.arguments().at(0) == "0" && !rdzv::set_worker_timer("step", 1ms, SIGTERM)) return 3;
    for (;;) pause();
  };
  options.arguments = {"${local_rank}"};
  auto agent = VALUE(rdzv::agent::create(options, handler_of_one(2)));
  std::string expired;
  auto result = VALUE(agent.run([&](const rdzv::agent_event& event) {
    if (event.kind == rdzv::agent_event_kind::timer_expired) expired += event.message;
  }));
  CHECK(expired.find("step") != std::string::npos && expired.find("cleared") == std::string::npos);
  CHECK(!result.succeeded() && result.failures.at(0).exit_code == -SIGTERM && result.failures[0].local_rank == 0);
}

// A cluster manager whose workers are nothing but words.
class message final : public rdzv::custom_workers {
 public:
  explicit message(std::promise<void> gone) : gone_(std::move(gone)) {}
  ~message() override { gone_.set_value(); }
  rdzv::status start(const rdzv::worker_start& given) override {
    attempt_ = given.group.attempt;
    bool found = false;
    for (const auto& [key, value] : given.environments.at(1)) found |= key == "RANK" && value == "1";
    CHECK(found && given.environments.size() == 2);
    for (std::uint32_t i = 0; i < 2; ++i) CHECK(sender()->started(attempt_, i, 100 + i, "far"));
    if (attempt_ == 0) CHECK(sender()->exited(attempt_, 0, 3, "out of paper"));
    for (std::uint32_t i = 0; attempt_ == 1 && i < 2; ++i) CHECK(sender()->returned(attempt_, i, "done"));
    return rdzv::status::ok;
  }
  void signal(int number) override {
    for (std::uint32_t i = 0; i < 2; ++i) CHECK(sender()->exited(attempt_, i, -number));
  }
  void kill() override { signal(SIGKILL); }

 private:
  std::promise<void> gone_;
  std::uint64_t attempt_ = 0;
};

void own_workers() {
  std::promise<void> gone;
  auto is_gone = gone.get_future();
  {
    auto agent =
        VALUE(rdzv::custom_agent(options_of_two(), handler_of_one(2), std::make_unique<message>(std::move(gone))));
    std::string report;
    auto result = VALUE(agent.run([&](const rdzv::agent_event& event) {
      if (event.kind == rdzv::agent_event_kind::workers_failed) report = event.message;
    }));
    CHECK(result.succeeded() && result.returned.size() == 2 && result.returned[1].second == "done");
    CHECK(report.find("host      : far") != std::string::npos && report.find("out of paper") != std::string::npos);
  }
  CHECK(is_gone.wait_for(patience) == std::future_status::ready);
}

#if defined(__cpp_exceptions)
std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void exceptions_of_agents() {
  rdzv::agent_options options = options_of_two();
  options.program = "sleep";
  options.arguments = {"1000"};
  auto agent = VALUE(rdzv::agent::create(options, handler_of_one(2)));
  bool was_thrown = false;
  try {
    static_cast<void>(agent.run([](const rdzv::agent_event& event) {
      if (event.kind == rdzv::agent_event_kind::running) throw std::runtime_error("out of ink");
    }));
  } catch (const std::runtime_error& thrown) {
    was_thrown = std::string_view(thrown.what()) == "out of ink";
  }
  CHECK(was_thrown && VALUE(agent.get_result()).outcome == rdzv::agent_outcome::stopped);

  // What nobody catches is recorded, and the program ends as ever.
  const auto folder = std::filesystem::temp_directory_path();
  const std::string path = (folder / ("rdzv-error-" + std::to_string(getpid()))).string();
  CHECK(setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1) == 0);
  std::fflush(nullptr);
  const pid_t worker = fork();
  CHECK(worker >= 0);
  if (worker == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(2);
    rdzv::record_uncaught_errors();
    rdzv::record_uncaught_errors();
    try {
      throw std::runtime_error("the loss is not a number");
    } catch (...) {
      std::terminate();
    }
    std::_Exit(3);
  }
  int status = 0;
  CHECK(waitpid(worker, &status, 0) == worker);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  CHECK(content_of(path).find("the loss is not a number") != std::string::npos);
  CHECK(VALUE(rdzv::record_error(std::runtime_error("again"))));
  CHECK(content_of(path).find("again") != std::string::npos);
  CHECK(unsetenv("TORCHELASTIC_ERROR_FILE") == 0 && unlink(path.c_str()) == 0);
}
#endif

}  // namespace

void agents_in_cpp() {
  programs();
  stopping();
  loop();
  functions();
  timers();
  own_workers();
  CHECK(!VALUE(rdzv::record_error("nobody looks")));
#if defined(__cpp_exceptions)
  exceptions_of_agents();
#endif
}
