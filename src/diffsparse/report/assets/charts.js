// Line charts and the trade-off, as SVG with numbers on hover.
const COLOURS = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];

function niceTicks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1, raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}
function frame(box, height, [x0, x1], [y0, y1], { x: formatX, y: formatY, xLabel, yTicks, xTicks }) {
  const width = Math.max(box.clientWidth, 240), edge = { left: 48, right: 14, top: 10, bottom: xLabel ? 38 : 24 };
  const across = (x) => edge.left + ((x - x0) / (x1 - x0 || 1)) * (width - edge.left - edge.right);
  const up = (y) => height - edge.bottom - ((y - y0) / (y1 - y0 || 1)) * (height - edge.top - edge.bottom);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const tick of yTicks || niceTicks(y0, y1)) {
    root.append(svg("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: up(tick), y2: up(tick) }));
    root.append(svg("text", { x: edge.left - 8, y: up(tick) + 4, "text-anchor": "end" }, formatY(tick)));
  }
  for (const tick of xTicks || niceTicks(x0, x1, width < 420 ? 4 : 7)) {
    root.append(svg("text", { x: across(tick), y: height - edge.bottom + 17, "text-anchor": "middle" }, formatX(tick)));
  }
  if (xLabel) root.append(svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  return { root, across, up, width, height, edge };
}
function swatch(colour, dashed, shape) {
  const line = svg("line", { x1: 0, x2: 16, y1: 5, y2: 5, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dashed ? "4 3" : null });
  return svg("svg", { width: 16, height: 10 }, shape === undefined ? line : marker(shape, 8, 5, { fill: colour, transform: "translate(8 5) scale(0.8)" }));
}

// Curves over epochs; `limits` are dashed lines across, `moments` lines from top to bottom.
function lineChart(id, { title, epochs, series, limits = [], moments = [], format, low = 0, high, label }) {
  const shown = series.filter((one) => one.values.some((value) => value !== null));
  const box = fill(id, el("h3", {}, title));
  if (!shown.length) return box.append(el("p", { class: "quiet" }, "Not recorded by this run."));
  const every = [...shown.flatMap((one) => one.values.filter((value) => value !== null)), ...limits.map((limit) => limit.value)];
  const top = high ?? Math.max(...every) * 1.05;
  box.append(el("div", { class: "legend" },
    shown.map((one) => el("span", {}, swatch(one.colour), one.name)),
    limits.map((limit) => el("span", {}, swatch(limit.colour, true), limit.name))));
  const whole = [Math.min(epochs[0], 1), Math.max(epochs.at(-1), 2)];
  const xTicks = [...new Set(niceTicks(...whole, 6).map(Math.round))].filter((tick) => tick >= whole[0] && tick <= whole[1]);
  const chart = frame(box, 236, whole, [low, top], { x: String, y: format, xLabel: "epoch", xTicks });
  for (const limit of limits) chart.root.append(svg("line", { class: "limit", x1: chart.edge.left, x2: chart.width - chart.edge.right, y1: chart.up(limit.value), y2: chart.up(limit.value), stroke: limit.colour, "stroke-width": 1.5, "stroke-dasharray": "5 4" }));
  for (const [at, words] of moments) {
    const x = chart.across(Math.max(at, whole[0])), right = x > chart.width - 110;
    chart.root.append(svg("line", { class: "moment", x1: x, x2: x, y1: chart.edge.top, y2: chart.height - chart.edge.bottom, "stroke-dasharray": "2 3" }));
    chart.root.append(svg("text", { class: "strong", x: x + (right ? -6 : 6), y: chart.edge.top + 10, "text-anchor": right ? "end" : "start" }, words));
  }
  for (const one of shown) {
    const points = epochs.map((epoch, i) => [epoch, one.values[i]]).filter(([, value]) => value !== null).map(([x, y]) => `${chart.across(x).toFixed(1)},${chart.up(Math.min(y, top)).toFixed(1)}`);
    chart.root.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-linejoin": "round" }));
    if (points.length < 40) for (const point of points) chart.root.append(svg("circle", { cx: point.split(",")[0], cy: point.split(",")[1], r: 2.5, fill: one.colour }));
  }
  const cross = svg("line", { class: "axis", y1: chart.edge.top, y2: chart.height - chart.edge.bottom, visibility: "hidden" });
  const move = (event) => {
    const x = event.clientX - chart.root.getBoundingClientRect().left;
    const i = epochs.reduce((best, epoch, at) => (Math.abs(chart.across(epoch) - x) < Math.abs(chart.across(epochs[best]) - x) ? at : best), 0);
    cross.setAttribute("x1", chart.across(epochs[i])); cross.setAttribute("x2", chart.across(epochs[i])); cross.setAttribute("visibility", "visible");
    tip.show(event, "epoch " + epochs[i], shown.filter((one) => one.values[i] !== null).map((one) => `${one.name}: ${(label || format)(one.values[i])}`));
  };
  chart.root.append(cross, svg("rect", { class: "catch", x: chart.edge.left, y: 0, width: chart.width - chart.edge.left, height: chart.height, fill: "transparent", onpointermove: move, onpointerdown: move, onpointerleave: () => { cross.setAttribute("visibility", "hidden"); tip.hide(); } }));
  box.append(chart.root);
}

function marker(shape, x, y, attributes) {
  const paths = ["M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0", "M-4.5,-4.5h9v9h-9z", "M0,-6l6,6l-6,6l-6,-6z", "M0,-6l6,10h-12z", "M0,6l6,-10h-12z", "M-2,-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z"];
  return svg("path", { d: paths[shape % paths.length], transform: `translate(${x} ${y})`, ...attributes });
}
// One point per run: `cost(run)` across, the headline figure up.
function tradeOff(id, runs, { cost, costName, chosen, choose }) {
  const shown = runs.filter((run) => run.headline.name === chosen.headline.name && cost(run) !== null);
  const methods = [...new Set(shown.map((run) => run.method))], box = fill(id);
  if (!shown.length) return box.append(el("p", { class: "quiet" }, "These runs did not record this cost."));
  const values = shown.map((run) => run.headline.value), spread = Math.max(...values) - Math.min(...values) || Math.abs(values[0]) * 0.1 || 1;
  const format = FORMATS[chosen.headline.format], digits = Math.max(0, Math.ceil(-Math.log10(spread * 100)) + 1);
  const up = chosen.headline.format === "percent" ? (value) => percent(value, Math.min(digits, 2)) : format;
  box.append(el("div", { class: "legend" }, el("strong", {}, chosen.headline.label), methods.map((name, i) => el("span", {}, swatch(COLOURS[i % 6], false, i), name))));
  const chart = frame(box, 300, [0, Math.max(1, ...shown.map(cost)) * 1.03], [Math.min(...values) - spread * 0.12, Math.max(...values) + spread * 0.12], { x: (share) => percent(share, 0), y: up, xLabel: costName + " left, share of the whole network" });
  const order = [...shown].sort((a, b) => (a === chosen) - (b === chosen));
  for (const run of order) {
    const i = methods.indexOf(run.method), lines = [`${run.headline.label}: ${format(run.headline.value)}`, `${costName} left: ${percent(cost(run))}`, `method: ${run.method}`];
    const mark = marker(i, chart.across(cost(run)), chart.up(run.headline.value), { class: "point" + (run === chosen ? " chosen" : ""), fill: COLOURS[i % 6], tabindex: 0, role: "button", "aria-label": `${run.name}: ${lines.join(", ")}`, ...hover(run.name, lines), onclick: () => choose(run), onkeydown: (event) => event.key === "Enter" && choose(run) });
    chart.root.append(mark);
  }
  box.append(chart.root);
}
