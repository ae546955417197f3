// Connects the heatmap to anywidget, which calls `render` for each view of the widget in a
// notebook. The model's `data` is the input of `renderHeatmap`; `pinned` receives the user's pins.
const watched = { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light"] };

function render({ model, el }) {
  const root = el.appendChild(document.createElement("div"));
  el.classList.add("poslens-widget");
  let drawn = null;
  const report = (pins) => {
    model.set("pinned", pins);
    model.save_changes();
  };
  const draw = () => {
    drawn?.destroy();
    drawn = renderHeatmap(root, model.get("data"), null, report);
    if (model.get("pinned").length > 0) report([]); // pins of the previous drawing
  };
  // JupyterLab calls `render` before it attaches the element to the page. Wait until then: its
  // colors, and the document or shadow root that gets the style sheet, are unknown before.
  const shown = new ResizeObserver(() => {
    if (!root.isConnected) return;
    shown.disconnect();
    draw();
  });
  shown.observe(root);
  const changed = () => {
    if (drawn) draw();
  };
  model.on("change:data", changed);
  // a theme changes through an attribute of the page, or with the system's color scheme
  const recolor = () => drawn?.refreshTheme();
  const themes = new MutationObserver(recolor);
  for (const node of [document.documentElement, document.body]) themes.observe(node, watched);
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", recolor);
  return () => {
    shown.disconnect();
    themes.disconnect();
    system.removeEventListener("change", recolor);
    model.off("change:data", changed);
    drawn?.destroy();
    root.remove();
  };
}

export default { render };
