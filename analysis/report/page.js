"use strict";
// The page: controls, two plots, the picked run, the words and the table.

const PAGE_ROWS = 100;
const state = {
  x: "global_batch", y: "", color: "warmup_epochs", facet: "", xlog: true, ylog: false,
  query: "", hidden: new Set(), measure: "", curveLog: false,
  sort: "", descending: true, first: 0, picked: null, metric: "",
};
const byId = (id) => document.getElementById(id);
let runs = null, rows = [], colors = new Map(), dots = [], traces = [], curves = null;
let scatter = null, lines = null;

function choice(label, key, options, redraw) {
  const select = element("select", null, { id: `choose-${key}` });
  for (const option of options) select.append(element("option", option || "none", { value: option }));
  select.value = options.includes(state[key]) ? state[key] : (state[key] = options[0]);
  select.onchange = () => { state[key] = select.value; redraw(); };
  return labelled(label, select);
}

function tick(label, key, redraw) {
  const box = element("input", null, { type: "checkbox", checked: state[key], id: `tick-${key}` });
  box.onchange = () => { state[key] = box.checked; redraw(); };
  return labelled(label, box);
}

function labelled(text, control) {
  const label = element("label", text);
  label.append(control);
  return label;
}

function controls() {
  const names = [...runs.columns.keys()];
  const few = names.filter((name) => runs.levels(name).length <= 12);
  const search = element("input", null, {
    type: "search", id: "query", value: state.query, placeholder: "filter: words, or lr_rule=linear seed<3",
  });
  let later = 0;
  const narrow = () => { state.query = search.value; state.first = 0; refresh(); };
  search.oninput = () => { // many runs take a moment to draw: not at every key
    clearTimeout(later);
    if (runs.count <= 2000) narrow(); else later = setTimeout(narrow, 200);
  };
  const redraw = () => { state.hidden.clear(); refresh(); };
  fill("controls", [
    choice("x", "x", names, refresh), tick("log", "xlog", refresh),
    choice("y", "y", names, refresh), tick("log", "ylog", refresh),
    choice("colour", "color", names, redraw), choice("panels", "facet", ["", ...few], refresh),
    labelled("", search),
  ]);
  fill("curve-controls", [
    choice("measure", "measure", Object.keys(curves.measures), refresh), tick("log", "curveLog", refresh),
  ]);
}

function load(data) {
  if (data.metric.name !== state.metric) {
    state.metric = state.y = state.measure = state.sort = data.metric.name;
    state.descending = data.metric.mode === "max";
  }
  runs = new Runs(data);
  curves = { start: data.curves.start, epoch: floats(data.curves.epoch), measures: {} };
  for (const [name, packed] of Object.entries(data.curves.measures)) curves.measures[name] = floats(packed);
  byId("made").textContent = `${data.made.results.join(", ")}; ${data.made.at}; made by: ${data.made.command}`;
  fill("unread", data.unread.map((text) => element("li", `left out: ${text}`)));
  if (!runs.count) { byId("made").textContent += ". No runs yet."; return; }
  fill("summary", pairs(data.summary));
  fill("findings", data.findings.map((text) => element("li", text)));
  fill("claims", data.claims.flatMap(({ heading, verdicts }) => [element("p", heading), verdictTable(verdicts)]));
  fill("estimates", pairs(data.estimates));
  controls();
  refresh();
}

function verdictTable(verdicts) {
  const table = element("table");
  table.append(...verdicts.map(([verdict, text]) => {
    const row = element("tr");
    row.append(element("td", verdict, { className: verdict.split(" ")[0] }), element("td", text));
    return row;
  }));
  return table;
}

function pairs(list) { return list.flatMap(([name, text]) => [element("dt", name), element("dd", text)]); }

function refresh() {
  const levels = runs.levels(state.color);
  colors = colorOf(levels, runs.isNumber(state.color));
  rows = runs.matching(state.query).filter((i) => !state.hidden.has(runs.value(state.color, i)));
  legend(levels);
  drawScatter();
  drawLines();
  drawTable();
}

function legend(levels) {
  const entries = levels.slice(0, 40).map((level) => {
    const button = element("button", null, { className: state.hidden.has(level) ? "off" : "" });
    const spot = element("i");
    spot.style.background = colors.get(level);
    button.append(spot, element("span", typeof level === "number" ? FORMAT.format(level) : level));
    button.onclick = () => {
      if (!state.hidden.delete(level)) state.hidden.add(level);
      refresh();
    };
    return button;
  });
  fill("legend", [element("b", state.color), ...entries]);
}

function drawScatter() {
  scatter.clear();
  dots = [];
  const groups = state.facet ? runs.levels(state.facet).slice(0, 12) : [null];
  const boxes = panels(groups.length, scatter.width, scatter.height);
  const names = (key) => (runs.isNumber(state[key]) ? null : runs.levels(state[key]));
  const value = (key, list, i) => {
    const v = runs.value(state[key], i);
    return list ? list.indexOf(v) : v;
  };
  const [xs, ys] = [names("x"), names("y")];
  const ticks = xs ? [] : distinct(rows.map((i) => runs.value(state.x, i)), 10);
  groups.forEach((group, g) => {
    const box = boxes[g];
    const x = new Scale(rows.map((i) => value("x", xs, i)), state.xlog, box.left, box.right, xs, ticks);
    const y = new Scale(rows.map((i) => value("y", ys, i)), state.ylog, box.bottom, box.top, ys);
    scatter.axes(x, y, state.x, state.y, group === null ? "" : `${state.facet} ${group}`, box);
    for (const i of rows) {
      if (group !== null && runs.value(state.facet, i) !== group) continue;
      const px = x.pixel(value("x", xs, i));
      let py = y.pixel(value("y", ys, i));
      if (Number.isNaN(py) && runs.value("outcome", i) === "diverged") py = box.bottom - 6;
      if (Number.isNaN(px) || Number.isNaN(py)) continue;
      scatter.mark(px, py, colors.get(runs.value(state.color, i)) || "#999", runs.value("outcome", i));
      dots.push([px, py, i]);
    }
  });
  byId("scatter").dataset.marks = dots.length;
}

// The values in order if there are at most so many, for ticks where the runs are; else none.
function distinct(values, most) {
  const seen = new Set(values.filter((v) => v !== null));
  return seen.size <= most ? [...seen].sort((a, b) => a - b) : [];
}

function drawLines() {
  lines.clear();
  traces = [];
  const [box] = panels(1, lines.width, lines.height);
  const values = curves.measures[state.measure];
  const used = rows.filter((i) => curves.start[i + 1] > curves.start[i]);
  const each = function* (source) { for (const i of used) for (let k = curves.start[i]; k < curves.start[i + 1]; k++) yield source[k]; };
  const x = new Scale(each(curves.epoch), false, box.left, box.right);
  const y = new Scale(each(values), state.curveLog, box.bottom, box.top);
  lines.axes(x, y, "epoch", state.measure, "", box);
  const pen = lines.pen;
  pen.lineWidth = 1.2;
  pen.globalAlpha = Math.max(0.08, Math.min(0.9, 60 / used.length));
  for (const i of used) {
    pen.strokeStyle = colors.get(runs.value(state.color, i)) || "#999";
    pen.beginPath();
    let down = false;
    for (let k = curves.start[i]; k < curves.start[i + 1]; k++) {
      const py = y.pixel(values[k]);
      if (Number.isNaN(py)) { down = false; continue; }
      if (down) pen.lineTo(x.pixel(curves.epoch[k]), py); else pen.moveTo(x.pixel(curves.epoch[k]), py);
      down = true;
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
  traces = used.map((i) => ({ i, x, y }));
  byId("lines").dataset.lines = used.length;
}

function nearestDot(mx, my) {
  let best = null, least = 12 ** 2;
  for (const [x, y, i] of dots) {
    const far = (x - mx) ** 2 + (y - my) ** 2;
    if (far < least) [least, best] = [far, i];
  }
  return best;
}

function nearestLine(mx, my) {
  let best = null, least = 12;
  const values = curves.measures[state.measure];
  for (const { i, x, y } of traces) {
    const epoch = Math.round(x.a + ((mx - x.low) / (x.high - x.low)) * (x.b - x.a));
    const k = curves.start[i] + epoch - curves.epoch[curves.start[i]];
    if (k < curves.start[i] || k >= curves.start[i + 1]) continue;
    const far = Math.abs(y.pixel(values[k]) - my);
    if (far < least) [least, best] = [far, i];
  }
  return best;
}

const TIP = ["run_id", "outcome", "reason", "global_batch", "warmup_epochs", "lr_rule", "peak_lr", "seed"];
const TIP_END = ["val_loss", "epochs_completed", "wall_s"];

function hover(id, nearest) {
  const canvas = byId(id), tip = byId("tip");
  const at = (event) => nearest(event.offsetX, event.offsetY);
  canvas.onmousemove = (event) => {
    const i = runs && runs.count ? at(event) : null;
    tip.hidden = i === null;
    if (i === null) return;
    const own = [...runs.columns.values()].filter((c) => c.about === "from the config").map((c) => c.name);
    const told = [...new Set([...TIP, state.metric, ...TIP_END, ...own])].filter((name) => runs.columns.has(name));
    const log = (runs.data.logs[i] || "").trim().split("\n").slice(-3).join("\n");
    tip.textContent = told.map((name) => `${name}: ${runs.shown(name, i)}`).join("\n") + (log ? `\n\n${log}` : "");
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 430)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
  };
  canvas.onmouseleave = () => { tip.hidden = true; };
  canvas.onclick = (event) => { const i = at(event); if (i !== null) pick(i); };
}

function pick(i) {
  state.picked = i;
  const facts = [...runs.columns.keys()].map((name) => [name, runs.shown(name, i)]);
  const list = element("dl"), common = element("dl");
  list.append(...pairs(facts.filter(([, text]) => text !== "")));
  common.append(...pairs(Object.entries(runs.data.config)));
  fill("picked", [
    list, element("h3", "Config shared by all runs"), common,
    element("h3", "End of the log"), element("pre", runs.data.logs[i] || "not carried by this page"),
  ]);
  byId("picked-section").hidden = false;
  drawTable();
}

function drawTable() {
  const names = [...new Set([...TIP, ...runs.columns.keys()])].filter((name) => runs.columns.has(name));
  const order = runs.sorted(rows, state.sort, state.descending);
  byId("count").textContent = `${FORMAT.format(rows.length)} of ${FORMAT.format(runs.count)} runs`;
  const head = element("tr");
  for (const name of names) {
    const arrow = name === state.sort ? (state.descending ? " \u2193" : " \u2191") : "";
    const cell = element("th", name + arrow, { title: runs.columns.get(name).about });
    cell.onclick = () => {
      state.descending = name === state.sort ? !state.descending : true;
      state.sort = name;
      drawTable();
    };
    head.append(cell);
  }
  const shown = order.slice(state.first, state.first + PAGE_ROWS);
  fill("table", [head, ...shown.map((i) => {
    const row = element("tr", null, { className: i === state.picked ? "pick" : "" });
    row.append(...names.map((name) => element("td", runs.shown(name, i))));
    row.onclick = () => pick(i);
    return row;
  })]);
  byId("place").textContent = `${state.first + 1} to ${state.first + shown.length}`;
}

function turn(step) {
  const next = state.first + step;
  if (next >= 0 && next < rows.length) { state.first = next; drawTable(); }
}

async function watch(version) {
  try {
    const now = await (await fetch("version")).text();
    if (now !== version) load(await (await fetch("data.json")).json());
    setTimeout(watch, 3000, now);
  } catch {
    setTimeout(watch, 3000, version);
  }
}

scatter = new Canvas("scatter");
lines = new Canvas("lines");
hover("scatter", nearestDot);
hover("lines", nearestLine);
byId("before").onclick = () => turn(-PAGE_ROWS);
byId("after").onclick = () => turn(PAGE_ROWS);
window.onresize = () => { if (runs && runs.count) { drawScatter(); drawLines(); } };
const given = JSON.parse(byId("data").textContent);
if (given.data) load(given.data);
if (given.live) watch("");
document.body.dataset.ready = "yes";
