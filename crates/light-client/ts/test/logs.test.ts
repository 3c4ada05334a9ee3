// The golden vectors of logs.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import {
  type Hex,
  type LogClaim,
  type LogFilter,
  type LogTablesAnswer,
  type LogsAnswer,
  Refused,
  Verifier,
  toHex,
  verifyLogTables,
  verifyLogs,
} from '../src/index.js';
import { listRoot } from '../src/list-trie.js';

interface Case {
  name: string;
  of?: string;
  question?: Question;
  /** Members of the question, and of its answer, that are replaced. */
  ask?: Partial<Question>;
  with?: Partial<LogsAnswer>;
  expect: { blocks: [Hex, Hex]; parent: Hex; logs: Omit<LogClaim, 'transactionHash' | 'removed'>[] } | { error: string };
}
interface Question {
  filter: LogFilter;
  answer: LogsAnswer;
  hash: Hex;
}

const VECTORS = new URL('../../../vectors/logs/logs.json', import.meta.url);

test('logs', () => {
  const { cases } = JSON.parse(readFileSync(VECTORS, 'utf8')) as { cases: Case[] };
  for (const { name, of, ask, with: changed, expect, question } of cases) {
    const base = of === undefined ? question : cases.find((one) => one.name === of)?.question;
    assert.ok(base, name);
    const { filter, answer, hash } = { ...base, ...ask };
    const verify = () => verifyLogs({ ...answer, ...changed }, filter, hash);
    if ('error' in expect) {
      const refused = (error: unknown) => error instanceof Refused && error.errorClass === expect.error;
      assert.throws(verify, refused, name);
      continue;
    }
    const { from, to, parent, logs } = verify();
    const number = (value: bigint | number) => `0x${value.toString(16)}`;
    const shown = logs.map(({ blockNumber, blockTimestamp, transactionIndex, logIndex, ...log }) => ({
      ...log,
      blockNumber: number(blockNumber),
      blockTimestamp: number(blockTimestamp),
      transactionIndex: number(transactionIndex),
      logIndex: number(logIndex),
    }));
    assert.deepEqual({ blocks: [number(from), number(to)], parent, logs: shown }, expect, name);
  }
});

interface TablesCase {
  name: string;
  of?: string;
  question?: { filter: LogFilter; answer: LogTablesAnswer; hash: Hex };
  ask?: { filter?: LogFilter };
  with?: Partial<LogTablesAnswer>;
  expect: { blocks: [Hex, Hex]; logs: number } | { error: string };
}

test('logs by index tables', () => {
  const file = new URL('../../../vectors/logs/tables.json', import.meta.url);
  const { cases } = JSON.parse(readFileSync(file, 'utf8')) as { cases: TablesCase[] };
  for (const { name, of, ask, with: changed, expect, question } of cases) {
    const base = of === undefined ? question : cases.find((one) => one.name === of)?.question;
    assert.ok(base, name);
    const { filter, answer, hash } = { ...base, ...ask };
    const verify = () => verifyLogTables({ ...answer, ...changed }, filter, hash, { verifier: new Verifier() });
    if ('error' in expect) {
      const refused = (error: unknown) => error instanceof Refused && error.errorClass === expect.error;
      assert.throws(verify, refused, name);
      continue;
    }
    const { from, to, logs } = verify();
    assert.deepEqual([from, to, logs.length], [...expect.blocks.map(BigInt), expect.logs], name);
  }
  const { filter, answer, hash } = cases[0]!.question!;
  const { state, ...bare } = answer;
  const roots = answer.tables.map(({ firstBlock, size }, i) => {
    const root: Hex = `0x${BigInt(state!.storage[i]!.value).toString(16).padStart(64, '0')}`;
    return { firstBlock: BigInt(firstBlock), size: BigInt(size), root };
  });
  assert.equal(verifyLogTables(bare, filter, hash, { roots }).trust, undefined);
  assert.throws(() => verifyLogTables(bare, filter, hash, { roots: roots.slice(1) }), Refused);
});

test('lists without items, and with short nodes, have their roots', () => {
  assert.equal(toHex(listRoot([])), '0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421');
});
