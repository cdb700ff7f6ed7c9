// A worker that does nothing: idle_worker FIFO [ignores-term]
//
// It writes one line to FIFO as soon as its main begins: the time of CLOCK_MONOTONIC in nanoseconds, its pid, its rank
// and the world size. Then it waits. SIGTERM ends it, or not the one of rank 0; SIGUSR1 makes it fail, as a worker does
// whose peer is gone.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

namespace {

const char *variable(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "-";
}

} // namespace

int main(int count, char **arguments) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (count < 2)
        return 2;
    const char *rank = variable("RANK");
    if (count > 2 && std::strcmp(rank, "0") == 0)
        std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGUSR1, [](int) { _exit(1); });
    const int fifo = open(arguments[1], O_WRONLY | O_CLOEXEC);
    char line[128];
    const int length = std::snprintf(line, sizeof line, "%lld %d %s %s\n",
                                     static_cast<long long>(now.tv_sec) * 1000000000 + now.tv_nsec,
                                     static_cast<int>(getpid()), rank, variable("WORLD_SIZE"));
    if (fifo < 0 || write(fifo, line, static_cast<size_t>(length)) != length)
        return 3;
    for (;;)
        pause();
}
