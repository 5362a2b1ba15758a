// The topics: what flows through each, its messages browsed and followed, and publishing.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../html.js";
import { CONSOLE, get, INSTANCE, path, post, stream } from "../api.js";
import { byteRate, bytes, count, plural, rate } from "../format.js";
import { isVisible, usePolled } from "../hooks.js";
import { go, route, withParameters, withSelected } from "../route.js";
import { useRights } from "../session.js";
import { HistoryChart } from "../parts/chart.js";
import { Messages } from "../parts/messages.js";
import { Failure, Note, RangeChoice, Section, Tile, Tiles } from "../parts/small.js";
import { Table } from "../parts/table.js";

const COLUMNS = [
  { key: "id", title: "Topic", width: "34%" },
  { key: "message_type", title: "Type", width: "10%" },
  { key: "published_per_s", title: "Published", isNumber: true, render: rate },
  { key: "published_bytes_per_s", title: "Bytes", isNumber: true, render: byteRate },
  { key: "published", title: "Messages", isNumber: true, render: count },
  { key: "subscriptions", title: "Subscriptions", isNumber: true, render: count },
  { key: "queues", title: "Queues", isNumber: true, render: count, width: "9%" },
];

/** Places where browsing begins: value for the server, name. */
const PLACES = [
  ["newest", "Newest"],
  ["-15m", "15 minutes ago"],
  ["-1h", "An hour ago"],
  ["-1d", "A day ago"],
  ["beginning", "Beginning"],
];

/** Followed messages that the page keeps. */
const KEPT = 300;

/** Follows a topic while `isOn`. Gives the newest messages first, and how many were left out. */
function useFollowed(topic, filter, isOn, onEnd) {
  const [state, setState] = useState({ messages: [], received: 0, skipped: 0 });
  const number = useRef(0);
  const isShown = isVisible.value;
  useEffect(() => {
    if (isOn) setState({ messages: [], received: 0, skipped: 0 });
  }, [topic, filter, isOn]);
  useEffect(() => {
    if (!isOn || !isShown) return undefined;
    const take = (lines) => {
      const fresh = lines.filter((line) => line.message).map((line) => ({ ...line.message, key: (number.current += 1) }));
      const skipped = lines.reduce((total, line) => total + (line.skipped ?? 0), 0);
      const failed = lines.find((line) => line.error);
      setState((old) => ({ messages: [...fresh.reverse(), ...old.messages].slice(0, KEPT), received: old.received + fresh.length + skipped, skipped: old.skipped + skipped }));
      if (failed) onEnd(new Error(failed.error.reason));
    };
    return stream(`${CONSOLE}/follow`, { topic, filter }, take, onEnd);
  }, [topic, filter, isOn, isShown]);
  return state;
}

function Browse({ topic, rights }) {
  const { filter = "", from = "newest", follow } = route.value.parameters;
  const [typed, setTyped] = useState(filter);
  const [state, setState] = useState({ messages: null, error: null, isComplete: true });
  const isOn = follow === "1";
  const [ended, setEnded] = useState(null);
  const stop = (error = null) => {
    setEnded(error);
    go(withParameters({ follow: null }), { replaces: true });
  };
  const followed = useFollowed(topic, filter, isOn, stop);
  useEffect(() => {
    if (!rights.has("replay") || isOn) return undefined;
    const abort = new AbortController();
    get(`${CONSOLE}/messages`, { topic, filter, from, limit: 100 }, { signal: abort.signal }).then(
      (told) => setState({ messages: told.messages, error: null, isComplete: told.complete }),
      (error) => abort.signal.aborted || setState({ messages: null, error, isComplete: true }),
    );
    return () => abort.abort();
  }, [topic, filter, from, rights.has("replay"), isOn]);
  const search = (event) => {
    event.preventDefault();
    setEnded(null);
    go(withParameters({ filter: typed }), { replaces: true });
  };
  return html`<${Section} title="Messages">
    <form class="bar" onSubmit=${search}>
      <label class="inline wide"><span>Content filter</span>
        <input class="mono" value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} placeholder="/price > 100" spellcheck=${false} autocomplete="off" />
      </label>
      <button>Apply</button>
      ${rights.has("replay") && html`<label class="inline"><span>From</span>
        <select value=${from} disabled=${isOn} onChange=${(event) => go(withParameters({ from: event.currentTarget.value === "newest" ? null : event.currentTarget.value }), { replaces: true })}>
          ${PLACES.map(([value, name]) => html`<option value=${value}>${name}</option>`)}
        </select>
      </label>`}
      ${rights.has("read") && (isOn
        ? html`<button type="button" onClick=${() => stop()}>Stop</button>`
        : html`<button type="button" class="primary" onClick=${() => go(withParameters({ follow: "1" }), { replaces: true })}>Follow</button>`)}
    </form>
    <div style=${GAP}></div>
    <${Failure} error=${ended ?? (isOn ? null : state.error)} />
    ${isOn || followed.received > 0 ? html`<p class="muted" role="status">${isOn ? "Following. " : "Stopped. "}${plural(followed.received, "message")}${followed.skipped ? `, ${count(followed.skipped)} of them not shown to keep up` : ""}</p>` : null}
    ${isOn || followed.messages.length > 0
      ? html`<${Messages} label="Followed messages" messages=${followed.messages} none="No message yet" />`
      : !rights.has("replay")
        ? html`<p class="muted">You have no right to replay this topic. Follow shows new messages.</p>`
        : state.messages && html`<${Messages} label="Messages" messages=${state.messages} none="No message in this part of the log" />`}
    ${!isOn && !state.isComplete && html`<p class="muted">There are more messages. A content filter finds the ones that you want.</p>`}
  </${Section}>`;
}

const GAP = { height: "8px" };

function Publish({ topic }) {
  const [result, setResult] = useState({ note: null, error: null });
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const { data, key, correlation } = Object.fromEntries(new FormData(event.currentTarget));
    setBusy(true);
    try {
      await post(`${CONSOLE}/publish`, { topic, data, sow_key: key || null, correlation_id: correlation || null });
      setResult({ note: `Published ${bytes(new Blob([data]).size)} to ${topic}.`, error: null });
    } catch (error) {
      setResult({ note: null, error });
    } finally {
      setBusy(false);
    }
  };
  return html`<${Section} title="Publish a message">
    <form onSubmit=${submit} style=${{ display: "grid", gap: "8px" }}>
      <label class="field"><span>Data</span><textarea name="data" spellcheck=${false} required placeholder='{"id": 1}'></textarea></label>
      <div class="bar">
        <label class="inline wide"><span>Key, for topics without key fields</span><input name="key" autocomplete="off" /></label>
        <label class="inline wide"><span>Correlation id</span><input name="correlation" autocomplete="off" /></label>
        <button class="primary" disabled=${isBusy} aria-busy=${isBusy}>Publish</button>
      </div>
      ${result.note && html`<${Note} kind="ok">${result.note}</${Note}>`}
      <${Failure} error=${result.error} />
    </form>
  </${Section}>`;
}

function Detail({ name }) {
  const { data, error } = usePolled(`${path("topics", name)}.json`);
  const rights = useRights(name);
  return html`<section class="card detail" aria-label=${`Topic ${name}`}>
    <header><h2>${name}</h2><${RangeChoice} /><a class="button" href=${withSelected("")}>Close</a></header>
    <div class="content">
      <${Failure} error=${error} />
      ${data && html`<${Tiles}>
        <${Tile} name="Published" of=${data.published_per_s} format=${count} unit="/s" more=${byteRate(data.published_bytes_per_s)} />
        <${Tile} name="Messages" of=${data.published} format=${count} more="since the start" />
        <${Tile} name="Subscriptions" of=${data.subscriptions} format=${count} />
        <${Tile} name="Recorded" of=${data.recorded ? "yes" : "no"} more=${data.message_type} />
      </${Tiles}>`}
      <${HistoryChart} title="Published" node=${["topics", name]} of=${data} lines=${[["published_per_s", "messages"]]} format=${rate} height=${120} />
      ${(rights.has("replay") || rights.has("read")) && html`<${Browse} key=${name} topic=${name} rights=${rights} />`}
      ${rights.has("write") && html`<${Publish} key=${`publish ${name}`} topic=${name} />`}
    </div>
  </section>`;
}

export function Topics() {
  const { selected } = route.value;
  return html`<header class="head"><h1>Topics</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <${Table} label="Topics" things=${["topic", "topics"]} address=${`${INSTANCE}/topics`} columns=${COLUMNS} none="No topic has a message yet." isOpen=${Boolean(selected)} narrow=${["id", "published_per_s", "subscriptions"]} />
        ${selected && html`<${Detail} name=${selected} />`}
      </div>
    </div>`;
}
