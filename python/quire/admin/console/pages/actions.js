// The actions of the server: their runs, and a button for those that a request may start.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { ADMINISTRATOR, INSTANCE, path, post } from "../api.js";
import { count } from "../format.js";
import { usePolled } from "../hooks.js";
import { route, withSelected } from "../route.js";
import { may } from "../session.js";
import { HistoryChart } from "../parts/chart.js";
import { Act, Failure, Mark, Note, Pairs, Plain, RangeChoice, Tile, Tiles } from "../parts/small.js";

const KINDS = { ok: "ok", stopped: "", failed: "bad" };

const Outcome = (row) => (row.last_outcome ? html`<${Mark} kind=${KINDS[row.last_outcome] ?? ""}>${row.last_outcome}</${Mark}>` : "");

/** A button that starts the action, with a field for each member of the request. */
function Run({ id, at, members, onSaid }) {
  const [values, setValues] = useState({});
  const body = () => Object.fromEntries(members.filter((name) => values[name]).map((name) => [name, values[name]]));
  const done = ({ runs }) => {
    const run = runs.find((each) => each.action === id) ?? runs[0];
    const failed = run.outcome === "failed" || run.outcome === "dropped";
    onSaid({ note: failed ? null : `${id}: ${run.outcome}.`, error: failed ? { message: `${id}: ${run.outcome}`, hint: run.error } : null });
  };
  const act = () => post(`${ADMINISTRATOR}/actions/${at}`, body());
  return html`<div class="bar">
    ${members.map((name) => html`<label key=${name} class="inline"><span>${name}</span>
      <input type="text" value=${values[name] ?? ""} onInput=${(event) => setValues({ ...values, [name]: event.currentTarget.value })} spellcheck=${false} autocomplete="off" /></label>`)}
    <${Act} label="Run" act=${act} onDone=${done} onFailed=${(error) => onSaid({ note: null, error })} />
  </div>`;
}

function Detail({ id }) {
  const { data: figures, error } = usePolled(`${path("actions", id)}.json`);
  const data = figures && { id, ...figures };
  const [said, setSaid] = useState({ note: null, error: null });
  return html`<section class="card detail" aria-label=${`Action ${id}`}>
    <header>
      <h2>${id}</h2>
      <a class="button" href=${withSelected("")}>Close</a>
    </header>
    <div class="content">
      <${Failure} error=${error ?? said.error} />
      ${said.note && html`<${Note} kind="ok">${said.note}</${Note}>`}
      ${data?.admin_path && may("admin", "/quire/server") && html`<${Run} id=${id} at=${data.admin_path} members=${data.admin_members} onSaid=${setSaid} />`}
      ${data && html`<${Tiles}>
        <${Tile} name="Runs" of=${data.runs} format=${count} more="since the start" />
        <${Tile} name="Failures" of=${data.failures} format=${count} kind=${data.failures ? "bad" : ""} />
        <${Tile} name="Stopped by a condition" of=${data.stopped} format=${count} />
        <${Tile} name="Dropped" of=${data.dropped} format=${count} kind=${data.dropped ? "bad" : ""} more=${`${count(data.waiting)} wait`} />
      </${Tiles}>
      <${Pairs} pairs=${[["Enabled", data.enabled ? "yes" : "no"], ["Last run", data.last_run], ["Outcome", data.last_outcome], ["Last error", data.last_error], ["Request", data.admin_path]]} />`}
      <div class="bar"><span class="push"></span><${RangeChoice} /></div>
      <${HistoryChart} title="Runs" node=${["actions", id]} of=${data} lines=${[["runs_per_s", "runs"], ["failures_per_s", "failures"]]} format=${(value) => `${value.toFixed(2)}/s`} height=${120} />
    </div>
  </section>`;
}

export function Actions() {
  const { selected } = route.value;
  const actions = usePolled(`${INSTANCE}/actions.json`);
  const rows = actions.data ?? [];
  return html`<header class="head"><h1>Actions</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <section class="card detail" aria-label="Actions"><div class="content">
          <${Failure} error=${actions.error} />
          ${actions.data && rows.length === 0 && html`<p class="nothing">The configuration has no action.</p>`}
          ${rows.length > 0 && html`<${Plain} label="Table of the actions" rows=${rows} rowKey=${(row) => row.id} columns=${[
            ["Action", (row) => html`<a href=${withSelected(row.id)} aria-current=${row.id === selected ? "true" : undefined}>${row.id}</a>`],
            ["Enabled", (row) => (row.enabled ? "yes" : "no")],
            ["Last outcome", Outcome],
            ["Last run", (row) => row.last_run ?? ""],
            ["Runs", (row) => count(row.runs), true],
            ["Failures", (row) => (row.failures ? html`<${Mark} kind="bad">${count(row.failures)}</${Mark}>` : "0"), true],
            ["Dropped", (row) => count(row.dropped), true],
          ]} />`}
        </div></section>
        ${selected && html`<${Detail} key=${selected} id=${selected} />`}
      </div>
    </div>`;
}
