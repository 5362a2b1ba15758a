// The last-value topics, and the records of one as a grid that follows each change.
import { html } from "../html.js";
import { INSTANCE, path } from "../api.js";
import { bytes, count, rate } from "../format.js";
import { usePolled } from "../hooks.js";
import { route, withSelected } from "../route.js";
import { useRights } from "../session.js";
import { Records } from "../parts/records.js";
import { Failure, Tile, Tiles } from "../parts/small.js";
import { Table } from "../parts/table.js";

const COLUMNS = [
  { key: "id", title: "Topic", width: "34%" },
  { key: "records", title: "Records", isNumber: true, render: count },
  { key: "memory_bytes", title: "Memory", isNumber: true, render: bytes },
  { key: "inserts_per_s", title: "Inserts", isNumber: true, render: rate },
  { key: "updates_per_s", title: "Updates", isNumber: true, render: rate },
  { key: "deletes_per_s", title: "Deletes", isNumber: true, render: rate },
  { key: "queries_per_s", title: "Queries", isNumber: true, render: rate },
];

function Detail({ name }) {
  const { data, error } = usePolled(`${path("last_values", name)}.json`);
  const rights = useRights(name);
  return html`<section class="card detail" aria-label=${`Last-value topic ${name}`}>
    <header><h2>${name}</h2><a class="button" href=${withSelected("")}>Close</a></header>
    <div class="content">
      <${Failure} error=${error} />
      ${data && html`<${Tiles}>
        <${Tile} name="Records" of=${data.records} format=${count} more=${bytes(data.bytes)} />
        <${Tile} name="Memory" of=${data.memory_bytes} format=${bytes} />
        <${Tile} name="Updates" of=${data.updates_per_s} format=${count} unit="/s" more=${`${count(data.updates)} since the start`} />
        <${Tile} name="Inserts" of=${data.inserts} format=${count} more=${`${count(data.deletes)} deleted`} />
        <${Tile} name="Queries" of=${data.queries} format=${count} more="since the start" />
      </${Tiles}>`}
      ${rights.has("query") && rights.has("read") && html`<${Records} key=${name} topic=${name} rights=${rights} />`}
    </div>
  </section>`;
}

export function LastValues() {
  const { selected } = route.value;
  return html`<header class="head"><h1>Last values</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <${Table} label="Last-value topics" things=${["topic", "topics"]} address=${`${INSTANCE}/last_values`} columns=${COLUMNS} none="No topic keeps last values." isOpen=${Boolean(selected)} narrow=${["id", "records"]} />
        ${selected && html`<${Detail} key=${selected} name=${selected} />`}
      </div>
    </div>`;
}
