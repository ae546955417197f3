// Glue to st.components.v2, which calls this at mount and whenever data or theme change. It is sent
// with each change, so the drawing code is a file of the server's, which the browser keeps.
// Module state outlives the calls: Streamlit imports one text of this file once.
const mounted = new WeakMap();
let code = null;
let loading = null;

function load() {
  loading ??= import(new URL(CODE, document.baseURI).href).then((module) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(module.styles);
    code = { renderHeatmap: module.renderHeatmap, sheet };
  });
  return loading;
}

function draw(heatmap) {
  const { parentElement, data } = heatmap.latest;
  const scope = parentElement.getRootNode();
  if (!scope.adoptedStyleSheets.includes(code.sheet)) {
    scope.adoptedStyleSheets = [...scope.adoptedStyleSheets, code.sheet];
  }
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
    const report = (chosen) => heatmap.latest.setStateValue("view", chosen);
    heatmap.drawn = code.renderHeatmap(heatmap.root, { ...data, view }, report);
  } else {
    heatmap.drawn.refreshTheme();
    // rails fill while a run is at work: the texts beside them stay
    if (heatmap.beside !== data.beside) heatmap.drawn.setBeside(data.panes);
    if (forced) heatmap.drawn.setView(data.view);
  }
  heatmap.digest = data.digest;
  heatmap.beside = data.beside;
}

export default function component(latest) {
  const { parentElement } = latest;
  const heatmap = mounted.get(parentElement) ?? {};
  mounted.set(parentElement, heatmap);
  heatmap.latest = latest;
  if (code) {
    draw(heatmap);
  } else {
    load().then(
      () => mounted.get(parentElement) === heatmap && draw(heatmap),
      () => {
        loading = null;
        heatmap.root ??= parentElement.appendChild(document.createElement("div"));
        heatmap.root.textContent = "The heatmap's script could not be loaded. Reload the page.";
      },
    );
  }
  return () => {
    heatmap.drawn?.destroy();
    heatmap.root?.remove();
    mounted.delete(parentElement);
  };
}
