// `fs`: the synchronous calls over the directories that a run is given, and the others made of them.

import path from 'path-browserify';
import { getDirectories } from 'wasi:filesystem/preopens@0.2.12';
import { process } from './process.js';
import { readBytes, say } from './streams.js';

const CHUNK = 1n << 20n;
const FOLLOW = { symlinkFollow: true };

// WASI's name of an error to that of the system, its number and its words.
const ERRORS = {
  access: ['EACCES', -13, 'permission denied'],
  'bad-descriptor': ['EBADF', -9, 'bad file descriptor'],
  busy: ['EBUSY', -16, 'resource busy or locked'],
  'cross-device': ['EXDEV', -18, 'cross-device link not permitted'],
  exist: ['EEXIST', -17, 'file already exists'],
  'file-too-large': ['EFBIG', -27, 'file too large'],
  'insufficient-space': ['ENOSPC', -28, 'no space left on device'],
  invalid: ['EINVAL', -22, 'invalid argument'],
  'is-directory': ['EISDIR', -21, 'illegal operation on a directory'],
  loop: ['ELOOP', -40, 'too many symbolic links encountered'],
  'name-too-long': ['ENAMETOOLONG', -36, 'name too long'],
  'no-entry': ['ENOENT', -2, 'no such file or directory'],
  'not-directory': ['ENOTDIR', -20, 'not a directory'],
  'not-empty': ['ENOTEMPTY', -39, 'directory not empty'],
  'not-permitted': ['EPERM', -1, 'operation not permitted'],
  quota: ['EDQUOT', -122, 'quota exceeded'],
  'read-only': ['EROFS', -30, 'read-only file system'],
  unsupported: ['ENOTSUP', -95, 'operation not supported'],
};

function failure(word, call, name) {
  const [code, errno, text] = ERRORS[word] ?? ['EIO', -5, `i/o error (${word})`];
  return Object.assign(new Error(`${code}: ${text}, ${call} '${name}'`), { errno, code, syscall: call, path: name });
}

let roots = null;

/** The given directory that `name` is in, and what is left of the name there. */
function locate(name, call) {
  roots ??= getDirectories()
    .map(([descriptor, root]) => [descriptor, path.resolve('/', root)])
    .sort((one, other) => other[1].length - one[1].length);
  const full = process.resolve(name instanceof URL ? decodeURIComponent(name.pathname) : name);
  for (const [descriptor, root] of roots) {
    if (full === root) return [descriptor, '.'];
    if (full.startsWith(root === '/' ? '/' : `${root}/`)) return [descriptor, full.slice(root === '/' ? 1 : root.length + 1)];
  }
  throw failure('no-entry', call, name);
}

/** Does `action` in the directory of `name`, with errors as node has them. */
function at(name, call, action) {
  const [folder, rest] = locate(name, call);
  try {
    return action(folder, rest);
  } catch (error) {
    if (typeof error?.payload !== 'string') throw error;
    throw failure(error.payload, call, name);
  }
}

function open(folder, rest, openFlags, flags, use) {
  const file = folder.openAt(FOLLOW, rest, openFlags, flags);
  try {
    return use(file);
  } finally {
    file[Symbol.dispose]?.();
  }
}

function encodingOf(options) {
  return typeof options === 'string' ? options : options?.encoding;
}

function bytesOf(data, options) {
  return typeof data === 'string' ? Buffer.from(data, encodingOf(options) ?? 'utf8') : new Uint8Array(data.buffer ?? data, data.byteOffset, data.byteLength);
}

export function readFileSync(name, options) {
  const encoding = encodingOf(options);
  const bytes = name === 0 || name === '/dev/stdin' ? readBytes() : at(name, 'open', (folder, rest) => open(folder, rest, {}, { read: true }, (file) => {
    if (file.getType() === 'directory') throw { payload: 'is-directory' };
    const parts = [];
    for (let offset = 0n, end = false; !end;) {
      let part;
      [part, end] = file.read(CHUNK, offset);
      offset += BigInt(part.length);
      parts.push(part);
    }
    return parts.length === 1 ? parts[0] : Buffer.concat(parts);
  }));
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  return encoding ? buffer.toString(encoding) : buffer;
}

function put(name, data, options, append) {
  const bytes = bytesOf(typeof data === 'string' || ArrayBuffer.isView(data) ? data : String(data), options);
  if (name === 1 || name === 2) {
    say(name, bytes);
    return;
  }
  const exclusive = typeof options === 'object' && /x/.test(options?.flag ?? '');
  const adding = append || (typeof options === 'object' && /^a/.test(options?.flag ?? ''));
  at(name, 'open', (folder, rest) => open(folder, rest, { create: true, truncate: !adding, exclusive }, { write: true }, (file) => {
    let offset = adding ? file.stat().size : 0n;
    for (let from = 0; from < bytes.length;) {
      const written = Number(file.write(bytes.subarray(from, from + Number(CHUNK)), offset));
      from += written;
      offset += BigInt(written);
    }
  }));
}

export const writeFileSync = (name, data, options) => put(name, data, options, false);
export const appendFileSync = (name, data, options) => put(name, data, options, true);

function time(stamp) {
  return stamp ? Number(stamp.seconds) * 1000 + stamp.nanoseconds / 1e6 : 0;
}

class Stats {
  constructor(found) {
    this.kind = found.type;
    this.size = Number(found.size);
    this.nlink = Number(found.linkCount);
    this.mode = found.type === 'directory' ? 0o40755 : 0o100644;
    this.atimeMs = time(found.dataAccessTimestamp);
    this.mtimeMs = time(found.dataModificationTimestamp);
    this.ctimeMs = time(found.statusChangeTimestamp);
    this.atime = new Date(this.atimeMs);
    this.mtime = new Date(this.mtimeMs);
    this.ctime = new Date(this.ctimeMs);
    Object.defineProperty(this, 'kind', { enumerable: false });
  }
  isFile() {
    return this.kind === 'regular-file';
  }
  isDirectory() {
    return this.kind === 'directory';
  }
  isSymbolicLink() {
    return this.kind === 'symbolic-link';
  }
}

class Dirent extends Stats {
  constructor(name, parent, type) {
    super({ type, size: 0n, linkCount: 0n });
    for (const key of Object.keys(this)) delete this[key];
    Object.assign(this, { name, parentPath: parent, path: parent });
  }
}

function look(name, options, call, follow) {
  try {
    return at(name, call, (folder, rest) => new Stats(folder.statAt(follow, rest)));
  } catch (error) {
    if (options?.throwIfNoEntry === false && error.code === 'ENOENT') return undefined;
    throw error;
  }
}

export const statSync = (name, options) => look(name, options, 'stat', FOLLOW);
export const lstatSync = (name, options) => look(name, options, 'lstat', {});

export function existsSync(name) {
  try {
    statSync(name);
    return true;
  } catch {
    return false;
  }
}

export function accessSync(name) {
  at(name, 'access', (folder, rest) => folder.statAt(FOLLOW, rest));
}

export function readdirSync(name, options) {
  const found = at(name, 'scandir', (folder, rest) => open(folder, rest, { directory: true }, { read: true }, (directory) => {
    const stream = directory.readDirectory();
    const entries = [];
    for (let entry = stream.readDirectoryEntry(); entry; entry = stream.readDirectoryEntry()) {
      if (entry.name !== '.' && entry.name !== '..') entries.push(entry);
    }
    return entries;
  }));
  const names = [];
  for (const entry of found.sort((one, other) => (one.name < other.name ? -1 : 1))) {
    names.push(options?.withFileTypes ? new Dirent(entry.name, String(name), entry.type) : entry.name);
    if (options?.recursive && entry.type === 'directory') {
      for (const inner of readdirSync(path.join(String(name), entry.name), options)) {
        names.push(options.withFileTypes ? inner : path.join(entry.name, inner));
      }
    }
  }
  return names;
}

export function mkdirSync(name, options) {
  if (!options?.recursive) {
    at(name, 'mkdir', (folder, rest) => folder.createDirectoryAt(rest));
    return undefined;
  }
  if (statSync(name, { throwIfNoEntry: false })?.isDirectory()) return undefined;
  const parent = path.dirname(process.resolve(name));
  const first = existsSync(parent) ? undefined : mkdirSync(parent, options);
  mkdirSync(name);
  return first ?? process.resolve(name);
}

export const unlinkSync = (name) => at(name, 'unlink', (folder, rest) => folder.unlinkFileAt(rest));
export const rmdirSync = (name) => at(name, 'rmdir', (folder, rest) => folder.removeDirectoryAt(rest));

export function rmSync(name, options) {
  const found = lstatSync(name, { throwIfNoEntry: !options?.force });
  if (!found) return;
  if (!found.isDirectory()) {
    unlinkSync(name);
    return;
  }
  if (!options?.recursive) throw failure('is-directory', 'rm', name);
  for (const inner of readdirSync(name)) rmSync(path.join(String(name), inner), options);
  rmdirSync(name);
}

export function renameSync(from, to) {
  const [folder, rest] = locate(to, 'rename');
  at(from, 'rename', (source, name) => source.renameAt(name, folder, rest));
}

export function copyFileSync(from, to) {
  writeFileSync(to, readFileSync(from));
}

export function mkdtempSync(prefix) {
  const name = prefix + Math.random().toString(36).slice(2, 8).padEnd(6, '0');
  mkdirSync(name);
  return name;
}

export function realpathSync(name) {
  accessSync(name);
  return process.resolve(name);
}

const now = {
  readFileSync, writeFileSync, appendFileSync, statSync, lstatSync, accessSync, readdirSync, mkdirSync,
  unlinkSync, rmdirSync, rmSync, renameSync, copyFileSync, mkdtempSync, realpathSync,
};
const promises = {};
const later = {};
for (const [name, call] of Object.entries(now)) {
  const short = name.slice(0, -'Sync'.length);
  promises[short] = async (...args) => call(...args);
  later[short] = (...args) => {
    const done = args.pop();
    promises[short](...args).then((value) => done(null, value), done);
  };
}
later.exists = (name, done) => queueMicrotask(() => done(existsSync(name)));

const constants = { F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1 };
export const fs = { ...now, existsSync, ...later, promises, constants, Stats, Dirent };
promises.constants = constants;
