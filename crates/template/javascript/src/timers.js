// Timers as node has them, and knowing when nothing is left to wait for.

const native = { setTimeout, clearTimeout, setInterval, clearInterval };
const waiting = new Map();
let idle = null;
let fatal = null;

class Timeout {
  constructor(id) {
    this.id = id;
  }
  ref() {
    if (waiting.has(this.id)) waiting.set(this.id, true);
    return this;
  }
  unref() {
    if (waiting.has(this.id)) waiting.set(this.id, false);
    look();
    return this;
  }
  hasRef() {
    return waiting.get(this.id) === true;
  }
  close() {
    clear(this);
    return this;
  }
  [Symbol.toPrimitive]() {
    return this.id;
  }
  [Symbol.dispose]() {
    clear(this);
  }
}

function busy() {
  for (const holds of waiting.values()) if (holds) return true;
  return false;
}

function look() {
  if (idle && !busy()) idle();
}

function start(again, callback, delay, args) {
  if (typeof callback !== 'function') {
    throw new TypeError('The "callback" argument must be of type function. Received ' + typeof callback);
  }
  const id = (again ? native.setInterval : native.setTimeout)(() => {
    if (!again) waiting.delete(id);
    try {
      callback(...args);
    } catch (error) {
      fatal(error);
    }
    look();
  }, Math.max(Number(delay) || 0, again ? 1 : 0));
  waiting.set(id, true);
  return new Timeout(id);
}

function clear(timer) {
  const id = typeof timer === 'object' && timer !== null ? timer.id : Number(timer);
  if (waiting.delete(id)) native.clearTimeout(id);
  look();
}

/** The globals of this module. */
export const timers = {
  setTimeout: (callback, delay, ...args) => start(false, callback, delay, args),
  setInterval: (callback, delay, ...args) => start(true, callback, delay, args),
  setImmediate: (callback, ...args) => start(false, callback, 0, args),
  clearTimeout: clear,
  clearInterval: clear,
  clearImmediate: clear,
  queueMicrotask: (callback) => {
    Promise.resolve().then(callback).catch((error) => fatal(error));
  },
};

/** Names what an error in a timer is told to. */
export function watch(report) {
  fatal = report;
}

/** Lets every job and every timer end; gives the value of `result`, whose rejection goes to `fail`. */
export async function settled(result, fail) {
  const promised = typeof result?.then === 'function';
  // A promise that is never settled has no value.
  let value = promised ? undefined : result;
  if (promised) result.then((last) => { value = last; }, fail);
  for (;;) {
    // The engine comes to a timer when no job is left.
    await new Promise((resolve) => native.setTimeout(resolve, 0));
    if (!busy()) return value;
    await new Promise((resolve) => { idle = resolve; });
    idle = null;
  }
}
