// Ethereum's trie (yellow paper, appendix D): docs/formats/mpt.md, "Proof bytes", and EIP-1186.
import { blake2b } from '@noble/hashes/blake2.js';
import { keccak_256 } from '@noble/hashes/sha3.js';
import { concat, equal, fromHex, shortBytes, toHex } from './bytes.js';
import { Refused, malformed, missing, otherRoot, unused } from './errors.js';
import { RlpReader } from './rlp.js';
import { type Account, type StoreKey, encodeAccount, encodeKey, isHashed } from './state.js';

export type Hash = (bytes: Uint8Array) => Uint8Array;

export const HASHES: Record<string, Hash> = {
  keccak256: (bytes) => keccak_256(bytes),
  'blake2b-256': (bytes) => blake2b(bytes, { dkLen: 32 }),
};

/** Returns the node with a hash, and has checked the hash. */
export type Fetch = (hash: Uint8Array) => Uint8Array;

export interface ShownAccount {
  account: Account;
  storageRoot: Uint8Array;
}

/** The encoded values of `keys` under `root`; `null` is absence. */
export function verifyMpt(
  hash: Hash,
  root: Uint8Array,
  keys: readonly StoreKey[],
  proof: Uint8Array,
): (Uint8Array | null)[] {
  const bytes = new RlpReader(proof);
  const parts = bytes.list();
  bytes.end();
  const digest = parts.string(32);
  if (!equal(digest, hash(concat(...keys.map(encodeKey))))) {
    throw new Refused('kind', 'the proof is of other keys');
  }
  const nodes = parts.list();
  parts.end();

  const met = new Map<string, Uint8Array>();
  const fetch: Fetch = (wanted) => {
    const name = toHex(wanted);
    let node = met.get(name);
    if (node === undefined) {
      if (nodes.isEmpty) throw missing('a node on the way');
      node = checked(hash, nodes.string(), wanted);
      met.set(name, node);
    }
    return node;
  };
  const values = keys.map((key) => {
    // A hashed key is the path.
    const path = (name: Uint8Array) => (isHashed(key) ? name : hash(name));
    const shown = accountAt(hash, root, path(fromHex(key.account)), fetch);
    if (shown === null) return null;
    if (key.slot === undefined) return encodeAccount(shown.account);
    return slotAt(hash, shown.storageRoot, path(fromHex(key.slot, 32)), fetch);
  });
  if (!nodes.isEmpty) throw unused();
  return values;
}

/** The account that the nodes of an `accountProof` (EIP-1186) show. */
export function shownAccount(
  root: Uint8Array,
  address: Uint8Array,
  nodes: readonly Uint8Array[],
): ShownAccount | null {
  return inOrder(nodes, (fetch) => accountAt(keccak_256, root, keccak_256(address), fetch));
}

/** The encoded value that the nodes of a slot's `proof` (EIP-1186) show. */
export function shownSlot(
  storageRoot: Uint8Array,
  slot: Uint8Array,
  nodes: readonly Uint8Array[],
): Uint8Array | null {
  return inOrder(nodes, (fetch) => slotAt(keccak_256, storageRoot, keccak_256(slot), fetch));
}

export function emptyRoot(hash: Hash): Uint8Array {
  return hash(Uint8Array.of(0x80));
}

function inOrder<T>(nodes: readonly Uint8Array[], walk: (fetch: Fetch) => T): T {
  let used = 0;
  const shown = walk((wanted) => {
    const node = nodes[used++];
    if (node === undefined) throw missing('a node on the way');
    return checked(keccak_256, node, wanted);
  });
  if (used < nodes.length) throw unused();
  return shown;
}

function checked(hash: Hash, node: Uint8Array, wanted: Uint8Array): Uint8Array {
  if (!equal(hash(node), wanted)) throw otherRoot();
  return node;
}

function accountAt(hash: Hash, root: Uint8Array, path: Uint8Array, fetch: Fetch) {
  const leaf = lookUp(hash, root, path, fetch);
  if (leaf === null) return null;
  const bytes = new RlpReader(leaf);
  const fields = bytes.list();
  bytes.end();
  const [nonce, balance] = [fields.number(8), fields.number(32)];
  const [storageRoot, codeHash] = [fields.string(32), toHex(fields.string(32))];
  fields.end();
  return { account: { nonce, balance, codeHash }, storageRoot };
}

function slotAt(hash: Hash, root: Uint8Array, path: Uint8Array, fetch: Fetch): Uint8Array | null {
  const leaf = lookUp(hash, root, path, fetch);
  if (leaf === null) return null;
  const bytes = new RlpReader(leaf);
  const value = bytes.number(32);
  bytes.end();
  if (value === 0n) throw malformed('a slot that is zero');
  return shortBytes(value);
}

/** The value at a path of 32 bytes; `null` if the nodes show that there is none. */
export function lookUp(
  hash: Hash,
  root: Uint8Array,
  path: Uint8Array,
  fetch: Fetch,
): Uint8Array | null {
  if (equal(root, emptyRoot(hash))) return null;
  let ahead = nibbles(path);
  let node = parse(fetch(root));
  for (;;) {
    let next: Uint8Array | null;
    if (node.kind === 'branch') {
      const [nibble, ...rest] = ahead;
      if (nibble === undefined) throw malformed('a branch below a key');
      [next, ahead] = [node.children[nibble]!, rest];
      if (next === null) return null;
    } else {
      const { path: along, kind } = node;
      const ends = kind === 'leaf';
      // Leaves end where keys do, extensions before.
      if (ends ? along.length !== ahead.length : along.length === 0 || along.length >= ahead.length) {
        throw malformed(kind);
      }
      if (along.some((nibble, i) => nibble !== ahead[i])) return null;
      if (node.kind === 'leaf') return node.value;
      [next, ahead] = [node.child, ahead.slice(along.length)];
    }
    node = parse(next[0] === 0xa0 ? fetch(next.subarray(1)) : next);
  }
}

type Node =
  | { kind: 'branch'; children: (Uint8Array | null)[] }
  | { kind: 'extension'; path: number[]; child: Uint8Array }
  | { kind: 'leaf'; path: number[]; value: Uint8Array };

function parse(bytes: Uint8Array): Node {
  const whole = new RlpReader(bytes);
  const list = whole.list();
  whole.end();
  const items = [];
  while (!list.isEmpty) items.push(list.item());
  const [first, second] = items;
  if (items.length === 17) {
    if (items[16]!.isList || items[16]!.payload.length > 0) throw malformed('a branch with a value');
    const children = items.slice(0, 16).map(({ whole }) => (whole[0] === 0x80 ? null : reference(whole)));
    return { kind: 'branch', children };
  }
  if (items.length !== 2 || !first || !second || first.isList) throw malformed('trie node');
  const { isLeaf, path } = hexPrefix(first.payload);
  if (!isLeaf) return { kind: 'extension', path, child: reference(second.whole) };
  if (second.isList) throw malformed('trie leaf');
  return { kind: 'leaf', path, value: second.payload };
}

/** The reference of a node in its parent: a hash, or the node itself if it is short. */
function reference(item: Uint8Array): Uint8Array {
  const [first = 0] = item;
  const isHash = first === 0xa0;
  const isEmbedded = first >= 0xc0 && item.length < 32;
  if (!isHash && !isEmbedded) throw malformed('reference of a trie node');
  return item;
}

/** Yellow paper, appendix C. */
function hexPrefix(bytes: Uint8Array): { isLeaf: boolean; path: number[] } {
  const [flags, low, ...rest] = nibbles(bytes);
  if (flags === undefined || low === undefined || flags > 3) throw malformed('path of a trie node');
  const isOdd = flags % 2 === 1;
  if (!isOdd && low !== 0) throw malformed('path of a trie node');
  return { isLeaf: flags >= 2, path: isOdd ? [low, ...rest] : rest };
}

export function nibbles(bytes: Uint8Array): number[] {
  return Array.from(bytes).flatMap((byte) => [byte >> 4, byte & 15]);
}
