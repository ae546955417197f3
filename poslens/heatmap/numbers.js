// Pure functions: offsets, grapheme clusters, units, ranks, ranges, labels. Nothing here uses the
// DOM. `cp` maps offsets in code points (Python's) to UTF-16 code units (the DOM's). Panes have the
// former; all other offsets are UTF-16.

/** UTF-16 offset of each code point of `text`, and of its end: Int32Array [code points + 1]. */
function codePointOffsets(text) {
  const offsets = new Int32Array(text.length + 1);
  let count = 0;
  for (let i = 0; i < text.length; count += 1) {
    offsets[count] = i;
    i += text.codePointAt(i) > 0xffff ? 2 : 1;
  }
  offsets[count] = text.length;
  return offsets.subarray(0, count + 1);
}

// Below U+0300 there are no combining characters, and CR LF is the only cluster of two. So
// boundaries between such characters need no segmenter, which takes a microsecond per character.
const isPlain = (code) => code < 0x300 && code !== 13;

/** Flags [length + 1]: 1 where a grapheme cluster of `text` starts, and at the end of `text`. */
function clusterStarts(text) {
  const n = text.length;
  const starts = new Uint8Array(n + 1);
  starts[n] = 1;
  const plain = (i) => isPlain(text.charCodeAt(i));
  const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" });
  for (let i = 0, j; i < n; i = j) {
    for (j = i + 1; j < n && !(plain(j - 1) && plain(j)); j += 1);
    if (j === i + 1) starts[i] = 1;
    else for (const { index } of segmenter.segment(text.slice(i, j))) starts[i + index] = 1;
  }
  return starts;
}

/** Computes what all views of a text share: { text, cp (offsets), starts (clusters) }. */
function segmentText(text) {
  return { text, cp: codePointOffsets(text), starts: clusterStarts(text) };
}

function clusterFloor(segmented, i) {
  let k = Math.max(0, Math.min(i, segmented.text.length));
  while (!segmented.starts[k]) k -= 1;
  return k;
}

function clusterCeil(segmented, i) {
  let k = Math.max(0, Math.min(i, segmented.text.length));
  while (!segmented.starts[k]) k += 1;
  return k;
}

/** The text of a span, cut between grapheme clusters if longer than `most` characters. */
function textOf(segmented, { start, end }, most) {
  if (end - start <= most) return segmented.text.slice(start, end);
  return `${segmented.text.slice(start, clusterFloor(segmented, start + most))}\u2026`;
}

const isSpace = (character) => /\s/.test(character);

/** Trims white space from both ends of [start, end); a span of only white space stays as it is. */
function trimSpan(text, start, end) {
  let [s, e] = [start, end];
  while (s < e && isSpace(text[s])) s += 1;
  while (e > s && isSpace(text[e - 1])) e -= 1;
  return s < e ? [s, e] : [start, end];
}

/**
 * Converts a pane's tokens to UTF-16, extended to whole grapheme clusters and sorted by start:
 * { start, end, score, index (in the pane) }.
 *
 * White space at a token's ends is removed (SentencePiece includes the space before a word in its
 * token). An empty token gets the cluster at its offset, or the last cluster at the text's end.
 */
function snapTokens(segmented, tokens) {
  const { text, cp } = segmented;
  if (text.length === 0) return [];
  const snapped = tokens.map(([from, to, score], index) => {
    const [a, b] = trimSpan(text, cp[from], cp[to]);
    const start = clusterFloor(segmented, Math.min(a, text.length - 1));
    return { start, end: clusterCeil(segmented, Math.max(b, start + 1)), score, index };
  });
  return snapped.sort((left, right) => left.start - right.start || left.end - right.end);
}

/** Converts code point spans to UTF-16: whole clusters, sorted, not overlapping, not empty. */
function snapSpans(segmented, spans) {
  const snapped = spans
    .map(([from, to]) => [
      clusterFloor(segmented, segmented.cp[from]),
      clusterCeil(segmented, segmented.cp[to]),
    ])
    .sort((left, right) => left[0] - right[0]);
  let behind = 0;
  return snapped.flatMap(([from, to]) => {
    const start = Math.max(from, behind);
    behind = Math.max(behind, to);
    return start < to ? [[start, to]] : [];
  });
}

/** Merges tokens that share a cluster into { start, end, tokens }, which keeps all of them. */
function mergeTokens(tokens) {
  const merged = [];
  for (const token of tokens) {
    const last = merged[merged.length - 1];
    if (last && token.start < last.end) {
      last.end = Math.max(last.end, token.end);
      last.tokens.push(token);
    } else merged.push({ start: token.start, end: token.end, tokens: [token] });
  }
  return merged;
}

/**
 * Groups sorted tokens by the sorted `spans` (at least one) into { start, end, tokens }, as described
 * for `unitsOf`.
 */
function tokensBySpan(segmented, spans, tokens) {
  const groups = new Map();
  let index = 0;
  for (const token of tokens) {
    while (index < spans.length - 1 && spans[index][1] <= token.start) index += 1;
    if (!groups.has(index)) groups.set(index, []);
    groups.get(index).push(token);
  }
  return Array.from(groups, ([at, group]) => {
    const [from, to] = spans[at];
    const inside = group.filter(({ start }) => from <= start && start < to);
    // A truncated text can end in the white space before a unit.
    const [start, end] = inside.length > 0
      ? trimSpan(segmented.text, from, to)
      : [group[0].start, group[0].end];
    const reach = inside.reduce((furthest, token) => Math.max(furthest, token.end), end);
    return { start, end: reach, tokens: group };
  });
}

/** Sum or mean of the scores, or for "max" the score of largest magnitude, with its sign. */
function aggregateScores(scores, aggregate) {
  if (aggregate !== "max") {
    const sum = scores.reduce((total, score) => total + score, 0);
    return aggregate === "mean" ? sum / scores.length : sum;
  }
  return scores[largestIndex(scores)];
}

/**
 * Returns a pane's units at a level, sorted and not overlapping: { start, end, score, tokens
 * (indices in the pane) }.
 *
 * A token belongs to the word or sentence in which it starts. The unit extends to the end of its
 * tokens, because a Chinese token may contain several words, but at most to the next unit. White
 * space between them belongs to the next one, and behind the last to the last (`unit_of` in
 * Python), but the unit does not extend over it. A word or sentence without tokens has no score,
 * so it is not a unit. `tokens` are the pane's tokens after `snapTokens`; pass them to save time.
 */
function unitsOf(segmented, pane, level, aggregate, tokens = snapTokens(segmented, pane.tokens)) {
  const spans = level === "token" ? [] : snapSpans(segmented, pane[`${level}s`]);
  const units = spans.length === 0 ? mergeTokens(tokens) : tokensBySpan(segmented, spans, tokens);
  return units.map((unit, i) => ({
    start: unit.start,
    end: i + 1 < units.length ? Math.min(unit.end, units[i + 1].start) : unit.end,
    score: aggregateScores(unit.tokens.map(({ score }) => score), aggregate),
    tokens: unit.tokens.map(({ index }) => index),
  }));
}

/**
 * Aggregates a link's matrix to units: { values (Float64Array [query units x document units], row
 * by row), top (largest magnitude) }. `shares` is [query tokens x document tokens], row by row, and
 * `columns` its number of columns. A cell is the sum or mean over its token pairs, or for "max" the
 * share of largest magnitude, with its sign.
 */
function linkCells(shares, columns, queryUnits, documentUnits, aggregate) {
  const values = new Float64Array(queryUnits.length * documentUnits.length);
  const unitOf = new Int32Array(columns).fill(-1);
  documentUnits.forEach(({ tokens }, u) => tokens.forEach((token) => { unitOf[token] = u; }));
  queryUnits.forEach(({ tokens }, q) => {
    const cells = values.subarray(q * documentUnits.length, (q + 1) * documentUnits.length);
    for (const row of tokens) {
      for (let token = 0; token < columns; token += 1) {
        const u = unitOf[token];
        const share = shares[row * columns + token];
        if (aggregate !== "max") cells[u] += share;
        else if (Math.abs(share) > Math.abs(cells[u])) cells[u] = share;
      }
    }
    if (aggregate === "mean") {
      documentUnits.forEach((unit, u) => { cells[u] /= tokens.length * unit.tokens.length; });
    }
  });
  return { values, top: values.reduce((top, value) => Math.max(top, Math.abs(value)), 0) };
}

/** Indices of the n values of largest magnitude, in descending order, without zeros. */
function largestCells(values, n) {
  const found = [];
  const size = (at) => Math.abs(values[found[at]]);
  // one pass: sorting a million cells takes a second
  values.forEach((value, index) => {
    const magnitude = Math.abs(value);
    if (magnitude === 0 || (found.length === n && magnitude <= size(n - 1))) return;
    let at = found.length;
    while (at > 0 && size(at - 1) < magnitude) at -= 1;
    found.splice(at, 0, index);
    found.length = Math.min(found.length, n);
  });
  return found;
}

/** Index of the value of largest magnitude, the first one if several are equal. */
function largestIndex(values) {
  return values.reduce((best, value, i) => (Math.abs(value) > Math.abs(values[best]) ? i : best), 0);
}

/** Unit indices by descending |score|; equal scores in text order. */
function byMagnitude(units) {
  const order = units.map((_, index) => index);
  return order.sort((a, b) => Math.abs(units[b].score) - Math.abs(units[a].score) || a - b);
}

/** Rank of each unit by |score|, 1 for the largest; equal magnitudes share the better rank. */
function ranksOf(units, order = byMagnitude(units)) {
  const ranks = new Int32Array(units.length);
  let [previous, rank] = [NaN, 0];
  order.forEach((index, place) => {
    const magnitude = Math.abs(units[index].score);
    if (magnitude !== previous) [previous, rank] = [magnitude, place + 1];
    ranks[index] = rank;
  });
  return ranks;
}

/** First index in [from, to] from which on `behind` is true for all items (binary search). */
function firstWhere(items, behind, from = 0, to = items.length) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (behind(items[middle], middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** [first, last) of the sorted units that overlap [start, end). */
function unitsWithin(units, start, end) {
  const first = firstWhere(units, (unit) => unit.end > start);
  return [first, firstWhere(units, (unit) => unit.start >= end, first)];
}

/** Top of a scale: the largest score (unsigned) or magnitude (signed); at least 0. */
function scaleTop(units, signed) {
  return units.reduce((top, { score }) => Math.max(top, signed ? Math.abs(score) : score), 0);
}

const SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";

/** A number below 1 as digits and a power of ten, as in `attribution.text.with_typeset_numbers`. */
function withPower(size) {
  const [digits, exponent] = size.toExponential(2).split("e-");
  return `${digits}\u00b710\u207b${[...exponent].map((digit) => SUPERSCRIPTS[digit]).join("")}`;
}

/** Three significant digits with a minus sign (U+2212): "0.123", "1,230"; `withPower` below 1e-4. */
function formatScore(value) {
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 999.5) text = Number(size.toPrecision(3)).toLocaleString("en");
  else if (size < 1e-4) text = withPower(size);
  else text = size.toPrecision(3);
  return value < 0 ? `\u2212${text}` : text;
}

/** `formatScore` with a plus sign for positive values. */
const formatSigned = (value) => (value > 0 ? `+${formatScore(value)}` : formatScore(value));

const formatCount = (value) => value.toLocaleString("en");

/** Position of a unit's first token in the tokens read, the axis of all curves, such as "37%". */
function formatPosition({ units, pane }, u) {
  return `${Math.round((100 * Math.min(...units[u].tokens)) / pane.tokens.length)}%`;
}

/**
 * An axis is divided both into `n` and into `m` equal parts. Returns [first, last] of the `m` parts
 * that overlap the parts `first` to `last` of `n`: the bins of tokens, or the tokens of bins. Token
 * i of n covers [i/n, (i+1)/n) of the axis, as in `poslens.attribution.curves.positions`.
 */
function partsOver(first, last, n, m) {
  return [Math.floor((first * m) / n), Math.ceil(((last + 1) * m) / n) - 1];
}

/** [first, last] of a pane's tokens that overlap its evidence; null if none does. */
function evidenceTokens({ tokens, evidence }) {
  if (!evidence) return null;
  const inside = ([start, end]) => start < evidence[1] && end > evidence[0];
  const first = tokens.findIndex(inside);
  return first < 0 ? null : [first, tokens.findLastIndex(inside)];
}

/** [start, end) of each paragraph with its line break; an empty text has one, empty paragraph. */
function paragraphSpans(text) {
  const spans = [];
  let start = 0;
  for (const match of text.matchAll(/\r\n|[\n\r\u0085\u2028\u2029]/g)) {
    const end = match.index + match[0].length;
    spans.push([start, end]);
    start = end;
  }
  if (start < text.length || spans.length === 0) spans.push([start, text.length]);
  return spans;
}
