// An AVL tree of chunks: docs/formats/bavl.md, "Proof bytes".
import { blake2b } from '@noble/hashes/blake2.js';
import { concat, equal, numberBytes, toHex } from './bytes.js';
import { Reader } from './cole/reader.js';
import { malformed, missing, otherRoot, unused } from './errors.js';
import { type StoreKey, encodeKey, keyLength } from './state.js';

/** First byte of a node. */
const [HIDDEN, INNER, CHUNK] = [0, 1, 2];
/** First byte of what is hashed. */
const [H_ENTRY, H_PAIR, H_CHUNK, H_INNER, H_ROOT] = [0, 1, 2, 3, 4];

const LEAST_ENTRIES = 4n;
const MOST_ENTRIES = 4096n;
const MAX_HEIGHT = 64;
/** Bytes of the shortest entry. */
const SHORTEST_ENTRY = 23;

/** An entry that a proof shows. */
interface Shown {
  /** Hexadecimal digits, which have the order of the key's bytes. */
  key: string;
  value: Uint8Array;
  /** Whether hidden entries may lie between the previous shown entry and this one. */
  afterHidden: boolean;
}

interface Node {
  digest: Uint8Array;
  isHidden: boolean;
}

/** The encoded values of `keys` under `root`; `null` is absence. */
export function verifyBavl(
  root: Uint8Array,
  keys: readonly StoreKey[],
  proof: Uint8Array,
): (Uint8Array | null)[] {
  const read = new Proof(proof);
  if (!equal(read.root, root)) throw otherRoot();
  const { shown } = read;
  const used = new Set<Shown>();
  const values = keys.map((key) => {
    const text = toHex(encodeKey(key));
    const at = firstFrom(shown, text);
    const next = shown[at];
    if (next?.key === text) {
      used.add(next);
      return next.value;
    }
    if (next === undefined ? read.endsHidden : next.afterHidden) {
      throw missing('the entry of a key, or those around it');
    }
    for (const entry of [shown[at - 1], next]) if (entry !== undefined) used.add(entry);
    return null;
  });
  // A proof of the empty state shows a chunk, but no entry.
  if (used.size < shown.length || (keys.length === 0 && read.showsChunks)) throw unused();
  return values;
}

/** The index of the first entry, in key order, whose key is not before `key`. */
function firstFrom(shown: readonly Shown[], key: string): number {
  let [from, to] = [0, shown.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (shown[middle]!.key < key) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** A proof, read and hashed. */
class Proof {
  readonly shown: Shown[] = [];
  /** Whether hidden entries may lie behind the last shown one. */
  endsHidden = false;
  showsChunks = false;
  readonly root: Uint8Array;
  private readonly reader: Reader;
  private readonly most: bigint;

  constructor(bytes: Uint8Array) {
    this.reader = new Reader(bytes);
    this.most = this.reader.number();
    if (this.most < LEAST_ENTRIES || this.most > MOST_ENTRIES) throw malformed('entries of a chunk');
    const top = this.node(0);
    if (!this.reader.isEmpty) throw malformed('bytes after the end');
    this.root = hash(H_ROOT, numberBytes(this.most, 4), top.digest);
  }

  private node(depth: number): Node {
    const tag = this.reader.byte();
    if (tag === HIDDEN) return { digest: this.hidden(), isHidden: true };
    if (tag === CHUNK) return { digest: this.chunk(depth), isHidden: false };
    if (tag !== INNER) throw malformed('tag of a node');
    if (depth === MAX_HEIGHT) throw malformed('the tree is too high');
    const left = this.node(depth + 1);
    const right = this.node(depth + 1);
    if (left.isHidden && right.isHidden) throw malformed('an inner node that shows nothing');
    return { digest: hash(H_INNER, left.digest, right.digest), isHidden: false };
  }

  /** Reads the hash of a hidden subtree, which has at least one entry. */
  private hidden(): Uint8Array {
    this.endsHidden = true;
    return this.reader.hash();
  }

  private chunk(depth: number): Uint8Array {
    const count = this.reader.number();
    if (count > this.most) throw malformed('a chunk with more entries than it can hold');
    const shown = this.reader.number();
    if (shown > BigInt(this.reader.left) / BigInt(SHORTEST_ENTRY)) throw malformed('it ends early');
    this.showsChunks = true;
    if (count === 0n && shown === 0n && depth === 0) return hash(H_CHUNK, numberBytes(0, 4));
    if (count === 0n) throw malformed('a chunk without entries');
    if (shown === 0n) throw malformed('a chunk that shows nothing');
    // All shown entries come first, then the hashes of the hidden nodes between them.
    const entries: Entry[] = [];
    let next = 0n;
    for (let left = shown; left > 0n; left--) {
      const position = next + this.reader.number();
      if (position >= count) throw malformed('position beyond the chunk');
      next = position + 1n;
      const key = this.key();
      entries.push({ position: Number(position), key, value: this.reader.take(this.reader.number()) });
    }
    const within = new Within(Number(count), entries, this);
    return hash(H_CHUNK, numberBytes(count, 4), within.top());
  }

  private key(): Uint8Array {
    const tag = this.reader.byte();
    const length = keyLength(tag);
    if (length === undefined) throw malformed('tag of a key');
    return concat(Uint8Array.of(tag), this.reader.take(length));
  }

  /** A hash within a chunk. */
  beside(): Uint8Array {
    return this.hidden();
  }

  /** Reads the next shown entry. */
  entry({ key, value }: Entry): Uint8Array {
    const text = toHex(key);
    const last = this.shown.at(-1);
    if (last !== undefined && last.key >= text) throw malformed('keys are out of order');
    this.shown.push({ key: text, value, afterHidden: this.endsHidden });
    this.endsHidden = false;
    return hash(H_ENTRY, key, value);
  }
}

interface Entry {
  position: number;
  key: Uint8Array;
  value: Uint8Array;
}

/** The hash tree of a chunk (RFC 6962, 2.1), of which some entries are shown. */
class Within {
  private next = 0;

  constructor(
    private readonly count: number,
    private readonly entries: readonly Entry[],
    private readonly proof: Proof,
  ) {}

  top(): Uint8Array {
    return this.range(0, this.count);
  }

  private range(start: number, length: number): Uint8Array {
    const entry = this.entries[this.next];
    if (entry === undefined || entry.position >= start + length) return this.proof.beside();
    if (length === 1) {
      this.next++;
      return this.proof.entry(entry);
    }
    let left = 1;
    while (left * 2 < length) left *= 2;
    const low = this.range(start, left);
    return hash(H_PAIR, low, this.range(start + left, length - left));
  }
}

/** BLAKE2b-256 by domain. */
function hash(domain: number, ...parts: Uint8Array[]): Uint8Array {
  return blake2b(concat(Uint8Array.of(domain), ...parts), { dkLen: 32 });
}
