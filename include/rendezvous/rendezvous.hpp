// rendezvous/rendezvous.hpp: how ranks that know little of each other become a numbered group: handlers by
// backend, and rendezvous by URL. For C++17 and later.
#ifndef RENDEZVOUS_RENDEZVOUS_HPP
#define RENDEZVOUS_RENDEZVOUS_HPP

#include "store.hpp"
#include "rendezvous.h"

#include <cstdlib>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

struct rendezvous_parameters;

namespace detail {

/// Parameters as the C ABI takes them; they borrow the texts.
class c_parameters {
 public:
  explicit c_parameters(const rendezvous_parameters& from);
  c_parameters(const c_parameters&) = delete;
  c_parameters& operator=(const c_parameters&) = delete;
  const rdzv_rendezvous_parameters* get() const noexcept { return &made_; }

 private:
  std::vector<rdzv_pair> options_;
  rdzv_rendezvous_parameters made_{};
};

}  // namespace detail

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
  /// Options of the backend as `name=value,name=value`, like torchrun's `--rdzv-conf`.
  std::string config = {};
  /// Options of the backend by name and value; they replace those in `config`. A backend of yours gets all options here.
  std::vector<std::pair<std::string, std::string>> options = {};
};

namespace detail {

inline c_parameters::c_parameters(const rendezvous_parameters& from) {
  for (const auto& [name, value] : from.options) options_.push_back({name.c_str(), value.c_str()});
  made_.struct_size = sizeof made_;
  made_.backend = from.backend.c_str();
  made_.endpoint = from.endpoint.c_str();
  made_.run_id = from.run_id.c_str();
  made_.min_nodes = from.min_nodes;
  made_.max_nodes = from.max_nodes;
  made_.local_addr = from.local_addr.empty() ? nullptr : from.local_addr.c_str();
  made_.config = from.config.c_str();
  made_.options = options_.data();
  made_.option_count = options_.size();
}

}  // namespace detail

/// What a node learns when it has joined.
class rendezvous_info {
 public:
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
  result<rdzv::store> store() const {
    const rdzv_rendezvous* joined = handle_.get();
    rdzv_store* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_store_new_rendezvous, joined, &made)) return std::move(*failure);
    return rdzv::store::adopt(made);
  }

  /// Takes over a handle of the C ABI.
  static result<rendezvous_info> adopt(rdzv_rendezvous* joined) {
    rendezvous_info made(joined);
    const rdzv_rendezvous* borrowed = joined;
    rdzv_rendezvous_info info{};
    info.struct_size = sizeof info;
    if (auto failure = detail::failure_of(rdzv_rendezvous_get_info, borrowed, &info)) return std::move(*failure);
    const auto known = [](std::int64_t number) {
      return number < 0 ? std::nullopt : std::optional<std::int64_t>(number);
    };
    made.rank = info.rank;
    made.world_size = info.world_size;
    made.master_addr = info.master_addr;
    made.master_port = static_cast<std::uint16_t>(info.master_port);
    made.round = known(info.round);
    made.rank_first = known(info.rank_first);
    made.worker_count = known(info.worker_count);
    made.leader = info.leader == nullptr ? "" : info.leader;
    made.key_prefix = info.key_prefix == nullptr ? "" : info.key_prefix;
    made.hosts_store = info.hosts_store != 0;
    return made;
  }

 private:
  explicit rendezvous_info(rdzv_rendezvous* joined) noexcept : handle_(joined) {}
  detail::handle<rdzv_rendezvous, rdzv_rendezvous_free> handle_;
};

/// What may happen to a round.
enum class round_event_kind : std::int32_t {
  nodes_waiting = RDZV_ROUND_EVENT_NODES_WAITING,
  peer_died = RDZV_ROUND_EVENT_PEER_DIED,
  round_over = RDZV_ROUND_EVENT_ROUND_OVER,
  run_closed = RDZV_ROUND_EVENT_RUN_CLOSED,
  left_behind = RDZV_ROUND_EVENT_EXCLUDED,
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
    return kind == round_event_kind::peer_died || kind == round_event_kind::round_over ||
           kind == round_event_kind::run_closed || kind == round_event_kind::left_behind ||
           kind == round_event_kind::replaced || kind == round_event_kind::job_failed;
  }

  /// In words.
  result<std::string> describe() const {
    const rdzv_round_event event = c_event();
    detail::buffer text;
    auto failure = detail::failure_of(rdzv_round_event_describe, &event, text.get());
    if (failure) return std::move(*failure);
    return text.str();
  }

  /// Valid as long as this.
  rdzv_round_event c_event() const {
    rdzv_round_event event{};
    event.struct_size = sizeof event;
    event.kind = static_cast<std::int32_t>(kind);
    event.round = round;
    event.nodes = nodes;
    event.node_rank = node_rank;
    event.why = why;
    event.node = detail::bytes(node);
    event.node_len = node.size();
    event.message = detail::bytes(message);
    event.message_len = message.size();
    return event;
  }
};

/// One node's part in a rendezvous. Any thread may call; a call that waits is ended by `cancel()` from another.
class rendezvous_handler {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Of the backend that the parameters name: `static`, or another that the context has.
  static result<rendezvous_handler> create(const rendezvous_parameters& parameters, const context* shared = nullptr) {
    rdzv_rendezvous_handler* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto failure = detail::failure_of(rdzv_rendezvous_handler_new, context, detail::c_parameters(parameters).get(), &made);
    if (failure) return std::move(*failure);
    return rendezvous_handler(made);
  }

  std::string backend() const { return detail::borrowed(rdzv_rendezvous_handler_backend, c_handle()); }
  std::string run_id() const { return detail::borrowed(rdzv_rendezvous_handler_run_id, c_handle()); }
  /// Whether the ranks that this node starts shall use the store that the nodes met over.
  bool use_agent_store() const noexcept { return rdzv_rendezvous_handler_use_agent_store(c_handle()) != 0; }

  /// Joins, and waits until the group is whole.
  result<rendezvous_info> next_rendezvous() {
    rdzv_rendezvous* made = nullptr;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_next_rendezvous, c_handle(), &made);
    if (failure) return std::move(*failure);
    return rendezvous_info::adopt(made);
  }
  /// Nothing to synchronize by: it may be seen late.
  result<bool> is_closed() const {
    std::int32_t closed = 0;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_is_closed, c_handle(), &closed);
    if (failure) return std::move(*failure);
    return closed != 0;
  }
  /// Closes the rendezvous: no node may join any more.
  result<void> set_closed() { return detail::call(rdzv_rendezvous_handler_set_closed, c_handle()); }
  /// The same because the job has failed; the other nodes get the reason.
  result<void> fail(std::string_view message) {
    return detail::call(rdzv_rendezvous_handler_fail, c_handle(), detail::bytes(message), message.size());
  }
  /// How many wait for the next round.
  result<std::int64_t> num_nodes_waiting() const {
    std::int64_t count = 0;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_num_nodes_waiting, c_handle(), &count);
    if (failure) return std::move(*failure);
    return count;
  }
  /// The next thing that happens to this node's round; nothing when nothing did in time.
  result<std::optional<round_event>> next_event(milliseconds timeout = default_timeout) {
    rdzv_round_event event{};
    event.struct_size = sizeof event;
    detail::buffer node, message;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_next_event, c_handle(), detail::count(timeout), &event,
                                      node.get(), message.get());
    if (failure) return std::move(*failure);
    if (event.kind == RDZV_ROUND_EVENT_NONE) return std::optional<round_event>();
    return std::optional<round_event>(round_event{static_cast<round_event_kind>(event.kind), event.round, event.nodes,
                                                  event.node_rank, event.why, node.str(), message.str()});
  }
  /// Gives everything back; whether all went well.
  result<bool> shutdown() {
    std::int32_t clean = 0;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_shutdown, c_handle(), &clean);
    if (failure) return std::move(*failure);
    return clean != 0;
  }
  /// Ends every call that is under way, in any thread, with `status::cancelled`. Later calls go on.
  void cancel() { rdzv_rendezvous_handler_cancel(c_handle()); }
  /// Calls that begin later also end with `token`, which replaces an earlier one.
  result<void> set_token(const cancel_token& token) {
    return detail::call(rdzv_rendezvous_handler_set_cancel_token, c_handle(), token.c_handle());
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static rendezvous_handler adopt(rdzv_rendezvous_handler* handle) noexcept { return rendezvous_handler(handle); }
  const rdzv_rendezvous_handler* c_handle() const noexcept { return handle_.get(); }
  rdzv_rendezvous_handler* release() noexcept { return handle_.release(); }

 private:
  explicit rendezvous_handler(rdzv_rendezvous_handler* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rendezvous_handler, rdzv_rendezvous_handler_free> handle_;
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
class url_rendezvous {
 public:
  /// Does not join yet: `next()` does.
  static result<url_rendezvous> create(std::string_view url, const url_options& options = {},
                                      const context* shared = nullptr) {
    std::vector<rdzv_pair> variables;
    for (const auto& [name, value] : options.variables) variables.push_back({name.c_str(), value.c_str()});
    rdzv_rendezvous_url_options c_options{};
    c_options.struct_size = sizeof c_options;
    c_options.has_rank = options.rank ? 1 : 0;
    c_options.rank = options.rank.value_or(0);
    c_options.world_size = options.is_dynamic ? -1 : options.world_size.value_or(0);
    c_options.timeout_ms = options.timeout.count();
    c_options.listen_host = options.listen_host.empty() ? nullptr : options.listen_host.c_str();
    c_options.variables = variables.data();
    c_options.variable_count = variables.size();
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    rdzv_rendezvous_url* made = nullptr;
    auto failure = detail::failure_of(rdzv_rendezvous_url_new, context, detail::bytes(url), url.size(),
                                      static_cast<const rdzv_rendezvous_url_options*>(&c_options), &made);
    if (failure) return std::move(*failure);
    return url_rendezvous(made);
  }

  /// Meets the others. The built-in schemes do so once.
  result<rendezvous_info> next() {
    rdzv_rendezvous* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rendezvous_url_next, handle_.get(), &made)) return std::move(*failure);
    return rendezvous_info::adopt(made);
  }
  /// Ends the `next()` that is under way in another thread with `status::cancelled`.
  void cancel() { rdzv_rendezvous_url_cancel(handle_.get()); }

  rdzv_rendezvous_url* c_handle() const noexcept { return handle_.get(); }
  rdzv_rendezvous_url* release() noexcept { return handle_.release(); }

 private:
  explicit url_rendezvous(rdzv_rendezvous_url* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rendezvous_url, rdzv_rendezvous_url_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RENDEZVOUS_HPP
