// What travels between workers of RPC groups: values with their types, compared at both ends, and bytes.
#include "hpp_check.hpp"
#include "hpp_rpc_values.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

enum class colour : std::int8_t { red, green };
enum level : unsigned { low, high };

// Names on the wire: what travels alike has one, whatever it is called here.
template <class... Types>
constexpr bool are_named(std::string_view name) {
  return ((rdzv::codec<Types>::name == name) && ...);
}
static_assert(are_named<short, std::int16_t>("i16") && are_named<unsigned short>("u16"));
static_assert(are_named<int, std::int32_t>("i32") && are_named<unsigned, level>("u32"));
static_assert(are_named<long long, std::int64_t>("i64") && are_named<unsigned long long, std::uint64_t>("u64"));
static_assert(sizeof(long) != 8 || (are_named<long, std::ptrdiff_t>("i64") && are_named<std::size_t>("u64")));
static_assert(are_named<signed char, colour>("i8") && are_named<unsigned char, std::byte>("u8") && are_named<char>("char"));
static_assert(are_named<bool>("bool") && are_named<float>("f32") && are_named<double>("f64"));
static_assert(are_named<std::string, std::string_view>("str") && are_named<std::vector<double>>("vec<f64>"));
static_assert(are_named<std::map<int, bool>, std::unordered_map<int, bool>>("map<i32,bool>"));
static_assert(are_named<std::pair<int, float>, std::tuple<int, float>>("(i32,f32)") && are_named<std::tuple<>>("()"));
static_assert(are_named<std::array<int, 1024>>("array<i32,1024>") && are_named<std::array<bool, 0>>("array<bool,0>"));
static_assert(are_named<std::optional<std::vector<named>>>("opt<vec<named>>") && are_named<point>("memory<8>"));

template <class T>
T there_and_back(const T& value) {
  rdzv::writer out;
  rdzv::codec<T>::write(out, value);
  const std::string bytes = out.take();
  T back{};
  rdzv::reader in(bytes);
  CHECK(rdzv::codec<T>::read(in, back) && in.left() == 0);
  // Whatever is cut off is missed.
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    T part{};
    rdzv::reader cut(std::string_view(bytes).substr(0, size));
    CHECK(!rdzv::codec<T>::read(cut, part));
  }
  return back;
}

void values_travel() {
  const std::string text("a\0b", 3);
  CHECK(there_and_back(text) == text);
  CHECK(there_and_back(std::numeric_limits<std::int64_t>::min()) == std::numeric_limits<std::int64_t>::min());
  CHECK(there_and_back(0.1) == 0.1 && there_and_back(true) && there_and_back('x') == 'x');
  const std::vector<double> numbers{1.5, -2.5};
  CHECK(there_and_back(numbers) == numbers);
  const std::vector<bool> flags{true, false, true};
  CHECK(there_and_back(flags) == flags);
  const std::vector<std::vector<std::string>> nested{{"a"}, {}, {"b", ""}};
  CHECK(there_and_back(nested) == nested);
  using mixed = std::tuple<int, std::array<std::pair<std::string, float>, 2>, std::optional<bool>>;
  const mixed value{7, {{{"x", 1.0F}, {"y", 2.0F}}}, std::nullopt};
  CHECK(there_and_back(value) == value);
  CHECK(there_and_back(point{3, 4}).y == 4);
  CHECK(there_and_back(colour::green) == colour::green && there_and_back(high) == high);
  const std::map<std::string, std::vector<int>> sorted{{"a", {1}}, {"b", {}}};
  CHECK(there_and_back(sorted) == sorted);
  const std::unordered_map<int, std::map<int, bool>> hashed{{1, {{2, true}}}, {-1, {}}};
  CHECK(there_and_back(hashed) == hashed);
  // A key that comes twice, and items that travel as nothing and take memory all the same.
  using set_of_bools = std::map<bool, std::tuple<>>;
  set_of_bools small;
  rdzv::reader twice(std::string_view("\2\0\0\0\0\0\0\0\1\1", 10));
  CHECK(!rdzv::codec<set_of_bools>::read(twice, small) && small.size() == 1);
  // A view lies in the bytes that were read.
  rdzv::writer of_view;
  rdzv::codec<std::string_view>::write(of_view, "lent");
  const std::string of_view_bytes = of_view.take();
  std::string_view view;
  rdzv::reader in_view(of_view_bytes);
  CHECK(rdzv::codec<std::string_view>::read(in_view, view) && view == "lent");
  CHECK(view.data() == of_view_bytes.data() + 8);
  // Nobody makes room for what is not there, and a truth is 0 or 1.
  std::vector<std::string> many;
  rdzv::reader lie(std::string_view("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  CHECK(!rdzv::codec<std::vector<std::string>>::read(lie, many));
  // Items that travel as one byte and are large in memory take only so much of it.
  using large_items = std::vector<std::optional<std::array<double, 1000>>>;
  const auto absent = [](std::uint64_t count) {
    rdzv::writer out;
    rdzv::codec<std::uint64_t>::write(out, count);
    return out.take() + std::string(static_cast<std::size_t>(count), '\0');
  };
  CHECK(there_and_back(large_items(100)).size() == 100);
  const std::string bomb = absent(std::uint64_t{1} << 18);
  large_items items;
  rdzv::reader of_bomb(bomb);
  CHECK(!rdzv::codec<large_items>::read(of_bomb, items) && items.size() < 20000);
  // What lies in vectors in a vector counts as well.
  std::vector<large_items> nested_items;
  const std::string nested_bomb = absent(2).substr(0, 8) + absent(8000) + absent(8000);
  rdzv::reader of_nested_bomb(nested_bomb);
  CHECK(!rdzv::codec<std::vector<large_items>>::read(of_nested_bomb, nested_items));
  bool flag = false;
  rdzv::reader two("\2");
  CHECK(!rdzv::codec<bool>::read(two, flag));
}

rdzv::rpc_handlers handlers() {
  auto made = VALUE(rdzv::rpc_handlers::create());
  CHECK(made.on("add", [](int a, int b) { return a + b; }, rdzv::rpc_run::on_reactor));
  CHECK(made.on("check", []() -> rdzv::result<void> { return {}; }));
  CHECK(made.on("wide", [](std::int64_t given) { return static_cast<long>(given) + 1; }));
  CHECK(made.on("halve", [](float given) { return given / 2; }));
  CHECK(made.on("mix", [](colour first, level second) { return first == colour::green && second == high; }));
  CHECK(made.on("count words", [](std::string_view text, const std::vector<std::string_view>& skipped) {
    std::unordered_map<std::string, int> counted;
    while (!text.empty()) {
      const auto word = text.substr(0, text.find(' '));
      text.remove_prefix(std::min(text.size(), word.size() + 1));
      if (std::find(skipped.begin(), skipped.end(), word) == skipped.end()) ++counted[std::string(word)];
    }
    return counted;
  }));
  CHECK(made.on("literal", [](int given) { return given > 0 ? "above" : "not above"; }));
  CHECK(made.on("return", [](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    const std::string_view lay_there = request.bytes();
    auto taken = request.take();
    CHECK(taken.bytes().data() == lay_there.data());
    std::move(responder).send_payload(std::move(taken));
  }));
  CHECK(made.on("echo", [](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    std::move(responder).send(std::string(request.bytes()));
  }));
  CHECK(made.on("append", [](const rdzv::rpc_request& request, rdzv::rpc_responder& responder) {
    std::move(responder).send(std::string(request.bytes()) + " and so on");
  }));
  return made;
}

// A call whose types are not the handler's fails with both lists, whatever its bytes would have meant.
void types_are_compared(const rdzv::rpc& one) {
  const auto refused = [](const auto& outcome, const std::string& message) {
    CHECK(outcome.error().code() == rdzv::status::rpc_malformed);
    CHECK(outcome.error().nodes() == std::vector<std::string>{"two"});
    CHECK(outcome.error().message().find(" at two (id 2): the ") != std::string::npos);
    CHECK(outcome.error().message().find("failed") == std::string::npos);
    if (outcome.error().message().find(message) == std::string::npos) std::puts(outcome.error().message().c_str());
    CHECK(outcome.error().message().find(message) != std::string::npos);
  };
  refused(one.call<int>("two", "add", std::int64_t{5}), ": the types of the arguments do not match: add takes (i32,i32), was called with (i64)");
  refused(one.call<float>("two", "halve", 1), "halve takes (f32), was called with (i32)");
  refused(one.call<int>("two", "add", 1U, 2U), "add takes (i32,i32), was called with (u32,u32)");
  refused(one.call<int>("two", "add", std::pair(1, 2)), "add takes (i32,i32), was called with ((i32,i32))");
  refused(one.call<int>("two", "add"), "add takes (i32,i32), was called with ()");
  refused(one.call("two", "check", "?"), "check takes (), was called with (str)");
  refused(one.call<rdzv::rpc_bytes>("two", "add", rdzv::rpc_bytes{std::string(8, 'x')}), "add takes (i32,i32), was called with bytes without types");
  refused(one.call<rdzv::rpc_bytes>("two", "check", rdzv::rpc_bytes{"\1\2"}), "check takes (), was called with bytes without types");
  // Whatever cannot be seen is not repeated.
  refused(one.call<rdzv::rpc_bytes>("two", "add", rdzv::rpc_bytes{std::string("\2\0\n\n", 4)}), "was called with bytes without types");
  const auto cut = one.call<rdzv::rpc_bytes>("two", "add", rdzv::rpc_bytes{std::string("\7\0i32,i32\1\2\3", 12)});
  refused(cut, "the request cannot be read: add: argument 1 of 2 is cut off");
  refused(one.call<rdzv::rpc_bytes>("two", "add", rdzv::rpc_bytes{std::string("\7\0i32,i32\1\0\0\0\2\0\0\0\3", 18)}),
          "add: 1 bytes follow its 2 arguments");

  // One type has several names here, and one there.
  CHECK(VALUE(one.call<long>("two", "wide", 5L)) == 6);
  if constexpr (sizeof(long) == 8) {
    CHECK(VALUE(one.call<long long>("two", "wide", 5LL)) == 6 && VALUE(one.call<std::int64_t>("two", "wide", 5L)) == 6);
  }
  CHECK(VALUE(one.call<float>("two", "halve", 1.0F)) == 0.5F);
  CHECK(VALUE(one.call<bool>("two", "mix", colour::green, high)));
  const std::vector<std::string> skipped{"b"};
  using counts = std::map<std::string, int>;
  CHECK((VALUE(one.call<counts>("two", "count words", "a b a", skipped)) == counts{{"a", 2}}));
  CHECK(VALUE(one.call<std::string>("two", "literal", 1)) == "above");

  const auto answer = [](const auto& outcome) { return outcome.error().message(); };
  CHECK(answer(one.call<float>("two", "add", 1, 2)) == "add at two: it returns (i32), and was called for (f32)");
  CHECK(answer(one.call<int>("two", "check")) == "check at two: it returns (), and was called for (i32)");
  CHECK(VALUE(one.call<int>("two", "echo", 1)) == 1);
  CHECK(answer(one.call<int>("two", "append", 1)) == "append at two: the response cannot be read as (i32)");
  CHECK(answer(one.call<int>("two", "append")) ==
        "append at two: it returns bytes without types, and was called for (i32)");
}

// Answers as bytes: those that were received, which nobody copies.
void bytes_are_not_copied(const rdzv::rpc& one) {
  const std::string large(std::size_t{3} << 20, 'z');
  const rdzv::rpc_payload answer = VALUE(one.call<rdzv::rpc_payload>("two", "return", rdzv::rpc_bytes{large}));
  CHECK(answer.bytes() == large);
  CHECK(VALUE(one.call<rdzv::rpc_payload>("two", "return", rdzv::rpc_bytes{""})).bytes().empty());
  auto future = VALUE(one.start<rdzv::rpc_payload>("two", "return", rdzv::rpc_bytes{large}));
  CHECK(VALUE(future.get()).bytes() == large);
  // Of a typed handler the types come first.
  const rdzv::rpc_payload sum = VALUE(one.call<rdzv::rpc_payload>("two", "add", 1, 2));
  CHECK(sum.bytes() == std::string_view("\3\0i32\3\0\0\0", 9));
  CHECK(VALUE(one.call<rdzv::rpc_bytes>("two", "add", 1, 2)) == sum.bytes());
  auto later = VALUE(one.start<rdzv::rpc_payload>("two", "add", 1, 2));
  CHECK(VALUE(later.get()).bytes() == sum.bytes());
}

}  // namespace

void rpc_types_in_cpp() {
  values_travel();
  const auto server = VALUE(rdzv::server::start());
  const auto store = VALUE(rdzv::store::connect("127.0.0.1", server.port()));
  rdzv::rpc_options options;
  options.rpc_timeout = patience;
  options.host = "127.0.0.1";
  const auto one = VALUE(rdzv::rpc::create("one", 1, -1, over(store, options), handlers()));
  const auto two = VALUE(rdzv::rpc::create("two", 2, -1, over(store, options), handlers()));
  types_are_compared(one);
  bytes_are_not_copied(one);
}
