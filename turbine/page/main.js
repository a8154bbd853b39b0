// Tabs, the line about the selection, search, keys and addresses.

const VIEWS = [
  { name: "code", title: "Code", make: codeView },
  { name: "dispatches", title: "Dispatches", make: dispatchesView, count: data.costs.length },
  { name: "modules", title: "Modules", make: flameView },
  { name: "roofline", title: "Roofline", make: rooflineView },
  { name: "memory", title: "Memory", make: memoryView },
  { name: "fallbacks", title: "In PyTorch", make: fallbacksView, count: data.fallbacks.length },
  ...(data.pairs.length ? [{ name: "compare", title: "Compare", make: compareView }] : []),
  { name: "facts", title: "About", make: factsView, count: data.missing.length },
];

const tabs = document.getElementById("tabs");
const views = document.getElementById("views");

for (const view of VIEWS) {
  view.tab = element("button", { textContent: view.title, id: "tab-" + view.name });
  view.tab.setAttribute("role", "tab");
  if (view.count) view.tab.append(element("small", { textContent: view.count }));
  view.tab.onclick = () => show(view.name);
  tabs.append(view.tab);
  view.box = view.make();
  view.box.id = "view-" + view.name;
  view.box.classList.add("view");
  views.append(view.box);
}

function show(name) {
  for (const view of VIEWS) {
    view.box.hidden = view.name !== name;
    view.tab.setAttribute("aria-selected", String(view.name === name));
  }
  // Panes that were hidden could not scroll to what is selected.
  for (const listener of listeners) listener();
}

// The selection

const banner = document.getElementById("selection");
listeners.push(() => {
  banner.hidden = !selection.name;
  if (banner.hidden) return;
  const time = selection.ops.size && !onlyDispatch() ? timeOf(selection.ops) : sumOf(selection.dispatches);
  const counts = `${plural(selection.ops.size, "op")}, ${plural(selection.dispatches.size, "dispatch")}`;
  const share = inside ? `, ${percent(time / inside)} of the time in dispatches` : "";
  const chips = bySize(selection.dispatches).slice(0, 6).map((name) => {
    const chip = element("button", { className: "chip", textContent: name, title: name });
    chip.onclick = () => selectDispatch(name);
    return chip;
  });
  banner.replaceChildren(
    element("strong", { textContent: selection.name }),
    element("span", { id: "selected-cost", textContent: `${figure(time)} ms${share}` }),
    element("span", { className: "dim", textContent: counts }),
    ...chips,
    element("span", { className: "gap" }),
    Object.assign(element("button", { textContent: "clear", className: "dim" }), { onclick: () => select({}) }),
  );
});
const onlyDispatch = () => selection.dispatches.size === 1 && selection.dispatches.has(selection.name);
const sumOf = (names) => [...names].reduce((sum, name) => sum + (costs.get(name)?.milliseconds ?? 0), 0);

// Search: every line, row and frame; Enter goes from match to match.

const search = document.getElementById("search");
const hits = document.getElementById("hits");
let matches = [];
let current = -1;

function find() {
  const wanted = search.value.trim().toLowerCase();
  matches = [];
  current = -1;
  for (const row of views.querySelectorAll(".line, tbody tr, .frame")) {
    const found = wanted !== "" && (row.title + " " + row.textContent).toLowerCase().includes(wanted);
    row.classList.toggle("hit", found);
    row.classList.remove("now");
    if (found) matches.push(row);
  }
  hits.textContent = wanted ? plural(matches.length, "match") : "";
}

function goToMatch(step) {
  if (!matches.length) return;
  matches[current]?.classList.remove("now");
  current = (current + step + matches.length) % matches.length;
  const row = matches[current];
  const view = VIEWS.find((one) => one.box.contains(row));
  if (view.box.hidden) show(view.name);
  row.classList.add("now");
  row.scrollIntoView({ block: "center", inline: "nearest" });
  hits.textContent = `${current + 1} of ${matches.length}`;
}

search.oninput = find;
search.onkeydown = (event) => {
  if (event.key === "Enter") goToMatch(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") { search.value = ""; find(); search.blur(); event.stopPropagation(); }
};

document.onkeydown = (event) => {
  if (event.target === search || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { search.focus(); event.preventDefault(); }
  if (event.key === "Escape") select({});
  const number = Number(event.key);
  if (number >= 1 && number <= VIEWS.length) show(VIEWS[number - 1].name);
};

// What an address says behind its #: "line/model.py:21", "op/7", "dispatch/NAME", "view/memory".

function follow() {
  const [kind, ...rest] = location.hash.slice(1).split("/");
  const value = decodeURIComponent(rest.join("/"));
  if (kind === "view" && VIEWS.some((view) => view.name === value)) show(value);
  if (kind === "op" && ops[value]) selectOp(Number(value));
  if (kind === "line" && opsOfPlace.has(value)) selectPlace(value);
  if (kind === "dispatch" && (costs.has(value) || value in dispatches)) selectDispatch(value);
  if (kind === "module")
    selectModule(value, ops.flatMap((op, n) => (isWithin(op.module, value) ? [n] : [])));
}
const isWithin = (module, path) => !path || module === path || module.startsWith(path + ".");

document.getElementById("title").textContent = data.title;
const inPyTorch = data.pytorch.reduce((sum, op) => sum + op.milliseconds, 0);
document.getElementById("total").textContent = data.milliseconds === null
  ? "not measured"
  : `${figure(data.milliseconds)} ms a call, ${figure(inside)} ms of it in ${plural(data.costs.length, "dispatch")}` +
    (inPyTorch ? `, ${figure(inPyTorch)} ms in PyTorch` : "");
show(ops.length ? "code" : data.costs.length ? "dispatches" : "facts");
follow();
window.onhashchange = follow;
