// One program of two units, with and without exceptions: each must use its own instantiations of the header. This file is
// both of them.
#include <rendezvous.hpp>

#include <cstdio>

void log_without_exceptions();

namespace {

// Logs a server's start through a sink, which throws where it can.
bool log_something(int& lines) {
  rdzv::context context;
  auto outcome = context.set_log_sink(rdzv::log_level::info, [&lines](rdzv::log_level, std::string_view, std::string_view) {
    ++lines;
#if defined(__cpp_exceptions)
    throw lines;
#endif
  });
  if (!outcome) return false;
  auto server = rdzv::server::start("127.0.0.1", 0, &context);
  return server.has_value() && server->stop().has_value();
}

}  // namespace

#if defined(__cpp_exceptions)
int main() {
  log_without_exceptions();
  int lines = 0;
  // The sink is destroyed, after its last line, when the context goes: then `lines` is whole.
  if (!log_something(lines) || lines == 0) {
    std::fprintf(stderr, "mixed.cpp: %d lines\n", lines);
    return 1;
  }
}
#else
void log_without_exceptions() {
  int lines = 0;
  if (!log_something(lines)) std::fprintf(stderr, "mixed.cpp: no log\n");
}
#endif
