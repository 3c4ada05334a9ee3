// Checks proofs of lvmt, in the steps of docs/formats/lvmt-proofs.md ("Checking").
import { concat, equal, fromHex, numberBytes, toHex, toNumber } from '../bytes.js';
import { Refused, malformed, missing, otherRoot, unused } from '../errors.js';
import { type StoreKey, encodeKey, isHashed } from '../state.js';
import { amtTupleHash, blockHash, hash, keyTupleHash, locationHash, rootHash } from './hash.js';
import { type Leaf, topOf } from './merkle.js';
import { type Opening, openingsHold } from './openings.js';
import type { LvmtParams } from './params.js';
import { type PointG1, decompress, pointBytes } from './points.js';
import { type Entry, type Place, type Proof, SLOTS, ascending, decode } from './wire.js';

/** A requested key. */
interface Asked {
  key: Uint8Array;
  location: bigint;
  value: Uint8Array | null;
}

/** Keys that share an entry, and the location of its AMT. */
interface Group {
  level: number;
  keys: Asked[];
  commitment: PointG1;
  /** The entry above. */
  above: Visit | null;
}

/** An entry on the path of requested keys. */
interface Visit {
  entry: Entry;
  number: number;
  commitment: PointG1;
  above: Visit | null;
  /** Whether one of them, here or deeper, is absent. */
  absent: boolean;
}

/** The values of `keys` under `root`; `null` is absence. */
export function verifyLvmt(
  params: LvmtParams,
  root: Uint8Array,
  keys: readonly StoreKey[],
  bytes: Uint8Array,
): (Uint8Array | null)[] {
  const proof = decode(bytes);
  const form = keys.length > 0 && isHashed(keys[0]!) ? 'hashed' : 'plain';
  if (proof.form !== form) throw new Refused('kind', 'the proof is of keys of another form');
  if (proof.height !== params.height) throw new Refused('kind', 'the proof is of another height');
  const walk = new Walk(proof.height, keys);
  walk.run(proof);
  checkDisplay(walk.visits);
  checkRoot(root, proof, walk);
  checkOpenings(params, walk.visits, seedOf(params, root, keys, bytes));
  return keys.map((key) => walk.asked.get(toHex(encodeKey(key)))!.value);
}

/** The paths of all requested keys, level by level. */
class Walk {
  /** By encoded key. */
  readonly asked = new Map<string, Asked>();
  readonly visits: Visit[] = [];
  /** What is shown, by block. */
  readonly leaves = new Map<bigint, Leaf[]>();
  /** Commitment of the root AMT. */
  commitment!: PointG1;

  constructor(
    private readonly height: number,
    keys: readonly StoreKey[],
  ) {
    for (const key of keys.map(encodeKey)) {
      this.asked.set(toHex(key), { key, location: locate(key), value: null });
    }
  }

  run(proof: Proof): void {
    this.commitment = decompress(proof.commitment);
    const sorted = [...this.asked.values()].sort((a, b) => ascending(a.location, b.location));
    let groups = this.groups(0, sorted, this.commitment, null);
    let used = 0;
    while (groups.length > 0) {
      const next: Group[] = [];
      for (const group of groups) {
        const entry = proof.entries[used++];
        if (entry === undefined) throw missing('an entry on the way of a key');
        next.push(...this.visit(group, entry));
      }
      groups = next;
    }
    if (used < proof.entries.length) throw unused();
  }

  /** Keys, by location, in groups that share an entry. */
  private groups(level: number, keys: Asked[], commitment: PointG1, above: Visit | null): Group[] {
    const groups: Group[] = [];
    let last: bigint | undefined;
    for (const key of keys) {
      const prefix = this.prefix(key.location, level + 1);
      if (prefix !== last) groups.push({ level, keys: [], commitment, above });
      groups.at(-1)!.keys.push(key);
      last = prefix;
    }
    return groups;
  }

  /** Takes an entry; returns the groups of keys whose path goes on below it. */
  private visit({ level, keys, commitment, above }: Group, entry: Entry): Group[] {
    const [{ location }] = keys as [Asked];
    const way = this.way(location, level);
    const found = new Set<Asked>();
    for (const { slot, key, value, place } of entry.occupants) {
      const version = entry.versions[slot]!;
      if (version === 0) throw malformed('a free slot has an occupant');
      let encoded;
      if ('asked' in key) {
        const asked = keys[key.asked];
        if (asked === undefined || found.has(asked)) throw malformed('the number of an asked key');
        found.add(asked);
        asked.value = value;
        encoded = asked.key;
      } else {
        encoded = encodeKey(key.other);
        if (this.asked.has(toHex(encoded))) throw malformed('an asked key as another one');
        const elsewhere = this.prefix(locate(encoded), level + 1) !== this.prefix(location, level + 1);
        if (elsewhere) throw malformed('an occupant that belongs elsewhere');
      }
      this.show(place, keyTupleHash(level, slot, version, encoded, value));
    }
    const rest = keys.filter((key) => !found.has(key));
    const hasBelow = entry.versions[0]! > 0;
    const { below } = entry;
    if (below !== null && (rest.length === 0 || !hasBelow)) throw unused();
    if (below === null && rest.length > 0 && hasBelow) throw missing('the sub-AMT below an entry');
    const absent = rest.length > 0 && !hasBelow;
    const visit: Visit = { entry, number: way[level]!, commitment, above, absent };
    this.visits.push(visit);
    if (below === null) return [];
    // There must be an entry for them.
    this.way(location, level + 1);
    const point = decompress(below.commitment);
    this.show(below.place, amtTupleHash(way, entry.versions[0]!, pointBytes(point)));
    return this.groups(level + 1, rest, point, visit);
  }

  private show({ block, position }: Place, hash: Uint8Array): void {
    const leaves = this.leaves.get(block) ?? [];
    leaves.push({ position, hash });
    this.leaves.set(block, leaves);
  }

  /** The entries down to a level. */
  private way(location: bigint, level: number): number[] {
    if ((level + 1) * this.height > 256) throw malformed('a way longer than the location of its key');
    const mask = (1n << BigInt(this.height)) - 1n;
    return Array.from({ length: level + 1 }, (_, at) => Number(this.prefix(location, at + 1) & mask));
  }

  /** The bits of a number of levels. */
  private prefix(location: bigint, levels: number): bigint {
    return location >> BigInt(Math.max(0, 256 - levels * this.height));
  }
}

function locate(key: Uint8Array): bigint {
  return toNumber(locationHash(key));
}

/** All occupants, if the entry is on the path of an absent key; otherwise only the requested ones. */
function checkDisplay(visits: readonly Visit[]): void {
  for (const visit of visits) {
    for (let above = visit.above; visit.absent && above !== null; above = above.above) {
      above.absent = true;
    }
  }
  for (const { entry, absent } of visits) {
    const occupied = entry.versions.slice(1).filter((version) => version > 0).length;
    if (absent && entry.occupants.length < occupied) throw missing("an occupant on an absent key's way");
    if (!absent && entry.occupants.some(({ key }) => 'other' in key)) throw unused();
  }
}

/** From the tuples to the blocks, to the range, to the root. */
function checkRoot(root: Uint8Array, proof: Proof, { leaves, commitment }: Walk): void {
  const blocks = proof.trees.map((tree): Leaf => {
    if (tree.proof === null) throw missing('the tree of a block: it belongs to another shard');
    const shown = leaves.get(tree.block)!.sort((a, b) => ascending(a.position, b.position));
    const top = topOf(tree.leaves, shown, tree.proof);
    const number = proof.first + tree.block;
    return { position: tree.block, hash: blockHash(number, tree.leaves, top) };
  });
  const range = topOf(proof.blocks, blocks, proof.range);
  const shown = rootHash(pointBytes(commitment), proof.first, proof.blocks, range);
  if (!equal(shown, root)) throw otherRoot();
}

function checkOpenings(params: LvmtParams, visits: readonly Visit[], seed: Uint8Array): void {
  const openings = visits.map(({ entry, number, commitment }): Opening => {
    if (entry.quotients === null) throw missing('quotients: they belong to another shard');
    const quotients = entry.quotients.map(decompress);
    return { commitment, entry: number, versions: entry.versions.slice(0, SLOTS), quotients };
  });
  if (openings.length > 0 && !openingsHold(params, openings, seed)) {
    throw otherRoot('an opening does not hold');
  }
}

function seedOf(
  params: LvmtParams,
  root: Uint8Array,
  keys: readonly StoreKey[],
  proof: Uint8Array,
): Uint8Array {
  const domain = new TextEncoder().encode('retrie lvmt proof 1');
  const asked = concat(...keys.map(encodeKey));
  return hash(domain, fromHex(params.digest, 32), root, numberBytes(keys.length, 8), asked, proof);
}
