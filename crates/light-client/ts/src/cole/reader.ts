// Reads the bytes of a proof (docs/formats/cole.md, "Proof bytes").
import { malformed } from '../errors.js';

/** The bytes of a proof that are not read yet. */
export class Reader {
  private at = 0;

  constructor(private readonly bytes: Uint8Array) {}

  get isEmpty(): boolean {
    return this.at === this.bytes.length;
  }

  /** Number of bytes still to be read. */
  get left(): number {
    return this.bytes.length - this.at;
  }

  take(length: number | bigint): Uint8Array {
    if (BigInt(length) > BigInt(this.bytes.length - this.at)) throw malformed('it ends early');
    const start = this.at;
    this.at += Number(length);
    return this.bytes.subarray(start, this.at);
  }

  byte(): number {
    return this.take(1)[0]!;
  }

  hash(): Uint8Array {
    return this.take(32);
  }

  /** LEB128 of at most 64 bits, in the shortest form. */
  number(): bigint {
    let number = 0n;
    for (let shift = 0n; shift < 64n; shift += 7n) {
      const byte = this.byte();
      number |= BigInt(byte & 0x7f) << shift;
      if (byte === 0 && shift > 0n) break;
      if (byte < 0x80) {
        if (number >> 64n !== 0n) break;
        return number;
      }
    }
    throw malformed('a number');
  }
}
