// The RLP of a header from a node's JSON. Its hash shows whether it is the right header.
import { type Hex, concat, fromHex, quantity, shortBytes, toHex } from './bytes.js';

/** A block as `eth_getBlockByHash` gives it. */
export type BlockJson = Record<string, unknown>;

/** Fields in their order; the later ones came with forks. */
const FIELDS: [name: string, isNumber: boolean][] = [
  ['parentHash', false],
  ['sha3Uncles', false],
  ['miner', false],
  ['stateRoot', false],
  ['transactionsRoot', false],
  ['receiptsRoot', false],
  ['logsBloom', false],
  ['difficulty', true],
  ['number', true],
  ['gasLimit', true],
  ['gasUsed', true],
  ['timestamp', true],
  ['extraData', false],
  ['mixHash', false],
  ['nonce', false],
  ['baseFeePerGas', true],
  ['withdrawalsRoot', false],
  ['blobGasUsed', true],
  ['excessBlobGas', true],
  ['parentBeaconBlockRoot', false],
  ['requestsHash', false],
  ['blockAccessListHash', false],
  ['slotNumber', true],
];

/** The header of a block as RLP, with the fields that are there. */
export function encodeHeader(block: BlockJson): Hex {
  const fields = FIELDS.filter(([name]) => typeof block[name] === 'string').map(([name, isNumber]) => {
    const text = block[name] as string;
    return string(isNumber ? shortBytes(quantity(text, 256)) : fromHex(text));
  });
  const payload = concat(...fields);
  return toHex(concat(head(0xc0, payload.length), payload));
}

function string(bytes: Uint8Array): Uint8Array {
  return bytes.length === 1 && bytes[0]! < 0x80 ? bytes : concat(head(0x80, bytes.length), bytes);
}

function head(kind: number, length: number): Uint8Array {
  if (length < 56) return Uint8Array.of(kind + length);
  const bytes = shortBytes(BigInt(length));
  return concat(Uint8Array.of(kind + 55 + bytes.length), bytes);
}
