// rendezvous/rpc_handlers.hpp: handlers of a worker of an RPC group, for C++17 and later. rendezvous.hpp includes it.
//
// A handler is a function: its arguments are read from the request, and what it returns is the response. What it
// throws, or the error of a `result` that it returns, fails the call at the caller, in its own words.
#ifndef RENDEZVOUS_RPC_HANDLERS_HPP
#define RENDEZVOUS_RPC_HANDLERS_HPP

#include "rpc_codec.hpp"
#include "store.hpp"
#include "rpc.h"

#include <tuple>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Bytes of a request or a response that are yours, as they were received.
using rpc_payload = detail::buffer;

/// Bytes in place of typed values. As the only argument of a call they are its whole payload, which is not copied if it
/// is long. As the type of a response they stand for its bytes, in a string. See `rpc_payload` for a response that is
/// not copied.
struct rpc_bytes {
  std::string bytes = {};
};

namespace detail {

/// From this size on, the library borrows bytes instead of copying them.
inline constexpr std::size_t borrowed_size_min = std::size_t{64} << 10;

inline std::string_view view_of(const std::string& bytes) { return bytes; }
inline std::string_view view_of(const rpc_payload& bytes) { return bytes.bytes(); }

/// A time that is negative where there is no limit.
inline std::optional<std::chrono::milliseconds> limited(std::int64_t time_ms) {
  return time_ms < 0 ? std::nullopt : std::optional<std::chrono::milliseconds>(time_ms);
}

}  // namespace detail

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
  std::optional<std::chrono::milliseconds> time_left() const { return detail::limited(info().time_left_ms); }

 private:
  rdzv_rpc_request_info info() const {
    auto info = detail::sized<rdzv_rpc_request_info>();
    rdzv_rpc_request_get_info(request_, &info, nullptr);
    return info;
  }
  const rdzv_rpc_request* request_;
};

/// Sends one response, from any thread and at any time. Destroyed without one, it fails the call.
class rpc_responder : public detail::owner<rpc_responder, rdzv_rpc_responder, rdzv_rpc_responder_free> {
 public:
  using owner::owner;
  /// Long responses are not copied.
  void send(std::string bytes) && {
    if (bytes.size() >= detail::borrowed_size_min) return lend(std::move(bytes));
    const detail::passing guard;
    rdzv_rpc_responder_send(release(), detail::bytes(bytes), bytes.size(), nullptr, nullptr, nullptr);
  }
  /// Sends bytes that are not copied, such as those of a request.
  void send_payload(rpc_payload bytes) && { lend(std::move(bytes)); }
  /// Sends a value, and its type.
  template <class T>
  void send_value(const T& value) && {
    std::move(*this).send(detail::typed_payload(value));
  }
  /// Fails the call. One that a backend of yours makes fails with this status. The caller of a handler gets the
  /// message, and of the statuses `status::rpc_malformed` or else `status::rpc_handler_failed`.
  void fail(std::string_view message, status code = status::rpc_handler_failed) && {
    const detail::passing guard;
    rdzv_rpc_responder_fail(release(), static_cast<rdzv_status>(code), detail::bytes(message), message.size(), nullptr);
  }
  /// Whether it is still here: not after a response, nor once it was moved.
  explicit operator bool() const noexcept { return static_cast<bool>(handle_); }
  /// Whether the caller still waits: not once the call was cancelled or its time is up. For code that has much to do
  /// for a response.
  bool is_wanted() const { return rdzv_rpc_responder_is_wanted(c_handle()) != 0; }

 private:
  template <class Bytes>
  void lend(Bytes bytes) {
    // Where there is no memory, the responder stays, to fail the call.
    auto owned = std::make_unique<Bytes>(std::move(bytes));
    const std::string_view view = detail::view_of(*owned);
    const detail::passing guard;
    rdzv_rpc_responder_send(release(), detail::bytes(view), view.size(), detail::destroy<Bytes>, owned.release(),
                            nullptr);
  }
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
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<result<T>> = true;

/// The arguments of a handler, which are read from a request of the same types.
template <class Return, bool WantsRequest, class... Arguments>
struct signature {
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
    const auto read_all = [&](auto&... argument) {
      return ((codec<std::decay_t<decltype(argument)>>::read(in, argument) && ++read > 0) && ...);
    };
    const bool are_read = std::apply(read_all, arguments);
    if (!are_read || in.left() > 0) {
      const std::string count = std::to_string(sizeof...(Arguments));
      const std::string message =
          are_read ? std::to_string(in.left()) + " bytes follow its " + count + " arguments"
                   : "argument " + std::to_string(read + 1) + " of " + count + " is cut off or of no value of its type";
      return std::move(responder).fail("the request cannot be read: " + request.handler() + ": " + message,
                                       status::rpc_malformed);
    }
    const auto invoke_with = [&](auto&... argument) -> Return {
      if constexpr (WantsRequest) {
        return function(request, std::move(argument)...);
      } else {
        return function(std::move(argument)...);
      }
    };
    const auto invoke = [&]() -> Return { return std::apply(invoke_with, arguments); };
    const auto respond = [&](const auto&... value) { std::move(responder).send(typed_payload(value...)); };
    if constexpr (is_result<Return>) {
      auto returned = invoke();
      if (!returned.has_value()) {
        // A handler that cannot decode its request says so with its status.
        const bool is_malformed = returned.error().code() == status::rpc_malformed;
        return std::move(responder).fail(returned.error().message(),
                                         is_malformed ? status::rpc_malformed : status::rpc_handler_failed);
      }
      if constexpr (std::is_same_v<Return, result<void>>) {
        respond();
      } else {
        respond(*returned);
      }
    } else if constexpr (std::is_void_v<Return>) {
      invoke();
      respond();
    } else {
      respond(invoke());
    }
  }
};

/// The signature of a function, or of an object with one call operator, as `std::function` has it.
template <class Function>
struct signature_of {};
template <class Return, class... Arguments>
struct signature_of<std::function<Return(Arguments...)>> : signature<Return, false, std::decay_t<Arguments>...> {};
template <class Return, class... Arguments>
struct signature_of<std::function<Return(const rpc_request&, Arguments...)>>
    : signature<Return, true, std::decay_t<Arguments>...> {};
template <class Function, class = void>
inline constexpr bool has_signature = false;
template <class Function>
inline constexpr bool has_signature<Function, std::void_t<decltype(std::function(std::declval<Function>()))>> = true;

template <class Function>
void run_typed(Function& function, const rpc_request& request, rpc_responder& responder) {
  signature_of<decltype(std::function(std::declval<Function>()))>::run(function, request, responder);
}

/// Runs a handler with code that calls it. What it throws fails the call.
template <class Run, class Function>
void run_handler(Run run, Function& function, const rpc_request& request, rpc_responder& responder) {
  // Code that threw may have responded before, or given the responder away.
  const auto on_throw = [&](const char* message, status) {
    if (responder) std::move(responder).fail(message);
  };
  guarded([&] { run(function, request, responder); }, on_throw);
}

inline void call_handler(void* user_data, const rdzv_rpc_request* asked, rdzv_rpc_responder* c_responder) {
  const auto run = [](const rpc_function& function, auto&... arguments) { function(arguments...); };
  auto responder = rpc_responder::adopt(c_responder);
  run_handler(run, *static_cast<rpc_function*>(user_data), rpc_request(asked), responder);
}

/// Any handler as one of bytes. What can only be moved lives behind a pointer.
template <class Function>
rpc_function handler_of(Function function) {
  constexpr bool takes_bytes = std::is_invocable_v<Function&, const rpc_request&, rpc_responder&>;
  constexpr bool is_handler = takes_bytes || has_signature<Function>;
  static_assert(is_handler || std::is_null_pointer_v<Function>,
                "a handler is a function, or an object with one call operator that is no template and not overloaded: "
                "its parameters say what is read from a request");
  if constexpr (std::is_null_pointer_v<Function> || std::is_same_v<Function, rpc_function>) {
    return function;
  } else if constexpr (is_handler) {
    if constexpr (std::is_pointer_v<Function>)
      if (function == nullptr) return nullptr;
    return [held = std::make_shared<Function>(std::move(function))](const rpc_request& request,
                                                                    rpc_responder& responder) {
      if constexpr (takes_bytes) {
        (*held)(request, responder);
      } else {
        run_typed(*held, request, responder);
      }
    };
  }
}

/// Adds a handler to what `to` stands for.
template <class Add, class To, class Function>
result<void> add_handler(Add add, To* to, std::string_view name, Function function, rpc_run run, const char* callers) {
  auto owned = std::make_unique<rpc_function>(handler_of(std::move(function)));
  if (!*owned)
    return make_error(status::invalid_argument, "handler " + std::string(name) + ": its function is empty");
  void* const user_data = owned.get();
  return give(std::move(owned), add, to, name, run, callers, &call_handler, user_data, &destroy<rpc_function>);
}

}  // namespace detail

/// Handlers by their names, for workers to be made with.
class rpc_handlers : public detail::owner<rpc_handlers, rdzv_rpc_handlers, rdzv_rpc_handlers_free> {
 public:
  using owner::owner;
  static result<rpc_handlers> create() { return adopt(rdzv_rpc_handlers_new()); }

  /// A function of typed arguments, the first of which may be a `const rpc_request&`, or one of bytes: it is called
  /// with `(const rpc_request&, rpc_responder&)` and may respond later. It may own what can only be moved, and be
  /// `mutable`; but several threads may call it at a time. `callers` may call it: names, separated by commas, of
  /// which one that ends with `*` stands for all that begin so; nullptr: every member of the group.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled,
                  const char* callers = nullptr) {
    return detail::add_handler(rdzv_rpc_handlers_add, c_handle(), name, std::move(function), run, callers);
  }
  /// A name whose requests are events of the loop that the worker is made for (`loop_rpc`).
  result<void> on_loop(std::string_view name, const char* callers = nullptr) {
    return detail::call(rdzv_rpc_handlers_add, c_handle(), name, RDZV_RPC_LOOP, callers, nullptr, nullptr, nullptr);
  }
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RPC_HANDLERS_HPP
