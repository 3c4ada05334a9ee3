// BLAKE2b-256 by domain (docs/formats/lvmt.md, "Hashes").
import { blake2b } from '@noble/hashes/blake2.js';
import { concat, numberBytes } from '../bytes.js';

export function hash(...parts: Uint8Array[]): Uint8Array {
  return blake2b(concat(...parts), { dkLen: 32 });
}

const domain = (number: number) => Uint8Array.of(number);

export function locationHash(key: Uint8Array): Uint8Array {
  return hash(domain(0), key);
}

export function keyTupleHash(
  level: number,
  slot: number,
  version: number,
  key: Uint8Array,
  value: Uint8Array | null,
): Uint8Array {
  const held = value === null ? [Uint8Array.of(0)] : [Uint8Array.of(1), value];
  const head = Uint8Array.of(1, level, slot);
  return hash(head, numberBytes(version, 5), Uint8Array.of(key.length), key, ...held);
}

export function amtTupleHash(
  way: readonly number[],
  version: number,
  commitment: Uint8Array,
): Uint8Array {
  const entries = way.map((entry) => numberBytes(entry, 2));
  return hash(Uint8Array.of(2, way.length), ...entries, numberBytes(version, 5), commitment);
}

export function nodeHash(left: Uint8Array, right: Uint8Array): Uint8Array {
  return hash(domain(3), left, right);
}

export function blockHash(block: bigint, leaves: bigint, top: Uint8Array): Uint8Array {
  return hash(domain(4), numberBytes(block, 8), numberBytes(leaves, 4), top);
}

export function rootHash(
  commitment: Uint8Array,
  first: bigint,
  blocks: bigint,
  top: Uint8Array,
): Uint8Array {
  return hash(domain(5), commitment, numberBytes(first, 8), numberBytes(blocks, 8), top);
}
