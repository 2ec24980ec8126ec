// The studio's page: four views over one state that the server keeps.

import { attempt, get, say } from "./api.js";
import * as columns from "./columns.js";
import * as price from "./price.js";
import * as result from "./result.js";
import * as train from "./train.js";

const VIEWS = ["columns", "price", "train", "result"];
const id = (name) => document.getElementById(name);

function told(state) {
  id("about").textContent = `${state.file}: ${state.rows.toLocaleString("en")} rows, ${state.columns.length} columns`;
  columns.show(state);
  price.show(state);
  train.show(state);
}

function view() {
  const asked = location.hash.slice(1);
  const name = VIEWS.includes(asked) ? asked : "columns";
  for (const each of VIEWS) id(`view-${each}`).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${id(`head-${name}`).textContent} · halfmask studio`;
  if (asked === name) id(`head-${name}`).focus();
  say("");
  if (name === "price") price.ask();
  if (name === "train") train.open();
  if (name === "result") result.open();
}

const state = await attempt(() => get("state"));
if (state) {
  columns.start(told);
  price.start();
  train.start((job) => { if (job.state === "done") { result.open(true); location.hash = "#result"; } });
  result.start();
  told(state);
  addEventListener("hashchange", view);
  view();
  document.documentElement.dataset.ready = "yes";
}
