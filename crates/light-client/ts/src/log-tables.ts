// Complete logs by index tables (EIP-8304): docs/formats/log-tables.md, and docs/formats/proofs.md, "Logs".
import { sha256 } from '@noble/hashes/sha2.js';
import { keccak_256 } from '@noble/hashes/sha3.js';
import { type Hex, concat, equal, fromHex, quantity, shortBytes, toHex, toNumber } from './bytes.js';
import { type ErrorClass, Refused, malformed } from './errors.js';
import {
  type LogClaim,
  type LogFilter,
  type LogsHeader,
  type VerifiedLog,
  conditionsOf,
  isStated,
  matchesLog,
  readHeader,
  readLogs,
  refused,
} from './logs.js';
import { lookUp } from './mpt.js';
import { RlpReader, rlpString } from './rlp.js';
import type { Trust, TrustedRoot } from './trust.js';
import type { StateProofAnswer, Verifier } from './verifier.js';

/** Entries of an index table, and their proof. Numbers are quantities. */
export interface TableSlice {
  firstBlock: Hex;
  size: Hex;
  entries: Hex;
  /** Conditions of the filter of which all entries are shown: 0 addresses, 1 to 4 topics. */
  shows: readonly number[];
  runs: readonly { start: Hex; entries: Hex }[];
  nodes: Hex;
}

/** The answer of `state_getLogs(filter, "tables", block)`. Do not trust it before it is verified. */
export interface LogTablesAnswer {
  version: number;
  form: string;
  logs: readonly LogClaim[];
  header: Hex;
  state?: StateProofAnswer | null;
  tables: readonly TableSlice[];
  blocks: readonly { header: Hex; receipts: readonly Hex[] }[];
}

/** Why the roots of tables are trusted. */
export type TableTrust =
  /** They are in the state of the trusted block; `root` is that of the state, if the header has another one. */
  | { verifier: Verifier; root?: Hex }
  /** The caller knows them. */
  | { roots: readonly { firstBlock: bigint; size: bigint; root: Hex }[] };

/** All logs of blocks `from` to `to` that match a filter, as index tables show them. */
export interface TabledLogs {
  from: bigint;
  to: bigint;
  logs: (VerifiedLog & { transactionHash: Hex })[];
  /** Left out if the caller gave the roots. */
  trust?: Trust;
}

const [VERSION, FORM] = [2, 'tables'];
const SIZES = [1n, 4n, 16n, 64n, 256n];
const TABLES_PER_LEVEL = 1024n;
const INDEX_CONTRACT = '0x0000000000000000000000000000000000008304';
const MOST_ENTRIES = 1n << 40n;
const ZERO = new Uint8Array(32);

/**
 * Verifies the answer of `state_getLogs` to `filter` in the form `tables`: every log that matches, and no
 * other, in the blocks of its range. The block with the trusted `hash` is the last of the range, or a later one.
 *
 * @throws {Refused} unless the answer shows that.
 */
export function verifyLogTables(answer: LogTablesAnswer, filter: LogFilter, hash: Hex, trust: TableTrust): TabledLogs {
  if (answer.version !== VERSION || answer.form !== FORM) {
    throw new Refused('kind', `there is no verifier for answers of state_getLogs of version ${answer.version}`);
  }
  const lists = [answer.logs, answer.tables, answer.blocks];
  if (!lists.every((list) => Array.isArray(list) && list.every((one) => typeof one === 'object' && one !== null))) {
    throw malformed('the answer has no lists of logs, tables and blocks');
  }
  const anchor = readHeader(fromHex(hash, 32), fromHex(answer.header));
  const { from, to } = askedRange(filter, anchor);
  const tables = openTables(answer, from, to, anchor.number);
  const basis = checkRoots(answer, tables, anchor, trust);
  const places = placesIn(tables, filter);
  const logs = places.flatMap((place, i) => logsAt(answer, place, i, tables, anchor, filter));
  if (answer.blocks.length > places.length) throw refused('unused', to, 'there are more blocks than are needed');
  tables.forEach(checkUse);
  for (let i = 0; i < Math.max(logs.length, answer.logs.length); i++) {
    const [shown, claim] = [logs[i], answer.logs[i]];
    const isRight =
      shown && claim && isStated(shown, claim) && String(claim.transactionHash).toLowerCase() === shown.transactionHash;
    if (!isRight) throw refused('claim', shown?.blockNumber ?? to, 'the answer states other logs than are shown');
  }
  return { from, to, logs, ...(basis === undefined ? {} : { trust: basis }) };
}

function askedRange(filter: LogFilter, anchor: LogsHeader): { from: bigint; to: bigint } {
  const other = () => {
    throw new Refused('block', `the answer is of blocks up to ${anchor.number}, the filter asks for others`);
  };
  const bound = (tag: string): bigint => {
    if (['latest', 'safe', 'finalized'].includes(tag)) return anchor.number;
    return ['earliest', 'pending'].includes(tag) ? other() : quantity(tag, 64);
  };
  if (filter.blockHash) {
    if (!equal(fromHex(filter.blockHash, 32), anchor.hash)) other();
    return { from: anchor.number, to: anchor.number };
  }
  const [from, to] = [bound(filter.fromBlock ?? 'latest'), bound(filter.toBlock ?? 'latest')];
  return from > to || to > anchor.number ? other() : { from, to };
}

/** An entry; its bytes are hexadecimal text, whose order is theirs. */
interface Entry {
  text: string;
  kind: number;
  block: bigint;
  transaction: number;
  log: number;
}

/** Length of an entry, by its type. */
function entryLength(type: string): number {
  const kind = /^000[0-6]$/.test(type) ? Number(type) : 7;
  const length = [42, 50, 38, 50, 50, 50, 50][kind];
  if (length === undefined) throw malformed('there is no such type of entries');
  return length;
}

function readEntries(bytes: Uint8Array): Entry[] {
  const [text, entries] = [toHex(bytes).slice(2), [] as Entry[]];
  let before = '';
  for (let at = 0; at < text.length; ) {
    const shared = 2 * parseInt(text.slice(at, at + 2), 16);
    at += 2;
    if (shared > before.length) throw malformed('an entry shares more than there is');
    const length = 2 * entryLength((before.slice(0, shared) + text.slice(at, at + 4)).slice(0, 4));
    const end = at + length - shared;
    if (end < at || end > text.length) throw malformed('an entry ends early');
    const entry = before.slice(0, shared) + text.slice(at, end);
    if (entry <= before) throw malformed('entries are not in order');
    entries.push(parsed(entry));
    [before, at] = [entry, end];
  }
  return entries;
}

function parsed(text: string): Entry {
  const kind = Number(text.slice(0, 4));
  const number = (start: number, length: number) => BigInt(`0x${text.slice(start, start + length)}`);
  const start = text.length - (kind === 0 ? 16 : 32);
  const part = (offset: number) => (kind === 0 ? 0 : Number(number(start + offset, 8)));
  return { text, kind, block: number(start, 16), transaction: part(16), log: part(24) };
}

interface Run {
  start: bigint;
  end: bigint;
  entries: Entry[];
}

interface Table {
  first: bigint;
  size: bigint;
  last: bigint;
  /** The blocks of the range that no earlier table has. */
  asked?: { from: bigint; to: bigint };
  shows: readonly number[];
  count: bigint;
  runs: Run[];
  nodes: Uint8Array[];
  /** Indices of entries that are needed: from, and to the one before. */
  needed: [bigint, bigint][];
}

function ofTable(errorClass: ErrorClass, { first, size }: { first: bigint; size: bigint }, why: string): Refused {
  return new Refused(errorClass, `the index table of ${size} blocks from block ${first} on is refused: ${why}`);
}

/** The tables of an answer, which cover the range without gap, none of them for nothing. */
function openTables(answer: LogTablesAnswer, from: bigint, to: bigint, at: bigint): Table[] {
  let [next, isBehind] = [from, false];
  const tables = answer.tables.map((slice) => {
    const table = openTable(slice);
    const { first, size, last } = table;
    const storedAt = last + size / 4n;
    if (storedAt === 0n || storedAt > at || at >= storedAt + size * TABLES_PER_LEVEL) {
      throw ofTable('missing', table, 'the index contract does not have its root');
    }
    if (next > to) {
      if (isBehind || to >= at || first > to + 1n || last <= to) throw ofTable('unused', table, 'it is not needed');
      isBehind = true;
      return table;
    }
    if (first > next || last < next) throw ofTable('missing', table, 'a table before it is missing');
    const asked = { from: next, to: last < to ? last : to };
    next = last + 1n;
    return { ...table, asked };
  });
  if (next <= to) throw ofTable('missing', { first: next, size: 1n }, 'it is missing');
  return tables;
}

function openTable(slice: TableSlice): Table {
  const [first, size, count] = [slice.firstBlock, slice.size, slice.entries].map((text) => quantity(text, 64)) as [
    bigint,
    bigint,
    bigint,
  ];
  const [shows, bytes] = [slice.shows, fromHex(slice.nodes)];
  const isOrdered = Array.isArray(shows) && shows.every((one, i) => i === 0 || shows[i - 1]! < one);
  if (!SIZES.includes(size) || first % size !== 0n || !isOrdered || bytes.length % 32 !== 0 || !Array.isArray(slice.runs)) {
    throw ofTable('malformed', { first, size }, 'there is no such table');
  }
  const runs = slice.runs.map(({ start: text, entries: hex }) => {
    const [start, entries] = [quantity(text, 64), readEntries(fromHex(hex))];
    return { start, end: start + BigInt(entries.length), entries };
  });
  const nodes = Array.from({ length: bytes.length / 32 }, (_, i) => bytes.subarray(32 * i, 32 * i + 32));
  return { first, size, last: first + size - 1n, shows, count, runs, nodes, needed: [] };
}

/** The root of an SSZ list, whose leaves are the hashes of the entries. */
function tableRoot(table: Table): Uint8Array {
  const { count, runs, nodes } = table;
  let [next, before] = [0n, ''];
  const leaves: [bigint, Uint8Array][] = [];
  for (const { start, end, entries } of runs) {
    if (start < next || start === end || end > count) throw ofTable('malformed', table, 'its runs are not in order');
    next = end + 1n;
    entries.forEach(({ text }, i) => {
      if (text <= before) throw ofTable('malformed', table, 'its entries are not in order');
      before = text;
      leaves.push([start + BigInt(i), sha256(fromHex(`0x${text}`))]);
    });
  }
  if (count > MOST_ENTRIES) throw ofTable('malformed', table, 'it has too many entries');
  let [leaf, used] = [0, 0];
  const nodeAt = (height: number, index: bigint): Uint8Array => {
    const below = index << BigInt(height);
    if (below >= count) return emptySubtree(height);
    const known = leaves[leaf];
    if (known === undefined || known[0] >= (index + 1n) << BigInt(height)) {
      const node = nodes[used++];
      if (node === undefined) throw ofTable('missing', table, 'it lacks a node of the tree');
      return node;
    }
    if (height === 0) {
      leaf++;
      return known[1];
    }
    const left = nodeAt(height - 1, 2n * index);
    return sha256(concat(left, nodeAt(height - 1, 2n * index + 1n)));
  };
  const depth = count <= 1n ? 0 : (count - 1n).toString(2).length;
  const tree = nodeAt(depth, 0n);
  if (used < nodes.length) throw ofTable('unused', table, 'it has a node too many');
  const length = new Uint8Array(32);
  new DataView(length.buffer).setBigUint64(0, count, true);
  return sha256(concat(tree, length));
}

function emptySubtree(height: number): Uint8Array {
  let node: Uint8Array = ZERO;
  for (let i = 0; i < height; i++) node = sha256(concat(node, node));
  return node;
}

function checkRoots(
  answer: LogTablesAnswer,
  tables: Table[],
  anchor: LogsHeader,
  trust: TableTrust,
): Trust | undefined {
  const { state } = answer;
  const slot = ({ first, size }: Table) => size * TABLES_PER_LEVEL + ((first / size) % TABLES_PER_LEVEL);
  let [roots, basis] = [[] as (Uint8Array | undefined)[], undefined as Trust | undefined];
  if ('verifier' in trust && state) {
    const isAsked =
      String(state.address).toLowerCase() === INDEX_CONTRACT &&
      (state.asOf === undefined || state.asOf === null) &&
      state.storage.length === tables.length &&
      tables.every((table, i) => toNumber(fromHex(state.storage[i]!.key, 32)) === slot(table));
    if (!isAsked) throw refused('missing', anchor.number, 'the answer shows other slots than those of its tables');
    const root: TrustedRoot =
      trust.root === undefined
        ? { kind: 'header', hash: toHex(anchor.hash), rlp: answer.header }
        : { kind: 'checkpoint', block: anchor.number, root: trust.root };
    const shown = trust.verifier.answer(state, root);
    basis = shown.trust;
    roots = shown.storage.map(({ value }) => {
      return value === 0n ? undefined : fromHex(`0x${value.toString(16).padStart(64, '0')}`);
    });
  } else if ('roots' in trust && !state) {
    roots = tables.map(({ first, size }) => {
      const known = trust.roots.find((one) => one.firstBlock === first && one.size === size);
      return known && fromHex(known.root, 32);
    });
  } else {
    throw refused('missing', anchor.number, 'the answer must show the roots of its tables, or the caller give them');
  }
  tables.forEach((table, i) => {
    const expected = roots[i];
    if (expected === undefined) throw ofTable('missing', table, 'its root is not known');
    if (!equal(tableRoot(table), expected)) throw ofTable('root', table, 'its entries lead to another root');
  });
  return basis;
}

/** All entries of a key; `undefined` if the table does not show that they are all. */
function complete(table: Table, key: string): Entry[] | undefined {
  const { count, runs, needed } = table;
  if (count === 0n) return [];
  const after = runs.findIndex(({ entries }) => entries[0]!.text >= key);
  const run = runs[Math.max(0, (after < 0 ? runs.length : after) - 1)];
  if (run === undefined) return undefined;
  const firstAt = run.entries.findIndex(({ text }) => text >= key);
  const low = firstAt < 0 ? run.entries.length : firstAt;
  let high = low;
  while (run.entries[high]?.text.startsWith(key)) high++;
  const hasStart = low > 0 || run.start === 0n;
  const hasEnd = high < run.entries.length || run.end === count;
  if (!hasStart || !hasEnd) return undefined;
  const [start, end] = [run.start + BigInt(low) - 1n, run.start + BigInt(high) + 1n];
  needed.push([start < 0n ? 0n : start, end > count ? count : end]);
  return run.entries.slice(low, high);
}

/** A block with the transactions and logs that may match. */
interface Place {
  block: bigint;
  receipts: Map<number, Set<number>>;
}

/** The places that have an entry of each condition that their table shows, in the order of the chain. */
function placesIn(tables: Table[], filter: LogFilter): Place[] {
  const conditions = new Map<number, string[]>();
  conditionsOf(filter).forEach((alternatives, i) => {
    const keys = alternatives.map(({ value }) => `000${i + 2}${value.slice(2)}`);
    if (keys.length > 0) conditions.set(i, keys);
  });
  if (conditions.size === 0) conditions.set(0, ['0002']);
  const blocks = new Map<bigint, Map<number, Set<number>>>();
  for (const table of tables) {
    const { asked, shows } = table;
    if (asked === undefined) {
      if (shows.length > 0) throw ofTable('unused', table, 'it shows more than is needed');
      continue;
    }
    let found: Map<string, Entry> | undefined;
    for (const condition of shows) {
      const shown = conditions.get(condition)?.map((key) => complete(table, key));
      if (shown === undefined || shown.includes(undefined)) throw incomplete(table);
      const entries = (shown as Entry[][]).flat();
      const within = entries.filter(({ block }) => asked.from <= block && block <= asked.to);
      const places = new Map(within.map((entry) => [`${entry.block} ${entry.transaction} ${entry.log}`, entry]));
      const before = found;
      found = before === undefined ? places : new Map([...before].filter(([place]) => places.has(place)));
    }
    if (found === undefined) throw incomplete(table);
    for (const { block, transaction, log } of found.values()) {
      const receipts = blocks.get(block) ?? new Map<number, Set<number>>();
      receipts.set(transaction, (receipts.get(transaction) ?? new Set()).add(log));
      blocks.set(block, receipts);
    }
  }
  const places = [...blocks].map(([block, receipts]) => ({
    block,
    receipts: new Map([...receipts].sort(([one], [other]) => one - other)),
  }));
  return places.sort((one, other) => (one.block < other.block ? -1 : 1));
}

function incomplete(table: Table): Refused {
  return ofTable('missing', table, 'it does not show all entries of any condition of the filter');
}

/** The entry of a block or a transaction. It is needed from then on. */
function mark(table: Table | undefined, kind: number, block: bigint, transaction: number): Entry | undefined {
  for (const run of table?.runs ?? []) {
    const at = run.entries.findIndex(
      (entry) => entry.kind === kind && entry.block === block && entry.transaction === transaction,
    );
    if (at < 0) continue;
    const index = run.start + BigInt(at);
    table!.needed.push([index, index + 1n]);
    return run.entries[at];
  }
  return undefined;
}

function hashOf({ text }: Entry): Hex {
  return `0x${text.slice(4, 68)}`;
}

function logsAt(
  answer: LogTablesAnswer,
  { block, receipts }: Place,
  at: number,
  tables: Table[],
  anchor: LogsHeader,
  filter: LogFilter,
): TabledLogs['logs'] {
  const given = answer.blocks[at];
  if (given === undefined) throw refused('missing', block, 'its receipts are left out');
  const rlp = fromHex(given.header);
  const header = readHeader(keccak_256(rlp), rlp);
  const tableOf = (number: bigint) => tables.find(({ first, last }) => first <= number && number <= last);
  const isShown = () => {
    const entry = mark(tableOf(block + 1n), 0, block, 0);
    return entry !== undefined && hashOf(entry) === toHex(header.hash);
  };
  if (header.number !== block || !(equal(header.hash, anchor.hash) || isShown())) {
    throw new Refused('header', `no index table shows that block ${block} has the header ${toHex(header.hash)}`);
  }
  const nodes = new Map(given.receipts.map((node) => [toHex(keccak_256(fromHex(node))), fromHex(node)]));
  const used = new Set<Hex>();
  const fetch = (hash: Uint8Array) => {
    const node = nodes.get(toHex(hash));
    if (node === undefined) throw refused('missing', block, 'a node of the trie of its receipts is left out');
    used.add(toHex(hash));
    return node;
  };
  if (nodes.size !== given.receipts.length) throw refused('unused', block, 'a node of its receipts comes twice');
  const conditions = conditionsOf(filter);
  const logs = [...receipts].flatMap(([transactionIndex, indices]) => {
    const path = rlpString(shortBytes(BigInt(transactionIndex)));
    const leaf = lookUp(keccak_256, header.receiptsRoot, path, fetch);
    if (leaf === null) throw refused('malformed', block, 'it has no receipt of a transaction that a table names');
    const found = logsOf(leaf, block).flatMap((log, index) => {
      return indices.has(index) && matchesLog(conditions, log) ? [{ log, index }] : [];
    });
    if (found.length === 0) return [];
    const entry = mark(tableOf(block), 1, block, transactionIndex);
    if (entry === undefined) throw refused('missing', block, 'no table shows a transaction that has a matching log');
    return found.map(({ log, index }) => ({
      ...log,
      blockNumber: block,
      blockHash: toHex(header.hash),
      blockTimestamp: header.timestamp,
      transactionHash: hashOf(entry),
      transactionIndex,
      logIndex: entry.log + index,
    }));
  });
  if (used.size !== nodes.size) throw refused('unused', block, 'a node of its receipts is not needed');
  return logs;
}

/** The logs of a receipt (EIP-2718). */
function logsOf(leaf: Uint8Array, block: bigint) {
  try {
    const whole = new RlpReader(leaf[0]! <= 0x7f ? leaf.subarray(1) : leaf);
    const fields = whole.list();
    // Status or state root, gas, bloom.
    for (let i = 0; i < 3; i++) fields.string();
    return readLogs(fields.list());
  } catch {
    throw refused('malformed', block, 'a receipt is none');
  }
}

/** Fails unless the entries of a table are those that are needed. */
function checkUse(table: Table): void {
  const { asked, needed, runs } = table;
  const merged: [bigint, bigint][] = [];
  const ranges = needed.filter(([start, end]) => start < end).sort(([one], [other]) => (one < other ? -1 : 1));
  for (const [start, end] of ranges) {
    const last = merged[merged.length - 1];
    if (last === undefined || start > last[1]) merged.push([start, end]);
    else if (end > last[1]) last[1] = end;
  }
  const isExact = merged.length === runs.length && runs.every(({ start, end }, i) => {
    return merged[i]![0] === start && merged[i]![1] === end;
  });
  if (!isExact || (asked === undefined && needed.length === 0)) {
    throw ofTable('unused', table, 'it has entries that are not needed');
  }
}
