// Small parts that several pages use.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { RANGES } from "../hooks.js";
import { go, route, withParameters } from "../route.js";

/** A state with a color and a form, so that it can be told without the color. `kind`: ok, warn, bad or "". */
export const Mark = ({ kind = "", children }) => html`<span class="mark ${kind}">${children}</span>`;

/** `of`: the figure; without one, the server does not have it, and there is no tile. */
export function Tile({ name, of, format, unit, more, kind = "" }) {
  if (of === undefined) return null;
  const value = format ? format(of) : of;
  return html`<div class="tile ${kind}">
    <dt title=${name}>${name}</dt>
    <dd>${value}${unit && html`<span class="unit">${unit}</span>`}</dd>
    ${more && html`<dd class="more" style=${MORE} title=${typeof more === "string" ? more : undefined}>${more}</dd>`}
  </div>`;
}

const MORE = { fontSize: "12px", fontWeight: 400, letterSpacing: "0" };

export const Tiles = ({ children }) => html`<dl class="tiles">${children}</dl>`;

export const Section = ({ title, children }) => html`<section class="section" aria-label=${title}><h3>${title}</h3>${children}</section>`;

/** What went wrong, and what to do. */
export function Failure({ error }) {
  if (!error) return null;
  return html`<div class="note bad" role="alert"><div><p>${error.message}</p>${error.hint && html`<p>${error.hint}</p>`}</div></div>`;
}

export const Note = ({ kind = "", children }) => html`<div class="note ${kind}" role="status"><div>${children}</div></div>`;

/** The range of all charts of the page, kept in the URL. */
export function RangeChoice() {
  const current = chosenRange();
  return html`<div class="choices" role="group" aria-label="Range of the charts">
    ${RANGES.map(([name]) => html`<button key=${name} aria-pressed=${name === current} onClick=${() => go(withParameters({ range: name === "15m" ? null : name }), { replaces: true })}>${name}</button>`)}
  </div>`;
}

export function chosenRange() {
  const { range } = route.value.parameters;
  return RANGES.some(([name]) => name === range) ? range : "15m";
}

/** A button that does something on the server: it shows that it works, and hands on its failure. */
export function Act({ label, act, onDone, onFailed, kind = "", disabled = false }) {
  const [isBusy, setBusy] = useState(false);
  const click = async () => {
    setBusy(true);
    try {
      onDone?.(await act());
    } catch (error) {
      onFailed?.(error);
    } finally {
      setBusy(false);
    }
  };
  return html`<button class=${kind} disabled=${disabled || isBusy} aria-busy=${isBusy} onClick=${click}>${label}</button>`;
}

/** A table of few rows. `columns`: [heading, row => cell, is a number]. */
export function Plain({ label, columns, rows, rowKey, none = "None" }) {
  if (!rows?.length) return html`<p class="muted">${none}</p>`;
  return html`<div class="plain" tabindex="0" role="region" aria-label=${`${label}, table`}><table>
    <thead><tr>${columns.map(([heading, , isNumber]) => html`<th class=${isNumber ? "number" : ""} scope="col">${heading}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${rowKey ? rowKey(row) : index}>
      ${columns.map(([, cell, isNumber]) => html`<td class=${isNumber ? "number" : ""}>${cell(row)}</td>`)}
    </tr>`)}</tbody>
  </table></div>`;
}

export const Pairs = ({ pairs }) => html`<dl class="pairs">${pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

/** An input with a visible name, which is handed on when Enter is pressed, or shortly after typing. */
export function Search({ label, value, onChange, placeholder, isFilter = false, delay = 250, ...rest }) {
  const [text, setText] = useState(value ?? "");
  const [timer, setTimer] = useState(0);
  const [shown, setShown] = useState(value);
  if (shown !== value) {
    setShown(value);
    setText(value ?? "");
  }
  const type = (event) => {
    const typed = event.currentTarget.value;
    setText(typed);
    clearTimeout(timer);
    setTimer(setTimeout(() => onChange(typed), delay));
  };
  return html`<label class="inline wide"><span>${label}</span>
    <input type="search" value=${text} onInput=${type} placeholder=${placeholder} data-filter=${isFilter} spellcheck=${false} autocomplete="off" ...${rest} />
  </label>`;
}
