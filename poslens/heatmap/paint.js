// Colors of the units and their legends: which panes share a scale, and how legends describe it.

/** Number of off-screen units that are colored per timer call. */
const SLICE = 1024;

/** Delay before off-screen units are colored, so that a pointer crossing words colors none. */
const SLICE_PAUSE_MS = 60;

/**
 * Groups the panes that share a color scale. Queries and documents never share one, because a query
 * has few tokens, each with a large part of the score. Neither do panes whose scores have different
 * units or only one of which is signed.
 */
function scaleGroups(state) {
  const groups = new Map();
  for (const drawn of state.panes) {
    const { side, signed, unit, id } = drawn.pane;
    const key = state.view.range === "own" ? id : JSON.stringify([side, signed, unit]);
    if (!groups.has(key)) groups.set(key, { signed, unit, side: drawn.side, panes: [] });
    groups.get(key).panes.push(drawn);
  }
  return [...groups.values()];
}

/** Colors all units, and draws rails and legends. */
function paint(state) {
  const own = state.view.range === "own" && new Set(state.panes.map((p) => p.column)).size > 1;
  const bars = [];
  for (const { legend } of state.columns) legend.replaceChildren();
  const groups = scaleGroups(state);
  const units = new Set(groups.map(({ unit }) => unit).filter(Boolean));
  const [unit] = units;
  if (units.size === 1) bars.push(element("span", "hm-unit", unit, { title: unit }));
  const signs = state.panes.find(({ pane }) => pane.signs)?.pane.signs ?? [];
  bars.push(...signs.map((text, i) => signKey(state, text, i === 0 ? 1 : -1)));
  for (const group of groups) {
    group.top = Math.max(...group.panes.map(({ units }) => scaleTop(units, group.signed)));
    const bar = legendBar(state, group, units.size > 1);
    for (const drawn of group.panes) drawn.scale = group;
    if (own) group.panes[0].legend.append(bar);
    else bars.push(bar);
  }
  state.linkBars = [];
  const linkBars = [];
  for (const group of linkGroups(state)) {
    const bar = linkBar(state, group);
    if (own) group.links[0].document.legend.append(bar);
    else linkBars.push(bar);
  }
  state.linkLegend.replaceChildren(...linkBars);
  for (const drawn of state.panes) colorPane(drawn);
  nameLinks(state);
  paintRails(state);
  if (state.panes.some(({ pane }) => pane.evidence)) {
    const mark = element("span", "hm-mark");
    mark.append(element("span", "hm-sample hm-evidence", "evidence"));
    bars.push(mark);
  }
  state.legend.replaceChildren(...bars);
}

/** Colors all units of a pane at once. */
function colorPane(drawn) {
  clearTimeout(drawn.slices);
  colorUnits(drawn, 0, drawn.units.length);
}

/**
 * Colors visible units at once, and off-screen units later in slices: 8,192 tokens of a long
 * paragraph take the browser 80 ms, too long to follow a pointer. A new call cancels what remains
 * of the previous one.
 */
function recolorPane(drawn) {
  const { length } = drawn.units;
  if (length <= SLICE) return colorPane(drawn);
  clearTimeout(drawn.slices);
  const { top, bottom } = drawn.body.getBoundingClientRect();
  // a unit that starts above the edge may extend below it
  const from = Math.max(0, unitFrom(drawn, top) - 1);
  const to = unitFrom(drawn, bottom);
  colorUnits(drawn, from, to);
  let [before, behind] = [from, to];
  const next = () => {
    const down = behind < length;
    const first = down ? behind : Math.max(0, before - SLICE);
    const last = down ? Math.min(length, behind + SLICE) : before;
    colorUnits(drawn, first, last);
    if (down) behind = last;
    else before = first;
    if (behind < length || before > 0) drawn.slices = setTimeout(next);
  };
  drawn.slices = setTimeout(next, SLICE_PAUSE_MS);
}

/** Colors units [first, last) by score, or by their share with the other pane's linked unit. */
function colorUnits(drawn, first, last) {
  const linked = linkedScores(drawn);
  const { top, signed } = linked ? { top: drawn.link.top, signed: true } : drawn.scale;
  const { units, runs, steps } = drawn;
  for (let u = first; u < last; u += 1) {
    const step = scaleIndex(linked ? linked[u] : units[u].score, top, signed);
    // most units keep their step; replacing only the step's class keeps outlines
    if (step === steps[u]) continue;
    for (const run of runs[u]) {
      if (steps[u] >= 0) run.classList.replace(`hm-${steps[u]}`, `hm-${step}`);
      else run.className = run.className ? `${run.className} hm-${step}` : `hm-${step}`;
    }
    steps[u] = step;
  }
}

/** Returns the legend of a group of panes. Only exports and its tooltip show the notes. */
function legendBar(state, { unit, signed, top, side }, withUnit) {
  const title = element("span", "hm-scale-title");
  title.append(element("b", "", side));
  if (unit && withUnit) title.append(element("span", "hm-unit", unit));
  const { level, aggregate } = state.view;
  const notes = level === "token" ? [] : [`${aggregate} of a ${level}\u2019s tokens`];
  notes.push(signed ? "ends: \u00b1 largest value" : "top: largest value");
  for (const note of notes) title.append(element("span", "hm-scale-note", note));
  const item = scaleBar(state, title, top, signed);
  item.title = [[side, unit].filter(Boolean).join(": "), ...notes].join("; ");
  return item;
}

/** Returns a swatch in the color of positive (`sign` 1) or negative (-1) scores, with a text. */
function signKey(state, text, sign) {
  const item = element("span", "hm-key");
  const swatch = item.appendChild(element("span", "hm-swatch", "", { "aria-hidden": "true" }));
  swatch.style.background = state.scale.cells[scaleIndex(0.6 * sign, 1, true)];
  item.append(text);
  return item;
}

/** Returns a legend: its title, then a bar of colors between the values at its ends. */
function scaleBar(state, title, top, signed) {
  const item = element("div", "hm-scale");
  const bar = element("span", "hm-bar");
  bar.style.background = scaleGradient(state.scale, signed);
  const [low, high] = [signed ? -top : 0, top].map((end) =>
    element("span", "hm-tick", signed ? formatSigned(end) : formatScore(end)));
  item.append(title, low, bar, high);
  return item;
}
