// Writes dist/light-client.html: examples/light-client.html with this package and the verifier of calls in
// WebAssembly put into it. A browser loads no modules from disk, so the page has to be one file.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const file = (path) => fileURLToPath(new URL(path, import.meta.url));
const SOURCE = file('../../../../examples/light-client.html');
const WASM = file('../dist/retrie_light_client.wasm');
const PAGE = file('../dist/light-client.html');
const SCRIPT = /(?<=<script type="module">).*?(?=<\/script>)/s;

if (!existsSync(WASM)) {
  console.error(`error: there is no ${WASM}: \`scripts/check/light-client --wasm\` builds it`);
  process.exit(1);
}
const source = readFileSync(SOURCE, 'utf8');
const { outputFiles } = await build({
  stdin: { contents: SCRIPT.exec(source)[0], resolveDir: file('..'), sourcefile: SOURCE },
  alias: { '@retrie/light-client/retrie_light_client.wasm': WASM, '@retrie/light-client': file('../src/index.ts') },
  loader: { '.wasm': 'binary' },
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  write: false,
});
mkdirSync(file('../dist'), { recursive: true });
writeFileSync(PAGE, source.replace(SCRIPT, () => outputFiles[0].text));
