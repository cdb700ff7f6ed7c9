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

static rdzv_rpc_options *options_of(const struct devices *devices) {
  rdzv_rpc_options *options = NULL;
  OK(rdzv_rpc_options_new(NULL, NULL, 0, PATIENCE_MS, NULL, 0, NULL, NULL, 0, &options, &error));
  OK(rdzv_rpc_options_set_device_count(options, devices->count, NULL, 0, &error));
  size_t count = 0;
  rdzv_bytes listed[3];
  for (; devices->listed[count] != NULL; ++count) listed[count] = BYTES(devices->listed[count]);
  if (count > 0) OK(rdzv_rpc_options_set_devices(options, listed, count, &error));
  for (size_t i = 0; devices->from[i] != NULL; ++i) {
    // One by one, since a map that is not one to one is refused as a whole.
    const rdzv_bytes from = BYTES(devices->from[i]), to = BYTES(devices->to[i]);
    OK(rdzv_rpc_options_set_device_map(options, TEXT(devices->mapped), &from, &to, 1, &error));
  }
  return options;
}

static void check_reverse_map(const rdzv_rpc *rpc, const char *caller, const char *const from[3], const char *const to[3]) {
  rdzv_list *left = rdzv_list_new(), *right = rdzv_list_new();
  OK(rdzv_rpc_list_reverse_map(rpc, TEXT(caller), left, right, &error));
  size_t count = 0;
  for (; from[count] != NULL; ++count) {
    CHECK_ITEM(left, count, from[count]);
    CHECK_ITEM(right, count, to[count]);
  }
  CHECK_NUMBER(rdzv_list_count(left), count);
  CHECK_NUMBER(rdzv_list_count(right), count);
  FAILS(INVALID, rdzv_rpc_list_reverse_map(rpc, TEXT(caller), left, NULL, &error));
  FAILS(INVALID, rdzv_rpc_list_reverse_map(rpc, TEXT("\xff"), left, right, &error));
  FAILS(INVALID, rdzv_rpc_list_reverse_map(NULL, TEXT(caller), left, right, &error));
  rdzv_list_free(left);
  rdzv_list_free(right);
}

void device_maps_are_exchanged_and_checked(void) {
  rdzv_server *server = start_server(NULL);
  rdzv_store *store = connect_store(NULL, rdzv_server_port(server));
  const struct devices of_one = {2, {NULL}, "two", {"cuda:0", "cuda:1", NULL}, {"cuda:3", "cuda:1", NULL}};
  const struct devices of_two = {4, {"cuda:3", "cuda:1", NULL}, "one", {"cuda:3", NULL}, {"cuda:0", NULL}};
  rdzv_rpc_options *first = options_of(&of_one), *second = options_of(&of_two);
  rdzv_rpc *one = join(store, "one", 1, -1, first, NULL), *two = join(store, "two", 2, -1, second, NULL);
  check_reverse_map(two, "one", (const char *[3]){"cuda:1", "cuda:3", NULL}, (const char *[3]){"cuda:1", "cuda:0", NULL});
  check_reverse_map(one, "two", (const char *[3]){"cuda:0", NULL}, (const char *[3]){"cuda:3", NULL});
  check_reverse_map(one, "nobody", (const char *[3]){NULL}, (const char *[3]){NULL});
  rdzv_rpc_options_free(first);
  rdzv_rpc_options_free(second);

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
  OK(rdzv_store_with_prefix(store, TEXT("static"), &elsewhere, &error));
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    rdzv_rpc_options *options = options_of(&faults[i].devices);
    const bool is_static = faults[i].is_static;
    rdzv_rpc *three = NULL;
    FAILS_LIKE(((struct failure){.status = RDZV_RPC_DEVICE_MAP, .message_part = faults[i].message}),
               rdzv_rpc_init_over_store(NULL, is_static ? elsewhere : store, TEXT("three"), is_static ? 0 : 3,
                                        is_static ? 1 : -1, options, NULL, &three, &error));
    CHECK(three == NULL);
    rdzv_rpc_options_free(options);
  }
  // The others go on, and whoever fits may come under that name.
  const struct devices of_three = {1, {NULL}, "one", {"cuda:0"}, {"cuda:1"}};
  rdzv_rpc_options *third = options_of(&of_three);
  rdzv_rpc *three = join(store, "three", 3, -1, third, NULL);
  check_reverse_map(one, "three", (const char *[3]){"cuda:1", NULL}, (const char *[3]){"cuda:0", NULL});
  rdzv_rpc_options_free(third);
  rdzv_rpc_free(three);
  rdzv_rpc_free(two);
  rdzv_rpc_free(one);
  rdzv_store_free(elsewhere);
  rdzv_store_free(store);
  rdzv_server_free(server);
}
