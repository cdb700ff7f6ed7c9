// A second unit with the same header: whatever it does not declare `inline` would now be there twice.
#include <rendezvous.hpp>
#include <rendezvous/custom_rendezvous.hpp>
#include <rendezvous/custom_rpc.hpp>
#include <rendezvous/custom_store.hpp>
#include <rendezvous/custom_workers.hpp>

#include <string>

std::string get_elsewhere(rdzv::store& store, const std::string& key) {
  auto value = store.get(key);
  return value ? *value : value.error().message();
}
