// A chart of history, drawn by uPlot with the colors of the theme.
import { useEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";
import { html } from "../html.js";
import { moment, short } from "../format.js";
import { useHistory } from "../hooks.js";
import { path } from "../api.js";
import { chosenRange } from "./small.js";

/** Counts the changes of the theme: charts are drawn again. */
export const themeChanges = signal(0);

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const lastOf = (values) => values?.findLast((value) => value !== null && value !== undefined) ?? null;

function axis(extra) {
  return {
    stroke: style("--muted"),
    font: `11px ${style("--font")}`,
    grid: { stroke: style("--grid"), width: 1 },
    ticks: { show: false },
    ...extra,
  };
}

function optionsFor(box, series, format) {
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    padding: [8, 6, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "quire" } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [
      axis({ size: 24, gap: 4, space: 60, values: (_, splits, __, ___, step) => splits.map((time) => moment(time).slice(...(step >= 43200 ? [5, 10] : step >= 60 ? [11, 16] : [11, 19]))) }),
      axis({ size: 46, gap: 4, space: 28, values: (_, splits) => splits.map((value) => format(value)) }),
    ],
    series: [
      {},
      ...series.map((_, index) => {
        const color = style(`--series-${(index % 5) + 1}`);
        return { stroke: color, width: 1.6, fill: series.length === 1 ? `${color}1f` : undefined, points: { show: false }, spanGaps: false };
      }),
    ],
  };
}

/** `series`: names of the lines. `data`: as `useHistory` returns it. */
export function Chart({ title, series, data, format = short, axisFormat = short, height = 150 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const changes = themeChanges.value;
  const isEmpty = !data || data[0].length === 0;
  const shape = series.join("\n");
  useEffect(() => {
    if (isEmpty) return undefined;
    const element = box.current;
    const drawn = new window.uPlot(optionsFor(element, series, axisFormat), data, element);
    plot.current = drawn;
    const size = new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = element;
      if (width > 0) drawn.setSize({ width, height });
    });
    size.observe(element);
    return () => {
      size.disconnect();
      drawn.destroy();
      plot.current = null;
    };
  }, [isEmpty, shape, changes]);
  useEffect(() => {
    if (!isEmpty) plot.current?.setData(data);
  }, [data]);
  if (data === false) return null;
  const latest = series.map((name, index) => [name, isEmpty ? null : lastOf(data[index + 1])]);
  const spoken = latest.map(([name, value]) => `${name} ${value === null ? "no value" : format(value)}`).join(", ");
  return html`<figure class="card chart">
    <figcaption class=${series.length > 2 ? "many" : ""}>
      <strong>${title}</strong>
      ${latest.map(([name, value], index) => html`<span class="key s${(index % 5) + 1}" key=${name}>
        <i></i><span>${name}</span> <b>${value === null ? "–" : format(value)}</b>
      </span>`)}
    </figcaption>
    <div class="plot" ref=${box} role="img" aria-label=${`${title}: ${spoken}`} style=${{ "--plot": `${height}px` }}>
      ${isEmpty && html`<span class="nothing">${data ? "No samples in this range yet" : "Loading"}</span>`}
    </div>
  </figure>`;
}

/**
 * The history of figures of one node. `of`: the figures as they are now, which tell those that the
 * server has; `lines`: `[metric, name]`.
 */
export function HistoryChart({ node, of, lines, ...rest }) {
  const known = of ? lines.filter(([metric]) => metric.replace(/_per_s$/, "") in of) : [];
  return known.length ? html`<${Drawn} key=${node.join("/")} node=${node} lines=${known} ...${rest} />` : null;
}

function Drawn({ node, lines, ...rest }) {
  const data = useHistory(lines.map(([metric]) => path(...node, metric)), chosenRange());
  return html`<${Chart} series=${lines.map(([, name]) => name)} data=${data} ...${rest} />`;
}
