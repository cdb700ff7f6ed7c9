// rendezvous/base.hpp: status, error, exceptions and `result<T>`. rendezvous.hpp includes it.
#ifndef RENDEZVOUS_BASE_HPP
#define RENDEZVOUS_BASE_HPP

#if __cplusplus < 201703L
#error "librendezvous needs C++17: compile with -std=c++17"
#endif

#include "base.h"

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions)
#include <exception>
#endif
#if defined(__SANITIZE_THREAD__)
#include <atomic>
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
  free_refused = RDZV_FREE_REFUSED,
  unauthenticated = RDZV_UNAUTHENTICATED,
  permission_denied = RDZV_PERMISSION_DENIED,
  rpc_unknown_worker = RDZV_RPC_UNKNOWN_WORKER,
  rpc_no_handler = RDZV_RPC_NO_HANDLER,
  rpc_handler_failed = RDZV_RPC_HANDLER_FAILED,
  rpc_peer_died = RDZV_RPC_PEER_DIED,
  rpc_no_member = RDZV_RPC_NO_MEMBER,
  rpc_leaving = RDZV_RPC_LEAVING,
  rpc_already_initialized = RDZV_RPC_ALREADY_INITIALIZED,
  rpc_mixed_group = RDZV_RPC_MIXED_GROUP,
  rpc_name_taken = RDZV_RPC_NAME_TAKEN,
  rpc_device_map = RDZV_RPC_DEVICE_MAP,
  rpc_unreached = RDZV_RPC_UNREACHED,
  rpc_evicted = RDZV_RPC_EVICTED,
  rpc_membership = RDZV_RPC_MEMBERSHIP,
  rpc_malformed = RDZV_RPC_MALFORMED,
};

/// The short name of a status, such as "timed out".
inline std::string_view name(status code) { return rdzv_status_name(static_cast<rdzv_status>(code)); }

/// Release of the library that is loaded, such as "0.2.0", and the version of its ABI: `RDZV_VERSION_STRING` and
/// `RDZV_ABI_VERSION` are those of the headers.
inline std::string_view version() { return rdzv_version(); }
inline std::uint32_t abi_version() { return rdzv_abi_version(); }

/// "The handle's default" wherever a timeout is due, and in options "the library's default". Any other negative
/// timeout, such as a deadline that has passed, is 0: look once.
inline constexpr std::chrono::milliseconds default_timeout = std::chrono::milliseconds::min();

namespace detail {

/// A struct of the C ABI that knows its size.
template <class T>
T sized() {
  T made{};
  made.struct_size = sizeof made;
  return made;
}

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

/// Owner of a handle of the C ABI. Not a std::unique_ptr: compilers take much longer for one.
template <class T, void (*Free)(T*)>
class handle {
 public:
  explicit handle(T* owned = nullptr) noexcept : owned_(owned) {}
  handle(handle&& other) noexcept : owned_(other.release()) {}
  handle& operator=(handle&& other) noexcept {
    const handle former(std::exchange(owned_, other.release()));
    return *this;
  }
  ~handle() {
    if (owned_ != nullptr) Free(owned_);
  }
  T* get() const noexcept { return owned_; }
  T* release() noexcept { return std::exchange(owned_, nullptr); }
  T* operator->() const noexcept { return owned_; }
  T& operator*() const noexcept { return *owned_; }
  explicit operator bool() const noexcept { return owned_ != nullptr; }

 private:
  T* owned_;
};

inline const std::uint8_t* bytes(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
  return data == nullptr ? std::string_view() : std::string_view(reinterpret_cast<const char*>(data), size);
}
inline std::string_view text(const rdzv_bytes& bytes) { return text(bytes.data, bytes.len); }
inline rdzv_bytes view(std::string_view text) { return {bytes(text), text.size()}; }

inline std::string text(const char* from) { return from == nullptr ? std::string() : std::string(from); }
/// NULL stands for an empty text: the default of an option.
inline const char* c_text(const std::string& from) { return from.empty() ? nullptr : from.c_str(); }

/// Sets fields of a struct for C to options that are texts.
inline void set_texts(std::initializer_list<std::pair<const char**, const std::string&>> fields) {
  for (const auto& [field, from] : fields) *field = c_text(from);
}

inline std::vector<std::string> strings(const rdzv_bytes* items, std::size_t count) {
  std::vector<std::string> strings;
  for (std::size_t i = 0; i < count; ++i) strings.emplace_back(text(items[i]));
  return strings;
}
inline std::vector<std::string> strings(const char* const* items, std::size_t count) {
  return std::vector<std::string>(items, items + count);
}

/// What others point into: it stays where it is.
struct pinned {
  pinned() = default;
  pinned(const pinned&) = delete;
  pinned& operator=(const pinned&) = delete;
};

/// Pairs of texts as the C ABI takes them; they point into `pairs`.
template <class Pair>
std::vector<Pair> c_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<Pair> all;
  for (const auto& [left, right] : pairs) all.push_back({left.c_str(), right.c_str()});
  return all;
}

}  // namespace detail

/// What went wrong: a status to branch on, and a message to print.
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
    auto info = detail::sized<rdzv_error_info>();
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
  /// Of `status::compacted`: the oldest revision that the server still has. 0 otherwise.
  std::uint64_t revision() const { return info().revision; }
  /// The generation of a named barrier that was not released. 0 otherwise.
  std::uint64_t generation() const { return info().generation; }
  /// The same with all that is known.
  error copy() const { return error(static_cast<rdzv_status>(code_), rdzv_error_clone(details_.get())); }
  /// NULL where only the status is known.
  const rdzv_error* c_handle() const noexcept { return details_.get(); }

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

/// The type of exception for one status.
template <status Code, class Base = exception>
class exception_of : public Base {
 public:
  static constexpr status thrown_for = Code;
  using Base::Base;
};

/// Any of the six below.
class rendezvous_exception : public exception {
  using exception::exception;
};
/// The rendezvous is closed, for good.
using rendezvous_closed = exception_of<status::rendezvous_closed, rendezvous_exception>;
/// An operation of the rendezvous passed its deadline.
using rendezvous_timeout = exception_of<status::rendezvous_timed_out, rendezvous_exception>;
/// What the rendezvous is held over cannot be reached.
using rendezvous_connection = exception_of<status::rendezvous_connection, rendezvous_exception>;
/// What is stored for the rendezvous cannot be read.
using rendezvous_state = exception_of<status::rendezvous_state, rendezvous_exception>;
/// This spare node is sent home, since the rendezvous has closed: no failure.
using rendezvous_graceful_exit = exception_of<status::rendezvous_graceful_exit, rendezvous_exception>;
/// Another session joined under this node's name, which must not come back: each node needs a name of its own.
using rendezvous_replaced = exception_of<status::rendezvous_replaced, rendezvous_exception>;

/// A watch fell behind: `error().revision()` is the oldest that can be watched from.
using compacted = exception_of<status::compacted>;
/// The round that the key belongs to is over: come back for the next one.
using stale_round = exception_of<status::stale_round>;
/// A lease, or a generation of a barrier, is not there, or not any more.
using not_found = exception_of<status::not_found>;
/// Others asked for the same in another way, and were first.
using conflict = exception_of<status::conflict>;
/// A participant of a barrier died: `error().nodes()` names it.
using barrier_broken = exception_of<status::barrier_broken>;

namespace detail {

template <class... Types>
[[noreturn]] void throw_one_of(error failure) {
  ((failure.code() == Types::thrown_for ? throw Types(std::move(failure)) : void()), ...);
  throw exception(std::move(failure));
}

[[noreturn]] inline void throw_error(error failure) {
  throw_one_of<rendezvous_closed, rendezvous_timeout, rendezvous_connection, rendezvous_state,
               rendezvous_graceful_exit, rendezvous_replaced, compacted, stale_round, not_found, conflict,
               barrier_broken>(std::move(failure));
}

}  // namespace detail
#endif

namespace detail {

/// What the results of all types have in common.
class outcome {
 public:
  bool has_value() const noexcept { return !failure_; }
  const rdzv::error& error() const& noexcept { return *failure_; }
  rdzv::error error() && noexcept { return std::move(*failure_); }

 protected:
  outcome() = default;
  explicit outcome(rdzv::error failure) : failure_(std::move(failure)) {}
#if defined(__cpp_exceptions)
  void check() const& {
    if (failure_) throw_error(failure_->copy());
  }
  void check() && {
    if (failure_) throw_error(std::move(*failure_));
  }
#endif

 private:
  std::optional<rdzv::error> failure_;
};

}  // namespace detail

/// A value, or the error that is there in its place. Reading the wrong one of the two is undefined, as with a pointer.
template <class T>
class [[nodiscard]] result : public detail::outcome {
 public:
  result(T value) : value_(std::move(value)) {}
  result(rdzv::error failure) : outcome(std::move(failure)) {}

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
  /// What `function` makes of the value, or the error.
  template <class Function>
  auto transform(Function function) && -> result<decltype(function(std::declval<T&>()))> {
    if (!has_value()) return std::move(*this).error();
    return function(*value_);
  }

#if defined(__cpp_exceptions)
  /// The value within, for as long as the result lives.
  T& or_throw() & {
    check();
    return *value_;
  }
  const T& or_throw() const& {
    check();
    return *value_;
  }
  T or_throw() && {
    std::move(*this).check();
    return std::move(*value_);
  }
#endif

 private:
  // Not a variant: compilers take much longer for one.
  std::optional<T> value_;
};

template <>
class [[nodiscard]] result<void> : public detail::outcome {
 public:
  result() = default;
  result(rdzv::error failure) : outcome(std::move(failure)) {}
  explicit operator bool() const noexcept { return has_value(); }

#if defined(__cpp_exceptions)
  void or_throw() const& { check(); }
  void or_throw() && { std::move(*this).check(); }
#endif
};

namespace detail {

/// Owner of a handle of the C ABI. A class that stands for one derives from it and inherits its constructor.
template <class Derived, class C, void (*Free)(C*)>
class owner {
 public:
  using c_type = C;
  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static Derived adopt(C* handle) noexcept { return Derived(handle); }
  C* c_handle() const noexcept { return handle_.get(); }
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

/// Bytes that the library fills.
class buffer : public owner<buffer, rdzv_buffer, rdzv_buffer_free> {
 public:
  buffer() : owner(rdzv_buffer_new()) {}
  std::string_view bytes() const { return text(rdzv_buffer_data(c_handle()), rdzv_buffer_len(c_handle())); }
};

/// Place that a function of the C ABI writes a `T` to.
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
template <class T, void (*Free)(T*)>
struct output<handle<T, Free>> {
  T* value = nullptr;
  T** place() noexcept { return &value; }
  handle<T, Free> take() { return handle<T, Free>(value); }
};
template <>
struct output<bool> {
  std::int32_t value = 0;
  std::int32_t* place() noexcept { return &value; }
  bool take() const noexcept { return value != 0; }
};
template <>
struct output<buffer> {
  buffer value;
  rdzv_buffer* place() const noexcept { return value.c_handle(); }
  buffer take() { return std::move(value); }
};
template <>
struct output<std::string> : output<buffer> {
  std::string take() const { return std::string(value.bytes()); }
};
template <>
struct output<std::vector<std::string>> {
  handle<rdzv_list, rdzv_list_free> value{rdzv_list_new()};
  rdzv_list* place() const noexcept { return value.get(); }
  std::vector<std::string> take() const {
    std::vector<std::string> items;
    for (std::size_t i = 0, size = 0; i < rdzv_list_count(place()); ++i) {
      const std::uint8_t* item = rdzv_list_item(place(), i, &size);
      items.emplace_back(text(item, size));
    }
    return items;
  }
};

/// Whether the C ABI takes it in another way.
template <class T>
inline constexpr bool is_converted =
    std::is_class_v<T> || std::is_enum_v<T> || is_owner<std::remove_const_t<std::remove_pointer_t<T>>>;

/// Calls `function` with its arguments as the C ABI takes them, of which the first `Count` are converted: text, bytes
/// and lists are a pointer and a size there, a timeout and an enum are numbers, and an owner is its handle.
template <std::size_t Count, class Function, class First, class... Others>
rdzv_status spread(Function function, const First& first, const Others&... others) {
  using pairs = std::vector<std::pair<std::string, std::string>>;
  if constexpr (Count == 0) {
    return function(first, others...);
  } else if constexpr (std::is_same_v<First, std::string_view> || std::is_same_v<First, std::string>) {
    return spread<Count - 1>(function, others..., bytes(first), first.size());
  } else if constexpr (std::is_same_v<First, std::chrono::milliseconds>) {
    return spread<Count - 1>(function, others..., count(first));
  } else if constexpr (std::is_same_v<First, std::vector<std::string>>) {
    std::vector<rdzv_bytes> items;
    for (const auto& item : first) items.push_back(view(item));
    return spread<Count - 1>(function, others..., items.data(), items.size());
  } else if constexpr (std::is_same_v<First, pairs>) {
    std::vector<rdzv_bytes> keys, values;
    for (const auto& [key, value] : first) {
      keys.push_back(view(key));
      values.push_back(view(value));
    }
    return spread<Count - 1>(function, others..., keys.data(), values.data(), first.size());
  } else if constexpr (std::is_enum_v<First>) {
    return spread<Count - 1>(function, others..., static_cast<std::underlying_type_t<First>>(first));
  } else if constexpr (is_owner<First>) {
    return spread<Count - 1>(function, others..., first.c_handle());
  } else if constexpr (is_converted<First> && std::is_pointer_v<First>) {
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

/// The same for a function that writes several values.
template <class... T, class Function, class... Arguments>
result<std::tuple<T...>> call_for(Function function, const Arguments&... arguments) {
  // Not a tuple of places: compilers take much longer for one.
  const auto call_with = [&](auto&&... out) -> result<std::tuple<T...>> {
    if (auto failure = failure_of(function, arguments..., out.place()...)) return std::move(*failure);
    return std::tuple<T...>(out.take()...);
  };
  return call_with(output<T>()...);
}

inline error make_error(status code, std::string_view message) {
  const auto number = static_cast<rdzv_status>(code);
  return error(number, rdzv_error_new(number, bytes(message), message.size()));
}

/// Code of the program moves between threads of the library. A thread sanitizer does not see into the library, so each
/// pass synchronizes with all earlier ones.
inline void pass() noexcept {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<std::uint32_t> passes{0};
  passes.fetch_add(1, std::memory_order_acq_rel);
#endif
}
struct passing {
  passing() noexcept { pass(); }
  ~passing() { pass(); }
};

/// Calls code of the program. What it throws must not reach C code: `on_throw` gets its message and status, inside the
/// handler of the exception.
template <class Code, class OnThrow>
auto guarded(Code code, [[maybe_unused]] OnThrow on_throw) -> decltype(code()) {
  const passing guard;
#if defined(__cpp_exceptions)
  try {
    return code();
  } catch (const exception& thrown) {
    return on_throw(thrown.what(), thrown.error().code());
  } catch (const std::exception& thrown) {
    return on_throw(thrown.what(), status::io);
  } catch (...) {
    return on_throw("an exception that is no std::exception", status::io);
  }
#else
  return code();
#endif
}
/// The same of code whose exceptions are dropped.
template <class Code>
auto guarded(Code code) {
  return guarded(code, [](const char*, status) { return decltype(code())(); });
}

template <class T>
void destroy(void* user_data) {
  pass();
  delete static_cast<T*>(user_data);
}

/// A table of functions for C whose `user_data` is `code`, which `destroy` deletes.
template <class Table, class T>
Table table_of(const std::unique_ptr<T>& code) {
  auto made = sized<Table>();
  made.user_data = code.get();
  made.destroy = destroy<T>;
  return made;
}

/// Calls a function of the C ABI, which takes over an object of the program if it succeeds.
template <class T = void, class Owned, class Function, class... Arguments>
result<T> give(std::unique_ptr<Owned> owned, Function function, const Arguments&... arguments) {
  pass();
  auto outcome = call<T>(function, arguments...);
  if (outcome.has_value()) static_cast<void>(owned.release());
  return outcome;
}

}  // namespace detail

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_BASE_HPP
