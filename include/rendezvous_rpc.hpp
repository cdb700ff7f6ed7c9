// rendezvous_rpc.hpp: workers of RPC groups that call each other's functions with typed arguments, for C++17 and later.
// rendezvous.hpp brings it along.

// Before the guard: it brings this header along, in its place among the others.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_RPC_HPP
#define RENDEZVOUS_RPC_HPP

#include "rendezvous_codec.hpp"
#include "rendezvous_rpc_handlers.hpp"

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

namespace detail {

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
  return make_error(status::rpc_malformed,
                    "the answer of " + std::string(handler) + " is not of the type that was asked for");
}

/// An error of a call; a handler that could not read its arguments has a status of its own.
inline error call_error(error failure) {
  const bool is_malformed = failure.cause().compare(0, malformed_words.size(), malformed_words) == 0;
  if (failure.code() == status::rpc_handler_failed && is_malformed)
    return make_error(status::rpc_malformed, failure.message());
  return failure;
}

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

  /// Calls, and has `done` told a `result<Return>`, once, on a thread of the library's; it must not block. What it
  /// throws is dropped. When this fails, it hears nothing.
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
    auto failure = detail::failure_of(rdzv_rpc_remove_handler, c_handle(), detail::bytes(name), name.size(), &found);
    if (failure) return std::move(*failure);
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

/// A worker of an RPC group in an event loop: one thread, no callback, nothing that blocks. What happens comes as events of
/// the loop, whose `store` is its `number`: `rpc_joined` first, then requests, changes of the group and the ends of
/// calls, and at last, when it has ended, `rpc` with `rpc_event_kind::over`. Destroyed, it ends abruptly; it must go
/// before its loop.
class loop_rpc {
 public:
  using milliseconds = std::chrono::milliseconds;
  using operation = event_loop::operation;

  /// Begins to become a worker, as `rpc::init`. Handlers of `rpc_handlers::on_loop` are answered by the loop.
  static result<loop_rpc> init(event_loop& loop, std::string_view name, std::int32_t rank, std::int32_t world_size,
                               const rpc_options& options, const rpc_handlers& handlers,
                               const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    std::uint32_t number = 0;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    if (auto failure = detail::failure_of(rdzv_loop_rpc_init, loop.c_handle(), context, detail::bytes(name),
                                          name.size(), rank, world_size, given, answering, &number))
      return std::move(*failure);
    return loop_rpc(loop.c_handle(), number);
  }
  /// The same over a store that is there already.
  static result<loop_rpc> init_over(event_loop& loop, const store& over, std::string_view name, std::uint16_t rank,
                                    std::int32_t world_size, const rpc_options& options, const rpc_handlers& handlers,
                                    const context* shared = nullptr) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto owned = detail::c_options(options, context);
    if (!owned) return std::move(owned).error();
    std::uint32_t number = 0;
    const rdzv_rpc_options* given = owned->get();
    const rdzv_rpc_handlers* answering = handlers.c_handle();
    if (auto failure = detail::failure_of(rdzv_loop_rpc_init_over_store, loop.c_handle(), context, over.c_handle(),
                                          detail::bytes(name), name.size(), std::int32_t{rank}, world_size, given,
                                          answering, &number))
      return std::move(*failure);
    return loop_rpc(loop.c_handle(), number);
  }
  /// One that is a member already: its events come here. It lives on as long as `worker` does.
  static result<loop_rpc> add(event_loop& loop, const rpc& worker) {
    std::uint32_t number = 0;
    if (auto failure = detail::failure_of(rdzv_loop_add_rpc, loop.c_handle(), worker.c_handle(), &number))
      return std::move(*failure);
    return loop_rpc(loop.c_handle(), number);
  }

  loop_rpc(loop_rpc&& other) noexcept
      : loop_(std::exchange(other.loop_, nullptr)), number_(std::exchange(other.number_, 0)) {}
  loop_rpc& operator=(loop_rpc&& other) noexcept {
    std::swap(loop_, other.loop_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~loop_rpc() {
    if (loop_ != nullptr) rdzv_loop_remove_rpc(loop_, number_, nullptr);
  }

  std::uint32_t number() const noexcept { return number_; }

  /// Calls a handler with typed arguments; `rpc_answer_of` reads the answer out of the event of this operation.
  template <class... Arguments>
  result<operation> call(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) {
    return call_within(default_timeout, callee, handler, arguments...);
  }
  /// The same, for so long.
  template <class... Arguments>
  result<operation> call_within(milliseconds timeout, const rpc_callee& callee, std::string_view handler,
                                const Arguments&... arguments) {
    return call_bytes(callee, handler, detail::packed(arguments...), timeout);
  }
  /// Calls a handler of bytes. Long payloads are not copied.
  result<operation> call_bytes(const rpc_callee& callee, std::string_view handler, std::string payload,
                               milliseconds timeout = default_timeout) {
    const detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    operation made = 0;
    if (auto failure = detail::failure_of(rdzv_loop_rpc_call, loop_, number_, call.get(), &made))
      return std::move(*failure);
    return made;
  }
  /// Calls what nobody answers; no event follows.
  template <class... Arguments>
  result<void> notify(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) {
    const detail::outgoing_call call(callee, handler, detail::packed(arguments...), default_timeout);
    return detail::call(rdzv_loop_rpc_notify, loop_, number_, call.get());
  }
  /// Gives a call up: its event has `status::cancelled`, unless it is over already.
  result<void> cancel(operation which) { return detail::call(rdzv_loop_cancel, loop_, number_, which); }

  /// Adds a name whose requests are events, while others may call already.
  result<void> on_loop(std::string_view name) {
    return detail::call(rdzv_loop_rpc_add_handler, loop_, number_, detail::bytes(name), name.size());
  }
  /// Begins to end it.
  result<void> shutdown(rpc_shutdown how = rpc_shutdown::graceful) {
    return detail::call(rdzv_loop_rpc_shutdown, loop_, number_, static_cast<std::int32_t>(how));
  }
  /// Another handle, once it is a member: for its name, its workers and so on. Destroyed, it ends nothing.
  result<rpc> handle() const {
    rdzv_rpc* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_loop_rpc_handle, loop_, number_, &made)) return std::move(*failure);
    return rpc::adopt(made);
  }

 private:
  loop_rpc(rdzv_loop* loop, std::uint32_t number) noexcept : loop_(loop), number_(number) {}
  rdzv_loop* loop_;
  std::uint32_t number_;
};

/// What a handler of a loop's is asked, and the way back.
class loop_request {
 public:
  loop_request(const rdzv_rpc_request* asked, rdzv_rpc_responder* back) noexcept : request_(asked), responder_(back) {}
  /// Valid until the loop's next event is taken.
  const rpc_request& request() const noexcept { return request_; }
  /// May be moved to where it is kept, to answer later.
  rpc_responder& responder() noexcept { return responder_; }
  /// Answers with what a function of typed arguments returns; what it throws fails the call. The first argument may be a
  /// `const rpc_request&`.
  template <class Function>
  void answer_with(Function function) {
    const auto run = [&](const rpc_request& request, rpc_responder& responder) {
      detail::callable<Function>::type::run(function, request, responder);
    };
    detail::run_handler(run, request_, responder_);
  }

 private:
  rpc_request request_;
  rpc_responder responder_;
};

/// What is asked; for the last event of the loop, when that was one of `event_kind::rpc_request`. Once.
inline result<loop_request> rpc_request_of(event_loop& loop) {
  rdzv_rpc_responder* back = nullptr;
  if (auto failure = detail::failure_of(rdzv_loop_rpc_responder, loop.c_handle(), &back)) return std::move(*failure);
  return loop_request(rdzv_loop_rpc_request(loop.c_handle()), back);
}

/// What happened; for the last event of the loop, when that was one of `event_kind::rpc`.
inline result<rpc_event> rpc_event_of(event_loop& loop) {
  rdzv_rpc_event event{};
  event.struct_size = sizeof event;
  detail::buffer name, why;
  if (auto failure = detail::failure_of(rdzv_loop_rpc_event, loop.c_handle(), &event, name.get(), why.get()))
    return std::move(*failure);
  return rpc_event{static_cast<rpc_event_kind>(event.kind), name.str(), event.id, why.str()};
}

/// What a call was answered whose event this is, as a value of the type that the handler returns.
template <class Return = void>
result<Return> rpc_answer_of(const loop_event& event) {
  if (event.code == status::ok) return detail::unpacked<Return>(event.value, "a call");
  const bool is_malformed = event.cause.compare(0, detail::malformed_words.size(), detail::malformed_words) == 0;
  return detail::make_error(is_malformed ? status::rpc_malformed : event.code, event.message);
}

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
