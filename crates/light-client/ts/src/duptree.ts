// A dense tree over indexed leaves: docs/formats/duptree.md, "Proof bytes".
import { blake2b } from '@noble/hashes/blake2.js';
import { concat, equal, toHex } from './bytes.js';
import { Reader } from './cole/reader.js';
import { malformed, missing, otherRoot, unused } from './errors.js';
import { type StoreKey, encodeKey, keyLength } from './state.js';

/** A key in hexadecimal digits, which have the order of its bytes; empty: before all keys. */
type KeyText = string;

interface Leaf {
  number: bigint;
  key: KeyText;
  /** `null` if the key is deleted, and for the first leaf. */
  value: Uint8Array | null;
  /** The next key in key order; `null`: there is none. */
  next: KeyText | null;
  digest: Uint8Array;
}

interface Node {
  number: bigint;
  digest: Uint8Array;
}

const MAX_HEIGHT = 63;

/** The encoded values of `keys` under `root`; `null` is absence. */
export function verifyDupTree(
  root: Uint8Array,
  keys: readonly StoreKey[],
  proof: Uint8Array,
): (Uint8Array | null)[] {
  const reader = new Reader(proof);
  const height = reader.byte();
  if (height > MAX_HEIGHT) throw malformed('height');
  const leaves: Leaf[] = [];
  for (let left = reader.number(); left > 0n; left--) leaves.push(readLeaf(reader, height, leaves.at(-1)));
  const hashes: Uint8Array[] = [];
  while (!reader.isEmpty) hashes.push(reader.hash());

  const top = topOf(height, leaves, hashes);
  if (!equal(hash(3, Uint8Array.of(height), top), root)) throw otherRoot();

  const byKey = [...leaves].sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
  if (byKey.some(({ key }, at) => at > 0 && key === byKey[at - 1]!.key)) {
    throw malformed('two leaves of one key');
  }
  const used = new Set<Leaf>();
  const values = keys.map((key) => {
    const text = toHex(encodeKey(key));
    const leaf = lastUpTo(byKey, text);
    const isOwn = leaf?.key === text;
    const isInGap = leaf !== undefined && (leaf.next === null || text < leaf.next);
    if (!leaf || !(isOwn || isInGap)) throw missing('the leaf that speaks for a key');
    used.add(leaf);
    return isOwn ? leaf.value : null;
  });
  if (used.size < leaves.length) throw unused();
  return values;
}

function readLeaf(reader: Reader, height: number, before: Leaf | undefined): Leaf {
  const number = reader.number();
  if (number >> BigInt(height) !== 0n) throw malformed('number of a leaf beyond the tree');
  if (before !== undefined && before.number >= number) throw malformed('leaves are out of order');
  const key = readKey(reader);
  const length = reader.number();
  const value = length === 0n ? null : reader.take(length - 1n);
  const next = readKey(reader);
  if (key.text === '' && value !== null) throw malformed('the first leaf has a value');
  if (next.text !== '' && key.text >= next.text) {
    throw malformed("a leaf's next key does not come after its own");
  }
  if ((key.text === '') !== (number === 0n)) throw malformed('leaf 0 and no other is the first');
  const held = value === null ? [Uint8Array.of(0)] : [lengthBytes(length), value];
  const digest = hash(0, key.bytes, ...held, next.bytes);
  return { number, key: key.text, value, next: next.text || null, digest };
}

/** Reads a key; the byte of an end gives an empty text. */
function readKey(reader: Reader): { bytes: Uint8Array; text: KeyText } {
  const tag = reader.byte();
  if (tag === 2) return { bytes: Uint8Array.of(2), text: '' };
  const length = keyLength(tag);
  if (length === undefined) throw malformed('tag of a key');
  const bytes = concat(Uint8Array.of(tag), reader.take(length));
  return { bytes, text: toHex(bytes) };
}

/** LEB128. */
function lengthBytes(length: bigint): Uint8Array {
  const bytes: number[] = [];
  let rest = length;
  for (; rest >= 128n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Uint8Array.from([...bytes, Number(rest)]);
}

/** The top over some leaves, with the siblings that do not follow from them; all must be used. */
function topOf(height: number, leaves: readonly Leaf[], hashes: readonly Uint8Array[]): Uint8Array {
  let used = 0;
  const sibling = () => {
    const digest = hashes[used++];
    if (digest === undefined) throw missing('a sibling');
    return digest;
  };
  let nodes: Node[] = [...leaves];
  if (nodes.length === 0) {
    nodes = [{ number: 0n, digest: sibling() }];
  } else {
    for (let level = 0; level < height; level++) nodes = parents(nodes, sibling);
  }
  if (used < hashes.length) throw malformed('hashes after the end');
  return nodes[0]!.digest;
}

function parents(nodes: readonly Node[], sibling: () => Uint8Array): Node[] {
  const above: Node[] = [];
  for (let at = 0; at < nodes.length; at++) {
    const { number, digest } = nodes[at]!;
    const pair: Uint8Array[] = [];
    if (number % 2n === 1n) {
      pair.push(sibling(), digest);
    } else if (nodes[at + 1]?.number === number + 1n) {
      pair.push(digest, nodes[++at]!.digest);
    } else {
      pair.push(digest, sibling());
    }
    above.push({ number: number / 2n, digest: hash(1, ...pair) });
  }
  return above;
}

/** The last leaf, in key order, whose key is not after `key`. */
function lastUpTo(leaves: readonly Leaf[], key: KeyText): Leaf | undefined {
  let [from, to] = [0, leaves.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (leaves[middle]!.key <= key) from = middle + 1;
    else to = middle;
  }
  return leaves[from - 1];
}

/** BLAKE2b-256 by domain. */
function hash(domain: number, ...parts: Uint8Array[]): Uint8Array {
  return blake2b(concat(Uint8Array.of(domain), ...parts), { dkLen: 32 });
}
