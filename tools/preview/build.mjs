// Builds the page: node build.mjs FOLDER

import { copyFile, mkdir } from 'node:fs/promises';
import { build } from 'esbuild';

const [folder] = process.argv.slice(2);
const here = (name) => new URL(name, import.meta.url).pathname;

await mkdir(folder, { recursive: true });
await build({
  entryPoints: [here('page/page.jsx')],
  outfile: `${folder}/page.js`,
  bundle: true,
  format: 'esm',
  platform: 'browser',
  jsx: 'automatic',
  minify: true,
  logLevel: 'error',
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  loader: { '.svg': 'text', '.woff': 'empty', '.woff2': 'empty', '.ttf': 'empty', '.png': 'empty' },
});
await copyFile(here('page/index.html'), `${folder}/index.html`);
