// rendezvous_utilities.hpp: how ranks exchange data and meet over a store, and tell where theirs is. For
// C++17 and later; rendezvous.hpp brings it along.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_UTILITIES_HPP
#define RENDEZVOUS_UTILITIES_HPP

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Another default timeout of a store, until this is destroyed: the one before comes back on every path. It holds for all
/// threads that use the handle; whose scopes overlap in two threads should use two handles. The store must outlive it.
class [[nodiscard]] store_timeout {
 public:
  static result<store_timeout> set(rdzv::store& store, std::chrono::milliseconds timeout) {
    std::int64_t before = 0;
    auto failure = detail::failure_of(rdzv_store_set_timeout_ms, store.c_handle(), timeout.count(), &before);
    if (failure) return std::move(*failure);
    return store_timeout(store.c_handle(), before);
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
  detail::list values;
  auto failure = detail::failure_of(rdzv_store_get_all, shared.c_handle(), rank, detail::bytes(prefix), prefix.size(),
                                    world_size, detail::count(timeout), values.get());
  if (failure) return std::move(*failure);
  return values.strs();
}

/// Gives `data` to all ranks and returns that of all, in their order. No separator is added to the prefix.
inline result<std::vector<std::string>> synchronize(store& shared, std::string_view data, std::int64_t rank,
                                                    std::int64_t world_size, std::string_view prefix,
                                                    std::chrono::milliseconds timeout = default_timeout) {
  detail::list values;
  auto failure =
      detail::failure_of(rdzv_store_synchronize, shared.c_handle(), detail::bytes(data), data.size(), rank, world_size,
                         detail::bytes(prefix), prefix.size(), detail::count(timeout), values.get());
  if (failure) return std::move(*failure);
  return values.strs();
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

/// Arrives at a barrier and waits for the others. When not all come, the error's `ranks()` and `nodes()` are the missing
/// ones, if `traced` tells this rank. A prefix serves once.
inline result<void> elastic_barrier(store& shared, std::string_view prefix, std::int64_t world_size,
                                    std::chrono::milliseconds timeout = default_timeout,
                                    const tracing& traced = {}) {
  const rdzv_rank_name name = [](void* user_data, std::int64_t rank, char* out, std::size_t size) {
#if defined(__cpp_exceptions)
    try {
#endif
      const std::string message = (*static_cast<decltype(tracing::name_of)*>(user_data))(rank);
      out[message.copy(out, size - 1)] = '\0';
#if defined(__cpp_exceptions)
    } catch (...) {
      out[std::string_view("(its name threw)").copy(out, size - 1)] = '\0';
    }
#endif
  };
  auto name_of = traced.name_of;
  return detail::call(rdzv_store_elastic_barrier, shared.c_handle(), detail::bytes(prefix), prefix.size(), world_size,
                      traced.rank, detail::count(timeout), detail::count(traced.trace_timeout),
                      name_of ? name : static_cast<rdzv_rank_name>(nullptr), static_cast<void*>(&name_of));
}

/// Where the ranks of a job find their store; on the rank that published it, a port is kept for a server.
class store_info {
 public:
  /// A known address.
  static result<store_info> create(std::string_view master_addr, detail::port_number master_port) {
    if (auto failure = master_port.refusal()) return std::move(*failure);
    rdzv_store_info* made = nullptr;
    auto failure = detail::failure_of(rdzv_store_info_new, detail::bytes(master_addr), master_addr.size(),
                                      master_port.value(), &made);
    if (failure) return std::move(*failure);
    return store_info(made);
  }
  /// Rank 0 publishes an address (`local_addr`, or its own host's name) and a port (of a server that runs already, or one
  /// that is taken and kept); all ranks read them.
  static result<store_info> build(store& shared, std::int64_t rank, std::string_view local_addr = {},
                                  detail::port_number server_port = 0,
                                  std::chrono::milliseconds timeout = default_timeout) {
    if (auto failure = server_port.refusal()) return std::move(*failure);
    rdzv_store_info* made = nullptr;
    auto failure = detail::failure_of(rdzv_store_info_build, shared.c_handle(), rank, detail::bytes(local_addr),
                                      local_addr.size(), server_port.value(), detail::count(timeout), &made);
    if (failure) return std::move(*failure);
    return store_info(made);
  }

  std::string master_addr() const {
    return detail::borrowed(rdzv_store_info_master_addr, static_cast<const rdzv_store_info*>(handle_.get()));
  }
  std::uint16_t master_port() const noexcept { return rdzv_store_info_master_port(handle_.get()); }
  /// Whether a port is kept here.
  bool has_socket() const noexcept { return rdzv_store_info_has_socket(handle_.get()) != 0; }
  /// The listening socket that keeps it, once; yours to close.
  result<int> take_socket() {
    std::int32_t fd = -1;
    if (auto failure = detail::failure_of(rdzv_store_info_take_socket, handle_.get(), &fd)) return std::move(*failure);
    return static_cast<int>(fd);
  }
  /// Starts a server on it, once.
  result<server> serve(const context* shared = nullptr, const rdzv_server_options* options = nullptr) {
    rdzv_server* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    if (auto failure = detail::failure_of(rdzv_store_info_serve, handle_.get(), context, options, &made))
      return std::move(*failure);
    return server::adopt(made);
  }

  rdzv_store_info* c_handle() const noexcept { return handle_.get(); }
  rdzv_store_info* release() noexcept { return handle_.release(); }

 private:
  explicit store_info(rdzv_store_info* made) noexcept : handle_(made) {}
  detail::handle<rdzv_store_info, rdzv_store_info_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_UTILITIES_HPP
