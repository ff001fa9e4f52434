// A node's condition: the one word, colour and mark by which the page shows it.

export const CONDITIONS = [
  ["unhealthy", "Unhealthy"],
  ["lost", "Lost"],
  ["degraded", "Degraded"],
  ["cordoned", "Cordoned"],
  ["leaving", "Leaving"],
  ["launching", "Launching"],
  ["spare", "Spare"],
  ["healthy", "Healthy"],
  ["unknown", "Unknown"],
];
export const LABELS = { ...Object.fromEntries(CONDITIONS), terminated: "Terminated" };

export function conditionOf(node) {
  if (node.status === "terminated") return "terminated";
  if (node.status === "leaving") return "leaving";
  if (node.status === "launching" || node.status === "registered") return "launching";
  if (node.lost) return "lost";
  if (node.health === "unhealthy") return "unhealthy";
  if (node.spare) return "spare";
  if (node.cordoned) return "cordoned";
  if (node.health === "degraded") return "degraded";
  return node.health === "healthy" ? "healthy" : "unknown";
}

// As `navarch status` counts them: a node may be unhealthy and cordoned, and is counted as both.
export const isHealthy = (node) => node.status === "active" && node.health === "healthy" && !node.lost;
export const isUnhealthy = (node) => node.health === "unhealthy" || Boolean(node.lost);

export function words(node) {
  const found = [node.status, node.health];
  for (const each of ["lost", "spare", "drained"]) if (node[each]) found.push(each);
  if (node.cordoned && !node.spare) found.push(node.quarantined ? "quarantined" : "cordoned");
  return found.join(", ");
}

// What an event says of its node at once; the node is read again shortly afterwards.
export function changeOf(kind, event) {
  switch (kind) {
    case "verdict": return { health: event.status, reason: event.reason || "" };
    case "lost": return { lost: true };
    case "returned": return { lost: false };
    case "cordoned": return { cordoned: true };
    case "uncordoned": return { cordoned: false, quarantined: false, drained: false };
    case "drained": return { drained: true };
    case "admitted": return { status: "active", spare: Boolean(event.spare), cordoned: Boolean(event.spare) };
    case "promoted": return { spare: false, cordoned: false };
    case "terminated": return { status: "terminated" };
    default: return null;
  }
}
