// Draws the token heatmap. The dashboard, the widget and the standalone page all call
// `renderHeatmap`. Other files: arithmetic in numbers.js and scales.js, colors and legends in
// paint.js, toggles and columns in columns.js, hover and keys in interaction.js, links in link.js
// and largest.js, rails in rail.js and places.js, the SVG export in svg.js and rail_svg.js.
// Text enters the DOM only as text nodes, never as markup.

const TOP_UNITS = 10;

/** Number of characters above which a text certainly fills its pane. */
const LONG_TEXT = 8000;

/** What the units of a level are, if not only what its name says (`unitsOf`). */
const COUNTED = { word: "words and punctuation marks" };

/** Creates an element with a class, text and attributes. */
function element(tag, className, text, attributes) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  return node;
}

/** Returns [r, g, b], 0 to 255, of any CSS color that the browser supports. */
function readColor(color) {
  const plain = /^rgb\((\d+), (\d+), (\d+)\)$/.exec(color);
  if (plain) return plain.slice(1).map(Number);
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/**
 * Draws `data` = { panes, view, columns } into `root` and replaces its contents.
 *
 * When the user changes a toggle, it calls `onView` with { level, aggregate, range, linked }. When
 * pins change, it calls `onPins` with all pinned units (`pinsOf`).
 * Returns { setView, setBeside, refreshTheme, destroy, view }. `setBeside` takes panes with the
 * same texts and scores, and redraws only their rails and the lines above the columns.
 */
function renderHeatmap(root, data, onView, onPins) {
  const state = {
    root,
    data,
    view: { ...data.view },
    onView: onView ?? (() => {}),
    onPins: onPins ?? (() => {}),
    panes: data.panes.map((pane) => ({ pane, side: SIDES[pane.side] })),
    cleanups: [],
  };
  // panes of different models usually have the same text: segment it once
  const segmented = new Map();
  for (const { pane } of state.panes) {
    if (!segmented.has(pane.text)) segmented.set(pane.text, segmentText(pane.text));
  }
  for (const drawn of state.panes) {
    drawn.segmented = segmented.get(drawn.pane.text);
    drawn.tokens = snapTokens(drawn.segmented, drawn.pane.tokens);
    const { text, cp } = drawn.segmented;
    const until = drawn.pane.truncated_at;
    drawn.cut = until === null ? text.length : clusterCeil(drawn.segmented, cp[until]);
  }

  root.classList.add("hm");
  root.replaceChildren();
  state.sheet = adoptSheet(state);
  // read the theme while the root is empty: reading a style makes the browser compute all of them
  readTheme(state);
  buildTools(state);
  buildGrid(state);
  buildLinks(state);
  buildRails(state);
  state.live = root.appendChild(element("div", "hm-hidden", "", { "aria-live": "polite" }));
  drawUnits(state);
  paint(state);
  connect(state);

  const setView = (view) => {
    const old = state.view;
    state.view = { ...old, ...view };
    syncToolbar(state);
    hideTip(state);
    if (old.level !== state.view.level) {
      // pins refer to units of the old level
      freeLinks(state);
      drawUnits(state);
    }
    else if (old.aggregate !== state.view.aggregate) scoreUnits(state);
    paint(state);
  };
  const setBeside = (panes) => {
    panes.forEach(({ rail, head }, i) => {
      const drawn = state.panes[i];
      drawn.pane = { ...drawn.pane, rail, head };
    });
    drawHeads(state);
    buildRails(state);
    paintRails(state);
  };
  const refreshTheme = () => {
    if (readTheme(state)) paint(state);
  };
  const destroy = () => {
    for (const cleanup of state.cleanups) cleanup();
    root.replaceChildren();
  };
  state.setView = setView;
  return { setView, setBeside, refreshTheme, destroy, view: () => ({ ...state.view }) };
}

/** Adds a style sheet to the document or shadow root that contains `root`, and returns it. */
function adoptSheet({ root, cleanups }) {
  const sheet = new CSSStyleSheet();
  const scope = root.getRootNode();
  scope.adoptedStyleSheets = [...scope.adoptedStyleSheets, sheet];
  cleanups.push(() => {
    scope.adoptedStyleSheets = scope.adoptedStyleSheets.filter((other) => other !== sheet);
  });
  return sheet;
}

/** Splits each pane's text into units of the view's level, scores them and draws the text. */
function drawUnits(state) {
  scoreUnits(state);
  const { level } = state.view;
  for (const drawn of state.panes) {
    const count = drawn.units.length;
    drawn.cursor = -1;
    drawn.runs = drawn.units.map(() => []);
    drawn.steps = new Int16Array(count).fill(-1);
    drawn.body.classList.toggle("hm-long", drawn.segmented.text.length > LONG_TEXT);
    drawn.body.replaceChildren(drawText(drawn));
    drawn.places = null;
    followFrame(drawn);
    const noun = count === 1 ? level : COUNTED[level] ?? `${level}s`;
    const read = drawn.pane.truncated_at === null ? "" : " read";
    drawn.meta.textContent = `${drawn.side} ${formatCount(count)} ${noun}${read}`;
  }
}

/** Scores and ranks the units. A new aggregate moves no unit, so the text is not redrawn. */
function scoreUnits(state) {
  const { level, aggregate } = state.view;
  for (const drawn of state.panes) {
    drawn.units = unitsOf(drawn.segmented, drawn.pane, level, aggregate, drawn.tokens);
    drawn.order = byMagnitude(drawn.units);
    drawn.ranks = ranksOf(drawn.units, drawn.order);
    drawTop(drawn);
  }
  for (const link of state.links) scoreLink(state, link);
}

/**
 * Returns the text as a fragment with a block per paragraph and a span per run. Units are split
 * into runs at the edges of paragraphs, of the evidence and of the text read.
 */
function drawText(drawn) {
  const { pane, segmented, units, runs, cut } = drawn;
  const { text, cp } = segmented;
  const fragment = document.createDocumentFragment();
  let [from, to] = [-1, -1];
  if (pane.evidence) {
    from = clusterFloor(segmented, cp[pane.evidence[0]]);
    to = clusterCeil(segmented, cp[pane.evidence[1]]);
  }
  let u = 0;
  for (const [start, end] of paragraphSpans(text)) {
    const block = fragment.appendChild(element("div", "hm-paragraph"));
    for (let i = start; i < end; ) {
      while (u < units.length && units[u].end <= i) u += 1;
      // characters from `cut` on were not read, so they have no color even inside a unit
      const unit = i < cut && u < units.length && units[u].start <= i ? u : -1;
      let stop = i >= cut ? end : unit >= 0 ? units[unit].end : u < units.length ? units[u].start : end;
      stop = Math.min(stop, end);
      for (const edge of [from, to, cut]) if (i < edge && edge < stop) stop = edge;
      const classes = `${i >= from && i < to ? " hm-evidence" : ""}${i >= cut ? " hm-unread" : ""}`;
      const piece = text.slice(i, stop);
      if (unit < 0 && classes === "") block.append(piece);
      else {
        const run = block.appendChild(document.createElement("span"));
        run.append(piece);
        if (classes) run.className = classes.trim();
        if (unit >= 0) {
          run.setAttribute("data-u", unit);
          runs[unit].push(run);
        }
      }
      i = stop;
    }
    // set this last: with dir="auto", the browser would read the block again after each append
    block.dir = "auto";
  }
  return fragment;
}

/** Lists the units with the largest scores in a table for screen readers. */
function drawTop(drawn) {
  const { units, order, segmented, ranks, pane, side } = drawn;
  const title = `Highest scores, ${side.toLowerCase()}, ${pane.model}`;
  const rows = order.slice(0, TOP_UNITS).map((index) => {
    const row = element("tr");
    const { start, end, score } = units[index];
    const position = formatPosition(drawn, index);
    for (const cell of [ranks[index], segmented.text.slice(start, end), formatScore(score), position]) {
      row.append(element("td", "", String(cell)));
    }
    return row;
  });
  const head = element("tr");
  for (const name of ["Rank", "Text", "Score", "Position"]) {
    head.append(element("th", "", name, { scope: "col" }));
  }
  drawn.top.replaceChildren(element("caption", "", title), head, ...rows);
}

/**
 * Reads the page's colors and, if they have changed, writes a CSS class for each step of the scale.
 * Returns whether they have changed.
 */
function readTheme(state) {
  const { backgroundColor, color } = getComputedStyle(state.root);
  if (state.colors === backgroundColor + color) return false;
  state.colors = backgroundColor + color;
  const swapped = state.panes.some(({ pane }) => pane.signs);
  const scale = buildScale(readColor(backgroundColor), readColor(color), swapped);
  const { sheet } = state;
  // classes, because inline styles on thousands of cells take twice as long
  sheet.replaceSync(scale.cells.map((cell, step) =>
    `.hm-${step} { background-color: ${cell}; color: ${scale.texts[step]}; }`).join("\n"));
  state.scale = scale;
  state.root.dataset.theme = scale.dark ? "dark" : "light";
  return true;
}
