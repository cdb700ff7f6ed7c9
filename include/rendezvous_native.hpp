// rendezvous_native.hpp: what stores over the native protocol have beyond the others: revisions, watches, leases,
// transactions, batches, prefixes and barriers by name. For C++17 and later; rendezvous.hpp brings it along.

// Before the guard: it brings this one along in its place, which is before the event loops.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_NATIVE_HPP
#define RENDEZVOUS_NATIVE_HPP

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

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

/// What became of a transaction.
struct txn_result {
  /// Whether all tests held; if not, the writes behind `otherwise` were done.
  bool holds = false;
  /// The store's revision behind it.
  std::uint64_t revision = 0;
};

/// The answer to one request of a batch.
struct batch_answer {
  /// How this request ended.
  status code = status::ok;
  /// One sentence when `code` is not ok.
  std::string message;
  /// add: the sum; queue_len and delete_prefix: the count; check and delete_key: 1 or 0.
  std::int64_t number = 0;
  /// compare_set: what now stands there; nothing when there is no value.
  std::optional<std::string> value;
};

/// As whom one arrives at a named barrier, and at which generation.
struct arrival {
  /// Empty: the session's name.
  std::string_view name = {};
  /// 0: the one that is open, or comes next.
  std::uint64_t generation = 0;
};

namespace detail {

/// One thing that a transaction or a batch is made of, until it is handed over.
template <class Handle>
struct step {
  rdzv_status (*put)(Handle*, const step&, rdzv_error**);
  std::string key;
  std::string value;
  std::string desired;
  std::int64_t number;
};

// How a function of the C ABI takes a step: by what it needs of it.
template <class Handle, auto Function>
rdzv_status put_key(Handle* to, const step<Handle>& from, rdzv_error** error) {
  return Function(to, bytes(from.key), from.key.size(), error);
}
template <class Handle, auto Function>
rdzv_status put_pair(Handle* to, const step<Handle>& from, rdzv_error** error) {
  return Function(to, bytes(from.key), from.key.size(), bytes(from.value), from.value.size(), error);
}
template <class Handle, auto Function, class Number = std::int64_t>
rdzv_status put_number(Handle* to, const step<Handle>& from, rdzv_error** error) {
  return Function(to, bytes(from.key), from.key.size(), static_cast<Number>(from.number), error);
}

/// All that was put together, as the C ABI takes it.
template <class Handle, void (*Free)(Handle*)>
result<handle<Handle, Free>> put_together(Handle* made, const std::vector<step<Handle>>& steps) {
  handle<Handle, Free> owned(made);
  for (const step<Handle>& next : steps) {
    rdzv_error* details = nullptr;
    const rdzv_status code = next.put(made, next, &details);
    if (code != RDZV_OK) return error(code, details);
  }
  return owned;
}

inline batch_answer cpp_answer(const rdzv_answer& shown) {
  batch_answer answer;
  answer.code = static_cast<status>(shown.status);
  answer.number = shown.number;
  if (shown.status != RDZV_OK)
    answer.message = text(shown.data, shown.len);
  else if (shown.data != nullptr)
    answer.value = std::string(text(shown.data, shown.len));
  return answer;
}

}  // namespace detail

/// Tests of keys, writes that are done in one turn if all of them hold, and others that are done if not. A plain value:
/// put it together, and commit it as often as you like. Keys are those of the store that it is committed to.
class txn {
 public:
  /// The key has a value.
  txn& require_present(std::string_view key) {
    return put(detail::put_key<rdzv_txn, rdzv_txn_require_present>, key);
  }
  /// The key has no value.
  txn& require_absent(std::string_view key) {
    return put(detail::put_key<rdzv_txn, rdzv_txn_require_absent>, key);
  }
  /// The key last changed at this revision; 0: it has no value.
  txn& require_revision(std::string_view key, std::uint64_t revision) {
    return put(detail::put_number<rdzv_txn, rdzv_txn_require_revision, std::uint64_t>,
               key, {}, {}, static_cast<std::int64_t>(revision));
  }
  /// This is the key's value.
  txn& require_value(std::string_view key, std::string_view value) {
    return put(detail::put_pair<rdzv_txn, rdzv_txn_require_value>, key, value);
  }
  /// From now on, writes are those that are done when a test does not hold.
  txn& otherwise() {
    const auto turn = [](rdzv_txn* to, const step&, rdzv_error** error) { return rdzv_txn_otherwise(to, error); };
    return put(turn, {});
  }
  txn& set(std::string_view key, std::string_view value) {
    return put(detail::put_pair<rdzv_txn, rdzv_txn_set>, key, value);
  }
  txn& delete_key(std::string_view key) {
    return put(detail::put_key<rdzv_txn, rdzv_txn_delete_key>, key);
  }
  txn& delete_prefix(std::string_view prefix) {
    return put(detail::put_key<rdzv_txn, rdzv_txn_delete_prefix>, prefix);
  }
  txn& add(std::string_view key, std::int64_t delta) {
    return put(detail::put_number<rdzv_txn, rdzv_txn_add>, key, {}, {}, delta);
  }
  txn& append(std::string_view key, std::string_view value) {
    return put(detail::put_pair<rdzv_txn, rdzv_txn_append>, key, value);
  }

  /// It as the C ABI takes it; fails when there is too much of it.
  result<detail::handle<rdzv_txn, rdzv_txn_free>> c_txn() const {
    return detail::put_together<rdzv_txn, rdzv_txn_free>(rdzv_txn_new(), steps_);
  }

 private:
  using step = detail::step<rdzv_txn>;
  txn& put(decltype(step::put) how, std::string_view key, std::string_view value = {}, std::string_view desired = {},
          std::int64_t number = 0) {
    steps_.push_back({how, std::string(key), std::string(value), std::string(desired), number});
    return *this;
  }
  std::vector<step> steps_;
};

/// Requests that are carried out in order in one turn, and answered each for itself: one that fails stops none. A plain
/// value, as `txn`.
class batch {
 public:
  batch& set(std::string_view key, std::string_view value) {
    return put(detail::put_pair<rdzv_batch, rdzv_batch_set>, key, value);
  }
  /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
  batch& compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    const auto both = [](rdzv_batch* to, const step& from, rdzv_error** error) {
      return rdzv_batch_compare_set(to, detail::bytes(from.key), from.key.size(), detail::bytes(from.value),
                                    from.value.size(), detail::bytes(from.desired), from.desired.size(), error);
    };
    return put(both, key, expected, desired);
  }
  batch& add(std::string_view key, std::int64_t delta) {
    return put(detail::put_number<rdzv_batch, rdzv_batch_add>, key, {}, {}, delta);
  }
  batch& check(std::string_view key) {
    return put(detail::put_key<rdzv_batch, rdzv_batch_check>, key);
  }
  batch& delete_key(std::string_view key) {
    return put(detail::put_key<rdzv_batch, rdzv_batch_delete_key>, key);
  }
  batch& delete_prefix(std::string_view prefix) {
    return put(detail::put_key<rdzv_batch, rdzv_batch_delete_prefix>, prefix);
  }
  batch& append(std::string_view key, std::string_view value) {
    return put(detail::put_pair<rdzv_batch, rdzv_batch_append>, key, value);
  }
  batch& queue_push(std::string_view key, std::string_view item) {
    return put(detail::put_pair<rdzv_batch, rdzv_batch_queue_push>, key, item);
  }
  batch& queue_len(std::string_view key) {
    return put(detail::put_key<rdzv_batch, rdzv_batch_queue_len>, key);
  }

  /// It as the C ABI takes it; fails when there is too much of it.
  result<detail::handle<rdzv_batch, rdzv_batch_free>> c_batch() const {
    return detail::put_together<rdzv_batch, rdzv_batch_free>(rdzv_batch_new(), steps_);
  }

 private:
  using step = detail::step<rdzv_batch>;
  batch& put(decltype(step::put) how, std::string_view key, std::string_view value = {}, std::string_view desired = {},
            std::int64_t number = 0) {
    steps_.push_back({how, std::string(key), std::string(value), std::string(desired), number});
    return *this;
  }
  std::vector<step> steps_;
};

/// Changes of a key, or of all keys under a prefix, in the order of their revisions, each once, until the watch is
/// destroyed. Any thread. It keeps the session alive.
class watch {
 public:
  /// The next change; nothing when there was none in time. With `status::compacted` it fell behind: read the keys afresh,
  /// and watch anew. Of several threads that wait, each gets another change.
  result<std::optional<change>> next(std::chrono::milliseconds timeout = default_timeout) {
    rdzv_change c_change{};
    c_change.struct_size = sizeof c_change;
    detail::buffer key, value;
    auto failure =
        detail::failure_of(rdzv_watch_next, c_handle(), detail::count(timeout), &c_change, key.get(), value.get());
    if (failure) return std::move(*failure);
    if (c_change.kind == RDZV_CHANGE_NONE) return std::optional<change>();
    change next{c_change.revision, key.str(), std::nullopt};
    if (c_change.kind == RDZV_CHANGE_PUT) next.value = value.str();
    return std::optional<change>(std::move(next));
  }
  /// The store's revision when the watch began.
  std::uint64_t revision() const noexcept { return rdzv_watch_revision(c_handle()); }
  /// Ends every `next()` that waits in another thread, and all later ones, with `status::cancelled`.
  void cancel() { rdzv_watch_cancel(c_handle()); }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static watch adopt(rdzv_watch* handle) noexcept { return watch(handle); }
  const rdzv_watch* c_handle() const noexcept { return handle_.get(); }
  rdzv_watch* release() noexcept { return handle_.release(); }

 private:
  explicit watch(rdzv_watch* made) noexcept : handle_(made) {}
  detail::handle<rdzv_watch, rdzv_watch_free> handle_;
};

/// Keys that are attached to it are removed when it ends: with its session, when it is revoked, or when its time is up.
/// Its destructor leaves the lease as it is. Any thread. It keeps the session alive.
class lease {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Lets keys vanish with the lease: attach them, then set them.
  result<void> attach(const std::vector<std::string>& keys, milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    return detail::call(rdzv_lease_attach, c_handle(), views.data(), views.size(), detail::count(timeout));
  }
  /// Gives it its whole time again; `status::not_found` when it is over.
  result<void> renew(milliseconds timeout = default_timeout) {
    return detail::call(rdzv_lease_renew, c_handle(), detail::count(timeout));
  }
  /// Ends it, and removes its keys; how many that were.
  result<std::int64_t> revoke(milliseconds timeout = default_timeout) {
    std::int64_t count = 0;
    auto failure = detail::failure_of(rdzv_lease_revoke, c_handle(), detail::count(timeout), &count);
    if (failure) return std::move(*failure);
    return count;
  }
  /// Waits for it to end by itself, and tells why, an RDZV_WHY_ number; nothing when it did not end in time.
  result<std::optional<std::int32_t>> wait_over(milliseconds timeout = default_timeout) {
    std::int32_t why = 0;
    auto failure = detail::failure_of(rdzv_lease_wait_over, c_handle(), detail::count(timeout), &why);
    if (failure) return std::move(*failure);
    return why == 0 ? std::optional<std::int32_t>() : std::optional<std::int32_t>(why);
  }
  /// Its number at the server.
  std::uint64_t number() const noexcept { return rdzv_lease_number(c_handle()); }
  /// Ends every `wait_over()` in another thread, and all later ones, with `status::cancelled`. The lease goes on.
  void cancel() { rdzv_lease_cancel(c_handle()); }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static lease adopt(rdzv_lease* handle) noexcept { return lease(handle); }
  const rdzv_lease* c_handle() const noexcept { return handle_.get(); }
  rdzv_lease* release() noexcept { return handle_.release(); }

 private:
  explicit lease(rdzv_lease* made) noexcept : handle_(made) {}
  detail::handle<rdzv_lease, rdzv_lease_free> handle_;
};

/// A store over the native protocol: all that `store` has, and more. Its calls share one session and one connection,
/// which a thread of the library's drives. The session ends with the last handle, watch and lease that lives on it.
class native_store : public store {
 public:
  /// Connects, trying again until `options.connect_timeout` has passed.
  static result<native_store> connect(std::string_view host, detail::port_number port,
                                      const store_options& options = {}, const context* shared = nullptr) {
    auto owned = detail::c_options(host, port, options);
    if (!owned) return std::move(owned).error();
    return connect(**owned, shared);
  }
  /// The same with `host:port`, or `[address]:port` for IPv6.
  static result<native_store> connect(std::string_view endpoint, const store_options& options = {},
                                      const context* shared = nullptr) {
    auto owned = detail::c_options(endpoint, options);
    if (!owned) return std::move(owned).error();
    return connect(**owned, shared);
  }
  /// The same with options of the C ABI.
  static result<native_store> connect(const rdzv_store_options& options, const context* shared = nullptr) {
    rdzv_store* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    if (auto failure = detail::failure_of(rdzv_store_connect_native, context, &options, &made))
      return std::move(*failure);
    return native_store(store::adopt(made));
  }
  static void open_file() = delete;
  static void in_process() = delete;
  static native_store adopt(rdzv_store* handle) noexcept { return native_store(store::adopt(handle)); }

  /// A store that is known to be a native one, such as that of a round. Of another kind, the operations below fail with
  /// `status::unsupported`.
  explicit native_store(store of) noexcept : store(std::move(of)) {}

  /// A handle on the same session whose key `k` is `prefix/k` here.
  result<native_store> with_prefix(std::string_view prefix) const {
    auto made = store::with_prefix(prefix);
    if (!made) return std::move(made).error();
    return native_store(*std::move(made));
  }
  /// A handle on the same session whose calls end with `token`.
  result<native_store> with_token(const cancel_token& token) const {
    auto made = store::with_token(token);
    if (!made) return std::move(made).error();
    return native_store(*std::move(made));
  }
  /// A new handle to the same store, with a session of its own.
  result<native_store> clone() const {
    auto made = store::clone();
    if (!made) return std::move(made).error();
    return native_store(*std::move(made));
  }
  /// Says goodbye to the server: the session ends, and its leases, watches and other handles with it. A round's store
  /// is on the session of its node, which leaves the run then.
  result<void> end_session(milliseconds timeout = default_timeout) {
    return detail::call(rdzv_store_end_session, c_handle(), detail::count(timeout));
  }

  /// Waits for a key and reads it. With timeout 0 a missing one is no failure: its revision is 0.
  result<versioned> get_with_revision(std::string_view key, milliseconds timeout = default_timeout) {
    detail::buffer value;
    std::uint64_t revision = 0;
    auto failure = detail::failure_of(rdzv_store_get_with_revision, c_handle(), detail::bytes(key), key.size(),
                                      detail::count(timeout), value.get(), &revision);
    if (failure) return std::move(*failure);
    return versioned{value.str(), revision};
  }
  /// The same for several keys, in their order.
  result<std::vector<versioned>> multi_get_with_revisions(const std::vector<std::string>& keys,
                                                          milliseconds timeout = default_timeout) {
    const auto views = detail::views(keys);
    detail::list values;
    std::vector<std::uint64_t> revisions(keys.size() + 1);  // never NULL
    auto failure = detail::failure_of(rdzv_store_multi_get_with_revisions, c_handle(), views.data(), views.size(),
                                      detail::count(timeout), values.get(), revisions.data());
    if (failure) return std::move(*failure);
    std::vector<versioned> found;
    std::size_t at = 0;
    for (std::string& value : values.strs()) found.push_back({std::move(value), revisions[at++]});
    return found;
  }
  /// The first `count_max` keys that begin with `prefix` and come behind `after`; empty: from the first on.
  result<keys_page> list_keys_page(std::string_view prefix, std::string_view after, std::uint32_t count_max,
                                   milliseconds timeout = default_timeout) {
    detail::list keys;
    std::int32_t more = 0;
    auto failure = detail::failure_of(rdzv_store_list_keys_page, c_handle(), detail::bytes(prefix), prefix.size(),
                                      detail::bytes(after), after.size(), count_max, detail::count(timeout),
                                      keys.get(), &more);
    if (failure) return std::move(*failure);
    return keys_page{keys.strs(), more != 0};
  }
  /// Removes all keys that begin with `prefix`, and queues too; how many keys that were. Keys of rounds that are over
  /// stay as they are; how many those are goes to `*left`, unless it is null.
  result<std::int64_t> delete_prefix(std::string_view prefix, milliseconds timeout = default_timeout,
                                     std::int64_t* left = nullptr) {
    std::int64_t count = 0;
    auto failure = detail::failure_of(rdzv_store_delete_prefix, c_handle(), detail::bytes(prefix), prefix.size(),
                                      detail::count(timeout), &count, left);
    if (failure) return std::move(*failure);
    return count;
  }

  /// Watches a key: reports each change from `from_revision` on, with 0 from now on.
  result<watch> watch_key(std::string_view key, std::uint64_t from_revision = 0,
                          milliseconds timeout = default_timeout) {
    return begin_watch(rdzv_store_watch_key, key, from_revision, timeout);
  }
  /// Watches all keys that begin with `prefix`.
  result<watch> watch_prefix(std::string_view prefix, std::uint64_t from_revision = 0,
                             milliseconds timeout = default_timeout) {
    return begin_watch(rdzv_store_watch_prefix, prefix, from_revision, timeout);
  }
  /// A lease that ends `ttl` after it was granted or last renewed, and with the session at the latest; with 0 only then.
  result<lease> grant_lease(milliseconds ttl, milliseconds timeout = default_timeout) {
    rdzv_lease* made = nullptr;
    auto failure =
        detail::failure_of(rdzv_store_grant_lease, c_handle(), ttl.count(), detail::count(timeout), &made);
    if (failure) return std::move(*failure);
    return lease::adopt(made);
  }

  /// Does a transaction in one turn, all of it or nothing. When the server is gone, the time is up or the call is
  /// cancelled after it was sent, it may have been done all the same: the error's message tells whether it may.
  result<txn_result> commit(const txn& what, milliseconds timeout = default_timeout) {
    auto made = what.c_txn();
    if (!made) return std::move(made).error();
    std::int32_t holds = 0;
    std::uint64_t revision = 0;
    auto failure =
        detail::failure_of(rdzv_store_commit, c_handle(), made->get(), detail::count(timeout), &holds, &revision);
    if (failure) return std::move(*failure);
    return txn_result{holds != 0, revision};
  }
  /// Carries out a batch in one turn; the answers stand in the order of its requests. When it fails by itself, as
  /// `commit` may, it may have been carried out all the same, the whole of it.
  result<std::vector<batch_answer>> send(const batch& what, milliseconds timeout = default_timeout) {
    auto made = what.c_batch();
    if (!made) return std::move(made).error();
    const detail::handle<rdzv_answers, rdzv_answers_free> answers(rdzv_answers_new());
    auto failure =
        detail::failure_of(rdzv_store_batch, c_handle(), made->get(), detail::count(timeout), answers.get());
    std::vector<batch_answer> copies;
    for (std::size_t i = 0, count = rdzv_answers_count(answers.get()); !failure && i < count; ++i) {
      rdzv_answer shown{};
      shown.struct_size = sizeof shown;
      failure = detail::failure_of(rdzv_answers_get, answers.get(), i, &shown);
      copies.push_back(detail::cpp_answer(shown));
    }
    if (failure) return std::move(*failure);
    return copies;
  }

  /// Arrives at a barrier and waits until `count` have; its generation. It is no key, and serves again and again. The
  /// error tells the missing in `nodes()`, or who died (`status::barrier_broken`), and its `generation()`.
  result<std::uint64_t> named_barrier(std::string_view key, std::uint32_t count,
                                      milliseconds timeout = default_timeout, const arrival& as = {}) {
    return arrive(key, count, {}, timeout, as);
  }
  /// The same for those of these names.
  result<std::uint64_t> named_barrier(std::string_view key, const std::vector<std::string>& names,
                                      milliseconds timeout = default_timeout, const arrival& as = {}) {
    return arrive(key, 0, detail::views(names), timeout, as);
  }
  /// Cancels a named barrier for all waiting participants, as `name` or the session's name. Returns whether any waited.
  result<bool> cancel_named_barrier(std::string_view key, milliseconds timeout = default_timeout,
                                    std::string_view name = {}) {
    std::int32_t waited = 0;
    auto failure =
        detail::failure_of(rdzv_store_cancel_named_barrier, c_handle(), detail::bytes(key), key.size(),
                           detail::bytes(name), name.size(), detail::count(timeout), &waited);
    if (failure) return std::move(*failure);
    return waited != 0;
  }

 private:
  template <class Function>
  result<watch> begin_watch(Function function, std::string_view what, std::uint64_t from_revision,
                            milliseconds timeout) {
    rdzv_watch* made = nullptr;
    auto failure = detail::failure_of(function, c_handle(), detail::bytes(what), what.size(), from_revision,
                                      detail::count(timeout), &made);
    if (failure) return std::move(*failure);
    return watch::adopt(made);
  }
  result<std::uint64_t> arrive(std::string_view key, std::uint32_t count, const std::vector<rdzv_bytes>& names,
                               milliseconds timeout, const arrival& as) {
    std::uint64_t released = 0;
    auto failure = detail::failure_of(rdzv_store_named_barrier, c_handle(), detail::bytes(key), key.size(),
                                      as.generation, detail::bytes(as.name), as.name.size(), count, names.data(),
                                      names.size(), detail::count(timeout), &released);
    if (failure) return std::move(*failure);
    return released;
  }
};

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_NATIVE_HPP
