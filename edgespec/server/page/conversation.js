// The conversation: its turns, how they are stored over a reload, and how they are exported.

import { ORIGINS } from "./origins.js";

/**
 * A question and its answer.
 *
 * `pieces` are the answer's, `[text, origin, token]`; `state` is "writing", "done", "stopped" or
 * "failed"; `error` is a line, or null; `figures` are the server's for a finished answer, with
 * `usage`, or null.
 */
export function newTurn(prompt) {
  return { prompt, pieces: [], state: "writing", error: null, figures: null };
}

export function answerOf(turn) {
  return turn.pieces.map(([text]) => text).join("");
}

/** What is sent: without questions that were never answered, but for the last. */
export function messagesOf(turns, system) {
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns.slice(0, -1)) {
    const answer = answerOf(turn);
    if (!answer) continue;
    messages.push({ role: "user", content: turn.prompt }, { role: "assistant", content: answer });
  }
  messages.push({ role: "user", content: turns.at(-1).prompt });
  return messages;
}

// -- keeping -----------------------------------------------------------------------------------

/** A text that is kept while this tab is open. */
export function keep(name, text) {
  try {
    if (text) sessionStorage.setItem(`edgespec.${name}`, text);
    else sessionStorage.removeItem(`edgespec.${name}`);
    return true;
  } catch {
    return false; // no room, or storage is switched off
  }
}

export function kept(name) {
  try {
    return sessionStorage.getItem(`edgespec.${name}`) ?? "";
  } catch {
    return "";
  }
}

export function keepTurns(name, turns) {
  if (keep(name, turns.length ? JSON.stringify(turns) : "")) return;
  // Without the tokens' ends it takes a quarter of the room.
  const smaller = turns.map((turn) => ({ ...turn, pieces: [[answerOf(turn), "plain", -1]] }));
  keep(name, JSON.stringify(smaller));
}

/** Stored turns, as far as they are what `keepTurns` wrote. */
export function keptTurns(name) {
  try {
    return JSON.parse(kept(name) || "[]").map(asTurn);
  } catch {
    return [];
  }
}

function asTurn({ prompt, pieces, state, error, figures }) {
  return {
    prompt: String(prompt),
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
  for (const turn of turns) parts.push("## You", turn.prompt, `## ${model}`, answerOf(turn));
  return `${parts.join("\n\n")}\n`;
}
