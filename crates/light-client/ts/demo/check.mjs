// Loads the page in a headless Chromium and checks its content: with a server that answers from the
// golden vectors, and with a node if one is given.
//
//     node demo/check.mjs CHROMIUM [RPC_URL [ADDRESS [PARAMS_HEIGHT]]]
import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { node, serve } from './serve.mjs';

/** The first of the accounts that development chains fund. */
const DEV_ACCOUNT = '0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266';

const [chromium, rpcUrl, given, height = ''] = process.argv.slice(2);
const address = given || DEV_ACCOUNT;
const profile = mkdtempSync(join(tmpdir(), 'light-client-'));
let failures = 0;

/** The content of the page: its state and its lines. */
async function page(base, fields) {
  const query = new URLSearchParams({ rpc: '/rpc', run: '1', ...fields });
  const flags = ['--headless', '--no-sandbox', '--disable-gpu', `--user-data-dir=${profile}`];
  const args = [...flags, '--virtual-time-budget=60000', '--dump-dom', `${base}/demo/index.html?${query}`];
  const { stdout } = await promisify(execFile)(chromium, args, { timeout: 120_000, maxBuffer: 1 << 24 });
  const [, state, content] = /<div id="result"[^>]*data-state="(\w+)"[^>]*>(.*?)<\/div>/s.exec(stdout) ?? [];
  const lines = (content ?? '').replaceAll('</p>', '\n').replaceAll(/<[^>]*>/g, '');
  return { state: state ?? 'nothing', lines };
}

async function expect(what, base, fields, state, text) {
  const shown = await page(base, fields);
  const isRight = shown.state === state && shown.lines.includes(text);
  failures += isRight ? 0 : 1;
  console.log(`${isRight ? 'ok' : 'FAILED'}: ${what}: ${shown.lines.trim().replaceAll('\n', '; ')}`);
}

function vectors(name) {
  const file = new URL(`../../vectors/${name}`, import.meta.url);
  const { cases } = JSON.parse(readFileSync(file, 'utf8'));
  return (name) => cases.find((one) => one.name === name);
}

/** Answers every request with the same answer. */
function always(answer) {
  return () => JSON.stringify({ jsonrpc: '2.0', id: 1, result: answer });
}

async function withServer(answer, work) {
  const { server, url } = await serve(answer);
  await work(url).finally(() => server.closeAllConnections() ?? server.close());
}

function balance(wei) {
  return `(${BigInt(wei)} wei)`;
}

async function fromVectors() {
  const { answer } = vectors('answers.json')('under a root').question;
  const { root, account } = answer;
  const asked = { address: answer.address, root };
  await withServer(always(answer), async (url) => {
    await expect('mpt under a root', url, asked, 'verified', balance(account.balance));
    const checkpoint = { ...asked, block: String(BigInt(answer.block)) };
    await expect('mpt under a checkpoint', url, checkpoint, 'verified', 'pinned by hand');
    await expect('another root', url, { ...asked, root: answer.blockHash }, 'refused', 'root:');
    await expect('another question', url, { ...asked, address: DEV_ACCOUNT }, 'failed', 'another question');
  });
  const rich = { ...answer, account: { ...account, balance: '0x3635c9adc5dea00000' } };
  await withServer(always(rich), async (url) => {
    await expect('a made-up balance', url, asked, 'refused', 'claim:');
  });
  const lvmt = vectors('lvmt.json')('height 3: an account under a checkpoint').question.answer;
  const checkpoint = { address: lvmt.address, root: lvmt.root, block: String(BigInt(lvmt.block)) };
  await withServer(always(lvmt), async (url) => {
    const dev = { ...checkpoint, dev: '3' };
    await expect('lvmt under a checkpoint', url, dev, 'verified', balance(lvmt.account.balance));
    await expect('lvmt without parameters', url, checkpoint, 'refused', 'kind:');
    const later = { ...dev, block: String(BigInt(lvmt.block) + 1n) };
    await expect('lvmt, another block', url, later, 'refused', 'block:');
  });
  const { answer: cole } = vectors('cole.json')('COLE*: an account under a checkpoint').question;
  const later = { address: cole.address, root: cole.root, block: String(BigInt(cole.block)) };
  await withServer(always(cole), async (url) => {
    const trusted = { ...later, cole: cole.params };
    await expect('cole under a checkpoint', url, trusted, 'verified', balance(cole.account.balance));
    await expect('cole without parameters', url, later, 'refused', 'kind:');
  });
  const { answer: old } = vectors('cole.json')('COLE*: an old account under a later root').question;
  await withServer(always(old), async (url) => {
    const trusted = { ...later, cole: cole.params };
    await expect('cole, an older state', url, trusted, 'failed', 'another question');
  });
}

async function fromNode() {
  const ask = node(rpcUrl);
  const call = (method, params) => ask(JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }));
  const { result: block } = JSON.parse(await call('eth_getBlockByNumber', ['latest', false]));
  const { result } = JSON.parse(await call('eth_getBalance', [address, block.number]));
  const { result: backend } = JSON.parse(await call('state_backend', []));
  await withServer(ask, async (url) => {
    const pinned = { dev: height, cole: backend.backend === 'cole' ? backend.params : '' };
    const asked = { address, hash: block.hash, ...pinned };
    await expect(`${rpcUrl}, ${JSON.stringify(backend)}`, url, asked, 'verified', balance(result));
    const wrong = { address, root: `0x${'11'.repeat(32)}`, ...pinned };
    await expect(`${rpcUrl}, another root`, url, wrong, 'refused', 'root:');
  });
}

try {
  await fromVectors();
  if (rpcUrl) await fromNode();
} finally {
  rmSync(profile, { recursive: true, force: true });
}
process.exitCode = failures === 0 ? 0 : 1;
