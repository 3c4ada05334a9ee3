// The golden vectors of calls. Without the module in WebAssembly there is nothing to test:
// `scripts/check/light-client --wasm` builds it.
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import {
  type CallAnswer,
  type CallRequest,
  CallVerifier,
  type Hex,
  Refused,
  type VerifiedCall,
} from '../src/index.js';

interface Case {
  name: string;
  of?: string;
  question?: Question;
  with?: Partial<CallAnswer>;
  expect: { output: Hex; gasUsed: number } | { error: string };
}
interface Question {
  request: CallRequest;
  answer: CallAnswer;
  hash: Hex;
  root?: Hex;
  params: Record<string, Hex[]>;
}

const WASM = new URL('../retrie_light_client.wasm', import.meta.url);
const VECTORS = new URL('../../../vectors/calls/calls.json', import.meta.url);

test('calls', { skip: !existsSync(WASM) && 'there is no module' }, async () => {
  const { chain, cases } = JSON.parse(readFileSync(VECTORS, 'utf8')) as { chain: string; cases: Case[] };
  const verifier = await CallVerifier.load(readFileSync(WASM));
  const times: string[] = [];
  for (const { name, of, with: changed, expect, ...own } of cases) {
    const base = of === undefined ? own.question : cases.find((one) => one.name === of)?.question;
    assert.ok(base, name);
    const { request, answer, ...trusted } = base;
    const judge = (): VerifiedCall => verifier.verify(request, { ...answer, ...changed }, { chain, ...trusted });
    if ('error' in expect) {
      const refused = (error: unknown) => error instanceof Refused && error.errorClass === expect.error;
      assert.throws(judge, refused, name);
      continue;
    }
    const { output, gasUsed, success } = judge();
    assert.deepEqual({ output, gasUsed, success }, { ...expect, success: true }, name);
    const begun = performance.now();
    for (let i = 0; i < 5; i++) judge();
    times.push(`${name} ${((performance.now() - begun) / 5).toFixed(1)} ms`);
  }
  console.log(`verified in: ${times.join(', ')}`);
});
