// The basis of trust in a root (docs/formats/proofs.md, "What a root is trusted for").
import { keccak_256 } from '@noble/hashes/sha3.js';
import { type Hex, fromHex, toHex } from './bytes.js';
import { Refused } from './errors.js';
import { RlpReader } from './rlp.js';

/** A root that the caller trusts, and the reason. */
export type TrustedRoot =
  | { kind: 'header'; hash: Hex; rlp: Hex }
  | { kind: 'checkpoint'; block: bigint; root: Hex }
  | { kind: 'root'; root: Hex };

/** The basis of trust in a result. */
export interface Trust {
  /** The trusted root. */
  root: Hex;
  /** Number and hash of the block of the trusted root, as far as they are known. */
  block?: bigint;
  blockHash?: Hex;
  /** Digest of the pinned parameters, if the backend has any. */
  params?: Hex;
  /** The parameters are for development: anyone can forge proofs. */
  insecure?: boolean;
  /** The same in words, a sentence each. */
  sentences: string[];
}

/** The root, and the basis of trust in it. */
export function openRoot(trusted: TrustedRoot): Trust {
  switch (trusted.kind) {
    case 'header': {
      const hash = toHex(fromHex(trusted.hash, 32));
      const { number, root } = readHeader(fromHex(trusted.rlp), hash);
      const sentence = `root ${root} is the stateRoot of block ${number}, in the header of the trusted hash ${hash}`;
      return { root, block: number, blockHash: hash, sentences: [sentence] };
    }
    case 'checkpoint': {
      const root = toHex(fromHex(trusted.root, 32));
      const sentence = `root ${root} was pinned by hand for block ${trusted.block}: no header was checked, and consensus does not secure it`;
      return { root, block: trusted.block, sentences: [sentence] };
    }
    case 'root': {
      const root = toHex(fromHex(trusted.root, 32));
      const sentence = `root ${root} was given by hand: no header was checked, and which block it belongs to is the node's word`;
      return { root, sentences: [sentence] };
    }
  }
}

function readHeader(rlp: Uint8Array, hash: Hex): { number: bigint; root: Hex } {
  const got = toHex(keccak_256(rlp));
  if (got !== hash) throw new Refused('header', `the header has hash ${got}, not the trusted ${hash}`);
  try {
    const bytes = new RlpReader(rlp);
    const fields = bytes.list();
    bytes.end();
    for (let i = 0; i < 3; i++) fields.string();
    const root = toHex(fields.string(32));
    for (let i = 0; i < 4; i++) fields.string();
    return { number: fields.number(8), root };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    throw new Refused('header', `the bytes of hash ${hash} are no header`);
  }
}
