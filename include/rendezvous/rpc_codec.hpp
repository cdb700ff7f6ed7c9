// rendezvous/rpc_codec.hpp: how values travel in the requests and responses of RPC groups, for C++17 and later. rpc.hpp
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
    std::string_view part;
    if (!view(part, size)) return false;
    if (size > 0) std::memcpy(data, part.data(), size);
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

/// The name of a type on the wire.
template <class T, class = void>
struct wire_name {
  static_assert(never<T>,
                "give rdzv::codec<T> a `static constexpr std::string_view name`: callers and handlers compare it");
  static constexpr std::string_view value = "";
};
template <class T>
struct wire_name<T, std::void_t<decltype(codec<T>::name)>> {
  static constexpr std::string_view value = codec<T>::name;
};

/// Texts one after the other.
template <const std::string_view&... Parts>
struct joined {
  static constexpr auto make() {
    // One more, since an array of none has no address.
    std::array<char, (Parts.size() + ... + 1)> all{};
    std::size_t at = 0;
    for (const std::string_view part : {std::string_view(), Parts...})
      for (const char letter : part) all[at++] = letter;
    return all;
  }
  static constexpr auto text = make();
  static constexpr std::string_view value{text.data(), text.size() - 1};
};

inline constexpr std::string_view of_vector = "vec<", of_map = "map<", of_optional = "opt<", of_array = "array<";
inline constexpr std::string_view with_sign = "i", without_sign = "u", floating = "f";
inline constexpr std::string_view of_memory = "memory<", end = ">", round = "(", round_end = ")", comma = ",";

/// The names of types, with commas between them: as they stand at the front of a payload.
template <class... Types>
struct types_of {
  static constexpr std::string_view value = "";
};
template <class Only>
struct types_of<Only> : wire_name<Only> {};
template <class First, class Second, class... Others>
struct types_of<First, Second, Others...> {
  static constexpr std::string_view value =
      joined<types_of<First>::value, comma, types_of<Second, Others...>::value>::value;
};

/// The name of a type that consists of others, such as `vec<i32>`.
template <const std::string_view& Open, const std::string_view& Close, class... Types>
inline constexpr std::string_view composed = joined<Open, types_of<Types...>::value, Close>::value;

/// A number in decimal digits.
template <std::size_t Number, bool IsDigit = (Number < 10)>
struct decimal {
  static constexpr std::string_view value = joined<decimal<Number / 10>::value, decimal<Number % 10>::value>::value;
};
template <std::size_t Number>
struct decimal<Number, true> {
  static constexpr std::string_view value = std::string_view("0123456789").substr(Number, 1);
};

inline constexpr bool is_little_endian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

/// Reverses the bytes of a number where they are not in the order in which they travel.
template <class T>
void reorder(T& value) {
  if constexpr (is_little_endian) return;
  auto* const bytes = reinterpret_cast<unsigned char*>(&value);
  for (std::size_t i = 0; i < sizeof(T) / 2; ++i) std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
}

/// Numbers of one kind and width have one name: `long` and `std::int64_t` travel alike.
template <class T>
constexpr std::string_view number_name() {
  using bits = decimal<8 * sizeof(T)>;
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_same_v<T, char>) {
    // Signed here and unsigned there.
    return "char";
  } else if constexpr (std::is_floating_point_v<T>) {
    return joined<floating, bits::value>::value;
  } else {
    return joined<std::is_signed_v<T> ? with_sign : without_sign, bits::value>::value;
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
    detail::reorder(value);
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
      detail::reorder(value);
      return true;
    }
  }
};

/// An enum travels as its underlying type.
template <class T>
struct codec<T, std::enable_if_t<std::is_enum_v<T>>> {
  static_assert(detail::has_fixed_type<T>::value,
                "an enum travels as its underlying type: name one, as in `enum colour : int`, "
                "or specialise rdzv::codec");
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

/// For a trivially copyable type of yours that is to travel as it lies in memory, between hosts that agree on that.
/// What lies between its members travels, too, with whatever was in memory there: give it members, or write a codec.
/// `template <> struct rdzv::codec<point> : rdzv::codec_of_memory<point> {};`
/// Its name has its size alone, unless the specialisation has a `name` of its own.
template <class T>
struct codec_of_memory {
  static_assert(std::is_trivially_copyable_v<T>, "such a type cannot be copied as bytes");
  static constexpr std::string_view name =
      detail::joined<detail::of_memory, detail::decimal<sizeof(T)>::value, detail::end>::value;
  static void write(writer& out, const T& value) { out.bytes(&value, sizeof value); }
  static bool read(reader& in, T& value) { return in.bytes(&value, sizeof value); }
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

/// Items as they are: of an array, a pair or a tuple. Those of a map have a constant key.
template <class Items>
struct codec_of_items {
  template <class Given = Items>
  static void write([[maybe_unused]] writer& out, const Given& all) {
    std::apply([&](const auto&... items) { (codec<std::decay_t<decltype(items)>>::write(out, items), ...); }, all);
  }
  static bool read([[maybe_unused]] reader& in, Items& all) {
    return std::apply([&](auto&... items) { return (codec<std::decay_t<decltype(items)>>::read(in, items) && ...); },
                      all);
  }
};

/// A number of items, and then these. `Overhead` is what each needs in memory besides itself.
template <class Items, class Item, std::size_t Overhead = 0>
struct codec_of_container {
  static constexpr bool is_memory = std::is_same_v<Items, std::vector<Item>> && std::is_arithmetic_v<Item> &&
                                    !std::is_same_v<Item, bool> && is_little_endian;

  static void write(writer& out, const Items& items) {
    write_count(out, items.size());
    if constexpr (is_memory) {
      out.bytes(items.data(), items.size() * sizeof(Item));
    } else {
      for (const auto& item : items) codec<Item>::write(out, item);
    }
  }
  /// A key that comes twice makes the bytes none.
  static bool read(reader& in, Items& items) {
    std::size_t count = 0;
    if (!read_count(in, count)) return false;
    items.clear();
    if constexpr (is_memory) {
      if (count > in.left() / sizeof(Item)) return false;
      items.resize(count);
      return in.bytes(items.data(), count * sizeof(Item));
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        Item item{};
        if (!in.make_room(sizeof(Item) + Overhead) || !codec<Item>::read(in, item)) return false;
        items.insert(items.end(), std::move(item));
        if (items.size() != i + 1) return false;
      }
      return true;
    }
  }
};

/// A map, whose items travel as pairs. A node of it has pointers besides its item.
template <class Map>
struct codec_of_map : codec_of_container<Map, std::pair<typename Map::key_type, typename Map::mapped_type>,
                                         4 * sizeof(void*)> {
  static constexpr std::string_view name = composed<of_map, end, typename Map::key_type, typename Map::mapped_type>;
};

}  // namespace detail

/// As a parameter of a handler: the text lies in the request, until the handler returns.
template <>
struct codec<std::string_view> {
  static constexpr std::string_view name = "str";
  static void write(writer& out, std::string_view text) {
    detail::write_count(out, text.size());
    out.bytes(text.data(), text.size());
  }
  static bool read(reader& in, std::string_view& text) {
    std::size_t size = 0;
    return detail::read_count(in, size) && in.view(text, size);
  }
};
template <>
struct codec<std::string> : codec<std::string_view> {
  static bool read(reader& in, std::string& text) {
    std::string_view bytes;
    if (!codec<std::string_view>::read(in, bytes)) return false;
    text.assign(bytes);
    return true;
  }
};

template <class T>
struct codec<std::vector<T>> : detail::codec_of_container<std::vector<T>, T> {
  static constexpr std::string_view name = detail::composed<detail::of_vector, detail::end, T>;
};
template <class Key, class Value, class... Rest>
struct codec<std::map<Key, Value, Rest...>> : detail::codec_of_map<std::map<Key, Value, Rest...>> {};
template <class Key, class Value, class... Rest>
struct codec<std::unordered_map<Key, Value, Rest...>>
    : detail::codec_of_map<std::unordered_map<Key, Value, Rest...>> {};

template <class T, std::size_t Size>
struct codec<std::array<T, Size>> : detail::codec_of_items<std::array<T, Size>> {
  static constexpr std::string_view type = codec<T>::name;
  static constexpr std::string_view name =
      detail::joined<detail::of_array, type, detail::comma, detail::decimal<Size>::value, detail::end>::value;
};
template <class First, class Second>
struct codec<std::pair<First, Second>> : detail::codec_of_items<std::pair<First, Second>> {
  static constexpr std::string_view name = detail::composed<detail::round, detail::round_end, First, Second>;
};
template <class... Items>
struct codec<std::tuple<Items...>> : detail::codec_of_items<std::tuple<Items...>> {
  static constexpr std::string_view name = detail::composed<detail::round, detail::round_end, Items...>;
};

template <class T>
struct codec<std::optional<T>> {
  static constexpr std::string_view name = detail::composed<detail::of_optional, detail::end, T>;
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

/// A typed payload: the names of its types, with their length in 16 bits before them, and then the values. That of no
/// values is empty.
template <class... Values>
std::string typed_payload(const Values&... values) {
  writer out;
  if constexpr (sizeof...(Values) > 0) {
    constexpr std::string_view types = types_of<sent<Values>...>::value;
    static_assert(types.size() <= 0xffff, "the names of these types have more than 65535 bytes in all");
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
