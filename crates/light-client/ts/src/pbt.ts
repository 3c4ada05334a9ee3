// A compressed binary radix tree of leaves: docs/formats/pbt.md, "Proof bytes".
import { blake3 } from '@noble/hashes/blake3.js';
import { keccak_256 } from '@noble/hashes/sha3.js';
import { type Hex, concat, equal, fromHex, numberBytes, toHex, toNumber } from './bytes.js';
import { Reader } from './cole/reader.js';
import { malformed, otherRoot } from './errors.js';
import { NO_CODE, type StoreKey, encodeAccount, encodeSlot } from './state.js';

type Hash = (bytes: Uint8Array) => Uint8Array;

/** The hash functions that a tree may have, by their names in envelopes. */
export const PBT_HASHES: Record<string, Hash> = {
  blake3: (bytes) => blake3(bytes),
  keccak256: (bytes) => keccak_256(bytes),
};

/** First byte of a node. */
const [TARGET, LEAF, SHARED, BRANCH] = [0, 1, 2, 3];
/** First byte of a key; code has zone 1. */
const [HEADERS, STORAGE] = [0x00, 0xff];
/** Last byte of a key in a header. */
const [BASIC_DATA, CODE_HASH, DELEGATION, FIRST_SLOT] = [0, 1, 2, 64];
const HEADER_SLOTS = 64;
/** Bytes of a key in a header or of a chunk of code; and in the storage zone. */
const [SHORT_KEY, LONG_KEY] = [34, 66];
/** What the code of a delegation begins with (EIP-7702). */
const INDICATOR = Uint8Array.of(0xef, 0x01, 0x00);

/** The encoded values of `keys` under `root`; `null` is absence. */
export function verifyPbt(
  hash: Hash,
  root: Uint8Array,
  keys: readonly StoreKey[],
  proof: Uint8Array,
): (Uint8Array | null)[] {
  const wanted = keys.map((key) => leavesOf(hash, key));
  const targets = [...new Set(wanted.flat().map(toHex))].sort().map((text) => fromHex(text));
  if (targets.length === 0) {
    if (proof.length > 0) throw malformed('a proof of no keys has bytes');
    return [];
  }
  const read = new Proof(hash, proof);
  const top = proof.length === 0 ? new Uint8Array(32) : read.node(targets, 0);
  read.end();
  if (!equal(top, root)) throw otherRoot();
  return keys.map((key, at) => {
    const [first, ...others] = wanted[at]!.map((target) => read.found.get(toHex(target)));
    if (key.slot === undefined) return accountOf(first, others[0], others[1]);
    return first === undefined ? null : encodeSlot(toNumber(first));
  });
}

/** The keys of the leaves that speak for `key`: three of an account, one of a slot. */
function leavesOf(hash: Hash, { account, slot }: StoreKey): Uint8Array[] {
  const name = padded(fromHex(account));
  const path = hash(name);
  const inHeader = (sub: number) => concat(Uint8Array.of(HEADERS), path, Uint8Array.of(sub));
  if (slot === undefined) return [BASIC_DATA, CODE_HASH, DELEGATION].map(inHeader);
  const number = BigInt(slot);
  if (number < BigInt(HEADER_SLOTS)) return [inHeader(FIRST_SLOT + Number(number))];
  const group = hash(concat(name, numberBytes(number >> 8n, 32)));
  return [concat(Uint8Array.of(STORAGE), path, group, numberBytes(number & 0xffn, 1))];
}

/** 32 bytes, with zeros at the front. */
function padded(bytes: Uint8Array): Uint8Array {
  return concat(new Uint8Array(32 - bytes.length), bytes);
}

/** The account that the leaves 0, 1 and 2 of a header show. */
function accountOf(
  basic: Uint8Array | undefined,
  codeHash: Uint8Array | undefined,
  delegation: Uint8Array | undefined,
): Uint8Array | null {
  if (!codeHash && !delegation) {
    if (basic) throw malformed('an account has basic data and no code hash');
    return null;
  }
  if (codeHash && delegation) throw malformed('an account has a code hash and a delegation');
  const data = basic ?? new Uint8Array(32);
  if (toNumber(data.subarray(0, 4)) !== 0n) throw malformed('basic data of another version');
  const account = {
    nonce: toNumber(data.subarray(8, 16)),
    balance: toNumber(data.subarray(16)),
    codeHash: toHex(codeHash ?? hashOfDelegation(delegation!)),
  };
  const size = toNumber(data.subarray(4, 8));
  const isRight = delegation ? size === 23n : (size === 0n) === (account.codeHash === NO_CODE);
  if (!isRight) throw malformed('the size of a code is not that of the code');
  return encodeAccount(account);
}

/** The hash of the code in the leaf of a delegation. */
function hashOfDelegation(value: Uint8Array): Uint8Array {
  const isAddress = equal(value.subarray(0, 3), INDICATOR) && value.subarray(23).every((byte) => byte === 0);
  if (!isAddress) throw malformed('a delegation is not an address');
  return keccak_256(value.subarray(0, 23));
}

/** A proof, while it is read and hashed. */
class Proof {
  /** The values of the targets that the tree has. */
  readonly found = new Map<Hex, Uint8Array>();
  private readonly reader: Reader;

  constructor(
    private readonly hash: Hash,
    bytes: Uint8Array,
  ) {
    this.reader = new Reader(bytes);
  }

  end(): void {
    if (!this.reader.isEmpty) throw malformed('bytes after the end');
  }

  /**
   * The hash of the node that `targets` lead to: at least one, in order, which have the first `from`
   * bits in common.
   */
  node(targets: readonly Uint8Array[], from: number): Uint8Array {
    const [first, last] = [targets[0]!, targets.at(-1)!];
    const kind = this.reader.byte();
    if (kind === TARGET) {
      if (targets.length > 1) throw malformed('a leaf without its key, and several targets');
      return this.leaf(first, true);
    }
    if (kind === LEAF) {
      const zone = this.reader.byte();
      const rest = this.reader.take((zone === STORAGE ? LONG_KEY : SHORT_KEY) - 1);
      const key = concat(Uint8Array.of(zone), rest);
      if (commonBits(key, first) < from) {
        throw malformed('a leaf at a place that its key does not lead to');
      }
      const isTarget = targets.some((target) => equal(target, key));
      if (isTarget && targets.length === 1) throw malformed('a target with its key');
      return this.leaf(key, isTarget);
    }
    if (kind !== SHARED && kind !== BRANCH) throw malformed('an unknown kind of node');
    const count = Number(toNumber(this.reader.take(2)));
    const split = from + count;
    if (kind === SHARED) {
      const isShared = commonBits(first, last) >= split && [first, last].every((key) => key.length * 8 > split);
      if (!isShared) throw malformed('a branch without its prefix, which not all targets continue');
      return this.branch(targets, first, from, split);
    }
    if (split >= LONG_KEY * 8) throw malformed('a prefix that is longer than keys are');
    const bits = this.reader.take(Math.ceil(count / 8));
    if (!equal(bits, packed(bits, 0, count))) throw malformed('bits behind the end of a prefix');
    const key = new Uint8Array(LONG_KEY);
    for (let at = 0; at < split; at++) {
      const one = at < from ? bit(first, at) : bit(bits, at - from);
      key[at >> 3]! |= one << (7 - (at % 8));
    }
    const rest = targets.filter((target) => target.length * 8 > split && commonBits(key, target) >= split);
    if (rest.length === targets.length) {
      throw malformed('a branch with its prefix, which all targets continue');
    }
    return this.branch(rest, key, from, split);
  }

  /** The hash of the branch whose prefix is bits `from` to `split` of `key`, and that `targets` continue. */
  private branch(targets: readonly Uint8Array[], key: Uint8Array, from: number, split: number): Uint8Array {
    const child = (side: number) => {
      const there = targets.filter((target) => bit(target, split) === side);
      return there.length === 0 ? this.reader.hash() : this.node(there, split + 1);
    };
    const left = child(0);
    const right = child(1);
    const prefix = packed(key, from, split);
    return this.hash(concat(Uint8Array.of(1), numberBytes(split - from, 2), prefix, left, right));
  }

  /** The hash of a leaf, whose value comes next. */
  private leaf(key: Uint8Array, isTarget: boolean): Uint8Array {
    const length = this.reader.byte();
    if (length > 32) throw malformed('a value of more than 32 bytes');
    const bytes = this.reader.take(length);
    if (length === 0 || bytes[0] === 0) throw malformed('a value of zero, or with leading zeros');
    const value = padded(bytes);
    if (isTarget) this.found.set(toHex(key), value);
    return this.hash(concat(Uint8Array.of(0), key, value));
  }
}

/** Bit number `at`, the first one being the highest of the first byte. */
function bit(bytes: Uint8Array, at: number): number {
  return ((bytes[at >> 3] ?? 0) >> (7 - (at % 8))) & 1;
}

/** The bits `from` to `to`, the first one highest, and zeros behind them. */
function packed(bytes: Uint8Array, from: number, to: number): Uint8Array {
  const out = new Uint8Array(Math.ceil((to - from) / 8));
  for (let at = from; at < to; at++) out[(at - from) >> 3]! |= bit(bytes, at) << (7 - ((at - from) % 8));
  return out;
}

/** How many bits both have in common at the front, at most all of the shorter one. */
function commonBits(a: Uint8Array, b: Uint8Array): number {
  const most = Math.min(a.length, b.length);
  let same = 0;
  while (same < most && a[same] === b[same]) same++;
  return same === most ? most * 8 : same * 8 + Math.clz32(a[same]! ^ b[same]!) - 24;
}
