"use strict";
// Figures by Observable Plot. What is drawn comes in; nothing here knows the page's controls.

// So many runs, or curves, are drawn as dots or lines; of more, means until fewer are in view.
const MOST_DOTS = 1500, MOST_LINES = 200, MOST_KEYS = 12, LEFT = 62;

// Dark to light as in print (analysis/figures/style.py), and for a dark page; names.
const ORDERED = {
  light: ["#120a32", "#4a2a9c", "#1f70c0", "#12867c", "#5f8a33", "#988a12", "#f06414"],
  dark: ["#a98bff", "#7fa2ff", "#4fb8ea", "#3fc9ae", "#9ccf5c", "#dcc94c", "#ff9d5c"],
};
const NAMED = {
  light: ["#0072b2", "#d55e00", "#007f5f", "#a0307a", "#000000", "#8c6d00", "#5b4fcf", "#7a3b1d", "#e0529c", "#777777", "#b5301f", "#2e4a1f"],
  dark: ["#5ab4f0", "#ff9a4d", "#3fcf9f", "#e07cc0", "#f2f2f2", "#d9b830", "#a79cff", "#d79a74", "#ff8fc6", "#a8a8a8", "#ff8274", "#9fcf7a"],
};
// Shapes of levels and their letters in a legend; of more than six, every other line is dashed.
const SHAPES = [["circle", "\u25cf"], ["square", "\u25a0"], ["triangle", "\u25b2"], ["diamond", "\u25c6"], ["star", "\u2605"], ["cross", "\u271a"]];
const shapeOf = (k) => SHAPES[k % SHAPES.length];
const dashOf = (k, count) => (count > SHAPES.length && k % 2 === 1 ? "5 3" : null);
const DIVERGED = { light: "#c1272d", dark: "#ff7a70" };

function colorsOf(levels, isNumber, theme) {
  const ordered = d3.piecewise(d3.interpolateRgb, ORDERED[theme]);
  const at = (i) => d3.color(ordered(levels.length > 1 ? i / (levels.length - 1) : 0.4)).formatHex();
  return new Map(levels.map((level, i) => [level, isNumber ? at(i) : NAMED[theme][i % NAMED[theme].length]]));
}

// How a column lies on an axis; logarithmic with room for 0.
function axis(column, values, isLog) {
  if (!column.number) return { type: "point", label: column.label, domain: d3.sort(new Set(values)) };
  const scale = { label: column.label, percent: column.unit === "%" };
  const lowest = d3.min(values), above = d3.min(values, (value) => (value > 0 ? value : undefined)) ?? 1;
  return isLog ? { ...scale, ...(lowest > 0 ? { type: "log", tickFormat: "~g" } : { type: "symlog", constant: above }) } : scale;
}

// Labels where the runs are, if that is at few places, slanted if they are close.
function ticksAt(column, values, width) {
  const levels = d3.sort(new Set(values));
  if (!column.number || levels.length > MOST_KEYS) return [];
  const scaled = levels.map((value) => (column.unit === "%" ? 100 * value : value));
  const isTight = d3.max(scaled, (value) => NUMBER.format(value).length) * 8 > width / levels.length;
  const look = isTight ? { tickRotate: -40, labelOffset: 56 } : {};
  return [Plot.axisX(scaled, { text: (value) => NUMBER.format(value), label: column.label, ...look })];
}

// What was seen fills at least a third of the height; longer bars are cut.
function heights(seen, ends) {
  const [low, high] = d3.extent(seen);
  if (low === undefined) return [0, 1];
  const room = high - low || 0.05 * Math.abs(high) || 1;
  const bottom = Math.max(d3.min([low, ...ends]), low - room), top = Math.min(d3.max([high, ...ends]), high + room);
  return [bottom - 0.04 * room, top + 0.04 * room];
}

// Panels in rows of four, each with its name; `of` says of a mark's data which panel it is in.
function panelsOf({ facets, width }) {
  const { levels } = facets, columns = Math.min(levels.length, 4);
  if (levels.length < 2) return { columns: 1, rows: 1, titles: [], of: () => ({}) };
  const place = new Map(levels.map((level, i) => [level, i]));
  const cut = { lineWidth: (width - LEFT) / columns / 14, textOverflow: "ellipsis-middle" }; // of letters of 12 pixels
  const of = (key) => ({ fx: (d) => place.get(key(d)) % columns, fy: (d) => Math.floor(place.get(key(d)) / columns) });
  const titles = [Plot.text(levels, { ...of((level) => level), text: (level) => `${facets.label} ${words(level)}`, frameAnchor: "top", dy: -12, fontWeight: "bold", ...cut })];
  return { columns, rows: Math.ceil(levels.length / columns), titles, of };
}

function plotted(view, panels, options) {
  return Plot.plot({
    width: view.width, height: 90 + panels.rows * (panels.rows > 1 ? 230 : 310), marginLeft: LEFT, marginTop: 26, marginBottom: 60,
    fx: { axis: null, paddingInner: 0.1, paddingOuter: 0 }, fy: { axis: null, paddingInner: 0.16, paddingOuter: 0 }, ariaLabel: view.label, style: { fontSize: "12px" }, ...options,
  });
}

function groupsOf(view) {
  const { runs, facets, colors, places, y } = view;
  const grouped = d3.flatGroup(runs, facets.of, colors.of, places.of);
  const sorted = d3.sort(grouped.filter((keys) => !keys.includes(null)), ...[0, 1, 2].map((i) => (keys) => keys[i]));
  return sorted.map(([facet, level, x, members]) =>
    ({ facet, level, x, isMixed: new Set(members.filter((run) => run.outcome === "finished").map(pointOf)).size > 1, ...summary(members, y, view.student) }));
}

// All but the seed of a run.
function pointOf(run) { return [run.compared, run.global_batch, run.warmup ?? run.warmup_epochs, run.lr_rule].join(); }

// Means with 95 % intervals, the seeds as small dots, crosses at the foot for what diverged.
function means(view) {
  const { runs, x, y, facets, colors, palette } = view;
  const groups = groupsOf(view), drawn = groups.filter((group) => group.count);
  const panels = panelsOf(view);
  const dots = runs.length <= MOST_DOTS ? runs.filter((run) => run[x.name] !== null) : [];
  const finished = (run) => run.outcome === "finished" && run[y.name] !== null;
  const across = runs.map((run) => run[x.name]).filter((value) => value !== null);
  const up = runs.filter((run) => run.outcome !== "diverged" && run[y.name] !== null).map((run) => run[y.name]);
  const xs = axis(x, across, view.xlog), domain = heights(up, drawn.flatMap((group) => (Number.isNaN(group.low) ? [] : [group.low, group.high])));
  const isLog = view.ylog && d3.min(up) > 0;
  if (isLog && domain[0] <= 0) domain[0] = d3.min(up) / 1.5; // bars that end below 0 are cut
  const foot = isLog ? domain[0] : -Infinity;
  const ys = { ...axis(y, up, isLog), domain: domain.map((v) => (y.unit === "%" ? 100 * v : v)), grid: true, nice: false };
  if (xs.type === "point") xs.domain = d3.sort(new Set(runs.map((run) => run[x.name])));
  const marks = colors.levels.flatMap((level, k) => {
    const color = palette.get(level), own = drawn.filter((group) => group.level === level);
    const seeds = dots.filter((run) => colors.of(run) === level);
    const shift = places(view) ? (k - (colors.levels.length - 1) / 2) * Math.min(7, 60 / colors.levels.length) : 0;
    const of = { dx: shift, clip: true, x: "x", ...panels.of((group) => group.facet) };
    const shared = { ...of, x: x.name, ...panels.of(facets.of) };
    const means = view.kind === "runs" && dots.length ? [] : own;
    const gaps = groups.filter((group) => !own.some(({ facet, x }) => facet === group.facet && x === group.x));
    return [
      Plot.dot(seeds.filter(finished), { ...shared, y: y.name, r: view.kind === "runs" ? 3 : 2, fill: color, fillOpacity: 0.6 }),
      Plot.dot(seeds.filter((run) => !finished(run) && run.outcome !== "diverged" && run[y.name] !== null), { ...shared, y: y.name, r: 3, stroke: color }),
      Plot.dot(seeds.filter((run) => run.outcome === "diverged"), { ...shared, clip: false, frameAnchor: "bottom", dy: -6, symbol: "times", stroke: color, strokeWidth: 1.8 }),
      Plot.ruleX(means.filter((group) => group.count > 1), { ...of, y1: (group) => Math.max(group.low, foot), y2: "high", stroke: color, strokeWidth: 1.6 }),
      Plot.line(means.length ? [...means, ...gaps.map((group) => ({ ...group, mean: NaN }))] : [], { ...of, y: "mean", z: (group) => group.facet, stroke: color, strokeOpacity: 0.45, strokeDasharray: dashOf(k, colors.levels.length), sort: "x" }),
      Plot.dot(means, { ...of, y: "mean", r: 4, symbol: shapeOf(k)[0], fill: color, stroke: "var(--paper)" }),
    ];
  });
  const pointed = [...dots.filter(finished), ...(view.kind === "runs" && dots.length ? [] : drawn)];
  const isRun = (d) => d.run_id !== undefined;
  const svg = plotted(view, panels, {
    x: xs, y: ys, insetLeft: 30, insetRight: 30,
    marks: [
      Plot.frame({ strokeOpacity: 0.25 }), ...panels.titles, ...ticksAt(x, across, (view.width - LEFT) / panels.columns - 60), ...marks,
      Plot.tip(pointed, Plot.pointer({
        x: (d) => (isRun(d) ? d[x.name] : d.x), y: (d) => (isRun(d) ? d[y.name] : d.mean), maxRadius: 14,
        ...panels.of((d) => (isRun(d) ? facets.of(d) : d.facet)), title: (d) => (isRun(d) ? view.about(d) : ofGroup(d, view)),
      })),
    ],
  });
  return { svg, groups, numDots: dots.length };
}

// Seeds at few places are moved apart, so that groups do not hide each other.
function places(view) { return view.places.levels.length <= MOST_KEYS && view.colors.levels.length > 1; }

function ofGroup(group, { x, y, colors, facets }) {
  const named = [[x.label, group.x], [colors.label, group.level], [facets.label, group.facet]].filter(([name]) => name);
  return [...named.map(([name, key]) => `${name}: ${words(key)}`), ...asText(group, y.unit)].join("\n");
}

function asText(group, unit) {
  const { mean, low, high, count, diverged, share } = group;
  const interval = !Number.isNaN(low) ? ` (95 %: ${words(low, unit)} to ${words(high, unit)})` : "";
  const lost = diverged ? [`${diverged} diverged (95 %: ${words(share[0], "%")} to ${words(share[1], "%")})`] : [];
  return [count ? `mean ${words(mean, unit)}${interval}` : "no run finished", `${count} finished`, ...lost];
}

// Curves by run, or of many runs the mean of each colour with the middle 90 % as a band.
function curves(view) {
  const { runs, palette, colors, measure, picked, theme } = view;
  const k = view.measures.indexOf(measure.name) + 1;
  const used = runs.filter((run) => run[CURVE].length), few = used.length <= MOST_LINES;
  const pointsOf = (run) => run[CURVE][0].map((epoch, i) => ({ run, epoch, value: run[CURVE][k][i] }));
  const shown = few ? used.flatMap(pointsOf) : [], chosen = used.filter((run) => picked.includes(run.run_id)).flatMap(pointsOf);
  const bands = few ? [] : d3.groups(used, colors.of).flatMap(([level, members]) => bandsOf(members, k).map((band) => ({ level, ...band })));
  const dashOfLevel = (level) => dashOf(colors.levels.indexOf(level), colors.levels.length);
  const ofRun = { x: "epoch", y: "value", z: (point) => point.run.run_id };
  const ends = few ? shown.map((point) => point.value) : bands.map((band) => band.low);
  const svg = plotted(view, { rows: 1 }, {
    x: { label: view.clock, tickFormat: (place) => (Number.isInteger(place) ? place.toLocaleString("en") : "") }, y: { ...axis(measure, ends, view.log), grid: true },
    marks: [
      Plot.frame({ strokeOpacity: 0.25 }),
      Plot.areaY(bands, { x: "epoch", y1: "low", y2: "high", z: "level", fill: (band) => palette.get(band.level), fillOpacity: 0.15 }),
      ...[null, "5 3"].flatMap((dash) => [
        Plot.line(bands.filter((band) => dashOfLevel(band.level) === dash), { x: "epoch", y: "mean", z: "level", stroke: (band) => palette.get(band.level), strokeWidth: 2, strokeDasharray: dash }),
        Plot.line(shown.filter((point) => dashOfLevel(colors.of(point.run)) === dash), { ...ofRun, stroke: (point) => palette.get(colors.of(point.run)) ?? "gray", strokeOpacity: picked.length ? 0.25 : 0.7, strokeWidth: 1.2, strokeDasharray: dash }),
      ]),
      Plot.line(chosen, { ...ofRun, stroke: (point) => [DIVERGED[theme], "currentColor"][picked.indexOf(point.run.run_id)], strokeWidth: 2.5 }),
      Plot.tip([...shown, ...chosen], Plot.pointer({ x: "epoch", y: "value", maxRadius: 14, title: (point) => `${view.clock === "epoch" ? `epoch ${point.epoch}` : `${point.epoch.toLocaleString("en")} ${view.clock}`}: ${words(point.value, measure.unit)}\n${view.about(point.run)}` })),
    ],
  });
  return { svg, numLines: few ? used.length : new Set(bands.map((band) => band.level)).size, isMean: !few };
}

// Mean and middle 90 % at each epoch of runs that did not diverge.
function bandsOf(members, k) {
  const at = new Map();
  for (const run of members) {
    if (run.outcome === "diverged") continue;
    run[CURVE][0].forEach((epoch, i) => {
      if (!at.has(epoch)) at.set(epoch, []);
      if (run[CURVE][k][i] !== null) at.get(epoch).push(run[CURVE][k][i]);
    });
  }
  return d3.sort(at, ([epoch]) => epoch).map(([epoch, values]) => {
    const sorted = Float64Array.from(values).sort();
    return { epoch, mean: d3.mean(sorted), low: d3.quantileSorted(sorted, 0.05), high: d3.quantileSorted(sorted, 0.95) };
  });
}
