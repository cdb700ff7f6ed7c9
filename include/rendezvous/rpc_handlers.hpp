// rendezvous/rpc_handlers.hpp: handlers of a worker of an RPC group, for C++17 and later. rendezvous.hpp includes it.
//
// A handler is a function: its arguments are read from the request, and what it returns is the response. What it throws,
// or the error of a `result` that it returns, fails the call at the caller, in its own words.
#ifndef RENDEZVOUS_RPC_HANDLERS_HPP
#define RENDEZVOUS_RPC_HANDLERS_HPP

#include "rpc_codec.hpp"
#include "store.hpp"
#include "rpc.h"

#include <atomic>
#include <tuple>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

class rpc;

/// Bytes of a request or a response that are yours, as they were received.
class rpc_payload {
 public:
  rpc_payload() = default;
  explicit rpc_payload(detail::buffer bytes) noexcept : buffer_(std::move(bytes)) {}
  std::string_view bytes() const {
    return detail::text(rdzv_buffer_data(buffer_.get()), rdzv_buffer_len(buffer_.get()));
  }
  rdzv_buffer* c_handle() const noexcept { return buffer_.get(); }

 private:
  detail::buffer buffer_;
};

/// What a handler is asked. Valid until the handler returns.
class rpc_request {
 public:
  explicit rpc_request(const rdzv_rpc_request* request) noexcept : request_(request) {}
  std::string caller() const { return std::string(detail::text(info().caller)); }
  std::uint16_t caller_id() const { return static_cast<std::uint16_t>(info().caller_id); }
  std::string handler() const { return std::string(detail::text(info().handler)); }
  std::string_view bytes() const { return detail::text(info().payload); }
  /// Moves the bytes out without a copy, to respond later. Views of them stay valid with the returned payload. A second
  /// call returns an empty payload.
  rpc_payload take() const {
    rpc_payload taken;
    rdzv_rpc_request_take(request_, taken.c_handle(), nullptr);
    return taken;
  }
  bool response_is_wanted() const { return info().response_is_wanted != 0; }
  /// How long the caller waits; nothing: as long as it takes.
  std::optional<std::chrono::milliseconds> time_left() const {
    const std::int64_t left = info().time_left_ms;
    if (left < 0) return std::nullopt;
    return std::chrono::milliseconds(left);
  }

 private:
  rdzv_rpc_request_info info() const {
    rdzv_rpc_request_info info{};
    info.struct_size = sizeof info;
    rdzv_rpc_request_get_info(request_, &info, nullptr);
    return info;
  }
  const rdzv_rpc_request* request_;
};

namespace detail {

/// From this size on, the library borrows bytes instead of copying them.
inline constexpr std::size_t borrowed_size_min = std::size_t{64} << 10;

inline void delete_string(void* owned) { delete static_cast<std::string*>(owned); }

/// User code that moves between threads of the library. A thread sanitizer does not see into the library, so each pass
/// synchronizes with all earlier ones.
inline void pass() noexcept {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<std::uint32_t> passes{0};
  passes.fetch_add(1, std::memory_order_acq_rel);
#endif
}

inline void delete_payload(void* owned) {
  pass();
  delete static_cast<rpc_payload*>(owned);
}

struct passing {
  passing() noexcept { pass(); }
  passing(const passing&) = delete;
  passing& operator=(const passing&) = delete;
  ~passing() { pass(); }
};

inline error make_error(status code, std::string_view message) {
  const auto number = static_cast<rdzv_status>(code);
  return error(number, rdzv_error_new(number, bytes(message), message.size()));
}

}  // namespace detail

/// Sends one response, from any thread and at any time. Destroyed without one, it tells the caller so.
class rpc_responder {
 public:
  explicit rpc_responder(rdzv_rpc_responder* responder) noexcept : responder_(responder) {}
  /// Long responses are not copied.
  void send(std::string bytes) && {
    const detail::passing guard;
    if (bytes.size() < detail::borrowed_size_min) {
      rdzv_rpc_responder_send(responder_.release(), detail::bytes(bytes), bytes.size(), nullptr, nullptr, nullptr);
      return;
    }
    // Where there is no memory, the responder stays, to tell so.
    auto* owned = std::make_unique<std::string>(std::move(bytes)).release();
    rdzv_rpc_responder_send(responder_.release(), detail::bytes(*owned), owned->size(), detail::delete_string, owned,
                              nullptr);
  }
  /// Sends bytes that are not copied, such as those of a request.
  void send_payload(rpc_payload bytes) && {
    const detail::passing guard;
    auto* owned = std::make_unique<rpc_payload>(std::move(bytes)).release();
    const std::string_view borrowed = owned->bytes();
    detail::pass();
    rdzv_rpc_responder_send(responder_.release(), detail::bytes(borrowed), borrowed.size(), detail::delete_payload, owned,
                              nullptr);
  }
  /// Sends a value, and its type.
  template <class T>
  void send_value(const T& value) && {
    std::move(*this).send(detail::typed_payload(value));
  }
  /// Fails the call. One that a backend of yours makes fails with this status. The caller of a handler gets the message,
  /// and of the statuses `status::rpc_malformed` or else `status::rpc_handler_failed`.
  void fail(std::string_view message, status code = status::rpc_handler_failed) && {
    const detail::passing guard;
    rdzv_rpc_responder_fail(responder_.release(), static_cast<rdzv_status>(code), detail::bytes(message),
                            message.size(), nullptr);
  }
  /// Whether it is still here: not after a response, nor once it was moved.
  explicit operator bool() const noexcept { return static_cast<bool>(responder_); }
  /// Whether the caller still waits: not once the call was cancelled or its time is up. For code that has much to do for
  /// a response.
  bool is_wanted() const { return rdzv_rpc_responder_is_wanted(responder_.get()) != 0; }
  rdzv_rpc_responder* release() noexcept { return responder_.release(); }

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

/// Handler of bytes. To respond later, move the responder out.
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

/// The arguments of a handler, which are read from a request of the same types.
template <class Return, bool WantsRequest, class... Arguments>
struct signature {
  using value = typename value_of_result<Return>::type;

  template <class Function>
  static void run(Function& function, const rpc_request& request, rpc_responder& responder) {
    constexpr std::string_view taken = types_of<Arguments...>::value;
    std::tuple<Arguments...> arguments;
    reader in(request.bytes());
    std::string_view types;
    const bool is_typed = read_types(in, types);
    if (!is_typed || types != taken) {
      const std::string message = "the types of the arguments do not match: " + request.handler() + " takes (" +
                                std::string(taken) + "), was called with " + described_types(is_typed, types);
      return std::move(responder).fail(message, status::rpc_malformed);
    }
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
      std::string message = "the request cannot be read: " + request.handler();
      message += are_read ? ": " + std::to_string(in.left()) + " bytes follow its " +
                              std::to_string(sizeof...(Arguments)) + " arguments"
                        : ": argument " + std::to_string(read + 1) + " of " + std::to_string(sizeof...(Arguments)) +
                              " is cut off or of no value of its type";
      return std::move(responder).fail(message, status::rpc_malformed);
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
      if (!returned.has_value()) {
        // A handler that cannot decode its request says so with its status.
        const error& failure = returned.error();
        const bool is_malformed = failure.code() == status::rpc_malformed;
        return std::move(responder).fail(failure.message(),
                                         is_malformed ? status::rpc_malformed : status::rpc_handler_failed);
      }
      if constexpr (std::is_void_v<value>) {
        std::move(responder).send(std::string());
      } else {
        std::move(responder).send_value(*returned);
      }
    } else if constexpr (std::is_void_v<value>) {
      invoke();
      std::move(responder).send(std::string());
    } else {
      const value returned = invoke();
      std::move(responder).send_value(returned);
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
template <class Return, class Class, class... Arguments>
struct callable<Return (Class::*)(Arguments...)> : signature_of<Return, Arguments...> {};
template <class Return, class Class, class... Arguments>
struct callable<Return (Class::*)(Arguments...) noexcept> : signature_of<Return, Arguments...> {};
template <class Return, class... Arguments>
struct callable<Return (*)(Arguments...) noexcept> : signature_of<Return, Arguments...> {};

/// Whether it is a function, or an object that can be called in one way.
template <class Function, class = void>
struct has_one_call : std::is_function<std::remove_pointer_t<Function>> {};
template <class Function>
struct has_one_call<Function, std::void_t<decltype(&Function::operator())>> : std::true_type {};

/// Runs a function of bytes; what it throws fails the call.
template <class Function>
void run_handler(const Function& function, const rpc_request& request, rpc_responder& responder) {
#if defined(__cpp_exceptions)
  try {
#endif
    function(request, responder);
#if defined(__cpp_exceptions)
  } catch (const std::exception& thrown) {
    // Code that threw may have responded before, or given the responder away.
    if (responder) std::move(responder).fail(thrown.what());
  } catch (...) {
    if (responder) std::move(responder).fail("it threw something that is no std::exception");
  }
#endif
}

inline void call_handler(void* user_data, const rdzv_rpc_request* asked, rdzv_rpc_responder* back) {
  const passing guard;
  rpc_responder responder(back);
  run_handler(*static_cast<const rpc_function*>(user_data), rpc_request(asked), responder);
}

inline void delete_handler(void* user_data) {
  pass();
  delete static_cast<rpc_function*>(user_data);
}

/// A typed function as one of bytes. What can only be moved lives behind a pointer.
template <class Function>
rpc_function handler_of(Function function) {
  static_assert(has_one_call<Function>::value,
                "a handler is a function, or an object with one call operator that is no template and not overloaded: "
                "its parameters say what is read from a request");
  if constexpr (has_one_call<Function>::value) {
    if constexpr (std::is_pointer_v<Function>)
      if (function == nullptr) return nullptr;
    return [held = std::make_shared<Function>(std::move(function))](const rpc_request& request,
                                                                    rpc_responder& responder) {
      callable<Function>::type::run(*held, request, responder);
    };
  }
}

/// A function of bytes, likewise.
template <class Function>
rpc_function bytes_handler_of(Function function) {
  constexpr bool is_callable = std::is_invocable_v<Function&, const rpc_request&, rpc_responder&>;
  constexpr bool may_be_none = std::is_null_pointer_v<Function> || std::is_pointer_v<Function> ||
                               std::is_same_v<Function, rpc_function>;
  static_assert(is_callable || may_be_none,
                "a handler of bytes is called with (const rdzv::rpc_request&, rdzv::rpc_responder&)");
  if constexpr (may_be_none) {
    return function;
  } else if constexpr (is_callable) {
    return [held = std::make_shared<Function>(std::move(function))](const rpc_request& request,
                                                                    rpc_responder& responder) {
      (*held)(request, responder);
    };
  }
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

  /// A function of typed arguments; the first may be a `const rpc_request&`. It may own what can only be moved, and be
  /// `mutable`; but several threads may call it at a time.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    return on_bytes(name, detail::handler_of(std::move(function)), run);
  }

  /// A function of bytes, called with `(const rpc_request&, rpc_responder&)`, which may respond later.
  template <class Function>
  result<void> on_bytes(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    const auto call = [&](auto... arguments) {
      return detail::call(rdzv_rpc_handlers_add, handle_.get(), arguments...);
    };
    return add(call, name, detail::bytes_handler_of(std::move(function)), run);
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static rpc_handlers adopt(rdzv_rpc_handlers* handle) noexcept { return rpc_handlers(handle); }

  /// A name whose requests are events of the loop that the worker is made for (`loop_rpc`).
  result<void> on_loop(std::string_view name) {
    return detail::call(rdzv_rpc_handlers_add, handle_.get(), detail::bytes(name), name.size(), RDZV_RPC_LOOP, nullptr,
                        static_cast<void*>(nullptr), nullptr);
  }

  rdzv_rpc_handlers* c_handle() const noexcept { return handle_.get(); }
  rdzv_rpc_handlers* release() noexcept { return handle_.release(); }

 private:
  friend class rpc;
  template <class Call>
  static result<void> add(Call call, std::string_view name, rpc_function function, rpc_run run) {
    if (!function)
      return detail::make_error(status::invalid_argument, "handler " + std::string(name) + ": its function is empty");
    auto owned = std::make_unique<rpc_function>(std::move(function));
    detail::pass();
    auto outcome = call(detail::bytes(name), name.size(), static_cast<std::int32_t>(run), &detail::call_handler,
                        static_cast<void*>(owned.get()), &detail::delete_handler);
    if (outcome) static_cast<void>(owned.release());
    return outcome;
  }

  explicit rpc_handlers(rdzv_rpc_handlers* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rpc_handlers, rdzv_rpc_handlers_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RPC_HANDLERS_HPP
