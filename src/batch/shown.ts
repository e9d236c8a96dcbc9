/** A client may write megabytes where a name belongs. */
const SHOWN_CHARACTERS = 200;

/** As much of a text as a message shows. */
export const shown = (text: string): string =>
  text.length <= SHOWN_CHARACTERS ? text : `${text.slice(0, SHOWN_CHARACTERS)}…`;
