// Draws the figures of the page: options come as JSON, colours as CSS variables, formatters by name.
"use strict";
(() => {
  const options = JSON.parse(document.getElementById("options").textContent);
  const charts = new Map();
  const paper = window.matchMedia("print");
  const narrow = (element) => element.clientWidth < 480;

  // Numbers, written as `units.py` writes them.
  const gap = "\u202f";
  const grouped = (value, places) => value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  function digits(value) {
    const size = Math.abs(value);
    if (size >= 100 || value === 0) return grouped(value, 0);
    const places = Math.min(Math.max(2 - Math.floor(Math.log10(size)), 0), 6);
    const text = grouped(value, places);
    return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
  }
  function scaled(value, steps) {
    const [size, unit] = steps.find(([least]) => Math.abs(value) >= least) || steps[steps.length - 1];
    return digits(value / size) + gap + unit;
  }
  function count(value) {
    if (Math.abs(value) < 1e4) return Number.isInteger(value) ? grouped(value, 0) : digits(value);
    return scaled(value, [[1e9, "G"], [1e6, "M"], [1e3, "k"]]);
  }
  const sizes = [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
  const times = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
  const spans = [[86400, "d"], [3600, "h"], [60, "min"], ...times];
  const units = {
    count,
    tokens: (value) => count(value) + gap + "tok",
    bytes: (value) => scaled(value, sizes),
    rate: (value) => scaled(value, sizes) + "/s",
    seconds: (value) => (value === 0 ? "0" + gap + "s" : scaled(value, times)),
    span: (value) => (value === 0 ? "0" + gap + "s" : scaled(value, spans)),
    share: (value) => digits(100 * value) + gap + "%",
    plain: (value) => digits(value),
  };
  const number = (value) => (typeof value === "object" && value !== null ? value.value : value);
  const written = (unit) => (value) => {
    const plain = Array.isArray(number(value)) ? number(value)[1] : number(value);
    return plain === null || plain === undefined || plain === "-" ? "–" : unit(Number(plain));
  };
  const escaped = (text) => String(text).replace(/[&<>"]/g, (mark) => `&#${mark.charCodeAt(0)};`);
  const listed = (pairs) => pairs.map(([name, value]) => `${escaped(name)}: <b>${escaped(value)}</b>`).join("<br>");

  // What figures ask for by name and JSON cannot hold.
  const special = {
    small: (element) => (narrow(element) ? 10 : 12),
    wide: (element) => !narrow(element) && !paper.matches,
    legend_type: () => (paper.matches ? "plain" : "scroll"),
    legend_right: (element) => (narrow(element) || paper.matches ? 0 : 96),
    // On paper a legend is not paged: it takes the lines that its names need.
    under_legend: (element, own) => {
      const letters = own.series.reduce((sum, each) => sum + each.name.length, 0);
      const lines = Math.ceil((7 * letters + 50 * own.series.length) / element.clientWidth);
      return paper.matches ? 20 + 24 * lines : 44;
    },
    labels: (element) => (narrow(element) ? 116 : 200),
    label_width: (element) => (narrow(element) ? 104 : 186),
    wrapped: (element) => (text) => text.replace(narrow(element) ? /.{1,13}(?:[ _]|$)/g : /.{1,25}(?:[ _]|$)/g, "$&\n").replace(/ ?\n/g, "\n").trim(),
    values: (element) => (narrow(element) ? 68 : 84),
    ticks: (element) => (narrow(element) ? 2 : 4),
    axis_name: (element) => (narrow(element) ? 300 : 110),
    bare_top: (element) => (narrow(element) ? 8 : 28),
    folded: (element, own, text) => (narrow(element) ? text : text.replace(/(.{1,16})(?: |$)/g, "$1\n").trim()),
    parallel_layout: (element) => (narrow(element) ? "vertical" : "horizontal"),
    parallel_name: (element) => (narrow(element) ? "middle" : "end"),
    parallel_gap: (element) => (narrow(element) ? -22 : 14),
    parallel_left: (element) => (narrow(element) ? 28 : 48),
    parallel_right: (element) => (narrow(element) ? 36 : 72),
    parallel_bottom: (element) => (narrow(element) ? 36 : 20),
    flow_right: (element) => (narrow(element) ? 70 : 110),
    boxes: () => (params, api) => {
      const [left, top] = api.coord([api.value(0), api.value(2)]);
      const [right, bottom] = api.coord([api.value(1), api.value(3)]);
      const area = params.coordSys;
      const shape = echarts.graphic.clipRectByRect(
        { x: left, y: top, width: Math.max(right - left, 1), height: Math.max(bottom - top, 0.5) },
        { x: area.x, y: area.y, width: area.width, height: area.height },
      );
      if (!shape) return undefined;
      const fits = shape.width > 84 && shape.height > 15;
      return {
        type: "rect",
        shape,
        style: { fill: api.visual("color"), stroke: css("--panel"), lineWidth: Math.min(shape.width, shape.height) > 3 ? 1 : 0 },
        textContent: fits ? { style: { text: units.tokens(api.value(1) - api.value(0)) + " × " + units.count(api.value(3) - api.value(2)), fill: css("--on-ink"), fontSize: 11 } } : undefined,
        textConfig: { position: "inside" },
        emphasis: { style: { stroke: css("--text"), lineWidth: 2 } },
      };
    },
    box: (element, own) => (item) => listed(own.series[item.seriesIndex].columns.map((name, at) => [name, item.data.words[at]])),
    point: (element, own) => (item) => {
      const axes = own.series[item.seriesIndex].axes;
      return `${escaped(item.data.words)}<br>` + listed(axes.map(([name, unit], at) => [name, units[unit](item.data.value[at])]));
    },
    flow_bytes: () => (item) => `${item.name}\n${units.bytes(item.value)}`,
  };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function resolved(value, element, own) {
    if (Array.isArray(value)) return value.map((each) => resolved(each, element, own));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, resolved(each, element, own)]));
    if (typeof value !== "string") return value;
    if (value.startsWith("@")) {
      const [name, rest] = value.slice(1).split(/:(.*)/s);
      return special[name] ? special[name](element, own, rest) : written(units[name]);
    }
    return value.replace(/var\((--[\w-]+)\)/g, (_, name) => css(name));
  }

  function draw(id) {
    const element = document.getElementById(id);
    if (charts.has(id)) charts.get(id).dispose();
    const chart = echarts.init(element, null, { renderer: "svg" });
    chart.setOption(resolved(options[id], element, options[id]));
    charts.set(id, chart);
  }
  const drawAll = () => Object.keys(options).forEach(draw);

  // Arrow keys walk through the values of a figure, as the mouse would.
  function walk(id) {
    const element = document.getElementById(id);
    let at = -1;
    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const chart = charts.get(id);
      if (event.key === "Escape") chart.dispatchAction({ type: "hideTip" });
      if (!step) return;
      event.preventDefault();
      const data = options[id].series[0].data;
      at = (at + step + data.length) % data.length;
      chart.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: at });
    });
    element.addEventListener("blur", () => charts.get(id).dispatchAction({ type: "hideTip" }));
  }

  drawAll();
  Object.keys(options).forEach(walk);
  let wide = window.innerWidth, wait = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === wide) return;
    wide = window.innerWidth;
    clearTimeout(wait);
    wait = setTimeout(drawAll, 100);
  });
  // Paper is white and of another width than the window.
  paper.addEventListener("change", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.hicacheReport = { charts, units };
  document.documentElement.dataset.drawn = String(charts.size);
})();
