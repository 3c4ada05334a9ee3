// Bytes, hexadecimal text, and numbers in bytes.
import { Refused } from './errors.js';

/** `0x` and two digits a byte, or a quantity. */
export type Hex = `0x${string}`;

export function toHex(bytes: Uint8Array): Hex {
  let text = '0x';
  for (const byte of bytes) text += byte.toString(16).padStart(2, '0');
  return text as Hex;
}

/** The bytes of `0x..`; exactly `length` bytes, if it is given. */
export function fromHex(text: string, length?: number): Uint8Array {
  const isHex = typeof text === 'string' && text.length % 2 === 0 && /^0x[0-9a-fA-F]*$/.test(text);
  if (!isHex || (length !== undefined && text.length !== 2 + 2 * length)) {
    throw notHex(`${length ?? 'whole'} bytes`, text);
  }
  const bytes = new Uint8Array(text.length / 2 - 1);
  for (let i = 0; i < bytes.length; i++) bytes[i] = parseInt(text.slice(2 + 2 * i, 4 + 2 * i), 16);
  return bytes;
}

/** A number of at most `bits` bits from its hexadecimal form. */
export function quantity(text: string, bits: number): bigint {
  const isHex = typeof text === 'string' && text.length <= 66 && /^0x[0-9a-fA-F]+$/.test(text);
  if (!isHex || BigInt(text) >> BigInt(bits) !== 0n) throw notHex(`a number of ${bits} bits`, text);
  return BigInt(text);
}

function notHex(what: string, text: unknown): Refused {
  return new Refused('malformed', `not ${what} in hexadecimal: ${String(text).slice(0, 80)}`);
}

export function concat(...parts: Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}

/** Big-endian. */
export function toNumber(bytes: Uint8Array): bigint {
  let number = 0n;
  for (const byte of bytes) number = (number << 8n) | BigInt(byte);
  return number;
}

/** Big-endian, `length` bytes. */
export function numberBytes(number: bigint | number, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let rest = BigInt(number);
  for (let i = length - 1; i >= 0; i--) {
    bytes[i] = Number(rest & 0xffn);
    rest >>= 8n;
  }
  if (rest !== 0n) throw new RangeError(`${number} does not fit ${length} bytes`);
  return bytes;
}

/** Big-endian without leading zeros; nothing for zero. */
export function shortBytes(number: bigint): Uint8Array {
  return number === 0n ? new Uint8Array() : numberBytes(number, Math.ceil(number.toString(16).length / 2));
}
