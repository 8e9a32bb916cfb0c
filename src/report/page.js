// The values under the pointer. The charts are complete without it.
"use strict";
const text = v => v === null ? "n/a" : Math.abs(v) >= 1e4 || v === 0 ? v.toLocaleString("en") : String(+v.toPrecision(5));

// Index of the entry of an ascending list that is nearest to a value.
function nearest(list, value) {
  let low = 0, high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle; else high = middle;
  }
  return value - list[low] < list[high] - value ? low : high;
}

function element(parent, name, content) {
  const e = parent.appendChild(document.createElement(name));
  if (content !== undefined) e.textContent = content;
  return e;
}

for (const figure of document.querySelectorAll("figure")) {
  const source = figure.querySelector("script"), svg = figure.querySelector("svg");
  if (!source) continue;
  const chart = JSON.parse(source.textContent), cursor = svg.querySelector(".cursor");
  let tip = null;
  const hide = () => {
    if (tip) tip.remove();
    tip = null;
    cursor.setAttribute("visibility", "hidden");
  };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * unit, y = (event.clientY - box.top) * unit;
    if (x < chart.left - 4 || x > chart.right + 4) return hide();
    const at = chart.low + (chart.high - chart.low) * (x - chart.left) / (chart.right - chart.left);
    const rows = chart.series.length;
    const row = Math.min(rows - 1, Math.max(0, Math.floor(rows * (y - chart.top) / (chart.bottom - chart.top))));
    const shown = chart.kind === "heat" ? [chart.series[row]] : chart.series;
    let step = null;
    for (const s of shown) {
      const candidate = s.x[nearest(s.x, at)];
      if (step === null || Math.abs(candidate - at) < Math.abs(step - at)) step = candidate;
    }
    const place = chart.left + (chart.right - chart.left) * (step - chart.low) / (chart.high - chart.low);
    cursor.setAttribute("x1", place), cursor.setAttribute("x2", place), cursor.setAttribute("visibility", "visible");
    if (tip) tip.remove();
    tip = element(figure, "div");
    tip.className = "tip";
    element(tip, "b", "step " + Math.round(step).toLocaleString("en"));
    for (const s of shown) {
      const i = nearest(s.x, step), line = element(tip, "div");
      if (Math.abs(s.x[i] - step) > Math.max(0.5, (chart.high - chart.low) / 200)) { line.remove(); continue; }
      if (s.color !== undefined) element(line, "i").className = "k" + s.color;
      element(line, "span", s.name);
      element(line, "em", text(s.y[i]));
    }
    const frame = figure.getBoundingClientRect(), left = event.clientX - frame.left + 14;
    tip.style.left = Math.max(4, left + tip.offsetWidth > frame.width ? left - tip.offsetWidth - 28 : left) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY - frame.top + 14, frame.height - tip.offsetHeight - 4)) + "px";
  });
}
