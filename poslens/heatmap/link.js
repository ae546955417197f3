// What the two panes of a column have in common: while the reader points at a unit of one, the
// other shows each unit's share with it. A click or Enter pins the unit, so that the reader can go
// over to the other pane and read the values there.

/** Time in which the pointer may cross the space between two units without a flash between. */
const LINK_PAUSE_MS = 80;

/** A label longer than this is cut in legends and notes. */
const LINK_LABEL = 40;

/** One link for each document that has a matrix and a query in its column. */
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

/** Float32Array of base64; its bytes are little-endian, as every machine with a browser is. */
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

/** Links whose colors mean the same numbers; sets the top of each. */
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

/** Share of each unit of a pane with the unit linked in the other one; null where none is. */
function linkedScores(drawn) {
  const { link } = drawn;
  if (!link?.active || link.active.source === drawn) return null;
  const { values } = link.cells;
  const [u, n] = [link.active.u, link.document.units.length];
  if (drawn === link.document) return values.subarray(u * n, (u + 1) * n);
  return Float64Array.from(link.query.units, (_, q) => values[q * n + u]);
}

/** The reader points at a unit or reaches it by key: its link follows, unless one is pinned. */
function followLink(state, drawn, u) {
  clearTimeout(state.linkTimer);
  for (const link of state.links) {
    if (link.active?.pinned) continue;
    setLink(state, link, link === drawn.link ? { source: drawn, u, pinned: false } : null);
  }
}

/** The reader has left the unit: colors of links that are not pinned go back, after a pause. */
function leaveLinks(state) {
  clearTimeout(state.linkTimer);
  state.linkTimer = setTimeout(() => {
    for (const link of state.links) if (!link.active?.pinned) setLink(state, link, null);
  }, LINK_PAUSE_MS);
}

/** All colors go back at once, of pinned units too. */
function freeLinks(state) {
  clearTimeout(state.linkTimer);
  if (state.links.some(({ active }) => active)) state.live.textContent = "usual colors";
  for (const link of state.links) setLink(state, link, null);
}

/** Pins a unit in place of any other of its column, or frees it where it is the one pinned. */
function togglePin(state, drawn, u) {
  clearTimeout(state.linkTimer);
  const { active } = drawn.link;
  const pinned = !(active?.pinned && active.source === drawn && active.u === u);
  setLink(state, drawn.link, { source: drawn, u, pinned });
}

/**
 * Recolors by `active` = { source, u, pinned, target }, or as usual where null; `target`, if any, is
 * the document's unit that a pinned one of the query led to.
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

/** Each unit that is pinned, or was led to: { model, side, start, end, text }, in code points. */
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

/** A unit's text, short enough for a line. */
function shortText({ segmented, units }, u) {
  const { start, end } = units[u];
  const stop = clusterFloor(segmented, Math.min(end, start + LINK_LABEL));
  const text = segmented.text.slice(start, stop).replace(/\s+/g, " ");
  return stop < end ? `${text}\u2026` : text;
}

/** "«dough»": the unit that a link shows the shares of. */
const linkLabel = ({ source, u }) => `\u00ab${shortText(source, u)}\u00bb`;

const linkTitle = (active) => `share with ${linkLabel(active)}`;

/** The legend of a group of links; `nameLinks` writes its title. */
function linkBar(state, group) {
  const title = element("span", "hm-scale-title");
  const bar = scaleBar(state, title, group.top, true);
  bar.classList.add("hm-link-bar");
  state.linkBars.push({ bar, title, ...group });
  return bar;
}

/** Says in the legends, and over the panes recolored, whose shares the colors show. */
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
      const note = active.some(({ pinned }) => pinned) ? "pinned: Esc frees" : "ends: \u00b1 largest";
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

/** What a unit shares with the one linked in the other pane, [name, value]; null without. */
function linkedRow(drawn, u) {
  const scores = linkedScores(drawn);
  return scores && [linkTitle(drawn.link.active), formatSigned(scores[u])];
}

/** The same for the screen reader; at the linked unit itself, what is colored and what is most. */
function linkWords(drawn, u) {
  const { link } = drawn;
  const row = linkedRow(drawn, u);
  if (row) return row.join(" ");
  if (link?.active?.source !== drawn || link.active.u !== u) return "";
  const target = drawn === link.query ? link.document : link.query;
  const scores = linkedScores(target);
  const most = scores.reduce(
    (best, score, i) => (Math.abs(score) > Math.abs(scores[best]) ? i : best), 0);
  const label = linkLabel({ source: target, u: most });
  return `${target.side.toLowerCase()} colored by ${linkTitle(link.active)}` +
    `${link.active.pinned ? ", pinned" : ""}, most with ${label} ${formatSigned(scores[most])}`;
}
