// rendezvous/rpc_loop.hpp: workers of RPC groups in an event loop of yours, for C++17 and later. rendezvous.hpp includes
// it.
#ifndef RENDEZVOUS_RPC_LOOP_HPP
#define RENDEZVOUS_RPC_LOOP_HPP

#include "rpc.hpp"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// A worker of an RPC group in an event loop: one thread, no callback, nothing that blocks. What happens comes as events of
/// the loop, with its `member`: `rpc_joined` first, then requests, changes of the group and the ends of calls, and at
/// last, when it has ended, `rpc_over`. Destroyed, it ends abruptly; it must go before its loop.
class loop_rpc {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Begins to become a worker, as `rpc::create`. Handlers of `rpc_handlers::on_loop` are answered by the loop.
  static result<loop_rpc> init(event_loop& loop, std::string_view name, std::int32_t rank, std::int32_t world_size,
                               const rpc_options& options, const rpc_handlers& handlers,
                               const context* shared = nullptr, void* user_data = nullptr) {
    return make(loop, detail::c_rpc_options(options, nullptr), name, rank, world_size, handlers, shared, user_data);
  }
  /// The same over a store that is there already.
  static result<loop_rpc> init_over(event_loop& loop, const store& over, std::string_view name, std::int32_t rank,
                                    std::int32_t world_size, const rpc_options& options, const rpc_handlers& handlers,
                                    const context* shared = nullptr, void* user_data = nullptr) {
    return make(loop, detail::c_rpc_options(options, &over), name, rank, world_size, handlers, shared, user_data);
  }
  /// One that is a member already: its events come here. It lives on as long as `worker` does.
  static result<loop_rpc> add(event_loop& loop, const rpc& worker, void* user_data = nullptr) {
    event_loop::member member = nullptr;
    if (auto failure = detail::failure_of(rdzv_loop_add_rpc, loop.c_handle(), worker.c_handle(), user_data, &member))
      return std::move(*failure);
    return loop_rpc(member);
  }

  loop_rpc(loop_rpc&& other) noexcept
      : member_(std::exchange(other.member_, nullptr)) {}
  loop_rpc& operator=(loop_rpc&& other) noexcept {
    std::swap(member_, other.member_);
    return *this;
  }
  ~loop_rpc() {
    if (member_ != nullptr) rdzv_loop_remove(member_, nullptr);
  }

  /// Member of the loop, as events name it.
  event_loop::member member() const noexcept { return member_; }

  /// Calls a handler with typed arguments as the operation `op`; `rpc_answer_of` reads its answer when it has completed.
  /// `event_loop::cancel` cancels it.
  template <class... Arguments>
  result<void> call(operation& op, const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) {
    return call_within(default_timeout, op, callee, handler, arguments...);
  }
  /// The same with a timeout.
  template <class... Arguments>
  result<void> call_within(milliseconds timeout, operation& op, const rpc_callee& callee, std::string_view handler,
                           const Arguments&... arguments) {
    return call_bytes(op, callee, handler, detail::typed_payload(arguments...), timeout);
  }
  /// Calls a handler of bytes. Long payloads are not copied.
  result<void> call_bytes(operation& op, const rpc_callee& callee, std::string_view handler, std::string payload,
                          milliseconds timeout = default_timeout) {
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    return detail::call(rdzv_loop_rpc_call, member_, op.c_handle(), call.give());
  }

  /// Adds a name whose requests are events, while others may call already.
  result<void> on_loop(std::string_view name) {
    return detail::call(rdzv_loop_rpc_add_handler, member_, detail::bytes(name), name.size());
  }
  /// Begins to end it.
  result<void> shutdown(rpc_shutdown how = rpc_shutdown::graceful) {
    return detail::call(rdzv_loop_rpc_shutdown, member_, static_cast<std::int32_t>(how));
  }
  /// Another handle, once it is a member: for its name, its workers, one-way calls and so on. Destroyed, it ends nothing.
  result<rpc> handle() const {
    rdzv_rpc* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_loop_rpc_handle, member_, &made)) return std::move(*failure);
    return rpc::adopt(made);
  }

 private:
  explicit loop_rpc(event_loop::member member) noexcept : member_(member) {}
  static result<loop_rpc> make(event_loop& loop, const detail::c_rpc_options& options, std::string_view name,
                               std::int32_t rank, std::int32_t world_size, const rpc_handlers& handlers,
                               const context* shared, void* user_data) {
    auto made = detail::call<event_loop::member>(rdzv_loop_rpc_new, loop.c_handle(), shared, name, rank, world_size,
                                                 options.get(), handlers.c_handle(), user_data);
    if (!made) return std::move(made).error();
    return loop_rpc(*made);
  }

  event_loop::member member_;
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

/// What a completed call was answered, as a value of the type that the handler returns; of `rpc_bytes`, the bytes. The error
/// is the one that a blocking call would return. `callee` and `handler` are named in the error of an unreadable answer.
template <class Return = void>
result<detail::response_of<Return>> rpc_answer_of(const operation& op, const rpc_callee& callee = -1,
                                               std::string_view handler = {}) {
  auto found = op.outcome();
  if (!found) return std::move(found).error();
  return detail::unpacked<Return>(detail::text(found->value, found->value_len),
                                  [&] { return detail::called(callee, handler); });
}

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RPC_LOOP_HPP
