// What this process knows about the job: its rank from the environment, its work from the command line.
#pragma once

#include <getopt.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

namespace digits {

constexpr const char* help_text = R"(Usage: digits_trainer [OPTIONS]

One rank of a data-parallel training job: a small network learns to read handwritten digits. All ranks meet
in the store at MASTER_ADDR:MASTER_PORT, build a ring of their own connections and average gradients over it.
Rank 0 prints the loss and the accuracy on the test part after each epoch.

Environment, set by `rdzv run`, run_ranks, run_digits.sh or any launcher that follows PyTorch's convention:
  RANK          this process, 0 .. WORLD_SIZE-1
  WORLD_SIZE    how many processes take part
  MASTER_ADDR   host of the store
  MASTER_PORT   port of the store

Options:
  --data FILE           digits, one a line [cpp_examples/data/digits.csv]
  --epochs N            passes over the training part [30]
  --weights-out FILE    rank 0 writes the final weights there, one number a line
  --checkpoint FILE     rank 0 writes it after each epoch; all ranks go on from it, if it is there
  --die-at EPOCH        the last rank ends itself by SIGKILL in this epoch, unless it goes on from a checkpoint
  --timeout SECONDS     bound of every single wait for the store or another rank [30]
  --address ADDRESS     where the other ranks reach this one [this host's address towards MASTER_ADDR]
  --run-id ID           prefix of all keys; give each job its own when several use one store [digits]
  --help                this text

Exit codes: 0 trained; 1 failed, or the test accuracy is below 0.93; 2 bad option or environment.
)";

struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct job {
    int rank = 0;
    int world_size = 1;
    std::string master_addr;
    std::uint16_t master_port = 0;

    std::string data = "cpp_examples/data/digits.csv";
    int epochs = 30;
    std::string weights_out; // empty: not wanted
    std::string checkpoint;  // empty: not wanted
    int die_at = 0;          // 0: never
    std::chrono::milliseconds timeout{30000};
    std::string address; // empty: ask the routing table
    std::string run_id = "digits";

    std::string key(const std::string& name) const { return run_id + "/" + name; }
    int left() const { return (rank + world_size - 1) % world_size; }
    int right() const { return (rank + 1) % world_size; }
};

inline int parse_number(const std::string& name, const std::string& text, int lowest, int highest) {
    int number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, number);
    if (failure != std::errc() || stop != end || number < lowest || number > highest) {
        throw usage_error(name + " is \"" + text + "\", expected a whole number from " +
                          std::to_string(lowest) + " to " + std::to_string(highest));
    }
    return number;
}

inline std::string required_env(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') {
        throw usage_error(std::string("the environment variable ") + name + " is not set (see --help)");
    }
    return value;
}

inline int required_env_number(const char* name, int lowest, int highest) {
    return parse_number(std::string("the environment variable ") + name, required_env(name), lowest, highest);
}

// Nothing when only the help text is wanted.
inline std::optional<job> read_job(int argc, char** argv) {
    const option known[] = {{"data", required_argument, nullptr, 'd'},
                            {"epochs", required_argument, nullptr, 'e'},
                            {"weights-out", required_argument, nullptr, 'w'},
                            {"checkpoint", required_argument, nullptr, 'c'},
                            {"die-at", required_argument, nullptr, 'k'},
                            {"timeout", required_argument, nullptr, 't'},
                            {"address", required_argument, nullptr, 'a'},
                            {"run-id", required_argument, nullptr, 'r'},
                            {"help", no_argument, nullptr, 'h'},
                            {nullptr, 0, nullptr, 0}};
    job given;
    opterr = 0; // our own message, with the rank's prefix
    for (int letter = 0; (letter = getopt_long(argc, argv, ":h", known, nullptr)) != -1;) {
        switch (letter) {
        case 'd': given.data = optarg; break;
        case 'e': given.epochs = parse_number("--epochs", optarg, 1, 100000); break;
        case 'w': given.weights_out = optarg; break;
        case 'c': given.checkpoint = optarg; break;
        case 'k': given.die_at = parse_number("--die-at", optarg, 1, 100000); break;
        case 't': given.timeout = std::chrono::seconds(parse_number("--timeout", optarg, 1, 86400)); break;
        case 'a': given.address = optarg; break;
        case 'r': given.run_id = optarg; break;
        case 'h': return std::nullopt;
        case ':': throw usage_error(std::string(argv[optind - 1]) + " needs a value (see --help)");
        default: throw usage_error(std::string("unknown option ") + argv[optind - 1] + " (see --help)");
        }
    }
    if (optind < argc) {
        throw usage_error(std::string("unexpected argument ") + argv[optind] + " (see --help)");
    }
    given.world_size = required_env_number("WORLD_SIZE", 1, 4096);
    given.rank = required_env_number("RANK", 0, given.world_size - 1);
    given.master_addr = required_env("MASTER_ADDR");
    given.master_port = static_cast<std::uint16_t>(required_env_number("MASTER_PORT", 1, 65535));
    return given;
}

} // namespace digits
