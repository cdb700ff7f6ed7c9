// rendezvous/custom_store.hpp: a store in code of yours, for C++17 and later. plugin.hpp includes it.
#ifndef RENDEZVOUS_CUSTOM_STORE_HPP
#define RENDEZVOUS_CUSTOM_STORE_HPP

#include "custom_reply.hpp"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// What a store of yours is to do; rendezvous.h tells at RDZV_STORE_SET and so on what each operation wants.
struct store_request {
  std::int32_t operation = 0;
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;
  /// What is to be added.
  std::int64_t number = 0;
  /// How long RDZV_STORE_WAIT may take.
  std::chrono::milliseconds timeout{0};
};

/// Performs the request; `status::unsupported` for an operation that it does not have. Called on threads of the
/// library's, several at a time; may block; an exception that leaves it is an error of the call that asked. It must not
/// use the store that is asking: such calls fail with `status::reentrant`.
using store_code = std::function<status(const store_request&, plugin_reply&)>;

/// A store that asks `code`. `name` is what errors call it.
inline result<store> custom_store(store_code code, const std::string& name = "custom store",
                                  std::chrono::milliseconds timeout = default_timeout,
                                  const context* shared = nullptr) {
  auto owned = std::make_unique<store_code>(std::move(code));
  rdzv_store_vtable vtable{};
  vtable.struct_size = sizeof vtable;
  vtable.user_data = owned.get();
  vtable.name = name.c_str();
  const auto perform = [](void* user_data, const rdzv_store_request* asked, rdzv_reply* c_reply) -> rdzv_status {
    plugin_reply given(c_reply);
    return detail::caught_into(given, [&](plugin_reply& into) {
      store_request request;
      request.operation = asked->operation;
      for (std::size_t i = 0; i < asked->key_count; ++i)
        request.keys.push_back(detail::text(asked->keys[i].data, asked->keys[i].len));
      for (std::size_t i = 0; i < asked->value_count; ++i)
        request.values.push_back(detail::text(asked->values[i].data, asked->values[i].len));
      request.number = asked->number;
      request.timeout = std::chrono::milliseconds(asked->timeout_ms);
      return (*static_cast<store_code*>(user_data))(request, into);
    });
  };
  if (*owned) vtable.perform = perform;  // an empty function is refused as NULL is, not called
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

#endif  // RENDEZVOUS_CUSTOM_STORE_HPP
