// Figures behind one chip: of the last answer, counts by origin, acceptance by position.

import { make } from "./elements.js";
import { Tally, tallyOf } from "./origins.js";

const NONE = "–";

export function perSecond(value) {
  return value.toFixed(value < 100 ? 1 : 0);
}

const percent = (share) => `${Math.round(100 * share)}%`;

/** Measures an answer while it comes: the server's own figures are there when it is whole. */
class Pace {
  constructor() {
    this.tally = new Tally();
    this.first = this.last = 0;
    this.acceptance = null;
  }

  add(origin, acceptance) {
    this.last = performance.now();
    if (!this.tally.tokens) this.first = this.last;
    this.tally.add(origin);
    this.acceptance = acceptance;
  }

  /** Tokens behind the first, which comes after the prompt was read, by the second. */
  get speed() {
    const seconds = (this.last - this.first) / 1000;
    return seconds > 0 ? (this.tally.tokens - 1) / seconds : null;
  }
}

/** All figures on the page, of a conversation whose last answer may be under way. */
export class Figures {
  constructor() {
    this.capacity = null;
    this.reset([]);
  }

  /** Another conversation, or one that has lost an answer. */
  reset(turns) {
    this.tally = tallyOf(turns);
    this.pace = null;
    this.known = turns.findLast((turn) => turn.figures)?.figures ?? null;
    this.show();
  }

  begin() {
    this.pace = new Pace();
  }

  /** A token came, with the share of proposals accepted so far. */
  add(origin, acceptance) {
    this.tally.add(origin);
    this.pace.add(origin, acceptance);
  }

  /** The answer is over; `figures` are the server's, or null if it was stopped. */
  end(figures) {
    this.tally.endAnswer();
    this.pace.tally.endAnswer();
    if (figures) {
      this.known = figures;
      this.pace = null;
    }
    this.show();
  }

  show() {
    for (const [name, text] of Object.entries(this.#texts())) {
      document.querySelector(`[data-figure="${name}"]`).textContent = text;
    }
    for (const [origin, count] of Object.entries(this.tally.counts)) {
      document.querySelector(`#legend [data-origin="${origin}"]`).textContent = count;
    }
    showPositions(this.tally.positions);
  }

  #texts() {
    const { pace, known } = this;
    const plain = known?.plain_tokens_per_second;
    const whole = known?.timings?.tokens_per_second;
    const speculation = known?.speculation;
    const say = (value, text) => (value === null || value === undefined ? NONE : text(value));
    const speed = pace ? pace.speed : whole;
    const speedup = !pace && plain ? whole / plain : null;
    const times = (ratio) => `${ratio.toFixed(2)}×`;
    const told = [speed && `${perSecond(speed)} tokens/s`, speedup && times(speedup)];
    return {
      chip: told.filter(Boolean).join(" · ") || "Figures",
      speed: say(speed, perSecond),
      plain: say(plain, perSecond),
      speedup: say(speedup, times),
      acceptance: say(pace ? pace.acceptance : speculation?.acceptance_rate, percent),
      cycle: say(pace ? pace.tally.tokensPerCycle : speculation?.tokens_per_cycle, (n) => n.toFixed(2)),
      context: `${say(known?.usage?.total_tokens, String)} / ${say(this.capacity, String)}`,
    };
  }
}

function showPositions(positions) {
  const body = document.querySelector("#positions tbody");
  document.getElementById("positions").hidden = !positions.length;
  document.getElementById("no-positions").hidden = positions.length > 0;
  while (body.rows.length > positions.length) body.lastChild.remove();
  while (body.rows.length < positions.length) body.append(newRow(body.rows.length + 1));
  positions.forEach(({ judged, accepted }, index) => {
    const [, bar, share] = body.rows[index].cells;
    bar.firstChild.firstChild.style.width = percent(accepted / judged);
    share.textContent = `${percent(accepted / judged)} of ${judged}`;
  });
}

function newRow(position) {
  const bar = make("div", { className: "bar" }, make("div"));
  bar.setAttribute("aria-hidden", "true");
  const number = make("th", { scope: "row" }, String(position));
  return make("tr", {}, number, make("td", {}, bar), make("td"));
}
