#!/bin/sh
# Links librendezvous.so from librendezvous.a, in the folder of the archive: `ffi/link.sh target/release`.
#
# The linker of rustc gets a version script of rustc's own, and symbols can have the versions of one script only
# (docs/adr/0013-shared-library.md). CC and RUSTC name other programs than cc and rustc.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=$1
archive=$folder/librendezvous.a
library=$folder/librendezvous.so
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml")
abi=${version%.*}
soname=librendezvous.so.$abi
: "${CC:=cc}" "${RUSTC:=rustc}"

# Several may ask at a time, and most of them after the first link: a library of this very archive stays.
origin="$(stat -c '%n %i %y %s' "$archive" "$here/link.sh") $version"
if [ -e "$library" ] && [ "$(cat "$folder/librendezvous.so.origin" 2>/dev/null)" = "$origin" ]; then
    exit 0
fi
work=$folder/link.$$
mkdir "$work"
trap 'rm -rf "$work"' EXIT

# The linker that comes with Rust folds functions and constants that come out alike (47 KB): nothing compares addresses of
# constants. Where there is none, any linker does.
tools=$("$RUSTC" --print target-libdir 2>/dev/null || true)/../bin/gcc-ld
alike="-Wl,--icf=all -Wl,--ignore-data-address-equality"
fold=
for linker in "-B$tools -fuse-ld=lld" -fuse-ld=lld; do
    # shellcheck disable=SC2086 # several arguments
    if "$CC" $linker $alike -shared -x c /dev/null -o "$work/empty.so" 2>/dev/null; then
        fold="$linker $alike"
        break
    fi
done

echo "RDZV_$abi { global: rdzv_*; local: *; };" >"$work/versions"
# shellcheck disable=SC2086 # several arguments
"$CC" -shared -o "$work/librendezvous.so" $fold \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections \
    -Wl,--version-script="$work/versions" -Wl,-soname,"$soname" \
    -Wl,-O1 -Wl,--strip-debug -Wl,--eh-frame-hdr -Wl,-z,defs -Wl,-z,noexecstack -Wl,-z,relro -Wl,-z,now \
    -nodefaultlibs -Wl,--as-needed -lgcc_s -lpthread -ldl -lm -lc
ln -sf librendezvous.so "$work/$soname"
mv -f "$work/librendezvous.so" "$work/$soname" "$folder"
echo "$origin" >"$folder/librendezvous.so.origin"
