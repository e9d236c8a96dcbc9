/** A client may write megabytes where a name belongs. */
const TRUNCATED_CHARACTERS = 200;
const LISTED_NAMES = 10;
const LISTED_CHARACTERS = 60;

/** As much of a text as a message shows. Never half a character: strict clients refuse the JSON around it. */
export function truncate(text: string, length = TRUNCATED_CHARACTERS): string {
  if (text.length <= length) return text.toWellFormed();
  return `${text
    .slice(0, length)
    .replace(/[\ud800-\udbff]$/, "")
    .toWellFormed()}…`;
}

/** As many names as a message lists, with how many more there are. */
export function listed(names: readonly string[]): string {
  const some = names.slice(0, LISTED_NAMES).map((name) => `'${truncate(name, LISTED_CHARACTERS)}'`);
  const restCount = names.length - some.length;
  return [...some, ...(restCount > 0 ? [`and ${restCount} more`] : [])].join(", ");
}
