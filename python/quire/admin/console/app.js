// The frame of the console: navigation, keys, theme, and the page that the URL names.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { html } from "./html.js";
import { lostSince } from "./api.js";
import { clock } from "./format.js";
import { followLinks, go, href, route, withSelected } from "./route.js";
import { loadSession, session } from "./session.js";
import { themeChanges } from "./parts/chart.js";
import { Failure } from "./parts/small.js";
import { Help } from "./help.js";
import { Icon } from "./icons.js";
import { Overview } from "./pages/overview.js";
import { Topics } from "./pages/topics.js";
import { Queues } from "./pages/queues.js";
import { LastValues } from "./pages/last-values.js";
import { Clients } from "./pages/clients.js";
import { Replication } from "./pages/replication.js";
import { Journal } from "./pages/journal.js";
import { Actions } from "./pages/actions.js";
import { Logs } from "./pages/logs.js";
import { Views } from "./pages/views.js";

/** The pages: path, name, the letter after `g`, component. */
export const PAGES = [
  ["overview", "Overview", "o", Overview],
  ["topics", "Topics", "t", Topics],
  ["queues", "Queues", "q", Queues],
  ["last-values", "Last values", "l", LastValues],
  ["views", "Views", "v", Views],
  ["clients", "Clients", "c", Clients],
  ["replication", "Replication", "r", Replication],
  ["journal", "Journal", "j", Journal],
  ["actions", "Actions", "a", Actions],
  ["logs", "Logs", "L", Logs],
];

const isTyping = (element) => element?.matches?.("input, textarea, select, [contenteditable]") ?? false;

/** Keys of the whole console. `g` waits for the letter of a page. */
function useKeys(setHelp) {
  useEffect(() => {
    let isAfterG = false;
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape") return escape(event);
      if (isTyping(event.target)) return;
      if (isAfterG) {
        isAfterG = false;
        const page = PAGES.find(([, , letter]) => letter === event.key);
        if (page) {
          event.preventDefault();
          go(href(page[0]));
        }
        return;
      }
      if (event.key === "g") isAfterG = true;
      else if (event.key === "?") setHelp(true);
      else if (event.key === "/") focusFilter(event);
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}

/** Leaves a field; closes the details of a row otherwise, and puts the focus back on the row. */
function escape(event) {
  if (isTyping(event.target) && event.target.type !== "search") return event.target.blur();
  if (isTyping(event.target) && event.target.value) return;
  const { selected } = route.peek();
  if (isTyping(event.target) && !selected) return event.target.blur();
  if (!selected) return;
  go(withSelected(""));
  requestAnimationFrame(() => {
    const row = [...document.querySelectorAll("tr[data-index] a")].find((link) => link.hash === `#${encodeURIComponent(selected)}`);
    row?.focus();
  });
}

function focusFilter(event) {
  const filter = document.querySelector('[data-filter="true"]');
  if (!filter) return;
  event.preventDefault();
  filter.focus();
  filter.select();
}

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("quire-theme", theme);
  } catch {
    // The theme then lasts as long as the page.
  }
  themeChanges.value += 1;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (themeChanges.value += 1));

function Side({ page, onHelp }) {
  const known = session.value;
  themeChanges.value;
  return html`<header class="side">
    <div class="brand"><img src="/console/assets/icon.svg" alt="" /><span>quire</span></div>
    <nav aria-label="Pages">
      ${PAGES.map(([path, name]) => html`<a key=${path} href=${href(path)} aria-current=${path === page ? "page" : undefined}><${Icon} name=${path} />${name}</a>`)}
    </nav>
    <div class="foot">
      ${known && html`<div><strong>${known.instance}</strong> <span class="only-wide">${known.version}</span></div>`}
      ${known?.user && html`<div class="only-wide">${known.user}${known.read_only ? ", read only" : ""}</div>`}
      <div class="buttons">
        <button class="small" onClick=${switchTheme}>${isDark() ? "Light" : "Dark"}</button>
        <button class="small" onClick=${onHelp}>Keys <kbd aria-hidden="true">?</kbd></button>
      </div>
    </div>
  </header>`;
}

function Lost() {
  if (lostSince.value === null) return null;
  return html`<div class="body" style=${{ flex: "none" }}><div class="note bad" role="alert"><div>
    No answer from the server since ${clock(lostSince.value / 1000, { millis: false })}. The figures are from before. The page keeps trying.
  </div></div></div>`;
}

function App() {
  const [help, setHelp] = useState(false);
  const [error, setError] = useState(null);
  useKeys(setHelp);
  useEffect(() => {
    loadSession().catch(setError);
  }, []);
  const { page } = route.value;
  const found = PAGES.find(([path]) => path === page);
  const Page = found?.[3];
  useEffect(() => {
    // On a narrow screen, the links of the pages do not fit.
    document.querySelector('nav [aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [page, session.value]);
  useEffect(() => {
    document.title = `${found?.[1] ?? "Unknown page"} · ${session.value?.instance ?? "quire"}`;
  }, [page, session.value]);
  return html`<div class="frame" onClick=${followLinks}>
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the page</a>
    <${Side} page=${page} onHelp=${() => setHelp(true)} />
    <main class="main" id="main" tabindex="-1">
      <${Lost} />
      ${error && html`<div class="body"><${Failure} error=${error} /></div>`}
      ${session.value && (Page ? html`<${Page} key=${page} />` : html`<div class="body"><p class="nothing">There is no page ${page}. <a href=${href("overview")}>Overview</a></p></div>`)}
    </main>
    ${help && html`<${Help} pages=${PAGES} onClose=${() => setHelp(false)} />`}
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
