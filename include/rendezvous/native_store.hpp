// rendezvous/native_store.hpp: what stores over the native protocol have beyond the others: revisions, watches, leases,
// transactions, batches, prefixes and barriers by name. For C++17 and later; rendezvous.hpp includes it.
#ifndef RENDEZVOUS_NATIVE_STORE_HPP
#define RENDEZVOUS_NATIVE_STORE_HPP

#include "store.hpp"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// A value, and the revision of the store that its last change made; 0 when there is no value.
struct versioned {
  std::string value;
  std::uint64_t revision = 0;
};

/// Keys in byte order, and whether others follow.
struct keys_page {
  std::vector<std::string> keys;
  bool more = false;
};

/// A change of a key.
struct change {
  /// The store's revision that it made.
  std::uint64_t revision = 0;
  std::string key;
  /// Nothing when the key was removed.
  std::optional<std::string> value;
};

namespace detail {

inline change cpp_change(const rdzv_change& from) {
  change copy{from.revision, std::string(text(from.key, from.key_len)), std::nullopt};
  if (from.kind == RDZV_CHANGE_PUT) copy.value = std::string(text(from.value, from.value_len));
  return copy;
}

}  // namespace detail

/// Changes of a key, or of all keys under a prefix, in the order of their revisions, each once, until the watch is
/// destroyed. Any thread. It keeps the session alive.
class watch : public detail::owner<watch, rdzv_watch, rdzv_watch_free> {
 public:
  using owner::owner;
  /// The next change; nothing when there was none in time. With `status::compacted` it fell behind: read the keys
  /// afresh, and watch anew. Of several threads that wait, each gets another change.
  result<std::optional<change>> next(std::chrono::milliseconds timeout = default_timeout) {
    auto found = detail::call_for<rdzv_change, detail::buffer, detail::buffer>(rdzv_watch_next, c_handle(), timeout);
    return std::move(found).transform([](auto& of) {
      const rdzv_change& next = std::get<0>(of);
      return next.kind == RDZV_CHANGE_NONE ? std::nullopt : std::optional<change>(detail::cpp_change(next));
    });
  }
  /// The store's revision when the watch began.
  std::uint64_t revision() const noexcept { return rdzv_watch_revision(c_handle()); }
  /// Ends every `next()` that waits in another thread, and all later ones, with `status::cancelled`.
  void cancel() { rdzv_watch_cancel(c_handle()); }
};

/// Keys that are attached to it are removed when it ends: with its session, when it is revoked, or when its time is up.
/// Its destructor leaves the lease as it is. Any thread. It keeps the session alive. See `native_store::attach_lease`.
class lease : public detail::owner<lease, rdzv_lease, rdzv_lease_free> {
 public:
  using owner::owner;
  using milliseconds = std::chrono::milliseconds;

  /// Waits for it to end by itself; returns the reason, an RDZV_WHY_ number, or nothing when it did not end in time.
  result<std::optional<std::int32_t>> wait_over(milliseconds timeout = default_timeout) {
    return detail::call<std::int32_t>(rdzv_lease_wait_over, c_handle(), timeout).transform([](std::int32_t why) {
      return why == 0 ? std::nullopt : std::optional<std::int32_t>(why);
    });
  }
  /// Its number at the server.
  std::uint64_t number() const noexcept { return rdzv_lease_number(c_handle()); }
  /// Ends every `wait_over()` in another thread, and all later ones, with `status::cancelled`. The lease goes on.
  void cancel() { rdzv_lease_cancel(c_handle()); }
};

/// A store over the native protocol: all that `store` has, and more. Its calls share one session and one connection,
/// which a thread of the library's drives. The session ends with the last handle, watch and lease that lives on it.
class native_store : public store {
 public:
  /// Connects, trying again until `options.connect_timeout` has passed.
  static result<native_store> connect(std::string_view host, detail::port_number port,
                                      const store_options& options = {}, const context* shared = nullptr) {
    return detail::c_store_options(host, port, options).make<native_store>(rdzv_store_new_native, shared);
  }
  /// The same with `host:port`, or `[address]:port` for IPv6.
  static result<native_store> connect(std::string_view endpoint, const store_options& options = {},
                                      const context* shared = nullptr) {
    return detail::c_store_options(endpoint, options).make<native_store>(rdzv_store_new_native, shared);
  }
  static void open_file() = delete;
  static void in_process() = delete;
  static native_store adopt(rdzv_store* handle) noexcept { return native_store(store::adopt(handle)); }

  /// A store that is known to be a native one, such as that of a round. Of another kind, the operations below fail with
  /// `status::unsupported`.
  explicit native_store(store of) noexcept : store(std::move(of)) {}

  /// A handle on the same session whose key `k` is `prefix/k` here.
  result<native_store> with_prefix(std::string_view prefix) const {
    return detail::call<native_store>(rdzv_store_new_prefix, c_handle(), prefix);
  }
  /// A handle on the same session whose calls end with `token`.
  result<native_store> with_token(const cancel_token& token) const {
    return detail::call<native_store>(rdzv_store_new_cancellable, c_handle(), token);
  }
  /// A new handle to the same store, with a session of its own.
  result<native_store> clone() const { return detail::call<native_store>(rdzv_store_clone, c_handle()); }
  /// Ends the session gracefully, with its leases, watches and other handles. A round's store is on the session of its
  /// node, which leaves the run then.
  result<void> end_session(milliseconds timeout = default_timeout) {
    return perform(operation().end_session(), timeout);
  }

  /// The number of this start of its server: a restarted one has another, and nothing of the one before.
  std::uint64_t incarnation() const noexcept { return rdzv_store_incarnation(c_handle()); }
  /// Waits for a key and reads it. With timeout 0 a missing one is no failure: its revision is 0.
  result<versioned> get_with_revision(std::string_view key, milliseconds timeout = default_timeout) {
    auto found = multi_get_with_revisions({std::string(key)}, timeout);
    return std::move(found).transform([](auto& values) { return std::move(values.front()); });
  }
  /// The same for several keys, in their order.
  result<std::vector<versioned>> multi_get_with_revisions(const std::vector<std::string>& keys,
                                                          milliseconds timeout = default_timeout) {
    return performed(operation().read(keys), timeout, [](const rdzv_result& found) {
      std::vector<versioned> values;
      for (std::string& value : detail::items_of(found)) {
        const std::uint64_t revision = found.revisions[values.size()];
        values.push_back({std::move(value), revision});
      }
      return values;
    });
  }
  /// The first `count_max` keys that begin with `prefix` and come after `after`; empty: from the first on.
  result<keys_page> list_keys_page(std::string_view prefix, std::string_view after, std::uint32_t count_max,
                                   milliseconds timeout = default_timeout) {
    return performed(operation().list_page(prefix, after, count_max), timeout, [](const rdzv_result& found) {
      return keys_page{detail::items_of(found), found.more != 0};
    });
  }
  /// Deletes all keys and queues that begin with `prefix`; returns the number of keys. Keys of rounds that are over
  /// stay: the `left` of an operation's result counts them.
  result<std::int64_t> delete_prefix(std::string_view prefix, milliseconds timeout = default_timeout) {
    return performed(operation().delete_prefix(prefix), timeout, deleted_by);
  }

  /// Watches a key: reports each change from `from_revision` on, with 0 from now on.
  result<watch> watch_key(std::string_view key, std::uint64_t from_revision = 0,
                          milliseconds timeout = default_timeout) {
    return begin_watch(operation().watch_key(key, from_revision), timeout);
  }
  /// Watches all keys that begin with `prefix`.
  result<watch> watch_prefix(std::string_view prefix, std::uint64_t from_revision = 0,
                             milliseconds timeout = default_timeout) {
    return begin_watch(operation().watch_prefix(prefix, from_revision), timeout);
  }
  /// A lease that ends `ttl` after it was granted or last renewed, and with the session at the latest; with 0 only
  /// then.
  result<lease> grant_lease(milliseconds ttl, milliseconds timeout = default_timeout) {
    return detail::call<lease>(rdzv_lease_new, c_handle(), ttl.count(), timeout);
  }
  /// Attaches keys to a lease, so that they are deleted when it ends: attach them, then set them.
  result<void> attach_lease(const lease& to, const std::vector<std::string>& keys,
                            milliseconds timeout = default_timeout) {
    return perform(operation().attach_lease(to.number(), keys), timeout);
  }
  /// Renews a lease for its whole time; `status::not_found` when it is over.
  result<void> renew_lease(const lease& which, milliseconds timeout = default_timeout) {
    return perform(operation().renew_lease(which.number()), timeout);
  }
  /// Ends a lease and deletes its keys; returns their number.
  result<std::int64_t> revoke_lease(const lease& which, milliseconds timeout = default_timeout) {
    return performed(operation().revoke_lease(which.number()), timeout, deleted_by);
  }

  /// Arrives at a barrier and waits until `count` participants have; returns its generation. It is no key and can be
  /// reused. The error has the missing participants in `nodes()`, or the one that died (`status::barrier_broken`), and
  /// its `generation()`. To arrive under another name, perform `operation::named_barrier`.
  result<std::uint64_t> named_barrier(std::string_view key, std::uint32_t count,
                                      milliseconds timeout = default_timeout) {
    return performed(operation().named_barrier(key, count), timeout, generation_of);
  }
  /// The same for the participants with these names.
  result<std::uint64_t> named_barrier(std::string_view key, const std::vector<std::string>& names,
                                      milliseconds timeout = default_timeout) {
    return performed(operation().named_barrier(key, names), timeout, generation_of);
  }
  /// Cancels a named barrier for all waiting participants. Returns whether any waited.
  result<bool> cancel_named_barrier(std::string_view key, milliseconds timeout = default_timeout) {
    const auto was_waiting = [](const rdzv_result& found) { return found.was_waiting != 0; };
    return performed(operation().cancel_named_barrier(key), timeout, was_waiting);
  }

 private:
  static std::int64_t deleted_by(const rdzv_result& found) { return found.deleted; }
  static std::uint64_t generation_of(const rdzv_result& found) { return found.generation; }
  result<watch> begin_watch(const operation& what, milliseconds timeout) {
    if (what.failure()) return what.failure()->copy();
    return detail::call<watch>(rdzv_watch_new, c_handle(), what, timeout);
  }
};

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_NATIVE_STORE_HPP
