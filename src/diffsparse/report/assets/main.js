// The page: what is chosen, and everything that follows from it.
const runs = JSON.parse(place("data").textContent);
const METRICS = { macs: "MACs", params: "parameters", bytes: "file size", seconds: "time" };
const state = { run: runs[0], metric: "macs" };

function costOf(run, metric = state.metric) {
  const card = run.cards.find((one) => one.key === metric);
  return card && card.before && card.after !== null && !card.unsure ? card.after / card.before : null;
}
function choose(run) { state.run = run; place("run").value = runs.indexOf(run); draw(); }

function drawOverview() {
  if (runs.length < 2) return;
  place("overview").hidden = place("chooser").hidden = false;
  fill("metrics", Object.entries(METRICS).filter(([key]) => runs.some((run) => costOf(run, key) !== null)).map(([key, name]) =>
    el("button", { type: "button", "aria-pressed": String(key === state.metric), onclick: () => { state.metric = key; drawOverview(); } }, name)));
  tradeOff("trade-off", runs, { cost: costOf, costName: METRICS[state.metric], chosen: state.run, choose });
}
function drawRuns() {
  if (runs.length < 2) return;
  const names = [...new Set(runs.map((run) => run.headline.label))];
  const figures = names.map((label) => ({ key: label, label, value: (run) => (run.headline.label === label ? run.headline.value : null), show: (run) => FORMATS[run.headline.format](run.headline.value) }));
  const costs = Object.entries(METRICS).filter(([key]) => runs.some((run) => costOf(run, key) !== null)).map(([key, name]) => ({ key, label: name, value: (run) => costOf(run, key), show: (run) => percent(costOf(run, key)), share: key === "macs" ? (run) => costOf(run, key) : null }));
  dataTable("runs", {
    columns: [{ key: "name", label: "run", text: true, value: (run) => run.name }, { key: "method", label: "method", text: true, value: (run) => run.method }, { key: "model", label: "network", text: true, minor: true, value: (run) => run.model },
      ...figures, ...costs, { key: "train", label: "training", value: (run) => run.seconds, show: (run) => duration(run.seconds) }],
    rows: runs, search: runs.length > 5 ? "Search runs" : null, chosen: state.run, choose,
  });
}
function cardOf(card) {
  const format = FORMATS[card.format], left = card.before ? card.after / card.before : null;
  if (card.after === null) return el("div", { class: "card" }, el("div", { class: "label" }, card.label), el("div", { class: "now" }, "-"), el("div", { class: "was" }, "not recorded"));
  const was = el("div", { class: "was" }, card.before === null ? card.note || "" : `before ${format(card.before)}`);
  const head = el("div", { class: "card" }, el("div", { class: "label" }, card.label), el("div", { class: "now" }, format(card.after)), was);
  if (card.unsure) head.append(el("div", { class: "note" }, "machine was busy: not comparable"));
  else if (card.cost && left !== null) {
    head.append(el("div", { class: "left" }, meterOf(left), el("span", {}, percent(left) + " left")));
  } else if (card.before !== null) head.append(el("div", { class: "note" }, card.note));
  return head;
}
function layersOf(run) {
  return run.layers.map(([name, kind, inputs, outputs, params, macs]) => ({ name, kind, inputs, params, macs, before: outputs[0], after: outputs[1] }));
}
function drawCurves() {
  const run = state.run;
  const shares = { macs: "MACs", params: "parameters", bytes: "bytes", latency: "latency" };
  const colour = { macs: COLOURS[0], params: COLOURS[2], bytes: COLOURS[1], latency: COLOURS[3] };
  lineChart("cost-curve", {
    title: "Cost, share of the whole network", epochs: run.curve.epochs, moments: run.curve.moments, format: (share) => percent(share, 0), label: percent, high: 1.05,
    series: Object.keys(shares).filter((key) => key === "macs" || key === "params" || key in run.asked).map((key) => ({ name: shares[key], values: run.curve.series[key + "_share"] || [], colour: colour[key] })),
    limits: Object.entries(run.asked).map(([key, value]) => ({ name: `budget ${percent(value)} of ${shares[key]}`, value, colour: colour[key] })),
  });
  const losses = ["train_loss", "validation_loss", "test_loss"];
  lineChart("loss-curve", {
    title: "Loss", epochs: run.curve.epochs, moments: run.curve.moments, format: (loss) => String(Number(loss.toPrecision(3))),
    series: losses.map((key, i) => ({ name: key.replace("_", " "), values: run.curve.series[key] || [], colour: COLOURS[[1, 2, 0][i]] })),
  });
  drawNetwork("network", layersOf(run), (layer) => { state.table.find(layer.name); place("layers").scrollIntoView({ block: "center" }); });
}
function drawRun() {
  const run = state.run, first = run.headline;
  fill("cards", cardOf({ label: first.label, format: first.format, after: first.value, before: first.before, note: first.note }), run.cards.map(cardOf));
  fill("remark", run.remark);
  const layers = layersOf(run);
  const both = (key, label) => ({ key, label, value: (layer) => layer[key][1], show: (layer) => `${short(layer[key][1])} of ${short(layer[key][0])}` });
  state.table = dataTable("layers", {
    columns: [{ key: "name", label: "layer", text: true, value: (layer) => layer.name }, { key: "kind", label: "kind", text: true, minor: true, value: (layer) => layer.kind },
      { key: "before", label: "outputs before", minor: true, value: (layer) => layer.before }, { key: "after", label: "outputs after", value: (layer) => layer.after },
      { key: "left", label: "left", value: (layer) => layer.after / layer.before, show: (layer) => percent(layer.after / layer.before), share: (layer) => layer.after / layer.before },
      both("inputs", "inputs"), both("params", "parameters"), both("macs", "MACs")],
    rows: layers, search: "Search layers",
  });
  fill("commands", run.commands.map(commandOf));
  const changed = run.config.filter(([, , other]) => other);
  fill("changed", changed.length ? listOf(changed) : el("p", { class: "quiet" }, "none"));
  fill("config", listOf(run.config));
  fill("figures", listOf(run.figures));
  fill("versions", listOf(run.versions));
}
function commandOf(text) {
  const button = el("button", { type: "button", class: "ghost", onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { getSelection().selectAllChildren(words); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy"), words = el("pre", {}, text);
  return el("div", { class: "command" }, words, button);
}
function draw() { tip.hide(); drawOverview(); drawRuns(); drawRun(); drawCurves(); }

function isDark() { return (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark"; }
place("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("diffsparse-theme", document.documentElement.dataset.theme); } catch { /* not kept then */ }
});
try { const kept = localStorage.getItem("diffsparse-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* as the system says */ }
fill("run", runs.map((run, i) => el("option", { value: i }, run.name)));
place("run").addEventListener("change", (event) => choose(runs[event.target.value]));
let wide = innerWidth;
addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; requestAnimationFrame(() => { drawOverview(); drawCurves(); }); } });
draw();
