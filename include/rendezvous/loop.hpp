// rendezvous/loop.hpp: stores in an event loop of yours, for C++17 and later. rendezvous.hpp includes it.
#ifndef RENDEZVOUS_LOOP_HPP
#define RENDEZVOUS_LOOP_HPP

#include "native_store.hpp"
#include "rendezvous.hpp"
#include "loop.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Kind of an event of a loop.
enum class event_kind : std::int32_t {
  /// The operation `op` is over.
  completed = RDZV_EVENT_COMPLETED,
  /// The session of a node or a native store is open.
  session_open = RDZV_EVENT_SESSION_OPEN,
  /// A node has a slot in the round that is forming.
  node_seated = RDZV_EVENT_NODE_SEATED,
  /// A node is a spare, with `spares_ahead` others ahead of it.
  node_standing_by = RDZV_EVENT_NODE_STANDING_BY,
  /// `round_event` has an event of a node's round.
  round = RDZV_EVENT_ROUND,
  /// The session of a node or a native store is over, because of `failure` if there is one.
  session_over = RDZV_EVENT_SESSION_OVER,
  /// The watch `op` has begun.
  watching = RDZV_EVENT_WATCHING,
  /// `changed` has a change that the watch `op` observed.
  change = RDZV_EVENT_CHANGE,
  /// The lease with the number `lease` has ended by itself, for the reason `lease_why`.
  lease_over = RDZV_EVENT_LEASE_OVER,
  /// Event of an agent; `agent_event_of` returns it.
  agent = RDZV_EVENT_AGENT,
  /// An RPC worker has joined its group or, if there is a `failure`, has failed to.
  rpc_joined = RDZV_EVENT_RPC_JOINED,
  /// Event of an RPC worker's group; `rpc_event_of` returns it.
  rpc = RDZV_EVENT_RPC,
  /// Request to a handler of the loop; `rpc_request_of` returns it.
  rpc_request = RDZV_EVENT_RPC_REQUEST,
  /// An RPC worker has ended, because of `failure` if there is one.
  rpc_over = RDZV_EVENT_RPC_OVER,
};

/// Event of a loop. Each kind names the fields that it has.
struct loop_event {
  event_kind kind = event_kind::completed;
  /// Member that the event is of, and the program's pointer for it.
  rdzv_loop_member* member = nullptr;
  void* member_data = nullptr;
  /// `operation::c_handle` of the operation that the event is of, and the program's pointer for it.
  rdzv_op* op = nullptr;
  void* op_data = nullptr;
  std::optional<error> failure = {};
  std::optional<change> changed = {};
  std::optional<rdzv::round_event> round_event = {};
  std::uint64_t lease = 0;
  /// One of the RDZV_WHY_ numbers.
  std::int32_t lease_why = 0;
  std::uint32_t spares_ahead = 0;
  /// As `native_store::incarnation`.
  std::uint64_t incarnation = 0;
};

/// Stores, nodes, agents and RPC workers in the program's own event loop: no callbacks, and nothing blocks. Watch
/// `fd()` for reading, level-triggered; when it is readable, call `poll()` and take every `next_event()`. One thread
/// at a time.
///
/// The handle of a member belongs to the loop and is valid until `remove`.
class event_loop : public detail::owner<event_loop, rdzv_loop, rdzv_loop_free> {
 public:
  using owner::owner;
  using milliseconds = std::chrono::milliseconds;
  using member = rdzv_loop_member*;

  static result<event_loop> create(const context* shared = nullptr) {
    return detail::call<event_loop>(rdzv_loop_new, shared);
  }

  /// Descriptor to watch; it stays the same for the loop's life and belongs to the loop.
  int fd() const noexcept { return rdzv_loop_fd(c_handle()); }
  /// Processes all pending work without blocking.
  result<void> poll() { return detail::call(rdzv_loop_poll, c_handle()); }

  /// Returns the next event, if there is one.
  result<std::optional<loop_event>> next_event() {
    return detail::call<rdzv_event>(rdzv_loop_next_event, c_handle()).transform([](const rdzv_event& next) {
      if (next.kind == RDZV_EVENT_NONE) return std::optional<loop_event>();
      loop_event copy{static_cast<event_kind>(next.kind), next.member, next.member_data, next.op, next.op_data};
      if (next.error != nullptr) copy.failure = error(rdzv_error_status(next.error), rdzv_error_clone(next.error));
      if (next.change != nullptr) copy.changed = detail::cpp_change(*next.change);
      if (next.round_event != nullptr) copy.round_event = detail::cpp_round_event(*next.round_event);
      copy.lease = next.lease;
      copy.lease_why = next.lease_why;
      copy.spares_ahead = next.spares_ahead;
      copy.incarnation = next.incarnation;
      return std::optional(std::move(copy));
    });
  }

  /// Adds a store, which the loop connects to when its first operation is submitted. `endpoint` is `host:port`, or
  /// `[address]:port` for IPv6. `user_data` comes back with its events.
  result<member> add_store(std::string_view endpoint, const store_options& options = {}, void* user_data = nullptr) {
    return detail::c_store_options(endpoint, options).make<member>(rdzv_loop_add_store, c_handle(), user_data);
  }
  /// Adds a store over the native protocol and starts to connect to its server.
  result<member> add_native_store(std::string_view endpoint, const store_options& options = {},
                                  void* user_data = nullptr) {
    return detail::c_store_options(endpoint, options).make<member>(rdzv_loop_add_native_store, c_handle(), user_data);
  }
  /// Adds a node of the `rdzv` backend and starts to connect to its server.
  result<member> add_node(const rendezvous_parameters& parameters, void* user_data = nullptr) {
    const detail::c_parameters given(parameters);
    return detail::call<member>(rdzv_loop_add_node, c_handle(), given.get(), user_data);
  }
  /// Removes a member: no event of it follows. A session ends as if this process had died; `operation::end_session`
  /// ends it gracefully.
  result<void> remove(member which) { return detail::call(rdzv_loop_remove, which); }

  /// Submits an operation to a store or a node. `event_kind::completed` follows by its deadline at the latest.
  result<void> submit(member to, operation& op, milliseconds timeout = default_timeout) {
    if (auto failure = op.failure_of_use()) return std::move(*failure);
    return detail::call(rdzv_loop_submit, to, op, timeout);
  }
  /// Cancels an operation: it ends with `status::cancelled`, unless it is over already.
  result<void> cancel(const operation& op) { return detail::call(rdzv_loop_cancel, c_handle(), op); }
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_LOOP_HPP
