// The state of the page in its URL: /console/PAGE?PARAMETERS#SELECTED.
import { signal } from "@preact/signals";

const BASE = "/console/";

function read() {
  const { pathname, search, hash } = window.location;
  const page = pathname.startsWith(BASE) ? pathname.slice(BASE.length).replace(/\/$/, "") : "";
  let selected = "";
  try {
    selected = decodeURIComponent(hash.slice(1));
  } catch {
    // A hand-written URL may have a lone percent sign. Nothing is selected then.
  }
  return { page: page || "overview", parameters: Object.fromEntries(new URLSearchParams(search)), selected };
}

export const route = signal(read());

window.addEventListener("popstate", () => (route.value = read()));

/** The URL of a place. A parameter that is null, or empty, is left out. */
export function href(page, parameters = {}, selected = "") {
  const kept = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return `${BASE}${page}${query}${selected ? `#${encodeURIComponent(selected)}` : ""}`;
}

/** Goes to a place. With `replaces`, the back button does not come here again. */
export function go(address, { replaces = false } = {}) {
  history[replaces ? "replaceState" : "pushState"](null, "", address);
  route.value = read();
}

/** The URL of this page with other parameters. */
export const withParameters = (changes) => {
  const { page, parameters, selected } = route.peek();
  return href(page, { ...parameters, ...changes }, selected);
};

/** The URL of this page with another selected row. Parameters of the row that was left go. */
export const withSelected = (selected) => {
  const { page, parameters } = route.peek();
  const { sort, name, range } = parameters;
  return href(page, { sort, name, range }, selected);
};

/** Links inside of the console change the route, and do not load the page again. */
export function followLinks(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const to = new URL(link.href);
  if (to.origin !== window.location.origin || !to.pathname.startsWith(BASE) || link.target || link.hasAttribute("download")) return;
  event.preventDefault();
  go(to.pathname + to.search + to.hash);
}
