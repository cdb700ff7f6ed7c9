"""Reads the C header in cffi as it is shipped, and calls the library: cffi_declarations.py INCLUDE LIBRARY ABI_VERSION

cffi knows the types of stddef.h and stdint.h, so two empty files stand for these headers.
"""

import pathlib
import subprocess
import sys
import tempfile

try:
    import cffi
except ImportError:
    sys.exit(77)

include, library, abi_version = sys.argv[1:]
with tempfile.TemporaryDirectory() as empty:
    for header in ["stddef.h", "stdint.h"]:
        pathlib.Path(empty, header).touch()
    preprocess = ["gcc", "-E", "-P", "-nostdinc", "-I", empty, "-I", include, f"{include}/rendezvous.h"]
    declarations = subprocess.run(preprocess, capture_output=True, check=True, text=True).stdout

ffi = cffi.FFI()
ffi.cdef(declarations)
lib = ffi.dlopen(library)
assert lib.rdzv_abi_version() == int(abi_version)
assert ffi.sizeof("rdzv_bytes") == ffi.sizeof("void *") + ffi.sizeof("size_t")

error = ffi.new("rdzv_error **")
status = lib.rdzv_store_new(ffi.NULL, ffi.NULL, ffi.NULL, error)
assert status != 0 and ffi.string(lib.rdzv_error_message(error[0])), "a NULL output is refused with a message"
lib.rdzv_error_free(error[0])
