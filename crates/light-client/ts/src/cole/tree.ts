// Trees of sources and filters, as far as they are shown (docs/formats/cole.md, "Trees").
import { concat, toHex } from '../bytes.js';
import { malformed } from '../errors.js';
import { nodeHash, pairHash, versionsHash } from './hash.js';
import { keyLength } from '../state.js';
import type { Reader } from './reader.js';

/** A key in hexadecimal digits, which have the order of its bytes. */
export type KeyText = string;

export interface Pair {
  key: KeyText;
  block: bigint;
  value: Uint8Array | null;
}

/** A place that is shown: a pair, or the place before or after all pairs of a key. */
export interface Place {
  key: KeyText;
  at: 'start' | 'end' | Pair;
}

/** The shown part of a tree over pairs, from left to right. */
export interface Shown {
  top: Uint8Array;
  places: Place[];
  /** Numbers of the places before which something is hidden; after the last one: their count. */
  gaps: Set<number>;
  /** First and last place of each part that is shown for itself: a pair, or the leaf of a key. */
  parts: [first: number, last: number][];
  /** The children of a node are shown, but nothing below it. */
  hasIdleNode: boolean;
}

const MAX_DEPTH = 64;
const MAX_VERSION_DEPTH = 512;

interface KeyOfPair {
  bytes: Uint8Array;
  text: KeyText;
}

/** Reads a tree over pairs, or over keys with trees over their versions. Keys of `asked` are named by their numbers. */
export function readTree(reader: Reader, asked: readonly Uint8Array[], hasTrees: boolean): Shown {
  const texts: KeyText[] = asked.map(toHex);
  // All keys have the form of those that are asked for.
  const first = (asked[0]?.[0] ?? 0) & 4;
  const known = new Set(texts);
  const shown: Shown = { top: new Uint8Array(), places: [], gaps: new Set(), parts: [], hasIdleNode: false };
  const { places } = shown;

  function readKey(): KeyOfPair {
    const kind = reader.number();
    if (kind >= 2n) {
      if (kind - 2n >= BigInt(asked.length)) throw malformed('the number of an asked key');
      const number = Number(kind - 2n);
      return { bytes: asked[number]!, text: texts[number]! };
    }
    const tag = first + Number(kind);
    const bytes = concat(Uint8Array.of(tag), reader.take(keyLength(tag)!));
    const text = toHex(bytes);
    if (known.has(text)) throw malformed('an asked key is written out');
    return { bytes, text };
  }

  function readPair({ bytes, text }: KeyOfPair): Uint8Array {
    const block = reader.number();
    const length = reader.number();
    const value = length === 0n ? null : reader.take(length - 1n);
    places.push({ key: text, at: { key: text, block, value } });
    return pairHash(bytes, block, value);
  }

  /** The part that `read` reads: a pair, or the leaf of a key with its ends. */
  function readPart(key: KeyOfPair, hasEnds: boolean, read: () => Uint8Array): Uint8Array {
    const first = places.length;
    if (hasEnds) places.push({ key: key.text, at: 'start' });
    const digest = read();
    if (hasEnds) places.push({ key: key.text, at: 'end' });
    shown.parts.push([first, places.length - 1]);
    return digest;
  }

  function readHidden(): Uint8Array {
    shown.gaps.add(places.length);
    return reader.hash();
  }

  function readInner(readChild: () => Uint8Array): Uint8Array {
    const before = places.length;
    const count = reader.byte();
    if (count === 0) throw malformed('a node without children');
    const children: Uint8Array[] = [];
    while (children.length < count) children.push(readChild());
    if (places.length === before) shown.hasIdleNode = true;
    return nodeHash(children);
  }

  function readNode(depth: number): Uint8Array {
    if (depth > MAX_DEPTH) throw malformed('nodes nested too deep');
    const tag = reader.byte();
    if (tag === 0) return readHidden();
    if (tag === 1) return readInner(() => readNode(depth + 1));
    if (tag !== 2 && !(tag === 3 && hasTrees)) throw malformed('the tag of a node');
    const key = readKey();
    if (tag === 2) return readPart(key, hasTrees, () => readPair(key));
    return versionsHash(key.bytes, readPart(key, true, () => readVersions(key, 0)));
  }

  /** A node of the tree over the versions of a key. */
  function readVersions(key: KeyOfPair, depth: number): Uint8Array {
    if (depth > MAX_VERSION_DEPTH) throw malformed('nodes nested too deep');
    const tag = reader.byte();
    if (tag === 0) return readHidden();
    if (tag === 1) return readInner(() => readVersions(key, depth + 1));
    if (tag !== 2) throw malformed('the tag of a node');
    return readPart(key, false, () => readPair(key));
  }

  shown.top = readNode(0);
  return shown;
}

/**
 * The top of a complete tree, from some of its leaves (ascending, each once), with the
 * hashes that are read for the others.
 */
export function completeTop(
  reader: Reader,
  fanout: number,
  leaves: bigint,
  known: readonly (readonly [place: bigint, digest: Uint8Array])[],
): Uint8Array {
  const width = BigInt(fanout);
  let layer = new Map(known);
  for (let length = leaves; length > 1n; length = (length + width - 1n) / width) {
    const above = new Map<bigint, Uint8Array>();
    for (const place of layer.keys()) {
      const parent = place / width;
      if (above.has(parent)) continue;
      const children: Uint8Array[] = [];
      for (let child = parent * width; child < (parent + 1n) * width && child < length; child++) {
        children.push(layer.get(child) ?? reader.hash());
      }
      above.set(parent, nodeHash(children));
    }
    layer = above;
  }
  return layer.get(0n)!;
}
