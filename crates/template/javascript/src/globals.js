// The globals that node has beside those of the engine. Set once, while the template is built.

import { Buffer } from 'buffer';
import { fetch } from './absent.js';
import { installStacks } from './errors.js';
import { format, inspect } from './inspect.js';
import { process } from './process.js';
import { say } from './streams.js';
import { timers } from './timers.js';

let indent = '';

function line(number, values) {
  const text = format(...values);
  say(number, `${indent ? text.replace(/^/gm, indent) : text}\n`);
}

const counts = new Map();
const times = new Map();

/** Elapsed time of `console.time`. */
function elapsed(label) {
  if (!times.has(label)) return null;
  return `${label}: ${(performance.now() - times.get(label)).toFixed(3)}ms`;
}

function table(rows) {
  if (typeof rows !== 'object' || rows === null) return line(1, [rows]);
  const columns = new Set();
  const cells = Object.entries(rows).map(([index, row]) => {
    const values = typeof row === 'object' && row !== null ? row : { Values: row };
    Object.keys(values).forEach((name) => columns.add(name));
    return [index, values];
  });
  const names = ['(index)', ...columns];
  const texts = cells.map(([index, values]) => [index, ...[...columns].map((name) => (name in values ? inspect(values[name]) : ''))]);
  const widths = names.map((name, at) => Math.max(name.length, ...texts.map((row) => row[at].length)) + 2);
  const rule = (left, middle, right) => left + widths.map((width) => '─'.repeat(width)).join(middle) + right;
  const row = (values) => `│${values.map((value, at) => ` ${value}`.padEnd(widths[at])).join('│')}│`;
  return line(1, [[rule('┌', '┬', '┐'), row(names), rule('├', '┼', '┤'), ...texts.map(row), rule('└', '┴', '┘')].join('\n')]);
}

const ours = {
  log: (...values) => line(1, values),
  info: (...values) => line(1, values),
  debug: (...values) => line(1, values),
  error: (...values) => line(2, values),
  warn: (...values) => line(2, values),
  trace: (...values) => line(2, [`Trace: ${format(...values)}\n${new Error().stack.split('\n').slice(1).join('\n')}`]),
  dir: (value, options) => line(1, [inspect(value, options)]),
  table,
  assert: (held, ...values) => {
    if (!held) line(2, values.length ? [`Assertion failed: ${format(...values)}`] : ['Assertion failed']);
  },
  group: (...values) => {
    if (values.length) line(1, values);
    indent += '  ';
  },
  groupEnd: () => {
    indent = indent.slice(2);
  },
  count: (label = 'default') => {
    counts.set(label, (counts.get(label) ?? 0) + 1);
    line(1, [`${label}: ${counts.get(label)}`]);
  },
  countReset: (label = 'default') => counts.delete(label),
  time: (label = 'default') => times.set(label, performance.now()),
  timeLog: (label = 'default', ...values) => line(1, [elapsed(label) ?? `No such label '${label}'`, ...values]),
  timeEnd: (label = 'default') => {
    line(1, [elapsed(label) ?? `No such label '${label}'`]);
    times.delete(label);
  },
};

/** Sets them all. */
export function installGlobals() {
  Object.assign(ours, { groupCollapsed: ours.group, dirxml: ours.log });
  const given = { ...timers, Buffer, process, fetch, global: globalThis, console: ours };
  for (const [name, value] of Object.entries(given)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
  // The engine is a worker of a browser to programs that look; it is none.
  for (const name of ['self', 'location', 'WorkerLocation', 'addEventListener', 'removeEventListener', 'dispatchEvent']) {
    delete globalThis[name];
  }
  installStacks();
}
