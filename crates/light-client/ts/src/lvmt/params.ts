// Public parameters of a verifier (docs/formats/lvmt-params.md).
import { type Hex, concat, equal, toHex, toNumber } from '../bytes.js';
import { hash } from './hash.js';
import { Fr, G2, G2_LENGTH, type PointG2, g2FromBytes, g2ToBytes } from './points.js';

const text = (ascii: string) => new TextEncoder().encode(ascii);

/** Where the verifier's part begins in a parameter file. */
const IN_FILE = 64;

/** The verifier's part of the ceremony: [tau^(2^k)] of G2 for k below the height. */
export class LvmtParams {
  /** Digest that identifies the parameters; a caller who trusts them pins it. */
  readonly digest: Hex;

  private constructor(
    /** Height of the AMTs, 1 to 16. */
    readonly height: number,
    readonly powers: readonly PointG2[],
  ) {
    this.digest = toHex(hash(text('retrie lvmt parameters 1'), this.toBytes()));
  }

  /** From the verifier's part: 1 + 128 h bytes. */
  static fromBytes(bytes: Uint8Array): LvmtParams {
    const height = bytes[0] ?? 0;
    if (height < 1 || height > 16 || bytes.length !== 1 + G2_LENGTH * height) {
      throw new TypeError('these are no parameters of lvmt: their length is wrong');
    }
    const powers = Array.from({ length: height }, (_, k) => {
      const point = g2FromBytes(bytes.subarray(1 + k * G2_LENGTH, 1 + (k + 1) * G2_LENGTH));
      if (!point) throw new TypeError(`parameters of lvmt: point ${k} is not in the group`);
      return point;
    });
    return new LvmtParams(height, powers);
  }

  /** From the first page of a parameter file. */
  static fromFile(file: Uint8Array): LvmtParams {
    if (!equal(file.subarray(0, 8), text('retrLVMT')) || file[8] !== 1) {
      throw new TypeError('this is no parameter file of lvmt, version 1');
    }
    const length = 1 + G2_LENGTH * (file[IN_FILE] ?? 0);
    const params = LvmtParams.fromBytes(file.subarray(IN_FILE, IN_FILE + length));
    if (params.digest !== toHex(file.subarray(32, 64))) {
      throw new TypeError('the parameter file is damaged: its digest is that of other parameters');
    }
    return params;
  }

  /** INSECURE parameters for development: their tau is public, so anyone can forge proofs. */
  static insecureDev(height: number): LvmtParams {
    if (!Number.isInteger(height) || height < 1 || height > 16) {
      throw new RangeError(`AMTs have no height ${height}: choose 1 to 16`);
    }
    let power = publicTau();
    const powers: PointG2[] = [];
    while (powers.length < height) {
      powers.push(G2.BASE.multiply(power));
      power = Fr.sqr(power);
    }
    return new LvmtParams(height, powers);
  }

  /** Whether their tau is public. */
  isInsecure(): boolean {
    return this.powers[0]!.equals(G2.BASE.multiply(publicTau()));
  }

  toBytes(): Uint8Array {
    return concat(Uint8Array.of(this.height), ...this.powers.map(g2ToBytes));
  }
}

function publicTau(): bigint {
  const sentence = text('retrie lvmt: this tau is public, secure nothing with it');
  return Fr.create(toNumber(hash(sentence)));
}
