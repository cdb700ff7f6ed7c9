// rendezvous/rpc_codec.hpp: how values travel in the requests and answers of RPC groups, for C++17 and later. rpc.hpp
// includes it.
#ifndef RENDEZVOUS_RPC_CODEC_HPP
#define RENDEZVOUS_RPC_CODEC_HPP

#include "base.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// Takes what a codec writes.
class writer {
 public:
  void bytes(const void* data, std::size_t size) {
    if (size > 0) out_.append(static_cast<const char*>(data), size);
  }
  void reserve(std::size_t size) { out_.reserve(out_.size() + size); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Gives what a codec reads. A read beyond the end returns false.
class reader {
 public:
  /// Items of containers may take so much memory at most, all together: an item may be far larger than what it travels
  /// as, such as an optional array that is not there.
  static constexpr std::uint64_t room_per_byte = 64, room_at_least = std::uint64_t{64} << 20;

  explicit reader(std::string_view bytes) noexcept
      : left_(bytes), room_(room_at_least + room_per_byte * bytes.size()) {}
  bool bytes(void* data, std::size_t size) {
    if (size > left_.size()) return false;
    if (size > 0) std::memcpy(data, left_.data(), size);
    left_.remove_prefix(size);
    return true;
  }
  /// The next bytes where they lie.
  bool view(std::string_view& data, std::size_t size) {
    if (size > left_.size()) return false;
    data = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }
  std::size_t left() const noexcept { return left_.size(); }
  /// Whether items of this size in memory may be made still, which it counts.
  bool make_room(std::size_t size) noexcept {
    if (size > room_) return false;
    room_ -= size;
    return true;
  }

 private:
  std::string_view left_;
  std::uint64_t room_;
};

namespace detail {

template <class>
inline constexpr bool never = false;

}  // namespace detail

/// How values of a type travel: specialise it for types of yours, with
///   static constexpr std::string_view name = "T";  // two types of one name travel alike
///   static void write(writer&, const T&);
///   static bool read(reader&, T&);                 // false: the bytes are none
/// Numbers are little-endian and as wide as here: where hosts differ, take those of fixed width. Callers and handlers
/// compare names, so a call whose types are not those of its handler fails.
template <class T, class Enable = void>
struct codec {
  static_assert(detail::never<T>,
                "this type has no codec. Add one: template <> struct rdzv::codec<T> { "
                "static constexpr std::string_view name = \"T\"; "
                "static void write(rdzv::writer&, const T&); "
                "static bool read(rdzv::reader&, T&); }; "
                "or, for a trivially copyable type: template <> struct rdzv::codec<T> : rdzv::codec_of_memory<T> {};");
  static constexpr std::string_view name = "";
  static void write(writer&, const T&);
  static bool read(reader&, T&);
};

namespace detail {

template <class T, class = void>
struct has_wire_name : std::false_type {};
template <class T>
struct has_wire_name<T, std::void_t<decltype(codec<T>::name)>> : std::true_type {};

/// The name of a type on the wire.
template <class T>
constexpr std::string_view wire_name() {
  static_assert(has_wire_name<T>::value,
                "give rdzv::codec<T> a `static constexpr std::string_view name`: callers and handlers compare it");
  if constexpr (has_wire_name<T>::value) {
    return codec<T>::name;
  } else {
    return {};
  }
}

/// What stands around a list of names.
struct no_brackets {
  static constexpr std::string_view open = "", close = "";
};
struct round_brackets {
  static constexpr std::string_view open = "(", close = ")";
};
struct vector_brackets {
  static constexpr std::string_view open = "vec<", close = ">";
};
struct optional_brackets {
  static constexpr std::string_view open = "opt<", close = ">";
};
struct map_brackets {
  static constexpr std::string_view open = "map<", close = ">";
};

template <class Brackets, class... Types>
constexpr auto make_name_list() {
  constexpr std::size_t commas = sizeof...(Types) > 0 ? sizeof...(Types) - 1 : 0;
  constexpr std::size_t brackets = Brackets::open.size() + Brackets::close.size();
  // One more, since an array of none has no address.
  std::array<char, (wire_name<Types>().size() + ... + (brackets + commas + 1))> text{};
  std::size_t at = 0;
  const auto put = [&text, &at](std::string_view part) {
    for (const char letter : part) text[at++] = letter;
  };
  put(Brackets::open);
  [[maybe_unused]] std::size_t left = commas;
  ((put(wire_name<Types>()), put(left > 0 ? "," : ""), left -= left > 0 ? 1 : 0), ...);
  put(Brackets::close);
  return text;
}

/// The names of some types, in brackets.
template <class Brackets, class... Types>
struct name_list {
  static constexpr auto text = make_name_list<Brackets, Types...>();
  static constexpr std::string_view value{text.data(), text.size() - 1};
};

/// The types of the values of a payload, as they stand at its front.
template <class... Types>
struct types_of {
  static constexpr std::string_view value = name_list<no_brackets, Types...>::value;
  static_assert(value.size() <= 0xffff, "the names of these types have more than 65535 bytes in all");
};

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
inline constexpr bool is_little_endian = false;
#else
inline constexpr bool is_little_endian = true;
#endif

template <class T>
void turn_round(T& value) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  for (std::size_t i = 0; i < sizeof(T) / 2; ++i) std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
  std::memcpy(&value, bytes, sizeof(T));
}

inline void write_count(writer& out, std::size_t count);
inline bool read_count(reader& in, std::size_t& count);

template <class T>
inline constexpr bool is_plain_number =
    std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, long double>;

/// Numbers of one kind and width have one name: `long` and `std::int64_t` travel alike.
template <class T>
constexpr std::string_view number_name() {
  constexpr std::size_t step = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : sizeof(T) == 8 ? 3 : 4;
  constexpr std::string_view signed_names[] = {"i8", "i16", "i32", "i64", "i128"};
  constexpr std::string_view unsigned_names[] = {"u8", "u16", "u32", "u64", "u128"};
  constexpr std::string_view float_names[] = {"f8", "f16", "f32", "f64", "f128"};
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, char>) {
    // Signed here and unsigned there.
    return "char";
  } else if constexpr (std::is_floating_point_v<T>) {
    return float_names[step];
  } else {
    return std::is_signed_v<T> ? signed_names[step] : unsigned_names[step];
  }
}

/// Whether an enum has an underlying type that it names, so that each number of that type is a value of the enum.
template <class T, class = void>
struct has_fixed_type : std::false_type {};
template <class T>
struct has_fixed_type<T, std::void_t<decltype(T{0})>> : std::true_type {};

/// Whether values of a type point into the bytes that they were read from.
template <class T>
struct is_view : std::false_type {};
template <>
struct is_view<std::string_view> : std::true_type {};
template <template <class...> class Of, class... Items>
struct is_view<Of<Items...>> : std::disjunction<is_view<Items>...> {};
template <class T, std::size_t Size>
struct is_view<std::array<T, Size>> : is_view<T> {};

/// A text as it travels; everything else is itself.
template <class T>
using sent = std::conditional_t<std::is_convertible_v<const T&, std::string_view>, std::string, std::decay_t<T>>;

}  // namespace detail

template <class T>
struct codec<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  static_assert(!std::is_same_v<std::remove_cv_t<T>, long double>,
                "a long double is padded, and another one on other hosts: send a double");
  static constexpr std::string_view name = detail::number_name<std::remove_cv_t<T>>();
  static void write(writer& out, T value) {
    if constexpr (!detail::is_little_endian) detail::turn_round(value);
    out.bytes(&value, sizeof value);
  }
  static bool read(reader& in, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      unsigned char byte = 0;
      if (!in.bytes(&byte, 1) || byte > 1) return false;
      value = byte == 1;
      return true;
    } else {
      if (!in.bytes(&value, sizeof value)) return false;
      if constexpr (!detail::is_little_endian) detail::turn_round(value);
      return true;
    }
  }
};

namespace detail {

inline void write_count(writer& out, std::size_t count) {
  codec<std::uint64_t>::write(out, static_cast<std::uint64_t>(count));
}

/// As many items as there are bytes at most. Their memory is bounded by `reader::make_room`.
inline bool read_count(reader& in, std::size_t& count) {
  std::uint64_t read = 0;
  if (!codec<std::uint64_t>::read(in, read) || read > in.left()) return false;
  count = static_cast<std::size_t>(read);
  return true;
}

}  // namespace detail

/// An enum travels as its underlying type.
template <class T>
struct codec<T, std::enable_if_t<std::is_enum_v<T>>> {
  static_assert(detail::has_fixed_type<T>::value,
                "an enum travels as its underlying type: name one, as in `enum colour : int`, or specialise rdzv::codec");
  using number = std::underlying_type_t<T>;
  static constexpr std::string_view name = codec<number>::name;
  static void write(writer& out, T value) { codec<number>::write(out, static_cast<number>(value)); }
  static bool read(reader& in, T& value) {
    number read{};
    if (!codec<number>::read(in, read)) return false;
    value = static_cast<T>(read);
    return true;
  }
};

namespace detail {

template <std::size_t Number>
constexpr auto make_digits() {
  std::size_t count = 1;
  for (std::size_t rest = Number; rest > 9; rest /= 10) ++count;
  std::array<char, 24> text{};
  text[0] = ',';
  std::size_t rest = Number;
  for (std::size_t at = count; at > 0; --at, rest /= 10) text[at] = static_cast<char>('0' + rest % 10);
  text[count + 1] = '>';
  return std::pair<std::array<char, 24>, std::size_t>(text, count + 2);
}
template <std::size_t Number>
inline constexpr auto digits = make_digits<Number>();
template <std::size_t Size>
struct array_brackets {
  static constexpr std::string_view open = "array<", close{digits<Size>.first.data(), digits<Size>.second};
};
template <std::size_t Size>
struct memory_brackets {
  static constexpr std::string_view open = "memory<";
  static constexpr std::string_view close{digits<Size>.first.data() + 1, digits<Size>.second - 1};
};

}  // namespace detail

/// For a trivially copyable type of yours that is to travel as it lies in memory, between hosts that agree on that. What lies
/// between its members travels, too, with whatever was in memory there: give it members, or write a codec.
/// `template <> struct rdzv::codec<point> : rdzv::codec_of_memory<point> {};`
/// Its name tells its size alone, unless the specialisation has a `name` of its own.
template <class T>
struct codec_of_memory {
  static_assert(std::is_trivially_copyable_v<T>, "such a type cannot be copied as bytes");
  static constexpr std::string_view name = detail::name_list<detail::memory_brackets<sizeof(T)>>::value;
  static void write(writer& out, const T& value) { out.bytes(&value, sizeof value); }
  static bool read(reader& in, T& value) { return in.bytes(&value, sizeof value); }
};

template <>
struct codec<std::string> {
  static constexpr std::string_view name = "str";
  static void write(writer& out, std::string_view text) {
    detail::write_count(out, text.size());
    out.bytes(text.data(), text.size());
  }
  static bool read(reader& in, std::string& text) {
    std::size_t size = 0;
    std::string_view bytes;
    if (!detail::read_count(in, size) || !in.view(bytes, size)) return false;
    text.assign(bytes);
    return true;
  }
};

/// As a parameter of a handler: the text lies in the request, until the handler returns.
template <>
struct codec<std::string_view> {
  static constexpr std::string_view name = codec<std::string>::name;
  static void write(writer& out, std::string_view text) { codec<std::string>::write(out, text); }
  static bool read(reader& in, std::string_view& text) {
    std::size_t size = 0;
    return detail::read_count(in, size) && in.view(text, size);
  }
};

template <class T>
struct codec<std::vector<T>> {
  static constexpr std::string_view name = detail::name_list<detail::vector_brackets, T>::value;
  static void write(writer& out, const std::vector<T>& items) {
    detail::write_count(out, items.size());
    if constexpr (detail::is_plain_number<T> && detail::is_little_endian) {
      out.bytes(items.data(), items.size() * sizeof(T));
    } else {
      for (const auto& item : items) codec<T>::write(out, static_cast<const T&>(item));
    }
  }
  static bool read(reader& in, std::vector<T>& items) {
    std::size_t count = 0;
    if (!detail::read_count(in, count)) return false;
    items.clear();
    if constexpr (detail::is_plain_number<T> && detail::is_little_endian) {
      if (count > in.left() / sizeof(T)) return false;
      items.resize(count);
      return in.bytes(items.data(), count * sizeof(T));
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        T item{};
        if (!in.make_room(sizeof(T)) || !codec<T>::read(in, item)) return false;
        items.push_back(std::move(item));
      }
      return true;
    }
  }
};

template <class T, std::size_t Size>
struct codec<std::array<T, Size>> {
  static constexpr std::string_view name = detail::name_list<detail::array_brackets<Size>, T>::value;
  static void write(writer& out, const std::array<T, Size>& items) {
    for (const T& item : items) codec<T>::write(out, item);
  }
  static bool read(reader& in, std::array<T, Size>& items) {
    for (T& item : items)
      if (!codec<T>::read(in, item)) return false;
    return true;
  }
};

template <class First, class Second>
struct codec<std::pair<First, Second>> {
  static constexpr std::string_view name = detail::name_list<detail::round_brackets, First, Second>::value;
  static void write(writer& out, const std::pair<First, Second>& pair) {
    codec<First>::write(out, pair.first);
    codec<Second>::write(out, pair.second);
  }
  static bool read(reader& in, std::pair<First, Second>& pair) {
    return codec<First>::read(in, pair.first) && codec<Second>::read(in, pair.second);
  }
};

template <class... Items>
struct codec<std::tuple<Items...>> {
  static constexpr std::string_view name = detail::name_list<detail::round_brackets, Items...>::value;
  static void write(writer& out, const std::tuple<Items...>& tuple) {
    std::apply([&](const auto&... items) { (codec<std::decay_t<decltype(items)>>::write(out, items), ...); }, tuple);
    static_cast<void>(out);
  }
  static bool read(reader& in, std::tuple<Items...>& tuple) {
    static_cast<void>(in);
    return std::apply([&](auto&... items) { return (codec<std::decay_t<decltype(items)>>::read(in, items) && ...); },
                      tuple);
  }
};

template <class T>
struct codec<std::optional<T>> {
  static constexpr std::string_view name = detail::name_list<detail::optional_brackets, T>::value;
  static void write(writer& out, const std::optional<T>& value) {
    codec<bool>::write(out, value.has_value());
    if (value) codec<T>::write(out, *value);
  }
  static bool read(reader& in, std::optional<T>& value) {
    bool is_there = false;
    if (!codec<bool>::read(in, is_there)) return false;
    value.reset();
    return !is_there || codec<T>::read(in, value.emplace());
  }
};

namespace detail {

template <class Map>
struct codec_of_map {
  using key = typename Map::key_type;
  using mapped = typename Map::mapped_type;
  static constexpr std::string_view name = name_list<map_brackets, key, mapped>::value;
  static void write(writer& out, const Map& items) {
    write_count(out, items.size());
    for (const auto& item : items) {
      codec<key>::write(out, item.first);
      codec<mapped>::write(out, item.second);
    }
  }
  /// A key that comes twice makes the bytes none.
  static bool read(reader& in, Map& items) {
    // What a node has besides its item.
    constexpr std::size_t node_size = 4 * sizeof(void*);
    std::size_t count = 0;
    if (!read_count(in, count)) return false;
    items.clear();
    for (std::size_t i = 0; i < count; ++i) {
      key one{};
      mapped other{};
      if (!in.make_room(sizeof(typename Map::value_type) + node_size)) return false;
      if (!codec<key>::read(in, one) || !codec<mapped>::read(in, other)) return false;
      if (!items.emplace(std::move(one), std::move(other)).second) return false;
    }
    return true;
  }
};

}  // namespace detail

template <class Key, class Value, class... Rest>
struct codec<std::map<Key, Value, Rest...>> : detail::codec_of_map<std::map<Key, Value, Rest...>> {};
template <class Key, class Value, class... Rest>
struct codec<std::unordered_map<Key, Value, Rest...>>
    : detail::codec_of_map<std::unordered_map<Key, Value, Rest...>> {};

namespace detail {

/// A typed payload: the names of its types, with their length in 16 bits before them, and then the values. That of no
/// values is empty.
template <class... Values>
std::string typed_payload(const Values&... values) {
  writer out;
  if constexpr (sizeof...(Values) > 0) {
    constexpr std::string_view types = types_of<sent<Values>...>::value;
    codec<std::uint16_t>::write(out, static_cast<std::uint16_t>(types.size()));
    out.bytes(types.data(), types.size());
    (codec<sent<Values>>::write(out, values), ...);
  }
  return out.take();
}

/// Reads the types at the front of a payload; false: it is none of typed values.
inline bool read_types(reader& in, std::string_view& types) {
  types = {};
  std::uint16_t size = 0;
  if (in.left() == 0) return true;
  if (!codec<std::uint16_t>::read(in, size) || !in.view(types, size)) return false;
  for (const char letter : types)
    if (letter < ' ' || letter > '~') return false;
  return true;
}

/// The types of a payload, for an error.
inline std::string described_types(bool is_typed, std::string_view types) {
  return is_typed ? "(" + std::string(types) + ")" : std::string("bytes without types");
}

}  // namespace detail

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_RPC_CODEC_HPP
