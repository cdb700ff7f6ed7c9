// rendezvous/plugin.hpp: stores, rendezvous backends, URL schemes, workers and RPC backends in code of the program. For
// C++17 and later; rendezvous.hpp does not include it.
#ifndef RENDEZVOUS_PLUGIN_HPP
#define RENDEZVOUS_PLUGIN_HPP

#include "agent.hpp"
#include "rpc.hpp"
#include "plugin.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

class custom_handler;
class custom_rendezvous;
class custom_rpc_worker;

/// The reply of code of yours to a call of the library. Valid during the call only.
class reply {
 public:
  explicit reply(rdzv_reply* made) noexcept : reply_(made) {}
  /// Why it failed, as text: the error's message, or the end of it.
  void set_message(std::string_view message) {
    rdzv_reply_set_message(reply_, detail::bytes(message), message.size());
  }
  /// A sum, a count, or 1 for yes and 0 for no.
  void set_number(std::int64_t number) { rdzv_reply_set_number(reply_, number); }
  /// A value or key, or one more of several.
  void add_value(std::string_view value) { rdzv_reply_add_value(reply_, detail::bytes(value), value.size()); }

  // Of rendezvous backends and URL schemes:
  /// The group that is whole, and its round where the backend has rounds: each round of a run has another number. A
  /// reference to the store is kept. A port that is not from 0 to 65535 fails the call that asked with
  /// `status::invalid_argument`.
  void set_group(const store& shared, std::int64_t rank, std::int64_t world_size, const std::string& master_addr = {},
                 std::int64_t master_port = 0, std::optional<std::uint64_t> round = std::nullopt) {
    const rdzv_rendezvous_group group{sizeof group, round ? 1U : 0U, shared.c_handle(), rank, world_size,
                                      round.value_or(0), master_addr.c_str(), master_port};
    rdzv_reply_set_group(reply_, &group);
  }
  void set_event(const round_event& event) {
    const rdzv_round_event c_event = event.c_event();
    rdzv_reply_set_event(reply_, &c_event);
  }
  /// What a backend makes. The library owns it.
  void set_handler(std::unique_ptr<custom_handler> made);
  /// What a URL scheme begins. The library owns it.
  void set_rendezvous(std::unique_ptr<custom_rendezvous> begun);

  // Of RPC backends:
  /// One worker of the group.
  void add_worker(std::string_view name, std::uint16_t id) {
    rdzv_reply_add_worker(reply_, detail::bytes(name), name.size(), id);
  }
  /// What a backend makes. The library owns it.
  void set_worker(std::unique_ptr<custom_rpc_worker> made);

 private:
  rdzv_reply* reply_;
};

namespace detail {

/// Calls code of the program that fills a reply. What it throws is the message of the reply.
template <class Code>
rdzv_status replied(rdzv_reply* c_reply, Code code) {
  reply into(c_reply);
  const auto on_throw = [&](const char* message, status outcome) {
    into.set_message(message);
    return static_cast<rdzv_status>(outcome);
  };
  return guarded([&] { return static_cast<rdzv_status>(code(into)); }, on_throw);
}

/// Member functions that fill a reply, as functions for C. These take arguments of their own types before the reply.
template <class T, class... Parameters>
struct replying {
  template <status (T::*Member)(Parameters..., reply&), class... Given>
  static rdzv_status call(void* user_data, Given... given, rdzv_reply* c_reply) {
    return replied(c_reply, [&](reply& into) {
      return (static_cast<T*>(user_data)->*Member)(static_cast<Parameters>(given)..., into);
    });
  }
};

/// A member function that replies nothing, for C.
template <class T, void (T::*Member)()>
void notify(void* user_data) {
  guarded([&] { (static_cast<T*>(user_data)->*Member)(); });
}

/// The parameters that the C ABI lends to a backend.
inline rendezvous_parameters cpp_parameters(const rdzv_rendezvous_parameters& from) {
  rendezvous_parameters made{from.backend, from.endpoint, from.run_id, from.min_nodes, from.max_nodes};
  made.local_addr = text(from.local_addr);
  for (std::size_t i = 0; i < from.option_count; ++i)
    made.options.emplace_back(from.options[i].name, from.options[i].value);
  return made;
}

}  // namespace detail

/// Request to a store of yours; plugin.h describes each operation at RDZV_STORE_SET and so on.
struct store_request {
  std::int32_t operation = 0;
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;
  /// What is to be added.
  std::int64_t number = 0;
  /// How long RDZV_STORE_WAIT may take.
  std::chrono::milliseconds timeout{0};
};

/// Performs the request; `status::unsupported` for an operation that it does not have. Called on threads of the
/// library's, several at a time; may block; an exception that leaves it is an error of the call that asked. It must not
/// use the store that is asking: such calls fail with `status::reentrant`.
using store_code = std::function<status(const store_request&, reply&)>;

/// A store that asks `code`. `name` is what errors call it.
inline result<store> custom_store(store_code code, const std::string& name = "custom store",
                                  std::chrono::milliseconds timeout = default_timeout,
                                  const context* shared = nullptr) {
  auto owned = std::make_unique<store_code>(std::move(code));
  auto table = detail::table_of<rdzv_store_vtable>(owned);
  table.name = name.c_str();
  const auto perform = [](void* user_data, const rdzv_store_request* asked, rdzv_reply* c_reply) {
    return detail::replied(c_reply, [&](reply& into) {
      store_request request;
      request.operation = asked->operation;
      for (std::size_t i = 0; i < asked->key_count; ++i) request.keys.push_back(detail::text(asked->keys[i]));
      for (std::size_t i = 0; i < asked->value_count; ++i) request.values.push_back(detail::text(asked->values[i]));
      request.number = asked->number;
      request.timeout = std::chrono::milliseconds(asked->timeout_ms);
      return (*static_cast<store_code*>(user_data))(request, into);
    });
  };
  if (*owned) table.perform = perform;  // an empty function is refused as NULL is, not called
  return detail::give<store>(std::move(owned), rdzv_store_new_custom, shared, &table, timeout);
}

/// The value of an option among the parameters that a backend of yours was given; nothing when there is none.
inline std::optional<std::string> option(const rendezvous_parameters& parameters, const std::string& name) {
  const char* value = rdzv_rendezvous_parameters_get(detail::c_parameters(parameters).get(), name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// The same as a truth value.
inline result<bool> option_as_bool(const rendezvous_parameters& parameters, const std::string& name, bool otherwise) {
  const detail::c_parameters given(parameters);
  return detail::call<bool>(rdzv_rendezvous_parameters_get_as_bool, given.get(), name.c_str(), otherwise);
}

/// The same as an integer.
inline result<std::int64_t> option_as_int(const rendezvous_parameters& parameters, const std::string& name,
                                          std::int64_t otherwise) {
  const detail::c_parameters given(parameters);
  return detail::call<std::int64_t>(rdzv_rendezvous_parameters_get_as_int, given.get(), name.c_str(), otherwise);
}

/// Reads `key=value,key=value` into pairs, in the order of their keys.
inline result<std::vector<std::pair<std::string, std::string>>> parse_config(std::string_view text) {
  using strings = std::vector<std::string>;
  return detail::call_for<strings, strings>(rdzv_parse_config, text).transform([](const auto& found) {
    const auto& [keys, values] = found;
    std::vector<std::pair<std::string, std::string>> pairs;
    for (std::size_t i = 0; i < keys.size(); ++i) pairs.emplace_back(keys[i], values[i]);
    return pairs;
  });
}

/// Names of the rendezvous backends of a context.
inline result<std::vector<std::string>> list_backends(const context& of) {
  return detail::call<std::vector<std::string>>(rdzv_context_list_backends, of);
}

/// One node's part in a rendezvous, in code of yours. Called on threads of the library's, several at a time; may
/// block; an exception that leaves it is an error of the call that asked. What it calls on the handle that is asking
/// fails with `status::reentrant`.
class custom_handler {
 public:
  virtual ~custom_handler() = default;
  /// The backend that was asked for.
  virtual std::string backend() const = 0;
  /// Empty: the run of the parameters.
  virtual std::string run_id() const { return {}; }
  virtual bool use_agent_store() const { return false; }
  /// Replies the group.
  virtual status next_rendezvous(reply& into) = 0;
  /// Replies 1 or 0.
  virtual status is_closed(reply& into) = 0;
  virtual status set_closed(reply& into) = 0;
  /// Replies a number.
  virtual status num_nodes_waiting(reply& into) = 0;
  /// Replies an event, or nothing.
  virtual status next_event(std::chrono::milliseconds, reply&) { return status::unsupported; }
  virtual bool shutdown() { return true; }
  /// Ends what the other functions wait for.
  virtual void cancel() {}
  /// Closes the rendezvous because the job has failed, and sends the reason to the other nodes.
  virtual status fail(std::string_view, reply& into) { return set_closed(into); }
  /// This node leaves with its work undone; the other nodes must be notified as of a death. May be called twice.
  virtual void abandon() {}
  /// Whether `next_event` reports every death and of the end of the round.
  virtual bool reports_deaths() const { return false; }
};

/// A rendezvous by URL in code of yours, under way.
class custom_rendezvous {
 public:
  virtual ~custom_rendezvous() = default;
  /// Replies the group.
  virtual status next(reply& into) = 0;
  /// Ends what `next` waits for: its caller has gone. Called while `next` is under way, or after it.
  virtual void cancel() {}
};

/// Makes a handler for these parameters, and replies it.
using backend_code = std::function<status(const rendezvous_parameters&, reply&)>;

/// What a URL scheme of yours is asked.
struct url_request {
  /// With the rank and the world size that the caller named in its query.
  std::string_view url;
  std::chrono::milliseconds timeout{0};
  /// Empty when the caller did not say.
  std::string_view listen_host;
};

/// Begins a rendezvous, and replies it.
using scheme_code = std::function<status(const url_request&, reply&)>;

inline void reply::set_handler(std::unique_ptr<custom_handler> made) {
  using code = custom_handler;
  using replying = detail::replying<code>;
  if (!made) return;
  const std::string backend = made->backend(), run_id = made->run_id();
  auto table = detail::table_of<rdzv_rendezvous_handler_vtable>(made);
  table.use_agent_store = made->use_agent_store() ? 1 : 0;
  table.backend = backend.c_str();
  table.run_id = detail::c_text(run_id);
  table.next_rendezvous = replying::call<&code::next_rendezvous>;
  table.is_closed = replying::call<&code::is_closed>;
  table.set_closed = replying::call<&code::set_closed>;
  table.num_nodes_waiting = replying::call<&code::num_nodes_waiting>;
  using timed = detail::replying<code, std::chrono::milliseconds>;
  table.next_event = timed::call<&code::next_event, std::int64_t>;
  table.shutdown = [](void* user_data) -> std::int32_t {
    return detail::guarded([&] { return static_cast<code*>(user_data)->shutdown(); }) ? 1 : 0;
  };
  table.cancel = detail::notify<code, &code::cancel>;
  table.fail = [](void* user_data, const std::uint8_t* message, std::size_t size, rdzv_reply* c_reply) {
    return detail::replied(c_reply, [&](reply& into) {
      return static_cast<code*>(user_data)->fail(detail::text(message, size), into);
    });
  };
  table.abandon = detail::notify<code, &code::abandon>;
  table.reports_deaths = made->reports_deaths() ? 1 : 0;
  detail::pass();
  static_cast<void>(made.release());
  rdzv_reply_set_handler(reply_, &table);
}

inline void reply::set_rendezvous(std::unique_ptr<custom_rendezvous> begun) {
  if (!begun) return;
  auto table = detail::table_of<rdzv_url_rendezvous_vtable>(begun);
  table.next = detail::replying<custom_rendezvous>::call<&custom_rendezvous::next>;
  table.cancel = detail::notify<custom_rendezvous, &custom_rendezvous::cancel>;
  detail::pass();
  static_cast<void>(begun.release());
  rdzv_reply_set_url_rendezvous(reply_, &table);
}

/// Registers a backend of yours with a context. `name` is what errors call the code; a call may take `timeout`, then
/// its caller goes on without it.
inline result<void> register_backend(context& shared, std::string_view backend, backend_code code,
                                     const std::string& name = "the program's own code",
                                     std::chrono::milliseconds timeout = default_timeout) {
  auto owned = std::make_unique<backend_code>(std::move(code));
  auto table = detail::table_of<rdzv_rendezvous_backend_vtable>(owned);
  table.name = name.c_str();
  table.timeout_ms = detail::count(timeout);
  const auto create = [](void* user_data, const rdzv_rendezvous_parameters* borrowed, rdzv_reply* c_reply) {
    return detail::replied(c_reply, [&](reply& into) {
      return (*static_cast<backend_code*>(user_data))(detail::cpp_parameters(*borrowed), into);
    });
  };
  if (*owned) table.create = create;  // an empty function is refused as NULL is, not called
  return detail::give(std::move(owned), rdzv_context_register_backend, shared, backend, &table);
}

/// Registers a URL scheme of yours with a context. A call may take `timeout` longer than its caller's own.
inline result<void> register_url_scheme(context& shared, std::string_view scheme, scheme_code code,
                                        std::chrono::milliseconds timeout = default_timeout) {
  auto owned = std::make_unique<scheme_code>(std::move(code));
  auto table = detail::table_of<rdzv_url_scheme_vtable>(owned);
  table.timeout_ms = detail::count(timeout);
  const auto begin = [](void* user_data, const rdzv_url_request* asked, rdzv_reply* c_reply) {
    return detail::replied(c_reply, [&](reply& into) {
      const url_request request{detail::text(asked->url, asked->url_len), std::chrono::milliseconds(asked->timeout_ms),
                                detail::text(asked->listen_host, asked->listen_host_len)};
      return (*static_cast<scheme_code*>(user_data))(request, into);
    });
  };
  if (*owned) table.create = begin;
  return detail::give(std::move(owned), rdzv_context_register_url_scheme, shared, scheme, &table);
}

/// Workers to start.
struct worker_start {
  /// The workers with their ranks. Each event must name its attempt.
  worker_group group;
  /// Environment of each worker of the group: names and values.
  std::vector<std::vector<std::pair<std::string, std::string>>> environments;
};

/// Reports events of workers to their agent, from any thread. Events are dropped once the agent is freed. `host` is the
/// worker's host, for failure reports; empty for the agent's own.
class worker_event_sender : public detail::owner<worker_event_sender, rdzv_workers, rdzv_workers_free> {
 public:
  using owner::owner;

  /// `pid` is the worker's process id, or any number that stands for it.
  result<void> started(std::uint64_t attempt, std::uint32_t local_rank, std::uint32_t pid,
                       const std::string& host = {}) const {
    rdzv_worker_event event = of(RDZV_WORKER_STARTED, attempt, local_rank);
    event.pid = pid;
    event.host = host.c_str();
    return send(event);
  }
  result<void> not_started(std::uint64_t attempt, std::uint32_t local_rank, const std::string& reason,
                           bool may_retry) const {
    rdzv_worker_event event = of(RDZV_WORKER_NOT_STARTED, attempt, local_rank);
    event.may_retry = may_retry ? 1 : 0;
    event.message = reason.c_str();
    return send(event);
  }
  /// The worker and its processes have ended. The code is minus the number of the signal that ended it; `message` is
  /// the cause of a failure, if it is known.
  result<void> exited(std::uint64_t attempt, std::uint32_t local_rank, std::int32_t exit_code,
                      const std::string& message = {}, const std::string& host = {}) const {
    rdzv_worker_event event = of(RDZV_WORKER_EXITED, attempt, local_rank);
    event.exit_code = exit_code;
    event.message = message.c_str();
    event.host = host.c_str();
    return send(event);
  }
  /// The worker succeeded and returned this.
  result<void> returned(std::uint64_t attempt, std::uint32_t local_rank, std::string_view data) const {
    rdzv_worker_event event = of(RDZV_WORKER_EXITED, attempt, local_rank);
    event.returned = detail::bytes(data);
    event.returned_len = data.size();
    return send(event);
  }
  /// The worker has hung for this time, and signals do not reach it.
  result<void> stuck(std::uint64_t attempt, std::uint32_t local_rank, std::chrono::milliseconds since) const {
    rdzv_worker_event event = of(RDZV_WORKER_STUCK, attempt, local_rank);
    event.since_ms = since.count();
    return send(event);
  }
  /// The workers cannot be observed any more: this ends the agent.
  result<void> lost(const std::string& reason) const {
    rdzv_worker_event event = of(RDZV_WORKERS_LOST, 0, 0);
    event.message = reason.c_str();
    return send(event);
  }

 private:
  static rdzv_worker_event of(std::int32_t kind, std::uint64_t attempt, std::uint32_t local_rank) {
    auto event = detail::sized<rdzv_worker_event>();
    event.kind = kind;
    event.attempt = attempt;
    event.local_rank = local_rank;
    return event;
  }
  result<void> send(const rdzv_worker_event& event) const {
    return detail::call(rdzv_workers_notify, c_handle(), &event);
  }
};

/// Base of classes that start and monitor workers. The library calls them on one thread of its own, one call after the
/// other. They may block, but the agent's timeouts keep running. An exception that leaves `start` is a failure of the
/// start; others are dropped.
class custom_workers {
 public:
  virtual ~custom_workers() = default;
  /// Starts all workers, or returns why none can be started: `status::exhausted` or `status::timed_out` if a retry may
  /// succeed. Report `started` or `not_started` for each worker, and later `exited` for each started one.
  virtual status start(const worker_start& given) = 0;
  /// Sends a signal to all live workers and the processes that they started.
  virtual void signal(int number) = 0;
  /// Kills all live workers and their processes at once.
  virtual void kill() = 0;
  /// Passes a signal that the agent got on to each live worker.
  virtual void pass(int number) { static_cast<void>(number); }

  /// Sender of this object's events, usable from any thread from the first call on. It may outlive this object.
  std::shared_ptr<const worker_event_sender> sender() const noexcept { return sender_; }

 private:
  friend result<agent> custom_agent(const agent_options& options, const rendezvous_handler& handler,
                                    std::unique_ptr<custom_workers> workers, const context* shared);

  static custom_workers& self(void* user_data) { return *static_cast<custom_workers*>(user_data); }
  template <void (custom_workers::*Member)(int)>
  static void notify(void* user_data, std::int32_t number) {
    detail::guarded([&] { (self(user_data).*Member)(number); });
  }
  static rdzv_status start_with(void* user_data, const rdzv_worker_start* given) {
    const auto start = [&] {
      worker_start copy{worker_group::copy_of(*given->group), {}};
      for (std::size_t i = 0; i < copy.group.workers.size(); ++i) {
        auto& variables = copy.environments.emplace_back();
        for (const char* const* each = given->environments[i]; *each != nullptr; ++each) {
          const std::string_view variable = *each;
          const std::size_t end = variable.find('=');
          variables.emplace_back(variable.substr(0, end), variable.substr(end + 1));
        }
      }
      return static_cast<rdzv_status>(self(user_data).start(copy));
    };
    return detail::guarded(start, [](const char*, status outcome) { return static_cast<rdzv_status>(outcome); });
  }
  static void begin(void* user_data, rdzv_workers* handle) {
    detail::guarded([&] { *self(user_data).sender_ = worker_event_sender::adopt(handle); });
  }

  // Made before there is anything to send: what C calls may not fail for want of memory.
  std::shared_ptr<worker_event_sender> sender_ =
      std::make_shared<worker_event_sender>(worker_event_sender::adopt(nullptr));
};

/// Creates an agent over custom workers, which are destroyed on their thread after the agent. Options for programs,
/// functions and log files are ignored.
inline result<agent> custom_agent(const agent_options& options, const rendezvous_handler& handler,
                                  std::unique_ptr<custom_workers> workers, const context* shared = nullptr) {
  const detail::c_agent_options given(options);
  auto table = detail::table_of<rdzv_workers_vtable>(workers);
  table.begin = custom_workers::begin;
  table.start = custom_workers::start_with;
  table.signal = custom_workers::notify<&custom_workers::signal>;
  table.kill = [](void* user_data) { detail::guarded([&] { custom_workers::self(user_data).kill(); }); };
  table.pass = custom_workers::notify<&custom_workers::pass>;
  return detail::give<agent>(std::move(workers), rdzv_agent_new_custom, shared, &given.value, handler, &table);
}

/// A call that a worker of yours is to make. Its texts are valid during the call only.
struct rpc_outgoing_call {
  /// Name of the callee; nothing: `callee_id` selects it.
  std::optional<std::string_view> callee;
  std::int32_t callee_id;
  std::string_view handler, bytes;
  /// How long it may take; nothing: there is no limit.
  std::optional<std::chrono::milliseconds> timeout;
};

/// A worker of a group, in code of yours. Called on the threads that call the worker, several at a time; what it
/// throws is an error of the call that asked.
class custom_rpc_worker {
 public:
  virtual ~custom_rpc_worker() = default;
  /// Begins a call, and does not wait for its end. `responder` is for what comes of it, from any thread: move it to
  /// where it is kept. It is empty for one-way calls. Once it has been moved the call has begun, whatever this
  /// returns. `rpc_responder::is_wanted` is false once the caller has given the call up. Not called once `shutdown`
  /// has returned.
  virtual status call(const rpc_outgoing_call& call, rpc_responder& responder) = 0;
  /// Replies each worker of the group.
  virtual status list_workers(reply& into) = 0;
  /// Ends the worker, whatever it returns; may be called again. Afterwards the handlers that `new_worker` was given
  /// respond no more: `dispatch` fails with `status::rpc_no_member`.
  virtual status shutdown(rpc_shutdown how, reply& into) = 0;
};

/// Worker that a backend is to make.
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
  virtual status new_worker(rpc_worker_request request, reply& into) = 0;
};

namespace detail {

inline rdzv_status begin_call(void* user_data, const rdzv_rpc_call_spec* asked, rdzv_rpc_responder* c_responder) {
  const passing guard;
  auto responder = rpc_responder::adopt(c_responder);
  const std::string_view name = text(asked->callee, asked->callee_len);
  const auto callee = asked->callee == nullptr ? std::nullopt : std::optional(name);
  const rpc_outgoing_call call{callee, asked->callee_id, text(asked->handler, asked->handler_len),
                               text(asked->payload, asked->payload_len), limited(asked->timeout_ms)};
  const auto on_throw = [&](const char* message, status code) {
    if (responder) std::move(responder).fail(message, code);
    return code;
  };
  const status outcome =
      guarded([&] { return static_cast<custom_rpc_worker*>(user_data)->call(call, responder); }, on_throw);
  // Whether the responder was moved decides who owns the call; a responder that was not moved responds with an error
  // when it is destroyed.
  if (outcome == status::ok || (c_responder != nullptr && !responder)) return RDZV_OK;
  static_cast<void>(responder.release());
  return static_cast<rdzv_status>(outcome);
}

inline rpc_options options_of(const rdzv_rpc_options& given) {
  rpc_options all;
  all.backend = text(given.backend);
  all.rpc_timeout = std::chrono::milliseconds(given.rpc_timeout_ms);
  all.membership_timeout = std::chrono::milliseconds(given.membership_timeout_ms);
  all.init_method = text(given.init_method);
  all.worker_threads = given.worker_threads;
  all.host = text(given.host);
  if (given.transports != nullptr) all.transports = strings(given.transports, given.transport_count);
  if (given.channels != nullptr) all.channels = strings(given.channels, given.channel_count);
  all.device_maps = device_maps(given.device_maps, given.device_map_count);
  all.devices = strings(given.devices, given.device_count);
  all.accelerator = text(given.accelerator);
  all.accelerator_count = given.accelerator_count;
  for (std::size_t i = 0; i < given.extra_option_count; ++i)
    all.extra_options.emplace_back(given.extra_options[i].name, given.extra_options[i].value);
  return all;
}

inline rdzv_status new_worker(void* user_data, const rdzv_rpc_worker_request* asked, rdzv_reply* c_reply) {
  return replied(c_reply, [&](reply& into) {
    auto shared = detail::call<store>(rdzv_store_clone, asked->store);
    if (!shared) {
      into.set_message(shared.error().message());
      return shared.error().code();
    }
    auto handlers = rpc_handlers::adopt(rdzv_rpc_handlers_clone(asked->handlers));
    const auto size = asked->world_size < 0 ? std::nullopt : std::optional<std::int32_t>(asked->world_size);
    rpc_worker_request request{std::string(text(asked->name)), static_cast<std::uint16_t>(asked->id), size,
                               *std::move(shared), std::move(handlers), options_of(*asked->options)};
    return static_cast<custom_rpc_backend*>(user_data)->new_worker(std::move(request), into);
  });
}

}  // namespace detail

inline void reply::set_worker(std::unique_ptr<custom_rpc_worker> made) {
  using code = custom_rpc_worker;
  if (!made) return;
  auto table = detail::table_of<rdzv_rpc_agent_vtable>(made);
  table.call = detail::begin_call;
  table.list_workers = detail::replying<code>::call<&code::list_workers>;
  table.shutdown = detail::replying<code, rpc_shutdown>::call<&code::shutdown, std::int32_t>;
  detail::pass();
  static_cast<void>(made.release());
  rdzv_reply_set_rpc_agent(reply_, &table);
}

/// Registers an RPC backend of yours with a context; the name is exact.
inline result<void> register_rpc_backend(context& shared, std::string_view name,
                                         std::unique_ptr<custom_rpc_backend> code) {
  auto table = detail::table_of<rdzv_rpc_backend_vtable>(code);
  if (code) table.new_worker = detail::new_worker;  // an empty pointer is refused as NULL is
  return detail::give(std::move(code), rdzv_context_register_rpc_backend, shared, name, &table);
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

/// Passes a request that a custom backend received to a handler, on the calling thread. `responder` receives the
/// outcome, from any thread; empty for one-way calls. It is consumed only on success.
inline result<void> dispatch(const rpc_handlers& handlers, const rpc_incoming& incoming, rpc_responder& responder) {
  const std::int64_t time_left_ms = incoming.time_left ? std::int64_t{incoming.time_left->count()} : -1;
  const rdzv_rpc_request_info request{sizeof request, incoming.caller_id, detail::view(incoming.caller),
                                      detail::view(incoming.handler), detail::view(incoming.bytes), time_left_ms, 0, 0};
  rdzv_rpc_responder* const given = responder.release();
  detail::pass();
  auto outcome = detail::call(rdzv_rpc_handlers_dispatch, handlers, &request, given);
  if (!outcome) responder = rpc_responder::adopt(given);
  return outcome;
}

/// The same for a request from another process: `done` is called once with the result, on any thread; empty for one-way
/// calls. It is also called with the error if this function fails.
inline result<void> dispatch(const rpc_handlers& handlers, const rpc_incoming& incoming,
                             std::function<void(result<std::string_view>)> done) {
  auto responder = rpc_responder::adopt(nullptr);
  if (done) {
    auto owned = std::make_unique<detail::done_function>(std::move(done));
    void* const user_data = owned.get();
    auto made = detail::give<rpc_responder>(std::move(owned), rdzv_rpc_responder_new, &detail::call_done, user_data);
    if (!made) return std::move(made).error();
    responder = *std::move(made);
  }
  auto outcome = dispatch(handlers, incoming, responder);
  if (!outcome && responder) std::move(responder).fail(outcome.error().message(), outcome.error().code());
  return outcome;
}

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_PLUGIN_HPP
