// The links to other instances, as a graph and as tables, with how far each is behind.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { ADMINISTRATOR, encoded, INSTANCE, path, post } from "../api.js";
import { bytes, count, duration, rate } from "../format.js";
import { usePolled } from "../hooks.js";
import { route, withSelected } from "../route.js";
import { may, session } from "../session.js";
import { HistoryChart } from "../parts/chart.js";
import { Act, Failure, Mark, Note, Pairs, Plain, RangeChoice, Tile, Tiles } from "../parts/small.js";

const KINDS = { live: "ok", catching_up: "warn", paused: "warn", connecting: "warn", waiting: "warn", refused: "bad", gap: "bad", away: "warn" };
const kindOf = (link) => (link.state === undefined ? "ok" : KINDS[link.state] ?? "bad");
const Conflicts = (row) => (row.conflicts ? html`<${Mark} kind="bad">${count(row.conflicts)}</${Mark}>` : "0");
const named = (state) => (state ?? "connected").replaceAll("_", " ");

/** Width of the drawing and its boxes, in units of its view box. */
const [WIDTH, BOX, HIGH, STEP] = [900, 190, 46, 70];

/** `isOut`: it leads away from this instance. Its label is at the other instance, where no line crosses it. */
function Edge({ from, to, link, label, isOut = false }) {
  const middle = (from[0] + to[0]) / 2;
  const [x, y] = isOut ? to : from;
  return html`<g class=${kindOf(link)}>
    <path d=${`M${from[0]} ${from[1]}C${middle} ${from[1]} ${middle} ${to[1]} ${to[0]} ${to[1]}`} marker-end="url(#arrow)" />
    <text class="sub" text-anchor=${isOut ? "end" : "start"} x=${isOut ? x - 12 : x + 8} y=${(isOut ? to[1] > from[1] : from[1] > to[1]) ? y + 18 : y - 8}>${label}</text>
  </g>`;
}

const Box = ({ x, y, name, below, isSelf = false }) => html`<g class=${isSelf ? "self" : ""}>
  <rect x=${x} y=${y - HIGH / 2} width=${BOX} height=${HIGH} rx="8" />
  <text x=${x + BOX / 2} y=${y - 2} text-anchor="middle">${name.length > 24 ? `${name.slice(0, 23)}…` : name}</text>
  <text class="sub" x=${x + BOX / 2} y=${y + 14} text-anchor="middle">${below}</text>
</g>`;

/** This instance in the middle, sources at its left, and destinations at its right. */
function Graph({ sources, destinations }) {
  const rows = Math.max(sources.length, destinations.length, 1);
  const height = rows * STEP + 10;
  const place = (index, number) => height / 2 + (index - (number - 1) / 2) * STEP;
  const center = (WIDTH - BOX) / 2;
  const self = session.value.instance;
  const spoken = `${self} receives from ${sources.map((each) => each.id).join(", ") || "no instance"}, and sends to ${destinations.map((each) => `${each.id}, ${named(each.state)}`).join("; ") || "no instance"}`;
  return html`<svg class="graph" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label=${spoken} style=${{ maxWidth: "980px", margin: "0 auto" }}>
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto" fill="context-stroke"><path d="M0 0L8 4L0 8z" style=${{ fill: "context-stroke", stroke: "none" }} /></marker></defs>
    ${sources.map((link, index) => html`<${Edge} link=${link} from=${[BOX, place(index, sources.length)]} to=${[center, height / 2]} label=${named(link.state)} />
      <${Box} x=${1} y=${place(index, sources.length)} name=${link.id} below=${`${count(link.records)} records received`} />`)}
    ${destinations.map((link, index) => html`<${Edge} isOut link=${link} from=${[center + BOX, height / 2]} to=${[WIDTH - BOX, place(index, destinations.length)]} label=${link.seconds_behind ? `${duration(link.seconds_behind)} behind` : named(link.state)} />
      <${Box} x=${WIDTH - BOX - 1} y=${place(index, destinations.length)} name=${link.id} below=${`${link.sync_type}, ${count(link.sent)} sent`} />`)}
    <${Box} x=${center} y=${height / 2} name=${self} below="this instance" isSelf />
  </svg>`;
}

function Actions({ link, onSaid }) {
  const act = (action) => () => post(`${ADMINISTRATOR}/replication/${encoded(link.id)}/${action}`, {});
  const button = (label, action, told) => html`<${Act} label=${label} act=${act(action)} onDone=${() => onSaid({ note: `${link.id} ${told}.`, error: null })} onFailed=${(error) => onSaid({ note: null, error })} />`;
  return html`${link.sync_type === "sync" && button("Downgrade", "downgrade", "was downgraded: publishers do not wait for it")}
    ${link.sync_type !== "sync" && link.configured_sync_type === "sync" && button("Upgrade", "upgrade", "was upgraded")}
    ${link.state === "paused" ? button("Resume", "resume", "was resumed") : button("Pause", "pause", "was paused")}`;
}

function Detail({ id }) {
  const { data: figures, error } = usePolled(`${path("replication", "destinations", id)}.json`);
  // One object has no id in its answer: its path has it.
  const data = figures && { id, ...figures };
  const [said, setSaid] = useState({ note: null, error: null });
  return html`<section class="card detail" aria-label=${`Destination ${id}`}>
    <header>
      <h2>${id}</h2>
      ${data && may("admin", "/quire/replication") && html`<${Actions} link=${data} onSaid=${setSaid} />`}
      <a class="button" href=${withSelected("")}>Close</a>
    </header>
    <div class="content">
      <${Failure} error=${error ?? said.error} />
      ${said.note && html`<${Note} kind="ok">${said.note}</${Note}>`}
      ${data && html`<${Tiles}>
        <${Tile} name="State" of=${data.state} format=${named} kind=${kindOf(data) === "ok" ? "" : kindOf(data)} />
        <${Tile} name="Behind" of=${data.seconds_behind} format=${duration} more=${`${bytes(data.unacknowledged_bytes)} not acknowledged`} />
        <${Tile} name="Sent" of=${data.sent_per_s} format=${count} unit="/s" more=${`${count(data.sent)} since the start`} />
        <${Tile} name="Connections" of=${data.connects} format=${count} more="since the start" />
      </${Tiles}>
      <${Pairs} pairs=${[["Publishers wait", data.sync_type === "sync" ? "yes" : `no (${data.sync_type})`], ["Configured", data.configured_sync_type], ["Last error", data.last_error]]} />`}
      <div class="bar"><span class="push"></span><${RangeChoice} /></div>
      <${HistoryChart} title="Behind" node=${["replication", "destinations", id]} of=${data} lines=${[["seconds_behind", "lag"]]} format=${duration} axisFormat=${duration} height=${120} />
      <${HistoryChart} title="Sent" node=${["replication", "destinations", id]} of=${data} lines=${[["sent_per_s", "records"]]} format=${rate} height=${110} />
    </div>
  </section>`;
}

const State = (row) => html`<${Mark} kind=${kindOf(row)}>${named(row.state)}</${Mark}>`;

export function Replication() {
  const { selected } = route.value;
  const destinations = usePolled(`${INSTANCE}/replication/destinations.json`);
  const sources = usePolled(`${INSTANCE}/replication/sources.json`);
  const to = destinations.data ?? [];
  const from = sources.data ?? [];
  return html`<header class="head"><h1>Replication</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <section class="card detail" aria-label="Links"><div class="content">
          <${Failure} error=${destinations.error ?? sources.error} />
          ${destinations.data && to.length + from.length === 0 && html`<p class="nothing">This instance has no link to another one.</p>`}
          ${to.length + from.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Graph of the links"><${Graph} sources=${from} destinations=${to} /></div>`}
          ${to.length > 0 && html`<section class="section" aria-label="Destinations"><h2>Destinations</h2><${Plain} label="Table of the destinations" rows=${to} rowKey=${(row) => row.id} columns=${[
            ["Destination", (row) => html`<a href=${withSelected(row.id)} aria-current=${row.id === selected ? "true" : undefined}>${row.id}</a>`],
            ["State", State],
            ["Behind", (row) => duration(row.seconds_behind), true],
            ["Not acknowledged", (row) => bytes(row.unacknowledged_bytes), true],
            ["Type", (row) => row.sync_type],
            ["Sent", (row) => rate(row.sent_per_s), true],
            ["Conflicts", Conflicts, true],
          ]} /></section>`}
          ${from.length > 0 && html`<section class="section" aria-label="Sources"><h2>Sources</h2><${Plain} label="Table of the sources" rows=${from} rowKey=${(row) => row.id} columns=${[
            ["Source", (row) => row.id],
            ["State", State],
            ["Records", (row) => count(row.records), true],
            ["Duplicates", (row) => count(row.duplicates), true],
            ["Conflicts", Conflicts, true],
          ]} /></section>`}
        </div></section>
        ${selected && html`<${Detail} key=${selected} id=${selected} />`}
      </div>
    </div>`;
}
