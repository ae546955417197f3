// Colors of the cells and their legends: which panes share a scale, and what each scale says.

/** Units out of sight that are colored in one go while the reader points about. */
const SLICE = 1024;

/** Time until they are: none is colored in vain while the pointer sweeps over words. */
const SLICE_PAUSE_MS = 60;

/**
 * Panes whose colors mean the same numbers. Query and document never share: a query has few
 * tokens, each with a large part of the score. Neither do panes of another unit or kind of scale.
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

/** Colors every cell, draws the rails and writes the legends. */
function paint(state) {
  const own = state.view.range === "own" && new Set(state.panes.map((p) => p.column)).size > 1;
  const bars = [];
  for (const { legend } of state.columns) legend.replaceChildren();
  const groups = scaleGroups(state);
  const units = new Set(groups.map(({ unit }) => unit).filter(Boolean));
  const [unit] = units;
  if (units.size === 1) bars.push(element("span", "hm-unit", unit, { title: unit }));
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

/** Colors all cells of a pane, now. */
function colorPane(drawn) {
  clearTimeout(drawn.slices);
  colorUnits(drawn, 0, drawn.units.length);
}

/**
 * Colors the cells in sight now and the others in slices of their own time: the browser needs
 * 80 ms for a long paragraph's 8,192 tokens, too long to follow a pointer. A next call drops
 * what is left of the last one.
 */
function recolorPane(drawn) {
  const { length } = drawn.units;
  if (length <= SLICE) return colorPane(drawn);
  clearTimeout(drawn.slices);
  const { top, bottom } = drawn.body.getBoundingClientRect();
  // a unit that begins above the edge may reach into sight
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

/** Colors units [first, last): by their scores, or by what they share with the unit linked. */
function colorUnits(drawn, first, last) {
  const linked = linkedScores(drawn);
  const { top, signed } = linked ? { top: drawn.link.top, signed: true } : drawn.scale;
  const { units, runs, steps } = drawn;
  for (let u = first; u < last; u += 1) {
    const step = scaleIndex(linked ? linked[u] : units[u].score, top, signed);
    // most cells keep their step, and outlines their class, while the reader moves along
    if (step === steps[u]) continue;
    for (const run of runs[u]) {
      if (steps[u] >= 0) run.classList.replace(`hm-${steps[u]}`, `hm-${step}`);
      else run.className = run.className ? `${run.className} hm-${step}` : `hm-${step}`;
    }
    steps[u] = step;
  }
}

/** A group's scale in short; what its numbers are stands in full in exports and the tooltip. */
function legendBar(state, { unit, signed, top, side }, withUnit) {
  const title = element("span", "hm-scale-title");
  title.append(element("b", "", side));
  if (unit && withUnit) title.append(element("span", "hm-unit", unit));
  const { level, aggregate } = state.view;
  const notes = level === "token" ? [] : [`${aggregate} of a ${level}\u2019s tokens`];
  notes.push(signed ? "ends: \u00b1 largest" : "top: largest value");
  for (const note of notes) title.append(element("span", "hm-scale-note", note));
  const item = scaleBar(state, title, top, signed);
  item.title = [[side, unit].filter(Boolean).join(": "), ...notes].join("; ");
  return item;
}

/** A legend: its title, then the colors between the numbers of their ends. */
function scaleBar(state, title, top, signed) {
  const item = element("div", "hm-scale");
  const bar = element("span", "hm-bar");
  bar.style.background = scaleGradient(state.scale, signed);
  const [low, high] = legendEnds(top, signed).map((end) =>
    element("span", "hm-tick", signed ? formatSigned(end) : formatScore(end)));
  item.append(title, low, bar, high);
  return item;
}
