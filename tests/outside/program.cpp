// A program outside the repository: it compiles with and without exceptions.
#include <rendezvous.hpp>

#include <cstdio>

int main() {
  auto store = rdzv::store::in_process();
  if (!store || !store->set("key", "a value")) return 1;
  auto value = store->get("key");
  if (!value || *value != "a value") return 1;
  std::printf("C++ with librendezvous %s\n", rdzv_version());
}
