// rendezvous/rpc.hpp: workers of RPC groups that call each other's functions with typed arguments, on threads of their
// own or in an event loop. For C++17 and later; rendezvous.hpp includes it.
#ifndef RENDEZVOUS_RPC_HPP
#define RENDEZVOUS_RPC_HPP

#include "loop.hpp"
#include "rpc_codec.hpp"
#include "rpc_handlers.hpp"
#include "rpc.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Whom a call is for, a name or a number, and how long the call may take: by default as the worker's options say.
class rpc_callee {
 public:
  using milliseconds = std::chrono::milliseconds;

  template <class Name, class = std::enable_if_t<std::is_convertible_v<const Name&, std::string_view>>>
  rpc_callee(const Name& name, milliseconds timeout = default_timeout) : name_(name), timeout_(timeout) {}
  rpc_callee(int id, milliseconds timeout = default_timeout) noexcept : id_(id), timeout_(timeout) {}

  /// The name; nothing where the callee is selected by its number.
  const std::optional<std::string_view>& name() const noexcept { return name_; }
  /// The number; -1 where the callee is selected by its name.
  std::int32_t id() const noexcept { return id_; }
  /// A call of this handler, for C.
  rdzv_rpc_call_spec c_call(std::string_view handler) const {
    static const std::uint8_t nothing = 0;
    auto call = detail::sized<rdzv_rpc_call_spec>();
    call.callee_id = id_;
    // An empty name matches no worker; it does not select by number.
    if (name_) call.callee = name_->empty() ? &nothing : detail::bytes(*name_);
    if (name_) call.callee_len = name_->size();
    call.handler = detail::bytes(handler);
    call.handler_len = handler.size();
    call.timeout_ms = detail::count(timeout_);
    return call;
  }

 private:
  std::optional<std::string_view> name_;
  std::int32_t id_ = -1;
  milliseconds timeout_;
};

namespace detail {

/// Callee and handler of a call that is under way.
struct kept_call {
  kept_call() = default;
  kept_call(const rpc_callee& of, std::string_view called) : name(of.name()), id(of.id()), handler(called) {}
  rpc_callee callee() const { return name ? rpc_callee(*name) : rpc_callee(id); }

  std::optional<std::string> name;
  std::int32_t id = -1;
  std::string handler;
};

/// What a caller gets: of `rpc_bytes`, the bytes.
template <class T>
using response_of = std::conditional_t<std::is_same_v<T, rpc_bytes>, std::string, T>;

/// What went wrong with a call, as the library reports it: the message begins with handler and callee.
inline error error_of(const rpc_callee& callee, std::string_view handler, status code, std::string_view why) {
  std::string message = std::string(handler) + " at ";
  message.append(callee.id() < 0 ? std::string(callee.name().value_or("")) : "id " + std::to_string(callee.id()));
  message.append(": ").append(why);
  const auto number = static_cast<rdzv_status>(code);
  const rdzv_rpc_call_spec call = callee.c_call({});
  return error(number, rdzv_error_new_of_call(number, bytes(message), message.size(), &call));
}

/// The response of a call.
template <class T>
result<response_of<T>> unpacked([[maybe_unused]] std::string_view bytes, [[maybe_unused]] const rpc_callee& callee,
                                [[maybe_unused]] std::string_view handler) {
  static_assert(!std::is_same_v<T, rpc_payload>, "these bytes are borrowed: take rdzv::rpc_bytes here");
  static_assert(!is_view<T>::value, "a std::string_view cannot outlive the response: take a std::string");
  if constexpr (std::is_void_v<T>) {
    return {};  // what the handler returns is not wanted
  } else if constexpr (std::is_same_v<T, rpc_bytes>) {
    return std::string(bytes);
  } else {
    constexpr std::string_view wanted = types_of<T>::value;
    reader in(bytes);
    std::string_view types;
    const bool is_typed = read_types(in, types);
    T value{};
    if (is_typed && types == wanted && codec<T>::read(in, value) && in.left() == 0) return value;
    const std::string asked = described_types(true, wanted);
    return error_of(callee, handler, status::rpc_malformed,
                    is_typed && types == wanted
                        ? "the response cannot be read as " + asked
                        : "it returns " + described_types(is_typed, types) + ", and was called for " + asked);
  }
}

/// The same of bytes that are the caller's.
template <class T>
result<response_of<T>> unpacked(buffer bytes, const rpc_callee& callee, std::string_view handler) {
  if constexpr (std::is_same_v<T, rpc_payload>) {
    return bytes;
  } else {
    return unpacked<T>(bytes.bytes(), callee, handler);
  }
}

inline std::string payload_of(rpc_bytes all) { return std::move(all.bytes); }
template <class... Values>
std::string payload_of(const Values&... values) {
  static_assert(!(std::is_same_v<Values, rpc_bytes> || ...), "rdzv::rpc_bytes is the only argument of its call");
  return typed_payload(values...);
}

/// The payload of a call and the struct that names it.
class outgoing_call : pinned {
 public:
  template <class... Arguments>
  outgoing_call(const rpc_callee& callee, std::string_view handler, Arguments&&... arguments)
      : payload_(payload_of(std::forward<Arguments>(arguments)...)), call_(callee.c_call(handler)) {
    call_.payload = bytes(payload_);
    call_.payload_len = payload_.size();
    if (payload_.size() < borrowed_size_min) return;
    borrowed_ = std::make_unique<std::string>(std::move(payload_));
    call_.payload = bytes(*borrowed_);
    call_.release = destroy<std::string>;
    call_.user_data = borrowed_.get();
  }
  /// Passes the payload to the function that makes the call, which releases it. Call this once.
  const rdzv_rpc_call_spec* give() noexcept {
    static_cast<void>(borrowed_.release());
    return &call_;
  }

 private:
  std::string payload_;
  std::unique_ptr<std::string> borrowed_;
  rdzv_rpc_call_spec call_;
};

/// Called with the result when a call has ended.
using done_function = std::function<void(result<std::string_view>)>;

inline void call_done(void* user_data, rdzv_status code, const std::uint8_t* data, std::size_t size,
                      const rdzv_error* failure) {
  const passing guard;
  const std::unique_ptr<done_function> done(static_cast<done_function*>(user_data));
  guarded([&] {
    if (code == RDZV_OK) return (*done)(text(data, size));
    (*done)(error(code, rdzv_error_clone(failure)));
  });
}

}  // namespace detail

/// A call under way; `T` is what its handler returns. Destroyed before it has ended, it is cancelled.
template <class T>
class rpc_future : public detail::owner<rpc_future<T>, rdzv_rpc_future, rdzv_rpc_future_free> {
 public:
  using detail::owner<rpc_future, rdzv_rpc_future, rdzv_rpc_future_free>::owner;

  /// Waits so long; whether it has ended.
  result<bool> wait(std::chrono::milliseconds timeout) {
    if (response_) return true;
    auto found = detail::call_for<bool, detail::buffer>(rdzv_rpc_future_wait, this->c_handle(), timeout);
    return std::move(found).transform([this](auto& of) {
      auto& [has_ended, response] = of;
      if (has_ended) response_ = std::move(response);
      return has_ended;
    });
  }
  /// Waits as long as the call may take, and returns the response. Once.
  result<detail::response_of<T>> get() {
    if (is_taken_) return failed(status::invalid_argument, "its response was taken before");
    auto ended = wait(default_timeout);
    if (!ended.has_value()) return std::move(ended).error();
    if (!*ended) return failed(status::timed_out, "it has not responded");
    is_taken_ = true;
    return detail::unpacked<T>(*std::exchange(response_, std::nullopt), call_.callee(), call_.handler);
  }
  /// Cancels the call, from any thread: waiting threads get `status::cancelled`.
  void cancel() const { rdzv_rpc_future_cancel(this->c_handle()); }

 private:
  friend class rpc;
  error failed(status code, std::string_view why) const {
    return detail::error_of(call_.callee(), call_.handler, code, why);
  }

  detail::kept_call call_;
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
  /// The store that the group meets over, in place of a URL. Give each group a prefix of its own.
  const rdzv::store* store = nullptr;
  /// What the environment says (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), for `env://`. The library never reads
  /// the environment: call `read_environment()`.
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
  /// TLS of the calls between workers, with the backend `tcp` alone. It must live until the worker has joined.
  const rdzv_tls_options* tls = nullptr;
  /// File with the tokens that the workers prove to each other, with the backend `tcp` alone; `std::nullopt`: that of
  /// `store`. An empty path is refused.
  std::optional<std::string> auth_token_file = {};

  /// Reads the variables from the environment of this process. No other thread may change it meanwhile.
  rpc_options& read_environment() {
    variables = url_options().read_environment().variables;
    return *this;
  }
};

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
  /// Calls come to their ends, and the others are notified.
  graceful = RDZV_RPC_GRACEFUL,
  /// At once and without a word.
  abrupt = RDZV_RPC_ABRUPT,
};

namespace detail {

/// The options for C, which point into `given` and into this.
class c_rpc_options : pinned {
 public:
  explicit c_rpc_options(const rpc_options& given)
      : variables_(c_pairs<rdzv_pair>(given.variables)), extra_options_(c_pairs<rdzv_pair>(given.extra_options)) {
    for (const auto& [worker, pairs] : given.device_maps) {
      const auto& kept = pairs_.emplace_back(c_pairs<rdzv_rpc_device_pair>(pairs));
      device_maps_.push_back({worker.c_str(), kept.data(), kept.size()});
    }
    c_.worker_threads = given.worker_threads;
    set_texts({{&c_.backend, given.backend}, {&c_.init_method, given.init_method}, {&c_.host, given.host},
               {&c_.listen_host, given.listen_host}, {&c_.accelerator, given.accelerator}});
    c_.auth_token_file = detail::or_null(given.auth_token_file);
    if (given.store != nullptr) c_.store = given.store->c_handle();
    if (given.token != nullptr) c_.token = given.token->c_handle();
    c_.rpc_timeout_ms = given.rpc_timeout == default_timeout ? 0 : given.rpc_timeout.count();
    c_.membership_timeout_ms = given.membership_timeout == default_timeout ? 0 : given.membership_timeout.count();
    std::tie(c_.variables, c_.variable_count) = std::pair(variables_.data(), variables_.size());
    if (given.transports) std::tie(c_.transports, c_.transport_count) = list_of(*given.transports);
    if (given.channels) std::tie(c_.channels, c_.channel_count) = list_of(*given.channels);
    std::tie(c_.devices, c_.device_count) = list_of(given.devices);
    std::tie(c_.device_maps, c_.device_map_count) = std::pair(device_maps_.data(), device_maps_.size());
    c_.accelerator_count = given.accelerator_count;
    std::tie(c_.extra_options, c_.extra_option_count) = std::pair(extra_options_.data(), extra_options_.size());
    c_.tls = given.tls;
  }
  const rdzv_rpc_options* get() const noexcept { return &c_; }

 private:
  std::pair<const char* const*, std::size_t> list_of(const std::vector<std::string>& strings) {
    auto& list = lists_.emplace_back();
    for (const std::string& string : strings) list.push_back(string.c_str());
    // A list of none has an address all the same.
    list.push_back(nullptr);
    return {list.data(), strings.size()};
  }

  std::vector<std::vector<const char*>> lists_;
  std::vector<rdzv_pair> variables_, extra_options_;
  std::vector<std::vector<rdzv_rpc_device_pair>> pairs_;
  std::vector<rdzv_rpc_device_map> device_maps_;
  rdzv_rpc_options c_ = sized<rdzv_rpc_options>();
};

inline void remove_member(rdzv_loop_member* member) { static_cast<void>(rdzv_loop_remove(member, nullptr)); }

/// The workers of a list, which `fill` makes.
template <class Function, class Handle>
result<std::vector<rpc_worker_info>> workers(Function fill, Handle from) {
  using list = handle<rdzv_rpc_workers, rdzv_rpc_workers_free>;
  return call<list>(fill, from).transform([](const list& made) {
    std::vector<rpc_worker_info> all;
    for (std::size_t i = 0; i < made->count; ++i) {
      const rdzv_rpc_worker_info& of = made->workers[i];
      all.push_back({std::string(text(of.name)), static_cast<std::uint16_t>(of.id), std::string(text(of.address))});
    }
    return all;
  });
}

/// An event and its texts.
using c_rpc_event = std::tuple<rdzv_rpc_event, std::string, std::string>;
inline rpc_event cpp_rpc_event(const c_rpc_event& of) {
  const auto& [event, name, why] = of;
  return {static_cast<rpc_event_kind>(event.kind), name, event.id, why};
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
/// shut down. It must not run while others use it, nor in a handler or a callback of its own, where it has no effect.
class rpc : public detail::owner<rpc, rdzv_rpc, rdzv_rpc_free> {
 public:
  using owner::owner;

  /// Becomes a worker of the group that meets as the options say, and returns once it is one. `rank` -1: the URL or the
  /// variables say it; `world_size` -1 or 0: workers come and go. A context has one worker at a time.
  static result<rpc> create(std::string_view name, std::int32_t rank, std::int32_t world_size,
                            const rpc_options& options, const rpc_handlers& handlers,
                            const context* shared = nullptr) {
    const detail::c_rpc_options given(options);
    return detail::call<rpc>(rdzv_rpc_new, shared, name, rank, world_size, given.get(), handlers);
  }

  /// Calls a handler with typed arguments or with `rpc_bytes`, and waits for its response. The types must be those that
  /// the handler takes and returns, or the call fails with `status::rpc_malformed` and the names of both; `Return` may
  /// also be `rpc_bytes` or `rpc_payload`, for the bytes of the response, or `void`, which drops it. In a handler on the
  /// reactor and in a callback it is `status::reentrant`: these may not wait.
  template <class Return = void, class... Arguments>
  result<detail::response_of<Return>> call(const rpc_callee& callee, std::string_view handler,
                                           Arguments&&... arguments) const {
    detail::outgoing_call call(callee, handler, std::forward<Arguments>(arguments)...);
    auto response = detail::call<detail::buffer>(rdzv_rpc_call, c_handle(), call.give());
    if (!response) return std::move(response).error();
    return detail::unpacked<Return>(*std::move(response), callee, handler);
  }
  /// Calls, and does not wait.
  template <class Return = void, class... Arguments>
  result<rpc_future<Return>> start(const rpc_callee& callee, std::string_view handler,
                                   Arguments&&... arguments) const {
    detail::outgoing_call call(callee, handler, std::forward<Arguments>(arguments)...);
    detail::kept_call kept(callee, handler);
    auto made = detail::call<rpc_future<Return>>(rdzv_rpc_future_new, c_handle(), call.give());
    if (made) made->call_ = std::move(kept);
    return made;
  }
  /// Starts a call. `done` gets a `result<Return>`, once, on a thread of the library; it must not block, and what it
  /// throws is dropped. It is not called when this function fails.
  template <class Return = void, class Done, class... Arguments>
  result<void> call_then(Done done, const rpc_callee& callee, std::string_view handler,
                         Arguments&&... arguments) const {
    const auto kept = std::make_shared<Done>(std::move(done));
    auto owned = std::make_unique<detail::done_function>(
        [kept, call = detail::kept_call(callee, handler)](result<std::string_view> response) {
          if (!response) return (*kept)(result<detail::response_of<Return>>(std::move(response).error()));
          (*kept)(detail::unpacked<Return>(*response, call.callee(), call.handler));
        });
    void* const user_data = owned.get();
    detail::outgoing_call call(callee, handler, std::forward<Arguments>(arguments)...);
    return detail::give(std::move(owned), rdzv_rpc_call_with, c_handle(), call.give(), &detail::call_done, user_data);
  }
  /// Sends a one-way call: no response, and no report of whether it arrived.
  template <class... Arguments>
  result<void> notify(const rpc_callee& callee, std::string_view handler, Arguments&&... arguments) const {
    detail::outgoing_call call(callee, handler, std::forward<Arguments>(arguments)...);
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
    using list = detail::handle<rdzv_rpc_devices, rdzv_rpc_devices_free>;
    return detail::call<list>(rdzv_rpc_list_devices, c_handle()).transform([](const list& made) {
      return rpc_devices{detail::strings(made->devices, made->device_count),
                         detail::device_maps(made->reverse_maps, made->reverse_map_count)};
    });
  }

  /// Adds a handler while others may call already.
  template <class Function>
  result<void> on(std::string_view name, Function function, rpc_run run = rpc_run::pooled,
                  const char* callers = nullptr) {
    return detail::add_handler(rdzv_rpc_add_handler, c_handle(), name, std::move(function), run, callers);
  }
  /// Takes a handler out; whether there was one.
  result<bool> remove(std::string_view name) { return detail::call<bool>(rdzv_rpc_remove_handler, c_handle(), name); }

  /// The next thing that happens to the group; nothing when nothing did in time. The last is `rpc_event_kind::over`;
  /// after it, this fails at once with `status::rpc_no_member`.
  result<std::optional<rpc_event>> next_event(std::chrono::milliseconds timeout = default_timeout) const {
    auto next = detail::call_for<rdzv_rpc_event, std::string, std::string>(rdzv_rpc_next_event, c_handle(), timeout);
    return std::move(next).transform([](const detail::c_rpc_event& found) {
      const bool is_none = std::get<0>(found).kind == RDZV_RPC_EVENT_NONE;
      return is_none ? std::nullopt : std::optional<rpc_event>(detail::cpp_rpc_event(found));
    });
  }

  /// Ends the worker; it has ended when this returns, whatever it returns but `status::reentrant`: so a handler or a
  /// callback of its own gets that status, and the worker goes on.
  result<void> shutdown(rpc_shutdown how = rpc_shutdown::graceful) const {
    return detail::call(rdzv_rpc_shutdown, c_handle(), how);
  }

 private:
  rdzv_rpc_info c_info() const {
    auto info = detail::sized<rdzv_rpc_info>();
    rdzv_rpc_get_info(c_handle(), &info, nullptr);
    return info;
  }
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
class rpc_observer : public detail::owner<rpc_observer, rdzv_rpc_observer, rdzv_rpc_observer_free> {
 public:
  using owner::owner;
  /// Looks at the group whose keys are those of `over`, such as those under `rpc_prefix_0` of a job's store. `token`
  /// ends every `next` with `status::cancelled`.
  static result<rpc_observer> create(const store& over, const cancel_token* token = nullptr) {
    return detail::call<rpc_observer>(rdzv_rpc_observer_new, over, token);
  }
  /// Returns the next observation; nothing when there was none in time.
  result<std::optional<rpc_observation>> next(std::chrono::milliseconds timeout = default_timeout) const {
    using detail::call_for;
    auto found = call_for<rdzv_rpc_observation, std::string, std::string>(rdzv_rpc_observer_next, c_handle(), timeout);
    return std::move(found).transform([](auto& of) -> std::optional<rpc_observation> {
      const auto& [seen, name, address] = of;
      if (seen.kind == RDZV_RPC_OBSERVATION_NONE) return std::nullopt;
      return rpc_observation{static_cast<rpc_observation_kind>(seen.kind), name, seen.id, address};
    });
  }
  /// Returns the workers that were seen.
  result<std::vector<rpc_worker_info>> seen() const { return detail::workers(rdzv_rpc_observer_list, c_handle()); }
};

/// A worker of an RPC group in an event loop: one thread, no callback, nothing that blocks. What happens comes as
/// events of the loop, with its `member`: `rpc_joined` first, then requests, changes of the group and the ends of
/// calls, and at last, when it has ended, `rpc_over`. Destroyed, it ends abruptly; it must go before its loop.
class loop_rpc : public detail::owner<loop_rpc, rdzv_loop_member, detail::remove_member> {
 public:
  using owner::owner;

  /// Begins to become a worker, as `rpc::create`. The loop responds to handlers of `rpc_handlers::on_loop`.
  static result<loop_rpc> create(event_loop& loop, std::string_view name, std::int32_t rank, std::int32_t world_size,
                                 const rpc_options& options, const rpc_handlers& handlers,
                                 const context* shared = nullptr, void* user_data = nullptr) {
    const detail::c_rpc_options given(options);
    return detail::call<loop_rpc>(rdzv_loop_rpc_new, loop, shared, name, rank, world_size, given.get(), handlers,
                                  user_data);
  }
  /// One that is a member already: its events come here. It lives on as long as `worker` does.
  static result<loop_rpc> add(event_loop& loop, const rpc& worker, void* user_data = nullptr) {
    return detail::call<loop_rpc>(rdzv_loop_add_rpc, loop, worker, user_data);
  }

  /// Member of the loop, as events name it.
  event_loop::member member() const noexcept { return c_handle(); }

  /// Calls a handler with typed arguments or with `rpc_bytes`, as the operation `op`; `rpc_response_of` reads the
  /// response when it has completed. `event_loop::cancel` cancels it.
  template <class... Arguments>
  result<void> call(operation& op, const rpc_callee& callee, std::string_view handler, Arguments&&... arguments) {
    detail::outgoing_call call(callee, handler, std::forward<Arguments>(arguments)...);
    return detail::call(rdzv_loop_rpc_call, c_handle(), op, call.give());
  }

  /// Adds a name whose requests are events, while others may call already.
  result<void> on_loop(std::string_view name, const char* callers = nullptr) {
    return detail::call(rdzv_loop_rpc_add_handler, c_handle(), name, callers);
  }
  /// Begins to end it.
  result<void> shutdown(rpc_shutdown how = rpc_shutdown::graceful) {
    return detail::call(rdzv_loop_rpc_shutdown, c_handle(), how);
  }
  /// Another handle, once it is a member: for its name, its workers, one-way calls and so on. Destroyed, it ends
  /// nothing.
  result<rpc> handle() const { return detail::call<rpc>(rdzv_loop_rpc_handle, c_handle()); }
};

/// What a handler of a loop's is asked, and its responder.
struct loop_request {
  /// Valid until the loop's next event is taken.
  rpc_request request;
  /// May be moved to where it is kept, to respond later.
  rpc_responder responder;

  /// Responds with what a function of typed arguments returns; what it throws fails the call. The first argument may be
  /// a `const rpc_request&`.
  template <class Function>
  void respond_with(Function function) {
    detail::run_handler(detail::run_typed<Function>, function, request, responder);
  }
};

/// What is asked; for the last event of the loop, when that was one of `event_kind::rpc_request`. Once.
inline result<loop_request> rpc_request_of(event_loop& loop) {
  return detail::call<rpc_responder>(rdzv_loop_rpc_responder, loop).transform([&](rpc_responder& responder) {
    return loop_request{rpc_request(rdzv_loop_rpc_request(loop.c_handle())), std::move(responder)};
  });
}

/// What happened; for the last event of the loop, when that was one of `event_kind::rpc`.
inline result<rpc_event> rpc_event_of(event_loop& loop) {
  return detail::call_for<rdzv_rpc_event, std::string, std::string>(rdzv_loop_rpc_event, loop)
      .transform(detail::cpp_rpc_event);
}

/// The response of a completed call, as a value of the type that the handler returns; of `rpc_bytes`, the bytes. The
/// error is the one that a blocking call would return; that of an unreadable response names `callee` and `handler`.
template <class Return = void>
result<detail::response_of<Return>> rpc_response_of(const operation& op, const rpc_callee& callee = -1,
                                                    std::string_view handler = {}) {
  auto found = op.outcome();
  if (!found) return std::move(found).error();
  return detail::unpacked<Return>(detail::text(found->value, found->value_len), callee, handler);
}

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RPC_HPP
