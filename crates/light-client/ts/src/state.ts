// Keys and values of the state, in their canonical encoding (docs/formats/state.md).
import { keccak_256 } from '@noble/hashes/sha3.js';
import { type Hex, concat, fromHex, numberBytes, shortBytes, toHex, toNumber } from './bytes.js';

/** An account, or a slot of an account. */
export type StateKey = { address: Hex; slot?: Hex };

/** How a store names accounts and slots: as they are, or by the keccak-256 of each. */
export type KeyForm = 'plain' | 'hashed';

/** A key as a store has it: `account` has 20 bytes, or in the hashed form 32. */
export type StoreKey = { account: Hex; slot?: Hex };

export function keyIn(form: KeyForm, { address, slot }: StateKey): StoreKey {
  const name = (hex: Hex, length: number) => {
    const bytes = fromHex(hex, length);
    return toHex(form === 'hashed' ? keccak_256(bytes) : bytes);
  };
  const account = name(address, 20);
  return slot === undefined ? { account } : { account, slot: name(slot, 32) };
}

export interface Account {
  nonce: bigint;
  /** In wei. */
  balance: bigint;
  codeHash: Hex;
}

export const NO_CODE: Hex = toHex(keccak_256(new Uint8Array()));

/** Whether it is a hash, of an address and of a slot. */
export function isHashed(key: StoreKey): boolean {
  return fromHex(key.account).length === 32;
}

export function encodeKey(key: StoreKey): Uint8Array {
  const tag = (isHashed(key) ? 4 : 0) + (key.slot === undefined ? 0 : 1);
  const slot = key.slot === undefined ? new Uint8Array() : fromHex(key.slot, 32);
  return concat(Uint8Array.of(tag), fromHex(key.account), slot);
}

/** The number of bytes behind the first byte of an encoded key; none if no key begins with it. */
export function keyLength(tag: number): number | undefined {
  return new Map([
    [0, 20],
    [1, 20 + 32],
    [4, 32],
    [5, 32 + 32],
  ]).get(tag);
}

/** The key that has these bytes, if any has. */
export function decodeKey(bytes: Uint8Array): StoreKey | undefined {
  const tag = bytes[0] ?? 2;
  if (keyLength(tag) !== bytes.length - 1) return undefined;
  const end = tag < 4 ? 21 : 33;
  const account = toHex(bytes.subarray(1, end));
  return bytes.length === end ? { account } : { account, slot: toHex(bytes.subarray(end)) };
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
