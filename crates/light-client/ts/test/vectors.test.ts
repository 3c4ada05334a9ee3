// The golden vectors, which the Rust verifier runs, too (docs/formats/proofs.md).
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'node:test';
import {
  ColeParams,
  type Envelope,
  type EthProofAnswer,
  type Hex,
  type KeyForm,
  LvmtParams,
  type ProvenanceAnswer,
  Refused,
  type StateProofAnswer,
  type TrustedRoot,
  type Verified,
  type VerifiedProvenance,
  Verifier,
  decodeKey,
  encodeAccount,
  encodeSlot,
  fromHex,
  toHex,
  verifyEthProof,
} from '../src/index.js';

interface Case {
  name: string;
  of?: string;
  trusted?: Trusted;
  question?: Question;
  keys?: Hex[];
  with?: Record<string, unknown>;
  edit?: [at: number, gone: number, put: Hex][];
  expect: Verdict;
}
type Question =
  | { proof: Envelope }
  | { answer: StateProofAnswer }
  | { ethProof: EthProofAnswer }
  | { provenance: ProvenanceAnswer };
type Trusted =
  | { root: Hex }
  | { checkpoint: { block: Hex; root: Hex } }
  | { header: { hash: Hex; rlp: Hex } };
type Verdict =
  | { values: (Hex | null)[] }
  | { versions: { block: Hex; value: Hex | null }[] }
  | { error: string };

const FOLDER = new URL('../../../vectors/', import.meta.url);

/** The case, with the fields that it takes from other cases. */
function resolve(cases: Map<string, Case>, { of, ...own }: Case): Case {
  const base = of === undefined ? undefined : resolve(cases, cases.get(of)!);
  const { question, ...rest } = { ...(base && { ...base, with: {}, edit: [] }), ...own };
  const copy = structuredClone(question!);
  const [body] = Object.values(copy) as [{ proof: Hex }];
  Object.assign(body, own.with);
  for (const [at, gone, put] of own.edit ?? []) {
    const digits = body.proof.slice(2);
    body.proof = `0x${digits.slice(0, 2 * at)}${put.slice(2)}${digits.slice(2 * (at + gone))}`;
  }
  return { ...rest, question: copy };
}

function trustedRoot(trusted: Trusted): TrustedRoot {
  if ('root' in trusted) return { kind: 'root', root: trusted.root };
  if ('header' in trusted) return { kind: 'header', ...trusted.header };
  const { block, root } = trusted.checkpoint;
  return { kind: 'checkpoint', block: BigInt(block), root };
}

const hex = (bytes: Uint8Array | null) => bytes && toHex(bytes);

function canonical({ account, storage }: Verified): (Hex | null)[] {
  return [hex(account && encodeAccount(account)), ...storage.map(({ value }) => hex(encodeSlot(value)))];
}

function encoded(version: VerifiedProvenance['versions'][number]): Hex | null {
  if ('value' in version) return hex(encodeSlot(version.value));
  return hex(version.account && encodeAccount(version.account));
}

function run(verifier: Verifier, { question, trusted, keys }: Case): Verdict {
  const root = trustedRoot(trusted!);
  try {
    if ('answer' in question!) return { values: canonical(verifier.answer(question.answer, root)) };
    if ('provenance' in question!) {
      const { versions } = verifier.provenance(question.provenance, root);
      const shown = versions.map((version) => ({
        block: `0x${version.block.toString(16)}` as Hex,
        value: encoded(version),
      }));
      return { versions: shown };
    }
    if ('ethProof' in question!) return { values: canonical(verifyEthProof(question.ethProof, root)) };
    const asked = keys!.map((key) => {
      const { account, ...slot } = decodeKey(fromHex(key))!;
      return { address: account, ...slot };
    });
    const { values } = verifier.values(question!.proof, asked, root);
    return { values: values.map((value) => value && toHex(value)) };
  } catch (error) {
    // Any other exception is a bug of the verifier.
    if (!(error instanceof Refused)) throw error;
    return { error: error.errorClass };
  }
}

const files = readdirSync(FOLDER).filter((name) => name.endsWith('.json'));

test('there are vectors', () => assert.ok(files.length >= 7, files.join()));

for (const name of files) {
  test(`${name}: every vector gets its verdict`, () => {
    const file: { pinned: Hex[]; keys?: KeyForm; cases: Case[] } = JSON.parse(
      readFileSync(new URL(name, FOLDER), 'utf8'),
    );
    const isCole = (params: Hex) => params.length === 2 + 2 * 32;
    const verifier = new Verifier({
      lvmt: file.pinned.filter((params) => !isCole(params)).map((params) => LvmtParams.fromBytes(fromHex(params))),
      cole: file.pinned.filter(isCole).map((params) => ColeParams.fromDigest(params)),
      ...(file.keys && { keys: file.keys }),
    });
    const cases = new Map(file.cases.map((one) => [one.name, one]));
    assert.equal(cases.size, file.cases.length, 'names are unique');
    for (const one of file.cases) {
      assert.deepEqual(run(verifier, resolve(cases, one)), one.expect, one.name);
    }
  });
}
