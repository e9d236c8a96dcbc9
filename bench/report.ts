/** Prints the figures for people and for programs. */
import { cpus, loadavg } from "node:os";
import { type Figure, isHeld, ratioOf, type Unit } from "./figure.ts";

/** The load of one minute at the start of the bench. A quiet machine has well under one. */
export const loadBefore = loadavg()[0] ?? 0;

type Row = readonly [
  title: string,
  measured: string,
  floor: string,
  ratio: string,
  hold: string,
  verdict: string,
];

const HEADER: Row = ["Figure", "Measured", "Floor", "Ratio", "Hold", ""];

export function printTable(figures: readonly Figure[], isQuick: boolean): void {
  const rows = [HEADER, ...figures.map(rowOf)];
  const widths = HEADER.map((_, i) => Math.max(...rows.map((row) => (row[i] ?? "").length)));
  const cells = (row: Row) =>
    row.map((cell, i) =>
      i === 0 || i === row.length - 1 ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0),
    );
  const lines = rows.map((row) => `  ${cells(row).join("   ")}`.trimEnd());
  lines.splice(1, 0, `  ${widths.map((width) => "─".repeat(width)).join("   ")}`.trimEnd());
  const scale = isQuick ? "quick: small sizes, misses do not count" : "full";
  print(`\n  batchd bench (${scale})   ${machine()}\n\n${lines.join("\n")}\n`);
}

export function printJson(figures: readonly Figure[], isQuick: boolean, tookMs: number): void {
  const report = {
    quick: isQuick,
    node: process.version,
    cores: cpus().length,
    load: { before: loadBefore, after: loadavg()[0] ?? 0 },
    seconds: Math.round(tookMs / 1000),
    figures: figures.map((figure) => ({
      ...figure,
      floor: figure.floor ?? null,
      ratio: ratioOf(figure),
      hold: figure.hold ?? null,
      held: isHeld(figure),
    })),
  };
  print(JSON.stringify(report));
}

export function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

function machine(): string {
  const load = `load ${loadBefore.toFixed(1)} before, ${(loadavg()[0] ?? 0).toFixed(1)} after`;
  return `Node ${process.version}, ${cpus().length} cores, ${load}`;
}

function rowOf(figure: Figure): Row {
  const { title, measured, unit, floor, hold } = figure;
  const ratio = ratioOf(figure);
  const held = isHeld(figure);
  return [
    title,
    amount(measured, unit),
    floor === undefined ? "" : amount(floor, unit),
    ratio === null ? "" : ratio.toFixed(2),
    hold === undefined ? "" : holdText(figure),
    held === null ? "" : held ? "ok" : "MISSED",
  ];
}

function holdText({ hold, floor, unit }: Figure): string {
  if (hold === undefined) return "";
  const value = "atLeast" in hold ? hold.atLeast : hold.atMost;
  const sign = "atLeast" in hold ? "≥" : "≤";
  return `${sign} ${floor === undefined ? amount(value, unit) : value.toFixed(2)}`;
}

const SMALL = 10;

function amount(value: number, unit: Unit): string {
  const fractionDigits = Math.abs(value) < SMALL && !Number.isInteger(value) ? 1 : 0;
  const number = value.toLocaleString("en", {
    minimumFractionDigits: fractionDigits,
    maximumFractionDigits: fractionDigits,
  });
  return unit === "requests" ? number : `${number} ${unit}`;
}
