// Keys and values of the state, in their canonical encoding (docs/formats/state.md).
import { keccak_256 } from '@noble/hashes/sha3.js';
import { type Hex, concat, fromHex, numberBytes, shortBytes, toHex, toNumber } from './bytes.js';

/** An account, or a slot of an account. */
export type StateKey = { address: Hex; slot?: Hex };

export interface Account {
  nonce: bigint;
  /** In wei. */
  balance: bigint;
  codeHash: Hex;
}

export const NO_CODE: Hex = toHex(keccak_256(new Uint8Array()));

export function encodeKey(key: StateKey): Uint8Array {
  const address = fromHex(key.address, 20);
  return key.slot === undefined
    ? concat(Uint8Array.of(0), address)
    : concat(Uint8Array.of(1), address, fromHex(key.slot, 32));
}

/** The key that has these bytes, if any has. */
export function decodeKey(bytes: Uint8Array): StateKey | undefined {
  const address = toHex(bytes.subarray(1, 21));
  if (bytes.length === 21 && bytes[0] === 0) return { address };
  if (bytes.length === 53 && bytes[0] === 1) return { address, slot: toHex(bytes.subarray(21)) };
  return undefined;
}

export function encodeAccount(account: Account): Uint8Array {
  const [nonce, balance] = [shortBytes(account.nonce), shortBytes(account.balance)];
  const code = account.codeHash === NO_CODE ? new Uint8Array() : fromHex(account.codeHash, 32);
  const head = Uint8Array.of((code.length > 0 ? 0x80 : 0) + balance.length, nonce.length);
  return concat(head, nonce, balance, code);
}

/** The account that has this encoding, if any has. */
export function decodeAccount(value: Uint8Array): Account | undefined {
  const [head = 0, nonceLength = 0] = value;
  const [hasCode, balanceLength] = [head >= 0x80, head % 0x80];
  const nonceEnd = 2 + nonceLength;
  const balanceEnd = nonceEnd + balanceLength;
  if (value.length !== balanceEnd + (hasCode ? 32 : 0)) return undefined;
  if (nonceLength > 8 || balanceLength > 32) return undefined;
  if (nonceLength > 0 && value[2] === 0) return undefined;
  if (balanceLength > 0 && value[nonceEnd] === 0) return undefined;
  const codeHash = hasCode ? toHex(value.subarray(balanceEnd)) : NO_CODE;
  if (hasCode && codeHash === NO_CODE) return undefined;
  return {
    nonce: toNumber(value.subarray(2, nonceEnd)),
    balance: toNumber(value.subarray(nonceEnd, balanceEnd)),
    codeHash,
  };
}

/** The value of a slot in its encoding; none for zero, which is absence. */
export function encodeSlot(value: bigint): Uint8Array | null {
  return value === 0n ? null : shortBytes(value);
}

/** The value that has this encoding, if any has. */
export function decodeSlot(value: Uint8Array): bigint | undefined {
  return value.length === 0 || value.length > 32 || value[0] === 0 ? undefined : toNumber(value);
}

/** A slot's key as 32 bytes. */
export function slotKey(slot: bigint): Hex {
  return toHex(numberBytes(slot, 32));
}
