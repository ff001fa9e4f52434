// Makes elements. Text is set as text alone, so nothing that the fleet reports is read as markup.

export function h(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

export const byId = (id) => document.getElementById(id);

// Replaces the children; the link or button that had the focus has it again.
export function fill(parent, ...children) {
  const held = parent.contains(document.activeElement) ? document.activeElement : null;
  const address = held?.getAttribute("href");
  parent.replaceChildren(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  if (address) [...parent.querySelectorAll("a")].find((each) => each.getAttribute("href") === address)?.focus({ preventScroll: true });
}

export function link(kind, name, text = name) {
  return h("a", { href: `#/${kind}/${encodeURIComponent(name)}`, class: "name" }, text);
}

export function badge(condition, text) {
  return h("span", { class: `badge is-${condition}` }, text);
}

export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return h("dl", { class: "facts" }, shown.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function notice(kind, title, detail, remedy) {
  return h(
    "div",
    { class: `notice is-${kind}`, role: kind === "error" ? "alert" : "status" },
    h("strong", {}, title),
    detail ? h("p", {}, detail) : null,
    remedy ? h("p", { class: "quiet" }, remedy) : null,
  );
}

export const problemNotice = (error, title) => notice("error", title, error.message, error.remedy);
