// Standard input and output.

import { getStdin } from 'wasi:cli/stdin@0.2.12';
import { getStdout } from 'wasi:cli/stdout@0.2.12';
import { getStderr } from 'wasi:cli/stderr@0.2.12';

// The engine's own console writes a line without the cost of a component call.
const line = { 1: console.log.bind(console), 2: console.error.bind(console) };
const encoder = new TextEncoder();
const opened = {};

// The most that WASI takes in one blocking write.
const WRITE_MAX = 4096;

/** Writes text or bytes to standard output (1) or standard error (2) at once. */
export function say(number, data) {
  const plain = typeof data === 'string' && data.endsWith('\n') && !data.includes('\0');
  if (plain && data.isWellFormed()) {
    line[number](data.slice(0, -1));
    return;
  }
  const bytes = typeof data === 'string' ? encoder.encode(data) : data;
  opened[number] ??= number === 1 ? getStdout() : getStderr();
  for (let at = 0; at < bytes.length; at += WRITE_MAX) {
    opened[number].blockingWriteAndFlush(bytes.subarray(at, at + WRITE_MAX));
  }
}

/** Calls `action`, and what it writes goes nowhere. For the build, which has no streams. */
export function muted(action) {
  const spoken = { ...line };
  line[1] = () => {};
  opened[1] = { blockingWriteAndFlush: () => {} };
  try {
    action();
  } finally {
    Object.assign(line, spoken);
    delete opened[1];
  }
}

/** The next bytes of standard input; null at its end. */
export function readSome() {
  opened[0] ??= getStdin();
  try {
    return opened[0].blockingRead(65536n);
  } catch (error) {
    if (error?.payload?.tag === 'closed') return null;
    throw error;
  }
}

/** All that is left of standard input, as bytes. */
export function readBytes() {
  const parts = [];
  let length = 0;
  for (let part = readSome(); part !== null; part = readSome()) {
    parts.push(part);
    length += part.length;
  }
  const all = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** All that is left of standard input, as text. */
export function readAll() {
  return new TextDecoder().decode(readBytes());
}
