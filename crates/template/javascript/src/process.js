// `process`, and the end of a run.

import EventEmitter from 'events';
import path from 'path-browserify';
import { exitWithCode } from 'wasi:cli/exit@0.2.12';
import { elsewhere } from './absent.js';
import { uncaught } from './errors.js';
import { readSome, say } from './streams.js';

/** The version of node whose words are used; what is missing is told where it is asked for. */
const VERSION = '20.0.0';

let began = 0;
let ending = false;

function output(fd) {
  return Object.assign(new EventEmitter(), {
    fd,
    isTTY: false,
    writable: true,
    write(data, encoding, callback) {
      say(fd, typeof data === 'string' || data instanceof Uint8Array ? data : String(data));
      const done = callback ?? encoding;
      if (typeof done === 'function') queueMicrotask(done);
      return true;
    },
    end(data) {
      if (data !== undefined) this.write(data);
    },
  });
}

/** Standard input: an async iterable, and `data` and `end` for those who listen. */
class Input extends EventEmitter {
  constructor() {
    super();
    this.fd = 0;
    this.isTTY = false;
    this.encoding = null;
    this.flowing = false;
    this.on('newListener', (name) => {
      if (name === 'data' || name === 'end') this.resume();
    });
  }
  setEncoding(encoding) {
    this.encoding = encoding;
    return this;
  }
  resume() {
    if (!this.flowing) {
      this.flowing = true;
      setTimeout(() => this.flow(), 0);
    }
    return this;
  }
  pause() {
    return this;
  }
  unref() {
    return this;
  }
  async flow() {
    for await (const part of this) this.emit('data', part);
    this.emit('end');
    this.emit('close');
  }
  async* [Symbol.asyncIterator]() {
    const decoder = this.encoding ? new TextDecoder(this.encoding === 'latin1' ? 'latin1' : 'utf-8') : null;
    for (let part = readSome(); part !== null; part = readSome()) {
      if (part.length) yield decoder ? decoder.decode(part, { stream: true }) : globalThis.Buffer.from(part);
    }
  }
}

class Process extends EventEmitter {
  constructor() {
    super();
    Object.assign(this, {
      argv: [], env: {}, execArgv: [], execPath: 'javascript', exitCode: undefined, pid: 1, ppid: 0, title: 'javascript',
      arch: 'wasm32', platform: 'wasi', version: `v${VERSION}`, versions: { node: VERSION }, release: { name: 'node' },
      stdin: new Input(), stdout: output(1), stderr: output(2), features: {}, config: {}, folder: '/',
    });
  }
  cwd() {
    return this.folder;
  }
  chdir(folder) {
    this.folder = this.resolve(folder);
  }
  resolve(name) {
    return path.resolve(this.folder, String(name));
  }
  exit(code) {
    leave(code);
  }
  reallyExit(code) {
    exitWithCode((code ?? 0) & 0xff);
  }
  abort() {
    exitWithCode(134);
  }
  kill() {
    throw new Error(elsewhere('processes'));
  }
  nextTick(callback, ...args) {
    queueMicrotask(() => callback(...args));
  }
  uptime() {
    return (performance.now() - began) / 1000;
  }
  hrtime(since) {
    const now = this.hrtime.bigint() - (since ? BigInt(since[0]) * 1000000000n + BigInt(since[1]) : 0n);
    return [Number(now / 1000000000n), Number(now % 1000000000n)];
  }
  memoryUsage() {
    return { rss: 0, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 };
  }
  cpuUsage() {
    return { user: Math.round((performance.now() - began) * 1000), system: 0 };
  }
  emitWarning(warning) {
    say(2, `(javascript) ${warning instanceof Error ? warning : `Warning: ${warning}`}\n`);
  }
  get [Symbol.toStringTag]() {
    return 'process';
  }
}
Process.prototype.hrtime.bigint = () => BigInt(Math.round(performance.now() * 1e6));

export const process = new Process();

/** Takes what a run is started with. */
export function beginProcess(environment, folder) {
  began = performance.now();
  surround(environment, folder);
}

/** Sets what is around a program: variables, and the folder it is in. */
export function surround(environment, folder) {
  process.env = Object.fromEntries(environment);
  process.folder = folder ? path.resolve('/', folder) : '/';
}

/** Ends the run: listeners first, then the status, which is `code`, `process.exitCode` or 0. Never returns. */
export function leave(code) {
  if (code !== undefined) process.exitCode = code;
  if (!ending) {
    ending = true;
    try {
      process.emit('exit', Number(process.exitCode ?? 0));
    } catch (error) {
      say(2, uncaught(error));
      process.exitCode = 1;
    }
  }
  exitWithCode(Number(process.exitCode ?? 0) & 0xff);
}
