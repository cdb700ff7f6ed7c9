// What the tests of the C++ headers share.
#ifndef HPP_CHECK_HPP
#define HPP_CHECK_HPP

#include <rendezvous.hpp>

#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

// When a test gives up. Nothing is measured by it.
inline constexpr std::chrono::seconds patience{20};

inline void check(bool is_so, const char* what, const char* file, int line) {
  if (is_so) return;
  std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
  std::_Exit(1);
}
#define CHECK(condition) check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

template <class T>
T value_of(rdzv::result<T> result, const char* file, int line) {
  if (!result.has_value()) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, result.error().message().c_str());
    std::_Exit(1);
  }
  return *std::move(result);
}
#define VALUE(call) value_of((call), __FILE__, __LINE__)

template <class T>
constexpr bool is_move_only = std::is_nothrow_move_constructible_v<T> && std::is_move_assignable_v<T> &&
                              !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;

// The next event; the descriptor tells when there may be one.
inline rdzv::loop_event await_event(rdzv::event_loop& loop) {
  for (;;) {
    CHECK(loop.poll());
    if (auto event = VALUE(loop.next_event())) return *std::move(event);
    pollfd polled{loop.fd(), POLLIN, 0};
    CHECK(poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(patience).count())) == 1);
  }
}

// The next event ends this operation, whose result is returned.
inline rdzv::result<rdzv_result> await_end(rdzv::event_loop& loop, const rdzv::operation& op) {
  const rdzv::loop_event event = await_event(loop);
  CHECK(event.kind == rdzv::event_kind::completed && event.op == op.c_handle());
  return op.outcome();
}

// The options of an RPC worker whose group meets over this store.
inline rdzv::rpc_options over(const rdzv::store& store, rdzv::rpc_options options) {
  options.store = &store;
  return options;
}

inline std::string value_in(const rdzv_result& found) { return rdzv::detail::value_of(found); }

#endif  // HPP_CHECK_HPP
