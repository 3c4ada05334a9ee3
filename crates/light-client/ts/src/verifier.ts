// Picks the verifier of a proof, and compares what an answer states with what its proof shows.
import { keccak_256 } from '@noble/hashes/sha3.js';
import { verifyBavl } from './bavl.js';
import { type Hex, equal, fromHex, quantity, toHex } from './bytes.js';
import type { ColeParams } from './cole/params.js';
import { LATEST, type Version, verifyCole } from './cole/verify.js';
import { verifyDupTree } from './duptree.js';
import { Refused } from './errors.js';
import { verifyLmpt } from './lmpt.js';
import type { LvmtParams } from './lvmt/params.js';
import { verifyLvmt } from './lvmt/verify.js';
import { HASHES, emptyRoot, shownAccount, shownSlot, verifyMpt } from './mpt.js';
import { PBT_HASHES, verifyPbt } from './pbt.js';
import {
  type Account,
  type KeyForm,
  NO_CODE,
  type StateKey,
  type StoreKey,
  decodeAccount,
  decodeSlot,
  keyIn,
  slotKey,
} from './state.js';
import { type Trust, type TrustedRoot, openRoot } from './trust.js';

/** A proof in its envelope, which selects the verifier. Do not trust it before it is verified. */
export interface Envelope {
  backend: string;
  version: number;
  hash: string;
  params: Hex;
  /** The form of the store's keys, a `KeyForm`; left out if they are plain. */
  keys?: string;
  /** A quantity. */
  block: Hex;
  blockHash: Hex;
  /** The block whose state is shown, if it is older than `block`; a quantity. */
  asOf?: Hex;
  root: Hex;
  proof: Hex;
}

/** The answer of `state_getProof(address, slots, block)`. */
export interface StateProofAnswer extends Envelope {
  address: Hex;
  account: AccountJson | null;
  storage: { key: Hex; value: Hex }[];
}

export type AccountJson = { nonce: Hex; balance: Hex; codeHash: Hex };

/** The answer of `state_getProvenance(address, slot, from, to)`. */
export interface ProvenanceAnswer extends Omit<Envelope, 'asOf'> {
  address: Hex;
  slot: Hex | null;
  /** Quantities. */
  from: Hex;
  to: Hex;
  versions: ({ block: Hex; account: AccountJson | null } | { block: Hex; value: Hex })[];
}

/** The answer of `eth_getProof` (EIP-1186). */
export interface EthProofAnswer {
  address: Hex;
  balance: Hex;
  codeHash: Hex;
  nonce: Hex;
  storageHash: Hex;
  accountProof: Hex[];
  storageProof: { key: Hex; value: Hex; proof: Hex[] }[];
}

/** An account and some of its slots, as a proof shows them. */
export interface Verified {
  address: Hex;
  /** `null` if the proof shows that there is none. */
  account: Account | null;
  /** In the order of the request; zero if a slot is not set. */
  storage: { slot: Hex; value: bigint }[];
  /** The block whose state this is, if it is older than the block of the root. */
  asOf?: bigint;
  trust: Trust;
}

/** The versions of an account or of a slot over a range of blocks, as a proof shows them. */
export interface VerifiedProvenance {
  address: Hex;
  slot: Hex | null;
  from: bigint;
  to: bigint;
  /**
   * The version in force at the first block of the range, and all versions set later in it; each with
   * the block that set it, newest first. `null` for an account, zero for a slot: deleted.
   */
  versions: ({ block: bigint; account: Account | null } | { block: bigint; value: bigint })[];
  trust: Trust;
}

/**
 * Verifies proofs of `mpt`, `mpt-archive`, `prefix`, `duptree`, `lmpt`, `bavl` and `pbt`, and of `lvmt`
 * and `cole` under pinned parameters.
 */
export class Verifier {
  private readonly lvmt: readonly LvmtParams[];
  private readonly cole: readonly ColeParams[];
  private readonly keys: KeyForm;

  /**
   * The caller decides by their digest which parameters to trust. `keys`: the form of the keys of the
   * stores whose roots are trusted. Only roots that are not Ethereum's depend on it; who trusts one
   * knows its form, or could be shown that a key is absent where only its other form is.
   */
  constructor({
    lvmt = [],
    cole = [],
    keys = 'plain',
  }: { lvmt?: readonly LvmtParams[]; cole?: readonly ColeParams[]; keys?: KeyForm } = {}) {
    this.lvmt = lvmt;
    this.cole = cole;
    this.keys = keys;
  }

  /**
   * The values of `keys` in the backend's encoding (`null`: absent), as the proof shows them under the
   * trusted root. Throws `Refused` if the proof is not valid.
   */
  values(
    envelope: Envelope,
    keys: readonly StateKey[],
    trusted: TrustedRoot,
  ): { values: (Uint8Array | null)[]; trust: Trust } {
    const { trust, kind } = this.open(envelope, trusted);
    const asked = keys.map((key) => keyIn(kind.keys, key));
    const values = kind.verify(fromHex(trust.root, 32), asked, fromHex(envelope.proof));
    return { values, trust };
  }

  /** The verifier of a proof's kind, and the trusted root, which the envelope names. */
  private open(envelope: Envelope, trusted: TrustedRoot): { trust: Trust; kind: Kind } {
    const kind = this.kind(envelope);
    const trust = openRoot(trusted);
    const block = quantity(envelope.block, 64);
    const isOther =
      (trust.block !== undefined && trust.block !== block) ||
      (trust.blockHash !== undefined && trust.blockHash !== lower(envelope.blockHash));
    if (isOther) throw new Refused('block', `the proof is of block ${block}, not the trusted one`);
    if (envelope.asOf !== undefined && quantity(envelope.asOf, 64) > block) {
      throw new Refused('block', `the root of block ${block} says nothing of a later block`);
    }
    if (lower(envelope.root) !== trust.root) {
      throw new Refused(
        'root',
        `the proof leads to root ${envelope.root}, but the trusted root is ${trust.root}`,
      );
    }
    if ('cole' in kind) {
      trust.params = kind.cole.digest;
      trust.insecure = false;
      trust.sentences.push(
        `the parameters ${kind.cole.digest} were pinned: they must be the parameters of the store`,
      );
    } else if (kind.lvmt) {
      trust.params = kind.lvmt.digest;
      trust.insecure = kind.lvmt.isInsecure();
      trust.sentences.push(
        trust.insecure
          ? `the parameters ${trust.params} are INSECURE development parameters: everybody knows their secret and can forge proofs`
          : `the parameters were pinned by digest ${trust.params}: anyone who knows their secret can forge proofs`,
      );
    }
    return { trust, kind };
  }

  /**
   * Verifies an answer of `state_getProof`: its proof must show what the answer states. The caller
   * compares address and slots with the request.
   */
  answer(answer: StateProofAnswer, trusted: TrustedRoot): Verified {
    const address = lower(answer.address, 20);
    const slots = answer.storage.map(({ key }) => lower(key));
    const keys = [{ address }, ...slots.map((slot) => ({ address, slot }))];
    const { values, trust } = this.values(answer, keys, trusted);
    const account = decoded(values[0]!, decodeAccount);
    const numbers = values.slice(1).map((value) => decoded(value, decodeSlot) ?? 0n);
    if (!sameAccount(account, answer.account)) throw claim(`account ${address}`);
    const storage = answer.storage.map(({ value }, i) => {
      const slot = slots[i]!;
      if (quantity(value, 256) !== numbers[i]) throw claim(`slot ${slot} of ${address}`);
      return { slot, value: numbers[i]! };
    });
    const asOf = answer.asOf === undefined ? {} : { asOf: quantity(answer.asOf, 64) };
    return { address, account, storage, ...asOf, trust };
  }

  /**
   * Verifies an answer of `state_getProvenance`: its proof must show what the answer states. The
   * caller compares address, slot and range with the request.
   */
  provenance(answer: ProvenanceAnswer, trusted: TrustedRoot): VerifiedProvenance {
    const { trust, kind } = this.open({ ...answer, asOf: answer.to }, trusted);
    if (!('cole' in kind)) throw noHistory();
    const address = lower(answer.address, 20);
    const slot = answer.slot === null ? null : lower(answer.slot);
    const range = { from: quantity(answer.from, 64), to: quantity(answer.to, 64) };
    const key = slot === null ? { address } : { address, slot };
    const [shown] = verifyCole(
      kind.cole,
      fromHex(trust.root, 32),
      [keyIn(kind.keys, key)],
      range,
      fromHex(answer.proof),
    ) as [Version[]];
    const versions = shown.map(({ block, value }) =>
      slot === null
        ? { block, account: decoded(value, decodeAccount) }
        : { block, value: decoded(value, decodeSlot) ?? 0n },
    );
    const isStated = (version: VerifiedProvenance['versions'][number], at: number) => {
      const stated = answer.versions[at]!;
      if (quantity(stated.block, 64) !== version.block) return false;
      if ('account' in version) {
        return 'account' in stated && sameAccount(version.account, stated.account);
      }
      return 'value' in stated && quantity(stated.value, 256) === version.value;
    };
    if (answer.versions.length !== versions.length || !versions.every(isStated)) {
      throw claim(slot === null ? `account ${address}` : `slot ${slot} of ${address}`);
    }
    return { address, slot, ...range, versions, trust };
  }

  private kind({ backend, version, hash, params, keys = 'plain', asOf }: Envelope): Kind {
    if (keys !== 'plain' && keys !== 'hashed') {
      throw new Refused('kind', `there is no verifier for proofs of ${keys} keys`);
    }
    const known: Record<string, string[]> = {
      mpt: ['keccak256'],
      'mpt-archive': ['keccak256', 'blake2b-256'],
      lvmt: ['blake2b-256'],
      cole: ['blake2b-256'],
      prefix: ['keccak256'],
      duptree: ['blake2b-256'],
      lmpt: ['keccak256'],
      bavl: ['blake2b-256'],
      pbt: ['blake3', 'keccak256'],
    };
    if (version !== 1 || !Object.hasOwn(known, backend) || !known[backend]!.includes(hash)) {
      throw new Refused(
        'kind',
        `there is no verifier for proofs of backend ${backend}, version ${version}, hash function ${hash}`,
      );
    }
    const hasEthereumRoot = hash === 'keccak256' && ETHEREUM_ROOTS.includes(backend);
    if (keys !== this.keys && !hasEthereumRoot) {
      throw new Refused(
        'kind',
        `the proof is of a store with ${keys} keys, but the trusted root is of one with ${this.keys} keys`,
      );
    }
    if (asOf !== undefined && backend !== 'cole') throw noHistory();
    const digest = lower(params);
    if (backend === 'lvmt') {
      const lvmt = this.lvmt.find((params) => params.digest === digest);
      if (!lvmt) throw unknownParams(backend, digest);
      return { keys, lvmt, verify: (...question) => verifyLvmt(lvmt, ...question) };
    }
    if (backend === 'cole') {
      const cole = this.cole.find((params) => params.digest === digest);
      if (!cole) throw unknownParams(backend, digest);
      const at = asOf === undefined ? LATEST.to : quantity(asOf, 64);
      const range = { from: at, to: at };
      const verify: Kind['verify'] = (root, keys, proof) =>
        verifyCole(cole, root, keys, range, proof).map(([newest]) => newest?.value ?? null);
      return { keys, cole, verify };
    }
    if (digest !== ZERO) throw unknownParams(backend, digest);
    if (backend === 'duptree') return { keys, verify: verifyDupTree };
    if (backend === 'lmpt') return { keys, verify: verifyLmpt };
    if (backend === 'bavl') return { keys, verify: verifyBavl };
    if (backend === 'pbt') {
      return { keys, verify: (...question) => verifyPbt(PBT_HASHES[hash]!, ...question) };
    }
    return { keys, verify: (...question) => verifyMpt(HASHES[hash]!, ...question) };
  }
}

/** Verifies an answer of `eth_getProof` under the trusted state root. */
export function verifyEthProof(answer: EthProofAnswer, trusted: TrustedRoot): Verified {
  const trust = openRoot(trusted);
  const address = lower(answer.address, 20);
  const nodes = (proof: Hex[]) => proof.map((node) => fromHex(node));
  const empty = emptyRoot(keccak_256);
  const shown = shownAccount(
    fromHex(trust.root, 32),
    fromHex(address, 20),
    nodes(answer.accountProof),
  );
  const storageHash = lower(answer.storageHash);
  if (shown !== null) {
    if (!sameAccount(shown.account, answer) || storageHash !== toHex(shown.storageRoot)) {
      throw claim(`account ${address}`);
    }
  } else {
    const isNothing =
      quantity(answer.nonce, 64) === 0n &&
      quantity(answer.balance, 256) === 0n &&
      [NO_CODE, ZERO].includes(lower(answer.codeHash)) &&
      [toHex(empty), ZERO].includes(storageHash);
    if (!isNothing) throw claim(`account ${address}`);
  }
  const storage = answer.storageProof.map(({ key, value, proof }) => {
    const slot = slotKey(quantity(key, 256));
    const bytes = shownSlot(shown?.storageRoot ?? empty, fromHex(slot, 32), nodes(proof));
    const number = decoded(bytes, decodeSlot) ?? 0n;
    if (quantity(value, 256) !== number) throw claim(`slot ${slot} of ${address}`);
    return { slot, value: number };
  });
  return { address, account: shown?.account ?? null, storage, trust };
}

/** Throws unless `code` is the code of the account. */
export function verifyCode(account: Account, code: Uint8Array): void {
  if (!equal(keccak_256(code), fromHex(account.codeHash, 32))) {
    throw new Refused('code', `the code is not the one whose hash is ${account.codeHash}`);
  }
}

const ZERO: Hex = `0x${'00'.repeat(32)}`;
/** Backends with Ethereum's roots, which are the same in both forms of keys. */
const ETHEREUM_ROOTS: readonly string[] = ['mpt', 'mpt-archive', 'prefix'];

/** The verifier of a kind of proofs, the form of its keys, and its pinned parameters. */
type Kind = {
  keys: KeyForm;
  verify: (root: Uint8Array, keys: readonly StoreKey[], proof: Uint8Array) => (Uint8Array | null)[];
} & ({ cole: ColeParams } | { lvmt?: LvmtParams });

function noHistory(): Refused {
  return new Refused('kind', 'only proofs of cole show older states than that of their root');
}

/** The canonical form of `length` bytes: lowercase hexadecimal digits. */
function lower(text: Hex, length = 32): Hex {
  return toHex(fromHex(text, length));
}

function unknownParams(backend: string, digest: Hex): Refused {
  return new Refused('kind', `the ${backend} parameters ${digest} of the proof are not pinned`);
}

function claim(what: string): Refused {
  return new Refused('claim', `the answer states another value of ${what} than its proof shows`);
}

function decoded<T>(value: Uint8Array | null, decode: (value: Uint8Array) => T | undefined): T | null {
  if (value === null) return null;
  const result = decode(value);
  if (result === undefined) throw new Refused('value', 'a proven value is in no known encoding');
  return result;
}

function sameAccount(account: Account | null, stated: StateProofAnswer['account']): boolean {
  if (account === null || stated === null) return account === stated;
  return (
    account.nonce === quantity(stated.nonce, 64) &&
    account.balance === quantity(stated.balance, 256) &&
    account.codeHash === lower(stated.codeHash)
  );
}
