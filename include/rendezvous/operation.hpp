// rendezvous/operation.hpp: operations as objects, for C++17 and later. rendezvous.hpp includes it.
#ifndef RENDEZVOUS_OPERATION_HPP
#define RENDEZVOUS_OPERATION_HPP

#include "base.hpp"
#include "loop.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// A node's position in a round.
struct joined_round {
  std::uint64_t round = 0;
  std::uint32_t node_rank = 0;
  std::uint32_t nodes = 0;
  /// Global rank of the node's first worker, and number of workers of all nodes.
  std::uint64_t rank_first = 0;
  std::uint64_t world_size = 0;
  /// Address of node 0, as that node published it.
  std::string leader;
  /// Prefix for the keys of the round. Once the round has ended, keys with this prefix cannot be changed.
  std::string key_prefix;
};

/// Member of a round.
struct round_member {
  std::uint32_t node_rank = 0;
  std::uint32_t local_world_size = 0;
  /// Global rank of the member's first worker.
  std::uint64_t rank_first = 0;
  std::string node;
  /// Address of the node, as it published it.
  std::string address;
};

/// Request that a store performs, an event loop executes, or a batch or a transaction includes. Give it a request, then use it
/// as often as needed; its memory is reused. One thread at a time. The request functions return the operation itself; one that
/// fails leaves it without a request and keeps its error, which the use of the operation then returns.
class operation {
 public:
  /// `user_data` comes back with the events of the operation.
  explicit operation(void* user_data = nullptr) : handle_(rdzv_op_new(user_data)) {}

  operation& set(std::string_view key, std::string_view value) { return call(rdzv_op_set, key, value); }
  operation& get(std::string_view key) { return call(rdzv_op_get, key); }
  operation& add(std::string_view key, std::int64_t delta) { return call(rdzv_op_add, key, delta); }
  operation& compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    return call(rdzv_op_compare_set, key, expected, desired);
  }
  operation& append(std::string_view key, std::string_view value) { return call(rdzv_op_append, key, value); }
  operation& delete_key(std::string_view key) { return call(rdzv_op_delete_key, key); }
  operation& wait(const std::vector<std::string>& keys) { return call(rdzv_op_wait, keys); }
  operation& check(const std::vector<std::string>& keys) { return call(rdzv_op_check, keys); }
  operation& multi_get(const std::vector<std::string>& keys) { return call(rdzv_op_multi_get, keys); }
  operation& multi_set(const std::vector<std::pair<std::string, std::string>>& pairs) {
    return call(rdzv_op_multi_set, pairs);
  }
  operation& num_keys() { return call(rdzv_op_num_keys); }
  operation& list_keys() { return call(rdzv_op_list_keys); }
  operation& queue_push(std::string_view key, std::string_view item) { return call(rdzv_op_queue_push, key, item); }
  operation& queue_pop(std::string_view key) { return call(rdzv_op_queue_pop, key); }
  operation& queue_len(std::string_view key) { return call(rdzv_op_queue_len, key); }
  operation& barrier(std::string_view key, std::int64_t world_size) { return call(rdzv_op_barrier, key, world_size); }
  operation& ping() { return call(rdzv_op_ping); }

  // Requests that need a native store or, in an event loop, a node.
  /// Reads values with their revisions. With timeout 0, a missing key is no failure: its revision is 0.
  operation& read(const std::vector<std::string>& keys) { return call(rdzv_op_read, keys); }
  /// The first `count_max` keys that begin with `prefix` and sort after `after`; empty: from the first on.
  operation& list_page(std::string_view prefix, std::string_view after, std::uint32_t count_max) {
    return call(rdzv_op_list_page, prefix, after, count_max);
  }
  operation& delete_prefix(std::string_view prefix) { return call(rdzv_op_delete_prefix, prefix); }
  /// Arrives at a named barrier for `count` participants, as `name`; empty: the session's name. `generation` 0 is the open
  /// one, or the next.
  operation& named_barrier(std::string_view key, std::uint32_t count, std::string_view name = {},
                           std::uint64_t generation = 0) {
    return call(rdzv_op_named_barrier, key, generation, name, count, std::vector<std::string>());
  }
  /// The same for the participants with these names.
  operation& named_barrier(std::string_view key, const std::vector<std::string>& names, std::string_view name = {},
                           std::uint64_t generation = 0) {
    return call(rdzv_op_named_barrier, key, generation, name, std::uint32_t{0}, names);
  }
  operation& cancel_named_barrier(std::string_view key, std::string_view name = {}) {
    return call(rdzv_op_cancel_named_barrier, key, name);
  }
  /// Reports each change from `from_revision` on; 0: from now on.
  operation& watch_key(std::string_view key, std::uint64_t from_revision = 0) {
    return call(rdzv_op_watch_key, key, from_revision);
  }
  operation& watch_prefix(std::string_view prefix, std::uint64_t from_revision = 0) {
    return call(rdzv_op_watch_prefix, prefix, from_revision);
  }
  operation& grant_lease(std::chrono::milliseconds ttl) {
    return call(rdzv_op_grant_lease, ttl.count());
  }
  operation& attach_lease(std::uint64_t lease, const std::vector<std::string>& keys) {
    return call(rdzv_op_attach_lease, lease, keys);
  }
  operation& renew_lease(std::uint64_t lease) { return call(rdzv_op_renew_lease, lease); }
  operation& revoke_lease(std::uint64_t lease) { return call(rdzv_op_revoke_lease, lease); }
  /// Ends the session gracefully: a node leaves its run.
  operation& end_session() { return call(rdzv_op_end_session); }

  // Requests of nodes in an event loop.
  /// Joins the run's next round: for the first time, after a death, after the end of its round.
  operation& next_rendezvous() { return call(rdzv_op_next_rendezvous); }
  operation& leave() { return call(rdzv_op_leave); }
  operation& set_closed() { return call(rdzv_op_set_closed); }
  operation& fail(std::string_view message) { return call(rdzv_op_fail, message); }
  operation& run_info() { return call(rdzv_op_run_info); }
  operation& members(std::uint64_t round, std::uint32_t first, std::uint32_t count_max) {
    return call(rdzv_op_members, round, first, count_max);
  }

  /// An empty batch: requests that the server executes in order in one step. One that fails does not stop the others.
  operation& batch() { return call(rdzv_op_batch); }
  /// An empty transaction: tests, writes that are applied atomically if all hold, and others that are applied otherwise.
  operation& transaction() { return call(rdzv_op_transaction); }
  /// Adds the request of `part` to a batch or a transaction.
  operation& include(const operation& part) {
    if (!part.failure_) return extend(rdzv_op_include, static_cast<const rdzv_op*>(part.handle_.get()));
    if (!failure_) failure_ = part.failure_->copy();
    return *this;
  }
  operation& require_present(std::string_view key) { return extend(rdzv_op_require_present, key); }
  operation& require_absent(std::string_view key) { return extend(rdzv_op_require_absent, key); }
  /// The key last changed at this revision; 0: it has no value.
  operation& require_revision(std::string_view key, std::uint64_t revision) {
    return extend(rdzv_op_require_revision, key, revision);
  }
  operation& require_value(std::string_view key, std::string_view value) {
    return extend(rdzv_op_require_value, key, value);
  }
  /// Writes that are included from now on are applied if a test does not hold.
  operation& otherwise() { return extend(rdzv_op_otherwise); }

  /// Result, or the error of the operation. What it points to is valid until the operation is used again.
  result<rdzv_result> outcome() const { return checked(detail::call<rdzv_result>(rdzv_op_get_result, handle_.get())); }
  /// Result of the request at `index` of a batch, or its error.
  result<rdzv_result> part(std::size_t index) const { return checked(detail::call<rdzv_result>(rdzv_op_get_part, handle_.get(), index)); }
  /// Position in the round that the operation joined.
  result<joined_round> round() const {
    auto found = detail::call<rdzv_round>(rdzv_op_get_round, handle_.get());
    if (!found) return std::move(found).error();
    return joined_round{found->round,       found->node_rank,
                        found->nodes,       found->rank_first,
                        found->world_size,  std::string(detail::text(found->leader, found->leader_len)),
                        std::string(detail::text(found->key_prefix, found->key_prefix_len))};
  }
  /// State of the run that the operation requested.
  result<rdzv_run_info> state_of_run() const { return detail::call<rdzv_run_info>(rdzv_op_get_run_info, handle_.get()); }
  /// Members that the operation requested.
  std::vector<round_member> found_members() const {
    std::vector<round_member> members;
    while (auto found = detail::call<rdzv_round_member>(rdzv_op_get_member, handle_.get(), members.size()))
      members.push_back({found->node_rank, found->local_world_size, found->rank_first,
                         std::string(detail::text(found->node, found->node_len)),
                         std::string(detail::text(found->address, found->address_len))});
    return members;
  }

  rdzv_op* c_handle() const noexcept { return handle_.get(); }
  /// Error of the last request function, if it failed.
  const std::optional<error>& failure() const noexcept { return failure_; }

 private:
  template <class Function, class... Arguments>
  operation& call(Function function, const Arguments&... arguments) {
    failure_ = detail::failure_of(function, handle_.get(), arguments...);
    return *this;
  }
  template <class Function, class... Arguments>
  operation& extend(Function function, const Arguments&... arguments) {
    if (!failure_) call(function, arguments...);
    return *this;
  }
  static result<rdzv_result> checked(result<rdzv_result> found) {
    if (found && found->status != RDZV_OK) return error(found->status, rdzv_error_clone(found->error));
    return found;
  }

  detail::handle<rdzv_op, rdzv_op_free> handle_;
  std::optional<error> failure_;
};

namespace detail {

inline std::string value_of(const rdzv_result& found) { return std::string(text(found.value, found.value_len)); }
inline std::vector<std::string> items_of(const rdzv_result& found) {
  std::vector<std::string> items;
  for (std::size_t i = 0; i < found.item_count; ++i) items.emplace_back(text(found.items[i].data, found.items[i].len));
  return items;
}

}  // namespace detail

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_OPERATION_HPP
