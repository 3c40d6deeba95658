// Programs and what they require: CommonJS as it stands, ES modules and TypeScript through sucrase.

import path from 'path-browserify';
import { transform } from 'sucrase';
import { absence, elsewhere } from './absent.js';
import { builtin, provide } from './builtins.js';
import { remember } from './errors.js';
import { existsSync, readFileSync, statSync } from './files.js';
import { process } from './process.js';

const EXTENSIONS = ['.js', '.json', '.mjs', '.cjs', '.ts', '.mts', '.cts'];
const TYPED = /\.[mc]?ts$/;
// Words that only a module has, at the start of a line, or an import at any place.
const MODULE = /^\s*(?:import[\s{*'"]|export[\s{*])|\bimport\s*\(|\bimport\.meta\b/m;

const NAMES = ['exports', 'require', 'module', '__filename', '__dirname'];
// Evaluated inside a function, sloppy as CommonJS is; the value of the last expression comes back.
const evaluate = new Function(...NAMES, 'return eval(arguments[5])');

function notFound(name, from) {
  const why = absence(name.replace(/^node:/, ''));
  const hint = why ?? (/^[./]/.test(name) ? 'a WebAssembly run sees only the directories it is given' : `${elsewhere('packages but those in node_modules of its directories, and native add-ons')}`);
  const error = new Error(`Cannot find module '${name}': ${hint}${from ? `\nRequire stack:\n- ${from}` : ''}`);
  return Object.assign(error, { code: 'MODULE_NOT_FOUND', requireStack: from ? [from] : [] });
}

/** The source as CommonJS, on the same lines. */
function translate(text, name, imports) {
  const transforms = [...(TYPED.test(name) ? ['typescript'] : []), ...(imports ? ['imports'] : [])];
  if (!transforms.length) return text;
  const code = transform(text, { transforms, filePath: name, disableESTransforms: true, production: true }).code;
  return code.replaceAll('import.meta.url', JSON.stringify(`file://${name}`)).replaceAll('import.meta.filename', '__filename').replaceAll('import.meta.dirname', '__dirname');
}

/** Whether `error` is that the text of `name` does not parse; the error then says where. */
function unparsed(error, name) {
  if (!(error instanceof SyntaxError)) return false;
  // The engine knows the name of a text only when it has parsed it; sucrase tells the place in the message.
  const place = /\((\d+):(\d+)\)$/.exec(error.message);
  if (!/> (?:eval|Function)$/.test(error.fileName) && !place) return false;
  const [line, column] = place ? [Number(place[1]), Number(place[2])] : [error.lineNumber, error.columnNumber];
  Object.defineProperty(error, 'place', { value: { file: name, line, column } });
  return true;
}

/** What `make` gives; an error in the text is told with its place. */
function compiled(name, make) {
  try {
    return make();
  } catch (error) {
    unparsed(error, name);
    throw error;
  }
}

function file(base) {
  const found = statSync(base, { throwIfNoEntry: false });
  if (found?.isFile()) return base;
  for (const extension of EXTENSIONS) if (existsSync(base + extension)) return base + extension;
  // TypeScript names its files as they are after translation.
  const typed = base.replace(/\.([mc]?)js$/, '.$1ts');
  if (typed !== base && existsSync(typed)) return typed;
  if (!found?.isDirectory()) return null;
  const manifest = path.join(base, 'package.json');
  const inside = existsSync(manifest) ? entry(JSON.parse(readFileSync(manifest, 'utf8')), '.') : null;
  return (inside && file(path.join(base, inside))) ?? (base.endsWith('/index') ? null : file(path.join(base, 'index')));
}

/** What a package gives for `part` of it. */
function entry(manifest, part) {
  const chosen = (target) => {
    if (typeof target === 'string') return target;
    if (Array.isArray(target)) return chosen(target[0]);
    for (const [condition, inner] of Object.entries(target ?? {})) {
      if (['node', 'require', 'import', 'default'].includes(condition)) return chosen(inner);
    }
    return null;
  };
  const { exports } = manifest;
  if (exports !== undefined) {
    const parts = typeof exports === 'object' && Object.keys(exports).some((key) => key.startsWith('.'));
    return chosen(parts ? exports[part] : part === '.' ? exports : null);
  }
  return part === '.' ? manifest.main : part;
}

/** The modules of one run. */
export class Modules {
  constructor() {
    this.cache = Object.create(null);
    provide('module', { createRequire: (from) => this.requireFrom(String(from).replace(/^file:\/\//, '')), builtinModules: [] });
  }

  /** Runs the file as the program; gives the value of its last expression, or its promise. */
  runFile(name) {
    const found = file(name);
    if (!found) throw notFound(name);
    return this.runText(readFileSync(found, 'utf8'), found, found);
  }

  /** Runs `text` as the program. `path` is where it is, if it is anywhere. */
  runText(text, name, where) {
    const source = text.startsWith('#!') ? `//${text}` : text;
    remember(name, source);
    if (name.endsWith('.json')) return JSON.parse(source);
    const place = where && where !== '-' ? process.resolve(where) : process.resolve(name);
    const module = this.module(place);
    module.id = '.';
    this.main = module;
    if (where && where !== '-') this.cache[place] = module;
    const args = this.arguments(module);
    if (!MODULE.test(source) && !/\.[mc]?ts$|\.mjs$/.test(name)) {
      try {
        return evaluate.call(module.exports, ...args, `${source}\n//# sourceURL=${name}`);
      } catch (error) {
        // What awaits outside of a function is a module.
        if (!unparsed(error, name) || !/\bawait\b/.test(source)) throw error;
      }
    }
    return compiled(name, () => {
      const code = translate(source, name, true);
      return evaluate.call(undefined, ...args, `(async () => {${code}\n})()\n//# sourceURL=${name}`);
    });
  }

  module(filename) {
    return { id: filename, filename, path: path.dirname(filename), exports: {}, loaded: false, children: [], paths: [] };
  }

  arguments(module) {
    return [module.exports, this.requireFrom(module.filename), module, module.filename, module.path];
  }

  requireFrom(from) {
    const require = (name) => this.load(String(name), from);
    require.resolve = (name) => this.resolve(String(name), from);
    require.cache = this.cache;
    require.main = this.main;
    return require;
  }

  resolve(name, from) {
    if (builtin(name)) return name;
    const folder = path.dirname(from);
    if (/^\.{0,2}\//.test(name) || name === '.' || name === '..') {
      const found = file(path.resolve(folder, name));
      if (!found) throw notFound(name, from);
      return found;
    }
    const [, package_, part] = /^((?:@[^/]+\/)?[^/]+)(\/.*)?$/.exec(name) ?? [];
    for (let at = folder; package_; at = path.dirname(at)) {
      const base = path.join(at, 'node_modules', package_);
      if (existsSync(base)) {
        const manifest = path.join(base, 'package.json');
        const inside = part && existsSync(manifest) ? entry(JSON.parse(readFileSync(manifest, 'utf8')), `.${part}`) : part;
        const found = file(inside ? path.join(base, inside) : base);
        if (found) return found;
      }
      if (at === '/') break;
    }
    throw notFound(name, from);
  }

  load(name, from) {
    const given = builtin(name);
    if (given) return given;
    const filename = this.resolve(name, from);
    if (this.cache[filename]) return this.cache[filename].exports;
    const module = this.module(filename);
    this.cache[filename] = module;
    try {
      this.fill(module);
    } catch (error) {
      delete this.cache[filename];
      throw error;
    }
    module.loaded = true;
    return module.exports;
  }

  fill(module) {
    const { filename } = module;
    const text = readFileSync(filename, 'utf8');
    if (filename.endsWith('.json')) {
      module.exports = JSON.parse(text);
      return;
    }
    remember(filename, text);
    const imports = /\.m[jt]s$/.test(filename) || MODULE.test(text);
    const body = compiled(filename, () => {
      const code = translate(text, filename, imports);
      return (0, eval)(`(function (${NAMES}) {${code}\n})\n//# sourceURL=${filename}`);
    });
    body.apply(module.exports, this.arguments(module));
  }
}
