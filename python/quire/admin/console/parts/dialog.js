// A dialog for an action that cannot be taken back. Its button is disabled until the name is typed.
import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "../html.js";
import { Failure } from "./small.js";

/**
 * `confirm`: the text to type; null: nothing is typed. `act`: called with the form's data; the
 * dialog closes when it is done.
 */
export function Dialog({ title, label, confirm = null, act, onClose, onDone, children }) {
  const element = useRef(null);
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => {
    element.current.showModal();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    if (confirm !== null && typed !== confirm) return;
    const form = Object.fromEntries(new FormData(event.currentTarget));
    setBusy(true);
    setError(null);
    try {
      const result = await act(form);
      onDone?.(result);
      onClose();
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const isReady = confirm === null || typed === confirm;
  return html`<dialog ref=${element} onClose=${onClose} aria-labelledby="dialog-title">
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
      ${confirm !== null && html`<label class="field"><span>Type ${confirm} to confirm</span>
        <input value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} autocomplete="off" spellcheck=${false} autofocus />
      </label>`}
      <${Failure} error=${error} />
      <div class="bar">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button type="submit" class="danger" disabled=${!isReady || isBusy} aria-busy=${isBusy}>${label}</button>
      </div>
    </form>
  </dialog>`;
}
