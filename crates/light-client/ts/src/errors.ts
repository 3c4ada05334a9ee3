/** Error classes, one word each, the same in every verifier (docs/formats/proofs.md). */
export type ErrorClass =
  | 'kind'
  | 'header'
  | 'block'
  | 'root'
  | 'malformed'
  | 'missing'
  | 'unused'
  | 'value'
  | 'call'
  | 'claim'
  | 'code';

/** An answer or proof was refused. Any other exception is a mistake of the caller. */
export class Refused extends Error {
  override readonly name = 'Refused';

  constructor(
    readonly errorClass: ErrorClass,
    message: string,
  ) {
    super(message);
  }
}

export function malformed(what: string): Refused {
  return new Refused('malformed', `the proof is malformed: ${what}`);
}

export function missing(what: string): Refused {
  return new Refused('missing', `the proof lacks ${what}`);
}

export function unused(): Refused {
  return new Refused('unused', 'the proof holds parts that the asked keys do not need');
}

export function otherRoot(what = 'the proof does not match the root'): Refused {
  return new Refused('root', what);
}
