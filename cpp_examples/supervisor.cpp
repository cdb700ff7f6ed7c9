// A program that supervises its own trainer processes: four workers, started again when one of them fails.
//
//     supervisor          is the supervisor, and starts itself four times as
//     supervisor train    a worker
//
// One worker fails in the first attempt. It leaves word of why, all are started anew, and the job comes to its end.
#include <rendezvous.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

// What each worker does. Its agent has put all that it needs into the environment.
int train() {
  rdzv::record_uncaught_errors();  // an uncaught exception gets into the agent's report
  auto url = rdzv::url_rendezvous::create("env://", rdzv::url_options().read_environment()).or_throw();
  const rdzv::rendezvous_info info = url.next().or_throw();
  rdzv::store store = info.store().or_throw();

  // Each node counts the restarts that its own workers have caused.
  const bool is_first_attempt = std::string(std::getenv("TORCHELASTIC_RESTART_COUNT")) == "0";
  if (info.rank == 2 && is_first_attempt) throw std::runtime_error("the loss is not a number");

  // The training would stand here. This is a sum over all workers, and a barrier.
  const std::int64_t sum = store.add("sum", info.rank + 1).or_throw();
  store.barrier("trained", info.world_size).or_throw();
  if (sum == 10) std::printf("worker %lld was the last to add\n", static_cast<long long>(info.rank));
  return EXIT_SUCCESS;
}

int supervise(const std::string& self) {
  // One node by itself, with a rendezvous of its own on a free port. Two numbers more, and there are several nodes.
  rdzv::rendezvous_parameters parameters{"rdzv", "localhost:0", "supervisor", 1, 1};
  parameters.config = "local_world_size=4";
  const auto handler = rdzv::rendezvous_handler::create(parameters).or_throw();

  rdzv::agent_options options;
  options.local_world_size = 4;
  options.program = self;
  options.arguments = {"train"};
  options.max_restarts = 1;
  auto agent = rdzv::agent::create(options, handler).or_throw();

  const auto result = agent.run([](const rdzv::agent_event& event) {
    switch (event.kind) {
      case rdzv::agent_event_kind::phase:
        std::printf("%s: %s\n", rdzv::name(event.to).data(), event.message.c_str());
        break;
      case rdzv::agent_event_kind::running:
        std::printf("attempt %llu runs: %lld us to meet, %lld us to start\n",
                    static_cast<unsigned long long>(event.attempt), static_cast<long long>(event.rendezvous.count()),
                    static_cast<long long>(event.start.count()));
        break;
      case rdzv::agent_event_kind::workers_failed:
        std::printf("%s\n", event.message.c_str());
        break;
      default: break;
    }
    std::fflush(stdout);
  }).or_throw();

  std::printf("%s\n", result.reason.c_str());
  return result.succeeded() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "train") return train();
  try {
    return supervise(argv[0]);
  } catch (const std::exception& thrown) {
    std::fprintf(stderr, "supervisor: %s\n", thrown.what());
    return EXIT_FAILURE;
  }
}
