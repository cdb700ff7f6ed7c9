// What a job needs to go on where it was when it is started again: rank 0 writes it after each epoch, and every
// rank reads it before its first one.
//
// The file is written elsewhere and renamed, so that a reader finds a whole one, of this epoch or of the
// one before, wherever the writer was killed. It holds the doubles as they lie in memory: a job that goes on
// from it computes the same bits as one that was never disturbed.
#pragma once

#include "network.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <vector>

namespace digits {

struct checkpoint {
    static constexpr std::size_t header_size = 40;

    int epoch = 0; // how many are behind it; 0: there is none
    std::vector<double> state;

    // Names what the file is, so that nothing else is taken for one.
    static std::string header(int epoch) {
        std::string text = "digits checkpoint, epoch " + std::to_string(epoch);
        text.resize(header_size - 1, ' ');
        return text + '\n';
    }

    void write(const std::string& path) const {
        const std::string draft = path + ".part";
        std::ofstream file(draft, std::ios::binary);
        file << header(epoch);
        file.write(reinterpret_cast<const char*>(state.data()),
                   static_cast<std::streamsize>(state.size() * sizeof(double)));
        file.close();
        if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
            throw std::runtime_error("cannot write the checkpoint " + path + ": " + std::strerror(errno));
        }
    }

    // One without epochs where there is no file.
    static checkpoint read(const std::string& path) {
        checkpoint found;
        std::ifstream file(path, std::ios::binary);
        if (!file) {
            return found;
        }
        std::string text(header_size, '\0');
        found.state.resize(network::state_count);
        file.read(text.data(), header_size);
        file.read(reinterpret_cast<char*>(found.state.data()),
                  static_cast<std::streamsize>(found.state.size() * sizeof(double)));
        const bool is_whole = file && file.peek() == std::ifstream::traits_type::eof();
        if (!is_whole || std::sscanf(text.c_str(), "digits checkpoint, epoch %d", &found.epoch) != 1 ||
            found.epoch < 1 || text != header(found.epoch)) {
            throw std::runtime_error(path + " is no checkpoint of this network");
        }
        return found;
    }
};

} // namespace digits
