// Runs N copies of a program on this host as the ranks of one job, with the store embedded in this very
// process:
//
//     run_ranks -n 4 digits_trainer --epochs 30
//
// Each copy gets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The job ends with the last rank, or shortly
// after the first one that fails; the exit code is the first failure's.

#include <rendezvous.hpp>

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr const char* help_text = R"(Usage: run_ranks [-n N] PROGRAM [ARGUMENTS...]

Starts N copies [4] of PROGRAM, a path or a name to be found in PATH, as the ranks of one job on this host.
A store server runs inside run_ranks, on a free port of 127.0.0.1. Each copy finds RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT in its environment.

When a rank fails, the others get a second to notice and to say so, then they are stopped. SIGINT and
SIGTERM stop all ranks.

Exit code: 0 when every rank ended with 0; otherwise that of the rank that failed first, or 128 + the signal
that ended it; 2 for a bad option; 127 when PROGRAM cannot be started.
)";

constexpr auto notice_time = 1s; // from the first failure to SIGTERM
constexpr auto stop_time = 5s;   // from SIGTERM to SIGKILL

struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct start_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class rank_group {
public:
    rank_group(int count, std::uint16_t store_port, char** command, const sigset_t& inherited_signals)
        : pids_(static_cast<std::size_t>(count), 0) {
        for (int rank = 0; rank < count; ++rank) {
            try {
                pids_[static_cast<std::size_t>(rank)] =
                    start(rank, count, store_port, command, inherited_signals);
            } catch (...) {
                kill_rest(); // a half-started job is of no use
                throw;
            }
        }
    }
    ~rank_group() { kill_rest(); }
    rank_group(const rank_group&) = delete;
    rank_group& operator=(const rank_group&) = delete;

    bool finished() const {
        return std::all_of(pids_.begin(), pids_.end(), [](pid_t pid) { return pid == 0; });
    }

    // Collects the ranks that have ended and returns the code of the first failed one. Asks for our own
    // children one by one: this stays right in a host program that has others.
    std::optional<int> collect() {
        std::optional<int> failure;
        for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
            int state = 0;
            if (pids_[rank] == 0 || waitpid(pids_[rank], &state, WNOHANG) != pids_[rank]) {
                continue;
            }
            pids_[rank] = 0;
            const int code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
            if (code == 0) {
                continue;
            }
            if (!stopping_) {
                if (WIFSIGNALED(state)) {
                    std::fprintf(stderr, "run_ranks: rank %zu was ended by signal %d (%s)\n", rank,
                                 WTERMSIG(state), strsignal(WTERMSIG(state)));
                } else {
                    std::fprintf(stderr, "run_ranks: rank %zu failed with exit code %d\n", rank, code);
                }
            }
            failure = failure.value_or(code);
        }
        return failure;
    }

    // Each rank leads a process group, so what it started is reached as well.
    void signal_rest(int number) {
        stopping_ = true;
        for (const pid_t pid : pids_) {
            if (pid != 0) {
                kill(-pid, number);
                kill(-pid, SIGCONT); // a stopped process acts on SIGTERM only once it goes on
            }
        }
    }

private:
    static pid_t start(int rank, int count, std::uint16_t store_port, char** command,
                       const sigset_t& signals) {
        std::vector<std::string> environment = {
            "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(count), "MASTER_ADDR=127.0.0.1",
            "MASTER_PORT=" + std::to_string(store_port)};
        for (char** entry = environ; *entry != nullptr; ++entry) {
            const std::string_view text(*entry);
            const std::string_view name = text.substr(0, text.find('='));
            if (name != "RANK" && name != "WORLD_SIZE" && name != "MASTER_ADDR" && name != "MASTER_PORT") {
                environment.emplace_back(text);
            }
        }
        std::vector<char*> pointers;
        for (std::string& entry : environment) {
            pointers.push_back(entry.data());
        }
        pointers.push_back(nullptr);

        // posix_spawn instead of fork: this process has the server's thread, after fork only
        // async-signal-safe calls would be allowed.
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setsigmask(&attributes, &signals);
        pid_t pid = 0;
        const int failure = posix_spawnp(&pid, command[0], nullptr, &attributes, command, pointers.data());
        posix_spawnattr_destroy(&attributes);
        if (failure != 0) {
            throw start_error(std::string("cannot start ") + command[0] + ": " + std::strerror(failure));
        }
        return pid;
    }

    void kill_rest() {
        signal_rest(SIGKILL);
        for (pid_t& pid : pids_) {
            if (pid != 0) {
                waitpid(pid, nullptr, 0);
                pid = 0;
            }
        }
    }

    std::vector<pid_t> pids_; // by rank; 0 once it has ended
    bool stopping_ = false;   // from now on ranks end because we said so
};

// Waits for one of `signals` and returns it, or 0 when `until` passes first.
int next_signal(const sigset_t& signals, std::optional<clock_type::time_point> until) {
    int number = -1;
    if (until) {
        const auto left = std::max<clock_type::duration>(*until - clock_type::now(), 0ns);
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
        timespec limit{};
        limit.tv_sec = seconds.count();
        limit.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
        number = sigtimedwait(&signals, nullptr, &limit);
    } else {
        number = sigwaitinfo(&signals, nullptr);
    }
    return std::max(number, 0);
}

// Returns the exit code of the job.
int supervise(rank_group& ranks, const sigset_t& signals) {
    std::optional<int> result;
    std::optional<clock_type::time_point> act_at; // when the other ranks are killed
    int next_measure = SIGTERM;
    while (true) {
        const auto failure = ranks.collect();
        if (failure && !result) {
            result = failure;
            act_at = clock_type::now() + notice_time;
        }
        if (ranks.finished()) {
            return result.value_or(0);
        }
        const int number = next_signal(signals, act_at);
        if (number == SIGINT || number == SIGTERM) {
            if (!result) {
                std::fprintf(stderr, "run_ranks: stopped by signal %d (%s)\n", number, strsignal(number));
                result = 128 + number;
            }
            act_at = clock_type::now();
        }
        if (act_at && clock_type::now() >= *act_at) {
            ranks.signal_rest(next_measure);
            next_measure = SIGKILL;
            act_at = clock_type::now() + stop_time;
        }
    }
}

int run(int argc, char** argv) {
    int count = 4;
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; ++at) {
        const std::string_view flag(argv[at]);
        if (flag == "--help" || flag == "-h") {
            std::fputs(help_text, stdout);
            return 0;
        }
        if (flag == "--") {
            ++at;
            break;
        }
        if (flag != "-n") {
            throw usage_error("unknown option " + std::string(flag) + " (see --help)");
        }
        const std::string_view text(at + 1 < argc ? argv[++at] : "");
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), count);
        if (failure != std::errc() || end != text.data() + text.size() || count < 1 || count > 4096) {
            throw usage_error("-n is \"" + std::string(text) + "\", expected a whole number from 1 to 4096");
        }
    }
    if (at >= argc) {
        throw usage_error("no program given (see --help)");
    }

    // Blocked before the server's thread exists, so that it inherits this and all signals wait for
    // next_signal.
    sigset_t signals;
    sigset_t inherited_signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, &inherited_signals);
    signal(SIGCHLD, SIG_DFL); // an inherited SIG_IGN would throw the exit codes away

    auto server = rdzv::server::start("127.0.0.1", 0).or_throw();
    int result = 0;
    {
        rank_group ranks(count, server.port(), argv + at, inherited_signals);
        result = supervise(ranks, signals);
    }
    server.stop().or_throw();
    return result;
}

} // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const usage_error& problem) {
        std::fprintf(stderr, "run_ranks: %s\n", problem.what());
        return 2;
    } catch (const start_error& problem) {
        std::fprintf(stderr, "run_ranks: %s\n", problem.what());
        return 127;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "run_ranks: %s\n", problem.what());
        return 1;
    }
}
