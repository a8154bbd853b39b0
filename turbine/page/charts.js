// Pictures: time by module, the roofline, memory over time.

// A tree of modules; a module's own time is that of the ops that its forward calls itself.
function moduleTree() {
  const root = { name: "model", path: "", time: 0, own: [], all: [], children: new Map() };
  ops.forEach((op, number) => {
    let node = root;
    const path = [];
    for (const part of op.module ? op.module.split(".") : []) {
      node.time += data.times[number];
      node.all.push(number);
      path.push(part);
      if (!node.children.has(part))
        node.children.set(part, {
          name: part, path: path.join("."), time: 0, own: [], all: [], children: new Map(),
        });
      node = node.children.get(part);
    }
    node.time += data.times[number];
    node.all.push(number);
    node.own.push(number);
  });
  return root;
}

function flameView() {
  const view = element("div");
  const linked = data.times.reduce((sum, time) => sum + time, 0);
  const box = element("div", { className: "flame" });
  view.append(
    element("p", {
      className: "dim",
      textContent: `${figure(linked)} ms of ${figure(inside)} ms in dispatches, by module. ` +
        "The time of a dispatch is split among its ops by their estimated work. " +
        "Click a frame to zoom in, the top one to zoom out.",
    }),
    box,
  );
  const root = moduleTree();
  let zoomed = root;
  const draw = () => {
    box.replaceChildren();
    let depth = 0;
    const place = (node, left, width, level) => {
      if (width < 0.0008) return;
      depth = Math.max(depth, level);
      const frame = element("button", {
        className: "frame", textContent: `${node.name} ${milliseconds(node.time)}`,
        title: `${node.path || "model"}: ${figure(node.time)} ms, ${percent(node.time / (inside || 1))}`,
      });
      Object.assign(frame.style, {
        left: 100 * left + "%", width: 100 * width + "%", top: 23 * level + "px",
        background: color(node.path),
      });
      frame.dataset.module = node.path;
      frame.classList.toggle("on", selection.module === node.path);
      frame.onclick = () => {
        zoomed = node === zoomed ? parentOf(root, node) : node;
        selectModule(node.path, node.all);
      };
      box.append(frame);
      let next = left;
      const children = [...node.children.values()].sort((a, b) => b.time - a.time);
      for (const child of children) {
        const part = node.time ? (width * child.time) / node.time : 0;
        place(child, next, part, level + 1);
        next += part;
      }
    };
    place(zoomed, 0, 1, 0);
    box.style.height = 23 * (depth + 1) + "px";
  };
  listeners.push(draw);
  draw();
  if (!linked) view.replaceChildren(empty("No time could be given to modules: the program has no graph, or was not measured."));
  return view;
}

function parentOf(root, node) {
  let found = root;
  for (const part of node.path.split(".").slice(0, -1)) found = found.children.get(part) ?? found;
  return found;
}

// Modules of one name have one colour: layer.0.attention and layer.1.attention.
function color(path) {
  let hash = 7;
  for (const c of path.replace(/\d+/g, "#")) hash = (hash * 31 + c.charCodeAt(0)) % 9973;
  return `hsl(${(hash * 47) % 360} 62% 78%)`;
}

// A chart with logarithmic or linear axes; all of it is text, so that it needs no namespace.
function chart({ x, y, width = 1000, height = 430 }, draw) {
  const [left, right, top, bottom] = [70, width - 20, 14, height - 42];
  const scale = (axis, from, to) => (value) => {
    const [a, b, v] = axis.log ? [axis.min, axis.max, value].map(Math.log10) : [axis.min, axis.max, value];
    return from + ((to - from) * (v - a)) / (b - a || 1);
  };
  const [sx, sy] = [scale(x, left, right), scale(y, bottom, top)];
  const parts = [];
  for (const tick of ticks(x))
    parts.push(
      `<line class="grid" x1="${sx(tick)}" x2="${sx(tick)}" y1="${top}" y2="${bottom}"/>`,
      `<text class="axis" text-anchor="middle" x="${sx(tick)}" y="${bottom + 16}">${x.format(tick)}</text>`,
    );
  for (const tick of ticks(y))
    parts.push(
      `<line class="grid" y1="${sy(tick)}" y2="${sy(tick)}" x1="${left}" x2="${right}"/>`,
      `<text class="axis" text-anchor="end" x="${left - 6}" y="${sy(tick) + 4}">${y.format(tick)}</text>`,
    );
  parts.push(
    `<text class="axis" text-anchor="end" x="${right}" y="${height - 6}">${x.title}</text>`,
    `<text class="axis" x="${left + 6}" y="${top + 12}">${y.title}</text>`,
    draw(sx, sy),
  );
  const box = element("div", { className: "chart" });
  box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img">${parts.join("")}</svg>`;
  return box;
}

function ticks({ min, max, log }) {
  const found = [];
  if (log) {
    for (let power = Math.ceil(Math.log10(min)); 10 ** power <= max; power++) found.push(10 ** power);
    return found;
  }
  const rough = (max - min) / 6;
  const unit = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((size) => size >= rough) ?? unit;
  for (let tick = Math.ceil(min / step) * step; tick <= max; tick += step) found.push(tick);
  return found;
}

function rooflineView() {
  const view = element("div");
  const points = data.costs
    .filter((cost) => cost.gflops && cost.gbytes)
    .map((cost) => ({ ...cost, intensity: cost.gflops / cost.gbytes }));
  if (!points.length || !data.peak) {
    view.append(empty("No dispatch has both a known count of operations and of bytes, or the machine was not measured."));
    return view;
  }
  const [operations, bandwidth] = [data.peak.operations / 1e9, data.peak.bandwidth / 1e9];
  const ridge = operations / bandwidth;
  const spread = (values) => [Math.min(...values) / 2, Math.max(...values) * 2];
  const [xmin, xmax] = spread([...points.map((p) => p.intensity), ridge]);
  const [ymin, ymax] = spread([...points.map((p) => p.gflops), operations]);
  const most = Math.max(...points.map((p) => p.milliseconds));
  const axes = {
    x: { min: xmin, max: xmax, log: true, format: figure, title: "operations for each byte" },
    y: { min: ymin, max: ymax, log: true, format: figure, title: "GFLOP/s" },
  };
  const picture = chart(axes, (sx, sy) => {
    const start = Math.max(xmin, ymin / bandwidth);
    const roof = `M${sx(start)} ${sy(start * bandwidth)} L${sx(ridge)} ${sy(operations)} L${sx(xmax)} ${sy(operations)}`;
    const dots = points.map((p) =>
      `<circle class="dot" data-dispatch="${escapeText(p.name)}" cx="${sx(p.intensity)}" cy="${sy(p.gflops)}" ` +
      `r="${4 + 14 * Math.sqrt(p.milliseconds / most)}"><title>${escapeText(p.name)}\n${figure(p.gflops)} GFLOP/s, ` +
      `${figure(p.gbytes)} GB/s, ${figure(p.milliseconds)} ms</title></circle>`);
    return `<path class="roof" d="${roof}"/>` + dots.join("");
  });
  const rest = data.costs.length - points.length;
  view.append(
    element("p", {
      className: "dim",
      textContent: `The line is what this machine was measured to do: ${figure(operations)} GFLOP/s in float32, ` +
        `${figure(bandwidth)} GB/s. The area of a dot grows with time.` +
        (rest ? ` ${plural(rest, "dispatch")} without operations or of unknown size ${rest === 1 ? "is" : "are"} not drawn.` : ""),
    }),
    picture,
  );
  picture.onclick = (event) => {
    const name = event.target.dataset?.dispatch;
    if (name) selectDispatch(name);
  };
  listeners.push(() => {
    for (const dot of picture.querySelectorAll(".dot"))
      dot.classList.toggle("on", selection.dispatches.has(dot.dataset.dispatch));
  });
  return view;
}

function memoryView() {
  const view = element("div");
  const points = data.memory;
  if (!points.length) {
    view.append(empty("No allocations were recorded."));
    return view;
  }
  const [first, last] = [points[0].time, points[points.length - 1].time];
  const peak = Math.max(...points.map((point) => point.bytes));
  const axes = {
    x: { min: first / 1e3, max: last / 1e3 || 1, format: figure, title: "ms" },
    y: { min: 0, max: peak * 1.08, format: bytes, title: "" },
  };
  view.append(
    element("p", {
      className: "dim",
      textContent: `Memory that the program holds while it is called ${data.facts["calls measured"] ?? "several"} times: ` +
        `results, intermediate values, and what is computed when it is loaded. At most ${bytes(peak)}. ` +
        "Weights in the file and arguments are not counted.",
    }),
    chart(axes, (sx, sy) => {
      let path = `M${sx(first / 1e3)} ${sy(0)}`;
      let before = 0;
      for (const point of points) {
        path += ` L${sx(point.time / 1e3)} ${sy(before)} L${sx(point.time / 1e3)} ${sy(point.bytes)}`;
        before = point.bytes;
      }
      return `<path class="area" d="${path} L${sx(last / 1e3)} ${sy(0)} Z"/>`;
    }),
  );
  return view;
}
