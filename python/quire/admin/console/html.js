// The one binding of templates to preact.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
