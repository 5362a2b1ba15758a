// The records of a last-value topic or a view, as a grid that follows each change.
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";
import { CONSOLE, stream } from "../api.js";
import { plural } from "../format.js";
import { isVisible } from "../hooks.js";
import { go, route, withParameters } from "../route.js";
import { Failure, Section } from "./small.js";

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

export function Records({ topic, rights }) {
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
