// A tour of the store from C++: a server embedded in this process, clients that connect to it, and every kind
// of operation once. Each step checks what it gets; the program ends with 0 only when all of them hold.
//
// Every operation returns a result<T>. There are two ways to read one, both are used below:
//     auto value = store.get("key");  if (!value) { ... value.error() ... }     no exceptions needed
//     std::string value = store.get("key").or_throw();                          throws rdzv::exception

#include <rendezvous.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;

void expect(bool holds, const std::string& step) {
    if (!holds) {
        throw std::runtime_error("not as expected: " + step);
    }
    std::printf("ok    %s\n", step.c_str());
}

void keys_and_values(rdzv::store& store) {
    store.set("colour", "green").or_throw();
    expect(store.get("colour").or_throw() == "green", "set, then get");

    // Values are bytes: zeros inside and empty values are as good as any.
    const std::string bytes("\0\xff\0", 3);
    store.set("bytes", bytes).or_throw();
    store.set("empty", "").or_throw();
    expect(store.get("bytes").or_throw() == bytes, "a value with zero bytes in it");
    expect(store.get("empty").or_throw().empty(), "an empty value is there and empty");

    store.append("log", "first,").or_throw();
    store.append("log", "second").or_throw();
    expect(store.get("log").or_throw() == "first,second", "append creates, then extends");

    expect(store.delete_key("colour").or_throw(), "delete_key of a key that is there");
    expect(!store.delete_key("colour").or_throw(), "delete_key again finds nothing");

    const std::vector<std::string> keys = store.list_keys().or_throw();
    expect(std::count(keys.begin(), keys.end(), "log") == 1 &&
               std::count(keys.begin(), keys.end(), "colour") == 0,
           "list_keys shows what is there");
    expect(store.num_keys().or_throw() >= 3, "num_keys counts it");
}

void counters_and_comparisons(rdzv::store& store) {
    // add is atomic and returns the new sum: the way to hand out numbers, tickets or ranks.
    expect(store.add("tickets", 5).or_throw() == 5, "add starts from zero");
    expect(store.add("tickets", -7).or_throw() == -2, "add of a negative number");
    expect(store.get("tickets").or_throw() == "-2", "a counter reads as decimal text");

    // compare_set returns the value after the call: the caller has won exactly when that is its own.
    expect(store.compare_set("leader", "", "ada").or_throw() == "ada",
           "compare_set creates where nothing is");
    expect(store.compare_set("leader", "", "bob").or_throw() == "ada", "compare_set loses to the first");
    expect(store.compare_set("leader", "ada", "bob").or_throw() == "bob",
           "compare_set replaces what it expects");
}

void many_at_once(rdzv::store& store) {
    store.multi_set({{"x", "1"}, {"y", "2"}, {"z", "3"}}).or_throw();
    expect(store.multi_get({"z", "x", "y"}).or_throw() == std::vector<std::string>{"3", "1", "2"},
           "multi_set, then multi_get in another order");
    expect(store.check({"x", "y"}).or_throw(), "check: both keys are there");
    expect(!store.check({"x", "nowhere"}).or_throw(), "check: one key is missing, and the call does not wait");
}

void queues(rdzv::store& store) {
    store.queue_push("jobs", "first").or_throw();
    store.queue_push("jobs", "second").or_throw();
    expect(store.queue_len("jobs").or_throw() == 2, "queue_len after two pushes");
    expect(store.queue_pop("jobs").or_throw() == "first", "queue_pop gives the oldest item");
    expect(store.queue_pop("jobs").or_throw() == "second", "queue_pop gives the next one");
    auto nothing = store.queue_pop("jobs", 0ms); // 0: try once
    expect(!nothing && nothing.error().code() == rdzv::status::queue_empty,
           "queue_pop of an empty queue, trying once");
}

void waiting(rdzv::store& store) {
    // One handle serves any number of threads: the wait below does not hold up the writes after it.
    auto reader = std::async(std::launch::async, [&store] {
        store.wait({"address/0", "address/1"}).or_throw();
        return store.get("address/0").or_throw() + " " + store.get("address/1").or_throw();
    });
    store.set("address/0", "here").or_throw();
    store.set("address/1", "there").or_throw();
    expect(reader.get() == "here there", "wait in one thread is released by set in another");

    // get waits as well, so most programs never call wait. A clone is a handle of its own to the same server.
    rdzv::store other = store.clone().or_throw();
    auto getter = std::async(std::launch::async, [&other] { return other.get("late").or_throw(); });
    store.set("late", "but present").or_throw();
    expect(getter.get() == "but present", "get waits until the key is there");
}

void meeting(rdzv::store& store) {
    // A barrier releases everyone when world_size callers have come. Its counter does not go back: one
    // meeting, one key.
    for (int epoch = 1; epoch <= 3; ++epoch) {
        const std::string key = "epoch/" + std::to_string(epoch);
        const std::string arrivals = "arrivals/" + std::to_string(epoch);
        const auto take_part = [&] {
            store.add(arrivals, 1).or_throw();
            store.barrier(key, 2).or_throw();
            return store.add(arrivals, 0).or_throw(); // adding nothing reads the counter
        };
        auto partner = std::async(std::launch::async, take_part);
        const std::int64_t seen_here = take_part();
        const std::int64_t seen_there = partner.get();
        expect(seen_here == 2 && seen_there == 2, "barrier " + key + ": no thread left before both had arrived");
    }
}

void errors(rdzv::store& store, rdzv::server& server) {
    auto missing = store.get("never set", 200ms);
    expect(!missing && missing.error().code() == rdzv::status::timed_out, "get of a missing key times out");
    const rdzv::error& reason = missing.error();
    std::printf("      message    %s\n", reason.message().c_str());
    std::printf("      code       %d\n", static_cast<int>(reason.code()));
    std::printf("      operation  %s\n", reason.operation().c_str());
    std::printf("      peer       %s\n", reason.peer().c_str());
    std::printf("      phase      %s\n", reason.phase().c_str());
    std::printf("      elapsed    %lld ms\n", static_cast<long long>(reason.elapsed().count()));
    expect(reason.elapsed() >= 200ms && reason.elapsed() < 10s, "it took as long as it was allowed to");
    expect(store.get("late").or_throw() == "but present", "the handle is as good as before");

    server.stop().or_throw();
    auto gone = store.get("late", 2s);
    expect(!gone && gone.error().code() != rdzv::status::ok,
           "without a server, an operation fails and says why");
    std::printf("      message    %s\n", gone.error().message().c_str());
}

void tour() {
    rdzv::server server =
        rdzv::server::start("127.0.0.1", 0).or_throw(); // port 0: the kernel picks a free one
    expect(server.port() != 0, "a server inside this process");

    rdzv::store_options options;
    options.timeout = 30s; // the bound of every operation that is not given its own
    options.connect_timeout = 10s;
    rdzv::store store = rdzv::store::connect("127.0.0.1", server.port(), options).or_throw();
    expect(true, "a client connected to it");

    keys_and_values(store);
    counters_and_comparisons(store);
    many_at_once(store);
    queues(store);
    waiting(store);
    meeting(store);
    errors(store, server);
}

} // namespace

int main() {
    try {
        tour();
        return 0;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "store_basics: %s\n", problem.what());
        return 1;
    }
}
