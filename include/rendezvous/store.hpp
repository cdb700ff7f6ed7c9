// rendezvous/store.hpp: contexts, servers and stores, for C++17 and later. rendezvous.hpp includes it.
#ifndef RENDEZVOUS_STORE_HPP
#define RENDEZVOUS_STORE_HPP

#include "base.hpp"
#include "operation.hpp"
#include "rendezvous.h"
#include "store.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

namespace detail {

/// A port as the caller has it, of any integer type: one that no port has is refused, and not cut down to one.
class port_number {
 public:
  template <class Integer, class = std::enable_if_t<std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>>>
  constexpr port_number(Integer number) noexcept : number_(static_cast<long long>(number)) {}

  constexpr std::uint16_t value() const noexcept { return static_cast<std::uint16_t>(number_); }
  /// The number as it was given, for a function that checks it.
  constexpr std::int64_t number() const noexcept { return number_; }
  std::optional<error> refusal() const {
    if (number_ >= 0 && number_ <= 65535) return std::nullopt;
    return invalid("the port " + std::to_string(number_) + " is not from 0 to 65535");
  }

 private:
  long long number_;
};

/// Reads `host:port`.
inline std::optional<error> split_endpoint(std::string_view endpoint, std::string& host, std::int32_t& port) {
  buffer found;
  if (auto failure = failure_of(rdzv_parse_endpoint, bytes(endpoint), endpoint.size(), found.get(), &port))
    return failure;
  host = found.str();
  if (port < 0) return invalid("the endpoint '" + std::string(endpoint) + "' has no port: HOST:PORT");
  return std::nullopt;
}

}  // namespace detail

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
    rdzv_log_sink c_sink{};
    c_sink.struct_size = sizeof c_sink;
    c_sink.level_max = static_cast<std::int32_t>(level);
    c_sink.user_data = owned.get();
    const auto log = [](void* user_data, const rdzv_log_record* record) {
#if defined(__cpp_exceptions)
      try {
#endif
        (*static_cast<sink_type*>(user_data))(static_cast<log_level>(record->level), record->target,
                                              std::string_view(record->message, record->message_len));
#if defined(__cpp_exceptions)
      } catch (...) {
      }
#endif
    };
    if (*owned) c_sink.log = log;  // an empty function is refused as NULL is, not called
    c_sink.destroy = [](void* user_data) { delete static_cast<sink_type*>(user_data); };
    auto outcome = detail::call(rdzv_context_set_log_sink, handle_.get(), &c_sink);
    if (outcome) static_cast<void>(owned.release());
    return outcome;
  }
};

/// TCP keep-alive, by which a host that is silent is detected. 0 and `default_timeout` are the library's defaults.
struct keep_alive {
  std::chrono::milliseconds idle = default_timeout;
  std::chrono::milliseconds interval = default_timeout;
  std::uint32_t probes = 0;
  /// How long sent bytes may remain unacknowledged; by default the system decides.
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
  std::uint64_t connections_max = 0;
  std::uint64_t stored_bytes_max = 0;
  std::chrono::milliseconds handshake_timeout = default_timeout;
  std::chrono::milliseconds frame_timeout = default_timeout;
  rdzv::keep_alive keep_alive = {};
};

namespace detail {

inline rdzv_keep_alive c_keep_alive(const keep_alive& from) {
  const std::int64_t unacknowledged_max_ms = option_count(from.unacknowledged_max);
  return {option_count(from.idle), option_count(from.interval), from.probes,
          static_cast<std::int32_t>(unacknowledged_max_ms > INT32_MAX ? -1 : unacknowledged_max_ms)};
}

/// The same for C, which points into it.
inline rdzv_server_options c_options(const server_options& from) {
  rdzv_server_options options{};
  options.struct_size = sizeof options;
  options.family = from.dual_stack ? RDZV_FAMILY_DUAL_STACK : RDZV_FAMILY_AS_GIVEN;
  options.listen_fd = from.listen_fd;
  if (from.listen_fd == 0) {
    options.host = from.host.c_str();
    options.port = from.port.value();
  }
  options.connections_max = from.connections_max;
  options.stored_bytes_max = from.stored_bytes_max;
  options.handshake_timeout_ms = option_count(from.handshake_timeout);
  options.frame_timeout_ms = option_count(from.frame_timeout);
  options.keep_alive = c_keep_alive(from.keep_alive);
  return options;
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
    server_options options;
    options.host = host;
    options.port = port;
    return start(options, shared);
  }

  std::uint16_t port() const noexcept { return rdzv_server_port(handle_.get()); }
  /// ADDR:PORT.
  std::string address() const { return rdzv_server_address(handle_.get()); }
  result<rdzv_server_stats> stats() const {
    return detail::call<rdzv_server_stats>(rdzv_server_get_stats, c_handle());
  }
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
};

namespace detail {

/// The same for C. It points into the host that it keeps, and into the options that it was made of.
class c_store_options {
 public:
  c_store_options(std::string_view host, std::uint16_t port, const store_options& from) : host_(host) {
    options_.struct_size = sizeof options_;
    options_.port = port;
    options_.timeout_ms = option_count(from.timeout);
    options_.connect_timeout_ms = option_count(from.connect_timeout);
    options_.response_timeout_ms = option_count(from.response_timeout);
    options_.keep_alive = c_keep_alive(from.keep_alive);
    if (from.token != nullptr) options_.cancel_token = from.token->c_handle();
    options_.node = from.node.c_str();
    options_.grace_ms = from.grace.count();
    options_.heartbeat_ms = option_count(from.heartbeat);
    options_.heartbeats_missed_max = from.heartbeats_missed_max;
  }
  const rdzv_store_options& operator*() noexcept {
    options_.host = host_.c_str();
    return options_;
  }

 private:
  std::string host_;
  rdzv_store_options options_{};
};

inline result<c_store_options> c_options(std::string_view host, port_number port, const store_options& options) {
  if (auto failure = port.refusal()) return std::move(*failure);
  return c_store_options(host, port.value(), options);
}

/// The same for `host:port`.
inline result<c_store_options> c_options(std::string_view endpoint, const store_options& options) {
  std::string host;
  std::int32_t port = -1;
  if (auto failure = split_endpoint(endpoint, host, port)) return std::move(*failure);
  return c_options(host, port, options);
}

}  // namespace detail

/// A client of a store: ours or PyTorch's. Any thread may use it, and a wait that is pending in one never delays an
/// operation of another. Keys get the prefix `/` on the wire, as PyTorch's do.
class store : public detail::owner<store, rdzv_store, rdzv_store_free> {
 public:
  using owner::owner;
  using milliseconds = std::chrono::milliseconds;

  /// Connects, trying again until `options.connect_timeout` has passed. `host`: a name or a literal address.
  static result<store> connect(std::string_view host, detail::port_number port, const store_options& options = {},
                               const context* shared = nullptr) {
    auto owned = detail::c_options(host, port, options);
    if (!owned) return std::move(owned).error();
    return connect(**owned, shared);
  }

  /// The same with `host:port`, or `[address]:port` for IPv6.
  static result<store> connect(std::string_view endpoint, const store_options& options = {},
                               const context* shared = nullptr) {
    auto owned = detail::c_options(endpoint, options);
    if (!owned) return std::move(owned).error();
    return connect(**owned, shared);
  }

  /// The same with options of the C ABI.
  static result<store> connect(const rdzv_store_options& options, const context* shared = nullptr) {
    return detail::call<store>(rdzv_store_new, shared, &options);
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
    if (op.failure()) return op.failure()->copy();
    return detail::call(rdzv_store_perform, c_handle(), op.c_handle(), timeout);
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

  /// Waits until `world_size` participants have arrived under this key. A key serves once.
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

  /// A handle of the same keys whose calls, `clone` included, end with `token`. `cancel` of one does not touch the other.
  result<store> with_token(const cancel_token& token) const {
    return detail::call<store>(rdzv_store_new_cancellable, c_handle(), token.c_handle());
  }

  /// A new handle to the same store; to a server it has connections of its own.
  result<store> clone() const {
    return detail::call<store>(rdzv_store_clone, c_handle());
  }

  /// Ends every call that is pending on this handle, in any thread, with `status::cancelled`. Later calls go on:
  /// to end one that may not have begun, use `with_token`.
  void cancel() { rdzv_store_cancel(c_handle()); }

  const rdzv_store* c_handle() const noexcept { return handle_.get(); }
  rdzv_store* release() noexcept { return handle_.release(); }

 protected:
  /// Performs an operation and returns what `read` finds in its result.
  template <class Read>
  auto performed(operation& op, milliseconds timeout, Read read) -> result<decltype(read(rdzv_result()))> {
    if (auto done = perform(op, timeout); !done) return std::move(done).error();
    auto found = op.outcome();
    if (!found) return std::move(found).error();
    return read(*found);
  }
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_STORE_HPP
