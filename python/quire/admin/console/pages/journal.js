// The files of the journal, what keeps the oldest one, and their maintenance.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { ADMINISTRATOR, CONSOLE, INSTANCE, post } from "../api.js";
import { bytes, count, duration, moment, plural, rate } from "../format.js";
import { usePolled } from "../hooks.js";
import { may, session } from "../session.js";
import { HistoryChart } from "../parts/chart.js";
import { Dialog } from "../parts/dialog.js";
import { Failure, Mark, Note, Plain, RangeChoice, Tile, Tiles } from "../parts/small.js";

const AGES = [["1m", "Older than 1 minute"], ["1h", "Older than 1 hour"], ["1d", "Older than 1 day"], ["7d", "Older than 7 days"], ["30d", "Older than 30 days"]];
const STATES = ["active", "sealed", "archived", "compressed"];
const WORDS = {
  archive: ["Archive", "Moves full files to the archive directory. They stay a part of the log.", "archived"],
  compress: ["Compress", "Compresses full files where they are. They stay a part of the log.", "compressed"],
  remove: ["Remove", "Deletes the oldest files. Their messages are gone for good. Files that a queue, a subscription or a destination needs stay.", "removed"],
};

function MaintenanceDialog({ action, onClose, onDone }) {
  const [name, effect, done] = WORDS[action];
  const act = (form) => post(`${ADMINISTRATOR}/journal/${action}`, { age: form.age });
  const told = (result) => onDone(`${plural(result.files?.length ?? result.count ?? 0, "file")} ${done}.`);
  return html`<${Dialog} title=${`${name} journal files`} label=${name} confirm=${action === "remove" ? session.value.instance : null} act=${act} onClose=${onClose} onDone=${told}>
    <p>${effect}</p>
    <label class="field"><span>Files</span><select name="age">${AGES.map(([value, text]) => html`<option value=${value} selected=${value === "1d"}>${text}</option>`)}</select></label>
  </${Dialog}>`;
}

/** The sizes of the files by state, as one bar. */
function Sizes({ files }) {
  const sizes = STATES.map((state) => [state, files.filter((each) => each.state === state).reduce((total, each) => total + each.size, 0)]).filter(([, size]) => size > 0);
  const total = sizes.reduce((all, [, size]) => all + size, 0);
  if (!total) return null;
  const spoken = sizes.map(([state, size]) => `${state} ${bytes(size)}`).join(", ");
  return html`<div>
    <div class="stack" role="img" aria-label=${spoken}>${sizes.map(([state, size]) => html`<i class="s${STATES.indexOf(state) + 1}" style=${{ flexGrow: size / total, flexBasis: 0 }}></i>`)}</div>
    <div class="bar" style=${{ gap: "14px", fontSize: "12.5px", marginTop: "6px" }}>${sizes.map(([state, size]) => html`<span class="key s${STATES.indexOf(state) + 1}"><i></i><span>${state}</span> <b>${bytes(size)}</b></span>`)}</div>
  </div>`;
}

export function Journal() {
  const { data, error } = usePolled(`${INSTANCE}/journal.json`);
  const files = usePolled(`${CONSOLE}/journal`, undefined, 5000);
  const [action, setAction] = useState(null);
  const [note, setNote] = useState(null);
  const rows = [...(files.data?.files ?? [])].reverse();
  return html`<header class="head">
      <h1>Journal</h1>
      ${data && html`<${Mark} kind=${data.writable ? "ok" : "bad"}>${data.writable ? "writable" : "not writable"}</${Mark}>`}
      <span class="push"></span>
      ${may("admin", "/quire/journal") && Object.entries(WORDS).map(([key, [name]]) => html`<button key=${key} class=${key === "remove" ? "danger" : ""} onClick=${() => setAction(key)}>${name}</button>`)}
      <${RangeChoice} />
    </header>
    <div class="body scrolls" tabindex="0" role="region" aria-label="Journal">
      <${Failure} error=${error ?? files.error} />
      ${note && html`<${Note} kind="ok">${note}</${Note}>`}
      ${data?.kept_by && html`<${Note}>The oldest file is kept by: ${data.kept_by}</${Note}>`}
      ${data && html`<${Tiles}>
        <${Tile} name="Size" of=${data.size_bytes} format=${bytes} more=${plural(data.segments, "file")} />
        <${Tile} name="Appended" of=${data.appended_per_s} format=${count} unit="/s" more="records" />
        <${Tile} name="Not persisted" of=${data.unpersisted_bytes} format=${bytes} />
        <${Tile} name="Sync p99" of=${data.sync_p99_s} format=${duration} more=${`median ${duration(data.sync_p50_s)}`} />
        <${Tile} name="Archived" of=${data.archived_bytes} format=${bytes} />
        <${Tile} name="Compressed" of=${data.compressed_bytes} format=${bytes} />
      </${Tiles}>`}
      <div class="charts">
        <${HistoryChart} title="Appended" node=${["journal"]} of=${data} lines=${[["appended_per_s", "records"]]} format=${rate} height=${120} />
        <${HistoryChart} title="Size" node=${["journal"]} of=${data} lines=${[["size_bytes", "bytes"]]} format=${bytes} axisFormat=${bytes} height=${120} />
        <${HistoryChart} title="Syncs" node=${["journal"]} of=${data} lines=${[["sync_p99_s", "p99"], ["sync_p50_s", "median"]]} format=${duration} axisFormat=${duration} height=${120} />
      </div>
      <section class="card detail"><div class="content">
        <${Sizes} files=${rows} />
        <section class="section" aria-label="Files, newest first"><h2>Files, newest first</h2>
          <${Plain} label="Files" rows=${rows.slice(0, 500)} rowKey=${(row) => row.number} none=${files.data ? "No file" : "Loading"} columns=${[
            ["File", (row) => count(row.number), true],
            ["State", (row) => row.state],
            ["Size", (row) => bytes(row.size), true],
            ["Records", (row) => count(row.count), true],
            ["First message", (row) => (row.first_time ? moment(row.first_time) : "–")],
            ["Last message", (row) => (row.last_time ? moment(row.last_time) : "–")],
            ["Path", (row) => html`<span class="mono">${row.path}</span>`],
          ]} />
          ${rows.length > 500 && html`<p class="muted">${plural(rows.length - 500, "older file")}</p>`}
        </section>
      </div></section>
    </div>
    ${action && html`<${MaintenanceDialog} action=${action} onClose=${() => setAction(null)} onDone=${setNote} />`}`;
}
