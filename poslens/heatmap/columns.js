// Everything around the texts: the row of toggles and legends, a column for each model with a line
// above and a line below its panes, and the legends below all columns.

const SIDES = { query: "Query", document: "Document" };
const NOT_READ = "not read by this model";

const TOGGLES = [
  ["level", "Unit", [["word", "Word"], ["token", "Token"], ["sentence", "Sentence"]]],
  ["aggregate", "Token aggregation", [["sum", "Sum"], ["mean", "Mean"], ["max", "Max"]]],
  ["range", "Color range", [["shared", "Shared range"], ["own", "Own"]]],
];

/** Builds the row above the columns: toggles on the left, the legend on the right. */
function buildTools(state) {
  const tools = state.root.appendChild(element("div", "hm-tools"));
  // A form, because radio buttons of one name exclude each other in the whole document otherwise:
  // also those of another heatmap of a notebook.
  const bar = tools.appendChild(element("form", "hm-toolbar"));
  bar.addEventListener("submit", (event) => event.preventDefault());
  const several = new Set(state.data.panes.map((pane) => pane.model)).size > 1;
  for (const [name, label, choices] of TOGGLES) {
    if (name === "range" && !several) continue;
    const group = bar.appendChild(element("fieldset", "hm-toggle", undefined, { title: label }));
    group.append(element("legend", "hm-hidden", label));
    const options = group.appendChild(element("span", "hm-options"));
    for (const [value, text] of choices) {
      const option = options.appendChild(element("label"));
      option.append(element("input", "", undefined, { type: "radio", name, value }));
      option.append(element("span", "", text));
    }
  }
  if (several) {
    const linked = bar.appendChild(element("label", "hm-linked"));
    linked.append(element("input", "", undefined, { type: "checkbox", name: "linked" }));
    linked.append(element("span", "", "Scroll together"));
  }
  bar.addEventListener("change", ({ target }) => {
    const value = target.type === "checkbox" ? target.checked : target.value;
    state.setView({ [target.name]: value });
    state.onView({ ...state.view });
  });
  state.toolbar = bar;
  state.legend = tools.appendChild(element("div", "hm-legend"));
  syncToolbar(state);
}

function syncToolbar(state) {
  for (const input of state.toolbar.querySelectorAll("input")) {
    const value = state.view[input.name];
    input.checked = input.type === "checkbox" ? value : input.value === value;
  }
}

function buildGrid(state) {
  const grid = state.root.appendChild(element("div", "hm-grid"));
  const columns = new Map();
  for (const drawn of state.panes) {
    const { model } = drawn.pane;
    if (!columns.has(model)) columns.set(model, buildColumn(grid, model, columns.size));
    drawn.column = columns.get(model);
    drawn.column.panes.push(drawn);
    drawn.legend = drawn.column.legend;
    drawn.column.node.append(buildPane(drawn));
  }
  state.columns = [...columns.values()];
  for (const column of state.columns) buildUnder(column);
  grid.dataset.columns = String(state.data.columns ?? columns.size);
  // besides its panes, a column has three rows: the line above, its own legend, the line below
  const rows = 3 + Math.max(...state.columns.map(({ panes }) => panes.length));
  grid.style.setProperty("--hm-rows", rows);
  drawHeads(state);
  const foot = state.root.appendChild(element("div", "hm-foot"));
  state.railLegend = foot.appendChild(element("div", "hm-rail-legend"));
  state.linkLegend = foot.appendChild(element("div", "hm-link-legend"));
}

function buildColumn(grid, model, index) {
  const node = grid.appendChild(element("div", "hm-column"));
  const head = node.appendChild(element("div", "hm-head"));
  head.append(element("h2", "hm-model", model, { dir: "auto", title: model }));
  const facts = head.appendChild(element("span", "hm-facts"));
  const legend = node.appendChild(element("div", "hm-own-legend"));
  return { index, node, facts, legend, panes: [] };
}

/** Draws the line above each column: score and facts; a warning starts with a warning sign. */
function drawHeads(state) {
  for (const { facts, panes } of state.columns) {
    const head = panes.map(({ pane }) => pane.head).find(Boolean);
    const items = [];
    if (head?.score) {
      const score = element("span", "hm-score", "score ");
      score.append(element("b", "", head.score));
      items.push(score);
    }
    for (const { text, title, warning } of head?.facts ?? []) {
      const item = element("span", warning ? "hm-fact hm-warning" : "hm-fact");
      if (title) item.title = title;
      if (warning) {
        const sign = { role: "img", "aria-label": "warning:" };
        item.append(element("span", "", "\u26a0\ufe0e", sign), " ");
      }
      item.append(text);
      items.push(item);
    }
    facts.replaceChildren(...items);
  }
}

function buildPane(drawn) {
  const { pane, side } = drawn;
  const name = `${side}, ${pane.model}`;
  const section = element("section", "hm-pane", undefined, { "aria-label": name });
  section.dataset.side = pane.side;
  section.append(element("h3", "hm-hidden", side));
  // positioned over the box's border, so that the text doesn't move when the note appears
  drawn.linkNote = section.appendChild(element("span", "hm-link-note"));
  drawn.box = section.appendChild(element("div", "hm-box"));
  drawn.body = drawn.box.appendChild(
    element("div", "hm-text", undefined, {
      tabindex: "0",
      // with this role, screen readers pass the arrow keys on to this element
      role: "application",
      "aria-roledescription": "token heatmap",
      "aria-label": `${name}: arrow keys move between units`,
    }),
  );
  drawn.body.dataset.pane = pane.id;
  // a table can't be 1 px wide, so the block around it is hidden instead
  drawn.top = section.appendChild(element("div", "hm-hidden")).appendChild(element("table"));
  drawn.section = section;
  return section;
}

/** Builds the line below a column: number of units, text not read, collapsed special tokens. */
function buildUnder(column) {
  const { panes } = column;
  const under = column.node.appendChild(element("div", "hm-under"));
  column.under = under;
  for (const drawn of panes) drawn.meta = under.appendChild(element("span", "hm-meta"));
  for (const { pane, segmented } of panes) {
    const length = segmented.cp.length - 1;
    const unread = pane.truncated_at === null ? 0 : length - pane.truncated_at;
    if (unread <= 0) continue;
    const cut = under.appendChild(element("span", "hm-mark hm-cut"));
    cut.append(element("span", "hm-sample hm-unread", "abc", { "aria-hidden": "true" }));
    cut.append(element("span", "",
      `${formatCount(unread)} of ${formatCount(length)} characters ${NOT_READ}`));
  }
  if (panes.every(({ pane }) => pane.specials.length === 0)) return;
  const folded = under.appendChild(element("details", "hm-specials"));
  folded.append(element("summary", "", "Special tokens"));
  for (const { pane, side } of panes) {
    if (pane.specials.length === 0) continue;
    const line = folded.appendChild(element("div", "hm-special-line", `${side} `));
    for (const special of pane.specials) {
      const item = line.appendChild(element("span", "hm-special"));
      item.append(element("bdi", "", special.text), ` ${formatScore(special.score)} `);
    }
  }
}
