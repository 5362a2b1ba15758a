// The state of the server at one look, what needs attention, and the history of its main figures.
import { html } from "../html.js";
import { INSTANCE, path } from "../api.js";
import { byteRate, bytes, count, duration, plural, rate, short } from "../format.js";
import { useHistory, usePolled } from "../hooks.js";
import { href } from "../route.js";
import { slowness } from "./clients.js";
import { Chart, HistoryChart } from "../parts/chart.js";
import { chosenRange, Failure, Mark, RangeChoice, Tile, Tiles } from "../parts/small.js";

const most = (rows, key) => (rows?.length ? rows.reduce((high, row) => Math.max(high, row[key] ?? 0), 0) : undefined);

const useReadiness = () => usePolled("/readyz", {}, 5000).data;

/** The page about a sentence of the server. */
const pageOf = (text) => (text.includes("destination") ? href("replication") : text.includes("client") ? href("clients", { sort: "-backlog_bytes" }) : null);

/** Everything that a person should look at: `[kind, text, link]`. */
function concerns(ready, queues, clients) {
  const found = [];
  for (const [check, isFine] of Object.entries(ready?.checks ?? {})) {
    if (!isFine) found.push(["bad", `The server is not ready: ${check.replaceAll("_", " ")} is false.`, null]);
  }
  for (const text of ready?.degraded ?? []) found.push(["warn", `${text[0].toUpperCase()}${text.slice(1)}.`, pageOf(text)]);
  for (const queue of queues ?? []) {
    const link = href("queues", {}, queue.id);
    if (queue.depth > 0 && queue.subscriptions === 0) found.push(["warn", `Queue ${queue.id} has ${plural(queue.depth, "message")} and no consumer.`, link]);
    if (queue.inactive > 0) found.push(["warn", `Queue ${queue.id} is above its target depth: ${plural(queue.inactive, "message")} ${queue.inactive === 1 ? "is" : "are"} inactive.`, link]);
  }
  for (const client of clients ?? []) {
    if (slowness(client).kind !== "ok") found.push(["warn", `Client ${client.client_name || client.id} is slow: ${bytes((client.backlog_bytes ?? 0) + (client.offlined_bytes ?? 0))} wait for it.`, href("clients", {}, client.id)]);
  }
  return found;
}

function Concerns({ isReady, found }) {
  if (!found.length) return html`<div class="note ok" role="status"><div>${isReady ? "Ready. Nothing needs attention." : "Nothing needs attention."}</div></div>`;
  return html`<ul class="notes" aria-label="Needs attention">
    ${found.slice(0, 5).map(([kind, text, link]) => html`<li class="note ${kind}"><${Mark} kind=${kind}>${kind === "bad" ? "error" : "warning"}</${Mark}><div>${text}</div>${link && html`<a class="push" href=${link}>Show</a>`}</li>`)}
    ${found.length > 5 && html`<li class="muted">${plural(found.length - 5, "further one", "further ones")}</li>`}
  </ul>`;
}

const LATENCIES = [["delay_p99_s", "p99"], ["delay_p50_s", "median"]];
const SYNCS = [["sync_p99_s", "p99"], ["sync_p50_s", "median"]];

function Charts({ messages, loop, journal, memory, queues }) {
  return html`<div class="charts">
    <${HistoryChart} title="Messages" node=${["messages"]} of=${messages} lines=${[["published_per_s", "in"], ["delivered_per_s", "out"]]} format=${rate} />
    <${HistoryChart} title="Bytes" node=${["messages"]} of=${messages} lines=${[["received_bytes_per_s", "in"], ["sent_bytes_per_s", "out"]]} format=${byteRate} axisFormat=${bytes} />
    ${queues.length > 0 && html`<${Deepest} names=${queues.slice(0, 3).map((each) => each.id)} />`}
    <${HistoryChart} title="Journal syncs" node=${["journal"]} of=${journal} lines=${SYNCS} format=${duration} axisFormat=${duration} />
    <${HistoryChart} title="Loop delay" node=${["loop"]} of=${loop} lines=${LATENCIES} format=${duration} axisFormat=${duration} />
    <${HistoryChart} title="Memory" node=${["memory"]} of=${memory} lines=${[["resident_bytes", "resident"]]} format=${bytes} axisFormat=${bytes} />
  </div>`;
}

function Deepest({ names }) {
  const depth = useHistory(names.map((name) => path("queues", name, "depth")), chosenRange());
  return html`<${Chart} title="Deepest queues" series=${names} data=${depth} format=${count} axisFormat=${short} />`;
}

/** The room on the file system of the journal. */
function Disk({ disk }) {
  const free = disk.available_bytes / disk.total_bytes;
  const kind = free < 0.05 ? "bad" : free < 0.1 ? "warn" : "";
  return html`<${Tile} name="Disk free" of=${disk.available_bytes} format=${bytes} more=${`${Math.round(free * 100)} % of the disk`} kind=${kind} />`;
}

function Figures({ messages, journal, loop, queues, links, disk }) {
  const deepest = queues[0];
  return html`<${Tiles}>
    <${Tile} name="Messages in" of=${messages.published_per_s} format=${count} unit="/s" more=${byteRate(messages.received_bytes_per_s)} />
    <${Tile} name="Messages out" of=${messages.delivered_per_s} format=${count} unit="/s" more=${byteRate(messages.sent_bytes_per_s)} />
    <${Tile} name="Connections" of=${messages.connections} format=${count} more=${html`<a href=${href("clients", { sort: "-backlog_bytes" })}>Clients</a>`} />
    ${deepest && html`<${Tile} name="Deepest queue" of=${deepest.depth} format=${count} more=${html`<a href=${href("queues", { sort: "-depth" }, deepest.id)}>${deepest.id}</a>`} />`}
    ${links.length > 0 && html`<${Tile} name="Replication lag" of=${most(links, "seconds_behind")} format=${duration} more=${html`<a href=${href("replication")}>${plural(links.length, "destination")}</a>`} />`}
    <${Tile} name="Journal" of=${journal.size_bytes} format=${bytes} more=${html`<a href=${href("journal")}>${plural(journal.segments, "file")}</a>`} />
    ${disk?.total_bytes > 0 && html`<${Disk} disk=${disk} />`}
    <${Tile} name="Sync p99" of=${journal.sync_p99_s} format=${duration} more=${rate(journal.syncs_per_s)} />
    <${Tile} name="Loop p99" of=${loop.delay_p99_s} format=${duration} more=${`at most ${duration(loop.delay_max_s)}`} />
  </${Tiles}>`;
}

export function Overview() {
  const node = (name, query) => usePolled(`${INSTANCE}/${name}.json`, query);
  const ready = useReadiness();
  const messages = node("messages");
  const queues = node("queues", { sort: "-depth", limit: 5 });
  const clients = node("clients", { sort: "-backlog_bytes", limit: 5 });
  const links = node("replication/destinations");
  const journal = node("journal");
  const loop = node("loop");
  const memory = node("memory");
  const uptime = node("uptime_s");
  const disks = usePolled("/quire/host/filesystems.json", undefined, 10000);
  const isReady = ready?.status === "ready";
  const found = concerns(ready, queues.data, clients.data);
  return html`<header class="head">
      <h1>Overview</h1>
      ${ready && html`<${Mark} kind=${isReady ? "ok" : "bad"}>${isReady ? "ready" : "not ready"}</${Mark}>`}
      <span class="status">${uptime.data && `up ${duration(uptime.data.value)}`}</span>
      <span class="push"></span>
      <${RangeChoice} />
    </header>
    <div class="body scrolls" tabindex="0" role="region" aria-label="Overview">
      <${Failure} error=${messages.error} />
      ${ready && html`<${Concerns} isReady=${isReady} found=${found} />`}
      ${messages.data && html`<${Figures} messages=${messages.data} journal=${journal.data ?? {}} loop=${loop.data ?? {}} queues=${queues.data ?? []} links=${links.data ?? []} disk=${disks.data?.find((each) => each.id === "journal")} />`}
      <${Charts} messages=${messages.data} loop=${loop.data} journal=${journal.data} memory=${memory.data} queues=${queues.data ?? []} />
    </div>`;
}
