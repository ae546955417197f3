// Where tokens stand in the drawn text, and which of them are in sight or in a bin.

/** Where the tokens of a pane stand in its drawn text; made when first asked for, once a drawing. */
function placesOf(drawn) {
  if (drawn.places) return drawn.places;
  const { segmented, pane, units, body } = drawn;
  const unitOf = new Int32Array(pane.tokens.length);
  units.forEach(({ tokens }, u) => { for (const token of tokens) unitOf[token] = u; });
  const blocks = paragraphSpans(segmented.text).map(([start, end], i) =>
    ({ start, end, node: body.children[i] }));
  drawn.places = { unitOf, blocks };
  return drawn.places;
}

/** First index of `items` for which `behind` is true, which then is true of all after it. */
function firstWhere(items, behind, from = 0, to = items.length) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (behind(items[middle], middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Height in the window of the middle of the line on which a token begins. */
function lineMiddle(drawn, k) {
  const { start, index } = drawn.tokens[k];
  const u = placesOf(drawn).unitOf[index];
  let at = start - drawn.units[u].start;
  for (const run of drawn.runs[u]) {
    const text = run.firstChild;
    if (at < text.length) {
      const range = document.createRange();
      range.setStart(text, at);
      range.setEnd(text, text.length);
      const box = range.getClientRects()[0] ?? run.getBoundingClientRect();
      return (box.top + box.bottom) / 2;
    }
    at -= text.length;
  }
  const box = drawn.runs[u][0].getBoundingClientRect();
  return (box.top + box.bottom) / 2;
}

/** How many tokens stand on lines above height `y` of the window. */
function tokensAbove(drawn, y) {
  const { tokens } = drawn;
  const { blocks } = placesOf(drawn);
  // by blocks first: inside those out of sight the browser has not placed anything
  const block = firstWhere(blocks, ({ node }) => node.getBoundingClientRect().bottom > y);
  const from = block < blocks.length ? blocks[block].start : Infinity;
  const to = block + 1 < blocks.length ? blocks[block + 1].start : Infinity;
  const [first, last] = [from, to].map((edge) => firstWhere(tokens, ({ start }) => start >= edge));
  return firstWhere(tokens, (_, k) => lineMiddle(drawn, k) >= y, first, last);
}

/** How many characters stand above height `y` of the window; a block's are spread evenly over it. */
function charactersAbove(drawn, y) {
  const { blocks } = placesOf(drawn);
  const b = firstWhere(blocks, ({ node }) => node.getBoundingClientRect().bottom > y);
  if (b === blocks.length) return drawn.segmented.text.length;
  const { start, end, node } = blocks[b];
  const { top, height } = node.getBoundingClientRect();
  return start + Math.max(0, (y - top) / height) * (end - start);
}

/** The height in the window at which a character stands, in the same measure. */
function heightOf(drawn, character) {
  const { blocks } = placesOf(drawn);
  const { start, end, node } = blocks[firstWhere(blocks, (block) => block.start > character) - 1];
  const { top, height } = node.getBoundingClientRect();
  return top + (height * (character - start)) / Math.max(1, end - start);
}

/** [first, last) of the units whose tokens touch a bin; null where nothing was read. */
function unitsOfBin(drawn, bin) {
  const n = drawn.pane.tokens.length;
  if (n === 0) return null;
  const [first, last] = partsOver(bin, bin, RAIL_BINS, n);
  const within = placesOf(drawn).unitOf.slice(first, last + 1);
  return [Math.min(...within), Math.max(...within) + 1];
}
