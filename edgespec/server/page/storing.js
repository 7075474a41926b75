// What is kept in the browser: a tab's own texts while it is open, and conversations for good.

import { answerOf, asTurn } from "./conversation.js";

const PREFIX = "edgespec.conversation.";
const MOST = 4_000_000; // characters of one conversation: browsers have room for five million

/** A text that is kept while this tab is open. */
export function keep(name, text) {
  put(() => sessionStorage, `edgespec.${name}`, text);
}

export function kept(name) {
  try {
    return sessionStorage.getItem(`edgespec.${name}`) ?? "";
  } catch {
    return "";
  }
}

/** A conversation under a name that no other one has. */
export function newConversation() {
  const id = `${Date.now().toString(36)}${Math.random().toString(36).slice(2)}`;
  return { id, time: 0, turns: [] };
}

/** Write down a conversation `{id, time, turns}`; one without turns is forgotten. */
export function keepConversation({ id, time, turns }) {
  const text = (some) => (some.length ? JSON.stringify({ time, turns: some }) : "");
  const store = (some) => put(() => localStorage, PREFIX + id, text(some));
  if (store(turns)) return;
  // Without the tokens' ends it takes a quarter of the room; the oldest ones make room for it.
  const smaller = turns.map((turn) => ({ ...turn, pieces: [[answerOf(turn), "plain", -1]] }));
  if (text(smaller).length > MOST) return;
  for (const oldest of keptConversations().reverse()) {
    if (store(smaller)) return;
    if (oldest.id !== id) dropConversation(oldest.id);
  }
  store(smaller);
}

export function dropConversation(id) {
  put(() => localStorage, PREFIX + id, "");
}

/** The conversation of this name, or a new one. */
export function keptConversation(id) {
  try {
    const { time, turns } = JSON.parse(localStorage.getItem(PREFIX + id));
    return { id, time: Number(time), turns: turns.map(asTurn) };
  } catch {
    return newConversation();
  }
}

/** All that can be read, the latest first. */
export function keptConversations() {
  let names = [];
  try {
    names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  } catch {
    // Storage is switched off.
  }
  return names
    .map((name) => keptConversation(name.slice(PREFIX.length)))
    .filter(({ turns }) => turns.length)
    .sort((one, other) => other.time - one.time);
}

/** Set or remove; false if there is no room, or storage is switched off. */
function put(storage, name, text) {
  try {
    if (text) storage().setItem(name, text);
    else storage().removeItem(name);
    return true;
  } catch {
    return false;
  }
}
