#!/usr/bin/env bash
# Shows the launcher and its memory checkpoints on a real GPU, in five minutes: hack/gpu/check.sh [--out DIR]
#
# Needs a Linux machine with one NVIDIA GPU, Python with torch, and the wheels of build/gpu-wheels, which
# hack/gpu/bundle.sh fetches on a machine with a package index. Uses no network.
#   --only STAGE,...  repeat these stages, and keep the other results    --size large  1.3 B parameters
#   --cpu             the same stages in an environment that holds only torch and the bundle, with the CPU as the device;
#                     needs `make setup-launcher`
# Results: results.jsonl, summary.md and stages.log in the folder --out (default build/gpu).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root="$PWD"
device=cuda
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --cpu) device=cpu ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# A GPU machine has its own torch; here torch comes from `make setup-launcher`.
python="${PYTHON:-$(command -v python3)}"
if [ "$device" = cpu ] && [ -z "${PYTHON:-}" ]; then
  python="$root/.venv/bin/python"
  [ -e .venv/launcher ] || { echo 'run `make setup-launcher` first: it brings torch' >&2; exit 2; }
fi

version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
wheels="$root/build/gpu-wheels"
[ "$version" = 3.12 ] || wheels="$root/build/gpu-wheels-$version"
if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
  if [ "$device" = cpu ]; then
    PYTHON="$python" hack/gpu/bundle.sh "$version"
  else
    echo "$wheels holds no wheels: run hack/gpu/bundle.sh $version where there is a package index, and bring the folder" >&2
    exit 2
  fi
fi

# Links may be lost where a checkout is copied.
for room in autoscaler cli controllers jobs kube launcher scheduler_ext simulator topology; do
  [ -e "turnout/$room" ] || ln -s "../$room" "turnout/$room"
done

site="$root/build/gpu-site-$device"
rm -rf "$site"
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$site" "$wheels"/*.whl
if [ "$device" = cpu ]; then
  venv="$root/build/gpu-venv"
  "$python" -m venv --clear --without-pip "$venv"
  "$python" -m hack.gpu.link_torch "$venv/lib/python$version/site-packages"
  python="$venv/bin/python"
  [[ " ${arguments[*]-} " == *" --size "* ]] || arguments+=(--size tiny)
fi

# pip puts programs such as py-spy under bin/.
unset PYTHONDONTWRITEBYTECODE
export PATH="$site/bin:$PATH" PYTHONPATH="$root:$site"
exec "$python" -m hack.gpu --device "$device" ${arguments[@]+"${arguments[@]}"}
