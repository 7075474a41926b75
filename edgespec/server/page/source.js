// The text of an answer together with the pieces that it came in.

/** A growing text; any range of it can be shown, each token in a span of its own. */
export class Source {
  constructor() {
    this.text = "";
    this.pieces = [];
    this.starts = [];
  }

  /** One more piece: `[text, origin, token]`. */
  push(piece) {
    this.starts.push(this.text.length);
    this.pieces.push(piece);
    this.text += piece[0];
  }

  /** Append what stands between two places to an element. */
  show(parent, from, to) {
    for (let index = this.#pieceAt(from); from < to; index += 1) {
      const end = Math.min(to, this.starts[index + 1] ?? to);
      if (from < end) parent.append(this.#span(index, from, end));
      from = end;
    }
  }

  #span(index, from, to) {
    const span = document.createElement("span");
    span.className = `token ${this.pieces[index][1]}`;
    span.dataset.piece = index;
    span.textContent = this.text.slice(from, to);
    return span;
  }

  /** The piece that the character at this place came in. */
  #pieceAt(place) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
