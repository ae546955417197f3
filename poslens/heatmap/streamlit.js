// Connects the heatmap to st.components.v2, which calls the default export on mount and whenever
// data or theme change. Streamlit sends this file with every change, so the drawing code is a
// separate file that the browser caches. Module state persists between calls, because Streamlit
// imports the same source only once.
const mounted = new WeakMap();
let code = null;
let loading = null;
let reported = "";

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
    // also remove a root that another version of this file drew (hot reload)
    parentElement.querySelectorAll(":scope > .hm").forEach((old) => old.remove());
    heatmap.root = parentElement.appendChild(document.createElement("div"));
    heatmap.digest = null;
  }
  const forced = heatmap.forced !== data.forced;
  heatmap.forced = data.forced;
  if (heatmap.digest !== data.digest) {
    // unless Python forces its view, keep the user's: Python's is one run older
    const view = forced ? data.view : heatmap.drawn.view();
    heatmap.drawn?.destroy();
    const report = (chosen) => heatmap.latest.setStateValue("view", chosen);
    heatmap.drawn = code.renderHeatmap(heatmap.root, { ...data, view }, report);
  } else {
    heatmap.drawn.refreshTheme();
    // during a run, rails change and texts do not
    if (heatmap.beside !== data.beside) heatmap.drawn.setBeside(data.panes);
    if (forced) heatmap.drawn.setView(data.view);
  }
  heatmap.digest = data.digest;
  heatmap.beside = data.beside;
  if (data.drawn && data.drawn !== reported) {
    reported = data.drawn;
    const report = () => fetch(new URL(data.drawn, document.baseURI));
    requestAnimationFrame(() => setTimeout(report)); // once the heatmap is on screen
  }
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
