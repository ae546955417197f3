// Glue to st.components.v2, which calls this at mount and whenever data or theme change.
// Module state outlives the calls: Streamlit imports one text of this file once.
const mounted = new WeakMap();

export default function component({ parentElement, data, setStateValue }) {
  const heatmap = mounted.get(parentElement) ?? {};
  mounted.set(parentElement, heatmap);
  heatmap.report = (view) => setStateValue("view", view);
  if (!heatmap.root?.isConnected) {
    // a root that another version of this file left behind (hot reload) goes with it
    parentElement.querySelectorAll(":scope > .hm").forEach((old) => old.remove());
    heatmap.root = parentElement.appendChild(document.createElement("div"));
    heatmap.digest = null;
  }
  const forced = heatmap.forced !== data.forced;
  heatmap.forced = data.forced;
  if (heatmap.digest !== data.digest) {
    // the reader's view is newer than Python's, which comes one run late
    const view = forced ? data.view : heatmap.drawn.view();
    heatmap.drawn?.destroy();
    heatmap.drawn = renderHeatmap(heatmap.root, { ...data, view }, (chosen) => heatmap.report(chosen));
  } else {
    heatmap.drawn.refreshTheme();
    // rails fill while a run is at work: the texts beside them stay
    if (heatmap.beside !== data.beside) heatmap.drawn.setBeside(data.panes);
    if (forced) heatmap.drawn.setView(data.view);
  }
  heatmap.digest = data.digest;
  heatmap.beside = data.beside;
  return () => {
    heatmap.drawn.destroy();
    heatmap.root.remove();
    mounted.delete(parentElement);
  };
}
