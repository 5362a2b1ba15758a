// The views, with the changes that they do not have yet, and the records of one as a grid.
import { html } from "../html.js";
import { INSTANCE, path } from "../api.js";
import { bytes, count, duration, rate } from "../format.js";
import { usePolled } from "../hooks.js";
import { route, withSelected } from "../route.js";
import { useRights } from "../session.js";
import { Records } from "../parts/records.js";
import { Failure, Tile, Tiles } from "../parts/small.js";
import { Table } from "../parts/table.js";

const COLUMNS = [
  { key: "id", title: "View", width: "40%" },
  { key: "records", title: "Records", isNumber: true, render: count },
  { key: "memory_bytes", title: "Memory", isNumber: true, render: bytes },
  { key: "updates_per_s", title: "Updates", isNumber: true, render: rate },
  { key: "waiting_changes", title: "Waiting", isNumber: true, render: count },
  { key: "behind_s", title: "Behind", isNumber: true, render: duration },
];

function Detail({ name }) {
  const { data, error } = usePolled(`${path("views", name)}.json`);
  const rights = useRights(name);
  return html`<section class="card detail" aria-label=${`View ${name}`}>
    <header><h2>${name}</h2><a class="button" href=${withSelected("")}>Close</a></header>
    <div class="content">
      <${Failure} error=${error} />
      ${data && html`<${Tiles}>
        <${Tile} name="Records" of=${data.records} format=${count} />
        <${Tile} name="Memory" of=${data.memory_bytes} format=${bytes} />
        <${Tile} name="Updates" of=${data.updates_per_s} format=${count} unit="/s" more=${`${count(data.updates)} since the start`} />
        <${Tile} name="Waiting changes" of=${data.waiting_changes} format=${count} />
        <${Tile} name="Behind" of=${data.behind_s} format=${duration} />
      </${Tiles}>`}
      ${rights.has("query") && rights.has("read") && html`<${Records} key=${name} topic=${name} rights=${rights} />`}
    </div>
  </section>`;
}

export function Views() {
  const { selected } = route.value;
  return html`<header class="head"><h1>Views</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <${Table} label="Views" things=${["view", "views"]} address=${`${INSTANCE}/views`} columns=${COLUMNS} none="There are no views." isOpen=${Boolean(selected)} narrow=${["id", "behind_s"]} />
        ${selected && html`<${Detail} key=${selected} name=${selected} />`}
      </div>
    </div>`;
}
