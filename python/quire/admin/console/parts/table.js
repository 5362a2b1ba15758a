// A table of a collection of the server. The server sorts and filters it; the page fetches the rows
// near those that are visible. So a table of 10,000 rows has about 60 elements, and one request.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../html.js";
import { getRows } from "../api.js";
import { INTERVAL, useEvery } from "../hooks.js";
import { count } from "../format.js";
import { go, route, withParameters, withSelected } from "../route.js";
import { Failure, Search } from "./small.js";

/** The screen has room for few columns. */
const phone = matchMedia("(max-width: 800px)");
const isPhone = signal(phone.matches);
phone.addEventListener("change", () => (isPhone.value = phone.matches));

/** Height of a row in pixels, as `--row` of theme.css. */
const ROW = 34;
/** Rows that are fetched and drawn beyond both ends of the visible part. */
const AROUND = 20;
/** Typed text becomes a pattern that finds it anywhere in a name. */
const pattern = (text) => (text ? `.*${text.replace(/[\\^$*+?.()|[\]{}]/g, "\\$&")}` : null);

/** The rows from `first` to `last` of a collection, fetched again and again. */
function useRows(address, sort, name, first, last) {
  const [state, setState] = useState({ address: "", first: 0, rows: [], total: null, error: null });
  const query = { offset: Math.max(0, first - AROUND), limit: last - first + 2 * AROUND, sort, name: pattern(name) };
  useEvery(INTERVAL, async (signal) => {
    try {
      const { rows, total } = await getRows(`${address}.json`, query, { signal });
      if (!signal.aborted) setState({ address, first: query.offset, rows, total, error: null });
    } catch (error) {
      if (!signal.aborted) setState((old) => ({ ...old, error }));
    }
  }, [address, JSON.stringify(query)]);
  return state.address === address ? state : { first: 0, rows: [], total: null, error: state.error };
}

/** The rows that fit, and the first visible one, in steps of 10 so that scrolling fetches rarely. */
function useVisible(box) {
  const [visible, setVisible] = useState({ first: 0, last: 40 });
  const look = () => {
    if (!box.current) return; // the observer may still report the end of the table
    const { scrollTop, clientHeight } = box.current;
    const first = Math.floor(scrollTop / ROW / 10) * 10;
    const last = first + Math.ceil(clientHeight / ROW / 10) * 10 + 10;
    setVisible((old) => (old.first === first && old.last === last ? old : { first, last }));
  };
  useEffect(() => {
    const size = new ResizeObserver(look);
    size.observe(box.current);
    return () => size.disconnect();
  }, []);
  return [visible, look];
}

/** Arrows, Page Up and Down, Home and End move between the links of the rows. */
function moveFocus(event, box, total) {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
  const step = steps[event.key];
  if (step === undefined || !total) return;
  event.preventDefault();
  const at = document.activeElement?.closest?.("tr[data-index]");
  const from = at ? Number(at.dataset.index) : -1;
  const to = Math.min(total - 1, Math.max(0, from + step));
  const link = () => box.querySelector(`tr[data-index="${to}"] a`);
  const top = to * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + 2 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + 2 * ROW - box.clientHeight;
  if (link()) return link().focus();
  // The row is drawn when it was fetched.
  const wait = new MutationObserver(() => {
    if (!link()) return;
    wait.disconnect();
    link().focus();
  });
  wait.observe(box, { childList: true, subtree: true });
  setTimeout(() => wait.disconnect(), 2000);
}

function Heading({ column, sort, width }) {
  const { title, sort: key = column.key, isNumber, isComputed } = column;
  const way = sort === key ? "ascending" : sort === `-${key}` ? "descending" : undefined;
  const alignment = isNumber ? "number" : "";
  if (isComputed) return html`<th scope="col" class=${alignment} style=${{ width }}><span>${title}</span></th>`;
  // Numbers are sorted from the largest, names from the first.
  const next = way === undefined ? (isNumber ? `-${key}` : key) : way === "ascending" ? `-${key}` : key;
  const arrow = way === "ascending" ? " ↑" : way === "descending" ? " ↓" : "";
  return html`<th scope="col" class=${alignment} style=${{ width }} aria-sort=${way}>
    <button class=${alignment} onClick=${() => go(withParameters({ sort: next }), { replaces: true })}>${title}<span aria-hidden="true">${arrow}</span></button>
  </th>`;
}

const Spacer = ({ rows, columns }) => (rows > 0 ? html`<tr class="spacer" aria-hidden="true"><td colspan=${columns} style=${{ height: `${rows * ROW}px` }}></td></tr>` : null);

/**
 * `columns`: `{ key, title, render, isNumber, width }`; the first one is the link of the row.
 * `label` names the table, and `things` its rows.
 */
export function Table({ label, things, address, columns, none, defaultSort = null, tools = null, isOpen = false, narrow = [] }) {
  const { parameters, selected } = route.value;
  const sort = parameters.sort ?? defaultSort;
  const box = useRef(null);
  const [visible, look] = useVisible(box);
  const { rows, first, total, error } = useRows(address, sort, parameters.name, visible.first, visible.last);
  useEffect(() => {
    box.current.scrollTop = 0;
  }, [address, sort, parameters.name]);
  // A column whose figure the server does not have is left out.
  const known = rows.length ? columns.filter((column) => column.isComputed || column.key in rows[0]) : columns;
  const isNarrow = narrow.length > 0 && (isOpen || isPhone.value);
  const shown = isNarrow ? known.filter((column) => narrow.includes(column.key)) : known;
  const row = (each, index) => html`<tr key=${each.id} data-index=${first + index} aria-rowindex=${first + index + 2} class=${String(each.id) === selected ? "selected" : ""}>
    ${shown.map((column, place) => {
      const text = column.render ? column.render(each[column.key], each) : each[column.key];
      const alignment = column.isNumber ? "number" : "";
      if (place > 0) return html`<td class=${alignment}>${text}</td>`;
      return html`<th scope="row" class=${alignment}><a href=${withSelected(String(each.id))} aria-current=${String(each.id) === selected ? "true" : undefined}>${text}</a></th>`;
    })}
  </tr>`;
  return html`<section class="card list" aria-label=${label}>
    <div class="tools bar">
      <${Search} label="Filter" placeholder=${`Part of a name`} value=${parameters.name} isFilter onChange=${(name) => go(withParameters({ name }), { replaces: true })} />
      ${tools}
    </div>
    <${Failure} error=${error} />
    <div class="grid" ref=${box} onScroll=${look} onKeyDown=${(event) => moveFocus(event, box.current, total)} tabindex="0" role="region" aria-label=${`${label}, arrow keys move`}>
      <table aria-rowcount=${total === null ? -1 : total + 1} aria-label=${label}>
        <thead><tr>${shown.map((column) => html`<${Heading} key=${column.key} column=${column} sort=${sort} width=${isNarrow ? (column === shown[0] ? undefined : "124px") : column.width} />`)}</tr></thead>
        <tbody>
          <${Spacer} rows=${first} columns=${shown.length} />
          ${rows.map(row)}
          <${Spacer} rows=${(total ?? 0) - first - rows.length} columns=${shown.length} />
        </tbody>
      </table>
      ${total === 0 && html`<p class="nothing">${parameters.name ? "No name has this part." : none}</p>`}
      ${total === null && !error && html`<p class="nothing">Loading</p>`}
    </div>
    <p class="count" role="status">${total === null ? " " : `${count(total)} ${total === 1 ? things[0] : things[1]}`}</p>
  </section>`;
}
