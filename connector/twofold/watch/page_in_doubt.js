// Transactions in doubt as bars on a logarithmic axis of age; each opens to its facts and the statements that end it.
const TICKS = [[1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 d"], [604800, "7 d"], [2592000, "30 d"]];
const BARS = 30;
const sourceAnswers = s => !s.path.source_error && !!s.path.source_lsn;
function drawDoubt(s) {
  const shown = s.in_doubt.slice(0, BARS), past = s.ended.filter(m => m.ended_at - m.read_at > 1).slice(0, 5);
  const known = sourceAnswers(s);
  put($("h-doubt"), s.in_doubt.length ? `In doubt: ${s.in_doubt.length}` : known ? "In doubt: nothing" : "In doubt: not known");
  if (!shown.length && !past.length) { fill($("bars"), h("span", { class: "soft" }, known ? "Every prepared transaction has its outcome." : "PostgreSQL does not answer.")); return; }
  const ages = [...shown.map(m => s.now - m.prepared_at), ...past.map(m => m.ended_at - m.read_at)];
  const end = Math.max(s.hold_s * 1.6, ...ages) * 1.1, at = age => 100 * Math.log10(1 + Math.max(0, age)) / Math.log10(1 + end);
  const scale = { at, end, hold_s: s.hold_s, doubt_s: s.doubt_s };
  const ticks = TICKS.filter(([t]) => at(t) < 93).filter(([t], i, all) => i === 0 || at(t) - at(all[i - 1][0]) > 7);
  if (!$("live-bars")) fill($("bars"), h("div", { class: "legend" }), h("div", { id: "live-bars" }), h("div", { class: "bar axis-row", "aria-hidden": "true" }), h("div", { class: "soft" }), h("div", { class: "soft" }), h("div", { id: "past-bars" }));
  const [legend, live, axis, more, last, ended] = $("bars").children;
  fill(legend, h("span", {}, h("i"), "open: the rows are in Kafka, unseen"), h("span", {}, h("i", { class: "k-park" }), "parked: readers go on, the rows wait here"), h("span", {}, h("i", { class: "k-hold" }), `hold, ${time(s.hold_s)}`), h("span", {}, h("i", { class: "k-doubt" }), `too long, ${time(s.doubt_s)}`));
  keyed(live, shown, m => `${m.xid} ${m.gid}`, makeBar, (node, m) => updateBar(node, m, s.now - m.prepared_at, false, scale));
  fill(axis, h("div"), h("div", { class: "axis" }, ...ticks.map(([t, label]) => h("span", { style: `left:${at(t)}%` }, label)), h("span", { style: "left:100%" }, "age")));
  const unread = s.branches_unread.length ? `Not looked at for other branches: ${s.branches_unread.join("; ")}.` : "";
  put(more, [s.in_doubt.length > BARS ? `And ${s.in_doubt.length - BARS} younger ones: twofold prepared list.` : "", shown.length ? "The outcome is the coordinator’s to decide. A bar opens to the statements that a person could run." : "", unread].filter(Boolean).join(" "));
  put(last, past.length ? "Ended last:" : "");
  keyed(ended, past, m => `${m.xid} ${m.gid}`, makeBar, (node, m) => updateBar(node, { ...m, prepared_at: m.read_at }, m.ended_at - m.read_at, true, scale));
}
const makeBar = () => h("details", { class: "bar" }, h("summary", {}, h("div", { class: "gid mono" }), h("div", { class: "track", role: "img" }, h("span"), h("span"), h("em"), h("em", { class: "doubt" })), h("small", { class: "num", "aria-hidden": "true" })), h("div", { class: "facts" }));
function updateBar(node, m, age, ended, scale) {
  const [summary, facts] = node.children, [gid, track, words] = summary.children, [whole, open, hold, doubt] = track.children;
  const parked = m.parked_at ? Math.max(0, m.parked_at - (m.prepared_at || m.read_at)) : null;
  const state = ended ? m.outcome : m.state === "open" ? "open in Kafka" : m.state;
  const says = `${state}, ${time(Math.max(0, age))}` + (m.rows !== null ? `, ${plural(m.rows, "row")}` : "");
  put(gid, m.shown); gid.title = m.gid;
  put(words, says);
  track.setAttribute("aria-label", `${m.shown}: ${says}`);
  track.classList.toggle("past", ended);
  whole.className = parked !== null ? "parked" : m.opened_at || ended ? "" : "idle";
  whole.style.width = `${scale.at(age)}%`;
  open.hidden = !parked; open.style.width = `${scale.at(Math.min(parked || 0, age))}%`;
  for (const [line, limit, title] of [[hold, scale.hold_s, "prepared.hold"], [doubt, scale.doubt_s, "prepared.doubt_warning"]]) {
    line.hidden = limit > scale.end; line.style.left = `${scale.at(limit)}%`; line.title = title;
  }
  drawFacts(facts, m, ended);
}
function drawFacts(node, m, ended) {
  const state = JSON.stringify([m.state, m.outcome, m.owner, m.park_reason, m.statements, m.statements_wait, m.siblings, m.held_back]);
  if (node.dataset.state === state) return;
  node.dataset.state = state;
  const facts = [["global id", m.global_id], ["branch", m.branch], ["gid", m.gid], ["xid", m.xid], ["owner", m.owner], ["prepared", m.prepared_at && when(m.prepared_at)], ["parked", m.park_reason], ["other branches", (m.siblings || []).join("; ")], ["holds back", (m.held_back || []).map(each => each.shown).join(", ")]];
  const few = (m.statements || []).length === 1 ? "This alone keeps the global transaction whole:" : (m.statements || []).length ? "It ends with one of these, in its database:" : "";
  fill(node, h("dl", {}, ...facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: name === "gid" || name === "global id" || name === "branch" ? "mono" : "" }, String(value))])),
    m.torn && h("div", { class: "wrong" }, "Torn: some of its branches are committed and others rolled back. Ask its coordinator."),
    !ended && (few || m.statements_wait) && h("div", { class: "soft" }, few || `No statement is offered: ${m.statements_wait}.`),
    ...(ended ? [] : (m.statements || []).map(copyable)));
}
const copyable = text => h("div", { class: "copy" }, h("code", { class: "mono" }, text), h("button", { class: "small", onclick: e => copy(e.currentTarget, text) }, "Copy"));
async function copy(button, text) {
  try { await navigator.clipboard.writeText(text); put(button, "Copied"); }
  catch { getSelection().selectAllChildren(button.previousSibling); put(button, "Selected"); } // without TLS a browser gives no clipboard
  setTimeout(() => put(button, "Copy"), 2000);
}
