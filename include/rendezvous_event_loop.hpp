// rendezvous_event_loop.hpp: stores in an event loop of yours, for C++17 and later. rendezvous.hpp brings it along.

// Before the guard: it brings this header along, in its place among the others.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_EVENT_LOOP_HPP
#define RENDEZVOUS_EVENT_LOOP_HPP

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// What an event of a loop is about.
enum class event_kind : std::int32_t {
  /// An operation is over.
  completed = RDZV_EVENT_COMPLETED,
  /// A node's or a native store's session is open.
  node_open = RDZV_EVENT_NODE_OPEN,
  /// A node has a seat in the round that forms.
  node_seated = RDZV_EVENT_NODE_SEATED,
  /// A node stands by, behind `number` others.
  node_standing_by = RDZV_EVENT_NODE_STANDING_BY,
  /// Something happened to a node's round: `happened`, and the name that it is about in `value`.
  round = RDZV_EVENT_ROUND,
  /// A node's or a native store's session is over, for the reason in `code` and `message`.
  node_over = RDZV_EVENT_NODE_OVER,
  /// The watch that `operation` began tells of a change: of the key in `value`, at `revision`, to the item 0; without
  /// items the key was removed.
  change = RDZV_EVENT_CHANGE,
  /// The watch that `operation` began tells of nothing more, for the reason in `code` and `message`.
  watch_over = RDZV_EVENT_WATCH_OVER,
  /// The lease that `operation` made has ended by itself, for the reason in `number`, an RDZV_WHY_ number.
  lease_over = RDZV_EVENT_LEASE_OVER,
  /// Something happened to an agent: `agent_event_of` tells what.
  agent = RDZV_EVENT_AGENT,
  /// An RPC worker is a member of its group, or is none, for the reason in `code` and `message`.
  rpc_joined = RDZV_EVENT_RPC_JOINED,
  /// Something happened to an RPC worker's group, or the worker has ended: `rpc_event_of` tells what.
  rpc = RDZV_EVENT_RPC,
  /// A handler of the loop's is asked: `rpc_request_of` tells what, and takes the answer.
  rpc_request = RDZV_EVENT_RPC_REQUEST,
};

/// A node's place in a round.
struct loop_round {
  std::uint64_t round = 0;
  std::uint32_t node_rank = 0;
  std::uint32_t nodes = 0;
  /// The global rank of the node's first worker, and how many workers there are.
  std::uint64_t rank_first = 0;
  std::uint64_t world_size = 0;
  /// Where node 0 is reached, as it said.
  std::string leader;
  /// Prefix for the keys of the round. Once the round has ended, keys under it cannot be changed.
  std::string key_prefix;
};

/// A member of a round.
struct loop_member {
  std::uint32_t node_rank = 0;
  std::uint32_t local_world_size = 0;
  /// The global rank of its first worker.
  std::uint64_t rank_first = 0;
  std::string node;
  /// Where it is reached, as it said.
  std::string address;
};

/// Which RPC call it was.
struct rpc_called {
  /// Whom it was for; empty where that was said by number.
  std::string callee;
  /// -1 where it was said by name.
  std::int32_t callee_id = -1;
  std::string handler;
};

namespace detail {

inline rpc_called called(const rdzv_rpc_call_spec& call) {
  return {std::string(text(call.callee, call.callee_len)), call.callee_id,
          std::string(text(call.handler, call.handler_len))};
}

}  // namespace detail

/// What happened in an event loop.
struct loop_event {
  event_kind kind = event_kind::completed;
  /// The store, the node, the agent or the RPC worker.
  std::uint32_t store = 0;
  std::uint64_t operation = 0;
  status code = status::ok;
  /// All that is known when `code` is not ok, such as the operation, the phase and the time that it took; else none. The
  /// three below are of it.
  std::shared_ptr<const error> failure;
  /// One sentence when `code` is not ok.
  std::string message;
  /// What a handler said that failed.
  std::string cause;
  /// Of a barrier that was not released: who is missing, or died.
  std::vector<std::string> nodes;
  /// add: the sum; num_keys, queue_len, delete_prefix and revoke_lease: the count; check, delete_key and commit: 1 or 0;
  /// grant_lease: the lease; node_barrier: the generation.
  std::int64_t number = 0;
  /// event_kind::change, commit and the beginning of a watch: the store's revision; of status::compacted the oldest that
  /// can be watched from.
  std::uint64_t revision = 0;
  /// get, compare_set, queue_pop; event_kind::change: the key; an RPC call: the bytes of its answer, for `rpc_answer_of`.
  /// Those of event_kind::rpc_request are not copied: `rpc_request_of` lends them.
  std::string value;
  /// The end of an RPC call.
  rpc_called called;
  /// multi_get, list_keys; event_kind::change: the new value.
  std::vector<std::string> items;
  /// The end of a batch.
  std::vector<batch_answer> answers;
  /// The end of a node's members.
  std::vector<loop_member> members;
  /// The end of a node's next_rendezvous.
  std::optional<loop_round> joined;
  /// The end of a node's run_info.
  std::optional<rdzv_run_info> run;
  /// event_kind::round: what the C ABI tells of it.
  rdzv_round_event happened{};
};

/// Stores in an event loop of yours: no callback, nothing that blocks (a host name is looked up on a thread of its
/// own). Watch `fd()` for reading, level-triggered; when it is
/// readable, call `turn()` and take every `next_event()`. One thread at a time.
class event_loop {
 public:
  using milliseconds = std::chrono::milliseconds;
  using operation = std::uint64_t;
  using store_id = std::uint32_t;

  static result<event_loop> create(const context* shared = nullptr) {
    rdzv_loop* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    if (auto failure = detail::failure_of(rdzv_loop_new, context, &made)) return std::move(*failure);
    return event_loop(made);
  }

  /// The descriptor to watch; the same for the loop's life, and not yours to close.
  int fd() const noexcept { return rdzv_loop_fd(handle_.get()); }
  /// Does what there is to do. Never blocks.
  result<void> turn() { return detail::call(rdzv_loop_poll, c_handle()); }

  /// The next operation that is over; nothing when there is none.
  result<std::optional<loop_event>> next_event() {
    rdzv_event event{};
    event.struct_size = sizeof event;
    if (auto failure = detail::failure_of(rdzv_loop_next_event, c_handle(), &event)) return std::move(*failure);
    if (event.kind == RDZV_EVENT_NONE) return std::optional<loop_event>();
    loop_event copy;
    copy.kind = static_cast<event_kind>(event.kind);
    copy.store = event.store;
    copy.operation = event.operation;
    copy.code = static_cast<status>(event.status);
    copy.number = event.number;
    copy.revision = event.revision;
    if (copy.kind != event_kind::rpc_request) copy.value = detail::text(event.data, event.len);
    if (copy.kind == event_kind::completed)
      if (const rdzv_rpc_call_spec* call = rdzv_loop_rpc_called(c_handle())) copy.called = detail::called(*call);
    if (event.error != nullptr) take_failure(copy, event.error);
    for (std::size_t i = 0; i < event.item_count; ++i) take_item(copy, i);
    rdzv_round round{};
    round.struct_size = sizeof round;
    if (rdzv_loop_round(c_handle(), &round, nullptr) == RDZV_OK) {
      copy.joined = loop_round{round.round, round.node_rank, round.nodes, round.rank_first, round.world_size,
                               std::string(detail::text(round.leader, round.leader_len)),
                               std::string(detail::text(round.key_prefix, round.key_prefix_len))};
    }
    rdzv_run_info run{};
    run.struct_size = sizeof run;
    if (rdzv_loop_run_info(c_handle(), &run, nullptr) == RDZV_OK) copy.run = run;
    copy.happened.struct_size = sizeof copy.happened;
    if (copy.kind == event_kind::round) rdzv_loop_round_event(c_handle(), &copy.happened, nullptr);
    return std::optional<loop_event>(std::move(copy));
  }

  /// Adds a store, which is connected to when its first operation is submitted.
  result<store_id> add_store(std::string_view host, detail::port_number port, const store_options& options = {}) {
    auto owned = detail::c_options(host, port, options);
    if (!owned) return std::move(owned).error();
    return add_store(**owned);
  }
  /// The same with `host:port`, or `[address]:port` for IPv6.
  result<store_id> add_store(std::string_view endpoint, const store_options& options = {}) {
    auto owned = detail::c_options(endpoint, options);
    if (!owned) return std::move(owned).error();
    return add_store(**owned);
  }
  /// The same with options of the C ABI.
  result<store_id> add_store(const rdzv_store_options& options) {
    store_id made = 0;
    if (auto failure = detail::failure_of(rdzv_loop_add_store, c_handle(), &options, &made)) return std::move(*failure);
    return made;
  }
  /// Adds a store over the native protocol, and sets out to its server. It takes all operations of stores but `barrier`.
  result<store_id> add_native_store(std::string_view host, detail::port_number port, const store_options& options = {}) {
    auto owned = detail::c_options(host, port, options);
    if (!owned) return std::move(owned).error();
    return add_native_store(**owned);
  }
  /// The same with `host:port`, or `[address]:port` for IPv6.
  result<store_id> add_native_store(std::string_view endpoint, const store_options& options = {}) {
    auto owned = detail::c_options(endpoint, options);
    if (!owned) return std::move(owned).error();
    return add_native_store(**owned);
  }
  /// The same with options of the C ABI.
  result<store_id> add_native_store(const rdzv_store_options& options) {
    store_id made = 0;
    if (auto failure = detail::failure_of(rdzv_loop_add_native_store, c_handle(), &options, &made))
      return std::move(*failure);
    return made;
  }
  /// Forgets a store; a native one without a word to the server, as `remove_node`. `shutdown` says goodbye.
  result<void> remove_store(store_id store) { return detail::call(rdzv_loop_remove_store, c_handle(), store); }
  /// Adds a node of the `rdzv` backend, and sets out to its server. Operations of stores take it for a store as well.
  /// `parameters` are those of `rendezvous_parameters::c_handle`.
  result<store_id> add_node(const rdzv_rendezvous_parameters* parameters) {
    store_id made = 0;
    if (auto failure = detail::failure_of(rdzv_loop_add_node, c_handle(), parameters, &made)) return std::move(*failure);
    return made;
  }
  /// Forgets a node without a word to the server: to the others of its round it has died.
  result<void> remove_node(store_id node) { return detail::call(rdzv_loop_remove_node, c_handle(), node); }

  /// Gives an operation up: its event has status::cancelled, unless it is over already.
  result<void> cancel(store_id store, operation which) {
    return detail::call(rdzv_loop_cancel, c_handle(), store, which);
  }

  // Submissions. Each returns at once and names the operation, whose event follows by its deadline at the latest.
  // See the functions of the same names in `store`.
  result<operation> set(store_id store, std::string_view key, std::string_view value,
                        milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_set, store, detail::bytes(key), key.size(), detail::bytes(value), value.size(),
                  detail::count(timeout));
  }
  result<operation> get(store_id store, std::string_view key, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_get, store, detail::bytes(key), key.size(), detail::count(timeout));
  }
  result<operation> add(store_id store, std::string_view key, std::int64_t delta,
                        milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_add, store, detail::bytes(key), key.size(), delta, detail::count(timeout));
  }
  result<operation> compare_set(store_id store, std::string_view key, std::string_view expected,
                                std::string_view desired, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_compare_set, store, detail::bytes(key), key.size(), detail::bytes(expected),
                  expected.size(), detail::bytes(desired), desired.size(), detail::count(timeout));
  }
  result<operation> wait(store_id store, const std::vector<std::string>& keys,
                         milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    return submit(rdzv_loop_store_wait, store, views.data(), views.size(), detail::count(timeout));
  }
  result<operation> check(store_id store, const std::vector<std::string>& keys,
                          milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    return submit(rdzv_loop_store_check, store, views.data(), views.size(), detail::count(timeout));
  }
  result<operation> delete_key(store_id store, std::string_view key, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_delete_key, store, detail::bytes(key), key.size(), detail::count(timeout));
  }
  result<operation> num_keys(store_id store, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_num_keys, store, detail::count(timeout));
  }
  result<operation> list_keys(store_id store, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_list_keys, store, detail::count(timeout));
  }
  result<operation> append(store_id store, std::string_view key, std::string_view value,
                           milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_append, store, detail::bytes(key), key.size(), detail::bytes(value), value.size(),
                  detail::count(timeout));
  }
  result<operation> multi_get(store_id store, const std::vector<std::string>& keys,
                              milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    return submit(rdzv_loop_store_multi_get, store, views.data(), views.size(), detail::count(timeout));
  }
  result<operation> multi_set(store_id store, const std::vector<std::pair<std::string, std::string>>& pairs,
                              milliseconds timeout = default_timeout) {
    const auto [keys, values] = detail::views_of_pairs(pairs);
    return submit(rdzv_loop_store_multi_set, store, keys.data(), values.data(), pairs.size(), detail::count(timeout));
  }
  result<operation> queue_push(store_id store, std::string_view key, std::string_view item,
                               milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_queue_push, store, detail::bytes(key), key.size(), detail::bytes(item), item.size(),
                  detail::count(timeout));
  }
  result<operation> queue_pop(store_id store, std::string_view key, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_queue_pop, store, detail::bytes(key), key.size(), detail::count(timeout));
  }
  result<operation> queue_len(store_id store, std::string_view key, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_queue_len, store, detail::bytes(key), key.size(), detail::count(timeout));
  }
  result<operation> barrier(store_id store, std::string_view key, std::int64_t world_size,
                            milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_barrier, store, detail::bytes(key), key.size(), world_size, detail::count(timeout));
  }
  result<operation> ping(store_id store, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_ping, store, detail::count(timeout));
  }

  // What native stores and nodes have beyond the others; as the functions of the same name in `native_store` and `lease`.
  /// `event_kind::change` follows for each change, until `cancel` ends it or `event_kind::watch_over` comes.
  result<operation> watch_key(store_id store, std::string_view key, std::uint64_t from_revision = 0,
                              milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_watch_key, store, detail::bytes(key), key.size(), from_revision,
                  detail::count(timeout));
  }
  result<operation> watch_prefix(store_id store, std::string_view prefix, std::uint64_t from_revision = 0,
                                 milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_watch_prefix, store, detail::bytes(prefix), prefix.size(), from_revision,
                  detail::count(timeout));
  }
  /// The event's number is the lease's, for those below; `event_kind::lease_over` follows when it ends by itself.
  result<operation> grant_lease(store_id store, milliseconds ttl, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_grant_lease, store, static_cast<std::int64_t>(ttl.count()), detail::count(timeout));
  }
  result<operation> attach_lease(store_id store, std::uint64_t lease, const std::vector<std::string>& keys,
                                 milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    return submit(rdzv_loop_store_attach_lease, store, lease, views.data(), views.size(), detail::count(timeout));
  }
  result<operation> renew_lease(store_id store, std::uint64_t lease, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_renew_lease, store, lease, detail::count(timeout));
  }
  result<operation> revoke_lease(store_id store, std::uint64_t lease, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_revoke_lease, store, lease, detail::count(timeout));
  }
  result<operation> delete_prefix(store_id store, std::string_view prefix, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_store_delete_prefix, store, detail::bytes(prefix), prefix.size(), detail::count(timeout));
  }
  result<operation> commit(store_id store, const txn& what, milliseconds timeout = default_timeout) {
    auto made = what.c_txn();
    if (!made) return std::move(made).error();
    return submit(rdzv_loop_store_commit, store, static_cast<const rdzv_txn*>(made->get()), detail::count(timeout));
  }
  result<operation> send(store_id store, const batch& what, milliseconds timeout = default_timeout) {
    auto made = what.c_batch();
    if (!made) return std::move(made).error();
    return submit(rdzv_loop_store_batch, store, static_cast<const rdzv_batch*>(made->get()), detail::count(timeout));
  }

  // What a node does. Each returns at once, as above.
  /// Joins the run's next round: for the first time, after a death, after the end of its round.
  result<operation> next_rendezvous(store_id node) { return submit(rdzv_loop_node_next_rendezvous, node); }
  result<operation> leave(store_id node, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_leave, node, detail::count(timeout));
  }
  /// Closes the run, for good.
  result<operation> set_closed(store_id node, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_set_closed, node, detail::count(timeout));
  }
  /// The same because the job has failed; the other nodes get the reason.
  result<operation> fail(store_id node, std::string_view message, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_fail, node, detail::bytes(message), message.size(), detail::count(timeout));
  }
  result<operation> run_info(store_id node, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_run_info, node, detail::count(timeout));
  }
  /// Members of a round, from the node rank `first` on, at most `count_max` of them.
  result<operation> members(store_id node, std::uint64_t round, std::uint32_t first, std::uint32_t count_max,
                            milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_members, node, round, first, count_max, detail::count(timeout));
  }
  /// Arrives at a barrier for so many nodes; the event's number is its generation. Native stores take it, too.
  result<operation> node_barrier(store_id node, std::string_view key, std::uint32_t world_size,
                                 milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_barrier, node, detail::bytes(key), key.size(), world_size,
                  static_cast<const rdzv_bytes*>(nullptr), std::size_t{0}, detail::count(timeout));
  }
  /// The same for the nodes of these names.
  result<operation> node_barrier(store_id node, std::string_view key, const std::vector<std::string>& names,
                                 milliseconds timeout = default_timeout) {
    const auto views = detail::views(names);
    return submit(rdzv_loop_node_barrier, node, detail::bytes(key), key.size(), std::uint32_t{0}, views.data(),
                  views.size(), detail::count(timeout));
  }
  /// Says goodbye: the node leaves its run, and its session, or a native store's, ends.
  result<operation> shutdown(store_id node, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_shutdown, node, detail::count(timeout));
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static event_loop adopt(rdzv_loop* handle) noexcept { return event_loop(handle); }

  rdzv_loop* c_handle() const noexcept { return handle_.get(); }
  rdzv_loop* release() noexcept { return handle_.release(); }

 private:
  explicit event_loop(rdzv_loop* made) noexcept : handle_(made) {}

  static void take_failure(loop_event& copy, const rdzv_error* details) {
    error failure(static_cast<rdzv_status>(copy.code), rdzv_error_clone(details));
    copy.message = failure.message();
    copy.cause = failure.cause();
    copy.nodes = failure.nodes();
    if (copy.code == status::compacted) copy.revision = failure.revision();
    copy.failure = std::make_shared<const error>(std::move(failure));
  }

  /// What there is so many of: items, members or answers.
  void take_item(loop_event& copy, std::size_t index) {
    std::size_t size = 0;
    rdzv_answer answer{};
    answer.struct_size = sizeof answer;
    rdzv_member member{};
    member.struct_size = sizeof member;
    if (const std::uint8_t* item = rdzv_loop_item(c_handle(), index, &size))
      copy.items.emplace_back(detail::text(item, size));
    else if (rdzv_loop_answer(c_handle(), index, &answer, nullptr) == RDZV_OK)
      copy.answers.push_back(detail::cpp_answer(answer));
    else if (rdzv_loop_member(c_handle(), index, &member, nullptr) == RDZV_OK)
      copy.members.push_back({member.node_rank, member.local_world_size, member.rank_first,
                              std::string(detail::text(member.node, member.node_len)),
                              std::string(detail::text(member.address, member.address_len))});
  }

  template <class Function, class... Arguments>
  result<operation> submit(Function function, Arguments... arguments) {
    operation submitted = 0;
    if (auto failure = detail::failure_of(function, c_handle(), arguments..., &submitted)) return std::move(*failure);
    return submitted;
  }

  detail::handle<rdzv_loop, rdzv_loop_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_EVENT_LOOP_HPP
