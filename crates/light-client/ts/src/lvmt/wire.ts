// The bytes of a proof (docs/formats/lvmt-proofs.md, "Proof bytes").
import { malformed, missing } from '../errors.js';
import { type KeyForm, type StoreKey, decodeKey, keyLength } from '../state.js';
import { proofLength } from './merkle.js';

/** Is added to the first byte of a proof of hashed keys. */
const HASHED = 0x10;

/** Slots of an entry: the sub-AMT's, then five of keys. */
export const SLOTS = 6;

export interface Place {
  /** Number of the block, counted from the first one of the range. */
  block: bigint;
  position: bigint;
}

/** The key in a slot and its value. */
export interface Occupant {
  slot: number;
  /** The index among the requested keys on this path, or a key that is not requested. */
  key: { asked: number } | { other: StoreKey };
  value: Uint8Array | null;
  place: Place;
}

export interface Entry {
  /** By slot. */
  versions: number[];
  /** 32 bytes each, the root's first; none in a proof with holes. */
  quotients: Uint8Array[] | null;
  occupants: Occupant[];
  /** The sub-AMT below, if it is shown. */
  below: { commitment: Uint8Array; place: Place } | null;
}

export interface Tree {
  /** Counted from the first block of the range. */
  block: bigint;
  leaves: bigint;
  /** None in a proof with holes. */
  proof: Uint8Array[] | null;
}

export interface Proof {
  /** Of all its keys. */
  form: KeyForm;
  height: number;
  commitment: Uint8Array;
  first: bigint;
  blocks: bigint;
  entries: Entry[];
  trees: Tree[];
  range: Uint8Array[];
}

export function decode(bytes: Uint8Array): Proof {
  return new Decoder(bytes).proof();
}

class Decoder {
  private at = 0;
  /** Whether parts may be left out. */
  private partial = false;
  private form: KeyForm = 'plain';
  private holes = 0;

  constructor(private readonly bytes: Uint8Array) {}

  proof(): Proof {
    const head = this.byte();
    this.form = (head & HASHED) === 0 ? 'plain' : 'hashed';
    const kind = head & ~HASHED;
    if (kind !== 1 && kind !== 2) throw malformed('its first byte');
    this.partial = kind === 2;
    const height = this.byte();
    if (height < 1 || height > 16) throw malformed('its height');
    const commitment = this.take(32);
    const [first, blocks] = [this.number(), this.number()];
    if ((first + blocks) >> 64n !== 0n) throw malformed('its range of blocks');
    const count = this.number();
    if (count > BigInt(Math.floor(this.bytes.length / (32 * height)))) throw missing('entries');
    const entries: Entry[] = [];
    while (entries.length < Number(count)) entries.push(this.entry(height, blocks));
    const trees = byBlock(entries).map(([block, positions]): Tree => {
      const leaves = this.numberBelow(32n, 'number of leaves');
      if (positions.at(-1)! >= leaves) throw malformed('a position behind the last leaf');
      const length = proofLength(leaves, positions);
      return { block, leaves, proof: this.isHole() ? null : this.hashes(length) };
    });
    const range = this.hashes(proofLength(blocks, trees.map(({ block }) => block)));
    if (this.at < this.bytes.length) throw malformed('bytes after its end');
    if (this.partial && this.holes === 0) throw malformed('it is said to have holes, and has none');
    return { form: this.form, height, commitment, first, blocks, entries, trees, range };
  }

  private entry(height: number, blocks: bigint): Entry {
    const versions = Array<number>(SLOTS).fill(0);
    let slot = 1;
    while (slot < SLOTS && (versions[slot] = this.version()) !== 0) slot++;
    if (slot === SLOTS) versions[0] = this.version();
    const quotients = this.isHole() ? null : this.hashes(height);
    const mask = this.byte();
    if (mask >= 1 << SLOTS) throw malformed('what an entry shows');
    const occupants: Occupant[] = [];
    for (let slot = 1; slot < SLOTS; slot++) {
      if ((mask >> slot) % 2 === 1) occupants.push(this.occupant(slot, blocks));
    }
    const shown = mask % 2 === 1;
    const below = shown ? { commitment: this.take(32), place: this.place(blocks) } : null;
    return { versions, quotients, occupants, below };
  }

  private occupant(slot: number, blocks: bigint): Occupant {
    const tag = this.number();
    const [who, isLive] = [tag / 2n, tag % 2n === 1n];
    let key: Occupant['key'];
    if (who < 2n) {
      const tag = Number(who) + (this.form === 'hashed' ? 4 : 0);
      const encoded = new Uint8Array(1 + keyLength(tag)!);
      encoded[0] = tag;
      encoded.set(this.take(encoded.length - 1), 1);
      key = { other: decodeKey(encoded)! };
    } else {
      if ((who - 2n) >> 32n !== 0n) throw malformed('the number of an asked key');
      key = { asked: Number(who - 2n) };
    }
    const value = isLive ? this.take(this.number()) : null;
    return { slot, key, value, place: this.place(blocks) };
  }

  private place(blocks: bigint): Place {
    const block = this.number();
    if (block >= blocks) throw malformed('a block behind the last one');
    return { block, position: this.numberBelow(32n, 'a position') };
  }

  private version(): number {
    return Number(this.numberBelow(40n, 'a version'));
  }

  private isHole(): boolean {
    if (!this.partial) return false;
    const flag = this.byte();
    if (flag > 1) throw malformed('the flag of a hole');
    this.holes += flag;
    return flag === 1;
  }

  private hashes(count: number): Uint8Array[] {
    const all = this.take(BigInt(count) * 32n);
    return Array.from({ length: count }, (_, i) => all.subarray(32 * i, 32 * i + 32));
  }

  private numberBelow(bits: bigint, what: string): bigint {
    const number = this.number();
    if (number >> bits !== 0n) throw malformed(what);
    return number;
  }

  /** LEB128 of at most 64 bits, in the shortest form. */
  private number(): bigint {
    let number = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.byte();
      number |= BigInt(byte & 0x7f) << shift;
      if (number >> 64n !== 0n || (byte === 0 && shift > 0n)) throw malformed('a number');
      if (byte < 0x80) return number;
      if (shift > 56n) throw malformed('a number');
    }
  }

  private byte(): number {
    return this.take(1)[0]!;
  }

  private take(length: number | bigint): Uint8Array {
    if (BigInt(this.bytes.length - this.at) < BigInt(length)) throw malformed('it ends early');
    const end = this.at + Number(length);
    const part = this.bytes.subarray(this.at, end);
    this.at = end;
    return part;
  }
}

/** The blocks of all places, ascending, each with its positions, ascending. */
function byBlock(entries: readonly Entry[]): [bigint, bigint[]][] {
  const blocks = new Map<bigint, bigint[]>();
  for (const { occupants, below } of entries) {
    for (const { place } of below ? [...occupants, below] : occupants) {
      const positions = blocks.get(place.block);
      if (positions) positions.push(place.position);
      else blocks.set(place.block, [place.position]);
    }
  }
  const sorted = [...blocks].sort(([a], [b]) => ascending(a, b));
  for (const [, positions] of sorted) positions.sort(ascending);
  return sorted;
}

export function ascending(a: bigint, b: bigint): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
