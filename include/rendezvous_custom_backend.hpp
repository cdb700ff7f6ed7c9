// rendezvous_custom_backend.hpp: rendezvous backends and URL schemes in code of yours, for C++17 and later. Beside
// rendezvous.hpp.
#ifndef RENDEZVOUS_CUSTOM_BACKEND_HPP
#define RENDEZVOUS_CUSTOM_BACKEND_HPP

#include "rendezvous.hpp"

#include <atomic>

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

class custom_handler;
class custom_rendezvous;

/// Takes the answer of code of yours. Valid during the call only.
class rendezvous_answer {
 public:
  explicit rendezvous_answer(rdzv_rendezvous_answer* answer) noexcept : answer_(answer) {}
  /// How many nodes wait; or 1 for closed and 0 for not closed.
  void set_number(std::int64_t number) { rdzv_rendezvous_answer_set_number(answer_, number); }
  /// The group that is whole. A reference to the store is kept. A port that is not from 0 to 65535 fails the call that
  /// asked with `status::invalid_argument`.
  void set_group(const store& shared, std::int64_t rank, std::int64_t world_size, std::string_view master_addr = {},
                 detail::port_number master_port = 0) {
    rdzv_rendezvous_answer_set_group(answer_, shared.c_handle(), rank, world_size, detail::bytes(master_addr),
                                     master_addr.size(), master_port.number());
  }
  /// The group is that of this round; called after `set_group`. Each round of a run has another number.
  void set_round(std::uint64_t round) { rdzv_rendezvous_answer_set_round(answer_, round); }
  void set_event(const round_event& event) {
    const rdzv_round_event c_event = event.c_event();
    rdzv_rendezvous_answer_set_event(answer_, &c_event, detail::bytes(event.name), event.name.size());
  }
  /// Why it failed, in words; they are the error's message.
  void set_message(std::string_view message) {
    rdzv_rendezvous_answer_set_message(answer_, detail::bytes(message), message.size());
  }
  /// What a backend makes. The library owns it.
  void set_handler(std::unique_ptr<custom_handler> made);
  /// What a URL scheme begins. The library owns it.
  void set_rendezvous(std::unique_ptr<custom_rendezvous> begun);

 private:
  rdzv_rendezvous_answer* answer_;
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
  /// Answers the group.
  virtual status next_rendezvous(rendezvous_answer& answer) = 0;
  /// Answers 1 or 0.
  virtual status is_closed(rendezvous_answer& answer) = 0;
  virtual status set_closed(rendezvous_answer& answer) = 0;
  /// Answers a number.
  virtual status num_nodes_waiting(rendezvous_answer& answer) = 0;
  /// Answers an event, or nothing.
  virtual status next_event(std::chrono::milliseconds, rendezvous_answer&) { return status::unsupported; }
  virtual bool shutdown() { return true; }
  /// Ends what the other functions wait for.
  virtual void cancel() {}
  /// Closes the rendezvous because the job has failed, and sends the reason to the other nodes.
  virtual status fail(std::string_view, rendezvous_answer& answer) { return set_closed(answer); }
  /// This node leaves with its work undone; the other nodes must be notified as of a death. May be called twice.
  virtual void abandon() {}
  /// Whether `next_event` tells of every death and of the end of the round.
  virtual bool reports_deaths() const { return false; }
};

/// A rendezvous by URL in code of yours, under way.
class custom_rendezvous {
 public:
  virtual ~custom_rendezvous() = default;
  /// Answers the group.
  virtual status next(rendezvous_answer& answer) = 0;
  /// Ends what `next` waits for: its caller has gone. Called while `next` is under way, or after it.
  virtual void cancel() {}
};

/// Makes a handler for these parameters, and answers it.
using backend_code = std::function<status(const rendezvous_parameters&, rendezvous_answer&)>;

/// What a URL scheme of yours is asked.
struct url_question {
  /// With the rank and the world size that the caller named in its query.
  std::string_view url;
  std::chrono::milliseconds timeout{0};
  /// Empty when the caller did not say.
  std::string_view listen_host;
};

/// Begins a rendezvous, and answers it.
using scheme_code = std::function<status(const url_question&, rendezvous_answer&)>;

namespace detail {

/// Calls user code and turns what it throws into the message of an answer.
template <class Answer, class Code>
rdzv_status caught_into(Answer& answer, Code code) {
#if defined(__cpp_exceptions)
  try {
#endif
    return static_cast<rdzv_status>(code(answer));
#if defined(__cpp_exceptions)
  } catch (const rdzv::exception& thrown) {
    answer.set_message(thrown.what());
    return static_cast<rdzv_status>(thrown.error().code());
  } catch (const std::exception& thrown) {
    answer.set_message(thrown.what());
  } catch (...) {
    answer.set_message("it threw");
  }
  return RDZV_IO;
#endif
}

template <class Code>
rdzv_status caught(rdzv_rendezvous_answer* c_answer, Code code) {
  rendezvous_answer answer(c_answer);
  return caught_into(answer, std::move(code));
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

template <class T>
void destroy(void* user_data) {
  delete static_cast<T*>(user_data);
}

using handler_code = handed_over<custom_handler>;

/// A member function of a handler, for C.
template <status (custom_handler::*Member)(rendezvous_answer&)>
rdzv_status answer_with(void* user_data, rdzv_rendezvous_answer* c_answer) {
  return caught(c_answer, [&](rendezvous_answer& answer) {
    return static_cast<handler_code*>(user_data)->call([&](custom_handler& code) { return (code.*Member)(answer); });
  });
}

/// The same of one that answers nothing.
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

/// The parameters of a call, which stay the library's.
class borrowed_parameters {
 public:
  explicit borrowed_parameters(const rdzv_rendezvous_parameters* borrowed) noexcept
      : parameters_(rendezvous_parameters::adopt(const_cast<rdzv_rendezvous_parameters*>(borrowed))) {}
  borrowed_parameters(const borrowed_parameters&) = delete;
  borrowed_parameters& operator=(const borrowed_parameters&) = delete;
  ~borrowed_parameters() { static_cast<void>(parameters_.release()); }
  const rendezvous_parameters& operator*() const noexcept { return parameters_; }

 private:
  rendezvous_parameters parameters_;
};

}  // namespace detail

inline void rendezvous_answer::set_handler(std::unique_ptr<custom_handler> made) {
  if (!made) return;
  const std::string backend = made->backend(), run_id = made->run_id();
  rdzv_rendezvous_handler_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.use_agent_store = made->use_agent_store() ? 1 : 0;
  vtable.backend = backend.c_str();
  vtable.run_id = run_id.empty() ? nullptr : run_id.c_str();
  vtable.next_rendezvous = detail::answer_with<&custom_handler::next_rendezvous>;
  vtable.is_closed = detail::answer_with<&custom_handler::is_closed>;
  vtable.set_closed = detail::answer_with<&custom_handler::set_closed>;
  vtable.num_nodes_waiting = detail::answer_with<&custom_handler::num_nodes_waiting>;
  vtable.next_event = [](void* user_data, std::int64_t timeout_ms, rdzv_rendezvous_answer* c_answer) {
    return detail::caught(c_answer, [&](rendezvous_answer& answer) {
      return static_cast<detail::handler_code*>(user_data)->call([&](custom_handler& code) {
        return code.next_event(std::chrono::milliseconds(timeout_ms), answer);
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
  vtable.fail = [](void* user_data, const std::uint8_t* message, std::size_t message_len, rdzv_rendezvous_answer* c_answer) {
    return detail::caught(c_answer, [&](rendezvous_answer& answer) {
      return static_cast<detail::handler_code*>(user_data)->call([&](custom_handler& code) {
        return code.fail(std::string_view(reinterpret_cast<const char*>(message), message_len), answer);
      });
    });
  };
  vtable.abandon = detail::notify<custom_handler, &custom_handler::abandon>;
  vtable.reports_deaths = made->reports_deaths() ? 1 : 0;
  vtable.destroy = detail::handler_code::destroy;
  vtable.user_data = new detail::handler_code(std::move(made));
  rdzv_rendezvous_answer_set_handler(answer_, &vtable);
}

inline void rendezvous_answer::set_rendezvous(std::unique_ptr<custom_rendezvous> begun) {
  using code = detail::handed_over<custom_rendezvous>;
  if (!begun) return;
  rdzv_url_rendezvous_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.next = [](void* user_data, rdzv_rendezvous_answer* c_answer) {
    return detail::caught(c_answer, [&](rendezvous_answer& answer) {
      return static_cast<code*>(user_data)->call([&](custom_rendezvous& rendezvous) { return rendezvous.next(answer); });
    });
  };
  vtable.destroy = code::destroy;
  vtable.cancel = detail::notify<custom_rendezvous, &custom_rendezvous::cancel>;
  vtable.user_data = new code(std::move(begun));
  rdzv_rendezvous_answer_set_rendezvous(answer_, &vtable);
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
  const auto create = [](void* user_data, const rdzv_rendezvous_parameters* borrowed, rdzv_rendezvous_answer* c_answer) {
    return detail::caught(c_answer, [&](rendezvous_answer& answer) {
      const detail::borrowed_parameters parameters(borrowed);
      return (*static_cast<backend_code*>(user_data))(*parameters, answer);
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
  const auto begin = [](void* user_data, const rdzv_url_question* c_question, rdzv_rendezvous_answer* c_answer) {
    return detail::caught(c_answer, [&](rendezvous_answer& answer) {
      const url_question question{detail::text(c_question->url, c_question->url_len),
                                  std::chrono::milliseconds(c_question->timeout_ms),
                                  detail::text(c_question->listen_host, c_question->listen_host_len)};
      return (*static_cast<scheme_code*>(user_data))(question, answer);
    });
  };
  if (*owned) vtable.begin = begin;
  vtable.destroy = detail::destroy<scheme_code>;
  auto outcome = detail::call(rdzv_context_register_url_scheme, shared.c_handle(), detail::bytes(scheme), scheme.size(),
                              static_cast<const rdzv_url_scheme_vtable*>(&vtable));
  if (outcome) static_cast<void>(owned.release());
  return outcome;
}

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_CUSTOM_BACKEND_HPP
