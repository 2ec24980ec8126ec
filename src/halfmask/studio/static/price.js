// What privacy costs with the chosen roles, at every epsilon.

import { attempt, get, post } from "./api.js";
import { copied, element, meter, percent, priceCurve, table } from "./draw.js";

const id = (name) => document.getElementById(name);
let settings = null, found = null, before = null, signature = "", waiting = null, number = 0;

export function start() {
  id("epsilon").addEventListener("input", () => set(Number(id("epsilon").value), Number(id("delta").value)));
  id("delta").addEventListener("input", () => set(Number(id("epsilon").value), Number(id("delta").value)));
  id("slide").addEventListener("input", () => {
    const epsilon = Number((10 ** Number(id("slide").value)).toPrecision(2));
    id("epsilon").value = epsilon;
    set(epsilon, Number(id("delta").value));
  });
  addEventListener("resize", () => found && !id("view-price").hidden && draw());
  for (const name of ["constant", "best"]) id(name).addEventListener("input", () => found && draw());
}

export function show(state) {
  if (settings === null) {
    settings = state.settings;
    id("epsilon").value = settings.epsilon;
    id("delta").value = settings.delta;
  }
  id("slide").value = Math.log10(settings.epsilon);
  // The curve as it was before the roles changed stays as a dashed line.
  const roles = state.columns.map((column) => `${column.part[0]}${column.role[1]}${column.text.length}`).join();
  if (signature && roles !== signature && found && found.curve.length) before = found.curve;
  signature = roles;
}

function set(epsilon, delta) {
  if (!(epsilon > 0 && epsilon <= 100 && delta > 0 && delta < 0.5)) return;
  settings.epsilon = epsilon;
  settings.delta = delta;
  if (document.activeElement !== id("slide")) id("slide").value = Math.log10(epsilon);
  id("priced").setAttribute("aria-busy", "true");
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    attempt(() => post("settings", { epsilon, delta }));
    ask();
  }, 120);
}

// The epsilon of a training is the one whose price is shown.
export function use(epsilon) {
  settings.epsilon = epsilon;
  id("epsilon").value = epsilon;
  id("slide").value = Math.log10(epsilon);
}

export async function ask() {
  const own = ++number;
  id("priced").setAttribute("aria-busy", "true");
  const next = await attempt(() => get("price", { epsilon: settings.epsilon, delta: settings.delta }));
  if (own !== number) return;
  id("priced").removeAttribute("aria-busy");
  if (!next) return;
  found = next;
  draw();
}

function scale() {
  const constant = Number(id("constant").value) / 100, best = Number(id("best").value) / 100;
  if (constant > 0 && best > constant && best <= 1) {
    return { name: "Expected accuracy", text: (kept) => `${(100 * (constant + kept * (best - constant))).toFixed(1)}%` };
  }
  return { name: "Part kept of what the columns tell", text: percent };
}

function draw() {
  const now = found.now, axis = scale(), verdict = id("verdict");
  verdict.classList.toggle("bad", !now || found.verdict === "noise will win");
  if (!now) {
    verdict.textContent = "Choose a label, and at least one private column: then there is a price.";
    for (const name of ["curve", "curve-table", "matters"]) id(name).replaceChildren();
    id("curve-words").textContent = "";
  } else {
    const range = `${axis.text(now.low)} to ${axis.text(now.high)}`;
    verdict.textContent = now.middle === 0
      ? `At epsilon ${now.epsilon} noise wins: nothing but the base rate of the label can be released. About ${found.rows_needed.toLocaleString("en")} rows, or a larger epsilon, would be safe.`
      : `At epsilon ${now.epsilon}, ${axis.name === "Expected accuracy" ? "expect an accuracy of" : "a model keeps"} about ${axis.text(now.middle)}${axis.name === "Expected accuracy" ? "" : " of what your columns tell"} (${range}). In short: ${found.verdict}.`;
    id("curve").replaceChildren(priceCurve(found, before, axis, id("curve").clientWidth));
    const dots = found.measured.length ? ` Dots: ${new Set(found.measured.map((point) => point.table)).size} measured tables with roles like yours (${found.roles}), placed where your ${found.rows.toLocaleString("en")} rows have their strength.` : "";
    const ghost = before ? " Dashed: before the last change of roles." : "";
    id("curve-words").textContent = `${axis.name} against epsilon.${dots}${ghost} ${found.based_on}`;
    id("curve-table").replaceChildren(table("Expected by epsilon", ["Epsilon", "Low", "Middle", "High"],
      found.curve.filter((_, place) => place % 4 === 0).map((p) => [p.epsilon.toPrecision(2), axis.text(p.low), axis.text(p.middle), axis.text(p.high)])));
    id("matters").replaceChildren(found.if_public.length
      ? table("Kept if this one were public", ["Column", "Kept then", "From, to", "Points gained"], found.if_public.slice(0, 8).map((each) => [
        each.name, axis.text(each.middle), `${axis.text(each.low)} to ${axis.text(each.high)}`,
        (100 * (each.middle - now.middle)).toFixed(1)]), true)
      : element("p", { text: "No column is private." }));
  }
  id("gains").replaceChildren(table("An attacker's belief and right guesses", ["Believed before", "Believes after, at most", "Right guesses before", "Right guesses after, at most"],
    found.gains.map((gain) => [percent(gain.prior), up(gain.belief), percent(gain.guess_before), up(gain.guess_after)]), true));
  id("ledger").replaceChildren(...ledgerParts(found.ledger, found.epsilon));
  const lines = [...found.faults, ...found.warnings];
  if (found.incomplete) lines.unshift(`The schema is not complete: ${found.incomplete === 1 ? "one thing is" : `${found.incomplete} things are`} to do in Columns.`);
  id("warnings").replaceChildren(...(lines.length ? lines : ["None."]).map((text) => element("li", { text })));
  id("check-command").replaceChildren(copied(found.command, "the check command"));
}

const up = (share) => `${(Math.ceil(1000 * share - 1e-9) / 10).toFixed(1)}%`;

export function ledgerParts(ledger, epsilon) {
  if (!ledger) return [element("p", { text: "There is no ledger yet: the first training creates it with the whole budget that you name there." })];
  const words = `Epsilon ${ledger.spent_text} of ${ledger.epsilon} is spent by ${ledger.charges === 1 ? "one charge" : `${ledger.charges} charges`}; ${ledger.left < ledger.epsilon / 1000 ? "no further training fits" : `a training with epsilon ${ledger.left_text} still fits`}.`;
  const fits = epsilon <= ledger.left;
  return [
    meter(ledger.spent / ledger.epsilon, fits ? Math.max(0, 1 - ledger.spent / ledger.epsilon) * Math.min(1, epsilon / ledger.left) : null, words),
    element("p", { text: words }),
    fits ? null : element("p", { class: "verdict bad", text: `Epsilon ${epsilon} does not fit any more.` }),
    element("p", { class: "quiet", text: `${ledger.file}, at delta ${ledger.delta}, relation ${ledger.relation}` }),
  ].filter(Boolean);
}
