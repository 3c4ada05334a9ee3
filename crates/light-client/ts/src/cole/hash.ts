// BLAKE2b-256 by domain (docs/formats/cole.md, "Hashes").
import { blake2b } from '@noble/hashes/blake2.js';
import { concat, numberBytes, toNumber } from '../bytes.js';

function hash(domain: number, ...parts: Uint8Array[]): Uint8Array {
  return blake2b(concat(Uint8Array.of(domain), ...parts), { dkLen: 32 });
}

export const ZERO: Uint8Array = new Uint8Array(32);

export function pairHash(key: Uint8Array, block: bigint, value: Uint8Array | null): Uint8Array {
  const held = value === null ? [Uint8Array.of(0)] : [Uint8Array.of(1), value];
  return hash(0, Uint8Array.of(key.length), key, numberBytes(block, 8), ...held);
}

export function nodeHash(children: readonly Uint8Array[]): Uint8Array {
  return hash(1, ...children);
}

/** The leaf of a key with several versions: the top of the tree over them. */
export function versionsHash(key: Uint8Array, top: Uint8Array): Uint8Array {
  return hash(5, Uint8Array.of(key.length), key, top);
}

/** The filter block of a key (as a share of 2^64), and the bits that the key sets there. */
export function filterPlace(key: Uint8Array): { share: bigint; bits: number[] } {
  const digest = hash(2, key);
  const b = toNumber(digest.subarray(8, 16));
  const bits = [0n, 9n, 18n, 27n, 36n, 45n].map((shift) => Number((b >> shift) % 512n));
  return { share: toNumber(digest.subarray(0, 8)), bits };
}

export function filterBlockHash(block: Uint8Array): Uint8Array {
  return hash(3, block);
}

/** The description of a source, which the root binds. */
export interface Description {
  pairs: bigint;
  firstBlock: bigint;
  lastBlock: bigint;
  filterBlocks: bigint;
}

export function sourceHash(of: Description, top: Uint8Array, filterTop: Uint8Array): Uint8Array {
  const number = (n: bigint) => numberBytes(n, 8);
  const head = [number(of.pairs), number(of.firstBlock), number(of.lastBlock)];
  return hash(4, ...head, top, number(of.filterBlocks), filterTop);
}

/** The digests of the runs of a level's two groups. */
export type Level = [writing: Uint8Array[], merging: Uint8Array[]];

export function rootHash(horizon: bigint, memory: Uint8Array[], levels: readonly Level[]): Uint8Array {
  const parts = levels.flatMap(([writing, merging]) => [
    Uint8Array.of(writing.length, merging.length),
    ...writing,
    ...merging,
  ]);
  return hash(7, numberBytes(horizon, 8), ...memory, numberBytes(levels.length, 2), ...parts);
}
