// Icons of the navigation. They only accompany a name.
import { html } from "./html.js";

const PATHS = {
  overview: "M2 13V8m4 5V3m4 10V6m4 7v-3",
  topics: "M2 4h12M2 8h12M2 12h7",
  queues: "M2 3h12v3H2zM2 10h12v3H2zM8 6v4",
  "last-values": "M2 2h12v12H2zM2 6h12M6 2v12",
  views: "M2 2h5v5H2zM9 2h5v5H9zM4.500 7v4.500H8M11.500 7v4.500H8M6 9h4v5H6z",
  clients: "M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM2.5 14c.5-3 2.700-4.500 5.500-4.500s5 1.500 5.500 4.500",
  replication: "M5 3h6v4H5zM1.500 10h5v4h-5zM9.500 10h5v4h-5zM8 7v1.500M4 10V8.500h8V10",
  journal: "M4 2h7l3 3v9H4zM2 4v11M11 2v3h3M7 9h4M7 11.500h4",
  actions: "M9 1.500L3.500 9H8l-1 5.500L12.500 7H8z",
  logs: "M2 3h2m2 0h8M2 8h2m2 0h8M2 13h2m2 0h8",
};

export const Icon = ({ name }) => html`<svg viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round"><path d=${PATHS[name]} /></svg>`;
