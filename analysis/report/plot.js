"use strict";
// Axes and marks on a canvas. Knows nothing of runs.

const PALETTE = ["#440154", "#3b528b", "#21908c", "#27ad5f", "#b5c100", "#e07b00", "#c1272d", "#8c4fa8", "#6b6b6b", "#1f9bd1", "#a0522d", "#ff69b4"];

// Dark to light for an ordered quantity, distinct hues for names.
function colorOf(levels, isNumber) {
  const stops = ["#440154", "#3b528b", "#21908c", "#5ec962", "#c8b900"];
  const at = (i) => {
    if (!isNumber || levels.length <= 5) return (isNumber ? stops : PALETTE)[i % (isNumber ? 5 : PALETTE.length)];
    const place = (i / (levels.length - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return mix(stops[low], stops[low + 1], place - low);
  };
  return new Map(levels.map((level, i) => [level, at(i)]));
}

function mix(a, b, share) {
  const part = (text, k) => parseInt(text.slice(1 + 2 * k, 3 + 2 * k), 16);
  const mixed = [0, 1, 2].map((k) => Math.round(part(a, k) * (1 - share) + part(b, k) * share));
  return "#" + mixed.map((v) => v.toString(16).padStart(2, "0")).join("");
}

class Scale {
  constructor(values, isLog, low, high, names = null, levels = []) {
    this.names = names;
    this.levels = levels;
    this.isLog = isLog && !names;
    let from = Infinity, to = -Infinity;
    for (const v of values) {
      if (v === null || Number.isNaN(v) || (this.isLog && v <= 0)) continue;
      if (v < from) from = v;
      if (v > to) to = v;
    }
    if (from > to) [from, to] = [0.5, 1];
    if (names) [from, to] = [-0.5, names.length - 0.5];
    const [a, b] = [this.bend(from), this.bend(to)];
    const pad = names ? 0 : (b - a) * 0.05 || Math.abs(a) * 0.05 || 0.5;
    Object.assign(this, { a: a - pad, b: b + pad, low, high });
  }
  bend(v) { return this.isLog ? Math.log10(v) : v; }
  pixel(v) {
    if (v === null || Number.isNaN(v) || (this.isLog && v <= 0)) return NaN;
    return this.low + ((this.bend(v) - this.a) / (this.b - this.a)) * (this.high - this.low);
  }
  ticks() {
    if (this.names) return this.names.map((name, i) => [i, String(name).slice(0, 18)]);
    const apart = this.levels.filter((v, i) => i === 0 || Math.abs(this.pixel(v) - this.pixel(this.levels[i - 1])) > 36);
    if (apart.length > 1 && apart.length === this.levels.length) return apart.map((v) => [v, FORMAT.format(v)]);
    if (this.isLog && this.b - this.a > 1) return this.decades();
    const [from, to] = this.isLog ? [10 ** this.a, 10 ** this.b] : [this.a, this.b];
    const rough = (to - from) / 6, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough);
    const found = [];
    for (let v = Math.ceil(from / step) * step; v <= to; v += step) found.push([v, FORMAT.format(Math.abs(v) < step / 1e6 ? 0 : v)]);
    return found;
  }
  decades() {
    const found = [];
    for (let e = Math.ceil(this.a); e <= this.b; e++) found.push([10 ** e, FORMAT.format(10 ** e)]);
    return found;
  }
}

class Canvas {
  constructor(id) {
    this.canvas = document.getElementById(id);
    this.height = this.canvas.height;
  }
  clear() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.height = `${this.height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.scale(ratio, ratio);
    this.pen.font = "11px system-ui, sans-serif";
  }
  axes(x, y, xName, yName, title, box) {
    const pen = this.pen;
    pen.strokeStyle = "#e8e8e8"; pen.fillStyle = "#333"; pen.lineWidth = 1;
    pen.textAlign = "center";
    for (const [value, text] of x.ticks()) {
      const at = x.pixel(value);
      this.line([[at, box.top], [at, box.bottom]]);
      pen.fillText(text, at, box.bottom + 14);
    }
    pen.fillText(xName, (box.left + box.right) / 2, box.bottom + 29);
    pen.textAlign = "right";
    for (const [value, text] of y.ticks()) {
      const at = y.pixel(value);
      this.line([[box.left, at], [box.right, at]]);
      pen.fillText(text, box.left - 5, at + 4);
    }
    pen.textAlign = "left";
    pen.fillText(yName, box.left - 50, box.top - 8);
    pen.font = "bold 12px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.fillText(title, (box.left + box.right) / 2, box.top - 8);
    pen.font = "11px system-ui, sans-serif";
  }
  line(points) {
    this.pen.beginPath();
    points.forEach(([x, y], i) => (i ? this.pen.lineTo(x, y) : this.pen.moveTo(x, y)));
    this.pen.stroke();
  }
  // A cross marks what diverged (at the foot if it has no value), a dot what finished, a ring what has no end of its own.
  mark(x, y, color, outcome) {
    const pen = this.pen;
    pen.strokeStyle = pen.fillStyle = color;
    pen.beginPath();
    if (outcome === "diverged") {
      pen.lineWidth = 1.8;
      pen.moveTo(x - 4, y - 4); pen.lineTo(x + 4, y + 4);
      pen.moveTo(x - 4, y + 4); pen.lineTo(x + 4, y - 4);
      pen.stroke();
      return;
    }
    pen.arc(x, y, 3.6, 0, 2 * Math.PI);
    if (outcome === "finished") pen.fill(); else pen.stroke();
  }
}

// Boxes of equal panels in a canvas, at most four in a row.
function panels(count, width, height) {
  const columns = Math.min(count, 4), rows = Math.ceil(count / columns);
  return Array.from({ length: count }, (_, i) => {
    const w = width / columns, h = height / rows, c = i % columns, r = Math.floor(i / columns);
    return { left: c * w + 58, right: (c + 1) * w - 12, top: r * h + 24, bottom: (r + 1) * h - 38 };
  });
}
