/** A client may write megabytes where a name belongs. */
const SHOWN_CHARACTERS = 200;

/** As much of a text as a message shows. Never half a character: strict clients refuse the JSON around it. */
export function shown(text: string, length = SHOWN_CHARACTERS): string {
  if (text.length <= length) return text.toWellFormed();
  return `${text
    .slice(0, length)
    .replace(/[\ud800-\udbff]$/, "")
    .toWellFormed()}…`;
}
