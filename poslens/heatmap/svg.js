// The heatmap as SVG, taken from the browser's layout: a <rect> for each run on each line, and
// <text> on top. So line breaks, fallback fonts and bidirectional order are those of the browser.

// Characters that XML 1.0 excludes: most control characters, U+FFFE, U+FFFF and lone surrogates.
const NOT_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu;
const XML_ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escapeXml = (text) =>
  String(text).replace(NOT_XML, "\ufffd").replace(/[&<>"]/g, (c) => XML_ENTITIES[c]);

const round = (value) => String(Math.round(value * 100) / 100);

/** Returns `<name a="1">content</name>`, without attributes that are undefined. */
function xml(name, attributes, content) {
  const listed = Object.entries(attributes)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => ` ${key}="${escapeXml(typeof value === "number" ? round(value) : value)}"`);
  return content === undefined
    ? `<${name}${listed.join("")}/>`
    : `<${name}${listed.join("")}>${content}</${name}>`;
}

/**
 * Returns the heatmap in `root` as SVG source, with complete documents and without the toolbar. The
 * caller adds a title and the provenance.
 */
function heatmapToSvg(root) {
  root.classList.add("hm-export");
  const folded = [...root.querySelectorAll("details:not([open])")];
  for (const details of folded) details.open = true;
  try {
    const page = svgPage(root);
    const cells =
      [...root.querySelectorAll(".hm-text span, .hm-sample")].flatMap((run) => svgCell(page, run));
    const parts = [
      ...svgFrames(page),
      // otherwise seams between neighbors
      xml("g", { "shape-rendering": "crispEdges" }, cells.join("\n")),
      ...svgBars(page),
      ...[...root.querySelectorAll(".hm-rail-axis")].flatMap((axis) => svgRail(page, axis)),
      ...[...root.querySelectorAll(".hm-swatch")].flatMap((swatch) => svgSwatch(page, swatch)),
      ...svgTexts(page),
    ];
    const { width, height } = page;
    return xml(
      "svg",
      {
        xmlns: "http://www.w3.org/2000/svg",
        width: Math.ceil(width),
        height: Math.ceil(height),
        viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`,
        "font-family": page.font,
      },
      xml("rect", { width: "100%", height: "100%", fill: page.paper }) +
        parts.join("\n"),
    );
  } finally {
    root.classList.remove("hm-export");
    for (const details of folded) details.open = false;
  }
}

const SVG_MARGIN = 16;

/** Origin, size, font and colors of the picture, with caches for colors and font ascents. */
function svgPage(root) {
  const box = root.getBoundingClientRect();
  const style = getComputedStyle(root);
  const colors = new Map();
  const hex = (color) => {
    if (!colors.has(color)) colors.set(color, toHex(readColor(color)));
    return colors.get(color);
  };
  return {
    root,
    hex,
    left: box.left - SVG_MARGIN,
    top: box.top - SVG_MARGIN,
    width: box.width + 2 * SVG_MARGIN,
    height: box.height + 2 * SVG_MARGIN,
    font: style.fontFamily,
    paper: hex(style.backgroundColor),
    ink: hex(style.color),
    evidence: hex(style.getPropertyValue("--hm-evidence")),
    ascents: new Map(),
    context: document.createElement("canvas").getContext("2d"),
  };
}

/** Returns where a client rectangle is in the picture, as attributes of a <rect>. */
function placeIn(page, { left, top, width, height }) {
  return { x: left - page.left, y: top - page.top, width, height };
}

function svgFrames(page) {
  const frames = [...page.root.querySelectorAll(".hm-box")].map((body) => {
    const { x, y, width, height } = placeIn(page, body.getBoundingClientRect());
    const style = getComputedStyle(body);
    return xml("rect", {
      x: x + 0.5,
      y: y + 0.5,
      width: width - 1,
      height: height - 1,
      rx: parseFloat(style.borderTopLeftRadius) || 0,
      fill: "none",
      stroke: page.hex(style.borderTopColor),
    });
  });
  for (const legend of page.root.querySelectorAll(".hm-tools")) {
    const { x, y, width, height } = placeIn(page, legend.getBoundingClientRect());
    const stroke = page.hex(getComputedStyle(legend).borderBottomColor);
    const foot = y + height - 0.5;
    frames.push(xml("line", { x1: x, y1: foot, x2: x + width, y2: foot, stroke }));
  }
  return frames;
}

/** Background, tint of unread text and evidence line of a run: rectangles for each line. */
function svgCell(page, run) {
  const background = getComputedStyle(run).backgroundColor;
  const cell = background === "rgba(0, 0, 0, 0)" ? page.paper : page.hex(background);
  const evidence = run.classList.contains("hm-evidence");
  const unread = run.classList.contains("hm-unread");
  if (cell === page.paper && !evidence && !unread) return [];
  return [...run.getClientRects()].filter((box) => box.width > 0).flatMap((box) => {
    const place = placeIn(page, box);
    const drawn = [];
    if (cell !== page.paper) drawn.push(xml("rect", { class: "cell", ...place, fill: cell }));
    if (unread) {
      drawn.push(xml("rect", { class: "unread", ...place, fill: page.ink, "fill-opacity": 0.06 }));
    }
    if (evidence) {
      const line = { ...place, y: place.y + place.height + 1, height: 3 };
      drawn.push(xml("rect", { class: "evidence", ...line, fill: page.evidence }));
    }
    return drawn;
  });
}

function svgBars(page) {
  return [...page.root.querySelectorAll(".hm-bar")].flatMap((bar, index) => {
    const box = bar.getBoundingClientRect();
    if (box.width === 0) return [];
    const style = getComputedStyle(bar);
    const stops = style.backgroundImage.match(/rgba?\([^)]*\)/g) ?? [];
    const id = `scale-${index}`;
    const listed = stops.map((color, i) =>
      xml("stop", { offset: i / (stops.length - 1), "stop-color": page.hex(color) }));
    return [
      xml("linearGradient", { id }, listed.join("")),
      xml("rect", {
        class: "scale",
        ...placeIn(page, box),
        fill: `url(#${id})`,
        stroke: page.hex(style.borderTopColor),
      }),
    ];
  });
}

/** Returns the text of all visible blocks. */
function svgTexts(page) {
  const hidden = ".hm-toolbar, .hm-hidden, .hm-tip";
  const blocks = ".hm-paragraph, .hm-model, .hm-score, .hm-fact, .hm-legend > .hm-unit," +
    ".hm-scale-title > *, .hm-tick, .hm-mark > *, .hm-meta, .hm-special-line, .hm-key, .hm-rail-unread > span";
  return [...page.root.querySelectorAll(blocks)]
    .filter((block) => !block.closest(hidden))
    .flatMap((block) => svgBlock(page, block));
}

/**
 * Returns a block's text: a <text> for each word and line, with a <tspan> for each color in it. The
 * letters of a word stay in one <text>, because Arabic letters join only within it.
 */
function svgBlock(page, block) {
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  const direction = getComputedStyle(block).direction;
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  const drawn = [];
  let word = [];
  const flush = () => {
    if (word.length > 0) drawn.push(...svgWord(page, word, direction));
    word = [];
  };
  for (const node of nodes) {
    for (const match of node.data.matchAll(/\s+|\S+/g)) {
      if (isSpace(match[0][0])) flush();
      else word.push({ node, start: match.index, end: match.index + match[0].length });
    }
  }
  flush();
  return drawn;
}

function textRects({ node, start, end }) {
  const range = document.createRange();
  range.setStart(node, start);
  range.setEnd(node, end);
  return [...range.getClientRects()].filter((box) => box.width > 0);
}

/**
 * Returns a word (pieces of one or more runs) as a <text> for each line that it is on. Parts between
 * which bidirectional order puts other words, such as the `N` and the `)` of an Arabic "(31\u00b0 N)",
 * also have a <text> each.
 */
function svgWord(page, pieces, direction) {
  let placed = pieces.map((piece) => ({ ...piece, rects: textRects(piece) }));
  const onLine = (a, b) => Math.abs(a.top - b.top) < a.height / 2;
  const all = placed.flatMap(({ rects }) => rects);
  if (all.length === 0) return [];
  if (placed.some(({ rects }) => rects.length > 1) || !all.every((box) => onLine(box, all[0]))) {
    placed = pieces.flatMap((piece) => {
      const { node, start, end } = piece;
      const { starts } = segmentText(node.data.slice(start, end));
      const clusters = [];
      for (let i = start, j; i < end; i = j) {
        for (j = i + 1; j < end && !starts[j - start]; j += 1);
        clusters.push({ node, start: i, end: j, rects: textRects({ node, start: i, end: j }) });
      }
      return clusters;
    });
  }
  const parts = [];
  for (const piece of placed) {
    const box = piece.rects[0];
    const part = parts[parts.length - 1];
    const touches = part && (!box || (onLine(box, part.box)
      && box.left < part.right + 1 && box.right > part.left - 1));
    if (touches) part.pieces.push(piece);
    else if (box) parts.push({ box, left: box.left, right: box.right, pieces: [piece] });
    if (touches && box) {
      part.left = Math.min(part.left, box.left);
      part.right = Math.max(part.right, box.right);
    }
  }
  return parts.map(({ pieces: ofPart }) => svgLine(page, ofPart, direction));
}

function svgLine(page, pieces, direction) {
  const rects = pieces.flatMap((piece) => piece.rects);
  const left = Math.min(...rects.map((box) => box.left));
  const right = Math.max(...rects.map((box) => box.right));
  const parent = pieces[0].node.parentElement;
  const style = getComputedStyle(parent);
  // a Latin word of an Arabic text runs from left to right, with the marks around it
  const [first, last] = [pieces[0], pieces[pieces.length - 1]];
  const [head] = textRects({ ...first, end: first.start + 1 });
  const [tail] = textRects({ ...last, start: last.end - 1 });
  const rightToLeft = direction === "rtl" && !(head && tail && head.left < tail.left);
  // merge adjacent pieces of the same color
  const runs = [];
  for (const { node, start, end } of pieces) {
    const fill = page.hex(getComputedStyle(node.parentElement).color);
    const before = runs[runs.length - 1];
    if (before?.fill === fill) before.text += node.data.slice(start, end);
    else runs.push({ fill, text: node.data.slice(start, end) });
  }
  const attributes = {
    x: (rightToLeft ? right : left) - page.left,
    y: rects[0].top + ascentOf(page, style) - page.top,
    "font-size": parseFloat(style.fontSize),
    "font-weight": style.fontWeight === "400" ? undefined : style.fontWeight,
    "font-family": style.fontFamily === page.font ? undefined : style.fontFamily,
    direction: rightToLeft ? "rtl" : undefined,
    // a viewer with another font must not draw text outside of its cell
    textLength: runs.some(({ text }) => text.length > 1) || runs.length > 1 ? right - left : undefined,
    lengthAdjust: "spacingAndGlyphs",
    fill: runs[0].fill,
  };
  const content = runs.length === 1
    ? escapeXml(runs[0].text)
    : runs.map(({ fill, text }) => xml("tspan", { fill }, escapeXml(text))).join("");
  return xml("text", attributes, content);
}

/** A font's ascent in px, rounded as in the browser's layout. */
function ascentOf(page, style) {
  const font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  if (!page.ascents.has(font)) {
    page.context.font = font;
    page.ascents.set(font, Math.round(page.context.measureText("x").fontBoundingBoxAscent));
  }
  return page.ascents.get(font);
}
