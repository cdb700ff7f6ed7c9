// Device maps of real groups: what each worker knows of the others', and what does not fit together.
#include "rpc_pair.h"
#include "tests.h"

// What a worker says of its devices; a NULL ends a list of devices, or of pairs.
struct devices {
  uint32_t count;
  const char *listed[3];
  const char *mapped;
  const char *from[3], *to[3];
};

// Options, and what they point to.
struct device_options {
  rdzv_rpc_options options;
  rdzv_rpc_device_pair pairs[3];
  rdzv_rpc_device_map maps[3];
};

static void fill(struct device_options *made, const struct devices *devices) {
  size_t device_count = 0, map_count = 0;
  while (device_count < 3 && devices->listed[device_count] != NULL) ++device_count;
  // One map for each pair, since a map that is not one to one is refused as a whole.
  for (; map_count < 3 && devices->from[map_count] != NULL; ++map_count) {
    made->pairs[map_count] = (rdzv_rpc_device_pair){devices->from[map_count], devices->to[map_count]};
    made->maps[map_count] = (rdzv_rpc_device_map){devices->mapped, &made->pairs[map_count], 1};
  }
  made->options = (rdzv_rpc_options){.struct_size = sizeof made->options,
                                     .rpc_timeout_ms = PATIENCE_MS,
                                     .accelerator_count = devices->count,
                                     .devices = devices->listed,
                                     .device_count = device_count,
                                     .device_maps = made->maps,
                                     .device_map_count = map_count};
}

static void check_reverse_map(const rdzv_rpc *rpc, const char *caller, const char *const from[3], const char *const to[3]) {
  rdzv_rpc_devices *devices = NULL;
  OK(rdzv_rpc_list_devices(rpc, &devices, &error));
  size_t count = 0, pair_count = 0;
  for (size_t i = 0; i < devices->reverse_map_count; ++i) {
    const rdzv_rpc_device_map *map = &devices->reverse_maps[i];
    if (strcmp(map->worker, caller) != 0) continue;
    pair_count = map->pair_count;
    for (; count < pair_count && from[count] != NULL; ++count) {
      CHECK_TEXT(map->pairs[count].from, from[count]);
      CHECK_TEXT(map->pairs[count].to, to[count]);
    }
  }
  CHECK(from[count] == NULL);
  CHECK_NUMBER(pair_count, count);
  FAILS(INVALID, rdzv_rpc_list_devices(rpc, NULL, &error));
  rdzv_rpc_devices_free(devices);
}

void device_maps_are_exchanged_and_checked(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  const struct devices of_one = {2, {NULL}, "two", {"cuda:0", "cuda:1", NULL}, {"cuda:3", "cuda:1", NULL}};
  const struct devices of_two = {4, {"cuda:3", "cuda:1", NULL}, "one", {"cuda:3", NULL}, {"cuda:0", NULL}};
  struct device_options first, second;
  fill(&first, &of_one);
  fill(&second, &of_two);
  rdzv_rpc *one = join(store, "one", 1, -1, &first.options, NULL);
  rdzv_rpc *two = join(store, "two", 2, -1, &second.options, NULL);
  check_reverse_map(two, "one", (const char *[3]){"cuda:1", "cuda:3", NULL}, (const char *[3]){"cuda:1", "cuda:0", NULL});
  check_reverse_map(one, "two", (const char *[3]){"cuda:0", NULL}, (const char *[3]){"cuda:3", NULL});
  check_reverse_map(one, "nobody", (const char *[3]){NULL}, (const char *[3]){NULL});

  // Each of the eight faults, of one who comes. Only a static group knows who will never come.
  static const struct {
    struct devices devices;
    bool is_static;
    const char *message;
  } faults[] = {
      {{2, {"cuda:1", "cuda:1"}, NULL, {NULL}, {NULL}}, false,
       "Node three has duplicated devices: devices = [cuda:1, cuda:1]"},
      {{1, {"cuda:1"}, NULL, {NULL}, {NULL}}, false,
       "Node three has devices with invalid indices: devices = [cuda:1], device count = 1"},
      {{1, {NULL}, "nobody", {"cuda:0"}, {"cuda:0"}}, true,
       "Node three has invalid target node names in its device maps: "
       "device maps = {'nobody': {cuda:0: cuda:0}}, node names = ['three']"},
      {{2, {NULL}, "one", {"cuda:0", "cuda:1"}, {"cuda:0", "cuda:0"}}, false,
       "Node three has duplicated target devices in its device map for one: "
       "device map = {cuda:0: cuda:0, cuda:1: cuda:0}"},
      {{2, {"cuda:0"}, "one", {"cuda:1"}, {"cuda:0"}}, false,
       "Node three has unexpected source devices in its device map for one: "
       "device map = {cuda:1: cuda:0}, devices = [cuda:0]"},
      {{1, {NULL}, "one", {"cuda:3"}, {"cuda:0"}}, false,
       "Node three has source devices with invalid indices in its device map for one: "
       "device map = {cuda:3: cuda:0}, device count = 1"},
      {{1, {NULL}, "two", {"cuda:0"}, {"cuda:2"}}, false,
       "Node three has unexpected target devices in its device map for two: "
       "device map = {cuda:0: cuda:2}, devices = [cuda:3, cuda:1]"},
      {{1, {NULL}, "one", {"cuda:0"}, {"cuda:2"}}, false,
       "Node three has target devices with invalid indices in its device map for one: "
       "device map = {cuda:0: cuda:2}, device count = 2"},
  };
  rdzv_store *elsewhere = NULL;
  OK(rdzv_store_new_prefix(store, TEXT("static"), &elsewhere, &error));
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    struct device_options options;
    fill(&options, &faults[i].devices);
    const bool is_static = faults[i].is_static;
    rdzv_rpc *three = NULL;
    FAILS_LIKE(((struct failure){.status = RDZV_RPC_DEVICE_MAP, .message_part = faults[i].message}),
               rdzv_rpc_new(NULL, TEXT("three"), is_static ? 0 : 3, is_static ? 1 : -1,
                            OVER(is_static ? elsewhere : store, &options.options), NULL, &three, &error));
    CHECK(three == NULL);
  }
  // The others go on, and whoever fits may come under that name.
  const struct devices of_three = {1, {NULL}, "one", {"cuda:0"}, {"cuda:1"}};
  struct device_options third;
  fill(&third, &of_three);
  rdzv_rpc *three = join(store, "three", 3, -1, &third.options, NULL);
  check_reverse_map(one, "three", (const char *[3]){"cuda:1", NULL}, (const char *[3]){"cuda:0", NULL});
  rdzv_rpc_free(three);
  rdzv_rpc_free(two);
  rdzv_rpc_free(one);
  rdzv_store_free(elsewhere);
  rdzv_store_free(store);
  rdzv_server_free(server);
}
