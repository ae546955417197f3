// Drawing of the token heatmap. One entry, renderHeatmap, for the Streamlit glue and for the
// standalone page; the arithmetic is in numbers.js and scales.js, colors and legends in paint.js,
// toggles and columns in columns.js, hover and keys in interaction.js, what the two panes of a
// column have in common in link.js, the curve beside a document in rail.js. Text enters the DOM as
// text nodes only, never as markup.

const TOP_UNITS = 10;

/** Characters from which a text certainly fills its pane. */
const LONG_TEXT = 8000;

/** A new element with a class, text and attributes. */
function element(tag, className, text, attributes) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  return node;
}

/** [r, g, b] of any CSS color that the browser knows, named and modern ones included. */
function readColor(color) {
  const plain = /^rgb\((\d+), (\d+), (\d+)\)$/.exec(color);
  if (plain) return plain.slice(1).map(Number);
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/**
 * Draws `data` = { panes, view, columns } into `root`, replacing what it holds; `onView` is called
 * with { level, aggregate, range, linked } after each toggle, `onPins` with what is pinned
 * (`pinsOf`) after each change of that.
 * Gives { setView, setBeside, refreshTheme, destroy, view }; `setBeside` takes panes of the same
 * texts and scores, of which it draws the rails and heads.
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
  // panes of several models mostly hold one text
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
  // while the root is empty: asking for a style makes the browser compute all of them
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
      // a unit of another level is another unit
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

/** An own style sheet in the document or shadow root that holds `root`. */
function adoptSheet({ root, cleanups }) {
  const sheet = new CSSStyleSheet();
  const scope = root.getRootNode();
  scope.adoptedStyleSheets = [...scope.adoptedStyleSheets, sheet];
  cleanups.push(() => {
    scope.adoptedStyleSheets = scope.adoptedStyleSheets.filter((other) => other !== sheet);
  });
  return sheet;
}

/** Cuts every pane into the units of the view, scores them and writes the text. */
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
    drawn.meta.textContent = `${drawn.side} ${formatCount(count)} ${count === 1 ? level : `${level}s`}`;
  }
}

/** Scores and ranks of the units. The aggregate moves no unit, so the text drawn stays. */
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

/** The whole text, a block a paragraph, a span for each run of one unit, evidence and reading. */
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
      // a word's characters behind the last token were not read: no color is theirs
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
    // last: with dir="auto" each child appended would have the browser read the block again
    block.dir = "auto";
  }
  return fragment;
}

/** The strongest units as a table for screen readers. */
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

/** Reads the page's colors, writes a class for each step of the scale; whether they changed. */
function readTheme(state) {
  const { backgroundColor, color } = getComputedStyle(state.root);
  if (state.colors === backgroundColor + color) return false;
  state.colors = backgroundColor + color;
  const scale = buildScale(readColor(backgroundColor), readColor(color));
  const { sheet } = state;
  // classes, because thousands of cells with styles of their own take twice the time
  sheet.replaceSync(scale.cells.map((cell, step) =>
    `.hm-${step} { background-color: ${cell}; color: ${scale.texts[step]}; }`).join("\n"));
  state.scale = scale;
  state.root.dataset.theme = scale.dark ? "dark" : "light";
  return true;
}
