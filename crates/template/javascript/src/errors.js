// Errors as node shows them: `stack` begins with the message, and frames read `at f (file:line:column)`.

import { inspect } from './inspect.js';

const raw = Object.getOwnPropertyDescriptor(Error.prototype, 'stack');
const sources = new Map();

/** Keeps the text of a file, to show the line of an uncaught error. */
export function remember(name, text) {
  sources.set(name, text);
}

/** Lets go of the text of a file. */
export function forget(name) {
  sources.delete(name);
}

/** Frames of `error` as the engine tells them, without those of the runner. */
function frames(error) {
  const found = [];
  for (const frame of String(raw.get.call(error) ?? '').split('\n')) {
    const parts = /^(.*?)@(.*?)(?: line (\d+) > (?:eval|Function))?:(\d+):(\d+)$/.exec(frame);
    if (!parts) continue;
    const [, called, file, , line, column] = parts;
    // What is below the program is the runner's.
    if (file.endsWith('app.js') || file.includes('initializer.js')) continue;
    const name = called.split('*').pop().replace(/\/<$/, '').replace(/^\/|<$/g, '');
    found.push({ name, file, line: Number(line), column: Number(column) });
  }
  return found;
}

function head(error) {
  const name = error.name === undefined ? 'Error' : String(error.name);
  const message = error.message === undefined ? '' : String(error.message);
  return !message ? name : !name ? message : `${name}: ${message}`;
}

/** Gives every error the `stack` of node. */
export function installStacks() {
  Object.defineProperty(Error.prototype, 'stack', {
    configurable: true,
    get() {
      if (raw.get.call(this) === undefined) return undefined;
      const lines = frames(this).map(({ name, file, line, column }) => {
        const place = `${file}:${line}:${column}`;
        return name ? `    at ${name} (${place})` : `    at ${place}`;
      });
      return [head(this), ...lines].join('\n');
    },
    set(value) {
      Object.defineProperty(this, 'stack', { value, writable: true, configurable: true });
    },
  });
  Error.captureStackTrace = (target) => {
    const stack = new Error().stack.split('\n');
    stack.splice(0, 2, head(target));
    Object.defineProperty(target, 'stack', { value: stack.join('\n'), writable: true, configurable: true });
  };
}

/** What is printed for an error that nobody caught. */
export function uncaught(error) {
  if (!(error instanceof Error)) {
    return `Uncaught:\n${inspect(error)}\n`;
  }
  const [top] = frames(error);
  // A program that does not parse has no frames of its own.
  const place = error.place ?? top;
  const text = place && sources.get(place.file)?.split('\n')[place.line - 1];
  const where = text === undefined ? '' : `${place.file}:${place.line}\n${text}\n${' '.repeat(place.column - 1)}^\n\n`;
  return `${where}${inspect(error)}\n`;
}
