// Training: the commands, their progress, a button to stop.

import { attempt, get, post, say } from "./api.js";
import { copied, element } from "./draw.js";
import { ledgerParts, use } from "./price.js";

const id = (name) => document.getElementById(name);
let state = null, watching = null, last = null, finished = () => {};

export function start(onFinished) {
  finished = onFinished;
  id("start").addEventListener("click", begin);
  id("stop").addEventListener("click", async () => {
    const found = await attempt(() => post("stop"));
    if (found) { say("Stopping…"); follow(found.job); }
  });
  for (const name of ["train-epsilon", "total"]) id(name).addEventListener("change", keep);
}

export function show(next) {
  state = next;
  const part = (name, role) => state.columns.filter((c) => c.part === name && (!role || c.role === role)).length;
  const label = state.columns.find((c) => c.part === "label");
  id("summary").textContent = `${state.file}: ${state.rows.toLocaleString("en")} rows, ${part("column", "private")} private and ${part("column", "public")} public columns, ${part("out")} left out; `
    + (label ? `the label ${label.name} is ${label.role}.` : "no label yet.");
  const blocked = state.problem_count > 0;
  id("blocked").replaceChildren(...(blocked ? [element("p", { class: "verdict bad" },
    element("a", { href: "#columns", text: state.problem_count === 1 ? "One thing is to do in Columns" : `${state.problem_count} things are to do in Columns` }), ": ", state.problems[0])] : []));
  buttons();
}

function buttons() {
  const running = last !== null && last.state === "running";
  id("start").disabled = running || !state || state.problem_count > 0;
  id("stop").disabled = !running;
}

async function keep() {
  const asked = { epsilon: Number(id("train-epsilon").value), total: Number(id("total").value) };
  if (!(asked.epsilon > 0 && asked.total > 0)) return;
  Object.assign(state.settings, asked);
  use(asked.epsilon);
  await attempt(() => post("settings", asked));
  plan();
}

export async function open() {
  id("train-epsilon").value = id("epsilon").value || state.settings.epsilon;
  if (!id("total").value) id("total").value = state.settings.total;
  await plan();
  const found = await attempt(() => get("training"));
  if (found && found.job) follow(found.job);
}

function asked() {
  return { epsilon: Number(id("train-epsilon").value), delta: Number(id("delta").value), total: Number(id("total").value) };
}

async function plan() {
  const found = await attempt(() => get("plan", asked()));
  if (!found) return;
  id("total-field").hidden = found.ledger !== null;
  id("room").replaceChildren(...ledgerParts(found.ledger, asked().epsilon).slice(1, 3));
  const running = last !== null && last.state === "running";
  steps(running ? last.steps : found.commands);
}

function steps(list) {
  id("commands").replaceChildren(...list.map((step) => element("li", {}, `${step.what}`, copied(step.command, step.what))));
}

async function begin() {
  id("start").disabled = true;
  const found = await attempt(() => post("train", asked()));
  if (!found) { buttons(); return; }
  follow(found.job);
}

function follow(job) {
  const before = last && last.name === job.name ? last.state : null;
  last = job;
  id("run").hidden = false;
  id("progress").value = job.share;
  id("progress-words").textContent = `${job.name}: ${job.text}, ${job.seconds} s`;
  id("run-message").textContent = job.message || (job.state === "done" ? "Trained, charged and reported: see Result." : "");
  id("run-message").className = job.state === "failed" ? "verdict bad" : "";
  if (job.state === "running") steps(job.steps);
  buttons();
  clearTimeout(watching);
  if (job.state === "running") {
    watching = setTimeout(async () => {
      const found = await attempt(() => get("training"));
      if (found && found.job) follow(found.job);
    }, 400);
  } else if (before === "running") {
    say(job.message || `${job.name} is trained.`);
    finished(job);
    plan();
  }
}
