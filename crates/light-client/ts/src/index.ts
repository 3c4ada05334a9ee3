/**
 * A light client for retrie nodes: checks what a node says of the state against a trusted root.
 * Follows docs/formats/proofs.md and the pages it names, and shares no code with the Rust verifier:
 * a second opinion on every proof.
 *
 *     const verifier = new Verifier({ lvmt: [LvmtParams.fromFile(bytes)], cole: [] });
 *     const trusted = { kind: 'checkpoint', block: 17n, root: '0x..' };
 *     const { account, trust } = verifier.answer(await getProof(address), trusted);
 */
export type { Hex } from './bytes.js';
export { fromHex, toHex } from './bytes.js';
export {
  type CallAnswer,
  type CallRequest,
  CallVerifier,
  type TrustedCallBlock,
  type VerifiedCall,
} from './call.js';
export { ColeParams } from './cole/params.js';
export { type ErrorClass, Refused } from './errors.js';
export { type BlockJson, encodeHeader } from './header.js';
export {
  type CompleteLogs,
  type LogClaim,
  type LogFilter,
  type LogsAnswer,
  type VerifiedLog,
  verifyLogs,
} from './logs.js';
export {
  type LogTablesAnswer,
  type TabledLogs,
  type TableSlice,
  type TableTrust,
  verifyLogTables,
} from './log-tables.js';
export { LvmtParams } from './lvmt/params.js';
export {
  type Account,
  type KeyForm,
  type StateKey,
  type StoreKey,
  decodeKey,
  encodeAccount,
  encodeKey,
  encodeSlot,
} from './state.js';
export type { Trust, TrustedRoot } from './trust.js';
export {
  type Envelope,
  type EthProofAnswer,
  type ProvenanceAnswer,
  type StateProofAnswer,
  type Verified,
  type VerifiedProvenance,
  Verifier,
  verifyCode,
  verifyEthProof,
} from './verifier.js';
