// Results: what is promised, learnt and scored; two trainings beside each other; the report.

import { attempt, get } from "./api.js";
import { copied, effectsFigure, element, table } from "./draw.js";

const id = (name) => document.getElementById(name);
const SCORES = { log_loss: "log loss", auc: "AUC", accuracy: "accuracy", rmse: "RMSE" };
const held = new Map();
let ledger = null;
// What is drawn last is what was asked for last, whichever answer comes first.
let asked = 0;
let askedEffect = 0;

export function start() {
  id("one").addEventListener("change", draw);
  id("other").addEventListener("change", draw);
  id("effect").addEventListener("change", drawEffect);
  addEventListener("resize", () => !id("view-result").hidden && !id("results").hidden && drawEffect());
}

export async function open(newest = false) {
  const found = await attempt(() => get("results"));
  if (!found) return;
  const names = found.models;
  ledger = found.ledger;
  id("no-result").hidden = names.length > 0;
  id("results").hidden = names.length === 0;
  if (!names.length) return;
  const one = newest || !names.includes(id("one").value) ? names.at(-1) : id("one").value;
  const other = names.includes(id("other").value) && id("other").value !== one ? id("other").value : "";
  id("one").replaceChildren(...names.map((text) => element("option", { value: text, text })));
  id("other").replaceChildren(element("option", { value: "", text: "nothing" }), ...names.map((text) => element("option", { value: text, text })));
  id("one").value = one;
  id("other").value = other;
  await draw();
}

async function result(name) {
  if (!held.has(name)) {
    const found = await attempt(() => get(`result/${name}`));
    if (!found) return null;
    held.set(name, found);
  }
  return held.get(name);
}

async function both() {
  const names = [id("one").value, id("other").value].filter((name, place, all) => name && all.indexOf(name) === place);
  return (await Promise.all(names.map(result))).filter(Boolean);
}

async function draw() {
  const mine = ++asked;
  const found = await both();
  if (!found.length || mine !== asked) return;
  id("charged").textContent = ledger ? `All trainings here are charged to ${ledger.file}: epsilon ${ledger.spent_text} of ${ledger.epsilon} is spent, together.` : "";
  id("cards").replaceChildren(...found.map(card));
  const first = found[0];
  const several = new Set(first.effects.map((effect) => effect.outcome)).size > 1;
  const kept = id("effect").value;
  id("effect").replaceChildren(...first.effects.map((effect) => element("option", {
    value: key(effect), text: several ? `${effect.column}, on ${effect.outcome}` : effect.column, selected: key(effect) === kept })));
  id("effect").disabled = !first.effects.length;
  drawEffect();
  const page = `report/${first.name}`;
  if (id("report").getAttribute("src") !== page) id("report").setAttribute("src", page);
  id("report-words").textContent = `${first.files.report}, as halfmask report wrote it.`;
  id("next").replaceChildren(...first.commands.map((text) => element("li", {}, copied(text, text.split(" ")[1]))));
}

function card(found) {
  const roles = (role) => found.columns.filter((column) => column.role === role).length;
  const covered = found.covered;
  const scores = covered ? Object.entries(SCORES).filter(([key]) => covered[key] !== null && covered[key] !== undefined)
    .map(([key, name]) => [name, covered[key].toPrecision(4), covered[`${key}_bar`] == null ? "" : `± ${covered[`${key}_bar`].toPrecision(2)}`]) : [];
  return element("div", { class: "card" },
    element("h3", { text: found.name }),
    element("p", { text: `Epsilon ${found.epsilon ?? "none: seeded"} at delta ${found.delta}, relation ${found.relation}.` }),
    element("p", { text: `${roles("private")} private and ${roles("public")} public columns, label included. Method ${found.method}.` }),
    scores.length ? table(`Scores of ${found.name}, covered by the guarantee`, ["Score", "Value", "Bar"], scores)
      : element("p", { class: "quiet", text: found.constant ?? "This training released no score of its own." }),
    covered?.compared ? element("p", { text: covered.compared }) : "",
    element("p", { class: "quiet", text: `In ${found.files.model}` }));
}

// Of more than two classes each has its own effects.
const key = (effect) => JSON.stringify([effect.column, effect.outcome]);

async function drawEffect() {
  const mine = ++askedEffect;
  const found = await both();
  if (mine !== askedEffect) return;
  const pairs = found.map((each) => ({ name: each.name, effect: each.effects.find((effect) => key(effect) === id("effect").value) }))
    .filter((pair) => pair.effect);
  if (!pairs.length) {
    id("effects").replaceChildren(element("p", { class: "quiet", text: "Effects by column are told of models by additive or gd." }));
    id("effects-words").textContent = "";
    id("effects-table").replaceChildren();
    return;
  }
  const { column } = pairs[0].effect;
  const { figure, left } = effectsFigure(pairs, id("effects").clientWidth);
  id("effects").replaceChildren(figure);
  const who = pairs.length > 1 ? ` Circles: ${pairs[0].name}; squares: ${pairs[1].name}.` : "";
  id("effects-words").textContent = `${column}, on the score of ${pairs[0].effect.outcome}.${who}${left > 0 ? " The table has every level." : ""}`;
  id("effects-table").replaceChildren(table(`Effects of ${column}`, ["Level", "Training", "Effect", "From", "To"],
    pairs.flatMap(({ name, effect }) => effect.levels.map((level, place) => [level, name, effect.values[place].toFixed(3), effect.low[place].toFixed(3), effect.high[place].toFixed(3)]))));
}
