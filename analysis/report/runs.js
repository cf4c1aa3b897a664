"use strict";
// Runs as objects: filtering, keys of few values, means with intervals. No drawing.

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
const CURVE = Symbol("curve"), LOG = Symbol("log"), LINE = Symbol("line");

function words(value, unit) {
  if (typeof value !== "number") return value ?? "";
  return unit === "%" ? `${NUMBER.format(100 * value)} %` : NUMBER.format(value);
}

function runsOf(data) {
  const names = data.columns.map((column) => column.name);
  return Object.values(data.runs).map(([values, curve, log]) => {
    const run = Object.fromEntries(names.map((name, i) => [name, values[i]]));
    return Object.assign(run, { [CURVE]: curve, [LOG]: log });
  });
}

const SIGNS = {
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
};

// All words must hold of a run: text that it has anywhere, or a comparison of a column; a minus
// before a word negates it, and quotes hold spaces together. A share may be given in percent.
// `wrong` says which words no run can match.
function matcher(query, columns) {
  const wrong = [];
  const found = query.matchAll(/(-?)(?:([^\s"=<>!]+?)(!=|<=|>=|=|<|>))?("[^"]*"?|[^\s"]+)/g);
  const tests = [...found].map(([, minus, name, sign, quoted]) => {
    const text = quoted.replaceAll('"', ""), column = columns.get(name);
    const asked = (sign ? name + sign + text : text).toLowerCase();
    const bare = text.replace("%", "").replaceAll(",", ""), isShare = column?.unit === "%" && (bare > 1 || bare !== text);
    const value = column?.number ? Number(bare) / (isShare ? 100 : 1) : text;
    if (sign && !column) wrong.push(`no column is named ${name}`);
    if (Number.isNaN(value)) wrong.push(`${name} is a number, ${text} is none`);
    const test = column
      ? (run) => run[name] !== null && SIGNS[sign](run[name], value)
      : (run) => (run[LINE] ??= Object.values(run).join(" ").toLowerCase()).includes(asked);
    return minus ? (run) => !test(run) : test;
  });
  return Object.assign((run) => tests.every((test) => test(run)), { wrong });
}

// A column as keys: its values if they are few, else bins of equally many runs, by their medians,
// or its commonest names.
function keysOf(runs, column, most) {
  if (!column) return { levels: [""], of: () => "" };
  const { name } = column;
  const values = runs.map((run) => run[name]).filter((value) => value !== null);
  const levels = d3.sort(new Set(values));
  if (levels.length <= most) return { levels, of: (run) => run[name] };
  if (column.number) {
    const bin = d3.scaleQuantile(values, d3.range(most));
    const middle = d3.rollup(values, d3.median, bin);
    return {
      levels: d3.sort(new Set(middle.values())),
      of: (run) => (run[name] === null ? null : middle.get(bin(run[name]))),
    };
  }
  const counts = d3.rollups(values, (v) => v.length, (v) => v);
  const kept = d3.sort(counts, ([, count]) => -count).slice(0, most - 1).map(([level]) => level);
  return {
    levels: [...d3.sort(kept), "others"],
    of: (run) => (run[name] === null || kept.includes(run[name]) ? run[name] : "others"),
  };
}

// Mean and 95 % t interval of what finished, and the share that diverged with its Wilson interval.
// No interval of values that are all equal; that of shares is within 0 and 1.
function summary(runs, { name, unit }, student) {
  const values = [], ended = { finished: 0, diverged: 0 };
  for (const run of runs) {
    ended[run.outcome] += 1;
    if (run.outcome === "finished" && run[name] !== null) values.push(run[name]);
  }
  const count = values.length, mean = d3.mean(values);
  const t = student[Math.min(count - 2, student.length - 1)];
  const spread = count > 1 ? d3.deviation(values) : 0;
  const half = spread > 1e-9 * Math.abs(mean) ? (t * spread) / Math.sqrt(count) : NaN;
  const [least, most] = unit === "%" ? [0, 1] : [-Infinity, Infinity];
  const share = wilson(ended.diverged, ended.diverged + ended.finished);
  return { mean, low: Math.max(least, mean - half), high: Math.min(most, mean + half), count, diverged: ended.diverged, share };
}

function wilson(hits, count) {
  const z2 = 1.959964 ** 2, middle = (hits + z2 / 2) / (count + z2);
  const half = Math.sqrt(z2 * ((hits * (count - hits)) / count + z2 / 4)) / (count + z2);
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// Elements only ever get text: nothing from the data is parsed as markup.
function element(tag, text, attributes = {}, children = []) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);
function fill(id, children) { byId(id).replaceChildren(...children); }

function tableOf(heads, rows) {
  const head = element("tr", null, {}, heads.map((text) => element("th", text, { scope: "col" })));
  return element("table", null, {}, [head, ...rows.map((cells) =>
    element("tr", null, {}, cells.map((text) => element("td", text))))]);
}
