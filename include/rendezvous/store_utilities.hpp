// rendezvous/store_utilities.hpp: how ranks exchange data and meet over a store, and find it. For C++17
// and later; rendezvous.hpp includes it.
#ifndef RENDEZVOUS_STORE_UTILITIES_HPP
#define RENDEZVOUS_STORE_UTILITIES_HPP

#include "rendezvous.hpp"

#include <unistd.h>

#include <utility>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Another default timeout of a store, until this is destroyed: the one before comes back on every path. It holds for
/// all threads that use the handle; whose scopes overlap in two threads should use two handles. The store must outlive
/// it.
class [[nodiscard]] store_timeout {
 public:
  static result<store_timeout> set(rdzv::store& store, std::chrono::milliseconds timeout) {
    const auto set = rdzv_store_set_timeout_ms;
    return detail::call<std::int64_t>(set, store.c_handle(), timeout.count()).transform([&](std::int64_t before) {
      return store_timeout(store.c_handle(), before);
    });
  }

 private:
  struct restored {
    std::int64_t before;
    void operator()(const rdzv_store* store) const noexcept {
      static_cast<void>(rdzv_store_set_timeout_ms(store, before, nullptr, nullptr));
    }
  };
  store_timeout(const rdzv_store* store, std::int64_t before) noexcept : store_(store, restored{before}) {}
  std::unique_ptr<const rdzv_store, restored> store_;
};

/// How long an operation of this handle may take that names no timeout.
inline std::chrono::milliseconds timeout_of(const store& of) {
  return std::chrono::milliseconds(rdzv_store_timeout_ms(of.c_handle()));
}

/// The data of all ranks under `prefix`, in their order. Each rank calls it; rank 0 returns last. A prefix serves once.
inline result<std::vector<std::string>> get_all(store& shared, std::int64_t rank, std::string_view prefix,
                                                std::int64_t world_size,
                                                std::chrono::milliseconds timeout = default_timeout) {
  return detail::call<std::vector<std::string>>(rdzv_store_get_all, shared.c_handle(), rank, prefix, world_size,
                                                timeout);
}

/// Gives `data` to all ranks and returns that of all, in their order. No separator is added to the prefix.
inline result<std::vector<std::string>> synchronize(store& shared, std::string_view data, std::int64_t rank,
                                                    std::int64_t world_size, std::string_view prefix,
                                                    std::chrono::milliseconds timeout = default_timeout) {
  return detail::call<std::vector<std::string>>(rdzv_store_synchronize, shared.c_handle(), data, rank, world_size,
                                                prefix, timeout);
}

/// How a barrier finds out who is missing.
struct tracing {
  /// This rank.
  std::int64_t rank = -1;
  /// How long a trace is waited for that may still come.
  std::chrono::milliseconds trace_timeout{10000};
  /// Puts names to ranks, such as those of their hosts; called in the caller's thread.
  std::function<std::string(std::int64_t rank)> name_of = {};
};

/// Arrives at a barrier and waits for the others. When not all come, the error's `ranks()` and `nodes()` are the
/// missing ones, if `traced` has this rank. A prefix serves once.
inline result<void> elastic_barrier(store& shared, std::string_view prefix, std::int64_t world_size,
                                    std::chrono::milliseconds timeout = default_timeout,
                                    const tracing& traced = {}) {
  auto name_of = traced.name_of;
  const rdzv_rank_name write_name = [](void* user_data, std::int64_t rank, char* out, std::size_t size) {
    const auto& code = *static_cast<decltype(tracing::name_of)*>(user_data);
    const auto write = [&](std::string_view name) { out[name.copy(out, size - 1)] = '\0'; };
    detail::guarded([&] { write(code(rank)); }, [&](const char*, status) { write("(its name threw)"); });
  };
  return detail::call(rdzv_store_elastic_barrier, shared.c_handle(), prefix, world_size, traced.rank, timeout,
                      traced.trace_timeout, name_of ? write_name : nullptr, static_cast<void*>(&name_of));
}

/// Address at which the ranks of a job find their store. On the rank that published a port of its own choice, it owns
/// the listening socket that reserves the port.
class store_info {
 public:
  /// Rank 0 publishes an address (`local_addr`, or its host's name) and a port (`server_port` of a server that runs
  /// already, or a port of its own choice); all ranks read them.
  static result<store_info> build(store& shared, std::int64_t rank, std::string_view local_addr = {},
                                  detail::port_number server_port = 0,
                                  std::chrono::milliseconds timeout = default_timeout) {
    if (auto failure = server_port.refusal()) return std::move(*failure);
    return detail::call<rdzv_store_info>(rdzv_store_info_build, shared.c_handle(), rank, local_addr,
                                         server_port.value(), timeout)
        .transform([](const rdzv_store_info& read) { return store_info(read); });
  }

  store_info(store_info&& other) noexcept
      : master_addr(std::move(other.master_addr)), master_port(other.master_port), listen_fd_(other.take_socket()) {}
  store_info& operator=(store_info&& other) noexcept {
    std::swap(master_addr, other.master_addr);
    std::swap(master_port, other.master_port);
    std::swap(listen_fd_, other.listen_fd_);
    return *this;
  }
  ~store_info() {
    if (listen_fd_ != 0) ::close(listen_fd_);
  }

  std::string master_addr;
  std::uint16_t master_port;

  /// Whether this rank reserves the port.
  bool has_socket() const noexcept { return listen_fd_ != 0; }
  /// The listening socket that reserves the port, which the caller then owns and closes; 0 if there is none.
  int take_socket() noexcept { return std::exchange(listen_fd_, 0); }
  /// Starts a server on the reserved port, once; the address of the options is ignored.
  result<server> serve(const context* shared = nullptr, server_options options = {}) {
    if (!has_socket()) return detail::make_error(status::invalid_argument, "this rank reserves no port for a server");
    const store_info taken = std::move(*this);
    options.listen_fd = taken.listen_fd_;
    return server::start(options, shared);
  }

 private:
  explicit store_info(const rdzv_store_info& from)
      : master_addr(from.master_addr), master_port(from.master_port), listen_fd_(from.listen_fd) {}

  int listen_fd_;
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_STORE_UTILITIES_HPP
