// rendezvous_custom_store.hpp: a store in code of yours, for C++17 and later. Beside rendezvous.hpp.
#ifndef RENDEZVOUS_CUSTOM_STORE_HPP
#define RENDEZVOUS_CUSTOM_STORE_HPP

#include "rendezvous.hpp"

#if defined(__cpp_exceptions)
#define RDZV_DETAIL_NAMESPACE v1
#else
#define RDZV_DETAIL_NAMESPACE v1_without_exceptions
#endif

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// What a store of yours is asked; rendezvous.h tells at RDZV_STORE_SET and so on what each operation wants.
struct store_question {
  std::int32_t operation = 0;
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;
  /// What is to be added.
  std::int64_t number = 0;
  /// How long RDZV_STORE_WAIT may take.
  std::chrono::milliseconds timeout{0};
};

/// Takes the answer of a store of yours.
class store_answer {
 public:
  explicit store_answer(rdzv_store_answer* answer) noexcept : answer_(answer) {}
  /// A sum, a count, or 1 for yes and 0 for no.
  void set_number(std::int64_t number) { rdzv_store_answer_set_number(answer_, number); }
  /// A value or key, or one more of several.
  void add_value(std::string_view value) {
    rdzv_store_answer_add_value(answer_, detail::bytes(value), value.size());
  }
  /// Why it failed, in words; they end the error's message.
  void set_message(std::string_view message) {
    rdzv_store_answer_set_message(answer_, detail::bytes(message), message.size());
  }

 private:
  rdzv_store_answer* answer_;
};

/// Does what the question says; `status::unsupported` for an operation that it does not have. Called on threads of the
/// library's, several at a time; may block; an exception that leaves it is an error of the call that asked. It must not
/// use the store that is asking: such calls fail with `status::reentrant`.
using store_code = std::function<status(const store_question&, store_answer&)>;

/// A store that asks `code`. `name` is what errors call it.
inline result<store> custom_store(store_code code, const std::string& name = "custom store",
                                  std::chrono::milliseconds timeout = default_timeout,
                                  const context* shared = nullptr) {
  auto owned = std::make_unique<store_code>(std::move(code));
  rdzv_store_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.user_data = owned.get();
  vtable.name = name.c_str();
  const auto answer = [](void* user_data, const rdzv_store_question* asked, rdzv_store_answer* c_answer) -> rdzv_status {
    store_answer reply(c_answer);
#if defined(__cpp_exceptions)
    try {
#endif
      store_question question;
      question.operation = asked->operation;
      for (std::size_t i = 0; i < asked->key_count; ++i)
        question.keys.push_back(detail::text(asked->keys[i].data, asked->keys[i].len));
      for (std::size_t i = 0; i < asked->value_count; ++i)
        question.values.push_back(detail::text(asked->values[i].data, asked->values[i].len));
      question.number = asked->number;
      question.timeout = std::chrono::milliseconds(asked->timeout_ms);
      return static_cast<rdzv_status>((*static_cast<store_code*>(user_data))(question, reply));
#if defined(__cpp_exceptions)
    } catch (const std::exception& thrown) {
      reply.set_message(thrown.what());
    } catch (...) {
      reply.set_message("it threw");
    }
    return RDZV_IO;
#endif
  };
  if (*owned) vtable.answer = answer;  // an empty function is refused as NULL is, not called
  vtable.destroy = [](void* user_data) { delete static_cast<store_code*>(user_data); };
  rdzv_store* made = nullptr;
  const rdzv_context* context = shared == nullptr ? nullptr : shared->c_handle();
  auto failure = detail::failure_of(rdzv_store_new_custom, context,
                                    static_cast<const rdzv_store_vtable*>(&vtable), detail::count(timeout), &made);
  if (failure) return std::move(*failure);
  static_cast<void>(owned.release());
  return store::adopt(made);
}

}  // inline namespace
}  // namespace rdzv

#undef RDZV_DETAIL_NAMESPACE

#endif  // RENDEZVOUS_CUSTOM_STORE_HPP
