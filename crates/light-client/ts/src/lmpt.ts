// Three tries in layers: docs/formats/lmpt.md, "Proof bytes".
import { keccak_256 } from '@noble/hashes/sha3.js';
import { concat, equal, toHex } from './bytes.js';
import { Reader } from './cole/reader.js';
import { malformed, missing, otherRoot, unused } from './errors.js';
import { type Fetch, lookUp } from './mpt.js';
import { type StoreKey, encodeKey } from './state.js';

const ROOT = new TextEncoder().encode('retrie lmpt root\u0001');
const TOMBSTONE = 0;
const VALUE = 1;

/** The encoded values of `keys` under `root`; `null` is absence. */
export function verifyLmpt(
  root: Uint8Array,
  keys: readonly StoreKey[],
  proof: Uint8Array,
): (Uint8Array | null)[] {
  const reader = new Reader(proof);
  const roots = [reader.hash(), reader.hash(), reader.hash()] as const;
  const delta = new Part(roots[0], reader);
  const intermediate = new Part(roots[1], reader);
  const snapshot = new Part(roots[2], reader);
  if (!reader.isEmpty) throw malformed('bytes after the end');
  if (!equal(keccak_256(concat(ROOT, ...roots)), root)) throw otherRoot();

  const values = keys.map((key) => {
    const path = keccak_256(encodeKey(key));
    // A lower layer counts only if the layers above are shown to have no leaf of the key.
    for (const part of [delta, intermediate]) {
      const leaf = part.leaf(path);
      if (leaf !== null) return valueOf(leaf);
    }
    const leaf = snapshot.leaf(path);
    if (leaf === null) return null;
    const value = valueOf(leaf);
    if (value === null) throw malformed('a tombstone in the snapshot');
    return value;
  });
  if (![delta, intermediate, snapshot].every((part) => part.isUsedUp)) throw unused();
  return values;
}

/** The nodes of one trie in a proof, in the order in which they are first needed. */
class Part {
  private readonly nodes: Uint8Array[] = [];
  private readonly met = new Map<string, Uint8Array>();
  private used = 0;

  constructor(
    private readonly root: Uint8Array,
    reader: Reader,
  ) {
    for (let left = reader.number(); left > 0n; left--) this.nodes.push(reader.take(reader.number()));
  }

  /** The value of the leaf at a path; `null` if the nodes show that there is no leaf. */
  leaf(path: Uint8Array): Uint8Array | null {
    return lookUp(keccak_256, this.root, path, this.fetch);
  }

  get isUsedUp(): boolean {
    return this.used === this.nodes.length;
  }

  private readonly fetch: Fetch = (wanted) => {
    const name = toHex(wanted);
    const known = this.met.get(name);
    if (known !== undefined) return known;
    const node = this.nodes[this.used++];
    if (node === undefined) throw missing('a node on the way');
    if (!equal(keccak_256(node), wanted)) throw otherRoot();
    this.met.set(name, node);
    return node;
  };
}

/** The value in a leaf; `null` for a tombstone. */
function valueOf(leaf: Uint8Array): Uint8Array | null {
  const [tag, ...rest] = leaf;
  if (tag === VALUE) return leaf.subarray(1);
  if (tag === TOMBSTONE && rest.length === 0) return null;
  throw malformed('leaf');
}
