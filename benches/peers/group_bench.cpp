// What a program feels: N threads with one store client each repeat one operation through a library's own
// API.
//
//   group_bench [HOST PORT]        without an address it hosts the library's own server in this process
//
// It takes one command a line on stdin and answers each with one JSON line, so that a driver can let several
// libraries run in turn without starting them again:
//
//   barrier N ROUNDS    the library's native barrier, a new key each round
//   legacy  N ROUNDS    ADD; the last to arrive SETs; all WAIT (the barrier that runs on any store)
//   add|get N ROUNDS    one shared counter; one shared value of 64 bytes
//
// median_us and p99_us are of rank 0's clock, one sample a round; wall_us is the time until the last
// rank is done, by its rounds.
//
// Built once for each library: -DADAPTER='"adapter_x.hpp"' names a header with a class Server { port() } and
// a class Client { library; Client(host, port); barrier, add, set, wait, get }.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include ADAPTER

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

enum class Operation { barrier, legacy, add, get };

struct Command {
  std::string name;
  Operation operation = Operation::barrier;
  int threads = 0;
  int rounds = 0;
};

bool parse(const std::string& line, Command& command) {
  std::istringstream message(line);
  if (!(message >> command.name >> command.threads >> command.rounds)) return false;
  if (command.threads < 1 || command.rounds < 1) return false;
  const std::vector<std::string> names = {"barrier", "legacy", "add", "get"};
  const auto found = std::find(names.begin(), names.end(), command.name);
  command.operation = static_cast<Operation>(found - names.begin());
  return found != names.end();
}

// Holds each thread until all are ready.
class StartGate {
 public:
  explicit StartGate(int expected) : missing_(expected) {}
  void arrive_and_wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) opened_.notify_all();
    opened_.wait(lock, [this] { return missing_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  int missing_;
};

class Bench {
 public:
  Bench(std::string host, std::uint16_t port) : host_(std::move(host)), port_(port) {}

  void run(const Command& command) {
    while (clients_.size() < static_cast<std::size_t>(command.threads)) clients_.emplace_back(host_, port_);
    clients_[0].set(value_key_, std::string(64, 'x'));
    const std::string run_prefix = "peers/" + std::to_string(++runs_) + "/";
    const int warm_up = std::max(1, command.rounds / 10);

    StartGate gate(command.threads);
    std::vector<double> samples;
    samples.reserve(static_cast<std::size_t>(command.rounds));
    Clock::time_point measured_since;
    const auto rank = [&](int index) {
      Client& client = clients_[static_cast<std::size_t>(index)];
      gate.arrive_and_wait();
      for (int round = 0; round < command.rounds + warm_up; ++round) {
        const Clock::time_point before = Clock::now();
        if (index == 0 && round == warm_up) measured_since = before;
        once(client, command, run_prefix + std::to_string(round));
        if (index == 0 && round >= warm_up) samples.push_back(microseconds(Clock::now() - before));
      }
    };
    std::vector<std::thread> others;
    for (int index = 1; index < command.threads; ++index) others.emplace_back(rank, index);
    rank(0);
    for (std::thread& other : others) other.join();
    const double wall_us = microseconds(Clock::now() - measured_since) / command.rounds;

    std::sort(samples.begin(), samples.end());
    std::printf(
        "{\"library\": \"%s\", \"operation\": \"%s\", \"n\": %d, \"rounds\": %d, \"median_us\": %.3f, "
        "\"p99_us\": %.3f, \"wall_us\": %.3f}\n",
        Client::library, command.name.c_str(), command.threads, command.rounds, samples[samples.size() / 2],
        samples[samples.size() * 99 / 100], wall_us);
    std::fflush(stdout);
  }

 private:
  void once(Client& client, const Command& command, const std::string& round_key) {
    switch (command.operation) {
      case Operation::barrier:
        client.barrier(round_key, command.threads);
        return;
      case Operation::legacy:
        if (client.add(round_key + "/num_members", 1) == command.threads)
          client.set(round_key + "/last_member", "1");
        client.wait(round_key + "/last_member");
        return;
      case Operation::add:
        client.add("peers/counter", 1);
        return;
      case Operation::get:
        if (client.get(value_key_) != 64) std::abort();
        return;
    }
  }

  const std::string value_key_ = "peers/value";
  std::string host_;
  std::uint16_t port_;
  std::deque<Client> clients_;  // kept from one command to the next: connecting is not what is measured here
  std::uint64_t runs_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && argc != 3) {
    std::fprintf(stderr,
                 "usage: group_bench [HOST PORT]   (commands on stdin: barrier|legacy|add|get N ROUNDS)\n");
    return 2;
  }
  try {
    std::unique_ptr<Server> own_server;
    if (argc == 1) own_server = std::make_unique<Server>();
    const std::uint16_t port = own_server ? own_server->port() : static_cast<std::uint16_t>(std::atoi(argv[2]));
    Bench bench(own_server ? "127.0.0.1" : argv[1], port);
    for (std::string line; std::getline(std::cin, line);) {
      Command command;
      if (!parse(line, command)) {
        std::fprintf(stderr, "group_bench: not a command: %s\n", line.c_str());
        return 2;
      }
      bench.run(command);
    }
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "group_bench: %s\n", problem.what());
    return 1;
  }
}
