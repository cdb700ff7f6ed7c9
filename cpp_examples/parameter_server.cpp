// A parameter server: one process keeps a network that learns to read digits, and three trainers pull its weights and
// push gradients, each as fast as it can. They are workers of a dynamic RPC group: the first two begin together, the
// third joins when the others are halfway, and the first leaves before the others have done.
//
// Run it from the root of the repository, or name the data: parameter_server [--kill] [cpp_examples/data/digits.csv]
// With --kill the second trainer is killed on its way: the others go on.
#include <rendezvous.hpp>

#include "digits_trainer/network.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t training_count = 1437;
constexpr std::size_t batch_size = 16;
constexpr double accuracy_due = 0.93;
constexpr int trainer_count = 3;
// How many batches each trainer pushes.
constexpr int batches_of[trainer_count] = {400, 1000, 800};
// With --kill the second trainer ends so after so many, without a word.
constexpr int killed_trainer = 1;
constexpr int killed_after = 400;
// The third trainer joins after so many.
constexpr std::uint64_t late_after = 500;
constexpr std::chrono::seconds wait_timeout{60};

std::string name_of(int trainer) { return "trainer-" + std::to_string(trainer); }

// Options of a worker: what waits, waits no longer than this.
rdzv::rpc_options options(const rdzv::store& store) {
  rdzv::rpc_options given;
  given.store = &store;
  given.rpc_timeout = wait_timeout;
  given.worker_threads = trainer_count;
  return given;
}

// The group's keys have a prefix of their own in the store.
rdzv::store group_store(std::uint16_t port) {
  rdzv::store_options given;
  given.timeout = wait_timeout;
  return rdzv::store::connect("127.0.0.1", port, given).or_throw().with_prefix("digits").or_throw();
}

// Pulls, computes, pushes. Trainers hold no weights: only the gradient of a batch is theirs.
void train(int trainer, std::uint16_t port, const digits::dataset& data, int killed) {
  rdzv::store store = group_store(port);
  store.wait({trainer == trainer_count - 1 ? "halfway" : "serves"}).or_throw();
  const auto handlers = rdzv::rpc_handlers::create().or_throw();
  const auto id = static_cast<std::uint16_t>(trainer + 1);
  const rdzv::rpc worker = rdzv::rpc::create(name_of(trainer), id, -1, options(store), handlers).or_throw();

  digits::random_source random(static_cast<std::uint64_t>(trainer) + 1);
  digits::network network(random);
  std::vector<double> state(digits::network::state_count);
  for (int batch = 0; batch < batches_of[trainer]; ++batch) {
    if (trainer == killed && batch == killed_after) std::raise(SIGKILL);
    const auto weights = worker.call<std::vector<double>>("server", "pull").or_throw();
    std::copy(weights.begin(), weights.end(), state.begin());
    network.restore(state);
    std::vector<double> gradient(digits::network::parameter_count);
    double loss = 0;
    for (std::size_t i = 0; i < batch_size; ++i)
      loss += network.add_gradient(data.training[random.below(data.training.size())], gradient);
    worker.call("server", "push", gradient, loss / batch_size).or_throw();
  }
  // The others hear that it leaves, and go on.
  worker.shutdown().or_throw();
}

// What the server keeps. Its handlers run on several threads.
class parameters {
 public:
  explicit parameters(rdzv::store store) : network_(digits::random_source(7)), store_(std::move(store)) {}

  std::vector<double> pull() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return network_.parameters();
  }

  void push(const std::vector<double>& gradient, double loss) {
    if (gradient.size() != digits::network::parameter_count)
      throw std::runtime_error("a gradient has " + std::to_string(gradient.size()) + " numbers");
    bool is_halfway = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      network_.step(gradient, batch_size, 0.02, 0.9);
      loss_ = 0.99 * loss_ + 0.01 * loss;
      is_halfway = ++batches_ == late_after;
    }
    if (is_halfway) store_.set("halfway", "").or_throw();
  }

  double accuracy(const std::vector<digits::sample>& samples) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t right = 0;
    for (const auto& sample : samples) right += network_.classify(sample) == sample.label ? 1 : 0;
    return static_cast<double>(right) / static_cast<double>(samples.size());
  }

  std::pair<std::uint64_t, double> progress() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {batches_, loss_};
  }

 private:
  std::mutex mutex_;
  digits::network network_;
  rdzv::store store_;
  std::uint64_t batches_ = 0;
  double loss_ = 2.3;
};

// Serves until all trainers have come and gone. One that died is gone, too, and the others go on.
void serve(std::uint16_t port, const digits::dataset& data) {
  rdzv::store store = group_store(port);
  // The handlers own it, too: one of them may run still when this function has ended.
  const auto kept = std::make_shared<parameters>(store.clone().or_throw());
  auto handlers = rdzv::rpc_handlers::create().or_throw();
  handlers.on("pull", [kept] { return kept->pull(); }).or_throw();
  handlers.on("push", [kept](std::vector<double> gradient, double loss) { kept->push(gradient, loss); }).or_throw();
  const rdzv::rpc worker = rdzv::rpc::create("server", 0, -1, options(store), handlers).or_throw();
  // From here on the trainers find it.
  store.set("serves", "").or_throw();

  for (int gone = 0; gone < trainer_count;) {
    const auto event = worker.next_event(wait_timeout).or_throw();
    if (!event) throw std::runtime_error("nothing has happened for too long");
    const auto [batches, loss] = kept->progress();
    const auto tell = [&, after = batches, now = loss](const char* what) {
      std::printf("%s %s after %llu batches, loss %.3f%s%s\n", event->name.c_str(), what,
                  static_cast<unsigned long long>(after), now, event->why.empty() ? "" : ": ", event->why.c_str());
    };
    switch (event->kind) {
      case rdzv::rpc_event_kind::joined:
        tell("joined");
        break;
      case rdzv::rpc_event_kind::left:
        tell("left");
        ++gone;
        break;
      case rdzv::rpc_event_kind::died:
        tell("died");
        ++gone;
        break;
      case rdzv::rpc_event_kind::watch_lost:
        // From now on a death shows in calls alone; the group goes on.
        std::printf("deaths are no longer reported: %s\n", event->why.c_str());
        break;
      case rdzv::rpc_event_kind::over:
        throw std::runtime_error("the server is of the group no more: " + event->why);
    }
  }
  worker.shutdown().or_throw();

  const double accuracy = kept->accuracy(data.test);
  std::printf("test accuracy %.4f\n", accuracy);
  if (accuracy < accuracy_due) throw std::runtime_error("it has not learned to read");
}

// A trainer is a process of its own. It is forked before there are threads, and gets the store's port later.
pid_t fork_trainer(int trainer, const int (&pipes)[2], const digits::dataset& data, int killed) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("there is no process for " + name_of(trainer));
  if (child > 0) return child;
  try {
    // Else its own end of the pipe would be open for ever, and it would wait in vain for a server that is gone.
    close(pipes[1]);
    std::uint16_t port = 0;
    if (read(pipes[0], &port, sizeof port) != sizeof port) throw std::runtime_error("there is no server");
    train(trainer, port, data, killed);
    std::_Exit(0);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s: %s\n", name_of(trainer).c_str(), problem.what());
    std::_Exit(1);
  }
}

// How a trainer has ended, as `waitpid` tells it: 0 is well. Who has not ended by then is killed.
int end_of(pid_t trainer, std::chrono::steady_clock::time_point deadline) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(trainer, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (ended == 0) {
    kill(trainer, SIGKILL);
    waitpid(trainer, &status, 0);
  }
  return ended == trainer ? status : -1;
}

// Waits for the trainers. Each ends with code 0, but the one that is killed.
bool have_ended_well(const std::vector<pid_t>& trainers, int killed) {
  const auto deadline = std::chrono::steady_clock::now() + wait_timeout;
  bool is_well = true;
  for (std::size_t trainer = 0; trainer < trainers.size(); ++trainer) {
    const int end = end_of(trainers[trainer], deadline);
    const bool is_as_meant = static_cast<int>(trainer) == killed ? WIFSIGNALED(end) : end == 0;
    is_well = is_well && is_as_meant;
  }
  return is_well;
}

}  // namespace

int main(int argc, char** argv) {
  bool is_well = false;
  std::vector<pid_t> trainers;
  int pipes[2] = {-1, -1};
  // Trainers that are gone are an error of `write`, not the end.
  std::signal(SIGPIPE, SIG_IGN);
  const bool kills = argc > 1 && std::string(argv[1]) == "--kill";
  const int killed = kills ? killed_trainer : -1;
  const int place = kills ? 2 : 1;
  const char* const given = argc > place ? argv[place] : "cpp_examples/data/digits.csv";
  try {
    const digits::dataset data = digits::load_dataset(given, training_count, 1);
    if (pipe(pipes) != 0) throw std::runtime_error("there is no pipe");
    for (int trainer = 0; trainer < trainer_count; ++trainer)
      trainers.push_back(fork_trainer(trainer, pipes, data, killed));
    close(pipes[0]);

    const auto server = rdzv::server::start().or_throw();
    const std::uint16_t port = server.port();
    for (int trainer = 0; trainer < trainer_count; ++trainer)
      if (write(pipes[1], &port, sizeof port) != sizeof port) throw std::runtime_error("the pipe takes nothing");
    close(pipes[1]);
    serve(port, data);
    // A trainer uses the store until its shutdown returns, after the others have noticed that it left.
    is_well = have_ended_well(trainers, killed);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "parameter_server: %s\n", problem.what());
    for (const pid_t trainer : trainers) kill(trainer, SIGKILL);
    have_ended_well(trainers, killed);
  }
  return is_well ? 0 : 1;
}
