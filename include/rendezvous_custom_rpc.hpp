// rendezvous_custom_rpc.hpp: RPC backends in code of yours, for C++17 and later. Beside rendezvous.hpp.
#ifndef RENDEZVOUS_CUSTOM_RPC_HPP
#define RENDEZVOUS_CUSTOM_RPC_HPP

#include "rendezvous.hpp"
#include "rendezvous_custom_backend.hpp"

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

class custom_rpc_worker;

/// Takes the answer of an RPC backend of yours. Valid during the call only.
class rpc_answer {
 public:
  explicit rpc_answer(rdzv_rpc_answer* answer) noexcept : answer_(answer) {}
  /// Why it failed, in words; they are the error's message.
  void set_message(std::string_view message) {
    rdzv_rpc_answer_set_message(answer_, detail::bytes(message), message.size());
  }
  /// One worker of the group.
  void add_worker(std::string_view name, std::uint16_t id) {
    rdzv_rpc_answer_add_worker(answer_, detail::bytes(name), name.size(), id);
  }
  /// What a backend makes. The library owns it.
  void set_worker(std::unique_ptr<custom_rpc_worker> made);

 private:
  rdzv_rpc_answer* answer_;
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
  /// Answers each worker of the group.
  virtual status list_workers(rpc_answer& answer) = 0;
  /// Ends the worker, whatever it returns; may be called again. Afterwards the handlers that `init` was given answer no
  /// more: `dispatch` fails with `status::rpc_no_member`.
  virtual status shutdown(rpc_shutdown how, rpc_answer& answer) = 0;
};

/// Options of a worker, as a backend of yours sees them. Valid during the call only.
class rpc_options_view {
 public:
  explicit rpc_options_view(rdzv_rpc_options* options) noexcept : options_(options) {}
  /// How long a call may take that does not say so itself; nothing: as long as it likes.
  std::optional<std::chrono::milliseconds> rpc_timeout() const {
    const std::int64_t millis = rdzv_rpc_options_rpc_timeout_ms(options_);
    if (millis == 0) return std::nullopt;
    return std::chrono::milliseconds(millis);
  }
  std::uint32_t worker_threads() const noexcept { return rdzv_rpc_options_worker_threads(options_); }
  /// The URL by which the group meets.
  result<std::string> init_method() const { return text_of(rdzv_rpc_options_init_method); }
  /// All of them in words, as a log names them.
  result<std::string> describe() const { return text_of(rdzv_rpc_options_describe); }
  /// The transports that may be used, the best first; nothing: as the backend chooses, which is not the same as none.
  result<std::optional<std::vector<std::string>>> transports() const {
    const detail::list names;
    if (auto failure = detail::failure_of(rdzv_rpc_options_lists, options_, names.get(), nullptr))
      return std::move(*failure);
    if (rdzv_rpc_options_has_transports(options_) == 0) return std::optional<std::vector<std::string>>();
    return std::optional<std::vector<std::string>>(names.strs());
  }
  /// The channels, likewise.
  result<std::optional<std::vector<std::string>>> channels() const {
    const detail::list names;
    if (auto failure = detail::failure_of(rdzv_rpc_options_lists, options_, nullptr, names.get()))
      return std::move(*failure);
    if (rdzv_rpc_options_has_channels(options_) == 0) return std::optional<std::vector<std::string>>();
    return std::optional<std::vector<std::string>>(names.strs());
  }
  /// The devices that were set; none where that follows from the maps.
  result<std::vector<std::string>> devices() const { return names(rdzv_rpc_options_list_devices); }
  /// The workers for which there are device maps, sorted.
  result<std::vector<std::string>> mapped_workers() const { return names(rdzv_rpc_options_list_mapped_workers); }
  /// Which device here is which of a worker's, sorted by those here; empty where there is no map.
  result<std::vector<std::pair<std::string, std::string>>> device_map(std::string_view worker) const {
    const detail::list from, to;
    if (auto failure = detail::failure_of(rdzv_rpc_options_list_device_map, options_, detail::bytes(worker),
                                          worker.size(), from.get(), to.get()))
      return std::move(*failure);
    return detail::pairs(from, to);
  }
  /// For the setters, while the options are made.
  rdzv_rpc_options* c_handle() const noexcept { return options_; }

 private:
  template <class Function>
  result<std::string> text_of(Function function) const {
    const detail::buffer out;
    if (auto failure = detail::failure_of(function, options_, out.get())) return std::move(*failure);
    return out.str();
  }
  template <class Function>
  result<std::vector<std::string>> names(Function function) const {
    const detail::list out;
    if (auto failure = detail::failure_of(function, options_, out.get())) return std::move(*failure);
    return out.strs();
  }
  rdzv_rpc_options* options_;
};

/// Options of a backend's own, as texts by their names.
using rpc_own_options = std::vector<std::pair<std::string, std::string>>;

/// Who is to become a worker.
struct rpc_init_request {
  std::string name;
  std::uint16_t id;
  /// How many workers a static group has; nothing for a dynamic one.
  std::optional<std::int32_t> world_size;
  /// Store in which the workers find each other; its prefix holds nothing else. The backend owns this handle.
  store shared;
  /// Handlers that other workers may call, for `dispatch`. The backend owns this handle.
  rpc_handlers handlers;
  /// What the options were made with.
  rpc_own_options own;
};

/// An RPC backend in code of yours. Called on the threads that make options or a worker, several at a time; may block;
/// what it throws is an error of the call that asked.
class custom_rpc_backend {
 public:
  virtual ~custom_rpc_backend() = default;
  /// Looks at options of the backend's own, and may change `options`. Without any it must succeed. It must not ask for
  /// options or workers: that is `status::reentrant`. What is here takes none.
  virtual status construct_options(rpc_options_view, const rpc_own_options& own, rpc_answer& answer) {
    if (own.empty()) return status::ok;
    answer.set_message("unknown option " + own.front().first);
    return status::invalid_argument;
  }
  /// Makes a worker, which is of its group when this returns, and answers it.
  virtual status init(rpc_init_request request, rpc_options_view options, rpc_answer& answer) = 0;
};

namespace detail {

/// Receives the message of a failure where there is no answer object.
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
    std::move(responder).fail_with(static_cast<status>(outcome), failure.text);
    return RDZV_OK;
  }
  static_cast<void>(responder.release());
  return outcome;
}

inline rdzv_status list_workers(void* user_data, rdzv_rpc_answer* c_answer) {
  const passing guard;
  rpc_answer answer(c_answer);
  return caught_into(answer, [&](rpc_answer& into) {
    return static_cast<custom_rpc_worker*>(user_data)->list_workers(into);
  });
}

inline rdzv_status shut_down(void* user_data, std::int32_t how, rdzv_rpc_answer* c_answer) {
  const passing guard;
  rpc_answer answer(c_answer);
  return caught_into(answer, [&](rpc_answer& into) {
    return static_cast<custom_rpc_worker*>(user_data)->shutdown(static_cast<rpc_shutdown>(how), into);
  });
}

template <class T>
void destroy_passed(void* user_data) {
  pass();
  delete static_cast<T*>(user_data);
}

inline rdzv_status construct_options(void* user_data, rdzv_rpc_options* options, const rdzv_bytes* names,
                                     const rdzv_bytes* values, std::size_t count, rdzv_rpc_answer* c_answer) {
  const passing guard;
  rpc_answer answer(c_answer);
  return caught_into(answer, [&](rpc_answer& into) {
    rpc_own_options own;
    for (std::size_t i = 0; i < count; ++i)
      own.emplace_back(text(names[i].data, names[i].len), text(values[i].data, values[i].len));
    return static_cast<custom_rpc_backend*>(user_data)->construct_options(rpc_options_view(options), own, into);
  });
}

inline result<rpc_own_options> own_options_of(const rdzv_rpc_options* options) {
  const list names, values;
  if (auto failure = failure_of(rdzv_rpc_options_list_extra, options, names.get(), values.get()))
    return std::move(*failure);
  return pairs(names, values);
}

/// The request with handles of the backend's own.
inline result<rpc_init_request> kept_request(const rdzv_rpc_init_request& asked, const rdzv_rpc_options* options,
                                             const rdzv_rpc_handlers* borrowed) {
  auto own = own_options_of(options);
  if (!own) return std::move(own).error();
  rdzv_store* shared = nullptr;
  if (auto failure = failure_of(rdzv_store_clone, asked.store, &shared)) return std::move(*failure);
  store owned = store::adopt(shared);
  rdzv_rpc_handlers* handlers = nullptr;
  if (auto failure = failure_of(rdzv_rpc_handlers_clone, borrowed, &handlers)) return std::move(*failure);
  const auto size = asked.world_size < 0 ? std::nullopt : std::optional<std::int32_t>(asked.world_size);
  return rpc_init_request{std::string(text(asked.name, asked.name_len)), static_cast<std::uint16_t>(asked.id), size,
                          std::move(owned), rpc_handlers::adopt(handlers), std::move(*own)};
}

inline rdzv_status init_worker(void* user_data, const rdzv_rpc_init_request* asked, const rdzv_rpc_options* options,
                               const rdzv_rpc_handlers* handlers, rdzv_rpc_answer* c_answer) {
  const passing guard;
  rpc_answer answer(c_answer);
  return caught_into(answer, [&](rpc_answer& into) {
    auto request = kept_request(*asked, options, handlers);
    if (!request) {
      into.set_message(request.error().message());
      return request.error().code();
    }
    const rpc_options_view view(const_cast<rdzv_rpc_options*>(options));
    return static_cast<custom_rpc_backend*>(user_data)->init(std::move(*request), view, into);
  });
}

}  // namespace detail

inline void rpc_answer::set_worker(std::unique_ptr<custom_rpc_worker> made) {
  if (!made) return;
  rdzv_rpc_agent_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.call = detail::begin_call;
  vtable.list_workers = detail::list_workers;
  vtable.shutdown = detail::shut_down;
  vtable.destroy = detail::destroy_passed<custom_rpc_worker>;
  vtable.user_data = made.release();
  detail::pass();
  rdzv_rpc_answer_set_agent(answer_, &vtable);
}

/// Registers an RPC backend of yours with a context; the name is exact.
inline result<void> register_rpc_backend(context& shared, std::string_view name,
                                         std::unique_ptr<custom_rpc_backend> code) {
  if (!code)
    return detail::make_error(status::invalid_argument, "RPC backend " + std::string(name) + ": its code is empty");
  rdzv_rpc_backend_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.construct_options = detail::construct_options;
  vtable.init = detail::init_worker;
  vtable.destroy = detail::destroy_passed<custom_rpc_backend>;
  vtable.user_data = code.get();
  detail::pass();
  auto outcome = detail::call(rdzv_context_register_rpc_backend, shared.c_handle(), detail::bytes(name), name.size(),
                              static_cast<const rdzv_rpc_backend_vtable*>(&vtable));
  if (outcome) static_cast<void>(code.release());
  return outcome;
}

/// The names of a context's RPC backends, the newest first.
inline result<std::vector<std::string>> rpc_backends(const context& shared) {
  const detail::list names;
  if (auto failure = detail::failure_of(rdzv_context_list_rpc_backends, shared.c_handle(), names.get()))
    return std::move(*failure);
  return names.strs();
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

/// Lets a handler answer a request that a custom backend received, on the calling thread. `done` is called once with the
/// result, on any thread; empty for one-way calls. It is not called when this function fails.
inline result<void> dispatch(const rpc_handlers& handlers, const rpc_incoming& asked,
                             std::function<void(result<std::string_view>)> done) {
  const bool is_wanted = static_cast<bool>(done);
  auto owned = is_wanted ? std::make_unique<detail::done_function>(std::move(done)) : nullptr;
  const rdzv_rpc_handlers* borrowed = handlers.c_handle();
  const std::int64_t left = asked.time_left ? std::int64_t{asked.time_left->count()} : -1;
  detail::pass();
  auto outcome = detail::call(rdzv_rpc_handlers_dispatch, borrowed, detail::bytes(asked.caller), asked.caller.size(),
                              asked.caller_id, detail::bytes(asked.handler), asked.handler.size(),
                              detail::bytes(asked.bytes), asked.bytes.size(), left, std::int32_t{is_wanted ? 1 : 0},
                              is_wanted ? &detail::call_done : nullptr, static_cast<void*>(owned.get()));
  if (outcome) static_cast<void>(owned.release());
  return outcome;
}

/// The same for a call from this process: the handler gets `responder`, so the answer is not copied and the handler sees
/// whether the caller still waits. Empty for one-way calls. `responder` is consumed only on success.
inline result<void> dispatch(const rpc_handlers& handlers, const rpc_incoming& asked, rpc_responder& responder) {
  const rdzv_rpc_handlers* borrowed = handlers.c_handle();
  const std::int64_t left = asked.time_left ? std::int64_t{asked.time_left->count()} : -1;
  rdzv_rpc_responder* const given = responder.release();
  detail::pass();
  auto outcome = detail::call(rdzv_rpc_handlers_dispatch_to, borrowed, detail::bytes(asked.caller), asked.caller.size(),
                              asked.caller_id, detail::bytes(asked.handler), asked.handler.size(),
                              detail::bytes(asked.bytes), asked.bytes.size(), left, given);
  if (!outcome) responder = rpc_responder(given);
  return outcome;
}

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_CUSTOM_RPC_HPP
