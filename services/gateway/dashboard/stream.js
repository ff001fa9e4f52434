// Follows the events by server-sent events. fetch reads them, because EventSource sends no token.

import { STREAM, authorization, problemOf } from "./api.js";

const SILENT_SECONDS_MAX = 45;
const WAIT_SECONDS = [0.5, 1, 2, 5, 10];
export const GAP_SECONDS = 60;

// Splits text into the fields of each message; `rest` is the message that is not complete.
export function messagesOf(text) {
  const parts = text.split(/\r\n\r\n|\n\n|\r\r/);
  const rest = parts.pop();
  const found = parts.map((part) => {
    const message = { event: "message", data: "", id: "" };
    for (const line of part.split(/\r\n|\n|\r/)) {
      const at = line.indexOf(":");
      if (at <= 0) continue;
      const value = line.slice(at + 1).replace(/^ /, "");
      const key = line.slice(0, at);
      if (key === "data") message.data += (message.data ? "\n" : "") + value;
      else message[key] = value;
    }
    return message;
  });
  return { found, rest };
}

// Calls `on.event(view)`, `on.connected(isGap)`, `on.reset()`, `on.lost(error, seconds)`; goes on until stopped.
export function follow(on) {
  let last = "";
  let stopped = false;
  let attempts = 0;
  let lostAt = 0;
  let abort = new AbortController();
  let wake = () => {};

  async function read() {
    abort = new AbortController();
    let silence = setTimeout(() => abort.abort(), SILENT_SECONDS_MAX * 1000);
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENT_SECONDS_MAX * 1000);
    };
    try {
      const gap = lostAt > 0 && (last === "" || Date.now() - lostAt > GAP_SECONDS * 1000);
      const headers = { ...authorization(), ...(last && !gap ? { "Last-Event-ID": last } : {}) };
      const answer = await fetch(STREAM, { headers, cache: "no-store", signal: abort.signal });
      if (!answer.ok) throw await problemOf(answer);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      let first = true;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        alive();
        if (first) {
          first = false;
          attempts = 0;
          on.connected(gap || lostAt === 0);
          lostAt = 0;
        }
        const { found, rest } = messagesOf(text + value);
        text = rest;
        for (const message of found) {
          if (message.id) last = message.id;
          if (message.event === "reset") {
            last = "";
            on.reset();
          } else if (message.data) on.event(JSON.parse(message.data));
          else on.alive?.();
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async function run() {
    while (!stopped) {
      let error = null;
      try { await read(); } catch (each) { error = each; }
      if (stopped || error?.status === 401) return;
      if (!lostAt) lostAt = Date.now();
      const seconds = WAIT_SECONDS[Math.min(attempts, WAIT_SECONDS.length - 1)];
      attempts += 1;
      on.lost(error, seconds);
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, seconds * 1000 * (0.75 + Math.random() / 2));
      });
    }
  }

  const now = () => wake();
  const cut = () => abort.abort(); // a connection that is cut off is silent, and would be missed for long
  addEventListener("online", now);
  addEventListener("offline", cut);
  run();
  return () => {
    stopped = true;
    removeEventListener("online", now);
    removeEventListener("offline", cut);
    abort.abort();
    wake();
  };
}
