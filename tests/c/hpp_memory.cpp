// Callbacks of the C++ headers while there is no memory: nothing may be thrown through the library.
#include "hpp_check.hpp"

#include <rendezvous/plugin.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions)

// Called by hpp_test.cpp.
void callbacks_without_memory();

namespace {

// Whether this thread gets no memory, and whether those get none that are not this test's.
thread_local bool is_out_here = false, is_test = false;
std::atomic<bool> is_out_elsewhere{false};

}  // namespace

void* operator new(std::size_t size) {
  const bool is_out = is_out_here || (is_out_elsewhere && !is_test);
  void* const made = is_out ? nullptr : std::malloc(size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr const char* complaint = "there is no memory left, not even for a copy of this message";

struct out_of_memory : std::exception {
  const char* what() const noexcept override { return complaint; }
};

class forgetful_worker : public rdzv::custom_rpc_worker {
 public:
  rdzv::status call(const rdzv::rpc_outgoing_call&, rdzv::rpc_responder&) override {
    is_out_here = true;
    throw out_of_memory();
  }
  rdzv::status list_workers(rdzv::reply&) override { return rdzv::status::ok; }
  rdzv::status shutdown(rdzv::rpc_shutdown, rdzv::reply&) override { return rdzv::status::ok; }
};

class forgetful_backend : public rdzv::custom_rpc_backend {
 public:
  rdzv::status new_worker(rdzv::rpc_worker_request, rdzv::reply& into) override {
    into.set_worker(std::make_unique<forgetful_worker>());
    return rdzv::status::ok;
  }
};

void calls_of_a_backend() {
  rdzv::context context;
  CHECK(rdzv::register_rpc_backend(context, "forgetful", std::make_unique<forgetful_backend>()));
  const auto store = VALUE(rdzv::store::in_process());
  rdzv::rpc_options options;
  options.backend = "forgetful";
  const auto handlers = VALUE(rdzv::rpc_handlers::create());
  const auto worker = VALUE(rdzv::rpc::create("one", 1, 2, over(store, options), handlers, &context));
  const auto failed = worker.call("two", "f");
  is_out_here = false;
  CHECK(failed.error().code() == rdzv::status::io);
  CHECK(failed.error().message() == std::string("f at two: ") + complaint);
  const auto unsent = worker.notify("two", "f");
  is_out_here = false;
  CHECK(unsent.error().code() == rdzv::status::io);
}

void names_of_ranks() {
  auto store = VALUE(rdzv::store::in_process());
  rdzv::tracing traced{0, std::chrono::milliseconds(1)};
  traced.name_of = [](std::int64_t) -> std::string {
    is_out_here = true;
    throw out_of_memory();
  };
  const auto missed = rdzv::elastic_barrier(store, "gate", 2, std::chrono::milliseconds(1), traced);
  is_out_here = false;
  CHECK(missed.error().nodes() == std::vector<std::string>{"(its name threw)"});
}

// Workers that fail to start. Their thread has no memory to call `start`, except under valgrind, which allocates by
// itself.
class unstarted : public rdzv::custom_workers {
  rdzv::status start(const rdzv::worker_start&) override { return rdzv::status::io; }
  void signal(int) override {}
  void kill() override {}
};

void workers_of_an_agent() {
  rdzv::agent_options options;
  options.local_addr = "127.0.0.1";
  options.max_restarts = 0;
  const auto handler = VALUE(rdzv::rendezvous_handler::create({"rdzv", "localhost:0", "run"}));
  auto workers = std::make_unique<unstarted>();
  const auto sender = workers->sender();
  CHECK(sender->lost("too early").error().code() == rdzv::status::invalid_argument);
  is_test = is_out_elsewhere = true;
  auto agent = VALUE(rdzv::custom_agent(options, handler, std::move(workers)));
  const auto result = VALUE(agent.run());
  is_out_elsewhere = false;
  CHECK(result.outcome == rdzv::agent_outcome::failed);
}

}  // namespace

void callbacks_without_memory() {
  names_of_ranks();
  calls_of_a_backend();
  workers_of_an_agent();
}

#endif
