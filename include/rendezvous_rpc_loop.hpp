// rendezvous_rpc_loop.hpp: workers of RPC groups in an event loop of yours, for C++17 and later. rendezvous.hpp brings it
// along.

// Before the guard: it brings this header along, in its place among the others.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_RPC_LOOP_HPP
#define RENDEZVOUS_RPC_LOOP_HPP

#include "rendezvous_rpc.hpp"

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// A worker of an RPC group in an event loop: one thread, no callback, nothing that blocks. What happens comes as events of
/// the loop, whose `store` is its `number`: `rpc_joined` first, then requests, changes of the group and the ends of
/// calls, and at last, when it has ended, `rpc` with `rpc_event_kind::over`. Destroyed, it ends abruptly; it must go
/// before its loop.
class loop_rpc {
 public:
  using milliseconds = std::chrono::milliseconds;
  using operation = event_loop::operation;

  /// Begins to become a worker, as `rpc::init`. Handlers of `rpc_handlers::on_loop` are answered by the loop.
  static result<loop_rpc> init(event_loop& loop, std::string_view name, std::int32_t rank, std::int32_t world_size,
                               const rpc_options& options, const rpc_handlers& handlers,
                               const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    std::uint32_t number = 0;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    auto attempt = attempt_of(options, given);
    if (auto failure = detail::failure_of(rdzv_loop_rpc_init, loop.c_handle(), context, detail::bytes(name),
                                          name.size(), rank, world_size, given, answering, &number))
      return std::move(*failure);
    return loop_rpc(loop.c_handle(), number, std::move(*owned), std::move(attempt));
  }
  /// The same over a store that is there already.
  static result<loop_rpc> init_over(event_loop& loop, const store& over, std::string_view name, std::int32_t rank,
                                    std::int32_t world_size, const rpc_options& options, const rpc_handlers& handlers,
                                    const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    std::uint32_t number = 0;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    auto attempt = attempt_of(options, given);
    if (auto failure = detail::failure_of(rdzv_loop_rpc_init_over_store, loop.c_handle(), context, over.c_handle(),
                                          detail::bytes(name), name.size(), rank, world_size, given, answering,
                                          &number))
      return std::move(*failure);
    return loop_rpc(loop.c_handle(), number, std::move(*owned), std::move(attempt));
  }
  /// One that is a member already: its events come here. It lives on as long as `worker` does.
  static result<loop_rpc> add(event_loop& loop, const rpc& worker) {
    std::uint32_t number = 0;
    if (auto failure = detail::failure_of(rdzv_loop_add_rpc, loop.c_handle(), worker.c_handle(), &number))
      return std::move(*failure);
    return loop_rpc(loop.c_handle(), number);
  }

  loop_rpc(loop_rpc&& other) noexcept
      : loop_(std::exchange(other.loop_, nullptr)),
        number_(std::exchange(other.number_, 0)),
        options_(std::move(other.options_)),
        attempt_(std::move(other.attempt_)) {}
  loop_rpc& operator=(loop_rpc&& other) noexcept {
    std::swap(loop_, other.loop_);
    std::swap(number_, other.number_);
    std::swap(options_, other.options_);
    std::swap(attempt_, other.attempt_);
    return *this;
  }
  ~loop_rpc() {
    if (loop_ != nullptr) rdzv_loop_remove_rpc(loop_, number_, nullptr);
  }

  std::uint32_t number() const noexcept { return number_; }

  /// Calls a handler with typed arguments; `rpc_answer_of` reads the answer out of the event of this operation.
  template <class... Arguments>
  result<operation> call(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) {
    return call_within(default_timeout, callee, handler, arguments...);
  }
  /// The same, for so long.
  template <class... Arguments>
  result<operation> call_within(milliseconds timeout, const rpc_callee& callee, std::string_view handler,
                                const Arguments&... arguments) {
    return call_bytes(callee, handler, detail::typed_payload(arguments...), timeout);
  }
  /// Calls a handler of bytes. Long payloads are not copied.
  result<operation> call_bytes(const rpc_callee& callee, std::string_view handler, std::string payload,
                               milliseconds timeout = default_timeout) {
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    operation made = 0;
    if (auto failure = detail::failure_of(rdzv_loop_rpc_call, loop_, number_, call.give(), &made))
      return std::move(*failure);
    return made;
  }
  /// Sends a one-way call; no event follows.
  template <class... Arguments>
  result<void> notify(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) {
    return notify_bytes(callee, handler, detail::typed_payload(arguments...));
  }
  result<void> notify_bytes(const rpc_callee& callee, std::string_view handler, std::string payload) {
    detail::outgoing_call call(callee, handler, std::move(payload), default_timeout);
    return detail::call(rdzv_loop_rpc_notify, loop_, number_, call.give());
  }
  /// Gives a call up: its event has `status::cancelled`, unless it is over already.
  result<void> cancel(operation which) { return detail::call(rdzv_loop_cancel, loop_, number_, which); }

  /// Adds a name whose requests are events, while others may call already.
  result<void> on_loop(std::string_view name) {
    return detail::call(rdzv_loop_rpc_add_handler, loop_, number_, detail::bytes(name), name.size());
  }
  /// Begins to end it.
  result<void> shutdown(rpc_shutdown how = rpc_shutdown::graceful) {
    return detail::call(rdzv_loop_rpc_shutdown, loop_, number_, static_cast<std::int32_t>(how));
  }
  /// Another handle, once it is a member: for its name, its workers and so on. Destroyed, it ends nothing.
  result<rpc> handle() const {
    rdzv_rpc* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_loop_rpc_handle, loop_, number_, &made)) return std::move(*failure);
    return rpc::adopt(made);
  }

 private:
  loop_rpc(rdzv_loop* loop, std::uint32_t number) noexcept : loop_(loop), number_(number) {}
  loop_rpc(rdzv_loop* loop, std::uint32_t number, detail::rpc_options_handle options,
           std::unique_ptr<rpc_canceller::attempt> attempt) noexcept
      : loop_(loop), number_(number), options_(std::move(options)), attempt_(std::move(attempt)) {}
  static std::unique_ptr<rpc_canceller::attempt> attempt_of(const rpc_options& options, const rdzv_rpc_options* given) {
    if (options.canceller == nullptr) return nullptr;
    return std::make_unique<rpc_canceller::attempt>(options.canceller, given);
  }

  rdzv_loop* loop_;
  std::uint32_t number_;
  // What the canceller has in hand.
  detail::rpc_options_handle options_;
  std::unique_ptr<rpc_canceller::attempt> attempt_;
};

/// What a handler of a loop's is asked, and the way back.
class loop_request {
 public:
  loop_request(const rdzv_rpc_request* asked, rdzv_rpc_responder* back) noexcept : request_(asked), responder_(back) {}
  /// Valid until the loop's next event is taken.
  const rpc_request& request() const noexcept { return request_; }
  /// May be moved to where it is kept, to answer later.
  rpc_responder& responder() noexcept { return responder_; }
  /// Answers with what a function of typed arguments returns; what it throws fails the call. The first argument may be a
  /// `const rpc_request&`.
  template <class Function>
  void answer_with(Function function) {
    const auto run = [&](const rpc_request& request, rpc_responder& responder) {
      detail::callable<Function>::type::run(function, request, responder);
    };
    detail::run_handler(run, request_, responder_);
  }

 private:
  rpc_request request_;
  rpc_responder responder_;
};

/// What is asked; for the last event of the loop, when that was one of `event_kind::rpc_request`. Once.
inline result<loop_request> rpc_request_of(event_loop& loop) {
  rdzv_rpc_responder* back = nullptr;
  if (auto failure = detail::failure_of(rdzv_loop_rpc_responder, loop.c_handle(), &back)) return std::move(*failure);
  return loop_request(rdzv_loop_rpc_request(loop.c_handle()), back);
}

/// What happened; for the last event of the loop, when that was one of `event_kind::rpc`.
inline result<rpc_event> rpc_event_of(event_loop& loop) {
  rdzv_rpc_event event{};
  event.struct_size = sizeof event;
  detail::buffer name, why;
  if (auto failure = detail::failure_of(rdzv_loop_rpc_event, loop.c_handle(), &event, name.get(), why.get()))
    return std::move(*failure);
  return rpc_event{static_cast<rpc_event_kind>(event.kind), name.str(), event.id, why.str()};
}

/// What a call was answered whose event this is, as a value of the type that the handler returns; of `rpc_bytes`, the
/// bytes. The error is the one that a blocking call would return.
template <class Return = void>
result<detail::answered<Return>> rpc_answer_of(const loop_event& event) {
  if (event.code == status::ok) return detail::unpacked<Return>(std::string_view(event.value), [&event] { return event.called; });
  const rdzv_error* known = event.failure ? event.failure->c_handle() : nullptr;
  return error(static_cast<rdzv_status>(event.code), rdzv_error_clone(known));
}
/// The same, which takes bytes out of the event rather than to copy them.
template <class Return = void>
result<detail::answered<Return>> rpc_answer_of(loop_event&& event) {
  if constexpr (std::is_same_v<Return, rpc_bytes>)
    if (event.code == status::ok) return std::move(event.value);
  return rpc_answer_of<Return>(static_cast<const loop_event&>(event));
}

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_RPC_LOOP_HPP
