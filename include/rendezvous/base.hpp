// rendezvous/base.hpp: status, error, exceptions and `result<T>`. rendezvous.hpp includes it.
#ifndef RENDEZVOUS_BASE_HPP
#define RENDEZVOUS_BASE_HPP

#include "base.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions)
#include <exception>
#endif

// Programs with and without exceptions, and those built with other versions of the headers, may be linked into one:
// each has names of its own.
#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// The outcome of a call; the numbers are those of rendezvous.h.
enum class status : std::int32_t {
  ok = RDZV_OK,
  invalid_argument = RDZV_INVALID_ARGUMENT,
  panicked = RDZV_PANIC,
  poisoned = RDZV_POISONED,
  timed_out = RDZV_TIMED_OUT,
  refused = RDZV_REFUSED,
  server_gone = RDZV_SERVER_GONE,
  wrong_protocol = RDZV_WRONG_PROTOCOL,
  unresolved = RDZV_UNRESOLVED,
  unreachable = RDZV_UNREACHABLE,
  cancelled = RDZV_CANCELLED,
  limit_exceeded = RDZV_LIMIT_EXCEEDED,
  queue_empty = RDZV_QUEUE_EMPTY,
  address_in_use = RDZV_ADDRESS_IN_USE,
  io = RDZV_IO,
  closed = RDZV_CLOSED,
  reentrant = RDZV_REENTRANT,
  exhausted = RDZV_EXHAUSTED,
  unsupported = RDZV_UNSUPPORTED,
  corrupt = RDZV_CORRUPT,
  rendezvous_closed = RDZV_RENDEZVOUS_CLOSED,
  rendezvous_timed_out = RDZV_RENDEZVOUS_TIMED_OUT,
  rendezvous_connection = RDZV_RENDEZVOUS_CONNECTION,
  rendezvous_state = RDZV_RENDEZVOUS_STATE,
  rendezvous_graceful_exit = RDZV_RENDEZVOUS_GRACEFUL_EXIT,
  rendezvous_replaced = RDZV_RENDEZVOUS_REPLACED,
  not_registered = RDZV_NOT_REGISTERED,
  already_registered = RDZV_ALREADY_REGISTERED,
  backend_mismatch = RDZV_BACKEND_MISMATCH,
  barrier_broken = RDZV_BARRIER_BROKEN,
  compacted = RDZV_COMPACTED,
  stale_round = RDZV_STALE_ROUND,
  not_found = RDZV_NOT_FOUND,
  conflict = RDZV_CONFLICT,
  rpc_unknown_worker = RDZV_RPC_UNKNOWN_WORKER, rpc_no_handler = RDZV_RPC_NO_HANDLER,
  rpc_handler_failed = RDZV_RPC_HANDLER_FAILED, rpc_peer_died = RDZV_RPC_PEER_DIED, rpc_no_member = RDZV_RPC_NO_MEMBER,
  rpc_leaving = RDZV_RPC_LEAVING, rpc_already_initialized = RDZV_RPC_ALREADY_INITIALIZED,
  rpc_mixed_group = RDZV_RPC_MIXED_GROUP, rpc_name_taken = RDZV_RPC_NAME_TAKEN, rpc_device_map = RDZV_RPC_DEVICE_MAP,
  rpc_unreached = RDZV_RPC_UNREACHED, rpc_evicted = RDZV_RPC_EVICTED, rpc_membership = RDZV_RPC_MEMBERSHIP,
  rpc_malformed = RDZV_RPC_MALFORMED,
};

/// The short name of a status, such as "timed out".
inline std::string_view name(status code) { return rdzv_status_name(static_cast<rdzv_status>(code)); }

/// "The handle's default" wherever a timeout is due, and in options "the library's default". Any other negative timeout,
/// such as a deadline that has passed, is 0: look once.
inline constexpr std::chrono::milliseconds default_timeout = std::chrono::milliseconds::min();

namespace detail {

/// A timeout as the C ABI takes it.
inline std::int64_t count(std::chrono::milliseconds timeout) {
  if (timeout == default_timeout) return -1;
  return timeout.count() < 0 ? 0 : timeout.count();
}

/// A time as the options of the C ABI take it, in which 0 is the default; -1 is no time at all.
inline std::int64_t option_count(std::chrono::milliseconds time) {
  if (time == default_timeout) return 0;
  return time.count() <= 0 ? -1 : time.count();
}

template <class T, void (*Free)(T*)>
struct freed_by {
  void operator()(T* handle) const noexcept { Free(handle); }
};
template <class T, void (*Free)(T*)>
using handle = std::unique_ptr<T, freed_by<T, Free>>;

inline const std::uint8_t* bytes(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
  return data == nullptr ? std::string_view() : std::string_view(reinterpret_cast<const char*>(data), size);
}
inline std::string_view text(const rdzv_bytes& bytes) { return text(bytes.data, bytes.len); }
inline rdzv_bytes view(std::string_view text) { return {bytes(text), text.size()}; }

inline std::vector<std::string> strings(const rdzv_bytes* items, std::size_t count) {
  std::vector<std::string> strings;
  for (std::size_t i = 0; i < count; ++i) strings.emplace_back(text(items[i].data, items[i].len));
  return strings;
}

/// The text that `read` lends.
template <class Handle>
std::string borrowed(const std::uint8_t* (*read)(const Handle*, std::size_t*), const Handle* from) {
  std::size_t size = 0;
  const std::uint8_t* data = read(from, &size);
  return std::string(text(data, size));
}

}  // namespace detail

/// What went wrong: a status to branch on, and the words to print.
class error {
 public:
  /// Takes over an error of the C ABI; it may be NULL, then only the status is known.
  error(rdzv_status code, rdzv_error* details) noexcept : code_(static_cast<status>(code)), details_(details) {}

  status code() const noexcept { return code_; }
  /// One sentence: what failed, where, in which phase, after how long and why.
  std::string message() const {
    return details_ ? rdzv_error_message(details_.get()) : std::string(name(code_));
  }
  /// All that is known, as C has it: valid as long as this error.
  rdzv_error_info info() const noexcept {
    rdzv_error_info info{};
    info.struct_size = sizeof info;
    rdzv_error_get_info(details_.get(), &info);
    return info;
  }
  /// Such as "get"; empty when there is none.
  std::string operation() const { return info().operation; }
  /// HOST:PORT; empty when there is none.
  std::string peer() const { return info().peer; }
  /// "resolving", "connecting", "greeting", "sending", "waiting", "receiving" or empty.
  std::string phase() const { return info().phase; }
  std::chrono::milliseconds elapsed() const { return std::chrono::milliseconds(info().elapsed_ms); }
  /// errno, or 0.
  int os_error() const { return info().os_error; }
  /// The keys of the operation that failed.
  std::vector<std::string> keys() const { return detail::strings(info().keys, info().key_count); }
  /// The inner error of a rendezvous whose connection failed, or whose state cannot be read; else empty.
  std::string cause() const { return info().cause; }
  /// The ranks that are known to be missing.
  std::vector<std::int64_t> ranks() const { return {info().ranks, info().ranks + info().rank_count}; }
  /// Their names, where the caller gave names to ranks; of a named barrier those who are missing, or the one who died.
  std::vector<std::string> nodes() const { return detail::strings(info().nodes, info().node_count); }
  /// Of `status::compacted`: the oldest revision that the server can tell of. 0 otherwise.
  std::uint64_t revision() const { return info().revision; }
  /// The generation of a named barrier that was not released. 0 otherwise.
  std::uint64_t generation() const { return info().generation; }
  /// The same with all that is known.
  error copy() const { return error(static_cast<rdzv_status>(code_), rdzv_error_clone(details_.get())); }
  /// NULL where only the status is known.
  const rdzv_error* c_handle() const noexcept { return details_.get(); }

  // The kinds of failure of a rendezvous.
  bool is_rendezvous_closed() const noexcept { return code_ == status::rendezvous_closed; }
  bool is_rendezvous_timeout() const noexcept { return code_ == status::rendezvous_timed_out; }
  bool is_rendezvous_connection() const noexcept { return code_ == status::rendezvous_connection; }
  bool is_rendezvous_state() const noexcept { return code_ == status::rendezvous_state; }
  /// The rendezvous has closed, and this spare node is sent home: no failure.
  bool is_rendezvous_graceful_exit() const noexcept { return code_ == status::rendezvous_graceful_exit; }
  /// Another session joined under this node's name; this one must not come back.
  bool is_rendezvous_replaced() const noexcept { return code_ == status::rendezvous_replaced; }
  bool is_rendezvous() const noexcept {
    return (code_ >= status::rendezvous_closed && code_ <= status::rendezvous_graceful_exit) ||
           is_rendezvous_replaced();
  }

 private:
  status code_;
  detail::handle<rdzv_error, rdzv_error_free> details_;
};

#if defined(__cpp_exceptions)
/// What `or_throw` throws; for the failures of a rendezvous and some of native stores one of the types below.
class exception : public std::exception {
 public:
  explicit exception(rdzv::error details)
      : details_(std::make_shared<const rdzv::error>(std::move(details))),
        what_(std::make_shared<const std::string>(details_->message())) {}
  const char* what() const noexcept override { return what_->c_str(); }
  const rdzv::error& error() const noexcept { return *details_; }

 private:
  std::shared_ptr<const rdzv::error> details_;
  std::shared_ptr<const std::string> what_;
};

/// Any of the five below.
class rendezvous_exception : public exception {
  using exception::exception;
};
/// The rendezvous is closed, for good.
class rendezvous_closed : public rendezvous_exception {
  using rendezvous_exception::rendezvous_exception;
};
/// An operation of the rendezvous passed its deadline.
class rendezvous_timeout : public rendezvous_exception {
  using rendezvous_exception::rendezvous_exception;
};
/// What the rendezvous is held over cannot be reached.
class rendezvous_connection : public rendezvous_exception {
  using rendezvous_exception::rendezvous_exception;
};
/// What is stored for the rendezvous cannot be read.
class rendezvous_state : public rendezvous_exception {
  using rendezvous_exception::rendezvous_exception;
};
/// This spare node is sent home, since the rendezvous has closed: no failure.
class rendezvous_graceful_exit : public rendezvous_exception {
  using rendezvous_exception::rendezvous_exception;
};
/// Another session joined under this node's name, which must not come back: each node needs a name of its own.
class rendezvous_replaced : public rendezvous_exception {
  using rendezvous_exception::rendezvous_exception;
};

/// A watch fell behind: `error().revision()` is the oldest that can be watched from.
class compacted : public exception {
  using exception::exception;
};
/// The round that the key belongs to is over: come back for the next one.
class stale_round : public exception {
  using exception::exception;
};
/// A lease, or a generation of a barrier, is not there, or not any more.
class not_found : public exception {
  using exception::exception;
};
/// Others asked for the same in another way, and were first.
class conflict : public exception {
  using exception::exception;
};
/// A participant of a barrier died: `error().nodes()` names it.
class barrier_broken : public exception {
  using exception::exception;
};

namespace detail {

[[noreturn]] inline void throw_as_its_kind(error failure) {
  switch (failure.code()) {
    case status::rendezvous_closed:
      throw rendezvous_closed(std::move(failure));
    case status::rendezvous_timed_out:
      throw rendezvous_timeout(std::move(failure));
    case status::rendezvous_connection:
      throw rendezvous_connection(std::move(failure));
    case status::rendezvous_state:
      throw rendezvous_state(std::move(failure));
    case status::rendezvous_graceful_exit:
      throw rendezvous_graceful_exit(std::move(failure));
    case status::rendezvous_replaced:
      throw rendezvous_replaced(std::move(failure));
    case status::compacted:
      throw compacted(std::move(failure));
    case status::stale_round:
      throw stale_round(std::move(failure));
    case status::not_found:
      throw not_found(std::move(failure));
    case status::conflict:
      throw conflict(std::move(failure));
    case status::barrier_broken:
      throw barrier_broken(std::move(failure));
    default:
      throw exception(std::move(failure));
  }
}

}  // namespace detail
#endif

/// A value, or the error that is there in its place. Reading the wrong one of the two is undefined, as with a pointer.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)) {}
  result(rdzv::error failure) : failure_(std::move(failure)) {}

  bool has_value() const noexcept { return value_.has_value(); }
  /// Not there for `result<bool>`, where it would be mistaken for the value: ask `has_value()`.
  template <class U = T, class = std::enable_if_t<!std::is_same_v<U, bool>>>
  explicit operator bool() const noexcept {
    return has_value();
  }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  /// By value, so that `for (auto& key : *store.list_keys())` has something to walk over.
  T operator*() && { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }
  const rdzv::error& error() const& noexcept { return *failure_; }
  rdzv::error error() && noexcept { return std::move(*failure_); }

#if defined(__cpp_exceptions)
  /// The value within, for as long as the result lives.
  T& or_throw() & {
    if (!has_value()) detail::throw_as_its_kind(error().copy());
    return **this;
  }
  const T& or_throw() const& {
    if (!has_value()) detail::throw_as_its_kind(error().copy());
    return **this;
  }
  T or_throw() && {
    if (!has_value()) detail::throw_as_its_kind(std::move(*failure_));
    return std::move(*value_);
  }
#endif

 private:
  // Not a variant: compilers take much longer for one.
  std::optional<T> value_;
  std::optional<rdzv::error> failure_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(rdzv::error failure) : failure_(std::move(failure)) {}

  bool has_value() const noexcept { return !failure_; }
  explicit operator bool() const noexcept { return has_value(); }
  const rdzv::error& error() const& noexcept { return *failure_; }
  rdzv::error error() && noexcept { return std::move(*failure_); }

#if defined(__cpp_exceptions)
  void or_throw() const& {
    if (failure_) detail::throw_as_its_kind(failure_->copy());
  }
  void or_throw() && {
    if (failure_) detail::throw_as_its_kind(std::move(*failure_));
  }
#endif

 private:
  std::optional<rdzv::error> failure_;
};

namespace detail {

/// Owner of a handle of the C ABI. A class that stands for one derives from it and inherits its constructor.
template <class Derived, class C, void (*Free)(C*)>
class owner {
 public:
  using c_type = C;
  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static Derived adopt(C* handle) noexcept { return Derived(handle); }
  const C* c_handle() const noexcept { return handle_.get(); }
  C* c_handle() noexcept { return handle_.get(); }
  C* release() noexcept { return handle_.release(); }

 protected:
  explicit owner(C* handle) noexcept : handle_(handle) {}
  handle<C, Free> handle_;
};

/// Whether it stands for a handle of the C ABI.
template <class T, class = void>
inline constexpr bool is_owner = false;
template <class T>
inline constexpr bool is_owner<T, std::void_t<typename T::c_type>> = true;

/// A struct of the C ABI that knows its size.
template <class T>
T sized() {
  T made{};
  made.struct_size = sizeof made;
  return made;
}

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

/// The place that a function of the C ABI writes a `T` to.
template <class T, class = void>
struct output {
  T value{};
  T* place() noexcept { return &value; }
  T take() { return std::move(value); }
};
template <class T>
struct output<T, std::void_t<decltype(T::struct_size)>> {
  T value = sized<T>();
  T* place() noexcept { return &value; }
  T take() { return value; }
};
template <class T>
struct output<T, std::enable_if_t<is_owner<T>>> {
  typename T::c_type* value = nullptr;
  typename T::c_type** place() noexcept { return &value; }
  T take() { return T::adopt(value); }
};
template <>
struct output<bool> {
  std::int32_t value = 0;
  std::int32_t* place() noexcept { return &value; }
  bool take() const noexcept { return value != 0; }
};
template <>
struct output<std::string> {
  buffer value;
  rdzv_buffer* place() const noexcept { return value.get(); }
  std::string take() const { return value.str(); }
};
template <>
struct output<std::vector<std::string>> {
  list value;
  rdzv_list* place() const noexcept { return value.get(); }
  std::vector<std::string> take() const { return value.strs(); }
};

/// Whether the C ABI takes it in another way.
template <class T>
inline constexpr bool is_converted =
    std::is_class_v<T> || is_owner<std::remove_const_t<std::remove_pointer_t<T>>>;

/// Calls `function` with its arguments as the C ABI takes them, of which the first `Count` are converted: text, bytes and
/// lists are a pointer and a size there, and a timeout is a number.
template <std::size_t Count, class Function, class First, class... Others>
rdzv_status spread(Function function, const First& first, const Others&... others) {
  using milliseconds = std::chrono::milliseconds;
  if constexpr (Count == 0) {
    return function(first, others...);
  } else if constexpr (std::is_same_v<First, std::string_view> || std::is_same_v<First, std::string>) {
    return spread<Count - 1>(function, others..., bytes(first), first.size());
  } else if constexpr (std::is_same_v<First, milliseconds>) {
    return spread<Count - 1>(function, others..., count(first));
  } else if constexpr (std::is_same_v<First, std::vector<std::string>>) {
    const auto items = views(first);
    return spread<Count - 1>(function, others..., items.data(), items.size());
  } else if constexpr (std::is_same_v<First, std::vector<std::pair<std::string, std::string>>>) {
    const auto [keys, values] = views_of_pairs(first);
    return spread<Count - 1>(function, others..., keys.data(), values.data(), first.size());
  } else if constexpr (is_converted<First>) {
    return spread<Count - 1>(function, others..., first == nullptr ? nullptr : first->c_handle());
  } else {
    return spread<Count - 1>(function, others..., first);
  }
}

/// Calls a function of the C ABI, whose last argument is the place for its error.
template <class Function, class... Arguments>
std::optional<error> failure_of(Function function, const Arguments&... arguments) {
  rdzv_error* details = nullptr;
  rdzv_status code = RDZV_OK;
  if constexpr ((is_converted<Arguments> || ...)) {
    code = spread<sizeof...(Arguments) + 1>(function, arguments..., &details);
  } else {
    code = function(arguments..., &details);
  }
  if (code == RDZV_OK) return std::nullopt;
  return error(code, details);
}

/// Calls a function of the C ABI for the `T` that it writes, whose place is the last argument before the error's.
template <class T = void, class Function, class... Arguments>
result<T> call(Function function, const Arguments&... arguments) {
  if constexpr (std::is_void_v<T>) {
    if (auto failure = failure_of(function, arguments...)) return std::move(*failure);
    return {};
  } else {
    output<T> out;
    if (auto failure = failure_of(function, arguments..., out.place())) return std::move(*failure);
    return out.take();
  }
}

inline error invalid(std::string_view message) {
  return error(RDZV_INVALID_ARGUMENT, rdzv_error_new(RDZV_INVALID_ARGUMENT, bytes(message), message.size()));
}

}  // namespace detail

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_BASE_HPP
