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

// A node, and the operation with which it joins rounds; the loop's events bring it back.
struct node {
  int number;
  rdzv::event_loop::member member = nullptr;
  rdzv::operation joining{this};
  rdzv::operation closing{this};
  bool is_joining = false;
};

struct program {
  rdzv::event_loop loop = must(rdzv::event_loop::create());
  node* victim = nullptr;  // the node that is to die, in the demonstration
  bool finished = false;

  void on(const rdzv::loop_event& event) {
    node& self = *static_cast<node*>(event.member_data);
    switch (event.kind) {
      case rdzv::event_kind::completed:
        if (event.op != self.joining.c_handle()) break;
        self.is_joining = false;
        if (auto round = self.joining.round()) {
          start_work(self, *round);
        } else {
          std::printf("node %d: %s\n", self.number, self.joining.outcome().error().message().c_str());
          finished = true;
        }
        break;
      case rdzv::event_kind::round:
        if (event.round_event->kind == rdzv::round_event_kind::peer_died) {
          std::printf("node %d: %s died\n", self.number, event.round_event->node.c_str());
          join(self);  // the survivors meet again
        } else if (event.round_event->kind == rdzv::round_event_kind::nodes_waiting && event.round_event->nodes > 0) {
          join(self);  // let the newcomers in
        } else if (event.round_event->kind == rdzv::round_event_kind::run_closed) {
          finished = true;
        }
        break;
      case rdzv::event_kind::session_over:
        std::printf("node %d: %s\n", self.number, event.failure ? event.failure->message().c_str() : "it has left");
        finished = true;
        break;
      default: break;
    }
  }

  // Events of the last round may still come while the node joins the next one.
  void join(node& self) {
    if (self.is_joining) return;
    must(loop.submit(self.member, self.joining.next_rendezvous()));
    self.is_joining = true;
  }

  void start_work(node& self, const rdzv::joined_round& round) {
    std::printf("node %d: rank %u of %u in round %llu; keys under %s\n", self.number, round.node_rank, round.nodes,
                static_cast<unsigned long long>(round.round), round.key_prefix.c_str());
    std::fflush(stdout);
    if (&self == victim) {
      must(loop.remove(self.member));  // as if its process had died
      victim = nullptr;
    } else if (round.nodes == 1) {
      must(loop.submit(self.member, self.closing.set_closed()));  // the demonstration is over
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
      must(loop.poll());
      while (auto event = must(loop.next_event())) on(*event);
    }
  }
};

void add(program& self, node& added, const std::string& endpoint, const char* run, int min_nodes, int max_nodes,
         const char* options) {
  rdzv::rendezvous_parameters parameters{"rdzv", endpoint, run, min_nodes, max_nodes};
  parameters.config = options;
  added.member = must(self.loop.add_node(parameters, &added));
  self.join(added);
}

}  // namespace

int main(int argc, char** argv) {
  node first{1}, second{2};
  program self;
  int min_nodes = 2, max_nodes = 2;
  if (argc == 4 && std::sscanf(argv[3], "%d:%d", &min_nodes, &max_nodes) == 2) {
    add(self, first, argv[1], argv[2], min_nodes, max_nodes, "");
    self.run();
    return EXIT_SUCCESS;
  }
  auto server = must(rdzv::server::start());
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const char* options = "min_to_continue=1,last_call=none";
  self.victim = &second;
  add(self, first, endpoint, "demo", min_nodes, max_nodes, options);
  add(self, second, endpoint, "demo", min_nodes, max_nodes, options);
  self.run();
  return EXIT_SUCCESS;
}
