// The largest shares of a column's query and document as a list. A click on one, or Enter, leads to
// its place in the document, colors that by the query's unit, and outlines both.

const LARGEST = 20;

/** The folded list below a column; it is filled when it opens. */
function buildLargest(state, link) {
  const node = link.document.column.under.appendChild(element("details", "hm-largest hm-act"));
  node.append(element("summary", "", "Largest shares"));
  const list = node.appendChild(element("ol"));
  node.addEventListener("toggle", () => fillLargest(state, link));
  link.largest = { node, list };
}

function fillLargest(state, link) {
  const { node, list } = link.largest;
  if (!node.open) return;
  const { query, document, cells } = link;
  const n = document.units.length;
  list.replaceChildren(...largestCells(cells.values, LARGEST).map((cell) => {
    const [q, u] = [Math.floor(cell / n), cell % n];
    const item = element("li");
    const button = item.appendChild(element("button", "", undefined, { type: "button" }));
    button.append(element("bdi", "", shortText(query, q)), " \u00d7 ");
    button.append(element("bdi", "", shortText(document, u)), " ");
    button.append(element("b", "", formatSigned(cells.values[cell])));
    button.append(element("span", "", ` at ${formatPosition(document, u)}`));
    button.dataset.cell = cell;
    button.addEventListener("click", () => jumpTo(state, link, q, u));
    return item;
  }));
  markLargest(link);
}

/** Says in the list which of its shares the reader has gone to. */
function markLargest({ largest, active, document }) {
  const cell = active?.target === undefined ? "" : active.u * document.units.length + active.target;
  for (const { firstChild: button } of largest.list.children) {
    if (button.dataset.cell === String(cell)) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

/** Leads to document unit `u`, and pins query unit `q`. */
function jumpTo(state, link, q, u) {
  const { query, document } = link;
  clearTimeout(state.linkTimer);
  const first = Math.min(...document.units[u].tokens);
  // only there: what is in sight gets its colors at once, what is not a while later
  scrollToToken(state, document, first, () => {
    setLink(state, link, { source: query, u: q, pinned: true, target: u });
    reach(state, document, u);
  });
}
