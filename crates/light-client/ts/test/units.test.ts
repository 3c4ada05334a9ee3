// Cases that the golden vectors do not cover: short tries, parameters, headers, misuse.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { keccak_256 } from '@noble/hashes/sha3.js';
import {
  ColeParams,
  type ErrorClass,
  type Hex,
  LvmtParams,
  type ProvenanceAnswer,
  Refused,
  type StateProofAnswer,
  Verifier,
  encodeHeader,
  fromHex,
  toHex,
  verifyCode,
} from '../src/index.js';
import { concat } from '../src/bytes.js';
import { decompress, pointBytes } from '../src/lvmt/points.js';
import { lookUp } from '../src/mpt.js';
import { decodeAccount, encodeAccount } from '../src/state.js';

function vectors(name: string) {
  return JSON.parse(readFileSync(new URL(`../../../vectors/${name}`, import.meta.url), 'utf8'));
}

function refused(errorClass: ErrorClass, work: () => unknown): void {
  assert.throws(work, (error) => error instanceof Refused && error.errorClass === errorClass);
}

const hash = (bytes: Uint8Array) => keccak_256(bytes);
const string = (bytes: Uint8Array) => concat(Uint8Array.of(0x80 + bytes.length), bytes);
const list = (...items: Uint8Array[]) => {
  const payload = concat(...items);
  const long = payload.length < 56 ? [] : [payload.length];
  return concat(Uint8Array.of(long.length ? 0xf7 + 1 : 0xc0 + payload.length, ...long), payload);
};
const EMPTY = Uint8Array.of(0x80);

/** A trie of two keys that differ in their last nibble: an extension, and a branch with two leaves in it. */
function shortTrie(leaf = (value: number) => list(Uint8Array.of(0x20), Uint8Array.of(value))) {
  const key = new Uint8Array(32).fill(0x77);
  const children = Array.from({ length: 17 }, (_, i) => (i === 7 ? leaf(1) : i === 8 ? leaf(2) : EMPTY));
  const branch = list(...children);
  const path = concat(Uint8Array.of(0x17), key.subarray(1));
  const extension = list(string(path), branch.length < 32 ? branch : string(hash(branch)));
  const nodes = new Map([extension, branch].map((node) => [toHex(hash(node)), node]));
  const fetch = (wanted: Uint8Array) => nodes.get(toHex(wanted))!;
  return { key, fetch, root: hash(extension) };
}

test('nodes that are embedded in their parents are walked', () => {
  const { key, fetch, root } = shortTrie();
  assert.deepEqual(lookUp(hash, root, key, fetch), Uint8Array.of(1));
  const other = Uint8Array.from(key);
  other[31] = 0x78;
  assert.deepEqual(lookUp(hash, root, other, fetch), Uint8Array.of(2));
  other[31] = 0x79;
  assert.equal(lookUp(hash, root, other, fetch), null);
  other[30] = 0x78;
  assert.equal(lookUp(hash, root, other, fetch), null);
});

test('nodes that no trie has are refused', () => {
  const bad: [string, (value: number) => Uint8Array][] = [
    ['a leaf that ends too late', () => list(Uint8Array.of(0x31), Uint8Array.of(1))],
    ['a path with unknown flags', () => list(Uint8Array.of(0x40), Uint8Array.of(1))],
    ['padding that is not zero', () => list(Uint8Array.of(0x21), Uint8Array.of(1))],
    ['an empty path', () => list(EMPTY, Uint8Array.of(1))],
    ['an extension of nothing', () => list(Uint8Array.of(0x00), list(Uint8Array.of(0x20), EMPTY))],
    ['three items', () => list(Uint8Array.of(0x20), EMPTY, EMPTY)],
    ['a string for a node', () => string(new Uint8Array(20))],
  ];
  for (const [, leaf] of bad) {
    const { key, fetch, root } = shortTrie(leaf);
    refused('malformed', () => lookUp(hash, root, key, fetch));
  }
});

test('parameters are those of the file format', () => {
  const [first] = vectors('lvmt.json').pinned as [Hex];
  const params = LvmtParams.insecureDev(1);
  assert.equal(toHex(params.toBytes()), first);
  assert.ok(params.isInsecure());
  const [ceremony] = vectors('lvmt-forged.json').pinned as [Hex];
  assert.ok(!LvmtParams.fromBytes(fromHex(ceremony)).isInsecure());

  const file = new Uint8Array(4096);
  file.set(new TextEncoder().encode('retrLVMT'));
  file[8] = 1;
  file.set(fromHex(params.digest), 32);
  file.set(params.toBytes(), 64);
  assert.equal(LvmtParams.fromFile(file).digest, params.digest);
  file[40]! ^= 1;
  assert.throws(() => LvmtParams.fromFile(file), /damaged/);
  for (const at of [1, 40, 70, 128]) {
    const bytes = params.toBytes();
    bytes[at]! ^= 1;
    assert.throws(() => LvmtParams.fromBytes(bytes), /not in the group/);
  }
  assert.throws(() => LvmtParams.fromBytes(params.toBytes().subarray(1)));
  assert.throws(() => LvmtParams.insecureDev(17), RangeError);
});

test('a point has one encoding', () => {
  const one = new Uint8Array(32);
  one[0] = 1;
  const generator = decompress(one);
  assert.deepEqual([...pointBytes(generator)].filter((byte) => byte !== 0), [1, 2]);
  one[31] = 0x80;
  assert.ok(decompress(one).equals(generator.negate()));
  for (const last of [0x40, 0xc0]) {
    one[31] = last;
    refused('malformed', () => decompress(one));
  }
  const zero = new Uint8Array(32);
  refused('malformed', () => decompress(zero));
  zero[31] = 0x40;
  assert.ok(decompress(zero).is0());
  zero[31] = 0xc0;
  refused('malformed', () => decompress(zero));
  refused('malformed', () => decompress(new Uint8Array(32).fill(0x3f)));
});

test('accounts have one encoding', () => {
  const account = { nonce: 256n, balance: 1n << 200n, codeHash: toHex(new Uint8Array(32).fill(7)) };
  const bytes = encodeAccount(account);
  assert.deepEqual(decodeAccount(bytes), account);
  const noCode = concat(Uint8Array.of(0x80, 0), keccak_256(new Uint8Array()));
  for (const wrong of [bytes.subarray(1), concat(bytes, EMPTY), Uint8Array.of(0, 1, 0), noCode]) {
    assert.equal(decodeAccount(wrong), undefined);
  }
  const code = Uint8Array.of(1, 2, 3);
  verifyCode({ ...account, codeHash: toHex(keccak_256(code)) }, code);
  refused('code', () => verifyCode(account, code));
});

test('a header has the hash of its JSON', () => {
  // Mainnet, block 1.
  const block = {
    parentHash: '0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3',
    sha3Uncles: '0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347',
    miner: '0x05a56e2d52c817161883f50c441c3228cfe54d9f',
    stateRoot: '0xd67e4d450343046425ae4271474353857ab860dbc0a1dde64b41b5cd3a532bf3',
    transactionsRoot: '0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421',
    receiptsRoot: '0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421',
    logsBloom: `0x${'00'.repeat(256)}`,
    difficulty: '0x3ff800000',
    number: '0x1',
    gasLimit: '0x1388',
    gasUsed: '0x0',
    timestamp: '0x55ba4224',
    extraData: '0x476574682f76312e302e302f6c696e75782f676f312e342e32',
    mixHash: '0x969b900de27b6ac6a67742365dd65f55a0526c41fd18e1b16f1a1215c2e66f59',
    nonce: '0x539bd4979fef1ec4',
    hash: '0x88e96d4537bea4d9c05d12549907b32561d3bf31f45aae734cdc119f13406cb6',
  };
  assert.equal(toHex(keccak_256(fromHex(encodeHeader(block)))), block.hash);
});

test('an answer that is no JSON of its kind is refused', () => {
  const answer: StateProofAnswer = vectors('answers.json').cases[0].question.answer;
  const trusted = { kind: 'root', root: answer.root } as const;
  const verifier = new Verifier();
  const { trust } = verifier.answer(answer, trusted);
  assert.match(trust.sentences.join(), /given by hand/);
  const upper = { ...answer, root: answer.root.toUpperCase().replace('X', 'x') as Hex };
  assert.equal(verifier.answer(upper, trusted).address, answer.address);
  for (const wrong of [
    { proof: '0x0' as Hex },
    { proof: 'proof' as Hex },
    { root: '0x12' as Hex },
    { block: '0x' as Hex },
    { block: `0x1${'0'.repeat(16)}` as Hex },
    { address: '0x12' as Hex },
  ]) {
    refused('malformed', () => verifier.answer({ ...answer, ...wrong }, trusted));
  }
  refused('kind', () => verifier.answer({ ...answer, backend: 'toString' }, trusted));
});

test('parameters of cole are their own digest', () => {
  const digest: Hex = `0x0101040420000000${'0000000000040000'}${'00'.repeat(16)}`;
  const params = ColeParams.fromDigest(digest);
  assert.equal(params.digest, digest);
  assert.equal(params.fanout, 4);
  assert.equal(params.hasTrees, false);
  const withTrees = fromHex(digest);
  withTrees[1] = 3;
  assert.equal(ColeParams.fromDigest(toHex(withTrees)).hasTrees, true);
  withTrees[23] = 9;
  assert.throws(() => ColeParams.fromDigest(toHex(withTrees)), RangeError);
  const wrong: [at: number, byte: number][] = [[0, 2], [1, 4], [2, 1], [3, 65], [4, 0], [5, 1], [13, 0], [8, 1], [31, 1]];
  for (const [at, byte] of wrong) {
    const bytes = fromHex(digest);
    bytes[at] = byte;
    assert.throws(() => ColeParams.fromDigest(toHex(bytes)), RangeError, `byte ${at}`);
  }
});

test('provenance must state all versions that are shown, and no others', () => {
  const { cases } = vectors('cole-forged.json') as {
    cases: { question: { provenance?: ProvenanceAnswer }; expect: { versions?: unknown[] } }[];
  };
  const several = cases.filter(({ expect }) => (expect.versions ?? []).length > 1);
  assert.ok(several.length > 2);
  for (const { question } of several) {
    const answer = question.provenance!;
    const verifier = new Verifier({ cole: [ColeParams.fromDigest(answer.params)] });
    const trusted = { kind: 'root', root: answer.root } as const;
    const shown = verifier.provenance(answer, trusted);
    assert.equal(shown.versions.length, answer.versions.length);
    assert.match(shown.trust.sentences.join(), /were pinned/);
    const [first, ...rest] = answer.versions as [ProvenanceAnswer['versions'][number]];
    for (const versions of [
      rest,
      [...answer.versions].reverse(),
      [...answer.versions, first],
      [{ ...first, block: '0xabcdef' as Hex }, ...rest],
      [{ block: first.block, value: '0x4d' as Hex }, ...rest],
    ]) {
      refused('claim', () => verifier.provenance({ ...answer, versions }, trusted));
    }
    refused('block', () => verifier.provenance({ ...answer, block: '0x0' }, trusted));
    refused('malformed', () => verifier.provenance({ ...answer, from: answer.to, to: answer.from }, trusted));
    refused('kind', () => new Verifier().provenance(answer, trusted));
  }
});

test('only cole shows older states', () => {
  const answer: StateProofAnswer = vectors('answers.json').cases[0].question.answer;
  const trusted = { kind: 'root', root: answer.root } as const;
  refused('kind', () => new Verifier().answer({ ...answer, asOf: answer.block }, trusted));
});
