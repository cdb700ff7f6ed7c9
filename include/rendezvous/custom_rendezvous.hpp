// rendezvous/custom_rendezvous.hpp: rendezvous backends and URL schemes in code of yours, for C++17 and later.
// plugin.hpp includes it.
#ifndef RENDEZVOUS_CUSTOM_RENDEZVOUS_HPP
#define RENDEZVOUS_CUSTOM_RENDEZVOUS_HPP

#include "custom_reply.hpp"
#include "rendezvous.hpp"

#include <atomic>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// The value of an option among the parameters that a backend of yours was given; nothing when there is none.
inline std::optional<std::string> option(const rendezvous_parameters& parameters, const std::string& name) {
  const char* value = rdzv_rendezvous_parameters_get(detail::c_parameters(parameters).get(), name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// The same as a truth value.
inline result<bool> option_as_bool(const rendezvous_parameters& parameters, const std::string& name, bool otherwise) {
  std::int32_t value = 0;
  auto failure = detail::failure_of(rdzv_rendezvous_parameters_get_as_bool, detail::c_parameters(parameters).get(),
                                    name.c_str(), std::int32_t{otherwise}, &value);
  if (failure) return std::move(*failure);
  return value != 0;
}

/// The same as an integer.
inline result<std::int64_t> option_as_int(const rendezvous_parameters& parameters, const std::string& name,
                                          std::int64_t otherwise) {
  std::int64_t value = 0;
  auto failure = detail::failure_of(rdzv_rendezvous_parameters_get_as_int, detail::c_parameters(parameters).get(),
                                    name.c_str(), otherwise, &value);
  if (failure) return std::move(*failure);
  return value;
}

/// A host, and a port if one is named.
struct endpoint {
  std::string host;
  std::optional<std::uint16_t> port;
};

/// Reads `host`, `host:port`, `[address]` or `[address]:port`; nothing at all is `localhost`.
inline result<endpoint> parse_endpoint(std::string_view message) {
  detail::buffer host;
  std::int32_t port = -1;
  if (auto failure = detail::failure_of(rdzv_parse_endpoint, detail::bytes(message), message.size(), host.get(), &port))
    return std::move(*failure);
  endpoint read{host.str(), std::nullopt};
  if (port >= 0) read.port = static_cast<std::uint16_t>(port);
  return read;
}

/// Reads `key=value,key=value` into pairs, in the order of their keys.
inline result<std::vector<std::pair<std::string, std::string>>> parse_config(std::string_view message) {
  detail::list keys, values;
  auto failure = detail::failure_of(rdzv_parse_config, detail::bytes(message), message.size(), keys.get(), values.get());
  if (failure) return std::move(*failure);
  std::vector<std::pair<std::string, std::string>> pairs;
  const auto names = keys.strs(), contents = values.strs();
  for (std::size_t i = 0; i < names.size(); ++i) pairs.emplace_back(names[i], contents[i]);
  return pairs;
}

class custom_handler;
class custom_rendezvous;

/// The reply of a rendezvous in code of yours. Valid during the call only.
class rendezvous_reply : public plugin_reply {
 public:
  using plugin_reply::plugin_reply;
  /// The group that is whole, and its round where the backend has rounds: each round of a run has another number. A
  /// reference to the store is kept. A port that is not from 0 to 65535 fails the call that asked with
  /// `status::invalid_argument`.
  void set_group(const store& shared, std::int64_t rank, std::int64_t world_size, const std::string& master_addr = {},
                 detail::port_number master_port = 0, std::optional<std::uint64_t> round = std::nullopt) {
    rdzv_rendezvous_group group{};
    group.struct_size = sizeof group;
    group.has_round = round ? 1 : 0;
    group.store = shared.c_handle();
    group.rank = rank;
    group.world_size = world_size;
    group.round = round.value_or(0);
    group.master_addr = master_addr.c_str();
    group.master_port = master_port.number();
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
};

/// One node's part in a rendezvous, in code of yours. Called on threads of the library's, several at a time; may block;
/// an exception that leaves it is an error of the call that asked. What it calls on the handle that is asking fails with
/// `status::reentrant`.
class custom_handler {
 public:
  virtual ~custom_handler() = default;
  /// The backend that was asked for.
  virtual std::string backend() const = 0;
  /// Empty: the run of the parameters.
  virtual std::string run_id() const { return {}; }
  virtual bool use_agent_store() const { return false; }
  /// Replies the group.
  virtual status next_rendezvous(rendezvous_reply& reply) = 0;
  /// Replies 1 or 0.
  virtual status is_closed(rendezvous_reply& reply) = 0;
  virtual status set_closed(rendezvous_reply& reply) = 0;
  /// Replies a number.
  virtual status num_nodes_waiting(rendezvous_reply& reply) = 0;
  /// Replies an event, or nothing.
  virtual status next_event(std::chrono::milliseconds, rendezvous_reply&) { return status::unsupported; }
  virtual bool shutdown() { return true; }
  /// Ends what the other functions wait for.
  virtual void cancel() {}
  /// Closes the rendezvous because the job has failed, and sends the reason to the other nodes.
  virtual status fail(std::string_view, rendezvous_reply& reply) { return set_closed(reply); }
  /// This node leaves with its work undone; the other nodes must be notified as of a death. May be called twice.
  virtual void abandon() {}
  /// Whether `next_event` tells of every death and of the end of the round.
  virtual bool reports_deaths() const { return false; }
};

/// A rendezvous by URL in code of yours, under way.
class custom_rendezvous {
 public:
  virtual ~custom_rendezvous() = default;
  /// Replies the group.
  virtual status next(rendezvous_reply& reply) = 0;
  /// Ends what `next` waits for: its caller has gone. Called while `next` is under way, or after it.
  virtual void cancel() {}
};

/// Makes a handler for these parameters, and replies it.
using backend_code = std::function<status(const rendezvous_parameters&, rendezvous_reply&)>;

/// What a URL scheme of yours is asked.
struct url_request {
  /// With the rank and the world size that the caller named in its query.
  std::string_view url;
  std::chrono::milliseconds timeout{0};
  /// Empty when the caller did not say.
  std::string_view listen_host;
};

/// Begins a rendezvous, and replies it.
using scheme_code = std::function<status(const url_request&, rendezvous_reply&)>;

namespace detail {

template <class Code>
rdzv_status caught(rdzv_reply* c_reply, Code code) {
  rendezvous_reply reply(c_reply);
  return caught_into(reply, std::move(code));
}

/// User code that moves between threads of the library. A thread sanitizer does not see into the library, so each pass
/// synchronizes with all earlier ones.
template <class T>
class handed_over {
 public:
  explicit handed_over(std::unique_ptr<T> code) : code_(std::move(code)) { pass(); }
  template <class Body>
  auto call(Body body) {
    pass();
    const leaving guard;
    return body(*code_);
  }
  static void destroy(void* user_data) {
    pass();
    delete static_cast<handed_over*>(user_data);
  }

 private:
  struct leaving {
    leaving() = default;
    leaving(const leaving&) = delete;
    leaving& operator=(const leaving&) = delete;
    ~leaving() { pass(); }
  };
  static void pass() noexcept { passes_.fetch_add(1, std::memory_order_acq_rel); }
  std::unique_ptr<T> code_;
  // One for all objects: an atomic inside the object could not order the object's own deletion.
  static inline std::atomic<std::uint32_t> passes_{0};
};

/// The parameters that the C ABI lends to a backend.
inline rendezvous_parameters cpp_parameters(const rdzv_rendezvous_parameters& from) {
  rendezvous_parameters made{from.backend, from.endpoint, from.run_id, from.min_nodes, from.max_nodes};
  if (from.local_addr != nullptr) made.local_addr = from.local_addr;
  for (std::size_t i = 0; i < from.option_count; ++i)
    made.options.emplace_back(from.options[i].name, from.options[i].value);
  return made;
}

template <class T>
void destroy(void* user_data) {
  delete static_cast<T*>(user_data);
}

using handler_code = handed_over<custom_handler>;

/// A member function of a handler, for C.
template <status (custom_handler::*Member)(rendezvous_reply&)>
rdzv_status reply_with(void* user_data, rdzv_reply* c_reply) {
  return caught(c_reply, [&](rendezvous_reply& reply) {
    return static_cast<handler_code*>(user_data)->call([&](custom_handler& code) { return (code.*Member)(reply); });
  });
}

/// The same of one that replies nothing.
template <class T, void (T::*Member)()>
void notify(void* user_data) {
#if defined(__cpp_exceptions)
  try {
#endif
    static_cast<handed_over<T>*>(user_data)->call([](T& code) { (code.*Member)(); });
#if defined(__cpp_exceptions)
  } catch (...) {
  }
#endif
}

}  // namespace detail

inline void rendezvous_reply::set_handler(std::unique_ptr<custom_handler> made) {
  if (!made) return;
  const std::string backend = made->backend(), run_id = made->run_id();
  rdzv_rendezvous_handler_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.use_agent_store = made->use_agent_store() ? 1 : 0;
  vtable.backend = backend.c_str();
  vtable.run_id = run_id.empty() ? nullptr : run_id.c_str();
  vtable.next_rendezvous = detail::reply_with<&custom_handler::next_rendezvous>;
  vtable.is_closed = detail::reply_with<&custom_handler::is_closed>;
  vtable.set_closed = detail::reply_with<&custom_handler::set_closed>;
  vtable.num_nodes_waiting = detail::reply_with<&custom_handler::num_nodes_waiting>;
  vtable.next_event = [](void* user_data, std::int64_t timeout_ms, rdzv_reply* c_reply) {
    return detail::caught(c_reply, [&](rendezvous_reply& reply) {
      return static_cast<detail::handler_code*>(user_data)->call([&](custom_handler& code) {
        return code.next_event(std::chrono::milliseconds(timeout_ms), reply);
      });
    });
  };
  vtable.shutdown = [](void* user_data) -> std::int32_t {
#if defined(__cpp_exceptions)
    try {
#endif
      const auto body = [](custom_handler& code) { return code.shutdown(); };
      return static_cast<detail::handler_code*>(user_data)->call(body) ? 1 : 0;
#if defined(__cpp_exceptions)
    } catch (...) {
      return 0;
    }
#endif
  };
  vtable.cancel = detail::notify<custom_handler, &custom_handler::cancel>;
  vtable.fail = [](void* user_data, const std::uint8_t* message, std::size_t message_len, rdzv_reply* c_reply) {
    return detail::caught(c_reply, [&](rendezvous_reply& reply) {
      return static_cast<detail::handler_code*>(user_data)->call([&](custom_handler& code) {
        return code.fail(std::string_view(reinterpret_cast<const char*>(message), message_len), reply);
      });
    });
  };
  vtable.abandon = detail::notify<custom_handler, &custom_handler::abandon>;
  vtable.reports_deaths = made->reports_deaths() ? 1 : 0;
  vtable.destroy = detail::handler_code::destroy;
  vtable.user_data = new detail::handler_code(std::move(made));
  rdzv_reply_set_handler(reply_, &vtable);
}

inline void rendezvous_reply::set_rendezvous(std::unique_ptr<custom_rendezvous> begun) {
  using code = detail::handed_over<custom_rendezvous>;
  if (!begun) return;
  rdzv_url_rendezvous_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.next = [](void* user_data, rdzv_reply* c_reply) {
    return detail::caught(c_reply, [&](rendezvous_reply& reply) {
      return static_cast<code*>(user_data)->call([&](custom_rendezvous& rendezvous) { return rendezvous.next(reply); });
    });
  };
  vtable.destroy = code::destroy;
  vtable.cancel = detail::notify<custom_rendezvous, &custom_rendezvous::cancel>;
  vtable.user_data = new code(std::move(begun));
  rdzv_reply_set_url_rendezvous(reply_, &vtable);
}

/// Registers a backend of yours with a context. `name` is what errors call the code; a call may take `timeout`, then its
/// caller goes on without it.
inline result<void> register_backend(context& shared, std::string_view backend, backend_code code,
                                     const std::string& name = "the program's own code",
                                     std::chrono::milliseconds timeout = default_timeout) {
  auto owned = std::make_unique<backend_code>(std::move(code));
  rdzv_rendezvous_backend_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.user_data = owned.get();
  vtable.name = name.c_str();
  vtable.timeout_ms = detail::count(timeout);
  const auto create = [](void* user_data, const rdzv_rendezvous_parameters* borrowed, rdzv_reply* c_reply) {
    return detail::caught(c_reply, [&](rendezvous_reply& reply) {
      return (*static_cast<backend_code*>(user_data))(detail::cpp_parameters(*borrowed), reply);
    });
  };
  if (*owned) vtable.create = create;  // an empty function is refused as NULL is, not called
  vtable.destroy = detail::destroy<backend_code>;
  auto outcome = detail::call(rdzv_context_register_backend, shared.c_handle(), detail::bytes(backend),
                              backend.size(), static_cast<const rdzv_rendezvous_backend_vtable*>(&vtable));
  if (outcome) static_cast<void>(owned.release());
  return outcome;
}

/// Registers a URL scheme of yours with a context. A call may take `timeout` longer than its caller's own.
inline result<void> register_url_scheme(context& shared, std::string_view scheme, scheme_code code,
                                        std::chrono::milliseconds timeout = default_timeout) {
  auto owned = std::make_unique<scheme_code>(std::move(code));
  rdzv_url_scheme_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.user_data = owned.get();
  vtable.timeout_ms = detail::count(timeout);
  const auto begin = [](void* user_data, const rdzv_url_request* asked, rdzv_reply* c_reply) {
    return detail::caught(c_reply, [&](rendezvous_reply& reply) {
      const url_request request{detail::text(asked->url, asked->url_len),
                                  std::chrono::milliseconds(asked->timeout_ms),
                                  detail::text(asked->listen_host, asked->listen_host_len)};
      return (*static_cast<scheme_code*>(user_data))(request, reply);
    });
  };
  if (*owned) vtable.create = begin;
  vtable.destroy = detail::destroy<scheme_code>;
  auto outcome = detail::call(rdzv_context_register_url_scheme, shared.c_handle(), detail::bytes(scheme), scheme.size(),
                              static_cast<const rdzv_url_scheme_vtable*>(&vtable));
  if (outcome) static_cast<void>(owned.release());
  return outcome;
}

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_CUSTOM_RENDEZVOUS_HPP
