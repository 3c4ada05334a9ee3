// Checks proofs of cole (docs/formats/cole.md, "Proof bytes" and "Checking").
import { equal, toHex } from '../bytes.js';
import { malformed, missing, otherRoot, unused } from '../errors.js';
import { type StoreKey, encodeKey } from '../state.js';
import {
  type Description,
  type Level,
  ZERO,
  filterBlockHash,
  filterPlace,
  rootHash,
  sourceHash,
} from './hash.js';
import type { ColeParams } from './params.js';
import { Reader } from './reader.js';
import { type KeyText, type Place, type Shown, completeTop, readTree } from './tree.js';

/** A value, `null` if the key was deleted, and the block that set it. */
export interface Version {
  block: bigint;
  value: Uint8Array | null;
}

/** Blocks, the last one included. */
export interface BlockRange {
  from: bigint;
  to: bigint;
}

/** The range of a proof of the latest values. */
export const LATEST: BlockRange = { from: (1n << 64n) - 1n, to: (1n << 64n) - 1n };

/**
 * For each key: the version in force at the first block of the range, and all versions set later,
 * newest first.
 */
export function verifyCole(
  params: ColeParams,
  root: Uint8Array,
  keys: readonly StoreKey[],
  range: BlockRange,
  proof: Uint8Array,
): Version[][] {
  if (range.from > range.to) throw malformed('its range of blocks is empty');
  const encoded = new Map(keys.map(encodeKey).map((key) => [toHex(key) as KeyText, key]));
  const texts = [...encoded.keys()].sort();
  const asked = texts.map((text) => encoded.get(text)!);
  const search = new Search(new Reader(proof), params, asked, range);
  search.run(root);
  return keys.map((key) => search.versions.get(toHex(encodeKey(key)))!);
}

/** A key that is asked for. */
interface Asked {
  text: KeyText;
  place: ReturnType<typeof filterPlace>;
}

class Search {
  readonly versions = new Map<KeyText, Version[]>();
  private open: Asked[];

  constructor(
    private readonly reader: Reader,
    private readonly params: ColeParams,
    private readonly asked: readonly Uint8Array[],
    private readonly range: BlockRange,
  ) {
    this.open = asked.map((key) => ({ text: toHex(key), place: filterPlace(key) }));
    for (const { text } of this.open) this.versions.set(text, []);
  }

  run(root: Uint8Array): void {
    if (this.reader.byte() !== 1) throw malformed('its first byte');
    const horizon = this.reader.number();
    if (this.range.from < horizon) throw missing('blocks before the history that is kept');
    const memory = [this.source(false), this.source(false)];
    const count = this.reader.number();
    if (count >= 1n << 16n) throw malformed('the number of levels');
    const sizes = this.reader.take(2n * count);
    if (count > 0n && sizes.at(-1) === 0 && sizes.at(-2) === 0) throw malformed('an empty last level');
    const levels: Level[] = [];
    for (let at = 0; at < sizes.length; at += 2) {
      const writing = this.runs(sizes[at]!);
      levels.push([writing, this.runs(sizes[at + 1]!)]);
    }
    if (!this.reader.isEmpty) throw malformed('bytes after its end');
    if (!equal(rootHash(horizon, memory, levels), root)) throw otherRoot();
  }

  private runs(count: number): Uint8Array[] {
    const digests: Uint8Array[] = [];
    while (digests.length < count) digests.push(this.source(true));
    return digests;
  }

  /** The digest of the next source; records what the source shows. */
  private source(isRun: boolean): Uint8Array {
    const tag = this.reader.byte();
    const isClosed = this.open.length === 0;
    if (tag > 3 || isClosed !== (tag === 0) || (isRun && tag === 1)) throw malformed('a tag of a source');
    if (tag === 0) return this.reader.hash();
    if (tag === 1) return ZERO;
    const of = this.description(isRun);
    if ((tag === 2) !== of.firstBlock > this.range.to) throw malformed('a tag of a source');
    if (tag === 2) {
      const top = this.reader.hash();
      return sourceHash(of, top, isRun ? this.reader.hash() : ZERO);
    }
    return this.searched(of, isRun);
  }

  private description(isRun: boolean): Description {
    const [pairs, firstBlock] = [this.reader.number(), this.reader.number()];
    const [lastBlock, filterBlocks] = [this.reader.number(), this.reader.number()];
    if (pairs === 0n || firstBlock > lastBlock || filterBlocks > 0n !== isRun) {
      throw malformed('the description of a source');
    }
    return { pairs, firstBlock, lastBlock, filterBlocks };
  }

  private searched(of: Description, isRun: boolean): Uint8Array {
    const filter = isRun ? this.filter(of.filterBlocks) : { top: ZERO, excluded: new Set<Asked>() };
    const rest = this.open.filter((key) => !filter.excluded.has(key));
    if (rest.length === 0) {
      const top = this.reader.hash();
      filter.check?.();
      return sourceHash(of, top, filter.top);
    }
    const shown = readTree(this.reader, this.asked, isRun && this.params.hasTrees);
    filter.check?.();
    checkPlaces(shown.places, of);
    const closed = this.note(shown, rest);
    this.open = this.open.filter((key) => !closed.has(key));
    return sourceHash(of, shown.top, filter.top);
  }

  /** Reads which keys are excluded, and the evidence; it is checked when the source has been read. */
  private filter(blocks: bigint): { top: Uint8Array; excluded: Set<Asked>; check?: () => void } {
    const bits = this.reader.take(Math.ceil(this.open.length / 8));
    const isSet = (at: number) => ((bits[at >> 3]! >> (at & 7)) & 1) === 1;
    for (let at = this.open.length; at < 8 * bits.length; at++) {
      if (isSet(at)) throw malformed('more excluded keys than there are');
    }
    const excluded = new Set(this.open.filter((_, at) => isSet(at)));
    if (excluded.size === 0) return { top: this.reader.hash(), excluded };
    const placeOf = ({ place }: Asked) => (place.share * blocks) >> 64n;
    const places = [...new Set([...excluded].map(placeOf))].sort((a, b) => (a < b ? -1 : 1));
    const shown = new Map(places.map((place) => [place, this.reader.take(64)]));
    const leaves = [...shown].map(([place, block]) => [place, filterBlockHash(block)] as const);
    const top = completeTop(this.reader, this.params.fanout, blocks, leaves);
    const open = this.open;
    const check = () => {
      for (const key of open) {
        const block = shown.get(placeOf(key));
        if (block === undefined) continue;
        const mayHold = key.place.bits.every((bit) => ((block[bit >> 3]! >> (bit & 7)) & 1) === 1);
        if (mayHold === excluded.has(key)) throw malformed('a filter says otherwise of a key');
      }
    };
    return { top, excluded, check };
  }

  /** Takes the versions of some keys from the places, which show nothing else. Returns the keys whose search is over. */
  private note({ places, gaps, parts, hasIdleNode }: Shown, keys: readonly Asked[]): Set<Asked> {
    const needed = new Set<number>();
    const closed = new Set<Asked>();
    const { from, to } = this.range;
    for (const key of keys) {
      // The first places after (key, from) and after (key, to).
      const start = firstAfter(places, key.text, from);
      const end = firstAfter(places, key.text, to);
      for (let at = start; at <= end; at++) {
        if (gaps.has(at)) throw missing('pairs next to those of a key');
      }
      for (let at = Math.max(start - 1, 0); at <= end && at < places.length; at++) needed.add(at);
      const versions = this.versions.get(key.text)!;
      for (let at = end - 1; at >= start; at--) {
        const later = places[at]!.at;
        if (typeof later === 'object') versions.push(later);
      }
      const last = places[start - 1];
      if (last?.key === key.text && typeof last.at === 'object') {
        versions.push(last.at);
        closed.add(key);
      }
    }
    const isIdle = ([first, last]: [number, number]) => {
      for (let at = first; at <= last; at++) if (needed.has(at)) return false;
      return true;
    };
    if (parts.some(isIdle) || hasIdleNode) throw unused();
    return closed;
  }
}

function checkPlaces(places: readonly Place[], { firstBlock, lastBlock }: Description): void {
  places.forEach(({ key, at }, number) => {
    const before = places[number - 1];
    if (before !== undefined && !isAscending(before, { key, at })) throw malformed('pairs are out of order');
  });
  for (const { at } of places) {
    if (typeof at === 'object' && (at.block < firstBlock || at.block > lastBlock)) {
      throw malformed('a pair is of another block than its source has');
    }
  }
}

function isAscending(before: Place, { key, at }: Place): boolean {
  if (before.key !== key) return before.key < key;
  if (before.at === 'end' || at === 'start') return false;
  if (before.at === 'start' || at === 'end') return true;
  return before.at.block < at.block;
}

/** Whether a place is after the pair (key, block). */
function isAfter(place: Place, key: KeyText, block: bigint): boolean {
  if (place.key !== key) return place.key > key;
  return place.at === 'end' || (place.at !== 'start' && place.at.block > block);
}

/** The number of the first place after (key, block), or their count. */
function firstAfter(places: readonly Place[], key: KeyText, block: bigint): number {
  let [low, high] = [0, places.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isAfter(places[middle]!, key, block)) high = middle;
    else low = middle + 1;
  }
  return low;
}
