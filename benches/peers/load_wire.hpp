// The requests that the loads need, in the c10d language and, in namespace `native`, in the native one: encoding only,
// little-endian, as the protocols have it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace wire {

enum class Opcode : std::uint8_t {
  validate = 0,
  set = 1,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  ping = 13,
  barrier = 18
};

constexpr std::uint32_t magic = 0x3C85F7CE;
constexpr std::size_t nonce_bytes = 4;

template <class Integer>
void put(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void put_bytes(std::string& out, std::string_view bytes) {
  put<std::uint64_t>(out, bytes.size());
  out.append(bytes);
}

inline void open_frame(std::string& out, Opcode opcode, std::string_view key) {
  put(out, opcode);
  put_bytes(out, key);
}

inline void ping(std::string& out, std::uint32_t nonce) {
  put(out, Opcode::ping);
  put(out, nonce);
}

inline void greeting(std::string& out, std::uint32_t nonce) {
  put(out, Opcode::validate);
  put(out, magic);
  ping(out, nonce);
}

inline void set(std::string& out, std::string_view key, std::string_view value) {
  open_frame(out, Opcode::set, key);
  put_bytes(out, value);
}

inline void add(std::string& out, std::string_view key, std::int64_t delta) {
  open_frame(out, Opcode::add, key);
  put(out, delta);
}

inline void barrier(std::string& out, std::string_view key, std::int64_t world_size) {
  open_frame(out, Opcode::barrier, key);
  put(out, world_size);
}

inline void one_key_list(std::string& out, Opcode opcode, std::string_view key) {
  put(out, opcode);
  put<std::uint64_t>(out, 1);
  put_bytes(out, key);
}

inline void wait(std::string& out, std::string_view key) { one_key_list(out, Opcode::wait, key); }

// Always 26 bytes, and new for each number and process.
inline std::string round_key(std::uint64_t number) {
  char key[32];
  std::snprintf(key, sizeof key, "/peers/%08x/%010llu", static_cast<unsigned>(getpid()),
                static_cast<unsigned long long>(number));
  return key;
}

enum class Request { set, add, get, check };

// Appends one request of a closed loop; returns how many bytes will answer it.
inline std::size_t encode(std::string& out, Request request, std::string_view value) {
  switch (request) {
    case Request::set:
      set(out, "/p/value", value);
      ping(out, 0);
      return nonce_bytes;
    case Request::add:
      add(out, "/p/count", 1);
      return 8;
    case Request::get:
      open_frame(out, Opcode::get, "/p/value");
      return 8 + value.size();
    case Request::check:
      one_key_list(out, Opcode::check, "/p/value");
      return 1;
  }
  return 0;
}

// The native protocol (docs/protocol/native.md): a header of 24 bytes before each body; ids that grow.
namespace native {

enum class Kind : std::uint16_t { hello = 1, add = 0x13, barrier = 0x30 };

constexpr std::size_t header_bytes = 24;
constexpr std::size_t welcome_bytes = header_bytes + 99;
constexpr std::size_t barrier_over_bytes = header_bytes + 9;
constexpr std::uint64_t forever_ms = 86'400'000;

inline void frame(std::string& out, Kind kind, std::uint64_t id, std::string_view body) {
  put(out, static_cast<std::uint32_t>(body.size()));
  put(out, kind);
  put<std::uint16_t>(out, 0);
  put(out, id);
  put<std::uint64_t>(out, 0);  // without a grace period, acknowledgements are not counted
  out.append(body);
}

// A new session without a grace, that may be silent for long.
inline void greeting(std::string& out) {
  std::string body;
  put<std::uint16_t>(body, 1);
  put<std::uint16_t>(body, 1);
  body.append(8 + 8 + 16, '\0');
  put<std::uint32_t>(body, 0);
  put<std::uint32_t>(body, 3'600'000);
  put<std::uint32_t>(body, 10);
  put_bytes(body, "peers");
  put_bytes(body, "");
  out.append("RDZV");
  frame(out, Kind::hello, 0, body);
}

// One arrival at the open generation of a barrier; each connection has a name of its own.
inline void barrier(std::string& out, std::uint64_t id, std::string_view key, std::size_t connection,
                    std::uint32_t world_size) {
  char name[24];
  std::snprintf(name, sizeof name, "%06zu", connection);
  std::string body;
  put_bytes(body, key);
  put<std::uint64_t>(body, 0);
  put_bytes(body, name);
  put(body, forever_ms);
  put<std::uint8_t>(body, 0);
  put(body, world_size);
  frame(out, Kind::barrier, id, body);
}

// Returns how many bytes will answer it.
inline std::size_t add(std::string& out, std::uint64_t id) {
  std::string body;
  put_bytes(body, "/p/count");
  put<std::int64_t>(body, 1);
  frame(out, Kind::add, id, body);
  return header_bytes + 16;
}

}  // namespace native

}  // namespace wire
