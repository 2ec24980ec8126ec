// The table of columns: search, filter, selection, roles by click or key, what is known, undo.

import { attempt, get, post, say } from "./api.js";
import { copied, element, glance } from "./draw.js";

const PAGE = 250;
const KEYS = { v: "private", p: "public", o: "out", l: "label", u: "unit", d: "fill" };
const CHANGES = {
  private: { role: "private" }, public: { role: "public" }, out: { part: "out" },
  label: { part: "label" }, unit: { part: "unit" }, fill: { fill: true },
};
const DONE = {
  private: "private now", public: "public now, so that values may be seen on this page", out: "left out now",
  label: "the label now", unit: "the person id now: which rows belong together counts as public", fill: "filled in from the dictionary", known: "declared",
};
const PARTS = { label: "label", unit: "person id" };
const id = (name) => document.getElementById(name);

let state = null, told = () => {};
let listed = [], shown = PAGE, anchor = null;
const chosen = new Set();
const rows = new Map();
const watcher = new IntersectionObserver((seen) => {
  for (const each of seen) if (each.isIntersecting) drawGlance(Number(each.target.dataset.id));
});

export function start(onState) {
  told = onState;
  id("search").addEventListener("input", relist);
  id("filter").addEventListener("change", relist);
  id("undo").addEventListener("click", () => turn("undo"));
  id("redo").addEventListener("click", () => turn("redo"));
  id("save").addEventListener("click", save);
  id("more").addEventListener("click", () => { shown += PAGE; list(); });
  id("all").addEventListener("change", (event) => { event.target.checked ? chooseAll() : clear(); });
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => apply(button.dataset.do, [...chosen]));
  }
  id("known-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (chosen.size) change({ known: id("known").value }, [...chosen], DONE.known);
    else say("Select columns first.");
  });
  id("table").addEventListener("keydown", onKey);
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
    if (typing || !(event.ctrlKey || event.metaKey) || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "z" || key === "y") {
      event.preventDefault();
      turn(key === "y" || event.shiftKey ? "redo" : "undo");
    }
  });
}

export function show(next) {
  const first = state === null;
  state = next;
  if (first) relist();
  else for (const place of rows.keys()) update(place);
  const steps = state.steps;
  id("undo").disabled = !steps.undo;
  id("redo").disabled = !steps.redo;
  id("notes").replaceChildren(...state.notes.map((text) => element("li", { text })));
  id("help").textContent = `Known without the data: ${state.help}.`;
  id("todo-count").textContent = state.problem_count ? `(${state.problem_count})` : "";
  const todo = state.problems.slice(0, 12).map((text) => element("li", { text }));
  if (state.problem_count > 12) todo.push(element("li", { text: `and ${state.problem_count - 12} more: filter by what is to do` }));
  id("todo").replaceChildren(...(todo.length ? todo : [element("li", { text: "Nothing: the schema is complete." })]));
  const files = state.files;
  id("saved").textContent = files.saved ? `Saved in ${files.schema}.`
    : `Every change is kept in ${files.draft}; the schema goes to ${files.schema}.`;
  id("save").disabled = state.problem_count > 0 || files.saved;
  id("toml").replaceChildren(state.toml ? copied(state.toml, "the schema")
    : element("p", { class: "quiet", text: "It is shown once nothing is left to do." }));
  count();
}

// --- what is listed

function relist() {
  const words = id("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const filter = id("filter").value;
  const fits = (column) => filter === "all"
    || (filter === "todo" ? column.problem !== null
      : filter === "special" ? column.part in PARTS
        : filter === "out" ? column.part === "out"
          : column.role === filter && column.part in { column: 1, label: 1 });
  listed = state.columns.filter((column) => fits(column) && words.every((word) => column.name.toLowerCase().includes(word)))
    .map((column) => column.id);
  shown = PAGE;
  list();
}

function list() {
  const held = document.activeElement;
  const visible = listed.slice(0, shown);
  for (const place of visible) if (!rows.has(place)) rows.set(place, row(place));
  id("rows").replaceChildren(...visible.map((place) => rows.get(place).tr));
  visible.forEach(update);
  if (held && held.isConnected) held.focus();
  id("more").hidden = listed.length <= shown;
  count();
}

function count() {
  const size = chosen.size;
  id("chosen").textContent = size ? `${size} selected` : `${listed.length} of ${state.columns.length} shown`;
  const all = listed.length > 0 && listed.every((place) => chosen.has(place));
  id("all").checked = all;
  id("all").indeterminate = !all && size > 0;
  const none = state.columns.every((column) => !column.in_dictionary);
  for (const button of document.querySelectorAll("[data-do]")) {
    button.disabled = !size || (button.dataset.do === "fill" && none)
      || (["label", "unit"].includes(button.dataset.do) && size > 1);
  }
}

function row(place) {
  const column = state.columns[place];
  const tick = element("input", { type: "checkbox", "aria-label": `Select ${column.name}` });
  tick.addEventListener("click", (event) => {
    if (event.shiftKey && anchor !== null) between(anchor, place);
    else choose(place, tick.checked);
    anchor = place;
  });
  const segment = (what, text) => element("button", { type: "button", class: what, text,
    onclick: () => apply(what, chosen.has(place) && chosen.size > 1 ? [...chosen] : [place]) });
  const buttons = { private: segment("private", "private"), public: segment("public", "public"), out: segment("out", "out") };
  const known = element("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": `Known of ${column.name}` });
  known.addEventListener("change", () => change({ known: known.value }, [place], DONE.known));
  known.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const next = rows.get(listed[listed.indexOf(place) + 1]);
    known.blur();
    if (next) next.known.focus();
  });
  const badge = element("span", { class: "badge" });
  const problem = element("p", { class: "problem", id: `problem-${place}` });
  const picture = element("td", { "data-id": String(place) });
  const tr = element("tr", { "data-id": String(place) },
    element("td", {}, element("label", { class: "tick" }, tick)),
    element("th", { scope: "row", text: column.name }),
    element("td", {}, element("div", { class: "segments", role: "group", "aria-label": `Role of ${column.name}` }, ...Object.values(buttons))),
    element("td", {}, known, problem), picture);
  tr.children[1].append(badge);
  watcher.observe(picture);
  return { tr, tick, buttons, known, badge, problem, picture, drawn: null };
}

function update(place) {
  const column = state.columns[place], parts = rows.get(place);
  const used = column.part === "column" || column.part === "label";
  parts.tr.className = `${column.part}${chosen.has(place) ? " chosen" : ""}`;
  parts.tick.checked = chosen.has(place);
  parts.buttons.private.setAttribute("aria-pressed", String(used && column.role === "private"));
  parts.buttons.public.setAttribute("aria-pressed", String(used && column.role === "public"));
  parts.buttons.out.setAttribute("aria-pressed", String(column.part === "out"));
  parts.badge.textContent = PARTS[column.part] || "";
  parts.badge.hidden = !(column.part in PARTS);
  if (document.activeElement !== parts.known) parts.known.value = column.text;
  parts.known.placeholder = column.part === "unit" ? "most rows of one person, such as 5"
    : column.part === "label" ? "no | yes, or 0..100"
      : column.role === "public" ? `${column.kind || "a kind"}, by its values` : "0..120 or a | b | c";
  parts.known.disabled = column.part === "out";
  parts.problem.textContent = column.problem || "";
  parts.problem.hidden = !column.problem;
  if (column.problem) {
    parts.known.setAttribute("aria-invalid", "true");
    parts.known.setAttribute("aria-describedby", `problem-${place}`);
  } else {
    parts.known.removeAttribute("aria-invalid");
    parts.known.removeAttribute("aria-describedby");
  }
  const wanted = used && column.role === "public" ? `${column.kind} ${column.text}` : null;
  if (wanted !== parts.drawn) {
    // Of a column that is private again nothing stays on the page.
    parts.picture.replaceChildren();
    parts.drawn = null;
    if (wanted !== null) { watcher.unobserve(parts.picture); watcher.observe(parts.picture); }
  }
}

async function drawGlance(place) {
  const column = state.columns[place], parts = rows.get(place);
  if (column.role !== "public" || !(column.part in { column: 1, label: 1 })) return;
  const wanted = `${column.kind} ${column.text}`;
  if (parts.drawn === wanted) return;
  parts.drawn = wanted;
  const found = await get(`picture/${place}`).catch(() => null);
  if (found && parts.drawn === wanted) parts.picture.replaceChildren(glance(found));
}

// --- selection

function choose(place, on) {
  on ? chosen.add(place) : chosen.delete(place);
  if (rows.has(place)) update(place);
  count();
}

function between(one, other) {
  const [from, to] = [listed.indexOf(one), listed.indexOf(other)].sort((a, b) => a - b);
  for (const place of listed.slice(Math.max(from, 0), to + 1)) chosen.add(place);
  rows.forEach((_, place) => update(place));
  count();
}

function chooseAll() {
  listed.forEach((place) => chosen.add(place));
  rows.forEach((_, place) => update(place));
  count();
  say(`${chosen.size} columns selected.`);
}

function clear() {
  chosen.clear();
  rows.forEach((_, place) => update(place));
  count();
}

function onKey(event) {
  if (event.target.matches("input[type=text]") || event.altKey) return;
  const tr = event.target.closest("tr[data-id]");
  const key = event.key.toLowerCase();
  if (key === "a" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    chooseAll();
  } else if (event.ctrlKey || event.metaKey) {
    return;
  } else if (key === "escape") {
    clear();
  } else if ((key === "arrowdown" || key === "arrowup") && tr) {
    event.preventDefault();
    const from = Number(tr.dataset.id);
    const next = rows.get(listed[listed.indexOf(from) + (key === "arrowdown" ? 1 : -1)]);
    if (!next || !next.tr.isConnected) return;
    if (event.shiftKey) between(from, Number(next.tr.dataset.id));
    next.tick.focus();
    anchor = Number(next.tr.dataset.id);
  } else if (key in KEYS) {
    const places = chosen.size ? [...chosen] : tr ? [Number(tr.dataset.id)] : [];
    if (places.length) { event.preventDefault(); apply(KEYS[key], places); }
  }
}

// --- changes

function apply(what, places) {
  if (!places.length) { say("Select columns first."); return null; }
  return change(CHANGES[what], places, DONE[what]);
}

async function change(asked, places, done) {
  const next = await attempt(() => post("change", { ids: places, ...asked }));
  if (!next) return;
  told(next);
  const names = places.length === 1 ? next.columns[places[0]].name : `${places.length} columns`;
  say(`${names}: ${done}. Undo takes it back.`);
}

async function turn(way) {
  const next = await attempt(() => post(way));
  if (!next) return;
  told(next);
  say(next.changed ? (way === "undo" ? "Undone." : "Done again.") : "Nothing to take back.");
}

async function save() {
  const next = await attempt(() => post("save"));
  if (!next) return;
  told(next);
  say(`Saved in ${next.files.schema}.`);
}
