// The few socket calls a ring of ranks needs. Every wait ends by its deadline, every failure names the other
// rank.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace digits {

// A point in time that all the steps of one operation share.
class deadline {
public:
    explicit deadline(std::chrono::milliseconds timeout)
        : timeout_(timeout), at_(std::chrono::steady_clock::now() + timeout) {}

    int remaining_ms() const { // rounded up, so that a poll never spins through the last millisecond
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now());
        return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
    }
    bool passed() const { return std::chrono::steady_clock::now() >= at_; }
    deadline sooner_of(std::chrono::milliseconds timeout) const {
        const deadline other(timeout);
        return other.at_ < at_ ? other : *this;
    }
    std::string text() const { return "within " + std::to_string(timeout_.count()) + " ms"; }

private:
    std::chrono::milliseconds timeout_;
    std::chrono::steady_clock::time_point at_;
};

inline std::string errno_text(int number) { return std::generic_category().message(number); }

// A deadline passed while a rank was expected to send or take data.
struct silence : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class socket_fd {
public:
    socket_fd() = default;
    explicit socket_fd(int fd) : fd_(fd) {}
    socket_fd(socket_fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    socket_fd& operator=(socket_fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~socket_fd() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }

private:
    int fd_ = -1;
};

// A connection to another rank.
struct link {
    socket_fd socket;
    int rank = -1;

    std::string name() const { return "rank " + std::to_string(rank); }
};

// Resolves `host` and `port`; the list frees itself.
inline std::unique_ptr<addrinfo, void (*)(addrinfo*)> resolve(const std::string& host,
                                                              const std::string& port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (failure != 0) {
        throw std::runtime_error("cannot resolve " + host + ": " + ::gai_strerror(failure));
    }
    return {found, &::freeaddrinfo};
}

inline std::pair<std::string, std::string> numeric(const sockaddr_storage& address, socklen_t size) {
    char host[NI_MAXHOST];
    char port[NI_MAXSERV];
    const int failure = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host,
                                      port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    if (failure != 0) {
        throw std::runtime_error(std::string("cannot print an address: ") + ::gai_strerror(failure));
    }
    return {host, port};
}

inline std::pair<std::string, std::string> local_name(const socket_fd& socket) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        throw std::runtime_error("getsockname: " + errno_text(errno));
    }
    return numeric(address, size);
}

// The address by which this host reaches `host`, and so the one by which the other ranks reach this host.
// Connecting a datagram socket only asks the routing table; nothing is sent.
inline std::string own_address_towards(const std::string& host, std::uint16_t port) {
    const auto found = resolve(host, std::to_string(port));
    int failure = 0;
    for (const addrinfo* option = found.get(); option != nullptr; option = option->ai_next) {
        const socket_fd probe(::socket(option->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        if (probe && ::connect(probe.get(), option->ai_addr, option->ai_addrlen) == 0) {
            return local_name(probe).first;
        }
        failure = errno;
    }
    throw std::runtime_error("no route to " + host + ": " + errno_text(failure));
}

// Listens at `host`, on a port that the kernel picks.
inline socket_fd listen_at(const std::string& host) {
    const auto found = resolve(host, "0");
    socket_fd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
        ::listen(socket.get(), SOMAXCONN) != 0) {
        throw std::runtime_error("cannot listen at " + host + ": " + errno_text(errno));
    }
    return socket;
}

// False when the deadline passed first.
inline bool wait_for(pollfd* waits, nfds_t count, const deadline& until) {
    while (true) {
        const int ready = ::poll(waits, count, until.remaining_ms());
        if (ready > 0) {
            return true;
        }
        if (ready < 0 && errno != EINTR) {
            throw std::runtime_error("poll: " + errno_text(errno));
        }
        if (until.passed()) {
            return false;
        }
    }
}

// Sends all of `out` to one rank while receiving all of `in` from another. Both at once: in a ring where
// everyone sends first, no rank would read once the chunks outgrow the kernel's buffers.
inline void exchange(const link& to, const void* out, std::size_t out_size, const link& from, void* in,
                     std::size_t in_size, const deadline& until) {
    const char* out_at = static_cast<const char*>(out);
    char* in_at = static_cast<char*>(in);
    while (out_size > 0 || in_size > 0) {
        bool moved = false;
        if (out_size > 0) {
            const ssize_t sent = ::send(to.socket.get(), out_at, out_size, MSG_NOSIGNAL);
            if (sent > 0) {
                out_at += sent;
                out_size -= static_cast<std::size_t>(sent);
                moved = true;
            } else if (errno != EAGAIN && errno != EINTR) {
                throw std::runtime_error("lost the connection to " + to.name() + ": " + errno_text(errno));
            }
        }
        if (in_size > 0) {
            const ssize_t received = ::recv(from.socket.get(), in_at, in_size, 0);
            if (received > 0) {
                in_at += received;
                in_size -= static_cast<std::size_t>(received);
                moved = true;
            } else if (received == 0) {
                throw std::runtime_error(from.name() + " closed its connection");
            } else if (errno != EAGAIN && errno != EINTR) {
                throw std::runtime_error("lost the connection from " + from.name() + ": " +
                                         errno_text(errno));
            }
        }
        if (moved) {
            continue;
        }
        pollfd waits[] = {{out_size > 0 ? to.socket.get() : -1, POLLOUT, 0},
                          {in_size > 0 ? from.socket.get() : -1, POLLIN, 0}};
        if (!wait_for(waits, 2, until)) {
            throw silence(in_size > 0 ? "nothing came from " + from.name() + " " + until.text()
                                      : to.name() + " took no data " + until.text());
        }
    }
}

inline void send_all(const link& to, const void* data, std::size_t size, const deadline& until) {
    exchange(to, data, size, to, nullptr, 0, until);
}

inline void receive_all(const link& from, void* data, std::size_t size, const deadline& until) {
    exchange(from, nullptr, 0, from, data, size, until);
}

// What a rank says first on a connection, so that a stray visitor is not taken for a neighbour.
struct greeting {
    std::uint32_t magic = 0x676e6972;
    std::int32_t rank = -1;
};

inline void send_without_delay(const socket_fd& socket) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Connects to the rank that listens at `host` and `port`, and says who calls.
inline link dial(int own_rank, int rank, const std::string& host, const std::string& port,
                 const deadline& until) {
    const auto found = resolve(host, port);
    link to{socket_fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), rank};
    int failure = 0;
    if (!to.socket || ::connect(to.socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
        failure = errno;
    }
    if (failure == EINPROGRESS) {
        pollfd connected{to.socket.get(), POLLOUT, 0};
        socklen_t size = sizeof failure;
        if (!wait_for(&connected, 1, until)) {
            failure = ETIMEDOUT;
        } else if (::getsockopt(to.socket.get(), SOL_SOCKET, SO_ERROR, &failure, &size) != 0) {
            failure = errno;
        }
    }
    if (failure != 0) {
        throw std::runtime_error("cannot reach " + to.name() + " at " + host + ":" + port + ": " +
                                 errno_text(failure));
    }
    send_without_delay(to.socket);
    const greeting hello{greeting{}.magic, own_rank};
    send_all(to, &hello, sizeof hello, until);
    return to;
}

// Accepts connections until one greets as `rank`. Others are closed; a silent one costs at most a second.
inline link accept_rank(const socket_fd& listener, int rank, const deadline& until) {
    while (true) {
        pollfd arrived{listener.get(), POLLIN, 0};
        if (until.passed() || !wait_for(&arrived, 1, until)) {
            throw std::runtime_error("rank " + std::to_string(rank) + " did not connect " + until.text());
        }
        link from{socket_fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)), rank};
        if (!from.socket) {
            if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
                continue; // the caller hung up before we looked
            }
            throw std::runtime_error("cannot accept " + from.name() + ": " + errno_text(errno));
        }
        greeting heard;
        try {
            receive_all(from, &heard, sizeof heard, until.sooner_of(std::chrono::seconds(1)));
        } catch (const std::runtime_error&) {
            continue; // it hung up or said nothing: not the neighbour
        }
        if (heard.magic == greeting{}.magic && heard.rank == rank) {
            send_without_delay(from.socket);
            return from;
        }
    }
}

} // namespace digits
