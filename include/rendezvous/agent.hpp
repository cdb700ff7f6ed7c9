// rendezvous/agent.hpp: agents, which supervise the worker processes of a node, and error files of workers. For C++17
// and later; rendezvous.hpp includes it.
#ifndef RENDEZVOUS_AGENT_HPP
#define RENDEZVOUS_AGENT_HPP

#include "loop.hpp"
#include "rendezvous.hpp"
#include "agent.h"

#include <cstdlib>
#include <exception>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// State of a group of workers.
enum class worker_state : std::int32_t {
  unknown = RDZV_WORKERS_UNKNOWN,
  init = RDZV_WORKERS_INIT,
  healthy = RDZV_WORKERS_HEALTHY,
  unhealthy = RDZV_WORKERS_UNHEALTHY,
  stopped = RDZV_WORKERS_STOPPED,
  succeeded = RDZV_WORKERS_SUCCEEDED,
  failed = RDZV_WORKERS_FAILED,
};

/// Returns a name such as "HEALTHY".
inline std::string_view name(worker_state state) { return rdzv_worker_state_name(static_cast<std::int32_t>(state)); }

/// Phase of an agent.
enum class agent_phase : std::int32_t {
  idle = RDZV_PHASE_IDLE,
  meeting = RDZV_PHASE_MEETING,
  assigning = RDZV_PHASE_ASSIGNING,
  starting = RDZV_PHASE_STARTING,
  running = RDZV_PHASE_RUNNING,
  restarting = RDZV_PHASE_RESTARTING,
  exit_barrier = RDZV_PHASE_EXIT_BARRIER,
  ending = RDZV_PHASE_ENDING,
  closing = RDZV_PHASE_CLOSING,
  over = RDZV_PHASE_OVER,
};

/// Returns a name such as "running".
inline std::string_view name(agent_phase phase) { return rdzv_agent_phase_name(static_cast<std::int32_t>(phase)); }

/// Outcome of an agent.
enum class agent_outcome : std::int32_t {
  succeeded = RDZV_OUTCOME_SUCCEEDED,
  /// The agent was a spare and was not needed: a success, too.
  not_needed = RDZV_OUTCOME_NOT_NEEDED,
  stopped = RDZV_OUTCOME_STOPPED,
  failed = RDZV_OUTCOME_FAILED,
  guard_lost = RDZV_OUTCOME_GUARD_LOST,
};

/// Workers of an agent at one moment.
struct worker_group {
  struct worker {
    std::uint32_t local_rank = 0;
    std::uint64_t global_rank = 0, role_rank = 0, world_size = 0, role_world_size = 0;
    /// 0 until the worker is started.
    std::uint32_t pid = 0;
    /// Present once the worker has exited; minus the number of the signal that ended it.
    std::optional<std::int32_t> exit_code;
  };

  std::string role;
  worker_state state = worker_state::init;
  /// Rank of the agent among the agents; empty while there is no round.
  std::optional<std::int64_t> group_rank;
  std::int64_t group_world_size = 0;
  std::optional<std::int64_t> round;
  /// Number of earlier starts of the group, for any reason.
  std::uint64_t attempt = 0;
  /// Number of restarts because the group's own workers failed.
  std::uint32_t restart_count = 0;
  /// By local rank; empty until the ranks are known.
  std::vector<worker> workers;

  /// Copies a group of the C API.
  static worker_group copy_of(const rdzv_worker_group& group) {
    worker_group copy{group.role,    static_cast<worker_state>(group.state), detail::known(group.group_rank),
                      group.group_world_size, detail::known(group.round), group.attempt, group.restart_count, {}};
    for (std::size_t i = 0; i < group.worker_count; ++i) {
      const rdzv_worker& of = *group.workers[i];
      const auto exit_code = of.has_exited != 0 ? std::optional(of.exit_code) : std::nullopt;
      copy.workers.push_back({of.local_rank, of.global_rank, of.role_rank, of.world_size, of.role_world_size, of.pid,
                              exit_code});
    }
    return copy;
  }
};

/// Kind of an agent's event.
enum class agent_event_kind : std::int32_t {
  /// The agent moved from phase `from` to `to`; `message` has the reason.
  phase = RDZV_AGENT_EVENT_PHASE,
  /// All workers of `attempt` run; the five times say how long each step took.
  running = RDZV_AGENT_EVENT_RUNNING,
  /// A worker exited.
  exited = RDZV_AGENT_EVENT_EXITED,
  /// The agent kills the remaining processes; `message` has the reason.
  killing = RDZV_AGENT_EVENT_KILLING,
  /// The agent gave up, after `stop`, on processes that survived the kill.
  gave_up = RDZV_AGENT_EVENT_GAVE_UP,
  /// Workers of one attempt failed; `message` has the report.
  workers_failed = RDZV_AGENT_EVENT_WORKERS_FAILED,
  /// The agent has ended.
  over = RDZV_AGENT_EVENT_OVER,
  /// A timer that a worker had set expired; `message` names it. `local_rank` is the worker's, if it is known.
  timer_expired = RDZV_AGENT_EVENT_TIMER_EXPIRED,
  /// Information for the user in `message`.
  remark = RDZV_AGENT_EVENT_REMARK,
};

/// Event of an agent.
struct agent_event {
  using microseconds = std::chrono::microseconds;

  agent_event_kind kind = agent_event_kind::over;
  agent_phase from = agent_phase::idle;
  agent_phase to = agent_phase::idle;
  /// Number of the attempt; 0 is the first.
  std::uint64_t attempt = 0;
  std::uint32_t local_rank = 0;
  /// Minus the number of the signal that ended the worker.
  std::int32_t exit_code = 0;
  /// True if the agent had stopped the worker.
  bool was_stopped = false;
  microseconds detect{0}, stop{0}, rendezvous{0}, assign{0}, start{0};
  /// Text for the user.
  std::string message;
  /// Restarts that remain for failures of the group's own workers.
  std::uint32_t restarts_left = 0;
  /// Workers at the time of the event; `agent::worker_group` may return a later state.
  rdzv::worker_group group;
};

/// Failure of one worker.
struct worker_failure {
  std::string host;
  std::uint32_t local_rank = 0;
  std::uint64_t global_rank = 0, group_rank = 0;
  std::uint32_t pid = 0;
  /// Minus the number of the signal that ended the worker.
  std::int32_t exit_code = 0;
  /// Such as "SIGSEGV"; empty if no signal ended the worker.
  std::string signal;
  std::chrono::system_clock::time_point when;
  /// Message and call stack from the worker's error file; the call stack is empty if it is unknown.
  std::string message, callstack;
  /// Last lines of standard error, oldest first.
  std::vector<std::string> stderr_tail;
};

/// Result of an agent that has ended.
struct agent_result {
  agent_outcome outcome = agent_outcome::failed;
  /// Reason for the outcome.
  std::string reason;
  /// Report of the failures for the user, as text (empty if there were none) and as JSON ("null" then).
  std::string report, report_json;
  /// Failures of the last attempt, root cause first.
  std::vector<worker_failure> failures;
  /// Global rank and returned bytes of each worker of this agent; empty unless the workers ran a function and
  /// succeeded.
  std::vector<std::pair<std::uint64_t, std::string>> returned;

  bool succeeded() const noexcept {
    return outcome == agent_outcome::succeeded || outcome == agent_outcome::not_needed;
  }
};

/// Arguments and return value of a worker function.
class worker_call {
 public:
  explicit worker_call(rdzv_worker_call* call) noexcept : call_(call) {}
  std::vector<std::string> arguments() const { return detail::strings(call_->arguments, call_->argument_count); }
  /// Sets the value that the worker returns, 256 MiB at most. The data is copied, and the last call counts. If the
  /// value is too long or the system lacks memory for it, the worker fails with exit code 102 and a message.
  void set_returned(std::string_view data) { rdzv_worker_call_return(call_, detail::bytes(data), data.size()); }

 private:
  rdzv_worker_call* call_;
};

/// Way of assigning ranks to workers.
enum class rank_assignment : std::int32_t {
  /// Agents exchange their roles and sizes through the round's store.
  through_store = RDZV_RANKS_THROUGH_STORE,
  /// All agents have the same number of workers and one role; each agent computes its ranks by itself.
  identical = RDZV_RANKS_IDENTICAL,
};

/// Processors of a worker.
enum class numa_binding : std::int32_t {
  none = RDZV_NUMA_NONE,
  /// Those of its NUMA node.
  node = RDZV_NUMA_NODE,
  /// Those of its node's socket.
  socket = RDZV_NUMA_SOCKET,
  /// Its own share of the cores of its node.
  exclusive = RDZV_NUMA_EXCLUSIVE,
  /// Cores of its node that share a cache.
  core_complex = RDZV_NUMA_CORE_COMPLEX,
};

/// Options of an agent. An empty string or optional and `default_timeout` stand for the default, which agent.h has for
/// each field of `rdzv_agent_options`.
struct agent_options {
  using milliseconds = std::chrono::milliseconds;

  /// Number of workers, from 1 to 4096. The parameters of a handler of the backend `rdzv` need it, too, as the option
  /// `local_world_size`.
  std::uint32_t local_world_size = 1;
  /// Program that each worker runs, with `${local_rank}` in its arguments; without one, the workers run `function`. A
  /// name without a slash is searched for in PATH.
  std::string program;
  std::vector<std::string> arguments;
  /// Function of this program. It runs in a forked process and sees the program's memory as it was when the agent was
  /// created: see `rdzv_worker_fn`. If an exception leaves it, the error is recorded and the worker exits with code 1.
  std::function<int(worker_call&)> function;
  /// Variables that override those of this program.
  std::vector<std::pair<std::string, std::string>> environment;
  std::string directory;
  std::string role;
  /// Restarts after failures of the agent's own workers: 3, or 0 for none.
  std::optional<std::uint32_t> max_restarts;
  /// Longest pause before a restart: 10 s, or 0 for none.
  milliseconds restart_backoff = default_timeout;
  /// Signal that stops workers: SIGTERM.
  int stop_signal = 0;
  /// Time that workers have to end after the stop signal: 30 s; 0 kills them at once.
  milliseconds stop_timeout = default_timeout;
  /// Time that processes that workers leave behind have to end: 3 s; 0 kills them at once.
  milliseconds leftover_timeout = default_timeout;
  milliseconds kill_timeout = default_timeout;
  milliseconds start_timeout = default_timeout;
  /// Wait for agents whose workers still run: as long as those run if the rendezvous reports deaths, otherwise 300 s; 0
  /// for no wait.
  milliseconds exit_barrier_timeout = default_timeout;
  rdzv::rank_assignment rank_assignment = rdzv::rank_assignment::through_store;
  /// Wait for the other agents when ranks are assigned: 60 s.
  milliseconds assign_timeout = default_timeout;
  milliseconds monitor_interval = default_timeout;
  /// Time for which a worker may hang in the kernel before the agent gives up; not checked by default.
  milliseconds stuck_timeout = default_timeout;
  /// Each worker sees one device, and LOCAL_RANK 0.
  bool one_device_each = false;
  /// Workers that run a program are bound to processors by the program numactl.
  rdzv::numa_binding numa_binding = rdzv::numa_binding::none;
  /// Host in reports.
  std::string host_name;
  /// Address at which workers of other nodes reach this one, and address on which it listens if it hosts their store.
  std::string local_addr, listen_addr;
  /// Address of an existing store for the workers; with a port alone, that of the store that this agent serves.
  std::string master_addr;
  std::uint16_t master_port = 0;
  /// Directory for log and error files; "/dev/null" for none.
  std::string log_dir;
  /// Streams for files ("0" none, "1" stdout, "2" stderr, "3" both, or "RANK:N,RANK:N"), and those that go to the
  /// console as well, with a prefix.
  std::string redirects, tee, line_prefix;
  /// Workers whose output the console shows, such as "0,2".
  std::string local_ranks_filter;
  /// Comma-separated substrings: lines that contain one are also written to one file for all workers.
  std::string duplicate_stdout_filters, duplicate_stderr_filters;
  /// Pipe through which workers set timers, by the protocol of PyTorch's file timers.
  std::string timer_file;
};

/// Receiver of an agent's metrics and event records: values in the unit that the name ends with, and JSON objects of
/// one line. Called on the thread that drives the agent. Exceptions are dropped.
struct agent_sink {
  std::function<void(std::string_view name, std::int64_t value)> metric;
  std::function<void(std::string_view json)> record;
};

namespace detail {

inline agent_event cpp_event(const rdzv_agent_event& of) {
  using us = std::chrono::microseconds;
  const auto from = static_cast<agent_phase>(of.from), to = static_cast<agent_phase>(of.to);
  return {static_cast<agent_event_kind>(of.kind), from, to, of.attempt, of.local_rank, of.exit_code,
          of.was_stopped != 0, us(of.detect_us), us(of.stop_us), us(of.rendezvous_us), us(of.assign_us),
          us(of.start_us), of.message, of.restarts_left, worker_group::copy_of(*of.group)};
}

inline agent_result cpp_result(const rdzv_agent_result& result) {
  const auto outcome = static_cast<agent_outcome>(result.outcome);
  agent_result copy{outcome, result.reason, result.report, result.report_json, {}, {}};
  for (std::size_t i = 0; i < result.failure_count; ++i) {
    const rdzv_worker_failure& of = *result.failures[i];
    const std::chrono::system_clock::time_point when(std::chrono::seconds(of.timestamp_s));
    copy.failures.push_back({of.host, of.local_rank, of.global_rank, of.group_rank, of.pid, of.exit_code,
                             text(of.signal), when, of.message, text(of.callstack),
                             strings(of.stderr_lines, of.stderr_line_count)});
  }
  for (std::size_t i = 0; i < result.returned_count; ++i)
    copy.returned.emplace_back(result.returned[i].global_rank, text(result.returned[i].data, result.returned[i].len));
  return copy;
}

/// Options of the C API, with the lists that they point to. The C++ options must outlive it.
struct c_agent_options {
  rdzv_agent_options value = sized<rdzv_agent_options>();
  std::vector<const char*> arguments, environment;
  std::vector<std::string> variables;

  explicit c_agent_options(const agent_options& from) {
    for (const auto& argument : from.arguments) arguments.push_back(argument.c_str());
    for (const auto& [key, content] : from.environment) variables.push_back(key + "=" + content);
    for (const auto& variable : variables) environment.push_back(variable.c_str());
    // 0 is the default in C: a number of workers that is 0 is refused like one that is too large.
    value.local_world_size = from.local_world_size == 0 ? UINT32_MAX : from.local_world_size;
    set_texts({{&value.program, from.program}, {&value.directory, from.directory}, {&value.role, from.role},
               {&value.host_name, from.host_name}, {&value.local_addr, from.local_addr},
               {&value.listen_addr, from.listen_addr}, {&value.master_addr, from.master_addr},
               {&value.timer_file, from.timer_file}, {&value.log_dir, from.log_dir}, {&value.tee, from.tee},
               {&value.redirects, from.redirects}, {&value.line_prefix, from.line_prefix},
               {&value.local_ranks_filter, from.local_ranks_filter},
               {&value.duplicate_stdout_filters, from.duplicate_stdout_filters},
               {&value.duplicate_stderr_filters, from.duplicate_stderr_filters}});
    value.arguments = arguments.data();
    value.argument_count = arguments.size();
    value.environment = environment.data();
    value.environment_count = environment.size();
    value.master_port = from.master_port;
    value.rank_assignment = static_cast<std::int32_t>(from.rank_assignment);
    value.devices = from.one_device_each ? RDZV_DEVICES_ONE_EACH : RDZV_DEVICES_ALL;
    value.numa_binding = static_cast<std::int32_t>(from.numa_binding);
    if (from.max_restarts) {
      const std::uint32_t count = *from.max_restarts < INT32_MAX ? *from.max_restarts : INT32_MAX;
      value.max_restarts = count == 0 ? -1 : static_cast<std::int32_t>(count);
    }
    value.stop_signal = from.stop_signal;
    value.stop_timeout_ms = option_count(from.stop_timeout);
    value.leftover_timeout_ms = option_count(from.leftover_timeout);
    value.kill_timeout_ms = option_count(from.kill_timeout);
    value.start_timeout_ms = option_count(from.start_timeout);
    value.restart_backoff_ms = option_count(from.restart_backoff);
    value.exit_barrier_timeout_ms = option_count(from.exit_barrier_timeout);
    value.assign_timeout_ms = option_count(from.assign_timeout);
    value.monitor_interval_ms = option_count(from.monitor_interval);
    value.stuck_timeout_ms = option_count(from.stuck_timeout);
  }
};

/// Function of workers, as a base that an agent destroys last.
struct worker_function {
  std::unique_ptr<std::function<int(worker_call&)>> function;
};

}  // namespace detail

/// Writes an error to the worker's error file, in PyTorch's format; its agent reports it. False if no agent started
/// this process.
inline result<bool> record_error(std::string_view message, std::string_view callstack = {}) {
  return detail::call<bool>(rdzv_record_error, message, callstack);
}

/// Sets the timer of this worker for `scope`, in place of an earlier one. When it expires, the agent sends `signal` to
/// this process, by default SIGKILL, and starts the workers again. `status::unsupported` if the agent takes no timers.
inline result<void> set_worker_timer(const std::string& scope, std::chrono::milliseconds timeout, int signal = 0) {
  return detail::call(rdzv_worker_set_timer, scope.c_str(), timeout.count(), signal);
}
/// Removes the timer of this worker for `scope`.
inline result<void> clear_worker_timer(const std::string& scope) {
  return detail::call(rdzv_worker_clear_timer, scope.c_str());
}

/// Supervisor of a node's worker processes: it joins the rendezvous, starts and monitors the workers, and restarts them
/// when one fails or the membership changes. It runs once. Any thread may call `stop`, `pass_signal` and
/// `worker_group`.
class agent : detail::worker_function, public detail::owner<agent, rdzv_agent, rdzv_agent_free> {
 public:
  using owner::owner;
  using listener = std::function<void(const agent_event&)>;

  /// The agent shares the handler, which must not be used for anything else until the agent has ended. This call forks
  /// a process for the workers: call it before the program has many threads.
  static result<agent> create(const agent_options& options, const rendezvous_handler& handler,
                              const context* shared = nullptr) {
    detail::c_agent_options given(options);
    auto kept = std::make_unique<std::function<int(worker_call&)>>(options.function);
    if (*kept) {
      given.value.function = &run_function;
      given.value.user_data = kept.get();
    }
    auto made = detail::call<agent>(rdzv_agent_new, shared, &given.value, handler);
    if (made) made->function = std::move(kept);
    return made;
  }

  /// Runs the agent to its end on this thread. `on_event` is called for each event; it may stop the agent. An exception
  /// that leaves it stops the agent and is thrown again by this call.
  result<agent_result> run(listener on_event = nullptr) {
    listening state{*this, on_event};
    const auto each = on_event ? &listening::handle_event : nullptr;
    auto ended = detail::call<rdzv_agent_result>(rdzv_agent_run, c_handle(), each, static_cast<void*>(&state));
    if (state.thrown) std::rethrow_exception(state.thrown);
    return std::move(ended).transform(detail::cpp_result);
  }
  /// Returns the result, once the agent has ended.
  result<agent_result> get_result() const {
    return detail::call<rdzv_agent_result>(rdzv_agent_get_result, c_handle()).transform(detail::cpp_result);
  }
  /// Adds a sink. Added before the agent runs, it receives everything from the start.
  result<void> add_sink(agent_sink sink) const {
    auto owned = std::make_unique<agent_sink>(std::move(sink));
    auto table = detail::table_of<rdzv_agent_sink>(owned);
    const auto metric = [](void* user_data, const std::uint8_t* name, std::size_t size, std::int64_t value) {
      detail::guarded([&] { static_cast<agent_sink*>(user_data)->metric(detail::text(name, size), value); });
    };
    const auto record = [](void* user_data, const std::uint8_t* json, std::size_t size) {
      detail::guarded([&] { static_cast<agent_sink*>(user_data)->record(detail::text(json, size)); });
    };
    if (owned->metric) table.metric = metric;
    if (owned->record) table.record = record;
    return detail::give(std::move(owned), rdzv_agent_add_sink, c_handle(), &table);
  }
  /// Serves the agent's health over HTTP at a numeric address until the agent is destroyed. Returns the port; `port` 0
  /// is any free one.
  result<std::uint16_t> serve_health(std::string_view host, detail::port_number port) const {
    if (auto failure = port.refusal()) return std::move(*failure);
    return detail::call<std::uint16_t>(rdzv_agent_serve_health, c_handle(), host, port.value());
  }
  /// Makes the agent stop its workers with this signal and end; 0: with `agent_options::stop_signal`. A second request
  /// kills the workers. Fails only with a signal that there is not.
  result<void> stop(int signal = 0) const { return detail::call(rdzv_agent_stop, c_handle(), signal); }
  /// Sends a signal to the workers and changes nothing else.
  result<void> pass_signal(int signal) const { return detail::call(rdzv_agent_pass_signal, c_handle(), signal); }
  /// Returns the workers at this moment.
  result<rdzv::worker_group> worker_group() const {
    using group = detail::handle<const rdzv_worker_group, rdzv_worker_group_free>;
    return detail::call<group>(rdzv_agent_get_worker_group, c_handle()).transform([](const group& found) {
      return rdzv::worker_group::copy_of(*found);
    });
  }

 private:
  struct listening {
    const agent& self;
    const listener& on_event;
    std::exception_ptr thrown = nullptr;

    static void handle_event(void* user_data, const rdzv_agent_event* event) {
      auto& of = *static_cast<listening*>(user_data);
      if (of.thrown) return;
      const auto stop = [&of](const char*, status) {
        of.thrown = std::current_exception();
        static_cast<void>(of.self.stop());
      };
      detail::guarded([&] { of.on_event(detail::cpp_event(*event)); }, stop);
    }
  };

  static std::int32_t run_function(void* user_data, rdzv_worker_call* call) {
    worker_call given(call);
    const auto& code = *static_cast<std::function<int(worker_call&)>*>(user_data);
    const auto record = [](const char* message, status) {
      static_cast<void>(record_error(message));
      return 1;
    };
    return detail::guarded([&] { return code(given); }, record);
  }
};

/// Adds an agent to a loop, which drives it from now on; its events have `event_kind::agent`. The agent must stay, to
/// be stopped and for its result. `event_loop::remove` takes it out.
inline result<event_loop::member> add_agent(event_loop& loop, const agent& which, void* user_data = nullptr) {
  return detail::call<event_loop::member>(rdzv_loop_add_agent, loop, which, user_data);
}

/// Returns the agent's event if the last event of the loop was one of `event_kind::agent`.
inline result<agent_event> agent_event_of(event_loop& loop) {
  return detail::call<rdzv_agent_event>(rdzv_loop_agent_event, loop).transform(detail::cpp_event);
}

#if defined(__cpp_exceptions)
inline result<bool> record_error(const std::exception& thrown) { return record_error(std::string_view(thrown.what())); }

namespace detail {

inline std::terminate_handler& next_terminate_handler() {
  static std::terminate_handler next = nullptr;
  return next;
}

[[noreturn]] inline void record_and_terminate() {
  const auto record = [](const char* message, status) { static_cast<void>(record_error(message)); };
  if (const std::exception_ptr thrown = std::current_exception()) {
    guarded([&] { std::rethrow_exception(thrown); }, record);
  } else {
    record("std::terminate was called without an exception", status::io);
  }
  if (next_terminate_handler() != nullptr) next_terminate_handler()();
  std::abort();
}

}  // namespace detail

/// Makes an uncaught exception of a worker go to its error file before the program ends as it would have ended. Call it
/// first in `main`.
inline void record_uncaught_errors() {
  if (std::get_terminate() == &detail::record_and_terminate) return;
  detail::next_terminate_handler() = std::set_terminate(&detail::record_and_terminate);
}
#endif

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_AGENT_HPP
