// Opens dist/light-client.html from disk in a headless Chromium, and checks what it shows: of the golden
// vectors, and of a node if one is given. Where an answer is a vector or forged, the page's `fetch` is replaced.
//
//     node page/check.mjs CHROMIUM [RPC_URL [ADDRESS [LVMT_HEIGHT]]]
import { readFileSync } from 'node:fs';
import { openPage } from './browser.mjs';

/** The first of the accounts that development chains fund. */
const DEV_ACCOUNT = '0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266';
/** Everything empty but what the page requires. */
const NOTHING = { hash: '', second: '', chain: 'dev', root: '', dev: '', cole: '', address: '', slot: '', to: '', data: '' };

const [chromium, rpcUrl, given, height] = process.argv.slice(2);
const address = (given || DEV_ACCOUNT).toLowerCase();
const { evaluate, close } = await openPage(chromium, new URL('../dist/light-client.html', import.meta.url).href);
let failures = 0;

/** Fills the form, submits it, and gives the content of both results. Runs in the page. */
async function submit(fields) {
  const form = document.querySelector('form');
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  const sections = [...document.querySelectorAll('section')];
  sections.forEach((section) => delete section.dataset.state);
  form.requestSubmit();
  while (sections.some((section) => section.dataset.state === 'verifying')) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const lines = (section) => [...section.children].map((line) => line.textContent);
  return Object.fromEntries(sections.map((section) => [section.id, { state: section.dataset.state, lines: lines(section) }]));
}

/** `expected`: the state of each result, and a text in it. */
async function expect(what, fields, expected) {
  const shown = await evaluate(`(${submit})(${JSON.stringify({ ...NOTHING, ...fields })})`);
  for (const [id, [state, text]] of Object.entries(expected)) {
    const { state: got, lines } = shown[id];
    const isRight = got === state && lines.join('\n').includes(text);
    failures += isRight ? 0 : 1;
    console.log(`${isRight ? 'ok' : 'FAILED'}: ${what}: ${lines.join('; ')}`);
  }
}

/** The page's requests get these results, by method. */
async function answering(results) {
  await evaluate(`globalThis.realFetch ??= fetch;
    globalThis.fetch = async (_url, { body }) =>
      new Response(JSON.stringify({ result: (${JSON.stringify(results)})[JSON.parse(body).method] }));`);
}

/** `change(method, result)` changes what a node answers. Runs in the page. */
async function forging(change) {
  await evaluate(`globalThis.realFetch ??= fetch;
    globalThis.fetch = async (url, options) => {
      const json = await (await realFetch(url, options)).json();
      (${change})(JSON.parse(options.body).method, json.result);
      return new Response(JSON.stringify(json));
    };`);
}

async function asItIs() {
  await evaluate('globalThis.fetch = globalThis.realFetch ?? fetch; undefined');
}

function vectors(name) {
  return JSON.parse(readFileSync(new URL(`../../vectors/${name}`, import.meta.url), 'utf8'));
}

const inWei = (balance) => `(${BigInt(balance)} wei)`;

async function balancesOfVectors() {
  const questions = [
    ['answers.json', 'under a root', () => ({})],
    ['lvmt.json', 'height 3: an account under a checkpoint', () => ({ dev: '3' })],
    ['cole.json', 'COLE*: an account under a checkpoint', ({ params }) => ({ cole: params })],
  ];
  for (const [file, name, pinned] of questions) {
    const { answer } = vectors(file).cases.find((one) => one.name === name).question;
    const asked = { address: answer.address, hash: answer.blockHash, root: answer.root, ...pinned(answer) };
    await answering({ state_getProof: answer });
    const balance = ['verified', inWei(answer.account.balance)];
    await expect(`${answer.backend}, a balance`, asked, { balance });
    await expect('another root', { ...asked, root: answer.blockHash }, { balance: ['refused', 'root:'] });
    await expect('another question', { ...asked, address: DEV_ACCOUNT }, { balance: ['failed', 'another question'] });
    if (answer.backend === 'mpt') continue;
    await expect('no parameters', { ...asked, dev: '', cole: '' }, { balance: ['refused', 'kind:'] });
  }
}

async function callsOfVectors() {
  const { chain, cases } = vectors('calls/calls.json');
  for (const { name, of, with: changed, question: own, expect: wanted } of cases) {
    const { request, answer, hash, root = '', params } = own ?? cases.find((one) => one.name === of).question;
    const dev = params.lvmt ? String(Number(params.lvmt[0].slice(0, 4))) : '';
    const asked = { chain, hash, root, dev, cole: params.cole?.[0] ?? '', data: request.data };
    await answering({ state_call: { ...answer, ...changed } });
    const call = wanted.error ? ['refused', `${wanted.error}:`] : ['verified', `returns ${wanted.output}`];
    await expect(of ? `${of}, ${name}` : `${name}, a call`, asked, { call });
  }
}

async function rpc(method, ...params) {
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params });
  const headers = { 'content-type': 'application/json' };
  const { result, error } = await (await fetch(rpcUrl, { method: 'POST', headers, body })).json();
  if (error) throw new Error(`${method}: ${error.message}`);
  return result;
}

/** A call that a token of a development chain answers; elsewhere code that returns the balance. */
async function someCall() {
  const [from] = await rpc('eth_accounts').catch(() => []);
  if (from === undefined) return { data: `0x73${address.slice(2)}315f5260205ff3` };
  const artifact = new URL('../../../lab/bench/contracts/Token.json', import.meta.url);
  const word = (hex) => hex.padStart(64, '0');
  const named = [word('40'), word('80'), word('1'), '54'.padEnd(64, '0'), word('1'), '54'.padEnd(64, '0')].join('');
  const send = async (tx) => {
    const hash = await rpc('eth_sendTransaction', { from, gas: '0x300000', ...tx });
    for (let tries = 0; tries < 100; tries++) {
      const receipt = await rpc('eth_getTransactionReceipt', hash);
      if (receipt) return receipt;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`transaction ${hash} is in no block`);
  };
  const { bytecode } = JSON.parse(readFileSync(artifact, 'utf8'));
  const { contractAddress: to } = await send({ data: bytecode + named });
  await send({ to, data: `0x40c10f19${word(from.slice(2))}${word('3039')}` }); // mint(from, 12345)
  return { to, data: `0x70a08231${word(from.slice(2))}` }; // balanceOf(from)
}

async function fromNode() {
  await asItIs();
  const asking = await someCall();
  const [block, backend] = [await rpc('eth_getBlockByNumber', 'latest', false), await rpc('state_backend')];
  const [wei, output] = [await rpc('eth_getBalance', address, block.number), await rpc('eth_call', asking, block.number)];
  const root = backend.stateRoot === 'shadow' ? (await rpc('state_getRoot', block.number)).root : '';
  const pinned = { root, dev: backend.backend === 'lvmt' ? height || '16' : '', cole: backend.backend === 'cole' ? backend.params : '' };
  const asked = { rpc: rpcUrl, hash: block.hash, address, ...asking, ...pinned };
  const right = { balance: ['verified', inWei(wei)], call: ['verified', `returns ${output}`] };
  await expect(`${rpcUrl}, ${backend.backend}`, asked, right);
  await expect('once more', asked, right);
  await expect('the newest block of a second node', { ...asked, hash: '', second: rpcUrl }, right);
  await expect('a block that the node does not know', { ...asked, hash: `0x${'11'.repeat(32)}` }, {
    balance: ['failed', 'state_getProof:'],
    call: ['failed', 'state_call:'],
  });
  // What a node does that lies.
  await forging((method, result) => {
    if (method === 'state_getProof') result.account.balance = '0x3635c9adc5dea00000';
    if (method === 'state_call') result.output = result.output.replace(/.$/, (digit) => (digit === '1' ? '2' : '1'));
  });
  await expect('made-up values', asked, { balance: ['refused', 'claim:'], call: ['refused', 'claim:'] });
  await forging((method, result) => {
    if (method.startsWith('state_')) result.proof = result.proof.replace(/.$/, (digit) => (digit === '1' ? '2' : '1'));
  });
  await expect('proofs with another last byte', asked, { balance: ['refused', ''], call: ['refused', ''] });
  await forging((method, result) => {
    if (method === 'eth_getBlockByHash') result.stateRoot = `0x${'11'.repeat(32)}`;
    if (method === 'state_call') result.headers = [];
  });
  const header = ['refused', 'header:'];
  await expect('another header', { ...asked, ...(root ? { address: '' } : {}) }, root ? { call: header } : { balance: header, call: header });
  await forging((method, result) => {
    if (method === 'state_call') result.gas = '0xffffffffffffff';
  });
  await expect('gas without end', asked, { call: ['refused', 'call:'] });
}

try {
  await balancesOfVectors();
  await callsOfVectors();
  if (rpcUrl) await fromNode();
} finally {
  await close();
}
process.exitCode = failures === 0 ? 0 : 1;
