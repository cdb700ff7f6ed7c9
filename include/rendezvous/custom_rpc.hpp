// rendezvous/custom_rpc.hpp: RPC backends in code of yours, for C++17 and later. plugin.hpp includes it.
#ifndef RENDEZVOUS_CUSTOM_RPC_HPP
#define RENDEZVOUS_CUSTOM_RPC_HPP

#include "custom_rendezvous.hpp"
#include "rpc.hpp"
#include "plugin.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

class custom_rpc_worker;

/// The reply of an RPC backend of yours. Valid during the call only.
class rpc_reply : public plugin_reply {
 public:
  using plugin_reply::plugin_reply;
  /// One worker of the group.
  void add_worker(std::string_view name, std::uint16_t id) {
    rdzv_reply_add_worker(reply_, detail::bytes(name), name.size(), id);
  }
  /// What a backend makes. The library owns it.
  void set_worker(std::unique_ptr<custom_rpc_worker> made);
};

/// A call that a worker of yours is to make. Valid during the call only.
class rpc_outgoing_call {
 public:
  explicit rpc_outgoing_call(const rdzv_rpc_call_spec* call) noexcept : call_(call) {}
  /// Who is called; nothing: `callee_id` tells.
  std::optional<std::string_view> callee() const {
    if (call_->callee == nullptr) return std::nullopt;
    return detail::text(call_->callee, call_->callee_len);
  }
  std::int32_t callee_id() const noexcept { return call_->callee_id; }
  std::string_view handler() const { return detail::text(call_->handler, call_->handler_len); }
  std::string_view bytes() const { return detail::text(call_->payload, call_->payload_len); }
  /// How long it may take; nothing: as long as it likes.
  std::optional<std::chrono::milliseconds> timeout() const {
    if (call_->timeout_ms < 0) return std::nullopt;
    return std::chrono::milliseconds(call_->timeout_ms);
  }

 private:
  const rdzv_rpc_call_spec* call_;
};

/// A worker of a group, in code of yours. Called on the threads that call the worker, several at a time; what it throws is
/// an error of the call that asked.
class custom_rpc_worker {
 public:
  virtual ~custom_rpc_worker() = default;
  /// Begins a call, and does not wait for its end. `responder` is for what comes of it, from any thread: move it to where
  /// it is kept. It is empty for one-way calls. Once it has been moved the call has begun, whatever this returns.
  /// `rpc_responder::is_wanted` tells when the caller gives the call up. Not called once `shutdown` has returned.
  virtual status call(const rpc_outgoing_call& call, rpc_responder& responder) = 0;
  /// Replies each worker of the group.
  virtual status list_workers(rpc_reply& reply) = 0;
  /// Ends the worker, whatever it returns; may be called again. Afterwards the handlers that `new_worker` was given answer no
  /// more: `dispatch` fails with `status::rpc_no_member`.
  virtual status shutdown(rpc_shutdown how, rpc_reply& reply) = 0;
};

/// Who is to become a worker.
struct rpc_worker_request {
  std::string name;
  std::uint16_t id;
  /// How many workers a static group has; nothing for a dynamic one.
  std::optional<std::int32_t> world_size;
  /// Store in which the workers find each other; its prefix holds nothing else. The backend owns this handle.
  store shared;
  /// Handlers that other workers may call, for `dispatch`. The backend owns this handle.
  rpc_handlers handlers;
  /// Options of the worker; those that the program did not set have their defaults.
  rpc_options options;
};

/// An RPC backend in code of yours. Called on the threads that make a worker, several at a time; may block;
/// what it throws is an error of the call that asked.
class custom_rpc_backend {
 public:
  virtual ~custom_rpc_backend() = default;
  /// Makes a worker, which is of its group when this returns, and replies it. Refuses options that it does not know.
  virtual status new_worker(rpc_worker_request request, rpc_reply& reply) = 0;
};

namespace detail {

/// Receives the message of a failure where there is no reply object.
struct failure_message {
  std::string text = {};
  void set_message(std::string_view message) { text = message; }
};

inline rdzv_status begin_call(void* user_data, const rdzv_rpc_call_spec* asked, rdzv_rpc_responder* back) {
  const passing guard;
  rpc_responder responder(back);
  failure_message failure;
  const rdzv_status outcome = caught_into(failure, [&](failure_message&) {
    return static_cast<custom_rpc_worker*>(user_data)->call(rpc_outgoing_call(asked), responder);
  });
  // Whether the responder was moved decides who owns the call; a responder that was not moved answers with an error
  // when it is destroyed.
  if (outcome == RDZV_OK || (back != nullptr && !responder)) return RDZV_OK;
  if (responder && !failure.text.empty()) {
    std::move(responder).fail(failure.text, static_cast<status>(outcome));
    return RDZV_OK;
  }
  static_cast<void>(responder.release());
  return outcome;
}

inline rdzv_status list_workers(void* user_data, rdzv_reply* c_reply) {
  const passing guard;
  rpc_reply reply(c_reply);
  return caught_into(reply, [&](rpc_reply& into) {
    return static_cast<custom_rpc_worker*>(user_data)->list_workers(into);
  });
}

inline rdzv_status shut_down(void* user_data, std::int32_t how, rdzv_reply* c_reply) {
  const passing guard;
  rpc_reply reply(c_reply);
  return caught_into(reply, [&](rpc_reply& into) {
    return static_cast<custom_rpc_worker*>(user_data)->shutdown(static_cast<rpc_shutdown>(how), into);
  });
}

template <class T>
void destroy_passed(void* user_data) {
  pass();
  delete static_cast<T*>(user_data);
}

inline std::string copied(const char* text) { return text == nullptr ? std::string() : std::string(text); }

inline rpc_options options_of(const rdzv_rpc_options& given) {
  rpc_options all;
  all.backend = copied(given.backend);
  all.rpc_timeout = std::chrono::milliseconds(given.rpc_timeout_ms);
  all.membership_timeout = std::chrono::milliseconds(given.membership_timeout_ms);
  all.init_method = copied(given.init_method);
  all.worker_threads = given.worker_threads;
  all.host = copied(given.host);
  if (given.transports != nullptr) all.transports = strings(given.transports, given.transport_count);
  if (given.channels != nullptr) all.channels = strings(given.channels, given.channel_count);
  all.device_maps = device_maps(given.device_maps, given.device_map_count);
  all.devices = strings(given.devices, given.device_count);
  all.accelerator = copied(given.accelerator);
  all.accelerator_count = given.accelerator_count;
  for (std::size_t i = 0; i < given.extra_option_count; ++i)
    all.extra_options.emplace_back(given.extra_options[i].name, given.extra_options[i].value);
  return all;
}

/// The request with handles of the backend's own.
inline result<rpc_worker_request> kept_request(const rdzv_rpc_worker_request& asked) {
  rdzv_store* shared = nullptr;
  if (auto failure = failure_of(rdzv_store_clone, asked.store, &shared)) return std::move(*failure);
  store owned = store::adopt(shared);
  rdzv_rpc_handlers* handlers = nullptr;
  if (auto failure = failure_of(rdzv_rpc_handlers_clone, asked.handlers, &handlers)) return std::move(*failure);
  const auto size = asked.world_size < 0 ? std::nullopt : std::optional<std::int32_t>(asked.world_size);
  return rpc_worker_request{std::string(text(asked.name)), static_cast<std::uint16_t>(asked.id), size,
                            std::move(owned), rpc_handlers::adopt(handlers), options_of(*asked.options)};
}

inline rdzv_status new_worker(void* user_data, const rdzv_rpc_worker_request* asked, rdzv_reply* c_reply) {
  const passing guard;
  rpc_reply reply(c_reply);
  return caught_into(reply, [&](rpc_reply& into) {
    auto request = kept_request(*asked);
    if (!request) {
      into.set_message(request.error().message());
      return request.error().code();
    }
    return static_cast<custom_rpc_backend*>(user_data)->new_worker(std::move(*request), into);
  });
}

}  // namespace detail

inline void rpc_reply::set_worker(std::unique_ptr<custom_rpc_worker> made) {
  if (!made) return;
  rdzv_rpc_agent_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.call = detail::begin_call;
  vtable.list_workers = detail::list_workers;
  vtable.shutdown = detail::shut_down;
  vtable.destroy = detail::destroy_passed<custom_rpc_worker>;
  vtable.user_data = made.release();
  detail::pass();
  rdzv_reply_set_rpc_agent(reply_, &vtable);
}

/// Registers an RPC backend of yours with a context; the name is exact.
inline result<void> register_rpc_backend(context& shared, std::string_view name,
                                         std::unique_ptr<custom_rpc_backend> code) {
  if (!code)
    return detail::make_error(status::invalid_argument, "RPC backend " + std::string(name) + ": its code is empty");
  rdzv_rpc_backend_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.new_worker = detail::new_worker;
  vtable.destroy = detail::destroy_passed<custom_rpc_backend>;
  vtable.user_data = code.get();
  detail::pass();
  auto outcome = detail::call(rdzv_context_register_rpc_backend, shared.c_handle(), detail::bytes(name), name.size(),
                              static_cast<const rdzv_rpc_backend_vtable*>(&vtable));
  if (outcome) static_cast<void>(code.release());
  return outcome;
}

/// What a handler is to be asked.
struct rpc_incoming {
  std::string_view caller;
  std::uint16_t caller_id;
  std::string_view handler;
  std::string_view bytes;
  /// How long the caller waits; nothing: as long as it takes.
  std::optional<std::chrono::milliseconds> time_left = {};
};

/// Passes a request that a custom backend received to a handler, on the calling thread. `responder` receives the outcome,
/// from any thread; empty for one-way calls. It is consumed only on success.
inline result<void> dispatch(const rpc_handlers& handlers, const rpc_incoming& incoming, rpc_responder& responder) {
  rdzv_rpc_request_info request{};
  request.struct_size = sizeof request;
  request.caller_id = incoming.caller_id;
  request.caller = detail::view(incoming.caller);
  request.handler = detail::view(incoming.handler);
  request.payload = detail::view(incoming.bytes);
  request.time_left_ms = incoming.time_left ? std::int64_t{incoming.time_left->count()} : -1;
  rdzv_rpc_responder* const given = responder.release();
  const rdzv_rpc_handlers* borrowed = handlers.c_handle();
  detail::pass();
  auto outcome = detail::call(rdzv_rpc_handlers_dispatch, borrowed,
                              static_cast<const rdzv_rpc_request_info*>(&request), given);
  if (!outcome) responder = rpc_responder(given);
  return outcome;
}

/// The same for a request from another process: `done` is called once with the result, on any thread; empty for one-way
/// calls. It is also called with the error if this function fails.
inline result<void> dispatch(const rpc_handlers& handlers, const rpc_incoming& incoming,
                             std::function<void(result<std::string_view>)> done) {
  rdzv_rpc_responder* made = nullptr;
  if (done) {
    auto owned = std::make_unique<detail::done_function>(std::move(done));
    detail::pass();
    if (auto failure = detail::failure_of(rdzv_rpc_responder_new, &detail::call_done,
                                          static_cast<void*>(owned.get()), &made))
      return std::move(*failure);
    static_cast<void>(owned.release());
  }
  rpc_responder responder(made);
  auto outcome = dispatch(handlers, incoming, responder);
  if (!outcome && responder) std::move(responder).fail(outcome.error().message(), outcome.error().code());
  return outcome;
}

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_CUSTOM_RPC_HPP
