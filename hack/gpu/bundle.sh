#!/usr/bin/env bash
# Fetch the wheels that hack/gpu/check.sh needs beside torch, for a Python version (default 3.12) on Linux x86_64.
# Needs a package index. Every wheel is pinned by hash in hack/locks. Writes build/gpu-wheels, or build/gpu-wheels-VERSION
# for another version than 3.12.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec "${PYTHON:-.venv/bin/python}" -m hack.gpu.bundle "${1:-3.12}"
