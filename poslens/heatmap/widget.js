// Glue to anywidget, which calls `render` for each place where a notebook shows the widget: the
// model holds `data`, what `renderHeatmap` takes, and gets `pinned`, what its reader has pinned.
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
    if (model.get("pinned").length > 0) report([]); // of a drawing that is gone
  };
  // JupyterLab renders first and puts the element into the page afterwards: its colors, and the
  // sheet that they go to, are known only there.
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
  // themes change by an attribute of the page, or with the system
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
