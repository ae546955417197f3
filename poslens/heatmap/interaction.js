// Hover, clicks, keys and scrolling. A few listeners on the root serve all units.

/** Maximum number of characters of a unit's text in the tooltip and for screen readers. */
const TIP_CHARACTERS = 140;

function connect(state) {
  const { root } = state;
  const controller = new AbortController();
  const { signal } = controller;
  state.cleanups.push(() => controller.abort());
  state.tip = root.appendChild(element("div", "hm-tip", "", { role: "tooltip" }));
  // popovers are in the top layer, where Streamlit's containers neither cover nor clip them
  if (state.tip.showPopover) state.tip.setAttribute("popover", "manual");
  const byBody = new Map(state.panes.map((drawn) => [drawn.body, drawn]));
  const paneOf = (node) => byBody.get(node.closest?.(".hm-text"));

  root.addEventListener("pointerover", (event) => {
    const run = event.target.closest?.(".hm-text [data-u], .hm-text .hm-unread");
    if (!run) return hideTip(state);
    const drawn = paneOf(run);
    if (run.dataset.u === undefined) {
      return showUnread(state, drawn, rectAt(run, event.clientX, event.clientY));
    }
    point(state, drawn, Number(run.dataset.u), rectAt(run, event.clientX, event.clientY));
  }, { signal });
  root.addEventListener("pointerleave", () => hideTip(state), { signal });
  let pressed = { x: 0, y: 0 };
  root.addEventListener("pointerdown", (event) => {
    const run = event.target.closest?.(".hm-text [data-u]");
    if (run) paneOf(run).cursor = Number(run.dataset.u);
    pressed = { x: event.clientX, y: event.clientY };
  }, { signal });
  root.addEventListener("click", (event) => {
    const run = event.target.closest?.(".hm-text [data-u]");
    // dragging selects text and must not pin
    const moved = Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y);
    if (!run || !paneOf(run).link || moved > 4) return;
    togglePin(state, paneOf(run), Number(run.dataset.u));
    point(state, paneOf(run), Number(run.dataset.u), rectAt(run, event.clientX, event.clientY));
  }, { signal });
  root.addEventListener("keydown", (event) => {
    const drawn = paneOf(event.target);
    if (!drawn || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && drawn.link && drawn.cursor >= 0) {
      togglePin(state, drawn, drawn.cursor);
      return reach(state, drawn, drawn.cursor);
    }
    const next = nextUnit(drawn, event.key);
    if (next === null) return;
    event.preventDefault();
    if (next >= 0) reach(state, drawn, next);
  }, { signal });
  // on the document, because units stay pinned when the heatmap has lost the focus
  root.ownerDocument.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    hideTip(state);
    freeLinks(state);
  }, { signal });
  root.addEventListener("focusout", () => hideTip(state), { signal });
  linkScrolling(state, paneOf, signal);
}

/** Shows unit `u` under the pointer: recolors the other pane, outlines, opens the tooltip. */
function point(state, drawn, u, rect) {
  followLink(state, drawn, u);
  mark(state, drawn, u);
  showUnit(state, drawn, u, rect);
  const linked = linkWords(drawn, u);
  if (linked) state.live.textContent = `${unitLabel(drawn, u)}, ${linked}`;
}

/** Returns a run's rectangle (one per line) that contains the point, or else its first one. */
function rectAt(run, x, y) {
  const inside = (r) => x >= r.left && x <= r.right && y >= r.top && y <= r.bottom;
  return [...run.getClientRects()].find(inside) ?? firstRect(run);
}

/** Returns a unit's text, cut to TIP_CHARACTERS. */
const unitLabel = ({ segmented, units }, u) => textOf(segmented, units[u], TIP_CHARACTERS);

/** Outlines a unit, and the units at the same characters in columns with the same text. */
function mark(state, drawn, u) {
  unmark(state);
  light(state, drawn, u, u + 1, "hm-at");
  const { start, end } = drawn.units[u];
  for (const other of state.panes) {
    if (other === drawn || other.pane.side !== drawn.pane.side) continue;
    if (other.segmented !== drawn.segmented) continue;
    light(state, other, ...unitsWithin(other.units, start, end), "hm-same");
  }
}

/** Outlines units [first, last) of a pane and marks their bins on its rail. */
function light(state, drawn, first, last, className) {
  for (let u = first; u < last; u += 1) {
    for (const run of drawn.runs[u]) {
      run.classList.add(className);
      state.marked.push(run);
    }
  }
  if (drawn.rail && first < last) {
    const tokens = drawn.units.slice(first, last).flatMap((unit) => unit.tokens);
    const n = drawn.pane.tokens.length;
    markRail(drawn, ...partsOver(Math.min(...tokens), Math.max(...tokens), n, RAIL_BINS));
  }
}

function unmark(state) {
  for (const run of state.marked ?? []) run.classList.remove("hm-at", "hm-same");
  state.marked = [];
  unmarkRails(state);
}

function showUnit(state, drawn, u, rect) {
  const { units, ranks, pane } = drawn;
  const unit = units[u];
  const how = { sum: "sum of", mean: "mean of", max: "largest of" }[state.view.aggregate];
  const n = unit.tokens.length;
  const several = n > 1 ? ` (${how} ${n} tokens)` : "";
  const rank = `${formatCount(ranks[u])} of ${formatCount(units.length)}`;
  const linked = linkedRow(drawn, u);
  const rows = [
    ...(linked ? [linked] : []),
    ["score", `${formatScore(unit.score)}${pane.unit ? ` ${pane.unit}` : ""}${several}`],
    [pane.signed ? "rank by magnitude" : "rank", rank],
    ["position", formatPosition(drawn, u)],
    ["model", pane.model],
  ];
  const list = factList(rows);
  const title = element("bdi", "hm-tip-text", unitLabel(drawn, u), { dir: "auto" });
  // the query is above its document and must stay visible
  const below = drawn.link && pane.side === "document";
  showTip(state, [title, list], rect, below ? "below" : "above");
}

/** Returns a definition list of [name, value] rows. */
function factList(rows) {
  const list = element("dl");
  for (const [name, value] of rows) list.append(element("dt", "", name), element("dd", "", value));
  return list;
}

function showUnread(state, drawn, rect, place) {
  unmark(state);
  leaveLinks(state);
  const model = element("bdi", "hm-tip-model", drawn.pane.model);
  showTip(state, [element("span", "", NOT_READ), model], rect, place);
}

/**
 * Shows the tooltip above `rect`, or below it if it doesn't fit. With `place` "below", it prefers
 * below; with "before", it is to the left of `rect`. It stays in the window.
 */
function showTip(state, content, rect, place = "above") {
  const { tip } = state;
  tip.replaceChildren(...content);
  tip.classList.add("hm-shown");
  if (tip.showPopover && !tip.matches(":popover-open")) tip.showPopover();
  const { width, height } = tip.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  const inside = (value, size, room) => Math.max(6, Math.min(value, room - size - 6));
  let left = rect.left + Math.min(rect.width, 240) / 2 - width / 2;
  let top = rect.top + rect.height / 2 - height / 2;
  if (place === "before") left = rect.left - width - 8;
  else {
    const [above, under] = [rect.top - height - 8, rect.bottom + 8];
    const cramped = under + height + 6 > clientHeight;
    top = above >= 6 && (place === "above" || cramped) ? above : under;
  }
  tip.style.left = `${inside(left, width, clientWidth)}px`;
  tip.style.top = `${inside(top, height, clientHeight)}px`;
}

function hideTip(state) {
  unmark(state);
  leaveLinks(state);
  const { tip } = state;
  tip.classList.remove("hm-shown");
  if (tip.hidePopover && tip.matches(":popover-open")) tip.hidePopover();
}

/** Moves the cursor to unit `u`: scrolls there, outlines, opens the tooltip and announces it. */
function reach(state, drawn, u) {
  drawn.cursor = u;
  const run = drawn.runs[u][0];
  const before = drawn.body.scrollTop;
  run.scrollIntoView({ block: "nearest", inline: "nearest" });
  // this scroll must not hide the tooltip
  if (drawn.body.scrollTop !== before) state.scrolledTo = drawn.body;
  followLink(state, drawn, u);
  mark(state, drawn, u);
  showUnit(state, drawn, u, firstRect(run));
  const { score } = drawn.units[u];
  const rank = `rank ${formatCount(drawn.ranks[u])} of ${formatCount(drawn.units.length)}`;
  const position = `position ${formatPosition(drawn, u)}`;
  const linked = linkWords(drawn, u);
  const parts = [unitLabel(drawn, u), formatScore(score), rank, position];
  state.live.textContent = [...parts, ...(linked ? [linked] : [])].join(", ");
}

/** Returns the unit that a key moves to: -1 if there are no units, null for any other key. */
function nextUnit(drawn, key) {
  const { units, cursor, runs } = drawn;
  const last = units.length - 1;
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) return null;
  if (last < 0) return -1;
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (cursor < 0) return 0;
  if (key === "ArrowUp" || key === "ArrowDown") return unitByLine(drawn, key === "ArrowDown" ? 1 : -1);
  const rightToLeft = getComputedStyle(runs[cursor][0].parentElement).direction === "rtl";
  const step = (key === "ArrowRight") === rightToLeft ? -1 : 1;
  return Math.min(last, Math.max(0, cursor + step));
}

/** Returns the nearest unit on the next line up (-1) or down (1) that has one; else the cursor. */
function unitByLine({ units, cursor, runs }, step) {
  const rects = (u) => runs[u].flatMap((run) => [...run.getClientRects()]);
  const own = rects(cursor);
  const from = step > 0 ? own[own.length - 1] : own[0];
  const middle = from.left + from.width / 2;
  let [best, distance, line] = [cursor, Infinity, null];
  for (let u = cursor + step; u >= 0 && u < units.length; u += step) {
    const all = rects(u);
    const rect = step > 0 ? all[0] : all[all.length - 1];
    if (!rect || Math.abs(rect.top - from.top) < rect.height / 2) continue;
    if (line !== null && Math.abs(rect.top - line) >= rect.height / 2) break;
    line = rect.top;
    const gap = Math.max(rect.left - middle, middle - rect.right, 0);
    if (gap < distance) [best, distance] = [u, gap];
  }
  return best;
}

/** Keeps documents with the same text scrolled to the same character, and rails up to date. */
function linkScrolling(state, paneOf, signal) {
  const expected = new Map();
  let frame = 0;
  const follow = (drawn) => {
    const anchor = topUnit(drawn);
    if (!anchor) return;
    for (const other of state.panes) {
      if (other === drawn || other.pane.side !== "document") continue;
      if (other.segmented !== drawn.segmented) continue;
      const atEnd = drawn.body.scrollTop + drawn.body.clientHeight >= drawn.body.scrollHeight - 1;
      const target = atEnd ? other.body.scrollHeight : scrollFor(other, anchor);
      if (target === null || Math.abs(target - other.body.scrollTop) < 1) continue;
      other.body.scrollTop = target;
      expected.set(other.body, other.body.scrollTop);
    }
  };
  const onScroll = (event) => {
    const drawn = paneOf(event.target);
    if (!drawn) return;
    followFrame(drawn);
    const own = expected.get(drawn.body);
    expected.delete(drawn.body);
    // `follow` caused this scroll, not the user
    if (own !== undefined && Math.abs(own - drawn.body.scrollTop) < 2) return;
    if (state.scrolledTo !== drawn.body) hideTip(state);
    state.scrolledTo = null;
    if (!state.view.linked || drawn.pane.side !== "document") return;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => follow(drawn));
  };
  // scroll events don't bubble, so listen in the capture phase
  state.root.addEventListener("scroll", onScroll, { capture: true, signal });
}

/** Rectangle of a run on its first line. */
const firstRect = (run) => run.getClientRects()[0] ?? run.getBoundingClientRect();
const topOf = (run) => firstRect(run).top;

/** Returns the first unit whose top is at or below `y` (client px); the number of units if none. */
function unitFrom({ runs }, y) {
  return firstWhere(runs, ([run]) => topOf(run) >= y);
}

/**
 * Returns { offset, below } of the first unit whose top is not above the pane: its UTF-16 start,
 * and its distance from the pane's top edge in px. Null if there is none.
 */
function topUnit(drawn) {
  const edge = drawn.body.getBoundingClientRect().top;
  const u = unitFrom(drawn, edge);
  if (u === drawn.units.length) return null;
  return { offset: drawn.units[u].start, below: topOf(drawn.runs[u][0]) - edge };
}

/** Returns the scrollTop that puts an anchor (`topUnit`) at its distance; null without units. */
function scrollFor({ body, runs, units }, { offset, below }) {
  const [first] = unitsWithin(units, offset, offset + 1);
  const u = Math.min(first, units.length - 1);
  if (u < 0) return null;
  return body.scrollTop + topOf(runs[u][0]) - body.getBoundingClientRect().top - below;
}
