// rendezvous/rpc.hpp: workers of RPC groups that call each other's functions with typed arguments, for C++17 and later.
// rendezvous.hpp includes it.
#ifndef RENDEZVOUS_RPC_HPP
#define RENDEZVOUS_RPC_HPP

#include "loop.hpp"
#include "rpc_codec.hpp"
#include "rpc_handlers.hpp"
#include "rpc.h"


namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Stands for a response that is taken as bytes, in a string. `rpc_payload` is one that is taken without a copy.
struct rpc_bytes {};

/// Which RPC call it was.
struct rpc_called {
  /// Name of the callee; empty where it was selected by id.
  std::string callee;
  /// -1 where it was selected by name.
  std::int32_t callee_id = -1;
  std::string handler;
};

namespace detail {

inline rpc_called called(const rdzv_rpc_call_spec& call) {
  return {std::string(text(call.callee, call.callee_len)), call.callee_id,
          std::string(text(call.handler, call.handler_len))};
}

/// What a caller gets: of `rpc_bytes`, the bytes.
template <class T>
using response_of = std::conditional_t<std::is_same_v<T, rpc_bytes>, std::string, T>;

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

/// The response of a call, about which `of_call` tells.
template <class T, class OfCall>
result<response_of<T>> unpacked(std::string_view bytes, const OfCall& of_call) {
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
    const std::string asked = described_types(true, wanted);
    return error_of(of_call(), status::rpc_malformed,
                    is_typed && types == wanted
                        ? "the answer cannot be read as " + asked
                        : "it answers " + described_types(is_typed, types) + ", and was called for " + asked);
  }
}

/// The same of bytes that are the caller's.
template <class T, class OfCall>
result<response_of<T>> unpacked(buffer bytes, const OfCall& of_call) {
  if constexpr (std::is_same_v<T, rpc_payload>) {
    static_cast<void>(of_call);
    return rpc_payload(std::move(bytes));
  } else {
    return unpacked<T>(text(rdzv_buffer_data(bytes.get()), rdzv_buffer_len(bytes.get())), of_call);
  }
}

/// Bytes of a response are a string, or what was received.
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

/// A call under way; `T` is what its handler returns. Destroyed before it has ended, it is cancelled.
template <class T>
class rpc_future {
 public:
  rpc_future(rdzv_rpc_future* made, rpc_called called) noexcept : handle_(made), called_(std::move(called)) {}

  /// Waits as long as the call may take. Once.
  result<detail::response_of<T>> get() {
    auto ended = wait(default_timeout);
    if (!ended.has_value()) return std::move(ended).error();
    if (!*ended) return detail::error_of(called_, status::timed_out, "it has not answered");
    return take();
  }
  /// Waits so long; whether it has ended. Then `take` has the response.
  result<bool> wait(std::chrono::milliseconds timeout) {
    if (response_) return true;
    std::int32_t ended = 0;
    detail::buffer response;
    const rdzv_rpc_future* future = handle_.get();
    if (auto failure =
            detail::failure_of(rdzv_rpc_future_wait, future, detail::count(timeout), &ended, response.get()))
      return std::move(*failure);
    if (ended != 0) response_ = std::move(response);
    return ended != 0;
  }
  /// Returns the response, after `wait` has returned true.
  result<detail::response_of<T>> take() {
    if (!response_)
      return detail::error_of(called_, status::invalid_argument,
                              is_taken_ ? "its answer was taken before" : "the call has not ended");
    detail::buffer response = std::move(*response_);
    response_.reset();
    is_taken_ = true;
    return detail::unpacked<T>(std::move(response), [this] { return called_; });
  }
  /// Cancels the call, from any thread: waiting threads get `status::cancelled`.
  void cancel() const { rdzv_rpc_future_cancel(handle_.get()); }

 private:
  detail::handle<rdzv_rpc_future, rdzv_rpc_future_free> handle_;
  rpc_called called_;
  std::optional<detail::buffer> response_;
  bool is_taken_ = false;
};

/// Pairs of devices: one here and one of another worker, such as {"cuda:0", "cuda:1"}.
using rpc_device_pairs = std::vector<std::pair<std::string, std::string>>;
/// Device maps, by the names of the other workers.
using rpc_device_maps = std::vector<std::pair<std::string, rpc_device_pairs>>;

/// How a worker is set up. An empty string, 0 and an empty list stand for the default.
struct rpc_options {
  /// Name of the backend; empty: `tcp`.
  std::string backend = {};
  /// How long a call may take that does not say so itself; 0: 60 s.
  std::chrono::milliseconds rpc_timeout{0};
  /// How long joining may take, and leaving; 0: as long as a call.
  std::chrono::milliseconds membership_timeout{0};
  /// How the group meets; empty: `env://`.
  std::string init_method = {};
  /// What the environment says (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`): the library never reads it.
  std::vector<std::pair<std::string, std::string>> variables = {};
  /// Number of threads that run pooled handlers; 0: 16.
  std::int32_t worker_threads = 0;
  /// Where the worker takes calls; empty: the address by which it reaches the store.
  std::string host = {};
  /// Where the worker that hosts the store listens; empty: as the URL says.
  std::string listen_host = {};
  /// What a backend may use, the best first; nothing: as it chooses, which is not the same as none.
  std::optional<std::vector<std::string>> transports = {};
  std::optional<std::vector<std::string>> channels = {};
  /// For each callee: which device here is which there.
  rpc_device_maps device_maps = {};
  std::vector<std::string> devices = {};
  /// Kind and number of the devices of this process; empty: `cuda`.
  std::string accelerator = {};
  std::uint32_t accelerator_count = 0;
  /// Options of a backend in code of yours, as texts.
  std::vector<std::pair<std::string, std::string>> extra_options = {};
  /// Ends the attempt, and later the calls that wait on the worker, from another thread.
  const cancel_token* token = nullptr;
};

namespace detail {

inline const char* c_text(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

/// The options for C, which point into `given` and into this.
class c_rpc_options {
 public:
  c_rpc_options(const rpc_options& given, const store* over)
      : transports_(c_texts(given.transports)),
        channels_(c_texts(given.channels)),
        devices_(c_texts(given.devices)),
        variables_(c_pairs<rdzv_pair>(given.variables)),
        extra_options_(c_pairs<rdzv_pair>(given.extra_options)) {
    for (const auto& [worker, pairs] : given.device_maps) {
      const auto& kept = pairs_.emplace_back(c_pairs<rdzv_rpc_device_pair>(pairs));
      device_maps_.push_back({worker.c_str(), kept.data(), kept.size()});
    }
    c_.struct_size = sizeof c_;
    c_.worker_threads = given.worker_threads;
    c_.backend = c_text(given.backend);
    c_.init_method = c_text(given.init_method);
    c_.store = over == nullptr ? nullptr : over->c_handle();
    c_.token = given.token == nullptr ? nullptr : given.token->c_handle();
    c_.rpc_timeout_ms = given.rpc_timeout == default_timeout ? 0 : given.rpc_timeout.count();
    c_.membership_timeout_ms = given.membership_timeout == default_timeout ? 0 : given.membership_timeout.count();
    c_.variables = variables_.data();
    c_.variable_count = variables_.size();
    c_.listen_host = c_text(given.listen_host);
    c_.host = c_text(given.host);
    // A list of none has an address all the same.
    c_.transports = given.transports ? transports_.data() : nullptr;
    c_.transport_count = transports_.size() - 1;
    c_.channels = given.channels ? channels_.data() : nullptr;
    c_.channel_count = channels_.size() - 1;
    c_.device_maps = device_maps_.data();
    c_.device_map_count = device_maps_.size();
    c_.devices = devices_.data();
    c_.device_count = devices_.size() - 1;
    c_.accelerator = c_text(given.accelerator);
    c_.accelerator_count = given.accelerator_count;
    c_.extra_options = extra_options_.data();
    c_.extra_option_count = extra_options_.size();
  }
  c_rpc_options(const c_rpc_options&) = delete;
  c_rpc_options& operator=(const c_rpc_options&) = delete;
  const rdzv_rpc_options* get() const noexcept { return &c_; }

 private:
  using texts = std::vector<const char*>;
  /// The texts, and one NULL more.
  static texts c_texts(const std::vector<std::string>& strings) {
    texts all;
    for (const std::string& string : strings) all.push_back(string.c_str());
    all.push_back(nullptr);
    return all;
  }
  static texts c_texts(const std::optional<std::vector<std::string>>& strings) {
    return strings ? c_texts(*strings) : texts{nullptr};
  }
  template <class Pair>
  static std::vector<Pair> c_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
    std::vector<Pair> all;
    for (const auto& [left, right] : pairs) all.push_back({left.c_str(), right.c_str()});
    return all;
  }

  texts transports_, channels_, devices_;
  std::vector<rdzv_pair> variables_, extra_options_;
  std::vector<std::vector<rdzv_rpc_device_pair>> pairs_;
  std::vector<rdzv_rpc_device_map> device_maps_;
  rdzv_rpc_options c_{};
};

}  // namespace detail

/// A worker of a group; its address where that is known.
struct rpc_worker_info {
  std::string name;
  std::uint16_t id = 0;
  std::string address = {};
};

/// Devices of a worker.
struct rpc_devices {
  /// Names of the devices that the worker uses, sorted by index.
  std::vector<std::string> devices;
  /// For each caller that has a map for this worker: which device here is which there, for responses.
  rpc_device_maps reverse_maps;
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

/// The workers of a list, which `fill` makes.
template <class Function, class Handle>
result<std::vector<rpc_worker_info>> workers(Function fill, Handle from) {
  rdzv_rpc_workers* made = nullptr;
  if (auto failure = failure_of(fill, from, &made)) return std::move(*failure);
  const handle<rdzv_rpc_workers, rdzv_rpc_workers_free> owned(made);
  std::vector<rpc_worker_info> all;
  for (std::size_t i = 0; i < made->count; ++i) {
    const rdzv_rpc_worker_info& worker = made->workers[i];
    all.push_back({std::string(text(worker.name)), static_cast<std::uint16_t>(worker.id),
                   std::string(text(worker.address))});
  }
  return all;
}

inline std::vector<std::string> strings(const char* const* items, std::size_t count) {
  return std::vector<std::string>(items, items + count);
}

inline rpc_device_maps device_maps(const rdzv_rpc_device_map* maps, std::size_t count) {
  rpc_device_maps all;
  for (std::size_t i = 0; i < count; ++i) {
    auto& pairs = all.emplace_back(maps[i].worker, rpc_device_pairs()).second;
    for (std::size_t j = 0; j < maps[i].pair_count; ++j) pairs.emplace_back(maps[i].pairs[j].from, maps[i].pairs[j].to);
  }
  return all;
}

}  // namespace detail

/// A worker of an RPC group. Any thread may use it, several at a time. Its destructor ends it abruptly, unless it was
/// shut down, also in a handler or a callback of its own; it must not run while others use it.
class rpc {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Becomes a worker of the group that meets as the options say, and returns once it is one. `rank` -1: the URL or the
  /// variables say it; `world_size` -1: workers come and go. A context has one worker at a time.
  static result<rpc> create(std::string_view name, std::int32_t rank, std::int32_t world_size,
                            const rpc_options& options, const rpc_handlers& handlers,
                            const context* shared = nullptr) {
    return make(detail::c_rpc_options(options, nullptr), name, rank, world_size, handlers, shared);
  }
  /// The same over a store that is there already; give each group a prefix of its own.
  static result<rpc> create_over(const store& over, std::string_view name, std::int32_t rank, std::int32_t world_size,
                                 const rpc_options& options, const rpc_handlers& handlers,
                                 const context* shared = nullptr) {
    return make(detail::c_rpc_options(options, &over), name, rank, world_size, handlers, shared);
  }

  /// Calls a handler with typed arguments, and waits for its response, for the options' time. The types must be those
  /// that the handler takes and returns, or the call fails with `status::rpc_malformed` and the names of both; `Return`
  /// may also be `rpc_bytes` or `rpc_payload`, for the bytes of the response. In a handler on the reactor and in a
  /// callback it is `status::reentrant`: these may not wait.
  template <class Return = void, class... Arguments>
  result<detail::response_of<Return>> call(const rpc_callee& callee, std::string_view handler,
                                        const Arguments&... arguments) const {
    return call_within<Return>(default_timeout, callee, handler, arguments...);
  }
  /// The same, for so long.
  template <class Return = void, class... Arguments>
  result<detail::response_of<Return>> call_within(milliseconds timeout, const rpc_callee& callee,
                                                  std::string_view handler, const Arguments&... arguments) const {
    detail::buffer response;
    if (auto failure = call_into(response, callee, handler, detail::typed_payload(arguments...), timeout))
      return std::move(*failure);
    return detail::unpacked<Return>(std::move(response), [&] { return detail::called(callee, handler); });
  }
  /// Calls a handler of bytes. Long payloads are not copied, and `call_bytes<rpc_payload>` does not copy the response.
  template <class Response = rpc_bytes>
  result<detail::response_of<Response>> call_bytes(const rpc_callee& callee, std::string_view handler,
                                                   std::string payload,
                                                   milliseconds timeout = default_timeout) const {
    static_assert(detail::is_bytes<Response>, "a response of bytes is rdzv::rpc_bytes or rdzv::rpc_payload");
    detail::buffer response;
    if (auto failure = call_into(response, callee, handler, std::move(payload), timeout)) return std::move(*failure);
    return detail::unpacked<Response>(std::move(response), [&] { return detail::called(callee, handler); });
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
  template <class Response = rpc_bytes>
  result<rpc_future<Response>> start_bytes(const rpc_callee& callee, std::string_view handler, std::string payload,
                                         milliseconds timeout = default_timeout) const {
    static_assert(detail::is_bytes<Response>, "a response of bytes is rdzv::rpc_bytes or rdzv::rpc_payload");
    return start_with<Response>(callee, handler, std::move(payload), timeout);
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
                 call = detail::called(callee, handler)](result<std::string_view> response) {
      if (!response) return (*done)(result<detail::response_of<Return>>(std::move(response).error()));
      (*done)(detail::unpacked<Return>(*response, [&call] { return call; }));
    };
    return call_with(std::move(on_done), callee, handler, detail::typed_payload(arguments...), timeout);
  }
  /// Calls a handler of bytes. `done` gets a `result<std::string_view>`, valid until it returns.
  template <class Done>
  result<void> call_bytes_then(Done done, const rpc_callee& callee, std::string_view handler, std::string payload,
                               milliseconds timeout = default_timeout) const {
    auto on_done = [done = std::make_shared<Done>(std::move(done))](result<std::string_view> response) {
      (*done)(std::move(response));
    };
    return call_with(std::move(on_done), callee, handler, std::move(payload), timeout);
  }

  /// Sends a one-way call: no response, and no report of whether it arrived.
  template <class... Arguments>
  result<void> notify(const rpc_callee& callee, std::string_view handler, const Arguments&... arguments) const {
    return notify_bytes(callee, handler, detail::typed_payload(arguments...));
  }
  result<void> notify_bytes(const rpc_callee& callee, std::string_view handler, std::string payload) const {
    detail::outgoing_call call(callee, handler, std::move(payload), default_timeout);
    return detail::call(rdzv_rpc_notify, c_handle(), call.give());
  }

  /// Name, id and address of this worker.
  rpc_worker_info info() const {
    const rdzv_rpc_info own = c_info();
    return {std::string(detail::text(own.name)), static_cast<std::uint16_t>(own.id),
            std::string(detail::text(own.address))};
  }
  /// Number of lost events. Of more than 4,096 waiting events the oldest are dropped.
  std::uint64_t events_lost() const { return c_info().events_lost; }
  /// All workers of the group.
  result<std::vector<rpc_worker_info>> workers() const { return detail::workers(rdzv_rpc_list_workers, c_handle()); }
  /// The devices that the worker uses, and its reverse maps.
  result<rpc_devices> devices() const {
    rdzv_rpc_devices* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_list_devices, c_handle(), &made)) return std::move(*failure);
    const detail::handle<rdzv_rpc_devices, rdzv_rpc_devices_free> owned(made);
    return rpc_devices{detail::strings(made->devices, made->device_count),
                       detail::device_maps(made->reverse_maps, made->reverse_map_count)};
  }

  /// Adds a handler while others may call already.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled) {
    return on_bytes(name, detail::handler_of(std::move(function)), run);
  }
  /// The same of a function of bytes, which may respond later.
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

  static result<rpc> make(const detail::c_rpc_options& options, std::string_view name, std::int32_t rank,
                          std::int32_t world_size, const rpc_handlers& handlers, const context* shared) {
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    const rdzv_rpc_handlers* serving = handlers.c_handle();
    rdzv_rpc* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_new, context, detail::bytes(name), name.size(), rank, world_size,
                                          options.get(), serving, &made))
      return std::move(*failure);
    return rpc(made);
  }

  rdzv_rpc_info c_info() const {
    rdzv_rpc_info info{};
    info.struct_size = sizeof info;
    rdzv_rpc_get_info(c_handle(), &info, nullptr);
    return info;
  }

  std::optional<error> call_into(detail::buffer& response, const rpc_callee& callee, std::string_view handler,
                                 std::string payload, milliseconds timeout) const {
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    return detail::failure_of(rdzv_rpc_call, c_handle(), call.give(), response.get());
  }

  template <class Return>
  result<rpc_future<Return>> start_with(const rpc_callee& callee, std::string_view handler, std::string payload,
                                        milliseconds timeout) const {
    detail::outgoing_call call(callee, handler, std::move(payload), timeout);
    rpc_called called = detail::called(callee, handler);
    rdzv_rpc_future* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rpc_future_new, c_handle(), call.give(), &made))
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
  /// Looks at the group whose keys are those of `over`, such as those under `rpc_prefix_0` of a job's store. `token`
  /// ends every `next` with `status::cancelled`.
  static result<rpc_observer> create(const store& over, const cancel_token* token = nullptr) {
    rdzv_rpc_observer* made = nullptr;
    const rdzv_cancel_token* given = token == nullptr ? nullptr : token->c_handle();
    if (auto failure = detail::failure_of(rdzv_rpc_observer_new, over.c_handle(), given, &made))
      return std::move(*failure);
    return rpc_observer(made);
  }
  /// Returns the next observation; nothing when there was none in time.
  result<std::optional<rpc_observation>> next(std::chrono::milliseconds timeout = default_timeout) const {
    rdzv_rpc_observation observation{};
    observation.struct_size = sizeof observation;
    detail::buffer name, address;
    const rdzv_rpc_observer* observer = handle_.get();
    if (auto failure = detail::failure_of(rdzv_rpc_observer_next, observer, detail::count(timeout), &observation,
                                          name.get(), address.get()))
      return std::move(*failure);
    if (observation.kind == RDZV_RPC_OBSERVATION_NONE) return std::optional<rpc_observation>();
    return std::optional<rpc_observation>(
        rpc_observation{static_cast<rpc_observation_kind>(observation.kind), name.str(), observation.id, address.str()});
  }
  /// Who is there, as far as was seen.
  result<std::vector<rpc_worker_info>> seen() const {
    return detail::workers(rdzv_rpc_observer_list, static_cast<const rdzv_rpc_observer*>(handle_.get()));
  }

 private:
  explicit rpc_observer(rdzv_rpc_observer* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rpc_observer, rdzv_rpc_observer_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RPC_HPP
