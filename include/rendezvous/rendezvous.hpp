// rendezvous/rendezvous.hpp: how ranks that know little of each other become a numbered group: handlers by
// backend, and rendezvous by URL. For C++17 and later.
#ifndef RENDEZVOUS_RENDEZVOUS_HPP
#define RENDEZVOUS_RENDEZVOUS_HPP

#include "store.hpp"
#include "rendezvous.h"

#include <cstdlib>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Parameters of a rendezvous: which nodes meet, where, and how.
struct rendezvous_parameters {
  /// Name of the backend, such as `rdzv`.
  std::string backend = {};
  /// Where the rendezvous is held; the backend defines the format of it and of the run's id.
  std::string endpoint = {};
  std::string run_id = {};
  /// 0: 1.
  std::int64_t min_nodes = 0;
  /// 0: as `min_nodes`.
  std::int64_t max_nodes = 0;
  /// Where the other nodes reach this node. Empty: the backend determines it.
  std::string local_addr = {};
  /// Options of the backend as `name=value,name=value`, like `--rdzv-conf` of `rdzv run`: times may have units.
  std::string config = {};
  /// Options of the backend by name and value; they replace those in `config`. A backend of yours gets all options
  /// here.
  std::vector<std::pair<std::string, std::string>> options = {};
};

namespace detail {

/// Parameters as the C ABI takes them; they borrow the texts.
class c_parameters : pinned {
 public:
  explicit c_parameters(const rendezvous_parameters& from)
      : options_(c_pairs<rdzv_pair>(from.options)),
        made_{sizeof made_, 0, from.backend.c_str(), from.endpoint.c_str(), from.run_id.c_str(), from.min_nodes,
              from.max_nodes, c_text(from.local_addr), from.config.c_str(), options_.data(), options_.size()} {}
  const rdzv_rendezvous_parameters* get() const noexcept { return &made_; }

 private:
  std::vector<rdzv_pair> options_;
  rdzv_rendezvous_parameters made_;
};

/// A number that is negative where it is unknown.
inline std::optional<std::int64_t> known(std::int64_t number) {
  return number < 0 ? std::nullopt : std::optional<std::int64_t>(number);
}

}  // namespace detail

/// What a node learns when it has joined.
class rendezvous_info : public detail::owner<rendezvous_info, rdzv_rendezvous, rdzv_rendezvous_free> {
 public:
  using owner::owner;
  std::int64_t rank = 0;
  /// Negative when unknown.
  std::int64_t world_size = 0;
  /// Where the ranks of the job find their store; empty by URL.
  std::string master_addr;
  std::uint16_t master_port = 0;
  /// The round, of backends that have rounds; where their server knows the workers, also where this node's stand in it,
  /// and node 0's address.
  std::optional<std::int64_t> round, rank_first, worker_count;
  std::string leader;
  /// What the keys of the round begin with at its server, with a slash at the end; empty where the backend does not
  /// know it.
  std::string key_prefix;
  /// Whether this process hosts the store.
  bool hosts_store = false;

  /// A handle of the store that the nodes share; those of one rendezvous share what is pending, too. Where this process
  /// hosts the store, it lives as long as the last of them, and as the handler.
  result<rdzv::store> store() const { return detail::call<rdzv::store>(rdzv_store_new_rendezvous, c_handle()); }

 private:
  friend class rendezvous_handler;
  friend class url_rendezvous;
  /// Joins with a function of the C ABI.
  template <class Function, class C>
  static result<rendezvous_info> join(Function function, C* with) {
    auto made = detail::call<rendezvous_info>(function, with);
    if (!made) return made;
    auto info = detail::call<rdzv_rendezvous_info>(rdzv_rendezvous_get_info, made->c_handle());
    if (!info) return std::move(info).error();
    made->rank = info->rank;
    made->world_size = info->world_size;
    made->master_addr = info->master_addr;
    made->master_port = static_cast<std::uint16_t>(info->master_port);
    made->round = detail::known(info->round);
    made->rank_first = detail::known(info->rank_first);
    made->worker_count = detail::known(info->worker_count);
    made->leader = detail::text(info->leader);
    made->key_prefix = detail::text(info->key_prefix);
    made->hosts_store = info->hosts_store != 0;
    return made;
  }
};

/// What may happen to a round.
enum class round_event_kind : std::int32_t {
  nodes_waiting = RDZV_ROUND_EVENT_NODES_WAITING,
  peer_died = RDZV_ROUND_EVENT_PEER_DIED,
  round_over = RDZV_ROUND_EVENT_ROUND_OVER,
  run_closed = RDZV_ROUND_EVENT_RUN_CLOSED,
  excluded = RDZV_ROUND_EVENT_EXCLUDED,
  replaced = RDZV_ROUND_EVENT_REPLACED,
  job_failed = RDZV_ROUND_EVENT_JOB_FAILED,
};

/// Something that happened to a round, or to the run.
struct round_event {
  round_event_kind kind = round_event_kind::nodes_waiting;
  std::uint64_t round = 0;
  /// How many wait for the next round.
  std::uint32_t nodes = 0;
  /// Of the one that died, among the nodes of the round.
  std::uint32_t node_rank = 0;
  /// An RDZV_WHY_ number.
  std::int32_t why = 0;
  /// The node that died, or that closed the run.
  std::string node;
  /// Why the job has failed.
  std::string message;

  /// Whether the round is over for this node, which joins again with `next_rendezvous`. After `nodes_waiting` the round
  /// goes on for as long as its nodes like.
  bool ends_round() const noexcept {
    return kind >= round_event_kind::peer_died && kind <= round_event_kind::job_failed;
  }

  /// Returns the event as text.
  result<std::string> describe() const {
    const rdzv_round_event event = c_event();
    return detail::call<std::string>(rdzv_round_event_describe, &event);
  }

  /// Valid as long as this.
  rdzv_round_event c_event() const {
    return {sizeof(rdzv_round_event), static_cast<std::int32_t>(kind), round, nodes, node_rank, why, 0,
            detail::bytes(node), node.size(), detail::bytes(message), message.size()};
  }
};

namespace detail {

inline round_event cpp_round_event(const rdzv_round_event& of) {
  return {static_cast<round_event_kind>(of.kind), of.round, of.nodes, of.node_rank, of.why,
          std::string(text(of.node, of.node_len)), std::string(text(of.message, of.message_len))};
}

}  // namespace detail

/// One node's part in a rendezvous. Any thread may call; a call that waits is ended by `cancel()` from another.
class rendezvous_handler
    : public detail::owner<rendezvous_handler, rdzv_rendezvous_handler, rdzv_rendezvous_handler_free> {
 public:
  using owner::owner;
  using milliseconds = std::chrono::milliseconds;

  /// Of the backend that the parameters name: `static`, or another that the context has.
  static result<rendezvous_handler> create(const rendezvous_parameters& parameters, const context* shared = nullptr) {
    const detail::c_parameters given(parameters);
    return detail::call<rendezvous_handler>(rdzv_rendezvous_handler_new, shared, given.get());
  }

  std::string backend() const { return borrowed(rdzv_rendezvous_handler_backend); }
  std::string run_id() const { return borrowed(rdzv_rendezvous_handler_run_id); }
  /// Whether the ranks that this node starts shall use the store that the nodes met over.
  bool use_agent_store() const noexcept { return rdzv_rendezvous_handler_use_agent_store(c_handle()) != 0; }

  /// Joins, and waits until the group is whole.
  result<rendezvous_info> next_rendezvous() {
    return rendezvous_info::join(rdzv_rendezvous_handler_next_rendezvous, c_handle());
  }
  /// Nothing to synchronize by: it may be seen late.
  result<bool> is_closed() const { return detail::call<bool>(rdzv_rendezvous_handler_is_closed, c_handle()); }
  /// Closes the rendezvous: no node may join any more.
  result<void> set_closed() { return detail::call(rdzv_rendezvous_handler_set_closed, c_handle()); }
  /// The same because the job has failed; the other nodes get the reason.
  result<void> fail(std::string_view message) {
    return detail::call(rdzv_rendezvous_handler_fail, c_handle(), message);
  }
  /// How many wait for the next round.
  result<std::int64_t> num_nodes_waiting() const {
    return detail::call<std::int64_t>(rdzv_rendezvous_handler_num_nodes_waiting, c_handle());
  }
  /// The next thing that happens to this node's round; nothing when nothing did in time.
  result<std::optional<round_event>> next_event(milliseconds timeout = default_timeout) {
    using detail::buffer, detail::call_for;
    const auto next = rdzv_rendezvous_handler_next_event;
    return call_for<rdzv_round_event, buffer, buffer>(next, c_handle(), timeout).transform([](const auto& found) {
      const rdzv_round_event& event = std::get<0>(found);
      return event.kind == RDZV_ROUND_EVENT_NONE ? std::nullopt : std::optional(detail::cpp_round_event(event));
    });
  }
  /// Gives everything back: the node leaves the rendezvous. Whether all went well.
  result<bool> shutdown() { return detail::call<bool>(rdzv_rendezvous_handler_shutdown, c_handle()); }
  /// Ends every call that is under way, in any thread, with `status::cancelled`. Later calls go on.
  void cancel() { rdzv_rendezvous_handler_cancel(c_handle()); }
  /// Calls that begin later also end with `token`, which replaces an earlier one.
  result<void> set_token(const cancel_token& token) {
    return detail::call(rdzv_rendezvous_handler_set_cancel_token, c_handle(), token);
  }

 private:
  /// The text that `read` lends.
  std::string borrowed(const std::uint8_t* (*read)(const rdzv_rendezvous_handler*, std::size_t*)) const {
    std::size_t size = 0;
    const std::uint8_t* data = read(c_handle(), &size);
    return std::string(detail::text(data, size));
  }
};

/// What the caller of a rendezvous by URL knows beside the URL.
struct url_options {
  /// Nothing: the URL or a variable says it.
  std::optional<std::int64_t> rank = {};
  /// Nothing: the URL or a variable says it.
  std::optional<std::int64_t> world_size = {};
  /// The world size is unknown and is not checked.
  bool is_dynamic = false;
  /// For the others, and for the store's operations that name no timeout.
  std::chrono::milliseconds timeout{1800000};
  /// Where the rank that hosts the store listens, when that is not what the URL says.
  std::string listen_host;
  /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_USE_AGENT_STORE`: those that are known.
  std::vector<std::pair<std::string, std::string>> variables;

  /// Reads those five from the environment of this process. No other thread may change it meanwhile.
  url_options& read_environment() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"})
      if (const char* value = std::getenv(name)) variables.emplace_back(name, value);
    return *this;
  }
};

/// A rendezvous by URL under way. One thread at a time, but for `cancel()`.
class url_rendezvous : public detail::owner<url_rendezvous, rdzv_rendezvous_url, rdzv_rendezvous_url_free> {
 public:
  using owner::owner;
  /// Does not join yet: `next()` does.
  static result<url_rendezvous> create(std::string_view url, const url_options& options = {},
                                       const context* shared = nullptr) {
    const auto variables = detail::c_pairs<rdzv_pair>(options.variables);
    const std::int64_t world_size = options.is_dynamic ? -1 : options.world_size.value_or(0);
    const rdzv_rendezvous_url_options given{sizeof given, options.rank ? 1U : 0U, options.rank.value_or(0), world_size,
                                            options.timeout.count(), detail::c_text(options.listen_host),
                                            variables.data(), variables.size()};
    return detail::call<url_rendezvous>(rdzv_rendezvous_url_new, shared, url, &given);
  }

  /// Meets the others. The built-in schemes do so once.
  result<rendezvous_info> next() { return rendezvous_info::join(rdzv_rendezvous_url_next, c_handle()); }
  /// Ends the `next()` that is under way in another thread with `status::cancelled`.
  void cancel() { rdzv_rendezvous_url_cancel(c_handle()); }
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RENDEZVOUS_HPP
