/** Draws charts with uPlot. Their colours are those of the page. */
import { serverNowMs } from "./times.js";

const HEIGHT = 200;
/** So many points are ten minutes of a page that is brought up to date every two seconds. */
const MAX_POINTS = 300;
/** A date with its time needs as much below a narrow chart. */
const LABEL_SPACE = 76;
const TONES = ["--accent", "--wait"];

const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * What ends each chart. An upstream that comes and goes would leave its charts behind.
 *
 * @type {Map<HTMLElement, () => void>}
 */
const ends = new Map();

/** Starts the charts that are new on the page, and ends those that are gone. */
function startAll() {
  for (const [place, end] of ends) {
    if (place.isConnected) continue;
    ends.delete(place);
    end();
  }
  for (const place of document.querySelectorAll(".chart:not([data-drawn])")) {
    if (!(place instanceof HTMLElement)) continue;
    place.dataset["drawn"] = "";
    ends.set(place, start(place));
  }
}

/** @typedef {{ labels: string[], points: (number | null)[][], ticks: string[] }} Data */

/** @param {HTMLElement} place */
function start(place) {
  const gone = new AbortController();
  const { signal } = gone;
  const follows = place.parentElement?.dataset["follows"];
  const from = place.dataset["from"];
  const labels = JSON.parse(place.dataset["labels"] ?? "[]");
  /** @type {Data} */
  const data = { labels, points: [[], ...labels.map(() => [])], ticks: [] };
  read(from === undefined ? place : document.getElementById(from), data);
  let plot = draw(place, data);
  const again = () => {
    plot.destroy();
    plot = draw(place, data);
  };
  dark.addEventListener("change", again, { signal });
  const resize = () => plot.setSize({ width: place.clientWidth, height: HEIGHT });
  const observer = new ResizeObserver(resize);
  observer.observe(place);
  const show = () => plot.setData(/** @type {any} */ (data.points));
  if (from !== undefined) {
    const readAgain = () => {
      read(document.getElementById(from), data);
      show();
    };
    document.addEventListener("batchd:parts", readAgain, { signal });
  } else if (follows !== undefined) {
    const take = () => {
      addPoint(data.points, follows);
      show();
    };
    take();
    // A value that stays the same is a point, too.
    const timer = setInterval(take, 2_000);
    signal.addEventListener("abort", () => clearInterval(timer));
  }
  return () => {
    gone.abort();
    observer.disconnect();
    plot.destroy();
  };
}

/**
 * @param {HTMLElement | null} source
 * @param {Data} data
 */
function read(source, data) {
  if (source?.dataset["points"] === undefined) return;
  data.points = JSON.parse(source.dataset["points"]);
  data.ticks = JSON.parse(source.dataset["ticks"] ?? "[]");
}

/**
 * While no events come, the line has a gap: what the page shows then is old.
 *
 * @param {Data["points"]} points
 * @param {string} id
 */
function addPoint(points, id) {
  const values = document.getElementById(id)?.dataset["values"];
  if (values === undefined) return;
  const isLive = !document.hidden && document.getElementById("live")?.dataset["state"] !== "lost";
  const row = [serverNowMs() / 1000, ...JSON.parse(values)];
  points.forEach((series, at) => {
    series.push(at === 0 || isLive ? row[at] : null);
    if (series.length > MAX_POINTS) series.shift();
  });
}

/**
 * @param {HTMLElement} place
 * @param {Data} data
 */
function draw(place, data) {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const colour = (name) => probed(style.getPropertyValue(name));
  const kind = place.dataset["kind"];
  const axis = {
    stroke: colour("--dim"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const isBars = kind === "bars";
  const isHistogram = kind === "histogram";
  // A bar reaches beyond its place on both sides.
  const inHistogram = isHistogram ? 0.6 : 0;
  const reach = isBars ? 43_200 : inHistogram;
  const series = data.labels.map((label, at) => seriesOf(label, colour(toneOf(at)), { kind, at }));
  return new uPlot(
    {
      width: place.clientWidth,
      height: HEIGHT,
      cursor: { drag: { x: false, y: false } },
      fmtDate: (template) => uPlot.fmtDate(inAnyCountry(template)),
      ...(isBars && { tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC") }),
      scales: {
        x: {
          time: !isHistogram,
          range: (_, min, max) =>
            kind === "lines" ? sinceOpened(min, max) : [min - reach, max + reach],
        },
        y: {
          range: (_, __, max) => [0, kind === "steps" ? max * 1.1 || 1 : Math.max(1, max * 1.1)],
        },
      },
      axes: [
        isHistogram ? { ...axis, ...bucketAxis(data) } : { ...axis, space: LABEL_SPACE },
        { ...axis, size: 60, values: (_, ticks) => ticks.map(compact) },
      ],
      series: [isHistogram ? bucketSeries(data) : {}, ...series],
    },
    /** @type {any} */ (data.points),
    place,
  );
}

/**
 * Dates and times that mean the same to all readers: uPlot's own are those of the United States.
 *
 * @param {string} template
 */
const inAnyCountry = (template) =>
  template
    .replace("{M}/{D}/{YY}", "{YYYY}-{MM}-{DD}")
    .replace("{M}/{D}", "{MM}-{DD}")
    .replace(/\{h\}(:\{mm\})?\{aa\}/, "{HH}:{mm}");

/** The first points alone would be an axis of years. */
const SHORTEST_SECONDS = 60;

/**
 * @param {number | null} min
 * @param {number | null} max
 * @returns {[number, number]}
 */
function sinceOpened(min, max) {
  const now = serverNowMs() / 1000;
  // Around a single point uPlot asks for an end years ahead.
  const to = Math.min(max ?? now, now);
  return [Math.min(min ?? to, to - SHORTEST_SECONDS), to];
}

/** @param {number} at */
const toneOf = (at) => TONES[at % TONES.length] ?? "--accent";

/**
 * @param {string} label
 * @param {string} tone
 * @param {{ kind: string | undefined, at: number }} place
 */
function seriesOf(label, tone, { kind, at }) {
  const points = { show: false };
  const paths = pathsOf(kind, at);
  if (kind === "lines") return { label, stroke: tone, width: 2, points };
  const width = kind === "steps" ? 2 : 0;
  const fill = kind === "steps" ? tone.replace(/^rgb\((.*)\)$/, "rgba($1, 0.15)") : tone;
  return { label, stroke: tone, width, points, fill, ...(paths && { paths }) };
}

/**
 * @param {string | undefined} kind
 * @param {number} at
 */
function pathsOf(kind, at) {
  if (kind === "bars") return uPlot.paths.bars?.({ size: [0.35, 18], align: at === 0 ? -1 : 1 });
  if (kind === "histogram") return uPlot.paths.bars?.({ size: [0.9, 60] });
  // A rate is of the time before its point.
  return kind === "steps" ? uPlot.paths.stepped?.({ align: -1 }) : undefined;
}

/**
 * Names the buckets on an axis that has a place for each: as many as have room.
 *
 * @param {Data} data
 */
const bucketAxis = (data) => ({
  /** @param {InstanceType<typeof uPlot>} plot */
  splits: (plot) => {
    const places = /** @type {number[]} */ (data.points[0] ?? []);
    const every = Math.ceil((places.length * 64) / Math.max(1, plot.width - 80));
    return places.filter((_, at) => at % every === 0);
  },
  /**
   * @param {InstanceType<typeof uPlot>} _
   * @param {readonly number[]} places
   */
  values: (_, places) => places.map((place) => data.ticks[place] ?? ""),
});

/** @param {Data} data */
const bucketSeries = (data) => ({
  label: "Latency",
  /**
   * @param {InstanceType<typeof uPlot>} _
   * @param {number | null} place
   */
  value: (_, place) => (place === null ? "--" : (data.ticks[place] ?? "")),
});

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
  probe.style.setProperty("forced-color-adjust", "none");
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

startAll();
document.addEventListener("batchd:parts", startAll);
