// The keys of the console.
import { useEffect, useRef } from "preact/hooks";
import { html } from "./html.js";

const KEYS = [
  ["?", "This list"],
  ["/", "Filter of the page"],
  ["↑ ↓", "Previous or next row of a table"],
  ["Enter", "Open the row, or press the button"],
  ["Escape", "Close the row, the dialog or the field"],
];

export function Help({ pages, onClose }) {
  const element = useRef(null);
  useEffect(() => {
    element.current.showModal();
  }, []);
  return html`<dialog ref=${element} onClose=${onClose} aria-labelledby="help-title">
    <h2 id="help-title">Keys</h2>
    <dl class="pairs">
      ${KEYS.map(([key, effect]) => html`<dt><kbd>${key}</kbd></dt><dd>${effect}</dd>`)}
      ${pages.map(([, name, letter]) => html`<dt><kbd>g</kbd> <kbd>${letter}</kbd></dt><dd>${name}</dd>`)}
    </dl>
    <form method="dialog" class="bar"><button autofocus>Close</button></form>
  </dialog>`;
}
