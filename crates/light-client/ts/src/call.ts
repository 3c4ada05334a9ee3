// Verifies calls: executes them, in WebAssembly, on what an answer proves.
import type { Hex } from './bytes.js';
import { type ErrorClass, Refused } from './errors.js';
import type { Envelope } from './verifier.js';

/** A call, as `eth_call` takes it: `to`, `data`, `from`, `value`, `gas`, .. */
export type CallRequest = Record<string, unknown>;

/** The answer of `state_call(request, block)`. Do not trust it before it is verified. */
export interface CallAnswer extends Omit<Envelope, 'asOf'> {
  output: Hex;
  /** Quantities: 1 if the call succeeded, else 0; gas used; the gas limit. */
  status: Hex;
  gasUsed: Hex;
  gas: Hex;
  /** What the execution read: accounts, slots, codes, and the headers for BLOCKHASH. */
  reads: { address: Hex; slots?: Hex[] }[];
  codes: Hex[];
  headers: Hex[];
}

/** What a call is checked against. */
export interface TrustedCallBlock {
  /** Hash of a block that the caller trusts. */
  hash: Hex;
  /** Root of the state after it, if that is not the `stateRoot` of its header. */
  root?: Hex;
  /** `mainnet`, `sepolia`, `holesky`, `hoodi`, `dev`, or the text of a genesis file. */
  chain: string;
  /** Trusted parameters by the name of their backend: of `lvmt` the verifier's, of `cole` their digest. */
  params?: Record<string, Hex[]>;
  /** Whether the root is that of a store with hashed keys. */
  hashed?: boolean;
}

/** What a call returns on the state after a trusted block. */
export interface VerifiedCall {
  /** What it returns, or the data of its revert; empty if it halted. */
  output: Hex;
  success: boolean;
  gasUsed: number;
  /** The gas limit. The node chooses it if the request has none: a call may fail because of that. */
  gas: number;
  block: number;
  /** Why this can be believed, in sentences. */
  trust: string[];
}

interface CallExports {
  memory: WebAssembly.Memory;
  retrie_allocate(length: number): number;
  retrie_release(at: number, length: number): void;
  retrie_verify_call(at: number, length: number): number;
  _initialize?: () => void;
}

/** Executes calls on proven values: the rules of Ethereum's forks, compiled from the node's own. */
export class CallVerifier {
  private constructor(
    private readonly module: WebAssembly.Module,
    private wasm: CallExports | undefined,
  ) {}

  /** Loads the module, `@retrie/light-client/retrie_light_client.wasm`. */
  static async load(bytes: BufferSource): Promise<CallVerifier> {
    const module = await WebAssembly.compile(bytes);
    const held: HeldMemory = {};
    const instance = await WebAssembly.instantiate(module, imports(module, held));
    return new CallVerifier(module, started(instance, held));
  }

  /**
   * Verifies the answer of `state_call` to `request`.
   *
   * @throws {Refused} unless the call returns what the answer states.
   */
  verify(request: CallRequest, answer: CallAnswer, trusted: TrustedCallBlock): VerifiedCall {
    const question = new TextEncoder().encode(JSON.stringify({ request, answer, ...trusted }));
    const shown = JSON.parse(this.judge(question)) as VerifiedCall | { class: ErrorClass; message: string };
    if ('class' in shown) throw new Refused(shown.class, shown.message);
    return shown;
  }

  private judge(question: Uint8Array): string {
    const wasm = (this.wasm ??= restarted(this.module));
    try {
      const { retrie_allocate, retrie_release, retrie_verify_call, memory } = wasm;
      const at = retrie_allocate(question.length);
      new Uint8Array(memory.buffer, at, question.length).set(question);
      const verdict = retrie_verify_call(at, question.length);
      retrie_release(at, question.length);
      const length = new DataView(memory.buffer).getUint32(verdict, true);
      const json = new TextDecoder().decode(new Uint8Array(memory.buffer, verdict + 4, length));
      retrie_release(verdict, length + 4);
      return json;
    } catch (error) {
      // An execution that runs out of memory ends so. What it leaves behind is not used again.
      this.wasm = undefined;
      throw new Refused('call', `the verifier of calls has stopped: ${String(error)}`);
    }
  }
}

type HeldMemory = { memory?: WebAssembly.Memory };

function started(instance: WebAssembly.Instance, held: HeldMemory): CallExports {
  const wasm = instance.exports as unknown as CallExports;
  held.memory = wasm.memory;
  wasm._initialize?.();
  return wasm;
}

function restarted(module: WebAssembly.Module): CallExports {
  const held: HeldMemory = {};
  return started(new WebAssembly.Instance(module, imports(module, held)), held);
}

// What a module for WASI imports. The verifier needs none of it but hash seeds: it reads no file, and
// writes at most the message of a panic.
const BAD_DESCRIPTOR = 8;
const NOT_SUPPORTED = 52;

function imports(module: WebAssembly.Module, held: HeldMemory): WebAssembly.Imports {
  const view = () => new DataView((held.memory as WebAssembly.Memory).buffer);
  const known: Record<string, (...args: never[]) => number> = {
    environ_sizes_get: (count: number, size: number) => {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return 0;
    },
    environ_get: () => 0,
    clock_time_get: (_id: number, _precision: bigint, at: number) => {
      view().setBigUint64(at, BigInt(Date.now()) * 1_000_000n, true);
      return 0;
    },
    random_get: (at: number, length: number) => {
      crypto.getRandomValues(new Uint8Array(view().buffer, at, length));
      return 0;
    },
    fd_prestat_get: () => BAD_DESCRIPTOR,
  };
  const all: WebAssembly.Imports = {};
  for (const { module: from, name } of WebAssembly.Module.imports(module)) {
    (all[from] ??= {})[name] = known[name] ?? (() => NOT_SUPPORTED);
  }
  return all;
}
