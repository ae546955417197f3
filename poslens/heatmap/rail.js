// The rail: a vertical chart to the right of a document, along its tokens from top to bottom. Bars
// are the pair's 100 bins, the line is the model's mean with its band, the bracket is the evidence,
// and the dashed frame is the visible text.
// The upper part is the text that was read: positions on it are shares of the tokens read
// (`partsOver`), not of characters. The lower part is the text that was not read (`fitRail`).
// Everything is positioned in percent, so a resize does not redraw the curves.

const RAIL_BINS = 100;

/** Exponent applied to a bar's share of the scale to get its color. */
const RAIL_GAMMA = 0.7;
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Appends an SVG element with attributes to `parent`. */
function shape(parent, name, attributes) {
  const node = parent.appendChild(document.createElementNS(SVG_NAMESPACE, name));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** Builds or removes each document's rail, and the rails' legend below the columns. */
function buildRails(state) {
  for (const drawn of state.panes) {
    if (!drawn.pane.rail) {
      drawn.rail?.remove();
      drawn.rail = null;
    } else drawn.rail ??= buildRail(state, drawn);
    drawn.box.classList.toggle("hm-with-rail", Boolean(drawn.rail));
  }
  const railed = state.panes.filter(({ rail }) => rail);
  state.railLegend.replaceChildren(...(railed.length > 0 ? railWords(railed) : []));
  state.railsDrawn = "";
}

function buildRail(state, drawn) {
  const node = drawn.box.appendChild(element("div", "hm-rail", undefined, {
    tabindex: "0",
    role: "slider",
    "aria-orientation": "vertical",
    "aria-valuemin": 1,
    "aria-valuemax": RAIL_BINS,
    "aria-valuenow": 1,
  }));
  const axis = node.appendChild(element("div", "hm-rail-axis"));
  const read = axis.appendChild(element("div", "hm-rail-read"));
  const rail = { node, read, bin: 0, remove: () => node.remove() };
  if (drawn.cut < drawn.segmented.text.length) {
    rail.unread = axis.appendChild(element("div", "hm-rail-unread"));
    rail.unread.dataset.from = drawn.cut / drawn.segmented.text.length;
    rail.unread.append(element("span", "", "not read"));
  }
  rail.svg = shape(read, "svg", {
    viewBox: `0 0 100 ${RAIL_BINS}`, preserveAspectRatio: "none", "aria-hidden": "true",
  });
  const tokens = evidenceTokens(drawn.pane);
  if (tokens) {
    const n = drawn.pane.tokens.length;
    const bracket = read.appendChild(element("div", "hm-rail-evidence"));
    placeOn(bracket, tokens[0] / n, (tokens[1] + 1) / n);
  }
  rail.frame = axis.appendChild(element("div", "hm-rail-frame"));
  rail.mark = read.appendChild(element("div", "hm-rail-mark"));
  connectRail(state, drawn, rail);
  // also called after the first layout; measuring earlier would force a second layout
  const observer = new ResizeObserver(() => drawFrame(drawn));
  observer.observe(drawn.body);
  state.cleanups.push(() => observer.disconnect());
  return rail;
}

/**
 * Ends the upper part of a box's rail at the height of the line on which the model stopped reading.
 * In a long text, off-screen paragraphs have no height yet, so it ends at the share of characters
 * read instead, except in exports.
 */
function fitRail(box) {
  const unread = box.querySelector(".hm-rail-unread");
  if (!unread) return;
  const body = box.querySelector(".hm-text");
  let share = Number(unread.dataset.from);
  if (!body.classList.contains("hm-long") || body.closest(".hm-export")) {
    const cut = body.querySelector(".hm-unread");
    const line = firstRect(cut);
    const { top } = body.firstElementChild.getBoundingClientRect();
    const { bottom } = body.lastElementChild.getBoundingClientRect();
    share = ((line.top + line.bottom) / 2 - top) / Math.max(1, bottom - top);
  }
  placeOn(box.querySelector(".hm-rail-read"), 0, share);
  placeOn(unread, share, 1);
}

/** Positions a part of the rail from share `from` to share `to` of its parent's height. */
function placeOn(node, from, to) {
  node.style.top = `${100 * from}%`;
  node.style.height = `${100 * (to - from)}%`;
}

function connectRail(state, drawn, { node, read, unread }) {
  const shareOf = (part, { clientY }) => {
    const { top, height } = part.getBoundingClientRect();
    return (clientY - top) / Math.max(1, height);
  };
  const isUnread = (event) => Boolean(unread) && shareOf(read, event) > 1;
  const binAt = (event) =>
    Math.min(RAIL_BINS - 1, Math.max(0, Math.floor(RAIL_BINS * shareOf(read, event))));
  node.addEventListener("pointermove", (event) => {
    if (isUnread(event)) return showUnread(state, drawn, unread.getBoundingClientRect(), "before");
    const bin = binAt(event);
    if (state.bin !== bin || state.binOf !== drawn) showBin(state, drawn, bin);
  });
  node.addEventListener("click", (event) => {
    if (isUnread(event)) scrollToUnread(drawn, shareOf(unread, event));
    else goToBin(state, drawn, binAt(event));
  });
  node.addEventListener("focus", () => {
    if (node.matches(":focus-visible")) showBin(state, drawn, drawn.rail.bin);
  });
  node.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { bin } = drawn.rail;
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10 };
    const last = RAIL_BINS - 1;
    if (event.key === "Enter" || event.key === " ") goToBin(state, drawn, bin);
    else if (event.key === "Home") showBin(state, drawn, 0);
    else if (event.key === "End") showBin(state, drawn, last);
    else if (steps[event.key]) {
      showBin(state, drawn, Math.min(last, Math.max(0, bin + steps[event.key])));
    } else return;
    event.preventDefault();
  });
  // the wheel over the rail scrolls the text next to it, or the page if the text is at its end
  node.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.deltaMode !== 0) return;
    const before = drawn.body.scrollTop;
    drawn.body.scrollTop += event.deltaY;
    if (drawn.body.scrollTop !== before) event.preventDefault();
  }, { passive: false });
}

/** Draws all rails: on one scale, or with the range "own" each on its own scale. */
function paintRails(state) {
  const railed = state.panes.filter(({ rail }) => rail);
  const drawnFor = JSON.stringify([state.view.range, state.colors]);
  // curves depend only on the range and the colors
  if (railed.length === 0 || state.railsDrawn === drawnFor) return;
  state.railsDrawn = drawnFor;
  const groups = state.view.range === "own" ? railed.map((drawn) => [drawn]) : [railed];
  for (const group of groups) {
    const curves = group.flatMap(({ pane: { rail } }) => [rail.bins, rail.mean]);
    const edges = group.flatMap(({ pane: { rail } }) => [rail.low, rail.high]);
    const signed = group.some(({ pane }) => pane.signed) || curves.flat().some((value) => value < 0);
    const reach = [...curves, ...edges].flat().map((value) => (signed ? Math.abs(value) : value));
    const top = Math.max(...reach) || 1;
    for (const drawn of group) drawRail(state, drawn, top, signed);
  }
}

/** Draws bars, band and line of one rail on a scale from 0, or -top if signed, to top. */
function drawRail(state, drawn, top, signed) {
  const { svg, node } = drawn.rail;
  const { bins, mean, low, high } = drawn.pane.rail;
  const at = (value) => {
    const share = Math.min(1, Math.max(signed ? -1 : 0, value / top));
    return signed ? 50 + 50 * share : 100 * share;
  };
  svg.replaceChildren();
  bins.forEach((value, bin) => {
    const [zero, end] = [at(0), at(value)];
    // the length is linear in the value; the exponent makes short bars visible on the page
    const step = scaleIndex(Math.sign(value) * Math.abs(value / top) ** RAIL_GAMMA, 1, signed);
    shape(svg, "rect", {
      x: Math.min(zero, end), y: bin, width: Math.abs(end - zero), height: 1,
      fill: state.scale.cells[step],
    });
  });
  const points = (curve) => curve.map((value, bin) => `${at(value).toFixed(2)},${bin + 0.5}`);
  if (low.length > 0) {
    const outline = [...points(low), ...points(high).reverse()].join(" ");
    shape(svg, "polygon", { class: "hm-rail-band", points: outline });
  }
  shape(svg, "line", { class: "hm-rail-zero", x1: at(0), x2: at(0), y1: 0, y2: RAIL_BINS });
  if (mean.length > 0) {
    for (const name of ["hm-rail-halo", "hm-rail-mean"]) {
      shape(svg, "polyline", { class: name, points: points(mean).join(" ") });
    }
  }
  const most = largestIndex(bins);
  node.setAttribute("aria-label", `Curve, ${drawn.pane.model}: peak in bin ${most + 1} of ${RAIL_BINS}, ` +
    `${formatScore(bins[most])}; arrow keys move between bins, Enter scrolls the text`);
  nameBin(drawn);
}

/** Describes the cursor's bin for screen readers. */
function nameBin(drawn) {
  const { node, bin } = drawn.rail;
  const rows = binRows(drawn, bin).map((row) => row.join(" "));
  node.setAttribute("aria-valuenow", bin + 1);
  node.setAttribute("aria-valuetext", [`bin ${bin + 1}`, ...rows].join(", "));
}

/** The rows [name, value] of a bin's tooltip. */
function binRows(drawn, bin) {
  const { pane } = drawn;
  const { bins, mean, low, high } = pane.rail;
  const rows = [["this pair", formatScore(bins[bin])]];
  if (mean.length > 0) rows.push(["model\u2019s mean", formatScore(mean[bin])]);
  if (low.length > 0) rows.push(["band", `${formatScore(low[bin])} to ${formatScore(high[bin])}`]);
  const [first, last] = partsOver(bin, bin, RAIL_BINS, pane.tokens.length);
  const evidence = evidenceTokens(pane);
  if (evidence && first <= evidence[1] && last >= evidence[0]) rows.push(["evidence", "in this bin"]);
  const within = unitsOfBin(drawn, bin);
  if (within) rows.push(["text", shortText(drawn, within[0], within[1] - 1)]);
  return rows;
}

/** Shows a bin: outlines its units, the same bin in other columns, and opens the tooltip. */
function showBin(state, drawn, bin) {
  unmark(state);
  leaveLinks(state);
  [state.binOf, state.bin] = [drawn, bin];
  for (const other of state.panes) {
    if (!other.rail) continue;
    const within = unitsOfBin(other, bin);
    if (within) light(state, other, ...within, other === drawn ? "hm-at" : "hm-same");
    // `light` marks all bins of these units: mark only the one shown
    markRail(other, bin, bin);
  }
  drawn.rail.bin = bin;
  nameBin(drawn);
  const [from, to] = [bin, bin + 1].map((edge) => Math.round((100 * edge) / RAIL_BINS));
  const title = element("span", "hm-tip-text", `bin ${bin + 1}: ${from}\u2013${to}% of the tokens read`);
  const list = factList([...binRows(drawn, bin), ["model", drawn.pane.model]]);
  showTip(state, [title, list], drawn.rail.mark.getBoundingClientRect(), "before");
}

function markRail({ rail }, first, last) {
  placeOn(rail.mark, first / RAIL_BINS, (last + 1) / RAIL_BINS);
  rail.mark.classList.add("hm-shown");
}

function unmarkRails(state) {
  state.binOf = null;
  for (const { rail } of state.panes) rail?.mark.classList.remove("hm-shown");
}

/** Scrolls to a bin's first token. */
function goToBin(state, drawn, bin) {
  const [first] = partsOver(bin, bin, RAIL_BINS, drawn.pane.tokens.length);
  scrollToToken(state, drawn, first, () => showBin(state, drawn, bin));
}

/** Scrolls a token to the middle of the pane, then calls `done`. */
function scrollToToken(state, drawn, token, done) {
  const { body } = drawn;
  const k = drawn.tokens.findIndex(({ index }) => index >= token);
  if (k < 0) return;
  const scroll = () => {
    const { top, height } = body.getBoundingClientRect();
    const before = body.scrollTop;
    body.scrollTop += lineMiddle(drawn, k) - (top + height / 2);
    // this scroll must not hide the tooltip
    if (body.scrollTop !== before) state.scrolledTo = body;
  };
  scroll();
  if (!body.classList.contains("hm-long")) return done();
  // paragraphs that become visible for the first time get their real height: scroll again
  requestAnimationFrame(() => requestAnimationFrame(() => { scroll(); done(); }));
}

/** Scrolls to a share (0 to 1) of the characters not read, in the middle of the pane. */
function scrollToUnread(drawn, share) {
  const { body, cut, segmented } = drawn;
  const { top, height } = body.getBoundingClientRect();
  const at = cut + share * (segmented.text.length - cut);
  body.scrollTop += heightOf(drawn, at) - (top + height / 2);
}

/** Draws the frame of the visible text on the rail. */
function drawFrame(drawn) {
  drawn.frameAsked = false;
  if (!drawn.rail || !drawn.body.isConnected) return;
  fitRail(drawn.box);
  const { top } = drawn.body.getBoundingClientRect();
  const edges = [top, top + drawn.body.clientHeight].map((y) => railShare(drawn, y));
  placeOn(drawn.rail.frame, ...edges);
}

/**
 * Converts `y` (client px) in the text to a share of the rail: by tokens in the text read, by
 * characters in the text not read.
 */
function railShare(drawn, y) {
  const { rail, tokens, pane, cut, segmented } = drawn;
  const end = rail.unread ? parseFloat(rail.read.style.height) / 100 : 1;
  const above = tokensAbove(drawn, y);
  if (!rail.unread || above < tokens.length) return (end * above) / Math.max(1, pane.tokens.length);
  const unread = (charactersAbove(drawn, y) - cut) / (segmented.text.length - cut);
  return end + (1 - end) * Math.min(1, Math.max(0, unread));
}

/** Schedules `drawFrame` once for the next animation frame, even after several scroll events. */
function followFrame(drawn) {
  if (drawn.frameAsked || !drawn.rail) return;
  drawn.frameAsked = true;
  requestAnimationFrame(() => drawFrame(drawn));
}

/** Returns the items of the rails' legend. */
function railWords(railed) {
  const panes = railed.map(({ pane }) => pane);
  const key = (name, ...text) => {
    const item = element("span", "hm-key");
    item.append(element("span", `hm-swatch hm-swatch-${name}`, "", { "aria-hidden": "true" }), ...text);
    return item;
  };
  const items = [key("bars", `this pair in ${RAIL_BINS} bins`)];
  const averaged = panes.filter(({ rail }) => rail.mean.length > 0);
  const notes = [...new Set(averaged.map(({ rail }) => rail.note))];
  if (notes.length === 1) items.push(key("mean", notes[0] || "the model\u2019s mean"));
  else if (notes.length > 1) {
    items.push(key("mean", averaged.map(({ model, rail }) => `${model}: ${rail.note}`).join("; ")));
  }
  if (panes.some((pane) => evidenceTokens(pane))) items.push(key("evidence", "evidence"));
  if (railed.some(({ rail }) => rail.unread)) items.push(key("unread", "not read"));
  const frame = key("frame", "visible text; click the curve to scroll");
  frame.classList.add("hm-act");
  return [...items, frame];
}
