// Requests to the server: the tree, the requests of the console, and streams.
import { signal } from "@preact/signals";

export const INSTANCE = "/quire/instance";
export const ADMINISTRATOR = "/quire/administrator";
export const CONSOLE = "/console/api";

/** The time of the first request that got no answer; null while the server answers. */
export const lostSince = signal(null);

export class ApiError extends Error {
  constructor(status, { code = "unknown", reason = "", hint = "" } = {}) {
    super(reason || `the server answered with status ${status}`);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name !== "AbortError") lostSince.value ??= Date.now();
    throw error;
  }
  lostSince.value = null;
  if (response.ok) return response;
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // A proxy may answer with a page. Its status is all that is known.
  }
  throw new ApiError(response.status, told);
}

/** The path of a node, with its parts encoded. */
export const path = (...parts) => [INSTANCE, ...parts.map(encoded)].join("/");

/** An id as a part of a path. Its dots are encoded, too: an end such as `.json` is not a form then. */
export const encoded = (id) => encodeURIComponent(id).replaceAll(".", "%2E");

/** A pattern that only this name matches. */
export const exactly = (name) => `^${name.replace(/[\\^$*+?.()|[\]{}]/g, "\\$&")}$`;

function withQuery(address, query) {
  const entries = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return entries.length ? `${address}?${new URLSearchParams(entries)}` : address;
}

export async function get(address, query, options) {
  const asked = withQuery(address, query);
  if (isNode(address)) return (await node(asked, options)).body;
  return (await answer(asked, options)).json();
}

/** A part of a collection: its rows, and the number of all rows. */
export async function getRows(address, query, options) {
  const { body, total } = await node(withQuery(address, query), options);
  return { rows: body, total: total ?? body.length };
}

const isNode = (address) => address.startsWith("/quire/") || address === "/readyz";

/** Milliseconds that a request for a node waits for others, so that a page sends one request. */
const TOGETHER = 20;

/** Characters of the paths in one request. */
const SIZE_MAX = 6000;

let waiting = [];

/** The answer for a node of the tree, or for `/readyz`, whose status 503 is no error: `{ status, body, total }`. */
function node(address, { signal: abort } = {}) {
  return new Promise((resolve, reject) => {
    if (waiting.length === 0) setTimeout(askWaiting, TOGETHER);
    waiting.push({ address, abort, resolve, reject });
  });
}

function askWaiting() {
  const asked = waiting.filter(({ abort, reject }) => (abort?.aborted ? reject(abort.reason) : true));
  waiting = [];
  while (asked.length) {
    let size = 0;
    const end = asked.findIndex(({ address }) => (size += encodeURIComponent(address).length + 5) > SIZE_MAX);
    askTogether(asked.splice(0, end < 0 ? asked.length : Math.max(end, 1)));
  }
}

async function askTogether(asked) {
  const paths = new URLSearchParams(asked.map(({ address }) => ["get", address]));
  try {
    const answers = await (await answer(`${CONSOLE}/several?${paths}`)).json();
    asked.forEach(({ resolve, reject }, index) => {
      const told = answers[index];
      if (told.status < 400 || !told.body.error) resolve(told);
      else reject(new ApiError(told.status, told.body.error));
    });
  } catch (error) {
    for (const { reject } of asked) reject(error);
  }
}

export async function post(address, body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body ?? {}) };
  const text = await (await answer(address, options)).text();
  return text ? JSON.parse(text) : {};
}

/**
 * Reads a stream of JSON lines. Calls `onLines` with the lines that came together, and `onEnd` with
 * the error, or null. Returns a function that stops it.
 */
export function stream(address, query, onLines, onEnd) {
  const abort = new AbortController();
  (async () => {
    const response = await answer(withQuery(address, query), { signal: abort.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      const told = lines.filter(Boolean).map((line) => JSON.parse(line));
      if (told.length) onLines(told);
    }
  })().then(
    () => abort.signal.aborted || onEnd(null),
    (error) => abort.signal.aborted || onEnd(error),
  );
  return () => abort.abort();
}
