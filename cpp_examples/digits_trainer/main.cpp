// A data-parallel trainer whose ranks find each other through librendezvous. The store is used for what it is
// good at, small facts and meeting points: addresses, a barrier each epoch, who failed first. Gradients never
// pass through it; they travel over the ring of connections that the addresses make possible.
//
// To start from it for a trainer of your own, keep find_neighbours, meet, agree, report_failure and
// call_the_roll, and put your model in train.

#include "checkpoint.hpp"
#include "dataset.hpp"
#include "job.hpp"
#include "network.hpp"
#include "random.hpp"
#include "ring.hpp"
#include "sockets.hpp"

#include <rendezvous.hpp>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace digits {
namespace {

constexpr std::size_t training_count = 1437; // of 1,797: four fifths
constexpr std::size_t batch_size = 48; // of all ranks together, so that it does not change with their number
constexpr double learning_rate = 0.05;
constexpr double momentum = 0.9;
constexpr double required_accuracy = 0.93;
constexpr std::uint64_t split_seed = 1;
constexpr std::uint64_t weight_seed = 2;
constexpr std::uint64_t order_seed = 3;

std::string epoch_key(const job& given, int epoch) { return given.key("epoch/" + std::to_string(epoch)); }
std::string address_key(const job& given, int rank) { return given.key("addr/" + std::to_string(rank)); }
std::string alive_key(const job& given, int rank) { return given.key("alive/" + std::to_string(rank)); }
std::string progress_key(const job& given, int rank) { return given.key("progress/" + std::to_string(rank)); }

// --- Rendezvous ---------------------------------------------------------------------------------

// Every rank listens, publishes where, dials its right neighbour and is dialled by its left one. The ranks
// may start in any order and at any distance within the timeout: `get` waits until the key is there.
void find_neighbours(rdzv::store& store, const job& given, neighbours& found) {
    if (given.world_size == 1) {
        return;
    }
    const std::string address =
        given.address.empty() ? own_address_towards(given.master_addr, given.master_port) : given.address;
    const socket_fd listener = listen_at(address);
    const auto [own_host, own_port] = local_name(listener);
    store.set(address_key(given, given.rank), own_host + " " + own_port).or_throw();

    auto published = store.get(address_key(given, given.right()));
    if (!published) {
        throw std::runtime_error("rank " + std::to_string(given.right()) +
                                 " has not published its address: " + published.error().message());
    }
    const std::size_t space = published->find(' ');
    if (space == std::string::npos) {
        throw std::runtime_error("rank " + std::to_string(given.right()) + " published \"" + *published +
                                 "\", expected a host and a port");
    }
    // Dialling first cannot block the ring: the neighbour's kernel completes the connection, accepted or not.
    const deadline until(given.timeout);
    found.right =
        dial(given.rank, given.right(), published->substr(0, space), published->substr(space + 1), until);
    found.left = accept_rank(listener, given.left(), until);
}

// The ranks that have not come as far as this epoch. Asks only for what is there now, it never waits.
std::string missing_ranks(rdzv::store& store, const job& given, int epoch) {
    std::string missing;
    for (int rank = 0; rank < given.world_size; ++rank) {
        const std::string key = progress_key(given, rank);
        auto known = store.check({key});
        if (known.has_value() && *known) {
            auto reached = store.get(key);
            if (reached && std::atoi(reached->c_str()) >= epoch) {
                continue;
            }
        }
        missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
    return missing;
}

// Holds all ranks until the last one has finished the epoch. A c10d barrier's counter never goes back, so
// each meeting takes a fresh key; the one before is removed, everyone has left it by now.
void meet(rdzv::store& store, const job& given, int epoch) {
    store.set(progress_key(given, given.rank), std::to_string(epoch)).or_throw();
    auto met = store.barrier(epoch_key(given, epoch), given.world_size);
    if (!met && met.error().code() == rdzv::status::timed_out) {
        throw std::runtime_error("epoch " + std::to_string(epoch) + " was not finished by " +
                                 missing_ranks(store, given, epoch) + ": " + met.error().message());
    }
    if (!met) {
        throw std::runtime_error(met.error().message());
    }
    if (given.rank == 0 && epoch > 1) {
        // Before the first epoch of a job that goes on there was no meeting.
        (void)store.delete_key(epoch_key(given, epoch - 1)).or_throw();
    }
}

// When one rank dies, its neighbours see it, and then their neighbours see them go. The first report wins the
// key, so every rank can tell the cause and not only the last domino. Returns what this rank should print.
std::string report_failure(rdzv::store& store, const job& given, const std::string& problem) {
    const std::string own = "rank " + std::to_string(given.rank) + ": " + problem;
    auto first = store.compare_set(given.key("failure"), "", own, std::chrono::seconds(2));
    return first && *first != own ? problem + " (first failure: " + *first + ")" : problem;
}

// One rank that hangs stalls the whole ring, and each rank sees no more than a quiet left neighbour. Those
// that still run come here at about the same time; who does not answer the roll call is the one that hangs.
std::string call_the_roll(rdzv::store& store, const job& given) {
    const deadline until(std::chrono::seconds(2));
    std::string absent;
    const auto own = store.set(alive_key(given, given.rank), "");
    if (!own) {
        return "; the store does not answer either: " + own.error().message();
    }
    for (int rank = 0; rank < given.world_size; ++rank) {
        if (!store.wait({alive_key(given, rank)}, std::chrono::milliseconds(until.remaining_ms()))) {
            absent += (absent.empty() ? "rank " : ", rank ") + std::to_string(rank);
        }
    }
    return absent.empty() ? "; all ranks are alive" : "; no sign of life from " + absent;
}

// The first rank that gets here says what it has, and the others compare theirs with it.
void agree(rdzv::store& store, const job& given, const std::string& name, const std::string& own) {
    const std::string first = store.compare_set(given.key(name), "", own).or_throw();
    if (first != own) {
        throw std::runtime_error(name + " is " + own + ", and that of another rank is " + first);
    }
}

// All ranks started alike and applied the same sums, so their weights must be equal bit for bit.
std::string fingerprint(const std::vector<double>& weights) {
    std::uint64_t hash = 0;
    for (const double weight : weights) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &weight, sizeof bits);
        hash = random_source(hash ^ bits).next();
    }
    return std::to_string(hash);
}

// --- Training -----------------------------------------------------------------------------------

double accuracy(const network& model, const std::vector<sample>& samples) {
    std::size_t right = 0;
    for (const sample& one : samples) {
        right += model.classify(one) == one.label ? 1 : 0;
    }
    return static_cast<double>(right) / static_cast<double>(samples.size());
}

void write_weights(const std::string& path, const std::vector<double>& weights) {
    std::ofstream file(path);
    file.precision(std::numeric_limits<double>::max_digits10);
    for (const double weight : weights) {
        file << weight << '\n';
    }
    file.close();
    if (!file) {
        throw std::runtime_error("cannot write the weights to " + path);
    }
}

// The epochs that are behind this job. No rank writes a checkpoint before all have read theirs: none can come
// through an epoch without the others.
int resume(rdzv::store& store, const job& given, network& model) {
    const checkpoint found = given.checkpoint.empty() ? checkpoint{} : checkpoint::read(given.checkpoint);
    agree(store, given, "the epoch of the checkpoint", std::to_string(found.epoch));
    if (found.epoch > 0) {
        model.restore(found.state);
        if (given.rank == 0) {
            std::printf("goes on after epoch %d, from %s\n", found.epoch, given.checkpoint.c_str());
            std::fflush(stdout);
        }
    }
    return found.epoch;
}

void train(rdzv::store& store, const job& given, const dataset& data, neighbours& ring_neighbours) {
    network model{random_source(weight_seed)};
    const int behind = resume(store, given, model);
    find_neighbours(store, given, ring_neighbours);
    ring ranks(given.rank, given.world_size, ring_neighbours, given.timeout);
    random_source order_random(order_seed);
    std::vector<std::size_t> order(data.training.size());
    std::iota(order.begin(), order.end(), std::size_t{0});

    const auto rank = static_cast<std::size_t>(given.rank);
    const auto world_size = static_cast<std::size_t>(given.world_size);
    std::vector<double> sums(network::parameter_count + 1); // the gradient and the loss travel together
    double test_accuracy = accuracy(model, data.test);
    for (int epoch = 1; epoch <= given.epochs; ++epoch) {
        order_random.shuffle(order); // in the same way everywhere
        if (epoch <= behind) {
            continue;
        }
        double epoch_loss = 0;
        for (std::size_t begin = 0; begin < order.size(); begin += batch_size) {
            if (epoch == given.die_at && behind == 0 && rank + 1 == world_size && begin > order.size() / 2) {
                (void)raise(SIGKILL);
            }
            // Each rank takes its part of the global batch. Adding sums and dividing by the size of the whole
            // batch is right for parts of any size, even empty ones.
            const std::size_t count = std::min(batch_size, order.size() - begin);
            std::fill(sums.begin(), sums.end(), 0.0);
            for (std::size_t i = count * rank / world_size; i < count * (rank + 1) / world_size; ++i) {
                sums.back() += model.add_gradient(data.training[order[begin + i]], sums);
            }
            ranks.all_reduce(sums);
            model.step(sums, count, learning_rate, momentum);
            epoch_loss += sums.back();
        }
        if (given.rank == 0) {
            test_accuracy = accuracy(model, data.test);
            std::printf("epoch %2d/%d  loss %.4f  test accuracy %.4f\n", epoch, given.epochs,
                        epoch_loss / static_cast<double>(order.size()), test_accuracy);
            std::fflush(stdout);
            if (!given.checkpoint.empty()) {
                checkpoint{epoch, model.state()}.write(given.checkpoint);
            }
        }
        meet(store, given, epoch);
    }

    agree(store, given, "the fingerprint of the weights", fingerprint(model.parameters()));
    if (given.rank == 0) {
        if (!given.weights_out.empty()) {
            write_weights(given.weights_out, model.parameters());
        }
        if (test_accuracy < required_accuracy) {
            char text[80];
            std::snprintf(text, sizeof text, "the test accuracy is %.4f, at least %.2f is required",
                          test_accuracy, required_accuracy);
            throw std::runtime_error(text);
        }
    }
}

void run(const job& given) {
    const dataset data = load_dataset(given.data, training_count, split_seed);
    rdzv::store_options options;
    options.timeout = given.timeout; // of every operation that does not name its own
    options.connect_timeout = given.timeout;
    auto store = rdzv::store::connect(given.master_addr, given.master_port, options).or_throw();
    // Outlives the report below: when this rank gives up, its reason must be in the store before its
    // neighbours see their connections close, or they would name this rank as the cause.
    neighbours ring_neighbours;
    try {
        train(store, given, data, ring_neighbours);
    } catch (const silence& problem) {
        const std::string text = problem.what() + call_the_roll(store, given);
        throw std::runtime_error(report_failure(store, given, text));
    } catch (const std::exception& problem) {
        throw std::runtime_error(report_failure(store, given, problem.what()));
    }
}

} // namespace
} // namespace digits

int main(int argc, char** argv) {
    std::string name = "digits_trainer: ";
    try {
        const auto given = digits::read_job(argc, argv);
        if (!given) {
            std::fputs(digits::help_text, stdout);
            return 0;
        }
        name += "rank " + std::to_string(given->rank) + ": ";
        digits::run(*given);
        return 0;
    } catch (const digits::usage_error& problem) {
        std::fprintf(stderr, "%s%s\n", name.c_str(), problem.what());
        return 2;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s%s\n", name.c_str(), problem.what());
        return 1;
    }
}
