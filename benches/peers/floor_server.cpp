// The kernel's floor: a server that does as little as one thread can do for the loads of load_generator.cpp.
//
//   floor_server echo    --frame BYTES --reply BYTES          every BYTES in are answered by BYTES out
//   floor_server barrier --frame BYTES --reply BYTES --n N    after N frames each waiting peer gets its reply
//
//   --greeting BYTES (10) --welcome BYTES (4)       what a new connection sends first, and what comes back
//
// It counts bytes without looking at them: one recv for a readable connection, one send for its answers, nothing stored. No store on one thread can be much faster,
// so its time is the yardstick. Binds a free port of 127.0.0.1 and prints "listening on 127.0.0.1:PORT".
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

enum class Kind { echo, barrier };

struct Options {
  Kind kind = Kind::echo;
  std::size_t greeting_bytes = 10;  // of c10d: VALIDATE and its magic, PING and its nonce
  std::size_t welcome_bytes = 4;
  std::size_t frame_bytes = 1;
  std::size_t reply_bytes = 1;
  std::size_t world_size = 1;
};

struct Peer {
  enum class Phase { closed, greeting, serving };
  Phase phase = Phase::closed;
  std::size_t pending_bytes = 0;  // of a frame that has not come in whole
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

class FloorServer {
 public:
  explicit FloorServer(const Options& options) : options_(options), zeros_(1 << 20, '\0') {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener_, 65535) != 0) {
      fail("floor_server: listen");
    }
    socklen_t length = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    watch(listener_);
  }

  int port() const { return port_; }

  [[noreturn]] void run() {
    std::vector<epoll_event> events(1024);
    for (;;) {
      const int ready = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < ready; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == listener_) {
          accept_all();
        } else {
          serve(fd);
        }
      }
    }
  }

 private:
  void watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("floor_server: epoll_ctl");
  }

  void accept_all() {
    const int on = 1;
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (peers_.size() <= static_cast<std::size_t>(fd)) peers_.resize(static_cast<std::size_t>(fd) * 2 + 64);
      peers_[static_cast<std::size_t>(fd)] = Peer{Peer::Phase::greeting, 0};
      watch(fd);
    }
  }

  void serve(int fd) {
    Peer& peer = peers_[static_cast<std::size_t>(fd)];
    const ssize_t received = recv(fd, input_.data(), input_.size(), 0);
    if (received <= 0) return drop(fd, peer);
    std::size_t bytes = static_cast<std::size_t>(received);
    if (peer.phase == Peer::Phase::greeting) {
      if (bytes < options_.greeting_bytes) return drop(fd, peer);  // our load generator sends it in one piece
      answer(fd, zeros_.data(), options_.welcome_bytes);
      peer.phase = Peer::Phase::serving;
      bytes -= options_.greeting_bytes;
    }
    peer.pending_bytes += bytes;
    const std::size_t frames = peer.pending_bytes / options_.frame_bytes;
    if (frames == 0) return;
    peer.pending_bytes %= options_.frame_bytes;
    if (options_.kind == Kind::echo) {
      answer(fd, zeros_.data(), frames * options_.reply_bytes);
    } else {
      arrive(fd, frames);
    }
  }

  void arrive(int fd, std::size_t frames) {
    arrived_frames_ += frames;
    waiting_.push_back(fd);
    if (arrived_frames_ < options_.world_size) return;
    for (const int waiter : waiting_) answer(waiter, zeros_.data(), options_.reply_bytes);
    waiting_.clear();
    arrived_frames_ = 0;
  }

  void drop(int fd, Peer& peer) {
    peer.phase = Peer::Phase::closed;
    waiting_.clear();  // a load run ended; the next begins with an empty barrier
    arrived_frames_ = 0;
    close(fd);
  }

  static void answer(int fd, const char* bytes, std::size_t size) {
    (void)!send(fd, bytes, size, MSG_NOSIGNAL);
  }

  Options options_;
  std::string zeros_;
  std::array<char, 65536> input_{};
  int listener_ = -1;
  int epoll_ = -1;
  int port_ = 0;
  std::vector<Peer> peers_;
  std::vector<int> waiting_;
  std::size_t arrived_frames_ = 0;
};

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: floor_server echo|barrier --frame BYTES --reply BYTES [--n N]\n"
               "                    [--greeting BYTES] [--welcome BYTES]\n");
  std::exit(2);
}

Options parse(int argc, char** argv) {
  if (argc < 2) usage();
  Options options;
  const std::string kind = argv[1];
  if (kind != "echo" && kind != "barrier") usage();
  options.kind = kind == "echo" ? Kind::echo : Kind::barrier;
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i];
    const std::size_t value = i + 1 < argc ? std::strtoul(argv[i + 1], nullptr, 10) : 0;
    if (value == 0) usage();
    if (name == "--frame") {
      options.frame_bytes = value;
    } else if (name == "--reply") {
      options.reply_bytes = value;
    } else if (name == "--n") {
      options.world_size = value;
    } else if (name == "--greeting") {
      options.greeting_bytes = value;
    } else if (name == "--welcome") {
      options.welcome_bytes = value;
    } else {
      usage();
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  FloorServer server(options);
  std::printf("listening on 127.0.0.1:%d\n", server.port());
  std::fflush(stdout);
  server.run();
}
