// Times and counts as text.

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const NUMBER = new Intl.NumberFormat();

export const clock = (text) => (text ? TIME.format(new Date(text)) : "");
export const fullTime = (text) => (text ? FULL.format(new Date(text)) : "");
export const number = (value) => NUMBER.format(value);

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function span(milliseconds) {
  if (milliseconds > 0 && milliseconds < 995) return `${Math.max(1, Math.round(milliseconds))} ms`;
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d`;
}

export const age = (text) => (text ? span(1000 * Math.round((Date.now() - new Date(text)) / 1000)) : "");
