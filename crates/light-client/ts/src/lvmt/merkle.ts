// Multi-proofs of trees in the shape of RFC 6962 (docs/formats/lvmt-proofs.md, "Multi-proofs").
import { malformed } from '../errors.js';
import { nodeHash } from './hash.js';

/** A leaf that is shown. */
export interface Leaf {
  position: bigint;
  hash: Uint8Array;
}

/** A subtree: the leaves from `from` up to `to`. */
interface Span {
  from: bigint;
  to: bigint;
}

/** Number of hashes in the multi-proof of the leaves at these positions (ascending). */
export function proofLength(count: bigint, positions: readonly bigint[]): number {
  if (count === 0n) return 0;
  const below = (span: Span, shown: readonly bigint[]): number => {
    if (shown.length === 0) return 1;
    const halves = split(span);
    if (halves === null) return 0;
    const middle = halves[1].from;
    const inRight = (position: bigint) => position >= middle;
    const [left, right] = partition(shown, inRight);
    return below(halves[0], left) + below(halves[1], right);
  };
  return below({ from: 0n, to: count }, positions);
}

/** The top of a tree, from some of its leaves (by position) and their multi-proof. */
export function topOf(count: bigint, leaves: readonly Leaf[], proof: readonly Uint8Array[]): Uint8Array {
  if (count === 0n) return new Uint8Array(32);
  let used = 0;
  const below = (span: Span, shown: readonly Leaf[]): Uint8Array => {
    if (shown.length === 0) return proof[used++]!;
    const halves = split(span);
    if (halves === null) {
      if (shown.length > 1) throw malformed('two tuples at one place');
      return shown[0]!.hash;
    }
    const middle = halves[1].from;
    const [left, right] = partition(shown, ({ position }) => position >= middle);
    // Hashes of the proof are taken from left to right.
    const leftTop = below(halves[0], left);
    return nodeHash(leftTop, below(halves[1], right));
  };
  return below({ from: 0n, to: count }, leaves);
}

/** At the largest power of two below the number of leaves; a single leaf is not split. */
function split({ from, to }: Span): [Span, Span] | null {
  const count = to - from;
  if (count === 1n) return null;
  const power = 1n << BigInt((count - 1n).toString(2).length - 1);
  return [
    { from, to: from + power },
    { from: from + power, to },
  ];
}

function partition<T>(items: readonly T[], inRight: (item: T) => boolean): [T[], T[]] {
  const first = items.findIndex(inRight);
  const middle = first < 0 ? items.length : first;
  return [items.slice(0, middle), items.slice(middle)];
}
