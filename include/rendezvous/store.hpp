// rendezvous/store.hpp: contexts, servers, operations and stores, for C++17 and later. rendezvous.hpp includes it.
#ifndef RENDEZVOUS_STORE_HPP
#define RENDEZVOUS_STORE_HPP

#include "base.hpp"
#include "loop.h"

#include <functional>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

namespace detail {

/// A port as the caller has it, of any integer type: one that no port has is refused, and not cut down to one.
class port_number {
 public:
  template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>>>
  constexpr port_number(Integer number) noexcept : number_(static_cast<long long>(number)) {}

  constexpr std::uint16_t value() const noexcept { return static_cast<std::uint16_t>(number_); }
  std::optional<error> refusal() const {
    if (number_ >= 0 && number_ <= 65535) return std::nullopt;
    return make_error(status::invalid_argument, "the port " + std::to_string(number_) + " is not from 0 to 65535");
  }

 private:
  long long number_;
};

}  // namespace detail

/// A host, and a port if one is named.
struct endpoint {
  std::string host;
  std::optional<std::uint16_t> port;
};

/// Reads `host`, `host:port`, `[address]` or `[address]:port`; nothing at all is `localhost`.
inline result<endpoint> parse_endpoint(std::string_view text) {
  return detail::call_for<std::string, std::int32_t>(rdzv_parse_endpoint, text).transform([](auto& found) {
    auto& [host, port] = found;
    return endpoint{host, port < 0 ? std::nullopt : std::optional(static_cast<std::uint16_t>(port))};
  });
}

enum class log_level : std::int32_t {
  error = RDZV_LOG_ERROR,
  warn = RDZV_LOG_WARN,
  info = RDZV_LOG_INFO,
  debug = RDZV_LOG_DEBUG,
};

/// What the handles of one user of the library share: the log sink, the rendezvous backends and URL schemes, and the
/// stores that are hosted for them. Two contexts never meet.
class context : public detail::owner<context, rdzv_context, rdzv_context_free> {
 public:
  using owner::owner;
  context() : owner(rdzv_context_new()) {}

  /// Sends log lines of `level` and more important ones to `sink`, on a thread of the library's. Once. The sink may
  /// block; an exception that leaves it is swallowed. It must not call functions on this context.
  result<void> set_log_sink(log_level level,
                            std::function<void(log_level, std::string_view target, std::string_view line)> sink) {
    using sink_type = decltype(sink);
    auto owned = std::make_unique<sink_type>(std::move(sink));
    auto table = detail::table_of<rdzv_log_sink>(owned);
    table.level_max = static_cast<std::int32_t>(level);
    const auto log = [](void* user_data, const rdzv_log_record* record) {
      const std::string_view line(record->message, record->message_len);
      const auto of_line = static_cast<log_level>(record->level);
      detail::guarded([&] { (*static_cast<sink_type*>(user_data))(of_line, record->target, line); });
    };
    if (*owned) table.log = log;  // an empty function is refused as NULL is, not called
    return detail::give(std::move(owned), rdzv_context_set_log_sink, c_handle(), &table);
  }
};

/// TCP keep-alive, by which a host that is silent is detected. 0 and `default_timeout` are the library's defaults.
struct keep_alive {
  std::chrono::milliseconds idle = default_timeout, interval = default_timeout;
  std::uint32_t probes = 0;
  /// How long sent bytes may remain unacknowledged; by default as long as the probes would take, if the peer's host
  /// acknowledges nothing else either.
  std::chrono::milliseconds unacknowledged_max = default_timeout;
};

/// How a server is set up: the fields of `rdzv_server_options`.
struct server_options {
  std::string host = "127.0.0.1";
  /// 0: a free one.
  detail::port_number port = 0;
  /// Whether `::` accepts IPv4 clients, too.
  bool dual_stack = false;
  /// A bound TCP socket in place of `host` and `port`, which the server duplicates; 0: none.
  int listen_fd = 0;
  /// 0: the default.
  std::uint64_t connections_max = 0, stored_bytes_max = 0;
  std::chrono::milliseconds handshake_timeout = default_timeout, frame_timeout = default_timeout;
  rdzv::keep_alive keep_alive = {};
  /// TLS: files of the server, and of the CAs of its clients. It must live until the server has started.
  const rdzv_tls_options* tls = nullptr;
  /// The tokens that clients must prove, and the networks of PyTorch's clients, which have no token and no TLS.
  std::optional<std::string> auth_token_file = {}, c10d_from = {};
};

namespace detail {

inline rdzv_keep_alive c_keep_alive(const keep_alive& from) {
  const std::int64_t unacknowledged_max_ms = option_count(from.unacknowledged_max);
  return {option_count(from.idle), option_count(from.interval), from.probes,
          static_cast<std::int32_t>(unacknowledged_max_ms > INT32_MAX ? -1 : unacknowledged_max_ms)};
}

inline const char* or_null(const std::optional<std::string>& text) { return text ? text->c_str() : nullptr; }

/// The same for C, which points into it.
inline rdzv_server_options c_options(const server_options& from) {
  const bool binds = from.listen_fd == 0;
  return {sizeof(rdzv_server_options), from.dual_stack ? RDZV_FAMILY_DUAL_STACK : RDZV_FAMILY_AS_GIVEN,
          binds ? from.host.c_str() : nullptr, binds ? from.port.value() : std::uint16_t{0}, 0, from.listen_fd,
          from.connections_max, from.stored_bytes_max, option_count(from.handshake_timeout),
          option_count(from.frame_timeout), c_keep_alive(from.keep_alive), from.tls,
          or_null(from.auth_token_file), or_null(from.c10d_from)};
}

}  // namespace detail

/// A store server inside this process, on a thread of its own; its destructor stops it. Any thread.
class server : public detail::owner<server, rdzv_server, rdzv_server_free> {
 public:
  using owner::owner;
  /// When it returns, clients can connect.
  static result<server> start(const server_options& options, const context* shared = nullptr) {
    if (auto failure = options.port.refusal()) return std::move(*failure);
    const rdzv_server_options c_options = detail::c_options(options);
    return detail::call<server>(rdzv_server_new, shared, &c_options);
  }

  /// Binds exactly `host`; port 0 takes a free one.
  static result<server> start(std::string_view host = "127.0.0.1", detail::port_number port = 0,
                              const context* shared = nullptr) {
    return start(server_options{std::string(host), port}, shared);
  }

  std::uint16_t port() const noexcept { return rdzv_server_port(c_handle()); }
  /// ADDR:PORT.
  std::string address() const { return rdzv_server_address(c_handle()); }
  result<rdzv_server_stats> stats() const { return detail::call<rdzv_server_stats>(rdzv_server_get_stats, c_handle()); }
  /// Closes every connection and waits for the server's thread. Any number of times.
  result<void> stop() { return detail::call(rdzv_server_stop, c_handle()); }
};

/// Ends calls. Once cancelled it stays cancelled, so a cancel is never too early: calls that begin later end at once.
/// Any thread may use it, and it may go before what it was given to.
class cancel_token : public detail::owner<cancel_token, rdzv_cancel_token, rdzv_cancel_token_free> {
 public:
  using owner::owner;
  cancel_token() : owner(rdzv_cancel_token_new()) {}
  void cancel() const { rdzv_cancel_token_cancel(c_handle()); }
};

/// How a store client is set up: the fields of `rdzv_store_options`. `default_timeout` is the library's default.
struct store_options {
  /// For operations that name no timeout of their own: 300 s.
  std::chrono::milliseconds timeout = default_timeout;
  /// For the first connection, 300 s: the server may not be there yet, and is tried again until then. 0 tries once.
  std::chrono::milliseconds connect_timeout = default_timeout;
  /// For the response to an operation that does not wait (timeout 0): 30 s.
  std::chrono::milliseconds response_timeout = default_timeout;
  /// Ends connecting, if given; for the operations see `store::with_token`.
  const cancel_token* token = nullptr;
  rdzv::keep_alive keep_alive = {};

  // Of native stores alone:
  /// Name of the session, as other clients see it at barriers and in errors.
  std::string node = {};
  /// How long the session outlives its connection; with 0 it ends with it.
  std::chrono::milliseconds grace{0};
  /// How long the session may be silent, 5 s, and how many such silences end it, 3.
  std::chrono::milliseconds heartbeat = default_timeout;
  std::uint32_t heartbeats_missed_max = 0;
  /// TLS: the CAs of the server, and files of the client. It must live until the store has been made.
  const rdzv_tls_options* tls = nullptr;
  /// The token that the client proves, and that the server must prove, too.
  std::optional<std::string> auth_token_file = {};
};

namespace detail {

inline std::string value_of(const rdzv_result& found) { return std::string(text(found.value, found.value_len)); }
inline std::vector<std::string> items_of(const rdzv_result& found) { return strings(found.items, found.item_count); }

/// The same for C, or why there are none. They point into `host_` and into the options that they were made of.
class c_store_options : pinned {
 public:
  c_store_options(std::string_view host, port_number port, const store_options& from) : host_(host) {
    failure_ = port.refusal();
    fill(port.value(), from);
  }
  c_store_options(std::string_view endpoint, const store_options& from) {
    auto found = parse_endpoint(endpoint);
    if (!found) {
      failure_ = std::move(found).error();
    } else if (!found->port) {
      failure_ = make_error(status::invalid_argument, std::string(endpoint) + " has no port: HOST:PORT");
    } else {
      host_ = std::move(found->host);
      fill(*found->port, from);
    }
  }

  /// Makes a `T` with a function that takes these options after `first`.
  template <class T, class Function, class First, class... Others>
  result<T> make(Function function, const First& first, const Others&... others) const {
    if (failure_) return failure_->copy();
    return call<T>(function, first, &options_, others...);
  }

 private:
  void fill(std::uint16_t port, const store_options& from) {
    const rdzv_cancel_token* token = from.token != nullptr ? from.token->c_handle() : nullptr;
    options_ = {sizeof(rdzv_store_options), port, 0, host_.c_str(), option_count(from.timeout),
                option_count(from.connect_timeout), option_count(from.response_timeout), c_keep_alive(from.keep_alive),
                token, from.node.c_str(), from.grace.count(), option_count(from.heartbeat),
                from.heartbeats_missed_max, 0, from.tls, or_null(from.auth_token_file)};
  }

  std::string host_;
  std::optional<error> failure_;
  rdzv_store_options options_ = sized<rdzv_store_options>();
};

}  // namespace detail

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

/// Request that a store performs, an event loop executes, or a batch or a transaction includes. Give it a request,
/// then use it as often as needed; its memory is reused. One thread at a time. The request functions return the
/// operation itself; one that fails leaves it without a request and keeps its error, which the use of the operation
/// then returns. One that is refused, because the operation is in use or under way (`status::reentrant`), leaves it as
/// it was: the next use returns the error instead of doing what was not asked for, and later ones do what they did
/// before. The same holds for `status::poisoned` and `status::free_refused`.
class operation : public detail::owner<operation, rdzv_op, rdzv_op_free> {
 public:
  /// `user_data` comes back with the events of the operation.
  explicit operation(void* user_data = nullptr) : owner(rdzv_op_new(user_data)) {}

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
  /// Arrives at a named barrier for `count` participants, as `name`; empty: the session's name. `generation` 0 is the
  /// open one, or the next.
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
  operation& grant_lease(std::chrono::milliseconds ttl) { return call(rdzv_op_grant_lease, ttl.count()); }
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
  /// An empty transaction: tests, writes that are applied atomically if all hold, and others that are applied
  /// otherwise.
  operation& transaction() { return call(rdzv_op_transaction); }
  /// Adds the request of `part` to a batch or a transaction.
  operation& include(const operation& part) {
    if (!failure_) failure_ = part.failure_of_use();
    return extend(rdzv_op_include, part);
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
  result<rdzv_result> outcome() const { return checked(detail::call<rdzv_result>(rdzv_op_get_result, c_handle())); }
  /// Result of the request at `index` of a batch, or its error.
  result<rdzv_result> part(std::size_t index) const {
    return checked(detail::call<rdzv_result>(rdzv_op_get_part, c_handle(), index));
  }
  /// Position in the round that the operation joined.
  result<joined_round> round() const {
    return detail::call<rdzv_round>(rdzv_op_get_round, c_handle()).transform([](const rdzv_round& found) {
      const auto leader = detail::text(found.leader, found.leader_len);
      const auto key_prefix = detail::text(found.key_prefix, found.key_prefix_len);
      return joined_round{found.round,      found.node_rank,     found.nodes,            found.rank_first,
                          found.world_size, std::string(leader), std::string(key_prefix)};
    });
  }
  /// State of the run that the operation requested.
  result<rdzv_run_info> state_of_run() const { return detail::call<rdzv_run_info>(rdzv_op_get_run_info, c_handle()); }
  /// Members that the operation requested.
  std::vector<round_member> found_members() const {
    std::vector<round_member> members;
    while (auto found = detail::call<rdzv_round_member>(rdzv_op_get_member, c_handle(), members.size()))
      members.push_back({found->node_rank, found->local_world_size, found->rank_first,
                         std::string(detail::text(found->node, found->node_len)),
                         std::string(detail::text(found->address, found->address_len))});
    return members;
  }

  /// Error of the last request function, if it failed.
  const std::optional<error>& failure() const noexcept { return failure_; }
  /// The same, for the use of the operation. That of a refused request is given up with it.
  std::optional<error> failure_of_use() const {
    if (!failure_) return std::nullopt;
    const status code = failure_->code();
    if (code == status::reentrant || code == status::poisoned || code == status::free_refused)
      return std::exchange(failure_, std::nullopt);
    return failure_->copy();
  }

 private:
  template <class Function, class... Arguments>
  operation& call(Function function, const Arguments&... arguments) {
    failure_ = detail::failure_of(function, c_handle(), arguments...);
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

  mutable std::optional<error> failure_;
};

/// A client of a store: ours or PyTorch's. Any thread may use it, and a wait that is pending in one never delays an
/// operation of another. Keys get the prefix `/` on the wire, as PyTorch's do.
class store : public detail::owner<store, rdzv_store, rdzv_store_free> {
 public:
  using owner::owner;
  using milliseconds = std::chrono::milliseconds;

  /// Connects, trying again until `options.connect_timeout` has passed. `host`: a name or a literal address.
  static result<store> connect(std::string_view host, detail::port_number port, const store_options& options = {},
                               const context* shared = nullptr) {
    return detail::c_store_options(host, port, options).make<store>(rdzv_store_new, shared);
  }
  /// The same with `host:port`, or `[address]:port` for IPv6.
  static result<store> connect(std::string_view endpoint, const store_options& options = {},
                               const context* shared = nullptr) {
    return detail::c_store_options(endpoint, options).make<store>(rdzv_store_new, shared);
  }

  /// Opens a file, making it if it is missing, that PyTorch's FileStores may share. The last of `world_size` or more to
  /// be closed removes it; with -1 it stays.
  static result<store> open_file(const std::string& path, std::int64_t world_size = -1,
                                 milliseconds timeout = default_timeout, const context* shared = nullptr) {
    return detail::call<store>(rdzv_store_new_file, shared, path.c_str(), world_size, timeout);
  }

  /// A new, empty store in this process; `clone()` makes further handles of it.
  static result<store> in_process(milliseconds timeout = default_timeout, const context* shared = nullptr) {
    return detail::call<store>(rdzv_store_new_hash, shared, timeout);
  }

  /// Stores a value; returns when the server has it.
  result<void> set(std::string_view key, std::string_view value, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_set, c_handle(), key, value, timeout);
  }

  /// Waits for a key and reads it.
  result<std::string> get(std::string_view key, milliseconds timeout = default_timeout) {
    return detail::call<std::string>(rdzv_store_get, c_handle(), key, timeout);
  }

  /// Adds to a counter, which is 0 when missing; returns the sum.
  result<std::int64_t> add(std::string_view key, std::int64_t delta, milliseconds timeout = default_timeout) {
    return detail::call<std::int64_t>(rdzv_store_add, c_handle(), key, delta, timeout);
  }

  /// Stores `desired` if the value is `expected` (or missing, and `expected` empty); returns the value that is there.
  /// A missing key with an expectation that is not empty gives the expectation back, as PyTorch does.
  result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  milliseconds timeout = default_timeout) {
    return detail::call<std::string>(rdzv_store_compare_set, c_handle(), key, expected, desired, timeout);
  }

  /// Waits until every key is there.
  result<void> wait(const std::vector<std::string>& keys, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_wait, c_handle(), keys, timeout);
  }

  /// Whether every key is there.
  result<bool> check(const std::vector<std::string>& keys, milliseconds timeout = default_timeout) {
    return detail::call<bool>(rdzv_store_check, c_handle(), keys, timeout);
  }

  /// Removes a key; whether it was there.
  result<bool> delete_key(std::string_view key, milliseconds timeout = default_timeout) {
    return detail::call<bool>(rdzv_store_delete_key, c_handle(), key, timeout);
  }

  /// Performs an operation; its result is in it.
  result<void> perform(operation& op, milliseconds timeout = default_timeout) {
    if (auto failure = op.failure_of_use()) return std::move(*failure);
    return detail::call(rdzv_store_perform, c_handle(), op, timeout);
  }

  /// Counts all keys of the server, those of others included.
  result<std::int64_t> num_keys(milliseconds timeout = default_timeout) {
    return performed(operation().num_keys(), timeout, [](const rdzv_result& found) { return found.count; });
  }

  /// The keys, sorted where the server sorts them.
  result<std::vector<std::string>> list_keys(milliseconds timeout = default_timeout) {
    return performed(operation().list_keys(), timeout, detail::items_of);
  }

  /// Adds bytes behind a value, which is created if missing.
  result<void> append(std::string_view key, std::string_view value, milliseconds timeout = default_timeout) {
    return perform(operation().append(key, value), timeout);
  }

  /// Waits for several keys and reads them, in their order.
  result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             milliseconds timeout = default_timeout) {
    return performed(operation().multi_get(keys), timeout, detail::items_of);
  }

  /// Stores several values. This library's server does so atomically.
  result<void> multi_set(const std::vector<std::pair<std::string, std::string>>& pairs,
                         milliseconds timeout = default_timeout) {
    return perform(operation().multi_set(pairs), timeout);
  }

  /// Puts an item at the end of a queue.
  result<void> queue_push(std::string_view key, std::string_view item, milliseconds timeout = default_timeout) {
    return perform(operation().queue_push(key, item), timeout);
  }

  /// Takes the item at the front of a queue, waiting for one; with timeout 0, `status::queue_empty` if there is none.
  result<std::string> queue_pop(std::string_view key, milliseconds timeout = default_timeout) {
    return performed(operation().queue_pop(key), timeout, detail::value_of);
  }

  /// Counts the items of a queue.
  result<std::int64_t> queue_len(std::string_view key, milliseconds timeout = default_timeout) {
    return performed(operation().queue_len(key), timeout, [](const rdzv_result& found) { return found.count; });
  }

  /// Waits until `world_size` participants have arrived under this key. A key serves once: an arrival that times out
  /// stays counted, so do not call this again with the same key; `native_store::named_barrier` can be repeated.
  result<void> barrier(std::string_view key, std::int64_t world_size, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_barrier, c_handle(), key, world_size, timeout);
  }

  /// The same built from add, set and wait, as PyTorch's PrefixStore and FileStore do it; the two kinds never meet.
  result<void> barrier_by_keys(std::string_view key, std::int64_t world_size, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_barrier_by_keys, c_handle(), key, world_size, timeout);
  }

  /// Counts this process among the workers that PyTorch's `wait_for_workers` waits for; returns how many there are.
  result<std::int64_t> check_in(milliseconds timeout = default_timeout) {
    return detail::call<std::int64_t>(rdzv_store_check_in, c_handle(), timeout);
  }

  /// Waits until `world_size` workers have checked in.
  result<void> wait_for_workers(std::int64_t world_size, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_wait_for_workers, c_handle(), world_size, timeout);
  }

  /// Checks that the store responds.
  result<void> ping(milliseconds timeout = default_timeout) { return perform(operation().ping(), timeout); }

  /// A handle whose key `k` is `prefix/k` here; composes as PyTorch's PrefixStore. Cancelling one cancels both.
  result<store> with_prefix(std::string_view prefix) const {
    return detail::call<store>(rdzv_store_new_prefix, c_handle(), prefix);
  }

  /// A handle of the same keys whose calls, `clone` included, end with `token`. `cancel` of one does not touch the
  /// other.
  result<store> with_token(const cancel_token& token) const {
    return detail::call<store>(rdzv_store_new_cancellable, c_handle(), token);
  }

  /// A new handle to the same store; to a server it has connections of its own.
  result<store> clone() const { return detail::call<store>(rdzv_store_clone, c_handle()); }

  /// Ends every call that is pending on this handle, in any thread, with `status::cancelled`. Later calls go on:
  /// to end one that may not have begun, use `with_token`.
  void cancel() { rdzv_store_cancel(c_handle()); }
  /// HOST:PORT of the server, the path of a file, or the name of a custom store.
  std::string peer() const { return rdzv_store_peer(c_handle()); }

 protected:
  /// Performs an operation and returns what `read` finds in its result.
  template <class Read>
  auto performed(operation& op, milliseconds timeout, Read read) -> decltype(op.outcome().transform(read)) {
    if (auto done = perform(op, timeout); !done) return std::move(done).error();
    return op.outcome().transform(read);
  }
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_STORE_HPP
