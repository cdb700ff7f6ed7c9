// rendezvous_handler.hpp: how ranks that know little of each other become a numbered group: handlers by
// backend, and rendezvous by URL. For C++17 and later; rendezvous.hpp brings it along.

// Before the guard: it brings this header along, in its place among the others.
#include "rendezvous.hpp"

#ifndef RENDEZVOUS_HANDLER_HPP
#define RENDEZVOUS_HANDLER_HPP

#include <cstdlib>
#include <limits>
#include <type_traits>

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// An option of a backend's own: named without a value, a truth value, an integer, a fraction, or a text.
using config_value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

namespace detail {

/// Borrows the text of `value`.
inline rdzv_config_value c_value(const config_value& value) {
  rdzv_config_value made{};
  made.struct_size = sizeof made;
  made.kind = RDZV_CONFIG_NONE;
  if (const bool* flag = std::get_if<bool>(&value)) {
    made.kind = RDZV_CONFIG_BOOL;
    made.number = *flag ? 1 : 0;
  } else if (const std::int64_t* number = std::get_if<std::int64_t>(&value)) {
    made.kind = RDZV_CONFIG_INT;
    made.number = *number;
  } else if (const double* fraction = std::get_if<double>(&value)) {
    made.kind = RDZV_CONFIG_FLOAT;
    made.fraction = *fraction;
  } else if (const std::string* message = std::get_if<std::string>(&value)) {
    made.kind = RDZV_CONFIG_TEXT;
    made.text = bytes(*message);
    made.text_len = message->size();
  }
  return made;
}

inline std::optional<config_value> cpp_value(const rdzv_config_value& value) {
  switch (value.kind) {
    case RDZV_CONFIG_NONE:
      return config_value();
    case RDZV_CONFIG_BOOL:
      return config_value(value.number != 0);
    case RDZV_CONFIG_INT:
      return config_value(value.number);
    case RDZV_CONFIG_FLOAT:
      return config_value(value.fraction);
    case RDZV_CONFIG_TEXT:
      return config_value(std::string(text(value.text, value.text_len)));
    default:
      return std::nullopt;
  }
}

}  // namespace detail

/// What a handler is made from.
class rendezvous_parameters {
 public:
  /// For `backend`: where its rendezvous is held, the run, and how many nodes there must and may be.
  static result<rendezvous_parameters> create(std::string_view backend, std::string_view endpoint,
                                              std::string_view run_id, std::int64_t min_nodes,
                                              std::int64_t max_nodes) {
    rdzv_rendezvous_parameters* made = nullptr;
    auto failure = detail::failure_of(rdzv_rendezvous_parameters_new, detail::bytes(backend), backend.size(),
                                      detail::bytes(endpoint), endpoint.size(), detail::bytes(run_id), run_id.size(),
                                      min_nodes, max_nodes, &made);
    if (failure) return std::move(*failure);
    return rendezvous_parameters(made);
  }

  /// Where the others reach this node.
  result<void> set_local_addr(std::string_view address) {
    return detail::call(rdzv_rendezvous_parameters_set_local_addr, handle_.get(), detail::bytes(address),
                        address.size());
  }
  /// Options as `key=value,key=value`; all are text.
  result<void> set_config(std::string_view config) {
    return detail::call(rdzv_rendezvous_parameters_set_config, handle_.get(), detail::bytes(config), config.size());
  }
  /// One option. Integers and fractions of every type and truth values keep their values; an integer that does not
  /// fit 64 bits with a sign is refused.
  result<void> set(std::string_view key, const config_value& value) {
    const rdzv_config_value c_value = detail::c_value(value);
    return detail::call(rdzv_rendezvous_parameters_set, handle_.get(), detail::bytes(key), key.size(), &c_value);
  }
  result<void> set(std::string_view key, std::string_view value) {
    return detail::call(rdzv_rendezvous_parameters_set_text, handle_.get(), detail::bytes(key), key.size(),
                        detail::bytes(value), value.size());
  }
  result<void> set(std::string_view key, const std::string& value) { return set(key, std::string_view(value)); }
  result<void> set(std::string_view key, const char* value) { return set(key, std::string_view(value)); }
  template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  result<void> set(std::string_view key, Number value) {
    if constexpr (std::is_same_v<Number, bool>) {
      return set(key, config_value(value));
    } else if constexpr (std::is_floating_point_v<Number>) {
      return set(key, config_value(static_cast<double>(value)));
    } else {
      if constexpr (std::is_unsigned_v<Number> && sizeof(Number) >= sizeof(std::int64_t)) {
        if (value > static_cast<Number>(std::numeric_limits<std::int64_t>::max())) {
          const std::string message = "the option '" + std::string(key) + "' is " + std::to_string(value) +
                                    ", above 9223372036854775807, the largest integer that an option can have";
          const rdzv_status code = RDZV_INVALID_ARGUMENT;
          return error(code, rdzv_error_new(code, detail::bytes(message), message.size()));
        }
      }
      return set(key, config_value(static_cast<std::int64_t>(value)));
    }
  }

  std::string backend() const { return detail::borrowed(rdzv_rendezvous_parameters_backend, c_handle()); }
  std::string endpoint() const { return detail::borrowed(rdzv_rendezvous_parameters_endpoint, c_handle()); }
  std::string run_id() const { return detail::borrowed(rdzv_rendezvous_parameters_run_id, c_handle()); }
  /// Nothing when it was not set.
  std::optional<std::string> local_addr() const {
    std::size_t size = 0;
    const std::uint8_t* data = rdzv_rendezvous_parameters_local_addr(c_handle(), &size);
    if (data == nullptr) return std::nullopt;
    return std::string(detail::text(data, size));
  }
  std::int64_t min_nodes() const noexcept { return rdzv_rendezvous_parameters_min_nodes(c_handle()); }
  std::int64_t max_nodes() const noexcept { return rdzv_rendezvous_parameters_max_nodes(c_handle()); }

  /// The names of all options, in order.
  result<std::vector<std::string>> keys() const {
    detail::list keys;
    if (auto failure = detail::failure_of(rdzv_rendezvous_parameters_list, c_handle(), keys.get()))
      return std::move(*failure);
    return keys.strs();
  }
  /// The value of an option; nothing when there is none.
  result<std::optional<config_value>> get(std::string_view key) const {
    rdzv_config_value value{};
    value.struct_size = sizeof value;
    auto failure =
        detail::failure_of(rdzv_rendezvous_parameters_get, c_handle(), detail::bytes(key), key.size(), &value);
    if (failure) return std::move(*failure);
    return detail::cpp_value(value);
  }
  /// The same as a truth value. `otherwise` stands in for a missing option, and is read by the same rules.
  result<std::optional<bool>> get_as_bool(std::string_view key,
                                          const std::optional<config_value>& otherwise = std::nullopt) const {
    std::int32_t found = 0, value = 0;
    auto failure = read(rdzv_rendezvous_parameters_get_as_bool, key, otherwise, &found, &value);
    if (failure) return std::move(*failure);
    return found != 0 ? std::optional<bool>(value != 0) : std::nullopt;
  }
  /// The same as an integer.
  result<std::optional<std::int64_t>> get_as_int(std::string_view key,
                                                 const std::optional<config_value>& otherwise = std::nullopt) const {
    std::int32_t found = 0;
    std::int64_t value = 0;
    auto failure = read(rdzv_rendezvous_parameters_get_as_int, key, otherwise, &found, &value);
    if (failure) return std::move(*failure);
    return found != 0 ? std::optional<std::int64_t>(value) : std::nullopt;
  }

  const rdzv_rendezvous_parameters* c_handle() const noexcept { return handle_.get(); }
  rdzv_rendezvous_parameters* release() noexcept { return handle_.release(); }
  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static rendezvous_parameters adopt(rdzv_rendezvous_parameters* handle) noexcept {
    return rendezvous_parameters(handle);
  }

 private:
  explicit rendezvous_parameters(rdzv_rendezvous_parameters* made) noexcept : handle_(made) {}

  template <class Function, class Value>
  std::optional<error> read(Function function, std::string_view key, const std::optional<config_value>& otherwise,
                            std::int32_t* found, Value* value) const {
    rdzv_config_value stand_in{};
    if (otherwise) stand_in = detail::c_value(*otherwise);
    const rdzv_config_value* given = otherwise ? &stand_in : nullptr;
    return detail::failure_of(function, c_handle(), detail::bytes(key), key.size(), given, found, value);
  }

  detail::handle<rdzv_rendezvous_parameters, rdzv_rendezvous_parameters_free> handle_;
};

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

/// What a node learns when it has joined.
class rendezvous_info {
 public:
  /// A handle of the store that the nodes share; those of one rendezvous share what is pending, too. Where this process
  /// hosts the store, it lives as long as the last of them, and as the handler.
  result<rdzv::store> store() const {
    rdzv_store* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rendezvous_info_store, c_handle(), &made)) return std::move(*failure);
    return rdzv::store::adopt(made);
  }
  std::int64_t rank() const noexcept { return rdzv_rendezvous_info_rank(c_handle()); }
  /// Negative when unknown.
  std::int64_t world_size() const noexcept { return rdzv_rendezvous_info_world_size(c_handle()); }
  /// Where the ranks of the job find their store; empty by URL.
  std::string master_addr() const { return detail::borrowed(rdzv_rendezvous_info_master_addr, c_handle()); }
  std::uint16_t master_port() const noexcept { return rdzv_rendezvous_info_master_port(c_handle()); }
  /// The round, of backends that have rounds; where their server knows the workers, also where this node's stand in it,
  /// and node 0's address.
  std::optional<std::int64_t> round() const { return known(rdzv_rendezvous_info_round(c_handle())); }
  std::optional<std::int64_t> rank_first() const { return known(rdzv_rendezvous_info_rank_first(c_handle())); }
  std::optional<std::int64_t> worker_count() const { return known(rdzv_rendezvous_info_worker_count(c_handle())); }
  std::string leader() const { return detail::borrowed(rdzv_rendezvous_info_leader, c_handle()); }
  /// What the keys of the round begin with at its server, with a slash at the end; empty where the backend does not
  /// know it.
  std::string key_prefix() const { return detail::borrowed(rdzv_rendezvous_info_key_prefix, c_handle()); }
  /// Whether this process hosts the store.
  bool hosts_store() const noexcept { return rdzv_rendezvous_info_hosts_store(c_handle()) != 0; }

  const rdzv_rendezvous_info* c_handle() const noexcept { return handle_.get(); }
  /// Takes over a handle of the C ABI.
  static rendezvous_info adopt(rdzv_rendezvous_info* handle) noexcept { return rendezvous_info(handle); }

 private:
  explicit rendezvous_info(rdzv_rendezvous_info* made) noexcept : handle_(made) {}
  static std::optional<std::int64_t> known(std::int64_t number) {
    return number < 0 ? std::nullopt : std::optional<std::int64_t>(number);
  }
  detail::handle<rdzv_rendezvous_info, rdzv_rendezvous_info_free> handle_;
};

/// What may happen to a round.
enum class round_event_kind : std::int32_t {
  nodes_waiting = RDZV_ROUND_EVENT_NODES_WAITING,
  peer_died = RDZV_ROUND_EVENT_PEER_DIED,
  round_over = RDZV_ROUND_EVENT_ROUND_OVER,
  run_closed = RDZV_ROUND_EVENT_RUN_CLOSED,
  left_behind = RDZV_ROUND_EVENT_EXCLUDED,
  replaced = RDZV_ROUND_EVENT_REPLACED,
  job_failed = RDZV_ROUND_EVENT_JOB_FAILED,
};

/// Something that happened to a round, or to the run.
struct round_event {
  round_event_kind kind = round_event_kind::nodes_waiting;
  std::uint64_t round = 0;
  /// How many wait for the next round.
  std::uint32_t nodes = 0;
  /// Of the one that died, among the nodes of the round.
  std::uint32_t node_rank = 0;
  /// An RDZV_WHY_ number.
  std::int32_t why = 0;
  /// The node that died, or that closed the run; or why the job has failed.
  std::string name;

  /// Whether the round is over for this node, which joins again with `next_rendezvous`. After `nodes_waiting` the round
  /// goes on for as long as its nodes like.
  bool ends_round() const noexcept {
    return kind == round_event_kind::peer_died || kind == round_event_kind::round_over ||
           kind == round_event_kind::run_closed || kind == round_event_kind::left_behind ||
           kind == round_event_kind::replaced || kind == round_event_kind::job_failed;
  }

  /// In words.
  result<std::string> describe() const {
    const rdzv_round_event event = c_event();
    detail::buffer message;
    auto failure =
        detail::failure_of(rdzv_round_event_describe, &event, detail::bytes(name), name.size(), message.get());
    if (failure) return std::move(*failure);
    return message.str();
  }

  rdzv_round_event c_event() const {
    rdzv_round_event event{};
    event.struct_size = sizeof event;
    event.kind = static_cast<std::int32_t>(kind);
    event.round = round;
    event.nodes = nodes;
    event.node_rank = node_rank;
    event.why = why;
    return event;
  }
};

/// One node's part in a rendezvous. Any thread may call; a call that waits is ended by `cancel()` from another.
class rendezvous_handler {
 public:
  using milliseconds = std::chrono::milliseconds;

  /// Of the backend that the parameters name: `static`, or another that the context has.
  static result<rendezvous_handler> create(const rendezvous_parameters& parameters, const context* shared = nullptr) {
    rdzv_rendezvous_handler* made = nullptr;
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    auto failure = detail::failure_of(rdzv_rendezvous_handler_new, context, parameters.c_handle(), &made);
    if (failure) return std::move(*failure);
    return rendezvous_handler(made);
  }

  std::string backend() const { return detail::borrowed(rdzv_rendezvous_handler_backend, c_handle()); }
  std::string run_id() const { return detail::borrowed(rdzv_rendezvous_handler_run_id, c_handle()); }
  /// Whether the ranks that this node starts shall use the store that the nodes met over.
  bool use_agent_store() const noexcept { return rdzv_rendezvous_handler_use_agent_store(c_handle()) != 0; }

  /// Joins, and waits until the group is whole.
  result<rendezvous_info> next_rendezvous() {
    rdzv_rendezvous_info* made = nullptr;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_next_rendezvous, c_handle(), &made);
    if (failure) return std::move(*failure);
    return rendezvous_info::adopt(made);
  }
  /// Nothing to synchronize by: it may be seen late.
  result<bool> is_closed() const {
    std::int32_t closed = 0;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_is_closed, c_handle(), &closed);
    if (failure) return std::move(*failure);
    return closed != 0;
  }
  /// Closes the rendezvous: no node may join any more.
  result<void> set_closed() { return detail::call(rdzv_rendezvous_handler_set_closed, c_handle()); }
  /// The same because the job has failed; the other nodes get the reason.
  result<void> fail(std::string_view message) {
    return detail::call(rdzv_rendezvous_handler_fail, c_handle(), detail::bytes(message), message.size());
  }
  /// How many wait for the next round.
  result<std::int64_t> num_nodes_waiting() const {
    std::int64_t count = 0;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_num_nodes_waiting, c_handle(), &count);
    if (failure) return std::move(*failure);
    return count;
  }
  /// The next thing that happens to this node's round; nothing when nothing did in time.
  result<std::optional<round_event>> next_event(milliseconds timeout = default_timeout) {
    rdzv_round_event event{};
    event.struct_size = sizeof event;
    detail::buffer name;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_next_event, c_handle(), detail::count(timeout), &event,
                                      name.get());
    if (failure) return std::move(*failure);
    if (event.kind == RDZV_ROUND_EVENT_NONE) return std::optional<round_event>();
    return std::optional<round_event>(round_event{static_cast<round_event_kind>(event.kind), event.round, event.nodes,
                                                  event.node_rank, event.why, name.str()});
  }
  /// Gives everything back; whether all went well.
  result<bool> shutdown() {
    std::int32_t clean = 0;
    auto failure = detail::failure_of(rdzv_rendezvous_handler_shutdown, c_handle(), &clean);
    if (failure) return std::move(*failure);
    return clean != 0;
  }
  /// Ends every call that is under way, in any thread, with `status::cancelled`. Later calls go on.
  void cancel() { rdzv_rendezvous_handler_cancel(c_handle()); }
  /// Calls that begin later also end with `token`, which replaces an earlier one.
  result<void> set_token(const cancel_token& token) {
    return detail::call(rdzv_rendezvous_handler_set_cancel_token, c_handle(), token.c_handle());
  }

  /// Takes over a handle of the C ABI, such as `release()` gives away.
  static rendezvous_handler adopt(rdzv_rendezvous_handler* handle) noexcept { return rendezvous_handler(handle); }
  const rdzv_rendezvous_handler* c_handle() const noexcept { return handle_.get(); }
  rdzv_rendezvous_handler* release() noexcept { return handle_.release(); }

 private:
  explicit rendezvous_handler(rdzv_rendezvous_handler* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rendezvous_handler, rdzv_rendezvous_handler_free> handle_;
};

/// What the caller of a rendezvous by URL knows beside the URL.
struct url_options {
  /// -1: the URL or a variable says it.
  std::int64_t rank = -1;
  /// -1: the URL or a variable says it.
  std::int64_t world_size = -1;
  /// The world size is unknown and is not checked.
  bool is_dynamic = false;
  /// For the others, and for the store's operations that name no timeout.
  std::chrono::milliseconds timeout{1800000};
  /// Where the rank that hosts the store listens, when that is not what the URL says.
  std::string listen_host;
  /// `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_USE_AGENT_STORE`: those that are known.
  std::vector<std::pair<std::string, std::string>> variables;

  /// Reads those five from the environment of this process. No other thread may change it meanwhile.
  url_options& read_environment() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"})
      if (const char* value = std::getenv(name)) variables.emplace_back(name, value);
    return *this;
  }
};

/// A rendezvous by URL under way. One thread at a time, but for `cancel()`.
class url_rendezvous {
 public:
  /// Does not join yet: `next()` does.
  static result<url_rendezvous> begin(std::string_view url, const url_options& options = {},
                                      const context* shared = nullptr) {
    rdzv_rendezvous_url_options* raw = nullptr;
    if (auto failure = detail::failure_of(rdzv_rendezvous_url_options_new, &raw)) return std::move(*failure);
    const detail::handle<rdzv_rendezvous_url_options, rdzv_rendezvous_url_options_free> owned(raw);
    auto failure = detail::failure_of(rdzv_rendezvous_url_options_set_rank, raw, options.rank);
    if (!failure)
      failure = options.is_dynamic
                    ? detail::failure_of(rdzv_rendezvous_url_options_set_dynamic, raw)
                    : detail::failure_of(rdzv_rendezvous_url_options_set_world_size, raw, options.world_size);
    if (!failure)
      failure = detail::failure_of(rdzv_rendezvous_url_options_set_timeout_ms, raw, options.timeout.count());
    if (!failure && !options.listen_host.empty())
      failure = detail::failure_of(rdzv_rendezvous_url_options_set_listen_host, raw,
                                   detail::bytes(options.listen_host), options.listen_host.size());
    for (const auto& [name, value] : options.variables)
      if (!failure)
        failure = detail::failure_of(rdzv_rendezvous_url_options_set_variable, raw, detail::bytes(name), name.size(),
                                     detail::bytes(value), value.size());
    const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
    rdzv_rendezvous_url* made = nullptr;
    if (!failure)
      failure = detail::failure_of(rdzv_rendezvous_url_begin, context, detail::bytes(url), url.size(), raw, &made);
    if (failure) return std::move(*failure);
    return url_rendezvous(made);
  }

  /// Meets the others. The built-in schemes do so once.
  result<rendezvous_info> next() {
    rdzv_rendezvous_info* made = nullptr;
    if (auto failure = detail::failure_of(rdzv_rendezvous_url_next, handle_.get(), &made)) return std::move(*failure);
    return rendezvous_info::adopt(made);
  }
  /// Ends the `next()` that is under way in another thread with `status::cancelled`.
  void cancel() { rdzv_rendezvous_url_cancel(handle_.get()); }

  rdzv_rendezvous_url* c_handle() const noexcept { return handle_.get(); }
  rdzv_rendezvous_url* release() noexcept { return handle_.release(); }

 private:
  explicit url_rendezvous(rdzv_rendezvous_url* made) noexcept : handle_(made) {}
  detail::handle<rdzv_rendezvous_url, rdzv_rendezvous_url_free> handle_;
};

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_HANDLER_HPP
