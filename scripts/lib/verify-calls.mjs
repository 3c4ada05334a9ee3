// Verifies answers of `state_call` with the npm package: reads questions as JSON from a file, and prints a
// verdict for each: what was proven, or the class of the error, and the milliseconds of each attempt.
//
//     node verify-calls.mjs QUESTIONS.json
import { readFileSync } from 'node:fs';
import { CallVerifier, LvmtParams, Refused, toHex } from '../../crates/light-client/ts/dist/src/index.js';

const module = new URL('../../crates/light-client/ts/dist/retrie_light_client.wasm', import.meta.url);
const { chain, questions } = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const verifier = await CallVerifier.load(readFileSync(module));

/** Trusted parameters: of `lvmt` the development ones of a height, of `cole` those of the store. */
function params({ lvmtHeight, cole }) {
  return {
    ...(lvmtHeight ? { lvmt: [toHex(LvmtParams.insecureDev(lvmtHeight).toBytes())] } : {}),
    ...(cole ? { cole: [cole] } : {}),
  };
}

const verdicts = questions.map(({ request, answer, hash, root, times = 1, ...pinned }) => {
  const trusted = { hash, chain, params: params(pinned), ...(root ? { root } : {}) };
  const ms = [];
  try {
    let shown;
    for (let time = 0; time < times; time++) {
      const begun = performance.now();
      shown = verifier.verify(request, answer, trusted);
      ms.push(performance.now() - begun);
    }
    return { output: shown.output, success: shown.success, gasUsed: shown.gasUsed, ms };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { error: error.errorClass, message: error.message };
  }
});
console.log(JSON.stringify(verdicts));
