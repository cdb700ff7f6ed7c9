// Reads the digits file: one sample a line, 64 pixels (0..16, row by row) and the label, separated by commas.
#pragma once

#include "random.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace digits {

constexpr std::size_t pixel_count = 64;
constexpr std::size_t class_count = 10;

struct sample {
    std::array<double, pixel_count> pixels{}; // scaled to 0..1
    std::size_t label = 0;
};

struct dataset {
    std::vector<sample> training;
    std::vector<sample> test;
};

// Throws what is wrong with the line, without saying which line it is.
inline sample parse_sample(const std::string& line) {
    sample parsed;
    const char* at = line.data();
    const char* const end = at + line.size();
    for (std::size_t field = 0; field <= pixel_count; ++field) {
        if (field > 0) {
            if (at == end || *at != ',') {
                throw std::runtime_error("expected 64 pixels and a label, separated by commas");
            }
            ++at;
        }
        unsigned number = 0;
        const auto [next, failure] = std::from_chars(at, end, number);
        const bool is_label = field == pixel_count;
        if (failure != std::errc() || number > (is_label ? class_count - 1 : 16)) {
            throw std::runtime_error(is_label ? "the label is not a number from 0 to 9"
                                              : "pixel " + std::to_string(field) +
                                                    " is not a number from 0 to 16");
        }
        if (is_label) {
            parsed.label = number;
        } else {
            parsed.pixels[field] = number / 16.0;
        }
        at = next;
    }
    if (at != end) {
        throw std::runtime_error("more than 64 pixels and a label");
    }
    return parsed;
}

// Every rank reads the whole file and splits it with the same seed, so all agree on which sample is which.
inline dataset load_dataset(const std::string& path, std::size_t training_count, std::uint64_t split_seed) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("cannot open the data file " + path + " (see --data)");
    }
    std::vector<sample> samples;
    for (std::string line; std::getline(file, line);) {
        try {
            samples.push_back(parse_sample(line));
        } catch (const std::runtime_error& problem) {
            throw std::runtime_error(path + ":" + std::to_string(samples.size() + 1) + ": " + problem.what());
        }
    }
    if (samples.size() <= training_count) {
        throw std::runtime_error(path + " holds " + std::to_string(samples.size()) + " samples, more than " +
                                 std::to_string(training_count) + " are needed");
    }
    random_source(split_seed).shuffle(samples);
    const auto cut = samples.begin() + static_cast<std::ptrdiff_t>(training_count);
    return {{samples.begin(), cut}, {cut, samples.end()}};
}

} // namespace digits
