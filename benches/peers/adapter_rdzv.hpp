// librendezvous through its C++ header, client and embedded server, for group_bench.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "rendezvous.hpp"

class Server {
 public:
  Server() : server_(rdzv::server::start("127.0.0.1", 0).or_throw()) {}
  std::uint16_t port() const { return server_.port(); }

 private:
  rdzv::server server_;
};

class Client {
 public:
  static constexpr const char* library = "rdzv";

  Client(const std::string& host, std::uint16_t port) : store_(rdzv::store::connect(host, port).or_throw()) {}

  void barrier(const std::string& key, int world_size) {
    store_.barrier(key, world_size, std::chrono::seconds(60)).or_throw();
  }
  std::int64_t add(const std::string& key, std::int64_t delta) { return store_.add(key, delta).or_throw(); }
  void set(const std::string& key, const std::string& value) { store_.set(key, value).or_throw(); }
  void wait(const std::string& key) { store_.wait({key}).or_throw(); }
  std::size_t get(const std::string& key) { return store_.get(key).or_throw().size(); }

 private:
  rdzv::store store_;
};
