// The C++ rank of the mixed job in test_mixed.py: cpp_rank HOST PORT RANK WORLD_SIZE, or cpp_rank file PATH RANK WORLD_SIZE
//
// Greets the Python ranks through the store, meets them in one native c10d barrier and in one barrier made of ADD, SET
// and WAIT, and prints what it saw. Every other rank below WORLD_SIZE is a Python rank with PyTorch's client.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "rendezvous.hpp"

namespace {

constexpr std::chrono::seconds patience{30};

[[noreturn]] void give_up(const rdzv::error& error) {
    std::fprintf(stderr, "cpp_rank: %s (%s with %s)\n", error.message().c_str(), error.operation().c_str(),
                 error.peer().c_str());
    std::exit(1);
}

template <class T>
T need(rdzv::result<T> outcome) {
    if (!outcome) {
        give_up(outcome.error());
    }
    return std::move(*outcome);
}

void need(rdzv::result<void> outcome) {
    if (!outcome) {
        give_up(outcome.error());
    }
}

rdzv::store open(const std::string& host, const char* place, std::int64_t world_size) {
    if (host == "file") {
        return need(rdzv::store::open_file(place, world_size, patience));
    }
    rdzv::store_options options;
    options.timeout = patience;
    options.connect_timeout = patience;
    return need(rdzv::store::connect(host, static_cast<std::uint16_t>(std::atoi(place)), options));
}

/// The meeting PyTorch's PrefixStore and FileStore use: the last to count itself opens the door for all.
void meet_by_counting(rdzv::store& store, const std::string& name, std::int64_t world_size) {
    if (need(store.add(name + "/num_members", 1)) == world_size) {
        need(store.set(name + "/last_member", "1"));
    }
    need(store.wait({name + "/last_member"}, patience));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: cpp_rank HOST PORT RANK WORLD_SIZE\n"
                             "       cpp_rank file PATH RANK WORLD_SIZE\n");
        return 2;
    }
    const int rank = std::atoi(argv[3]);
    const int world_size = std::atoi(argv[4]);

    rdzv::store store = open(argv[1], argv[2], world_size);

    need(store.set("cpp/hello", "hello from C++ rank " + std::to_string(rank)));
    for (int other = 0; other < world_size; ++other) {
        if (other != rank) {
            const std::string key = "py/hello/" + std::to_string(other);
            const std::string value = need(store.get(key));
            std::printf("%s = %s\n", key.c_str(), value.c_str());
        }
    }

    need(store.add("meet/native_arrived", 1));
    need(store.barrier("meet/native", world_size, patience));
    std::printf("native barrier: %lld arrived\n", static_cast<long long>(need(store.add("meet/native_arrived", 0))));

    need(store.add("meet/legacy_arrived", 1));
    meet_by_counting(store, "meet/legacy", world_size);
    std::printf("legacy barrier: %lld arrived\n", static_cast<long long>(need(store.add("meet/legacy_arrived", 0))));
    return 0;
}
