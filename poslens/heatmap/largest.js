// The list of a column's largest shares. Activating one (click or Enter) scrolls to its document
// unit, colors the document by the query unit, and outlines both units.

const LARGEST = 20;

/** Builds the collapsed list below a column, which is filled when it opens. */
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

/** Marks the entry whose two units are pinned as current (`aria-current`). */
function markLargest({ largest, active, document }) {
  const cell = active?.target === undefined ? "" : active.u * document.units.length + active.target;
  for (const { firstChild: button } of largest.list.children) {
    if (button.dataset.cell === String(cell)) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

/** Pins query unit `q` and moves to document unit `u`. */
function jumpTo(state, link, q, u) {
  const { query, document } = link;
  clearTimeout(state.linkTimer);
  const first = Math.min(...document.units[u].tokens);
  // pin after scrolling: visible units are recolored at once, off-screen units later
  scrollToToken(state, document, first, () => {
    setLink(state, link, { source: query, u: q, pinned: true, target: u });
    reach(state, document, u);
  });
}
