// The server's interface: requests, server-sent events, and errors as one line.

/** What went wrong, as it is shown. */
export class Failure extends Error {
  constructor(line, { status = 0, code = null } = {}) {
    super(line);
    this.status = status;
    this.code = code;
  }
}

const UNREACHABLE =
  "The server cannot be reached. Is edgespec serve still running? Nothing you wrote is lost.";
const CUT = "The connection ended before the answer did: it is not whole.";

/** What the server says of its model: `{id, context_length}`. */
export async function fetchModel(key) {
  const response = await send("v1/models", { headers: headers(key) });
  return (await response.json()).data[0];
}

/**
 * Ask for an answer, and yield its chunks as they come.
 *
 * Throws a Failure; an AbortError when `signal` ended it.
 */
export async function* streamChat(body, key, signal) {
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true },
      edgespec: { origins: true },
    }),
    signal,
  });
  for await (const data of eventsOf(response.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Failure(chunk.error.message, { code: chunk.error.code });
    yield chunk;
  }
  throw new Failure(CUT);
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function send(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(UNREACHABLE);
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

async function failureOf(response) {
  const told = await response.json().then((body) => body.error, () => null);
  const { status } = response;
  const message = told?.message ?? `the server answered with status ${status}`;
  const details = { status, code: told?.code ?? null };
  return new Failure(lineFor(details, message, response.headers.get("Retry-After")), details);
}

function lineFor({ status, code }, message, seconds) {
  if (status === 401) return "This server wants an API key: enter it in the settings.";
  if (status === 429) return `The server is busy: ${message}${seconds ? ` (in ${seconds} s)` : ""}.`;
  if (code === "context_length_exceeded") {
    return `Too long for the model: ${message}. A new conversation has room, too.`;
  }
  return `The server refused: ${message}.`;
}

/** The data of each server-sent event. */
async function* eventsOf(stream, signal) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const { done, value } = await read(reader, signal);
    if (done) return;
    buffer += decoder.decode(value, { stream: true });
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) if (event.startsWith("data: ")) yield event.slice(6);
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Failure(CUT);
  }
}
