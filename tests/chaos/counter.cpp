// A job that counts, for tests/chaos/run.py: each worker takes the next number of a shared count in a transaction, which also
// notes who took it, and writes what the server has acknowledged to a ledger of its own.
//
// counter HOST PORT TOTAL PAUSE_MS LEDGER_FOLDER

#include <rendezvous.hpp>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using namespace std::chrono_literals;

// No call may take longer, whatever fails.
constexpr auto call_timeout = 20s;

class ledger {
 public:
  ledger(const std::string& folder, const std::string& name)
      : descriptor_(::open((folder + "/" + name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {}
  // One write, so that a line is there as a whole or not at all.
  bool note(const std::string& line) const {
    return descriptor_ >= 0 && ::write(descriptor_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  }

 private:
  int descriptor_;
};

int count(char** argv) {
  const char* rank = std::getenv("RANK");
  const std::string me = std::string(rank ? rank : "?") + "." + std::to_string(::getpid());
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[2]));
  const long total = std::atol(argv[3]);
  const int pause_ms = std::atoi(argv[4]);
  rdzv::store_options options;
  options.node = me;
  options.timeout = call_timeout;
  options.connect_timeout = call_timeout;
  options.grace = 10s;
  auto store = rdzv::native_store::connect(argv[1], port, options).or_throw();
  const std::string incarnation = std::to_string(store.incarnation());
  const ledger acknowledged(argv[5], "worker." + me);
  rdzv::operation take, part;
  for (;;) {
    const std::int64_t next = store.add("count", 0).or_throw();
    if (next >= total) break;
    const std::string number = std::to_string(next);
    take.transaction().require_value("count", number).require_absent("done/" + number);
    take.include(part.set("done/" + number, me)).include(part.set("count", std::to_string(next + 1)));
    store.perform(take).or_throw();
    if (take.outcome().or_throw().holds && !acknowledged.note(incarnation + " " + number + " " + me + "\n")) {
      std::fprintf(stderr, "counter: the ledger cannot be written\n");
      return 3;
    }
    ::poll(nullptr, 0, pause_ms);  // what a job would compute
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: counter HOST PORT TOTAL PAUSE_MS LEDGER_FOLDER\n");
    return 2;
  }
  try {
    return count(argv);
  } catch (const rdzv::exception& failure) {
    std::fprintf(stderr, "counter: %s\n", failure.what());
    return 1;
  }
}
