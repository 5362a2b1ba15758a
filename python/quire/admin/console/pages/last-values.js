// The last-value topics, and the records of one as a grid that follows each change.
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";
import { CONSOLE, INSTANCE, path, stream } from "../api.js";
import { bytes, count, plural, rate } from "../format.js";
import { isVisible, usePolled } from "../hooks.js";
import { go, route, withParameters, withSelected } from "../route.js";
import { useRights } from "../session.js";
import { Failure, Section, Tile, Tiles } from "../parts/small.js";
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

/** Records that the grid shows, and fields that get a column. */
const RECORDS = 200;
const FIELDS = 14;

/** The fields of a record: its members; of another message, its whole text. */
function fieldsOf(message) {
  try {
    const parsed = JSON.parse(message.data);
    if (parsed && typeof parsed === "object" && !Array.isArray(parsed)) return parsed;
  } catch {
    // Another message type: shown as text.
  }
  return { data: message.data ?? message.base64 };
}

const shown = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

const NO_RECORDS = { records: new Map(), isLoaded: false, error: null, changes: 0 };

/** Follows the records of a topic: a map of keys to `{ fields, change }`, and the number of changes. */
function useRecords(topic, filter, isAllowed) {
  const [state, setState] = useState(NO_RECORDS);
  const isShown = isVisible.value;
  useEffect(() => {
    if (!isAllowed || !isShown) return undefined;
    setState(NO_RECORDS);
    const take = (lines) => setState((old) => {
      const records = new Map(old.records);
      let { isLoaded, error, changes } = old;
      for (const line of lines) {
        if (line.record) {
          changes += line.record.is_new ? 0 : 1;
          const id = `${line.record.topic} ${line.record.sow_key}`;
          if (records.has(id) || records.size < RECORDS) records.set(id, { key: line.record.sow_key, fields: fieldsOf(line.record), change: changes });
        } else if (line.removed) records.delete(`${line.removed.topic} ${line.removed.sow_key}`);
        else if (line.loaded) isLoaded = true;
        else if (line.error) error = new Error(line.error.reason);
      }
      return { records, isLoaded, error, changes };
    });
    return stream(`${CONSOLE}/records`, { topic, filter, limit: RECORDS }, take, (error) => error && setState((old) => ({ ...old, error })));
  }, [topic, filter, isAllowed, isShown]);
  return state;
}

function Grid({ topic, rights }) {
  const { filter = "" } = route.value.parameters;
  const [typed, setTyped] = useState(filter);
  const isAllowed = rights.has("query") && rights.has("read");
  const { records, isLoaded, error, changes } = useRecords(topic, filter, isAllowed);
  const rows = [...records.entries()];
  const names = [...new Set(rows.flatMap(([, row]) => Object.keys(row.fields)))].slice(0, FIELDS);
  const isNumber = (name) => rows.every(([, row]) => row.fields[name] === undefined || row.fields[name] === null || typeof row.fields[name] === "number");
  const numbers = new Set(names.filter(isNumber));
  const apply = (event) => {
    event.preventDefault();
    go(withParameters({ filter: typed }), { replaces: true });
  };
  return html`<${Section} title="Records, as they are now">
    <form class="bar" onSubmit=${apply}>
      <label class="inline wide"><span>Content filter</span>
        <input class="mono" value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} placeholder="/qty > 50" spellcheck=${false} autocomplete="off" />
      </label>
      <button>Apply</button>
    </form>
    <div style=${{ height: "8px" }}></div>
    <${Failure} error=${error} />
    <p class="muted" role="status">${!isLoaded ? "Loading" : `${plural(rows.length, "record")} shown${rows.length >= RECORDS ? ", and no further ones" : ""}. ${plural(changes, "change")} since then.`}</p>
    ${rows.length > 0 && html`<div class="plain" tabindex="0" role="region" aria-label=${`Records of ${topic}`}><table>
      <thead><tr>${names.map((name) => html`<th scope="col" class=${numbers.has(name) ? "number" : ""}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map(([id, row]) => html`<tr key=${`${id} ${row.change}`} class=${row.change ? "changed" : ""}>
        ${names.map((name) => html`<td class=${numbers.has(name) ? "number" : ""}>${shown(row.fields[name])}</td>`)}
      </tr>`)}</tbody>
    </table></div>`}
  </${Section}>`;
}

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
      ${rights.has("query") && rights.has("read") && html`<${Grid} key=${name} topic=${name} rights=${rights} />`}
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
