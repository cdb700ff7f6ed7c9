// A node of an elastic job inside a program's own epoll loop: one thread, no callback, nothing that blocks.
//
//     rendezvous_loop                        starts a server, and is two nodes of a run in one loop; one of them dies
//     rendezvous_loop HOST:PORT RUN MIN:MAX  is a node of that run, until the run is closed
#include <rendezvous.hpp>

#include <sys/epoll.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

// Ends the program with the sentence that the library has for what went wrong.
template <class T>
T must(rdzv::result<T> outcome) {
  if (!outcome) {
    std::fprintf(stderr, "rendezvous_loop: %s\n", outcome.error().message().c_str());
    std::exit(EXIT_FAILURE);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(outcome);
}

struct program {
  rdzv::event_loop loop = must(rdzv::event_loop::create());
  std::uint32_t victim = 0;  // the node that is to die, in the demonstration
  bool finished = false;

  void on(const rdzv::loop_event& event) {
    switch (event.kind) {
      case rdzv::event_kind::completed:
        if (event.code != rdzv::status::ok) {
          std::printf("node %u: %s\n", event.store, event.message.c_str());
          finished = true;
        } else if (event.joined) {
          start_work(event.store, *event.joined);
        }
        break;
      case rdzv::event_kind::round:
        if (event.happened.kind == RDZV_ROUND_EVENT_PEER_DIED) {
          std::printf("node %u: %s died\n", event.store, event.value.c_str());
          must(loop.next_rendezvous(event.store));  // the survivors meet again
        } else if (event.happened.kind == RDZV_ROUND_EVENT_NODES_WAITING && event.happened.nodes > 0) {
          must(loop.next_rendezvous(event.store));  // let the newcomers in
        } else if (event.happened.kind == RDZV_ROUND_EVENT_RUN_CLOSED) {
          finished = true;
        }
        break;
      case rdzv::event_kind::node_over:
        std::printf("node %u: %s\n", event.store, event.message.c_str());
        finished = true;
        break;
      default: break;
    }
  }

  void start_work(std::uint32_t node, const rdzv::loop_round& round) {
    std::printf("node %u: rank %u of %u in round %llu; keys under %s\n", node, round.node_rank, round.nodes,
                static_cast<unsigned long long>(round.round), round.key_prefix.c_str());
    std::fflush(stdout);
    if (node == victim) {
      must(loop.remove_node(node));  // as if its process had died
      victim = 0;
    } else if (round.nodes == 1) {
      must(loop.set_closed(node));  // the demonstration is over
    }
  }

  void run() {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event watched{};
    watched.events = EPOLLIN;
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, loop.fd(), &watched) != 0) std::abort();
    while (!finished) {
      epoll_event ready{};
      epoll_wait(epoll, &ready, 1, -1);  // the program's own sockets and timers would stand here as well
      must(loop.turn());
      while (auto event = must(loop.next_event())) on(*event);
    }
  }
};

std::uint32_t add(program& self, const std::string& endpoint, const char* run, int min_nodes, int max_nodes,
                  const char* options) {
  auto parameters = must(rdzv::rendezvous_parameters::create("rdzv", endpoint, run, min_nodes, max_nodes));
  must(parameters.set_config(options));
  const std::uint32_t node = must(self.loop.add_node(parameters.c_handle()));
  must(self.loop.next_rendezvous(node));
  return node;
}

}  // namespace

int main(int argc, char** argv) {
  program self;
  int min_nodes = 2, max_nodes = 2;
  if (argc == 4 && std::sscanf(argv[3], "%d:%d", &min_nodes, &max_nodes) == 2) {
    add(self, argv[1], argv[2], min_nodes, max_nodes, "");
    self.run();
    return EXIT_SUCCESS;
  }
  auto server = must(rdzv::server::start());
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const char* options = "min_to_continue=1,last_call=none";
  add(self, endpoint, "demo", min_nodes, max_nodes, options);
  self.victim = add(self, endpoint, "demo", min_nodes, max_nodes, options);
  self.run();
  return EXIT_SUCCESS;
}
