// rendezvous_rpc.hpp: workers of RPC groups that call each other's functions with typed arguments, for C++17 and later.
// rendezvous.hpp brings it along.

// Before the guard: it brings this header along, in its place among the others.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_RPC_HPP
#define RENDEZVOUS_RPC_HPP

#include "rendezvous_codec.hpp"
#include "rendezvous_rpc_handlers.hpp"

#include <algorithm>
#include <mutex>

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Stands for an answer that is taken as bytes, in a string. `rpc_payload` is one that is taken without a copy.
struct rpc_bytes {};

/// `rpc_options::rpc_timeout` of calls that may take as long as they like.
inline constexpr std::chrono::milliseconds rpc_no_timeout{0};

namespace detail {

/// What a caller gets: of `rpc_bytes`, the bytes.
template <class T>
using answered = std::conditional_t<std::is_same_v<T, rpc_bytes>, std::string, T>;

/// What went wrong with a call, as the library tells it: the message begins with handler and callee.
inline error error_of(const rpc_called& call, status code, std::string_view why) {
  rdzv_rpc_call_spec named{};
  named.struct_size = sizeof named;
  named.callee_id = call.callee_id;
  if (call.callee_id < 0) {
    named.callee = bytes(call.callee);
    named.callee_len = call.callee.size();
  }
  std::string message = call.handler + " at ";
  message += call.callee_id < 0 ? call.callee : "id " + std::to_string(call.callee_id);
  message.append(": ").append(why);
  const auto number = static_cast<rdzv_status>(code);
  return error(number, rdzv_error_new_of_call(number, bytes(message), message.size(), &named));
}

/// The answer of a call, about which `of_call` tells.
template <class T, class OfCall>
result<answered<T>> unpacked(std::string_view bytes, const OfCall& of_call) {
  static_assert(!std::is_same_v<T, rpc_payload>, "these bytes are borrowed: take rdzv::rpc_bytes here");
  static_assert(!is_view<T>::value, "a std::string_view cannot outlive the answer: take a std::string");
  if constexpr (std::is_same_v<T, rpc_bytes>) {
    static_cast<void>(of_call);
    return std::string(bytes);
  } else {
    reader in(bytes);
    std::string_view types, wanted;
    const bool is_typed = read_types(in, types);
    if constexpr (std::is_void_v<T>) {
      if (bytes.empty()) return {};
    } else {
      wanted = types_of<T>::value;
      T value{};
      if (is_typed && types == wanted && codec<T>::read(in, value) && in.left() == 0) return value;
    }
    const std::string asked = described_types(true, wanted), is = described_types(is_typed, types);
    return error_of(of_call(), status::rpc_malformed,
                    is == asked ? "the answer cannot be read as " + asked
                                : "it answers " + is + ", and was called for " + asked);
  }
}

/// The same of bytes that are the caller's.
template <class T, class OfCall>
result<answered<T>> unpacked(buffer bytes, const OfCall& of_call) {
  if constexpr (std::is_same_v<T, rpc_payload>) {
    static_cast<void>(of_call);
    return rpc_payload(std::move(bytes));
  } else {
    return unpacked<T>(text(rdzv_buffer_data(bytes.get()), rdzv_buffer_len(bytes.get())), of_call);
  }
}

/// Bytes of an answer are a string, or what was received.
template <class T>
inline constexpr bool is_bytes = std::is_same_v<T, rpc_bytes> || std::is_same_v<T, rpc_payload>;

}  // namespace detail

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
    // An empty name matches no worker; it does not select by number.
    call.callee = !is_named_ ? nullptr : name_.empty() ? &nothing : detail::bytes(name_);
    call.callee_len = name_.size();
  }

 private:
  std::string_view name_;
  std::int32_t id_ = -1;
  bool is_named_ = false;
};

namespace detail {

inline rpc_called called(const rpc_callee& callee, std::string_view handler) {
  rdzv_rpc_call_spec call{};
  callee.fill(call);
  call.handler = bytes(handler);
  call.handler_len = handler.size();
  return called(call);
}

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
    if (payload_.size() < borrowed_size_min) {
      call_.payload = bytes(payload_);
      call_.payload_len = payload_.size();
    } else {
      borrowed_ = std::make_unique<std::string>(std::move(payload_));
      call_.payload = bytes(*borrowed_);
      call_.payload_len = borrowed_->size();
      call_.release = delete_string;
      call_.user_data = borrowed_.get();
    }
  }
  outgoing_call(const outgoing_call&) = delete;
  outgoing_call& operator=(const outgoing_call&) = delete;
  /// Passes the payload to the function that makes the call, which releases it. Call this once.
  const rdzv_rpc_call_spec* give() noexcept {
    static_cast<void>(borrowed_.release());
    return &call_;
  }

 private:
  std::string payload_;
  std::unique_ptr<std::string> borrowed_;
  rdzv_rpc_call_spec call_{};
};

/// Called with the result when a call has ended.
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
      (*done)(error(code, rdzv_error_clone(failure)));
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
  using answer_type = detail::answered<T>;

  rpc_future(rdzv_rpc_future* made, rpc_called called) noexcept : handle_(made), called_(std::move(called)) {}

  /// Whether it has ended: then `get` does not wait.
  bool is_ready() const { return rdzv_rpc_future_is_ready(handle_.get()) != 0; }
  /// Waits as long as the call may take. Once.
  result<answer_type> get() {
    auto ended = wait(default_timeout);
    if (!ended.has_value()) return std::move(ended).error();
    if (!*ended) return detail::error_of(called_, status::timed_out, "it has not answered");
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
      return std::move(*failure);
    if (ended != 0) answer_ = std::move(answer);
    return ended != 0;
  }
  /// Returns the answer, after `wait` has returned true.
  result<answer_type> take() {
    if (!answer_)
      return detail::error_of(called_, status::invalid_argument,
                              is_taken_ ? "its answer was taken before" : "the call has not ended");
    detail::buffer answer = std::move(*answer_);
    answer_.reset();
    is_taken_ = true;
    return detail::unpacked<T>(std::move(answer), [this] { return called_; });
  }
  /// Cancels the call, from any thread: waiting threads get `status::cancelled`.
  void cancel() const { rdzv_rpc_future_cancel(handle_.get()); }

 private:
  detail::handle<rdzv_rpc_future, rdzv_rpc_future_free> handle_;
  rpc_called called_;
  std::optional<detail::buffer> answer_;
  bool is_taken_ = false;
};

/// Ends attempts to become a worker, from another thread. It outlives them, and workers of loops that are made with it.
class rpc_canceller {
 public:
  rpc_canceller() = default;
  rpc_canceller(const rpc_canceller&) = delete;
  rpc_canceller& operator=(const rpc_canceller&) = delete;
  /// Ends those that are under way, wherever they are, with `status::cancelled`. Later ones are as ever.
  void cancel() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const rdzv_rpc_options* options : under_way_) rdzv_rpc_options_cancel(options);
  }

 private:
  friend class rpc;
  friend class loop_rpc;
  /// An attempt with these options, as long as it lives.
  class attempt {
   public:
    attempt(rpc_canceller* canceller, const rdzv_rpc_options* options) : canceller_(canceller), options_(options) {
      if (canceller_ == nullptr) return;
      const std::lock_guard<std::mutex> lock(canceller_->mutex_);
      canceller_->under_way_.push_back(options_);
    }
    attempt(const attempt&) = delete;
    attempt& operator=(const attempt&) = delete;
    ~attempt() {
      if (canceller_ == nullptr) return;
      const std::lock_guard<std::mutex> lock(canceller_->mutex_);
      auto& all = canceller_->under_way_;
      all.erase(std::find(all.begin(), all.end(), options_));
    }

   private:
    rpc_canceller* canceller_;
    const rdzv_rpc_options* options_;
  };
  std::mutex mutex_;
  std::vector<const rdzv_rpc_options*> under_way_;
};

/// How a worker is set up.
struct rpc_options {
  /// Empty: `tcp`.
  std::string backend = {};
  /// How long a call may take that does not say so itself; `default_timeout`: 60 s. Here alone 0 is no single try but
  /// `rpc_no_timeout`, as long as it likes: PyTorch has it so.
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
  /// Who may end the attempt from another thread.
  rpc_canceller* canceller = nullptr;
};

namespace detail {

using rpc_options_handle = handle<rdzv_rpc_options, rdzv_rpc_options_free>;

inline result<rpc_options_handle> c_options(const rpc_options& given, const rdzv_context* context) {
  const bool has_timeout = given.rpc_timeout != default_timeout;
  if (has_timeout && given.rpc_timeout.count() < 0)
    return make_error(status::invalid_argument, "`rpc_timeout` is " + std::to_string(given.rpc_timeout.count()) +
                                                    " ms: from 0, or `default_timeout`");
  const std::int64_t rpc_timeout_ms = has_timeout ? given.rpc_timeout.count() : -1;
  const auto [names, values] = views_of_pairs(given.own);
  rdzv_rpc_options* made = nullptr;
  auto failure = failure_of(rdzv_rpc_options_new, context, given.backend.empty() ? nullptr : bytes(given.backend),
                            given.backend.size(), rpc_timeout_ms, bytes(given.init_method),
                            given.init_method.size(), names.data(), values.data(), names.size(), &made);
  if (failure) return std::move(*failure);
  rpc_options_handle owned(made);
  const auto set = [&](auto function, auto... arguments) {
    if (!failure) failure = failure_of(function, made, arguments...);
  };
  for (const auto& [name, value] : given.variables)
    set(rdzv_rpc_options_set_variable, bytes(name), name.size(), bytes(value), value.size());
  if (given.membership_timeout.count() != 0 && given.membership_timeout != default_timeout)
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
  // Backends other than `tcp` refuse these options, so defaults are not passed.
  if (given.device_count != 0 || given.device_kind != rpc_options().device_kind)
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
  /// Deaths are no longer reported as they happen; the group continues.
  watch_lost = RDZV_RPC_EVENT_WATCH_LOST,
};

/// What happened to a group.
struct rpc_event {
  rpc_event_kind kind;
  /// Of the worker that it is about.
  std::string name;
  std::int32_t id;
  /// Cause of a death, or why deaths are no longer reported.
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

inline std::vector<std::pair<std::string, std::string>> pairs(const list& firsts, const list& seconds) {
  std::vector<std::pair<std::string, std::string>> all;
  auto left = firsts.strs(), right = seconds.strs();
  for (std::size_t i = 0; i < left.size(); ++i) all.emplace_back(std::move(left[i]), std::move(right[i]));
  return all;
}

using workers_handle = handle<rdzv_rpc_workers, rdzv_rpc_workers_free>;

}  // namespace detail

/// A worker of an RPC group. Any thread may use it, several at a time. Its destructor ends it abruptly, unless it was
/// shut down, also in a handler or a callback of its own; it must not run while others use it.
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
    const rpc_canceller::attempt under_way(options.canceller, given);
    if (auto failure = detail::failure_of(rdzv_rpc_init, context, detail::bytes(name), name.size(), rank, world_size,
                                          given, answering, &made))
      return std::move(*failure);
    return rpc(made);
  }

  /// The same over a store that is there already; give each group a prefix of its own.
  static result<rpc> init_over(const store& over, std::string_view name, std::int32_t rank, std::int32_t world_size,
                               const rpc_options& options, const rpc_handlers& handlers,
                               const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    rdzv_rpc* made = nullptr;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    const rpc_canceller::attempt under_way(options.canceller, given);
    if (auto failure = detail::failure_of(rdzv_rpc_init_over_store, context, over.c_handle(), detail::bytes(name),
                                          name.size(), rank, world_size, given, answering, &made))
      return std::move(*failure);
    return rpc(made);
  }

  /// Calls a handler with typed arguments, and waits for its answer, for the options' time. The types must be those that
  /// the handler takes and returns, or the call fails with `status::rpc_malformed` and the names of both; `Return` may
  /// also be `rpc_bytes` or `rpc_payload`, for the bytes of the answer. In a handler on the reactor and in a callback it
  /// is `status::reentrant`: these may not wait.
  template <class Return = void, class... Arguments>
  result<detail::answered<Return>> call(const rpc_callee& callee, std::string_view handler,
                                        const Arguments&... arguments) const {
    return call_within<Return>(default_timeout, callee, handler, arguments...);
  }
  /// The same, for so long.
  template <class Return = void, class... Arguments>
  result<detail::answered<Return>> call_within(milliseconds timeout, const rpc_callee& callee, std::string_view handler,
                                               const Arguments&... arguments) const {
    detail::buffer answer;
    if (auto failure = call_into(answer, callee, handler, detail::typed_payload(arguments...), timeout))
      return std::move(*failure);
    return detail::unpacked<Return>(std::move(answer), [&] { return detail::called(callee, handler); });
  }
  /// Calls a handler of bytes. Long payloads are not copied, and `call_bytes<rpc_payload>` does not copy the answer.
  template <class Answer = rpc_bytes>
  result<detail::answered<Answer>> call_bytes(const rpc_callee& callee, std::string_view handler, std::string payload,
                                              milliseconds timeout = default_timeout) const {
    static_assert(detail::is_bytes<Answer>, "an answer of bytes is rdzv::rpc_bytes or rdzv::rpc_payload");
    detail::buffer answer;
    if (auto failure = call_into(answer, callee, handler, std::move(payload), timeout)) return std::move(*failure);
    return detail::unpacked<Answer>(std::move(answer), [&] { return detail::called(callee, handler); });
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
    return start_with<Return>(callee, handler, detail::typed_payload(arguments...), timeout);
  }
  /// Calls a handler of bytes, and does not wait.
  template <class Answer = rpc_bytes>
  result<rpc_future<Answer>> start_bytes(const rpc_callee& callee, std::string_view handler, std::string payload,
                                         milliseconds timeout = default_timeout) const {
    static_assert(detail::is_bytes<Answer>, "an answer of bytes is rdzv::rpc_bytes or rdzv::rpc_payload");
    return start_with<Answer>(callee, handler, std::move(payload), timeout);
  }

  /// Starts a call. `done` gets a `result<Return>`, once, on a thread of the library; it must not block, and what it
  /// throws is dropped. It is not called when this function fails.
  template <class Return = void, class Done, class... Arguments>
  result<void> call_then(Done done, const rpc_callee& callee, std::string_view handler,
                         const Arguments&... arguments) const {
    return call_then_within<Return>(default_timeout, std::move(done), callee, handler, arguments...);
  }
  /// The same, for so long.
  template <class Return = void, class Done, class... Arguments>
  result<void> call_then_within(milliseconds timeout, Done done, const rpc_callee& callee, std::string_view handler,
                                const Arguments&... arguments) const {
    auto on_done = [done = std::make_shared<Done>(std::move(done)),
                 call = detail::called(callee, handler)](result<std::string_view> answer) {
      if (!answer) return (*done)(result<detail::answered<Return>>(std::move(answer).error()));
      (*done)(detail::unpacked<Return>(*answer, [&call] { return call; }));
    };
    return call_with(std::move(on_done), callee, handler, detail::typed_payload(arguments...), timeout);
  }
  /// Calls a handler of bytes. `done` gets a `result<std::string_view>`, valid until it returns.
  template <class Done>
  result<void> call_bytes_then(Done done, const rpc_callee& callee, std::string_view handler, std::string payload,
                               milliseconds timeout = default_timeout) const {
    auto on_done = [done = std::make_shared<Done>(std::move(done))](result<std::string_view> answer) {
      (*done)(std::move(answer));
    };
    return call_with(std::move(on_done), callee, handler, std::move(payload), timeout);
  }

  /// Sends a one-way call: no answer, and no report of whether it arrived.
  template <class... Arguments>
  result<void> notify(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) const {
    return notify_bytes(callee, handler, detail::typed_payload(arguments...));
  }
  result<void> notify_bytes(const rpc_callee& callee, std::string_view handler, std::string payload) const {
    detail::outgoing_call call(callee, handler, std::move(payload), default_timeout);
    return detail::call(rdzv_rpc_notify, c_handle(), call.give());
  }

  std::string name() const { return detail::borrowed(rdzv_rpc_name, c_handle()); }
  std::uint16_t id() const { return static_cast<std::uint16_t>(rdzv_rpc_id(handle_.get())); }
  /// Where it takes calls.
  std::string address() const { return detail::borrowed(rdzv_rpc_address, c_handle()); }
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
  result<std::string> name_of(std::int32_t id) const {
    const auto number = static_cast<std::uint16_t>(id);
    if (number != id)
      return detail::make_error(status::invalid_argument, "`id` is " + std::to_string(id) + ": from 0 to 65535");
    detail::buffer name;
    if (auto failure = detail::failure_of(rdzv_rpc_worker_name, c_handle(), number, name.get()))
      return std::move(*failure);
    return name.str();
  }
  /// The devices that the worker uses, sorted by index.
  result<std::vector<std::string>> devices() const {
    detail::list names;
    if (auto failure = detail::failure_of(rdzv_rpc_devices, c_handle(), names.get())) return std::move(*failure);
    return names.strs();
  }
  /// For each caller that has a map for this worker, where answers go; as Python writes dictionaries.
  result<std::string> reverse_maps() const {
    detail::buffer message;
    if (auto failure = detail::failure_of(rdzv_rpc_reverse_maps, c_handle(), message.get())) return std::move(*failure);
    return message.str();
  }

  /// That for one caller: which device here is which there, sorted by those here; empty where it has no map.
  result<std::vector<std::pair<std::string, std::string>>> reverse_map(std::string_view caller) const {
    const detail::list from, to;
    if (auto failure = detail::failure_of(rdzv_rpc_list_reverse_map, c_handle(), detail::bytes(caller), caller.size(),
                                          from.get(), to.get()))
      return std::move(*failure);
    return detail::pairs(from, to);
  }

  /// Adds a handler while others may call already.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    return on_bytes(name, detail::handler_of(std::move(function)), run);
  }
  /// The same of a function of bytes, which may answer later.
  template <class Function>
  result<void> on_bytes(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    return rpc_handlers::add(
        [&](auto... arguments) { return detail::call(rdzv_rpc_add_handler, c_handle(), arguments...); }, name,
        detail::bytes_handler_of(std::move(function)), run);
  }
  /// Takes a handler out; whether there was one.
  result<bool> remove(std::string_view name) {
    std::int32_t found = 0;
    auto failure = detail::failure_of(rdzv_rpc_remove_handler, c_handle(), detail::bytes(name), name.size(), &found);
    if (failure) return std::move(*failure);
    return found != 0;
  }

  /// The next thing that happens to the group; nothing when nothing did in time. The last is `rpc_event_kind::over`;
  /// after it, this fails at once with `status::rpc_no_member`.
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

  /// Number of lost events. Of more than 4,096 waiting events the oldest are dropped.
  std::uint64_t events_lost() const noexcept { return rdzv_rpc_events_lost(handle_.get()); }

  /// Ends every call and every `next_event` that waits on this handle, in any thread, with `status::cancelled`. Futures,
  /// callbacks and `shutdown` go on, and later calls are as ever. Not from a callback.
  void cancel() const { rdzv_rpc_cancel(handle_.get()); }

  /// Ends the worker; it has ended when this returns, whatever it returns but `status::reentrant`: so a handler or a
  /// callback of its own is answered, and the worker goes on.
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
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    return detail::failure_of(rdzv_rpc_call, c_handle(), call.give(), answer.get());
  }

  template <class Return>
  result<rpc_future<Return>> start_with(const rpc_callee& callee, std::string_view handler, std::string payload,
                                        milliseconds timeout) const {
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    rpc_called called = detail::called(callee, handler);
    rdzv_rpc_future* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_start_call, c_handle(), call.give(), &made))
      return std::move(*failure);
    return rpc_future<Return>(made, std::move(called));
  }

  result<void> call_with(detail::done_function on_done, const rpc_callee& callee, std::string_view handler,
                         std::string payload, milliseconds timeout) const {
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    auto owned = std::make_unique<detail::done_function>(std::move(on_done));
    detail::pass();
    auto failure = detail::failure_of(rdzv_rpc_call_with, c_handle(), call.give(), &detail::call_done,
                                           static_cast<void*>(owned.get()));
    if (failure) return std::move(*failure);
    static_cast<void>(owned.release());
    return {};
  }

  detail::handle<rdzv_rpc, rdzv_rpc_free> handle_;
};

enum class rpc_observation_kind : std::int32_t {
  static_group = RDZV_RPC_OBSERVATION_STATIC,
  dynamic_group = RDZV_RPC_OBSERVATION_DYNAMIC,
  joined = RDZV_RPC_OBSERVATION_JOINED,
  left = RDZV_RPC_OBSERVATION_LEFT,
};

/// One observation: the kind of the group, or a worker that joined or left.
struct rpc_observation {
  rpc_observation_kind kind;
  std::string name;
  std::int32_t id;
  std::string address;
};

/// Observes the members of a group, PyTorch's or ours, through its keys alone.
class rpc_observer {
 public:
  /// Looks at the group whose keys are those of `over`, such as those under `rpc_prefix_0` of a job's store.
  static result<rpc_observer> create(const store& over) {
    rdzv_rpc_observer* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_observer_new, over.c_handle(), &made)) return std::move(*failure);
    return rpc_observer(made);
  }
  /// Returns the next observation; nothing when there was none in time.
  result<std::optional<rpc_observation>> next(std::chrono::milliseconds timeout = default_timeout) const {
    rdzv_rpc_observation observation{};
    observation.struct_size = sizeof observation;
    detail::buffer name, address;
    const rdzv_rpc_observer* observer = handle_.get();
    if (auto failure = detail::failure_of(rdzv_rpc_observer_next, observer, detail::count(timeout), &observation, name.get(),
                                          address.get()))
      return std::move(*failure);
    if (observation.kind == RDZV_RPC_OBSERVATION_NONE) return std::optional<rpc_observation>();
    return std::optional<rpc_observation>(
        rpc_observation{static_cast<rpc_observation_kind>(observation.kind), name.str(), observation.id, address.str()});
  }
  /// Ends every `next` that waits, in any thread, with `status::cancelled`; nothing that is seen is lost.
  void cancel() const { rdzv_rpc_observer_cancel(handle_.get()); }
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
