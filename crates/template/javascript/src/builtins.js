// The modules of node that are there.

import { Buffer } from 'buffer';
import EventEmitter from 'events';
import path from 'path-browserify';
import { assert, equal } from './assert.js';
import { elsewhere } from './absent.js';
import { fs } from './files.js';
import { format, inspect } from './inspect.js';
import { process } from './process.js';
import { readline } from './readline.js';
import { timers } from './timers.js';

function promisify(call) {
  if (call === setTimeout) return wait;
  return (...args) => new Promise((resolve, reject) => {
    call(...args, (error, value) => (error ? reject(error) : resolve(value)));
  });
}

function callbackify(call) {
  return (...args) => {
    const done = args.pop();
    call(...args).then((value) => done(null, value), done);
  };
}

function wait(delay, value) {
  return new Promise((resolve) => setTimeout(resolve, delay, value));
}

function inherits(child, parent) {
  child.super_ = parent;
  Object.setPrototypeOf(child.prototype, parent.prototype);
}

const util = {
  format, inspect, promisify, callbackify, inherits, TextDecoder, TextEncoder,
  isDeepStrictEqual: (one, other) => equal(one, other, true),
  deprecate: (call) => call,
  stripVTControlCharacters: (text) => text.replace(/\u001b\[[\d;]*[A-Za-z]/g, ''),
  types: {
    isDate: (value) => value instanceof Date,
    isRegExp: (value) => value instanceof RegExp,
    isPromise: (value) => value instanceof Promise,
    isMap: (value) => value instanceof Map,
    isSet: (value) => value instanceof Set,
    isTypedArray: (value) => ArrayBuffer.isView(value) && !(value instanceof DataView),
    isUint8Array: (value) => value instanceof Uint8Array,
    isNativeError: (value) => value instanceof Error,
  },
};

const os = {
  EOL: '\n', platform: () => 'wasi', type: () => 'WASI', arch: () => 'wasm32', release: () => '', hostname: () => 'sandbox',
  cpus: () => [], homedir: () => '/', tmpdir: () => '/tmp', totalmem: () => 0, freemem: () => 0, loadavg: () => [0, 0, 0],
  uptime: () => process.uptime(), endianness: () => 'LE', networkInterfaces: () => ({}), availableParallelism: () => 1,
};

const url = {
  URL, URLSearchParams,
  fileURLToPath: (value) => decodeURIComponent(new URL(value).pathname),
  pathToFileURL: (name) => new URL(`file://${process.resolve(name).split('/').map(encodeURIComponent).join('/')}`),
};

const random = {
  webcrypto: crypto,
  subtle: crypto.subtle,
  getRandomValues: (array) => crypto.getRandomValues(array),
  randomUUID: () => crypto.randomUUID(),
  randomBytes: (size) => {
    const bytes = Buffer.alloc(size);
    // The most that the web's call gives at once.
    for (let at = 0; at < size; at += 65536) crypto.getRandomValues(bytes.subarray(at, at + 65536));
    return bytes;
  },
  randomInt: (low, high) => {
    const [from, to] = high === undefined ? [0, low] : [low, high];
    return from + Math.floor((crypto.getRandomValues(new Uint32Array(1))[0] / 2 ** 32) * (to - from));
  },
};
for (const name of ['createHash', 'createHmac', 'createCipheriv', 'createDecipheriv', 'createSign', 'createVerify', 'pbkdf2Sync', 'scryptSync']) {
  random[name] = () => {
    throw new Error(`crypto.${name}: ${elsewhere('the synchronous ciphers of node')}, or use crypto.subtle`);
  };
}

EventEmitter.EventEmitter = EventEmitter;

const modules = {
  assert, 'assert/strict': assert.strict, buffer: { Buffer, Blob, File, atob, btoa }, console, crypto: random,
  events: EventEmitter, fs, 'fs/promises': fs.promises, os, path, 'path/posix': path, perf_hooks: { performance },
  process, readline, timers, 'timers/promises': { setTimeout: wait, setImmediate: (value) => wait(0, value) },
  url, util, 'util/types': util.types,
};

/** The module of node with that name, with or without `node:`; `undefined` where there is none. */
export function builtin(name) {
  const short = name.startsWith('node:') ? name.slice('node:'.length) : name;
  return Object.hasOwn(modules, short) ? modules[short] : undefined;
}

/** Gives `modules` a module that needs what is made later. */
export function provide(name, value) {
  modules[name] = value;
}
