#!/bin/sh
# Builds a tool in C for WASI preview 1: build.sh [OUTPUT], by default examples/tools/checksum/checksum.wasm.
#
# Debian 12: apt-get install clang lld wasi-libc libclang-rt-14-dev-wasm32. The same release of these packages
# gives the same bytes; another gives a program that does the same.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/../tools/checksum/checksum.wasm}
cd "$here"
exec clang --target=wasm32-wasi -O2 -Wall -Wextra -Werror -Wl,--strip-all -o "$output" checksum.c
