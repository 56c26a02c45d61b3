"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, typesetMath: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

  const themed = (layout, element) => {
    const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const narrow = element.clientWidth < 560;
    const axis = own => ({ gridcolor: colour("--grid"), zerolinecolor: colour("--line"),
      linecolor: colour("--line"), automargin: true, ...own });
    const timeline = element.classList.contains("timeline");
    const xaxis = axis(layout.xaxis);
    if (timeline && narrow) xaxis.range = [xaxis.range[0], (2 * xaxis.range[0] + xaxis.range[1]) / 3];
    return { height: 340, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: narrow ? 11 : 13,
        family: "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" },
      margin: { l: 60, r: narrow ? 8 : 20, t: timeline ? 60 : 24, b: 50 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--quiet"), activecolor: colour("--better") },
      hoverlabel: { align: "left", bgcolor: colour("--band"), bordercolor: colour("--line"),
        font: { color: colour("--ink") } },
      showlegend: Boolean(layout.legend),
      ...layout,
      ...(timeline && narrow ? { height: layout.height + 70 } : {}),
      xaxis, yaxis: axis(layout.yaxis) };
  };
  const draw = id => {
    const element = document.getElementById(id);
    const figure = figures[id];
    const timeline = element.classList.contains("timeline");
    const layout = themed(figure.layout, element);
    element.style.minHeight = `${layout.height}px`;
    for (const trace of figure.data) {
      if (figure.texts) trace.hovertext = trace.texts.map(i => figure.texts[i]);
    }
    return Plotly.react(element, figure.data, layout,
      { ...config, scrollZoom: timeline, displayModeBar: timeline && element.clientWidth > 900 });
  };
  const visible = id => !document.getElementById(id).closest("[hidden]");
  const drawAll = async () => {
    for (const id of Object.keys(figures)) if (visible(id)) await draw(id);
    document.documentElement.dataset.drawn = "yes";
  };
  dark.addEventListener("change", drawAll);
  for (const chooser of document.querySelectorAll(".chooser")) {
    chooser.addEventListener("change", () => {
      for (const option of chooser.options) {
        const choice = document.querySelector(`[data-figure="${option.value}"]`);
        choice.hidden = option.value !== chooser.value;
      }
      draw(chooser.value);
    });
  }

  const table = document.getElementById("table");
  if (table) {
    const shown = 200;
    const rows = JSON.parse(document.getElementById("decision-rows").textContent);
    const texts = rows.map(row => row.join(" ").toLowerCase());
    const body = table.tBodies[0];
    const show = wanted => {
      const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
      const found = rows.filter((_, i) => words.every(word => texts[i].includes(word)));
      body.replaceChildren(...found.slice(0, shown).map(row => {
        const line = document.createElement("tr");
        for (const value of row) line.insertCell().textContent = value;
        return line;
      }));
      const more = found.length > shown ? `, the first ${shown} are shown` : "";
      document.getElementById("matches").textContent = `${found.length} of ${rows.length}${more}`;
    };
    const search = document.getElementById("search");
    search.addEventListener("input", () => show(search.value));
    show("");
  }
  drawAll();
})();
