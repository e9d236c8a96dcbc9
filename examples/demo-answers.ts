/**
 * The answers of the demo model server: fixed texts and a few templates for `chat.jsonl`, `countries.csv` and README.md.
 * There is no model, only enough sense that the answers read like answers.
 */
import { readFileSync } from "node:fs";

const CANNED: Readonly<Record<string, string>> = JSON.parse(
  readFileSync(new URL("canned-answers.json", import.meta.url), "utf8"),
);

interface Topic {
  /** A pattern for the system prompt, or for the question when there is none. */
  readonly asks: RegExp;
  answer(question: string): string;
}

const TOPICS: readonly Topic[] = [
  { asks: /^You sort support tickets/, answer: sortTicket },
  { asks: /^Judge the review/, answer: judgeReview },
  { asks: /^Judge the translation/, answer: judgeTranslation },
  { asks: /^Rewrite the translation/, answer: translationIn },
  { asks: /^Extract the fields/, answer: readInvoice },
  { asks: /^Summarise/, answer: (text) => `In short: ${text.split(". ")[0]}.` },
  { asks: /^Explain /, answer: (text) => canned(/^Explain (.+?) to (?:a|an|somebody)\b/, text) },
  { asks: /^Translate into/, answer: (text) => canned(/^Translate into \w+: (.+)$/, text) },
  { asks: /^What is the capital of/, answer: (text) => canned(/^What is (.+)\?$/, text) },
  { asks: /^What is \d+ \+ \d+\?/, answer: add },
  { asks: /^(How many|What is) .*\d/, answer: convert },
  { asks: /What can I cook/, answer: suggestDish },
  { asks: /product copy/, answer: praiseProduct },
];

const NO_TOPIC =
  "This demo server has no model behind it and only knows the questions of the examples.";

export function answerTo(system: string, question: string): string {
  const topic = TOPICS.find(({ asks }) => asks.test(system === "" ? question : system));
  return topic?.answer(question) ?? NO_TOPIC;
}

function canned(subject: RegExp, text: string): string {
  return CANNED[subject.exec(text)?.[1] ?? ""] ?? NO_TOPIC;
}

/** Returns the first entry whose pattern matches the text. */
const firstOf = <T>(entries: readonly (readonly [RegExp, T])[], text: string, otherwise: T): T =>
  entries.find(([pattern]) => pattern.test(text))?.[1] ?? otherwise;

function sortTicket(text: string): string {
  const category = firstOf(
    [
      [/refund|return/i, "refund"],
      [/account|log in/i, "account"],
      [/charged|payment|paypal|invoice/i, "payment"],
      [/parcel|package|deliver|courier|order has not shipped/i, "delivery"],
    ],
    text,
    "product",
  );
  const urgency = firstOf(
    [
      [/urgent|immediately|today|dangerous|by friday|three days/i, "high"],
      [/no rush|just wondering|does not say|can two people/i, "low"],
    ],
    text,
    "normal",
  );
  return JSON.stringify({ category, urgency });
}

const PRAISE = /great|love|excellent|perfect|wonderful|beautiful|easy/i;
const BLAME = /terrible|awful|disappointing|broken|never again|leaks on|regret|delay|waited|but /i;
const ASPECTS =
  /\b(instructions|battery|staff|screen|quality|comfort|coffee|sound|price|food|pockets|walls|view|place|app|wood)\b/i;

function judgeReview(text: string): string {
  const verdict = PRAISE.test(text) ? (BLAME.test(text) ? "mixed" : "positive") : "negative";
  const title = `${verdict[0]?.toUpperCase()}${verdict.slice(1)}.`;
  const aspect = ASPECTS.exec(text)?.[0].toLowerCase();
  if (aspect === undefined) return `${title} The overall experience decided it.`;
  const verb = { positive: "praises", mixed: "is torn over", negative: "complains about" }[verdict];
  return `${title} The writer ${verb} the ${aspect}.`;
}

function translationIn(text: string): string {
  return /^Translation: (.+)$/m.exec(text)?.[1] ?? text;
}

function judgeTranslation(text: string): string {
  return translationIn(text).length > 30
    ? "Correct, and a little long."
    : "Correct, and as short as it can be.";
}

function readInvoice(text: string): string {
  const [, day = "", month = ""] = /(\d{1,2}) (\w+) 2026/.exec(text) ?? [];
  const [, currency = "", total = ""] = /(EUR|USD|GBP|CHF) ([\d,.]*\d)/.exec(text) ?? [];
  const monthNumber = new Date(`${month} 1, 2026 00:00:00Z`).getUTCMonth() + 1;
  return JSON.stringify({
    number: /INV-\d+/.exec(text)?.[0],
    date: `2026-${String(monthNumber).padStart(2, "0")}-${day.padStart(2, "0")}`,
    total: Number(total.replaceAll(",", "")),
    currency,
  });
}

function add(text: string): string {
  const [, first = "", second = ""] = /(\d+) \+ (\d+)/.exec(text) ?? [];
  return `${first} + ${second} is ${Number(first) + Number(second)}.`;
}

const FACTORS: Readonly<Record<string, number>> = {
  "miles kilometres": 1.609344,
  "pounds kilograms": 0.45359237,
  "feet centimetres": 30.48,
  "inches centimetres": 2.54,
  "ounces grams": 28.349523,
  "gallons litres": 3.785412,
  "feet metres": 0.3048,
};

function convert(text: string): string {
  const many = /^How many (\w+) are (-?[\d.]+) (\w+)/.exec(text);
  const degrees = /^What is (-?[\d.]+) degrees (\w+) in degrees (\w+)/.exec(text);
  if (degrees !== null) {
    const [, amount = "", from = "", to = ""] = degrees;
    const result = from === "Celsius" ? Number(amount) * 1.8 + 32 : (Number(amount) - 32) / 1.8;
    return `${amount} °${from[0]} is ${rounded(result)} °${to[0]}.`;
  }
  const [, to = "", amount = "", from = ""] = many ?? [];
  const forth = FACTORS[`${from} ${to}`];
  const back = FACTORS[`${to} ${from}`];
  const factor = forth ?? (back === undefined ? undefined : 1 / back);
  return factor === undefined
    ? NO_TOPIC
    : `${amount} ${from} are about ${rounded(Number(amount) * factor)} ${to}.`;
}

const rounded = (value: number) =>
  value.toLocaleString("en-GB", { maximumFractionDigits: Math.abs(value) < 100 ? 1 : 0 });

const bare = (ingredient: string) => ingredient.replace(/^(a tin|a piece) of |^an? /, "");

function suggestDish(text: string): string {
  const named = /I have (.+), (.+) and (.+)\. What/.exec(text)?.slice(1) ?? [];
  const [first = "", second = "", third = ""] = named.map(bare);
  const method = firstOf(
    [
      [/pasta|noodles|rice/, "Boil in salted water and keep a cup of it"],
      [/eggs/, "Whisk with a spoon of milk and let set over a low heat"],
      [/potatoes|carrots|beetroot|pumpkin|cauliflower/, "Cut into small pieces and roast very hot"],
    ],
    first,
    `Fry an onion, add the ${first} with a little water and simmer`,
  );
  return (
    `A quick one-pan dish of ${first} with ${second}. ${method}, about fifteen minutes. ` +
    `Stir in the ${second}, finish with the ${third}, and season at the end.`
  );
}

function praiseProduct(text: string): string {
  const [name = "", ...details] = (text.split(": ")[1] ?? "").split(", ");
  return `${name}: ${details.join(", ")}, made to be used every day and kept for years.`;
}
