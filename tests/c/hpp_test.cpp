// rendezvous.hpp from a program's side. It is compiled together with hpp_native.cpp, hpp_rendezvous.cpp and
// hpp_second.cpp, with and without exceptions.
#include "hpp_check.hpp"

#include <rendezvous/plugin.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

// In hpp_native.cpp.
void native_stores_in_cpp();

// In hpp_rendezvous.cpp.
void rendezvous_in_cpp();
// In hpp_agent.cpp.
void agents_in_cpp();
void rpc_in_cpp();
void rpc_types_in_cpp();
void rpc_in_loops_in_cpp();
// In hpp_memory.cpp.
void callbacks_without_memory();

// In hpp_second.cpp.
std::string get_elsewhere(rdzv::store& store, const std::string& key);

namespace {

#define DONE(call) CHECK(call)

static_assert(is_move_only<rdzv::store> && is_move_only<rdzv::server> && is_move_only<rdzv::context>);
static_assert(is_move_only<rdzv::event_loop>);
static_assert(std::is_move_constructible_v<rdzv::error> && !std::is_copy_constructible_v<rdzv::error>);
// A result is asked, it does not pass for a number.
static_assert(!std::is_convertible_v<rdzv::result<int>, bool> && !std::is_convertible_v<rdzv::result<void>, bool>);

rdzv::server start() { return VALUE(rdzv::server::start()); }

rdzv::store connect(const rdzv::server& server, const rdzv::context* context = nullptr) {
  rdzv::store_options options;
  options.timeout = patience;
  options.connect_timeout = patience;
  return VALUE(rdzv::store::connect("127.0.0.1", server.port(), options, context));
}

void operations() {
  rdzv::server server = start();
  CHECK(server.address() == "127.0.0.1:" + std::to_string(server.port()));
  CHECK(rdzv::version() == RDZV_VERSION_STRING && rdzv::abi_version() == RDZV_ABI_VERSION);
  rdzv::store store = connect(server);
  CHECK(store.peer() == server.address());
  using strings = std::vector<std::string>;
  const std::string odd("a\0b\xff", 4);
  DONE(store.set("key", "value"));
  DONE(store.set(odd, odd, 5s));
  DONE(store.set("", ""));
  CHECK(VALUE(store.get("key")) == "value");
  CHECK(VALUE(store.get(odd)) == odd);
  CHECK(VALUE(store.get("")).empty());
  CHECK(get_elsewhere(store, "key") == "value");
  DONE(store.append("key", "s"));
  CHECK(VALUE(store.get("key", 0ms)) == "values");
  CHECK(VALUE(store.add("counter", 3)) == 3 && VALUE(store.add("counter", -4)) == -1);
  CHECK(VALUE(store.compare_set("leader", "", "ada")) == "ada");
  CHECK(VALUE(store.compare_set("leader", "", "bob")) == "ada");
  DONE(store.multi_set({{"x", "1"}, {"y", ""}}));
  CHECK((VALUE(store.multi_get({"y", "x"})) == strings{"", "1"}));
  CHECK(VALUE(store.multi_get({})).empty());
  DONE(store.wait({"x", "y"}));
  CHECK(VALUE(store.check({"x", "y"})) && !VALUE(store.check({"x", "z"})));
  CHECK(VALUE(store.num_keys()) == static_cast<std::int64_t>(VALUE(store.list_keys()).size()));
  CHECK(VALUE(store.delete_key("x")) && !VALUE(store.delete_key("x")));
  DONE(store.queue_push("jobs", "first"));
  CHECK(VALUE(store.queue_len("jobs")) == 1 && VALUE(store.queue_pop("jobs")) == "first");
  DONE(store.barrier("alone", 1));
  DONE(store.barrier_by_keys("alone too", 1));
  CHECK(VALUE(store.check_in()) == 1);
  DONE(store.wait_for_workers(1));
  DONE(store.ping());
  const rdzv_server_stats stats = VALUE(server.stats());
  CHECK(stats.connections == 1 && stats.keys > 0);
}

void errors() {
  rdzv::server server = start();
  rdzv::store store = connect(server);
  auto late = store.get("missing", 50ms);
  CHECK(!late);
  const rdzv::error& error = late.error();
  CHECK(error.code() == rdzv::status::timed_out && rdzv::name(error.code()) == "timed out");
  CHECK(error.operation() == "get" && error.peer() == server.address() && error.phase() == "waiting");
  CHECK(error.elapsed() >= 50ms && error.os_error() == 0);
  CHECK(error.keys() == std::vector<std::string>{"missing"});
  CHECK(error.message().find("missing") != std::string::npos);
  CHECK(error.message().find(server.address()) != std::string::npos);
  CHECK(store.queue_pop("nothing", 0ms).error().code() == rdzv::status::queue_empty);
  CHECK(store.get("nothing here", -2ms).error().code() == rdzv::status::timed_out);
  CHECK(store.barrier("key", 0).error().code() == rdzv::status::invalid_argument);
  CHECK(rdzv::store::connect("127.0.0.1", 0).error().code() == rdzv::status::invalid_argument);
  CHECK(rdzv::server::start("127.0.0.1", server.port()).error().code() == rdzv::status::address_in_use);
  // Without details, the status still has a name.
  CHECK(rdzv::error(RDZV_IO, nullptr).message() == "system error");
  CHECK(rdzv::error(RDZV_IO, nullptr).keys().empty());
  DONE(server.stop());
  DONE(server.stop());
  CHECK(server.stats().error().code() == rdzv::status::closed);
  CHECK(store.get("key", 200ms).error().code() != rdzv::status::ok);
}

void handles() {
  rdzv::server server = start();
  rdzv::store store = connect(server);
  rdzv::store twin = VALUE(store.clone());
  rdzv::store moved = std::move(store);
  DONE(moved.set("key", "value"));
  CHECK(VALUE(twin.get("key")) == "value");
  // A handle that was moved from is empty: calls are refused, nothing worse.
  CHECK(store.c_handle() == nullptr);
  CHECK(store.set("key", "value").error().code() == rdzv::status::invalid_argument);
  store.cancel();
  store = std::move(moved);
  CHECK(VALUE(store.get("key")) == "value");
  // What is released is freed by hand.
  rdzv_store* raw = twin.release();
  CHECK(raw != nullptr && twin.c_handle() == nullptr);
  rdzv_store_free(raw);
}

void cancelling() {
  rdzv::server server = start();
  rdzv::store store = connect(server);
  auto pending = std::async(std::launch::async, [&store] { return store.wait({"never"}).error().code(); });
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (VALUE(server.stats()).waiting == 0) CHECK(std::chrono::steady_clock::now() < deadline);
  store.cancel();
  CHECK(pending.get() == rdzv::status::cancelled);
  DONE(store.ping());
  const rdzv::cancel_token token;
  rdzv::store bound = VALUE(store.with_token(token));
  DONE(bound.ping());
  token.cancel();
  CHECK(bound.ping().error().code() == rdzv::status::cancelled);
  CHECK(bound.clone().error().code() == rdzv::status::cancelled);
  rdzv::store_options options;
  options.token = &token;
  CHECK(rdzv::store::connect(server.address(), options).error().code() == rdzv::status::cancelled);
  DONE(store.ping());
}

void event_loops() {
  rdzv::server server = start();
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  const auto store = VALUE(loop.add_store(server.address()));
  rdzv::operation get, set;
  DONE(loop.submit(store, get.multi_get({"a", "b"}), patience));
  DONE(loop.submit(store, set.multi_set({{"a", "1"}, {"b", ""}}), patience));
  for (int i = 0; i < 2; ++i) {
    const rdzv::loop_event event = await_event(loop);
    CHECK(event.kind == rdzv::event_kind::completed && event.member == store && !event.failure);
    CHECK(event.op == get.c_handle() || event.op == set.c_handle());
  }
  CHECK((rdzv::detail::items_of(VALUE(get.outcome())) == std::vector<std::string>{"1", ""}));
  CHECK(set.outcome().has_value());
  DONE(loop.submit(store, get.get("missing"), 50ms));
  const auto late = await_end(loop, get);
  CHECK(late.error().code() == rdzv::status::timed_out);
  CHECK(late.error().message().find("missing") != std::string::npos);
  DONE(loop.submit(store, get.add("counter", 5)));
  CHECK(VALUE(await_end(loop, get)).sum == 5);
  DONE(loop.submit(store, get.get("a")));
  CHECK(value_in(VALUE(await_end(loop, get))) == "1");
  DONE(loop.submit(store, get.barrier("meeting", 2)));
  DONE(loop.cancel(get));
  CHECK(await_end(loop, get).error().code() == rdzv::status::cancelled);
  CHECK(loop.submit(store, get.barrier("meeting", 0)).error().code() == rdzv::status::invalid_argument);
  CHECK(loop.add_store("127.0.0.1:0").error().code() == rdzv::status::invalid_argument);
  DONE(loop.remove(store));
  const rdzv::event_loop moved = std::move(loop);
  CHECK(loop.fd() == -1 && moved.fd() >= 0);
}

// C refuses to change an operation that is under way. What was asked for in vain is not replaced by what was there.
void refused_requests() {
  rdzv::server server = start();
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  const auto store = VALUE(loop.add_native_store(server.address()));
  rdzv::operation read, batch, write;
  const auto is_reentrant = [](const auto& failed) { return failed.code() == rdzv::status::reentrant; };
  DONE(loop.submit(store, read.get("k")));
  batch.batch().include(write.set("k", "v"));
  CHECK(is_reentrant(*batch.include(read).include(write.set("k", "w")).failure()));
  CHECK(is_reentrant(*read.delete_key("k").failure()));
  CHECK(is_reentrant(loop.submit(store, batch).error()) && !batch.failure());
  DONE(loop.submit(store, batch));
  for (int completed = 0; completed < 2;)
    if (await_event(loop).kind == rdzv::event_kind::completed) ++completed;
  CHECK(VALUE(batch.outcome()).part_count == 1 && value_in(VALUE(read.outcome())) == "v");
  CHECK(is_reentrant(loop.submit(store, read).error()) && !read.failure());
  DONE(loop.submit(store, read));
  CHECK(value_in(VALUE(await_end(loop, read))) == "v");
  // The error of a request that is wrong stays until there is another request.
  for (int i = 0; i < 2; ++i)
    CHECK(loop.submit(store, i > 0 ? read : read.barrier("b", 0)).error().code() == rdzv::status::invalid_argument);
  DONE(loop.submit(store, read.delete_key("k")));
  CHECK(VALUE(await_end(loop, read)).deleted == 1);
}

// What a sink was told.
struct journal {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;

  void put(std::string line) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(std::move(line));
    changed.notify_all();
  }
  void await(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex);
    CHECK(changed.wait_for(lock, patience, [&] { return lines.size() >= count; }));
  }
};

void logging() {
  journal told;
  auto witness = std::make_shared<int>(0);
  {
    rdzv::context context;
    const auto sink = [&told, witness](rdzv::log_level level, std::string_view target, std::string_view line) {
      CHECK(level == rdzv::log_level::info && target == "server");
      told.put(std::string(line));
#if defined(__cpp_exceptions)
      throw std::string("nobody's concern");
#endif
    };
    DONE(context.set_log_sink(rdzv::log_level::info, sink));
    CHECK(context.set_log_sink(rdzv::log_level::info, [](auto&&...) {}).error().code() ==
          rdzv::status::invalid_argument);
    auto server = VALUE(rdzv::server::start("127.0.0.1", 0, &context));
    rdzv::store store = connect(server, &context);
    told.await(1);
    DONE(server.stop());
    // After the first line it threw, and it still gets the second.
    told.await(2);
    CHECK(witness.use_count() == 3);  // here, in `sink`, and in the library's copy of it
  }
  CHECK(told.lines.size() == 2 && told.lines[1].find("stopped") != std::string::npos);
  CHECK(witness.use_count() == 1);

  // A function that is none is refused at once, not when the first line comes.
  rdzv::context context;
  CHECK(context.set_log_sink(rdzv::log_level::info, nullptr).error().code() == rdzv::status::invalid_argument);
}

void stores_without_a_server() {
  rdzv::store store = VALUE(rdzv::store::in_process(20s));
  CHECK(store.set("a/k", "value"));
  CHECK(VALUE(VALUE(store.with_prefix("a")).get("k")) == "value");
  CHECK(VALUE(VALUE(store.clone()).get("a/k")) == "value");
  auto missing = rdzv::store::open_file("/nowhere/at/all");
  CHECK(!missing && missing.error().code() == rdzv::status::io && missing.error().os_error() != 0);

  auto witness = std::make_shared<int>(0);
  {
    auto mutex = std::make_shared<std::mutex>();
    auto values = std::make_shared<std::map<std::string, std::string>>();
    const auto code = [witness, mutex, values](const rdzv::store_request& asked, rdzv::reply& told) {
      const std::lock_guard<std::mutex> guard(*mutex);
      switch (asked.operation) {
        case RDZV_STORE_SET:
          (*values)[std::string(asked.keys[0])] = asked.values[0];
          return rdzv::status::ok;
        case RDZV_STORE_GET:
          told.add_value((*values)[std::string(asked.keys[0])]);
          return rdzv::status::ok;
        case RDZV_STORE_CHECK:
          told.set_number(values->count(std::string(asked.keys[0])) != 0);
          return rdzv::status::ok;
        case RDZV_STORE_DELETE_KEY:
#if defined(__cpp_exceptions)
          throw std::runtime_error("it cannot forget");
#else
          told.set_message("it cannot forget");
          return rdzv::status::io;
#endif
        default:
          return rdzv::status::unsupported;
      }
    };
    rdzv::store own = VALUE(rdzv::custom_store(code, "mine", 20s));
    CHECK(own.set("k", "value"));
    CHECK(VALUE(own.get("k")) == "value");
    auto failed = own.delete_key("k");
    CHECK(!failed.has_value() && failed.error().code() == rdzv::status::io && failed.error().peer() == "mine");
    CHECK(failed.error().message().find("it cannot forget") != std::string::npos);
    CHECK(own.append("k", "v").error().code() == rdzv::status::unsupported);
  }
  CHECK(witness.use_count() == 1);
  CHECK(!rdzv::custom_store(nullptr));
}

#if defined(__cpp_exceptions)
void exceptions() {
  rdzv::server server = rdzv::server::start().or_throw();
  rdzv::store store = rdzv::store::connect("127.0.0.1", server.port()).or_throw();
  store.set("key", "value").or_throw();
  CHECK(store.get("key").or_throw() == "value");
  try {
    static_cast<void>(store.get("missing", 10ms).or_throw());
    CHECK(!"a missing key came");
  } catch (const rdzv::exception& caught) {
    CHECK(caught.error().code() == rdzv::status::timed_out);
    CHECK(caught.what() == caught.error().message());
    const rdzv::exception copy = caught;
    CHECK(std::strcmp(copy.what(), caught.what()) == 0);
  }
  try {
    store.barrier("key", -1).or_throw();
    CHECK(!"a barrier of -1 opened");
  } catch (const std::exception& caught) {
    CHECK(std::strstr(caught.what(), "world_size") != nullptr);
  }
}
#endif

void endpoints_and_ports() {
  rdzv::server server = start();
  rdzv::store store = VALUE(rdzv::store::connect(server.address()));
  DONE(store.set("key", "value"));
  rdzv::native_store native = VALUE(rdzv::native_store::connect(server.address()));
  CHECK(VALUE(native.get("key")) == "value");
  rdzv::event_loop loop = VALUE(rdzv::event_loop::create());
  CHECK(loop.add_store(server.address()) && loop.add_native_store(server.address()));
  const auto no_port = rdzv::store::connect("127.0.0.1");
  CHECK(!no_port && no_port.error().message().find("has no port") != std::string::npos);
  // A port that there is not is refused, and not cut down to one that there is.
  const auto refused = [](const auto& result) {
    return !result && result.error().code() == rdzv::status::invalid_argument &&
           result.error().message().find("is not from 0 to 65535") != std::string::npos;
  };
  for (const long port : {99999L, 65536L, -1L}) {
    CHECK(refused(rdzv::store::connect("127.0.0.1", port)) && refused(rdzv::native_store::connect("127.0.0.1", port)));
    CHECK(refused(rdzv::server::start("127.0.0.1", port)));
  }
  CHECK(rdzv::store::connect("127.0.0.1:99999").error().code() == rdzv::status::invalid_argument);
}

#if defined(__cpp_exceptions)
void named_results_throw() {
  rdzv::store store = VALUE(rdzv::store::in_process(patience));
  const rdzv::result<void> done = store.set("key", "value");
  done.or_throw();
  auto found = store.get("key");
  found.or_throw() += "!";
  const auto& same = found;
  CHECK(same.or_throw() == "value!");
  const auto late = store.get("none", 10ms);
  const rdzv::result<void> waited = store.wait({"none"}, 10ms);
  for (int i = 0; i < 2; ++i) {
    try {
      late.or_throw();
      CHECK(!"the value of a failure");
    } catch (const rdzv::exception& caught) {
      CHECK(caught.error().code() == rdzv::status::timed_out && caught.error().keys().front() == "none");
    }
    try {
      waited.or_throw();
      CHECK(!"a failure that is none");
    } catch (const rdzv::exception& caught) {
      CHECK(caught.error().operation() == "wait");
    }
  }
}
#endif

}  // namespace

int main() {
  operations();
  endpoints_and_ports();
  errors();
  handles();
  cancelling();
  event_loops();
  refused_requests();
  logging();
  stores_without_a_server();
  native_stores_in_cpp();
  rendezvous_in_cpp();
  agents_in_cpp();
  rpc_types_in_cpp();
  rpc_in_cpp();
  rpc_in_loops_in_cpp();
#if defined(__cpp_exceptions)
  exceptions();
  named_results_throw();
  callbacks_without_memory();
#endif
  return 0;
}
