// The trie of a list (yellow paper 4.3.1): the RLP of an index leads to an item.
import { keccak_256 } from '@noble/hashes/sha3.js';
import { concat, shortBytes } from './bytes.js';
import { nibbles } from './mpt.js';
import { rlpList, rlpString } from './rlp.js';

interface Leaf {
  path: number[];
  value: Uint8Array;
}

/** The root of the trie of these items. */
export function listRoot(items: readonly Uint8Array[]): Uint8Array {
  const leaves = items.map((value, i) => ({ path: nibbles(rlpString(shortBytes(BigInt(i)))), value }));
  return keccak_256(leaves.length === 0 ? rlpString(new Uint8Array()) : node(leaves, 0));
}

/** The RLP of the node above these leaves, whose paths are equal up to `depth`. No path begins with another. */
function node(leaves: readonly Leaf[], depth: number): Uint8Array {
  const [first, ...others] = leaves as [Leaf, ...Leaf[]];
  if (others.length === 0) return rlpList(hexPrefix(first.path.slice(depth), true), rlpString(first.value));
  let end = depth;
  while (others.every(({ path }) => path[end] === first.path[end])) end++;
  if (end > depth) return rlpList(hexPrefix(first.path.slice(depth, end), false), reference(node(leaves, end)));
  const children = Array.from({ length: 16 }, (_, nibble) => {
    const below = leaves.filter(({ path }) => path[depth] === nibble);
    return below.length === 0 ? rlpString(new Uint8Array()) : reference(node(below, depth + 1));
  });
  return rlpList(...children, rlpString(new Uint8Array()));
}

/** How a parent names a node: by its hash, or the node itself if it is short. */
function reference(node: Uint8Array): Uint8Array {
  return node.length < 32 ? node : rlpString(keccak_256(node));
}

/** Yellow paper, appendix C, as RLP. */
function hexPrefix(path: readonly number[], isLeaf: boolean): Uint8Array {
  const flags = isLeaf ? 2 : 0;
  const all = path.length % 2 === 1 ? [flags + 1, ...path] : [flags, 0, ...path];
  const pairs = Array.from({ length: all.length / 2 }, (_, i) => all[2 * i]! * 16 + all[2 * i + 1]!);
  return rlpString(concat(Uint8Array.from(pairs)));
}
