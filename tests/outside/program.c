// The same in C.
#include <rendezvous.h>
#include <stdio.h>

int main(void) {
  rdzv_error *error = NULL;
  rdzv_store *store = NULL;
  const rdzv_status status = rdzv_store_new_hash(NULL, -1, &store, &error);
  rdzv_store_free(store);
  rdzv_error_free(error);
  if (status != RDZV_OK || rdzv_abi_version() != RDZV_ABI_VERSION) return 1;
  printf("C with librendezvous %s\n", rdzv_version());
  return 0;
}
