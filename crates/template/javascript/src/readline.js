// `readline`: lines of standard input, as events or one after the other.

import EventEmitter from 'events';
import { process } from './process.js';

class Interface extends EventEmitter {
  constructor(input) {
    super();
    this.input = input;
    this.closed = false;
    this.on('newListener', (name) => {
      if (name === 'line' && !this.reading) {
        this.reading = true;
        setTimeout(() => this.read(), 0);
      }
    });
  }
  async read() {
    for await (const line of this) this.emit('line', line);
  }
  close() {
    if (this.closed) return;
    this.closed = true;
    this.emit('close');
  }
  async* [Symbol.asyncIterator]() {
    const decoder = new TextDecoder();
    let kept = '';
    for await (const part of this.input) {
      kept += typeof part === 'string' ? part : decoder.decode(part, { stream: true });
      const lines = kept.split(/\r?\n/);
      kept = lines.pop();
      for (const line of lines) {
        if (this.closed) return;
        yield line;
      }
    }
    if (kept && !this.closed) yield kept;
    this.close();
  }
}

export const readline = {
  Interface,
  createInterface: (options) => new Interface(options?.input ?? process.stdin),
};
