// Data that a component shows: fetched once, fetched again and again, and the history of figures.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { seconds } from "./format.js";

/** Milliseconds between two requests of a page for the same figures. */
export const INTERVAL = 2000;

/**
 * Whether the page is visible. A hidden page follows nothing: a browser has six connections to a
 * server, and other tabs need them.
 */
export const isVisible = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (isVisible.value = !document.hidden));

/** Calls `work` now and every `interval` ms while the page is visible, and never twice at a time. */
export function useEvery(interval, work, inputs) {
  const current = useRef(work);
  current.current = work;
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let isBusy = false;
    const tick = async () => {
      clearTimeout(timer);
      if (isBusy) return;
      isBusy = true;
      try {
        if (!document.hidden) await current.current(abort.signal);
      } finally {
        isBusy = false;
        if (!abort.signal.aborted) timer = setTimeout(tick, interval);
      }
    };
    const onVisible = () => document.hidden || tick();
    document.addEventListener("visibilitychange", onVisible);
    tick();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, inputs);
}

/** The answer to a request that is repeated: `{ data, error }`. Keeps the last data on an error. */
export function usePolled(address, query, interval = INTERVAL) {
  const key = JSON.stringify([address, query]);
  const [state, setState] = useState({ key, data: null, error: null });
  useEvery(interval, async (signal) => {
    if (!address) return;
    try {
      const data = await get(address, query, { signal });
      if (!signal.aborted) setState({ key, data, error: null });
    } catch (error) {
      if (!signal.aborted) setState((old) => ({ key, data: old.key === key ? old.data : null, error }));
    }
  }, [key]);
  return state.key === key ? state : { data: null, error: null };
}

/** The answer to a request: `{ data, error, again }`. */
export function useFetched(address, query) {
  const key = JSON.stringify([address, query]);
  const [state, setState] = useState({ key, data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!address) return undefined;
    const abort = new AbortController();
    get(address, query, { signal: abort.signal }).then(
      (data) => abort.signal.aborted || setState({ key, data, error: null }),
      (error) => abort.signal.aborted || setState({ key, data: null, error }),
    );
    return () => abort.abort();
  }, [key, turn]);
  const known = state.key === key ? state : { data: null, error: null };
  return { ...known, again: () => setTurn((old) => old + 1) };
}

/** The ranges of a chart: name, seconds, and milliseconds between two requests. */
export const RANGES = [
  ["15m", 900, 5000],
  ["1h", 3600, 10000],
  ["6h", 21600, 30000],
  ["24h", 86400, 60000],
];

/** Samples of a line at most: about as many as a chart has pixels. */
const POINTS = 600;

/**
 * The history of leaves: `[times, values of the first leaf, …]`, as a chart takes it; null while it
 * is loaded; false when the server has none of the leaves. Leaves are sampled together, so their
 * times are equal; a time that one of them lacks is a gap.
 */
export function useHistory(leaves, range = "15m") {
  const [, , interval] = RANGES.find(([name]) => name === range) ?? RANGES[0];
  const key = JSON.stringify([leaves, range]);
  const [state, setState] = useState({ key, data: null });
  useEvery(interval, async (signal) => {
    const answers = await Promise.allSettled(leaves.map((leaf) => get(`${leaf}.json`, { t0: `-${range}`, points: POINTS }, { signal })));
    if (signal.aborted) return;
    // The server has no such figures, or the user may not see them: there is no chart.
    if (answers.every((each) => each.reason?.status === 404 || each.reason?.status === 403)) return setState({ key, data: false });
    const series = answers.map((each) => (each.status === "fulfilled" ? each.value.samples ?? [] : []));
    setState({ key, data: aligned(series) });
  }, [key]);
  return state.key === key ? state.data : null;
}

/** Series of `[time, value]` as columns over all of their times. */
export function aligned(series) {
  const maps = series.map((samples) => new Map(samples.map(([time, value]) => [seconds(time), value])));
  const times = withGaps([...new Set(maps.flatMap((each) => [...each.keys()]))].sort((a, b) => a - b));
  return [times, ...maps.map((each) => times.map((time) => each.get(time) ?? null))];
}

/** The times, with one more in each gap: no line is drawn over a time when the server was stopped. */
function withGaps(times) {
  if (times.length < 3) return times;
  const steps = times.slice(1).map((time, index) => time - times[index]);
  const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)];
  return times.flatMap((time, index) => (index > 0 && time - times[index - 1] > 3 * usual ? [times[index - 1] + usual, time] : [time]));
}
