// Types of a program that travel between workers of RPC groups.
#ifndef HPP_RPC_VALUES_HPP
#define HPP_RPC_VALUES_HPP

#include <rendezvous.hpp>

#include <optional>
#include <string>

namespace {

struct point {
  int x = 0;
  int y = 0;
};

// A type with a codec of its own.
struct named {
  std::string name;
  std::optional<double> weight;
};

}  // namespace

template <>
struct rdzv::codec<point> : rdzv::codec_of_memory<point> {};

template <>
struct rdzv::codec<named> {
  static constexpr std::string_view name = "named";
  static void write(writer& out, const named& value) {
    codec<std::string>::write(out, value.name);
    codec<std::optional<double>>::write(out, value.weight);
  }
  static bool read(reader& in, named& value) {
    return codec<std::string>::read(in, value.name) && codec<std::optional<double>>::read(in, value.weight);
  }
};

#endif  // HPP_RPC_VALUES_HPP
