#!/bin/sh
# Builds a tool in Rust as a component of WASI 0.2: build.sh [OUTPUT], by default
# examples/tools/calendar/calendar.wasm.
#
# Debian 12: apt-get install rustc libstd-rust-dev-wasm32 lld-14 nodejs npm. The same release of these packages
# gives the same bytes; another gives a program that does the same. RUSTC, TARGET and LINKER name others, such as
# those of rustup: TARGET=wasm32-wasip1 LINKER=rust-lld.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/../tools/calendar/calendar.wasm}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${RUSTC:-rustc}" --target "${TARGET:-wasm32-wasi}" --edition 2021 -C opt-level=s -C lto=fat -C panic=abort \
    --remap-path-prefix "$here=." -C strip=symbols -C linker="${LINKER:-wasm-ld-14}" -o "$work/core.wasm" "$here/calendar.rs"
# What a compiler for WASI preview 1 makes becomes a command of WASI 0.2 by the adapter that is in jco.
npm install --prefix "$work" --silent --no-audit --no-fund --ignore-scripts @bytecodealliance/jco@1.15.4 >"$work/npm" 2>&1 ||
    { cat "$work/npm" >&2; exit 1; }
"$work/node_modules/.bin/jco" new "$work/core.wasm" --wasi-command -o "$work/component.wasm" >&2
mv "$work/component.wasm" "$output"
