// The connections of one load on one server, on one epoll; and the clock of a server's CPU time.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "load_wire.hpp"

using Clock = std::chrono::steady_clock;

inline double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

[[noreturn]] inline void fail(const std::string& what, int error_number = 0) {
  std::fprintf(stderr, "load_generator: %s%s%s\n", what.c_str(), error_number != 0 ? ": " : "",
               error_number != 0 ? std::strerror(error_number) : "");
  std::exit(1);
}

// CPU time of all threads of a process, from the scheduler's nanosecond counters. Pid 0: always nought.
class CpuClock {
 public:
  explicit CpuClock(int pid) : tasks_("/proc/" + std::to_string(pid) + "/task/"), pid_(pid) {}

  double now_us() const {
    if (pid_ == 0) return 0;
    DIR* directory = opendir(tasks_.c_str());
    if (directory == nullptr) fail("server process " + std::to_string(pid_) + " is gone");
    double nanoseconds = 0;
    while (const dirent* entry = readdir(directory)) {
      if (entry->d_name[0] == '.') continue;
      std::FILE* file = std::fopen((tasks_ + entry->d_name + "/schedstat").c_str(), "r");
      if (file == nullptr) continue;
      unsigned long long on_cpu = 0;
      if (std::fscanf(file, "%llu", &on_cpu) == 1) nanoseconds += static_cast<double>(on_cpu);
      std::fclose(file);
    }
    closedir(directory);
    return nanoseconds / 1000;
  }

  // Returns when the server has done nothing for 5 ms, or after a second. Without a pid there is no telling.
  void wait_until_idle() const {
    for (int i = 0; i < 200 && pid_ != 0; ++i) {
      const double before_us = now_us();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (now_us() - before_us < 20) return;
    }
  }

 private:
  std::string tasks_;
  int pid_;
};

enum class Dial { in_turn, all_at_once };
enum class Language { c10d, native };

class Group {
 public:
  Group(std::uint16_t port, std::size_t connections, Dial dial, Language language)
      : who_("the server on port " + std::to_string(port)),
        language_(language),
        connections_(connections),
        events_(1024) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    for (Connection& connection : connections_) {
      connection.dialled = Clock::now();
      connection.fd = open_socket(port, dial);
    }
    if (dial == Dial::all_at_once) {
      opening_ = size();
      for (Connection& connection : connections_) connection.opening = true;
      for (std::size_t i = 0; i < size(); ++i) watch(i, EPOLL_CTL_ADD, EPOLLOUT);
    } else {
      for (std::size_t i = 0; i < size(); ++i) watch(i, EPOLL_CTL_ADD, EPOLLIN);
      for (std::size_t i = 0; i < size(); ++i) greet(i);
    }
    collect([this](std::size_t i) {
      connections_[i].greeted_after_us = microseconds(Clock::now() - connections_[i].dialled);
    });
  }

  ~Group() {
    // A reset leaves no port in TIME_WAIT; thousands of those would slow the next repetition's connects.
    const linger at_once{1, 0};
    for (const Connection& connection : connections_) {
      setsockopt(connection.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      close(connection.fd);
    }
    close(epoll_);
  }

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::size_t size() const { return connections_.size(); }

  // Ids grow on each connection; those of all count together.
  std::uint64_t next_id() { return ++last_id_; }

  std::vector<double> greeted_after_us() const {
    std::vector<double> times;
    for (const Connection& connection : connections_) times.push_back(connection.greeted_after_us);
    return times;
  }

  // Sends a request that will be answered by so many bytes.
  void ask(std::size_t index, const std::string& request, std::size_t answer_bytes) {
    Connection& connection = connections_[index];
    if (connection.expected_bytes == 0 && answer_bytes > 0) ++unanswered_;
    connection.expected_bytes += answer_bytes;
    for (std::size_t sent = 0; sent < request.size();) {
      const ssize_t written = send(connection.fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (written > 0) {
        sent += static_cast<std::size_t>(written);
      } else if (errno == EAGAIN) {
        pollfd writable{connection.fd, POLLOUT, 0};
        if (poll(&writable, 1, timeout_ms) <= 0) fail(who_ + " stopped reading");
      } else {
        fail("send to " + who_, errno);
      }
    }
  }

  // Waits for some answer and drops it, however long it is: the floor answers what it does not understand.
  void discard_answer(std::size_t index) {
    pollfd readable{connections_[index].fd, POLLIN, 0};
    char input[4096];
    if (poll(&readable, 1, timeout_ms) <= 0) fail(who_ + " did not answer within 20 s");
    if (recv(readable.fd, input, sizeof input, 0) <= 0) fail(who_ + " closed a connection");
  }

  // Reads until every connection has all its answers. Calls answered(index) as each has; that may ask again.
  template <class Answered>
  void collect(Answered answered) {
    char input[65536];
    while (opening_ + unanswered_ > 0) {
      const int ready = next_events();
      for (int k = 0; k < ready; ++k) {
        const std::size_t index = events_[static_cast<std::size_t>(k)].data.u64;
        Connection& connection = connections_[index];
        if (connection.opening) {
          opened(index);
          continue;
        }
        const ssize_t received = recv(connection.fd, input, sizeof input, 0);
        if (received < 0 && errno == EAGAIN) continue;
        if (received < 0) fail(who_ + " broke a connection", errno);
        if (received == 0) fail(who_ + " closed a connection");
        if (static_cast<std::size_t>(received) > connection.expected_bytes)
          fail(who_ + " sent more than was asked for");
        connection.expected_bytes -= static_cast<std::size_t>(received);
        if (connection.expected_bytes > 0) continue;
        --unanswered_;
        answered(index);
      }
    }
  }

 private:
  static constexpr int timeout_ms = 20'000;

  struct Connection {
    int fd = -1;
    bool opening = false;  // the connect has been issued and not yet been seen to succeed
    std::size_t expected_bytes = 0;
    Clock::time_point dialled;
    double greeted_after_us = 0;
  };

  int open_socket(std::uint16_t port, Dial dial) const {
    const int fd =
        socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (dial == Dial::all_at_once ? SOCK_NONBLOCK : 0), 0);
    if (fd < 0) fail("socket", errno);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno != EINPROGRESS)
      fail("connect to " + who_, errno);
    if (dial == Dial::in_turn) fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
  }

  void watch(std::size_t index, int operation, std::uint32_t interest) {
    epoll_event event{};
    event.events = interest;
    event.data.u64 = index;
    if (epoll_ctl(epoll_, operation, connections_[index].fd, &event) != 0) fail("epoll_ctl", errno);
  }

  void greet(std::size_t index) {
    std::string request;
    if (language_ == Language::native) {
      wire::native::greeting(request);
      return ask(index, request, wire::native::welcome_bytes);
    }
    wire::greeting(request, static_cast<std::uint32_t>(index));
    ask(index, request, wire::nonce_bytes);
  }

  void opened(std::size_t index) {
    int error_number = 0;
    socklen_t length = sizeof error_number;
    getsockopt(connections_[index].fd, SOL_SOCKET, SO_ERROR, &error_number, &length);
    if (error_number != 0) fail("connect to " + who_, error_number);
    connections_[index].opening = false;
    --opening_;
    watch(index, EPOLL_CTL_MOD, EPOLLIN);
    greet(index);
  }

  int next_events() {
    const int ready = epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), timeout_ms);
    if (ready == 0) fail(who_ + " did not answer within 20 s");
    return std::max(ready, 0);
  }

  std::string who_;
  Language language_;
  std::uint64_t last_id_ = 0;
  std::vector<Connection> connections_;
  std::vector<epoll_event> events_;
  std::size_t opening_ = 0;
  std::size_t unanswered_ = 0;
  int epoll_ = -1;
};
