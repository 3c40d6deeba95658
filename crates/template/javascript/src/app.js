// The JavaScript of a snapshot template: a `wasi:cli/command` that behaves like `node`.
//
// componentize-js evaluates this module while the template is built and stores the memory of the
// engine afterwards. Every run starts from that memory, so no secret, open file, clock reading or random
// number of the build may be kept here. Where to start: `run`, which is what happens in every run.

import { getArguments, getEnvironment, initialCwd } from 'wasi:cli/environment@0.2.12';
import { exitWithCode } from 'wasi:cli/exit@0.2.12';
import { installGlobals } from './globals.js';
import { elsewhere } from './absent.js';
import { forget, uncaught } from './errors.js';
import { inspect } from './inspect.js';
import { Modules } from './modules.js';
import { beginProcess, leave, process, surround } from './process.js';
import { muted, readAll, say } from './streams.js';
import { settled, watch } from './timers.js';

const USAGE = 'usage: javascript [-e code | -p code | --script name text | file | -] [arg ...]';
const HELP = `${USAGE}
This JavaScript is a snapshot in WebAssembly. Options:
-e, --eval code      the program is code
-p, --print code     the same, and its value is printed
--script name text   the program is text; it is told as the file name
-                    read the program from standard input (the default)
-v, --version        version
-h, --help           this text
`;

class Usage extends Error {}

installGlobals();

export const run = {
  async run() {
    beginProcess(getEnvironment(), initialCwd());
    try {
      await start(getArguments().slice(1));
    } catch (error) {
      if (error instanceof Usage) {
        say(2, `javascript: ${error.message}\n${USAGE}\n`);
        exitWithCode(9);
      }
      fail(error);
    }
    leave(undefined);
  },
};

/** Ends the run with what `error` says, as an error that nobody caught does. */
function fail(error) {
  if (process.emit('uncaughtException', error, 'uncaughtException')) return;
  say(2, uncaught(error));
  leave(1);
}

watch(fail);

/** Reads the command line and runs the program until nothing is left to wait for. */
async function start(words) {
  const program = read(words);
  if (!program) return;
  const value = await settled(carryOut(program), fail);
  if (program.print) print(value);
}

function carryOut(program) {
  process.argv = ['javascript', ...(program.path ? [program.path] : []), ...program.rest];
  const modules = new Modules();
  return program.text === undefined
    ? modules.runFile(program.path)
    : modules.runText(program.text, program.name, program.path);
}

function print(value) {
  say(1, `${typeof value === 'string' ? value : inspect(value)}\n`);
}

function read(words) {
  const value = (option) => {
    if (!words.length) throw new Usage(`${option} requires an argument`);
    return words.shift();
  };
  const word = words.shift();
  switch (word) {
    case '-v': case '--version':
      say(1, `${process.version}\n`);
      return null;
    case '-h': case '--help':
      say(1, HELP);
      return null;
    case '-e': case '--eval': case '-p': case '--print': case '-pe':
      return { text: value(word), name: '[eval]', print: word.includes('p'), rest: rest(words) };
    case '--script': {
      const path = value(word);
      return { text: value(word), name: path, path, rest: words };
    }
    case undefined: case '-':
      return { text: readAll(), name: '[stdin]', path: word, rest: words };
    default:
      if (word.startsWith('-')) throw new Usage(`bad option: ${word}; ${elsewhere('the options of node')}`);
      return { path: process.resolve(word), rest: words };
  }
}

function rest(words) {
  return words[0] === '--' ? words.slice(1) : words;
}

/** Goes the way of a run while the template is built: what the engine makes of each function at its first call is in
 * the snapshot then. It leaves nothing else. */
function rehearse() {
  const programs = [
    ['-e', "console.log(1, 'a', [1, { a: 1 }])"],
    ['-p', '1'],
    ['--script', '/rehearsal.js', "process.stdout.write('a'); console.log(`${1}`)"],
  ];
  muted(() => {
    for (const words of programs) {
      surround([['A', 'b']], '/');
      const program = read(words);
      const value = carryOut(program);
      if (program.print) print(value);
      forget(program.name);
    }
    process.emit('exit', 0);
  });
  surround([], '');
  process.argv = [];
}

rehearse();
