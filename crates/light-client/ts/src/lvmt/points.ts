// Points of BN254 and their encodings (docs/formats/lvmt-proofs.md, lvmt-params.md, lvmt.md).
import { bn254 } from '@noble/curves/bn254.js';
import { concat, equal, toNumber } from '../bytes.js';
import { malformed } from '../errors.js';

const { Fp, Fr } = bn254.fields;
const G1 = bn254.G1.Point;
const G2 = bn254.G2.Point;

export { Fr, G1, G2 };
export type PointG1 = InstanceType<typeof G1>;
export type PointG2 = InstanceType<typeof G2>;

const reversed = (bytes: Uint8Array) => Uint8Array.from(bytes).reverse();

/** 32 bytes, little-endian. */
function toBytes(number: bigint): Uint8Array {
  const bytes = new Uint8Array(32);
  for (let i = 0; i < 32; i++) bytes[i] = Number((number >> BigInt(8 * i)) & 0xffn);
  return bytes;
}

/** A coordinate from 32 bytes, little-endian; none if it is not below the modulus. */
function coordinate(bytes: Uint8Array): bigint | undefined {
  const number = toNumber(reversed(bytes));
  return number < Fp.ORDER ? number : undefined;
}

/** The point of a proof: x, the sign of y, infinity. */
export function decompress(bytes: Uint8Array): PointG1 {
  const flags = bytes[31]! >> 6;
  const rest = Uint8Array.from(bytes);
  rest[31]! &= 0x3f;
  const x = coordinate(rest);
  const [isLarger, isInfinity] = [flags >= 2, flags % 2 === 1];
  if (isInfinity) {
    if (isLarger || x !== 0n) throw malformed('a point');
    return G1.ZERO;
  }
  if (x === undefined) throw malformed('a point');
  const square = Fp.add(Fp.mul(Fp.sqr(x), x), 3n);
  let y;
  try {
    y = Fp.sqrt(square);
  } catch {
    throw malformed('a point');
  }
  // No point of the group has y = 0, as its order is odd.
  const isLargerOne = y > Fp.neg(y);
  return G1.fromAffine({ x, y: isLarger === isLargerOne ? y : Fp.neg(y) });
}

/** x then y, 32 bytes little-endian each, as points are hashed; infinity is zeros. */
export function pointBytes(point: PointG1): Uint8Array {
  if (point.is0()) return new Uint8Array(64);
  const { x, y } = point.toAffine();
  return concat(toBytes(x), toBytes(y));
}

/** Bytes of a point of G2 in parameters. */
export const G2_LENGTH = 128;

/** The point of G2 that has these bytes, if one of the group has, and not infinity. */
export function g2FromBytes(bytes: Uint8Array): PointG2 | undefined {
  const numbers = [0, 32, 64, 96].map((at) => coordinate(bytes.subarray(at, at + 32)));
  const [x0, x1, y0, y1] = numbers;
  if (x0 === undefined || x1 === undefined || y0 === undefined || y1 === undefined) return undefined;
  if (numbers.every((number) => number === 0n)) return undefined;
  try {
    const point = G2.fromAffine({ x: { c0: x0, c1: x1 }, y: { c0: y0, c1: y1 } });
    point.assertValidity();
    return equal(g2ToBytes(point), bytes) ? point : undefined;
  } catch {
    return undefined;
  }
}

export function g2ToBytes(point: PointG2): Uint8Array {
  const { x, y } = point.toAffine();
  return concat(toBytes(x.c0), toBytes(x.c1), toBytes(y.c0), toBytes(y.c1));
}
