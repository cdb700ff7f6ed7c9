// Who is in an RPC group, through the C++ header: cpp_observer HOST PORT
//
// It says what it sees in the words of `rdzv group`, and answers each line "names" on its stdin with those who are there.
// The end of its stdin ends it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>

#include "rendezvous.hpp"

namespace {

// How long one wait for a sight takes; then the next one begins.
constexpr std::chrono::seconds patience{1};

std::mutex printing;
std::atomic<bool> is_over{false};

void say(const std::string& line) {
    const std::lock_guard<std::mutex> lock(printing);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

std::string words_of(const rdzv::rpc_observation& sight) {
    const std::string who = sight.name + " " + std::to_string(sight.id);
    switch (sight.kind) {
        case rdzv::rpc_observation_kind::static_group:
            return "static";
        case rdzv::rpc_observation_kind::dynamic_group:
            return "dynamic";
        case rdzv::rpc_observation_kind::joined:
            return "came " + who + " " + sight.address;
        case rdzv::rpc_observation_kind::left:
            return "went " + who;
    }
    return "a sight of another kind";
}

void tell_sights(const rdzv::rpc_observer& observer) {
    while (!is_over) {
        const auto sight = observer.next(patience);
        if (sight && *sight) {
            say(words_of(**sight));
        } else if (!sight && sight.error().code() != rdzv::status::cancelled) {
            std::fprintf(stderr, "cpp_observer: %s\n", sight.error().message().c_str());
            std::_Exit(1);
        }
    }
}

void watch(const char* host, const char* port) {
    auto store = rdzv::store::connect(host, static_cast<std::uint16_t>(std::strtoul(port, nullptr, 10))).or_throw();
    rdzv::cancel_token token;
    const auto observer = rdzv::rpc_observer::create(store.with_prefix("rpc_prefix_0").or_throw(), &token).or_throw();
    std::thread telling([&observer] { tell_sights(observer); });
    for (std::string line; std::getline(std::cin, line);) {
        std::string names = "names";
        for (const auto& worker : observer.seen().or_throw()) {
            names += " " + worker.name;
        }
        say(line == "names" ? names : "not understood: " + line);
    }
    is_over = true;
    token.cancel();
    telling.join();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "cpp_observer HOST PORT\n");
        return 2;
    }
    try {
        watch(argv[1], argv[2]);
        return 0;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "cpp_observer: %s\n", problem.what());
        return 1;
    }
}
