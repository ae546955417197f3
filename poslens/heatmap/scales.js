// Colors of the token heatmap: pure functions from a score's share of the scale to a color.
//
// Positive scores use the ramp of ColorBrewer's YlOrBr, negative ones that of its Blues. Unsigned
// scores use only the first, so a warm color means the same on both scales. A difference between
// two models swaps the ramps, so that each model has the color of its line in figures. Each ramp can be read
// by lightness alone, and blue and orange can be distinguished with protanopia, deuteranopia and
// tritanopia. The dark theme's ramps have the same hues but run from dark to light. Zero is the
// page's background in both themes.
// ColorBrewer: Harrower and Brewer (2003), https://colorbrewer2.org.
const RAMPS = {
  light: {
    positive: ["#fff3c4", "#fee391", "#fec44f", "#fe9929", "#ec7014", "#cc4c02", "#8c2d04"],
    negative: ["#e3eef9", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08458a"],
  },
  dark: {
    positive: ["#33200a", "#5c3206", "#8f4a06", "#c4690c", "#ee9233", "#fdbf62", "#ffd588"],
    negative: ["#0d2340", "#123a68", "#185a9c", "#2f7fc6", "#5fa6e0", "#98c9f0", "#b4daf7"],
  },
};

/** Number of steps from zero to the top: more than the eye can distinguish. */
const SCALE_STEPS = 128;

/** Minimum contrast of text in WCAG 2.1 AA. */
const MIN_CONTRAST = 4.5;

const toHex = (rgb) => `#${rgb.map((c) => Math.round(c).toString(16).padStart(2, "0")).join("")}`;
const fromHex = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const toLinear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
const fromLinear = (v) =>
  255 * Math.min(1, Math.max(0, v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));

/** Relative luminance (WCAG 2.1) of an [r, g, b] of 0 to 255. */
function luminance(rgb) {
  const [r, g, b] = rgb.map(toLinear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Contrast ratio (WCAG 2.1) of two colors: 1 to 21. */
function contrast(one, other) {
  const [a, b] = [luminance(one), luminance(other)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

// OKLab, in which equal steps look equal: Ottosson (2020), https://bottosson.github.io/posts/oklab.
function toOklab(rgb) {
  const [r, g, b] = rgb.map(toLinear);
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromOklab([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map(fromLinear);
}

/** Color at `share` (0 to 1) of a ramp that starts at the background: linear in OKLab lightness. */
function rampColor(background, ramp, share) {
  const stops = [background, ...ramp.map(fromHex)].map(toOklab);
  const [first, last] = [stops[0][0], stops[stops.length - 1][0]];
  // stops are placed by their lightness, so lightness changes evenly along the ramp
  const places = stops.map(([L]) => (L - first) / (last - first || 1));
  let i = 1;
  while (i < stops.length - 1 && places[i] < share) i += 1;
  const within = (share - places[i - 1]) / (places[i] - places[i - 1] || 1);
  const part = Math.min(1, Math.max(0, within));
  return fromOklab(stops[i].map((value, k) => stops[i - 1][k] + part * (value - stops[i - 1][k])));
}

/** Text color on a cell: the theme's if its contrast is high enough, else black or white. */
function textOn(cell, ink) {
  if (contrast(cell, ink) >= MIN_CONTRAST + 1) return ink;
  const [black, white] = [[0, 0, 0], [255, 255, 255]];
  // one of the two always reaches 4.58
  return contrast(cell, black) >= contrast(cell, white) ? black : white;
}

/**
 * Builds the scale of a theme. `background` and `ink` are the page's colors as [r, g, b]; `swapped`
 * swaps the ramps of positive and negative scores.
 * Returns { dark, cells, texts }: hex colors at index SCALE_STEPS + step, for steps from
 * -SCALE_STEPS (most negative) to SCALE_STEPS.
 */
function buildScale(background, ink, swapped) {
  const dark = luminance(background) < 0.18;
  const ramps = RAMPS[dark ? "dark" : "light"];
  const cells = [];
  const texts = [];
  for (let step = -SCALE_STEPS; step <= SCALE_STEPS; step += 1) {
    const ramp = step < 0 === swapped ? ramps.positive : ramps.negative;
    const color = step === 0 ? background : rampColor(background, ramp, Math.abs(step) / SCALE_STEPS);
    const shown = color.map(Math.round);
    cells.push(toHex(shown));
    texts.push(toHex(textOn(shown, ink)));
  }
  return { dark, cells, texts };
}

/** Index into a scale's colors for a score; on an unsigned scale, negative scores count as zero. */
function scaleIndex(score, top, signed) {
  const share = top > 0 ? Math.min(1, Math.max(signed ? -1 : 0, score / top)) : 0;
  return SCALE_STEPS + Math.round(share * SCALE_STEPS);
}

/** CSS gradient of a legend's bar. */
function scaleGradient(scale, signed) {
  const stops = [];
  for (let step = signed ? -SCALE_STEPS : 0; step <= SCALE_STEPS; step += SCALE_STEPS / 16) {
    stops.push(scale.cells[SCALE_STEPS + step]);
  }
  return `linear-gradient(to right, ${stops.join(", ")})`;
}
