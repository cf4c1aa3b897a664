"use strict";
// Columns of runs: reading, filtering, sorting. No drawing.

const FORMAT = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

class Runs {
  constructor(data) {
    this.data = data;
    this.count = data.num_runs;
    this.columns = new Map(data.columns.map((column) => [column.name, column]));
    this.text = null;
  }
  isNumber(name) { return "values" in this.columns.get(name); }
  value(name, i) {
    const column = this.columns.get(name);
    return "values" in column ? column.values[i] : column.levels[column.codes[i]];
  }
  shown(name, i) {
    const value = this.value(name, i);
    if (value === null) return "";
    return typeof value === "number" ? FORMAT.format(value) : value;
  }
  levels(name) {
    const seen = new Set();
    for (let i = 0; i < this.count; i++) seen.add(this.value(name, i));
    const all = [...seen].filter((v) => v !== null && v !== "");
    return all.sort((a, b) => (typeof a === "number" ? a - b : a < b ? -1 : 1));
  }
  // Words must all occur in a row; column=value, column<value and column>value compare.
  matching(query) {
    const words = query.trim().split(/\s+/).filter(Boolean);
    const tests = words.map((word) => this.test(word));
    const rows = [];
    for (let i = 0; i < this.count; i++) if (tests.every((test) => test(i))) rows.push(i);
    return rows;
  }
  test(word) {
    const parts = /^([\w.]+)(=|<|>)(.*)$/.exec(word);
    if (parts && this.columns.has(parts[1])) {
      const [, name, sign, wanted] = parts;
      const number = Number(wanted);
      if (sign === "=" && !this.isNumber(name)) return (i) => String(this.value(name, i)) === wanted;
      if (sign === "=") return (i) => this.value(name, i) === number;
      return (i) => {
        const value = this.value(name, i);
        return value !== null && (sign === "<" ? value < number : value > number);
      };
    }
    const lower = word.toLowerCase();
    return (i) => this.line(i).includes(lower);
  }
  line(i) {
    if (!this.text) {
      const names = [...this.columns.keys()];
      this.text = Array.from({ length: this.count }, (_, row) =>
        names.map((name) => this.value(name, row)).join(" ").toLowerCase());
    }
    return this.text[i];
  }
  sorted(rows, name, descending) {
    const sign = descending ? -1 : 1;
    const key = (i) => this.value(name, i);
    return [...rows].sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === y) return a - b;
      if (x === null || x === "") return 1;
      if (y === null || y === "") return -1;
      return (x < y ? -1 : 1) * sign;
    });
  }
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// Elements only ever get text: nothing from the data is parsed as markup.
function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made[name] = value;
  return made;
}

function fill(id, children) { document.getElementById(id).replaceChildren(...children); }
