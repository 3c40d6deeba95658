// Makes the component: `node build.mjs OUTPUT WIT ENTRY`, in a folder with the packages of `package.json`.
//
// The working directory must hold nothing but this build. Its path is in the arguments that the engine
// keeps; the caller takes it out of the component.

import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';
import { build } from 'esbuild';

const [output, witPath, entry] = process.argv.slice(2);

await build({
  entryPoints: [entry],
  bundle: true,
  format: 'esm',
  target: 'es2022',
  platform: 'neutral',
  mainFields: ['module', 'main'],
  external: ['wasi:*'],
  outfile: 'app.js',
  legalComments: 'none',
});

const { component } = await componentize({
  sourcePath: 'app.js',
  witPath,
  worldName: 'command',
  disableFeatures: ['http', 'fetch-event'],
  env: {},
});
await writeFile(output, component);
