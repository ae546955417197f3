// Pure functions of the token heatmap: offsets, grapheme clusters, units, ranks, ranges, labels.
// Nothing here touches the DOM. Offsets with the name `cp` are code points (Python's), all
// others UTF-16 code units (the DOM's).

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

// Below U+0300 nothing combines and only CR LF belong together, so a boundary between two such
// characters needs no segmenter: it costs a microsecond a character, this a few nanoseconds.
const isPlain = (code) => code < 0x300 && code !== 13;

/** Flags [length + 1]: 1 where a grapheme cluster of `text` starts, and at its end. */
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

/** What is the same for every view of a text: its offsets and its clusters. */
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

const isSpace = (character) => /\s/.test(character);

/** [start, end) without the white space at its ends; as it is where it holds nothing else. */
function trimSpan(text, start, end) {
  let [s, e] = [start, end];
  while (s < e && isSpace(text[s])) s += 1;
  while (e > s && isSpace(text[e - 1])) e -= 1;
  return s < e ? [s, e] : [start, end];
}

/**
 * The tokens of a pane in UTF-16, snapped outwards to whole grapheme clusters, sorted by start,
 * each with its `index` in the pane.
 * White space at a token's ends is left out (SentencePiece counts the space before a word to the
 * word); an empty token stands on the cluster at its offset, or on the last one.
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

/** Code point spans as UTF-16, on whole clusters, sorted, without overlap or empty ones. */
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

/** Joins tokens that share a cluster: each becomes { start, end, tokens }; no score is lost. */
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

/** Index of the span of sorted `spans` that holds `offset`, or -1. */
function spanAt(spans, offset) {
  let [low, high] = [0, spans.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (offset < spans[middle][0]) high = middle - 1;
    else if (offset >= spans[middle][1]) low = middle + 1;
    else return middle;
  }
  return -1;
}

/** Sum or mean of the scores, or the one of largest magnitude with its sign. */
function aggregateScores(scores, aggregate) {
  if (aggregate !== "max") {
    const sum = scores.reduce((total, score) => total + score, 0);
    return aggregate === "mean" ? sum / scores.length : sum;
  }
  return scores.reduce((best, score) => (Math.abs(score) > Math.abs(best) ? score : best));
}

/**
 * The units of a pane at a level, sorted, without overlap: { start, end, score, tokens (indices) }.
 * A token belongs to the word or sentence in which it starts; the unit reaches over all
 * characters of its tokens, for a Chinese token may hold several words. Tokens that start in none
 * (punctuation between words) stay units of their own; a span in which no token starts has no
 * score and so is no unit. `tokens` are the pane's, snapped; whoever keeps them saves the time.
 */
function unitsOf(segmented, pane, level, aggregate, tokens = snapTokens(segmented, pane.tokens)) {
  const spans = level === "token" ? [] : snapSpans(segmented, pane[`${level}s`]);
  const inside = new Map();
  const outside = [];
  for (const token of tokens) {
    const index = spanAt(spans, token.start);
    if (index < 0) {
      outside.push(token);
      continue;
    }
    if (!inside.has(index)) {
      const [start, end] = trimSpan(segmented.text, ...spans[index]);
      inside.set(index, { start, end, tokens: [] });
    }
    const unit = inside.get(index);
    unit.end = Math.max(unit.end, token.end);
    unit.tokens.push(token);
  }
  const units = [...mergeTokens(outside), ...inside.values()];
  units.sort((left, right) => left.start - right.start);
  return units.map((unit, i) => ({
    start: unit.start,
    end: i + 1 < units.length ? Math.min(unit.end, units[i + 1].start) : unit.end,
    score: aggregateScores(unit.tokens.map(({ score }) => score), aggregate),
    tokens: unit.tokens.map(({ index }) => index),
  }));
}

/**
 * The matrix of a link at the level of units: { values (Float64Array [query units x document
 * units], row by row), top (largest magnitude) }. `shares` is [rows x columns], tokens by tokens;
 * a cell is the sum or the mean of its units' token pairs, or the pair of largest magnitude with
 * its sign.
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

/** Indices of the n values of largest magnitude, by falling magnitude; zeros are none of them. */
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

/** Unit indices by falling |score|; equal ones in reading order. */
function byMagnitude(units) {
  const order = units.map((_, index) => index);
  return order.sort((a, b) => Math.abs(units[b].score) - Math.abs(units[a].score) || a - b);
}

/** Rank of each unit by |score|, 1 for the largest; equal scores share the better rank. */
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

/** [first, last) of the sorted units that share a character with [start, end). */
function unitsWithin(units, start, end) {
  let [low, high] = [0, units.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (units[middle].end <= start) low = middle + 1;
    else high = middle;
  }
  let last = low;
  while (last < units.length && units[last].start < end) last += 1;
  return [low, last];
}

/** Top of a scale: the largest score (unsigned) or magnitude (signed); 0 where all are zero. */
function scaleTop(units, signed) {
  return units.reduce((top, { score }) => Math.max(top, signed ? Math.abs(score) : score), 0);
}

/** The two numbers at the ends of a legend's bar. */
function legendEnds(top, signed) {
  return [signed ? -top : 0, top];
}

/** Three significant digits, as a person writes them. */
function formatScore(value) {
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 999.5) text = Number(size.toPrecision(3)).toLocaleString("en");
  else if (size < 1e-4) text = size.toExponential(2);
  else text = size.toPrecision(3);
  return value < 0 ? `\u2212${text}` : text;
}

/** `formatScore` with a plus before what is above zero: for numbers whose sign is the point. */
const formatSigned = (value) => (value > 0 ? `+${formatScore(value)}` : formatScore(value));

const formatCount = (value) => value.toLocaleString("en");

/** "37%": where a unit's first token stands among the tokens read, the axis of every curve. */
function formatPosition({ units, pane }, u) {
  return `${Math.round((100 * Math.min(...units[u].tokens)) / pane.tokens.length)}%`;
}

/**
 * [first, last] of the `m` equal parts of an axis that touch the parts first to last of `n` equal
 * ones: the bins of tokens, or the tokens of bins. Token i of n fills [i/n, (i+1)/n) of the axis,
 * as in `poslens.attribution.curves.positions`.
 */
function partsOver(first, last, n, m) {
  return [Math.floor((first * m) / n), Math.ceil(((last + 1) * m) / n) - 1];
}

/** [first, last] of a pane's tokens that share a character with its evidence; null where none do. */
function evidenceTokens({ tokens, evidence }) {
  if (!evidence) return null;
  const inside = ([start, end]) => start < evidence[1] && end > evidence[0];
  const first = tokens.findIndex(inside);
  return first < 0 ? null : [first, tokens.findLastIndex(inside)];
}

/** [start, end) of each paragraph, its line break included; an empty text has one. */
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
