// The plots: rows a second, latency and lag over 5 minutes, an hour or a day. A spike does not flatten the rest: it is cut off and marked.
const PLOTS = [["p-rows", "Rows a second", 1, count], ["p-late", "Worst latency, commit to Kafka", 3, time], ["p-behind", "Behind", 5, time]];
const SPIKE = 4, ENOUGH = 8;
let range = Number(localStorage.getItem("range")) || 0, cursor = null;
function setRange(seconds) { range = seconds; localStorage.setItem("range", seconds); if (last) drawPlots(); }
// Without a choice: the least range that has all there is, an hour at most.
const rangeOf = () => range || (samples.length && newest(samples) - samples[0][0] > 300 ? HOUR : 300);
function pointsOf(span) {
  if (span <= HOUR) return samples;
  const until = newest(minutes);
  return minutes.concat(samples.filter(s => s[0] > until));
}
function drawPlots() {
  const span = rangeOf();
  for (const b of document.querySelectorAll("[data-range]")) b.setAttribute("aria-pressed", Number(b.dataset.range) === span);
  for (const [id, title, column, format] of PLOTS) plot(id, title, column, format, span, pointsOf(span));
}
function niceTop(v) { if (v <= 0) return 1; const p = 10 ** Math.floor(Math.log10(v)); return [1, 2, 2.5, 5, 10].find(m => m * p >= v * 0.999) * p; }
// The top of the axis: of all values, or, if a few are several times as high as the others, of the others.
function topOf(values) {
  const some = values.filter(v => v > 0).sort((a, b) => a - b), most = some.length ? some[some.length - 1] : 0;
  const usual = some[Math.max(0, Math.ceil(some.length * 0.97) - 1 - (some.length < 34 ? 1 : 0))] || 0;
  return some.length >= ENOUGH && most > SPIKE * usual ? niceTop(usual * 1.2) : niceTop(most);
}
// The highest point of each stretch above the top.
function peaksOf(points, column, top) {
  const peaks = [];
  points.forEach((p, i) => {
    if (p[column] <= top * 1.001) return;
    if (i && points[i - 1][column] > top * 1.001) { if (p[column] > peaks[peaks.length - 1][column]) peaks[peaks.length - 1] = p; } else peaks.push(p);
  });
  return peaks;
}
function plot(id, title, column, format, span, all) {
  const figure = $(id), now = newest(all) || last.now, W = Math.max(220, figure.clientWidth - 34), H = 130, L = 46, B = 18, T = 12;
  const shown = all.filter(s => s[0] >= now - span && s[column] !== null), top = topOf(shown.map(s => s[column])), peaks = peaksOf(shown, column, top);
  const x = t => L + (W - L - 4) * (1 - (now - t) / span), y = v => T + (H - T - B) * (1 - Math.min(v, top) / top);
  const svg = h("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, last ${time(span)}` });
  for (const part of [0, .5, 1]) svg.append(h("line", { class: "grid", x1: L, x2: W, y1: y(top * part), y2: y(top * part) }), h("text", { x: L - 5, y: y(top * part) + 4, "text-anchor": "end" }, format(top * part)));
  svg.append(h("text", { x: L, y: H - 3 }, span === DAY ? "1 day ago" : `${time(span)} ago`), h("text", { x: W - 2, y: H - 3, "text-anchor": "end" }, "now"));
  if (shown.length > 1) {
    const line = shown.map((s, i) => `${i ? "L" : "M"}${x(s[0]).toFixed(1)},${y(s[column]).toFixed(1)}`).join("");
    svg.append(h("path", { class: "area", d: `${line}L${x(now)},${y(0)}L${x(shown[0][0]).toFixed(1)},${y(0)}Z` }), h("path", { class: "curve", d: line }));
  }
  for (const peak of peaks) svg.append(h("path", { class: "peak", d: `M${x(peak[0]).toFixed(1)},2l4,7h-8z` }, h("title", {}, `${format(peak[column])} at ${when(peak[0])}, off the scale`)));
  const highest = peaks.reduce((a, b) => a && a[column] >= b[column] ? a : b, null);
  if (highest) { const left = x(highest[0]) > W - 90; svg.append(h("text", { class: "peak", x: x(highest[0]) + (left ? -7 : 7), y: 10, "text-anchor": left ? "end" : "start" }, format(highest[column]))); }
  let reading = shown.length ? format(shown[shown.length - 1][column]) : "–";
  if (cursor && cursor.id === id && shown.length) {
    const at = shown[Math.max(0, Math.min(shown.length - 1, shown.length - 1 - cursor.back))];
    svg.append(h("line", { class: "cursor", x1: x(at[0]), x2: x(at[0]), y1: T, y2: H - B }));
    reading = `${when(at[0])}: ${format(at[column])}`;
  }
  figure.geometry = { times: shown.map(s => s[0]), at: share => now - span * (1 - (share * W - L) / (W - L - 4)) };
  fill(figure, h("figcaption", {}, h("b", {}, title), h("span", { class: "num", "aria-live": cursor && cursor.id === id ? "polite" : "off" }, reading)), svg);
}
function readPlot(figure, clientX) {
  const svg = figure.querySelector("svg"), g = figure.geometry;
  if (!svg || !g || !g.times.length) return;
  const box = svg.getBoundingClientRect(), wanted = g.at((clientX - box.left) / box.width);
  const nearest = g.times.reduce((best, t, i) => Math.abs(t - wanted) < Math.abs(g.times[best] - wanted) ? i : best, 0);
  cursor = { id: figure.id, back: g.times.length - 1 - nearest };
  drawPlots();
}
function startPlots() {
  for (const b of document.querySelectorAll("[data-range]")) b.onclick = () => setRange(Number(b.dataset.range));
  addEventListener("resize", () => { if (last) drawPlots(); });
  for (const [id] of PLOTS) {
    const figure = $(id);
    figure.addEventListener("keydown", e => {
      const step = { ArrowLeft: 1, ArrowRight: -1, PageUp: 12, PageDown: -12 }[e.key];
      if (!step || !last) return;
      e.preventDefault();
      const back = (cursor && cursor.id === id ? cursor.back : 0) + step;
      cursor = { id, back: Math.max(0, Math.min((figure.geometry?.times.length || 1) - 1, back)) };
      drawPlots();
    });
    figure.addEventListener("pointermove", e => readPlot(figure, e.clientX));
    for (const leave of ["pointerleave", "blur"]) figure.addEventListener(leave, () => { cursor = null; if (last) drawPlots(); });
  }
}
