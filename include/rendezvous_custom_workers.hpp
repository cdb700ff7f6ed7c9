// rendezvous_custom_workers.hpp: workers that code of yours starts and watches, such as those of a cluster manager,
// under an agent. For C++17 and later. Beside rendezvous.hpp.
#ifndef RENDEZVOUS_CUSTOM_WORKERS_HPP
#define RENDEZVOUS_CUSTOM_WORKERS_HPP

#include "rendezvous.hpp"

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// What is to be started. Valid during the call only.
class worker_start {
 public:
  explicit worker_start(const rdzv_worker_start* start) noexcept : start_(start) {}
  /// The workers, with their ranks. Each event about them must name its attempt.
  result<worker_group> group() const { return worker_group::read(rdzv_worker_start_group(start_)); }
  /// What a worker is to find in its environment.
  result<std::vector<std::pair<std::string, std::string>>> environment(std::uint32_t local_rank) const {
    detail::list names, values;
    auto failure =
        detail::failure_of(rdzv_worker_start_environment, start_, local_rank, names.get(), values.get());
    if (failure) return std::move(*failure);
    std::vector<std::pair<std::string, std::string>> all;
    const auto keys = names.strs(), contents = values.strs();
    for (std::size_t i = 0; i < keys.size(); ++i) all.emplace_back(keys[i], contents[i]);
    return all;
  }

 private:
  const rdzv_worker_start* start_;
};

/// Reports events of workers to their agent, from any thread. Events are dropped once the agent is freed. `host` is the
/// worker's host, for failure reports; empty for the agent's own.
class worker_event_sender {
 public:
  explicit worker_event_sender(rdzv_workers* handle) noexcept : handle_(handle) {}

  /// `pid` is its process, or whatever number stands for it.
  result<void> started(std::uint64_t attempt, std::uint32_t local_rank, std::uint32_t pid,
                       std::string_view host = {}) const {
    rdzv_worker_event event = of(RDZV_WORKER_STARTED, attempt, local_rank, host);
    event.pid = pid;
    return tell(event);
  }
  result<void> not_started(std::uint64_t attempt, std::uint32_t local_rank, std::string_view why,
                           bool another_try_may_help) const {
    rdzv_worker_event event = of(RDZV_WORKER_NOT_STARTED, attempt, local_rank, {});
    event.may_help = another_try_may_help ? 1 : 0;
    return send(event, why);
  }
  /// It ended, and nothing of it lives. The code is minus the number of the signal that ended it; `message` is what went
  /// wrong, if that is known.
  result<void> exited(std::uint64_t attempt, std::uint32_t local_rank, std::int32_t exit_code,
                      std::string_view message = {}, std::string_view host = {}) const {
    rdzv_worker_event event = of(RDZV_WORKER_EXITED, attempt, local_rank, host);
    event.exit_code = exit_code;
    return send(event, message);
  }
  /// It ended well, and returned this.
  result<void> returned(std::uint64_t attempt, std::uint32_t local_rank, std::string_view data) const {
    rdzv_worker_event event = of(RDZV_WORKER_EXITED, attempt, local_rank, {});
    event.returned = detail::bytes(data);
    event.returned_len = data.size();
    return tell(event);
  }
  /// It has hung so long, and no signal reaches it.
  result<void> stuck(std::uint64_t attempt, std::uint32_t local_rank, std::chrono::milliseconds since) const {
    rdzv_worker_event event = of(RDZV_WORKER_STUCK, attempt, local_rank, {});
    event.since_ms = since.count();
    return tell(event);
  }
  /// None of the workers can be seen any more: it ends the agent.
  result<void> lost(std::string_view why) const { return send(of(RDZV_WORKERS_LOST, 0, 0, {}), why); }

 private:
  static rdzv_worker_event of(std::int32_t kind, std::uint64_t attempt, std::uint32_t local_rank,
                              std::string_view host) {
    rdzv_worker_event event{};
    event.struct_size = sizeof event;
    event.kind = kind;
    event.attempt = attempt;
    event.local_rank = local_rank;
    event.host = detail::bytes(host);
    event.host_len = host.size();
    return event;
  }
  result<void> send(rdzv_worker_event event, std::string_view message) const {
    event.message = detail::bytes(message);
    event.message_len = message.size();
    return tell(event);
  }
  result<void> tell(const rdzv_worker_event& event) const {
    return detail::call(rdzv_workers_notify, handle_.get(), &event);
  }

  detail::handle<rdzv_workers, rdzv_workers_free> handle_;
};

/// Who starts and watches workers, in code of yours. Called on one thread of the library's, one call after the other; may
/// block, but the agent's timeouts run on. An exception that leaves `start` is a failure of the start; from elsewhere it
/// is dropped.
class custom_workers {
 public:
  virtual ~custom_workers() = default;
  /// Starts all workers, or returns why none can be started: `status::exhausted` and `status::timed_out` where another
  /// try may help. Report `started` or `not_started` for each worker, and later `exited` for each started one.
  virtual status start(const worker_start& given) = 0;
  /// Sends a signal to all workers that live, and to what they have started.
  virtual void signal(int number) = 0;
  /// Ends all that lives at once.
  virtual void kill() = 0;
  /// Passes a signal that the agent got on to each worker that lives.
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
      return guarded([&] { return self(user_data).start(worker_start(given)); });
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

/// An agent over such workers, which are destroyed on their thread when it is gone. What the options say of programs,
/// functions and log files is passed over.
inline result<agent> custom_agent(const agent_options& options, const rendezvous_handler& handler,
                                  std::unique_ptr<custom_workers> workers, const context* shared = nullptr) {
  agent_options of_group = options;
  of_group.program.clear();
  auto owned = detail::c_options(of_group, nullptr);
  if (!owned) return std::move(owned).error();
  rdzv_workers_vtable vtable = custom_workers::vtable();
  vtable.user_data = workers.get();
  rdzv_agent* made = nullptr;
  const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
  const rdzv_agent_options* given = owned->get();
  auto failure = detail::failure_of(rdzv_agent_new_custom, context, given, handler.c_handle(),
                                    static_cast<const rdzv_workers_vtable*>(&vtable), &made);
  if (failure) return std::move(*failure);
  static_cast<void>(workers.release());
  return agent::adopt(made);
}

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_CUSTOM_WORKERS_HPP
