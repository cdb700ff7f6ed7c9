// An elastic job in one file: nodes meet, work, notice a dead peer at once, and meet again.
//
//     rendezvous                       three nodes in this process; one dies on the way
//     rendezvous NAME HOST:PORT        one node of its own; start two or three, and kill one
//
// The first node on the endpoint's host that finds the port free hosts the server.

#include <rendezvous.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr int steps = 20;
std::atomic<bool> one_has_died{false};

// A node: two or three of them work together.
void take_part(const std::string& name, const std::string& endpoint, bool dies) {
    rdzv::rendezvous_parameters parameters{"rdzv", endpoint, "demo", 2, 3};
    parameters.config = "last_call_timeout=1,min_to_continue=2,node=" + name;
    auto handler = rdzv::rendezvous_handler::create(parameters).or_throw();
    for (;;) {
        const auto info = handler.next_rendezvous().or_throw();
        auto store = info.store().or_throw();
        std::printf("%s: round %lld, rank %lld of %lld\n", name.c_str(), static_cast<long long>(info.round.value_or(-1)),
                    static_cast<long long>(info.rank), static_cast<long long>(info.world_size));
        bool whole = true;
        for (int step = 0; whole && step < steps; ++step) {
            store.add("steps", 1).or_throw();  // the work
            if (dies && step == steps / 2) {
                one_has_died = true;
                return;  // without a word, as a process that is killed
            }
            // No event within 20 ms means that nothing happened: the round goes on.
            while (auto event = handler.next_event(20ms).or_throw()) {
                std::printf("%s: %s\n", name.c_str(), event->describe().or_throw().c_str());
                const bool others_wait = event->kind == rdzv::round_event_kind::nodes_waiting && event->nodes > 0;
                if (event->ends_round() || others_wait) whole = false;
            }
        }
        if (whole) break;
    }
    std::printf("%s: done\n", name.c_str());
    handler.shutdown().or_throw();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc == 3) {
            take_part(argv[1], argv[2], false);
            return 0;
        }
        // The server of a demo lives in this process; elsewhere it would be a node, or `rdzv server`.
        auto server = rdzv::server::start("127.0.0.1", 0).or_throw();
        const std::string endpoint = server.address();
        std::vector<std::thread> nodes;
        for (const char* name : {"anna", "ben", "cleo"}) {
            nodes.emplace_back([=] { take_part(name, endpoint, std::string(name) == "ben"); });
        }
        for (auto& node : nodes) node.join();
        return one_has_died ? 0 : 1;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        return 1;
    }
}
