// The clients: what each sends and receives, why it is slow, and disconnecting it.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { ADMINISTRATOR, encoded, exactly, INSTANCE, path, post } from "../api.js";
import { byteRate, bytes, count, duration, moment, rate, seconds } from "../format.js";
import { usePolled } from "../hooks.js";
import { route, withSelected } from "../route.js";
import { may } from "../session.js";
import { HistoryChart } from "../parts/chart.js";
import { Dialog } from "../parts/dialog.js";
import { Failure, Mark, Note, Pairs, Plain, RangeChoice, Section, Tile, Tiles } from "../parts/small.js";
import { Table } from "../parts/table.js";

/** Bytes that wait for a client which reads as fast as it is sent to. */
const SLOW = 1_000_000;

/** Why messages wait for a client: a state for the list, and a sentence for the details. */
export function slowness(client) {
  const waiting = client.backlog_bytes ?? 0;
  if (client.offlined) return { kind: "bad", name: "offlined", text: `The client reads more slowly than messages arrive. ${bytes(client.offlined_bytes)} wait on disk, and ${bytes(waiting)} in memory. Nothing is lost. It gets everything in order when it reads again.` };
  if (waiting >= SLOW || client.writable === false) {
    const out = client.bytes_out_per_s;
    const text = out === undefined ? `The client reads more slowly than messages arrive. ${bytes(waiting)} wait for it.` : out > 0 ? `The client reads ${byteRate(out)}, and ${bytes(waiting)} wait for it: about ${duration(waiting / out)} at this rate.` : `The client reads nothing. ${bytes(waiting)} wait for it. Its program may be stopped, or busy with one message.`;
    return { kind: "warn", name: "slow", text };
  }
  return { kind: "ok", name: "keeps up", text: "The client reads as fast as messages arrive." };
}

const State = (_, row) => {
  const { kind, name } = slowness(row);
  return html`<${Mark} kind=${kind}>${name}</${Mark}>`;
};

const COLUMNS = [
  { key: "client_name", title: "Client", width: "26%" },
  { key: "user", title: "User" },
  { key: "peer", title: "Address", width: "15%" },
  { key: "messages_in_per_s", title: "In", isNumber: true, render: rate },
  { key: "messages_out_per_s", title: "Out", isNumber: true, render: rate },
  { key: "backlog_bytes", title: "Waiting", isNumber: true, render: bytes },
  { key: "subscriptions", title: "Subs", isNumber: true, render: count, width: "7%" },
  { key: "state", title: "State", isComputed: true, render: State, width: "11%" },
];

function DisconnectDialog({ client, onClose, onDone }) {
  const act = () => post(`${ADMINISTRATOR}/clients/${encoded(client.id)}/disconnect`, {});
  return html`<${Dialog} title=${`Disconnect ${client.client_name}`} label="Disconnect" confirm=${client.client_name} act=${act} onClose=${onClose} onDone=${onDone}>
    <p>Closes the connection. Messages that the client holds go back to their queues. Most clients connect again at once.</p>
  </${Dialog}>`;
}

function Subscriptions({ name }) {
  const { data } = usePolled(`${INSTANCE}/subscriptions.json`, { name: exactly(name), limit: 50 });
  const rows = (data ?? []).filter((each) => each.client_name === name);
  return html`<${Section} title="Subscriptions">
    <${Plain} label="Subscriptions" rows=${rows} none="No subscription" columns=${[
      ["Topic", (row) => row.topic],
      ["Kind", (row) => row.kind],
      ["Filter", (row) => html`<span class="mono">${row.filter ?? ""}</span>`],
      ["Out", (row) => rate(row.messages_out_per_s), true],
      ["Behind", (row) => count(row.lag), true],
    ]} />
  </${Section}>`;
}

function Detail({ id }) {
  const { data: figures, error } = usePolled(`${path("clients", id)}.json`);
  // One object has no id in its answer: its path has it.
  const data = figures && { id, ...figures };
  const [dialog, setDialog] = useState(false);
  const [note, setNote] = useState(null);
  const name = data?.client_name ?? id;
  const slow = data && slowness(data);
  return html`<section class="card detail" aria-label=${`Client ${name}`}>
    <header>
      <h2>${name}</h2>
      ${data && may("admin", "/quire/clients") && html`<button class="danger" onClick=${() => setDialog(true)}>Disconnect</button>`}
      <a class="button" href=${withSelected("")}>Close</a>
    </header>
    <div class="content">
      ${note && html`<${Note} kind="ok">${note}</${Note}>`}
      ${error?.status === 404 ? html`<${Note}>This client is not connected any more.</${Note}>` : html`<${Failure} error=${error} />`}
      ${slow && html`<${Note} kind=${slow.kind}>${slow.text}</${Note}>`}
      ${data && html`<${Tiles}>
        <${Tile} name="Publishes" of=${data.messages_in_per_s} format=${count} unit="/s" more=${byteRate(data.bytes_in_per_s)} />
        <${Tile} name="Receives" of=${data.messages_out_per_s} format=${count} unit="/s" more=${byteRate(data.bytes_out_per_s)} />
        <${Tile} name="Waiting" of=${data.backlog_bytes} format=${bytes} kind=${slow.kind === "ok" ? "" : slow.kind} />
        <${Tile} name="Refused" of=${(data.denied_reads ?? 0) + (data.denied_writes ?? 0)} format=${count} more="missing rights" />
      </${Tiles}>
      <${Pairs} pairs=${[
        ["Connection", data.id],
        ["User", data.user],
        ["Address", data.peer],
        ["Transport", data.transport],
        ["Version", data.client_version],
        ["Connected", data.connected && Number.isFinite(seconds(data.connected)) ? moment(data.connected) : data.connected],
        ["Last sequence", data.sequence === null ? null : count(data.sequence)],
      ]} />`}
      <div class="bar"><span class="push"></span><${RangeChoice} /></div>
      <${HistoryChart} title="Messages" node=${["clients", id]} of=${data} lines=${[["messages_in_per_s", "published"], ["messages_out_per_s", "received"]]} format=${rate} height=${110} />
      <${HistoryChart} title="Waiting for the client" node=${["clients", id]} of=${data} lines=${[["backlog_bytes", "bytes"]]} format=${bytes} axisFormat=${bytes} height=${100} />
      ${data && html`<${Subscriptions} name=${name} />`}
    </div>
    ${dialog && html`<${DisconnectDialog} client=${data} onClose=${() => setDialog(false)} onDone=${() => setNote(`${name} was disconnected.`)} />`}
  </section>`;
}

export function Clients() {
  const { selected } = route.value;
  return html`<header class="head"><h1>Clients</h1></header>
    <div class="body">
      <div class="split ${selected ? "open" : ""}">
        <${Table} label="Clients" things=${["client", "clients"]} address=${`${INSTANCE}/clients`} columns=${COLUMNS} none="No client is connected." isOpen=${Boolean(selected)} narrow=${["client_name", "backlog_bytes", "state"]} />
        ${selected && html`<${Detail} key=${selected} id=${selected} />`}
      </div>
    </div>`;
}
