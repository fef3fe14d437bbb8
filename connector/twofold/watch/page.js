// The page's core: it polls /api/status, keeps what must outlive a redraw, and draws header, path, figures, WAL and journal.
const POLL_MS = 2000, HOUR = 3600, DAY = 86400;
const $ = id => document.getElementById(id);
const SVG = ["svg", "path", "line", "text", "circle", "title"];
function h(tag, attrs, ...children) {
  const node = SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attrs || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "style") node.style.cssText = value; else if (key.startsWith("on")) node[key] = value; else node.setAttribute(key, value);
  }
  node.append(...children.filter(c => c !== null && c !== undefined && c !== "" && c !== false));
  return node;
}
const fill = (node, ...children) => node.replaceChildren(...children.filter(Boolean));
// Draw one node an item and keep it while its key stays, so that what is open, focused or selected stays so.
function keyed(parent, items, key, make, update) {
  const known = new Map([...parent.children].map(node => [node.dataset.key, node]));
  items.forEach((item, index) => {
    let node = known.get(key(item));
    if (!node) { node = make(item); node.dataset.key = key(item); }
    known.delete(key(item));
    update(node, item);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] || null);
  });
  for (const node of known.values()) node.remove();
}
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

const bytes = n => n === null ? "–" : n < 1024 ? `${Math.round(n)} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : n < 1073741824 ? `${(n / 1048576).toFixed(1)} MiB` : `${(n / 1073741824).toFixed(2)} GiB`;
const count = n => n < 10 && n % 1 ? n.toFixed(1) : n < 10000 ? Math.round(n).toString() : n < 1e6 ? `${(n / 1e3).toFixed(1)} k` : `${(n / 1e6).toFixed(2)} M`;
const time = s => s === null || s === undefined ? "–" : s === 0 ? "0 s" : s < 1 ? `${Math.max(1, Math.round(s * 1000))} ms` : s < 10 ? `${s.toFixed(1)} s` : s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
const clock = t => new Date(t * 1000).toLocaleTimeString([], { hour12: false });
const when = t => { const d = new Date(t * 1000); return d.toDateString() === new Date().toDateString() ? clock(t) : `${d.toLocaleDateString("sv")} ${clock(t)}`; };
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const causeOf = s => s.cause ? s.cause.words + (s.cause.since ? ` since ${when(s.cause.since)}` : "") : "";

const BEHIND_S = 10, MIRROR_BEHIND_S = 30;
const PHASES = { starting: ["◌ starting", "warn"], recovering: ["◌ recovering", "warn"], standby: ["◐ standing by", ""], running: ["● running", "good"], waiting: ["▲ waiting to recover", "warn"], refused: ["■ refused", "bad"], failed: ["■ ended", "bad"], stopped: ["■ stopped", ""] };
function pillOf(s) {
  if (s.phase !== "running") return PHASES[s.phase];
  if (!s.ready) return ["■ stalled", "bad"];
  if (s.path.behind_s > BEHIND_S) return [`▲ ${time(s.path.behind_s)} behind`, "warn"];
  return s.cause ? ["▲ held up", "warn"] : PHASES.running;
}

let samples = [], minutes = [], last = null, failing = 0, paused = false;
let token = sessionStorage.getItem("token") || new URLSearchParams(location.hash.slice(1)).get("token") || "";
const newest = list => list.length ? list[list.length - 1][0] : 0;
const joined = (known, more, most) => known.concat(more.filter(s => s[0] > newest(known))).slice(-most);

async function poll() {
  try {
    const answer = await fetch(`api/status?after=${newest(samples)}`, { headers: token ? { Authorization: `Bearer ${token}` } : {}, signal: AbortSignal.timeout(8000) });
    if (answer.status === 401) { $("ask").hidden = false; return; }
    if (!answer.ok) throw new Error(await answer.text());
    $("ask").hidden = true;
    const status = await answer.json();
    if (last && last.started_at !== status.started_at) samples = minutes = [];
    last = status; failing = 0;
    samples = joined(samples, status.samples, HOUR / status.every_s);
    minutes = joined(minutes, status.minutes, DAY / 60);
    draw();
  } catch (error) { failing = failing || Date.now(); }
  stale();
}
function stale() {
  $("stale").hidden = !failing;
  if (!failing) return;
  const ended = last && ["refused", "failed", "stopped"].includes(last.phase);
  $("stale").textContent = (ended ? "The process has ended" : "The connector does not answer") + ` since ${when(failing / 1000)}.` + (last ? ` Below is its last answer, of ${clock(last.now)}.` : "");
  if (!ended) { $("pill").textContent = "✕ no answer"; $("pill").className = "pill bad"; $("cause").textContent = ""; }
}
function draw() {
  const s = last, [words, kind] = pillOf(s);
  document.title = `${words} · ${s.name} · Twofold`;
  put($("name"), s.name);
  put($("pill"), words); $("pill").className = `pill ${kind}`;
  put($("cause"), causeOf(s));
  put($("uptime"), `${s.phase === "running" ? "" : "since " + when(s.since) + ", "}process up ${time(s.now - s.started_at)}`);
  put($("version"), `Twofold ${s.version}`);
  $("slow").hidden = !s.slow; put($("slow"), s.slow || "");
  const why = s.phase === "running" && s.ready ? "" : s.why;
  $("why").hidden = !why; put($("why"), why); $("why").className = `card banner ${kind === "bad" ? "bad" : ""}`;
  drawPath(s); drawTables(s); drawTiles(s); drawPlots(); drawDoubt(s); drawWal(s); drawJournal(s);
}
function drawPath(s) {
  const p = s.path, m = s.mirror;
  const stop = (title, line, ...positions) => h("div", { class: "stop", title: positions.join("\n") }, h("b", {}, title), h("span", { class: "soft" }, line), ...positions.map(l => h("span", { class: "soft mono pos" }, l)));
  const leg = (top, bottom, warn) => h("div", { class: `leg${warn ? " warn" : ""}` }, h("span", { class: "num" }, top), h("i"), h("small", { class: "soft" }, bottom));
  const away = p.source_away_since ? `does not answer since ${when(p.source_away_since)}` : "";
  const stopped = m && m.gone_since ? `not running since ${when(m.gone_since)}` : "";
  const reads = s.phase === "running" && !p.source_error, runs = s.phase === "running" && (!s.cause || s.cause.party === "connector");
  const reading = p.unread_s === null ? "not read yet" : p.unread_s > BEHIND_S ? `${time(p.unread_s)} behind` : !reads ? "stands still" : p.unread_bytes > 1048576 ? "reading" : "up to date";
  const late = p.behind_s === null ? "not known" : p.behind_s > BEHIND_S ? `${time(p.behind_s)} behind` : runs ? "up to date" : "stands still";
  fill($("path"),
    stop(p.server, away || `slot ${p.slot}`, `WAL ${p.source_lsn || "–"}`, `confirmed ${p.confirmed_lsn || "–"}`),
    leg(reading, p.unread_bytes ? `${bytes(p.unread_bytes)} to read` : "", p.unread_s > BEHIND_S || p.source_error),
    stop("Connector", `${plural(p.waiting, "transaction")} held`, `read ${p.read_lsn || "–"}`),
    leg(late, runs ? plural(s.totals.commits, "commit") : s.cause.words, p.behind_s > BEHIND_S || late === "stands still"),
    stop("Kafka", p.bootstrap.split(",")[0], `applied ${p.applied_lsn || "–"}`, `commit record ${p.sequence}`),
    ...(m ? [leg(...mirrorLeg(m, p), m.former || m.behind_s > MIRROR_BEHIND_S || s.mirror_error || (m.gone_since && m.sequence < p.sequence)), stop("Mirror", s.mirror_error || stopped || (m.sequence ? `cut of ${when(m.committed_at)}` : "no cut yet"), `cut at ${m.applied_lsn || "–"}`, `commit record ${m.sequence}`)]
      : s.mirror_error ? [leg("not known", "", true), stop("Mirror", s.mirror_error)] : []));
}
function mirrorLeg(m, p) {
  const lag = m.former ? "reads former topics" : m.behind_s > MIRROR_BEHIND_S ? `${time(m.behind_s)} behind` : last.mirror_error ? "not known" : m.sequence < p.sequence ? (m.gone_since ? "stands still" : "at work") : "up to date";
  return [lag, !m.bytes && !m.transactions ? "" : m.transactions === null ? `${bytes(m.bytes)} of WAL to go` : `${plural(m.transactions, "transaction")} to go`];
}
function drawTiles(s) {
  const now = samples.length && s.phase === "running" ? samples[samples.length - 1] : null, p = s.path;
  const tile = (label, value, more) => h("div", { class: "card tile" }, h("span", { class: "soft" }, label), h("b", { class: "num" }, value), h("small", { class: "soft" }, more));
  const own = s.holders.find(x => x.own), known = sourceAnswers(s), oldest = s.in_doubt[0];
  const unknown = `not known${s.path.source_error ? ": PostgreSQL does not answer" : ""}`;
  fill($("tiles"),
    tile("behind", known || p.behind_s ? time(p.behind_s) : "–", causeOf(s) || (p.behind_bytes === null ? "not known before recovery" : `${bytes(p.behind_bytes)} of WAL`)),
    tile("rows a second", now ? count(now[1]) : "–", `${count(s.totals.rows)} since the start`),
    tile("source commit → Kafka", now && now[3] ? time(now[3]) : "–", s.totals.latency_ms === null ? "no commit yet" : `mean ${time(s.totals.latency_ms / 1000)}`),
    tile("in doubt", oldest || known ? String(s.in_doubt.length) : "–", oldest ? `oldest ${time(Math.max(0, s.now - oldest.prepared_at))}` : known ? "nothing waits for a coordinator" : unknown),
    tile("WAL held for us", own ? bytes(own.held_bytes) : "–", !own ? (known ? "there is no slot" : unknown) : own.safe_bytes !== null ? `${bytes(own.safe_bytes)} before the slot is lost` : "no limit set"));
}
function drawWal(s) {
  if (s.path.source_error) { fill($("wal"), h("div", {}, s.path.source_error)); return; }
  if (!s.holders.length) { fill($("wal"), h("span", { class: "soft" }, "No replication slot holds any.")); return; }
  fill($("wal"), h("table", {},
    h("thead", {}, h("tr", {}, ...["slot", "holds", "status", "until lost"].map((t, i) => h("th", { class: i > 2 ? "wide" : "" }, t)))),
    h("tbody", {}, ...s.holders.map(x => h("tr", {},
      h("td", { class: "mono" }, x.slot, x.own ? h("b", {}, " ← ours") : ""),
      h("td", { class: "num" }, bytes(Math.max(0, x.held_bytes))),
      h("td", { class: x.active_pid ? "" : "alarm" }, `${x.wal_status || "–"}, ${x.active_pid ? "in use by " + x.active_pid : "nobody reads it"}`),
      h("td", { class: "num wide" }, x.safe_bytes === null ? "no limit" : bytes(x.safe_bytes)))))));
}
let lineKinds = "", allLines = false;
const LINES = 12;
function drawJournal(s) {
  const lines = s.journal.filter(e => !lineKinds || lineKinds.split(" ").includes(e.kind));
  for (const b of document.querySelectorAll("[data-lines]")) b.setAttribute("aria-pressed", b.dataset.lines === lineKinds);
  $("all-lines").hidden = allLines || lines.length <= LINES;
  keyed($("journal"), allLines ? lines : lines.slice(0, LINES), e => `${e.since}${e.kind}${e.what}`, () => h("li", {}), (node, e) => {
    const state = `${e.at}${e.times}`;
    if (node.dataset.state === state) return;
    node.dataset.state = state;
    const [head, ...rest] = e.text.split("\n"), again = e.times > 1 ? ` · ${e.times} times since ${clock(e.since)}` : "";
    const text = rest.length ? h("details", { open: !!node.querySelector("details[open]") || null }, h("summary", {}, head), h("pre", {}, rest.join("\n"))) : head;
    fill(node, h("span", { class: "soft num" }, clock(e.at)), h("span", { class: `tag ${e.kind}` }, e.kind), h("div", {}, h("b", {}, e.what), e.cause && ` · ${e.cause}`, again, e.text && h("div", { class: "soft" }, text)));
  });
  if (!lines.length) fill($("journal"), h("li", { "data-key": "" }, h("span", { class: "soft" }, "nothing yet")));
}
function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem("theme", document.documentElement.dataset.theme = dark ? "light" : "dark");
}
function pause() { paused = !paused; put($("pause"), paused ? "Go on" : "Pause"); $("pause").setAttribute("aria-pressed", paused); if (!paused) poll(); }
function positions(shown) {
  document.body.classList.toggle("positions", shown);
  $("positions").setAttribute("aria-pressed", shown);
  localStorage.setItem("positions", shown ? "1" : "");
}
const togglePositions = () => positions(!document.body.classList.contains("positions"));
function start() {
  if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
  positions(!!localStorage.getItem("positions"));
  $("theme").onclick = theme; $("pause").onclick = pause; $("positions").onclick = togglePositions;
  $("ask").onsubmit = e => { e.preventDefault(); token = $("token").value; sessionStorage.setItem("token", token); poll(); };
  $("all-lines").onclick = () => { allLines = true; draw(); };
  for (const b of document.querySelectorAll("[data-lines]")) b.onclick = () => { lineKinds = b.dataset.lines; if (last) drawJournal(last); };
  startTables(); startPlots();
  document.addEventListener("keydown", e => {
    if (e.target.tagName === "INPUT" || e.ctrlKey || e.metaKey || e.altKey) return;
    const does = { t: theme, p: pause, l: togglePositions, 1: () => setRange(300), 2: () => setRange(HOUR), 3: () => setRange(DAY) }[e.key];
    if (does) does();
  });
  poll(); setInterval(() => { if (!paused && !document.hidden) poll(); }, POLL_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) poll(); });
}
