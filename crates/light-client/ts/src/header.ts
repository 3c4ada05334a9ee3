// The RLP of a header from a node's JSON. Its hash shows whether it is the right header.
import { type Hex, fromHex, quantity, shortBytes, toHex } from './bytes.js';
import { rlpList, rlpString } from './rlp.js';

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
    return rlpString(isNumber ? shortBytes(quantity(text, 256)) : fromHex(text));
  });
  return toHex(rlpList(...fields));
}
