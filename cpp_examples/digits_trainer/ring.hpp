// Sums a vector over all ranks. Each rank talks to two neighbours only, sends and receives 2 (N-1)/N of the
// vector, and ends with the same bits as all others: every chunk is added up on one path and then copied.
#pragma once

#include "sockets.hpp"

#include <chrono>
#include <cstddef>
#include <vector>

namespace digits {

// Both unconnected in a ring of one, where the sum is what is there already.
struct neighbours {
    link left;
    link right;
};

class ring {
public:
    // `connected` must outlive the ring.
    ring(int rank, int world_size, const neighbours& connected, std::chrono::milliseconds timeout)
        : rank_(static_cast<std::size_t>(rank)), size_(static_cast<std::size_t>(world_size)),
          neighbours_(connected), timeout_(timeout) {}

    void all_reduce(std::vector<double>& values) {
        const deadline until(timeout_);
        // Reduce-scatter: in each round every rank passes one chunk on and adds its own share to the one it
        // receives. After N-1 rounds rank r holds the whole sum of chunk r+1.
        for (std::size_t round = 0; round + 1 < size_; ++round) {
            const span leaving = chunk(values.size(), rank_ + size_ - round);
            const span coming = chunk(values.size(), rank_ + size_ - round - 1);
            received_.resize(coming.count);
            exchange_doubles(&values[leaving.begin], leaving.count, received_.data(), coming.count, until);
            for (std::size_t i = 0; i < coming.count; ++i) {
                values[coming.begin + i] += received_[i];
            }
        }
        // All-gather: the finished chunks travel once around.
        for (std::size_t round = 0; round + 1 < size_; ++round) {
            const span leaving = chunk(values.size(), rank_ + size_ + 1 - round);
            const span coming = chunk(values.size(), rank_ + size_ - round);
            exchange_doubles(&values[leaving.begin], leaving.count, &values[coming.begin], coming.count,
                             until);
        }
    }

private:
    struct span {
        std::size_t begin;
        std::size_t count;
    };

    span chunk(std::size_t total, std::size_t index) const {
        index %= size_;
        const std::size_t begin = total * index / size_;
        return {begin, total * (index + 1) / size_ - begin};
    }

    void exchange_doubles(const double* out, std::size_t out_count, double* in, std::size_t in_count,
                          const deadline& until) const {
        exchange(neighbours_.right, out, out_count * sizeof(double), neighbours_.left, in,
                 in_count * sizeof(double), until);
    }

    std::size_t rank_;
    std::size_t size_;
    const neighbours& neighbours_;
    std::chrono::milliseconds timeout_;
    std::vector<double> received_;
};

} // namespace digits
