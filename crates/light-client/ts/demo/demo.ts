// The page: requests a proof from a node, verifies it here, and shows only proven values.
// The fields can be filled from the address of the page: ?rpc=..&address=..&hash=..&run=1
import {
  type BlockJson,
  ColeParams,
  type Hex,
  LvmtParams,
  Refused,
  type StateProofAnswer,
  type TrustedRoot,
  Verifier,
  encodeHeader,
} from '../src/index.js';

const form = document.querySelector('form')!;
const result = document.querySelector<HTMLElement>('#result')!;

function field(name: string): string {
  return (form.elements.namedItem(name) as HTMLInputElement).value.trim();
}

async function rpc<T>(method: string, params: unknown[]): Promise<T> {
  const response = await fetch(field('rpc'), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
  });
  const { result, error } = (await response.json()) as { result?: T; error?: { message: string } };
  if (error) throw new Error(`${method}: ${error.message}`);
  if (result === undefined || result === null) throw new Error(`${method}: the node has no answer`);
  return result;
}

/** The trusted root, and the block to ask for. */
async function trustedRoot(): Promise<{ trusted: TrustedRoot; block: string }> {
  const [hash, root, number] = [field('hash'), field('root'), field('block')];
  if (hash) {
    const block = await rpc<BlockJson>('eth_getBlockByHash', [hash, false]);
    const rlp = encodeHeader(block);
    return { trusted: { kind: 'header', hash: hash as Hex, rlp }, block: String(block['number']) };
  }
  if (!root) throw new Error('give the hash of a block, or a root');
  if (!number) return { trusted: { kind: 'root', root: root as Hex }, block: 'latest' };
  const block = BigInt(number);
  const trusted: TrustedRoot = { kind: 'checkpoint', block, root: root as Hex };
  return { trusted, block: `0x${block.toString(16)}` };
}

/** Parameters of lvmt from a file, or insecure parameters for a height. */
async function pinned(): Promise<LvmtParams[]> {
  const file = (form.elements.namedItem('params') as HTMLInputElement).files?.[0];
  const params: LvmtParams[] = [];
  if (file) params.push(LvmtParams.fromFile(new Uint8Array(await file.slice(0, 4096).arrayBuffer())));
  if (field('dev')) params.push(LvmtParams.insecureDev(Number(field('dev'))));
  return params;
}

async function verify(): Promise<string[]> {
  const [address, slot] = [field('address').toLowerCase(), field('slot').toLowerCase()];
  const slots = slot ? [slot] : [];
  const cole = field('cole') ? [ColeParams.fromDigest(field('cole') as Hex)] : [];
  const verifier = new Verifier({ lvmt: await pinned(), cole });
  const { trusted, block } = await trustedRoot();
  const answer = await rpc<StateProofAnswer>('state_getProof', [address, slots, block]);
  const shown = verifier.answer(answer, trusted);
  // A root of cole also proves older states, which were not requested.
  const isAnswer =
    shown.address === address &&
    shown.storage.map(({ slot }) => slot).join() === slot &&
    shown.asOf === undefined;
  if (!isAnswer) throw new Error('the node has answered another question');
  const { account, storage, trust } = shown;
  return [
    account ? `balance ${ether(account.balance)} ether (${account.balance} wei)` : 'no such account',
    ...(account ? [`nonce ${account.nonce}, code hash ${account.codeHash}`] : []),
    ...storage.map(({ slot, value }) => `slot ${slot} holds ${value}`),
    ...trust.sentences,
  ];
}

function ether(wei: bigint): string {
  const [whole, part] = [wei / 10n ** 18n, (wei % 10n ** 18n).toString().padStart(18, '0')];
  return `${whole}.${part}`.replace(/\.?0+$/, '');
}

function show(state: string, lines: string[]): void {
  result.dataset['state'] = state;
  result.replaceChildren(
    ...[state, ...lines].map((line) => {
      const paragraph = document.createElement('p');
      paragraph.textContent = line;
      return paragraph;
    }),
  );
}

async function run(): Promise<void> {
  show('verifying', []);
  try {
    show('verified', await verify());
  } catch (error) {
    const isRefused = error instanceof Refused;
    const message = error instanceof Error ? error.message : String(error);
    show(isRefused ? 'refused' : 'failed', [isRefused ? `${error.errorClass}: ${message}` : message]);
  }
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  void run();
});
const given = new URLSearchParams(location.search);
for (const [name, value] of given) {
  const input = form.elements.namedItem(name);
  if (input instanceof HTMLInputElement && input.type !== 'file') input.value = value;
}
if (given.has('run')) void run();
