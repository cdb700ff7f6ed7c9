// rendezvous_rpc.hpp: workers of RPC groups that call each other's functions with typed arguments, for C++17 and later.
// Part of rendezvous.hpp.
//
// A handler is a function: its arguments are read from the request, and what it returns is the answer. What it throws,
// or the error of a `result` that it returns, fails the call at the caller, in its own words.
#ifndef RENDEZVOUS_RPC_HPP
#define RENDEZVOUS_RPC_HPP

#include "rendezvous.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <tuple>

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Takes what a codec writes.
class writer {
 public:
  void bytes(const void* data, std::size_t size) {
    if (size > 0) out_.append(static_cast<const char*>(data), size);
  }
  void reserve(std::size_t size) { out_.reserve(out_.size() + size); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Gives what a codec reads. Whoever asks for more than there is gets false.
class reader {
 public:
  explicit reader(std::string_view bytes) noexcept : left_(bytes) {}
  bool bytes(void* data, std::size_t size) {
    if (size > left_.size()) return false;
    if (size > 0) std::memcpy(data, left_.data(), size);
    left_.remove_prefix(size);
    return true;
  }
  /// The next bytes where they lie.
  bool view(std::string_view& data, std::size_t size) {
    if (size > left_.size()) return false;
    data = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }
  std::size_t left() const noexcept { return left_.size(); }

 private:
  std::string_view left_;
};

/// How values of a type travel: specialise it for types of yours, with
///   static void write(writer&, const T&);
///   static bool read(reader&, T&);   // false: the bytes are none
/// Numbers are little-endian and as wide as here: where hosts differ, take those of fixed width.
template <class T, class Enable = void>
struct codec;

namespace detail {

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
inline constexpr bool is_little_endian = false;
#else
inline constexpr bool is_little_endian = true;
#endif

template <class T>
void turn_round(T& value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  for (std::size_t i = 0; i < sizeof(T) / 2; ++i) std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
  std::memcpy(&value, bytes, sizeof(T));
}

inline void write_count(writer& out, std::size_t count);
inline bool read_count(reader& in, std::size_t& count);

template <class T>
inline constexpr bool is_plain_number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

}  // namespace detail

template <class T>
struct codec<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  static void write(writer& out, T value) {
    if constexpr (!detail::is_little_endian) detail::turn_round(value);
    out.bytes(&value, sizeof value);
  }
  static bool read(reader& in, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      unsigned char byte = 0;
      if (!in.bytes(&byte, 1) || byte > 1) return false;
      value = byte == 1;
      return true;
    } else {
      if (!in.bytes(&value, sizeof value)) return false;
      if constexpr (!detail::is_little_endian) detail::turn_round(value);
      return true;
    }
  }
};

namespace detail {

inline void write_count(writer& out, std::size_t count) {
  codec<std::uint64_t>::write(out, static_cast<std::uint64_t>(count));
}

/// As many items as there are bytes at most: nobody makes room for what is not there.
inline bool read_count(reader& in, std::size_t& count) {
  std::uint64_t read = 0;
  if (!codec<std::uint64_t>::read(in, read) || read > in.left()) return false;
  count = static_cast<std::size_t>(read);
  return true;
}

}  // namespace detail

/// For a trivially copyable type of yours that is to travel as it lies in memory, between hosts that agree on that:
/// `template <> struct rdzv::codec<point> : rdzv::codec_of_memory<point> {};`
template <class T>
struct codec_of_memory {
  static_assert(std::is_trivially_copyable_v<T>, "such a type cannot be copied as bytes");
  static void write(writer& out, const T& value) { out.bytes(&value, sizeof value); }
  static bool read(reader& in, T& value) { return in.bytes(&value, sizeof value); }
};

template <>
struct codec<std::string> {
  static void write(writer& out, std::string_view text) {
    detail::write_count(out, text.size());
    out.bytes(text.data(), text.size());
  }
  static bool read(reader& in, std::string& text) {
    std::size_t size = 0;
    std::string_view bytes;
    if (!detail::read_count(in, size) || !in.view(bytes, size)) return false;
    text.assign(bytes);
    return true;
  }
};

template <class T>
struct codec<std::vector<T>> {
  static void write(writer& out, const std::vector<T>& items) {
    detail::write_count(out, items.size());
    if constexpr (detail::is_plain_number<T> && detail::is_little_endian) {
      out.bytes(items.data(), items.size() * sizeof(T));
    } else {
      for (const auto& item : items) codec<T>::write(out, static_cast<const T&>(item));
    }
  }
  static bool read(reader& in, std::vector<T>& items) {
    std::size_t count = 0;
    if (!detail::read_count(in, count)) return false;
    items.clear();
    if constexpr (detail::is_plain_number<T> && detail::is_little_endian) {
      if (count > in.left() / sizeof(T)) return false;
      items.resize(count);
      return in.bytes(items.data(), count * sizeof(T));
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        T item{};
        if (!codec<T>::read(in, item)) return false;
        items.push_back(std::move(item));
      }
      return true;
    }
  }
};

template <class T, std::size_t Size>
struct codec<std::array<T, Size>> {
  static void write(writer& out, const std::array<T, Size>& items) {
    for (const T& item : items) codec<T>::write(out, item);
  }
  static bool read(reader& in, std::array<T, Size>& items) {
    for (T& item : items)
      if (!codec<T>::read(in, item)) return false;
    return true;
  }
};

template <class First, class Second>
struct codec<std::pair<First, Second>> {
  static void write(writer& out, const std::pair<First, Second>& pair) {
    codec<First>::write(out, pair.first);
    codec<Second>::write(out, pair.second);
  }
  static bool read(reader& in, std::pair<First, Second>& pair) {
    return codec<First>::read(in, pair.first) && codec<Second>::read(in, pair.second);
  }
};

template <class... Items>
struct codec<std::tuple<Items...>> {
  static void write(writer& out, const std::tuple<Items...>& tuple) {
    std::apply([&](const auto&... items) { (codec<std::decay_t<decltype(items)>>::write(out, items), ...); }, tuple);
    static_cast<void>(out);
  }
  static bool read(reader& in, std::tuple<Items...>& tuple) {
    static_cast<void>(in);
    return std::apply([&](auto&... items) { return (codec<std::decay_t<decltype(items)>>::read(in, items) && ...); },
                      tuple);
  }
};

template <class T>
struct codec<std::optional<T>> {
  static void write(writer& out, const std::optional<T>& value) {
    codec<bool>::write(out, value.has_value());
    if (value) codec<T>::write(out, *value);
  }
  static bool read(reader& in, std::optional<T>& value) {
    bool is_there = false;
    if (!codec<bool>::read(in, is_there)) return false;
    value.reset();
    return !is_there || codec<T>::read(in, value.emplace());
  }
};

/// What a handler is asked. Valid until the handler returns.
class rpc_request {
 public:
  explicit rpc_request(const rdzv_rpc_request* request) noexcept : request_(request) {}
  std::string caller() const { return detail::lent(rdzv_rpc_request_caller, request_); }
  std::uint16_t caller_id() const noexcept { return rdzv_rpc_request_caller_id(request_); }
  std::string handler() const { return detail::lent(rdzv_rpc_request_handler, request_); }
  std::string_view bytes() const {
    std::size_t size = 0;
    const std::uint8_t* data = rdzv_rpc_request_payload(request_, &size);
    return detail::text(data, size);
  }
  bool answer_is_wanted() const noexcept { return rdzv_rpc_request_answer_is_wanted(request_) != 0; }
  /// How long the caller waits; nothing: as long as it takes.
  std::optional<std::chrono::milliseconds> time_left() const {
    const std::int64_t left = rdzv_rpc_request_time_left_ms(request_);
    if (left < 0) return std::nullopt;
    return std::chrono::milliseconds(left);
  }

 private:
  const rdzv_rpc_request* request_;
};

namespace detail {

/// From this size on, bytes are lent to the library rather than copied.
inline constexpr std::size_t lent_size_min = std::size_t{64} << 10;

inline void delete_string(void* owned) { delete static_cast<std::string*>(owned); }

/// Code that goes from one thread of the library's to another, in ways that a thread sanitizer does not see into:
/// whoever passes comes after all who did before.
inline void pass() noexcept {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<std::uint32_t> passes{0};
  passes.fetch_add(1, std::memory_order_acq_rel);
#endif
}

struct passing {
  passing() noexcept { pass(); }
  passing(const passing&) = delete;
  passing& operator=(const passing&) = delete;
  ~passing() { pass(); }
};

inline error make_error(status code, std::string_view words) {
  const auto number = static_cast<rdzv_status>(code);
  return error(number, rdzv_error_new(number, bytes(words), words.size()));
}

/// What a handler says whose arguments cannot be read.
inline constexpr std::string_view malformed_words = "malformed request: ";

}  // namespace detail

/// The way back for one answer, from any thread and at any time. Destroyed without one, it tells the caller so.
class rpc_responder {
 public:
  explicit rpc_responder(rdzv_rpc_responder* responder) noexcept : responder_(responder) {}
  /// Long answers are not copied.
  void answer(std::string bytes) && {
    const detail::passing guard;
    rdzv_rpc_responder* taken = responder_.release();
    if (bytes.size() < detail::lent_size_min) {
      rdzv_rpc_responder_answer(taken, detail::bytes(bytes), bytes.size(), nullptr, nullptr, nullptr);
      return;
    }
    auto* owned = new std::string(std::move(bytes));
    rdzv_rpc_responder_answer(taken, detail::bytes(*owned), owned->size(), detail::delete_string, owned, nullptr);
  }
  /// Answers a value.
  template <class T>
  void answer_value(const T& value) && {
    writer out;
    codec<T>::write(out, value);
    std::move(*this).answer(out.take());
  }
  void fail(std::string_view words) && {
    const detail::passing guard;
    rdzv_rpc_responder_fail(responder_.release(), detail::bytes(words), words.size(), nullptr);
  }
  /// Whether it is still here: not after an answer, nor once it was moved.
  explicit operator bool() const noexcept { return static_cast<bool>(responder_); }
  /// Whether anybody waits still; for who has much to do for an answer.
  bool is_wanted() const { return rdzv_rpc_responder_is_wanted(responder_.get()) != 0; }

 private:
  detail::handle<rdzv_rpc_responder, rdzv_rpc_responder_free> responder_;
};

/// Where a handler runs.
enum class rpc_run : std::int32_t {
  /// On the thread that serves all connections: it must not block, nor wait for calls.
  on_reactor = RDZV_RPC_INLINE,
  /// On a thread of the pool.
  pooled = RDZV_RPC_POOLED,
};

/// A handler of bytes. Whoever answers later moves the responder to where it is kept.
using rpc_function = std::function<void(const rpc_request&, rpc_responder&)>;

namespace detail {

template <class T>
struct is_result : std::false_type {};
template <class T>
struct is_result<result<T>> : std::true_type {};

template <class T>
struct value_of_result {
  using type = T;
};
template <class T>
struct value_of_result<result<T>> {
  using type = T;
};

/// The arguments of a handler that are read from a request.
template <class Return, bool WantsRequest, class... Arguments>
struct signature {
  using value = typename value_of_result<Return>::type;

  template <class Function>
  static void run(const Function& function, const rpc_request& request, rpc_responder& responder) {
    std::tuple<Arguments...> arguments;
    reader in(request.bytes());
    std::size_t read = 0;
    const bool are_read = std::apply(
        [&](auto&... argument) {
          const auto one = [&](auto& target) {
            const bool is_read = codec<std::decay_t<decltype(target)>>::read(in, target);
            read += is_read ? 1 : 0;
            return is_read;
          };
          static_cast<void>(one);
          return (one(argument) && ...);
        },
        arguments);
    if (!are_read || in.left() > 0) {
      std::string words(malformed_words);
      words += request.handler();
      words += are_read ? ": " + std::to_string(in.left()) + " bytes follow its " +
                              std::to_string(sizeof...(Arguments)) + " arguments"
                        : ": argument " + std::to_string(read + 1) + " of " + std::to_string(sizeof...(Arguments)) +
                              " cannot be read";
      return std::move(responder).fail(words);
    }
    const auto invoke = [&]() -> Return {
      return std::apply(
          [&](auto&... argument) -> Return {
            if constexpr (WantsRequest) {
              return function(request, std::move(argument)...);
            } else {
              return function(std::move(argument)...);
            }
          },
          arguments);
    };
    if constexpr (is_result<Return>::value) {
      auto returned = invoke();
      if (!returned.has_value()) return std::move(responder).fail(returned.error().message());
      if constexpr (std::is_void_v<value>) {
        std::move(responder).answer({});
      } else {
        std::move(responder).answer_value(*returned);
      }
    } else if constexpr (std::is_void_v<value>) {
      invoke();
      std::move(responder).answer({});
    } else {
      const value returned = invoke();
      std::move(responder).answer_value(returned);
    }
  }
};

template <class Return, class... Arguments>
struct signature_of {
  using type = signature<Return, false, std::decay_t<Arguments>...>;
};
template <class Return, class... Arguments>
struct signature_of<Return, const rpc_request&, Arguments...> {
  using type = signature<Return, true, std::decay_t<Arguments>...>;
};

template <class Function>
struct callable : callable<decltype(&Function::operator())> {};
template <class Return, class... Arguments>
struct callable<Return (*)(Arguments...)> : signature_of<Return, Arguments...> {};
template <class Return, class Class, class... Arguments>
struct callable<Return (Class::*)(Arguments...) const> : signature_of<Return, Arguments...> {};
template <class Return, class Class, class... Arguments>
struct callable<Return (Class::*)(Arguments...) const noexcept> : signature_of<Return, Arguments...> {};
template <class Return, class... Arguments>
struct callable<Return (*)(Arguments...) noexcept> : signature_of<Return, Arguments...> {};

/// A string as it travels; everything else is itself.
template <class T>
using sent = std::conditional_t<std::is_convertible_v<const T&, std::string_view>, std::string, std::decay_t<T>>;

template <class... Arguments>
std::string packed(const Arguments&... arguments) {
  writer out;
  (codec<sent<Arguments>>::write(out, arguments), ...);
  return out.take();
}

template <class T>
result<T> unpacked(std::string_view bytes, std::string_view handler) {
  if constexpr (std::is_void_v<T>) {
    static_cast<void>(handler);
    if (bytes.empty()) return {};
  } else {
    T value{};
    reader in(bytes);
    if (codec<T>::read(in, value) && in.left() == 0) return value;
  }
  return make_error(status::rpc_malformed, "the answer of " + std::string(handler) + " is not of the type that was asked for");
}

/// An error of a call; a handler that could not read its arguments has a status of its own.
inline error call_error(error failure) {
  if (failure.code() == status::rpc_handler_failed && failure.cause().compare(0, malformed_words.size(), malformed_words) == 0)
    return make_error(status::rpc_malformed, failure.message());
  return failure;
}

inline void call_handler(void* user_data, const rdzv_rpc_request* asked, rdzv_rpc_responder* back) {
  const passing guard;
  rpc_responder responder(back);
#if defined(__cpp_exceptions)
  try {
#endif
    (*static_cast<const rpc_function*>(user_data))(rpc_request(asked), responder);
#if defined(__cpp_exceptions)
  } catch (const std::exception& thrown) {
    // Who threw may have answered before, or given the responder away.
    if (responder) std::move(responder).fail(thrown.what());
  } catch (...) {
    if (responder) std::move(responder).fail("it threw something that is no std::exception");
  }
#endif
}

inline void delete_handler(void* user_data) {
  pass();
  delete static_cast<rpc_function*>(user_data);
}

/// A typed function as one of bytes.
template <class Function>
rpc_function handler_of(Function function) {
  return [function = std::move(function)](const rpc_request& request, rpc_responder& responder) {
    callable<Function>::type::run(function, request, responder);
  };
}

}  // namespace detail

/// Handlers by their names, for workers to be made with.
class rpc_handlers {
 public:
  static result<rpc_handlers> create() {
    rdzv_rpc_handlers* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_handlers_new, &made)) return std::move(*failure);
    return rpc_handlers(made);
  }

  /// A function of typed arguments; the first may be a `const rpc_request&`. It may be called by several threads at a time.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    return on_bytes(name, detail::handler_of(std::move(function)), run);
  }

  /// A function of bytes, which may answer later.
  result<void> on_bytes(std::string_view name, rpc_function function, rpc_run run = rpc_run::pooled) {
    return add([&](auto... arguments) { return detail::call(rdzv_rpc_handlers_add, handle_.get(), arguments...); }, name,
               std::move(function), run);
  }

  rdzv_rpc_handlers* c_handle() const noexcept { return handle_.get(); }
  rdzv_rpc_handlers* release() noexcept { return handle_.release(); }

 private:
  friend class rpc;
  template <class Call>
  static result<void> add(Call call, std::string_view name, rpc_function function, rpc_run run) {
    const bool is_there = static_cast<bool>(function);
    auto owned = std::make_unique<rpc_function>(std::move(function));
    detail::pass();
    auto outcome = call(detail::bytes(name), name.size(), static_cast<std::int32_t>(run),
                        is_there ? &detail::call_handler : nullptr, static_cast<void*>(owned.get()),
                        &detail::delete_handler);
    if (outcome) static_cast<void>(owned.release());
    return outcome;
  }

  explicit rpc_handlers(rdzv_rpc_handlers* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rpc_handlers, rdzv_rpc_handlers_free> handle_;
};

/// Whom a call is for: a name or a number.
class rpc_callee {
 public:
  rpc_callee(const char* name) noexcept : name_(name), is_named_(true) {}
  rpc_callee(std::string_view name) noexcept : name_(name), is_named_(true) {}
  rpc_callee(const std::string& name) noexcept : name_(name), is_named_(true) {}
  rpc_callee(int id) noexcept : id_(id) {}
  rpc_callee(std::uint16_t id) noexcept : id_(id) {}

  void fill(rdzv_rpc_call_spec& call) const noexcept {
    static const std::uint8_t nothing = 0;
    call.callee_id = id_;
    // An empty name is one that nobody has, not a number.
    call.callee = !is_named_ ? nullptr : name_.empty() ? &nothing : detail::bytes(name_);
    call.callee_len = name_.size();
  }

 private:
  std::string_view name_;
  std::int32_t id_ = -1;
  bool is_named_ = false;
};

namespace detail {

/// The bytes of a call and the struct that names them.
class outgoing_call {
 public:
  outgoing_call(const rpc_callee& callee, std::string_view handler, std::string payload,
                std::chrono::milliseconds timeout)
      : payload_(std::move(payload)) {
    call_.struct_size = sizeof call_;
    callee.fill(call_);
    call_.handler = bytes(handler);
    call_.handler_len = handler.size();
    call_.timeout_ms = count(timeout);
    if (payload_.size() < lent_size_min) {
      call_.payload = bytes(payload_);
      call_.payload_len = payload_.size();
    } else {
      auto* owned = new std::string(std::move(payload_));
      call_.payload = bytes(*owned);
      call_.payload_len = owned->size();
      call_.release = delete_string;
      call_.user_data = owned;
    }
  }
  outgoing_call(const outgoing_call&) = delete;
  outgoing_call& operator=(const outgoing_call&) = delete;
  const rdzv_rpc_call_spec* get() const noexcept { return &call_; }

 private:
  std::string payload_;
  rdzv_rpc_call_spec call_{};
};

/// What is told when a call has ended.
using done_function = std::function<void(result<std::string_view>)>;

inline void call_done(void* user_data, rdzv_status code, const std::uint8_t* data, std::size_t size,
                      const rdzv_error* failure) {
  const passing guard;
  const std::unique_ptr<done_function> done(static_cast<done_function*>(user_data));
#if defined(__cpp_exceptions)
  try {
#endif
    if (code == RDZV_OK) {
      (*done)(text(data, size));
    } else {
      const std::string words = rdzv_error_message(failure), cause = rdzv_error_cause(failure);
      const bool is_malformed = cause.compare(0, malformed_words.size(), malformed_words) == 0;
      (*done)(make_error(is_malformed ? status::rpc_malformed : static_cast<status>(code), words));
    }
#if defined(__cpp_exceptions)
  } catch (...) {
  }
#endif
}

}  // namespace detail

/// A call under way; `T` is what its handler answers. Destroyed before it has ended, it is cancelled.
template <class T>
class rpc_future {
 public:
  rpc_future(rdzv_rpc_future* made, std::string handler) noexcept : handle_(made), handler_(std::move(handler)) {}

  /// Whether it has ended: then `get` does not wait.
  bool is_ready() const { return rdzv_rpc_future_is_ready(handle_.get()) != 0; }
  /// Waits as long as the call may take. Once.
  result<T> get() {
    auto ended = wait(default_timeout);
    if (!ended.has_value()) return std::move(ended).error();
    if (!*ended) return detail::make_error(status::timed_out, handler_ + " has not answered");
    return take();
  }
  /// Waits so long; whether it has ended. Then `take` has the answer.
  result<bool> wait(std::chrono::milliseconds timeout) {
    if (answer_) return true;
    std::int32_t ended = 0;
    detail::buffer answer;
    const rdzv_rpc_future* future = handle_.get();
    if (auto failure =
            detail::failure_of(rdzv_rpc_future_wait, future, detail::count(timeout), &ended, answer.get()))
      return detail::call_error(std::move(*failure));
    if (ended != 0) answer_ = std::move(answer);
    return ended != 0;
  }
  /// The answer, after `wait` has told true.
  result<T> take() {
    if (!answer_) return detail::make_error(status::invalid_argument, "the call has not ended");
    const detail::buffer answer = std::move(*answer_);
    answer_.reset();
    const auto bytes = detail::text(rdzv_buffer_data(answer.get()), rdzv_buffer_len(answer.get()));
    return detail::unpacked<T>(bytes, handler_);
  }
  /// Ends it, from any thread: whoever waits gets `status::cancelled`.
  void cancel() const { rdzv_rpc_future_cancel(handle_.get()); }

 private:
  detail::handle<rdzv_rpc_future, rdzv_rpc_future_free> handle_;
  std::string handler_;
  std::optional<detail::buffer> answer_;
};

/// How a worker is set up.
struct rpc_options {
  /// Empty: `tcp`.
  std::string backend = {};
  /// How long a call may take; 0: as long as it likes.
  std::chrono::milliseconds rpc_timeout{60000};
  /// How the group meets.
  std::string init_method = "env://";
  /// Of the backend's own, as texts.
  std::vector<std::pair<std::string, std::string>> own = {};
  /// What the environment says (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`): the library never reads it.
  std::vector<std::pair<std::string, std::string>> variables = {};
  /// How long joining may take, and leaving; 0: as long as a call.
  std::chrono::milliseconds membership_timeout{0};
  std::int64_t worker_threads = 16;
  /// Where the worker takes calls; empty: the address by which it reaches the store.
  std::string host = {};
  /// Where the worker that hosts the store listens; empty: as the URL says.
  std::string listen_host = {};
  std::optional<std::vector<std::string>> transports = {};
  std::optional<std::vector<std::string>> channels = {};
  /// For each callee: which device here is which there, such as {"cuda:0", "cuda:1"}.
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> device_maps = {};
  std::vector<std::string> devices = {};
  std::uint32_t device_count = 0;
  std::string device_kind = "cuda";
};

namespace detail {

using rpc_options_handle = handle<rdzv_rpc_options, rdzv_rpc_options_free>;

inline result<rpc_options_handle> c_options(const rpc_options& given, const rdzv_context* context) {
  const auto [names, values] = views_of_pairs(given.own);
  rdzv_rpc_options* made = nullptr;
  auto failure = failure_of(rdzv_rpc_options_new, context, given.backend.empty() ? nullptr : bytes(given.backend),
                            given.backend.size(), std::int64_t{given.rpc_timeout.count()}, bytes(given.init_method),
                            given.init_method.size(), names.data(), values.data(), names.size(), &made);
  if (failure) return std::move(*failure);
  rpc_options_handle owned(made);
  const auto set = [&](auto function, auto... arguments) {
    if (!failure) failure = failure_of(function, made, arguments...);
  };
  for (const auto& [name, value] : given.variables)
    set(rdzv_rpc_options_set_variable, bytes(name), name.size(), bytes(value), value.size());
  if (given.membership_timeout.count() != 0)
    set(rdzv_rpc_options_set_membership_timeout_ms, std::int64_t{given.membership_timeout.count()});
  set(rdzv_rpc_options_set_worker_threads, given.worker_threads);
  if (!given.host.empty()) set(rdzv_rpc_options_set_host, bytes(given.host), given.host.size());
  if (!given.listen_host.empty())
    set(rdzv_rpc_options_set_listen_host, bytes(given.listen_host), given.listen_host.size());
  if (given.transports) {
    const auto list = views(*given.transports);
    set(rdzv_rpc_options_set_transports, list.data(), list.size());
  }
  if (given.channels) {
    const auto list = views(*given.channels);
    set(rdzv_rpc_options_set_channels, list.data(), list.size());
  }
  for (const auto& [worker, pairs] : given.device_maps) {
    const auto [from, to] = views_of_pairs(pairs);
    set(rdzv_rpc_options_set_device_map, bytes(worker), worker.size(), from.data(), to.data(), from.size());
  }
  if (!given.devices.empty()) {
    const auto list = views(given.devices);
    set(rdzv_rpc_options_set_devices, list.data(), list.size());
  }
  set(rdzv_rpc_options_set_device_count, given.device_count, bytes(given.device_kind), given.device_kind.size());
  if (failure) return std::move(*failure);
  return owned;
}

}  // namespace detail

/// A worker of a group; its address where that is known.
struct rpc_worker_info {
  std::string name;
  std::uint16_t id = 0;
  std::string address = {};
};

enum class rpc_event_kind : std::int32_t {
  joined = RDZV_RPC_EVENT_JOINED,
  left = RDZV_RPC_EVENT_LEFT,
  died = RDZV_RPC_EVENT_DIED,
  /// This worker is of its group no more.
  over = RDZV_RPC_EVENT_OVER,
};

/// What happened to a group.
struct rpc_event {
  rpc_event_kind kind;
  /// Of the worker that it is about.
  std::string name;
  std::int32_t id;
  /// What is known of a death.
  std::string why;
};

enum class rpc_shutdown : std::int32_t {
  /// Calls come to their ends, and the others hear of it.
  graceful = RDZV_RPC_GRACEFUL,
  /// At once and without a word.
  abrupt = RDZV_RPC_ABRUPT,
};

namespace detail {

inline std::vector<rpc_worker_info> workers(const rdzv_rpc_workers* list) {
  std::vector<rpc_worker_info> all;
  for (std::size_t i = 0, count = rdzv_rpc_workers_count(list); i < count; ++i) {
    std::size_t name_size = 0, address_size = 0;
    const std::uint8_t* name = rdzv_rpc_workers_name(list, i, &name_size);
    const std::uint8_t* address = rdzv_rpc_workers_address(list, i, &address_size);
    all.push_back({std::string(text(name, name_size)), static_cast<std::uint16_t>(rdzv_rpc_workers_id(list, i)),
                   std::string(text(address, address_size))});
  }
  return all;
}

using workers_handle = handle<rdzv_rpc_workers, rdzv_rpc_workers_free>;

}  // namespace detail

/// A worker of an RPC group. Any thread may use it, several at a time. Its destructor ends it abruptly, unless it was
/// shut down; it must not run while others use it, nor in a handler.
class rpc {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Becomes a worker of the group that meets as the options say, and returns once it is one. `rank` -1: the URL or the
  /// variables say it; `world_size` -1: workers come and go. A context has one worker at a time.
  static result<rpc> init(std::string_view name, std::int32_t rank, std::int32_t world_size, const rpc_options& options,
                          const rpc_handlers& handlers, const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    rdzv_rpc* made = nullptr;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    if (auto failure = detail::failure_of(rdzv_rpc_init, context, detail::bytes(name), name.size(), rank, world_size,
                                          given, answering, &made))
      return std::move(*failure);
    return rpc(made);
  }

  /// The same over a store that is there already; give each group a prefix of its own.
  static result<rpc> init_over(const store& over, std::string_view name, std::uint16_t rank, std::int32_t world_size,
                               const rpc_options& options, const rpc_handlers& handlers,
                               const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    rdzv_rpc* made = nullptr;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    if (auto failure = detail::failure_of(rdzv_rpc_init_over_store, context, over.c_handle(), detail::bytes(name),
                                          name.size(), std::int32_t{rank}, world_size, given, answering, &made))
      return std::move(*failure);
    return rpc(made);
  }

  /// Calls a handler with typed arguments, and waits for its answer, for the options' time.
  template <class Return = void, class... Arguments>
  result<Return> call(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) const {
    return call_within<Return>(default_timeout, callee, handler, arguments...);
  }
  /// The same, for so long.
  template <class Return = void, class... Arguments>
  result<Return> call_within(milliseconds timeout, const rpc_callee& callee, std::string_view handler,
                             const Arguments&... arguments) const {
    detail::buffer answer;
    if (auto failure = call_into(answer, callee, handler, detail::packed(arguments...), timeout))
      return std::move(*failure);
    return detail::unpacked<Return>(detail::text(rdzv_buffer_data(answer.get()), rdzv_buffer_len(answer.get())),
                                    handler);
  }
  /// Calls a handler of bytes. Long payloads are not copied.
  result<std::string> call_bytes(const rpc_callee& callee, std::string_view handler, std::string payload,
                                 milliseconds timeout = default_timeout) const {
    detail::buffer answer;
    if (auto failure = call_into(answer, callee, handler, std::move(payload), timeout)) return std::move(*failure);
    return answer.str();
  }

  /// Calls, and does not wait.
  template <class Return = void, class... Arguments>
  result<rpc_future<Return>> start(const rpc_callee& callee, std::string_view handler,
                                   const Arguments&... arguments) const {
    return start_within<Return>(default_timeout, callee, handler, arguments...);
  }
  template <class Return = void, class... Arguments>
  result<rpc_future<Return>> start_within(milliseconds timeout, const rpc_callee& callee, std::string_view handler,
                                          const Arguments&... arguments) const {
    const detail::outgoing_call call(callee, handler, detail::packed(arguments...), timeout);
    rdzv_rpc_future* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_start_call, c_handle(), call.get(), &made))
      return std::move(*failure);
    return rpc_future<Return>(made, std::string(handler));
  }

  /// Calls, and has `done` told a `result<Return>`, once, on a thread of the library's; it must not block. What it throws
  /// is dropped. When this fails, it hears nothing.
  template <class Return = void, class Done, class... Arguments>
  result<void> call_then(Done done, const rpc_callee& callee, std::string_view handler,
                         const Arguments&... arguments) const {
    const detail::outgoing_call call(callee, handler, detail::packed(arguments...), default_timeout);
    auto owned = std::make_unique<detail::done_function>(
        [done = std::make_shared<Done>(std::move(done)), name = std::string(handler)](result<std::string_view> answer) {
          if (!answer) return (*done)(result<Return>(std::move(answer).error()));
          (*done)(detail::unpacked<Return>(*answer, name));
        });
    detail::pass();
    auto outcome = detail::call(rdzv_rpc_call_with, c_handle(), call.get(), &detail::call_done,
                                static_cast<void*>(owned.get()));
    if (outcome) static_cast<void>(owned.release());
    return outcome;
  }

  /// Calls what nobody answers; nobody hears whether it arrived.
  template <class... Arguments>
  result<void> notify(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) const {
    const detail::outgoing_call call(callee, handler, detail::packed(arguments...), default_timeout);
    return detail::call(rdzv_rpc_notify, c_handle(), call.get());
  }

  std::string name() const { return detail::lent(rdzv_rpc_name, c_handle()); }
  std::uint16_t id() const { return static_cast<std::uint16_t>(rdzv_rpc_id(handle_.get())); }
  /// Where it takes calls.
  std::string address() const { return detail::lent(rdzv_rpc_address, c_handle()); }
  /// All workers of the group.
  result<std::vector<rpc_worker_info>> workers() const {
    rdzv_rpc_workers* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_list_workers, c_handle(), &made)) return std::move(*failure);
    const detail::workers_handle list(made);
    return detail::workers(made);
  }
  result<std::uint16_t> id_of(std::string_view name) const {
    std::uint16_t id = 0;
    if (auto failure = detail::failure_of(rdzv_rpc_worker_id, c_handle(), detail::bytes(name), name.size(), &id))
      return std::move(*failure);
    return id;
  }
  result<std::string> name_of(std::uint16_t id) const {
    detail::buffer name;
    if (auto failure = detail::failure_of(rdzv_rpc_worker_name, c_handle(), id, name.get())) return std::move(*failure);
    return name.str();
  }

  /// Adds a handler while others may call already.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    return rpc_handlers::add(
        [&](auto... arguments) { return detail::call(rdzv_rpc_add_handler, c_handle(), arguments...); }, name,
        detail::handler_of(std::move(function)), run);
  }
  /// Takes a handler out; whether there was one.
  result<bool> remove(std::string_view name) {
    std::int32_t found = 0;
    if (auto failure = detail::failure_of(rdzv_rpc_remove_handler, c_handle(), detail::bytes(name), name.size(), &found))
      return std::move(*failure);
    return found != 0;
  }

  /// The next thing that happens to the group; nothing when nothing did in time.
  result<std::optional<rpc_event>> next_event(milliseconds timeout = default_timeout) const {
    rdzv_rpc_event event{};
    event.struct_size = sizeof event;
    detail::buffer name, why;
    if (auto failure = detail::failure_of(rdzv_rpc_next_event, c_handle(), detail::count(timeout), &event, name.get(),
                                          why.get()))
      return std::move(*failure);
    if (event.kind == RDZV_RPC_EVENT_NONE) return std::optional<rpc_event>();
    return std::optional<rpc_event>(
        rpc_event{static_cast<rpc_event_kind>(event.kind), name.str(), event.id, why.str()});
  }

  /// Ends the worker; it has ended when this returns, whatever it returns.
  result<void> shutdown(rpc_shutdown how = rpc_shutdown::graceful) const {
    return detail::call(rdzv_rpc_shutdown, c_handle(), static_cast<std::int32_t>(how));
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static rpc adopt(rdzv_rpc* handle) noexcept { return rpc(handle); }
  const rdzv_rpc* c_handle() const noexcept { return handle_.get(); }
  rdzv_rpc* release() noexcept { return handle_.release(); }

 private:
  explicit rpc(rdzv_rpc* made) noexcept : handle_(made) {}

  std::optional<error> call_into(detail::buffer& answer, const rpc_callee& callee, std::string_view handler,
                                 std::string payload, milliseconds timeout) const {
    const detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    auto failure = detail::failure_of(rdzv_rpc_call, c_handle(), call.get(), answer.get());
    if (failure) return detail::call_error(std::move(*failure));
    return std::nullopt;
  }

  detail::handle<rdzv_rpc, rdzv_rpc_free> handle_;
};

enum class rpc_sight_kind : std::int32_t {
  static_group = RDZV_RPC_SIGHT_STATIC,
  dynamic_group = RDZV_RPC_SIGHT_DYNAMIC,
  came = RDZV_RPC_SIGHT_CAME,
  went = RDZV_RPC_SIGHT_WENT,
};

/// What an observer saw.
struct rpc_sight {
  rpc_sight_kind kind;
  std::string name;
  std::int32_t id;
  std::string address;
};

/// Sees who is in a group, PyTorch's or ours, from its keys alone.
class rpc_observer {
 public:
  /// Looks at the group whose keys are those of `over`, such as those beneath `rpc_prefix_0` of a job's store.
  static result<rpc_observer> create(const store& over) {
    rdzv_rpc_observer* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_observer_new, over.c_handle(), &made)) return std::move(*failure);
    return rpc_observer(made);
  }
  /// The next thing that is seen; nothing when there was nothing new in time.
  result<std::optional<rpc_sight>> next(std::chrono::milliseconds timeout = default_timeout) const {
    rdzv_rpc_sight sight{};
    sight.struct_size = sizeof sight;
    detail::buffer name, address;
    const rdzv_rpc_observer* observer = handle_.get();
    if (auto failure = detail::failure_of(rdzv_rpc_observer_next, observer, detail::count(timeout), &sight, name.get(),
                                          address.get()))
      return std::move(*failure);
    if (sight.kind == RDZV_RPC_SIGHT_NONE) return std::optional<rpc_sight>();
    return std::optional<rpc_sight>(
        rpc_sight{static_cast<rpc_sight_kind>(sight.kind), name.str(), sight.id, address.str()});
  }
  /// Who is there, as far as was seen.
  result<std::vector<rpc_worker_info>> seen() const {
    rdzv_rpc_workers* made = nullptr;
    const rdzv_rpc_observer* observer = handle_.get();
    if (auto failure = detail::failure_of(rdzv_rpc_observer_list, observer, &made)) return std::move(*failure);
    const detail::workers_handle list(made);
    return detail::workers(made);
  }

 private:
  explicit rpc_observer(rdzv_rpc_observer* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rpc_observer, rdzv_rpc_observer_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_RPC_HPP
