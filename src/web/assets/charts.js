/** Draws charts with uPlot. Their colours are those of the page. */

const HEIGHT = 200;
/** Ten minutes of a page that is brought up to date every two seconds. */
const MAX_POINTS = 300;
const TONES = ["--accent", "--wait"];

const dark = matchMedia("(prefers-color-scheme: dark)");

for (const place of document.querySelectorAll(".chart")) {
  if (place instanceof HTMLElement) start(place);
}

/** @param {HTMLElement} place */
function start(place) {
  const follows = place.parentElement?.dataset["follows"];
  const labels = JSON.parse(place.dataset["labels"] ?? "[]");
  /** @type {number[][]} */
  const points = JSON.parse(place.dataset["points"] ?? "null") ?? [[], ...labels.map(() => [])];
  let plot = draw(place, labels, points);
  const again = () => {
    plot.destroy();
    plot = draw(place, labels, points);
  };
  dark.addEventListener("change", again);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(
    place,
  );
  if (follows === undefined) return;
  const take = () => {
    addPoint(points, follows);
    plot.setData(/** @type {any} */ (points));
  };
  take();
  // A value that stays the same is a point, too.
  setInterval(take, 2_000);
}

/**
 * @param {number[][]} points
 * @param {string} id
 */
function addPoint(points, id) {
  const values = document.getElementById(id)?.dataset["values"];
  if (values === undefined) return;
  const row = [Date.now() / 1000, ...JSON.parse(values)];
  points.forEach((series, at) => {
    series.push(row[at]);
    if (series.length > MAX_POINTS) series.shift();
  });
}

/**
 * @param {HTMLElement} place
 * @param {readonly string[]} labels
 * @param {number[][]} points
 */
function draw(place, labels, points) {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const colour = (name) => probed(style.getPropertyValue(name));
  const axis = {
    stroke: colour("--dim"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const isBars = place.dataset["kind"] === "bars";
  const halfDay = isBars ? 43_200 : 0;
  const series = labels.map((label, at) => {
    const tone = colour(TONES[at % TONES.length] ?? "--accent");
    const paths = isBars
      ? uPlot.paths.bars?.({ size: [0.35, 18], align: at === 0 ? -1 : 1 })
      : undefined;
    return {
      label,
      stroke: tone,
      width: isBars ? 0 : 2,
      points: { show: false },
      ...(isBars && { fill: tone }),
      ...(paths && { paths }),
    };
  });
  return new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      ...(isBars && { tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC") }),
      scales: {
        x: { range: (_, min, max) => [min - halfDay, max + halfDay] },
        y: { range: (_, __, max) => [0, Math.max(1, max * 1.1)] },
      },
      axes: [axis, { ...axis, size: 60, values: (_, ticks) => ticks.map(compact) }],
      series: [{}, ...series],
    },
    /** @type {any} */ (points),
    place,
  );
}

const COMPACT = new Intl.NumberFormat("en", { notation: "compact" });
/** @param {number} value */
const compact = (value) => COMPACT.format(value);

/**
 * Returns a colour that a canvas knows. The palette has `light-dark(…)`, which only elements resolve.
 *
 * @param {string} text
 */
function probed(text) {
  const probe = document.createElement("span");
  probe.style.color = text;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
