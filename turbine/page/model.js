// The data, indexed in both directions, and the selection that all views show.

const data = JSON.parse(document.getElementById("data").textContent);
const { ops, graph, ir, dispatches, files } = data.stages;
const costs = new Map(data.costs.map((cost) => [cost.name, cost]));
const inside = data.costs.reduce((sum, cost) => sum + cost.milliseconds, 0);

// Groups of ops by a key; an op may be in several.
function groupOps(keysOf) {
  const groups = new Map();
  ops.forEach((op, number) => {
    for (const key of keysOf(op, number)) {
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(number);
    }
  });
  return groups;
}

const opsOfPlace = groupOps((op) => op.places);
const dispatchesOfOp = ops.map(() => []);
for (const [name, dispatch] of Object.entries(dispatches))
  for (const number of dispatch.ops) dispatchesOfOp[number].push(name);

const timeOf = (numbers) => [...numbers].reduce((sum, number) => sum + data.times[number], 0);

const selection = { ops: new Set(), dispatches: new Set(), name: "", place: "", module: null };
const listeners = [];

// Select ops with what they became, or dispatches with what they came from.
function select({ picked = [], named = null, name = "", place = "", module = null, hash = "" }) {
  selection.ops = new Set(picked);
  selection.dispatches = new Set(named ?? picked.flatMap((number) => dispatchesOfOp[number]));
  Object.assign(selection, { name, place, module });
  if (hash || !name) history.replaceState(null, "", hash ? "#" + hash : "#");
  for (const listener of listeners) listener();
}

const selectOp = (number) =>
  select({ picked: [number], name: ops[number].name, hash: "op/" + number });

const selectPlace = (place) =>
  select({
    picked: opsOfPlace.get(place) ?? [], name: shorten(place), place,
    hash: "line/" + encodeURIComponent(place),
  });

const selectDispatch = (name) =>
  select({
    picked: dispatches[name]?.ops ?? [], named: [name], name,
    hash: "dispatch/" + encodeURIComponent(name),
  });

const selectModule = (path, picked) =>
  select({ picked, name: path || "the model", module: path, hash: "module/" + encodeURIComponent(path) });

// Texts

const shorten = (path) => path.split("/").slice(-2).join("/");
const figure = (value) =>
  value === null || value === undefined ? "-" :
  value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
const milliseconds = (value) => (value < 0.0005 ? "" : value.toFixed(value < 10 ? 3 : 1));
const percent = (value) => (100 * value).toFixed(value < 0.0995 ? 1 : 0) + "%";
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let step = 0;
  for (; value >= 1024 && step < 3; step++) value /= 1024;
  return `${value.toFixed(step ? 1 : 0)} ${units[step]}`;
}
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;
const escapeText = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
