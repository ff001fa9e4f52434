// Times and counts as text. All times are UTC, as those in the services' sentences are.

const NUMBER = new Intl.NumberFormat();
const WRITTEN = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;
const iso = (text) => new Date(text).toISOString();

export const ZONE = "UTC";
export const clock = (text) => (text ? iso(text).slice(11, 19) : "");
// As the command line writes it.
export const stamp = (text) => (text ? iso(text).slice(5, 19).replace("T", " ") : "");
export const fullTime = (text) => (text ? `${iso(text).slice(0, 19).replace("T", " ")} ${ZONE}` : "");
export const number = (value) => NUMBER.format(value);

// A sentence with the times that a service wrote as the command line writes them.
export const sentence = (text) => text.replace(WRITTEN, stamp);

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
