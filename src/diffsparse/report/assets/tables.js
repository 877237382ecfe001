// Tables that can be sorted by a click on a heading and searched.
const tables = {};
function dataTable(id, { columns, rows, search, chosen, choose }) {
  // kept when the table is drawn again for another run
  const state = (tables[id] ??= { key: null, falling: false, words: "", top: 0 });
  const body = el("tbody"), count = el("p", { class: "quiet", role: "status" });
  const style = (column) => [column.text && "text", column.minor && "minor"].filter(Boolean).join(" ") || null;
  const heads = columns.map((column) => el("th", { scope: "col", class: style(column) }, el("button", { type: "button", onclick: () => sortBy(column) }, column.label)));
  const input = search && el("input", { type: "search", placeholder: search, "aria-label": search, oninput: () => { state.words = input.value; draw(); } });
  if (input) input.value = state.words;
  function sortBy(column) {
    // numbers first fall, names first rise
    state.falling = state.key === column.key ? !state.falling : !column.text;
    state.key = column.key;
    draw();
  }
  function draw() {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean), at = columns.findIndex((column) => column.key === state.key);
    const found = rows.filter((row) => words.every((word) => columns.some((column) => column.text && String(column.value(row)).toLowerCase().includes(word))));
    if (at >= 0) {
      const value = columns[at].value, sign = state.falling ? -1 : 1;
      found.sort((a, b) => {
        const [one, two] = [value(a), value(b)];
        if (one === null || two === null) return (one === null) - (two === null);
        return sign * (columns[at].text ? one.localeCompare(two, "en", { numeric: true }) : one - two);
      });
    }
    heads.forEach((head, i) => (i === at ? head.setAttribute("aria-sort", state.falling ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    body.replaceChildren(...found.map(rowOf));
    if (!found.length) body.append(el("tr", {}, el("td", { class: "none", colspan: columns.length }, "nothing found")));
    count.textContent = found.length === rows.length ? "" : `${found.length} of ${rows.length}`;
  }
  function rowOf(row) {
    const act = choose && { tabindex: 0, onclick: () => choose(row), onkeydown: (event) => event.key === "Enter" && choose(row) };
    return el("tr", { class: row === chosen ? "chosen" : null, ...act }, columns.map((column) => {
      const value = column.value(row), meter = column.share && column.share(row);
      const cell = el("td", { class: style(column), title: column.text ? value : null }, value === null ? "-" : column.show ? column.show(row) : column.text ? value : plainNumber(value));
      if (typeof meter === "number") cell.append(meterOf(meter, "span"));
      return cell;
    }));
  }
  draw();
  const box = el("div", { class: "table", onscroll: () => { state.top = box.scrollTop; } }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body));
  fill(id, input || null, count, box);
  box.scrollTop = state.top;
  return { find(words) { if (input) { input.value = words; state.words = words; draw(); } } };
}
function meterOf(share, name = "div") {
  const filled = el("i"), outer = el(name, { class: "meter", "aria-hidden": "true" }, filled);
  filled.style.width = Math.max(0, Math.min(1, share)) * 100 + "%";
  return outer;
}
function listOf(pairs) {
  return el("dl", {}, pairs.flatMap(([key, value, changed]) => [el("dt", {}, key), el("dd", { class: changed ? "changed" : null }, String(value))]));
}
