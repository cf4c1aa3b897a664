"use strict";
// The page: its state, which is in the address; controls, figures, compared runs and the table.

const PAGE_ROWS = 100;
const START = {
  group: 1, x: "global_batch", y: "", color: "", facet: "auto", kind: "means", xlog: true, ylog: false,
  query: "", hidden: [], measure: "", curvelog: false, sort: "", first: 0, picks: [], theme: "",
};
const FIRST = ["run_id", "outcome", "reason", "global_batch", "warmup", "warmup_epochs", "lr_rule", "peak_lr", "seed"];
const state = { ...START };
let data = null, runs = [], columns = new Map(), figures = {}, inView = [], built = "";

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(START)) {
    state[key] = value;
    try {
      if (given.has(key)) state[key] = typeof value === "string" ? given.get(key) : JSON.parse(given.get(key));
    } catch { /* cut short: as at the start */ }
    if (Array.isArray(value) !== Array.isArray(state[key])) state[key] = value;
  }
}

function toAddress() {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const differing = Object.keys(START).filter((key) => text(state[key]) !== text(START[key]));
  const address = new URLSearchParams(differing.map((key) => [key, text(state[key])]));
  if (`#${address}` !== (location.hash || "#")) history.replaceState(null, "", `#${address}`);
}

// What is asked for, or what the page begins with where these runs do not have it.
function column(key, otherwise) { return columns.get(state[key]) ?? columns.get(otherwise) ?? [...columns.values()][0]; }
function color() {
  const varied = ["warmup", "warmup_epochs", "optimizer", "compared", "lr_rule"].find((name) => new Set(runs.map((run) => run[name])).size > 1);
  return column("color", varied);
}
// Panels; as long as none are chosen, of runs that may be compared.
function panelColumn() {
  const name = state.facet === "auto" ? (data.groups.length > 1 ? "compared" : "lr_rule") : state.facet;
  return columns.has(name) && !(state.facet === "auto" && name === color().name) ? name : "";
}
function measure() { return state.measure && data.measures.includes(state.measure) ? state.measure : data.measures[0]; }
function theme() {
  const isDark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return isDark ? "dark" : "light";
}

function load(given) {
  data = given;
  runs = runsOf(data);
  columns = new Map(data.columns.map((column) => [column.name, column]));
  const { made } = data;
  document.title = byId("title").textContent = data.title;
  byId("made").textContent = `${made.results.join(", ")}; ${made.at}${runs.length ? "" : ". No runs yet."} Made by:`;
  fill("command", [commandBox(made.command)]);
  fill("unread", data.unread.map((text) => element("li", `left out: ${text}`)));
  byId("main").hidden = !runs.length;
  if (!runs.length) return;
  fill("summary", pairs(data.summary));
  fill("findings", data.findings.map((text) => element("li", text)));
  fill("claims", data.claims.flatMap(({ heading, verdicts }) => [element("h3", heading), verdictTable(verdicts)]));
  fill("advice", pairs(data.estimates.slice(0, 1)));
  fill("estimates", pairs(data.estimates.slice(1)));
  fill("next", pairs(data.next));
  refresh();
}

function verdictTable(verdicts) {
  return element("table", null, {}, verdicts.map(([verdict, text]) => element("tr", null, {}, [
    element("th", verdict, { className: verdict.split(" ")[0], scope: "row" }), element("td", text),
  ])));
}

function pairs(list) {
  return list.flatMap(([name, text, commands = []]) => [element("dt", name), element("dd", text, {}, commands.map(commandBox))]);
}

// Pages of files may not be given the clipboard: then by the selection.
function commandBox(command) {
  const code = element("code", command), button = element("button", "copy", { type: "button" });
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(command);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
  };
  return element("div", null, { className: "command" }, [code, button]);
}

function set(changes) {
  Object.assign(state, changes);
  refresh();
}

function choice(label, key, chosen, options) {
  const list = options.map(([value, text]) => element("option", text, { value, selected: value === chosen }));
  const select = element("select", null, { id: `choose-${key}` }, list);
  const isNumber = typeof START[key] === "number";
  select.onchange = () => set({ [key]: isNumber ? Number(select.value) : select.value, hidden: [] });
  return element("label", label, {}, [select]);
}

function tick(label, key) {
  const box = element("input", null, { type: "checkbox", checked: state[key], id: `tick-${key}` });
  box.onchange = () => set({ [key]: box.checked });
  return element("label", label, {}, [box]);
}

// Built only if what they offer or show changed, so that a refresh disturbs nobody's hand.
function controls() {
  const names = [...columns.values()].map(({ name, label }) => [name, label]);
  const numbers = names.filter(([name]) => columns.get(name).number);
  const groups = data.groups.map(({ title, about }, i) => [String(i + 1), `${i + 1}: ${[title, about].filter(Boolean).join("; ")}`]);
  const now = JSON.stringify([names, numbers, groups, data.measures, { ...state, query: "" }]);
  if (now === built) return;
  built = now;
  fill("answer-controls", groups.length > 1 ? [choice("runs", "group", String(state.group), groups)] : []);
  fill("controls", [
    choice("figure", "kind", state.kind, [["means", "means"], ["runs", "runs"]]),
    choice("x", "x", column("x").name, names), tick("log", "xlog"),
    choice("y", "y", column("y", data.metric.name).name, numbers), tick("log", "ylog"),
    choice("colour", "color", color().name, names),
    choice("panels", "facet", panelColumn(), [["", "one"], ...names]),
  ]);
  fill("curve-controls", [choice("measure", "measure", measure(), data.measures.map((name) => [name, data.labels[name]])), tick("log", "curvelog")]);
}

function refresh() {
  const focused = document.activeElement?.id;
  document.documentElement.style.colorScheme = state.theme || "light dark";
  byId("choose-theme").value = state.theme;
  if (byId("query").value !== state.query) byId("query").value = state.query;
  controls();
  const picked = state.picks.filter((run_id) => run_id in data.runs);
  const matches = matcher(state.query, columns);
  const view = {
    student: data.student, theme: theme(), width: byId("explore").clientWidth, about, picked,
    x: column("x"), y: column("y", data.metric.name), kind: state.kind, facet: panelColumn(),
    xlog: state.xlog, ylog: state.ylog, runs: runs.filter(matches),
  };
  draw("explore", withKeys(view, color(), state.hidden));
  legend("legend", view, state.hidden);
  inView = view.runs;
  const drawn = figures.explore, isMixed = drawn.groups.some((group) => group.isMixed);
  const mixed = isMixed ? "; some means are of runs that differ in more than the seed: other panels or colours part them" : "";
  say((drawn.numDots || !inView.length ? "" : `; means are drawn until ${NUMBER.format(MOST_DOTS)} runs or fewer are in view: filter them`) + mixed + matches.wrong.map((text) => `; ${text}`).join(""));
  drawAnswer(view);
  const name = measure(), unit = name.endsWith("accuracy") ? "%" : "";
  draw("curves", { ...view, runs: inView, measures: data.measures, measure: { name, unit, number: true, label: data.labels[name] }, log: state.curvelog, clock: data.clock, label: `${data.labels[name]} against the ${data.clock}` });
  compared(picked);
  drawTable();
  toAddress();
  if (focused && document.activeElement?.id !== focused) byId(focused)?.focus({ preventScroll: true });
}

function say(more) {
  byId("count").textContent = `${NUMBER.format(inView.length)} of ${NUMBER.format(runs.length)} runs${more}`;
}

// Colour, panels and places of a view, and without the runs whose colour is hidden.
function withKeys(view, color, hidden) {
  const facet = columns.get(view.facet);
  const colors = { label: color.label, ...keysOf(view.runs, color, MOST_KEYS) };
  const shown = hidden.length ? view.runs.filter((run) => !hidden.includes(String(colors.of(run)))) : view.runs;
  const facets = { label: facet?.label, ...keysOf(view.runs, facet, MOST_KEYS) }, places = keysOf(view.runs, view.x, 24);
  const palette = colorsOf(colors.levels, color.number, view.theme);
  const label = `${view.y.label} against ${view.x.label} by ${color.label}: ${shown.length} runs; its numbers are in the table below it`;
  return Object.assign(view, { runs: shown, colors, facets, places, palette, label });
}

function drawAnswer(view) {
  const number = String(Math.min(Math.max(1, state.group), data.groups.length)), group = data.groups[number - 1];
  const own = runs.filter((run) => String(run.compared) === number);
  const warmup = columns.has("warmup") ? "warmup" : "warmup_epochs";
  const isOne = new Set(own.map((run) => run[warmup])).size < 2; // then the rules are lines of one panel
  const main = {
    ...view, kind: "means", runs: own, x: columns.get("global_batch"), xlog: true, ylog: false,
    y: columns.get(data.metric.name), facet: isOne ? "" : "lr_rule", picked: [],
  };
  draw("answer", withKeys(main, columns.get(isOne ? "lr_rule" : warmup), []));
  legend("answer-legend", main);
  byId("answer-title").textContent = `${columns.get(data.metric.name).label} after the last epoch: ${group.title}`;
  byId("answer-note").textContent = [group.about, group.note].filter(Boolean).join(". ");
}

function draw(id, view) {
  const drawn = id === "curves" ? curves(view) : means(view);
  figures[id] = { ...drawn, view };
  drawn.svg.addEventListener("click", () => {
    const run = drawn.svg.value?.run ?? drawn.svg.value;
    if (run?.run_id) pick(run.run_id);
  });
  byId(id).replaceChildren(drawn.svg);
  byId(id).setAttribute("aria-label", view.label);
  if (!drawn.groups) return;
  const { x, y, colors, facets, facet } = view;
  const heads = [x.label, colors.label, ...(facet ? [facets.label] : []), "mean", "finished", "diverged"];
  byId(`${id}-numbers`).replaceChildren(tableOf(heads, drawn.groups.map((group) =>
    [words(group.x), words(group.level), ...(facet ? [words(group.facet)] : []), ...cells(asText(group, y.unit))])));
}

function cells([mean, finished, diverged = ""]) { return [mean, finished, diverged]; }

function legend(id, { colors, palette }, hidden) {
  const entries = colors.levels.map((level, i) => {
    const isOff = hidden?.includes(String(level)), spot = element("i", null, { "data-shape": shapeOf(i)[1] });
    spot.style.color = palette.get(level);
    if (!hidden) return element("span", null, {}, [spot, words(level)]);
    const button = element("button", null, { id: `level-${i}`, "aria-pressed": String(!isOff) }, [spot, words(level)]);
    button.onclick = () => set({ hidden: isOff ? hidden.filter((name) => name !== String(level)) : [...hidden, String(level)] });
    return button;
  });
  fill(id, [element("b", colors.label), ...entries]);
}

function about(run) {
  const own = data.columns.filter((column) => column.about === "from the config").map((column) => column.name);
  const named = [...new Set([...FIRST, data.metric.name, "val_loss", "epochs_completed", "wall_s", ...own])];
  const lines = named.filter((name) => run[name] !== null && columns.has(name)).map((name) => `${name}: ${words(run[name], columns.get(name).unit)}`);
  return [...lines, ...run[LOG].trim().split("\n").slice(-3)].map((line) => line.slice(0, 90)).join("\n").trim();
}

function pick(run_id) {
  const others = state.picks.filter((id) => id !== run_id);
  set({ picks: others.length < state.picks.length ? others : [...others.slice(-1), run_id] });
}

// One run, or two side by side: what differs first.
function compared(picked) {
  byId("picked-section").hidden = !picked.length;
  if (!picked.length) return fill("picked", []);
  const chosen = picked.map((run_id) => runs.find((run) => run.run_id === run_id));
  const rows = data.columns.map(({ name, unit, about }) => [name, ...chosen.map((run) => words(run[name], unit)), about]);
  const differing = picked.length > 1 ? rows.filter(([, a, b]) => a !== b) : rows.filter(([, a]) => a !== "");
  const alike = picked.length > 1 ? rows.filter(([, a, b]) => a === b && a !== "") : [];
  const heads = ["", ...picked, "meaning"];
  const shared = [...alike.map(([name, text]) => [name, text]), ...Object.entries(data.config)];
  fill("picked", [
    tableOf(heads, differing),
    element("details", null, {}, [element("summary", "What they share with each other and all runs' configs"), tableOf(["", "value"], shared)]),
    ...chosen.flatMap((run) => [element("h3", `End of the log of ${run.run_id}`), element("pre", run[LOG] || "not carried by this page")]),
  ]);
}

function drawTable() {
  const names = [...new Set([...FIRST, ...columns.keys()])].filter((name) => columns.has(name));
  const metric = `${data.metric.mode === "max" ? "-" : ""}${data.metric.name}`;
  const isDown = (state.sort || metric).startsWith("-"), by = (state.sort || metric).replace("-", "");
  const order = d3.sort(inView, (a, b) => (isDown ? d3.descending : d3.ascending)(a[by], b[by]) || 0);
  const known = [...order.filter((run) => run[by] !== null), ...order.filter((run) => run[by] === null)];
  const heads = names.map((name) => {
    const arrow = name === by ? (isDown ? " \u2193" : " \u2191") : "";
    const button = element("button", name + arrow, { id: `sort-${name}`, title: columns.get(name).about });
    button.onclick = () => set({ sort: name === by && isDown ? name : `-${name}`, first: 0 });
    return element("th", null, { scope: "col", "aria-sort": name !== by ? "none" : isDown ? "descending" : "ascending" }, [button]);
  });
  state.first = Math.max(0, Math.min(state.first, PAGE_ROWS * Math.floor((known.length - 1) / PAGE_ROWS)));
  const shown = known.slice(state.first, state.first + PAGE_ROWS);
  fill("table", [element("tr", null, {}, [element("th", "compare", { scope: "col" }), ...heads]), ...shown.map((run) => {
    const isPicked = state.picks.includes(run.run_id);
    const box = element("input", null, { type: "checkbox", checked: isPicked, id: `pick-${run.run_id}`, "aria-label": `compare ${run.run_id}` });
    box.onchange = () => pick(run.run_id);
    const values = names.map((name) => element("td", words(run[name], columns.get(name).unit)));
    return element("tr", null, { className: isPicked ? "pick" : "" }, [element("td", null, {}, [box]), ...values]);
  })]);
  byId("place").textContent = `${state.first + 1} to ${state.first + shown.length} of ${known.length}`;
}

async function begin() {
  const bytes = Uint8Array.from(atob(byId("data").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const given = await new Response(unpacked).json();
  fromAddress();
  let later = 0;
  byId("query").oninput = () => { // many runs take a moment to draw: not at every key
    clearTimeout(later);
    later = setTimeout(() => set({ query: byId("query").value, first: 0 }), runs.length > 500 ? 250 : 0);
  };
  byId("choose-theme").onchange = () => set({ theme: byId("choose-theme").value });
  byId("all").onclick = () => set({ hidden: [], query: "" });
  byId("csv").onclick = () => {
    const url = URL.createObjectURL(new Blob([d3.csvFormat(inView, [...columns.keys()])], { type: "text/csv" }));
    element("a", null, { href: url, download: "runs.csv" }).click();
    URL.revokeObjectURL(url);
  };
  byId("before").onclick = () => set({ first: state.first - PAGE_ROWS });
  byId("after").onclick = () => set({ first: state.first + PAGE_ROWS });
  const again = () => { if (runs.length) refresh(); };
  addEventListener("resize", again);
  addEventListener("hashchange", () => { fromAddress(); again(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  load(given);
  document.body.dataset.ready = "yes";
}

begin();
