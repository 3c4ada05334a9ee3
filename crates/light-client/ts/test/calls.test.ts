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

/** A module whose verifier stops: (func (export "retrie_verify_call") (param i32 i32) (result i32) unreachable). */
const STOPS = Uint8Array.from(
  [
    [0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00], // magic, version
    [0x01, 0x11, 0x03, 0x60, 0x01, 0x7f, 0x01, 0x7f], // types: allocate,
    [0x60, 0x02, 0x7f, 0x7f, 0x00, 0x60, 0x02, 0x7f, 0x7f, 0x01, 0x7f], // release, verify
    [0x03, 0x04, 0x03, 0x00, 0x01, 0x02, 0x05, 0x03, 0x01, 0x00, 0x01], // functions, a page of memory
    [0x07, 0x42, 0x04, ...exported('memory', 2, 0), ...exported('retrie_allocate', 0, 0)],
    [...exported('retrie_release', 0, 1), ...exported('retrie_verify_call', 0, 2)],
    [0x0a, 0x0d, 0x03, 0x04, 0x00, 0x41, 0x00, 0x0b, 0x02, 0x00, 0x0b, 0x03, 0x00, 0x00, 0x0b],
  ].flat(),
);

function exported(name: string, kind: number, index: number): number[] {
  return [name.length, ...new TextEncoder().encode(name), kind, index];
}

test('a verifier that stops has accepted nothing, and can be asked again', async () => {
  const verifier = await CallVerifier.load(STOPS);
  const answer = {} as CallAnswer;
  for (let times = 0; times < 2; times++) {
    const stopped = (error: unknown) => error instanceof Refused && error.message.includes('has stopped');
    assert.throws(() => verifier.verify({}, answer, { hash: '0x', chain: 'dev' }), stopped);
  }
});

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
    const took: number[] = [];
    for (let times = 0; times < 6; times++) {
      const begun = performance.now();
      const { output, gasUsed, success } = judge();
      took.push(performance.now() - begun);
      assert.deepEqual({ output, gasUsed, success }, { ...expect, success: true }, name);
    }
    const [first, ...later] = took.map((ms) => ms.toFixed(1));
    times.push(`${name} ${first} ms, later ${later.sort((a, b) => Number(a) - Number(b))[2]}`);
  }
  console.log(`verified in: ${times.join('; ')}`);
});
