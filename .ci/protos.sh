#!/usr/bin/env bash
# Writes exspec/v1 from protos/; with --check it fails when the committed stubs differ.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
PATH="$(dirname "$python"):$PATH" "$python" -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" --mypy_grpc_out="quiet:$out" \
    protos/exspec/v1/*.proto
printf '"""Generated from protos/exspec/v1 by `make protos`; do not edit."""\n' > "$out/exspec/v1/__init__.py"
if [ "${1:-}" = "--check" ]; then
    diff -r -x __pycache__ "$out/exspec/v1" exspec/v1 \
        || { echo "exspec/v1 is out of date: run 'make protos'" >&2; exit 1; }
else
    rm -rf exspec/v1 && cp -r "$out/exspec/v1" exspec/v1
fi
