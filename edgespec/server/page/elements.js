// Small helpers for making elements. Text is only ever set as text.

/** An element with properties, and children that are elements or text. */
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

export function button(label, onclick, properties = {}) {
  return make("button", { type: "button", onclick, ...properties }, label);
}

/** A button that copies a text and says so for a moment. */
export function copyButton(label, text) {
  const copy = button(label, async () => {
    copy.textContent = (await copied(text())) ? "Copied" : "Select it and press Ctrl-C";
    setTimeout(() => (copy.textContent = label), 1500);
  });
  copy.classList.add("small");
  return copy;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text); // only there over HTTPS and on this machine
    return true;
  } catch {
    return copiedFromField(text);
  }
}

function copiedFromField(text) {
  const field = make("textarea", { value: text, className: "unseen", readOnly: true });
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus();
  return done;
}

/** Let the browser save a text as a file. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
