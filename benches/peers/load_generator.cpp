// One thread, many connections: puts the same load on every server that speaks the same wire, in one run.
//
//   load_generator [options] NAME=PORT[:PID] ...     servers on 127.0.0.1; the first is the reference
//   load_generator [options] --sizes      prints the bytes of a greeting, its answer, one request, and its answer
//
//   --work barrier   n connections meet in one BARRIER: a round is from the first send to the last answer
//          legacy    the same by ADD, one SET by the last to arrive, and WAIT by all
//          set, add, get, check    each connection sends batches of --depth requests, one after another
//          mixed     set, add, get and check in turn
//          connect   n connects one by one, then all greetings, until the last nonce is back
//          storm     the same, but all connects are issued before any is waited for
//   --language c10d  or native: barrier, add, connect and storm
//   --n CONNECTIONS (64)    --ops COUNT of rounds, or of operations a connection, in a repetition (200)
//   --depth REQUESTS (1)    --value BYTES (64)    --repetitions COUNT (15)    --json
//
// A repetition visits every target, each time beginning one further in the list. Ratios are taken repetition by
// repetition, then their median. With a PID, the CPU time of that server's threads is counted too. A SET has no
// answer on this wire, so a PING behind it paces the load. Name the reference twice: where the second does not
// come out at 1, the machine was not quiet and the run says nothing.
#include <netinet/in.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "load_group.hpp"
#include "load_wire.hpp"

namespace {

struct Options {
  std::string work = "barrier";
  Language language = Language::c10d;
  std::size_t connections = 64;
  std::size_t operations = 200;
  std::size_t depth = 1;
  std::size_t value_bytes = 64;
  std::size_t repetitions = 15;
  bool json = false;
  bool sizes = false;
};

struct Sample {
  double wall_us = 0;  // a round, an operation, or all connects, as the work has it
  double p99_us = 0;
  double server_cpu_us = 0;  // an operation
};

struct Target {
  std::string name;
  std::uint16_t port = 0;
  int pid = 0;
  std::unique_ptr<Group> group;  // stays connected from one repetition to the next
  std::vector<Sample> samples;
};

double quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  const std::size_t index =
      std::min(values.size() - 1, static_cast<std::size_t>(fraction * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// The requests that a closed loop sends in turn; none for the other works.
std::vector<wire::Request> requests_of(const std::string& work) {
  using wire::Request;
  if (work == "set") return {Request::set};
  if (work == "add") return {Request::add};
  if (work == "get") return {Request::get};
  if (work == "check") return {Request::check};
  if (work == "mixed") return {Request::set, Request::add, Request::get, Request::check};
  return {};
}

class Work {
 public:
  virtual ~Work() = default;
  virtual Sample repetition(Target& target) = 0;
};

// Runs `body`, which does so many operations, and adds what it took of the server's CPU.
template <class Body>
Sample with_server_cpu(const Target& target, std::size_t operations, Body body) {
  const CpuClock cpu(target.pid);
  const double before_us = cpu.now_us();
  Sample sample = body();
  sample.server_cpu_us = (cpu.now_us() - before_us) / static_cast<double>(operations);
  return sample;
}

Group& connected_group(const Options& options, Target& target) {
  if (!target.group) target.group = std::make_unique<Group>(target.port, options.connections, Dial::in_turn,
                                                             options.language);
  return *target.group;
}

// Rounds of a barrier. A c10d BARRIER key serves once, so each round has its own, all of one length; a barrier of the
// native language has one generation after another.
class Rounds : public Work {
 public:
  explicit Rounds(const Options& options) : options_(options) {}

  Sample repetition(Target& target) override {
    Group& group = connected_group(options_, target);
    return with_server_cpu(target, options_.operations * group.size(), [&] { return run(group); });
  }

 private:
  Sample run(Group& group) {
    std::vector<double> rounds_us;
    for (std::size_t round = 0; round < options_.operations; ++round) {
      const std::string key = wire::round_key(++keys_used_);
      const Clock::time_point start = Clock::now();
      if (options_.work == "legacy") {
        legacy_round(group, key);
      } else if (options_.language == Language::native) {
        native_round(group);
      } else {
        c10d_round(group, key);
      }
      rounds_us.push_back(microseconds(Clock::now() - start));
    }
    return {median(rounds_us), quantile(rounds_us, 0.99), 0};
  }

  void native_round(Group& group) {
    const std::uint64_t id = group.next_id();
    const auto world_size = static_cast<std::uint32_t>(group.size());
    std::string request;
    for (std::size_t i = 0; i < group.size(); ++i) {
      request.clear();
      wire::native::barrier(request, id, native_key_, i, world_size);
      group.ask(i, request, wire::native::barrier_over_bytes);
    }
    group.collect([](std::size_t) {});
  }

  void c10d_round(Group& group, const std::string& key) {
    std::string request;
    wire::barrier(request, key, static_cast<std::int64_t>(group.size()));
    for (std::size_t i = 0; i < group.size(); ++i) group.ask(i, request, 1);
    group.collect([](std::size_t) {});
  }

  void legacy_round(Group& group, const std::string& key) {
    std::string add, set, wait;
    wire::add(add, key + "/num_members", 1);
    wire::set(set, key + "/last_member", "1");
    wire::wait(wait, key + "/last_member");
    std::vector<char> counted(group.size(), 0);
    std::size_t arrived = 0;
    for (std::size_t i = 0; i < group.size(); ++i) group.ask(i, add, 8);
    group.collect([&](std::size_t i) {
      if (counted[i] != 0) return;
      counted[i] = 1;
      if (++arrived == group.size()) group.ask(i, set, 0);
      group.ask(i, wait, 1);
    });
  }

  const Options& options_;
  const std::string native_key_ = wire::round_key(0);
  std::uint64_t keys_used_ = 0;
};

// Every connection sends a batch of `depth` requests, and the next one when all of them are answered.
class ClosedLoop : public Work {
 public:
  explicit ClosedLoop(const Options& options)
      : options_(options),
        value_(options.value_bytes, 'x'),
        requests_(requests_of(options.work)),
        batches_((options.operations + options.depth - 1) / options.depth) {}

  Sample repetition(Target& target) override {
    const bool first_visit = !target.group;
    Group& group = connected_group(options_, target);
    if (first_visit && options_.language == Language::c10d) store_value(target.port);
    const std::size_t operations = batches_ * options_.depth * group.size();
    return with_server_cpu(target, operations, [&] { return run(group, static_cast<double>(operations)); });
  }

 private:
  void store_value(std::uint16_t port) {
    std::string request;
    wire::encode(request, wire::Request::set, value_);
    Group setup(port, 1, Dial::in_turn, Language::c10d);
    setup.ask(0, request, 0);
    setup.discard_answer(0);
  }

  Sample run(Group& group, double operations) {
    std::vector<std::size_t> left(group.size(), batches_);
    std::vector<Clock::time_point> asked(group.size());
    std::vector<double> batches_us;
    batches_us.reserve(batches_ * group.size());
    const auto next = [&](std::size_t i) {
      if (left[i]-- == 0) return;
      // Each request becomes a frame of its own before it joins the batch, as in a client that knows only one
      // request at a time. This is part of the load: the bars for pipelined work were set with it.
      std::string batch;
      std::size_t answer_bytes = 0;
      for (std::size_t k = 0; k < options_.depth; ++k) {
        std::string frame;
        const wire::Request request = requests_[turn_++ % requests_.size()];
        answer_bytes += options_.language == Language::native
                            ? wire::native::add(frame, group.next_id())
                            : wire::encode(frame, request, value_);
        batch += frame;
      }
      asked[i] = Clock::now();
      group.ask(i, batch, answer_bytes);
    };
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < group.size(); ++i) next(i);
    group.collect([&](std::size_t i) {
      batches_us.push_back(microseconds(Clock::now() - asked[i]));
      next(i);
    });
    return {microseconds(Clock::now() - start) / operations, quantile(std::move(batches_us), 0.99), 0};
  }

  const Options& options_;
  std::string value_;
  std::vector<wire::Request> requests_;
  std::size_t batches_;
  std::size_t turn_ = 0;
};

// New connections each time. What their end costs the server must not fall into the next target's time.
class Connects : public Work {
 public:
  explicit Connects(const Options& options) : options_(options) {}

  Sample repetition(Target& target) override {
    const Dial dial = options_.work == "storm" ? Dial::all_at_once : Dial::in_turn;
    const Sample sample = with_server_cpu(target, options_.connections, [&]() -> Sample {
      const Clock::time_point start = Clock::now();
      target.group = std::make_unique<Group>(target.port, options_.connections, dial, options_.language);
      return {microseconds(Clock::now() - start), quantile(target.group->greeted_after_us(), 0.99), 0};
    });
    target.group.reset();
    CpuClock(target.pid).wait_until_idle();
    return sample;
  }

 private:
  const Options& options_;
};

std::unique_ptr<Work> make_work(const Options& options) {
  if (options.work == "connect" || options.work == "storm") return std::make_unique<Connects>(options);
  if (options.work == "barrier" || options.work == "legacy") return std::make_unique<Rounds>(options);
  return std::make_unique<ClosedLoop>(options);
}

int print_sizes(const Options& options) {
  const bool native = options.language == Language::native;
  const std::vector<wire::Request> requests = requests_of(options.work);
  const std::string value(options.value_bytes, 'x');
  std::string greeting, frame;
  if (native) {
    wire::native::greeting(greeting);
  } else {
    wire::greeting(greeting, 0);
  }
  std::size_t answer_bytes = native ? wire::native::barrier_over_bytes : 1;
  if (options.work == "barrier" && native) {
    wire::native::barrier(frame, 1, wire::round_key(0), 0, 1);
  } else if (options.work == "barrier") {
    wire::barrier(frame, wire::round_key(1), 1);
  } else if (requests.size() == 1) {
    answer_bytes = native ? wire::native::add(frame, 1) : wire::encode(frame, requests.front(), value);
  } else if (options.work == "connect" || options.work == "storm") {
    frame = "-";  // nothing follows the greeting
  } else {
    std::fprintf(stderr, "load_generator: requests of %s differ in size; there is no floor for it\n",
                 options.work.c_str());
    return 2;
  }
  const std::size_t welcome_bytes = native ? wire::native::welcome_bytes : wire::nonce_bytes;
  std::printf("%zu %zu %zu %zu\n", greeting.size(), welcome_bytes, frame.size(), answer_bytes);
  return 0;
}

std::vector<double> column(const Target& target, double Sample::* member) {
  std::vector<double> values;
  for (const Sample& sample : target.samples) values.push_back(sample.*member);
  return values;
}

double ratio(const Target& target, const Target& reference, double Sample::* member) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < target.samples.size(); ++i) {
    const double base = reference.samples[i].*member;
    if (base > 0) ratios.push_back(target.samples[i].*member / base);
  }
  return median(std::move(ratios));
}

void print_report(const Options& options, const std::vector<Target>& targets) {
  if (!options.json) {
    std::printf("work=%s n=%zu ops=%zu depth=%zu value=%zu repetitions=%zu\n", options.work.c_str(),
                options.connections, options.operations, options.depth, options.value_bytes,
                options.repetitions);
    std::printf("%-12s %12s %7s %12s %7s %14s %7s\n", "target", "median us", "ratio", "p99 us", "ratio",
                "server CPU us", "ratio");
  }
  for (const Target& target : targets) {
    const Target& reference = targets.front();
    const char* format = options.json
                             ? "{\"target\": \"%s\", \"median_us\": %.3f, \"ratio\": %.3f, \"p99_us\": %.3f, "
                               "\"p99_ratio\": %.3f, \"server_cpu_us\": %.3f, \"cpu_ratio\": %.3f}\n"
                             : "%-12s %12.2f %7.2f %12.2f %7.2f %14.3f %7.2f\n";
    std::printf(format, target.name.c_str(), median(column(target, &Sample::wall_us)),
                ratio(target, reference, &Sample::wall_us), median(column(target, &Sample::p99_us)),
                ratio(target, reference, &Sample::p99_us), median(column(target, &Sample::server_cpu_us)),
                ratio(target, reference, &Sample::server_cpu_us));
  }
}

[[noreturn]] void usage(const std::string& problem) {
  std::fprintf(
      stderr,
      "load_generator: %s\n"
      "usage: load_generator [--work barrier|legacy|set|add|get|check|mixed|connect|storm]\n"
      "                      [--language c10d|native] [--n N] [--ops K] [--depth D] [--value BYTES]\n"
      "                      [--repetitions R] [--json]\n"
      "                      NAME=PORT[:PID] ... | --sizes\n",
      problem.c_str());
  std::exit(2);
}

std::size_t positive(const std::string& name, const char* text) {
  char* end = nullptr;
  const unsigned long value = text != nullptr ? std::strtoul(text, &end, 10) : 0;
  if (value == 0 || *end != '\0') usage(name + " needs a number above 0");
  return value;
}

Target parse_target(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) usage("not an option and not NAME=PORT[:PID]: " + text);
  const std::size_t colon = text.find(':', equals);
  Target target;
  target.name = text.substr(0, equals);
  target.port = static_cast<std::uint16_t>(positive(text, text.substr(equals + 1, colon - equals - 1).c_str()));
  if (colon != std::string::npos) target.pid = static_cast<int>(positive(text, text.substr(colon + 1).c_str()));
  return target;
}

void parse(int argc, char** argv, Options& options, std::vector<Target>& targets) {
  const std::map<std::string, std::size_t*> numbers = {{"--n", &options.connections},
                                                       {"--ops", &options.operations},
                                                       {"--depth", &options.depth},
                                                       {"--value", &options.value_bytes},
                                                       {"--repetitions", &options.repetitions}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (const auto number = numbers.find(argument); number != numbers.end()) {
      *number->second = positive(argument, argv[++i]);
    } else if (argument == "--work") {
      if (++i >= argc) usage("--work needs a name");
      options.work = argv[i];
    } else if (argument == "--language") {
      const std::string language = ++i < argc ? argv[i] : "";
      if (language != "c10d" && language != "native") usage("--language is c10d or native");
      options.language = language == "native" ? Language::native : Language::c10d;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--sizes") {
      options.sizes = true;
    } else {
      targets.push_back(parse_target(argument));
    }
  }
  const std::vector<std::string> works = {"barrier", "legacy", "set",     "add",  "get",
                                          "check",   "mixed",  "connect", "storm"};
  if (std::find(works.begin(), works.end(), options.work) == works.end())
    usage("no such work: " + options.work);
  const std::vector<std::string> native_works = {"barrier", "add", "connect", "storm"};
  if (options.language == Language::native &&
      std::find(native_works.begin(), native_works.end(), options.work) == native_works.end())
    usage("not in the native language: " + options.work);
  if (targets.empty() && !options.sizes) usage("name at least one target");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::vector<Target> targets;
  parse(argc, argv, options, targets);
  if (options.sizes) return print_sizes(options);

  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  const std::unique_ptr<Work> work = make_work(options);
  for (std::size_t repetition = 0; repetition <= options.repetitions; ++repetition) {
    for (std::size_t turn = 0; turn < targets.size(); ++turn) {
      Target& target = targets[(turn + repetition) % targets.size()];
      const Sample sample = work->repetition(target);
      if (repetition > 0) target.samples.push_back(sample);  // the first is the warm-up
    }
  }
  print_report(options, targets);
}
