// Where tokens came from, counted.

export const ORIGINS = ["accepted", "corrected", "bonus", "plain"];

const POSITIONS = 10; // told apart; later ones count with the last

/**
 * Counts origins, and acceptance by position: within a cycle accepted tokens come first, and the
 * token behind them tells whether the next proposal was rejected.
 */
export class Tally {
  constructor() {
    this.counts = Object.fromEntries(ORIGINS.map((origin) => [origin, 0]));
    /** Of each position: how many proposals the model judged, and accepted. */
    this.positions = [];
    this.tokens = 0;
    this.cycles = 0;
    this.run = 0;
  }

  add(origin) {
    this.tokens += 1;
    this.counts[origin] += 1;
    if (origin === "accepted") {
      this.#judge(true);
      this.run += 1;
      return;
    }
    if (origin === "corrected") this.#judge(false);
    this.run = 0;
    this.cycles += 1;
  }

  /** The answer is over: a block may have ended inside. */
  endAnswer() {
    if (this.run > 0) this.cycles += 1;
    this.run = 0;
  }

  /** Tokens a cycle emitted, over the cycles that are whole; null before there is one. */
  get tokensPerCycle() {
    return this.cycles ? (this.tokens - this.run) / this.cycles : null;
  }

  #judge(accepted) {
    const index = Math.min(this.run, POSITIONS - 1);
    while (this.positions.length <= index) this.positions.push({ judged: 0, accepted: 0 });
    this.positions[index].judged += 1;
    this.positions[index].accepted += accepted ? 1 : 0;
  }
}

/** The tally of all answers of a conversation. */
export function tallyOf(turns) {
  const tally = new Tally();
  for (const turn of turns) {
    for (const [, origin] of turn.pieces) tally.add(origin);
    tally.endAnswer();
  }
  return tally;
}
