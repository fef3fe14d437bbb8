// The list of tables: rows, last change, the state of the load, errors.
const TABLES = 8;
let allTables = false;
function drawTables(s) {
  const wanted = $("filter").value.toLowerCase(), loading = s.tables_loading;
  const found = s.tables.filter(t => t.table.toLowerCase().includes(wanted)), shown = allTables || wanted ? found : found.slice(0, TABLES);
  put($("h-tables"), `Tables: ${s.tables_total}` + (loading ? `, ${loading} of them in load` : "") + (s.tables_stale ? `, ${s.tables_stale} stale` : ""));
  $("tables").hidden = !s.tables.length; $("no-tables").hidden = s.tables.length > 0;
  $("filter").hidden = s.tables_total <= TABLES;
  $("all-tables").hidden = shown.length >= found.length && found.length === s.tables_total || !!wanted;
  put($("all-tables"), shown.length < found.length ? `all ${found.length} tables` : `and ${s.tables_total - s.tables.length} tables that changed longer ago`);
  keyed($("rows"), shown, t => t.table, tableRow, (row, t) => updateTable(row, t, s.now));
}
const tableRow = t => h("tr", {}, h("td", { class: "mono" }, t.table), h("td", { class: "num right" }), h("td", { class: "num" }), h("td", {}), h("td", {}));
function updateTable(row, t, now) {
  const [name, rows, changed, load, errors] = row.children;
  name.title = t.topic ? `topic ${t.topic}` + (t.schema_id ? `, schema ${t.schema_id}` : "") : "";
  put(rows, count(t.rows)); rows.title = "records in its topic; the tombstone behind a delete is one";
  put(changed, t.changed_at ? `${time(Math.max(0, Math.round(now - t.changed_at)))} ago` : "not since the start"); changed.title = t.changed_at ? when(t.changed_at) : "";
  changed.classList.toggle("soft", !t.changed_at);
  drawLoad(load, t);
  const state = `${t.errors} ${t.error}`;
  if (errors.dataset.state === state) return;
  errors.dataset.state = state;
  const [head, ...rest] = t.error.split("\n");
  fill(errors, t.errors ? h("details", {}, h("summary", { class: "wrong" }, String(t.errors)), h("pre", {}, [head, ...rest].join("\n"))) : h("span", { class: "soft none" }, "none"));
}
function drawLoad(cell, t) {
  const opens = t.state === "stale" || (t.state === "ready" && t.lacks.length);
  if (opens) {
    const kept = `${t.state} ${t.stale} ${t.lacks}`;
    if (cell.dataset.kept === kept) return; // what a person has opened stays open
    cell.dataset.kept = kept;
    const rows = t.lacks.length === 1 ? "1 row" : `${t.lacks.length} rows`;
    fill(cell, h("details", {}, t.state === "stale" ? h("summary", { class: "alarm" }, "▲ stale") : h("summary", { class: "soft" }, `● ready, lacks ${rows}`),
      t.stale ? h("div", { class: "soft" }, t.stale) : "",
      t.lacks.length ? h("div", { class: "soft" }, `A person had ${rows} skipped, at ${t.lacks.join(", ")}. Write ${t.lacks.length === 1 ? "it" : "them"} again in the source; or, once every row can be published, load the table:`) : "", copyable(t.repair)));
    return;
  }
  delete cell.dataset.kept;
  const words = { ready: "● ready", waiting: "◌ waiting", loading: "loading", paused: "paused", "not published": "not published any more" }[t.state], l = t.load;
  if (!l || t.state === "ready") {
    fill(cell, h("span", { class: t.state === "ready" ? "ok" : "soft" }, words));
    return;
  }
  const share = l.estimate ? 100 * Math.min(1, l.rows / l.estimate) : 0;
  const says = (t.state === "waiting" ? "waits for locks" : t.state) + `, ${count(l.rows)}${l.estimate ? ` of about ${count(l.estimate)}` : ""} rows` + (l.per_second ? `, ${count(Math.round(l.per_second))} rows/s` : "") + (l.left_s === null ? "" : `, ${time(l.left_s)} left`);
  if (!cell.querySelector(".meter")) fill(cell, h("div", { class: "meter", role: "img" }, h("i")), h("small", { class: "soft num" }));
  const meter = cell.firstChild;
  meter.className = `meter${t.state === "loading" ? "" : " idle"}`;
  meter.setAttribute("aria-label", `${t.table}: ${says}`);
  meter.firstChild.style.width = `${share}%`;
  put(cell.lastChild, says);
}
function startTables() {
  $("filter").oninput = () => { if (last) drawTables(last); };
  $("all-tables").onclick = () => { allTables = true; if (last) drawTables(last); };
}
