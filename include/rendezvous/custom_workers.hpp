// rendezvous/custom_workers.hpp: workers that the program starts and monitors itself, for example through a cluster
// manager, under an agent. For C++17 and later; plugin.hpp includes it.
#ifndef RENDEZVOUS_CUSTOM_WORKERS_HPP
#define RENDEZVOUS_CUSTOM_WORKERS_HPP

#include "agent.hpp"
#include "plugin.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Workers to start.
struct worker_start {
  /// The workers with their ranks. Each event must name its attempt.
  worker_group group;
  /// Environment of each worker of the group: names and values.
  std::vector<std::vector<std::pair<std::string, std::string>>> environments;
};

/// Reports events of workers to their agent, from any thread. Events are dropped once the agent is freed. `host` is the
/// worker's host, for failure reports; empty for the agent's own.
class worker_event_sender {
 public:
  explicit worker_event_sender(rdzv_workers* handle) noexcept : handle_(handle) {}

  /// `pid` is the worker's process id, or any number that stands for it.
  result<void> started(std::uint64_t attempt, std::uint32_t local_rank, std::uint32_t pid,
                       const std::string& host = {}) const {
    rdzv_worker_event event = of(RDZV_WORKER_STARTED, attempt, local_rank);
    event.pid = pid;
    event.host = host.c_str();
    return send(event);
  }
  result<void> not_started(std::uint64_t attempt, std::uint32_t local_rank, const std::string& reason,
                           bool may_retry) const {
    rdzv_worker_event event = of(RDZV_WORKER_NOT_STARTED, attempt, local_rank);
    event.may_retry = may_retry ? 1 : 0;
    event.message = reason.c_str();
    return send(event);
  }
  /// The worker and its processes have ended. The code is minus the number of the signal that ended it; `message` is
  /// the cause of a failure, if it is known.
  result<void> exited(std::uint64_t attempt, std::uint32_t local_rank, std::int32_t exit_code,
                      const std::string& message = {}, const std::string& host = {}) const {
    rdzv_worker_event event = of(RDZV_WORKER_EXITED, attempt, local_rank);
    event.exit_code = exit_code;
    event.message = message.c_str();
    event.host = host.c_str();
    return send(event);
  }
  /// The worker succeeded and returned this.
  result<void> returned(std::uint64_t attempt, std::uint32_t local_rank, std::string_view data) const {
    rdzv_worker_event event = of(RDZV_WORKER_EXITED, attempt, local_rank);
    event.returned = detail::bytes(data);
    event.returned_len = data.size();
    return send(event);
  }
  /// The worker has hung for this time, and signals do not reach it.
  result<void> stuck(std::uint64_t attempt, std::uint32_t local_rank, std::chrono::milliseconds since) const {
    rdzv_worker_event event = of(RDZV_WORKER_STUCK, attempt, local_rank);
    event.since_ms = since.count();
    return send(event);
  }
  /// The workers cannot be observed any more: this ends the agent.
  result<void> lost(const std::string& reason) const {
    rdzv_worker_event event = of(RDZV_WORKERS_LOST, 0, 0);
    event.message = reason.c_str();
    return send(event);
  }

 private:
  static rdzv_worker_event of(std::int32_t kind, std::uint64_t attempt, std::uint32_t local_rank) {
    rdzv_worker_event event{};
    event.struct_size = sizeof event;
    event.kind = kind;
    event.attempt = attempt;
    event.local_rank = local_rank;
    return event;
  }
  result<void> send(const rdzv_worker_event& event) const {
    return detail::call(rdzv_workers_notify, handle_.get(), &event);
  }

  detail::handle<rdzv_workers, rdzv_workers_free> handle_;
};

/// Base of classes that start and monitor workers. The library calls them on one thread of its own, one call after the
/// other. They may block, but the agent's timeouts keep running. An exception that leaves `start` is a failure of the
/// start; others are dropped.
class custom_workers {
 public:
  virtual ~custom_workers() = default;
  /// Starts all workers, or returns why none can be started: `status::exhausted` or `status::timed_out` if a retry may
  /// succeed. Report `started` or `not_started` for each worker, and later `exited` for each started one.
  virtual status start(const worker_start& given) = 0;
  /// Sends a signal to all live workers and the processes that they started.
  virtual void signal(int number) = 0;
  /// Kills all live workers and their processes at once.
  virtual void kill() = 0;
  /// Passes a signal that the agent got on to each live worker.
  virtual void pass(int number) { static_cast<void>(number); }

  /// Sender of this object's events, usable from any thread from the first call on. It may outlive this object.
  std::shared_ptr<const worker_event_sender> sender() const { return sender_; }

 private:
  friend result<agent> custom_agent(const agent_options& options, const rendezvous_handler& handler,
                                    std::unique_ptr<custom_workers> workers, const context* shared);

  template <class Body>
  static rdzv_status guarded(Body body) {
#if defined(__cpp_exceptions)
    try {
#endif
      return static_cast<rdzv_status>(body());
#if defined(__cpp_exceptions)
    } catch (...) {
      return RDZV_IO;
    }
#endif
  }
  static custom_workers& self(void* user_data) { return *static_cast<custom_workers*>(user_data); }

  static rdzv_workers_vtable vtable() {
    rdzv_workers_vtable made{};
    made.struct_size = sizeof made;
    made.begin = [](void* user_data, rdzv_workers* handle) {
      guarded([&] {
        self(user_data).sender_ = std::make_shared<const worker_event_sender>(handle);
        return status::ok;
      });
    };
    made.start = [](void* user_data, const rdzv_worker_start* given) -> rdzv_status {
      return guarded([&] {
        worker_start copy{worker_group::copy_of(*given->group), {}};
        for (std::size_t i = 0; i < given->group->worker_count; ++i) {
          auto& variables = copy.environments.emplace_back();
          for (const char* const* each = given->environments[i]; *each != nullptr; ++each) {
            const std::string_view variable = *each;
            const std::size_t end = variable.find('=');
            variables.emplace_back(variable.substr(0, end), variable.substr(end + 1));
          }
        }
        return self(user_data).start(copy);
      });
    };
    made.signal = [](void* user_data, std::int32_t number) {
      guarded([&] {
        self(user_data).signal(number);
        return status::ok;
      });
    };
    made.kill = [](void* user_data) {
      guarded([&] {
        self(user_data).kill();
        return status::ok;
      });
    };
    made.pass = [](void* user_data, std::int32_t number) {
      guarded([&] {
        self(user_data).pass(number);
        return status::ok;
      });
    };
    made.destroy = [](void* user_data) { delete &self(user_data); };
    return made;
  }

  std::shared_ptr<const worker_event_sender> sender_;
};

/// Creates an agent over custom workers, which are destroyed on their thread after the agent. Options for programs,
/// functions and log files are ignored.
inline result<agent> custom_agent(const agent_options& options, const rendezvous_handler& handler,
                                  std::unique_ptr<custom_workers> workers, const context* shared = nullptr) {
  const detail::c_agent_options given(options, nullptr);
  rdzv_workers_vtable vtable = custom_workers::vtable();
  vtable.user_data = workers.get();
  rdzv_agent* made = nullptr;
  const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
  auto failure = detail::failure_of(rdzv_agent_new_custom, context, &given.value, handler.c_handle(),
                                    static_cast<const rdzv_workers_vtable*>(&vtable), &made);
  if (failure) return std::move(*failure);
  static_cast<void>(workers.release());
  return agent::adopt(made);
}

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_CUSTOM_WORKERS_HPP
