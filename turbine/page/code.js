// The view of linked texts: lines of the model, the graph, IR, and dispatches with their code.

// A line of text that selects ops.
function textLine(text, { cost = null, number = null, linked = false } = {}) {
  const row = element("div", { className: linked ? "line linked" : "line" });
  if (cost !== null) {
    const cell = element("span", { className: "cost", textContent: milliseconds(cost) });
    cell.style.setProperty("--share", inside ? (100 * cost) / inside + "%" : "0%");
    row.append(cell);
  }
  if (number !== null) row.append(element("span", { className: "number", textContent: number }));
  row.append(element("span", { className: "text", textContent: text }));
  return row;
}

function pane(name, title, note = "") {
  const body = element("div", { className: "body" });
  const bar = element("div", { className: "bar" }, element("h2", { textContent: title }));
  if (note) bar.append(element("span", { className: "dim", textContent: note }));
  const made = element("section", { className: "pane", id: "pane-" + name }, bar, body);
  return { made, body, bar };
}

const empty = (text) => element("p", { className: "empty", textContent: text });

function sourcePane() {
  const { made, body } = pane("source", "Model", "ms");
  for (const [path, lines] of Object.entries(files)) {
    body.append(element("div", { className: "file", textContent: shorten(path), title: path }));
    let last = null;
    for (const [number, text] of Object.entries(lines)) {
      if (last !== null && Number(number) > last + 1)
        body.append(element("div", { className: "skip", textContent: "⋮" }));
      last = Number(number);
      const place = `${path}:${number}`;
      const linked = opsOfPlace.get(place);
      const row = textLine(text, { cost: linked ? timeOf(linked) : 0, number, linked: !!linked });
      row.dataset.place = place;
      const left = data.fallbacks.filter((fallback) => fallback.place === place);
      if (left.length) {
        const why = left.map((fallback) => `${fallback.op}: ${fallback.reason}`).join("\n");
        row.append(element("span", { className: "tag", textContent: "in PyTorch", title: why }));
      }
      if (linked) row.onclick = () => selectPlace(place);
      body.append(row);
    }
  }
  if (!body.children.length) body.append(empty("No lines of the model are known."));
  return made;
}

function stagePane(name, title, lines, costly) {
  const { made, body } = pane(name, title, costly ? "ms" : "");
  lines.forEach((line) => {
    const row = textLine(line.text, {
      cost: costly ? timeOf(line.ops) : null, linked: line.ops.length > 0,
    });
    row.dataset.ops = line.ops.join(" ");
    if (line.ops.length === 1) row.onclick = () => selectOp(line.ops[0]);
    else if (line.ops.length)
      row.onclick = () => select({ picked: line.ops, name: line.text.trim().slice(0, 60) });
    body.append(row);
  });
  if (!lines.length) body.append(empty("This stage was not kept."));
  return made;
}

// The list of dispatches, and the IR or the code of the selected one.
function dispatchPane() {
  const { made, body, bar } = pane("dispatch", "Dispatches", "ms in a call");
  const list = element("div", { className: "list" });
  const names = [...costs.keys(), ...Object.keys(dispatches).filter((name) => !costs.has(name))];
  for (const name of names) {
    const row = textLine(name, { cost: costs.get(name)?.milliseconds ?? 0, linked: true });
    row.dataset.dispatch = name;
    row.title = costs.has(name) ? name : name + ": runs before the first call";
    row.onclick = () => selectDispatch(name);
    list.append(row);
  }
  let shown = "code";
  const buttons = [["ir", "IR"], ["code", "Assembly"]].map(([kind, title]) => {
    const button = element("button", { textContent: title, id: "show-" + kind });
    button.onclick = () => { shown = kind; update(); };
    button.dataset.kind = kind;
    return button;
  });
  const title = element("span", { className: "dim", id: "shown-dispatch" });
  const switches = element("div", { className: "bar" }, ...buttons, title);
  const text = element("pre", { id: "dispatch-text" });
  body.append(text);
  body.before(list, switches);
  const update = () => {
    const [name] = bySize(selection.dispatches);
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(button.dataset.kind === shown));
    title.textContent = name ?? "";
    text.textContent = name === undefined
      ? "Select a line or a dispatch to see its code."
      : dispatches[name]?.[shown] || `No ${shown === "ir" ? "IR" : "assembly"} of ${name} was kept.`;
  };
  listeners.push(update);
  update();
  return made;
}

const bySize = (names) =>
  [...names].sort((a, b) => (costs.get(b)?.milliseconds ?? 0) - (costs.get(a)?.milliseconds ?? 0));

function codeView() {
  const panes = [
    sourcePane(),
    stagePane("graph", "fx graph", graph, true),
    stagePane("ir", "Torch MLIR", ir, false),
    dispatchPane(),
  ];
  const view = element("div", { className: "panes" }, ...panes);
  listeners.push(() => mark(panes));
  return view;
}

// Highlight what is selected, and scroll each pane to the first of it that is out of sight.
function mark(panes) {
  for (const one of panes) {
    let first = null;
    for (const row of one.querySelectorAll(".line")) {
      const on = isSelected(row.dataset);
      row.classList.toggle("on", on);
      if (on && first === null) first = row;
    }
    if (first !== null) reveal(first);
  }
}

function isSelected({ place, dispatch, ops: numbers }) {
  if (place !== undefined)
    return place === selection.place ||
      (!selection.place && (opsOfPlace.get(place) ?? []).some((n) => selection.ops.has(n)));
  if (dispatch !== undefined) return selection.dispatches.has(dispatch);
  return !!numbers && numbers.split(" ").some((number) => selection.ops.has(Number(number)));
}

// Scroll the nearest scrolling box, and never the page.
function reveal(row) {
  const box = row.closest(".list, .body, .view");
  const [outer, inner] = [box.getBoundingClientRect(), row.getBoundingClientRect()];
  if (!outer.height) return;
  if (inner.top < outer.top || inner.bottom > outer.bottom)
    box.scrollTop += inner.top - outer.top - outer.height / 3;
}
