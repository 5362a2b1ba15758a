// The queues: depth over time, who holds which message since when, and peek, redrive and purge.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { ADMINISTRATOR, CONSOLE, encoded, get, INSTANCE, path, post } from "../api.js";
import { count, duration, plural, rate } from "../format.js";
import { usePolled } from "../hooks.js";
import { href, route, withSelected } from "../route.js";
import { may, useRights } from "../session.js";
import { HistoryChart } from "../parts/chart.js";
import { Dialog } from "../parts/dialog.js";
import { Messages } from "../parts/messages.js";
import { Act, Failure, Mark, Note, Plain, RangeChoice, Section, Tile, Tiles } from "../parts/small.js";
import { Table } from "../parts/table.js";

/** Seconds after which the oldest message is shown as a warning: a glance finds the queue that waits. */
const OLD = 300;

const Age = (value) => (value >= OLD ? html`<${Mark} kind="warn">${duration(value)}</${Mark}>` : duration(value));
const Consumers = (value, row) => (value === 0 && row.depth > 0 ? html`<${Mark} kind="warn">0</${Mark}>` : count(value));

const COLUMNS = [
  { key: "id", title: "Queue", width: "26%" },
  { key: "depth", title: "Depth", isNumber: true, render: count },
  { key: "waiting", title: "Waiting", isNumber: true, render: count },
  { key: "backlog", title: "Leased", isNumber: true, render: count },
  { key: "age_of_oldest_s", title: "Oldest", isNumber: true, render: Age, width: "13%" },
  { key: "entered_per_s", title: "In", isNumber: true, render: rate },
  { key: "acknowledged_per_s", title: "Done", isNumber: true, render: rate },
  { key: "subscriptions", title: "Consumers", isNumber: true, render: Consumers },
];

function Holders({ holders }) {
  const { consumers, leases } = holders;
  return html`<${Section} title="Consumers">
      <${Plain} label="Consumers" rows=${consumers} none="No consumer" columns=${[
        ["Client", (row) => html`<a href=${href("clients", {}, row.connection)}>${row.client_name}</a>`],
        ["Filter", (row) => html`<span class="mono">${row.filter ?? ""}</span>`],
        ["Holds", (row) => count(row.backlog), true],
        ["At most", (row) => count(row.max_backlog), true],
      ]} />
    </${Section}>
    ${leases && html`<${Section} title="Leases, oldest first">
      <${Plain} label="Leases" rows=${leases} none="No message is leased" columns=${[
        ["Held by", (row) => row.client_name],
        ["For", (row) => duration(row.age_s), true],
        ["Deliveries", (row) => (row.deliveries > 1 ? html`<${Mark} kind="warn">${row.deliveries}</${Mark}>` : count(row.deliveries)), true],
        ["Bookmark", (row) => html`<span class="mono">${row.bookmark}</span>`],
      ]} />
      ${holders.leases_total > leases.length && html`<p class="muted">${plural(holders.leases_total - leases.length, "further lease")}</p>`}
    </${Section}>`}`;
}

function Peek({ name, onFailed }) {
  const [filter, setFilter] = useState("");
  const [messages, setMessages] = useState(null);
  const look = () => get(`${CONSOLE}/peek`, { queue: name, filter, limit: 20 });
  return html`<${Section} title="Next messages">
    <div class="bar">
      <label class="inline wide"><span>Content filter</span>
        <input class="mono" value=${filter} onInput=${(event) => setFilter(event.currentTarget.value)} placeholder="/qty > 50" spellcheck=${false} autocomplete="off" />
      </label>
      <${Act} label="Peek" act=${look} onDone=${(told) => setMessages(told.messages)} onFailed=${onFailed} />
    </div>
    <div style=${{ height: "8px" }}></div>
    ${messages === null
      ? html`<p class="muted">Peek shows what the queue delivers next. It does not change the queue.</p>`
      : html`<${Messages} label="Next messages" messages=${messages} none="The queue has no such message." />`}
  </${Section}>`;
}

function PurgeDialog({ name, depth, onClose, onDone }) {
  const purge = (form) => post(`${ADMINISTRATOR}/queues/${encoded(name)}/purge`, { confirm: name, ...(form.filter ? { filter: form.filter } : {}) });
  return html`<${Dialog} title=${`Purge ${name}`} label="Purge" confirm=${name} act=${purge} onClose=${onClose} onDone=${onDone}>
    <p>Removes messages from the queue for good. The queue has ${plural(depth, "message")}. The log keeps them, and the dead letter topic of the queue gets them.</p>
    <label class="field"><span>Content filter, empty for all messages</span><input name="filter" class="mono" autocomplete="off" spellcheck=${false} /></label>
  </${Dialog}>`;
}

function Detail({ name }) {
  const { data, error } = usePolled(`${path("queues", name)}.json`);
  const { data: holders } = usePolled(may("monitor", "/quire/clients") ? `${CONSOLE}/holders` : null, { queue: name });
  const [dialog, setDialog] = useState(false);
  const [said, setSaid] = useState({ note: null, error: null });
  const rights = useRights(name);
  const failed = (failure) => setSaid({ note: null, error: failure });
  const redrive = () => post(`${ADMINISTRATOR}/queues/${encoded(name)}/redrive`, {});
  const mayRedrive = rights.has("admin") && rights.has("read") && data?.takes_dead_letters;
  return html`<section class="card detail" aria-label=${`Queue ${name}`}>
    <header>
      <h2>${name}</h2>
      ${mayRedrive && html`<${Act} label="Redrive" act=${redrive} onFailed=${failed} onDone=${(told) => setSaid({ note: `${plural(told.redriven ?? 0, "dead letter")} published again.`, error: null })} />`}
      ${rights.has("admin") && rights.has("delete") && html`<button class="danger" onClick=${() => setDialog(true)}>Purge</button>`}
      <a class="button" href=${withSelected("")}>Close</a>
    </header>
    <div class="content">
      <${Failure} error=${error ?? said.error} />
      ${said.note && html`<${Note} kind="ok">${said.note}</${Note}>`}
      ${data && html`<${Figures} data=${data} />`}
      <${Charts} name=${name} data=${data} />
      ${holders && html`<${Holders} holders=${holders} />`}
      ${rights.has("query") && html`<${Peek} key=${name} name=${name} onFailed=${failed} />`}
    </div>
    ${dialog && html`<${PurgeDialog} name=${name} depth=${data?.depth ?? 0} onClose=${() => setDialog(false)} onDone=${(told) => setSaid({ note: `${plural(told.purged ?? 0, "message")} purged.`, error: null })} />`}
  </section>`;
}

const Figures = ({ data }) => html`<${Tiles}>
  <${Tile} name="Depth" of=${data.depth} format=${count} more=${`${count(data.waiting)} waiting`} />
  <${Tile} name="Leased" of=${data.backlog} format=${count} more=${data.max_backlog ? `at most ${count(data.max_backlog)}` : ""} />
  <${Tile} name="Delayed" of=${data.delayed} format=${count} />
  <${Tile} name="Oldest" of=${data.age_of_oldest_s} format=${duration} kind=${data.age_of_oldest_s >= OLD ? "warn" : ""} />
  <${Tile} name="Oldest lease" of=${data.age_of_oldest_lease_s} format=${duration} />
  <${Tile} name="Consumers" of=${data.subscriptions} format=${count} kind=${data.depth > 0 && data.subscriptions === 0 ? "warn" : ""} />
  <${Tile} name="Expired leases" of=${data.expired_leases} format=${count} />
  <${Tile} name="Dead letters" of=${data.dead_letters} format=${count} />
</${Tiles}>`;

const DEPTH = [["depth", "depth"], ["backlog", "leased"]];
const FLOW = [["entered_per_s", "in"], ["acknowledged_per_s", "done"], ["expired_per_s", "expired"]];

const Charts = ({ name, data }) => html`<div class="bar"><span class="push"></span><${RangeChoice} /></div>
  <${HistoryChart} title="Depth" node=${["queues", name]} of=${data} lines=${DEPTH} format=${count} height=${130} />
  <${HistoryChart} title="Flow" node=${["queues", name]} of=${data} lines=${FLOW} format=${rate} height=${120} />`;

export function Queues() {
  const { selected } = route.value;
  return html`<header class="head"><h1>Queues</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <${Table} label="Queues" things=${["queue", "queues"]} address=${`${INSTANCE}/queues`} columns=${COLUMNS} none="The server has no queue." isOpen=${Boolean(selected)} narrow=${["id", "depth", "age_of_oldest_s"]} />
        ${selected && html`<${Detail} key=${selected} name=${selected} />`}
      </div>
    </div>`;
}
