// Text files that go with the next message.

import { button, make } from "./elements.js";

const MOST_BYTES = 1 << 20;

export class Attachments {
  constructor() {
    this.files = [];
    this.list = document.getElementById("attachments");
    this.problem = document.getElementById("attach-problem");
    const input = document.getElementById("files");
    document.getElementById("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", async () => {
      const chosen = [...input.files];
      input.value = ""; // the same file may be chosen again
      await this.#read(chosen);
    });
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.#read([...event.dataTransfer.files]);
    });
  }

  /** The files `{name, text}`, which are not here any more. */
  take() {
    const { files } = this;
    this.add([], []);
    return files;
  }

  /** Put files behind those that are there, or in place of them. */
  add(files, before = this.files) {
    this.files = [...before, ...files];
    this.problem.textContent = "";
    this.list.replaceChildren(...this.files.map((file) => this.#chip(file)));
  }

  #chip(file) {
    const remove = () => this.add([], this.files.filter((other) => other !== file));
    const cross = button("×", remove, { className: "small" });
    cross.setAttribute("aria-label", `Remove ${file.name}`);
    return make("li", { className: "file" }, file.name, cross);
  }

  async #read(chosen) {
    const problems = [];
    const files = [];
    for (const file of chosen) {
      try {
        files.push({ name: file.name, text: await textOf(file) });
      } catch (error) {
        problems.push(`${file.name} ${error.message}.`);
      }
    }
    this.add(files);
    this.problem.textContent = problems.join(" ");
  }
}

async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error("is larger than 1 MiB");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("is not a text file in UTF-8");
  }
  if (text.includes("\0")) throw new Error("is not a text file in UTF-8");
  return text;
}
