// rendezvous/custom_reply.hpp: replies of stores and backends in code of yours, for C++17 and later. plugin.hpp includes
// it.
#ifndef RENDEZVOUS_CUSTOM_REPLY_HPP
#define RENDEZVOUS_CUSTOM_REPLY_HPP

#include "store.hpp"
#include "plugin.h"

namespace rdzv {
inline namespace RDZV_DETAIL_NAMESPACE {

/// The reply of code of yours to a call of the library. Valid during the call only.
class plugin_reply {
 public:
  explicit plugin_reply(rdzv_reply* made) noexcept : reply_(made) {}
  /// Why it failed, in words; they are the error's message, or end it.
  void set_message(std::string_view message) {
    rdzv_reply_set_message(reply_, detail::bytes(message), message.size());
  }
  /// A sum, a count, or 1 for yes and 0 for no.
  void set_number(std::int64_t number) { rdzv_reply_set_number(reply_, number); }
  /// A value or key, or one more of several.
  void add_value(std::string_view value) { rdzv_reply_add_value(reply_, detail::bytes(value), value.size()); }

 protected:
  rdzv_reply* reply_;
};

namespace detail {

/// Calls user code and turns what it throws into the message of a reply.
template <class Reply, class Code>
rdzv_status caught_into(Reply& reply, Code code) {
#if defined(__cpp_exceptions)
  try {
#endif
    return static_cast<rdzv_status>(code(reply));
#if defined(__cpp_exceptions)
  } catch (const rdzv::exception& thrown) {
    reply.set_message(thrown.what());
    return static_cast<rdzv_status>(thrown.error().code());
  } catch (const std::exception& thrown) {
    reply.set_message(thrown.what());
  } catch (...) {
    reply.set_message("it threw");
  }
  return RDZV_IO;
#endif
}

}  // namespace detail

}  // inline namespace
}  // namespace rdzv

#endif  // RENDEZVOUS_CUSTOM_REPLY_HPP
