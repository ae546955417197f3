// The link between a column's query and document. While the user hovers over a unit of one pane,
// the other pane shows each of its units' share with it. A click or Enter pins the unit, so that
// the user can move to the other pane and read the values there.

/** Delay before colors revert, so that crossing the gap between two units causes no flash. */
const LINK_PAUSE_MS = 80;

/** Maximum number of characters of a unit's text in legends, notes and lists, or of a bin's text. */
const LINK_LABEL = 40;

/** Builds a link for each document that has a matrix, and a query in its column. */
function buildLinks(state) {
  state.links = [];
  for (const drawn of state.panes) {
    const query = state.panes.find(
      (other) => other.column === drawn.column && other.pane.side === "query");
    if (!drawn.pane.link || !query) continue;
    const { columns, values } = drawn.pane.link;
    const link = { query, document: drawn, columns, shares: readFloats(values), active: null };
    query.link = link;
    drawn.link = link;
    buildLargest(state, link);
    for (const { section } of [query, drawn]) section.classList.add("hm-link");
    state.links.push(link);
  }
  state.cleanups.push(() => {
    clearTimeout(state.linkTimer);
    for (const drawn of state.panes) clearTimeout(drawn.slices);
  });
}

/** Decodes base64 to a Float32Array. The bytes are little-endian, as on all browsers' machines. */
function readFloats(base64) {
  const characters = atob(base64);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

function scoreLink(state, link) {
  const { query, document, columns, shares } = link;
  link.cells = linkCells(shares, columns, query.units, document.units, state.view.aggregate);
  fillLargest(state, link);
}

/** Groups the links that share a color scale, and sets the `top` of each link's scale. */
function linkGroups(state) {
  const groups = new Map();
  state.links.forEach((link, index) => {
    const { unit } = link.document.pane;
    const key = state.view.range === "own" ? index : unit;
    if (!groups.has(key)) groups.set(key, { unit, links: [] });
    groups.get(key).links.push(link);
  });
  for (const group of groups.values()) {
    group.top = Math.max(...group.links.map(({ cells }) => cells.top));
    for (const link of group.links) link.top = group.top;
  }
  return [...groups.values()];
}

/** Returns each unit's share [units] with the other pane's linked unit; null if there is none. */
function linkedScores(drawn) {
  const { link } = drawn;
  if (!link?.active || link.active.source === drawn) return null;
  const { values } = link.cells;
  const [u, n] = [link.active.u, link.document.units.length];
  if (drawn === link.document) return values.subarray(u * n, (u + 1) * n);
  return Float64Array.from(link.query.units, (_, q) => values[q * n + u]);
}

/** Links unit `u` (hovered or reached by key) in its column; pinned units stay linked. */
function followLink(state, drawn, u) {
  clearTimeout(state.linkTimer);
  for (const link of state.links) {
    if (link.active?.pinned) continue;
    setLink(state, link, link === drawn.link ? { source: drawn, u, pinned: false } : null);
  }
}

/** Restores the colors of columns without a pin after LINK_PAUSE_MS. */
function leaveLinks(state) {
  clearTimeout(state.linkTimer);
  state.linkTimer = setTimeout(() => {
    for (const link of state.links) if (!link.active?.pinned) setLink(state, link, null);
  }, LINK_PAUSE_MS);
}

/** Removes all links and pins, and restores the colors at once. */
function freeLinks(state) {
  clearTimeout(state.linkTimer);
  if (state.links.some(({ active }) => active)) state.live.textContent = "colored by score";
  for (const link of state.links) setLink(state, link, null);
}

/** Pins a unit and unpins any other in its column; unpins the unit if it is pinned already. */
function togglePin(state, drawn, u) {
  clearTimeout(state.linkTimer);
  const { active } = drawn.link;
  const pinned = !(active?.pinned && active.source === drawn && active.u === u);
  setLink(state, drawn.link, { source: drawn, u, pinned });
}

/**
 * Recolors a column by `active` = { source, u, pinned, target }, or by score if it is null.
 * `target` is the document unit of the activated list entry, if any.
 */
function setLink(state, link, active) {
  const old = link.active;
  const same = (key) => old?.[key] === active?.[key];
  if (["source", "u", "pinned", "target"].every(same)) return;
  link.active = active;
  for (const run of link.pinned ?? []) run.classList.remove("hm-pinned");
  link.pinned = active?.pinned ? [...active.source.runs[active.u]] : [];
  if (active?.target !== undefined) link.pinned.push(...link.document.runs[active.target]);
  for (const run of link.pinned) run.classList.add("hm-pinned");
  recolorPane(link.query);
  recolorPane(link.document);
  nameLinks(state);
  markLargest(link);
  if (old?.pinned || active?.pinned) state.onPins(pinsOf(state));
}

/**
 * Returns the pinned units, and the document units of activated list entries, as { model, side,
 * start, end, text } with offsets in code points.
 */
function pinsOf(state) {
  const pinned = state.links.filter(({ active }) => active?.pinned);
  return pinned.flatMap(({ document, active }) => {
    const led = active.target === undefined ? [] : [[document, active.target]];
    return [[active.source, active.u], ...led].map(([{ pane, segmented, units }, u]) => {
      const { start, end } = units[u];
      const [from, to] = [start, end].map((offset) => segmented.cp.indexOf(offset));
      const text = segmented.text.slice(start, end);
      return { model: pane.model, side: pane.side, start: from, end: to, text };
    });
  });
}

/** Returns the text of a unit, or of several, on one line, cut to LINK_LABEL characters. */
function shortText({ segmented, units }, first, last = first) {
  const span = { start: units[first].start, end: units[last].end };
  return textOf(segmented, span, LINK_LABEL).replace(/\s+/g, " ");
}

/** The linked unit as a label, such as "«dough»". */
const linkLabel = ({ source, u }) => `\u00ab${shortText(source, u)}\u00bb`;

const linkTitle = (active) => `share with ${linkLabel(active)}`;

/** Returns the legend of a group of links; `nameLinks` fills in its title. */
function linkBar(state, group) {
  const title = element("span", "hm-scale-title");
  const bar = scaleBar(state, title, group.top, true);
  bar.classList.add("hm-link-bar");
  state.linkBars.push({ bar, title, ...group });
  return bar;
}

/** Names the linked units in the legends and above the recolored panes. */
function nameLinks(state) {
  for (const { bar, title, links } of state.linkBars) {
    const active = links.map((link) => link.active).filter(Boolean);
    bar.classList.toggle("hm-active", active.length > 0);
    if (active.length === 0) {
      const hint = `hover over a ${state.view.level}, click to pin`;
      title.replaceChildren(element("b", "", "Query \u00d7 document"),
        element("span", "hm-scale-note", hint));
    } else {
      const labels = [...new Set(active.map(linkLabel))].join(", ");
      const pinned = active.some((linked) => linked.pinned);
      const note = pinned ? "pinned; Esc to unpin" : "ends: \u00b1 largest value";
      const name = element("b", "", "share with ");
      name.append(element("bdi", "", labels));
      title.replaceChildren(name, element("span", "hm-scale-note", note));
    }
  }
  for (const { query, document, active } of state.links) {
    for (const drawn of [query, document]) {
      const target = active && active.source !== drawn;
      drawn.linkNote.textContent = target ? linkTitle(active) : "";
    }
  }
}

/** Returns a unit's share with the other pane's linked unit as [name, value]; null without one. */
function linkedRow(drawn, u) {
  const scores = linkedScores(drawn);
  return scores && [linkTitle(drawn.link.active), formatSigned(scores[u])];
}

/**
 * Returns the share for screen readers. For the linked unit itself: what the other pane's colors
 * show, and its unit with the largest share. Empty for other units.
 */
function linkWords(drawn, u) {
  const { link } = drawn;
  const row = linkedRow(drawn, u);
  if (row) return row.join(" ");
  if (link?.active?.source !== drawn || link.active.u !== u) return "";
  const target = drawn === link.query ? link.document : link.query;
  const scores = linkedScores(target);
  const most = largestIndex(scores);
  const label = linkLabel({ source: target, u: most });
  return `${target.side.toLowerCase()} colored by ${linkTitle(link.active)}` +
    `${link.active.pinned ? ", pinned" : ""}, largest: ${label} ${formatSigned(scores[most])}`;
}
