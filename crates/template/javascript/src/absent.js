// What a snapshot cannot have, told in one clear error that names the backend which has it.

export function elsewhere(what) {
  return `this JavaScript is a WebAssembly snapshot without ${what}; run it with --isolation process`;
}

const WHY = {
  processes: ['child_process', 'cluster'],
  threads: ['worker_threads'],
  sockets: ['net', 'dgram', 'dns', 'dns/promises', 'tls', 'http', 'https', 'http2', 'inspector'],
  'the debugger of node': ['repl', 'v8', 'vm', 'trace_events', 'diagnostics_channel', 'async_hooks'],
  'this module of node': ['crypto', 'zlib', 'stream', 'stream/promises', 'readline', 'readline/promises', 'tty',
    'string_decoder', 'querystring', 'punycode', 'perf_hooks', 'sqlite', 'wasi', 'domain', 'constants', 'test'],
};

/** Why a module of node is not there; `undefined` for what is none. */
export function absence(name) {
  const found = Object.entries(WHY).find(([, names]) => names.includes(name));
  return found && elsewhere(found[0]);
}

/** In place of `fetch`. */
export async function fetch() {
  throw new TypeError(`fetch failed: ${elsewhere('sockets')}`);
}
