// `assert`.

import { inspect } from './inspect.js';

class AssertionError extends Error {
  constructor({ message, actual, expected, operator }) {
    super(message);
    Object.assign(this, { code: 'ERR_ASSERTION', actual, expected, operator, generatedMessage: false });
    Object.defineProperty(this, 'name', { value: 'AssertionError', enumerable: false });
  }
}

/** Whether two values are the same in all their parts. */
export function equal(one, other, strict, seen = []) {
  if (strict ? Object.is(one, other) : one == other || Object.is(one, other)) return true; // eslint-disable-line eqeqeq
  if (typeof one !== 'object' || typeof other !== 'object' || one === null || other === null) return false;
  if (strict && Object.getPrototypeOf(one) !== Object.getPrototypeOf(other)) return false;
  if (seen.some(([a, b]) => a === one && b === other)) return true;
  const inner = [...seen, [one, other]];
  const same = (a, b) => equal(a, b, strict, inner);
  if (one instanceof Date && other instanceof Date) return one.getTime() === other.getTime();
  if (one instanceof RegExp && other instanceof RegExp) return String(one) === String(other);
  if (one instanceof Error && (one.name !== other.name || one.message !== other.message)) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  if (one instanceof Map || one instanceof Set) {
    if (!(other instanceof one.constructor) || one.size !== other.size) return false;
    const rest = [...other];
    return [...one].every((item) => {
      const at = rest.findIndex((candidate) => same(item, candidate));
      return at >= 0 && rest.splice(at, 1).length === 1;
    });
  }
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => Object.hasOwn(other, key) && same(one[key], other[key]));
}

function check(held, message, fallback, details) {
  if (held) return;
  if (message instanceof Error) throw message;
  throw new AssertionError({ message: message ?? fallback, ...details });
}

function compare(name, test) {
  return (actual, expected, message) => check(
    test(actual, expected),
    message,
    `Expected values to satisfy ${name}:\n\n${inspect(actual)}\n\n${inspect(expected)}\n`,
    { actual, expected, operator: name },
  );
}

function matches(error, expected) {
  if (expected === undefined) return true;
  if (expected instanceof RegExp) return expected.test(String(error));
  if (typeof expected === 'function') {
    return expected.prototype !== undefined && error instanceof expected ? true : !(expected.prototype instanceof Error || expected === Error) && expected(error) === true;
  }
  return Object.entries(expected).every(([key, value]) => (value instanceof RegExp ? value.test(error[key]) : equal(error[key], value, true)));
}

function throws(call, expected, message) {
  try {
    call();
  } catch (error) {
    if (!matches(error, expected)) throw error;
    return;
  }
  check(false, message, 'Missing expected exception.', { operator: 'throws' });
}

async function rejects(promise, expected, message) {
  try {
    await (typeof promise === 'function' ? promise() : promise);
  } catch (error) {
    if (!matches(error, expected)) throw error;
    return;
  }
  check(false, message, 'Missing expected rejection.', { operator: 'rejects' });
}

function make(strict) {
  const ok = (value, message) => check(value, message, `The expression evaluated to a falsy value: ${inspect(value)}`, { actual: value, expected: true, operator: '==' });
  const loose = (one, other) => (strict ? Object.is(one, other) : one == other); // eslint-disable-line eqeqeq
  const assert = (value, message) => ok(value, message);
  return Object.assign(assert, {
    ok, throws, rejects, AssertionError,
    equal: compare(strict ? 'strictEqual' : 'equal', loose),
    notEqual: compare('notEqual', (one, other) => !loose(one, other)),
    strictEqual: compare('strictEqual', Object.is),
    notStrictEqual: compare('notStrictEqual', (one, other) => !Object.is(one, other)),
    deepEqual: compare('deepEqual', (one, other) => equal(one, other, strict)),
    deepStrictEqual: compare('deepStrictEqual', (one, other) => equal(one, other, true)),
    notDeepStrictEqual: compare('notDeepStrictEqual', (one, other) => !equal(one, other, true)),
    match: compare('match', (text, pattern) => pattern.test(text)),
    doesNotMatch: compare('doesNotMatch', (text, pattern) => !pattern.test(text)),
    doesNotThrow: (call) => call(),
    fail: (message) => check(false, message, 'Failed', { operator: 'fail' }),
  });
}

export const assert = make(false);
assert.strict = make(true);
assert.strict.strict = assert.strict;
