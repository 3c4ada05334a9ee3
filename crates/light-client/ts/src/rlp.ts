// RLP (yellow paper, appendix B), in its canonical form only.
import { concat, shortBytes, toNumber } from './bytes.js';
import { malformed } from './errors.js';

export interface Item {
  isList: boolean;
  payload: Uint8Array;
  /** Payload and header. */
  whole: Uint8Array;
}

/** Reads items one by one. */
export class RlpReader {
  private at = 0;

  constructor(private readonly bytes: Uint8Array) {}

  get isEmpty(): boolean {
    return this.at === this.bytes.length;
  }

  item(): Item {
    const start = this.at;
    const first = this.bytes[start];
    if (first === undefined) throw malformed('RLP ends early');
    if (first < 0x80) return this.take(start, start, 1, false);
    const isList = first >= 0xc0;
    const kind = first - (isList ? 0xc0 : 0x80);
    if (kind < 56) {
      const item = this.take(start, start + 1, kind, isList);
      if (!isList && kind === 1 && item.payload[0]! < 0x80) throw malformed('RLP of a byte');
      return item;
    }
    const lengthEnd = start + 1 + (kind - 55);
    const length = this.bytes.subarray(start + 1, lengthEnd);
    const value = toNumber(length);
    if (length.length < kind - 55 || length[0] === 0 || value < 56n || value > 0xffff_ffffn) {
      throw malformed('RLP length');
    }
    return this.take(start, lengthEnd, Number(value), isList);
  }

  list(): RlpReader {
    const item = this.item();
    if (!item.isList) throw malformed('RLP string instead of a list');
    return new RlpReader(item.payload);
  }

  string(length?: number): Uint8Array {
    const { isList, payload } = this.item();
    if (isList || (length !== undefined && payload.length !== length)) throw malformed('RLP string');
    return payload;
  }

  /** A number with an upper bound of its bytes. */
  number(maxLength: number): bigint {
    const bytes = this.string();
    if (bytes.length > maxLength || bytes[0] === 0) throw malformed('RLP number');
    return toNumber(bytes);
  }

  end(): void {
    if (!this.isEmpty) throw malformed('RLP goes on after its end');
  }

  private take(start: number, from: number, length: number, isList: boolean): Item {
    const end = from + length;
    if (end > this.bytes.length) throw malformed('RLP ends early');
    this.at = end;
    return {
      isList,
      payload: this.bytes.subarray(from, end),
      whole: this.bytes.subarray(start, end),
    };
  }
}

/** The RLP of a string. */
export function rlpString(bytes: Uint8Array): Uint8Array {
  return bytes.length === 1 && bytes[0]! < 0x80 ? bytes : concat(head(0x80, bytes.length), bytes);
}

/** The RLP of a list of encoded items. */
export function rlpList(...items: Uint8Array[]): Uint8Array {
  const payload = concat(...items);
  return concat(head(0xc0, payload.length), payload);
}

function head(kind: number, length: number): Uint8Array {
  if (length < 56) return Uint8Array.of(kind + length);
  const bytes = shortBytes(BigInt(length));
  return concat(Uint8Array.of(kind + 55 + bytes.length), bytes);
}
