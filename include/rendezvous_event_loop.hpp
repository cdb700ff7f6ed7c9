// rendezvous_event_loop.hpp: stores in an event loop of yours, for C++17 and later. rendezvous.hpp brings it along.
#ifndef RENDEZVOUS_EVENT_LOOP_HPP
#define RENDEZVOUS_EVENT_LOOP_HPP

#include "rendezvous.hpp"

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
  /// A node's session is open.
  node_open = RDZV_EVENT_NODE_OPEN,
  /// A node has a seat in the round that forms.
  node_seated = RDZV_EVENT_NODE_SEATED,
  /// A node stands by, behind `number` others.
  node_standing_by = RDZV_EVENT_NODE_STANDING_BY,
  /// Something happened to a node's round: `happened`, and the name that it is about in `value`.
  round = RDZV_EVENT_ROUND,
  /// A node's session is over, for the reason in `code` and `message`.
  node_over = RDZV_EVENT_NODE_OVER,
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
  /// What to put before the keys of the round: when it is over, nothing beneath it can be changed.
  std::string key_prefix;
};

/// What happened in an event loop.
struct loop_event {
  event_kind kind = event_kind::completed;
  /// The store or the node.
  std::uint32_t store = 0;
  std::uint64_t operation = 0;
  status code = status::ok;
  /// One sentence when `code` is not ok.
  std::string message;
  /// add: the sum; num_keys and queue_len: the count; check and delete_key: 1 or 0.
  std::int64_t number = 0;
  /// get, compare_set, queue_pop.
  std::string value;
  /// multi_get, list_keys.
  std::vector<std::string> items;
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
  result<void> turn() { return detail::call(rdzv_loop_turn, c_handle()); }

  /// The next operation that is over; nothing when there is none.
  result<std::optional<loop_event>> next_event() {
    rdzv_event event{};
    event.struct_size = sizeof event;
    if (auto failure = detail::failure_of(rdzv_loop_next_event, c_handle(), &event)) return std::move(*failure);
    if (event.kind == RDZV_EVENT_NONE) return std::optional<loop_event>();
    loop_event told;
    told.kind = static_cast<event_kind>(event.kind);
    told.store = event.store;
    told.operation = event.operation;
    told.code = static_cast<status>(event.status);
    if (event.error != nullptr) told.message = rdzv_error_message(event.error);
    told.number = event.number;
    told.value = detail::text(event.data, event.len);
    for (std::size_t i = 0; i < event.item_count; ++i) {
      std::size_t size = 0;
      const std::uint8_t* item = rdzv_loop_item(c_handle(), i, &size);
      told.items.emplace_back(detail::text(item, size));
    }
    rdzv_round round{};
    round.struct_size = sizeof round;
    if (rdzv_loop_round(c_handle(), &round, nullptr) == RDZV_OK) {
      told.joined = loop_round{round.round, round.node_rank, round.nodes, round.rank_first, round.world_size,
                               std::string(detail::text(round.leader, round.leader_len)),
                               std::string(detail::text(round.key_prefix, round.key_prefix_len))};
    }
    rdzv_run_info run{};
    run.struct_size = sizeof run;
    if (rdzv_loop_run_info(c_handle(), &run, nullptr) == RDZV_OK) told.run = run;
    told.happened.struct_size = sizeof told.happened;
    if (told.kind == event_kind::round) rdzv_loop_round_event(c_handle(), &told.happened, nullptr);
    return std::optional<loop_event>(std::move(told));
  }

  /// Adds a store, which is connected to when its first operation is submitted.
  result<store_id> add_store(std::string_view host, std::uint16_t port, const store_options& options = {}) {
    auto owned = detail::c_options(host, port, options);
    if (!owned) return std::move(owned).error();
    return add_store(**owned);
  }
  /// The same with options of the C ABI.
  result<store_id> add_store(const rdzv_store_options& options) {
    store_id made = 0;
    if (auto failure = detail::failure_of(rdzv_loop_add_store, c_handle(), &options, &made)) return std::move(*failure);
    return made;
  }
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
  // What they mean is told at the function of the same name in `store`.
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
  result<operation> run_info(store_id node, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_run_info, node, detail::count(timeout));
  }
  /// Arrives at a barrier for so many nodes; the event's number is its generation.
  result<operation> node_barrier(store_id node, std::string_view key, std::uint32_t world_size,
                                 milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_barrier, node, detail::bytes(key), key.size(), world_size,
                  static_cast<const rdzv_bytes*>(nullptr), std::size_t{0}, detail::count(timeout));
  }
  /// Says goodbye: the node leaves its run, and its session ends.
  result<operation> shutdown(store_id node, milliseconds timeout = default_timeout) {
    return submit(rdzv_loop_node_shutdown, node, detail::count(timeout));
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static event_loop adopt(rdzv_loop* handle) noexcept { return event_loop(handle); }

  rdzv_loop* c_handle() const noexcept { return handle_.get(); }
  rdzv_loop* release() noexcept { return handle_.release(); }

 private:
  explicit event_loop(rdzv_loop* made) noexcept : handle_(made) {}

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
