// Positions of tokens and characters in the drawn text, and the units of a bin.

/** Each token's unit, and each paragraph's offsets and node; computed once per drawing, if used. */
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

/** Vertical middle (client px) of the line on which the token at index `k` of `tokens` starts. */
function lineMiddle(drawn, k) {
  const { start, index } = drawn.tokens[k];
  const u = placesOf(drawn).unitOf[index];
  let at = Math.max(0, start - drawn.units[u].start); // white space before a unit belongs to it
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
  const box = drawn.runs[u].at(-1).getBoundingClientRect();
  return (box.top + box.bottom) / 2;
}

/** Number of tokens on lines whose middle is above `y` (client px). */
function tokensAbove(drawn, y) {
  const { tokens } = drawn;
  const { blocks } = placesOf(drawn);
  // search paragraphs first: inside off-screen paragraphs, the browser has laid out nothing
  const block = firstWhere(blocks, ({ node }) => node.getBoundingClientRect().bottom > y);
  const from = block < blocks.length ? blocks[block].start : Infinity;
  const to = block + 1 < blocks.length ? blocks[block + 1].start : Infinity;
  const [first, last] = [from, to].map((edge) => firstWhere(tokens, ({ start }) => start >= edge));
  return firstWhere(tokens, (_, k) => lineMiddle(drawn, k) >= y, first, last);
}

/** Number of characters above `y` (client px), as if spread evenly over a paragraph's height. */
function charactersAbove(drawn, y) {
  const { blocks } = placesOf(drawn);
  const b = firstWhere(blocks, ({ node }) => node.getBoundingClientRect().bottom > y);
  if (b === blocks.length) return drawn.segmented.text.length;
  const { start, end, node } = blocks[b];
  const { top, height } = node.getBoundingClientRect();
  return start + Math.max(0, (y - top) / height) * (end - start);
}

/** The inverse of `charactersAbove`: a character's vertical position (client px). */
function heightOf(drawn, character) {
  const { blocks } = placesOf(drawn);
  const { start, end, node } = blocks[firstWhere(blocks, (block) => block.start > character) - 1];
  const { top, height } = node.getBoundingClientRect();
  return top + (height * (character - start)) / Math.max(1, end - start);
}

/** [first, last) of the units with a token that overlaps a bin; null if no token was read. */
function unitsOfBin(drawn, bin) {
  const n = drawn.pane.tokens.length;
  if (n === 0) return null;
  const [first, last] = partsOver(bin, bin, RAIL_BINS, n);
  const within = placesOf(drawn).unitOf.slice(first, last + 1);
  return [Math.min(...within), Math.max(...within) + 1];
}
