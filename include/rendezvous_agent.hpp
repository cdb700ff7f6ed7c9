// rendezvous_agent.hpp: agents, which supervise the worker processes of a node, and what a worker leaves for its agent
// when it fails. For C++17 and later; rendezvous.hpp brings it along.

// Before the guard: it brings this header along, in its place among the others.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_AGENT_HPP
#define RENDEZVOUS_AGENT_HPP

#include <csignal>

#if defined(__cpp_exceptions)
#include <cstdlib>
#include <exception>
#endif

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// How a group of workers is.
enum class worker_state : std::int32_t {
  unknown = RDZV_WORKERS_UNKNOWN,
  init = RDZV_WORKERS_INIT,
  healthy = RDZV_WORKERS_HEALTHY,
  unhealthy = RDZV_WORKERS_UNHEALTHY,
  stopped = RDZV_WORKERS_STOPPED,
  succeeded = RDZV_WORKERS_SUCCEEDED,
  failed = RDZV_WORKERS_FAILED,
};

/// Such as "HEALTHY".
inline std::string_view name(worker_state state) { return rdzv_worker_state_name(static_cast<std::int32_t>(state)); }

/// What an agent is about.
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

/// Such as "running".
inline std::string_view name(agent_phase phase) { return rdzv_agent_phase_name(static_cast<std::int32_t>(phase)); }

/// How an agent ended.
enum class verdict : std::int32_t {
  succeeded = RDZV_OUTCOME_SUCCEEDED,
  /// It stood by, and was not needed: a success, too.
  not_needed = RDZV_OUTCOME_NOT_NEEDED,
  stopped = RDZV_OUTCOME_STOPPED,
  failed = RDZV_OUTCOME_FAILED,
  guard_lost = RDZV_OUTCOME_GUARD_LOST,
};

/// The workers of an agent at one moment.
struct worker_group {
  struct worker {
    std::uint32_t local_rank = 0;
    std::uint64_t global_rank = 0, role_rank = 0, world_size = 0, role_world_size = 0;
    /// 0 until it is started.
    std::uint32_t pid = 0;
    /// Once it has ended; minus the number of the signal that ended it.
    std::optional<std::int32_t> exit_code;
  };

  std::string role;
  worker_state state = worker_state::init;
  /// The agent's rank among the agents; nothing while there is no round.
  std::optional<std::int64_t> group_rank;
  std::int64_t group_world_size = 0;
  std::optional<std::int64_t> round;
  /// How often the group was started before this time, for whatever reason.
  std::uint64_t attempt = 0;
  /// How often because its own workers failed.
  std::uint32_t restart_count = 0;
  /// By local rank; empty until the ranks are known.
  std::vector<worker> workers;

  /// Copies a handle of the C ABI.
  static result<worker_group> read(const rdzv_worker_group* group) {
    rdzv_worker_group_info info{};
    info.struct_size = sizeof info;
    if (auto failure = detail::failure_of(rdzv_worker_group_get_info, group, &info)) return std::move(*failure);
    worker_group copy;
    copy.role = detail::borrowed(rdzv_worker_group_role, group);
    copy.state = static_cast<worker_state>(info.state);
    if (info.group_rank >= 0) copy.group_rank = info.group_rank;
    copy.group_world_size = info.group_world_size;
    if (info.round >= 0) copy.round = info.round;
    copy.attempt = info.attempt;
    copy.restart_count = info.restart_count;
    for (std::uint32_t i = 0; i < info.worker_count; ++i) {
      rdzv_worker of{};
      of.struct_size = sizeof of;
      if (auto failure = detail::failure_of(rdzv_worker_group_worker, group, i, &of)) return std::move(*failure);
      worker each{of.local_rank,      of.global_rank, of.role_rank,   of.world_size,
                  of.role_world_size, of.pid,         std::nullopt};
      if (of.has_exited != 0) each.exit_code = of.exit_code;
      copy.workers.push_back(each);
    }
    return copy;
  }
};

/// What an event of an agent is about.
enum class agent_event_kind : std::int32_t {
  /// It went from phase `from` to `to`, for the reason in `words`.
  phase = RDZV_AGENT_EVENT_PHASE,
  /// All workers of `attempt` run; what that took is in the five times.
  running = RDZV_AGENT_EVENT_RUNNING,
  /// A worker ended.
  exited = RDZV_AGENT_EVENT_EXITED,
  /// What lives is killed, for the reason in `words`.
  killing = RDZV_AGENT_EVENT_KILLING,
  /// Processes that outlived that are left to themselves, after `stop`.
  gave_up = RDZV_AGENT_EVENT_GAVE_UP,
  /// Workers of one start failed: the report is in `words`.
  workers_failed = RDZV_AGENT_EVENT_WORKERS_FAILED,
  /// It is done.
  over = RDZV_AGENT_EVENT_OVER,
  /// A timer that a worker had set has expired: `words` tells which, `local_rank` whose, if that is known.
  timer_expired = RDZV_AGENT_EVENT_TIMER_EXPIRED,
  /// Something that changes nothing and that the user should know is in `words`.
  remark = RDZV_AGENT_EVENT_REMARK,
};

/// Something that happened to an agent.
struct agent_event {
  using microseconds = std::chrono::microseconds;

  agent_event_kind kind = agent_event_kind::over;
  agent_phase from = agent_phase::idle;
  agent_phase to = agent_phase::idle;
  /// Which start; 0 is the first.
  std::uint64_t attempt = 0;
  std::uint32_t local_rank = 0;
  /// Minus the number of the signal that ended the worker.
  std::int32_t exit_code = 0;
  /// Whether the agent had sent it the stop signal.
  bool was_stopped = false;
  microseconds detect{0}, stop{0}, rendezvous{0}, assign{0}, start{0};
  /// A reason, or a report.
  std::string message;
  /// How often the group may still be started again after a failure of its own workers.
  std::uint32_t restarts_left = 0;
  /// The workers as they were then; those of `agent::worker_group` may be ahead of it.
  rdzv::worker_group group;
};

namespace detail {

inline agent_event cpp_event(const rdzv_agent_event& event) {
  using microseconds = std::chrono::microseconds;
  agent_event copy;
  copy.kind = static_cast<agent_event_kind>(event.kind);
  copy.from = static_cast<agent_phase>(event.from);
  copy.to = static_cast<agent_phase>(event.to);
  copy.attempt = event.attempt;
  copy.local_rank = event.local_rank;
  copy.exit_code = event.exit_code;
  copy.was_stopped = event.was_stopped != 0;
  copy.detect = microseconds(event.detect_us);
  copy.stop = microseconds(event.stop_us);
  copy.rendezvous = microseconds(event.rendezvous_us);
  copy.assign = microseconds(event.assign_us);
  copy.start = microseconds(event.start_us);
  copy.message = text(event.message, event.message_len);
  copy.restarts_left = event.restarts_left;
  if (auto group = worker_group::read(event.group)) copy.group = *std::move(group);
  return copy;
}

}  // namespace detail

/// One worker's failure.
struct worker_failure {
  std::string host;
  std::uint32_t local_rank = 0;
  std::uint64_t global_rank = 0, group_rank = 0;
  std::uint32_t pid = 0;
  /// Minus the number of the signal that ended it.
  std::int32_t exit_code = 0;
  /// Such as "SIGSEGV"; empty when no signal ended it.
  std::string signal;
  std::chrono::system_clock::time_point when;
  /// Message and call stack from the worker's error file; empty without one.
  std::string message, callstack;
  /// The last lines of its standard error.
  std::vector<std::string> stderr_tail;
};

/// How an agent ended.
class agent_result {
 public:
  rdzv::verdict verdict() const noexcept { return static_cast<rdzv::verdict>(rdzv_agent_result_outcome(c_handle())); }
  bool succeeded() const noexcept {
    return verdict() == rdzv::verdict::succeeded || verdict() == rdzv::verdict::not_needed;
  }
  /// Why, in words.
  std::string reason() const { return detail::borrowed(rdzv_agent_result_reason, c_handle()); }
  /// What each worker of this agent returned, with its global rank; empty unless they were functions and ended well.
  std::vector<std::pair<std::uint64_t, std::string>> returned() const {
    std::vector<std::pair<std::uint64_t, std::string>> all;
    for (std::size_t i = 0, count = rdzv_agent_result_returned_count(c_handle()); i < count; ++i) {
      std::uint64_t rank = 0;
      std::size_t size = 0;
      const std::uint8_t* data = rdzv_agent_result_returned(c_handle(), i, &rank, &size);
      all.emplace_back(rank, detail::text(data, size));
    }
    return all;
  }
  /// The failures of the last start, the root cause first.
  std::vector<worker_failure> failures() const {
    std::vector<worker_failure> all;
    for (std::size_t i = 0, count = rdzv_agent_result_failure_count(c_handle()); i < count; ++i) {
      rdzv_worker_failure of{};
      of.struct_size = sizeof of;
      if (rdzv_agent_result_failure(c_handle(), i, &of, nullptr) != RDZV_OK) break;
      worker_failure each;
      each.host = detail::text(of.host, of.host_len);
      each.local_rank = of.local_rank;
      each.global_rank = of.global_rank;
      each.group_rank = of.group_rank;
      each.pid = of.pid;
      each.exit_code = of.exit_code;
      each.signal = detail::text(of.signal, of.signal_len);
      each.when = std::chrono::system_clock::time_point(std::chrono::seconds(of.timestamp_s));
      each.message = detail::text(of.message, of.message_len);
      each.callstack = detail::text(of.callstack, of.callstack_len);
      for (std::size_t line = 0; line < of.stderr_line_count; ++line) {
        std::size_t size = 0;
        const std::uint8_t* data = rdzv_agent_result_stderr_line(c_handle(), i, line, &size);
        each.stderr_tail.emplace_back(detail::text(data, size));
      }
      all.push_back(std::move(each));
    }
    return all;
  }
  /// The report of the failures, as a user is to read it; empty when there were none.
  std::string report() const { return detail::borrowed(rdzv_agent_result_report, c_handle()); }
  /// The same as JSON; "null" when there were none.
  std::string report_json() const { return detail::borrowed(rdzv_agent_result_report_json, c_handle()); }

  const rdzv_agent_result* c_handle() const noexcept { return handle_.get(); }
  /// Takes over a handle of the C ABI.
  static agent_result adopt(rdzv_agent_result* handle) noexcept { return agent_result(handle); }

 private:
  explicit agent_result(rdzv_agent_result* made) noexcept : handle_(made) {}
  detail::handle<rdzv_agent_result, rdzv_agent_result_free> handle_;
};

/// Arguments of a worker function, and the place for its return value.
class worker_call {
 public:
  explicit worker_call(rdzv_worker_call* call) noexcept : call_(call) {}
  /// Its arguments.
  std::vector<std::string> arguments() const {
    std::vector<std::string> all;
    std::size_t size = 0;
    while (const std::uint8_t* data = rdzv_worker_call_argument(call_, all.size(), &size))
      all.emplace_back(detail::text(data, size));
    return all;
  }
  /// What the worker returns, 256 MiB at most; copied, and the last one counts. If it is longer, or there is no room
  /// for it, the worker fails with exit code 102 and a message that tells why.
  void set_returned(std::string_view data) { rdzv_worker_call_return(call_, detail::bytes(data), data.size()); }

 private:
  rdzv_worker_call* call_;
};

/// What an agent is to supervise, and how.
struct agent_options {
  using milliseconds = std::chrono::milliseconds;

  /// Workers of this agent, from 1 to 4096.
  std::uint32_t local_world_size = 1;
  /// What each runs: a program, with `${local_rank}` in its arguments, or else a function of this program. A name without
  /// a slash is looked for in PATH.
  std::string program;
  std::vector<std::string> arguments;
  /// Runs in a forked process, and sees the program's memory as it was when the agent was made; rendezvous.h tells more
  /// at `rdzv_agent_options_set_function`. An exception that leaves it is recorded (see `record_error`), and exit code 1.
  std::function<int(worker_call&)> function;
  /// Variables over those of this program.
  std::vector<std::pair<std::string, std::string>> environment;
  /// Empty: where this program is.
  std::string directory;
  std::string role = "default";
  /// How often the group may be started again after a failure of its own workers.
  std::uint32_t max_restarts = 3;
  /// The longest pause before a restart, where starts fail at once one after the other; 0: no pauses.
  milliseconds restart_backoff{10000};
  int stop_signal = SIGTERM;
  /// How long workers may take to end before they are killed.
  milliseconds stop_timeout{30000};
  /// How long processes that workers leave behind may take to end, once no worker lives.
  milliseconds leftover_timeout{3000};
  milliseconds kill_timeout{5000};
  /// How long it may take until all workers of a start run.
  milliseconds start_timeout{300000};
  /// How long to wait for agents whose workers still run. Without it: as long as those work, if the rendezvous reports
  /// deaths, otherwise 300 s.
  std::optional<milliseconds> exit_barrier_timeout;
  /// Where the rendezvous does not tell of waiting nodes by itself.
  milliseconds monitor_interval{1000};
  /// Each worker sees one device, and LOCAL_RANK 0.
  bool one_device_each = false;
  /// The host in reports; empty: its name.
  std::string name;
  /// Where workers of other nodes reach this one; empty: as the rendezvous knows it.
  std::string local_addr;
  /// Where this node listens if it serves the workers' store; empty: where other nodes reach it.
  std::string listen_addr;
  /// Where files of logs and errors are; empty: a new folder for temporary files. "/dev/null": nowhere.
  std::string log_dir;
  /// What goes into files ("0" nothing, "1" stdout, "2" stderr, "3" both, or "RANK:N,RANK:N"), and what to the console,
  /// too, behind a prefix (empty: "[ROLE][LOCAL RANK]:").
  std::string redirects = "0";
  std::string tee = "0";
  std::string tee_prefix;
  /// The workers whose output is shown, as in "0,2"; empty: all.
  std::string local_ranks_filter;
  /// Where a pipe is made through which workers set timers, by the protocol of PyTorch's file timers; empty: there is none.
  std::string timer_file;
  /// How long a worker may hang in the kernel before the agent gives up; 0 turns the check off.
  milliseconds stuck_timeout{0};
};

/// Takes what can be counted, measured and recorded of an agent: values of metrics in the unit that their name ends with,
/// and records as JSON objects of one line. Called on the thread that turns the agent. An exception that leaves one is
/// dropped.
struct agent_sink {
  std::function<void(std::string_view name, std::int64_t value)> metric;
  std::function<void(std::string_view json)> record;
};

namespace detail {

using agent_options_handle = handle<rdzv_agent_options, rdzv_agent_options_free>;

inline int32_t run_function(void* user_data, rdzv_worker_call* call);

/// For options of the C ABI. A function that they name must outlive the agent.
inline result<agent_options_handle> c_options(const agent_options& options,
                                              const std::function<int(worker_call&)>* function) {
  rdzv_agent_options* raw = nullptr;
  if (auto failure = failure_of(rdzv_agent_options_new, options.local_world_size, &raw)) return std::move(*failure);
  agent_options_handle owned(raw);
  std::optional<error> failure;
  const auto set = [&](auto setter, auto... arguments) {
    if (!failure) failure = failure_of(setter, raw, arguments...);
  };
  const auto set_text = [&](auto setter, std::string_view message) {
    if (!message.empty()) set(setter, bytes(message), message.size());
  };
  const auto arguments = views(options.arguments);
  if (!options.program.empty()) {
    set(rdzv_agent_options_set_program, bytes(options.program), options.program.size(), arguments.data(),
        arguments.size());
  } else if (function != nullptr) {
    set(rdzv_agent_options_set_function, &run_function,
        const_cast<void*>(static_cast<const void*>(function)));
    set(rdzv_agent_options_set_arguments, arguments.data(), arguments.size());
  }
  for (const auto& [key, value] : options.environment)
    set(rdzv_agent_options_set_variable, bytes(key), key.size(), bytes(value), value.size());
  set_text(rdzv_agent_options_set_directory, options.directory);
  set_text(rdzv_agent_options_set_role, options.role);
  set(rdzv_agent_options_set_max_restarts, options.max_restarts);
  set(rdzv_agent_options_set_restart_backoff_ms, static_cast<std::int64_t>(options.restart_backoff.count()));
  set(rdzv_agent_options_set_stop, options.stop_signal, static_cast<std::int64_t>(options.stop_timeout.count()));
  set(rdzv_agent_options_set_leftover_timeout_ms, static_cast<std::int64_t>(options.leftover_timeout.count()));
  set(rdzv_agent_options_set_kill_timeout_ms, static_cast<std::int64_t>(options.kill_timeout.count()));
  set(rdzv_agent_options_set_start_timeout_ms, static_cast<std::int64_t>(options.start_timeout.count()));
  if (options.exit_barrier_timeout)
    set(rdzv_agent_options_set_exit_barrier_timeout_ms,
        static_cast<std::int64_t>(options.exit_barrier_timeout->count()));
  set(rdzv_agent_options_set_monitor_interval_ms, static_cast<std::int64_t>(options.monitor_interval.count()));
  set(rdzv_agent_options_set_devices, options.one_device_each ? RDZV_DEVICES_ONE_EACH : RDZV_DEVICES_ALL);
  set_text(rdzv_agent_options_set_name, options.name);
  set_text(rdzv_agent_options_set_local_addr, options.local_addr);
  set_text(rdzv_agent_options_set_listen_addr, options.listen_addr);
  set_text(rdzv_agent_options_set_log_dir, options.log_dir);
  set_text(rdzv_agent_options_set_redirects, options.redirects);
  set(rdzv_agent_options_set_tee, bytes(options.tee), options.tee.size(), bytes(options.tee_prefix),
      options.tee_prefix.size());
  if (!options.local_ranks_filter.empty())
    set(rdzv_agent_options_set_console_filters, bytes(options.local_ranks_filter), options.local_ranks_filter.size(),
        bytes(""), std::size_t{0}, bytes(""), std::size_t{0});
  set_text(rdzv_agent_options_set_timer_file, options.timer_file);
  set(rdzv_agent_options_set_stuck_timeout_ms, static_cast<std::int64_t>(options.stuck_timeout.count()));
  if (failure) return std::move(*failure);
  return owned;
}

template <class F, class... A>
void tell_sink(const F& function, A... arguments) noexcept {
#if defined(__cpp_exceptions)
  try {
#endif
    function(arguments...);
#if defined(__cpp_exceptions)
  } catch (...) {
  }
#endif
}

inline void put_metric(void* user_data, const std::uint8_t* name, std::size_t size, std::int64_t value) {
  tell_sink(static_cast<agent_sink*>(user_data)->metric, text(name, size), value);
}

inline void put_record(void* user_data, const std::uint8_t* json, std::size_t size) {
  tell_sink(static_cast<agent_sink*>(user_data)->record, text(json, size));
}

inline void drop_sink(void* user_data) { delete static_cast<agent_sink*>(user_data); }

}  // namespace detail

/// An agent: it meets the others, starts its workers, watches them, and starts them anew when one fails or the members
/// change. It runs once. `stop`, `pass_signal` and `worker_group` are for any thread.
class agent {
 public:
  using listener = std::function<void(const agent_event&)>;

  /// It keeps a share of the handler, of which nothing else should be asked meanwhile. A process is forked for the
  /// workers here: best before the program has many threads.
  static result<agent> create(const agent_options& options, const rendezvous_handler& handler,
                              const context* shared = nullptr) {
    agent made;
    if (options.function) made.function_ = std::make_unique<std::function<int(worker_call&)>>(options.function);
    auto owned = detail::c_options(options, made.function_.get());
    if (!owned) return std::move(owned).error();
    rdzv_agent* raw = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    const rdzv_agent_options* given = owned->get();
    auto failure = detail::failure_of(rdzv_agent_new, context, given, handler.c_handle(), &raw);
    if (failure) return std::move(*failure);
    made.handle_.reset(raw);
    return made;
  }

  /// Runs it to its end, in this thread. `hear` hears of everything as it happens; it may stop the agent. An exception
  /// that leaves it stops the agent, and leaves this, too.
  result<agent_result> run(listener hear = nullptr) {
    ear listening;
    listening.self = this;
    listening.hear = &hear;
    rdzv_agent_result* made = nullptr;
    const rdzv_agent_listener each = hear ? &on_event : nullptr;
    auto failure = detail::failure_of(rdzv_agent_run, c_handle(), each, static_cast<void*>(&listening), &made);
    std::optional<agent_result> ended;
    if (!failure) ended = agent_result::adopt(made);
#if defined(__cpp_exceptions)
    if (listening.thrown) std::rethrow_exception(listening.thrown);
#endif
    if (failure) return std::move(*failure);
    return std::move(*ended);
  }
  /// How it ended, once it is over.
  result<agent_result> get_result() const {
    rdzv_agent_result* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_agent_get_result, c_handle(), &made)) return std::move(*failure);
    return agent_result::adopt(made);
  }
  /// Adds a sink, which hears of everything from the beginning when the agent does not run yet.
  result<void> add_sink(agent_sink sink) const {
    auto owned = std::make_unique<agent_sink>(std::move(sink));
    rdzv_agent_sink given{};
    given.struct_size = sizeof given;
    given.user_data = owned.get();
    given.metric = owned->metric ? &detail::put_metric : nullptr;
    given.record = owned->record ? &detail::put_record : nullptr;
    given.destroy = &detail::drop_sink;
    auto added = detail::call(rdzv_agent_add_sink, c_handle(), &given);
    if (added) static_cast<void>(owned.release());
    return added;
  }
  /// Answers over HTTP, at a numeric address, how the agent is, until it is gone; the port is returned, of which 0 asks
  /// for any that is free.
  result<std::uint16_t> serve_health(std::string_view host, detail::port_number port) const {
    if (auto failure = port.refusal()) return std::move(*failure);
    std::uint16_t bound = 0;
    auto failure =
        detail::failure_of(rdzv_agent_serve_health, c_handle(), detail::bytes(host), host.size(), port.value(), &bound);
    if (failure) return std::move(*failure);
    return bound;
  }
  /// Has it stop its workers and end. The second time it no longer waits for them.
  void stop() const { rdzv_agent_stop(c_handle()); }
  /// The same with a signal, as a launcher that was sent it.
  result<void> stop_by_signal(int signal) const { return detail::call(rdzv_agent_stop_by_signal, c_handle(), signal); }
  /// Sends a signal to the workers, and changes nothing else.
  result<void> pass_signal(int signal) const { return detail::call(rdzv_agent_pass_signal, c_handle(), signal); }
  /// The workers as they are now.
  result<rdzv::worker_group> worker_group() const {
    rdzv_worker_group* raw = nullptr;
    if (auto failure = detail::failure_of(rdzv_agent_get_worker_group, c_handle(), &raw)) return std::move(*failure);
    const detail::handle<rdzv_worker_group, rdzv_worker_group_free> owned(raw);
    return rdzv::worker_group::read(raw);
  }

  const rdzv_agent* c_handle() const noexcept { return handle_.get(); }
  /// Takes over a handle of the C ABI.
  static agent adopt(rdzv_agent* handle) noexcept {
    agent made;
    made.handle_.reset(handle);
    return made;
  }

 private:
  struct ear {
    const agent* self = nullptr;
    const listener* hear = nullptr;
#if defined(__cpp_exceptions)
    std::exception_ptr thrown;
#endif
  };

  agent() = default;

  static void on_event(void* user_data, const rdzv_agent_event* event) {
    ear* of = static_cast<ear*>(user_data);
#if defined(__cpp_exceptions)
    if (of->thrown) return;
    try {
#endif
      (*of->hear)(detail::cpp_event(*event));
#if defined(__cpp_exceptions)
    } catch (...) {
      of->thrown = std::current_exception();
      of->self->stop();
    }
#endif
  }

  // The function goes after the agent.
  std::unique_ptr<std::function<int(worker_call&)>> function_;
  detail::handle<rdzv_agent, rdzv_agent_free> handle_;
};

/// Adds an agent to a loop, which turns it from now on; its events have `event_kind::agent`, and the number that is
/// returned in `store`. The agent must stay, to be stopped and for its result.
inline result<std::uint32_t> add_agent(event_loop& loop, const agent& which) {
  std::uint32_t number = 0;
  if (auto failure = detail::failure_of(rdzv_loop_add_agent, loop.c_handle(), which.c_handle(), &number))
    return std::move(*failure);
  return number;
}

/// Takes it out: no event of it follows.
inline result<void> remove_agent(event_loop& loop, std::uint32_t number) {
  return detail::call(rdzv_loop_remove_agent, loop.c_handle(), number);
}

/// What happened to the agent; for the last event of the loop, when that was one of `event_kind::agent`.
inline result<agent_event> agent_event_of(event_loop& loop) {
  rdzv_agent_event event{};
  event.struct_size = sizeof event;
  if (auto failure = detail::failure_of(rdzv_loop_agent_event, loop.c_handle(), &event)) return std::move(*failure);
  return detail::cpp_event(event);
}

/// For a worker: leaves what went wrong where its agent looks for it, in PyTorch's format. False where no agent looks.
inline result<bool> record_error(std::string_view message, std::string_view callstack = {}) {
  std::int32_t recorded = 0;
  auto failure = detail::failure_of(rdzv_record_error, detail::bytes(message), message.size(),
                                    detail::bytes(callstack), callstack.size(), &recorded);
  if (failure) return std::move(*failure);
  return recorded != 0;
}

#if defined(__cpp_exceptions)
inline result<bool> record_error(const std::exception& thrown) { return record_error(std::string_view(thrown.what())); }

namespace detail {

inline std::terminate_handler& next_terminate_handler() {
  static std::terminate_handler next = nullptr;
  return next;
}

[[noreturn]] inline void record_and_terminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& known) {
      static_cast<void>(record_error(known));
    } catch (...) {
      static_cast<void>(record_error("an exception that is no std::exception"));
    }
  } else {
    static_cast<void>(record_error("std::terminate was called without an exception"));
  }
  if (next_terminate_handler() != nullptr) next_terminate_handler()();
  std::abort();
}

}  // namespace detail

/// For a worker's `main`: an uncaught exception is recorded before the program ends as it would have ended.
inline void record_uncaught_errors() {
  if (std::get_terminate() == &detail::record_and_terminate) return;
  detail::next_terminate_handler() = std::set_terminate(&detail::record_and_terminate);
}
#endif

namespace detail {

inline int32_t run_function(void* user_data, rdzv_worker_call* call) {
  worker_call given(call);
#if defined(__cpp_exceptions)
  try {
#endif
    return (*static_cast<std::function<int(worker_call&)>*>(user_data))(given);
#if defined(__cpp_exceptions)
  } catch (const std::exception& thrown) {
    static_cast<void>(record_error(thrown));
  } catch (...) {
    static_cast<void>(record_error("an exception that is no std::exception"));
  }
  return 1;
#endif
}

}  // namespace detail

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_AGENT_HPP
