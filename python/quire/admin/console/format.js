// Figures as text. Each function takes a number or null, and returns text.

const NOTHING = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

const isNothing = (value) => value === null || value === undefined || Number.isNaN(value);

/** `12,345`; above a million `1.23 M`. */
export function count(value) {
  if (isNothing(value)) return NOTHING;
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  return size < 10 && !Number.isInteger(value) ? tenths.format(value) : whole.format(value);
}

/** Short, for the axis of a chart. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e3) return `${trim(value / 1e3)}k`;
  return String(+value.toPrecision(3));
}

const trim = (value) => String(+value.toFixed(1));

/** `12.3 MB`, with powers of 1,000. */
export function bytes(value) {
  if (isNothing(value)) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let index = 0;
  while (Math.abs(value) >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${index === 0 ? whole.format(value) : trim(value)} ${units[index]}`;
}

/** `350 µs`, `1.2 s`, `3 h 12 min`. */
export function duration(seconds) {
  if (isNothing(seconds)) return NOTHING;
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${trim(seconds * 1e3)} ms`;
  if (seconds < 60) return `${trim(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** `1,234/s`. */
export const rate = (value) => (isNothing(value) ? NOTHING : `${count(value)}/s`);
export const byteRate = (value) => (isNothing(value) ? NOTHING : `${bytes(value)}/s`);
export const ratio = (value) => (isNothing(value) ? NOTHING : `${trim(value * 100)} %`);

/** Seconds since 1970 from a number, or from text such as `2026-11-28T21:00:00Z`. */
export function seconds(time) {
  if (typeof time === "number") return time;
  if (typeof time !== "string") return NaN;
  const compact = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(.*)$/.exec(time);
  const text = compact ? `${compact[1]}-${compact[2]}-${compact[3]}T${compact[4]}:${compact[5]}:${compact[6]}${compact[7]}` : time;
  return Date.parse(text) / 1000;
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

/** The local time of day: `21:04:12.345`. */
export function clock(time, { millis = true } = {}) {
  const date = new Date(seconds(time) * 1000);
  if (Number.isNaN(date.getTime())) return NOTHING;
  const text = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return millis ? `${text}.${pad(date.getMilliseconds(), 3)}` : text;
}

/** Local date and time: `2026-11-28 21:04:12`. */
export function moment(time) {
  const date = new Date(seconds(time) * 1000);
  if (Number.isNaN(date.getTime())) return NOTHING;
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock(time, { millis: false })}`;
}

/** `1 message`, `2 messages`. */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
