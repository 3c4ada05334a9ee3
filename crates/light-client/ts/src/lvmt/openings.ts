// Openings of AMTs, all in one product of pairings (docs/formats/lvmt-proofs.md, step 6).
import { pippenger } from '@noble/curves/abstract/curve.js';
import { bn254 } from '@noble/curves/bn254.js';
import { numberBytes, toNumber } from '../bytes.js';
import { hash } from './hash.js';
import type { LvmtParams } from './params.js';
import { Fr, G1, G2, type PointG1, type PointG2 } from './points.js';

/** The claim that an AMT has these versions at an entry. */
export interface Opening {
  commitment: PointG1;
  entry: number;
  versions: readonly number[];
  /** One for each node above the entry, the root first. */
  quotients: readonly PointG1[];
}

/** Whether all claims are true. `seed` is a hash of everything that determines them. */
export function openingsHold(
  params: LvmtParams,
  openings: readonly Opening[],
  seed: Uint8Array,
): boolean {
  const coefficients = openings.map((_, i) => (i === 0 ? 1n : coefficient(seed, i)));
  // The factor that is paired with the generator of G2: a sum over the claims, term by term.
  const terms: [PointG1, bigint][] = [];
  let generators = 0n;
  openings.forEach(({ commitment, entry, versions, quotients }, i) => {
    const factor = coefficients[i]!;
    terms.push([commitment, factor]);
    const constants = constantsOf(params.height, entry);
    quotients.forEach((quotient, depth) => terms.push([quotient, Fr.mul(factor, constants[depth]!)]));
    generators = Fr.add(generators, Fr.mul(factor, Fr.create(entryValue(versions))));
  });
  terms.push([G1.BASE, Fr.neg(generators)]);
  const pairs = [{ g1: sum(terms), g2: G2.BASE as PointG2 }];
  for (let depth = 0; depth < params.height; depth++) {
    const quotients = openings.map((opening, i): [PointG1, bigint] => [
      opening.quotients[depth]!,
      coefficients[i]!,
    ]);
    pairs.push({ g1: sum(quotients).negate(), g2: params.powers[params.height - 1 - depth]! });
  }
  // Infinity makes a factor of one, and the library refuses it.
  const factors = pairs.filter(({ g1 }) => !g1.is0());
  const { Fp12 } = bn254.fields;
  return factors.length === 0 || Fp12.eql(bn254.pairingBatch(factors), Fp12.ONE);
}

function coefficient(seed: Uint8Array, i: number): bigint {
  return toNumber(hash(seed, numberBytes(i, 8)).subarray(0, 16)) || 1n;
}

/** a: the versions as digits of 40 bits. */
function entryValue(versions: readonly number[]): bigint {
  return versions.reduceRight((value, version) => (value << 40n) | BigInt(version), 0n);
}

/** c_d = x_e^(2^(h-1-d)) by depth: x_e itself at the last, squared on the way up. */
function constantsOf(height: number, entry: number): bigint[] {
  const constants: bigint[] = [];
  const root = Fr.pow(5n, (Fr.ORDER - 1n) >> BigInt(height));
  let reversed = 0;
  for (let bit = 0; bit < height; bit++) reversed |= ((entry >> bit) & 1) << (height - 1 - bit);
  let constant = Fr.pow(root, BigInt(reversed));
  for (let depth = height - 1; depth >= 0; depth--) {
    constants[depth] = constant;
    constant = Fr.sqr(constant);
  }
  return constants;
}

/** The sum of points times numbers. */
function sum(terms: readonly [PointG1, bigint][]): PointG1 {
  const needed = terms.filter(([point, factor]) => !point.is0() && factor !== 0n);
  if (needed.length === 0) return G1.ZERO;
  const points = needed.map(([point]) => point);
  return pippenger(G1, points, needed.map(([, factor]) => factor));
}
