#!/bin/sh
# Installs PyTorch into target/torch-venv, once. pip's own configuration (index, proxy, certificates) is honoured
# as it stands; RDZV_TORCH_SPEC replaces the requirement (a version, a CPU build, a wheel file).
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
venv=$root/target/torch-venv
spec=${RDZV_TORCH_SPEC:-torch==2.15.0}
stamp=$venv/rdzv-torch-spec
need_mib=12288
python=${PYTHON:-python3}

fail() {
    echo "interop setup: $1" >&2
    exit 1
}

imports_torch() {
    "$venv/bin/python" -c 'import numpy, torch, torch.distributed as d; assert d.is_gloo_available()' >/dev/null 2>&1
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$spec" ] && imports_torch; then
    exit 0
fi

command -v "$python" >/dev/null || fail "no Python named $python"
mkdir -p "$venv"
# Both the environment and pip's unpacking folder fill up while installing; the smaller room decides.
for folder in "$venv" "$("$python" -c "import tempfile; print(tempfile.gettempdir())")"; do
    free_mib=$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')
    [ "$free_mib" -ge "$need_mib" ] ||
        fail "not enough room: installing $spec needs about $need_mib MiB at $folder, only $free_mib MiB are free"
done

rm -f "$stamp"
if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$venv" || fail "cannot create a virtual environment at $venv"
fi
"$venv/bin/python" -m pip install "$spec" numpy || fail "pip could not install $spec and numpy"
imports_torch || fail "$spec is installed but does not import, or has no gloo"
printf '%s\n' "$spec" >"$stamp"
echo "interop setup: $("$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)') is ready"
