// The network as a row of blocks, each as high as its layer is wide: pale before, solid what is left.
function blockNames(names) {
  for (const depth of [3, 2, 1]) {
    const groups = names.map((name) => name.split(".").slice(0, -1).slice(0, depth).join(".") || name);
    if (new Set(groups).size <= 14 || depth === 1) return groups;
  }
}
function drawNetwork(id, layers, choose) {
  const box = fill(id);
  if (!layers.length) return box.append(el("p", { class: "quiet" }, "The widths of layers were not recorded by this run."));
  const height = 190, tops = 22, bottom = 36, widest = Math.max(...layers.map((layer) => layer.before));
  const groups = blockNames(layers.map((layer) => layer.name)), parents = layers.map((layer) => layer.name.split(".").slice(0, -1).join("."));
  const gaps = layers.map((_, i) => (i === 0 ? 0 : groups[i] !== groups[i - 1] ? 16 : parents[i] !== parents[i - 1] ? 6 : 2));
  const spare = gaps.reduce((sum, gap) => sum + gap, 0);
  const slot = Math.max(10, Math.min(44, ((box.clientWidth || 800) - spare - 4) / layers.length));
  const width = slot * layers.length + spare + 4, middle = tops + height / 2;
  const root = svg("svg", { width, height: tops + height + bottom, role: "group", "aria-label": "Widths of layers" });
  root.append(svg("line", { class: "grid", x1: 0, x2: width, y1: middle, y2: middle, "stroke-width": 2 }));
  const spans = [];
  let x = 2;
  layers.forEach((layer, i) => {
    x += gaps[i];
    const tall = (channels) => Math.max(channels ? 3 : 0, (channels / widest) * height), was = tall(layer.before), is = tall(layer.after);
    const lines = [layer.kind, `outputs: ${layer.after} of ${layer.before} (${percent(layer.after / layer.before)})`, `MACs: ${short(layer.macs[1])} of ${short(layer.macs[0])}`];
    const block = svg("g", { class: "block", tabindex: 0, role: "button", "aria-label": `${layer.name}: ${lines.join(", ")}`, ...hover(layer.name, layer.after ? lines : [...lines, "this layer is gone"]), onclick: () => choose(layer), onkeydown: (event) => event.key === "Enter" && choose(layer) });
    const thick = Math.max(slot - 2, 4);
    block.append(svg("rect", { x, y: tops, width: thick, height, fill: "transparent" }));
    block.append(svg("rect", { class: layer.after ? "before" : "before gone", x, y: middle - was / 2, width: thick, height: was, rx: Math.min(3, thick / 3) }));
    if (layer.after) block.append(svg("rect", { class: "after", x, y: middle - is / 2, width: thick, height: is, rx: Math.min(3, thick / 3) }));
    if (slot >= 24) block.append(svg("text", { x: x + thick / 2, y: middle - was / 2 - 6, "text-anchor": "middle" }, String(layer.after)));
    root.append(block);
    if (spans.length && spans.at(-1).name === groups[i]) spans.at(-1).to = x + thick; else spans.push({ name: groups[i], from: x, to: x + thick });
    x += slot;
  });
  for (const span of spans) {
    const room = Math.floor((span.to - span.from + 12) / 6.4), y = tops + height + 10;
    root.append(svg("path", { d: `M${span.from},${y - 4}v4h${span.to - span.from}v-4`, fill: "none", class: "axis", "stroke-opacity": 0.5 }));
    const parts = span.name.split(".");
    while (parts.length > 1 && parts.join(".").length > room) parts.shift();
    const words = parts.join(".").length <= room ? parts.join(".") : room > 4 ? parts[0].slice(0, room - 1) + "…" : "";
    if (words) root.append(svg("text", { x: (span.from + span.to) / 2, y: y + 16, "text-anchor": "middle" }, words));
  }
  box.append(root);
}
