// The newest lines of the log, filtered, and followed as they come.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../html.js";
import { CONSOLE, get, stream } from "../api.js";
import { count, moment, plural } from "../format.js";
import { isVisible } from "../hooks.js";
import { go, route, withParameters } from "../route.js";
import { Failure, Search } from "../parts/small.js";

const LEVELS = ["debug", "info", "warning", "error", "critical"];
/** Lines that the page keeps. */
const KEPT = 2000;

/** The last lines, and with `isOn` those that follow. */
function useLines(isOn, onEnd) {
  const [state, setState] = useState({ lines: null, error: null });
  const isShown = isVisible.value;
  useEffect(() => {
    if (!isShown) return undefined;
    const keep = (lines) => setState((old) => ({ lines: [...(old.lines ?? []), ...lines].slice(-KEPT), error: null }));
    const fail = (error) => setState((old) => ({ ...old, error }));
    if (isOn) {
      setState({ lines: null, error: null });
      return stream(`${CONSOLE}/logs/follow`, {}, (told) => keep(told.flatMap((each) => (each.line ? [each.line] : []))), (error) => onEnd(error));
    }
    const abort = new AbortController();
    get(`${CONSOLE}/logs`, {}, { signal: abort.signal }).then((told) => setState({ lines: told.lines, error: null }), (error) => abort.signal.aborted || fail(error));
    return () => abort.abort();
  }, [isOn, isShown]);
  return state;
}

export function Logs() {
  const { level = "debug", text = "", follow } = route.value.parameters;
  const isOn = follow !== "0";
  const [ended, setEnded] = useState(null);
  const setFollow = (on) => go(withParameters({ follow: on ? null : "0" }), { replaces: true });
  const { lines, error } = useLines(isOn, (failure) => {
    setEnded(failure ?? new Error("The server has ended the log."));
    setFollow(false);
  });
  const least = LEVELS.indexOf(level);
  const wanted = text.toLowerCase();
  const shown = (lines ?? []).filter((line) => LEVELS.indexOf(line.level) >= least && (!wanted || `${line.id ?? ""} ${line.thread ?? ""} ${line.text}`.toLowerCase().includes(wanted)));
  const box = useRef(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    // A person who has scrolled up reads: the page then stays.
    if (isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown.length, lines]);
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    isAtEnd.current = scrollTop + clientHeight > scrollHeight - 30;
  };
  return html`<header class="head"><h1>Logs</h1></header>
    <div class="body">
      <div class="bar">
        <label class="inline"><span>Level</span>
          <select value=${level} onChange=${(event) => go(withParameters({ level: event.currentTarget.value === "debug" ? null : event.currentTarget.value }), { replaces: true })}>
            ${LEVELS.map((name) => html`<option value=${name}>${name === "critical" ? name : `${name} and above`}</option>`)}
          </select>
        </label>
        <${Search} label="Filter" value=${text} isFilter placeholder="Part of a line" onChange=${(typed) => go(withParameters({ text: typed }), { replaces: true })} />
        ${isOn ? html`<button onClick=${() => setFollow(false)}>Stop</button>` : html`<button class="primary" onClick=${() => { setEnded(null); setFollow(true); }}>Follow</button>`}
      </div>
      <${Failure} error=${error ?? ended} />
      <div class="card logs" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-label="Log lines">
        ${shown.length === 0
          ? html`<p class="nothing">${lines === null ? (isOn ? "Waiting for the first line" : "Loading") : lines.length ? "No line matches." : "No line yet."}</p>`
          : html`<ol>${shown.map((line) => html`<li key=${line.number} class=${line.level}>
              <time class="muted">${moment(line.time)}.${String(Math.floor((line.time % 1) * 1000)).padStart(3, "0")}</time>
              <b>${line.level}</b>
              <span class="text">${line.id && html`<span class="muted">${line.id} </span>`}${line.text}</span>
            </li>`)}</ol>`}
      </div>
      <p class="muted" role="status">${lines && (shown.length === lines.length ? plural(lines.length, "line") : `${count(shown.length)} of ${plural(lines.length, "line")}`)}</p>
    </div>`;
}
