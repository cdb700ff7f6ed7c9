// What tests/src/bin/rank.rs does, through the C++ headers, word for word:
//
//     cpp_meeting url URL RANK WORLD_SIZE            meet by URL; -1: it or the environment says it
//     cpp_meeting static ENDPOINT RUN_ID RANK NODES  meet in a static rendezvous
//     cpp_meeting barrier HOST PORT RANK WORLD_SIZE TIMEOUT_MS TRACE_TIMEOUT_MS
//     cpp_meeting build HOST PORT RANK               publish or read MASTER_ADDR and MASTER_PORT

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "rendezvous.hpp"

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds patience = 30s;

std::int64_t number(const char* text) {
    return std::strtoll(text, nullptr, 10);
}

// What every rank of the job does; the Python ranks do the same.
void work(const rdzv::rendezvous_info& info) {
    rdzv::store store = info.store().or_throw();
    const std::int64_t rank = info.rank, world_size = info.world_size;
    std::printf("joined as %lld/%lld, %s\n", static_cast<long long>(rank), static_cast<long long>(world_size),
                info.hosts_store ? "host" : "client");
    const std::string own = "data of rank " + std::to_string(rank) + " in C++";
    for (const std::string& data : rdzv::synchronize(store, own, rank, world_size, "exchange/", patience).or_throw()) {
        std::printf("%s\n", data.c_str());
    }
    rdzv::tracing traced;
    traced.rank = rank;
    rdzv::elastic_barrier(store, "door", world_size, patience, traced).or_throw();
    std::printf("met\n");
    // The store lives as long as its host: the others leave first.
    store.set("left/" + std::to_string(rank), "").or_throw();
    if (rank == 0) {
        std::vector<std::string> left;
        for (std::int64_t other = 1; other < world_size; ++other) {
            left.push_back("left/" + std::to_string(other));
        }
        store.wait(left).or_throw();
    }
}

void by_url(char** message) {
    rdzv::url_options options;
    if (number(message[1]) >= 0) options.rank = number(message[1]);
    options.is_dynamic = std::string(message[2]) == "dynamic";
    if (!options.is_dynamic && number(message[2]) >= 0) options.world_size = number(message[2]);
    options.timeout = patience;
    options.read_environment();
    auto meeting = rdzv::url_rendezvous::create(message[0], options).or_throw();
    work(meeting.next().or_throw());
    auto again = meeting.next();
    std::printf("again: %s\n", again ? "met twice" : again.error().message().c_str());
}

void by_static(char** message) {
    rdzv::rendezvous_parameters parameters{"static", message[0], message[1], 1, number(message[3])};
    parameters.options = {{"rank", message[2]}, {"timeout", "30"}};
    auto handler = rdzv::rendezvous_handler::create(parameters).or_throw();
    const auto info = handler.next_rendezvous().or_throw();
    std::printf("store at %s:%u\n", info.master_addr.c_str(), static_cast<unsigned>(info.master_port));
    work(info);
}

rdzv::store connect(char** message) {
    rdzv::store_options options;
    options.timeout = patience;
    options.connect_timeout = patience;
    return rdzv::store::connect(message[0], static_cast<std::uint16_t>(number(message[1])), options).or_throw();
}

void one_barrier(char** message) {
    rdzv::store store = connect(message);
    rdzv::tracing traced;
    traced.rank = number(message[2]);
    traced.trace_timeout = std::chrono::milliseconds(number(message[5]));
    traced.name_of = [](std::int64_t rank) { return "host" + std::to_string(rank); };
    const auto met = rdzv::elastic_barrier(store, "tr", number(message[3]), std::chrono::milliseconds(number(message[4])), traced);
    std::printf("%s\n", met ? "met" : met.error().message().c_str());
}

void publish(char** message) {
    rdzv::store store = connect(message);
    const auto info = rdzv::store_info::build(store, number(message[2]), "node-0.example").or_throw();
    std::printf("%s:%u\n", info.master_addr.c_str(), static_cast<unsigned>(info.master_port));
}

}  // namespace

int main(int argc, char** argv) {
    const std::string deed = argc > 1 ? argv[1] : "";
    try {
        if (deed == "url" && argc == 5) {
            by_url(argv + 2);
        } else if (deed == "static" && argc == 6) {
            by_static(argv + 2);
        } else if (deed == "barrier" && argc == 8) {
            one_barrier(argv + 2);
        } else if (deed == "build" && argc == 5) {
            publish(argv + 2);
        } else {
            std::fprintf(stderr, "see the head of cpp_meeting.cpp for its arguments\n");
            return 2;
        }
        return 0;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "cpp_meeting: %s\n", problem.what());
        return 1;
    }
}
