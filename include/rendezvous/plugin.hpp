// rendezvous/plugin.hpp: stores, rendezvous backends, workers and RPC backends of the program, for C++17 and later.
#ifndef RENDEZVOUS_PLUGIN_HPP
#define RENDEZVOUS_PLUGIN_HPP

#include "custom_rendezvous.hpp"
#include "custom_rpc.hpp"
#include "custom_store.hpp"
#include "custom_workers.hpp"

#endif  // RENDEZVOUS_PLUGIN_HPP
