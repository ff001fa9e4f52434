// Requests to the gateway. The token stays in this tab: in sessionStorage, and in no address.

const ROOT = "/api/v1";
const TOKEN = "navarch-token";
const PAGE_SIZE = 1000;
const PAGES_MAX = 200;
const WAIT_SECONDS_MAX = 30;
const REPEATS_MAX = 4;

let token = sessionStorage.getItem(TOKEN) || "";
const signedOut = new EventTarget();

export class Problem extends Error {
  constructor(status, detail, remedy = "", refusal = "") {
    super(detail);
    Object.assign(this, { status, remedy, refusal });
  }
}

export const hasToken = () => token !== "";
export const onSignedOut = (listener) => signedOut.addEventListener("signed-out", listener);

export function useToken(value) {
  token = value;
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

export function authorization() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export async function problemOf(answer) {
  let body = {};
  try { body = await answer.json(); } catch { /* a proxy's answer */ }
  const problem = new Problem(answer.status, body.detail || `The gateway answered ${answer.status}.`, body.remedy, body.refusal);
  if (answer.status === 401) signedOut.dispatchEvent(new CustomEvent("signed-out", { detail: problem }));
  return problem;
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function ask(path, options = {}) {
  const headers = { ...authorization(), ...options.headers };
  for (let attempt = 0; ; attempt += 1) {
    let answer;
    try {
      answer = await fetch(ROOT + path, { cache: "no-cache", ...options, headers });
    } catch {
      throw new Problem(0, "The gateway cannot be reached.", "It is tried again when the connection is back.");
    }
    const wait = Number(answer.headers.get("Retry-After") || 0);
    const later = answer.status === 429 || (answer.status === 503 && options.method !== "POST");
    if (later && wait && attempt < REPEATS_MAX) {
      await pause(Math.min(wait, WAIT_SECONDS_MAX));
      continue;
    }
    if (!answer.ok || answer.status === 202) throw await problemOf(answer);
    return answer.json();
  }
}

const name = encodeURIComponent;

export async function* nodePages(pool = "") {
  let cursor = "";
  for (let number = 0; number < PAGES_MAX; number += 1) {
    const page = await ask(`/nodes?limit=${PAGE_SIZE}&pool=${name(pool)}&cursor=${name(cursor)}`);
    yield page.items;
    cursor = page.next;
    if (!cursor) return;
  }
}

export const caller = () => ask("/caller");
export const node = (each) => ask(`/nodes/${name(each)}`);
export const nodeWhy = (each) => ask(`/nodes/${name(each)}/why`);
export const nodeTimeline = (each) => ask(`/nodes/${name(each)}/timeline?limit=200`);
export const nodeSamples = (each) => ask(`/nodes/${name(each)}/samples`);
export const nodeEvidence = (each) => ask(`/nodes/${name(each)}/evidence`);
export async function poolMeasures(each) {
  const paths = [`/pools/${name(each)}/history?since=24h`, `/pools/${name(each)}/status`, `/offerings?pool=${name(each)}`, `/pools/${name(each)}/utilization`];
  const [history, status, offerings, use] = await Promise.all(paths.map((path) => ask(path).catch(() => null)));
  return { history, status, offerings, use };
}
export const pools = () => ask("/pools");
export const poolWhy = (each) => ask(`/pools/${name(each)}/why`);
export const sagas = () => ask("/sagas");
export const saga = (each) => ask(`/sagas/${name(each)}`);
export const incidents = () => ask("/incidents");
export const budget = () => ask("/budget");
export const alerts = () => ask("/alerts");
export const status = () => ask("/status");
export function newestEvents({ kind, unclear, ...query }) {
  const asked = new URLSearchParams(Object.entries({ ...query, type: kind }).filter(([, value]) => value !== "" && value !== 0));
  return ask(`/events/newest?${asked}`);
}

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `dashboard-${Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("")}`;
}

export function changeNode(each, verb, body, { dryRun = false, key = "" } = {}) {
  const headers = { "Content-Type": "application/json", ...(key ? { "Idempotency-Key": key } : {}) };
  const query = dryRun ? "?dry_run=true" : "";
  return ask(`/nodes/${name(each)}/${verb}${query}`, { method: "POST", headers, body: JSON.stringify(body) });
}

export const STREAM = `${ROOT}/events/stream`;
