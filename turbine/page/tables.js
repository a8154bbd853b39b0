// Tables: dispatches, what runs in PyTorch, two runs, and facts.

// A table whose columns sort when their heads are clicked.
function sortable(columns, rows, onRow = () => {}) {
  const body = element("tbody");
  const heads = columns.map((column, index) => {
    const head = element("th", {
      textContent: column.title, className: column.figure ? "figure" : "", title: column.hint ?? "",
    });
    head.onclick = () => fill([...rows].sort(byColumn(columns[index])));
    return head;
  });
  const fill = (sorted) => {
    body.replaceChildren(...sorted.map((row) => {
      const cells = columns.map((column) => {
        const cell = element("td", { className: column.figure ? "figure" : (column.className ?? "") });
        cell.append(column.cell ? column.cell(row) : column.value(row));
        return cell;
      });
      const made = element("tr", {}, ...cells);
      onRow(made, row);
      return made;
    }));
  };
  fill(rows);
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
}

const byColumn = (column) => (a, b) => {
  const [one, other] = [column.value(a), column.value(b)];
  return typeof one === "string" ? one.localeCompare(other) : (other ?? -1) - (one ?? -1);
};

const figureColumn = (title, value, text = figure, hint = "") =>
  ({ title, value, hint, figure: true, cell: (row) => text(value(row)) });

const ROOF = "The part of what this machine was measured to do: of operations, or of bytes from memory. " +
  "It is more than 100% where data is in caches, or where a gather reads a part of its table.";

function shareCell(share) {
  const bar = element("i");
  bar.style.width = 100 * share + "%";
  return element("div", { className: "share" }, bar, element("span", { textContent: percent(share) }));
}

// The part of what the machine can do that a dispatch reaches: of operations or of memory.
function roofOf(cost) {
  if (!data.peak) return null;
  const shares = [[cost.gflops, data.peak.operations], [cost.gbytes, data.peak.bandwidth]]
    .filter(([rate]) => rate).map(([rate, peak]) => (1e9 * rate) / peak);
  return shares.length ? Math.max(...shares) : null;
}

const placesOf = (name) =>
  [...new Set((dispatches[name]?.ops ?? []).map((n) => ops[n].places[0]).filter(Boolean))];

function dispatchesView() {
  const table = sortable(
    [
      { title: "dispatch", value: (c) => c.name, className: "name" },
      figureColumn("runs", (c) => c.count),
      figureColumn("ms", (c) => c.milliseconds, milliseconds),
      { title: "share", value: (c) => c.share, cell: (c) => shareCell(c.share) },
      figureColumn("threads", (c) => c.threads, (value) => value.toFixed(1)),
      figureColumn("GFLOP/s", (c) => c.gflops),
      figureColumn("GB/s", (c) => c.gbytes),
      figureColumn("roof", roofOf, (value) => (value === null ? "-" : percent(value)), ROOF),
      { title: "lines", value: (c) => placesOf(c.name).map(shorten).slice(0, 3).join(", "), className: "name" },
    ],
    data.costs,
    (row, cost) => {
      row.className = "linked";
      row.dataset.dispatch = cost.name;
      row.onclick = () => selectDispatch(cost.name);
    },
  );
  listeners.push(() => {
    for (const row of table.querySelectorAll("tbody tr"))
      row.classList.toggle("on", selection.dispatches.has(row.dataset.dispatch));
  });
  return element("div", {}, data.costs.length ? table : empty("Nothing was measured."));
}

function fallbacksView() {
  const view = element("div");
  const breaks = Object.entries(data.breaks);
  if (breaks.length) {
    view.append(element("h3", { textContent: "Graph breaks" }));
    view.append(sortable(
      [figureColumn("times", ([, count]) => count), { title: "why", value: ([why]) => why }], breaks));
  }
  if (data.fallbacks.length) {
    view.append(element("h3", { textContent: "Ops that run in PyTorch, and why" }));
    view.append(sortable(
      [
        { title: "op", value: (f) => f.op, className: "name" },
        figureColumn("times", (f) => f.count),
        { title: "kind", value: (f) => (f.is_chosen ? "library call" : "fallback") },
        { title: "where", value: (f) => shorten(f.place ?? "unknown"), className: "name" },
        { title: "why", value: (f) => f.reason },
      ],
      data.fallbacks,
      (row, fallback) => {
        row.dataset.place = fallback.place ?? "";
        if (!opsOfPlace.has(fallback.place)) return;
        row.className = "linked";
        row.onclick = () => selectPlace(fallback.place);
      }));
  }
  if (data.pytorch.length) {
    view.append(element("h3", { textContent: "Time in PyTorch" }));
    view.append(sortable(
      [
        { title: "op", value: (o) => o.name, className: "name" },
        figureColumn("runs", (o) => o.count),
        figureColumn("ms", (o) => o.milliseconds, milliseconds),
      ], data.pytorch));
  }
  if (!view.children.length) view.append(empty("Nothing runs in PyTorch: all of the program is compiled."));
  return view;
}

function compareView() {
  const ratio = (pair) => (pair.before && pair.after ? pair.after / pair.before : null);
  const table = sortable(
    [
      { title: "what", value: (p) => p.kind },
      { title: "name", value: (p) => (p.kind === "line" ? shorten(p.name) : p.name), className: "name" },
      figureColumn("before, ms", (p) => p.before),
      figureColumn("after, ms", (p) => p.after),
      {
        title: "ratio", value: (p) => ratio(p), figure: true,
        cell: (p) => element("span", {
          textContent: ratio(p) === null ? (p.before === null ? "new" : "gone") : figure(ratio(p)),
          className: ratio(p) === null ? "" : ratio(p) > 1.05 ? "bad" : ratio(p) < 0.95 ? "good" : "",
        }),
      },
    ],
    data.pairs,
    (row, pair) => {
      if (pair.kind !== "line" || !opsOfPlace.has(pair.name)) return;
      row.className = "linked";
      row.onclick = () => selectPlace(pair.name);
    });
  const note = element("p", { className: "dim", textContent: `Before: ${data.before}. After: ${data.title}. Dispatches are matched by name without their order.` });
  return element("div", {}, note, table);
}

function factsView() {
  const list = element("dl");
  for (const [name, text] of Object.entries(data.facts))
    if (text) list.append(element("dt", { textContent: name }), element("dd", { textContent: text }));
  const notes = data.missing.map((text) => element("p", { className: "note", textContent: "Not shown: " + text + "." }));
  return element("div", {}, ...notes, list, keysHelp());
}

function keysHelp() {
  const keys = [["/", "search"], ["Enter", "next match"], ["1 to 8", "views"], ["Esc", "clear the selection"]];
  const list = element("dl");
  for (const [key, text] of keys)
    list.append(element("dt", {}, element("kbd", { textContent: key })), element("dd", { textContent: text }));
  return element("div", {}, element("h3", { textContent: "Keys" }), list);
}
