// rendezvous.hpp: librendezvous for C++17 and later. Header-only, over the C ABI of rendezvous.h. Each subject has a
// header of its own in rendezvous/, and can be included alone.
//
// Every call that can fail returns a `result<T>`: test it like a pointer, or take the value with `or_throw()`, which
// throws `rdzv::exception` (and does not exist under -fno-exceptions). Handles are move-only and free themselves.
// `c_handle()` lends the C handle, `release()` gives it away.
//
// Timeouts are std::chrono::milliseconds: 0 tries once, `default_timeout` is the handle's.
//
// A `result<bool>` (of `check` and `delete_key`) has no `operator bool`: ask `has_value()`, then read `*result`.
#ifndef RENDEZVOUS_HPP
#define RENDEZVOUS_HPP

#include "rendezvous/agent.hpp"
#include "rendezvous/base.hpp"
#include "rendezvous/loop.hpp"
#include "rendezvous/native_store.hpp"
#include "rendezvous/rendezvous.hpp"
#include "rendezvous/rpc.hpp"
#include "rendezvous/store.hpp"
#include "rendezvous/store_utilities.hpp"
// For plug-ins, a program includes rendezvous/plugin.hpp, too.

#endif  // RENDEZVOUS_HPP
