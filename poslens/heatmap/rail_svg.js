// The rails and their legend in the SVG export (svg.js).

/** Returns the shapes of a rail at its document's full height, without frame and bin marker. */
function svgRail(page, axis) {
  fitRail(axis.closest(".hm-box"));
  const box = placeIn(page, axis.querySelector(".hm-rail-read").getBoundingClientRect());
  const x = (share) => box.x + (share / 100) * box.width;
  const y = (bin) => box.y + (bin / RAIL_BINS) * box.height;
  const of = (node, name) => Number(node.getAttribute(name));
  const kind = (node) => (node.getAttribute("class") ?? "").replace("hm-", "") || "rail-bar";
  const points = (node) => node.getAttribute("points").split(" ")
    .map((point) => point.split(",").map(Number))
    .map(([at, bin]) => `${round(x(at))},${round(y(bin))}`).join(" ");
  const lines = {
    "rail-halo": { stroke: page.paper, "stroke-width": 3.5, "stroke-opacity": 0.75 },
    "rail-mean": { stroke: page.ink, "stroke-width": 1.75 },
  };
  const drawn = [...axis.querySelectorAll("svg > *")].map((node) => {
    const name = kind(node);
    if (name === "rail-bar") {
      return xml("rect", {
        class: name, x: x(of(node, "x")), y: y(of(node, "y")),
        width: (of(node, "width") / 100) * box.width,
        height: (of(node, "height") / RAIL_BINS) * box.height, fill: node.getAttribute("fill"),
        "shape-rendering": "crispEdges", // otherwise seams between bars
      });
    }
    if (name === "rail-zero") {
      const at = x(of(node, "x1"));
      const ends = { x1: at, x2: at, y1: y(0), y2: y(RAIL_BINS) };
      return xml("line", { class: name, ...ends, stroke: page.ink, "stroke-opacity": 0.7 });
    }
    if (name === "rail-band") {
      return xml("polygon", { class: name, points: points(node), fill: page.ink, "fill-opacity": 0.2 });
    }
    const line = { fill: "none", "stroke-linejoin": "round", ...lines[name] };
    return xml("polyline", { class: name, points: points(node), ...line });
  });
  for (const bracket of axis.querySelectorAll(".hm-rail-evidence")) {
    drawn.push(svgBlockOf(page, bracket, "rail-evidence", page.evidence));
  }
  for (const unread of axis.querySelectorAll(".hm-rail-unread")) {
    drawn.push(svgBlockOf(page, unread, "rail-unread", page.ink, 0.06));
  }
  return drawn;
}

/** Returns a filled rectangle at an element's position. */
function svgBlockOf(page, node, name, fill, opacity) {
  const place = placeIn(page, node.getBoundingClientRect());
  return xml("rect", { class: name, ...place, fill, "fill-opacity": opacity });
}

/** Returns a swatch of the rails' legend. */
function svgSwatch(page, swatch) {
  const { x, y, width, height } = placeIn(page, swatch.getBoundingClientRect());
  if (width === 0) return [];
  const style = getComputedStyle(swatch);
  if (!swatch.classList.contains("hm-swatch-mean")) {
    return [svgBlockOf(page, swatch, "swatch", page.hex(style.backgroundColor))];
  }
  const ends = { x1: x, x2: x + width, y1: y + height / 2, y2: y + height / 2 };
  return [xml("line", { class: "swatch", ...ends, stroke: page.ink, "stroke-width": 1.75 })];
}
