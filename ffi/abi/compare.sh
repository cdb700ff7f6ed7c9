#!/bin/sh
# Compares the C API with baseline.abi.gz, that of the release, by abidiff (package abigail-tools). Additions are allowed.
# `ffi/abi/compare.sh --update` writes the baseline, for a release series whose ABI is another one.
#
# The types are those of a C library that has the functions of the headers and no code: what the debug information of Rust
# says differs from compiler to compiler.
set -eu

cd "$(dirname -- "$0")/../.."
: "${CC:=cc}"
baseline=ffi/abi/baseline.abi.gz
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo '#include <rendezvous.h>' >"$work/api.c"
"$CC" -E -P -Iinclude include/rendezvous.h |
    awk 'BEGIN { RS = ";" } !/[{}]/ && !/typedef/ && /rdzv_[a-z0-9_]+\(/ { print $0 " { __builtin_trap(); }" }' >>"$work/api.c"
echo "RDZV_${version%.*} { global: rdzv_*; local: *; };" >"$work/versions"
"$CC" -w -g -fPIC -shared -Iinclude "$work/api.c" -o "$work/librendezvous.so" \
    -Wl,--version-script="$work/versions" -Wl,-soname,"librendezvous.so.${version%.*}"

if [ "${1:-}" = --update ]; then
    abidw --no-corpus-path --no-comp-dir-path --no-show-locs --out-file "$work/baseline.abi" "$work/librendezvous.so"
    gzip -9n <"$work/baseline.abi" >"$baseline"
    exit 0
fi
gzip -dc "$baseline" >"$work/baseline.abi"
abidiff --no-added-syms "$work/baseline.abi" "$work/librendezvous.so" || {
    echo "the C API is not that of $baseline: see whether the ABI may change, then run ffi/abi/compare.sh --update"
    exit 1
}
