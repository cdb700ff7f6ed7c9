// rendezvous.hpp: librendezvous for C++17 and later. Header-only, over the C ABI of rendezvous.h.
//
// Every call that can fail returns a `result<T>`: test it like a pointer, or take the value with `or_throw()`, which
// throws `rdzv::exception` (and does not exist under -fno-exceptions). Handles are move-only and free themselves.
// `c_handle()` lends the C handle, `release()` gives it away. This header brings those of native stores, of event
// loops, of rendezvous (handlers and URLs), of agents, of RPC groups and of the store's utilities along;
// rendezvous_custom_store.hpp, rendezvous_custom_backend.hpp, rendezvous_custom_rpc.hpp and
// rendezvous_custom_workers.hpp, for plug-ins of yours, are beside it.
//
// Timeouts are std::chrono::milliseconds: 0 tries once, `default_timeout` is the handle's; infinite: `rpc_no_timeout`.
//
// A `result<bool>` (of `check` and `delete_key`) has no `operator bool`: ask `has_value()`, then read `*result`.
#ifndef RENDEZVOUS_HPP
#define RENDEZVOUS_HPP

#include "rendezvous.h"
#include "rendezvous_error.hpp"

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

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

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

/// The views of several keys, as the C ABI takes them.
template <class Strings>
std::vector<rdzv_bytes> views(const Strings& strings) {
  std::vector<rdzv_bytes> views;
  views.reserve(strings.size());
  for (const auto& string : strings) views.push_back({bytes(string), std::string_view(string).size()});
  return views;
}

inline std::pair<std::vector<rdzv_bytes>, std::vector<rdzv_bytes>> views_of_pairs(
    const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<rdzv_bytes> keys, values;
  for (const auto& [key, value] : pairs) {
    keys.push_back({bytes(key), key.size()});
    values.push_back({bytes(value), value.size()});
  }
  return {std::move(keys), std::move(values)};
}

class buffer {
 public:
  buffer() : handle_(rdzv_buffer_new()) {}
  rdzv_buffer* get() const noexcept { return handle_.get(); }
  std::string str() const {
    return std::string(text(rdzv_buffer_data(get()), rdzv_buffer_len(get())));
  }

 private:
  handle<rdzv_buffer, rdzv_buffer_free> handle_;
};

class list {
 public:
  list() : handle_(rdzv_list_new()) {}
  rdzv_list* get() const noexcept { return handle_.get(); }
  std::vector<std::string> strs() const {
    std::vector<std::string> items;
    for (std::size_t i = 0, count = rdzv_list_count(get()); i < count; ++i) {
      std::size_t size = 0;
      const std::uint8_t* item = rdzv_list_item(get(), i, &size);
      items.emplace_back(text(item, size));
    }
    return items;
  }

 private:
  handle<rdzv_list, rdzv_list_free> handle_;
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
class context {
 public:
  static result<context> create() {
    rdzv_context* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_context_new, &made)) return std::move(*failure);
    return context(made);
  }

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

  rdzv_context* c_handle() const noexcept { return handle_.get(); }
  rdzv_context* release() noexcept { return handle_.release(); }

 private:
  explicit context(rdzv_context* made) noexcept : handle_(made) {}
  detail::handle<rdzv_context, rdzv_context_free> handle_;
};

/// A store server inside this process, on a thread of its own; its destructor stops it. Any thread.
class server {
 public:
  /// Binds exactly `host`; port 0 takes a free one. When it returns, clients can connect.
  static result<server> start(std::string_view host = "127.0.0.1", detail::port_number port = 0,
                              const context* shared = nullptr) {
    if (auto failure = port.refusal()) return std::move(*failure);
    rdzv_server_options* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_server_options_new, &made)) return std::move(*failure);
    const detail::handle<rdzv_server_options, rdzv_server_options_free> options(made);
    auto failure = detail::failure_of(rdzv_server_options_set_bind, made, detail::bytes(host), host.size(),
                                      port.value());
    if (failure) return std::move(*failure);
    return start(*options, shared);
  }

  /// The same with options of the C ABI.
  static result<server> start(const rdzv_server_options& options, const context* shared = nullptr) {
    rdzv_server* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    if (auto failure = detail::failure_of(rdzv_server_start, context, &options, &made)) return std::move(*failure);
    return server(made);
  }

  std::uint16_t port() const noexcept { return rdzv_server_port(handle_.get()); }
  /// ADDR:PORT.
  std::string address() const { return rdzv_server_address(handle_.get()); }
  result<rdzv_server_stats> stats() const {
    rdzv_server_stats stats{};
    stats.struct_size = sizeof stats;
    if (auto failure = detail::failure_of(rdzv_server_get_stats, c_handle(), &stats)) return std::move(*failure);
    return stats;
  }
  /// Closes every connection and waits for the server's thread. Any number of times.
  result<void> stop() { return detail::call(rdzv_server_stop, c_handle()); }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static server adopt(rdzv_server* handle) noexcept { return server(handle); }

  const rdzv_server* c_handle() const noexcept { return handle_.get(); }
  rdzv_server* release() noexcept { return handle_.release(); }

 private:
  explicit server(rdzv_server* made) noexcept : handle_(made) {}
  detail::handle<rdzv_server, rdzv_server_free> handle_;
};

/// Ends calls. Once cancelled it stays cancelled, so a cancel is never too early: calls that begin later end at once.
/// Any thread may use it, and it may go before what it was given to.
class cancel_token {
 public:
  static result<cancel_token> create() {
    rdzv_cancel_token* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_cancel_token_new, &made)) return std::move(*failure);
    return cancel_token(made);
  }
  void cancel() const { rdzv_cancel_token_cancel(c_handle()); }
  const rdzv_cancel_token* c_handle() const noexcept { return handle_.get(); }

 private:
  explicit cancel_token(rdzv_cancel_token* made) noexcept : handle_(made) {}
  detail::handle<rdzv_cancel_token, rdzv_cancel_token_free> handle_;
};

/// How a store client is set up.
struct store_options {
  /// For operations that name no timeout of their own.
  std::chrono::milliseconds timeout{300000};
  /// For the first connection: the server may not be there yet, and is tried again until then.
  std::chrono::milliseconds connect_timeout{300000};
  /// For the answer to an operation that does not wait (timeout 0).
  std::chrono::milliseconds answer_timeout{30000};
  /// Ends connecting, if given; for the operations see `store::with_token`.
  const cancel_token* token = nullptr;

  // Of native stores alone:
  /// Name of the session, as other clients see it at barriers and in errors.
  std::string node = {};
  /// How long the session outlives its connection; with 0 it ends with it.
  std::chrono::milliseconds grace{0};
  /// How long the session may be silent, and how many such silences end it.
  std::chrono::milliseconds heartbeat{5000};
  std::uint32_t heartbeats_missed_max = 3;
};

namespace detail {

using options_handle = handle<rdzv_store_options, rdzv_store_options_free>;

inline result<options_handle> c_options(std::string_view host, port_number port, const store_options& options) {
  if (auto failure = port.refusal()) return std::move(*failure);
  rdzv_store_options* made = nullptr;
  if (auto failure = failure_of(rdzv_store_options_new, &made)) return std::move(*failure);
  options_handle owned(made);
  auto failure = failure_of(rdzv_store_options_set_endpoint, made, bytes(host), host.size(), port.value());
  if (!failure) failure = failure_of(rdzv_store_options_set_timeout_ms, made, options.timeout.count());
  if (!failure) failure = failure_of(rdzv_store_options_set_connect_timeout_ms, made, options.connect_timeout.count());
  if (!failure) failure = failure_of(rdzv_store_options_set_answer_timeout_ms, made, options.answer_timeout.count());
  if (!failure) failure = failure_of(rdzv_store_options_set_node, made, bytes(options.node), options.node.size());
  if (!failure) failure = failure_of(rdzv_store_options_set_grace_ms, made, options.grace.count());
  if (!failure)
    failure = failure_of(rdzv_store_options_set_heartbeat, made, options.heartbeat.count(),
                         options.heartbeats_missed_max);
  if (!failure && options.token != nullptr)
    failure = failure_of(rdzv_store_options_set_cancel_token, made, options.token->c_handle());
  if (failure) return std::move(*failure);
  return owned;
}

/// The same for `host:port`.
inline result<options_handle> c_options(std::string_view endpoint, const store_options& options) {
  std::string host;
  std::int32_t port = -1;
  if (auto failure = split_endpoint(endpoint, host, port)) return std::move(*failure);
  return c_options(host, port, options);
}

}  // namespace detail

/// A client of a store: ours or PyTorch's. Any thread may use it, and a wait that is pending in one never delays an
/// operation of another. Keys get the prefix `/` on the wire, as PyTorch's do.
class store {
 public:
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
    rdzv_store* connected = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto failure = detail::failure_of(rdzv_store_connect, context, &options, &connected);
    if (failure) return std::move(*failure);
    return store(connected);
  }

  /// Opens a file, making it if it is missing, that PyTorch's FileStores may share. The last of `world_size` or more to
  /// be closed removes it; with -1 it stays.
  static result<store> open_file(std::string_view path, std::int64_t world_size = -1,
                                 milliseconds timeout = default_timeout, const context* shared = nullptr) {
    rdzv_store* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto failure = detail::failure_of(rdzv_store_open_file, context, detail::bytes(path), path.size(), world_size,
                                      detail::count(timeout), &made);
    if (failure) return std::move(*failure);
    return store(made);
  }

  /// A new, empty store in this process; `clone()` makes further handles of it.
  static result<store> in_process(milliseconds timeout = default_timeout, const context* shared = nullptr) {
    rdzv_store* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    if (auto failure = detail::failure_of(rdzv_store_new_hash, context, detail::count(timeout), &made))
      return std::move(*failure);
    return store(made);
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static store adopt(rdzv_store* handle) noexcept { return store(handle); }

  /// Stores a value; returns when the server has it.
  result<void> set(std::string_view key, std::string_view value, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_set, c_handle(), detail::bytes(key), key.size(), detail::bytes(value), value.size(),
                        detail::count(timeout));
  }

  /// Waits for a key and reads it.
  result<std::string> get(std::string_view key, milliseconds timeout = default_timeout) {
    detail::buffer value;
    auto failure = detail::failure_of(rdzv_store_get, c_handle(), detail::bytes(key), key.size(), detail::count(timeout),
                                      value.get());
    if (failure) return std::move(*failure);
    return value.str();
  }

  /// Adds to a counter, which is 0 when missing; returns the sum.
  result<std::int64_t> add(std::string_view key, std::int64_t delta, milliseconds timeout = default_timeout) {
    std::int64_t sum = 0;
    auto failure = detail::failure_of(rdzv_store_add, c_handle(), detail::bytes(key), key.size(), delta,
                                      detail::count(timeout), &sum);
    if (failure) return std::move(*failure);
    return sum;
  }

  /// Stores `desired` if the value is `expected` (or missing, and `expected` empty); returns the value that is there.
  /// A missing key with an expectation that is not empty gives the expectation back, as PyTorch does.
  result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  milliseconds timeout = default_timeout) {
    detail::buffer value;
    auto failure = detail::failure_of(rdzv_store_compare_set, c_handle(), detail::bytes(key), key.size(),
                                      detail::bytes(expected), expected.size(), detail::bytes(desired), desired.size(),
                                      detail::count(timeout), value.get());
    if (failure) return std::move(*failure);
    return value.str();
  }

  /// Waits until every key is there.
  result<void> wait(const std::vector<std::string>& keys, milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    return detail::call(rdzv_store_wait, c_handle(), views.data(), views.size(), detail::count(timeout));
  }

  /// Whether every key is there.
  result<bool> check(const std::vector<std::string>& keys, milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    std::int32_t ready = 0;
    auto failure =
        detail::failure_of(rdzv_store_check, c_handle(), views.data(), views.size(), detail::count(timeout), &ready);
    if (failure) return std::move(*failure);
    return ready != 0;
  }

  /// Removes a key; whether it was there.
  result<bool> delete_key(std::string_view key, milliseconds timeout = default_timeout) {
    std::int32_t deleted = 0;
    auto failure = detail::failure_of(rdzv_store_delete_key, c_handle(), detail::bytes(key), key.size(),
                                      detail::count(timeout), &deleted);
    if (failure) return std::move(*failure);
    return deleted != 0;
  }

  /// Counts all keys of the server, those of others included.
  result<std::int64_t> num_keys(milliseconds timeout = default_timeout) {
    std::int64_t count = 0;
    auto failure = detail::failure_of(rdzv_store_num_keys, c_handle(), detail::count(timeout), &count);
    if (failure) return std::move(*failure);
    return count;
  }

  /// The keys, sorted where the server sorts them.
  result<std::vector<std::string>> list_keys(milliseconds timeout = default_timeout) {
    detail::list keys;
    auto failure = detail::failure_of(rdzv_store_list_keys, c_handle(), detail::count(timeout), keys.get());
    if (failure) return std::move(*failure);
    return keys.strs();
  }

  /// Adds bytes behind a value, which is created if missing.
  result<void> append(std::string_view key, std::string_view value, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_append, c_handle(), detail::bytes(key), key.size(), detail::bytes(value),
                        value.size(), detail::count(timeout));
  }

  /// Waits for several keys and reads them, in their order.
  result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    detail::list values;
    auto failure = detail::failure_of(rdzv_store_multi_get, c_handle(), views.data(), views.size(), detail::count(timeout),
                                      values.get());
    if (failure) return std::move(*failure);
    return values.strs();
  }

  /// Stores several values. Our server does it in one turn.
  result<void> multi_set(const std::vector<std::pair<std::string, std::string>>& pairs,
                         milliseconds timeout = default_timeout) {
    const auto [keys, values] = detail::views_of_pairs(pairs);
    return detail::call(rdzv_store_multi_set, c_handle(), keys.data(), values.data(), pairs.size(), detail::count(timeout));
  }

  /// Puts an item at the end of a queue.
  result<void> queue_push(std::string_view key, std::string_view item, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_queue_push, c_handle(), detail::bytes(key), key.size(), detail::bytes(item),
                        item.size(), detail::count(timeout));
  }

  /// Takes the item at the front of a queue, waiting for one; with timeout 0, `status::queue_empty` if there is none.
  result<std::string> queue_pop(std::string_view key, milliseconds timeout = default_timeout) {
    detail::buffer item;
    auto failure = detail::failure_of(rdzv_store_queue_pop, c_handle(), detail::bytes(key), key.size(),
                                      detail::count(timeout), item.get());
    if (failure) return std::move(*failure);
    return item.str();
  }

  /// Counts the items of a queue.
  result<std::int64_t> queue_len(std::string_view key, milliseconds timeout = default_timeout) {
    std::int64_t length = 0;
    auto failure = detail::failure_of(rdzv_store_queue_len, c_handle(), detail::bytes(key), key.size(),
                                      detail::count(timeout), &length);
    if (failure) return std::move(*failure);
    return length;
  }

  /// Waits until `world_size` participants have arrived under this key. A key serves once.
  result<void> barrier(std::string_view key, std::int64_t world_size, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_barrier, c_handle(), detail::bytes(key), key.size(), world_size, detail::count(timeout));
  }

  /// The same built from add, set and wait, as PyTorch's PrefixStore and FileStore do it; the two kinds never meet.
  result<void> barrier_by_keys(std::string_view key, std::int64_t world_size, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_barrier_by_keys, c_handle(), detail::bytes(key), key.size(), world_size,
                        detail::count(timeout));
  }

  /// Counts this process among the workers that PyTorch's `wait_for_workers` waits for; returns how many there are.
  result<std::int64_t> check_in(milliseconds timeout = default_timeout) {
    std::int64_t count = 0;
    auto failure = detail::failure_of(rdzv_store_check_in, c_handle(), detail::count(timeout), &count);
    if (failure) return std::move(*failure);
    return count;
  }

  /// Waits until `world_size` workers have checked in.
  result<void> wait_for_workers(std::int64_t world_size, milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_wait_for_workers, c_handle(), world_size, detail::count(timeout));
  }

  /// Asks the server for a sign of life.
  result<void> ping(milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_ping, c_handle(), detail::count(timeout));
  }

  /// A handle whose key `k` is `prefix/k` here; composes as PyTorch's PrefixStore. Cancelling one cancels both.
  result<store> with_prefix(std::string_view prefix) const {
    rdzv_store* made = nullptr;
    auto failure =
        detail::failure_of(rdzv_store_with_prefix, c_handle(), detail::bytes(prefix), prefix.size(), &made);
    if (failure) return std::move(*failure);
    return store(made);
  }

  /// A handle of the same keys whose calls, `clone` included, end with `token`. `cancel` of one does not touch the other.
  result<store> with_token(const cancel_token& token) const {
    rdzv_store* made = nullptr;
    auto failure = detail::failure_of(rdzv_store_with_cancel_token, c_handle(), token.c_handle(), &made);
    if (failure) return std::move(*failure);
    return store(made);
  }

  /// A new handle to the same store; to a server it has connections of its own.
  result<store> clone() const {
    rdzv_store* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_store_clone, c_handle(), &made)) return std::move(*failure);
    return store(made);
  }

  /// Ends every call that is pending on this handle, in any thread, with `status::cancelled`. Later calls go on:
  /// to end one that may not have begun, use `with_token`.
  void cancel() { rdzv_store_cancel(c_handle()); }

  const rdzv_store* c_handle() const noexcept { return handle_.get(); }
  rdzv_store* release() noexcept { return handle_.release(); }

 private:
  explicit store(rdzv_store* made) noexcept : handle_(made) {}
  detail::handle<rdzv_store, rdzv_store_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

// The other parts, each of which can be included alone.
#include "rendezvous_native.hpp"
#include "rendezvous_event_loop.hpp"
#include "rendezvous_handler.hpp"
#include "rendezvous_utilities.hpp"
// Of what stands above, the agent needs the loop and the handler.
#include "rendezvous_agent.hpp"
#include "rendezvous_rpc_loop.hpp"

#endif  // RENDEZVOUS_HPP
