// rendezvous_codec.hpp: how values travel in the requests and answers of RPC groups, for C++17 and later. rendezvous.hpp
// brings it along.
#ifndef RENDEZVOUS_CODEC_HPP
#define RENDEZVOUS_CODEC_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

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

/// Gives what a codec reads. Whoever asks for more than there is gets false.
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

/// How values of a type travel: specialise it for types of yours, with
///   static void write(writer&, const T&);
///   static bool read(reader&, T&);   // false: the bytes are none
/// Numbers are little-endian and as wide as here: where hosts differ, take those of fixed width.
template <class T, class Enable = void>
struct codec;

namespace detail {

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

}  // namespace detail

template <class T>
struct codec<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  static_assert(!std::is_same_v<std::remove_cv_t<T>, long double>,
                "a long double is padded, and another one on other hosts: send a double");
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

/// For a trivially copyable type of yours that is to travel as it lies in memory, between hosts that agree on that. What lies
/// between its members travels, too, with whatever was in memory there: give it members, or write a codec.
/// `template <> struct rdzv::codec<point> : rdzv::codec_of_memory<point> {};`
template <class T>
struct codec_of_memory {
  static_assert(std::is_trivially_copyable_v<T>, "such a type cannot be copied as bytes");
  static void write(writer& out, const T& value) { out.bytes(&value, sizeof value); }
  static bool read(reader& in, T& value) { return in.bytes(&value, sizeof value); }
};

template <>
struct codec<std::string> {
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

template <class T>
struct codec<std::vector<T>> {
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

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_CODEC_HPP
