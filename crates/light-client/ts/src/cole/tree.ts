// Trees of sources and filters, as far as they are shown (docs/formats/cole.md, "Trees").
import { concat, toHex } from '../bytes.js';
import { malformed } from '../errors.js';
import { nodeHash, pairHash } from './hash.js';
import { keyLength } from '../state.js';
import type { Reader } from './reader.js';

/** A key in hexadecimal digits, which have the order of its bytes. */
export type KeyText = string;

export interface Pair {
  key: KeyText;
  block: bigint;
  value: Uint8Array | null;
}

/** The shown part of a tree over pairs, from left to right. */
export interface Shown {
  top: Uint8Array;
  pairs: Pair[];
  /** Numbers of the pairs before which something is hidden; after the last one: their count. */
  gaps: Set<number>;
  /** The children of a node are shown, but none of its pairs. */
  hasIdleNode: boolean;
}

const MAX_DEPTH = 64;

/** Reads a tree in which the keys of `asked` are named by their numbers. */
export function readTree(reader: Reader, asked: readonly Uint8Array[]): Shown {
  const texts: KeyText[] = asked.map(toHex);
  // All keys have the form of those that are asked for.
  const first = (asked[0]?.[0] ?? 0) & 4;
  const known = new Set(texts);
  const shown: Shown = { top: new Uint8Array(), pairs: [], gaps: new Set(), hasIdleNode: false };

  function readKey(): { bytes: Uint8Array; text: KeyText } {
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

  function readPair(): Uint8Array {
    const { bytes, text } = readKey();
    const block = reader.number();
    const length = reader.number();
    const value = length === 0n ? null : reader.take(length - 1n);
    shown.pairs.push({ key: text, block, value });
    return pairHash(bytes, block, value);
  }

  function readNode(depth: number): Uint8Array {
    if (depth > MAX_DEPTH) throw malformed('nodes nested too deep');
    switch (reader.byte()) {
      case 0:
        shown.gaps.add(shown.pairs.length);
        return reader.hash();
      case 1: {
        const before = shown.pairs.length;
        const count = reader.byte();
        if (count === 0) throw malformed('a node without children');
        const children: Uint8Array[] = [];
        while (children.length < count) children.push(readNode(depth + 1));
        if (shown.pairs.length === before) shown.hasIdleNode = true;
        return nodeHash(children);
      }
      case 2:
        return readPair();
      default:
        throw malformed('the tag of a node');
    }
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
