// `util.inspect` and `util.format`, as far as programs print with them.

const WIDTH = 72;
const ITEMS_MAX = 100;
const plain = /^[A-Za-z_$][\w$]*$/;

function quote(text) {
  const body = text.replace(/[\\\n\r\t\b\f\v\0]/g, (c) => JSON.stringify(c).slice(1, -1).replace('\\u0000', '\\0').replace('\\u000b', '\\v'));
  if (!text.includes("'")) return `'${body}'`;
  if (!text.includes('"')) return `"${body}"`;
  return text.includes('`') ? `'${body.replaceAll("'", "\\'")}'` : `\`${body}\``;
}

function primitive(value) {
  switch (typeof value) {
    case 'string': return quote(value);
    case 'bigint': return `${value}n`;
    case 'number': return Object.is(value, -0) ? '-0' : String(value);
    default: return String(value);
  }
}

function className(value) {
  const prototype = Object.getPrototypeOf(value);
  if (prototype === null) return null;
  return typeof prototype.constructor === 'function' ? prototype.constructor.name : '';
}

function functionHead(value) {
  const text = Function.prototype.toString.call(value);
  if (text.startsWith('class')) {
    const parent = Object.getPrototypeOf(value)?.name;
    return `[class ${value.name || '(anonymous)'}${parent ? ` extends ${parent}` : ''}]`;
  }
  return value.name ? `[${className(value) || 'Function'}: ${value.name}]` : `[${className(value) || 'Function'} (anonymous)]`;
}

function rows(depth, seen, options, value) {
  const nested = (item) => show(item, depth + 1, seen, options);
  const items = [];
  const more = (count) => {
    if (count > 0) items.push(`... ${count} more item${count > 1 ? 's' : ''}`);
  };
  if (Array.isArray(value) || (ArrayBuffer.isView(value) && !(value instanceof DataView))) {
    const shown = Math.min(value.length, ITEMS_MAX);
    let holes = 0;
    const flush = () => {
      if (holes) items.push(`<${holes} empty item${holes > 1 ? 's' : ''}>`);
      holes = 0;
    };
    for (let at = 0; at < shown; at += 1) {
      if (at in value) {
        flush();
        items.push(nested(value[at]));
      } else holes += 1;
    }
    flush();
    more(value.length - shown);
  } else if (value instanceof Map) {
    for (const [key, item] of value) items.push(`${nested(key)} => ${nested(item)}`);
  } else if (value instanceof Set) {
    for (const item of value) items.push(nested(item));
  }
  return items;
}

function properties(depth, seen, options, value, skipIndices) {
  const items = [];
  for (const key of Reflect.ownKeys(value)) {
    const property = Reflect.getOwnPropertyDescriptor(value, key);
    if (!property.enumerable || (skipIndices && typeof key === 'string' && /^\d+$/.test(key))) continue;
    const name = typeof key === 'symbol' ? `[${String(key)}]` : plain.test(key) ? key : quote(key);
    const accessor = property.get ? (property.set ? '[Getter/Setter]' : '[Getter]') : '[Setter]';
    items.push(`${name}: ${'value' in property ? show(property.value, depth + 1, seen, options) : accessor}`);
  }
  return items;
}

/** What stands before the braces; a string alone where there is nothing to put in them. */
function prefix(value, name) {
  if (value instanceof Map || value instanceof Set) return `${name}(${value.size}) `;
  if (Array.isArray(value)) return name === 'Array' ? '' : `${name}(${value.length}) `;
  if (ArrayBuffer.isView(value) && 'length' in value) return `${name}(${value.length}) `;
  if (name === null) return '[Object: null prototype] ';
  const tag = value[Symbol.toStringTag];
  const suffix = typeof tag === 'string' && tag && tag !== name ? `[${tag}] ` : '';
  return name === 'Object' && !suffix ? '' : `${name} ${suffix}`;
}

/** Objects that are one word, to which properties may be added. */
function word(value) {
  if (typeof value === 'function') return functionHead(value);
  if (value instanceof Error) {
    const stack = value.stack;
    return stack && typeof stack === 'string' ? stack : `[${String(value)}]`;
  }
  if (value instanceof RegExp) return String(value);
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? 'Invalid Date' : value.toISOString();
  if (value instanceof Promise) return 'Promise { ? }';
  if (value instanceof WeakMap || value instanceof WeakSet) return `${className(value)} { <items unknown> }`;
  if (value instanceof ArrayBuffer) return `ArrayBuffer { byteLength: ${value.byteLength} }`;
  for (const kind of [String, Number, Boolean, Symbol, BigInt]) {
    if (value instanceof kind) return `[${kind.name}: ${primitive(value.valueOf())}]`;
  }
  if (typeof URL === 'function' && value instanceof URL) return `URL { href: ${quote(value.href)} }`;
  return null;
}

function show(value, depth, seen, options) {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return primitive(value);
  if (seen.includes(value)) return '[Circular *1]';
  const custom = value[inspect.custom];
  if (typeof custom === 'function') {
    const shown = custom.call(value, options.depth - depth, options, inspect);
    return typeof shown === 'string' ? shown : show(shown, depth, seen, options);
  }
  const single = word(value);
  const name = className(value);
  if (depth > options.depth) return single ?? (Array.isArray(value) ? '[Array]' : `[${name || 'Object'}]`);
  const inner = [...seen, value];
  const list = Array.isArray(value) || (ArrayBuffer.isView(value) && 'length' in value);
  const items = single ? [] : rows(depth, inner, options, value);
  items.push(...properties(depth, inner, options, value, list || value instanceof String));
  if (value instanceof Error && value.cause !== undefined) {
    items.push(`[cause]: ${show(value.cause, depth + 1, inner, options)}`);
  }
  if (single) return items.length ? `${single} ${braces('{', '}', items, depth)}` : single;
  const [open, close] = list ? ['[', ']'] : ['{', '}'];
  return prefix(value, name) + braces(open, close, items, depth);
}

function braces(open, close, items, depth) {
  if (!items.length) return open + close;
  const indent = '  '.repeat(depth + 1);
  const total = items.reduce((sum, item) => sum + item.length + 2, 0);
  const short = total + 2 * depth <= WIDTH && !items.some((item) => item.includes('\n'));
  if (short && (open === '{' || items.length <= 6 || total <= WIDTH)) return `${open} ${items.join(', ')} ${close}`;
  const lines = open === '[' && items.length > 6 ? packed(items, depth) : items;
  return `${open}\n${lines.map((line) => indent + line).join(',\n')}\n${'  '.repeat(depth)}${close}`;
}

/** Items of a long list of short ones, as many on a line as fit. */
function packed(items, depth) {
  const widest = Math.max(...items.map((item) => item.length));
  if (widest > 16 || items.some((item) => item.includes('\n'))) return items;
  const columns = Math.max(1, Math.min(16, Math.floor((WIDTH + 8 - 2 * depth) / (widest + 2))));
  const lines = [];
  for (let at = 0; at < items.length; at += columns) lines.push(items.slice(at, at + columns).join(', '));
  return lines;
}

/** The text of any value. `options.depth` is how deep objects are shown; 2 where left out. */
export function inspect(value, options = {}) {
  const depth = options?.depth === null ? Infinity : options?.depth ?? 2;
  return show(value, 0, [], { ...options, depth });
}
inspect.custom = Symbol.for('nodejs.util.inspect.custom');

/** The text of `console.log` and `util.format`. */
export function format(...values) {
  let text = '';
  let next = 0;
  if (typeof values[0] === 'string') {
    next = 1;
    text = values[0].replace(/%[sdifjoOc%]/g, (mark) => {
      if (mark === '%%') return '%';
      if (next >= values.length) return mark;
      const value = values[next];
      next += 1;
      switch (mark) {
        case '%s': return typeof value === 'object' && value !== null ? inspect(value, { depth: 0 }) : typeof value === 'string' ? value : primitive(value);
        case '%d': return typeof value === 'bigint' ? `${value}n` : typeof value === 'object' ? 'NaN' : String(Number(value));
        case '%i': return String(parseInt(value, 10));
        case '%f': return String(parseFloat(value));
        case '%j': return json(value);
        case '%c': return '';
        default: return inspect(value, { depth: mark === '%o' ? 4 : 2 });
      }
    });
  }
  const rest = values.slice(next).map((value) => (typeof value === 'string' ? value : inspect(value)));
  return (next ? [text, ...rest] : rest).join(' ');
}

function json(value) {
  try {
    return JSON.stringify(value);
  } catch (error) {
    if (/cyclic|circular/i.test(error.message)) return '[Circular]';
    throw error;
  }
}
