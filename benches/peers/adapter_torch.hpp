// PyTorch's C++ TCPStore, client and server, for group_bench.cpp. Needs C++20 and the headers of the wheel.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

inline c10::intrusive_ptr<c10d::TCPStore> open_torch_store(const std::string& host, std::uint16_t port,
                                                           bool serves) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = serves;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

class Server {
 public:
  Server() : store_(open_torch_store("127.0.0.1", 0, true)) {}
  std::uint16_t port() const { return store_->getPort(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

class Client {
 public:
  static constexpr const char* library = "torch";

  Client(const std::string& host, std::uint16_t port) : store_(open_torch_store(host, port, false)) {}

  void barrier(const std::string& key, int world_size) {
    store_->barrier(key, world_size, std::chrono::seconds(60));
  }
  std::int64_t add(const std::string& key, std::int64_t delta) { return store_->add(key, delta); }
  void set(const std::string& key, const std::string& value) {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  void wait(const std::string& key) { store_->wait({key}); }
  std::size_t get(const std::string& key) { return store_->get(key).size(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};
