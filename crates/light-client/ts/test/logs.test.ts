// The golden vectors of logs.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { type Hex, type LogClaim, type LogFilter, type LogsAnswer, Refused, toHex, verifyLogs } from '../src/index.js';
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

test('lists without items, and with short nodes, have their roots', () => {
  assert.equal(toHex(listRoot([])), '0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421');
});
