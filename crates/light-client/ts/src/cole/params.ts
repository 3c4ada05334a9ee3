// The parameters of a store (docs/formats/cole.md, "Parameters"): they are their own digest.
import { type Hex, fromHex, toHex, toNumber } from '../bytes.js';

/** Parameters of `cole`. They have no secret, but a proof under other parameters than the store's may be forged. */
export class ColeParams {
  private constructor(
    readonly digest: Hex,
    /** Fanout of the Merkle trees of runs and filters. */
    readonly fanout: number,
    /** Whether runs have version trees. */
    readonly hasTrees: boolean,
  ) {}

  /** Throws a `RangeError` if these 32 bytes are no parameters. */
  static fromDigest(digest: Hex): ColeParams {
    const bytes = fromHex(digest, 32);
    const within = (at: number, from: number, to: number) => bytes[at]! >= from && bytes[at]! <= to;
    const capacity = toNumber(bytes.subarray(8, 16));
    const hasTrees = (bytes[1]! & 2) !== 0;
    const isZero = (from: number, to: number) => bytes.subarray(from, to).every((byte) => byte === 0);
    const isGood =
      within(0, 1, 1) &&
      within(1, 0, 3) &&
      within(2, 2, 64) &&
      within(3, 2, 64) &&
      within(4, 1, 32) &&
      isZero(5, 8) &&
      isZero(hasTrees ? 16 : 24, 32) &&
      capacity >= 1n &&
      capacity <= 1n << 32n;
    if (!isGood) throw new RangeError(`${digest} are no parameters of cole`);
    return new ColeParams(toHex(bytes), bytes[3]!, hasTrees);
  }
}
