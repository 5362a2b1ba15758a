// Messages, each with its data, headers and bookmark when it is opened.
import { html } from "../html.js";
import { bytes, clock, moment } from "../format.js";
import { Pairs } from "./small.js";

/** The data as a person reads it: JSON with lines and indents, or the text as it is. */
function readable(message) {
  if (message.base64 !== undefined) return `${message.base64}\n(base64: the data is not text)`;
  try {
    // Only a document that is written back without a change of its numbers is shown with indents.
    const parsed = JSON.parse(message.data);
    if (typeof parsed === "object" && JSON.stringify(parsed).length <= message.data.length) return JSON.stringify(parsed, null, 2);
  } catch {
    // Not JSON.
  }
  return message.data;
}

const titled = (message) => (message.data ?? message.base64 ?? "").slice(0, 400) || "(no data)";

export function Message({ message, extra = [] }) {
  return html`<details>
    <summary>
      <time title=${moment(message.timestamp)}>${clock(message.timestamp)}</time>
      <code>${titled(message)}</code>
      <span class="muted size">${bytes(message.size)}</span>
    </summary>
    <div class="inside">
      <${Pairs} pairs=${[
        ["Topic", message.topic],
        ["Bookmark", message.bookmark],
        ["Key", message.sow_key],
        ["Received", moment(message.timestamp)],
        ["Correlation id", message.correlation_id],
        ...Object.entries(message.headers ?? {}).map(([name, value]) => [`Header ${name}`, value]),
        ...extra,
      ]} />
      <pre tabindex="0" aria-label="Data">${readable(message)}</pre>
      ${message.truncated && html`<p class="muted">The first part of ${bytes(message.size)}.</p>`}
    </div>
  </details>`;
}

export function Messages({ label, messages, none = "No messages" }) {
  if (!messages.length) return html`<p class="muted">${none}</p>`;
  return html`<div class="messages" role="group" aria-label=${label}>
    ${messages.map((message) => html`<${Message} key=${message.key ?? `${message.topic} ${message.bookmark ?? message.timestamp}`} message=${message} />`)}
  </div>`;
}
