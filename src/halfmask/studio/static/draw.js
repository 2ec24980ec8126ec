// Elements and figures. Names are text: everything goes in through textContent and attributes.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function table(caption, headings, rows, hideCaption = false) {
  const number = (text) => /^[<>≈−-]?[\d.,]+ ?%?$/.test(text);
  return element("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    element("table", {},
      element("caption", { text: caption, class: hideCaption ? "hidden" : null }),
      element("thead", {}, element("tr", {}, ...headings.map((text, place) =>
        element("th", { scope: "col", text, class: place && rows.length && number(String(rows[0][place])) ? "number" : null })))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, place) => {
        const text = String(cell);
        return place === 0 ? element("th", { scope: "row", text })
          : element("td", { text, class: number(text) ? "number" : null });
      }))))));
}

export function copied(text, label) {
  const button = element("button", { type: "button", text: "Copy", "aria-label": `Copy ${label}` });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return element("div", { class: "copy" },
    element("pre", { text, tabindex: "0", role: "region", "aria-label": label }), button);
}

export const percent = (share) => `${Math.round(100 * share)}%`;

// A small picture of a public column.
export function glance(found) {
  const most = Math.max(1, ...found.bars.map((bar) => bar.count));
  const width = 144 / Math.max(found.bars.length, 1);
  const words = glanceWords(found);
  return drawn("svg", { class: "glance", viewBox: "0 0 144 30", role: "img", "aria-label": words, preserveAspectRatio: "none" },
    drawn("title", { text: words }),
    ...found.bars.map((bar, place) => {
      const height = Math.max(bar.count ? 1 : 0, (28 * bar.count) / most);
      return drawn("rect", { x: place * width, y: 29 - height, width: Math.max(width - 1, 0.6), height },
        drawn("title", { text: `${bar.text}: ${bar.count.toLocaleString("en")}` }));
    }));
}

export function glanceWords(found) {
  const missing = found.missing ? `, ${found.missing.toLocaleString("en")} missing` : "";
  if (found.form === "levels") {
    const top = found.bars.slice(0, 3).map((bar) => `${bar.text} ${percent(bar.count / Math.max(found.rows, 1))}`);
    return `${found.levels.toLocaleString("en")} values: ${top.join(", ")}${missing}`;
  }
  return found.bars.length ? `From ${found.low} to ${found.high}${missing}` : `No value${missing}`;
}

const LEFT = 56, RIGHT = 14, TOP = 14, BOTTOM = 46;

// Kept (or accuracy) against epsilon: a band, its line, measured tables, the choice.
export function priceCurve(found, before, scale, room) {
  // Drawn in the size at which it is seen, so that its words stay legible on a phone.
  const WIDTH = Math.max(320, Math.min(680, room)), HEIGHT = Math.round(Math.max(240, WIDTH * 0.53));
  const low = Math.log(0.05), high = Math.log(10);
  const across = (epsilon) => LEFT + ((Math.log(Math.min(Math.max(epsilon, 0.05), 10)) - low) / (high - low)) * (WIDTH - LEFT - RIGHT);
  const up = (kept) => HEIGHT - BOTTOM - kept * (HEIGHT - TOP - BOTTOM);
  const path = (points, key) => points.map((p, place) => `${place ? "L" : "M"}${across(p.epsilon).toFixed(1)} ${up(p[key]).toFixed(1)}`).join("");
  const ticks = WIDTH < 450 ? [0.1, 0.5, 1, 2, 10] : [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];
  const parts = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    parts.push(drawn("path", { class: "grid", d: `M${LEFT} ${up(share)}H${WIDTH - RIGHT}` }));
    parts.push(drawn("text", { x: LEFT - 8, y: up(share) + 4, "text-anchor": "end", text: scale.text(share) }));
  }
  for (const tick of ticks) {
    parts.push(drawn("path", { class: "axis", d: `M${across(tick)} ${up(0)}v5` }));
    parts.push(drawn("text", { x: across(tick), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle", text: String(tick) }));
  }
  parts.push(drawn("path", { class: "axis", d: `M${LEFT} ${up(0)}H${WIDTH - RIGHT}` }));
  parts.push(drawn("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 6, "text-anchor": "middle", text: "epsilon (strong privacy on the left)" }));
  if (before) parts.push(drawn("path", { class: "ghost", d: path(before, "middle") }));
  const curve = found.curve;
  const back = [...curve].reverse().map((p) => `L${across(p.epsilon).toFixed(1)} ${up(p.low).toFixed(1)}`).join("");
  parts.push(drawn("path", { class: "band", d: `${path(curve, "high")}${back}Z` }));
  parts.push(drawn("path", { class: "line", d: path(curve, "middle") }));
  for (const point of found.measured) {
    parts.push(drawn("circle", { class: "dot", cx: across(point.epsilon), cy: up(point.kept), r: 3.5 },
      drawn("title", { text: `${point.table}: ${percent(point.kept)} kept` })));
  }
  const now = found.now;
  parts.push(drawn("path", { class: "mark", d: `M${across(now.epsilon)} ${up(0)}V${TOP}` }));
  parts.push(drawn("circle", { class: "at", cx: across(now.epsilon), cy: up(now.middle), r: 6 }));
  return drawn("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `${scale.name} against epsilon. At epsilon ${now.epsilon}: ${scale.text(now.middle)}, between ${scale.text(now.low)} and ${scale.text(now.high)}.` }, ...parts);
}

export function meter(full, now, words) {
  const clip = (share) => Math.max(0, Math.min(1, share));
  return drawn("svg", { class: "meter", viewBox: "0 0 200 12", preserveAspectRatio: "none", role: "img", "aria-label": words },
    drawn("rect", { class: "back", x: 0.5, y: 0.5, width: 199, height: 11 }),
    drawn("rect", { class: "full", x: 0.5, y: 1, width: 199 * clip(full), height: 10 }),
    now === null ? null : drawn("rect", { class: "now", x: 0.5 + 199 * clip(full), y: 1, width: 199 * Math.min(clip(now), 1 - clip(full)), height: 10 }));
}

const MOST_LEVELS = 18;

// Effects of one column, of one training or of two beside each other.
export function effectsFigure(all, room) {
  let pairs = all;
  // One training as a figure of the report has it; of two, the same levels of both.
  pairs = pairs.length > 1 ? pairs : pairs.map(({ name, effect }) => ({ name, effect: {
    ...effect, levels: effect.rows.map((r) => r.level), values: effect.rows.map((r) => r.value),
    low: effect.rows.map((r) => r.low), high: effect.rows.map((r) => r.high) } }));
  const levels = [];
  for (const { effect } of pairs) for (const level of effect.levels) if (!levels.includes(level)) levels.push(level);
  const step = Math.max(1, (levels.length - 1) / (MOST_LEVELS - 1));
  const shown = levels.length <= MOST_LEVELS ? levels
    : Array.from({ length: MOST_LEVELS }, (_, place) => levels[Math.round(place * step)]);
  const width = Math.max(320, Math.min(680, room)), narrow = width < 450;
  const row = 26, left = narrow ? 120 : 190, letters = narrow ? 15 : 24;
  const height = shown.length * row + 50;
  const ends = pairs.flatMap(({ effect }) => [...effect.low, ...effect.high, ...effect.values, 0]);
  const least = Math.min(...ends), most = Math.max(...ends), spread = most - least || 1;
  const across = (value) => left + ((value - least) / spread) * (width - left - 24);
  const parts = [drawn("path", { class: "axis", d: `M${across(0)} 6V${height - 40}` })];
  shown.forEach((level, place) => {
    const y = 18 + place * row;
    parts.push(drawn("text", { x: left - 12, y: y + 4, "text-anchor": "end", text: level.length > letters ? `${level.slice(0, letters - 1)}…` : level }));
    parts.push(drawn("path", { class: "grid", d: `M${left} ${y + row / 2}H${width - 10}` }));
    pairs.forEach(({ effect, name }, which) => {
      const at = effect.levels.indexOf(level);
      if (at < 0) return;
      const own = y + (pairs.length > 1 ? (which ? 5 : -5) : 0);
      const tone = which ? "second" : "first";
      const noise = effect.low[at] <= 0 && effect.high[at] >= 0 && effect.low[at] < effect.high[at];
      parts.push(drawn("path", { class: `whisker ${tone}`, d: `M${across(effect.low[at])} ${own}H${across(effect.high[at])}` }));
      const title = drawn("title", { text: `${name}, ${level}: ${effect.values[at].toFixed(2)}` });
      const form = noise ? `${tone} hollow` : tone;
      parts.push(which
        ? drawn("rect", { class: form, x: across(effect.values[at]) - 4, y: own - 4, width: 8, height: 8, "stroke-width": 2 }, title)
        : drawn("circle", { class: form, cx: across(effect.values[at]), cy: own, r: 4.5, "stroke-width": 2 }, title));
    });
  });
  for (const share of [0, 0.5, 1]) {
    const value = least + share * spread;
    parts.push(drawn("text", { x: across(value), y: height - 20, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle", text: value.toFixed(2) }));
  }
  parts.push(drawn("text", { class: "quiet", x: (left + width) / 2, y: height - 3, "text-anchor": "middle", text: "adds to the score" }));
  return { figure: drawn("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Points with bars: what ${shown.length} levels add to the score. The numbers are in the table below.` }, ...parts),
    left: Math.max(...all.map(({ effect }) => effect.levels.length)) - shown.length };
}
