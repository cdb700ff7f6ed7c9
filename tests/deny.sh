#!/bin/sh
# Runs cargo-deny with deny.toml. With `--install` it installs cargo-deny below target/tools if it is absent. The database
# of advisories is fetched if the network allows it; otherwise one line says that advisories were not checked.
set -eu
cd "$(dirname "$0")/.."
version=0.20.2
root=$PWD/target/tools
cargo=${CARGO:-cargo}
PATH=$root/bin:$PATH
export PATH

if ! command -v cargo-deny >/dev/null && [ "${1:-}" = --install ]; then
    # The flags of the library are not those of a tool.
    env -u RUSTFLAGS CARGO_TARGET_DIR="$root/build" "$cargo" install --quiet --locked cargo-deny --version $version --root "$root" ||
        echo "cargo-deny $version could not be installed into $root"
fi
if ! command -v cargo-deny >/dev/null; then
    echo "cargo-deny is not installed: licences, advisories and duplicates (deny.toml) were not checked; tests/deny.sh --install installs it"
    [ "${1:-}" != --install ]
    exit
fi
"$cargo" deny --locked check bans licenses sources
if "$cargo" deny --locked fetch db >target/deny-fetch.log 2>&1; then
    "$cargo" deny --locked check --disable-fetch advisories
else
    echo "advisories were NOT CHECKED: their database cannot be fetched from here (target/deny-fetch.log)"
fi
