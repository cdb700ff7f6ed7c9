// A second unit with the same header: whatever it does not declare `inline` would now be there twice.
#include <rendezvous.hpp>
#include <rendezvous/plugin.hpp>

#include <string>

std::string get_elsewhere(rdzv::store& store, const std::string& key) {
  auto value = store.get(key);
  return value ? *value : value.error().message();
}
