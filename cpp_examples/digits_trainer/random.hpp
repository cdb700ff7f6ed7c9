// A small random source of our own. The standard library's engines are portable, its distributions and
// std::shuffle are not: two machines with different standard libraries would split the data differently, and
// ranks that disagree about the next batch train on the wrong sum without noticing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace digits {

// SplitMix64: 64 bits of state, every seed is a good one.
class random_source {
public:
    explicit random_source(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15U;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
        mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
        return mixed ^ (mixed >> 31U);
    }

    // Uniform in [0, 1).
    double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

    // Uniform in [0, bound), for bounds far below 2^32.
    std::size_t below(std::size_t bound) {
        return static_cast<std::size_t>(((next() >> 32U) * bound) >> 32U);
    }

    template <class T> void shuffle(std::vector<T>& items) {
        for (std::size_t left = items.size(); left > 1; --left) {
            std::swap(items[left - 1], items[below(left)]);
        }
    }

private:
    std::uint64_t state_;
};

} // namespace digits
