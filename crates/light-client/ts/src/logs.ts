// Complete logs: docs/formats/proofs.md, "Logs".
import { keccak_256 } from '@noble/hashes/sha3.js';
import { type Hex, concat, equal, fromHex, quantity, toHex } from './bytes.js';
import { Refused } from './errors.js';
import { listRoot } from './list-trie.js';
import { RlpReader, rlpList, rlpString } from './rlp.js';

/** A filter, as `eth_getLogs` takes it. */
export interface LogFilter {
  /** A number; or `latest`, `safe` or `finalized`, which stand for the trusted block; that is the default. */
  fromBlock?: string | null;
  toBlock?: string | null;
  /** One block, instead of a range. */
  blockHash?: Hex | null;
  address?: Hex | readonly Hex[] | null;
  topics?: readonly (Hex | readonly Hex[] | null)[];
}

/** A log, as `eth_getLogs` gives it. */
export interface LogClaim {
  address: Hex;
  topics: readonly Hex[];
  data: Hex;
  blockNumber: Hex;
  blockHash: Hex;
  blockTimestamp: Hex;
  transactionHash: Hex;
  transactionIndex: Hex;
  logIndex: Hex;
  removed: boolean;
}

/** The answer of `state_getLogs(filter)`. Do not trust it before it is verified. */
export interface LogsAnswer {
  version: number;
  logs: readonly LogClaim[];
  /**
   * Every block of the range: RLP of its header, and if its bloom matches, of all its receipts, each
   * without its bloom (EIP-7642).
   */
  blocks: readonly { header: Hex; receipts?: Hex | null }[];
}

/** A log of a trusted chain. The hash of its transaction is not shown: no receipt has it. */
export interface VerifiedLog {
  address: Hex;
  topics: Hex[];
  data: Hex;
  blockNumber: bigint;
  blockHash: Hex;
  blockTimestamp: bigint;
  /** Index of its transaction in the block. */
  transactionIndex: number;
  /** Index among all logs of the block. */
  logIndex: number;
}

/** All logs of blocks `from` to `to` that match a filter, in the order of the chain. */
export interface CompleteLogs {
  from: bigint;
  to: bigint;
  /** Hash of the parent of the first block: the trusted hash for the range before this one. */
  parent: Hex;
  logs: VerifiedLog[];
}

const VERSION = 1;
const BLOOM_LENGTH = 256;

/**
 * Verifies the answer of `state_getLogs` to `filter`: every log that matches, and no other, in the blocks of
 * its range, the last of which has the trusted `hash`.
 *
 * @throws {Refused} unless the answer shows that.
 */
export function verifyLogs(answer: LogsAnswer, filter: LogFilter, hash: Hex): CompleteLogs {
  if (answer.version !== VERSION) {
    throw new Refused('kind', `there is no verifier for answers of state_getLogs of version ${answer.version}`);
  }
  const { logs: stated, blocks } = answer;
  const areObjects = (list: unknown) =>
    Array.isArray(list) && list.every((one) => typeof one === 'object' && one !== null);
  if (!areObjects(stated) || !areObjects(blocks)) {
    throw new Refused('malformed', 'the answer has no lists of logs and blocks');
  }
  const headers = openChain(blocks, hash);
  const [first, last] = [headers[0]!, headers[headers.length - 1]!];
  checkRange(filter, first, last);
  const conditions = conditionsOf(filter);
  const logs = headers.flatMap((header, i) => matchingLogs(conditions, header, blocks[i]!.receipts));
  const count = Math.max(logs.length, stated.length);
  for (let i = 0; i < count; i++) {
    const [shown, claim] = [logs[i], stated[i]];
    if (shown && claim && isStated(shown, claim)) continue;
    const block = shown?.blockNumber ?? last.number;
    throw refused('claim', block, 'the answer states other logs than its receipts have');
  }
  return { from: first.number, to: last.number, parent: toHex(first.parent), logs };
}

export function refused(errorClass: 'claim' | 'malformed' | 'missing' | 'root' | 'unused', block: bigint, why: string) {
  return new Refused(errorClass, `the logs of block ${block} are refused: ${why}`);
}

export interface LogsHeader {
  hash: Uint8Array;
  parent: Uint8Array;
  receiptsRoot: Uint8Array;
  bloom: Uint8Array;
  number: bigint;
  timestamp: bigint;
}

/** The headers: the last one has the trusted hash, each other one is the parent of the next one. */
function openChain(blocks: LogsAnswer['blocks'], trusted: Hex): LogsHeader[] {
  const headers: LogsHeader[] = [];
  for (const { header: rlp } of [...blocks].reverse()) {
    const child = headers[headers.length - 1];
    const header = readHeader(child?.parent ?? fromHex(trusted, 32), fromHex(rlp));
    if (child && header.number !== child.number - 1n) throw otherHeader(header.hash, 'its number does not fit');
    headers.push(header);
  }
  if (headers.length === 0) throw otherHeader(fromHex(trusted, 32), 'there is none');
  return headers.reverse();
}

function otherHeader(hash: Uint8Array, why: string): Refused {
  return new Refused('header', `the header of block hash ${toHex(hash)} is refused: ${why}`);
}

export function readHeader(hash: Uint8Array, rlp: Uint8Array): LogsHeader {
  if (!equal(keccak_256(rlp), hash)) throw otherHeader(hash, 'its bytes have another hash');
  try {
    const whole = new RlpReader(rlp);
    const fields = whole.list();
    whole.end();
    const skip = (count: number) => Array.from({ length: count }, () => fields.string());
    const parent = fields.string(32);
    // Ommers, beneficiary, state, transactions.
    skip(4);
    const [receiptsRoot, bloom] = [fields.string(32), fields.string(BLOOM_LENGTH)];
    // Difficulty.
    skip(1);
    const number = fields.number(8);
    // Gas limit, gas used.
    skip(2);
    return { hash, parent, receiptsRoot, bloom, number, timestamp: fields.number(8) };
  } catch {
    throw otherHeader(hash, 'its bytes are no RLP of a header');
  }
}

function checkRange(filter: LogFilter, first: LogsHeader, last: LogsHeader): void {
  const bound = (tag: string) => {
    if (['latest', 'safe', 'finalized'].includes(tag)) return last.number;
    // Which blocks these are is the node's word.
    return ['earliest', 'pending'].includes(tag) ? undefined : quantity(tag, 64);
  };
  const { blockHash } = filter;
  const [from, to] = [filter.fromBlock ?? 'latest', filter.toBlock ?? 'latest'];
  const isAsked = blockHash
    ? equal(fromHex(blockHash, 32), last.hash) && first === last
    : bound(from) === first.number && bound(to) === last.number;
  if (isAsked) return;
  const asked = blockHash ?? `${from} to ${to}`;
  const shown = `${first.number} to ${last.number}, hash ${toHex(last.hash)}`;
  throw new Refused('block', `the answer is of blocks ${shown}, the filter asks for ${asked}`);
}

/** The alternatives of the address and of each topic, with their bits in a bloom; without any: every value. */
export type Conditions = { value: Hex; bits: number[] }[][];

export function conditionsOf({ address, topics = [] }: LogFilter): Conditions {
  const of = (one: Hex | readonly (Hex | null)[] | null | undefined, length: number) => {
    const values = one === null || one === undefined ? [] : typeof one === 'string' ? [one] : one;
    // A null among the alternatives of a topic is every topic.
    if (values.some((value) => value === null)) return [];
    return values.map((value) => {
      const bytes = fromHex(value as Hex, length);
      return { value: toHex(bytes), bits: bloomBits(bytes) };
    });
  };
  return [of(address, 20), ...topics.map((topic) => of(topic, 32))];
}

/** The three bits that a value sets in a bloom (yellow paper 4.3.1), counted from the end. */
function bloomBits(value: Uint8Array): number[] {
  const hash = keccak_256(value);
  return [0, 2, 4].map((i) => ((hash[i]! << 8) | hash[i + 1]!) & 2047);
}

function matchesBloom(conditions: Conditions, bloom: Uint8Array): boolean {
  const isSet = (bit: number) => ((bloom[BLOOM_LENGTH - 1 - (bit >> 3)]! >> (bit & 7)) & 1) === 1;
  const matches = (alternatives: Conditions[number]) =>
    alternatives.length === 0 || alternatives.some(({ bits }) => bits.every(isSet));
  // A zero bloom, which matches a filter without conditions, is that of no log.
  return bloom.some((byte) => byte !== 0) && conditions.every(matches);
}

export interface Log {
  address: Hex;
  topics: Hex[];
  data: Hex;
}

export function matchesLog(conditions: Conditions, { address, topics }: Log): boolean {
  const values = [address, ...topics];
  return conditions.every(
    (alternatives, i) => alternatives.length === 0 || alternatives.some(({ value }) => value === values[i]),
  );
}

/** The matching logs of a block. There are receipts if, and only if, the bloom of the header matches. */
function matchingLogs(conditions: Conditions, header: LogsHeader, rlp?: Hex | null): VerifiedLog[] {
  const { number, hash, timestamp } = header;
  const isGiven = rlp !== undefined && rlp !== null;
  if (!matchesBloom(conditions, header.bloom)) {
    if (isGiven) throw refused('unused', number, 'the bloom does not match, but there are receipts');
    return [];
  }
  if (!isGiven) throw refused('missing', number, 'the bloom matches, but the receipts are left out');
  let receipts: Receipt[];
  try {
    receipts = readReceipts(fromHex(rlp));
  } catch {
    throw refused('malformed', number, 'its receipts are no list of receipts as EIP-7642 has them');
  }
  if (!equal(listRoot(receipts.map(({ leaf }) => leaf)), header.receiptsRoot)) {
    throw refused('root', number, 'its receipts have another root than its header names');
  }
  const block = { blockNumber: number, blockHash: toHex(hash), blockTimestamp: timestamp };
  const all = receipts.flatMap(({ logs }, transactionIndex) => logs.map((log) => ({ log, transactionIndex })));
  return all
    .map(({ log, transactionIndex }, logIndex) => ({ ...log, ...block, transactionIndex, logIndex }))
    .filter((log) => matchesLog(conditions, log));
}

interface Receipt {
  /** What the receipts trie has: the receipt with its bloom, as EIP-2718 encodes it. */
  leaf: Uint8Array;
  logs: Log[];
}

function readReceipts(rlp: Uint8Array): Receipt[] {
  const whole = new RlpReader(rlp);
  const list = whole.list();
  whole.end();
  const receipts = [];
  while (!list.isEmpty) receipts.push(readReceipt(list.list()));
  return receipts;
}

function readReceipt(fields: RlpReader): Receipt {
  const type = Number(fields.number(1));
  if (type > 0x7f) throw new RangeError('no transaction has such a type');
  const [status, gas] = [fields.string(), fields.string()];
  const encoded = fields.item();
  fields.end();
  if (!encoded.isList) throw new TypeError('no list of logs');
  const bloom = new Uint8Array(BLOOM_LENGTH);
  const logs = readLogs(new RlpReader(encoded.payload));
  for (const value of logs.flatMap(({ address, topics }) => [address, ...topics])) {
    for (const bit of bloomBits(fromHex(value))) bloom[BLOOM_LENGTH - 1 - (bit >> 3)]! |= 1 << (bit & 7);
  }
  const body = rlpList(rlpString(status), rlpString(gas), rlpString(bloom), encoded.whole);
  return { leaf: type === 0 ? body : concat(Uint8Array.of(type), body), logs };
}

/** The logs of a receipt, from the items of their list. */
export function readLogs(items: RlpReader): Log[] {
  const logs: Log[] = [];
  while (!items.isEmpty) {
    const log = items.list();
    const address = toHex(log.string(20));
    const topicList = log.list();
    const topics: Hex[] = [];
    while (!topicList.isEmpty) topics.push(toHex(topicList.string(32)));
    logs.push({ address, topics, data: toHex(log.string()) });
    log.end();
  }
  return logs;
}

export function isStated(log: VerifiedLog, claim: LogClaim): boolean {
  const numbers: [Hex, bigint | number][] = [
    [claim.blockNumber, log.blockNumber],
    [claim.blockTimestamp, log.blockTimestamp],
    [claim.transactionIndex, log.transactionIndex],
    [claim.logIndex, log.logIndex],
  ];
  const topics = Array.isArray(claim.topics) ? claim.topics : [];
  const values = [claim.address, claim.data, claim.blockHash, ...topics].map((hex) => String(hex).toLowerCase());
  const shown = [log.address, log.data, log.blockHash, ...log.topics];
  return (
    !claim.removed &&
    numbers.every(([stated, number]) => quantity(stated, 64) === BigInt(number)) &&
    values.length === shown.length &&
    values.every((value, i) => value === shown[i])
  );
}
