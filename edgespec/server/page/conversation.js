// The conversation: its turns, what is sent of them, and how they are exported.

import { ORIGINS } from "./origins.js";

/**
 * A question and its answer.
 *
 * `files` went with the question, each `{name, text}`; `pieces` are the answer's, `[text, origin,
 * token]`; `state` is "writing", "done", "stopped" or "failed"; `error` is a line, or null;
 * `figures` are the server's for a finished answer, with `usage`, or null.
 */
export function newTurn(prompt, files = []) {
  return { prompt, files, pieces: [], state: "writing", error: null, figures: null };
}

export function answerOf(turn) {
  return turn.pieces.map(([text]) => text).join("");
}

/** The question with its files, each in a fence that nothing in it closes. */
export function contentOf({ prompt, files }) {
  const fenced = files.map(({ name, text }) => {
    const longest = (text.match(/`+/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...fenced, prompt].filter((part) => part.trim()).join("\n\n");
}

/** What is sent: without questions that were never answered, but for the last. */
export function messagesOf(turns, system) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns.slice(0, -1)) {
    const answer = answerOf(turn);
    if (!answer) continue;
    messages.push({ role: "user", content: contentOf(turn) }, { role: "assistant", content: answer });
  }
  messages.push({ role: "user", content: contentOf(turns.at(-1)) });
  return messages;
}

/** What a conversation is called in a list. */
export function titleOf([first]) {
  return first.prompt.trim().split("\n", 1)[0] || first.files[0]?.name || "A conversation";
}

/** A turn as it was stored, as far as it is one. */
export function asTurn({ prompt, files, pieces, state, error, figures }) {
  return {
    prompt: String(prompt),
    files: (files ?? []).map(({ name, text }) => ({ name: String(name), text: String(text) })),
    pieces: pieces.map(([text, origin, token]) => [
      String(text),
      ORIGINS.includes(origin) ? origin : "plain",
      Number(token),
    ]),
    state: state === "writing" ? "stopped" : String(state), // the reload ended it
    error: error ? String(error) : null,
    figures: figures ?? null,
  };
}

// -- exporting ---------------------------------------------------------------------------------

export function asJson(turns, model, settings) {
  const { system, temperature, maxTokens, seed } = settings;
  const told = { model, system, temperature, max_tokens: maxTokens, seed };
  const written = turns.map((turn) => ({
    prompt: turn.prompt,
    files: turn.files,
    answer: answerOf(turn),
    state: turn.state,
    figures: turn.figures,
    tokens: turn.pieces.map(([text, origin, token]) => ({ text, origin, token })),
  }));
  return `${JSON.stringify({ ...told, turns: written }, null, 2)}\n`;
}

export function asMarkdown(turns, model, settings) {
  const parts = [`# Conversation with ${model}`];
  if (settings.system.trim()) parts.push("## System", settings.system);
  for (const turn of turns) parts.push("## You", contentOf(turn), `## ${model}`, answerOf(turn));
  return `${parts.join("\n\n")}\n`;
}
